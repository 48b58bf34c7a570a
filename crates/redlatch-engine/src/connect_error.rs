//! What keeps a client from its daemon.

use std::fmt;

/// What kept a client from its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectErrorKind {
    /// The name or the path made from it cannot be used.
    Name,
    /// The directory cannot be used safely.
    Directory,
    /// The directory is one for several users, whose daemon does not run.
    NotRunning,
    /// Another process took too long to start the daemon.
    Lock,
    /// The daemon could not be started.
    Spawn,
    /// The daemon was started but did not get ready.
    NotReady,
    /// The socket cannot be reached.
    Connect,
}

/// The daemon could not be reached or started.
#[derive(Debug)]
pub struct ConnectError {
    kind: ConnectErrorKind,
    text: String,
}

impl ConnectError {
    pub(crate) fn new(kind: ConnectErrorKind, text: impl fmt::Display) -> ConnectError {
        ConnectError { kind, text: text.to_string() }
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> ConnectErrorKind {
        self.kind
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ConnectError {}
