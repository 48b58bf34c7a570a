//! Getting the lock: re-entry, waiting, and telling who has it meanwhile.

use std::{
    future::pending,
    path::Path,
    time::{Duration, Instant},
};

use redlatch::{Client, ErrorKind, Lease, LockKind, LockName, LockState, MultiLock, ReplicaAck, Replicas};
use signal_hook::consts::SIGTSTP;
use tokio::time::{Interval, interval, sleep};

use super::{
    environment,
    holding::{Holding, Part},
    kind::{Handle, Terms},
    workers,
};
pub(crate) use crate::escape::quoted;
use crate::{
    args::{IfBusy, WaitArgs, kind::Kind, run::Reenter},
    child,
    durations::{self, Wait},
    escape,
    exit::{self, Failure},
    recovery::Recovery,
    signals::Signals,
    talk::Talk,
    who::Holders,
};

/// A wait shorter than this is not worth a word.
pub(crate) const TELL_AFTER: Duration = Duration::from_millis(200);
/// How often the live line is renewed.
const LIVE_INTERVAL: Duration = Duration::from_secs(1);
/// How often `-v` looks for a new holder when nobody watches.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// How often a wait is told of again when nobody watches.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);
/// At how many names to look for the owner in the way.
const NAMES_LOOKED_AT: usize = 8;

/// What to do about a busy lock, from `--wait`, `--no-wait`, `--if-busy` and `-E`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// How long to wait.
    pub(crate) wait: Wait,
    /// The exit code when that was not enough.
    pub(crate) busy_code: u8,
    /// Whether a busy lock is fine.
    pub(crate) skips: bool,
}

impl Patience {
    /// What to do about a busy name, up to the verb that shows it: a user who has waited needs no advice to wait.
    pub(crate) fn advice(self) -> &'static str {
        match self.wait {
            Wait::AtMost(Duration::ZERO) => "wait with --wait, or look with",
            _ => "look with",
        }
    }
}

impl From<WaitArgs> for Patience {
    fn from(args: WaitArgs) -> Self {
        // `--if-busy fail` means at once, unless --wait says how long is acceptable first.
        let at_once = args.no_wait || matches!(args.if_busy, Some(IfBusy::Fail | IfBusy::Skip));
        let default = if at_once { Wait::AtMost(Duration::ZERO) } else { Wait::Forever };
        let skips = args.if_busy == Some(IfBusy::Skip);
        let busy_code = args.conflict_exit_code.unwrap_or(if skips { exit::OK } else { exit::BUSY });
        Patience { wait: args.wait.unwrap_or(default), busy_code, skips }
    }
}

/// How the attempt ended.
#[derive(Debug)]
pub(crate) enum Acquired {
    /// It is ours.
    Held(Holding),
    /// Another owner has it.
    Busy,
    /// A signal asked us to end.
    Interrupted(i32),
}

/// What to ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) client: &'a Client,
    pub(crate) names: &'a [LockName],
    pub(crate) kind: Kind,
    pub(crate) lease: Lease,
    pub(crate) fenced: bool,
    pub(crate) ack: ReplicaAck,
    pub(crate) patience: Patience,
    pub(crate) reenter: Reenter,
    pub(crate) talk: Talk,
    /// The socket of the local engine, where there is one.
    pub(crate) engine: Option<&'a Path>,
}

/// Takes the lock, or says why not.
///
/// # Errors
///
/// Those of the store.
pub(crate) async fn acquire(request: Request<'_>, signals: &mut Signals) -> Result<Acquired, Failure> {
    let started = Instant::now();
    let result = tokio::select! {
        biased;
        signal = ending(signals) => Ok(Acquired::Interrupted(signal)),
        result = take(request) => result,
        never = tell(request, started) => match never {},
    };
    if started.elapsed() >= TELL_AFTER {
        request.talk.live("");
    }
    result
}

