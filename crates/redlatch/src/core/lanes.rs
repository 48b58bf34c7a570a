//! Lanes: the order of the tasks of one process that want the same lock (ARCHITECTURE D10).
//!
//! One task per lane contends at the server; the others queue here. When a guard gives its lease back, the lease is
//! passed to the next task in line without the server, for a bounded turn; after that it is released for real so
//! that other processes get theirs. A lane exists only while somebody holds, contends or waits.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::{
    Request, Wait,
    lane::{Handoff, Lane, LanePolicy, Queued, Turn},
    lease::{Lease, Term},
};
use crate::{name::Keys, owner::Owner};

const SHARDS: usize = 64;

/// How to come in.
pub(crate) enum Enter {
    /// Contend at the server; the lane is ours to lead and must be left again.
    Go,
    /// Wait here.
    Queue(oneshot::Receiver<Handoff>),
    /// This very owner holds it: enter once more.
    Again(Arc<Lease>),
    /// A task of this process holds it, and the caller does not wait.
    Busy,
    /// Somebody else leads the lane and the caller does not wait: try once, beside the lane.
    Aside,
}

/// What a guard has to do after giving its lease back.
pub(crate) enum Leaving {
    /// Nothing: the next task has it.
    Passed,
    /// Hand it to this task, which needs an owner, token or term of its own.
    Transfer(Queued),
    /// Release it, and let the server hand over to this task if it is the next in its queue.
    HandOver(Queued),
    /// Release it on the server; `leads` says whether the lane must be told afterwards.
    Release { leads: bool },
}

pub(crate) struct Bounds {
    pub(crate) turn_ms_max: u64,
    pub(crate) passes_max: u32,
}

/// The lanes of one client.
pub(crate) struct Lanes {
    shards: Box<[Mutex<Shard>]>,
    bounds: Bounds,
}

type Shard = HashMap<LaneKey, Lane, BuildHasherDefault<Ready>>;

#[derive(Clone)]
struct LaneKey(Arc<Keys>);

impl Hash for LaneKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl PartialEq for LaneKey {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.kind == other.0.kind && self.0.key == other.0.key)
    }
}

impl Eq for LaneKey {}

/// The hash was worked out when the name was checked; it is passed on as it is.
#[derive(Default)]
struct Ready(u64);

