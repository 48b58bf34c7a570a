//! Releasing: first the renewal stops, then the lease is passed on or the server is told.
//!
//! The owner field makes a release harmless to repeat: it removes one owner's field and nobody else's, so a lost reply
//! is answered by asking again, until the lease has certainly ended.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    Core, Expected, Request,
    flight::{Flight, Rest, Work},
    jitter::jittered,
    keeper::told,
    lane::{LanePolicy, Queued},
    lanes::{Heir, Leaving},
    lease::{Lease, Term, margin_ms},
    owners::Pending,
};
use crate::{
    config::FAIR_WAIT,
    error::{Error, ErrorKind, LossReason},
    owner::Owner,
    scripts,
    store::{Call, Fault, Reply},
};

/// Pauses between repeats of a release whose outcome is unknown.
pub(super) const RETRY_DELAY_MS_MIN: u64 = 20;
pub(super) const RETRY_DELAY_MS_MAX: u64 = 500;
/// How long the answer to a release that was given up is waited for before it is repeated.
const ABANDONED_TIME: Duration = Duration::from_millis(50);
/// When a request with an unknown outcome may still arrive: looks after it at these times, in ms.
pub(super) const LATE_LOOKS_MS: [u64; 4] = [0, 150, 1_000, 3_000];
/// A count above all: to the script, giving back one of so many holds is a repeat, and no hold goes.
const HOLDS_STAY: u32 = u32::MAX;

/// Whether a request may still be on its way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// Its answer tells of a grant.
    Granted,
    /// It has been answered, and not with a grant: one look finds all that it left.
    Arrived,
    /// Its outcome is unknown, and it may run later.
    MayArriveLater,
}

/// An owner that may be used again is looked after once and at once, because it is granted nothing meanwhile, and its next
/// attempt takes over what arrives later.
fn late_looks_ms(owner: &Owner) -> &'static [u64] {
    if owner.is_exposed() { &LATE_LOOKS_MS[..1] } else { &LATE_LOOKS_MS }
}

/// How the last hold of a lease is ended on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The owner's field goes, whatever it counts.
    Whole,
    /// One hold goes, because other processes may have holds of the owner.
    OneHold,
}

/// Whether the server counts a hold that goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    Surely,
    /// A request without an answer may have turned it into another one.
    Perhaps,
}

/// What undoing a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undone {
    /// There was something, and it is gone.
    Found,
    Nothing,
    /// Another process holds under the owner besides.
    Shared,
    /// Nobody answered for as long as it can be there.
    Unknown,
}

/// What became of a request.
type Asked = Result<Reply, Fault>;

/// What became of a hold that was given back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unlocked {
    /// The lock is free, or has passed to the next waiter.
    Released,
    /// Other holds of the same owner remain, this many.
    StillHeld(u32),
    /// The hold had been lost before.
    AlreadyLost(LossReason),
}

/// What giving back one hold comes to.
pub(super) enum Step {
    Lost(LossReason),
    Passed,
    Leave { pending: Pending },
    Transfer { heir: Box<Heir>, pending: Pending },
    HandOver { heir: Box<Heir>, pending: Pending },
    Release { leads: bool, pending: Pending },
}

impl Core {
    /// Gives back one hold. Cancelling the future does not cancel the release.
    pub(crate) async fn unlock(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        renewed: bool,
    ) -> Result<Unlocked, Error> {
        let outcome = match self.begin(lease, renewed) {
            Step::Passed => Ok(Unlocked::Released),
            Step::Lost(reason) => Ok(Unlocked::AlreadyLost(reason)),
            Step::Release { leads, pending }
                if !lease.has_turns() && !lease.tainted.load(Ordering::Relaxed) && pending.is_alone() =>
            {
                self.release_now(lease, leads, pending).await
            }
            // The next task waits for it, or other guards of the lease do.
            step @ (Step::Leave { .. } | Step::Transfer { .. } | Step::HandOver { .. }) => {
                let done = self.drive(self.clone().complete(lease.clone(), step), |_| {}).outcome().await;
                done.and_then(std::convert::identity)
            }
            step @ Step::Release { .. } => {
                let work = Box::pin(self.clone().complete(lease.clone(), step));
                Flight::new(self, work, || None).await
            }
        };
        outcome.map_err(|error| error.on(&lease.keys.name).by(&lease.owner))
    }

