//! Passing on: what becomes of a lease whose last guard gives it back. The next task of this process has it, or is to have it by way of
//! the server, or the server is told that it is free.

use std::sync::Arc;

use super::{Lanes, SIGHT_MS};
use crate::{
    core::{
        lane::{Lane, Queued, Wakes, Work},
        lease::{LastDoubt, Lease},
        owners::Pending,
    },
    recipes::{LanePolicy, Term},
};

/// What a guard has to do after giving its lease back.
pub(crate) enum Leaving {
    /// Nothing: the next task has it.
    Passed,
    /// Hand it to this task, which needs an owner, token or term of its own.
    Transfer(Box<NextTask>),
    /// Release it, and let the server hand over to this task if it is the next in its queue.
    HandOver(Box<NextTask>),
    /// Release it on the server; `leads` says whether the lane must be told afterwards.
    Release { leads: bool },
}

/// The task that is to have a lock next by way of the server.
pub(crate) struct NextTask {
    pub(crate) queued: Queued,
    /// Covers what is done in its owner's name: should the task give up, its owner is granted nothing until that is through.
    pub(crate) pending: Option<Pending>,
}

/// When a lease is given back, and since which doubt it must have been seen to be passed on.
#[derive(Clone, Copy)]
struct Moment {
    now_ms: u64,
    doubt: LastDoubt,
}

/// A task, and the lease that it is about to be told of.
struct Hand {
    next: Queued,
    heir: Arc<Lease>,
}

impl Lanes {
    /// The last guard of a lease gives it back. What has not been seen since the last doubt is not passed on unseen: those who look for it
    /// there know this guard only, and a server that has taken over may lack it.
    pub(crate) fn give_back(&self, lease: &Arc<Lease>, now_ms: u64, doubt: LastDoubt) -> Leaving {
        let at = Moment { now_ms, doubt };
        let mut hand = match self.take_out(lease, at) {
            Ok(hand) => hand,
            Err(leaving) => return leaving,
        };
        loop {
            hand = match self.hand_or_choose(lease, hand, at) {
                Ok(next) => next,
                Err(leaving) => return leaving,
            };
        }
    }

    /// Tells a task that the lease is its own now. It is told without the lane's mutex, because a waker may run anything. If it has given up
    /// this very moment, the lease goes to the next one; unless the keeper has taken it back meanwhile, or has seen it lost, and goes on
    /// with it.
    fn hand_or_choose(&self, lease: &Arc<Lease>, hand: Hand, at: Moment) -> Result<Hand, Leaving> {
        let Hand { next, heir } = hand;
        let Err(heir) = next.hand(heir) else { return Err(Leaving::Passed) };
        if !heir.take() {
            return Err(Leaving::Passed);
        }
        let mut spent = Vec::new();
        let again = self.change(&lease.keys, |lane| {
            if !lane.remove(&heir) {
                return Err(Leaving::Passed);
            }
            lane.work = Work::Releases { since_ms: at.now_ms };
            // What was seen of it meanwhile was noted with the heir.
            self.choose(lane, &heir, at, &mut spent)
        });
        drop(spent);
        again.unwrap_or(Err(Leaving::Passed))
    }

    /// Takes a lease out of its lane and says what comes next: a task that it can be passed on to, or what else is to be done.
    fn take_out(&self, lease: &Arc<Lease>, at: Moment) -> Result<Hand, Leaving> {
        // Dropping a cover wakes those who wait for it, so what is not needed is dropped without the lane's mutex.
        let (mut wakes, mut spent) = (Wakes::default(), Vec::new());
        let outcome = self.change(&lease.keys, |lane| {
            if !lane.remove(lease) {
                return Err(Leaving::Release { leads: false });
            }
            if lease.recipe.lane() != LanePolicy::Queue {
                if !lease.owner.is_shared()
                    && let Some(heir) = self.first_heir(lane, lease, at.now_ms, &mut spent)
                {
                    lane.crowd_mut().handing += 1;
                    return Err(Leaving::HandOver(Box::new(heir)));
                }
                wakes = lane.nappers();
                return Err(Leaving::Release { leads: false });
            }
            if lane.is_busy() {
                return Err(Leaving::Release { leads: false });
            }
            lane.work = Work::Releases { since_ms: at.now_ms };
            self.choose(lane, lease, at, &mut spent)
        });
        wakes.wake();
        outcome.unwrap_or(Err(Leaving::Release { leads: false }))
    }

    /// The first in line that still waits, with a cover for its owner.
    fn first_heir(
        &self,
        lane: &mut Lane,
        lease: &Lease,
        now_ms: u64,
        spent: &mut Vec<Pending>,
    ) -> Option<NextTask> {
        while let Some(queued) = lane.first_in_line(now_ms) {
            let pending = queued.owner.as_ref().map(|owner| self.owners.pending(&lease.keys, owner));
            // A task that goes closes its end before it lets its owner's turn go. So if it still waits now, every later turn of
            // that owner finds the cover.
            if !queued.tell.is_closed() {
                return Some(NextTask { queued, pending });
            }
            spent.extend(pending);
        }
        None
    }

    /// What becomes of a lease that was taken out of a lane which nothing else keeps busy.
    fn choose(
        &self,
        lane: &mut Lane,
        lease: &Arc<Lease>,
        at: Moment,
        spent: &mut Vec<Pending>,
    ) -> Result<Hand, Leaving> {
        let Moment { now_ms, .. } = at;
        let turn_over = now_ms.saturating_sub(lane.turn.since_ms) >= self.bounds.turn_ms_max
            || lane.turn.passes >= self.bounds.passes_max;
        if turn_over || lease.owner.is_shared() {
            return Err(Leaving::Release { leads: true });
        }
        let Some(next) = self.first_heir(lane, lease, now_ms, spent) else {
            return Err(Leaving::Release { leads: true });
        };
        lane.turn.passes += 1;
        if !is_passable(lease, &next.queued, at) {
            return Err(Leaving::Transfer(Box::new(next)));
        }
        let heir = Arc::new(lease.succeed());
        heir.offer(now_ms);
        lane.work = Work::Nothing;
        let lost = lane.add(&heir, &self.intake, now_ms);
        debug_assert!(lost.is_empty(), "the lease was taken out before its heir came in");
        self.note_line(lane);
        Ok(Hand { next: next.queued, heir })
    }
}

/// Whether a task can go on with a lease as it is, without the server.
fn is_passable(lease: &Lease, next: &Queued, at: Moment) -> bool {
    let Moment { now_ms, doubt } = at;
    let wants = &next.request;
    let same = next.owner.is_none()
        && !wants.fenced
        && wants.term == (Term { lease_ms: lease.lease_ms(), renewed: true });
    let left_ms = lease.deadline_ms().saturating_sub(now_ms);
    // A hold that was extended lasts for longer than the next task asks for.
    let fits = lease.renew_period_ms() < left_ms && left_ms <= lease.lease_ms().max(0) as u64;
    same && fits
        && lease.is_seen_since(doubt)
        && lease.asked_ms() + SIGHT_MS > now_ms
        && lease.token.is_none()
        && lease.holds().renewed == 1
        && !lease.owner.is_exposed()
        // What a re-entry or its release still does to the count finds the field gone once the server has moved the lock.
        && !lease.has_turns()
        && wants.ack.is_none_or(|ack| ack.is_met_by(lease.replicated()))
}

#[cfg(test)]
mod tests;
