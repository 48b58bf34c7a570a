//! Lanes: the order of the tasks of one process that want the same lock (decision D10).
//!
//! One task per lane contends at the server; the others queue here. When a guard gives its lease back, the lease is
//! passed to the next task in line without the server, for a bounded turn; after that it is released for real so
//! that other processes get theirs. A lane exists only while a task holds, contends or waits.

mod kinds;
mod passing;
mod unpolled;

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

pub(crate) use passing::{Leaving, NextTask};

use super::{
    Request, Wait,
    intake::Intake,
    lane::{Crowd, Handoff, InLine, Lane, Lost, Queued, Turn, Wakes, Work},
    lease::Lease,
    owners::{self, Owners},
    pulse::PULSE_MS,
};
use crate::{
    error::{Error, ErrorKind},
    harmless::harmless,
    keys::Keys,
    owner::Owner,
    recipes::LanePolicy,
};

const SHARDS: usize = 64;

/// For how long the last sight of a hold on the server is good enough to call a lock busy without asking, and to pass it on. A hold may have
/// been forced free since, and then it must not keep its own process out for longer than others.
const SIGHT_MS: u64 = 100;

/// How to come in.
pub(crate) enum Enter {
    /// Contend at the server; the lane is ours to lead and must be left again.
    Go,
    /// Wait here.
    Queue(InLine),
    /// This very owner holds it: enter once more.
    Again(Arc<Lease>),
    /// An earlier request of this owner is still under way. Come in again when its turn is quiet.
    Settle,
    /// The same, and the caller does not wait.
    Unsettled,
    /// A task of this process holds it, and the caller does not wait.
    Busy,
    /// Another task leads the lane and the caller does not wait: try once, beside the lane.
    Aside,
}

pub(crate) struct Bounds {
    pub(crate) turn_ms_max: u64,
    pub(crate) passes_max: u32,
}

/// The lanes of one client.
pub(crate) struct Lanes {
    shards: Box<[Mutex<Shard>]>,
    bounds: Bounds,
    intake: Arc<Intake>,
    owners: Arc<Owners>,
    /// A task may stand in line behind a hold that nothing looks out for.
    lined: AtomicBool,
    /// Tasks may stand in line.
    queued: AtomicBool,
    kinds: kinds::Kinds,
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
    pub(crate) fn new(bounds: Bounds, intake: Arc<Intake>, owners: Arc<Owners>) -> Self {
        Lanes {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bounds,
            intake,
            owners,
            lined: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            kinds: kinds::Kinds::default(),
        }
    }

    fn shard(&self, keys: &Keys) -> MutexGuard<'_, Shard> {
        let at = (keys.hash >> 48) as usize % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the lane of a name, if there is one, and drops it when nothing is left of it.
    fn change<T>(&self, keys: &Arc<Keys>, change: impl FnOnce(&mut Lane) -> T) -> Option<T> {
        match self.shard(keys).entry(LaneKey(keys.clone())) {
            Entry::Vacant(_) => None,
            Entry::Occupied(mut entry) => {
                let outcome = change(entry.get_mut());
                if entry.get().is_idle() {
                    entry.remove();
                }
                Some(outcome)
            }
        }
    }