/// The next signal that asks us to end. A stop from the terminal stops us; others mean nothing before there is a command.
pub(crate) async fn ending(signals: &mut Signals) -> i32 {
    loop {
        let received = signals.next().await;
        if received.asks_to_end() {
            return received.signal;
        }
        if received.signal == SIGTSTP && !child::is_orphaned() {
            _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
        }
    }
}

async fn take(request: Request<'_>) -> Result<Acquired, Failure> {
    let parts = match (request.kind, request.names) {
        (Kind::Permits(permits), [name]) => take_permit(request, name, permits).await?,
        (_, names) => take_locks(request, names).await?,
    };
    Ok(parts.map_or(Acquired::Busy, |parts| Acquired::Held(Holding::new(parts))))
}

/// Takes the locks: those that an outer run holds by entering them with it, then the others.
async fn take_locks(request: Request<'_>, names: &[LockName]) -> Result<Option<Vec<Part>>, Failure> {
    let (mut parts, mut others) = (Vec::new(), Vec::new());
    for name in names {
        match reenter(request, name).await? {
            Some(part) => parts.push(part),
            None => others.push(name),
        }
    }
    let Request { lease, fenced, ack, .. } = request;
    let terms = Terms { wait: request.wait(), lease, fenced, ack, owner: None };
    match others[..] {
        [] => {}
        [name] => {
            let Some(lock) = request.lock(name) else { return Ok(None) };
            let guard = match lock.acquire(terms).await {
                Ok(guard) => guard,
                Err(error) => return Err(explained(request, name, error).await),
            };
            let Some(guard) = guard else { return Ok(None) };
            request.tell_of(name, guard.replicas());
            parts.push(Part::Lock { guard, nested: false });
        }
        [..] => {
            let locks: Vec<Handle> = others.iter().filter_map(|name| request.lock(name)).collect();
            let set = MultiLock::new(locks.iter().map(Handle::member))?;
            let owner = request.client.owner();
            let attempt = set.acquire().wait(terms.wait).lease(terms.lease).owner(&owner);
            let mut attempt = attempt.replica_ack(terms.ack);
            if terms.fenced {
                attempt = attempt.fenced();
            }
            let guard = match attempt.await {
                Ok(guard) => guard,
                Err(error) => {
                    return Err(match error.lock().cloned() {
                        Some(name) => explained(request, &name, error).await,
                        None => error.into(),
                    });
                }
            };
            let Some(guard) = guard else { return Ok(None) };
            for (name, replicas) in others.iter().zip(guard.replicas()) {
                request.tell_of(name, replicas);
            }
            parts.push(Part::Locks { guard });
        }
    }
    Ok(Some(parts))
}

impl Request<'_> {
    /// Says how many replicas have the lock, if they were asked; loudly if they are too few.
    fn tell_of(self, name: &LockName, replicas: Option<Replicas>) {
        let Some(replicas) = replicas else { return };
        let name = quoted(name);
        if replicas.is_complete() {
            self.talk.detail(format_args!("{replicas} replicas have confirmed {name}"));
        } else {
            self.talk.say(format_args!(
                "only {replicas} replicas have confirmed {name} in time; it is held all the same, as --on-shortfall says"
            ));
        }
    }

    fn lock(self, name: &LockName) -> Option<Handle> {
        Handle::of(self.client, name, self.kind.held())
    }

    fn wait(self) -> redlatch::Wait {
        match self.patience.wait {
            Wait::Forever => redlatch::Wait::Forever,
            Wait::AtMost(Duration::ZERO) => redlatch::Wait::No,
            Wait::AtMost(limit) => redlatch::Wait::AtMost(limit),
        }
    }
}

