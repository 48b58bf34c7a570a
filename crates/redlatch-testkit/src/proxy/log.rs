//! What the proxy has seen, and waiting for it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::rule::{ConnectionKind, RuleId};
use crate::error::{Error, ErrorKind, Result};

/// How many requests are remembered; older ones are forgotten, but still counted.
pub const REQUESTS_MAX: usize = 100_000;

/// One request, as the client sent it.
#[derive(Clone)]
#[non_exhaustive]
pub struct RequestRecord {
    /// The number of the connection, from 1 in the order of arrival.
    pub connection: u64,
    /// What the connection is used for, this request included.
    pub kind: ConnectionKind,
    /// The name of the command in upper case.
    pub command: String,
    /// All arguments, the name included. Those of `AUTH` and `HELLO` are left out, for they hold secrets.
    pub args: Vec<Vec<u8>>,
    /// When it came.
    pub at: Instant,
}

impl fmt::Debug for RequestRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} {:?}", self.connection, self.kind)?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", arg.escape_ascii()))
    }
}

/// Requests and fired rules so far.
#[derive(Debug, Default)]
pub struct RequestLog {
    records: VecDeque<RequestRecord>,
    counts: HashMap<String, u64>,
    fired: HashMap<RuleId, u64>,
}

impl RequestLog {
    /// How often a command was sent, by its name in any case.
    pub fn count(&self, command: &str) -> u64 {
        self.counts.get(&command.to_ascii_uppercase()).copied().unwrap_or(0)
    }

    /// How many requests were sent in all.
    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    /// The remembered requests, oldest first; at most [`REQUESTS_MAX`].
    pub fn requests(&self) -> impl DoubleEndedIterator<Item = &RequestRecord> {
        self.records.iter()
    }

    /// How often a rule has acted. A rule about replies acts when the reply comes, thus after the server has.
    pub fn fired(&self, rule: RuleId) -> u64 {
        self.fired.get(&rule).copied().unwrap_or(0)
    }

    fn push(&mut self, record: RequestRecord) {
        *self.counts.entry(record.command.clone()).or_default() += 1;
        if self.records.len() == REQUESTS_MAX {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }
}

#[derive(Debug, Default)]
pub(super) struct SharedLog {
    log: Mutex<RequestLog>,
    tasks: Notify,
    threads: Condvar,
}

impl SharedLog {
    pub(super) fn lock(&self) -> MutexGuard<'_, RequestLog> {
        // A predicate of a test that panicked cannot have changed the log.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, record: RequestRecord) {
        self.change(|log| log.push(record));
    }

    pub(super) fn fire(&self, rule: RuleId) {
        self.change(|log| *log.fired.entry(rule).or_default() += 1);
    }

    pub(super) fn clear(&self) {
        self.change(|log| *log = RequestLog::default());
    }

    fn change(&self, change: impl FnOnce(&mut RequestLog)) {
        change(&mut self.lock());
        self.tasks.notify_waiters();
        self.threads.notify_all();
    }

    pub(super) async fn wait_for(
        &self,
        limit: Duration,
        mut is_met: impl FnMut(&RequestLog) -> bool,
    ) -> Result<()> {
        let wait = async {
            loop {
                let mut changed = std::pin::pin!(self.tasks.notified());
                // Registered before the look, so that no change falls between look and wait.
                changed.as_mut().enable();
                if is_met(&self.lock()) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, wait).await.map_err(|_| self.too_late(limit))
    }

    pub(super) fn wait_for_blocking(
        &self,
        limit: Duration,
        mut is_met: impl FnMut(&RequestLog) -> bool,
    ) -> Result<()> {
        let waited = self.threads.wait_timeout_while(self.lock(), limit, |log| !is_met(log));
        let (guard, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(guard);
        if outcome.timed_out() { Err(self.too_late(limit)) } else { Ok(()) }
    }

    fn too_late(&self, limit: Duration) -> Error {
        let log = self.lock();
        let last: Vec<String> = log.requests().rev().take(10).map(|record| format!("{record:?}")).collect();
        let text = format!(
            "the proxy did not see it within {limit:?}; last requests first:\n  {}",
            last.join("\n  ")
        );
        Error::new(ErrorKind::Timeout, text)
    }
}