    /// Comes in: leads a new lane, or finds what is there. `turn` is the turn of the request's owner, if it names one.
    ///
    /// # Errors
    ///
    /// The owner is in doubt.
    pub(crate) fn enter(
        &self,
        request: &Arc<Request>,
        turn: Option<&owners::Turn>,
        now_ms: u64,
    ) -> Result<Enter, Error> {
        let Request { keys, recipe, wait, .. } = &**request;
        let (owner, waits) = (request.owner.as_ref(), *wait != Wait::No);
        let mut shard = self.shard(keys);
        // A guard covers its release before it takes its lease out of here, so an owner without a lease and without a cover has
        // nothing under way.
        if let Some(owner) = owner {
            let lane = shard.get(&LaneKey(keys.clone()));
            let held = lane
                .and_then(|lane| lane.leases().find(|lease| lease.owner == *owner && lease.is_valid(now_ms)));
            if let Some(lease) = held {
                if !lease.owner.lets_in(owner) {
                    return Err(not_handed_out());
                }
                return Ok(Enter::Again(lease.clone()));
            }
            // The server lets an owner in beside its hold of another kind.
            if self
                .held_as_other_kinds(&shard, keys, now_ms)
                .any(|held| held.owner == *owner && !held.owner.lets_in(owner))
            {
                return Err(not_handed_out());
            }
        }
        if let Some(turn) = turn
            && !turn.begins()?
        {
            return Ok(if waits { Enter::Settle } else { Enter::Unsettled });
        }
        if recipe.lane() != LanePolicy::Queue {
            return Ok(Enter::Aside);
        }
        match shard.entry(LaneKey(keys.clone())) {
            Entry::Vacant(free) => {
                free.insert(Lane::default()).work = Work::Contends(request.clone());
                Ok(Enter::Go)
            }
            Entry::Occupied(mut taken) => {
                let lane = taken.get_mut();
                if lane.is_free() {
                    lane.work = Work::Contends(request.clone());
                    return Ok(Enter::Go);
                }
                if !waits {
                    match lane.held() {
                        Some(lease) if lease.is_valid(now_ms) && lease.asked_ms() + SIGHT_MS > now_ms => {
                            return Ok(Enter::Busy);
                        }
                        // A release that is on its way and that no other task waits for is worth one round trip.
                        None if matches!(lane.work, Work::Releases { .. })
                            && lane.crowd().queue.is_empty() => {}
                        _ => return Ok(Enter::Aside),
                    }
                }
                let (queued, handoff) = Queued::new(request, owner.cloned(), None);
                lane.crowd_mut().queue.push_back(queued);
                self.note_line(lane);
                // The keeper takes the note away before it looks into this shard.
                if !self.queued.load(Ordering::Acquire) && !self.queued.swap(true, Ordering::AcqRel) {
                    self.intake.look_by(now_ms + PULSE_MS);
                }
                Ok(Enter::Queue(handoff))
            }
        }
    }

    /// Notes that tasks may stand in line behind a hold.
    fn note_line(&self, lane: &Lane) {
        if lane.held().is_some() && !lane.crowd().queue.is_empty() && !self.lined.load(Ordering::Relaxed) {
            self.lined.store(true, Ordering::Relaxed);
        }
    }

    /// A grant has come from the server, to the task that made the request `leader` if that one leads. Returns the leases of other
    /// owners that the grant shows to be gone; or the one that was seen there after this grant was asked for, which has gone then.
    pub(super) fn granted(
        &self,
        lease: &Arc<Lease>,
        leader: Option<&Arc<Request>>,
        now_ms: u64,
    ) -> Result<Lost, Arc<Lease>> {
        let mut shard = self.shard(&lease.keys);
        let others = self.of_other_kinds(&shard, lease, now_ms);
        let lane = shard.entry(LaneKey(lease.keys.clone())).or_default();
        if leader.is_some_and(|leader| lane.is_led_by(leader)) {
            lane.work = Work::Nothing;
            lane.turn = Turn { since_ms: now_ms, passes: 0 };
        }
        let mut newer = others.iter().find(|held| held.asked_ms() > lease.asked_ms()).cloned();
        if lease.recipe.lane() != LanePolicy::Beside {
            newer = newer.or_else(|| lane.newer_than(lease, now_ms));
        }
        if let Some(newer) = newer {
            drop(shard);
            // The one that led has nothing, and the newer one need not be what the line waits for.
            self.promote(&lease.keys, false);
            return Err(newer);
        }
        if !lease.is_held() {
            // What was handed to a task can be lost before it is noted here. What ends a lease looks for it here after that.
            drop(shard);
            self.change(&lease.keys, |_| {});
            self.promote(&lease.keys, false);
            return Ok(Lost::new());
        }
        let mut lost = lane.add(lease, &self.intake, now_ms);
        lost.extend(others);
        self.note_line(lane);
        Ok(lost)
    }

