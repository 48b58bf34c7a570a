//! What becomes of a lease that its last guard gives back: it is passed to the next task without the server, moved to it by the server, or released.

use std::sync::Arc;

use super::{Lanes, SEEN_RECENTLY_MS};
use crate::{
    core::{
        lane::{Lane, LaneState, WaiterEntry, Wakes},
        lease::{HeldLease, LastInterruption},
        owner_claims::OwnerBlock,
    },
    recipes::{LanePolicy, LeaseTerm},
};

/// What the last guard of a lease has to do once the lease is out of its lane.
pub(crate) enum LaneChoice {
    /// Nothing: the next task has it.
    Passed,
    /// Kinds that queue in the lane, where the lease cannot be [passed on](is_passable): move the hold to the next task by one script
    /// (`Core::transfer`).
    Transfer(Box<NextTask>),
    /// Kinds that queue on the server: release by a script that also grants to this task, if it is the first in that queue (`Core::release_and_grant`).
    ReleaseAndGrant(Box<NextTask>),
    /// Release it on the server. `lane_waits`: the lane waits for this release, and lets the next task contend when it is done
    /// (`release_finished`).
    Release { lane_waits: bool },
}

/// The task that is to have a lock next by way of the server.
pub(crate) struct NextTask {
    pub(crate) entry: WaiterEntry,
    /// Blocks other attempts of the next task's owner, so that none of them meets this transfer after the task has given up.
    pub(crate) block: Option<OwnerBlock>,
}

/// When a lease is given back, and the last interruption. The lease is passed on only if the server was seen to have the hold since then.
#[derive(Clone, Copy)]
struct ReleaseTime {
    now_ms: u64,
    interruption: LastInterruption,
}

/// A lease that a task is about to be offered.
struct Offer {
    to: WaiterEntry,
    successor: Arc<HeldLease>,
}

/// What comes next for a lease that was taken out of its lane.
enum Next {
    Offer(Offer),
    /// What the guard has to do.
    Choice(LaneChoice),
}

impl Lanes {
    /// The last guard of a lease gives it back. The lease is passed on only if the server was seen to have it since the last interruption: after a failover
    /// the hold may be missing. A look that finds it missing tells the guard that held when the look began; a guard that got the lease meanwhile would not be told.
    pub(crate) fn pass_on(
        &self,
        lease: &Arc<HeldLease>,
        now_ms: u64,
        interruption: LastInterruption,
    ) -> LaneChoice {
        let at = ReleaseTime { now_ms, interruption };
        let mut next = self.take_out(lease, at);
        loop {
            next = match next {
                Next::Offer(offer) => self.offer(lease, offer, at),
                Next::Choice(choice) => return choice,
            };
        }
    }

    /// Offers the lease to a task, outside of the lane's mutex, because a waker may run anything. If that task has given up this very moment,
    /// the lease is offered to the next one. If the keeper has taken it back or found it lost meanwhile, the keeper goes on with it.
    fn offer(&self, lease: &Arc<HeldLease>, Offer { to, successor }: Offer, at: ReleaseTime) -> Next {
        let Err(successor) = to.hand(successor) else { return Next::Choice(LaneChoice::Passed) };
        if !successor.take() {
            return Next::Choice(LaneChoice::Passed);
        }
        let mut drop_without_mutex = Vec::new();
        let again = self.change(&lease.keys, |lane| {
            if !lane.remove(&successor) {
                return Next::Choice(LaneChoice::Passed);
            }
            lane.state = LaneState::Releases { since_ms: at.now_ms };
            // What was seen of the hold meanwhile is in the successor.
            self.choose_next(lane, &successor, at, &mut drop_without_mutex)
        });
        drop(drop_without_mutex);
        again.unwrap_or(Next::Choice(LaneChoice::Passed))
    }

