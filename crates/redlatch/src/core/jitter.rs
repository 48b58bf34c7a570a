//! Spreading out moments, so that many waiters do not move in step.

use std::{
    cell::Cell,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::fork;

thread_local! {
    /// The process, and its state: one that was forked off must not move in step with its parent.
    static STATE: Cell<(u32, u64)> = Cell::new((fork::here(), seed()));
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_err() {
        // Jitter needs no secrecy; two processes must merely differ.
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        bytes = (nanos as u64 ^ u64::from(std::process::id())).to_ne_bytes();
    }
    u64::from_ne_bytes(bytes) | 1
}

fn next() -> u64 {
    STATE.with(|state| {
        // xorshift: enough for spreading.
        let (process, mut x) = state.get();
        let here = fork::here();
        if process != here {
            x = seed();
        }
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set((here, x));
        x
    })
}

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
