//! Which names are shown, and in which order.

use std::cmp::{Ordering, Reverse};

use super::lock_row::LockRow;

/// By what the names are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Those with the most waiters first.
    Waiters,
    /// Those that have been held for longest first.
    Held,
    /// Those that end first.
    Ttl,
    /// By name.
    Name,
}

impl Sort {
    pub(crate) const ALL: [Sort; 4] = [Sort::Waiters, Sort::Held, Sort::Ttl, Sort::Name];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Sort::Waiters => "waiters",
            Sort::Held => "held for",
            Sort::Ttl => "lease",
            Sort::Name => "name",
        }
    }

    pub(crate) fn next(self) -> Self {
        match self {
            Sort::Waiters => Sort::Held,
            Sort::Held => Sort::Ttl,
            Sort::Ttl => Sort::Name,
            Sort::Name => Sort::Waiters,
        }
    }

    fn compare(self, a: &LockRow, b: &LockRow) -> Ordering {
        let first = match self {
            Sort::Waiters => Reverse(a.waiting()).cmp(&Reverse(b.waiting())),
            Sort::Held => Reverse(a.held_ms()).cmp(&Reverse(b.held_ms())),
            Sort::Ttl => a.ends_in_ms().cmp(&b.ends_in_ms()),
            Sort::Name => Ordering::Equal,
        };
        first.then_with(|| a.key.cmp(&b.key))
    }
}

/// The names that contain this text, in this order.
pub(crate) fn shown<'a>(
    rows: &'a [LockRow],
    filter: &str,
    sort: Sort,
    is_reversed: bool,
) -> Vec<&'a LockRow> {
    let mut shown: Vec<&LockRow> = rows.iter().filter(|row| row.contains(filter)).collect();
    shown.sort_by(|a, b| sort.compare(a, b));
    if is_reversed {
        shown.reverse();
    }
    shown
}