    /// A release has moved the lease on the server to a task of this process, as an answer says that may have come late. `None` if that
    /// is no news of who holds any more: the task has gone on with what it was granted, the lease is over, or the lock has
    /// been granted to another task since.
    pub(super) fn moved(&self, lease: &Arc<Lease>, next: &Queued, now_ms: u64) -> Option<Lost> {
        let mut shard = self.shard(&lease.keys);
        let queues = lease.recipe.lane() == LanePolicy::Queue;
        // A fair heir asks for itself, too. Other tasks hand everything back to the lane.
        let gone = !queues && next.tell.is_closed();
        let others = self.of_other_kinds(&shard, lease, now_ms);
        let since = |held: &Arc<Lease>| held.asked_ms() >= lease.asked_ms();
        let granted_since = others.iter().any(since)
            || shard.get(&LaneKey(lease.keys.clone())).is_some_and(|lane| {
                let valid = |held: &&Arc<Lease>| held.is_valid(now_ms) && held.owner != lease.owner;
                let mut leases = lane.leases().filter(valid);
                leases.any(since)
            });
        if gone || granted_since || !lease.is_valid(now_ms) {
            return None;
        }
        let lane = shard.entry(LaneKey(lease.keys.clone())).or_default();
        if queues {
            lane.ends_release();
        }
        let mut lost = lane.add(lease, &self.intake, now_ms);
        lost.extend(others);
        self.note_line(lane);
        Some(lost)
    }

    /// A task asks for a place in the queue on the server. From now on a release may hand over to it.
    pub(crate) fn line_up(&self, keys: &Arc<Keys>, queued: Queued) {
        let mut shard = self.shard(keys);
        shard.entry(LaneKey(keys.clone())).or_default().crowd_mut().queue.push_back(queued);
    }

    /// The server has the task in its queue, behind those that it was known to have.
    pub(crate) fn lined_up(&self, keys: &Arc<Keys>, owner: &Owner) {
        let mut shard = self.shard(keys);
        let Some(lane) = shard.get_mut(&LaneKey(keys.clone())) else { return };
        let at = lane
            .crowd()
            .queue
            .iter()
            .position(|queued| queued.owner.as_ref() == Some(owner) && !queued.placed);
        if let Some(mut queued) = at.and_then(|at| lane.crowd_mut().queue.remove(at)) {
            queued.placed = true;
            let at = lane.placed();
            lane.crowd_mut().queue.insert(at, queued);
        }
    }

    /// Whether a task in line may count on this process: a task of it has what it waits for, hands it over just now, or
    /// comes before it. If so it is woken when that was in vain.
    pub(crate) fn naps(&self, keys: &Arc<Keys>, owner: &Owner) -> bool {
        let mut shard = self.shard(keys);
        let Some(lane) = shard.get_mut(&LaneKey(keys.clone())) else { return false };
        let has_leases = lane.leases().next().is_some();
        let Some(Crowd { queue, handing, heir_naps, .. }) = lane.crowd_if_any() else { return false };
        let is_handing = *handing > 0;
        let held = is_handing || has_leases;
        let place = queue.iter().position(|queued| queued.owner.as_ref() == Some(owner));
        match place.and_then(|place| queue.get_mut(place)) {
            Some(queued) => queued.naps = held || place > Some(0),
            // A release is on its way that may hand over to this very task.
            None => *heir_naps = is_handing,
        }
        place.map_or(is_handing, |place| held || place > 0)
    }

