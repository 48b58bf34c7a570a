//! `redlatch doctor`: what about the server, the account or the locks endangers their users.

use std::time::{Duration, Instant};

use redlatch::{Client, Lease, Lock, LockKind, LockName, LockState, Severity, Wait, acl::Kind};

use super::Context;
use crate::{
    args::DoctorArgs,
    checks::{self, Check},
    durations::human,
    exit::{self, Failure},
    output,
    recovery::Recovery,
    snapshot::{
        Scope, Snapshot,
        alarms::{self, Alarm},
    },
    store,
};

/// The lease of the trial lock: if we are killed in the middle, it is gone soon.
const TRIAL_LEASE: Duration = Duration::from_secs(5);
/// How often the trial is made.
const TRIALS: usize = 3;
/// How long before the release the trial waiter begins.
const WAITER_HEAD_START: Duration = Duration::from_millis(50);
/// How long the trial waiter waits.
const TRIAL_WAIT: Duration = Duration::from_secs(3);
/// A waiter that was woken by a message is far quicker than this; one that was not looks again later.
const SLOW_WAKE_UP: Duration = Duration::from_millis(100);
/// How many locks are looked at.
const LOCKS_MAX: usize = 1000;
/// How long they are looked for: the store may hold much else.
const LISTING_TIME_MAX: Duration = Duration::from_secs(20);

pub(super) fn doctor(args: &DoctorArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    store::with_client(&settings, async |client| {
        let prefix = args.prefix.as_deref().unwrap_or_default();
        let usual: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| kind.found_as().is_some()).collect();
        let kinds = if args.kind.is_empty() { &usual } else { &args.kind };
        let mut rows = layout(client, args, kinds);
        let usable = rows.iter().all(|(is_prefix, row)| !is_prefix || !row.is_problem());
        let mut rows: Vec<Check> = rows.drain(..).map(|(_, row)| row).collect();
        rows.extend(Recovery::behind(&settings).map(Check::from));
        // With a prefix that no name may have the trials would only say the same again.
        if usable {
            let engine = checks::place(&settings).into_iter();
            rows.splice(
                0..0,
                client.diagnose_under(prefix).await?.into_iter().map(Check::from).chain(engine),
            );
            if args.prefix.is_some() {
                rows.extend(rights(client, kinds, !args.kind.is_empty(), prefix).await?);
            }
            // A client of its own, because one client passes a lock on among its own tasks without a message.
            let other = store::connect(
                &settings,
                settings.lease,
                store::Patience { wait: None, talk: &context.talk },
            )
            .await?;
            rows.push(wake_up(client, &other, prefix).await);
            other.shutdown(store::FAREWELL_TIMEOUT).await;
        }
        let limit = tokio::time::sleep(LISTING_TIME_MAX);
        tokio::select! {
            found = in_use(client, args.prefix.as_deref(), settings.lease) => rows.extend(found),
            () = limit => rows.push(Check::new(
                Severity::Note,
                "lock state",
                format!("not all locks were found within {}: the store holds much else", human(LISTING_TIME_MAX)),
            )),
        }
        output::list(output::format(args.output, &settings), &rows)?;
        let problems = rows.iter().filter(|row| row.is_problem()).count();
        if problems == 0 {
            return Ok(exit::OK);
        }
        Err(Failure::config(format!("{problems} of {} checks show a problem", rows.len())))
    })
}

/// Where the keys beside names lie, and whether that is about the prefix.
fn layout(client: &Client, args: &DoctorArgs, kinds: &[Kind]) -> Vec<(bool, Check)> {
    let prefix = args.prefix.as_deref().filter(|prefix| !prefix.is_empty());
    let of_prefix = prefix.into_iter().flat_map(|prefix| client.diagnose_prefix(prefix, kinds));
    let of_names = args.name.iter().flat_map(|name| client.diagnose_name(name, kinds));
    let rows = of_prefix.map(|finding| (true, finding)).chain(of_names.map(|finding| (false, finding)));
    rows.map(|(is_prefix, finding)| (is_prefix, Check::from(finding))).collect()
}

/// What is there: locks that are odd, and names whose keys lie apart.
async fn in_use(client: &Client, prefix: Option<&str>, lease: Duration) -> Vec<Check> {
    // Names of others are none of the account's business, and may be none that it may read.
    let pattern = prefix.map(|prefix| format!("{}*", redlatch::acl::escaped(prefix)));
    let scope = Scope { glob: pattern.clone(), limit: LOCKS_MAX, ..Scope::default() };
    let mut snapshot = match Snapshot::take(client, &scope).await {
        Ok(snapshot) => snapshot,
        Err(error) => {
            return vec![Check::new(
                Severity::Note,
                "lock state",
                format!("locks cannot be listed: {error}"),
            )];
        }
    };
    // The checks of the server are there already, in full.
    snapshot.server.clear();
    let mut rows = alarms(&snapshot, lease);
    let mut states: Vec<LockState> = snapshot.why.names.into_iter().map(|blocked| blocked.state).collect();
    // Any number looks like a semaphore, so only those under a prefix that was asked for are ours to judge.
    if prefix.is_some_and(|prefix| !prefix.is_empty())
        && let Ok(counters) = client.list_kinds(&[LockKind::Counter], pattern.as_deref(), LOCKS_MAX).await
    {
        states.extend(counters);
    }
    rows.extend(client.diagnose_found(&states).into_iter().map(Check::from));
    rows
}

