//! Recording what happened in a run, and judging it afterwards.
//!
//! Every process of a run writes its events with a [`Recorder`], one JSON line each. The times are those of
//! the boot-time clock, which all processes of a machine share and which runs on through suspend, so that
//! [`merge`] needs no correction. [`check`] then looks for what must not happen.

mod checker;

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

pub use self::checker::{CheckId, CheckOptions, Floors, Stats, Verdict, Violation, check};
use crate::error::{Error, ErrorKind, Result};

/// Nanoseconds since the machine was started, suspended time included.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// An acquire was sent; needed only if its end may be missing.
    AcquireCall,
    /// An acquire ended, with both times and an outcome.
    AcquireRet,
    /// A place in the queue of a fair lock was confirmed, for the acquire with the same `op_id`.
    Queued,
    /// A place in a queue was lost by a stated rule, for the acquire with the same `op_id`.
    PlaceLost,
    /// A renewal was sent.
    RenewCall,
    /// A renewal ended.
    RenewRet,
    /// The holder was told that it lost its hold.
    LostNotice,
    /// A release was sent; needed only if its end may be missing.
    ReleaseCall,
    /// A release ended.
    ReleaseRet,
    /// The critical section began.
    CsEnter,
    /// The critical section ended.
    CsExit,
    /// A write with a token was sent to the guarded resource.
    WriteSent,
    /// The resource got a write: accepted (`ok`) or refused (`no`).
    WriteSeen,
    /// The operation with the same `op_id` was cancelled.
    Cancel,
    /// The process was killed.
    Crash,
    /// A semaphore was given this number of permits.
    Capacity,
    /// An observer found the lock free of this owner, or of all if none is named.
    SeenFree,
    /// A fault began; `err` names it, and `pause` means that the process `proc` was stopped.
    FaultOn,
    /// A fault ended.
    FaultOff,
    /// All faults ended.
    Heal,
}

/// How an operation ended. An unknown end is never counted as a "no".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It took effect.
    Ok,
    /// It took none: busy, timed out in the queue, not held.
    No,
    /// It was sent and may have taken effect.
    Unknown,
}

/// The kind of hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One owner.
    #[default]
    Exclusive,
    /// One owner, in the order of queueing.
    Fair,
    /// The shared side of a read-write lock.
    Read,
    /// The exclusive side of a read-write lock.
    Write,
    /// Permits of a semaphore.
    Permit,
}

/// One line of a history. Fields that say nothing are left out of the JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The name of the run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The number of the process in the run.
    pub proc: u32,
    /// The task in the process.
    #[serde(default)]
    pub task: u64,
    /// The operation, unique in its process.
    pub op_id: u64,
    /// What the event is about.
    pub kind: Kind,
    /// The name of the lock.
    pub lock: String,
    /// The kind of hold.
    #[serde(default)]
    pub mode: Mode,
    /// The owner, as the server knows it.
    #[serde(default)]
    pub owner: String,
    /// When it began, in nanoseconds of [`now_ns`]; for events without length, when it was.
    pub t_call_ns: u64,
    /// When it ended.
    pub t_ret_ns: u64,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Until when the holder may act, by its own clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until_ns: Option<u64>,
    /// The fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The number of holds of the owner behind this operation, as reported to the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// The number of permits; none means one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u32>,
    /// Which run of the server answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_run_id: Option<String>,
    /// An error, or the name of a fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub err: Option<String>,
}

impl Event {
    /// An event that happens now.
    pub fn new(kind: Kind, lock: impl Into<String>, owner: impl Into<String>) -> Self {
        let now = now_ns();
        Self {
            run: String::new(),
            proc: 0,
            task: 0,
            op_id: 0,
            kind,
            lock: lock.into(),
            mode: Mode::default(),
            owner: owner.into(),
            t_call_ns: now,
            t_ret_ns: now,
            outcome: None,
            valid_until_ns: None,
            token: None,
            depth: None,
            permits: None,
            server_run_id: None,
            err: None,
        }
    }