    /// A release that might have handed over is done; the task that it served is `None`, and otherwise waits on, first in line.
    pub(crate) fn handed_over(&self, keys: &Arc<Keys>, waits_on: Option<Queued>) {
        let wakes = self.change(keys, |lane| {
            let crowd = lane.crowd_mut();
            crowd.handing = crowd.handing.saturating_sub(1);
            let heir_naps = std::mem::take(&mut crowd.heir_naps);
            let Some(mut queued) = waits_on else { return Wakes::default() };
            queued.naps |= heir_naps;
            if !queued.tell.is_closed() {
                let at = if queued.placed { 0 } else { lane.placed() };
                lane.crowd_mut().queue.insert(at, queued);
            }
            lane.nappers()
        });
        wakes.unwrap_or_default().wake();
    }

    /// A task no longer waits in the queue on the server.
    pub(crate) fn step_out(&self, keys: &Arc<Keys>, owner: &Owner) {
        let left = self.change(keys, |lane| {
            let at = lane.crowd().queue.iter().position(|queued| queued.owner.as_ref() == Some(owner));
            at.and_then(|at| lane.crowd_mut().queue.remove(at))
        });
        drop(left);
    }

    /// A task that stood in line has left: it waits no longer.
    pub(crate) fn left_line(&self, keys: &Arc<Keys>) {
        drop(self.change(keys, Lane::one_has_left));
    }

    /// A release has been done: the next in line leads.
    pub(crate) fn leave(&self, keys: &Arc<Keys>, after_others: bool) {
        if self.change(keys, Lane::ends_release).is_some() {
            self.promote(keys, after_others);
        }
    }

    /// A leader gives up, or is passed over: the next in line leads, unless another one does already.
    pub(crate) fn leave_to_the_next(&self, leader: &Arc<Request>, after_others: bool) {
        let left = self.change(&leader.keys, |lane| {
            let led = lane.is_led_by(leader);
            if led {
                lane.work = Work::Nothing;
            }
            led
        });
        if left == Some(true) {
            self.promote(&leader.keys, after_others);
        }
    }

    /// A task waits at the server for a hold beside others, until [`waited_beside`](Self::waited_beside).
    pub(crate) fn wait_beside(&self, keys: &Arc<Keys>) {
        self.shard(keys).entry(LaneKey(keys.clone())).or_default().crowd_mut().waiting += 1;
    }

    /// Such a task no longer waits.
    pub(crate) fn waited_beside(&self, keys: &Arc<Keys>) {
        self.change(keys, |lane| {
            let crowd = lane.crowd_mut();
            crowd.waiting = crowd.waiting.saturating_sub(1);
        });
    }

    /// Whether such tasks wait.
    pub(crate) fn are_waiting_beside(&self, keys: &Arc<Keys>) -> bool {
        self.shard(keys).get(&LaneKey(keys.clone())).is_some_and(|lane| lane.crowd().waiting > 0)
    }

    /// Lets the next in line lead, if no task holds or leads.
    fn promote(&self, keys: &Arc<Keys>, after_others: bool) {
        let now_ms = self.owners.now_ms();
        // The flag is set before the task is told: it may be running before this returns.
        let next = || {
            self.change(keys, |lane| {
                let is_free = lane.held().is_none() && !lane.is_busy();
                let next = if is_free { lane.first_in_line(now_ms) } else { None };
                if let Some(next) = &next {
                    lane.work = Work::Contends(next.request.clone());
                }
                next
            })
        };
        while let Some(Some(next)) = next() {
            // A waker that panics does so when the task has been told.
            if !matches!(harmless(|| next.tell.send(Handoff::Contend { after_others })), Some(Err(_))) {
                return;
            }
            self.change(keys, |lane| {
                if lane.is_led_by(&next.request) {
                    lane.work = Work::Nothing;
                }
            });
        }
    }

    /// Puts a task back to the front of its line.
    pub(crate) fn requeue(&self, keys: &Arc<Keys>, queued: Queued) {
        if queued.tell.is_closed() {
            return;
        }
        let mut shard = self.shard(keys);
        shard.entry(LaneKey(keys.clone())).or_default().crowd_mut().queue.push_front(queued);
    }

