//! What is written down: one event, and its words.

use serde::{Deserialize, Serialize};

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
