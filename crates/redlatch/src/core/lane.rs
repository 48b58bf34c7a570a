//! One lane: the tasks of one client that want the same lock, in their order (decision D10).

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use smallvec::SmallVec;
use tokio::sync::Notify;

use super::{Request, keeper_alarm::KeeperAlarm, lease::HeldLease};
use crate::{catch_panic::catch_panic, owner::Owner, recipes::LanePolicy, sync::oneshot};

/// How many waiters that rely on this process are woken when a release has handed the lock to none of them.
const LOCAL_WAKES_MAX: usize = 4;

/// What a task in line is told. It is told once.
pub(crate) enum WaiterMessage {
    /// The lease itself.
    Lease(Arc<HeldLease>),
    /// The duty to contend at the server; `other_processes_first` when other processes should get their turn first.
    Lead { other_processes_first: bool },
}

/// A task in line, as its lane knows it: the sending end.
pub(crate) struct WaiterEntry {
    pub(crate) tell: oneshot::Sender<WaiterMessage>,
    pub(crate) owner: Option<Owner>,
    pub(crate) request: Arc<Request>,
    /// Also wakes the task if it contends and sleeps (`wait.rs`): fair locks.
    pub(crate) wake: Option<Arc<Notify>>,
    /// The server is known to have it in its queue, too. Such entries stand before all others of the lane.
    pub(super) is_in_server_queue: bool,
    /// Which task it is.
    pub(super) task: Option<tokio::task::Id>,
    /// Since when it stands in line.
    pub(super) since_ms: u64,
    /// It has not subscribed, so the next release by a task of this process has to wake it.
    pub(super) relies_on_local_wake: bool,
}

impl WaiterEntry {
    pub(crate) fn new(
        request: &Arc<Request>,
        owner: Option<Owner>,
        wake: Option<Arc<Notify>>,
        since_ms: u64,
    ) -> (WaiterEntry, WaiterHandle) {
        let (tell, inbox) = oneshot::channel();
        let handle = WaiterHandle { inbox, request: request.clone() };
        (
            WaiterEntry {
                tell,
                owner,
                request: request.clone(),
                wake,
                is_in_server_queue: false,
                task: tokio::task::try_id(),
                since_ms,
                relies_on_local_wake: false,
            },
            handle,
        )
    }

    /// Notes that the server may have given its owner a hold that nobody saw. Returns whether the task settles that itself: it asks under
    /// the same owner, or removes the hold when it gives up.
    pub(crate) fn note_outcome_unknown(&self) -> bool {
        self.request.outcome_unknown.store(true, Ordering::SeqCst);
        // A task that goes closes its inbox first, and looks at the flag then: `WaiterHandle::close`.
        self.owner.is_some() && !self.tell.is_closed()
    }

    /// Hands over a lease that was [offered](HeldLease::offer); it comes back if the task is gone.
    pub(crate) fn hand(self, lease: Arc<HeldLease>) -> Result<(), Arc<HeldLease>> {
        // If the waker panics, the lease was sent before that.
        if let Some(Err(WaiterMessage::Lease(lease))) =
            catch_panic(|| self.tell.send(WaiterMessage::Lease(lease)))
        {
            return Err(lease);
        }
        if let Some(wake) = self.wake {
            catch_panic(|| wake.notify_one());
        }
        Ok(())
    }
}

/// Leases that are gone from the server, as a grant to another owner has shown.
pub(super) type DisplacedLeases = SmallVec<[Arc<HeldLease>; 1]>;

/// Tasks to be woken once the lane's mutex is let go: a waker may run anything, even the woken task.
#[must_use = "a task that is not woken sleeps on"]
#[derive(Default)]
pub(super) struct Wakes(SmallVec<[Arc<Notify>; LOCAL_WAKES_MAX]>);

impl Wakes {
    pub(super) fn wake(self) {
        for notify in &self.0 {
            catch_panic(|| notify.notify_one());
        }
    }
}

/// What a task in line has itself: the receiving end.
pub(crate) struct WaiterHandle {
    inbox: oneshot::Receiver<WaiterMessage>,
    pub(crate) request: Arc<Request>,
}

impl WaiterHandle {
    /// Resolves when the task is told something.
    pub(crate) fn inbox(&mut self) -> &mut oneshot::Receiver<WaiterMessage> {
        &mut self.inbox
    }

    /// What the task was told, if anything.
    pub(crate) fn told(&mut self) -> Option<WaiterMessage> {
        self.inbox.try_recv().ok()
    }

    /// Whether the task's owner may have been given the lock unseen.
    pub(crate) fn is_outcome_unknown(&self) -> bool {
        self.request.outcome_unknown.load(Ordering::SeqCst)
    }

    /// The task is told nothing more. Closed before anything is looked at: whatever finds the inbox open relies on this to find what it left.
    pub(crate) fn close(mut self) -> ClosedInbox {
        self.inbox.close();
        let (told, is_outcome_unknown) = (self.told(), self.is_outcome_unknown());
        ClosedInbox { told, is_outcome_unknown, request: self.request }
    }
}