/// Tries the rights for these kinds. A user who names none may not need all of them, so what is missing is no problem then.
async fn rights(client: &Client, kinds: &[Kind], named: bool, prefix: &str) -> Result<Vec<Check>, Failure> {
    let findings = client.diagnose_rights(kinds, prefix).await?;
    Ok(findings
        .into_iter()
        .map(|finding| {
            let row = Check::from(finding);
            if named { row } else { row.into_note() }
        })
        .collect())
}

/// Hands a lock of its own name from one client to another, which shows by effect whether releases wake waiters.
async fn wake_up(client: &Client, other: &Client, prefix: &str) -> Check {
    let name = format!("{prefix}redlatch-doctor:{}", client.id());
    // A brace that the prefix opens is closed by the name.
    let name = LockName::new(&name).unwrap_or_else(|_| LockName::from(format!("{name}}}")));
    let (lock, others) = (client.lock(&name), other.lock(&name));
    let mut took = [Passing::default(); TRIALS];
    for one in &mut took {
        match hand_over(&lock, &others).await {
            Ok(passing) => *one = passing,
            Err(failure) => return Check::new(Severity::Problem, "wake-up", failure.to_string()),
        }
    }
    // The middle one, because a machine that pauses makes one of them slow, or seem quick: a waiter that was not woken looks
    // again when the pause is over, and so may find a release that waited for that too.
    took.sort_unstable_by_key(Passing::beside_the_way);
    let middle = took[TRIALS / 2];
    let detail = format!("a waiter got the lock {} after its release", human(middle.took));
    if middle.beside_the_way() < SLOW_WAKE_UP {
        return Check::new(Severity::Good, "wake-up", detail);
    }
    Check::new(Severity::Note, "wake-up", detail)
        .remedy("waiters only look now and then: give the account the channels redisson_lock__channel:*")
}

/// How a lock was passed from one client to another.
#[derive(Debug, Clone, Copy, Default)]
struct Passing {
    /// From its release to the grant.
    took: Duration,
    /// How long the release took: one way to the server and back.
    round_trip: Duration,
}

impl Passing {
    /// The release goes to the server, its message to the waiter, and the waiter's request to the server and back. The rest is waiting. A waiter that
    /// hears no message learns of it from the server in another way, 200 ms after it has begun to wait, or looks.
    fn beside_the_way(&self) -> Duration {
        self.took.saturating_sub(2 * self.round_trip)
    }
}

/// Takes the lock, passes it to a waiter of another client and releases it.
async fn hand_over(lock: &Lock, others: &Lock) -> Result<Passing, Failure> {
    let Some(guard) = lock.acquire().lease(Lease::Fixed(TRIAL_LEASE)).await? else {
        return Err(Failure::internal("a lock with a new name is busy"));
    };
    let waiter = others.acquire().lease(Lease::Fixed(TRIAL_LEASE)).wait(Wait::AtMost(TRIAL_WAIT));
    let release = async {
        // Nothing tells when the waiter has begun to wait.
        tokio::time::sleep(WAITER_HEAD_START).await;
        let at = Instant::now();
        guard.unlock().await.map(|_| (at, at.elapsed()))
    };
    let (released_at, next) =
        tokio::join!(release, async { waiter.await.map(|next| (next, Instant::now())) });
    let ((released_at, round_trip), (next, woken_at)) = (released_at?, next?);
    let Some(next) = next else {
        return Err(Failure::internal("a waiter did not get a lock that was released"));
    };
    next.unlock().await?;
    Ok(Passing { took: woken_at.saturating_duration_since(released_at), round_trip })
}

/// What is wrong about the locks that are there.
fn alarms(snapshot: &Snapshot, lease: Duration) -> Vec<Check> {
    let row = |alarm: Alarm| Check {
        remedy: alarm.remedy,
        ..Check::new(alarm.severity, alarm.subject, alarm.text)
    };
    let mut rows: Vec<Check> = alarms::alarms(snapshot, lease).into_iter().map(row).collect();
    if rows.is_empty() {
        rows.push(Check::new(
            Severity::Good,
            "lock state",
            match snapshot.rows.len() {
                1 => "1 lock, and it is not odd".into(),
                count => format!("{count} locks, none of them odd"),
            },
        ));
    }
    rows
}
