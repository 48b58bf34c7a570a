//! What the handles of all kinds of locks do, written once; [`Lock`](super::lock::Lock) has it as its methods.

use std::{convert::identity, sync::Arc, time::Duration};

use super::{Force, Forced, Guard, Lease};
use crate::{
    backoff::Backoff,
    config::lease_ms,
    core::{
        adopt::Taken,
        fork_safe::ForkSafeCore,
        lease::{HeldLease, HoldToAdopt},
        owner_claims::OwnerClaim,
        release::Unlocked,
        send_once::{Counted, SentOnce},
    },
    error::{Error, ErrorKind},
    keys::{KeyKind, Keys},
    name::LockName,
    owner::Owner,
    recipes::{Forcing, LeaseTerm, Recipe},
    scripts,
    store::{Call, Fault, protocol_error},
};

/// A name, the kind of lock that it is, and the client.
#[derive(Clone)]
pub(crate) struct LockHandle {
    pub(crate) core: ForkSafeCore,
    pub(crate) keys: Arc<Keys>,
    pub(crate) recipe: &'static dyn Recipe,
    /// Every grant draws a token.
    pub(crate) fenced: bool,
    /// An owner may enter a lock that it holds.
    pub(crate) reentrant: bool,
    /// The pauses of kinds without a channel.
    pub(crate) backoff: Option<Backoff>,
    /// Tasks of this process that want these keys go first.
    pub(crate) local_writers_first: Option<Arc<Keys>>,
}

impl LockHandle {
    pub(crate) fn new(
        core: &ForkSafeCore,
        name: LockName,
        kind: KeyKind,
        recipe: &'static dyn Recipe,
    ) -> Self {
        LockHandle {
            core: core.clone(),
            keys: Arc::new(Keys::new(name, kind)),
            recipe,
            fenced: false,
            reentrant: true,
            backoff: None,
            local_writers_first: None,
        }
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.keys.name
    }

    pub(crate) async fn force(&self, force: &Force) -> Result<Forced, Error> {
        self.ready()?;
        force.check().map_err(|error| error.on(self.name()))?;
        let record = force.record(&self.core, &self.keys);
        let ask = async |record| {
            let (number, publish) = (self.core.fresh_number(), self.core.store.publish_command());
            let forcing = Forcing { number, owner: force.named_owner(), publish, record };
            let call = self.recipe.force(&self.keys, &forcing);
            self.core.run_checked(call, number, false).await
        };
        let reply = match ask(Some(&record)).await {
            // Nothing has run. The account may have no right to the record, and still one to the lock.
            Err(Fault::Server(error)) if error.kind() == ErrorKind::Permission => ask(None).await,
            outcome => outcome,
        };
        let reply = reply.map_err(|fault| self.error(fault))?;
        let forced = match reply.get(1) {
            Some(1) => Forced::Released,
            Some(0) => Forced::WasFree,
            Some(-1) => return Ok(Forced::OtherOwner),
            Some(-2) => {
                return Err(Error::new(
                    ErrorKind::WrongLockKind,
                    "a lock of another kind is held under this name",
                )
                .on(self.name()));
            }
            _ => {
                return Err(
                    Error::new(ErrorKind::Protocol, "a forced release answered nonsense").on(self.name())
                );
            }
        };
        // Ending a write hold ends the read holds of its owner, too.
        let nested = self.keys.readers.iter().flat_map(|readers| self.core.lanes.find(readers));
        for lease in self.core.lanes.find(&self.keys).into_iter().chain(nested) {
            self.core.recheck_now(lease).await;
        }
        Ok(forced)
    }

    pub(crate) fn guard(&self, lease: Arc<HeldLease>, lease_term: LeaseTerm) -> Guard {
        Guard::new(Arc::clone(&self.core), lease, lease_term, self.reentrant)
    }

    /// The last token that was drawn for the name.
    pub(crate) async fn last_token(&self) -> Result<Option<u64>, Error> {
        self.ready()?;
        let number = self.core.fresh_number();
        let call = Call::new(&scripts::COUNTER_GET).key(self.keys.token()).request_number(number);
        let reply = self.core.run_checked(call, number, false).await.map_err(|fault| self.error(fault))?;
        Ok(reply.get(2).and_then(|token| u64::try_from(*token).ok()).filter(|token| *token > 0))
    }

    pub(crate) async fn query(&self, owner: Option<&Owner>) -> Result<(i64, i64), Error> {
        self.ready()?;
        self.core.keeper.note_call();
        let call = self.recipe.query(&self.keys, owner.map_or("", |owner| owner.field()));
        let reply = self.core.run(call).await.map_err(|fault| self.error(fault))?;
        match reply.array() {
            Some([ttl, holds]) => ttl.int().zip(holds.int()),
            _ => None,
        }
        .ok_or_else(|| protocol_error("query", &reply).on(self.name()))
    }

