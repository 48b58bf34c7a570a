//! Whether tasks work, rest, or end.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Work,
    /// No task begins anything new.
    Rest,
    Over,
}

/// Tells all tasks of a run what phase it is in.
#[derive(Clone)]
pub(crate) struct Phases(Arc<Inner>);

struct Inner {
    phase: Mutex<Phase>,
    /// Wakes in the order of waiting, so that a seed repeats its run; a `watch` channel wakes at random.
    changed: Notify,
    resting: AtomicUsize,
}

impl Default for Phases {
    fn default() -> Self {
        let (changed, resting) = (Notify::new(), AtomicUsize::new(0));
        Phases(Arc::new(Inner { phase: Mutex::new(Phase::Work), changed, resting }))
    }
}

impl Phases {
    fn phase(&self) -> Phase {
        *self.0.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, phase: Phase) {
        *self.0.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        self.0.changed.notify_waiters();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.phase() == Phase::Over
    }

    /// How many tasks rest.
    pub(crate) fn resting(&self) -> usize {
        self.0.resting.load(Ordering::Relaxed)
    }

    /// Returns when there is something to do, or all is over.
    pub(super) async fn work(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.phase() != Phase::Rest {
                return;
            }
            self.0.resting.fetch_add(1, Ordering::Relaxed);
            changed.await;
            self.0.resting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
