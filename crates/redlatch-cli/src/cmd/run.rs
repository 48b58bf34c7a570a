//! `redlatch run`: hold a lock while a command runs.

use std::{
    ffi::OsString,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use redlatch::{Client, Lease, LockName, Presence, ReplicaAck, Unlocked, config::LEASE_MIN};
use tokio::time::sleep;

use super::{Context, lock_name};
use crate::{
    args::{
        kind::Kind,
        run::{OnLost, RunArgs, margin},
    },
    child::{self, Child, Deadline, Ended, Group, Spec, program},
    config::Settings,
    durations::human,
    escape,
    exit::{self, Failure},
    hint, recovery,
    run::{
        acquire::{self, Acquired, Patience, Request, quoted},
        environment::{self, Told},
        holding::{Ended as Left, Holding, Name},
        kept::Kept,
        metrics::MetricsFile,
        report::{Outcome, Report, ReportFile},
        supervise::{self, Plan, Stopped},
    },
    signals::Signals,
    store,
    talk::{self, Talk},
};

/// How long the release may take. After that the lease ends by itself.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may take once a signal asks us to end. The one that ended the command may be heard only now, so this is time enough for
/// a server that answers.
const RELEASE_TIMEOUT_WHEN_ASKED: Duration = Duration::from_millis(500);

pub(super) fn run(mut args: RunArgs, context: &Context) -> Result<u8, Failure> {
    if args.child.script.is_some() && args.names.len() > 1 {
        // `run x sh -c '…'` would hold a lock by the name of "sh".
        let words: Vec<OsString> = std::env::args_os().collect();
        let hint = hint::with_dashes(&words).unwrap_or_default();
        return Err(Failure::usage(format!(
            "-c takes one name; for several use --shell -- SCRIPT, or if a command follows the name, {hint}"
        )));
    }
    child::Group::choose().check_is_seen()?;
    let kind = args.kind.kind(&args.names)?;
    let ack = args.replicas.ack();
    let names = args.names.iter().cloned().map(lock_name).collect::<Result<Vec<_>, _>>()?;
    let settings = context.settings()?;
    let lease = args.hold.lease.unwrap_or(settings.lease);
    let grace = args.hold.grace(lease)?;
    let command = std::mem::take(&mut args.command);
    args.command = match args.child.script.take() {
        Some(script) => child::in_shell([script].into_iter().chain(command).collect()),
        None if args.child.shell => child::in_shell(command),
        None => command,
    };
    let file = ReportFile::open(args.child.report.as_deref())?;
    let metrics = MetricsFile::open(args.child.metrics.as_deref())?;
    // Now, because what comes before may block and ends by any signal; and not later, because a signal that comes while we
    // connect must not leave a command or a lock behind.
    let mut signals =
        Signals::install().map_err(|error| Failure::internal(format!("cannot catch signals: {error}")))?;
    talk::never_wait();
    let mut report = Report::new(&names, kind, args.child.why.as_deref());
    let first = names.first().map(quoted).unwrap_or_default();
    let kept = if args.child.quiet_unless_failed { Some(Kept::new()?) } else { None };
    let talk = if kept.is_some() { context.talk.patient() } else { context.talk };
    let mut settings = settings;
    settings.presence = told_of(settings.presence, &args);
    let job = Job { names, kind, ack, lease, grace, settings, talk, args, kept: kept.as_ref() };
    let result = store::runtime()?.block_on(job.run(&mut signals, &mut report));
    let code = result.unwrap_or_else(|failure| {
        talk::error(&failure);
        report.failed(&failure);
        failure.code()
    });
    // The lock has been given back, and nobody may read what follows. From now on a signal ends the process.
    drop(signals);
    file.write(&report);
    metrics.write(&report, SystemTime::now());
    if let Some(kept) = kept.filter(|_| code != exit::OK) {
        // The mail that cron sends would be empty, which means that all went well.
        if !kept.print() && report.is_completed() {
            context.talk.say(format_args!("the command under {first} printed nothing and ended with {code}"));
        }
    }
    Ok(code)
}

struct Job<'a> {
    names: Vec<LockName>,
    kind: Kind,
    ack: ReplicaAck,
    lease: Duration,
    grace: Duration,
    settings: Settings,
    talk: Talk,
    args: RunArgs,
    /// Where the command's output goes, if it is to be seen only after a failure.
    kept: Option<&'a Kept>,
}

/// Others see the command that is guarded, and why.
fn told_of(presence: Presence, args: &RunArgs) -> Presence {
    let command = args.command.first().map(Path::new).and_then(Path::file_name);
    let presence = match command {
        Some(command) => presence.program(&command.to_string_lossy()),
        None => presence,
    };
    let presence = environment::outer_owners().iter().fold(presence, |presence, owner| presence.under(owner));
    match &args.child.why {
        Some(why) => presence.why(why),
        None => presence,
    }
}

