//! For how long a lease is renewed that several guards share, each with a length of its own.

use std::sync::atomic::Ordering;

use super::{HeldLease, margin_ms};
use crate::recipes::LeaseTerm;

/// For how long the guards of a lease have it renewed.
pub(super) struct Lengths {
    /// One for each guard whose hold is renewed.
    pub(super) renewed_ms: Vec<i64>,
    /// The longest of all that there were.
    pub(super) longest_ms: i64,
}

impl HeldLease {
    /// How the only guard of a lease holds that was never entered.
    pub(in crate::core) fn lease_term(&self) -> LeaseTerm {
        LeaseTerm { lease_ms: self.lease_ms(), renewed: self.holds().renewed > 0 }
    }

    /// The longest lease that the server was ever told for it, extensions apart.
    pub(in crate::core) fn longest_ms(&self) -> i64 {
        self.reentries_if_any().map_or(0, |reentries| reentries.lengths().longest_ms).max(self.lease_ms())
    }

    /// Until when the server may keep it, whatever was on its way for it at that moment.
    pub(in crate::core) fn kept_until_ms(&self, now_ms: u64) -> u64 {
        let longest_ms = self.longest_ms();
        // A renewal that was on its way when the guard went may have had the server keep it for a whole lease more.
        let renewed_ms = if self.holds().renewed > 0 { now_ms } else { 0 };
        let lease_ms = u64::try_from(longest_ms).unwrap_or(0);
        let granted_ms = (self.deadline_ms() + margin_ms(longest_ms)).max(renewed_ms + lease_ms);
        // So may an extension that was not answered.
        granted_ms.max(self.pending_extension_ms()) + 1
    }

    /// For how long the server is to keep it at least when one of its holds goes; 0 where none of those that stay is renewed: a fixed
    /// one is to last no longer than it was granted for.
    pub(in crate::core) fn min_ttl_ms(&self) -> i64 {
        if self.wants_renewal() { self.lease_ms() } else { 0 }
    }

    /// One more hold of this lease term: it is renewed for as long as the longest of those that are.
    pub(in crate::core) fn lasts(&self, lease_term: LeaseTerm) {
        if lease_term.renewed {
            self.lengths_change(|lengths| {
                lengths.renewed_ms.push(lease_term.lease_ms);
                lengths.longest_ms = lengths.longest_ms.max(lease_term.lease_ms);
            });
        }
    }

    /// A hold of this lease term goes: it is renewed for as long as the longest of those that stay. What the server was told lasts, because
    /// their guards count on it by now.
    pub(super) fn lasts_without(&self, lease_term: LeaseTerm) {
        if lease_term.renewed && self.was_reentered() {
            self.lengths_change(|lengths| {
                let at = lengths.renewed_ms.iter().position(|lease_ms| *lease_ms == lease_term.lease_ms);
                at.map(|at| lengths.renewed_ms.swap_remove(at));
            });
        }
    }

    fn lengths_change(&self, change: impl FnOnce(&mut Lengths)) {
        let reentries = self.reentries();
        let mut lengths = reentries.lengths();
        change(&mut lengths);
        if let Some(longest_ms) = lengths.renewed_ms.iter().max() {
            self.lease_ms.store(*longest_ms, Ordering::Relaxed);
        }
    }
}