/// Takes one permit of so many, and makes them if nobody has.
async fn take_permit(
    request: Request<'_>,
    name: &LockName,
    permits: u32,
) -> Result<Option<Vec<Part>>, Failure> {
    if environment::outer_permit(name) {
        request
            .talk
            .say(format_args!("an outer run has a permit of {} too; this one takes another", quoted(name)));
    }
    let semaphore = request.client.permit_semaphore(name);
    if !semaphore.set_if_absent(permits).await? {
        let total = semaphore.total().await?;
        if total != i64::from(permits) {
            return Err(other_total(name, permits, total));
        }
    }
    let attempt = semaphore.request().wait(request.wait()).lease(request.lease).replica_ack(request.ack);
    let guard = attempt.await;
    let guard = guard.map_err(|error| match error.kind() {
        ErrorKind::NotInitialised => Failure::new(
            exit::LOST,
            format!("the permits of {} were deleted during the wait; run again", quoted(name)),
        ),
        _ => error.into(),
    })?;
    if let Some(guard) = &guard {
        request.tell_of(name, guard.replicas());
    }
    Ok(guard.map(|guard| vec![Part::Permit { permits: semaphore, guard }]))
}

/// The name has another number of permits: the two numbers cannot both be what is meant.
fn other_total(name: &LockName, permits: u32, total: i64) -> Failure {
    let word = quoted(name);
    let change = i64::from(permits) - total;
    Failure::usage(format!(
        "{word} has {total} permits, not {permits}; give --permits {total}, or change their number for all users with \
         `redlatch sem add {word} {change}`"
    ))
}

/// Enters with an outer run, once the server has confirmed that its owner still holds the lock.
async fn reenter(request: Request<'_>, name: &LockName) -> Result<Option<Part>, Failure> {
    let outer = match request.reenter {
        Reenter::Auto => environment::outer_owner(name),
        Reenter::Never => None,
    };
    let Some((outer, lock)) = outer.zip(request.lock(name)) else { return Ok(None) };
    if !lock.is_entered_by(&outer).await? {
        request.talk.detail(format_args!("the outer run does not hold {} any more", quoted(name)));
        return Ok(None);
    }
    let wait = redlatch::Wait::No;
    let Request { lease, fenced, ack, .. } = request;
    let terms = Terms { wait, lease, fenced, ack, owner: Some(&outer) };
    match lock.acquire(terms).await {
        Ok(guard) => Ok(guard
            .inspect(|guard| request.tell_of(name, guard.replicas()))
            .map(|guard| Part::Lock { guard, nested: true })),
        Err(error) => Err(explained(request, name, error).await),
    }
}

/// Says what to do about a name that is held as another kind of lock.
async fn explained(request: Request<'_>, name: &LockName, error: redlatch::Error) -> Failure {
    let (word, kind) = (quoted(name), request.kind);
    let found = match error.kind() {
        ErrorKind::UpgradeRefused => {
            return Failure::usage(format!(
                "{word} is held with --shared by an outer run, and a reader cannot become a writer; hold it with --exclusive there"
            ));
        }
        ErrorKind::WrongLockKind => request.client.inspect(name).await.ok().map(|state| state.kind),
        _ => None,
    };
    match (found, kind) {
        (Some(LockKind::ReadWrite), _) => Failure::usage(format!(
            "{word} is held as a read-write lock; give --shared to hold it together with its readers, or --exclusive to hold it alone"
        )),
        (Some(LockKind::Lock | LockKind::Fair), Kind::Read | Kind::Write) => Failure::usage(format!(
            "{word} is held as a plain lock; use --shared and --exclusive wherever the name is used, or nowhere"
        )),
        _ => error.into(),
    }
}

/// Says who has the lock, for as long as we wait: in one line that is updated, or with `-v` in one line for each holder.
async fn tell(request: Request<'_>, started: Instant) -> std::convert::Infallible {
    let mut watch = Watch::new(request.talk, started);
    watch.begin().await;
    loop {
        watch.next().await;
        // The wait itself reports what is wrong with the server; this line is a courtesy.
        let Some(state) = in_the_way(request).await else {
            watch.knows_nothing();
            continue;
        };
        // Read holds last a little less at each look; who holds them is what matters.
        let holders = format!("{:?}", (&state.name, holders(&state)));
        let line = match recovery(request, &state).await {
            Some(recovery) => format!("{} — {recovery}", quoted(&state.name)),
            None => line(&state, &Holders::of(request.client, &state).await),
        };
        watch.tell(&line, holders);
    }
}