impl Job<'_> {
    async fn run(mut self, signals: &mut Signals, report: &mut Report) -> Result<u8, Failure> {
        let talk = self.talk;
        if let Err(failure) = program::check(&self.args.command) {
            // It would only keep others waiting.
            talk::error(&failure);
            report.failed(&failure);
            return Ok(report.end(Outcome::NotStarted, failure.code()));
        }
        let connecting = store::Patience { wait: self.args.wait.wait, talk: &talk };
        let client = tokio::select! {
            biased;
            signal = acquire::ending(signals) => return Ok(report.end(Outcome::Interrupted, exit::by_signal(signal))),
            client = store::connect(&self.settings, self.lease, connecting) => client?,
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
        let names = self.names.clone();
        let patience = Patience::from(self.args.wait);
        let engine = recovery::socket(&self.settings);
        let request = Request {
            client,
            names: &names,
            kind: self.kind,
            lease: Lease::Renewed,
            fenced: self.args.kind.fenced,
            ack: self.ack,
            patience,
            reenter: self.args.hold.reenter,
            talk: self.talk,
            engine: engine.as_deref(),
        };
        let acquired = acquire::acquire(request, signals).await?;
        report.waited(started.elapsed());
        match acquired {
            Acquired::Interrupted(signal) => Ok(report.end(Outcome::Interrupted, exit::by_signal(signal))),
            Acquired::Busy if patience.skips => {
                self.talk.detail(format_args!("{} is busy; the command was skipped", self.quoted()));
                Ok(report.end(Outcome::Skipped, patience.busy_code))
            }
            Acquired::Busy => match acquire::say_who_holds(request, signals).await {
                None => Ok(report.end(Outcome::Busy, patience.busy_code)),
                Some(signal) => Ok(report.end(Outcome::Interrupted, exit::by_signal(signal))),
            },
            Acquired::Held(holding) => self.hold(client, holding, signals, report).await,
        }
    }

    /// Runs the command under the lock and gives the lock back.
    async fn hold(
        &mut self,
        client: &Client,
        holding: Holding,
        signals: &mut Signals,
        report: &mut Report,
    ) -> Result<u8, Failure> {
        let (held_since, acquired_at) = (Instant::now(), SystemTime::now());
        let mut names = holding.names();
        names.sort_by_key(|held| self.names.iter().position(|name| *name == held.name));
        report.granted(&names, acquired_at);
        for Name { name, owner, token } in &names {
            let token = token.map(|token| format!(", token {token}")).unwrap_or_default();
            self.talk.detail(format_args!("{} is ours as {owner}{token}", quoted(name)));
        }
        let run = environment::word_of_run(acquired_at);
        let told = Told {
            names: &names,
            kind: self.kind,
            lease: self.lease,
            acquired_at,
            why: self.args.child.why.as_deref(),
            run: &run,
        };
        let env = environment::for_command(&told);
        let command = std::mem::take(&mut self.args.command);
        let gains_rights = !self.args.child.no_new_privs;
        self.warn_of_rights(&command, gains_rights);
        let output = match self.kept.map(Kept::handle).transpose() {
            Ok(output) => output,
            Err(failure) => {
                self.release(holding, signals, report).await;
                return Err(failure);
            }
        };
        let mark = environment::mark(&run);
        let lifeline = client.lifeline();
        let group = Group::choose();
        // As late as a running command is stopped.
        let deadline = Deadline::after(|| holding.remaining().saturating_sub(margin(self.lease)));
        let spec = Spec { command, env, group, mark, deadline, gains_rights, output, lifeline };
        let mut child = match Child::spawn(spec) {
            Ok(child) => child,
            Err(error) => {
                // Nothing ran, so `--at-least` has nothing to protect.
                self.release(holding, signals, report).await;
                return Err(Failure::internal(format!("cannot start a process: {error}")));
            }
        };
        let plan = Plan {
            lease: self.lease,
            grace: self.grace,
            margin: margin(self.lease),
            kill_after: self.args.hold.kill_after.unwrap_or(self.grace),
            max_hold: self.args.hold.max_hold.and_then(|limit| held_since.checked_add(limit)),
            on_lost: self.args.hold.on_lost,
        };
        let watched = supervise::supervise(&mut child, &holding, plan, signals, self.talk).await;
        report.child(watched.ended, held_since.elapsed());
        report.left_running(&watched.left);
        if !watched.left.is_empty() {
            child.left_is_told();
            // Given back, it would be another holder's at once, beside those that work on. Its lease is all the time there is.
            holding.detach();
            report.released(false);
            return Ok(self.verdict(&watched, watched.lost, report));
        }
        let least =
            self.args.hold.at_least.filter(|_| !holding.is_nested() && !holding.remaining().is_zero());
        let rest = least.and_then(|least| least.checked_sub(held_since.elapsed()));
        let lost = match rest.filter(|rest| *rest >= LEASE_MIN) {
            Some(rest) => self.keep(holding, rest, signals, report).await,
            None => self.release(holding, signals, report).await,
        };
        child.collected().await;
        let lost = lost || watched.lost;
        Ok(self.verdict(&watched, lost, report))
    }

    /// Says before the start what could not be stopped later.
    fn warn_of_rights(&self, command: &[OsString], gains_rights: bool) {
        let program = command.first().filter(|_| gains_rights);
        let Some((program, uid)) = program.and_then(|program| Some((program, program::owner_of(program)?)))
        else {
            return;
        };
        let program = escape::bytes(program.as_encoded_bytes());
        self.talk.say(format_args!(
            "\"{program}\" runs as another user (uid {uid}), and this run may be unable to stop it when the lock is lost; \
             put redlatch behind it instead: `{program} redlatch run …`"
        ));
    }

    fn verdict(&self, watched: &supervise::Outcome, lost: bool, report: &mut Report) -> u8 {
        let own = match watched.ended {
            Ended::Code(code) | Ended::NotStarted(code) => code,
            Ended::Signal(signal) => exit::by_signal(signal),
            Ended::Unknown => exit::INTERNAL,
        };
        match (&watched.stopped, watched.ended) {
            (Some(Stopped::Lost(_)), _) => report.end(Outcome::Lost, exit::LOST),
            (Some(Stopped::GivenUp(signal)), _) => report.end(Outcome::LeftRunning, exit::by_signal(*signal)),
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

    /// Leaves the lock held for the rest of `--at-least`. Answers whether it had been lost.
    async fn keep(
        &self,
        holding: Holding,
        rest: Duration,
        signals: &mut Signals,
        report: &mut Report,
    ) -> bool {
        report.released(false);
        let kept = match confirmed(holding.keep(rest), signals).await {
            Ok(kept) => kept,
            Err(when) => {
                let name = self.quoted();
                self.talk.say(format_args!("{name}: no answer{when}; it stays held until its lease ends"));
                return false;
            }
        };
        let mut lost = false;
        for Left { name, outcome, .. } in kept {
            let name = quoted(&name);
            match outcome {
                Ok(true) => self
                    .talk
                    .detail(format_args!("{name} stays held for another {} (--at-least)", human(rest))),
                Ok(false) => {
                    self.talk.say(format_args!("{name} was lost before the command ended"));
                    lost = true;
                }
                Err(error) => self.talk.say(Failure::from(error)),
            }
        }
        lost
    }

    /// Gives the lock back. Answers whether it had been lost.
    async fn release(&self, holding: Holding, signals: &mut Signals, report: &mut Report) -> bool {
        let lease = human(self.lease);
        let left = match confirmed(holding.release(), signals).await {
            Ok(left) => left,
            Err(when) => {
                report.released(false);
                self.talk.say(format_args!(
                    "the release of {} was not confirmed{when}; it frees itself within {lease}",
                    self.quoted()
                ));
                return false;
            }
        };
        let (mut lost, mut released) = (false, true);
        for Left { name, nested, outcome } in left {
            let name = quoted(&name);
            match outcome {
                Ok(Unlocked::Released) => continue,
                Ok(Unlocked::StillHeld(_)) if nested => continue,
                Ok(Unlocked::StillHeld(holds)) => self.talk.say(format_args!(
                    "{name} was left entered {holds} times by nested runs; it frees itself within {lease}"
                )),
                Ok(Unlocked::AlreadyLost(reason)) => {
                    lost = true;
                    self.talk.say(format_args!("{name} was lost before the command ended: {reason}"));
                }
                Ok(_) => self.talk.say(format_args!(
                    "the release of {name} was not confirmed; it frees itself within {lease}"
                )),
                Err(error) => {
                    self.talk.say(format_args!("{}; it frees itself within {lease}", Failure::from(error)))
                }
            }
            released = false;
        }
        report.released(released);
        lost
    }

    /// The names in messages.
    fn quoted(&self) -> String {
        self.names.iter().map(quoted).collect::<Vec<_>>().join(", ")
    }
}

/// What the server says about the end of the hold, or which words tell that it said nothing in time.
async fn confirmed<T>(work: impl Future<Output = T>, signals: &mut Signals) -> Result<T, &'static str> {
    let limit = async {
        tokio::select! {
            () = sleep(RELEASE_TIMEOUT) => "",
            _ = acquire::ending(signals) => {
                sleep(RELEASE_TIMEOUT_WHEN_ASKED).await;
                " before this run had to end"
            }
        }
    };
    tokio::select! {
        biased;
        done = work => Ok(done),
        when = limit => Err(when),
    }
}
