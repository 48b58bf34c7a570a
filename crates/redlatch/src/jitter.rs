//! Spreading out moments, so that many waiters do not move in step.

use std::time::Duration;

use crate::randomness::number as next;

/// A duration between half of the given one and the whole of it.
pub(crate) fn jittered(whole: Duration) -> Duration {
    let half_us = (whole.as_micros() / 2).min(u128::from(u64::MAX)) as u64;
    Duration::from_micros(half_us + next() % (half_us + 1))
}

/// A random part of 1, from 0 to just below 1.
pub(crate) fn fraction() -> f64 {
    (next() >> 11) as f64 / (1u64 << 53) as f64
}

/// The same things in a random order.
pub(crate) fn shuffled<T>(mut items: Vec<T>) -> Vec<T> {
    for last in (1..items.len()).rev() {
        items.swap(last, (next() % (last as u64 + 1)) as usize);
    }
    items
}
