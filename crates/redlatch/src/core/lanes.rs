//! Lanes: the order of the tasks of one client that want the same lock (decision D10).
//!
//! One task per lane contends at the server; the others queue here. When a guard gives its lease back, the lease goes to
//! the next task in line, for a bounded turn: passed on without the server, or moved by it where it cannot be. After
//! that it is released, so that other processes get theirs. Tasks of fair locks, readers and permits ask beside the lane, because the server
//! orders or counts them. A lane exists only while a task holds, contends or waits, or a release is on its way. `lane.rs` is one of them.

mod join_reusable;
pub(super) mod kinds;
pub(super) mod pass_on;
mod queries;
mod server_waiters;
#[cfg(redlatch_shuttle)]
pub(crate) mod threads;
mod unpolled;

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::{Arc, PoisonError},
};

use super::{
    Request, Wait,
    keeper_alarm::KeeperAlarm,
    lane::{
        ClosedInbox, DisplacedLeases, Lane, LaneState, LocalTurn, WaiterEntry, WaiterHandle, WaiterMessage,
        Wakes,
    },
    lease::HeldLease,
    owner_claims::{OwnerClaim, Owners},
    task_liveness::TASK_POLL_DUE_MS,
};
use crate::{
    catch_panic::catch_panic,
    error::Error,
    keys::Keys,
    recipes::LanePolicy,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

const BUCKETS: usize = 64;

/// If a request that was sent less than this ago showed a hold, the hold is taken to be there still: `try_lock` returns busy without asking, and the hold may be passed on. An
/// older one may have been forced free, and must not keep its own process out for longer than others.
const SEEN_RECENTLY_MS: u64 = 100;

/// How to come in.
pub(crate) enum JoinStep {
    /// Contend at the server; the lane is ours to lead and must be left again.
    Lead,
    /// Wait here.
    Queue(WaiterHandle),
    /// This very owner holds it: enter once more.
    Reenter(Arc<HeldLease>),
    /// An earlier request of this owner is still under way. Come in again when the claim on it is quiet.
    OwnerBusy,
    /// The same, and the caller does not wait.
    OwnerBusyNoWait,
    /// A task of this process holds it, the server showed that within 100 ms, and the caller does not wait.
    Busy,
    /// Ask beside the lane: tasks of this kind do not queue here, or the caller does not wait and only the server knows.
    AskForItself,
}

pub(crate) struct TurnLimits {
    pub(crate) turn_ms_max: u64,
    pub(crate) passes_max: u32,
}

/// The lanes of one client.
pub(crate) struct Lanes {
    buckets: Box<[Mutex<Bucket>]>,
    turn_limits: TurnLimits,
    keeper_alarm: Arc<KeeperAlarm>,
    owners: Arc<Owners>,
    /// A task may stand in line behind a hold: the keeper subscribes to the lock's channel for it (`listen_for_line.rs`).
    waiters_behind_lease: AtomicBool,
    /// Tasks may stand in line: the keeper looks whether they are polled (`unpolled.rs`).
    has_waiters: AtomicBool,
    kinds: kinds::Kinds,
}

/// The lanes under one mutex of several.
type Bucket = HashMap<LaneKey, Lane, BuildHasherDefault<NameHash>>;

#[derive(Clone)]
struct LaneKey(Arc<Keys>);

impl Hash for LaneKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.lane_hash);
    }
}

impl PartialEq for LaneKey {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.kind == other.0.kind && self.0.key == other.0.key)
    }
}

impl Eq for LaneKey {}

/// The hash value was worked out when the name was checked; it is passed on as it is.
#[derive(Default)]
struct NameHash(u64);

impl Hasher for NameHash {
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
    pub(crate) fn new(turn_limits: TurnLimits, keeper_alarm: Arc<KeeperAlarm>, owners: Arc<Owners>) -> Self {
        Lanes {
            buckets: (0..BUCKETS).map(|_| Mutex::default()).collect(),
            turn_limits,
            keeper_alarm,
            owners,
            waiters_behind_lease: AtomicBool::new(false),
            has_waiters: AtomicBool::new(false),
            kinds: kinds::Kinds::default(),
        }
    }