    pub(crate) async fn adopt(&self, owner: &Owner, lease: Lease) -> Result<Option<Guard>, Error> {
        let lease_term = self.lease_term_of(lease)?;
        self.owner_here(owner)?;
        let (keys, owner) = (self.keys.clone(), owner.clone());
        let left =
            Arc::new(HoldToAdopt { keys, recipe: self.recipe, owner, lease_term, fenced: self.fenced });
        let owner = &left.owner;
        // What is under way for the owner here has come to its end.
        let claim = self.claim(owner).await?;
        let taken = self.core.take_up(&left, claim).await;
        match taken.map_err(|fault| self.error(fault).by(owner))? {
            Taken::Gone => Ok(None),
            Taken::Adopted(lease) => Ok(Some(self.guard(lease, lease_term))),
            Taken::WrongKind => {
                let what = "the owner holds the name as another kind of lock";
                Err(Error::new(ErrorKind::WrongLockKind, what).on(self.name()).by(owner))
            }
            Taken::Several => {
                let what = "the owner holds more than once, so other processes may hold under it";
                Err(Error::new(ErrorKind::AlreadyHeld, what)
                    .remedy("enter with `acquire().owner(…)`, and give the hold that was left back with `release`")
                    .on(self.name())
                    .by(owner))
            }
        }
    }

    async fn claim(&self, owner: &Owner) -> Result<OwnerClaim, Error> {
        let claim = self.core.claim_to_adopt(&self.keys, owner).await;
        claim.map_err(|error| error.on(self.name()).by(owner))
    }

    pub(crate) async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, Error> {
        self.owner_here(owner)?;
        let lease_ms = lease_ms(lease).map_err(|error| error.on(self.name()))?;
        self.renew_hold(&self.hold_of(owner, LeaseTerm { lease_ms, renewed: false }), lease_ms).await
    }

    /// A hold as this process would know it, were it its own.
    fn hold_of(&self, owner: &Owner, lease_term: LeaseTerm) -> Arc<HeldLease> {
        let sent_at = self.core.sent_at(&self.keys);
        Arc::new(HeldLease::new(self.keys.clone(), owner.clone(), self.recipe, None, lease_term, sent_at))
    }

    async fn renew_hold(&self, lease: &Arc<HeldLease>, lease_ms: i64) -> Result<bool, Error> {
        self.ready()?;
        let renewed = self.core.renew_one(lease, lease_ms).await;
        renewed.map_err(|fault| self.error(fault).by(&lease.owner))
    }

    pub(crate) async fn release(&self, owner: &Owner) -> Result<Unlocked, Error> {
        self.owner_here(owner)?;
        let block = self.core.owners.block(&self.keys, owner);
        let (core, keys, of, recipe) = (self.core.clone(), self.keys.clone(), owner.clone(), self.recipe);
        let work = async move {
            // An attempt that asks may come to have a guard.
            core.until_no_attempt_asks(&block).await;
            // When its lease ends is not known here.
            let holds = Counted { keys: &keys, owner: &of, recipe, over_ms: u64::MAX };
            let sent = core.send_once(holds, Some(&block), || {
                // The guard would not hear of the release, and say that it is valid.
                core.refuse_beside_a_guard(&keys, &of)
                    .map_err(|held| Fault::Server(held.remedy("unlock or drop the guard")))?;
                Ok(recipe.release_one(&keys, &of, core.store.publish_command(), 0, 0))
            });
            match sent.await? {
                SentOnce::Answered(reply) => Ok(reply),
                SentOnce::NotSent(held) => Err(held),
            }
        };
        // The owner's next attempt waits for it.
        let reply =
            self.core.run_on_keeper(work, |_| {}).outcome().await.map_err(Fault::Server).and_then(identity);
        let reply = reply.map_err(|fault| self.error(fault).by(owner))?;
        match reply.get(1) {
            Some(0) => Ok(Unlocked::Released),
            Some(left) if *left > 0 => Ok(Unlocked::StillHeld(u32::try_from(*left).unwrap_or(u32::MAX))),
            _ => Err(Error::new(ErrorKind::NotOwner, "the lock is not held by this owner")
                .on(self.name())
                .by(owner)
                .remedy("its lease may have ended; `redlatch show` names the present holder")),
        }
    }

    /// Refuses to act in the name of an owner that a fork has left to the parent process.
    fn owner_here(&self, owner: &Owner) -> Result<(), Error> {
        self.ready()?;
        self.core.check_owner(owner).map_err(|error| error.on(self.name()).by(owner))
    }

    pub(crate) fn ready(&self) -> Result<(), Error> {
        self.core.check_open().and_then(|()| self.keys.check()).map_err(|error| error.on(self.name()))
    }

    fn error(&self, fault: Fault) -> Error {
        fault.into_error().on(self.name())
    }

    pub(super) fn lease_term_of(&self, lease: Lease) -> Result<LeaseTerm, Error> {
        lease.lease_term(&self.core.config).map_err(|error| error.on(self.name()))
    }

    /// A wait without limit ended as if it had one.
    pub(crate) fn unlimited_wait_error(&self) -> Error {
        Error::new(ErrorKind::Protocol, "a wait without limit ended as if it had one").on(self.name())
    }
}