/// Why the engine does not grant what nobody is seen to have.
async fn recovery(request: Request<'_>, state: &LockState) -> Option<Recovery> {
    let socket = request.engine.filter(|_| holders(state).is_empty())?.to_owned();
    // Not in the way of signals, if it does not answer.
    tokio::task::spawn_blocking(move || Recovery::at(&socket)).await.ok()?
}

/// When to tell of a wait: a line that is updated where a user watches; otherwise a line at once, another one every minute, and
/// with `-v` one for each change.
pub(crate) struct Watch {
    talk: Talk,
    started: Instant,
    ticks: Interval,
    told: Option<(String, Instant)>,
}

impl Watch {
    pub(crate) fn new(talk: Talk, started: Instant) -> Self {
        let period = match (talk.is_live(), talk.is_verbose()) {
            (true, _) => LIVE_INTERVAL,
            (false, true) => LOG_INTERVAL,
            (false, false) => REMINDER_INTERVAL,
        };
        Watch { talk, started, ticks: interval(period), told: None }
    }

    /// Returns when the wait is worth a word; never, if nobody wants to hear of it.
    pub(crate) async fn begin(&mut self) {
        if !self.talk.tells_of_waiting() {
            return pending().await;
        }
        sleep(TELL_AFTER).await;
        self.ticks.reset_immediately();
    }

    /// Returns when it is time for another look.
    pub(crate) async fn next(&mut self) {
        _ = self.ticks.tick().await;
    }

    /// The last look had no answer. The next one is soon, and is told of whatever it shows.
    pub(crate) fn knows_nothing(&mut self) {
        self.told = None;
        self.ticks.reset_after(LIVE_INTERVAL);
    }

    /// Tells how things are; `what` says whether that has changed.
    pub(crate) fn tell(&mut self, line: &str, what: String) {
        let waited = durations::human(self.started.elapsed());
        if self.talk.is_live() {
            self.talk.live(&format!("{line}; waited {waited}"));
            return;
        }
        let now = Instant::now();
        if is_worth_a_line(self.told.as_ref(), &what, now) {
            self.talk.say(format_args!("waiting for {line}; waited {waited}"));
            self.told = Some((what, now));
        }
    }
}

/// Whether something new is to be told, or the old once more.
fn is_worth_a_line(told: Option<&(String, Instant)>, what: &str, now: Instant) -> bool {
    // The timer may be a little early.
    let due = |at: &Instant| now.saturating_duration_since(*at) + LIVE_INTERVAL >= REMINDER_INTERVAL;
    told.is_none_or(|(before, at)| before != what || due(at))
}

/// The state of the first name that another owner holds, or of the first name.
async fn in_the_way(request: Request<'_>) -> Option<LockState> {
    let mut first = None;
    for name in request.names.iter().take(NAMES_LOOKED_AT) {
        let Ok(state) = request.client.inspect(name).await else { continue };
        if !holders(&state).is_empty() && environment::outer_owner(name).is_none() {
            return Some(state);
        }
        first = first.or(Some(state));
    }
    first
}

/// Everybody who has a hold or a permit.
fn holders(state: &LockState) -> Vec<String> {
    let owners = state.holders.iter().map(|holder| holder.owner.clone());
    owners.chain(state.permits.iter().map(|permit| permit.id.clone())).collect()
}

/// The owner or permit, and who that is.
fn named(state: &LockState, holder: &str, known: &Holders) -> String {
    format!("{}{}{}", escape::text(holder), workers::told(state, holder), known.told(state, holder))
}

