//! Releasing: the lease is passed on to the next task here, or moved to it by the server; or renewal stops, and then the server is told.
//!
//! The owner field makes a release harmless to repeat: it removes one owner's field and no other. So a release whose reply was lost is sent
//! again, until the lease has certainly ended. One that counts an owner's holds down is sent once, and watched after that. Counting down is
//! needed for owners that are known outside of their guard, and for shared ones (`owner.rs`).

mod retry;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    Core,
    flight::{AfterDrop, Flight},
    lanes::pass_on::{LaneChoice, NextTask},
    lease::HeldLease,
    outage::IDLE_MS,
    owner_claims::OwnerBlock,
};
use crate::{
    error::{Error, ErrorKind, LossReason},
    keys::Keys,
    observe::HoldEnd,
    owner::Owner,
    recipes::{ExpectedHolds, LeaseTerm},
    scripts,
    store::{Call, Fault, Reply},
};

/// Pauses between repeats of a release whose outcome is unknown.
pub(super) const RETRY_DELAY_MS_MIN: u64 = 20;
pub(super) const RETRY_DELAY_MS_MAX: u64 = 500;
/// How long the answer to a release that was given up is waited for before it is repeated.
const ABANDONED_TIME: Duration = Duration::from_millis(50);

/// How the last hold of a lease is ended on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseMode {
    /// The owner's field goes, whatever it counts.
    AllHolds,
    /// One hold goes, because other processes may have holds of the owner.
    OneHold,
}

/// Who asks for a release: a caller that surely polls it until it is done, or one that may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A caller that surely polls it to its end: a blocking thread, the keeper, or `redlatch run`.
    PollsToTheEnd,
    /// A task, which may keep its future and poll it no more.
    MayStopPolling,
}

/// What became of a request.
type Outcome = Result<Reply, Fault>;

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

/// What giving back one hold comes to. The block keeps attempts of the same owner out until that is over.
pub(super) enum ReleaseStep {
    Lost(LossReason),
    /// The next task of this client has the lease already.
    Passed,
    /// One hold of several: it is counted down.
    OtherGuardsRemain {
        block: OwnerBlock,
    },
    /// The hold is moved to the next task's owner.
    Transfer {
        next: Box<NextTask>,
        block: OwnerBlock,
    },
    /// The hold ends, and the next task, whose kind shares with others, asks at once.
    ReleaseAndGrant {
        next: Box<NextTask>,
        block: OwnerBlock,
    },
    /// As [`LaneChoice::Release`].
    Release {
        lane_waits: bool,
        block: OwnerBlock,
    },
}

impl Core {
    /// Gives back one hold. Cancelling the future does not cancel the release.
    pub(crate) async fn unlock(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        lease_term: LeaseTerm,
        caller: Caller,
    ) -> Result<Unlocked, Error> {
        if lease.is_held() && lease.was_seen_over() && self.now_ms() < lease.deadline_ms() {
            // Boxed, as it is rare, and the future of a release stays small.
            Box::pin(self.wait_until_end_known(lease)).await;
        }
        let outcome = match self.release_locally(lease, lease_term) {
            ReleaseStep::Passed => Ok(Unlocked::Released),
            ReleaseStep::Lost(reason) => Ok(Unlocked::AlreadyLost(reason)),
            // The plain case: no other guard of the lease and no attempt of its owner waits for this release, so the caller's own task sends it, which
            // saves the way over the keeper. Other tasks in the lane may wait for it; if this task is polled no more, the keeper lets them go on.
            ReleaseStep::Release { lane_waits, block }
                if (caller == Caller::PollsToTheEnd || !block.delays_attempts())
                    && (self.release_mode(lease) == ReleaseMode::AllHolds
                        || self.was_granted_just_now(lease))
                    && !lease.was_reentered()
                    && !lease.outcome_unknown.load(Ordering::Relaxed)
                    && block.no_attempt_asks() =>
            {
                self.release_from_caller(lease, lane_waits, block).await
            }
            // A transfer, whose answer the next task waits for; a count-down; a release that attempts of the owner wait for. The keeper runs these, so
            // that none depends on whether this task is polled. And a release that counts down is sent once, so it goes over a connection that is known to answer
            // (`send_once.rs`). This task's own connection may have been idle since the grant, and a firewall may have forgotten it.
            step => {
                let done = self
                    .run_on_keeper(self.clone().finish_release(lease.clone(), step), |_| {})
                    .outcome()
                    .await;
                done.and_then(std::convert::identity)
            }
        };
        self.with_loss_reason(lease, outcome).await
    }

