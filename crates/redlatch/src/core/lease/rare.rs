//! What few leases have, in one place beside them: most are taken and given back, and a process may hold many.

use std::sync::{Arc, PoisonError};

use tokio::sync::watch;

use super::{HeldLease, detached::HoldToAdopt, lengths::Lengths};
use crate::{
    error::LossReason,
    panic_safe::panic_safe,
    recipes::LeaseTerm,
    replica_ack::Confirmed,
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

#[derive(Default)]
pub(super) struct RareLeaseState {
    pub(super) loss: OnceLock<LossReason>,
    /// How replicas confirmed the grant.
    pub(super) replicated: OnceLock<Confirmed>,
    /// The write hold that a read hold was turned from, if an outcome was unknown there: what is late for the one is looked after when the other ends.
    pub(super) before: OnceLock<Arc<HeldLease>>,
    /// Serialises re-entries and their releases, which are counted on the server.
    pub(super) reentries: OnceLock<Arc<Reentries>>,
    /// Until when an extension of which nothing is known may have the server keep it; 0 for none.
    pub(super) pending_extension_ms: AtomicU64,
    /// What the server had of it after its end was counted down.
    pub(super) counted_down: AtomicBool,
    /// Since when the observer knows of it; 0 while it does not.
    pub(super) told_of_ms: AtomicU64,
    /// The hold of another process that it was taken up from, until a task has it or it is given back there.
    left: Mutex<Option<Arc<HoldToAdopt>>>,
}

impl RareLeaseState {
    fn left(&self) -> MutexGuard<'_, Option<Arc<HoldToAdopt>>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next guard's lease has of it; `None` if nothing.
    pub(super) fn successor(&self) -> Option<RareLeaseState> {
        let RareLeaseState { replicated, before, pending_extension_ms, .. } = self;
        let pending_extension_ms = pending_extension_ms.load(Ordering::Acquire);
        let has_any = replicated.get().is_some() || before.get().is_some() || pending_extension_ms > 0;
        has_any.then(|| RareLeaseState {
            replicated: replicated.clone(),
            before: before.clone(),
            pending_extension_ms: pending_extension_ms.into(),
            ..RareLeaseState::default()
        })
    }
}

/// What the guards of a lease that was ever entered share.
pub(crate) struct Reentries {
    /// Holds that go are told to the server in the order in which they go, the last one after all others.
    pub(in crate::core) next: tokio::sync::Mutex<()>,
    /// A request that changes the count is under way. Only these wait for it, so it is never kept while something else is waited for
    /// that an attempt of the owner decides.
    pub(in crate::core) counting: tokio::sync::Mutex<()>,
    /// The [incarnation](crate::store::Store::incarnation) of the last entry, or [`NEVER`].
    pub(super) entered_incarnation: AtomicU64,
    /// It was entered in several incarnations.
    pub(super) spans_incarnations: AtomicBool,
    /// Another process held under the owner before.
    pub(super) entered_others: AtomicBool,
    /// How many requests are under way or about to be sent that change the count.
    changes: watch::Sender<u32>,
    lengths: Mutex<Lengths>,
}

pub(super) const NEVER: u64 = u64::MAX;

impl Reentries {
    /// Those of a lease that has one guard, with this lease term.
    pub(super) fn of(first: LeaseTerm) -> Self {
        let (next, counting, spans_incarnations, entered_others, changes) = Default::default();
        let renewed_ms = first.renewed.then_some(first.lease_ms).into_iter().collect();
        let lengths = Mutex::new(Lengths { renewed_ms, longest_ms: first.lease_ms });
        Reentries {
            next,
            counting,
            entered_incarnation: AtomicU64::new(NEVER),
            spans_incarnations,
            entered_others,
            changes,
            lengths,
        }
    }

    /// Notes a request that changes the count, until what it answers is dropped.
    pub(in crate::core) fn changes(self: &Arc<Self>) -> Change {
        self.changes.send_modify(|changes| *changes += 1);
        Change(self.clone())
    }

    /// Waits until no such request is under way.
    async fn stays(&self) {
        // An error says that it is gone with all that waits for it.
        panic_safe(async || drop(self.changes.subscribe().wait_for(|changes| *changes == 0).await)).await;
    }

    pub(super) fn lengths(&self) -> MutexGuard<'_, Lengths> {
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that changes the count of a lease is under way, until dropped.
#[must_use = "dropping it says that no such request is under way"]
pub(in crate::core) struct Change(Arc<Reentries>);

impl Drop for Change {
    fn drop(&mut self) {
        self.0.changes.send_modify(|changes| *changes -= 1);
    }
}

impl HeldLease {
    /// Notes a request that changes the count, if the lease was ever entered: otherwise the only such request is its last.
    pub(in crate::core) fn begin_count_change(&self) -> Option<Change> {
        self.reentries_if_any().map(Reentries::changes)
    }

    /// Notes where it was taken up from, before others can see it.
    pub(in crate::core) fn taken_up_from(&self, left: Arc<HoldToAdopt>) {
        *self.rare().left() = Some(left);
    }

    /// Where it was taken up from, unless that was asked before: the one that asks has the hold now, for its task or to give it back there.
    pub(in crate::core) fn claim(&self) -> Option<Arc<HoldToAdopt>> {
        self.rare.get()?.left().take()
    }

    /// No task takes what was taken up for it: where it is to be given back. `None` if a task has it, or a shutdown that has ended it gives it
    /// back.
    pub(in crate::core) fn give_up(&self) -> Option<Arc<HoldToAdopt>> {
        let is_shutdowns = !self.mark_given_back() && self.loss() == Some(&LossReason::Shutdown);
        if is_shutdowns { None } else { self.claim() }
    }

    /// Waits until the server counts what the guards here do, as far as can be known.
    pub(crate) async fn count_stays(&self) {
        if let Some(reentries) = self.reentries_if_any() {
            reentries.stays().await;
        }
    }
}
