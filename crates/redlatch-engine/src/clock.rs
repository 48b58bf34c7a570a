//! Time, handed to the engine from outside so that tests can own it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// The two clocks of the engine.
pub trait Clock: Send + Sync {
    /// Microseconds since the machine started, time in suspend included. Drives every expiry, because a step of
    /// the wall clock must not end or prolong a lease.
    fn boot_us(&self) -> u64;

    /// The same in whole milliseconds.
    fn boot_ms(&self) -> u64 {
        self.boot_us() / 1000
    }

    /// Microseconds since 1970 on the wall clock, for `TIME` and the commands that take absolute times.
    fn unix_us(&self) -> u64;

    /// The same as the wall clock is set at this moment, also where [`Clock::unix_us`] follows no step of it.
    fn wall_us(&self) -> u64 {
        self.unix_us()
    }
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot_us(&self) -> u64 {
        // Only Linux and Android name the clock that runs through suspend; elsewhere the monotonic clock is the
        // nearest one that no administrator can set.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let now = clock_gettime(ClockId::Boottime);
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000
    }

    fn unix_us(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

/// The clock of the machine itself. A process may live in a time namespace, whose boot clock is shifted while the boot's identity
/// is not; times in a journal must mean the same to all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineClock {
    shift_us: i64,
}

impl MachineClock {
    /// Asks the system for the shift; where it has nothing of the kind there is none.
    pub(crate) fn of_system() -> MachineClock {
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        MachineClock { shift_us: boot_shift_us(&offsets) }
    }
}

impl Clock for MachineClock {
    fn boot_us(&self) -> u64 {
        SystemClock.boot_us().saturating_add_signed(-self.shift_us)
    }

    fn unix_us(&self) -> u64 {
        SystemClock.unix_us()
    }
}

/// Wall time that goes on by the boot clock from where it was once: who sets the wall clock ends nothing that scripts reckon from
/// `TIME`.
pub(crate) struct SteadyClock {
    clock: Arc<dyn Clock>,
    boot_began_us: i64,
}

impl SteadyClock {
    /// It goes on from the wall time of now.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> SteadyClock {
        let signed = |us| i64::try_from(us).unwrap_or(i64::MAX / 2);
        let boot_began_us = signed(clock.unix_us()) - signed(clock.boot_us());
        SteadyClock::continued(clock, boot_began_us)
    }

    /// It goes on from where another one was in the same run of the machine: see [`boot_began_us`](Self::boot_began_us).
    pub(crate) fn continued(clock: Arc<dyn Clock>, boot_began_us: i64) -> SteadyClock {
        SteadyClock { clock, boot_began_us }
    }

    /// The wall time, since 1970, when the boot clock began. All that this clock adds to the boot clock.
    pub(crate) fn boot_began_us(&self) -> i64 {
        self.boot_began_us
    }

    /// The wall time when the boot clock shows this.
    pub(crate) fn unix_at(&self, boot_us: u64) -> u64 {
        boot_us.saturating_add_signed(self.boot_began_us)
    }
}

impl Clock for SteadyClock {
    fn boot_us(&self) -> u64 {
        self.clock.boot_us()
    }

    fn unix_us(&self) -> u64 {
        self.unix_at(self.boot_us())
    }

    fn wall_us(&self) -> u64 {
        self.clock.wall_us()
    }
}

/// Reads lines such as `boottime  86400  0`: a clock, seconds, nanoseconds.
fn boot_shift_us(offsets: &str) -> i64 {
    let mut lines = offsets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let shift = lines.find_map(|words| match words[..] {
        ["boottime" | "7", seconds, nanos] => {
            Some(seconds.parse::<i64>().ok()?.checked_mul(1_000_000)? + nanos.parse::<i64>().ok()? / 1000)
        }
        _ => None,
    });
    shift.unwrap_or(0)
}

/// A clock that stands still until it is told to move. Clones share the time.
#[derive(Clone, Debug)]
pub struct ManualClock {
    elapsed_us: Arc<AtomicU64>,
    start_us: u64,
}

/// Where the boot clock of a [`ManualClock`] begins, so that subtracting a little never underflows.
const BOOT_START_US: u64 = 1_000_000_000;

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
    fn boot_us(&self) -> u64 {
        BOOT_START_US + self.elapsed_us.load(Ordering::SeqCst)
    }

    fn unix_us(&self) -> u64 {
        self.start_us.saturating_add(self.elapsed_us.load(Ordering::SeqCst))
    }
}

/// A clock whose wall time is set ahead while its boot clock goes on.
#[cfg(test)]
#[derive(Clone, Debug)]
pub(crate) struct SteppedClock {
    pub(crate) clock: ManualClock,
    ahead_us: Arc<AtomicU64>,
}

#[cfg(test)]
impl SteppedClock {
    pub(crate) fn new(start: Duration) -> SteppedClock {
        SteppedClock { clock: ManualClock::new(start), ahead_us: Arc::default() }
    }

    pub(crate) fn step(&self, by: Duration) {
        self.ahead_us.fetch_add(u64::try_from(by.as_micros()).unwrap_or(0), Ordering::SeqCst);
    }
}

#[cfg(test)]
impl Clock for SteppedClock {
    fn boot_us(&self) -> u64 {
        self.clock.boot_us()
    }

    fn unix_us(&self) -> u64 {
        self.clock.unix_us() + self.ahead_us.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_wall_clock_is_not_followed() {
        let wall = SteppedClock::new(Duration::from_secs(1_000_000_000));
        let steady = SteadyClock::new(Arc::new(wall.clone()));
        let before_us = steady.unix_us();
        assert_eq!(before_us, 1_000_000_000_000_000);
        wall.step(Duration::from_secs(3600));
        assert_eq!(steady.unix_us(), before_us);
        // Not in steps of a millisecond: two tokens are drawn from it within one.
        wall.clock.advance(Duration::from_micros(7_001));
        assert_eq!(steady.unix_us(), before_us + 7_001);
    }

    #[test]
    fn the_shift_of_a_time_namespace_is_taken_off() {
        let offsets = "monotonic          10         0\nboottime       86400 500000000\n";
        assert_eq!(boot_shift_us(offsets), 86_400_500_000);
        assert_eq!(boot_shift_us("monotonic 0 0\nboottime -7 0\n"), -7_000_000);
        for nothing in ["", "monotonic 5 0\n", "boottime\n", "boottime x 0\n"] {
            assert_eq!(boot_shift_us(nothing), 0, "{nothing:?}");
        }
        let (plain_ms, shifted) = (SystemClock.boot_ms(), MachineClock { shift_us: -86_400_000_000 });
        assert!(shifted.boot_ms() >= plain_ms + 86_400_000);
    }
}
