//! What is said to the reader on stderr: never data, never a reason to fail.

use std::{
    fmt, io,
    io::{IsTerminal, Write, stderr},
    sync::{
        OnceLock,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use crate::group;

/// How many lines wait for a reader of stderr who does not read. Further ones are dropped.
const LINES_WAITING_MAX: usize = 1024;

/// How much to say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Talk {
    quiet: bool,
    verbose: u8,
    terminal: bool,
    patient: bool,
}

impl Talk {
    /// From the common options.
    pub(crate) fn new(quiet: bool, verbose: u8) -> Self {
        Talk { quiet, verbose, terminal: stderr().is_terminal(), patient: false }
    }

    /// Without a word about waiting.
    pub(crate) fn patient(self) -> Self {
        Talk { patient: true, ..self }
    }

    /// Whether it is to be said that something is waited for, and who holds it.
    pub(crate) fn tells_of_waiting(self) -> bool {
        !self.quiet && !self.patient
    }

    /// Whether `-v` was given.
    pub(crate) fn is_verbose(self) -> bool {
        self.verbose > 0
    }

    /// Whether a user watches, so that one line can be updated in place.
    pub(crate) fn is_live(self) -> bool {
        self.terminal && self.tells_of_waiting()
    }

    /// Says something that matters.
    pub(crate) fn say(self, message: impl fmt::Display) {
        if !self.quiet {
            error(message);
        }
    }

    /// Says, even with `-q`, what endangers what the lock protects.
    pub(crate) fn insist(self, message: impl fmt::Display) {
        error(message);
    }

    /// Tells a story: without the program's name in front, because it is no complaint.
    pub(crate) fn say_plain(self, message: impl fmt::Display) {
        if !self.quiet {
            put(format!("{message}\n").into_bytes());
        }
    }

    /// Says something that only `-v` asks for.
    pub(crate) fn detail(self, message: impl fmt::Display) {
        if self.is_verbose() {
            error(message);
        }
    }

    /// Replaces the live line; an empty one removes it.
    pub(crate) fn live(self, line: &str) {
        if self.is_live() && in_foreground() {
            let shown = if line.is_empty() { String::new() } else { fit(line) };
            put(format!("\r\x1b[2K{shown}").into_bytes());
        }
    }
}

/// Says why something failed, even with `-q`.
pub(crate) fn error(message: impl fmt::Display) {
    put(format!("redlatch: {message}\n").into_bytes());
}

/// What the writing thread is asked for.
enum Order {
    Write(Vec<u8>),
    /// Answer when everything before this has been written.
    Answer(SyncSender<()>),
}

static WRITER: OnceLock<SyncSender<Order>> = OnceLock::new();

/// From now on no message waits for its reader: a pipe that nobody empties, or a terminal that was told to pause, must not
/// keep a command running whose lock is lost.
pub(crate) fn never_wait() {
    let (orders, received) = sync_channel(LINES_WAITING_MAX);
    let writer = thread::Builder::new().name("talk".into()).spawn(move || {
        for order in received {
            match order {
                Order::Write(bytes) => write_now(&bytes),
                Order::Answer(to) => _ = to.send(()),
            }
        }
    });
    if writer.is_ok() {
        _ = WRITER.set(orders);
    }
}

/// Waits until everything that was said has been written, but no longer than this.
pub(crate) fn flush(limit: Duration) {
    let Some(writer) = WRITER.get() else { return };
    let (answer, answered) = sync_channel(1);
    if writer.try_send(Order::Answer(answer)).is_ok() {
        _ = answered.recv_timeout(limit);
    }
}

/// One write a line, so that lines of several processes do not mix.
fn put(bytes: Vec<u8>) {
    match WRITER.get() {
        Some(writer) => _ = writer.try_send(Order::Write(bytes)),
        None => write_now(&bytes),
    }
}

/// A closed stderr is nobody's fault, and must not stop a command that holds a lock.
fn write_now(bytes: &[u8]) {
    _ = stderr().write_all(bytes);
}

/// Stderr for the library's log, which comes from threads that must not wait either.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        put(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the terminal is ours at the moment: a background job must not write over what its user types.
fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(stderr()).is_ok_and(|front| front.as_raw_nonzero().get() == group::own())
}

/// Cuts a line to the terminal's width: a wrapped line could not be replaced.
fn fit(line: &str) -> String {
    let columns = rustix::termios::tcgetwinsize(stderr()).map_or(80, |size| usize::from(size.ws_col));
    let columns = if columns == 0 { 80 } else { columns };
    if line.chars().count() < columns {
        return line.to_owned();
    }
    line.chars().take(columns.saturating_sub(2)).chain(['…']).collect()
}
