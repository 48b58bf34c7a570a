//! `redlatch run`: hold a lock while a command runs.

use std::time::{Duration, Instant, SystemTime};

use redlatch::{Client, Guard, Lease, LockName, Unlocked};

use super::{Context, lock_name};
use crate::{
    args::run::{OnLost, RunArgs, margin},
    child::{self, Child, Ended, Group, Spec},
    config::Settings,
    durations::human,
    exit::{self, Failure},
    run::{
        acquire::{self, Acquired, Patience, Request, quoted},
        environment::{self, Told},
        report::{Outcome, Report, ReportFile},
        supervise::{self, Plan, Stopped},
    },
    signals::Signals,
    store,
    talk::{self, Talk},
};

/// How long the release may take. After that the lease ends by itself.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn run(args: RunArgs, context: &Context) -> Result<u8, Failure> {
    // Before anything else: a signal that comes while we connect must not leave a command or a lock behind.
    let mut signals =
        Signals::install().map_err(|error| Failure::internal(format!("cannot catch signals: {error}")))?;
    let name = lock_name(args.name()?.clone())?;
    let settings = context.settings()?;
    let lease = args.hold.lease.unwrap_or(settings.lease);
    let grace = args.hold.grace(lease)?;
    let file = ReportFile::open(args.child.report.as_deref())?;
    let mut report = Report::new(&name, args.child.why.as_deref());
    let job = Job { name, lease, grace, settings, talk: context.talk, args };
    let result = store::runtime()?.block_on(job.run(&mut signals, &mut report));
    let code = result.unwrap_or_else(|failure| {
        talk::error(&failure);
        report.failed(&failure);
        failure.code()
    });
    file.write(&report);
    Ok(code)
}

struct Job {
    name: LockName,
    lease: Duration,
    grace: Duration,
    settings: Settings,
    talk: Talk,
    args: RunArgs,
}

impl Job {
    async fn run(mut self, signals: &mut Signals, report: &mut Report) -> Result<u8, Failure> {
        let client = tokio::select! {
            biased;
            signal = acquire::ending(signals) => return Ok(report.end(Outcome::Interrupted, exit::by_signal(signal))),
            client = store::connect(&self.settings, self.lease) => client?,
        };
        let result = self.with_client(&client, signals, report).await;
        // Undoes an interrupted acquire, so that no waiter is left behind and no lock is held by nobody.
        client.shutdown(store::FAREWELL_TIMEOUT).await;
        result
    }

    async fn with_client(
        &mut self,
        client: &Client,
        signals: &mut Signals,
        report: &mut Report,
    ) -> Result<u8, Failure> {
        let started = Instant::now();
        let name = self.name.clone();
        let patience = Patience::from(self.args.wait);
        let request = Request {
            client,
            name: &name,
            lease: Lease::Renewed,
            fenced: self.args.hold.fenced,
            patience,
            reenter: self.args.hold.reenter,
            talk: self.talk,
        };
        let acquired = acquire::acquire(request, signals).await?;
        report.waited(started.elapsed());
        match acquired {
            Acquired::Interrupted(signal) => Ok(report.end(Outcome::Interrupted, exit::by_signal(signal))),
            Acquired::Busy if patience.skips => {
                self.talk.detail(format_args!("{} is busy; the command was skipped", quoted(&name)));
                Ok(report.end(Outcome::Skipped, patience.busy_code))
            }
            Acquired::Busy => {
                self.talk.say(acquire::busy_message(request).await);
                Ok(report.end(Outcome::Busy, patience.busy_code))
            }
            Acquired::Held { guard, nested } => self.hold(client, guard, nested, signals, report).await,
        }
    }

