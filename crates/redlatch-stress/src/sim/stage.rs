//! What a simulation plays on: the servers, the network before them, and what happens to both.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use redlatch::ClientBuilder;

use super::left::Left;
use crate::{record::Log, rng::Rng};

/// A time in a run, in nanoseconds of its clock.
pub(super) type Span = (u64, u64);

pub(super) trait Stage: Send {
    /// The way of a new process to the servers, and the number by which [`kill`](Stage::kill) knows it.
    fn join(&mut self) -> (usize, ClientBuilder);

    /// A process is killed, and nothing that it sends arrives from now on.
    fn kill(&mut self, process: usize);

    /// Something happens. `process` is one of those that live; the answer is whether that one is to be killed.
    fn trouble<'a>(
        &'a mut self,
        process: usize,
        faults: &'a Arc<Log>,
        rng: &'a mut Rng,
    ) -> BoxFuture<'a, bool>;

    /// How long until something happens again.
    fn pause(&mut self, rng: &mut Rng) -> Duration;

    /// All is well until something happens again.
    fn heal(&mut self);

    /// What there is of locks on the servers.
    fn left(&self) -> Vec<Left>;

    /// What happened when, as one number.
    fn trace(&self) -> u64;

    /// What there was of what.
    fn counts(&self) -> Vec<(&'static str, u64)>;

    /// When two valid holders are what the documents say can happen, and of which process, by its number.
    fn excused(&self) -> Vec<(Option<usize>, Span)> {
        Vec::new()
    }

    /// When all was well for so long that each process must have been granted something.
    fn well(&self) -> Vec<Span> {
        Vec::new()
    }

    /// Which names had a hold counted down by a request that was on its way for longer than a lease, and when: it may be the hold that another
    /// process has taken under the same owner since (`docs/dangers.md`, owners that are used again).
    fn counted_late(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Whether what was held may be gone, because servers lost data.
    fn may_vanish(&self) -> bool {
        false
    }
}
