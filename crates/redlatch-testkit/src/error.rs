//! The error type of the kit.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// What went wrong, for callers that branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A program that the kit needs is not installed; the message says how to install it.
    MissingTool,
    /// A process could not be started or ended before it was ready.
    Start,
    /// Reading, writing or connecting failed.
    Io,
    /// The server answered a command with an error.
    Server,
    /// A bounded wait ran out.
    Timeout,
    /// An address or some bytes could not be understood.
    Invalid,
}

/// An error of the kit. The message says what was tried.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The result type of the kit.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(crate) fn because(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), source: Some(source.into()) }
    }

    pub(crate) fn io(message: impl Into<String>, source: io::Error) -> Self {
        Self::because(ErrorKind::Io, message, source)
    }

    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // Tests print errors through `unwrap`, which does not walk the chain of sources.
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
