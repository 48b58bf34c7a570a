//! Backoff: the pauses of those who wait without being told (`docs/protocol.md`, spin lock).

use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// The bounds of a pause.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// What a pause is multiplied with at most.
const FACTOR_MAX: u32 = 16;

/// How long to pause between looks at a lock that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    last: Duration,
    factor: u32,
}

impl Default for Backoff {
    /// 1 ms, doubled with each look up to 128 ms, as Redisson does.
    fn default() -> Self {
        Backoff { first: PAUSE_MIN, last: Duration::from_millis(128), factor: 2 }
    }
}

impl Backoff {
    /// Pauses that grow by `factor` (1 to 16) from `first` to at most `last` (1 ms to 60 s each), each with a random part
    /// of as many milliseconds as there were looks, so that waiters do not go in step.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for values out of range, or a `first` above `last`.
    ///
    /// # Example
    ///
    /// ```
    /// # use std::time::Duration;
    /// let gentle = redlatch::Backoff::exponential(Duration::from_millis(5), Duration::from_millis(500), 2)?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn exponential(first: Duration, last: Duration, factor: u32) -> Result<Self, Error> {
        let fits = |pause: Duration| (PAUSE_MIN..=PAUSE_MAX).contains(&pause);
        if !fits(first) || !fits(last) || first > last || !(1..=FACTOR_MAX).contains(&factor) {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                format!("a backoff from {first:?} to {last:?} by {factor} is out of range"),
            )
            .remedy("give pauses of 1 ms to 60 s, the first not above the last, and a factor of 1 to 16"));
        }
        Ok(Backoff { first, last, factor })
    }

    /// Always the same pause (1 ms to 60 s).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a pause out of range.
    pub fn constant(pause: Duration) -> Result<Self, Error> {
        Backoff::exponential(pause, pause, 1)
    }

    /// The pause after so many looks, of which `random` (0 to 1) chooses the random part.
    pub(crate) fn pause(&self, looks: u32, random: f64) -> Duration {
        let grown = self.factor.checked_pow(looks).and_then(|factor| self.first.checked_mul(factor));
        let spread = if self.factor == 1 { 0.0 } else { f64::from(looks) * random };
        (grown.unwrap_or(self.last) + Duration::from_millis(spread as u64)).min(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn test_exponential_backoff() {
        let backoff = Backoff::exponential(ms(10), ms(100), 3).unwrap();
        assert_eq!(backoff.pause(0, 0.9), ms(10));
        assert!((ms(30)..=ms(31)).contains(&backoff.pause(1, 0.99)));
        assert!((ms(90)..=ms(92)).contains(&backoff.pause(2, 0.99)));
        assert_eq!(backoff.pause(3, 0.5), ms(100));
        assert_eq!(backoff.pause(u32::MAX, 0.5), ms(100));
    }

    #[test]
    fn test_constant_backoff() {
        let backoff = Backoff::constant(ms(30)).unwrap();
        assert!((0..50).all(|looks| backoff.pause(looks, 0.99) == ms(30)));
    }

    #[test]
    fn pauses_out_of_range_are_refused() {
        for (first, last, factor) in [
            (ms(0), ms(1), 2),
            (ms(2), ms(1), 2),
            (ms(1), ms(60_001), 2),
            (ms(1), ms(2), 0),
            (ms(1), ms(2), 17),
        ] {
            let error = Backoff::exponential(first, last, factor).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
        }
    }
}