    /// The ordinary release: one request in the caller's task. Only trouble costs more.
    async fn release_now(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        leads: bool,
        pending: Pending,
    ) -> Result<Unlocked, Error> {
        self.keeper.touch();
        let mut pending = Some(pending);
        let (call, way) = self.release_call(lease);
        let flight = Flight::new(self, self.run(call), || {
            let pending = pending.take()?;
            let (core, held) = (self.clone(), lease.clone());
            let then = Box::new(move |outcome| {
                let settling = core.clone().settle_abandoned(held, leads, pending, way, outcome);
                core.keeper.spawn(async move {
                    // The task that wanted to know is gone.
                    let _ = settling.await;
                });
            });
            Some(Rest::Within(ABANDONED_TIME, then))
        });
        let outcome = flight.await;
        let Some(pending) = pending else {
            return Err(Error::new(ErrorKind::Protocol, "a release was answered after it had been given up"));
        };
        match self.read_release(lease, &pending, way, outcome) {
            Ok(outcome) => self.released(lease, leads, pending, Ok(outcome)),
            Err(fault) => {
                let work = Box::pin(self.clone().settle(lease.clone(), leads, pending, way, Err(fault)));
                Flight::new(self, work, || None).await
            }
        }
    }

    /// Sees a release through whose first request has ended somehow.
    pub(super) async fn settle(
        self: Arc<Self>,
        lease: Arc<Lease>,
        leads: bool,
        pending: Pending,
        way: Way,
        outcome: Result<Reply, Fault>,
    ) -> Result<Unlocked, Error> {
        let outcome = match self.read_release(&lease, &pending, way, outcome) {
            Ok(outcome) => Ok(outcome),
            Err(fault) => self.release_again(&lease, &pending, fault).await,
        };
        self.released(&lease, leads, pending, outcome)
    }

    /// As [`settle`](Self::settle) for a release that nobody waits for. Without an answer it is repeated on the keeper's
    /// connection, because its own may be driven by a runtime that does not run any more.
    async fn settle_abandoned(
        self: Arc<Self>,
        lease: Arc<Lease>,
        leads: bool,
        pending: Pending,
        way: Way,
        outcome: Result<Asked, Work<Asked>>,
    ) -> Result<Unlocked, Error> {
        let work = match outcome {
            Err(work) if !lease.owner.is_shared() => work,
            Err(work) => return self.clone().settle(lease, leads, pending, way, work.await).await,
            Ok(outcome) => return self.settle(lease, leads, pending, way, outcome).await,
        };
        lease.doubts_end();
        let (cover, held, core) = (pending.another(), lease.clone(), self.clone());
        self.keeper.handle().spawn(async move {
            // Until it is answered it may still arrive.
            let _ = core.read_release(&held, &cover, way, work.await);
        });
        let outcome = match self.release_once(&lease, true, &pending).await {
            Ok(outcome) => Ok(outcome),
            Err(fault) => self.release_again(&lease, &pending, fault).await,
        };
        self.released(&lease, leads, pending, outcome)
    }

    /// The release is over: the lane goes on.
    pub(super) fn released(
        &self,
        lease: &Arc<Lease>,
        leads: bool,
        pending: Pending,
        outcome: Result<(Unlocked, i64), Error>,
    ) -> Result<Unlocked, Error> {
        drop(pending);
        if leads {
            self.lanes.leave(&lease.keys, self.others_heard(lease, &outcome));
        }
        outcome.map(|(unlocked, _)| unlocked)
    }

    /// Gives back one hold without waiting for it: for guards that are dropped.
    pub(crate) fn drop_hold(self: &Arc<Self>, lease: &Arc<Lease>, renewed: bool) {
        match self.begin(lease, renewed) {
            Step::Passed | Step::Lost(_) => {}
            step => {
                let (core, held) = (self.clone(), lease.clone());
                self.keeper.spawn(async move {
                    let name = held.keys.name.clone();
                    if let Err(error) = core.complete(held, step).await {
                        tracing::warn!(lock = %name, %error, "a dropped lock could not be released; its lease ends it");
                    }
                });
            }
        }
    }

