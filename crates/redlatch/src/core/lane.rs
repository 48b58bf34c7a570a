//! One lane: the tasks of one process that want the same lock, in their order (ARCHITECTURE D10).

use std::{collections::VecDeque, sync::Arc};

use tokio::sync::{Notify, oneshot};

use super::{
    Request,
    lease::{Lease, Term},
};
use crate::{owner::Owner, replica_ack::Replication};

/// How many of those who nap are woken when a release handed over to none of them.
const NAPPERS_WOKEN: usize = 4;

/// How the tasks of one process that want the same name get along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LanePolicy {
    /// One holder: a single task contends at the server, the others queue in the lane.
    Queue,
    /// Any number of holders: every task asks the server for itself.
    Beside,
    /// Every task queues at the server; the lane knows them, in order, so that a release can hand over at once.
    Ordered,
}

/// What a waiting task is handed.
pub(crate) enum Handoff {
    /// The lease itself.
    Lease(Arc<Lease>),
    /// The duty to contend at the server; `after_others` when other processes should get their turn first.
    Contend { after_others: bool },
}

/// A task in line.
pub(crate) struct Queued {
    pub(crate) tell: oneshot::Sender<Handoff>,
    pub(crate) owner: Option<Owner>,
    pub(crate) term: Term,
    pub(crate) fenced: bool,
    /// What replicas have to have confirmed.
    pub(crate) ack: Option<Replication>,
    /// What wakes a task that waits for the server as well.
    pub(crate) wake: Option<Arc<Notify>>,
    /// It is known to be in the queue on the server, too, before all those here that are not.
    pub(super) placed: bool,
    /// It counts on this process, and does not hear messages yet.
    pub(super) naps: bool,
}

impl Queued {
    pub(crate) fn new(
        request: &Request,
        owner: Option<Owner>,
        wake: Option<Arc<Notify>>,
    ) -> (Queued, oneshot::Receiver<Handoff>) {
        let (tell, handoff) = oneshot::channel();
        (
            Queued {
                tell,
                owner,
                term: request.term,
                fenced: request.fenced,
                ack: request.ack,
                wake,
                placed: false,
                naps: false,
            },
            handoff,
        )
    }

    /// Hands the lease over; the lease comes back if the task is gone.
    pub(crate) fn hand(self, lease: Arc<Lease>) -> Result<(), Arc<Lease>> {
        match self.tell.send(Handoff::Lease(lease)) {
            Ok(()) => {
                if let Some(wake) = self.wake {
                    wake.notify_one();
                }
                Ok(())
            }
            Err(Handoff::Lease(lease)) => Err(lease),
            Err(Handoff::Contend { .. }) => Ok(()),
        }
    }
}

#[derive(Default)]
pub(super) struct Lane {
    /// The lease that a guard of this process holds.
    pub(super) lease: Option<Arc<Lease>>,
    /// The leases of a kind that has several at a time.
    pub(super) beside: Vec<Arc<Lease>>,
    /// Leases that a later grant shows to be gone from the server, whose holders do not know yet. They take no part in the
    /// lane; the keeper finds them here.
    pub(super) displaced: Vec<Arc<Lease>>,
    /// How many tasks wait at the server for a hold of such a kind.
    pub(super) waiting: u32,
    /// Somebody contends at the server, or a release is on its way.
    pub(super) busy: bool,
    /// It is a release that is on its way.
    pub(super) releasing: bool,
    /// How many releases are on their way that may hand over.
    pub(super) handing: u32,
    /// One of those whom they may serve naps.
    pub(super) heir_naps: bool,
    /// Owners whose earlier requests are still being undone or released. An owner that is used again must not be
    /// taken for its own predecessor, whose release is about to arrive.
    pub(super) leaving: Vec<Owner>,
    pub(super) queue: VecDeque<Queued>,
    pub(super) turn: Turn,
}

impl Lane {
    pub(super) fn is_idle(&self) -> bool {
        self.lease.is_none()
            && self.beside.is_empty()
            && self.displaced.is_empty()
            && self.waiting == 0
            && self.handing == 0
            && !self.busy
            && self.queue.is_empty()
    }

    /// Takes the first task in line that still waits.
    pub(super) fn first_in_line(&mut self) -> Option<Queued> {
        std::iter::from_fn(|| self.queue.pop_front()).find(|queued| !queued.tell.is_closed())
    }

    /// Where those in line begin of whom it is not known that the server has them in its queue.
    pub(super) fn placed(&self) -> usize {
        self.queue.iter().rposition(|queued| queued.placed).map_or(0, |last| last + 1)
    }

    /// Wakes the first in line of those who count on this process. It is not known for certain who of them is first on the
    /// server, because answers that come in order may be noted out of order.
    pub(super) fn wake_nappers(&mut self) {
        for queued in self.queue.iter_mut().take(NAPPERS_WOKEN) {
            if let (true, Some(wake)) = (std::mem::take(&mut queued.naps), &queued.wake) {
                wake.notify_one();
            }
        }
    }

    pub(super) fn leases(&self) -> impl Iterator<Item = &Arc<Lease>> {
        self.lease.iter().chain(&self.beside).chain(&self.displaced)
    }

    pub(super) fn add(&mut self, lease: &Arc<Lease>) {
        match lease.recipe.lane() {
            LanePolicy::Queue => {
                let former = self.lease.replace(lease.clone());
                self.displaced
                    .extend(former.filter(|former| former.is_held() && !Arc::ptr_eq(former, lease)));
            }
            LanePolicy::Beside => self.beside.push(lease.clone()),
            // A lease that was handed over is here already.
            LanePolicy::Ordered => {
                if !self.beside.iter().any(|held| Arc::ptr_eq(held, lease)) {
                    self.beside.push(lease.clone());
                }
            }
        }
    }

    /// Takes a lease out; `false` if it had no part in the lane.
    pub(super) fn remove(&mut self, lease: &Arc<Lease>) -> bool {
        self.displaced.retain(|displaced| !Arc::ptr_eq(displaced, lease));
        if let Some(at) = self.beside.iter().position(|held| Arc::ptr_eq(held, lease)) {
            self.beside.swap_remove(at);
            return true;
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
pub(super) struct Turn {
    pub(super) since_ms: u64,
    pub(super) passes: u32,
}
