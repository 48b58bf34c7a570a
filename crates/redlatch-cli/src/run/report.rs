//! `--report`: one JSON line about the outcome, the channel that no exit code of the command can imitate.

use std::{
    fs::File,
    io::Write,
    path::Path,
    time::{Duration, SystemTime},
};

use redlatch::LockName;
use serde::Serialize;

use super::holding::Name;
use crate::{
    args::kind::Kind,
    child::{Ended, Left},
    durations, escape,
    exit::Failure,
    output::SCHEMA,
    timestamp::rfc3339,
};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// The command ran to its own end under the lock.
    Completed,
    /// The command could not be started.
    NotStarted,
    /// The lock stayed busy and the command did not run.
    Busy,
    /// The lock was busy and `--if-busy skip` said that this is fine.
    Skipped,
    /// The lock was lost while the command ran.
    Lost,
    /// `--max-hold` was reached.
    MaxHold,
    /// Asked to end, with processes of the command that could not be ended.
    LeftRunning,
    /// A signal came while still waiting.
    Interrupted,
    /// Something failed before the command ran.
    Failed,
}

impl Outcome {
    /// The word for it, as in the report.
    pub(super) fn word(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::NotStarted => "not-started",
            Outcome::Busy => "busy",
            Outcome::Skipped => "skipped",
            Outcome::Lost => "lost",
            Outcome::MaxHold => "max-hold",
            Outcome::LeftRunning => "left-running",
            Outcome::Interrupted => "interrupted",
            Outcome::Failed => "failed",
        }
    }
}

/// How the command ended.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum ChildStatus {
    Code(u8),
    Signal(i32),
}

/// How one name is held.
#[derive(Debug, Serialize)]
struct HoldReport {
    name: String,
    owner: String,
    token: Option<u64>,
}

/// The report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: u32,
    /// The name, if there is one.
    name: Option<String>,
    pub(super) names: Vec<String>,
    pub(super) kind: &'static str,
    pub(super) outcome: Outcome,
    pub(super) exit_code: u8,
    child: Option<ChildStatus>,
    owner: Option<String>,
    token: Option<u64>,
    /// How each name is held; `owner` and `token` are those of the only one.
    holds: Vec<HoldReport>,
    acquired_at: Option<String>,
    pub(super) waited_ms: u64,
    pub(super) held_ms: Option<u64>,
    pub(super) released: Option<bool>,
    /// Who of the command was to be ended and could not be.
    pub(super) left_running: Vec<Left>,
    why: Option<String>,
    error: Option<String>,
}

impl Report {
    /// A run that has not got anywhere yet.
    pub(crate) fn new(names: &[LockName], kind: Kind, why: Option<&str>) -> Self {
        let names: Vec<String> = names.iter().map(text).collect();
        Report {
            schema: SCHEMA,
            name: only(&names).cloned(),
            names,
            kind: kind.held().word(),
            outcome: Outcome::Failed,
            exit_code: crate::exit::INTERNAL,
            child: None,
            owner: None,
            token: None,
            holds: Vec::new(),
            acquired_at: None,
            waited_ms: 0,
            held_ms: None,
            released: None,
            left_running: Vec::new(),
            why: why.map(str::to_owned),
            error: None,
        }
    }

    /// The lock was granted.
    pub(crate) fn granted(&mut self, names: &[Name], at: SystemTime) {
        self.owner = only(names).map(|held| held.owner.clone());
        self.token = only(names).and_then(|held| held.token);
        let holds = names.iter();
        let holds = holds.map(|held| HoldReport {
            name: text(&held.name),
            owner: held.owner.clone(),
            token: held.token,
        });
        self.holds = holds.collect();
        self.acquired_at = Some(rfc3339(at));
    }

    /// How long the lock was waited for.
    pub(crate) fn waited(&mut self, waited: Duration) {
        self.waited_ms = durations::ms(waited);
    }

    /// The command ended after the lock had been held this long.
    pub(crate) fn child(&mut self, ended: Ended, held: Duration) {
        self.held_ms = Some(durations::ms(held));
        self.child = match ended {
            Ended::Code(code) => Some(ChildStatus::Code(code)),
            Ended::Signal(signal) => Some(ChildStatus::Signal(signal)),
            Ended::NotStarted(_) | Ended::Unknown => None,
        };
    }

    /// Who of the command works on although it was to be ended.
    pub(crate) fn left_running(&mut self, left: &[Left]) {
        self.left_running = left.to_vec();
    }

    /// Whether the server confirmed the release.
    pub(crate) fn released(&mut self, released: bool) {
        self.released = Some(released);
    }

    /// The end, with its exit code.
    pub(crate) fn end(&mut self, outcome: Outcome, exit_code: u8) -> u8 {
        self.outcome = outcome;
        self.exit_code = exit_code;
        exit_code
    }

    /// Whether the command ran to its own end.
    pub(crate) fn is_completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }

    /// A failure, before the command ran or around it.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        self.outcome = Outcome::Failed;
        self.exit_code = failure.code();
        self.error = Some(failure.to_string());
    }
}

fn text(name: &LockName) -> String {
    String::from_utf8_lossy(name.as_bytes()).into_owned()
}

/// The item, if there is only one.
fn only<T>(items: &[T]) -> Option<&T> {
    match items {
        [item] => Some(item),
        _ => None,
    }
}

/// The file of the report.
#[derive(Debug)]
pub(crate) struct ReportFile(Option<File>);

impl ReportFile {
    /// Empties the file at the start, so that nobody takes an older report for this run's.
    ///
    /// # Errors
    ///
    /// Internal, when the file cannot be written.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let file = path.map(|path| {
            File::create(path).map_err(|error| {
                let path = path.to_string_lossy();
                Failure::internal(format!("cannot write the report {}: {error}", escape::text(&path)))
            })
        });
        Ok(ReportFile(file.transpose()?))
    }

    /// Writes the line. A failure is said, and changes nothing about the outcome; half a line is no report, so the file is emptied.
    pub(crate) fn write(self, report: &Report) {
        let Some(mut file) = self.0 else { return };
        let written = serde_json::to_string(report)
            .map_err(std::io::Error::from)
            .and_then(|line| file.write_all((escape::json(&line) + "\n").as_bytes()));
        if let Err(error) = written {
            // A pipe and a device cannot be emptied.
            _ = file.set_len(0);
            crate::talk::error(format_args!("cannot write the report: {error}"));
        }
    }
}