    /// A lease is lost or detached: the lane goes on without it.
    pub(crate) fn forget(&self, lease: &Arc<Lease>) {
        let mut wakes = Wakes::default();
        let removed = self.change(&lease.keys, |lane| {
            let removed = lane.remove(lease);
            if removed && lease.recipe.lane() != LanePolicy::Queue {
                wakes = lane.nappers();
            }
            removed
        });
        wakes.wake();
        if removed.is_some() && lease.recipe.lane() == LanePolicy::Queue {
            self.promote(&lease.keys, false);
        }
    }

    /// The lease that a hold goes on as: it, or the one that it was passed on as since it was last seen on the server.
    pub(super) fn present(&self, lease: &Arc<Lease>) -> Option<Arc<Lease>> {
        if lease.is_held() {
            return Some(lease.clone());
        }
        let mut found = self.find(&lease.keys).into_iter();
        found.find(|held| held.goes_on(lease))
    }

    /// The server was seen not to have a hold: ends it, or the one that it was passed on as, and returns it. Passing on is done under the same
    /// mutex, so what is passed on later is over as well.
    pub(super) fn gone(&self, lease: &Arc<Lease>) -> Option<Arc<Lease>> {
        let shard = self.shard(&lease.keys);
        let lane = shard.get(&LaneKey(lease.keys.clone()));
        let is_here = lane.is_some_and(|lane| lane.leases().any(|held| Arc::ptr_eq(held, lease)));
        lease.is_gone();
        if let Some(lane) = lane.filter(|_| !is_here) {
            lane.leases().filter(|held| held.goes_on(lease)).for_each(|held| held.is_gone());
        }
        drop(shard);
        self.present(lease)
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

    /// Has the next look find lines that were looked at before.
    pub(super) fn look_at_lines(&self) {
        self.lined.store(true, Ordering::Relaxed);
    }

    /// The holds that tasks of this process wait for, and that have not been seen on the server for so long.
    pub(super) fn waited_for(&self, now_ms: u64, unseen_ms: u64) -> Vec<Arc<Lease>> {
        let mut found = Vec::new();
        if !self.lined.swap(false, Ordering::Relaxed) {
            return found;
        }
        for shard in &self.shards {
            for lane in shard.lock().unwrap_or_else(PoisonError::into_inner).values() {
                let Some(lease) = lane.held().filter(|_| !lane.crowd().queue.is_empty()) else { continue };
                if lease.asked_ms() + unseen_ms <= now_ms {
                    found.push(lease.clone());
                } else {
                    // It may be worth it by the next time.
                    self.lined.store(true, Ordering::Relaxed);
                }
            }
        }
        found
    }

    /// Whether tasks stand in line for a name.
    pub(super) fn has_line(&self, keys: &Arc<Keys>) -> bool {
        let shard = self.shard(keys);
        shard
            .get(&LaneKey(keys.clone()))
            .is_some_and(|lane| lane.crowd().queue.iter().any(|queued| !queued.tell.is_closed()))
    }

    /// Sends every task in line home: the client is closed.
    pub(crate) fn close(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let lines: Vec<_> = shard
                .values_mut()
                .filter_map(Lane::crowd_if_any)
                .map(|crowd| std::mem::take(&mut crowd.queue))
                .collect();
            // Dropping them wakes them, which may run anything.
            drop(shard);
            drop(lines);
        }
    }

    /// How many lanes there are (names held, contended or waited for), and how many tasks stand in them.
    pub(crate) fn count(&self) -> (usize, usize) {
        let count = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            (shard.len(), shard.values().map(|lane| lane.crowd().queue.len()).sum::<usize>())
        };
        self.shards.iter().map(count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

/// An owner whose text was read off the server: its guard counts nobody else, and its hold may be passed on at any moment.
fn not_handed_out() -> Error {
    Error::new(ErrorKind::NotOwner, "the guard that holds under this owner has not handed it out")
        .remedy("enter with the owner that `guard.owner()` returns, or acquire without an owner")
}
