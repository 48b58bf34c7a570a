//! When a hold was last seen on the server, and on which one.

use std::sync::atomic::{AtomicU64, Ordering};

/// When a request was sent, and to the server of which [reign](crate::store::Store::reign).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SentAt {
    pub(crate) at_ms: u64,
    pub(crate) reign: u64,
}

/// The moment, and the [reign](crate::store::Store::reign), since which a hold must have been seen on the server. One that was seen before that
/// is looked at again: another server may lack what an earlier one had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastDoubt {
    pub(crate) since_ms: u64,
    pub(crate) reign: u64,
}

/// The last requests that have shown that the server has a hold.
#[derive(Debug)]
pub(super) struct LastSeen {
    at_ms: AtomicU64,
    /// Of one key reigns only grow, so the greatest is the last.
    reign: AtomicU64,
}

impl LastSeen {
    pub(super) fn of(sent_at: SentAt) -> Self {
        LastSeen { at_ms: AtomicU64::new(sent_at.at_ms), reign: AtomicU64::new(sent_at.reign) }
    }

    pub(super) fn again(&self, sent_at: SentAt) {
        self.reign.fetch_max(sent_at.reign, Ordering::AcqRel);
        self.at_ms.fetch_max(sent_at.at_ms, Ordering::AcqRel);
    }

    pub(super) fn at_ms(&self) -> u64 {
        self.at_ms.load(Ordering::Acquire)
    }

    pub(super) fn is_since(&self, doubt: LastDoubt) -> bool {
        self.at_ms() >= doubt.since_ms && self.reign.load(Ordering::Acquire) == doubt.reign
    }
}

impl Clone for LastSeen {
    fn clone(&self) -> Self {
        LastSeen::of(SentAt { at_ms: self.at_ms(), reign: self.reign.load(Ordering::Acquire) })
    }
}