    /// Runs the command under the guard and gives the lock back.
    async fn hold(
        &mut self,
        client: &Client,
        guard: Guard,
        nested: bool,
        signals: &mut Signals,
        report: &mut Report,
    ) -> Result<u8, Failure> {
        let (held_since, acquired_at) = (Instant::now(), SystemTime::now());
        report.granted(guard.owner().to_string(), guard.token(), acquired_at);
        self.talk.detail(format_args!(
            "{} is ours as {}{}",
            quoted(&self.name),
            guard.owner(),
            guard.token().map(|token| format!(", token {token}")).unwrap_or_default()
        ));
        let told = Told {
            name: &self.name,
            owner: guard.owner(),
            token: guard.token(),
            lease: self.lease,
            acquired_at,
            why: self.args.child.why.as_deref(),
        };
        let env = environment::for_command(&told);
        let command = std::mem::take(&mut self.args.command);
        let command = if self.args.child.shell { child::in_shell(command) } else { command };
        let spec = Spec { command, env, group: Group::choose() };
        let mut child = match Child::spawn(&spec) {
            Ok(child) => child,
            Err(error) => {
                // As if nested: nothing ran, so `--at-least` has nothing to protect.
                self.release(client, guard, true, held_since, report).await;
                return Err(Failure::internal(format!("cannot start a process: {error}")));
            }
        };
        let plan = Plan {
            grace: self.grace,
            margin: margin(self.lease),
            kill_after: self.args.hold.kill_after.unwrap_or(self.grace),
            max_hold: self.args.hold.max_hold.and_then(|limit| held_since.checked_add(limit)),
            on_lost: self.args.hold.on_lost,
        };
        let watched = supervise::supervise(&mut child, &guard, plan, signals, self.talk).await;
        report.child(watched.ended, held_since.elapsed());
        let lost = self.release(client, guard, nested, held_since, report).await || watched.lost;
        Ok(self.verdict(&watched, lost, report))
    }

    fn verdict(&self, watched: &supervise::Outcome, lost: bool, report: &mut Report) -> u8 {
        let own = match watched.ended {
            Ended::Code(code) | Ended::NotStarted(code) => code,
            Ended::Signal(signal) => exit::by_signal(signal),
            Ended::Unknown => exit::INTERNAL,
        };
        match (&watched.stopped, watched.ended) {
            (Some(Stopped::Lost(_)), _) => report.end(Outcome::Lost, exit::LOST),
            (Some(Stopped::MaxHold), _) => report.end(Outcome::MaxHold, exit::MAX_HOLD),
            // It ended by itself, but part of its work may have been done without the lock: that is no success.
            (None, _) if lost && own == exit::OK && self.args.hold.on_lost != OnLost::Warn => {
                report.end(Outcome::Lost, exit::LOST)
            }
            (None, _) if lost => report.end(Outcome::Lost, own),
            (None, Ended::NotStarted(_)) => report.end(Outcome::NotStarted, own),
            (None, _) => report.end(Outcome::Completed, own),
        }
    }

    /// Gives the lock back, or leaves it held for the rest of `--at-least`. Answers whether it had been lost.
    async fn release(
        &self,
        client: &Client,
        guard: Guard,
        nested: bool,
        held_since: Instant,
        report: &mut Report,
    ) -> bool {
        let name = quoted(&self.name);
        let rest = self.args.hold.at_least.and_then(|least| least.checked_sub(held_since.elapsed()));
        if let Some(rest) =
            rest.filter(|rest| *rest >= Duration::from_millis(1) && !nested && guard.is_valid())
        {
            let held = guard.detach();
            let kept =
                tokio::time::timeout(RELEASE_TIMEOUT, client.lock(&self.name).renew(&held.owner, rest)).await;
            match kept {
                Ok(Ok(true)) => self
                    .talk
                    .detail(format_args!("{name} stays held for another {} (--at-least)", human(rest))),
                Ok(Ok(false)) => {
                    self.talk.say(format_args!("{name} was lost before the command ended"));
                    return true;
                }
                Ok(Err(error)) => self.talk.say(Failure::from(error)),
                Err(_) => {
                    self.talk.say(format_args!("{name}: no answer; it stays held until its lease ends"))
                }
            }
            report.released(false);
            return false;
        }
        let lease = human(self.lease);
        match tokio::time::timeout(RELEASE_TIMEOUT, guard.unlock()).await {
            Ok(Ok(Unlocked::Released)) => report.released(true),
            Ok(Ok(Unlocked::StillHeld(_))) if nested => report.released(true),
            Ok(Ok(Unlocked::StillHeld(holds))) => {
                report.released(false);
                self.talk.say(format_args!(
                    "{name} was left entered {holds} times by nested runs; it frees itself within {lease}"
                ));
            }
            Ok(Ok(Unlocked::AlreadyLost(reason))) => {
                report.released(false);
                self.talk.say(format_args!("{name} was lost before the command ended: {reason}"));
                return true;
            }
            Ok(Ok(_)) | Err(_) => {
                report.released(false);
                self.talk.say(format_args!(
                    "the release of {name} was not confirmed; it frees itself within {lease}"
                ));
            }
            Ok(Err(error)) => {
                report.released(false);
                self.talk.say(format_args!("{}; it frees itself within {lease}", Failure::from(error)));
            }
        }
        false
    }
}
