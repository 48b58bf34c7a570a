//! Acquiring: from the owner's turn over its lane to the contest. What one attempt of the contest sends is in `acquirer.rs`.
//!
//! Every attempt of one acquire uses the same owner, and the script grants an owner at most once however often it
//! asks. That makes it safe to ask again after an unknown outcome: either the earlier request is found to have been
//! granted, or this one is (`docs/protocol.md`, acquire). An owner that another process may use asks for a first hold, and enters
//! the one that is there. ContestStart an unknown outcome the server may count one hold too many until the lease ends, and never one too few.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
};

use super::{
    Core, Grant, Request, Wait,
    acquirer::{Acquirer, ContestStart},
    lanes::Enter,
    lease::Lease,
    owners::{AttemptMode, Turn},
    shared::already_held,
    wait::{Deadline, Handed, LaneSlot, Waiter},
};
use crate::{
    catch_panic::catch_panic,
    error::{Error, ErrorKind},
    keys::{Keys, Kind},
    owner::Owner,
    replica_ack::Replication,
};

impl Core {
    /// Acquires a hold, waiting as the request says. `None` means busy.
    pub(crate) async fn acquire(self: &Arc<Self>, request: Arc<Request>) -> Result<Option<Grant>, Error> {
        self.check_process()?;
        // Noted before looking whether the client is open, so that shutting down waits for each task that found it so.
        let _under_way = self.keeper.begin();
        self.check_open()?;
        request.keys.check()?;
        let deadline = Deadline::new(self, request.wait);
        // Without a listener the clock is not asked.
        let began_ms = tracing::enabled!(tracing::Level::DEBUG).then(|| self.now_ms());
        let outcome = match &request.owner {
            None => {
                let work = pin!(self.acquire_in_lane(&request, &deadline, None));
                request.pulse.shown(work).await.map(Entered::grant)
            }
            // Boxed, so that the future of an acquire stays small for those who need no turn.
            Some(owner) => {
                let mut work = Box::pin(self.acquire_as(&request, owner, &deadline));
                request.pulse.shown(work.as_mut()).await
            }
        };
        if let (Ok(grant), Some(began_ms)) = (&outcome, began_ms) {
            // Written without `Display`, which would count as showing the owner to others.
            let owner = grant.as_ref().map_or("", |grant| &**grant.lease.owner.field());
            let after_ms = self.now_ms() - began_ms;
            // A log that panics would take the grant with it.
            catch_panic(|| {
                tracing::debug!(lock = %request.keys.name, owner, after_ms, acquired = grant.is_some(), "an acquire has ended");
            });
        }
        outcome.map_err(|error| {
            let error = error.on(&request.keys.name);
            match &request.owner {
                Some(owner) => error.by(owner),
                None => error,
            }
        })
    }

    /// Acquires for an owner that can be used again: in its turn, and when nothing of it is under way that could take the hold
    /// away. The turn lasts until the lane knows the hold, or what is left of the attempt is covered.
    async fn acquire_as(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        deadline: &Deadline,
    ) -> Result<Option<Grant>, Error> {
        let Some(mut turn) = self.turn_of(request, owner, deadline).await? else { return Ok(None) };
        turn.blocked_by_reads_only = request.under_own_write_lock;
        let key = &*request.keys.key;
        loop {
            match self.acquire_in_lane(request, deadline, Some(&turn)).await? {
                // A late request may have removed the hold. It is given back, and then asked for again.
                Entered::Done(Some(grant)) if turn.is_disturbed() => {
                    turn.rests();
                    self.drop_hold(&grant.lease, grant.term);
                }
                Entered::Done(grant) => return Ok(grant),
                Entered::PassedOver | Entered::NotYet => {}
            }
            // What is under way for the owner waits for its attempt.
            turn.rests();
            // A call that does not wait for others waits for its own release all the same, for the response timeout at most.
            let moment = self.response_deadline();
            let deadline = if request.wait == Wait::No { &moment } else { deadline };
            match Waiter::default().take_turn(self, key, turn.quiet(), deadline).await? {
                Some(quiet) => quiet?,
                None => return Ok(None),
            }
        }
    }

    /// Waits for the owner's turn. An attempt that does not wait for others waits for one that does not, either.
    async fn turn_of(
        self: &Arc<Self>,
        request: &Request,
        owner: &Owner,
        deadline: &Deadline,
    ) -> Result<Option<Turn>, Error> {
        let what = if request.wait == Wait::No { AttemptMode::Once } else { AttemptMode::Waits };
        let other = match self.owners.try_turn(&request.keys, owner, what) {
            Ok(turn) => return Ok(Some(turn)),
            Err(other) => other,
        };
        let moment = self.response_deadline();
        let deadline = match (what, other) {
            (AttemptMode::Waits, _) => deadline,
            (AttemptMode::Once, AttemptMode::Once) => &moment,
            (AttemptMode::Once, AttemptMode::Waits) => return Ok(None),
        };
        let turn = self.owners.turn(&request.keys, owner, what);
        Waiter::default().take_turn(self, &request.keys.key, turn, deadline).await
    }

