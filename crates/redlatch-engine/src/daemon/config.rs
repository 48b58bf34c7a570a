//! What a daemon is told, why it ended, and what kept it from running.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::lifelines::Undertaker;

/// How much memory other clients may make the engine use, unless told otherwise.
pub const MEMORY_MAX_BYTES: u64 = 1 << 30;

/// Called once, when clients can connect.
pub type ReadyCallback = Box<dyn FnOnce() + Send>;

/// What a daemon serves, and where.
#[non_exhaustive]
pub struct DaemonConfig {
    /// The unix socket; it must lie in `dir`, or in another directory that only its owner can enter.
    pub socket: PathBuf,
    /// Where the journal is kept. Created with mode 0700 when missing.
    pub dir: PathBuf,
    /// Names and sources of the scripts that clients may run.
    pub allowed_scripts: Vec<(&'static str, &'static str)>,
    /// The version of what client and daemon say to each other; a client of another epoch is refused.
    pub epoch: u32,
    /// End after so long without a client, a key that expires and a permit that ends.
    pub idle_exit: Option<Duration>,
    /// Serve every command of the engine and any script, for other client libraries.
    pub compat: bool,
    /// With `compat`, how much memory the engine may use before it refuses to keep more (`OOM`); unbounded where the system does not say
    /// how much that is.
    pub memory_max_bytes: u64,
    /// Serve on TCP too, with `compat` and on a loopback address only. There is no password: every user of the machine can connect, and
    /// see and change every lock.
    pub compat_listen: Option<SocketAddr>,
    /// Called when clients can connect.
    pub ready: Option<ReadyCallback>,
    /// Serve every user in the group of the directory, too. What only the owner may do stays the owner's: ending the daemon.
    pub shared: bool,
    /// Leave the terminal session of the process that started the daemon.
    pub detach: bool,
    /// Gives back what clients held that have died; without it their leases end it.
    pub undertaker: Option<Box<dyn Undertaker>>,
    /// Identifies this run of the machine, and another one is another run. When empty it is read from the system, and the clocks have to
    /// confirm that the machine was started anew before anything is dropped.
    pub boot_id: String,
}

impl DaemonConfig {
    /// A daemon on this socket with its journal in this directory: no scripts, no TCP, no idle exit.
    pub fn new(socket: PathBuf, dir: PathBuf, epoch: u32) -> DaemonConfig {
        DaemonConfig {
            socket,
            dir,
            allowed_scripts: Vec::new(),
            epoch,
            idle_exit: None,
            compat: false,
            memory_max_bytes: MEMORY_MAX_BYTES,
            compat_listen: None,
            shared: false,
            ready: None,
            detach: false,
            undertaker: None,
            boot_id: String::new(),
        }
    }
}

impl fmt::Debug for DaemonConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DaemonConfig")
            .field("socket", &self.socket)
            .field("dir", &self.dir)
            .field("epoch", &self.epoch)
            .field("idle_exit", &self.idle_exit)
            .field("compat", &self.compat)
            .field("compat_listen", &self.compat_listen)
            .finish_non_exhaustive()
    }
}

/// Why a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExitReason {
    /// SIGTERM or SIGINT.
    Signal,
    /// No client, no expiring key and no permit that ends for the time that was set.
    Idle,
    /// A client sent `REDLATCH SHUTDOWN`.
    Shutdown,
    /// Its lock file was deleted, and another daemon serves the socket.
    Displaced,
}

/// What kept a daemon from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DaemonErrorKind {
    /// The directory or socket cannot be used safely.
    Access,
    /// Another daemon serves this socket.
    AlreadyRunning,
    /// The settings contradict each other.
    Config,
    /// The journal cannot be read or written.
    Journal,
    /// Anything else that the system refused.
    System,
}

/// A daemon could not run.
#[derive(Debug)]
pub struct DaemonError {
    kind: DaemonErrorKind,
    text: String,
}

impl DaemonError {
    pub(super) fn new(kind: DaemonErrorKind, text: impl fmt::Display) -> DaemonError {
        DaemonError { kind, text: text.to_string() }
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> DaemonErrorKind {
        self.kind
    }
}

impl fmt::Display for DaemonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for DaemonError {}

pub(super) fn because(kind: DaemonErrorKind, what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |error| DaemonError::new(kind, format_args!("{what}: {error}"))
}
