//! What a client does, told to an observer: for metrics, traces and logs of the program's own.
//!
//! Without an observer nothing is counted and no clock is asked. Adapters for what others collect are crates of their own: `redlatch-metrics`.

use std::time::Duration;

pub use crate::name_classes::{CLASSES_MAX, Classes, OTHER};
use crate::{error::LossReason, name::LockName};

/// Is told what a client does: [`ClientBuilder::observer`](crate::ClientBuilder::observer).
///
/// It is called by the task that the event is about, or by the client's background thread, and never under a mutex of the library; so it may ask the
/// client for its [`stats`](crate::Client::stats), or start tasks that use it. While it runs, that task or thread waits: it should count and go on. It must
/// not block: a call of `blocking` on the background thread would wait for itself, and no lock would be renewed. A panic in it is caught and ends nothing.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// use redlatch::observe::{Event, Observer, Outcome};
/// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
///
/// #[derive(Default)]
/// struct Busy(AtomicU64);
///
/// impl Observer for Busy {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::AcquireEnded { outcome: Outcome::Busy, .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let busy = Arc::new(Busy::default());
/// let client = redlatch::Client::builder().url("memory:").observer(busy.clone()).connect().await?;
/// let guard = client.lock("orders").lock().await?;
/// assert!(client.lock("orders").try_lock().await?.is_none());
/// assert_eq!(busy.0.load(Ordering::Relaxed), 1);
/// # guard.unlock().await?; Ok(()) }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Something has happened.
    fn observe(&self, event: &Event<'_>);
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subject<'a> {
    /// The kind in a word, one of few: `lock`, `fair`, `read`, `write`, `permits`, `semaphore`, `rate` or `latch`. Plain, fenced, spin and non-reentrant
    /// locks are `lock`.
    pub kind: &'static str,
    /// The name. There may be millions, so it is no label of a metric: [`Classes`] makes one of it.
    pub name: &'a LockName,
}

impl<'a> Subject<'a> {
    /// Of an event that a test or another source makes. `kind` is one of the words above.
    pub fn new(kind: &'static str, name: &'a LockName) -> Self {
        Subject { kind, name }
    }
}

/// What has happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A task asks for it, and will be told by [`AcquireEnded`](Self::AcquireEnded), whatever becomes of it. The difference of the two is how many wait.
    AcquireBegan {
        /// What it asks for. Members of a set that one request asks for are told when that is answered.
        subject: Subject<'a>,
    },
    /// That has ended.
    AcquireEnded {
        /// What was asked for.
        subject: Subject<'a>,
        /// How.
        outcome: Outcome,
        /// How long it took.
        after: Duration,
    },
    /// This process has a hold. Its guards may be several, and a task of this process that gets the lock from another one has a hold of its own.
    HoldBegan {
        /// Of what.
        subject: Subject<'a>,
    },
    /// A hold that has begun is over.
    HoldEnded {
        /// Of what.
        subject: Subject<'a>,
        /// How.
        end: HoldEnd<'a>,
        /// How long it lasted, to the millisecond.
        after: Duration,
    },
    /// The server has renewed a hold, or was seen to have it.
    Renewed {
        /// Of what.
        subject: Subject<'a>,
        /// What was left of the lease when the answer came. Less and less of it is a loss to come.
        left: Duration,
    },
    /// A renewal of so many holds failed, and is tried again until their leases end.
    RenewalFailed {
        /// How many.
        holds: usize,
    },
    /// The background thread, which renews, ran later than it had meant to: the process or the machine was busy or stood still.
    KeeperLate {
        /// By how much: 20 ms or more.
        by: Duration,
    },
    /// A script ran on the server, or may have.
    CallEnded {
        /// Its name, one of about 60.
        script: &'static str,
        /// How.
        outcome: CallOutcome,
        /// From its sending to its answer.
        after: Duration,
    },
    /// A connection that holds depend on has ended, or another server has taken over: all holds are looked at.
    Interrupted,
}

/// How an acquire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The server granted it.
    Granted,
    /// A task of this process passed its hold on, without or by way of the server.
    Passed,
    /// Its owner held it, and has entered once more.
    Reentered,
    /// Another has it, and the time for waiting, if there was any, is over.
    Busy,
    /// It ended with an error.
    Failed,
    /// Its future was dropped.
    Cancelled,
}

impl Outcome {
    /// The word for a label.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Granted => "granted",
            Outcome::Passed => "passed",
            Outcome::Reentered => "reentered",
            Outcome::Busy => "busy",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
        }
    }
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldEnd<'a> {
    /// Its last guard gave it back, or was dropped. Whether the server has been told is another matter.
    GivenBack,
    /// It was left on the server without a guard.
    Detached,
    /// It was lost.
    Lost(&'a LossReason),
}

impl HoldEnd<'_> {
    /// The word for a label.
    pub fn word(self) -> &'static str {
        match self {
            HoldEnd::GivenBack => "given_back",
            HoldEnd::Detached => "detached",
            HoldEnd::Lost(LossReason::Expired) => "expired",
            HoldEnd::Lost(LossReason::Deleted) => "deleted",
            HoldEnd::Lost(LossReason::TakenOver { .. }) => "taken_over",
            HoldEnd::Lost(LossReason::Forced { .. }) => "forced",
            HoldEnd::Lost(LossReason::Shutdown) => "shutdown",
            HoldEnd::Lost(_) => "lost",
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallOutcome {
    /// With an answer.
    Answered,
    /// The server refused it, or could not be reached.
    Refused,
    /// It may have run or not.
    Unknown,
    /// Its caller has gone before the answer.
    Left,
}

impl CallOutcome {
    /// The word for a label.
    pub fn word(self) -> &'static str {
        match self {
            CallOutcome::Answered => "answered",
            CallOutcome::Refused => "refused",
            CallOutcome::Unknown => "unknown",
            CallOutcome::Left => "left",
        }
    }
}