/// `"order:42" — held by 1b67…:7, lease 28s`
fn line(state: &LockState, known: &Holders) -> String {
    let name = |holder: &String| named(state, holder, known);
    let named: Vec<String> = holders(state).iter().take(3).map(name).collect();
    let held = match state.permits_in_use {
        _ if named.is_empty() => "free, being handed over".into(),
        0 => format!("held by {}", named.join(", ")),
        permits => format!("{permits} permits taken, by {}", named.join(", ")),
    };
    let lease = state.ttl.map(|ttl| format!(", lease {}", durations::human(ttl))).unwrap_or_default();
    let queue = if state.waiting > 0 { format!(", {} in line", state.waiting) } else { String::new() };
    format!("{} — {held}{lease}{queue}", quoted(&state.name))
}

/// Says why the command did not run, and who holds the lock. A signal that asks us to end is not kept waiting by the look at the lock:
/// then it is returned, and nothing said.
pub(crate) async fn say_who_holds(request: Request<'_>, signals: &mut Signals) -> Option<i32> {
    tokio::select! {
        biased;
        signal = ending(signals) => Some(signal),
        message = busy_message(request) => {
            request.talk.say(message);
            None
        }
    }
}

/// Why the command did not run.
///
/// # Errors
///
/// Those of the look at the lock are swallowed: the message then names no holder.
async fn busy_message(request: Request<'_>) -> String {
    let state = in_the_way(request).await;
    let name = state.as_ref().map_or(&request.names[0], |state| &state.name);
    let name = quoted(name);
    let holder = state.as_ref().and_then(|state| holders(state).into_iter().next());
    let advice = request.patience.advice();
    let busy = match request.patience.wait {
        Wait::AtMost(limit) if limit > Duration::ZERO => {
            format!("{name} was busy for all of {}", durations::human(limit))
        }
        _ => format!("{name} is busy"),
    };
    let (Some(state), Some(holder)) = (&state, holder) else { return busy };
    let lease =
        state.ttl.map(|ttl| format!(" with {} of lease left", durations::human(ttl))).unwrap_or_default();
    let holder = named(state, &holder, &Holders::of(request.client, state).await);
    let held = match state.permits_in_use {
        0 => format!("held by {holder}{lease}"),
        1 => format!("its permit is taken, by {holder}"),
        permits => format!("all of its {permits} permits are taken, one by {holder}"),
    };
    format!("{busy}: {held}; {advice} `redlatch show`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_of_once_a_minute_and_when_it_changes() {
        let start = Instant::now();
        let told = ("a".to_owned(), start);
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(is_worth_a_line(None, "a", start));
        assert!(!is_worth_a_line(Some(&told), "a", after(5)));
        assert!(is_worth_a_line(Some(&told), "b", after(5)));
        assert!(!is_worth_a_line(Some(&told), "a", after(55)));
        assert!(is_worth_a_line(Some(&told), "a", after(60)));
    }

    #[test]
    fn patience_combines_the_options() {
        let zero = Wait::AtMost(Duration::ZERO);
        let five = Wait::AtMost(Duration::from_secs(5));
        let args = WaitArgs::default();
        let of = |args| {
            let patience = Patience::from(args);
            (patience.wait, patience.busy_code, patience.skips)
        };
        assert_eq!(of(args), (Wait::Forever, 75, false));
        assert_eq!(of(WaitArgs { no_wait: true, ..args }), (zero, 75, false));
        assert_eq!(of(WaitArgs { if_busy: Some(IfBusy::Fail), ..args }), (zero, 75, false));
        assert_eq!(of(WaitArgs { if_busy: Some(IfBusy::Skip), ..args }), (zero, 0, true));
        assert_eq!(of(WaitArgs { wait: Some(five), if_busy: Some(IfBusy::Skip), ..args }), (five, 0, true));
        assert_eq!(of(WaitArgs { wait: Some(five), conflict_exit_code: Some(9), ..args }), (five, 9, false));
    }
}