    /// The part that happens at once: renewal ends, or the next task has the lease.
    pub(super) fn begin(self: &Arc<Self>, lease: &Arc<Lease>, renewed: bool) -> Step {
        if let Some(reason) = lease.loss() {
            return Step::Lost(reason.clone());
        }
        let now_ms = self.now_ms();
        if !lease.is_valid(now_ms) {
            self.lose(lease, LossReason::Expired);
            return Step::Lost(lease.loss().cloned().unwrap_or(LossReason::Expired));
        }
        // Before the lease leaves its lane: an attempt of this owner finds the one or the other there.
        let pending = self.owners.pending(&lease.keys, &lease.owner);
        let before = lease.leave(renewed);
        if before > 1 {
            return Step::Leave { pending };
        }
        if lease.is_count_in_doubt() {
            // What was not answered may arrive in the owner's next hold, which may have been shown since it was sent.
            pending.unanswered();
        }
        let leaving = self.lanes.give_back(lease, now_ms, self.doubt_ms());
        if !lease.give_back() {
            // Lost in this very moment. The lane must go on all the same.
            match leaving {
                Leaving::Transfer(heir) => {
                    self.lanes.requeue(&lease.keys, heir.queued);
                    self.lanes.leave(&lease.keys, false);
                }
                Leaving::HandOver(heir) => self.lanes.handed_over(&lease.keys, Some(heir.queued)),
                Leaving::Release { leads: true } => self.lanes.leave(&lease.keys, false),
                Leaving::Release { leads: false } | Leaving::Passed => {}
            }
            return Step::Lost(lease.loss().cloned().unwrap_or(LossReason::Expired));
        }
        match leaving {
            Leaving::Passed => {
                // The doubt may have come this very moment.
                self.look_if_in_doubt(lease);
                // Those behind the next holder may have to be looked out for, which is done while calls are made.
                self.keeper.touch();
                Step::Passed
            }
            Leaving::Transfer(heir) => Step::Transfer { heir, pending },
            Leaving::HandOver(heir) => Step::HandOver { heir, pending },
            Leaving::Release { leads } => Step::Release { leads, pending },
        }
    }

    pub(super) async fn complete(self: Arc<Self>, lease: Arc<Lease>, step: Step) -> Result<Unlocked, Error> {
        match step {
            Step::Passed => Ok(Unlocked::Released),
            Step::Lost(reason) => Ok(Unlocked::AlreadyLost(reason)),
            Step::Leave { pending } => self.leave_one(lease, pending, Counted::Surely).await,
            Step::Transfer { heir, pending } => self.clone().transfer(lease, heir, pending).await,
            Step::HandOver { heir, pending } => {
                let outcome = self.hand_over(&lease, heir, &pending).await;
                self.released(&lease, false, pending, outcome)
            }
            Step::Release { leads, pending } => {
                let outcome = self.release_whole(&lease, false, &pending).await;
                self.released(&lease, leads, pending, outcome)
            }
        }
    }

    /// Releases a lock that has a queue on the server. If the task of this process that has waited longest is the next in
    /// that queue, the same script grants to it, and it gets the lease from here without asking.
    async fn hand_over(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        heir: Box<Heir>,
        pending: &Pending,
    ) -> Result<(Unlocked, i64), Error> {
        let Heir { queued: next, pending: heir_pending } = *heir;
        // A grant that replicas are to confirm has to be asked for by its own task, which then asks them.
        let cannot = next.request.ack.is_some()
            || lease.has_turns()
            || lease.tainted.load(Ordering::Relaxed)
            || lease.owner.is_shared();
        // One that other processes may use, too, asks for itself: its own look may be on its way, and would count a second hold.
        let Some(owner) = next.owner.clone().filter(|owner| !cannot && !owner.is_shared()) else {
            drop(heir_pending);
            let outcome = self.release_whole(lease, false, pending).await;
            self.lanes.handed_over(&lease.keys, Some(next));
            return outcome;
        };
        let (sent_ms, publish) = (self.now_ms(), self.store.publish_command());
        let to = super::Heir {
            owner: &owner,
            lease_ms: next.request.term.lease_ms,
            fenced: next.request.fenced,
            moves: super::Moves::All,
        };
        let call = lease.recipe.hand_over(&lease.keys, &lease.owner, publish, expected(lease), &to);
        match self.run_ending(call, lease.owner.number(), false, pending).await {
            Ok(reply) if reply.len() == 3 && reply[1] == 2 => {
                let token = (next.request.fenced && reply[2] > 0).then_some(reply[2] as u64);
                let held = Arc::new(Lease::new(
                    lease.keys.clone(),
                    owner,
                    lease.recipe,
                    token,
                    next.request.term,
                    sent_ms,
                ));
                let now_ms = self.now_ms();
                held.offer(now_ms);
                let waits_on = match self.lanes.moved(&held, &next, now_ms) {
                    // A task that waits no more has found its grant by itself, or has given up and removes what it left.
                    None => Some(next).filter(|next| !next.tell.is_closed()),
                    Some(lost) => {
                        self.tell_displaced(lost, &held);
                        if let Err(held) = next.hand(held) {
                            self.lanes.forget(&held);
                        }
                        None
                    }
                };
                self.lanes.handed_over(&lease.keys, waits_on);
                Ok((Unlocked::Released, 0))
            }
            outcome => {
                self.lanes.handed_over(&lease.keys, Some(next));
                let read = outcome.and_then(|items| self.released_as(lease, Way::Whole, &items));
                match read {
                    Ok(outcome) => Ok(outcome),
                    Err(fault) => self.release_again(lease, pending, fault).await,
                }
            }
        }
    }

