//! Takers of both languages at the same time: one language after the other would prove nothing.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// For how long takers go on beyond their rounds. On a machine that is busy one language may begin when the other would have ended.
const LONGEST: Duration = Duration::from_secs(60);

/// Which language had the last turn, and how often the other one had the next.
pub(crate) struct Turns {
    last: AtomicU64,
    changes: AtomicU64,
    wanted: u64,
    end: Instant,
}

impl Turns {
    /// Takers that go on until there have been so many changes.
    pub(crate) fn until(wanted: u64) -> Self {
        Turns { last: AtomicU64::new(0), changes: AtomicU64::new(0), wanted, end: Instant::now() + LONGEST }
    }

    /// Notes a turn, while what was taken is held.
    pub(crate) fn note(&self, language: Language) {
        if self.last.swap(language as u64, Ordering::SeqCst) != language as u64 {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The rounds of a taker: so many, and as many more as it takes.
    pub(crate) fn rounds(&self, least: u64) -> impl Iterator<Item = u64> {
        (0..).take_while(move |round| {
            *round < least || self.changes() < self.wanted && Instant::now() < self.end
        })
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    pub(crate) fn assert_enough(&self) {
        assert!(self.changes() >= self.wanted, "the languages took turns only {} times", self.changes());
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Language {
    Rust = 1,
    Java = 2,
}