    /// What another request of an owner is given to come to its end, by a call that does not wait.
    fn response_deadline(self: &Arc<Self>) -> Deadline {
        Deadline::new(self, Wait::AtMost(self.config.response_timeout))
    }

    /// The owner's turn, when nothing of it is under way that could take a hold away.
    ///
    /// # Errors
    ///
    /// Another attempt or a release of the owner does not come to its end; a guard of this process holds under it,
    /// and counts for all that the owner has.
    pub(crate) async fn turn_to_adopt(
        self: &Arc<Self>,
        keys: &Arc<Keys>,
        owner: &Owner,
    ) -> Result<Turn, Error> {
        let busy = || Error::new(ErrorKind::Timeout, "an earlier request of this owner is still under way");
        let moment = self.response_deadline();
        let turn = self.owners.turn(keys, owner, AttemptMode::Once);
        let turn = Waiter::default().take_turn(self, &keys.key, turn, &moment).await?.ok_or_else(busy)?;
        // Doubt is no matter: what is still on its way for the owner does not meet the hold once it has moved.
        Waiter::default()
            .take_turn(self, &keys.key, turn.begun_with_a_hold(), &moment)
            .await?
            .ok_or_else(busy)?;
        let elsewhere = !owner.is_foreign() && !self.has_made(owner) && owner.is_holding();
        if elsewhere || self.has_guard(keys, owner) {
            return Err(Error::new(ErrorKind::AlreadyHeld, "this process has a guard under this owner")
                .remedy("enter with `acquire().owner(…)`, or detach the guard first"));
        }
        Ok(turn)
    }

    /// Whether this client has a guard under an owner, of this kind of lock or of the one that shares its field on the server.
    pub(crate) fn has_guard(&self, keys: &Arc<Keys>, owner: &Owner) -> bool {
        let holds = |keys| self.lanes.find(keys).iter().any(|lease| lease.owner == *owner && lease.is_held());
        holds(keys) || keys.twin().is_some_and(holds)
    }

    /// Whether a lease of an owner is here, of this kind of lock or of the one that shares its field on the server: what the server has of
    /// the owner may be that one's.
    pub(super) fn has_lease(&self, keys: &Arc<Keys>, owner: &Owner) -> bool {
        let has = |keys| self.lanes.find(keys).iter().any(|lease| lease.owner == *owner);
        has(keys) || keys.twin().is_some_and(has)
    }

    /// The write hold here of an owner about whose read holds something is done. Its guard can hand the owner out at any moment, and a process
    /// that was handed it may read before a request arrives that is on its way.
    pub(super) fn own_write_lease(&self, keys: &Arc<Keys>, owner: &Owner) -> Option<Arc<Lease>> {
        if keys.kind != Kind::Read || !owner.is_exposed() || !owner.is_holding() {
            return None;
        }
        let writing = Arc::new(Keys::new(keys.name.clone(), Kind::Write));
        self.lanes.find(&writing).into_iter().find(|lease| lease.owner == *owner && lease.is_held())
    }

    /// Refuses an owner that holds the name as a lock of another kind: the server has one field for both, and would take the one for
    /// a repeat of the other. With the owner's turn no other attempt of it is under way.
    pub(super) fn check_kind(&self, request: &Request) -> Result<(), Error> {
        let Some(owner) = &request.owner else { return Ok(()) };
        // Holds of a shared owner may be noted with another value of it.
        if !owner.is_shared() && !owner.is_holding() {
            return Ok(());
        }
        let Some(twin) = request.keys.twin() else { return Ok(()) };
        if !self.lanes.find(twin).iter().any(|lease| lease.owner == *owner && lease.is_held()) {
            return Ok(());
        }
        let kind = if request.keys.kind == Kind::Fair { "a lock that is not fair" } else { "a fair lock" };
        let message = format!("the owner holds the name already, as {kind}");
        Err(Error::new(ErrorKind::WrongLockKind, message))
    }

    async fn acquire_in_lane(
        self: &Arc<Self>,
        request: &Arc<Request>,
        deadline: &Deadline,
        turn: Option<&Turn>,
    ) -> Result<Entered, Error> {
        self.check_kind(request)?;
        // A task that needs no turn has just come.
        let mut now_ms = if turn.is_none() { deadline.began_ms() } else { self.now_ms() };
        loop {
            match self.enter_lane(request, deadline, turn, now_ms).await? {
                Entered::PassedOver if deadline.is_over(self) => return Ok(Entered::Done(None)),
                Entered::PassedOver => now_ms = self.now_ms(),
                entered => return Ok(entered),
            }
        }
    }