    /// Completes the answer for the task that unlocks: if its release was the first to find the hold gone, looks up why it is gone.
    pub(super) async fn with_loss_reason(
        &self,
        lease: &Arc<HeldLease>,
        outcome: Result<Unlocked, Error>,
    ) -> Result<Unlocked, Error> {
        let outcome = outcome.map_err(|error| error.on(&lease.keys.name).by(&lease.owner))?;
        if outcome != Unlocked::AlreadyLost(LossReason::Deleted) || lease.loss().is_some() {
            return Ok(outcome);
        }
        Ok(match Box::pin(self.how_it_ended(lease)).await {
            Some(reason) => Unlocked::AlreadyLost(reason),
            None => outcome,
        })
    }

    /// The ordinary release: one request in the caller's task. Only trouble costs more.
    async fn release_from_caller(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        lane_waits: bool,
        block: OwnerBlock,
    ) -> Result<Unlocked, Error> {
        self.keeper.note_call();
        let mut block = Some(block);
        let (call, mode) = self.release_call(lease);
        let flight = Flight::new(self, self.run(call), || {
            let block = block.take()?;
            let (core, held) = (self.clone(), lease.clone());
            let then = Box::new(move |outcome| {
                let settling = core.clone().finish_abandoned(held, lane_waits, block, mode, outcome);
                core.keeper.spawn(async move {
                    // The task that wanted to know is gone.
                    let _ = settling.await;
                });
            });
            Some(AfterDrop::Within(ABANDONED_TIME, then))
        });
        let outcome = flight.await;
        let Some(block) = block else {
            return Err(Error::new(ErrorKind::Protocol, "a release was answered after it had been given up"));
        };
        match self.read_release(lease, &block, mode, outcome) {
            Ok(outcome) => self.finish_release_in_lane(lease, lane_waits, block, Ok(outcome)),
            Err(fault) => {
                let work = Box::pin(self.clone().finish_after_first_try(
                    lease.clone(),
                    lane_waits,
                    block,
                    mode,
                    Err(fault),
                ));
                Flight::new(self, work, || None).await
            }
        }
    }

    /// The release is over: the lane goes on.
    pub(super) fn finish_release_in_lane(
        &self,
        lease: &Arc<HeldLease>,
        lane_waits: bool,
        block: OwnerBlock,
        outcome: Result<(Unlocked, i64), Error>,
    ) -> Result<Unlocked, Error> {
        drop(block);
        if lane_waits {
            self.lanes.release_finished(&lease.keys, self.others_heard(lease, &outcome));
        }
        outcome.map(|(unlocked, _)| unlocked)
    }

    /// Gives back one hold without waiting for it: for guards that are dropped.
    pub(crate) fn release_in_background(self: &Arc<Self>, lease: &Arc<HeldLease>, held: LeaseTerm) {
        match self.release_locally(lease, held) {
            ReleaseStep::Passed | ReleaseStep::Lost(_) => {}
            step => {
                let (name, work) =
                    (lease.keys.name.clone(), self.clone().finish_release(lease.clone(), step));
                self.keeper.spawn(async move {
                    if let Err(error) = work.await {
                        tracing::warn!(lock = %name, %error, "a dropped lock could not be released; its lease ends it");
                    }
                });
            }
        }
    }