impl Hasher for Ready {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl Lanes {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Lanes { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), bounds }
    }

    fn shard(&self, keys: &Keys) -> MutexGuard<'_, Shard> {
        let at = (keys.hash >> 48) as usize % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes in: leads a new lane, or finds what is there.
    pub(crate) fn enter(&self, request: &Request, now_ms: u64) -> Enter {
        let Request { keys, recipe, wait, .. } = request;
        let (owner, waits) = (request.owner.as_ref(), *wait != Wait::No);
        let mut shard = self.shard(keys);
        if recipe.lane() != LanePolicy::Queue {
            let held = owner.and_then(|owner| {
                let lane = shard.get(&LaneKey(keys.clone()))?;
                lane.leases().find(|lease| lease.owner == *owner && lease.is_valid(now_ms)).cloned()
            });
            return held.map_or(Enter::Aside, Enter::Again);
        }
        match shard.entry(LaneKey(keys.clone())) {
            Entry::Vacant(free) => {
                free.insert(Lane { busy: true, ..Lane::default() });
                Enter::Go
            }
            Entry::Occupied(mut taken) => {
                let lane = taken.get_mut();
                if lane.is_idle() {
                    // Only the traces of owners that are leaving keep the lane.
                    if owner.is_some_and(|owner| lane.leaving.contains(owner)) && !waits {
                        return Enter::Busy;
                    }
                    lane.busy = true;
                    return Enter::Go;
                }
                if let Some(lease) = &lane.lease {
                    if owner.is_some_and(|owner| *owner == lease.owner) && lease.is_valid(now_ms) {
                        return Enter::Again(lease.clone());
                    }
                    if !waits {
                        return if lease.is_valid(now_ms) { Enter::Busy } else { Enter::Aside };
                    }
                } else if !waits {
                    // A release that is on its way and that nobody else waits for is worth one round trip.
                    if !(lane.releasing && lane.queue.is_empty()) {
                        let own = owner.is_some_and(|owner| lane.leaving.contains(owner));
                        return if own { Enter::Busy } else { Enter::Aside };
                    }
                }
                let (queued, handoff) = Queued::new(request, owner.cloned(), None);
                lane.queue.push_back(queued);
                Enter::Queue(handoff)
            }
        }
    }

    /// A grant has come from the server. `leads` says whether it came to the lane's leader.
    pub(crate) fn granted(&self, lease: &Arc<Lease>, leads: bool, now_ms: u64) {
        let mut shard = self.shard(&lease.keys);
        let lane = shard.entry(LaneKey(lease.keys.clone())).or_default();
        lane.add(lease);
        if leads {
            lane.busy = false;
            lane.turn = Turn { since_ms: now_ms, passes: 0 };
        }
    }

    /// The lease has moved to a task of this process by way of the server; the turn goes on.
    pub(crate) fn passed(&self, lease: &Arc<Lease>) {
        let mut shard = self.shard(&lease.keys);
        let lane = shard.entry(LaneKey(lease.keys.clone())).or_default();
        lane.add(lease);
        lane.busy = false;
        lane.releasing = false;
    }

    /// A task asks for a place in the queue on the server. From now on a release may hand over to it.
    pub(crate) fn line_up(&self, keys: &Arc<Keys>, queued: Queued) {
        let mut shard = self.shard(keys);
        shard.entry(LaneKey(keys.clone())).or_default().queue.push_back(queued);
    }

    /// The server has the task in its queue, behind those whom it was known to have.
    pub(crate) fn lined_up(&self, keys: &Arc<Keys>, owner: &Owner) {
        let mut shard = self.shard(keys);
        let Some(lane) = shard.get_mut(&LaneKey(keys.clone())) else { return };
        let at = lane.queue.iter().position(|queued| queued.owner.as_ref() == Some(owner) && !queued.placed);
        if let Some(mut queued) = at.and_then(|at| lane.queue.remove(at)) {
            queued.placed = true;
            let at = lane.placed();
            lane.queue.insert(at, queued);
        }
    }

    /// Whether a task in line may count on this process: somebody of it has what it waits for, hands it over just now, or
    /// comes before it. If so it is woken when that was in vain.
    pub(crate) fn naps(&self, keys: &Arc<Keys>, owner: &Owner) -> bool {
        let mut shard = self.shard(keys);
        let Some(lane) = shard.get_mut(&LaneKey(keys.clone())) else { return false };
        let held = lane.handing > 0 || lane.leases().next().is_some();
        let place = lane.queue.iter().position(|queued| queued.owner.as_ref() == Some(owner));
        match place.and_then(|place| lane.queue.get_mut(place)) {
            Some(queued) => queued.naps = held || place > Some(0),
            // A release is on its way that may hand over to this very task.
            None => lane.heir_naps = lane.handing > 0,
        }
        place.map_or(lane.handing > 0, |place| held || place > 0)
    }

    /// A release that might have handed over is done; whom it served is `None`, and otherwise waits on, first in line.
    pub(crate) fn handed_over(&self, keys: &Arc<Keys>, waits_on: Option<Queued>) {
        let mut shard = self.shard(keys);
        let Entry::Occupied(mut entry) = shard.entry(LaneKey(keys.clone())) else { return };
        let lane = entry.get_mut();
        lane.handing = lane.handing.saturating_sub(1);
        let heir_naps = std::mem::take(&mut lane.heir_naps);
        if let Some(mut queued) = waits_on {
            queued.naps |= heir_naps;
            if !queued.tell.is_closed() {
                let at = if queued.placed { 0 } else { lane.placed() };
                lane.queue.insert(at, queued);
            }
            lane.wake_nappers();
        }
        if lane.is_idle() && lane.leaving.is_empty() {
            entry.remove();
        }
    }

    /// A task no longer waits.
    pub(crate) fn step_out(&self, keys: &Arc<Keys>, owner: &Owner) {
        let mut shard = self.shard(keys);
        if let Entry::Occupied(mut entry) = shard.entry(LaneKey(keys.clone())) {
            let lane = entry.get_mut();
            if let Some(at) = lane.queue.iter().position(|queued| queued.owner.as_ref() == Some(owner)) {
                lane.queue.remove(at);
            }
            if lane.is_idle() && lane.leaving.is_empty() {
                entry.remove();
            }
        }
    }

    /// The leader gives up, or a release has been done: the next in line leads.
    pub(crate) fn leave(&self, keys: &Arc<Keys>, after_others: bool) {
        let mut shard = self.shard(keys);
        if let Entry::Occupied(mut lane) = shard.entry(LaneKey(keys.clone())) {
            lane.get_mut().busy = false;
            lane.get_mut().releasing = false;
            if Self::promote(lane.get_mut(), after_others) {
                lane.remove();
            }
        }
    }

    /// Notes that an owner's earlier request is being undone, until [`left`](Self::left).
    pub(crate) fn leaving(&self, keys: &Arc<Keys>, owner: &Owner) {
        let mut shard = self.shard(keys);
        shard.entry(LaneKey(keys.clone())).or_default().leaving.push(owner.clone());
    }

    /// An owner's earlier request has been undone.
    pub(crate) fn left(&self, keys: &Arc<Keys>, owner: &Owner) {
        let mut shard = self.shard(keys);
        if let Entry::Occupied(mut entry) = shard.entry(LaneKey(keys.clone())) {
            let lane = entry.get_mut();
            if let Some(at) = lane.leaving.iter().position(|other| other == owner) {
                lane.leaving.swap_remove(at);
            }
            if lane.is_idle() && lane.leaving.is_empty() {
                entry.remove();
            }
        }
    }

    /// Whether an owner's earlier request is still being undone.
    pub(crate) fn is_leaving(&self, keys: &Arc<Keys>, owner: &Owner) -> bool {
        self.shard(keys).get(&LaneKey(keys.clone())).is_some_and(|lane| lane.leaving.contains(owner))
    }

    /// A task waits at the server for a hold beside others, until [`waited_beside`](Self::waited_beside).
    pub(crate) fn wait_beside(&self, keys: &Arc<Keys>) {
        self.shard(keys).entry(LaneKey(keys.clone())).or_default().waiting += 1;
    }

    /// Such a task no longer waits.
    pub(crate) fn waited_beside(&self, keys: &Arc<Keys>) {
        let mut shard = self.shard(keys);
        if let Entry::Occupied(mut entry) = shard.entry(LaneKey(keys.clone())) {
            let lane = entry.get_mut();
            lane.waiting = lane.waiting.saturating_sub(1);
            if lane.is_idle() && lane.leaving.is_empty() {
                entry.remove();
            }
        }
    }

    /// Whether such tasks wait.
    pub(crate) fn are_waiting_beside(&self, keys: &Arc<Keys>) -> bool {
        self.shard(keys).get(&LaneKey(keys.clone())).is_some_and(|lane| lane.waiting > 0)
    }

    /// Whether somebody waits here for what is held elsewhere or by somebody else than `owner`.
    pub(crate) fn is_wanted(&self, keys: &Arc<Keys>, owner: &Owner) -> bool {
        self.shard(keys).get(&LaneKey(keys.clone())).is_some_and(|lane| {
            let own = lane.lease.as_ref().is_some_and(|lease| lease.owner == *owner);
            let contended = lane.busy && !lane.releasing;
            !own && (contended || lane.queue.iter().any(|queued| !queued.tell.is_closed()))
        })
    }

    /// Lets the next in line lead, if nobody holds or leads. `true` if the lane is empty now.
    fn promote(lane: &mut Lane, after_others: bool) -> bool {
        if lane.lease.is_some() || lane.busy {
            return false;
        }
        while let Some(next) = lane.queue.pop_front() {
            // The flag is set first: the woken task may be running before this returns.
            lane.busy = true;
            if next.tell.send(Handoff::Contend { after_others }).is_ok() {
                return false;
            }
            lane.busy = false;
        }
        lane.is_idle() && lane.leaving.is_empty()
    }

    /// The last guard of a lease gives it back. `marked` notes its owner as [leaving](Self::leaving). What was last seen on the
    /// server before `doubt_ms` is not passed on unseen: whoever looks for it there knows this guard only.
    pub(crate) fn give_back(&self, lease: &Arc<Lease>, now_ms: u64, doubt_ms: u64, marked: bool) -> Leaving {
        let mut shard = self.shard(&lease.keys);
        if marked {
            shard.entry(LaneKey(lease.keys.clone())).or_default().leaving.push(lease.owner.clone());
        }
        let Entry::Occupied(mut entry) = shard.entry(LaneKey(lease.keys.clone())) else {
            return Leaving::Release { leads: false };
        };
        let lane = entry.get_mut();
        if !lane.remove(lease) {
            if lane.is_idle() && lane.leaving.is_empty() {
                entry.remove();
            }
            return Leaving::Release { leads: false };
        }
        if lease.recipe.lane() != LanePolicy::Queue {
            let next = if lease.owner.is_shared() { None } else { lane.first_in_line() };
            match next {
                Some(_) => lane.handing += 1,
                None => lane.wake_nappers(),
            }
            if lane.is_idle() && lane.leaving.is_empty() {
                entry.remove();
            }
            return next.map_or(Leaving::Release { leads: false }, Leaving::HandOver);
        }
        if lane.busy {
            return Leaving::Release { leads: false };
        }
        lane.busy = true;
        lane.releasing = true;
        let turn_over = now_ms.saturating_sub(lane.turn.since_ms) >= self.bounds.turn_ms_max
            || lane.turn.passes >= self.bounds.passes_max;
        if turn_over || lease.owner.is_shared() {
            return Leaving::Release { leads: true };
        }
        while let Some(next) = lane.queue.pop_front() {
            if next.tell.is_closed() {
                continue;
            }
            lane.turn.passes += 1;
            let same = next.owner.is_none()
                && !next.fenced
                && next.term == (Term { lease_ms: lease.lease_ms, renewed: true });
            let fresh = lease.deadline_ms().saturating_sub(now_ms) > lease.renew_period_ms();
            let passable = same
                && fresh
                && lease.asked_ms() >= doubt_ms
                && lease.token.is_none()
                && lease.holds().renewed == 1
                && !marked
                && !lease.owner.is_exposed()
                && next.ack.is_none_or(|ack| ack.is_met_by(lease.replicated));
            if !passable {
                return Leaving::Transfer(next);
            }
            let heir = Arc::new(lease.succeed());
            lane.lease = Some(heir.clone());
            lane.busy = false;
            lane.releasing = false;
            match next.hand(heir) {
                Ok(()) => return Leaving::Passed,
                // The task gave up this very moment; the lease is still in hand.
                Err(_) => {
                    lane.lease = None;
                    lane.busy = true;
                    lane.releasing = true;
                }
            }
        }
        Leaving::Release { leads: true }
    }

    /// Puts a task back to the front of its line.
    pub(crate) fn requeue(&self, keys: &Arc<Keys>, queued: Queued) {
        let mut shard = self.shard(keys);
        if queued.tell.is_closed() {
            return;
        }
        shard.entry(LaneKey(keys.clone())).or_default().queue.push_front(queued);
    }

    /// A lease is lost or detached: the lane goes on without it.
    pub(crate) fn forget(&self, lease: &Arc<Lease>) {
        let mut shard = self.shard(&lease.keys);
        if let Entry::Occupied(mut entry) = shard.entry(LaneKey(lease.keys.clone())) {
            let lane = entry.get_mut();
            let empty = match lease.recipe.lane() {
                LanePolicy::Queue if lane.remove(lease) => Self::promote(lane, false),
                LanePolicy::Queue => lane.is_idle() && lane.leaving.is_empty(),
                LanePolicy::Beside | LanePolicy::Ordered => {
                    if lane.remove(lease) {
                        lane.wake_nappers();
                    }
                    lane.is_idle() && lane.leaving.is_empty()
                }
            };
            if empty {
                entry.remove();
            }
        }
    }

    /// The leases that are held under a name.
    pub(crate) fn find(&self, keys: &Arc<Keys>) -> Vec<Arc<Lease>> {
        let shard = self.shard(keys);
        shard.get(&LaneKey(keys.clone())).map_or_else(Vec::new, |lane| lane.leases().cloned().collect())
    }

    /// Looks at every lease.
    pub(crate) fn each_lease(&self, mut look: impl FnMut(&Arc<Lease>)) {
        for shard in &self.shards {
            for lane in shard.lock().unwrap_or_else(PoisonError::into_inner).values() {
                lane.leases().for_each(&mut look);
            }
        }
    }

    /// Sends everybody in line home: the client is closed.
    pub(crate) fn close(&self) {
        for shard in &self.shards {
            for lane in shard.lock().unwrap_or_else(PoisonError::into_inner).values_mut() {
                lane.queue.clear();
            }
        }
    }

    /// How many lanes there are (names held, contended or waited for), and how many tasks stand in them.
    pub(crate) fn count(&self) -> (usize, usize) {
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            (shard.len(), shard.values().map(|lane| lane.queue.len()).sum::<usize>())
        };
        self.shards.iter().map(count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}