    /// Takes a lease out of its lane, and chooses what comes next.
    fn take_out(&self, lease: &Arc<HeldLease>, at: ReleaseTime) -> Next {
        // Dropping a block wakes those who wait for it, so what is not needed is dropped without the lane's mutex.
        let (mut wakes, mut drop_without_mutex) = (Wakes::default(), Vec::new());
        let outcome = self.change(&lease.keys, |lane| {
            if !lane.remove(lease) {
                return Next::Choice(LaneChoice::Release { lane_waits: false });
            }
            if lease.recipe.lane_policy() != LanePolicy::OneContends {
                if !lease.owner.is_multi_process()
                    && let Some(next) = self.next_task(lane, lease, at.now_ms, &mut drop_without_mutex)
                {
                    lane.rare_mut().granting_releases += 1;
                    return Next::Choice(LaneChoice::ReleaseAndGrant(Box::new(next)));
                }
                wakes = lane.take_local_wakes();
                return Next::Choice(LaneChoice::Release { lane_waits: false });
            }
            if lane.is_busy() {
                return Next::Choice(LaneChoice::Release { lane_waits: false });
            }
            lane.state = LaneState::Releases { since_ms: at.now_ms };
            self.choose_next(lane, lease, at, &mut drop_without_mutex)
        });
        wakes.wake();
        outcome.unwrap_or(Next::Choice(LaneChoice::Release { lane_waits: false }))
    }

    /// The first in line that still waits, with a block for its owner.
    fn next_task(
        &self,
        lane: &mut Lane,
        lease: &HeldLease,
        now_ms: u64,
        drop_without_mutex: &mut Vec<OwnerBlock>,
    ) -> Option<NextTask> {
        while let Some(entry) = lane.take_first_in_line(now_ms) {
            let block = entry.owner.as_ref().map(|owner| self.owners.block(&lease.keys, owner));
            // A task that gives up closes its end first, and lets the claim on its owner go after that. So if this task still waits now,
            // every later attempt of its owner finds the block.
            if !entry.tell.is_closed() {
                return Some(NextTask { entry, block });
            }
            drop_without_mutex.extend(block);
        }
        None
    }

    /// What becomes of a lease that was taken out of a lane which nothing else keeps busy.
    fn choose_next(
        &self,
        lane: &mut Lane,
        lease: &Arc<HeldLease>,
        at: ReleaseTime,
        drop_without_mutex: &mut Vec<OwnerBlock>,
    ) -> Next {
        let ReleaseTime { now_ms, .. } = at;
        let turn_is_over = now_ms.saturating_sub(lane.local_turn.since_ms) >= self.turn_limits.turn_ms_max
            || lane.local_turn.passes >= self.turn_limits.passes_max;
        if turn_is_over || lease.owner.is_multi_process() {
            return Next::Choice(LaneChoice::Release { lane_waits: true });
        }
        let Some(next) = self.next_task(lane, lease, now_ms, drop_without_mutex) else {
            return Next::Choice(LaneChoice::Release { lane_waits: true });
        };
        lane.local_turn.passes += 1;
        if !is_passable(lease, &next.entry, at) {
            return Next::Choice(LaneChoice::Transfer(Box::new(next)));
        }
        let successor = Arc::new(lease.successor(next.entry.request.recipe));
        successor.offer(now_ms);
        lane.state = LaneState::Nothing;
        let lost = lane.add(&successor, &self.keeper_alarm, now_ms);
        debug_assert!(lost.is_empty(), "the lease was taken out before its successor came in");
        self.note_waiters(lane);
        Next::Offer(Offer { to: next.entry, successor })
    }
}

/// Whether a task can go on with a lease as it is, without the server.
fn is_passable(lease: &HeldLease, next: &WaiterEntry, at: ReleaseTime) -> bool {
    let ReleaseTime { now_ms, interruption } = at;
    let wants = &next.request;
    let same = next.owner.is_none()
        && !wants.fenced
        && wants.lease_term == (LeaseTerm { lease_ms: lease.lease_ms(), renewed: true });
    let left_ms = lease.deadline_ms().saturating_sub(now_ms);
    // A hold that was extended lasts for longer than the next task asks for.
    let fits = lease.renew_period_ms() < left_ms && left_ms <= lease.lease_ms().max(0) as u64;
    same && fits
        && lease.is_seen_since(interruption)
        && lease.last_proof_sent_ms() + SEEN_RECENTLY_MS > now_ms
        && lease.token.is_none()
        && lease.holds().renewed == 1
        && !lease.owner.is_reusable()
        // A late re-entry, or the release of one, would find the field gone once the server has moved the hold.
        && !lease.was_reentered()
        && wants.ack.is_none_or(|ack| ack.is_met_by(lease.replicated()))
}

#[cfg(test)]
mod tests;