    /// The part that happens at once: renewal ends, or the next task has the lease.
    pub(super) fn release_locally(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        lease_term: LeaseTerm,
    ) -> ReleaseStep {
        if let Some(reason) = lease.loss() {
            return ReleaseStep::Lost(reason.clone());
        }
        let now_ms = self.now_ms();
        if !lease.is_valid(now_ms) {
            // Before its deadline a hold is over only because another task has seen it gone. That task reports the loss: it knows the reason.
            if now_ms >= lease.deadline_ms() {
                self.lose(lease, LossReason::Expired);
            }
            return ReleaseStep::Lost(lease.reason_if_missing(now_ms));
        }
        // Blocked before the lease leaves its lane, so that an attempt of this owner finds the lease or the block.
        let block = || self.owners.block(&lease.keys, &lease.owner);
        let reusable_block = lease.owner.is_reusable().then(block);
        let holds_before = lease.guard_gives_back(lease_term);
        if holds_before > 1 {
            return ReleaseStep::OtherGuardsRemain { block: reusable_block.unwrap_or_else(block) };
        }
        self.note_own_write_hold_may_last(lease, now_ms);
        if let Some(block) = reusable_block.as_ref().filter(|_| lease.is_count_in_doubt()) {
            // An unanswered count-down may arrive during the owner's next hold, and other processes may know the owner by then.
            block.unanswered();
        }
        let choice = self.lanes.pass_on(lease, now_ms, self.last_interruption(&lease.keys));
        if !lease.mark_given_back() {
            // Lost in this very moment. The lane must go on all the same.
            match choice {
                LaneChoice::Transfer(next) => {
                    self.lanes.requeue(&lease.keys, next.entry);
                    self.lanes.release_finished(&lease.keys, false);
                }
                LaneChoice::ReleaseAndGrant(next) => {
                    self.lanes.release_and_grant_finished(&lease.keys, Some(next.entry))
                }
                LaneChoice::Release { lane_waits: true } => self.lanes.release_finished(&lease.keys, false),
                // The next task already has what turned out to be lost: look at it.
                LaneChoice::Passed => self.keeper.recheck(),
                LaneChoice::Release { lane_waits: false } => {}
            }
            return ReleaseStep::Lost(lease.reason_if_missing(now_ms));
        }
        self.hold_ended(lease, HoldEnd::GivenBack);
        match choice {
            LaneChoice::Passed => {
                // A doubt may have arisen after the lane chose.
                self.recheck_if_unseen_since_interruption(lease);
                // The keeper looks out for those behind the next holder, but only while it is told that calls are made.
                self.keeper.note_call();
                ReleaseStep::Passed
            }
            LaneChoice::Transfer(next) => {
                ReleaseStep::Transfer { next, block: reusable_block.unwrap_or_else(block) }
            }
            LaneChoice::ReleaseAndGrant(next) => {
                ReleaseStep::ReleaseAndGrant { next, block: reusable_block.unwrap_or_else(block) }
            }
            LaneChoice::Release { lane_waits } => {
                ReleaseStep::Release { lane_waits, block: reusable_block.unwrap_or_else(block) }
            }
        }
    }

    /// What is left to do. Re-entries and partial releases of the lease, which change its count too, wait for it from this call on.
    pub(super) fn finish_release(
        self: Arc<Self>,
        lease: Arc<HeldLease>,
        step: ReleaseStep,
    ) -> impl Future<Output = Result<Unlocked, Error>> + Send {
        let change = lease.begin_count_change();
        async move {
            let _change = change;
            self.run_step(lease, step).await
        }
    }

    async fn run_step(self: Arc<Self>, lease: Arc<HeldLease>, step: ReleaseStep) -> Result<Unlocked, Error> {
        match step {
            ReleaseStep::Passed => Ok(Unlocked::Released),
            ReleaseStep::Lost(reason) => Ok(Unlocked::AlreadyLost(reason)),
            ReleaseStep::OtherGuardsRemain { block } => self.release_one_hold(lease, block).await,
            ReleaseStep::Transfer { next, block } => self.clone().transfer(lease, next, block).await,
            ReleaseStep::ReleaseAndGrant { next, block } => {
                let outcome = self.release_and_grant(&lease, next, &block).await;
                self.finish_release_in_lane(&lease, false, block, outcome)
            }
            ReleaseStep::Release { lane_waits, block } => {
                let outcome = self.release_last_hold(&lease, false, &block).await;
                self.finish_release_in_lane(&lease, lane_waits, block, outcome)
            }
        }
    }

