//! Exit codes, and the failure that carries one.
//!
//! The numbers are a contract with scripts and supervisors: sysexits where they fit, the numbers of `timeout(1)` and the
//! shell for what happens to the command, and 80, the first number above sysexits, for a lost lease.

use std::fmt;

use redlatch::ErrorKind;

use crate::escape::text;

/// Everything went well, or the command itself ended with success.
pub(crate) const OK: u8 = 0;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 64;
/// The server or the local engine cannot be reached, or answers what cannot be used.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lock is busy, or the wait ran out.
pub(crate) const BUSY: u8 = 75;
/// User, password or a right was refused.
pub(crate) const NO_PERMISSION: u8 = 77;
/// The configuration is wrong.
pub(crate) const CONFIG: u8 = 78;
/// The lease was lost and the command was stopped, or the hold, semaphore or latch that was to be changed is not there.
pub(crate) const LOST: u8 = 80;
/// `--max-hold` was reached and the command was stopped.
pub(crate) const MAX_HOLD: u8 = 124;
/// Redlatch itself failed.
pub(crate) const INTERNAL: u8 = 125;
/// The command exists and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to the number of a signal.
pub(crate) const SIGNAL_BASE: u8 = 128;

/// The code of a process that ended by signal `number`.
pub(crate) fn by_signal(number: i32) -> u8 {
    u8::try_from(number).map_or(u8::MAX, |number| SIGNAL_BASE.saturating_add(number))
}

/// Why a verb failed: the exit code and one line for the reader, which never contains a secret.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// `message` says what was attempted, on what, and what to do about it.
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }

    /// The command line contradicts itself.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(USAGE, message)
    }

    /// A file or a setting is wrong.
    pub(crate) fn config(message: impl Into<String>) -> Self {
        Failure::new(CONFIG, message)
    }

    /// Something of our own went wrong.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Failure::new(INTERNAL, message)
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<redlatch::Error> for Failure {
    fn from(error: redlatch::Error) -> Self {
        Failure::new(code_of(error.kind()), text(&error.to_string()).to_string())
    }
}

/// The exit code for each kind of library error.
fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        // A name that something else uses is a wrong name.
        ErrorKind::InvalidName
        | ErrorKind::InvalidOption
        | ErrorKind::WrongType
        | ErrorKind::WrongLockKind => USAGE,
        // A library that was not loaded is a server that is not set up.
        ErrorKind::InvalidUrl | ErrorKind::FunctionMissing | ErrorKind::UndeclaredKey => CONFIG,
        ErrorKind::Unreachable
        | ErrorKind::Tls
        | ErrorKind::Timeout
        | ErrorKind::ServerBusy
        | ErrorKind::OutOfMemory
        | ErrorKind::ReadOnly
        // The servers that are there do not give what was asked for.
        | ErrorKind::NotReplicated
        | ErrorKind::Unsupported
        | ErrorKind::Engine
        // What a server answers that it should not is no failure of the command.
        | ErrorKind::Protocol
        | ErrorKind::Server => UNAVAILABLE,
        ErrorKind::Auth | ErrorKind::Permission => NO_PERMISSION,
        // What was to be used or changed is not there.
        ErrorKind::NotOwner | ErrorKind::Lost | ErrorKind::NotInitialised => LOST,
        _ => INTERNAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_map_above_128_and_never_wrap() {
        assert_eq!(by_signal(2), 130);
        assert_eq!(by_signal(15), 143);
        assert_eq!(by_signal(64), 192);
        assert_eq!(by_signal(-1), 255);
        assert_eq!(by_signal(1000), 255);
    }
}