    /// Removes the owner's field. Also answers how many other processes heard the message.
    pub(crate) async fn release_whole(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        apart: bool,
        pending: &Pending,
    ) -> Result<(Unlocked, i64), Error> {
        if lease.has_turns() {
            // A partial release may be on its way; it must reach the server first.
            let turns = lease.turns();
            drop(turns.lock().await);
        }
        let outcome = match self.release_once(lease, apart, pending).await {
            Ok(outcome) => Ok(outcome),
            Err(fault) => self.release_again(lease, pending, fault).await,
        };
        // Not before: it would find the hold that this release is about, and this release nothing.
        self.sweep_if_tainted(lease);
        outcome
    }

    /// After a release that failed: has the keeper repeat it, if that can help.
    async fn release_again(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        pending: &Pending,
        fault: Fault,
    ) -> Result<(Unlocked, i64), Error> {
        if let Fault::Server(error) = &fault
            && !error.is_retryable()
        {
            return Err(error.clone());
        }
        let (tell, outcome) = oneshot::channel();
        let (core, held, pending) = (self.clone(), lease.clone(), pending.another());
        if fault.is_unknown() {
            lease.doubts_end();
        }
        self.keeper.spawn(async move {
            let work = async |pending: &Pending| core.release_until_done(&held, pending).await;
            let _ = tell.send(pending.covers(work).await);
        });
        told(outcome).await?
    }

    /// The request that ends the last hold of a lease, and how its answer is to be read: another process may come to use the owner
    /// before that.
    fn release_call(&self, lease: &Lease) -> (Call, Way) {
        let publish = self.store.publish_command();
        if lease.owner.is_shared() {
            (lease.recipe.leave(&lease.keys, &lease.owner, publish, 0, lease.lease_ms), Way::OneHold)
        } else {
            (lease.recipe.release(&lease.keys, &lease.owner, publish, expected(lease)), Way::Whole)
        }
    }

    async fn release_once(
        self: &Arc<Self>,
        lease: &Lease,
        apart: bool,
        pending: &Pending,
    ) -> Result<(Unlocked, i64), Fault> {
        self.alone(pending).await;
        if lease.owner.is_shared() && lease.is_end_in_doubt() {
            return Err(Fault::Unknown(Error::new(
                ErrorKind::Timeout,
                "an earlier release was not answered",
            )));
        }
        let (number, (call, way)) = (lease.owner.number(), self.release_call(lease));
        if way == Way::OneHold && lease.is_over(self.now_ms()) {
            // The server does not count it any more, and would count down another hold of the owner.
            return Ok((Unlocked::AlreadyLost(lease.missing(self.now_ms())), 0));
        }
        let reply = self.run_undoing(call, number, apart, pending).await;
        match reply.and_then(|items| self.released_as(lease, way, &items)) {
            Err(fault) if fault.is_split() && way == Way::Whole => {
                let Some(call) = lease.recipe.release_unheard(&lease.keys, &lease.owner, expected(lease))
                else {
                    return Err(fault);
                };
                let items = self.run_ending(call, number, true, pending).await?;
                self.released_as(lease, way, &items)
            }
            outcome => outcome,
        }
    }

    fn read_release(
        &self,
        lease: &Lease,
        pending: &Pending,
        way: Way,
        outcome: Result<Reply, Fault>,
    ) -> Result<(Unlocked, i64), Fault> {
        let script = if way == Way::OneHold { &scripts::LEAVE } else { &scripts::RELEASE };
        let reply = self.read(script, &lease.keys.key, outcome, lease.owner.number());
        pending.ended(&reply);
        self.released_as(lease, way, &reply?)
    }

