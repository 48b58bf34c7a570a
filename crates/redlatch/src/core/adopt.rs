//! Taking up a hold that another process left: it moves to an owner of its own, of which nothing else is under way.
//!
//! What the other process sent for its owner may arrive at any time: a release, a lease that is to be shorter. It finds that
//! owner without a hold. And of several processes that take up one hold, one gets it.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;

use super::{
    Core,
    lease::{HeldLease, HoldToAdopt},
    owner_claims::{OwnerBlock, OwnerClaim},
    release::{RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_MIN, Unlocked},
    undo::LATE_LOOKS_MS,
};
use crate::{
    error::{Error, ErrorKind},
    jitter::jittered,
    observe::HoldEnd,
    owner::Owner,
    recipes::TransferTarget,
    store::Fault,
};

/// What became of a hold that was to be taken up.
pub(crate) enum Taken {
    /// It has an owner of its own, and this process looks after it.
    Adopted(Arc<HeldLease>),
    /// The owner has more than this hold, and keeps it.
    Several,
    /// The owner has no hold.
    Gone,
    WrongKind,
}

impl Core {
    /// Moves the one hold of an owner to a fresh one. A move that no task waits for any more, or that was not answered, is undone.
    pub(crate) async fn take_up(
        self: &Arc<Self>,
        left: &Arc<HoldToAdopt>,
        claim: OwnerClaim,
    ) -> Result<Taken, Fault> {
        // Nothing else is done in the owner's name until this is through, or undone.
        let block = self.owners.block(&left.keys, &left.owner);
        let core = self.clone();
        let moving = self.clone().move_to_own(left.clone(), block).inspect(move |_| drop(claim));
        let moving = self.run_on_keeper(moving, move |outcome| {
            if let Ok((Taken::Adopted(lease), Some(block))) = outcome
                && let Some(left) = lease.give_up()
            {
                core.hold_ended(&lease, HoldEnd::GivenBack);
                core.lanes.forget(&lease);
                core.move_back_later(&left, lease.owner.clone(), false, block);
            }
        });
        let (taken, _) = moving.outcome().await.map_err(Fault::Server)??;
        match taken {
            // A shutdown has given it back.
            Taken::Adopted(lease) if lease.claim().is_none() => Err(Fault::Server(self.closed_error())),
            taken => Ok(taken),
        }
    }

    /// The block goes with a hold that was moved: it lasts until a task takes that, and no longer.
    async fn move_to_own(
        self: Arc<Self>,
        left: Arc<HoldToAdopt>,
        block: OwnerBlock,
    ) -> Result<(Taken, Option<OwnerBlock>), Fault> {
        let HoldToAdopt { lease_term, fenced, .. } = *left;
        let (own, sent_at) = (self.fresh_owner(), self.sent_at(&left.keys));
        let recipient = TransferTarget::adopting(&own, lease_term, fenced);
        let call = left.recipe.transfer(&left.keys, &left.owner, &recipient);
        // The owner's next hold would move as well, if this came late.
        let reply = self.run_taking_away_now(call, own.request_number_placeholder(), false, &block).await;
        let token = match reply {
            Ok(reply) => match reply[..] {
                [_, 1, token] => (fenced && token > 0).then_some(token as u64),
                [_, 2, _] => return Ok((Taken::Several, None)),
                [_, -1, _] => return Ok((Taken::WrongKind, None)),
                _ => return Ok((Taken::Gone, None)),
            },
            Err(fault) => {
                if fault.is_unknown() {
                    self.move_back_later(&left, own, true, block);
                }
                return Err(fault);
            }
        };
        let lease = Arc::new(HeldLease::new(left.keys.clone(), own, left.recipe, token, lease_term, sent_at));
        lease.taken_up_from(left);
        let failed = if !lease.is_valid(self.now_ms()) {
            let late = Error::new(ErrorKind::Timeout, "the adoption took longer than its lease");
            late.remedy("use a longer lease, or look at the server's load")
        } else {
            match self.add_lease_and_check_open(&lease, None) {
                Ok(()) => return Ok((Taken::Adopted(lease), Some(block))),
                Err(closed) => {
                    self.lanes.forget(&lease);
                    closed
                }
            }
        };
        if let Some(left) = lease.give_up() {
            self.hold_ended(&lease, HoldEnd::GivenBack);
            self.move_back(&left, &lease.owner).await;
        }
        Err(Fault::Server(failed))
    }

    /// Gives a hold back to its owner that no task has yet, when the client is shut down.
    pub(super) async fn leave_again(
        self: &Arc<Self>,
        left: &HoldToAdopt,
        own: &Owner,
    ) -> Result<Unlocked, Error> {
        let _cover = self.owners.block(&left.keys, &left.owner);
        if self.move_back(left, own).await {
            return Ok(Unlocked::Released);
        }
        let lost = "a hold that was being taken up could not be given back to its owner";
        Err(Error::new(ErrorKind::Lost, lost).remedy("its lease ends it"))
    }

    /// A request that was not answered may still arrive and take the hold up again, so this looks again later.
    fn move_back_later(
        self: &Arc<Self>,
        left: &Arc<HoldToAdopt>,
        own: Owner,
        may_arrive_later: bool,
        block: OwnerBlock,
    ) {
        let (core, left) = (self.clone(), left.clone());
        self.keeper.spawn(async move {
            let there = core.move_back(&left, &own).await;
            // The next attempt to take it up waits no longer than this.
            drop(block);
            if there || !may_arrive_later {
                return;
            }
            for look_ms in &LATE_LOOKS_MS[1..] {
                tokio::time::sleep(Duration::from_millis(*look_ms)).await;
                if core.move_back(&left, &own).await {
                    return;
                }
            }
        });
    }

    /// Whether there was something to give back. Asks until it is answered, or the lease is over.
    async fn move_back(self: &Arc<Self>, left: &HoldToAdopt, own: &Owner) -> bool {
        let over_ms = self.now_ms().saturating_add(left.lease_term.lease_ms.max(0) as u64);
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        loop {
            let call =
                left.recipe.transfer(&left.keys, own, &TransferTarget::former(&left.owner, left.lease_term));
            let fault = match self.run_checked(call, left.owner.request_number_placeholder(), true).await {
                Ok(reply) => return reply.get(1) == Some(&1),
                Err(fault) => fault,
            };
            let refused = matches!(&fault, Fault::Server(error) if !error.is_retryable());
            if refused || self.is_disconnected() || self.now_ms() >= over_ms {
                tracing::warn!(lock = %left.keys.name, error = %fault.into_error(),
                    "a hold that was taken up for no task could not be given back to its owner; its lease ends it");
                return false;
            }
            self.keeper.pause(jittered(Duration::from_millis(delay_ms))).await;
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
        }
    }
}
