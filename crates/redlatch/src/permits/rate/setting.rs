//! `Rate`: how many permits in how long, and for which clients.

use std::time::Duration;

use crate::{
    config::LEASE_MAX,
    error::{Error, ErrorKind},
};

/// So many permits in so long: what a [`RateLimiter`](crate::RateLimiter) keeps to.
///
/// The interval slides: whatever moment it is counted back from, no more permits than these were taken in it.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use redlatch::Rate;
///
/// let rate = Rate::per(100, Duration::from_secs(60)).per_client().keep_alive(Duration::from_secs(3600));
/// assert_eq!(rate.permits(), 100);
/// assert!(rate.is_per_client());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a rate does nothing until it is set"]
pub struct Rate {
    permits: u64,
    interval: Duration,
    per_client: bool,
    keep_alive: Option<Duration>,
}

impl Rate {
    /// `permits` (1 to 2,147,483,647) in each `interval` (1 ms to 100 years, rounded up to whole milliseconds), shared by
    /// all clients unless [`per_client`](Self::per_client) is said.
    ///
    /// Numbers out of range are refused when the rate is set.
    pub fn per(permits: u32, interval: Duration) -> Self {
        Rate { permits: permits.into(), interval, per_client: false, keep_alive: None }
    }

    /// For all clients together.
    pub fn overall(mut self) -> Self {
        self.per_client = false;
        self
    }

    /// For each client on its own: each [`Client`](crate::Client), and each `RedissonClient`, has all the permits.
    pub fn per_client(mut self) -> Self {
        self.per_client = true;
        self
    }

    /// Forgets the rate limiter, settings included, when nobody has asked it for permits for this long (from the interval to 100
    /// years, rounded up to whole milliseconds).
    pub fn keep_alive(mut self, time: Duration) -> Self {
        self.keep_alive = Some(time);
        self
    }

    /// How many permits an interval has.
    pub fn permits(&self) -> u64 {
        self.permits
    }

    /// How long an interval is.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether each client has the permits for itself.
    pub fn is_per_client(&self) -> bool {
        self.per_client
    }

    /// After how long without requests the rate limiter is forgotten.
    pub fn keep_alive_time(&self) -> Option<Duration> {
        self.keep_alive
    }

    /// What a server has stored.
    pub(super) fn stored(permits: i64, interval_ms: i64, per_client: bool, keep_alive_ms: i64) -> Self {
        let ms = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        Rate {
            permits: u64::try_from(permits).unwrap_or(0),
            interval: ms(interval_ms),
            per_client,
            keep_alive: (keep_alive_ms > 0).then(|| ms(keep_alive_ms)),
        }
    }

    /// Permits, interval and keep-alive time (0 for none) as they go to the server, checked.
    pub(super) fn checked(&self) -> Result<(i64, i64, i64), Error> {
        let wrong = |text: String, remedy| Err(Error::new(ErrorKind::InvalidOption, text).remedy(remedy));
        let Some(permits) = i32::try_from(self.permits).ok().filter(|permits| *permits > 0) else {
            return wrong(
                format!("a rate of {} permits is outside 1 to {}", self.permits, i32::MAX),
                "give a rate of at least 1 and at most 2147483647",
            );
        };
        let Some(interval_ms) = whole_ms(self.interval) else {
            return wrong(
                format!("an interval of {:?} is outside 1 ms to 100 years", self.interval),
                "give an interval of 1 ms to 100 years",
            );
        };
        let keep_alive_ms = match self.keep_alive {
            None => 0,
            Some(time) => match whole_ms(time) {
                Some(ms) if ms >= interval_ms => ms,
                // Forgotten within its interval, a rate limiter would grant the same permits again.
                _ => {
                    return wrong(
                        format!(
                            "a keep-alive time of {time:?} is outside the interval of {interval_ms} ms to 100 years"
                        ),
                        "give a keep-alive time that is no shorter than the interval, or none",
                    );
                }
            },
        };
        Ok((permits.into(), interval_ms, keep_alive_ms))
    }
}

/// Whole milliseconds, rounded up, so that a rate is never higher than asked for.
fn whole_ms(time: Duration) -> Option<i64> {
    let in_range = time >= Duration::from_millis(1) && time <= LEASE_MAX;
    in_range.then(|| i64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_and_fractions_rounded_up() {
        let ms = Duration::from_millis;
        let rate = Rate::per(3, Duration::from_micros(1_001)).keep_alive(Duration::from_micros(2_500));
        assert_eq!(rate.checked().unwrap(), (3, 2, 3));
        assert_eq!(Rate::per(i32::MAX as u32, LEASE_MAX).checked().unwrap().2, 0);
        for bad in [
            Rate::per(0, ms(1)),
            Rate::per(1 << 31, ms(1)),
            Rate::per(1, ms(0)),
            Rate::per(1, Duration::from_micros(999)),
            Rate::per(1, LEASE_MAX + ms(1)),
            Rate::per(1, Duration::MAX),
            Rate::per(1, ms(10)).keep_alive(ms(9)),
            Rate::per(1, ms(10)).keep_alive(ms(0)),
            Rate::per(1, ms(10)).keep_alive(Duration::MAX),
        ] {
            assert_eq!(bad.checked().unwrap_err().kind(), ErrorKind::InvalidOption, "{bad:?}");
        }
    }
}
