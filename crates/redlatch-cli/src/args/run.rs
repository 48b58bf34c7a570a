//! The options of `redlatch run`, and the checks that one option alone cannot make.

use std::{ffi::OsString, path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, ValueEnum, ValueHint};
use redlatch::{ReplicaAck, config::REPLICAS_MAX};

use super::{WaitArgs, kind::KindArgs};
use crate::{durations, exit::Failure};

/// What happens to the command when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// Send TERM, then KILL before another holder can get the lock.
    Term,
    /// Send KILL before another holder can get the lock.
    Kill,
    /// Print a warning and let the command run.
    Warn,
}

/// Whether a nested run of a name that an outer run holds enters with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reenter {
    /// Enter the hold of the outer run if the server confirms it.
    Auto,
    /// Wait for the lock like any other run. The outer run, which holds it, waits for this one.
    Never,
}

/// `redlatch run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The lock. Of several names run holds all or none.
    #[arg(value_name = "NAME", required = true, num_args = 1..)]
    pub(crate) names: Vec<OsString>,
    /// The command and its arguments. Run starts it without a shell.
    #[arg(value_name = "CMD", required_unless_present = "script", last = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,

    /// The kind of lock.
    #[command(flatten)]
    pub(crate) kind: KindArgs,
    /// Waiting.
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    /// Holding.
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// Replicas.
    #[command(flatten)]
    pub(crate) replicas: ReplicaArgs,
    /// The command.
    #[command(flatten)]
    pub(crate) child: ChildArgs,
}

/// How to hold the lock.
#[derive(Debug, Args)]
#[command(next_help_heading = "Holding")]
pub(crate) struct HoldArgs {
    /// The lease: how long the lock outlives a crash of the run, which renews it every third of the time [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
    pub(crate) lease: Option<Duration>,
    /// Hold the lock for at least this long, even when the command ends sooner.
    #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
    pub(crate) at_least: Option<Duration>,
    /// Stop the command after this long and exit with 124.
    #[arg(long, value_name = "TIME", value_parser = durations::parse_positive)]
    pub(crate) max_hold: Option<Duration>,
    /// What to do with the command when the lock is lost.
    #[arg(long, value_name = "ACTION", value_enum, default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// Time between TERM and KILL when the lock is lost; under two thirds of the lease
    /// [default: 8s, and less for a lease under 30s].
    #[arg(long, value_name = "TIME", value_parser = durations::parse)]
    pub(crate) grace: Option<Duration>,
    /// Time between TERM and KILL when --max-hold is reached [default: as --grace].
    #[arg(long, value_name = "TIME", value_parser = durations::parse)]
    pub(crate) kill_after: Option<Duration>,
    /// Whether a nested run of the same name enters the hold of the outer run. A nested run takes a permit of its own.
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto")]
    pub(crate) reenter: Reenter,
}

/// How many replicas have to confirm the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplicaCount {
    /// So many, or more.
    AtLeast(u32),
    /// All that are in sync.
    All,
}

impl FromStr for ReplicaCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(ReplicaCount::All);
        }
        match text.parse() {
            Ok(n @ 1..=REPLICAS_MAX) => Ok(ReplicaCount::AtLeast(n)),
            _ => Err(format!("give a whole number from 1 to {REPLICAS_MAX}, or all")),
        }
    }
}

/// What happens to a lock that too few replicas have confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnShortfall {
    /// Release the lock and do not run the command.
    Fail,
    /// Print a warning, keep the lock and run the command.
    Keep,
}

/// Replicas.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Replicas")]
pub(crate) struct ReplicaArgs {
    /// Run the command only after N replicas of the server, or all, have confirmed the lock.
    #[arg(long, value_name = "N|all")]
    pub(crate) replica_ack: Option<ReplicaCount>,
    /// Wait at most this long for the replicas [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = durations::parse_positive, requires = "replica_ack")]
    pub(crate) ack_timeout: Option<Duration>,
    /// What to do when too few replicas confirm in time.
    #[arg(long, value_name = "ACTION", value_enum, default_value = "fail", requires = "replica_ack")]
    pub(crate) on_shortfall: OnShortfall,
}

impl ReplicaArgs {
    /// The acknowledgement to ask for, for each name.
    pub(crate) fn ack(self) -> ReplicaAck {
        let Some(count) = self.replica_ack else { return ReplicaAck::none() };
        let ack = match count {
            ReplicaCount::AtLeast(n) => ReplicaAck::at_least(n),
            ReplicaCount::All => ReplicaAck::all(),
        };
        let ack = self.ack_timeout.map_or(ack, |limit| ack.within(limit));
        if self.on_shortfall == OnShortfall::Keep { ack.keep_on_shortfall() } else { ack }
    }
}