    /// Ends the last hold of the owner here. Also returns how many connections of others heard the message.
    pub(crate) async fn release_last_hold(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        as_keeper: bool,
        block: &OwnerBlock,
    ) -> Result<(Unlocked, i64), Error> {
        if lease.was_reentered() {
            // Partial releases and an entry may be on their way; they must reach the server first.
            let reentries = lease.reentries();
            drop(reentries.next.lock().await);
            drop(reentries.counting.lock().await);
        }
        let outcome = match self.try_release(lease, as_keeper, block).await {
            Ok(outcome) => Ok(outcome),
            Err(fault) => self.release_again(lease, block, fault).await,
        };
        // Not earlier: the undo would remove the hold, and this release would find none.
        self.undo_late_arrivals(lease);
        outcome
    }

    /// How the last hold of a lease is to be ended now. A caller may give the owner of a write hold to another process, which may then take a
    /// read hold under it. A request that removes all holds of the owner and arrives late would remove that one, too. So a write hold is counted
    /// down by one, in a request that is sent once.
    pub(super) fn release_mode(&self, lease: &HeldLease) -> ReleaseMode {
        if lease.owner.is_multi_process() || self.own_write_lease(&lease.keys, &lease.owner).is_some() {
            ReleaseMode::OneHold
        } else {
            ReleaseMode::AllHolds
        }
    }

    /// The request that ends the last hold of a lease, and how its answer is to be read: another process may come to use the owner
    /// before that.
    fn release_call(&self, lease: &HeldLease) -> (Call, ReleaseMode) {
        let (publish, mode) = (self.store.publish_command(), self.release_mode(lease));
        let call = match mode {
            ReleaseMode::OneHold => self.count_down_call(lease).after_an_answer(),
            ReleaseMode::AllHolds => {
                lease.recipe.release(&lease.keys, &lease.owner, publish, expected_holds(lease))
            }
        };
        (call, mode)
    }

    /// Whether the connection over which it was granted has had that answer lately.
    fn was_granted_just_now(&self, lease: &HeldLease) -> bool {
        !lease.was_renewed() && self.now_ms().saturating_sub(lease.last_proof_sent_ms()) < IDLE_MS
    }

    async fn try_release(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        as_keeper: bool,
        block: &OwnerBlock,
    ) -> Result<(Unlocked, i64), Fault> {
        loop {
            self.until_no_attempt_asks(block).await;
            if self.release_mode(lease) == ReleaseMode::AllHolds {
                return self.try_remove_owner(lease, as_keeper, block).await;
            }
            if let Some(outcome) = self.try_count_down(lease, block).await {
                return outcome;
            }
        }
    }

    /// Removes the owner's field, unless the server is found to have other holds of the owner than are known here.
    async fn try_remove_owner(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        as_keeper: bool,
        block: &OwnerBlock,
    ) -> Result<(Unlocked, i64), Fault> {
        let (number, mode) = (lease.owner.request_number_placeholder(), ReleaseMode::AllHolds);
        let (keys, owner, publish) = (&lease.keys, &lease.owner, self.store.publish_command());
        let call = lease.recipe.release(keys, owner, publish, expected_holds(lease));
        let reply = self.run_taking_away_now(call, number, as_keeper, block).await;
        match reply.and_then(|items| self.read_release_reply(lease, mode, &items)) {
            Err(fault) if fault.is_migrating() => {
                self.until_no_attempt_asks(block).await;
                let unheard = lease.recipe.release_silently(keys, owner, expected_holds(lease));
                let Some(call) = unheard else { return Err(fault) };
                let items = self.run_taking_away_now(call, number, true, block).await?;
                self.read_release_reply(lease, mode, &items)
            }
            outcome => outcome,
        }
    }

    fn read_release(
        &self,
        lease: &HeldLease,
        block: &OwnerBlock,
        mode: ReleaseMode,
        outcome: Result<Reply, Fault>,
    ) -> Result<(Unlocked, i64), Fault> {
        let script = if mode == ReleaseMode::OneHold { &scripts::RELEASE_ONE } else { &scripts::RELEASE };
        let reply = self.read(script, &lease.keys.key, outcome, lease.owner.request_number_placeholder());
        block.ended(&reply);
        self.read_release_reply(lease, mode, &reply?)
    }

