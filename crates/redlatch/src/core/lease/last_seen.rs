//! When a hold was last seen on the server, and on which one.

use crate::sync::atomic::{AtomicU64, Ordering};

/// When a request was sent, and to the server of which [incarnation](crate::store::Store::incarnation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentAt {
    pub(crate) at_ms: u64,
    pub(crate) incarnation: u64,
}

/// The moment, and the [incarnation](crate::store::Store::incarnation), since which a hold must have been seen on the server. One that was seen before that
/// is looked at again: another server may lack what an earlier one had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastInterruption {
    pub(crate) since_ms: u64,
    pub(crate) incarnation: u64,
}

/// The last requests that have shown that the server has a hold.
#[derive(Debug)]
pub(super) struct LastSeen {
    at_ms: AtomicU64,
    /// Of one key incarnations only grow, so the greatest is the last.
    incarnation: AtomicU64,
}

impl LastSeen {
    pub(super) fn of(sent_at: SentAt) -> Self {
        LastSeen { at_ms: AtomicU64::new(sent_at.at_ms), incarnation: AtomicU64::new(sent_at.incarnation) }
    }

    pub(super) fn again(&self, sent_at: SentAt) {
        self.incarnation.fetch_max(sent_at.incarnation, Ordering::AcqRel);
        self.at_ms.fetch_max(sent_at.at_ms, Ordering::AcqRel);
    }

    pub(super) fn at_ms(&self) -> u64 {
        self.at_ms.load(Ordering::Acquire)
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    pub(super) fn is_since(&self, interruption: LastInterruption) -> bool {
        self.at_ms() >= interruption.since_ms && self.incarnation() == interruption.incarnation
    }
}

impl Clone for LastSeen {
    fn clone(&self) -> Self {
        LastSeen::of(SentAt { at_ms: self.at_ms(), incarnation: self.incarnation() })
    }
}