    /// Sets begin and end.
    pub fn span(mut self, t_call_ns: u64, t_ret_ns: u64) -> Self {
        (self.t_call_ns, self.t_ret_ns) = (t_call_ns, t_ret_ns);
        self
    }

    /// Sets process and operation.
    pub fn op(mut self, proc: u32, op_id: u64) -> Self {
        (self.proc, self.op_id) = (proc, op_id);
        self
    }

    /// Sets the outcome.
    pub fn outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = Some(outcome);
        self
    }

    /// Sets the kind of hold.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the deadline of the holder.
    pub fn valid_until(mut self, t_ns: u64) -> Self {
        self.valid_until_ns = Some(t_ns);
        self
    }

    /// Sets the fencing token.
    pub fn token(mut self, token: u64) -> Self {
        self.token = Some(token);
        self
    }

    /// Sets the reported depth.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Sets the number of permits.
    pub fn permits(mut self, permits: u32) -> Self {
        self.permits = Some(permits);
        self
    }

    /// Sets the error, or the name of the fault.
    pub fn err(mut self, err: impl Into<String>) -> Self {
        self.err = Some(err.into());
        self
    }
}

#[derive(Debug)]
struct Sink {
    run: String,
    proc: u32,
    next_op: AtomicU64,
    written: Mutex<(Vec<Event>, Option<File>)>,
}

/// Collects events from all threads of a process. Clones write to the same place.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Sink>);

impl Recorder {
    /// A recorder that keeps events in memory.
    pub fn new(run: impl Into<String>, proc: u32) -> Self {
        Self::build(run.into(), proc, None)
    }

    /// A recorder that also appends every event to a file at once, so that a killed process leaves all but
    /// its last line.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the file cannot be opened.
    pub fn with_file(run: impl Into<String>, proc: u32, path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|e| Error::io("cannot open the history file", e))?;
        Ok(Self::build(run.into(), proc, Some(file)))
    }

    fn build(run: String, proc: u32, file: Option<File>) -> Self {
        let written = Mutex::new((Vec::new(), file));
        Self(Arc::new(Sink { run, proc, next_op: AtomicU64::new(1), written }))
    }

    /// A number for a new operation.
    pub fn next_op_id(&self) -> u64 {
        self.0.next_op.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds an event; run and process are filled in.
    ///
    /// # Panics
    ///
    /// When the file cannot be written: a history with holes would be judged wrongly.
    pub fn record(&self, mut event: Event) {
        event.run.clone_from(&self.0.run);
        event.proc = self.0.proc;
        let mut written = self.written();
        if let Some(file) = &mut written.1 {
            let line = serde_json::to_vec(&event).map(|mut line| {
                line.push(b'\n');
                line
            });
            let wrote = line.map_err(std::io::Error::from).and_then(|line| file.write_all(&line));
            assert!(wrote.is_ok(), "cannot write the history file: {wrote:?}");
        }
        written.0.push(event);
    }

    /// All events so far, in the order in which they were recorded.
    pub fn events(&self) -> Vec<Event> {
        self.written().0.clone()
    }

    fn written(&self) -> MutexGuard<'_, (Vec<Event>, Option<File>)> {
        self.0.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the files of all processes into one history, by the time at which the events ended. The last line
/// of a file may be cut off, as a killed process leaves it.
///
/// # Errors
///
/// [`ErrorKind::Io`] when a file cannot be read, [`ErrorKind::Invalid`] when a line is no event.
pub fn merge<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for path in paths {
        let path = path.as_ref();
        let io = |e| Error::io(format!("cannot read {}", path.display()), e);
        let mut reader = BufReader::new(File::open(path).map_err(io)?);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            if reader.read_until(b'\n', &mut line).map_err(io)? == 0 {
                break;
            }
            match serde_json::from_slice(&line) {
                Ok(event) => events.push(event),
                Err(_) if line.last() != Some(&b'\n') => {}
                Err(e) => {
                    let text = format!("line {number} of {} is no event", path.display());
                    return Err(Error::because(ErrorKind::Invalid, text, e));
                }
            }
        }
    }
    events.sort_by_key(|event: &Event| event.t_ret_ns);
    Ok(events)
}