    async fn enter_lane(
        self: &Arc<Self>,
        request: &Arc<Request>,
        deadline: &Deadline,
        turn: Option<&Turn>,
        now_ms: u64,
    ) -> Result<Entered, Error> {
        let waits = request.wait != Wait::No;
        let grant = match self.lanes.enter(request, turn, now_ms)? {
            // Boxed, so that the future of an acquire stays small for those who are handed the lock here.
            Enter::Lead => {
                let place = LaneSlot::lead(self, request);
                return Box::pin(self.contend(request, deadline, place, ContestStart::default())).await;
            }
            Enter::Bypass => {
                let place = LaneSlot::bypass(self, &request.keys);
                return Box::pin(self.contend(request, deadline, place, ContestStart::default())).await;
            }
            Enter::Busy => None,
            Enter::ReleaseInFlight => self.busy_or_outage(&request.keys.key, deadline)?,
            Enter::AwaitRelease => return Ok(Entered::NotYet),
            Enter::Reenter(lease) => return self.acquire_again(request, &lease).await,
            Enter::Queue(line) => {
                let mut place = LaneSlot::queued(self, line);
                // The hold in front of it may have to be looked at, which is done while calls are made.
                self.keeper.touch();
                // A task that does not wait is in line only for a release that is on its way.
                let deadline = &if waits { *deadline } else { self.response_deadline() };
                match place.handed(deadline).await? {
                    None => None,
                    Some(Handed::Lease(lease)) => Some(Grant { term: lease.term(), lease }),
                    Some(Handed::PassedOver) => return Ok(Entered::PassedOver),
                    Some(Handed::Contend { after_others, outcome_unknown }) => {
                        let place = LaneSlot::lead(self, request);
                        // Those before it have used the time up that an outage is ridden out for; unless its owner may have the lock unseen.
                        if request.wait == Wait::Forever && !outcome_unknown {
                            self.check_outage_tolerance(&request.keys.key, deadline)?;
                        }
                        let after = ContestStart { yield_first: after_others, outcome_unknown };
                        return Box::pin(self.contend(request, deadline, place, after)).await;
                    }
                }
            }
        };
        Ok(Entered::Done(grant))
    }

    /// Enters a hold that the same owner has.
    async fn acquire_again(
        self: &Arc<Self>,
        request: &Request,
        lease: &Arc<Lease>,
    ) -> Result<Entered, Error> {
        if !request.reentrant {
            return Err(already_held());
        }
        if request.fenced && lease.token.is_none() {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                "the owner holds the lock without a token, and a re-entry draws none",
            )
            .remedy("draw the token with the first hold"));
        }
        if let Some(error) = unconfirmed(lease, request.ack) {
            return Err(error);
        }
        match self.reenter(lease, request.term).await {
            Ok(grant) => Ok(Entered::Done(Some(grant))),
            // Its last guard gave it back meanwhile, so it is to be acquired anew.
            Err(error) if lease.is_given_back() && error.kind() == ErrorKind::Lost => {
                Ok(if request.wait == Wait::No { Entered::Done(None) } else { Entered::NotYet })
            }
            Err(error) => Err(error),
        }
    }

    /// Contends at the server until granted, refused, or out of time.
    async fn contend(
        self: &Arc<Self>,
        request: &Arc<Request>,
        deadline: &Deadline,
        place: LaneSlot,
        after: ContestStart,
    ) -> Result<Entered, Error> {
        let owner = request.owner.clone().unwrap_or_else(|| self.fresh_owner());
        let mut acquirer = Acquirer::new(self, request, owner, *deadline, after);
        let won = self.contest(&mut acquirer, request.wait, deadline, after.yield_first).await?;
        if acquirer.passed_over {
            return Ok(Entered::PassedOver);
        }
        let Some(lease) = won else {
            acquirer.step_back().await;
            return Ok(Entered::Done(None));
        };
        if !acquirer.rests() {
            return Ok(Entered::PassedOver);
        }
        acquirer.granted = true;
        let outcome_unknown = acquirer.outcome_unknown;
        drop(acquirer);
        lease.outcome_unknown.fetch_or(outcome_unknown, Ordering::Relaxed);
        if let Err(closed) = place.granted(&lease) {
            self.drop_hold(&lease, request.term);
            return Err(closed);
        }
        Ok(Entered::Done(Some(Grant { lease, term: request.term })))
    }
}

/// What coming into a lane came to.
enum Entered {
    Done(Option<Grant>),
    /// An earlier request of the owner is under way; come in again when it is not.
    NotYet,
    /// The task was handed the lock and not polled in time; come in again.
    PassedOver,
}

impl Entered {
    fn grant(self) -> Option<Grant> {
        match self {
            Entered::Done(grant) => grant,
            // Only owners that can be used again have earlier requests.
            Entered::NotYet | Entered::PassedOver => None,
        }
    }
}

/// Why an owner cannot enter a hold once more, when it wants replicas to have confirmed it.
fn unconfirmed(lease: &Lease, ack: Option<Replication>) -> Option<Error> {
    let ack = ack?;
    let enough = ack.is_met_by(lease.replicated()) || (ack.keep && lease.replicated().is_some());
    (!enough).then(|| {
        Error::new(
            ErrorKind::InvalidOption,
            "the owner holds the lock without that acknowledgement by replicas, and a re-entry asks for none",
        )
        .remedy("ask for it with the first hold")
    })
}