/// How to run the command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Command")]
pub(crate) struct ChildArgs {
    /// Reason for the hold. The command gets it as REDLATCH_WHY, and the report has it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: Option<String>,
    /// Run this script with /bin/sh -c. Arguments behind -- become $1, $2 …
    #[arg(short = 'c', long = "command", value_name = "SCRIPT", conflicts_with = "shell")]
    pub(crate) script: Option<OsString>,
    /// Run CMD with /bin/sh -c. Further arguments become $1, $2 …
    #[arg(long)]
    pub(crate) shell: bool,
    /// Print the command's output only when the run fails, all of it on stderr, and nothing about waiting; for cron.
    #[arg(long)]
    pub(crate) quiet_unless_failed: bool,
    /// Deny the command rights that this run does not have: set-user-ID programs such as sudo fail in it. Run cannot stop a command
    /// of another user when the lock is lost.
    #[arg(long)]
    pub(crate) no_new_privs: bool,
    /// Write one JSON line about the outcome to this file. Run empties the file first, and follows a symbolic link.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,
    /// Write metrics about the outcome to this file at the end, in the text format of Prometheus' node exporter. Run replaces the file as a whole.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) metrics: Option<PathBuf>,
}

/// The default of `--grace`.
const GRACE: Duration = Duration::from_secs(8);

impl HoldArgs {
    /// The time between TERM and KILL, checked against the lease in force.
    ///
    /// # Errors
    ///
    /// Usage, when `--grace` is two thirds of the lease or more: renewals come every third, so the command would be
    /// stopped although the lock is healthy.
    pub(crate) fn grace(&self, lease: Duration) -> Result<Duration, Failure> {
        let limit = lease * 2 / 3;
        match self.grace {
            Some(grace) if grace + margin(lease) >= limit => Err(Failure::usage(format!(
                "--grace {} is too long for a lease of {}: it must stay under two thirds of it, {}; raise --lease or lower --grace",
                durations::human(grace),
                durations::human(lease),
                durations::human(limit.saturating_sub(margin(lease))),
            ))),
            Some(grace) => Ok(grace),
            None => Ok(GRACE.min(lease * 4 / 15)),
        }
    }
}

/// How long before the deadline the command is gone for certain: delivery of a signal, and the end of a process, take time.
pub(crate) fn margin(lease: Duration) -> Duration {
    (lease / 50).clamp(Duration::from_millis(10), Duration::from_millis(500))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{super::*, *};

    fn run(args: &[&str]) -> Result<RunArgs, clap::Error> {
        let line = ["redlatch", "run"].iter().chain(args);
        match Cli::try_parse_from(line)?.verb {
            Verb::Run(run) => Ok(*run),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_needs_its_dashes_and_keeps_its_own_options() {
        let args = run(&["n", "-w", "5s", "--", "cmd", "-n", "--wait", "x"]).unwrap();
        assert_eq!(args.names, ["n"]);
        assert_eq!(args.command, ["cmd", "-n", "--wait", "x"]);
        assert!(!args.wait.no_wait);
        assert_eq!(run(&["a", "b", "--fair", "--", "cmd"]).unwrap().names, ["a", "b"]);
        assert!(run(&["n"]).is_err());
        assert!(run(&["n", "--permits", "0", "--", "cmd"]).is_err());
        assert!(run(&["--", "cmd"]).is_err());
        let args = run(&["n", "-c", "a b", "--", "x"]).unwrap();
        assert_eq!((args.child.script, args.command), (Some("a b".into()), vec!["x".into()]));
    }

    #[test]
    fn replicas_are_a_number_or_all() {
        let ack = |args: &[&str]| run(&[&["n"], args, &["--", "cmd"]].concat()).unwrap().replicas.ack();
        assert_eq!(ack(&[]), ReplicaAck::none());
        assert_eq!(ack(&["--replica-ack", "all"]), ReplicaAck::all());
        let two = ReplicaAck::at_least(2).within(Duration::from_millis(50)).keep_on_shortfall();
        let given = ["--replica-ack", "2", "--ack-timeout", "50ms", "--on-shortfall", "keep"];
        assert_eq!(ack(&given), two);
        assert!(run(&["n", "--replica-ack", "0", "--", "cmd"]).is_err());
        assert!(run(&["n", "--replica-ack", "some", "--", "cmd"]).is_err());
        assert!(run(&["n", "--ack-timeout", "1s", "--", "cmd"]).is_err());
        assert!(run(&["n", "--on-shortfall", "keep", "--", "cmd"]).is_err());
    }

    #[test]
    fn grace_stays_under_two_thirds_of_the_lease() {
        let seconds = Duration::from_secs;
        let hold = |args: &[&str]| run(&[&["n"], args, &["--", "cmd"]].concat()).unwrap().hold;
        assert_eq!(hold(&[]).grace(seconds(30)).unwrap(), seconds(8));
        assert_eq!(hold(&[]).grace(seconds(15)).unwrap(), seconds(4));
        assert_eq!(hold(&["--grace", "19s"]).grace(seconds(30)).unwrap(), seconds(19));
        assert!(hold(&["--grace", "20s"]).grace(seconds(30)).is_err());
        assert!(hold(&["--grace", "36500d"]).grace(seconds(30)).is_err());
    }
}