/// What is left of a task's place in line.
#[must_use = "what the task was told at the last moment would be lost"]
pub(crate) struct ClosedInbox {
    pub(crate) told: Option<WaiterMessage>,
    /// The task's owner may have been given the lock unseen.
    pub(crate) is_outcome_unknown: bool,
    pub(crate) request: Arc<Request>,
}

/// What is done at the server for the tasks in line.
#[derive(Default)]
pub(super) enum LaneState {
    #[default]
    Nothing,
    /// A task contends: this is its request.
    Contends(Arc<Request>),
    /// A release is on its way, since then.
    Releases { since_ms: u64 },
}

#[derive(Default)]
pub(super) struct Lane {
    /// The lease that a guard of this process holds.
    lease: Option<Arc<HeldLease>>,
    /// What is done at the server for those in line.
    pub(super) state: LaneState,
    pub(super) local_turn: LocalTurn,
    /// Boxed, because most lanes are a lease and nothing else, and there are many of them.
    rare: Option<Box<RareLaneState>>,
}

/// What a lane has beside one lease.
#[derive(Default)]
pub(super) struct RareLaneState {
    /// The leases of the kinds that do not queue in the lane: read holds, permits, and that of a fair lock.
    other_leases: Vec<Arc<HeldLease>>,
    /// Older leases of the same owner that a later grant has replaced and whose guards are not told yet. They take no part in the lane; the
    /// keeper finds them here.
    replaced: Vec<Arc<HeldLease>>,
    /// How many tasks wait at the server for a hold of such a kind.
    pub(super) waiting_at_server: u32,
    /// How many releases are on their way that may hand over.
    pub(super) granting_releases: u32,
    /// A task that one of these releases may serve has not subscribed, so the release has to wake it.
    pub(super) next_relies_on_local_wake: bool,
    pub(super) queue: VecDeque<WaiterEntry>,
    /// How many tasks have left the line since the last sweep.
    gone: usize,
}

impl RareLaneState {
    const NONE: &RareLaneState = &RareLaneState {
        other_leases: Vec::new(),
        replaced: Vec::new(),
        waiting_at_server: 0,
        granting_releases: 0,
        next_relies_on_local_wake: false,
        queue: VecDeque::new(),
        gone: 0,
    };

    fn is_none(&self) -> bool {
        self.other_leases.is_empty()
            && self.replaced.is_empty()
            && self.waiting_at_server == 0
            && self.granting_releases == 0
            && self.queue.is_empty()
    }
}

impl Lane {
    pub(super) fn is_idle(&self) -> bool {
        self.lease.is_none() && !self.is_busy() && self.rare().is_none()
    }

    /// Whether a task that comes now becomes the leader. A replaced lease does not count: no task inherits it.
    pub(super) fn is_free(&self) -> bool {
        self.lease.is_none() && !self.is_busy() && self.rare().queue.is_empty()
    }

    /// What there is beside one lease.
    pub(super) fn rare(&self) -> &RareLaneState {
        self.rare.as_deref().unwrap_or(RareLaneState::NONE)
    }

    /// The same, to be added to.
    pub(super) fn rare_mut(&mut self) -> &mut RareLaneState {
        self.rare.get_or_insert_default()
    }

    /// The same, to be taken from.
    pub(super) fn rare_if_any(&mut self) -> Option<&mut RareLaneState> {
        self.rare.as_deref_mut()
    }

    /// Whether a task contends at the server, or a release is on its way.
    pub(super) fn is_busy(&self) -> bool {
        !matches!(self.state, LaneState::Nothing)
    }

    /// A release is over. Meanwhile a task may have gone on without waiting for it.
    pub(super) fn end_release(&mut self) {
        if let LaneState::Releases { .. } = self.state {
            self.state = LaneState::Nothing;
        }
    }

    pub(super) fn is_led_by(&self, request: &Arc<Request>) -> bool {
        matches!(&self.state, LaneState::Contends(leader) if Arc::ptr_eq(leader, request))
    }

    /// The task that contends, if others wait behind it.
    pub(super) fn leader(&self) -> Option<&Arc<Request>> {
        match &self.state {
            LaneState::Contends(leader) if !self.rare().queue.is_empty() => Some(leader),
            _ => None,
        }
    }

    /// Takes the first task in line that still waits and is polled; if none is polled, the first that waits. Where the server has a queue of
    /// its own, that one decides.
    pub(super) fn take_first_in_line(&mut self, now_ms: u64) -> Option<WaiterEntry> {
        let queue = &mut self.rare_if_any()?.queue;
        while queue.front().is_some_and(|entry| entry.tell.is_closed()) {
            queue.pop_front();
        }
        let is_ready = |entry: &WaiterEntry| {
            let lane_chooses = entry.request.recipe.lane_policy() == LanePolicy::OneContends;
            !(entry.tell.is_closed() || lane_chooses && entry.request.liveness.is_looked_for_in_vain(now_ms))
        };
        let at = queue.iter().position(is_ready).unwrap_or(0);
        queue.remove(at)
    }

