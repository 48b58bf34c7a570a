//! What is said to the reader on stderr: never data, never a reason to fail.

use std::{
    fmt,
    io::{IsTerminal, Write, stderr},
};

/// How much to say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Talk {
    quiet: bool,
    verbose: u8,
    terminal: bool,
}

impl Talk {
    /// From the common options.
    pub(crate) fn new(quiet: bool, verbose: u8) -> Self {
        Talk { quiet, verbose, terminal: stderr().is_terminal() }
    }

    /// Whether `-v` was given.
    pub(crate) fn is_verbose(self) -> bool {
        self.verbose > 0
    }

    /// Whether somebody watches, so that one line can be updated in place.
    pub(crate) fn is_live(self) -> bool {
        self.terminal && !self.quiet
    }

    /// Says something that matters.
    pub(crate) fn say(self, message: impl fmt::Display) {
        if !self.quiet {
            error(message);
        }
    }

    /// Tells a story: without the program's name in front, because it is no complaint.
    pub(crate) fn say_plain(self, message: impl fmt::Display) {
        if !self.quiet {
            _ = stderr().write_all(format!("{message}\n").as_bytes());
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
            // A closed stderr must not stop a command that holds a lock.
            _ = write!(stderr(), "\r\x1b[2K{shown}").and_then(|()| stderr().flush());
        }
    }
}

/// Says why something failed, even with `-q`.
pub(crate) fn error(message: impl fmt::Display) {
    // One write a line, so that lines of several processes do not mix. A closed stderr is nobody's fault.
    _ = stderr().write_all(format!("redlatch: {message}\n").as_bytes());
}

/// Whether the terminal is ours at the moment: a background job must not write over what its user types.
fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(stderr()).is_ok_and(|group| group == rustix::process::getpgrp())
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