    /// Both release scripts reply `{number, result, receivers}`. The result for all holds is 1 (released) or 0 (not held), that for one hold is the
    /// number of holds left or -1 (not held). A release of all that has found other holds than it expected replies `{number, -1, count}`, has changed nothing, and is sent anew.
    pub(super) fn read_release_reply(
        &self,
        lease: &HeldLease,
        mode: ReleaseMode,
        reply: &[i64],
    ) -> Result<(Unlocked, i64), Fault> {
        let (was_ended, heard) = match (mode, reply) {
            (ReleaseMode::OneHold, [_, left, heard]) if *left >= 1 => {
                return Ok((Unlocked::StillHeld(*left as u32), *heard));
            }
            (ReleaseMode::OneHold, [_, left, heard]) => (*left == 0, *heard),
            (ReleaseMode::AllHolds, [_, -1, count]) => {
                lease.set_server_count(u32::try_from(*count).unwrap_or(u32::MAX));
                return Err(Fault::NotSent(Error::new(
                    ErrorKind::Timeout,
                    "the owner has other holds than this process counts",
                )));
            }
            (ReleaseMode::AllHolds, [_, released, heard]) => (*released == 1, *heard),
            _ => {
                return Err(Fault::Unknown(Error::new(
                    ErrorKind::Protocol,
                    "a release answered with the wrong number of items",
                )));
            }
        };
        Ok(release_outcome(lease, was_ended, heard, || self.now_ms()))
    }

    /// For read-write locks: a read hold beside its owner's write hold is in the same hash, so its TTL may keep the write hold for longer. Notes that.
    pub(super) fn note_own_write_hold_may_last(&self, lease: &HeldLease, now_ms: u64) {
        if let Some(writing) = self.own_write_lease(&lease.keys, &lease.owner) {
            writing.note_pending_extension(lease.kept_until_ms(now_ms));
        }
    }

    /// When an owner's hold ends on the server without a release: at `own_ms`, or with the last of its read holds, which are in the same hash.
    pub(super) fn ends_at_ms(&self, keys: &Keys, owner: &Owner, own_ms: u64) -> u64 {
        let Some(readers) = &keys.readers else { return own_ms };
        let now_ms = self.now_ms();
        let beside = self.lanes.find(readers);
        let reads_ms =
            beside.iter().filter(|held| held.owner == *owner).map(|held| held.kept_until_ms(now_ms));
        reads_ms.fold(own_ms, u64::max)
    }

    /// Whether others than this lane's tasks wait: the message of a release had receivers outside of this process, or readers wait here.
    pub(super) fn others_heard(&self, lease: &HeldLease, outcome: &Result<(Unlocked, i64), Error>) -> bool {
        let own = lease.recipe.channel(&lease.keys, &lease.owner);
        let own = own.map_or(0, |channel| self.store.own_receivers(&channel));
        let readers =
            || lease.keys.readers.as_ref().is_some_and(|keys| self.lanes.has_concurrent_waiters(keys));
        outcome.as_ref().is_ok_and(|(_, heard)| *heard > own || readers())
    }
}

/// How many holds of the owner the server should count when all are released. An owner that can be used again can be handed to another process while
/// the release is on its way, and what that process enters meanwhile is not to go.
pub(super) fn expected_holds(lease: &HeldLease) -> ExpectedHolds {
    ExpectedHolds::of(&lease.owner, || lease.holds().expected())
}

/// What a release found, and how many others heard of it.
pub(super) fn release_outcome(
    lease: &HeldLease,
    was_ended: bool,
    heard: i64,
    now_ms: impl Fn() -> u64,
) -> (Unlocked, i64) {
    if heard < 0 {
        tracing::warn!(lock = %lease.keys.name, "the account may not publish, so waiters find the free lock only at their next look");
    }
    if was_ended {
        (Unlocked::Released, heard)
    } else {
        (Unlocked::AlreadyLost(lease.reason_if_missing(now_ms())), 0)
    }
}
