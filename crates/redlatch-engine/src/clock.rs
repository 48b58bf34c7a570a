//! Time, handed to the engine from outside so that tests can own it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The two clocks of the engine.
pub trait Clock: Send + Sync {
    /// Milliseconds since the machine started, time in suspend included. Drives every expiry, because a step of
    /// the wall clock must not end or prolong a lease.
    fn boot_ms(&self) -> u64;

    /// Microseconds since 1970 on the wall clock, for `TIME` and the commands that take absolute times.
    fn unix_us(&self) -> u64;
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot_ms(&self) -> u64 {
        // Only Linux and Android name the clock that runs through suspend; elsewhere the monotonic clock is the
        // nearest one that no administrator can set.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let now = clock_gettime(ClockId::Boottime);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
    }

    fn unix_us(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A clock that stands still until it is told to move. Clones share the time.
#[derive(Clone, Debug)]
pub struct ManualClock {
    elapsed_us: Arc<AtomicU64>,
    start_us: u64,
}

/// Where the boot clock of a [`ManualClock`] begins, so that subtracting a little never underflows.
const BOOT_START_MS: u64 = 1_000_000;

impl ManualClock {
    /// A clock whose wall time is `start` after 1970.
    pub fn new(start: Duration) -> ManualClock {
        let start_us = u64::try_from(start.as_micros()).unwrap_or(u64::MAX / 2);
        ManualClock { elapsed_us: Arc::default(), start_us }
    }

    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        self.elapsed_us.fetch_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX / 4), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn boot_ms(&self) -> u64 {
        BOOT_START_MS + self.elapsed_us.load(Ordering::SeqCst) / 1000
    }

    fn unix_us(&self) -> u64 {
        self.start_us.saturating_add(self.elapsed_us.load(Ordering::SeqCst))
    }
}
