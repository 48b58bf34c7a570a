//! What the log says of clients that cannot be served.

use std::io;
use std::time::{Duration, Instant};

/// How often the log says that clients cannot be served.
const REFUSALS_INTERVAL: Duration = Duration::from_secs(10);

/// Says that clients cannot be served, at most once in a while: the reason lasts, and a log that fills the disk would be the next trouble.
#[derive(Default)]
pub(super) struct Refusals {
    told_at: Option<Instant>,
    untold: u64,
}

impl Refusals {
    pub(super) fn tell(&mut self, error: &io::Error, now: Instant) {
        if self.told_at.is_some_and(|at| now < at + REFUSALS_INTERVAL) {
            self.untold += 1;
            return;
        }
        self.told_at = Some(now);
        tracing::warn!(%error, untold = std::mem::take(&mut self.untold), "a client could not be served");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Counts lines of the log.
    struct Lines(Arc<AtomicU64>);

    impl tracing::Subscriber for Lines {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
            tracing::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn enter(&self, _: &tracing::Id) {}

        fn exit(&self, _: &tracing::Id) {}
    }

    #[test]
    fn a_daemon_without_descriptors_writes_one_line_in_a_while() {
        let lines = Arc::new(AtomicU64::new(0));
        tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
            let (mut refusals, began) = (Refusals::default(), Instant::now());
            let error = io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
            for period in 0..3_u64 {
                // As many as an accept that fails every 10 ms has.
                for ms in (0..9_990).step_by(10) {
                    refusals
                        .tell(&error, began + REFUSALS_INTERVAL * period as u32 + Duration::from_millis(ms));
                }
                assert_eq!(lines.load(Ordering::SeqCst), period + 1);
                assert_eq!(refusals.untold, 998, "the next line says how many it stands for");
            }
        });
    }
}
