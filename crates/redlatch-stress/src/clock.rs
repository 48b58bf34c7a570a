//! The clock that all processes of a machine share, and that goes on while they are stopped; in a simulation it is the
//! simulated one.

use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

thread_local! {
    /// When the simulation began that runs on this thread.
    static SIMULATED_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// From now on this thread simulates.
pub(crate) fn simulate() {
    SIMULATED_SINCE.set(Some(Instant::now()));
}

/// Nanoseconds since the start of the machine.
pub(crate) fn boot_ns() -> u64 {
    if let Some(since) = SIMULATED_SINCE.get() {
        return since.elapsed().as_nanos() as u64;
    }
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A moment in words: seconds after another one.
pub(crate) fn seconds(ns: u64, since_ns: u64) -> String {
    let us = (i128::from(ns) - i128::from(since_ns)) / 1_000;
    format!("{:.6}", us as f64 / 1e6)
}