    /// Those in line, up to so many.
    pub(super) fn some_in_line(&self, count_max: usize) -> Vec<Arc<Request>> {
        self.rare().queue.iter().take(count_max).map(|entry| entry.request.clone()).collect()
    }

    /// The index behind the last entry that the server is known to have in its queue.
    pub(super) fn server_queue_end(&self) -> usize {
        self.rare().queue.iter().rposition(|entry| entry.is_in_server_queue).map_or(0, |last| last + 1)
    }

    /// What wakes the first few in line that rely on this process. Which of them is first on the server is not certain, because answers that come in
    /// order may be noted out of order.
    pub(super) fn take_local_wakes(&mut self) -> Wakes {
        let Some(rare) = self.rare_if_any() else { return Wakes::default() };
        let first = rare.queue.iter_mut().take(LOCAL_WAKES_MAX);
        let expecting = first
            .filter_map(|entry| std::mem::take(&mut entry.relies_on_local_wake).then(|| entry.wake.clone()));
        Wakes(expecting.flatten().collect())
    }

    /// A task has left the line. Those who have left are swept out when they are more than those who stay, and returned so that
    /// they are dropped without the lane's mutex.
    pub(super) fn note_one_left(&mut self) -> Vec<WaiterEntry> {
        let Some(RareLaneState { queue, gone: gone_count, .. }) = self.rare_if_any() else {
            return Vec::new();
        };
        *gone_count += 1;
        if *gone_count <= queue.len() / 2 {
            return Vec::new();
        }
        *gone_count = 0;
        let (gone, stay) = queue.drain(..).partition::<Vec<_>, _>(|entry| entry.tell.is_closed());
        queue.extend(stay);
        // Room for those who have left is given back with them.
        queue.shrink_to(2 * queue.len());
        gone
    }

    /// The lease of a kind that has one at a time.
    pub(super) fn held(&self) -> Option<&Arc<HeldLease>> {
        self.lease.as_ref()
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Arc<HeldLease>> {
        let RareLaneState { other_leases, replaced, .. } = self.rare();
        self.lease.iter().chain(other_leases).chain(replaced)
    }

    /// A lease comes into being here: the keeper knows of it from now on. Returns the leases of other owners whose place it has
    /// taken, which therefore are lost.
    #[must_use = "what has lost its place is told so"]
    pub(super) fn add(
        &mut self,
        lease: &Arc<HeldLease>,
        keeper_alarm: &KeeperAlarm,
        now_ms: u64,
    ) -> DisplacedLeases {
        let mut lost = DisplacedLeases::new();
        match lease.recipe.lane_policy() {
            LanePolicy::OneContends => {
                let former = self.lease.replace(lease.clone());
                match former.filter(|former| former.is_held() && !Arc::ptr_eq(former, lease)) {
                    Some(former) if former.owner == lease.owner => self.rare_mut().replaced.push(former),
                    former => lost.extend(former),
                }
            }
            LanePolicy::AllContend => self.rare_mut().other_leases.push(lease.clone()),
            LanePolicy::QueuesAtServer => {
                let other_leases = &mut self.rare_mut().other_leases;
                lost.extend(other_leases.iter().filter(|held| held.owner != lease.owner).cloned());
                // A lease that was handed over is here already.
                if !other_leases.iter().any(|held| Arc::ptr_eq(held, lease)) {
                    other_leases.push(lease.clone());
                }
            }
        }
        keeper_alarm.note_lease(lease, now_ms);
        lost
    }

    /// A valid hold of another owner that was shown by a request sent after the one for `lease`.
    pub(super) fn newer_than(&self, lease: &HeldLease, now_ms: u64) -> Option<Arc<HeldLease>> {
        // One that is over says nothing of now, though its holder may not have been told yet.
        let mut others = self.leases().filter(|held| held.is_valid(now_ms) && held.owner != lease.owner);
        others.find(|held| held.last_proof_sent_ms() > lease.last_proof_sent_ms()).cloned()
    }

    /// Takes a lease out; `false` if it had no part in the lane.
    pub(super) fn remove(&mut self, lease: &Arc<HeldLease>) -> bool {
        if let Some(RareLaneState { other_leases, replaced, .. }) = self.rare_if_any() {
            replaced.retain(|replaced| !Arc::ptr_eq(replaced, lease));
            if let Some(at) = other_leases.iter().position(|held| Arc::ptr_eq(held, lease)) {
                other_leases.swap_remove(at);
                return true;
            }
        }
        let ours = self.lease.as_ref().is_some_and(|held| Arc::ptr_eq(held, lease));
        if ours {
            self.lease = None;
        }
        ours
    }
}

/// How long this process has been passing the lock around.
#[derive(Clone, Copy, Default)]
pub(super) struct LocalTurn {
    pub(super) since_ms: u64,
    pub(super) passes: u32,
}