    fn bucket(&self, keys: &Keys) -> MutexGuard<'_, Bucket> {
        let at = (keys.lane_hash >> 48) as usize % BUCKETS;
        self.buckets[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the lane of a name, if there is one, and drops it when nothing is left of it.
    fn change<T>(&self, keys: &Arc<Keys>, change: impl FnOnce(&mut Lane) -> T) -> Option<T> {
        match self.bucket(keys).entry(LaneKey(keys.clone())) {
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

    /// Comes in: leads a new lane, or finds what is there. `claim` is that on the request's owner, if it names one.
    ///
    /// # Errors
    ///
    /// The owner is in doubt.
    pub(crate) fn join(
        &self,
        request: &Arc<Request>,
        claim: Option<&OwnerClaim>,
        now_ms: u64,
    ) -> Result<JoinStep, Error> {
        let Request { keys, recipe, wait, .. } = &**request;
        let (owner, waits) = (request.owner.as_ref(), *wait != Wait::No);
        let mut bucket = self.bucket(keys);
        if let Some(owner) = owner
            && let Some(step) = self.join_as_owner(&bucket, request, owner, claim, now_ms)?
        {
            return Ok(step);
        }
        if recipe.lane_policy() != LanePolicy::OneContends {
            return Ok(JoinStep::AskForItself);
        }
        match bucket.entry(LaneKey(keys.clone())) {
            Entry::Vacant(free) => {
                free.insert(Lane::default()).state = LaneState::Contends(request.clone());
                Ok(JoinStep::Lead)
            }
            Entry::Occupied(mut taken) => {
                let lane = taken.get_mut();
                if lane.is_free() {
                    lane.state = LaneState::Contends(request.clone());
                    return Ok(JoinStep::Lead);
                }
                if !waits {
                    match lane.held() {
                        Some(lease)
                            if lease.is_valid(now_ms)
                                && lease.last_proof_sent_ms() + SEEN_RECENTLY_MS > now_ms =>
                        {
                            return Ok(JoinStep::Busy);
                        }
                        // A release is on its way and no task queues for it. Asking now would find the lock busy, so the caller queues, for the
                        // response timeout at most.
                        None if matches!(lane.state, LaneState::Releases { .. })
                            && lane.rare().queue.is_empty() => {}
                        _ => return Ok(JoinStep::AskForItself),
                    }
                }
                let (entry, handle) = WaiterEntry::new(request, owner.cloned(), None, now_ms);
                lane.rare_mut().queue.push_back(entry);
                self.note_waiters(lane);
                // The keeper clears this flag before it looks into the bucket, so it misses no entry.
                if !self.has_waiters.load(Ordering::Acquire) && !self.has_waiters.swap(true, Ordering::AcqRel)
                {
                    self.keeper_alarm.look_at_lanes_by(now_ms + TASK_POLL_DUE_MS);
                }
                Ok(JoinStep::Queue(handle))
            }
        }
    }

    /// Notes that tasks may stand in line behind a hold.
    fn note_waiters(&self, lane: &Lane) {
        if lane.held().is_some()
            && !lane.rare().queue.is_empty()
            && !self.waiters_behind_lease.load(Ordering::Relaxed)
        {
            self.waiters_behind_lease.store(true, Ordering::Relaxed);
        }
    }

    /// Notes a grant of the server. `leader`: the request of the task that led, if the grant is its own. Returns the leases of other
    /// owners that this grant shows to be lost.
    ///
    /// # Errors
    ///
    /// Another owner's lease, if a request that was sent later has shown that the server has that one: what it granted is gone then.
    pub(super) fn install_grant(
        &self,
        lease: &Arc<HeldLease>,
        leader: Option<&Arc<Request>>,
        now_ms: u64,
    ) -> Result<DisplacedLeases, Arc<HeldLease>> {
        let mut bucket = self.bucket(&lease.keys);
        let others = self.of_other_kinds(&bucket, lease, now_ms);
        let lane = bucket.entry(LaneKey(lease.keys.clone())).or_default();
        if leader.is_some_and(|leader| lane.is_led_by(leader)) {
            lane.state = LaneState::Nothing;
            lane.local_turn = LocalTurn { since_ms: now_ms, passes: 0 };
        }
        let mut newer =
            others.iter().find(|held| held.last_proof_sent_ms() > lease.last_proof_sent_ms()).cloned();
        if lease.recipe.lane_policy() != LanePolicy::AllContend {
            newer = newer.or_else(|| lane.newer_than(lease, now_ms));
        }
        if let Some(newer) = newer {
            drop(bucket);
            // The leader has no lease, and the newer one may be in another lane, so the next in line has to ask.
            self.promote(&lease.keys, false);
            return Err(newer);
        }
        if !lease.is_held() {
            // The lease was lost before it came here. The code that ends a lease removes it from its lane after that, so it must not be added now.
            drop(bucket);
            self.change(&lease.keys, |_| {});
            self.promote(&lease.keys, false);
            return Ok(DisplacedLeases::new());
        }
        let mut lost = lane.add(lease, &self.keeper_alarm, now_ms);
        lost.extend(others);
        self.note_waiters(lane);
        Ok(lost)
    }

    /// The server has moved the hold to a task of this process. The answer that says so may be late; `None` if it is out of date: the task has gone on with what it was granted, the lease is over, or the lock has been granted to
    /// another task since.
    pub(super) fn install_transferred(
        &self,
        lease: &Arc<HeldLease>,
        next: &WaiterEntry,
        now_ms: u64,
    ) -> Option<DisplacedLeases> {
        let mut bucket = self.bucket(&lease.keys);
        let queues_in_lane = lease.recipe.lane_policy() == LanePolicy::OneContends;
        // A fair waiter may have got the lock by its own request and left the line. Waiters of the other kinds give back what they are handed.
        let gone = !queues_in_lane && next.tell.is_closed();
        let others = self.of_other_kinds(&bucket, lease, now_ms);
        let seen_no_earlier = |held: &Arc<HeldLease>| held.last_proof_sent_ms() >= lease.last_proof_sent_ms();
        let granted_since = others.iter().any(seen_no_earlier)
            || bucket.get(&LaneKey(lease.keys.clone())).is_some_and(|lane| {
                let valid = |held: &&Arc<HeldLease>| held.is_valid(now_ms) && held.owner != lease.owner;
                let mut leases = lane.leases().filter(valid);
                leases.any(seen_no_earlier)
            });
        if gone || granted_since || !lease.is_valid(now_ms) {
            return None;
        }
        let lane = bucket.entry(LaneKey(lease.keys.clone())).or_default();
        if queues_in_lane {
            lane.end_release();
        }
        let mut lost = lane.add(lease, &self.keeper_alarm, now_ms);
        lost.extend(others);
        self.note_waiters(lane);
        Some(lost)
    }

    /// A task stops waiting in line. Returns what it was handed this very moment, which it has to give back.
    pub(super) fn leave_line(&self, left: ClosedInbox) -> Option<Arc<HeldLease>> {
        match left.told {
            Some(WaiterMessage::Lease(lease)) if lease.take() => return Some(lease),
            Some(WaiterMessage::Lead { other_processes_first }) => {
                self.give_up_lead(&left.request, other_processes_first);
            }
            Some(WaiterMessage::Lease(_)) | None => self.waiter_left(&left.request.keys),
        }
        None
    }

    /// A task that stood in line has left: it waits no longer.
    pub(crate) fn waiter_left(&self, keys: &Arc<Keys>) {
        drop(self.change(keys, Lane::note_one_left));
    }

    /// A release has been done: the next in line leads.
    pub(crate) fn release_finished(&self, keys: &Arc<Keys>, other_processes_first: bool) {
        if self.change(keys, Lane::end_release).is_some() {
            self.promote(keys, other_processes_first);
        }
    }

    /// A leader gives up, or is passed over: the next in line leads, unless another one does already.
    pub(crate) fn give_up_lead(&self, leader: &Arc<Request>, other_processes_first: bool) {
        let left = self.change(&leader.keys, |lane| {
            let led = lane.is_led_by(leader);
            if led {
                lane.state = LaneState::Nothing;
            }
            led
        });
        if left == Some(true) {
            self.promote(&leader.keys, other_processes_first);
        }
    }

    /// Lets the next in line lead, if no task holds or leads and no release is on its way.
    fn promote(&self, keys: &Arc<Keys>, other_processes_first: bool) {
        let now_ms = self.owners.now_ms();
        // The lane is given to the task before the task is told, because it may run before that returns.
        let next = || {
            self.change(keys, |lane| {
                let is_free = lane.held().is_none() && !lane.is_busy();
                let next = if is_free { lane.take_first_in_line(now_ms) } else { None };
                if let Some(next) = &next {
                    lane.state = LaneState::Contends(next.request.clone());
                }
                next
            })
        };
        while let Some(Some(next)) = next() {
            // A waker that panics does so when the task has been told.
            if !matches!(
                catch_panic(|| next.tell.send(WaiterMessage::Lead { other_processes_first })),
                Some(Err(_))
            ) {
                return;
            }
            self.change(keys, |lane| {
                if lane.is_led_by(&next.request) {
                    lane.state = LaneState::Nothing;
                }
            });
        }
    }

    /// Puts a task back to the front of its line.
    pub(crate) fn requeue(&self, keys: &Arc<Keys>, entry: WaiterEntry) {
        if entry.tell.is_closed() {
            return;
        }
        let mut bucket = self.bucket(keys);
        bucket.entry(LaneKey(keys.clone())).or_default().rare_mut().queue.push_front(entry);
    }

    /// A lease is lost or detached: the lane goes on without it.
    pub(crate) fn forget(&self, lease: &Arc<HeldLease>) {
        let mut wakes = Wakes::default();
        let removed = self.change(&lease.keys, |lane| {
            let removed = lane.remove(lease);
            if removed && lease.recipe.lane_policy() != LanePolicy::OneContends {
                wakes = lane.take_local_wakes();
            }
            removed
        });
        wakes.wake();
        if removed.is_some() && lease.recipe.lane_policy() == LanePolicy::OneContends {
            self.promote(&lease.keys, false);
        }
    }

    /// Sends every task in line home: the client is closed.
    pub(crate) fn close(&self) {
        for bucket in &self.buckets {
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            let lines: Vec<_> = bucket
                .values_mut()
                .filter_map(Lane::rare_if_any)
                .map(|rare| std::mem::take(&mut rare.queue))
                .collect();
            // Dropping them wakes them, which may run anything.
            drop(bucket);
            drop(lines);
        }
    }
}