    /// Both release scripts reply `{number, result, receivers}`: 1 or 0 for the whole, the holds left or -1 for one hold. A whole one
    /// that has found other holds than it expected replies `{number, -1, count}`, has changed nothing, and is sent anew.
    fn released_as(&self, lease: &Lease, way: Way, reply: &[i64]) -> Result<(Unlocked, i64), Fault> {
        let (gone, heard) = match (way, reply) {
            (Way::OneHold, [_, left, heard]) if *left >= 1 => {
                return Ok((Unlocked::StillHeld(*left as u32), *heard));
            }
            (Way::OneHold, [_, left, heard]) => (*left == 0, *heard),
            (Way::Whole, [_, -1, count]) => {
                lease.is_told(u32::try_from(*count).unwrap_or(u32::MAX));
                return Err(Fault::NotSent(Error::new(
                    ErrorKind::Timeout,
                    "the owner has other holds than this process counts",
                )));
            }
            (Way::Whole, [_, released, heard]) => (*released == 1, *heard),
            _ => {
                return Err(Fault::Unknown(Error::new(
                    ErrorKind::Protocol,
                    "a release answered with the wrong number of items",
                )));
            }
        };
        Ok(found(lease, gone, heard, self.now_ms()))
    }

    /// Repeats a release until its effect is certain or the lease has ended on the server.
    ///
    /// A release that was not answered is not repeated where another process may hold under the same owner: two of them would take away
    /// the other one's hold. Then it is only watched.
    async fn release_until_done(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        pending: &Pending,
    ) -> Result<(Unlocked, i64), Error> {
        let over_ms = lease.deadline_ms() + margin_ms(lease.lease_ms) + 1;
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        loop {
            tokio::time::sleep(jittered(Duration::from_millis(delay_ms))).await;
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
            let outcome = if lease.owner.is_shared() && lease.is_end_in_doubt() {
                match self.is_there(lease).await {
                    Ok(false) => Ok((Unlocked::Released, 0)),
                    Ok(true) if self.now_ms() >= over_ms => {
                        return Err(Error::new(
                            ErrorKind::Timeout,
                            "the release was never answered, and a hold of this owner is still there",
                        ));
                    }
                    Ok(true) => continue,
                    Err(fault) => Err(fault),
                }
            } else {
                self.release_once(lease, true, pending).await
            };
            if outcome.as_ref().is_err_and(Fault::is_unknown) {
                lease.doubts_end();
            }
            match outcome {
                // Nothing there within the lease: the first request did it, and only its reply was lost.
                Ok((Unlocked::AlreadyLost(_), _)) if self.now_ms() < lease.deadline_ms() => {
                    return Ok((Unlocked::Released, 0));
                }
                Ok((Unlocked::AlreadyLost(_), _)) => {
                    return Ok((Unlocked::AlreadyLost(LossReason::Expired), 0));
                }
                Ok(outcome) => return Ok(outcome),
                Err(Fault::Server(error)) if !error.is_retryable() => return Err(error),
                Err(fault) if self.now_ms() >= over_ms || self.is_closed() => {
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        format!("the release could not be confirmed before the lease ended: {fault}"),
                    ));
                }
                Err(_) => {}
            }
        }
    }

    /// Gives back one of several holds.
    pub(super) async fn leave_one(
        self: Arc<Self>,
        lease: Arc<Lease>,
        pending: Pending,
        counted: Counted,
    ) -> Result<Unlocked, Error> {
        let turns = lease.turns();
        let _turn = turns.lock().await;
        let outcome = self.leave_in_turn(&lease, &pending, counted).await;
        lease.has_left();
        outcome
    }

    /// A count that is in doubt is not counted down, and a request that may have run is not repeated: the server would have fewer holds
    /// than there are guards.
    async fn leave_in_turn(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        pending: &Pending,
        counted: Counted,
    ) -> Result<Unlocked, Error> {
        let owner = &lease.owner;
        let over_ms = self.now_ms() + self.config.response_timeout.as_millis() as u64;
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        loop {
            // First of all: what is looked at from here on is as it is when the request is sent.
            self.alone(pending).await;
            if lease.is_count_in_doubt() {
                return Ok(self.left_here(lease));
            }
            let is_shared = owner.is_shared();
            if is_shared && counted == Counted::Perhaps {
                // Counting down would take what another process has.
                lease.doubts_count();
                return Ok(self.left_here(lease));
            }
            if is_shared && lease.is_over(self.now_ms()) {
                // The server does not count it any more, and would count down another hold of the owner.
                return Ok(Unlocked::AlreadyLost(lease.missing(self.now_ms())));
            }
            let known = if is_shared { 0 } else { lease.holds().on_server() };
            let publish = self.store.publish_command();
            let call = lease.recipe.leave(&lease.keys, owner, publish, known, lease.lease_ms);
            let fault = match self.run_undoing(call, owner.number(), false, pending).await {
                Ok(reply) => match reply[..] {
                    [_, left, _] if left >= 1 => return Ok(Unlocked::StillHeld(left as u32)),
                    [_, 0, _] => return Ok(Unlocked::Released),
                    // The whole lease was released meanwhile by the last guard.
                    _ if !lease.is_held() && lease.loss().is_none() => return Ok(Unlocked::Released),
                    _ => {
                        self.gone(lease).await;
                        return Ok(Unlocked::AlreadyLost(lease.missing(self.now_ms())));
                    }
                },
                Err(Fault::Server(error)) if !error.is_retryable() => return Err(error),
                Err(fault) => fault,
            };
            if fault.is_unknown() {
                lease.doubts_count();
                if owner.is_shared() {
                    return Err(fault.into_error());
                }
            } else if self.now_ms() >= over_ms {
                return Err(fault.into_error());
            }
            self.keeper.sleep(jittered(Duration::from_millis(delay_ms))).await;
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
        }
    }

    /// What has become of a hold that was given back here alone.
    fn left_here(self: &Arc<Self>, lease: &Arc<Lease>) -> Unlocked {
        if lease.is_valid(self.now_ms()) {
            return Unlocked::StillHeld(lease.holds().count.max(1));
        }
        match lease.loss() {
            None if !lease.is_held() => Unlocked::Released,
            _ => Unlocked::AlreadyLost(lease.missing(self.now_ms())),
        }
    }

    /// Moves the lock to a waiting task that needs an owner, a token or a term of its own.
    async fn transfer(
        self: Arc<Self>,
        lease: Arc<Lease>,
        heir: Box<Heir>,
        pending: Pending,
    ) -> Result<Unlocked, Error> {
        let Heir { queued: next, pending: heir_pending } = *heir;
        let to = next.owner.clone().unwrap_or_else(|| self.fresh_owner());
        if to.is_shared() || next.request.ack.is_some() {
            // Another process may hold under that owner; only it can know, so it contends for itself. So does a task that
            // wants its grant confirmed by replicas, because nobody would ask them for this one.
            drop(heir_pending);
            return self.release_and_lead(lease, next, pending).await;
        }
        let sent_ms = self.now_ms();
        let term = next.request.term;
        let heir = super::Heir {
            owner: &to,
            lease_ms: term.lease_ms,
            fenced: next.request.fenced,
            // Another process may come to hold under the giver while this is on its way.
            moves: if lease.owner.is_exposed() { super::Moves::One } else { super::Moves::All },
        };
        let call = lease.recipe.transfer(&lease.keys, &lease.owner, &heir);
        match self.run_ending(call, to.number(), false, &pending).await {
            Ok(reply) if reply.len() == 3 && reply[1] == 1 => {
                let token = (next.request.fenced && reply[2] > 0).then_some(reply[2] as u64);
                let held = Arc::new(Lease::new(
                    lease.keys.clone(),
                    to,
                    lease.recipe,
                    token,
                    next.request.term,
                    sent_ms,
                ));
                self.sweep_if_tainted(&lease);
                held.offer(self.now_ms());
                let Some(lost) = self.lanes.moved(&held, &next, self.now_ms()) else {
                    self.lanes.requeue(&lease.keys, next);
                    self.lanes.leave(&lease.keys, false);
                    return Ok(Unlocked::Released);
                };
                self.tell_displaced(lost, &held);
                let renewed = next.request.term.renewed;
                if let Err(held) = next.hand(held) {
                    // The task gave up meanwhile; its hold is given back like any other.
                    self.drop_hold(&held, renewed);
                }
                Ok(Unlocked::Released)
            }
            // The owner has other holds that shut the next one out, so this is an ordinary release.
            Ok(reply) if reply.get(1) == Some(&2) => self.release_and_lead(lease, next, pending).await,
            Ok(_) => {
                self.sweep_if_tainted(&lease);
                self.lanes.requeue(&lease.keys, next);
                self.lanes.leave(&lease.keys, false);
                Ok(Unlocked::AlreadyLost(lease.missing(self.now_ms())))
            }
            Err(fault) => {
                if fault.is_unknown() {
                    lease.doubts_end();
                }
                // Whether it moved is unknown. The giver's field is removed for certain, and the task contends for itself. If it
                // asks under the same owner, it takes over what it may have been given, or removes that when it gives up.
                if !next.leaves_it_to_its_task() {
                    let request = Request::new(&lease.keys, lease.recipe, next.request.term, super::Wait::No);
                    drop(self.undo_later(&Arc::new(request), &to, Certainty::MayArriveLater));
                }
                let outcome = self.release_and_lead(lease.clone(), next, pending).await?;
                // What is not there any more within its time has moved.
                let moved = fault.is_unknown() && self.now_ms() < lease.deadline_ms();
                Ok(match outcome {
                    Unlocked::AlreadyLost(LossReason::Deleted) if moved => Unlocked::Released,
                    outcome => outcome,
                })
            }
        }
    }

    async fn release_and_lead(
        self: &Arc<Self>,
        lease: Arc<Lease>,
        next: Queued,
        pending: Pending,
    ) -> Result<Unlocked, Error> {
        let outcome = self.release_whole(&lease, false, &pending).await;
        drop(pending);
        self.lanes.requeue(&lease.keys, next);
        let others = self.others_heard(&lease, &outcome);
        self.lanes.leave(&lease.keys, others);
        outcome.map(|(unlocked, _)| unlocked)
    }

    /// Whether a release was heard by anybody but those who pass the lock on among themselves.
    fn others_heard(&self, lease: &Lease, outcome: &Result<(Unlocked, i64), Error>) -> bool {
        let own = lease.recipe.channel(&lease.keys, &lease.owner);
        let own = own.map_or(0, |channel| self.store.own_receivers(&channel));
        let readers = || lease.keys.readers.as_ref().is_some_and(|keys| self.lanes.are_waiting_beside(keys));
        outcome.as_ref().is_ok_and(|(_, heard)| *heard > own || readers())
    }

    /// Removes what a request may have left, now and, if the request may still be on its way, later. Answers when done, and
    /// whether it is certain that nothing is left.
    pub(crate) fn undo_later(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        certainty: Certainty,
    ) -> oneshot::Receiver<bool> {
        let (tell, done) = oneshot::channel();
        if self.is_forked() {
            return done;
        }
        // From here on the owner is granted nothing until this is through.
        let pending = self.owners.pending(&request.keys, owner);
        let (core, request, owner) = (self.clone(), request.clone(), owner.clone());
        self.keeper.spawn(async move {
            let certain = core.undo(&request, &owner, certainty, &pending).await;
            drop(pending);
            // Mostly no task waits for it.
            let _ = tell.send(certain);
        });
        done
    }

    async fn undo(
        self: &Arc<Self>,
        request: &Request,
        owner: &Owner,
        certainty: Certainty,
        pending: &Pending,
    ) -> bool {
        let lease_ms = request.term.lease_ms.max(0) as u64;
        // A place in a queue on the server keeps others out for longer than a short lease would.
        let place_ms = match request.recipe.lane() {
            LanePolicy::Ordered => FAIR_WAIT.as_millis() as u64,
            LanePolicy::Queue | LanePolicy::Beside => 0,
        };
        let over_ms = self.now_ms().saturating_add(lease_ms.max(place_ms));
        // A request without an answer may still arrive, and end what the owner is granted meanwhile.
        let mut unanswered = false;
        for look_ms in late_looks_ms(owner) {
            if *look_ms > lease_ms.max(place_ms) {
                // Whatever the request left has ended.
                return true;
            }
            tokio::time::sleep(Duration::from_millis(*look_ms)).await;
            if owner.is_shared() {
                break;
            }
            match self.undo_until_answered(request, owner, None, over_ms, pending, &mut unanswered).await {
                Undone::Found => {
                    tracing::debug!(lock = %request.keys.name, "a grant that no task waited for was released");
                    return !unanswered;
                }
                Undone::Nothing if certainty == Certainty::MayArriveLater => {}
                Undone::Nothing => return !unanswered,
                Undone::Shared => break,
                Undone::Unknown => return false,
            }
        }
        if !owner.is_shared() {
            return false;
        }
        // Counting down takes a hold away, and it may be another process's. So it is done for a grant that was told, and once; what
        // came of a request without an answer ends with its lease.
        let known = match certainty {
            Certainty::Granted if !unanswered => 0,
            _ if place_ms > 0 => HOLDS_STAY,
            _ => return certainty == Certainty::Arrived && !unanswered,
        };
        let undoing =
            self.undo_until_answered(request, owner, Some(known), over_ms, pending, &mut unanswered);
        undoing.await != Undone::Unknown && certainty != Certainty::MayArriveLater && !unanswered
    }

    /// Removes what an owner may have left. With a `known` count it gives back one hold, as [`leave`](super::Recipe::leave) does.
    async fn undo_until_answered(
        self: &Arc<Self>,
        request: &Request,
        owner: &Owner,
        known: Option<u32>,
        over_ms: u64,
        pending: &Pending,
        unanswered: &mut bool,
    ) -> Undone {
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        let mut count = 1;
        loop {
            let publish = self.store.publish_command();
            // What the owner may have been granted can be handed to another process while this is on its way.
            let expected = if owner.is_exposed() { Expected::Count(count) } else { Expected::Any };
            let call = match known {
                Some(known) => {
                    request.recipe.leave(&request.keys, owner, publish, known, request.term.lease_ms)
                }
                None => request.recipe.undo(&request.keys, owner, publish, expected),
            };
            let moves = self.store.moves();
            let fault = match self.run_undoing(call, owner.number(), true, pending).await {
                Ok(reply) => match reply[..] {
                    [_, -1, _] if known.is_none() && owner.is_shared() => return Undone::Shared,
                    [_, -1, _] if known.is_none() && self.now_ms() >= over_ms => return Undone::Unknown,
                    // They are all this process's.
                    [_, -1, counted] if known.is_none() => {
                        count = u32::try_from(counted).unwrap_or(u32::MAX);
                        continue;
                    }
                    [_, found, ..] if found > 0 => return Undone::Found,
                    _ => return Undone::Nothing,
                },
                Err(fault) => fault,
            };
            *unanswered |= fault.is_unknown();
            // Counting down twice would take away what another process holds under this owner.
            let once = known == Some(0) && fault.is_unknown();
            let refused = matches!(&fault, Fault::Server(error) if !error.is_retryable());
            if once || refused || self.is_closed() || self.now_ms() >= over_ms {
                return Undone::Unknown;
            }
            if self.store.moves() == moves {
                self.keeper.pause(jittered(Duration::from_millis(delay_ms))).await;
            }
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
        }
    }

    /// Looks later whether a request that had gone missing took the lock after all, or a place in its queue, once its owner has let go
    /// of it. Where the owner is at work again, what it finds is its own.
    fn sweep_if_tainted(self: &Arc<Self>, lease: &Arc<Lease>) {
        if let Some(before) = lease.before() {
            self.sweep_if_tainted(before);
        }
        if !lease.tainted.load(Ordering::Relaxed) {
            return;
        }
        let (core, lease) = (self.clone(), lease.clone());
        // Not counted as work to wait for: the hold itself is released by the caller.
        self.keeper.handle().spawn(async move {
            let term = Term { lease_ms: lease.lease_ms, renewed: false };
            let request = Request::new(&lease.keys, lease.recipe, term, super::Wait::No);
            for look_ms in &LATE_LOOKS_MS[1..] {
                tokio::time::sleep(Duration::from_millis(*look_ms)).await;
                if lease.owner.is_shared() {
                    return;
                }
                let Some(pending) = core.owners.pending_if_idle(&lease.keys, &lease.owner) else {
                    continue;
                };
                if core.lanes.find(&lease.keys).iter().any(|held| held.owner == lease.owner) {
                    continue;
                }
                let (over_ms, mut unanswered) = (core.now_ms() + *look_ms, false);
                let undoing = core.undo_until_answered(
                    &request,
                    &lease.owner,
                    None,
                    over_ms,
                    &pending,
                    &mut unanswered,
                );
                if undoing.await == Undone::Found {
                    return;
                }
            }
        });
    }
}

/// What a release that removes all holds of a lease is to find. An owner that can be used again can be handed to another process while
/// the release is on its way, and what that process enters meanwhile is not to go.
pub(super) fn expected(lease: &Lease) -> Expected {
    if lease.owner.is_exposed() { Expected::Count(lease.holds().expected()) } else { Expected::Any }
}

/// What a release found, and how many others heard of it.
pub(super) fn found(lease: &Lease, gone: bool, heard: i64, now_ms: u64) -> (Unlocked, i64) {
    if heard < 0 {
        tracing::warn!(lock = %lease.keys.name, "the account may not publish, so waiters find the free lock only at their next look");
    }
    if gone { (Unlocked::Released, heard) } else { (Unlocked::AlreadyLost(lease.missing(now_ms)), 0) }
}
