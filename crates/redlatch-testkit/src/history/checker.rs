//! The checks. All are sweeps over sorted intervals: owner and token identify every grant, so there is
//! nothing to search.

mod holds;
mod orders;
mod sweeps;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use super::event::{Event, Kind, Outcome};

/// How many violations of each check are listed; all are counted.
const LISTED_MAX: u64 = 100;

/// The name of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CheckId {
    /// Definite holds of different owners of an exclusive lock do not overlap.
    C1,
    /// Tokens are unique per grant and grow; re-entry keeps the token.
    C3,
    /// The tokens that a resource accepts never go down, and are equal only for the same owner.
    C4,
    /// A definite write hold overlaps no other owner's definite hold.
    C5,
    /// Definitely held permits never exceed the capacity.
    C6,
    /// Depth is acquires minus releases; a release of nothing never succeeds.
    C7,
    /// Who was queued before another asked is granted before it.
    C8,
    /// A hold that ends by its deadline was announced as lost by then, and does not come back.
    C11,
    /// Nothing is left behind.
    C14,
    /// Each acquire with an unknown end is followed by evidence of what became of it.
    C15,
    /// The run was worth judging: enough grants, contention and faults, and the unprotected control fails.
    C16,
}

/// The least that a run must contain to mean anything.
#[derive(Debug, Clone, Default)]
pub struct Floors {
    /// Grants.
    pub grants: u64,
    /// Grants that had to wait for another owner.
    pub contended: u64,
    /// For each fault, by the `err` of its [`Kind::FaultOn`], how often it must have begun.
    pub faults: BTreeMap<String, u64>,
    /// Whether the same run without protection was found in violation; `None` when there was none.
    pub control_failed: Option<bool>,
}

/// What the checks need to know beside the history.
#[derive(Debug, Clone, Default)]
pub struct CheckOptions {
    /// Re-entry draws a new token, as Redisson does, instead of keeping the one of the hold.
    pub reentry_draws_token: bool,
    /// How much later than the deadline a notice of loss may be, in nanoseconds: the time that the scheduler
    /// of a busy machine takes.
    pub notice_late_max_ns: u64,
    /// What was found left behind, one text each; see [`leftovers`](crate::leftovers).
    pub leftovers: Vec<String>,
    /// The least that the run must contain.
    pub floors: Floors,
}

/// Something that must not happen, and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The check that found it.
    pub id: CheckId,
    /// The lock, or nothing.
    pub lock: String,
    /// What happened.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}: {}", self.id, self.lock, self.message)
    }
}

/// What was in the run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Acquires that succeeded.
    pub grants: u64,
    /// Grants that had to wait for another owner of the lock.
    pub contended: u64,
    /// Notices of loss that came after the deadline, but within the tolerance.
    pub notices_late: u64,
    /// The latest of them, in nanoseconds after the deadline.
    pub notice_late_ns: u64,
    /// How often each fault began.
    pub faults: BTreeMap<String, u64>,
}

/// The outcome of [`check`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Verdict {
    /// The first 100 violations of each check.
    pub violations: Vec<Violation>,
    /// How many there were, by check.
    pub counts: BTreeMap<CheckId, u64>,
    /// What was in the run.
    pub stats: Stats,
}

impl Verdict {
    /// Whether nothing was found.
    pub fn is_ok(&self) -> bool {
        self.counts.is_empty()
    }

    /// The checks that found something.
    pub fn ids(&self) -> Vec<CheckId> {
        self.counts.keys().copied().collect()
    }

    /// Panics with the list of violations, if there are any.
    ///
    /// # Panics
    ///
    /// See above.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.is_ok(), "{self}");
    }

    fn add(&mut self, id: CheckId, lock: &str, message: String) {
        let count = self.counts.entry(id).or_default();
        *count += 1;
        if *count <= LISTED_MAX {
            self.violations.push(Violation { id, lock: lock.to_owned(), message });
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "violations by check: {:?}; {:?}", self.counts, self.stats)?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "  {violation}"))
    }
}

/// An operation by process and number.
type Op = (u32, u64);

/// The history with what several checks look up.
struct Context<'a> {
    events: &'a [Event],
    options: &'a CheckOptions,
    /// Operations whose end is recorded: for these, the event of the call adds nothing.
    ended: HashSet<(Op, bool)>,
    cancelled: HashSet<Op>,
    crashed: HashMap<u32, u64>,
    /// Windows in which a process was stopped.
    paused: HashMap<u32, Vec<(u64, u64)>>,
    end_ns: u64,
}

