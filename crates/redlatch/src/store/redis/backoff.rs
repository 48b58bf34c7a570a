//! The pauses of a subscription connection that comes back by itself, and of a subscription that is refused in passing.

use std::time::Duration;

use tokio::time::Instant;

use crate::jitter::jittered;

/// The first pause; doubled each time.
const RETRY_DELAY_MS_MIN: u64 = 10;
/// The longest pause between connection attempts.
const RETRY_DELAY_MS_MAX: u64 = 500;

/// How long a connection has to last for the next one to be made at once: a server may accept each and end it at
/// once. It is not so long that one which is killed time and again is waited for.
const LASTS: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// 0: the next attempt is made at once.
    delay_ms: u64,
    connected: Option<Instant>,
}

impl Backoff {
    /// The pause before the next attempt.
    pub(super) fn pause(&self) -> Duration {
        jittered(Duration::from_millis(self.delay_ms))
    }

    pub(super) fn connected(&mut self) {
        self.connected = Some(Instant::now());
    }

    /// A connection has ended, none could be made, or what was asked for was refused.
    pub(super) fn failed(&mut self) {
        let lasted = self.connected.take().map(|at| at.elapsed());
        self.after(lasted);
    }

    fn after(&mut self, lasted: Option<Duration>) {
        self.delay_ms = match lasted {
            Some(time) if time >= LASTS => 0,
            _ => (self.delay_ms * 2).clamp(RETRY_DELAY_MS_MIN, RETRY_DELAY_MS_MAX),
        };
    }

    /// Another server is to be connected to, or what was refused is granted.
    pub(super) fn begin_anew(&mut self) {
        *self = Backoff::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_that_lasts_is_followed_by_the_next_one_at_once() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(), Duration::ZERO);
        for wanted in [10, 20, 40, 80, 160, 320, 500, 500] {
            backoff.after(Some(LASTS - Duration::from_millis(1)));
            let pause = backoff.pause();
            assert!(pause >= Duration::from_millis(wanted / 2) && pause <= Duration::from_millis(wanted));
        }
        backoff.after(Some(LASTS));
        assert_eq!(backoff.pause(), Duration::ZERO);
        backoff.after(None);
        assert!(backoff.pause() > Duration::ZERO);
        backoff.begin_anew();
        assert_eq!(backoff.pause(), Duration::ZERO);
    }
}
