//! What the verbs about semaphores and latches have in common: their answers, and waiting where a user may watch.

use std::time::Instant;

use redlatch::{Client, LockKind, LockName, LockState};
use serde::Serialize;

use super::Context;
use crate::{
    args::{Format, Output},
    config::Settings,
    durations::{self, human},
    exit::Failure,
    output::{self, Record},
    run::acquire::{TELL_AFTER, Watch, ending, quoted},
    signals::Signals,
    snapshot::lock_row::text_and_hex,
    talk::Talk,
};

/// What a verb has to say; only what it knows is printed.
#[derive(Debug, Default, Serialize)]
pub(super) struct Answer {
    pub(super) name: String,
    /// Its bytes in hexadecimal, where it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name_hex: Option<String>,
    /// Whether anything is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exists: Option<bool>,
    /// Whether `set` did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) set: Option<bool>,
    /// Permits taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) acquired: Option<i64>,
    /// Permits put back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) released: Option<i64>,
    /// Permits that are free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available: Option<i64>,
    /// Steps that are left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<u64>,
    /// Whether the latch is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) open: Option<bool>,
    /// Whether `delete` did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deleted: Option<bool>,
    /// How long the key lasts, where it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ttl_ms: Option<u64>,
    /// How many clients listen for a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) listening: Option<u64>,
}

impl Answer {
    pub(super) fn of(name: &LockName) -> Self {
        let (name, name_hex) = text_and_hex(name);
        Answer { name, name_hex, ..Answer::default() }
    }

    /// Prints it when there was a choice of output; otherwise the exit code says it all.
    ///
    /// # Errors
    ///
    /// Internal, when stdout cannot be written.
    pub(super) fn if_asked(&self, output: Output) -> Result<(), Failure> {
        output.format.map_or(Ok(()), |format| output::one(format, self))
    }

    /// As [`Answer::if_asked`], but as text, for callers who must clean up when nobody reads it.
    ///
    /// # Errors
    ///
    /// Internal, when it cannot be written as JSON.
    pub(super) fn rendered(&self, format: Option<Format>) -> Result<String, Failure> {
        format.map_or(Ok(String::new()), |format| output::rendered(format, self))
    }

    /// Prints it.
    ///
    /// # Errors
    ///
    /// Internal, when stdout cannot be written.
    pub(super) fn print(&self, output: Output, settings: &Settings) -> Result<(), Failure> {
        output::one(output::format(output, settings), self)
    }
}

impl Record for Answer {
    const COLUMNS: &'static [&'static str] = &[
        "NAME",
        "EXISTS",
        "SET",
        "ACQUIRED",
        "RELEASED",
        "AVAILABLE",
        "COUNT",
        "OPEN",
        "DELETED",
        "TTL",
        "LISTENING",
    ];
    const NARROW: usize = Self::COLUMNS.len();

    fn cells(&self) -> Vec<String> {
        fn cell(value: Option<impl ToString>) -> String {
            value.map(|value| value.to_string()).unwrap_or_default()
        }
        let ttl = self.ttl_ms.map(|ms| human(std::time::Duration::from_millis(ms)));
        vec![
            self.name.clone(),
            cell(self.exists),
            cell(self.set),
            cell(self.acquired),
            cell(self.released),
            cell(self.available),
            cell(self.count),
            cell(self.open),
            cell(self.deleted),
            cell(ttl),
            cell(self.listening),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// Reads a name that should be a bare number, or nothing.
///
/// # Errors
///
/// Those of the store; usage, when something else is there.
pub(super) async fn look(
    client: &Client,
    name: &LockName,
    what: &str,
) -> Result<(LockState, Answer), Failure> {
    let state = client.inspect(name).await?;
    if !matches!(state.kind, LockKind::Counter | LockKind::Free) {
        let found = state.kind.word();
        return Err(Failure::usage(format!(
            "{} is no {what} but of the kind \"{found}\"; look with `redlatch show`",
            quoted(name)
        )));
    }
    let mut answer = Answer::of(name);
    answer.exists = Some(state.kind == LockKind::Counter);
    answer.ttl_ms = state.ttl.map(durations::ms);
    answer.listening = state.listening;
    Ok((state, answer))
}

/// How a wait ended.
pub(super) enum Ended<T> {
    /// By itself.
    With(T),
    /// A signal asked us to end.
    By(i32),
}

/// Waits, and tells the user who watches what `describe` makes of the state. A signal ends the wait, and the work is dropped.
///
/// # Errors
///
/// Those of the work; internal, when signals cannot be caught.
pub(super) async fn wait<T>(
    client: &Client,
    name: &LockName,
    context: &Context,
    work: impl Future<Output = Result<T, redlatch::Error>>,
    describe: impl Fn(&LockState) -> String,
) -> Result<Ended<T>, Failure> {
    // Until here a signal ended the process, and nothing was lost by it.
    let mut signals =
        Signals::install().map_err(|error| Failure::internal(format!("cannot catch signals: {error}")))?;
    let started = Instant::now();
    let result = tokio::select! {
        biased;
        signal = ending(&mut signals) => Ok(Ended::By(signal)),
        result = work => result.map(Ended::With).map_err(Failure::from),
        never = tell(client, name, context.talk, started, describe) => match never {},
    };
    if started.elapsed() >= TELL_AFTER {
        context.talk.live("");
    }
    result
}

async fn tell(
    client: &Client,
    name: &LockName,
    talk: Talk,
    started: Instant,
    describe: impl Fn(&LockState) -> String,
) -> std::convert::Infallible {
    let mut watch = Watch::new(talk, started);
    watch.begin().await;
    loop {
        watch.next().await;
        // The wait itself reports what is wrong with the server; this line is a courtesy.
        let Ok(state) = client.inspect(name).await else { continue };
        let line = format!("{} — {}", quoted(name), describe(&state));
        watch.tell(&line, line.clone());
    }
}

/// What a caller is told that asked for so many.
pub(super) fn too_few(permits: u32) -> String {
    if permits == 1 { "no free permit".to_owned() } else { format!("fewer than {permits} free permits") }
}