impl<'a> Context<'a> {
    fn new(events: &'a [Event], options: &'a CheckOptions) -> Self {
        let mut context = Self {
            events,
            options,
            ended: HashSet::new(),
            cancelled: HashSet::new(),
            crashed: HashMap::new(),
            paused: HashMap::new(),
            end_ns: 0,
        };
        // Only histories with calls need the ends to be looked up.
        let is_call = |e: &Event| matches!(e.kind, Kind::AcquireCall | Kind::ReleaseCall);
        let has_calls = events.iter().any(is_call);
        let mut windows: Vec<&Event> = Vec::new();
        for event in events {
            context.end_ns = context.end_ns.max(event.t_ret_ns);
            match event.kind {
                Kind::AcquireRet | Kind::ReleaseRet if has_calls => {
                    context.ended.insert((op(event), event.kind == Kind::AcquireRet));
                }
                Kind::Cancel => {
                    context.cancelled.insert(op(event));
                }
                Kind::Crash => {
                    context.crashed.insert(event.proc, event.t_call_ns);
                }
                Kind::FaultOn | Kind::FaultOff if event.err.as_deref() == Some("pause") => {
                    windows.push(event)
                }
                _ => {}
            }
        }
        windows.sort_by_key(|event| event.t_call_ns);
        for event in windows {
            let paused = context.paused.entry(event.proc).or_default();
            match (event.kind, paused.last_mut()) {
                (Kind::FaultOn, _) => paused.push((event.t_call_ns, u64::MAX)),
                (_, Some(last)) => last.1 = event.t_ret_ns,
                (_, None) => {}
            }
        }
        context
    }

    fn is_open_call(&self, event: &Event, call: Kind) -> bool {
        event.kind == call && !self.ended.contains(&(op(event), call == Kind::AcquireCall))
    }

    /// An acquire that may have taken effect without the caller knowing.
    fn is_unknown_acquire(&self, event: &Event) -> bool {
        (event.kind == Kind::AcquireRet && event.outcome == Some(Outcome::Unknown))
            || self.is_open_call(event, Kind::AcquireCall)
    }
}

fn op(event: &Event) -> Op {
    (event.proc, event.op_id)
}

fn is_grant(event: &Event) -> bool {
    event.kind == Kind::AcquireRet && event.outcome == Some(Outcome::Ok)
}

/// Judges a history. The order of the events does not matter.
pub fn check(events: &[Event], options: &CheckOptions) -> Verdict {
    let context = Context::new(events, options);
    let mut verdict = Verdict::default();
    verdict.stats.grants = events.iter().filter(|event| is_grant(event)).count() as u64;
    for event in events.iter().filter(|event| event.kind == Kind::FaultOn) {
        *verdict.stats.faults.entry(event.err.clone().unwrap_or_default()).or_default() += 1;
    }
    let holds = holds::build(&context, &mut verdict);
    sweeps::exclusion(&holds, &mut verdict);
    sweeps::permits(&context, &mut verdict);
    orders::tokens(&holds, &mut verdict);
    orders::resource(&context, &mut verdict);
    orders::queue(&context, &mut verdict);
    orders::unknown(&context, &mut verdict);
    for leftover in &options.leftovers {
        verdict.add(CheckId::C14, "", format!("left behind: {leftover}"));
    }
    floors(&options.floors, &mut verdict);
    verdict
}

fn floors(floors: &Floors, verdict: &mut Verdict) {
    let mut short = Vec::new();
    let mut floor = |what: String, have: u64, least: u64| {
        if have < least {
            short.push(format!("{what}: {have} of at least {least}"));
        }
    };
    floor("grants".into(), verdict.stats.grants, floors.grants);
    floor("contended grants".into(), verdict.stats.contended, floors.contended);
    for (name, least) in &floors.faults {
        floor(format!("fault {name:?}"), verdict.stats.faults.get(name).copied().unwrap_or(0), *least);
    }
    if floors.control_failed == Some(false) {
        short.push("the control run without protection was not found in violation".into());
    }
    for message in short {
        verdict.add(CheckId::C16, "", message);
    }
}
