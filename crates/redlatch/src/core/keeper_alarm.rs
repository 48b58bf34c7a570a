//! Tells the keeper when it must next look through the lanes for leases that it has not taken in yet.
//!
//! A lease that a guard has is in a lane; the lane takes it in and notes it here in one step. So there is no lease of a guard that
//! nobody watches, whichever way it came: granted, passed on, transferred, handed over, turned from writing, adopted.

#[cfg(redlatch_shuttle)]
pub(crate) mod threads;

use tokio::sync::Notify;

use super::lease::HeldLease;
use crate::sync::atomic::{AtomicU64, Ordering};

/// When the keeper must look next.
pub(crate) struct KeeperAlarm {
    /// Wakes the round, of which there is one.
    wake: Notify,
    /// Until when the thread means to sleep.
    sleeping_until_ms: AtomicU64,
    /// When the next look at leases that are not yet scheduled is due.
    look_ms: AtomicU64,
}

impl Default for KeeperAlarm {
    fn default() -> Self {
        KeeperAlarm {
            wake: Notify::new(),
            sleeping_until_ms: AtomicU64::new(u64::MAX),
            look_ms: AtomicU64::new(u64::MAX),
        }
    }
}

impl KeeperAlarm {
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Resolves when there is something to look at.
    pub(super) fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.wake.notified()
    }

    /// A lease came into being. It is taken in at half the time to its first event, so that short holds cost nothing.
    pub(super) fn note_lease(&self, lease: &HeldLease, now_ms: u64) {
        self.look_at_lanes_by(now_ms + lease.due_ms().saturating_sub(now_ms) / 2);
    }

    /// A lease needs attention by then at the latest.
    pub(super) fn look_at_lanes_by(&self, at_ms: u64) {
        if at_ms < self.look_ms.load(Ordering::Relaxed) {
            // One order for this and `sleeps_until`: of two that come at once, one sees what the other has written.
            self.look_ms.fetch_min(at_ms, Ordering::SeqCst);
            if at_ms < self.sleeping_until_ms.load(Ordering::SeqCst) {
                self.wake();
            }
        }
    }

    /// When the next look is due.
    pub(super) fn look_ms(&self) -> u64 {
        self.look_ms.load(Ordering::SeqCst)
    }

    /// A look begins: what comes into being from now on asks for the next one.
    pub(super) fn begin_look(&self) {
        self.look_ms.store(u64::MAX, Ordering::Release);
    }

    /// The thread goes to sleep until then, or until the next look if that is due before: a lease that came between the last look
    /// and this may not have woken it.
    pub(super) fn sleeps_until(&self, until_ms: u64) -> u64 {
        self.sleeping_until_ms.store(until_ms, Ordering::SeqCst);
        until_ms.min(self.look_ms())
    }
}
