//! Real Redis or Valkey servers, private to a test.

mod admin;
mod clock;
mod keyspace;
mod program;
mod tls;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

pub use self::clock::Clock;
pub use self::keyspace::{KeyContent, KeyDump, check_keyspace, keyspace_diff};
pub use self::program::{ServerProgram, tool};
pub use self::tls::TlsFiles;
use crate::error::{Error, ErrorKind, Result};
use crate::net::ReservedPort;
use crate::process::Owned;

/// How long a server may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(10);
/// How often a starting server is asked; it offers no event.
const START_POLL: Duration = Duration::from_millis(5);
/// How long a server may take to end before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// The user of the kit's own connections, so that tests can take all rights from the others.
pub(crate) const ADMIN_USER: &str = "redlatch-testkit";

/// Settings of a [`RedisServer`] before it starts.
#[derive(Clone, Default)]
pub struct RedisServerBuilder {
    lines: Vec<String>,
    password: Option<String>,
    tls: Option<TlsFiles>,
    tls_requires_clients: bool,
    port: u16,
    program: ServerProgram,
    sentinel: bool,
    admin_password: Option<String>,
    clock: bool,
}

// Passwords and user lines stay out of logs.
impl fmt::Debug for RedisServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisServerBuilder").field("port", &self.port).finish_non_exhaustive()
    }
}

impl RedisServerBuilder {
    /// Adds one line `key value` to the configuration file; values with blanks need the file's own quotes.
    pub fn arg(mut self, key: &str, value: &str) -> Self {
        self.lines.push(format!("{key} {value}"));
        self
    }

    /// Sets the password of the default user.
    pub fn requirepass(mut self, password: &str) -> Self {
        self.lines.push(format!("requirepass {}", quoted(password)));
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user by its ACL line, such as `alice on >secret ~app:* &* +@all`.
    pub fn acl(mut self, user_line: &str) -> Self {
        self.lines.push(format!("user {user_line}"));
        self
    }

    /// Serves TLS on the port, with client certificates optional. The unix socket stays plain.
    pub fn tls(mut self, files: &TlsFiles) -> Self {
        self.tls = Some(files.clone());
        self.tls_requires_clients = false;
        self
    }

    /// Serves TLS on the port, to clients with a certificate of the same authority only. The unix socket
    /// stays plain.
    pub fn mutual_tls(mut self, files: &TlsFiles) -> Self {
        self.tls = Some(files.clone());
        self.tls_requires_clients = true;
        self
    }

    /// Runs another server program than [`ServerProgram::System`].
    pub fn program(mut self, program: ServerProgram) -> Self {
        self.program = program;
        self
    }

    /// Runs as a sentinel instead of a server.
    pub(crate) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Gives the kit's own user this password, so that servers can use it with each other.
    pub(crate) fn admin_password(mut self, password: &str) -> Self {
        self.admin_password = Some(password.to_owned());
        self
    }

    /// Turns the append-only file on, synced at every write, so that acknowledged writes survive
    /// [`kill9`](RedisServer::kill9); or off, which is the default.
    pub fn appendonly(mut self, on: bool) -> Self {
        self.lines.push(if on { "appendonly yes\nappendfsync always" } else { "appendonly no" }.to_owned());
        self
    }

    /// Gives the server a wall clock of its own, which [`RedisServer::set_clock`] sets. Needs a C compiler.
    pub fn own_clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// Uses this loopback port instead of a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Starts the server and waits until it answers, for at most 10 seconds.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::MissingTool`] when no server binary is found, [`ErrorKind::Start`] when it does not come
    /// up (with the end of its log), [`ErrorKind::Io`] when a fixed port is taken.
    pub fn start(self) -> Result<RedisServer> {
        let port = ReservedPort::new(self.port)?;
        self.start_on(port)
    }

    /// As [`start`](Self::start), on a port that is reserved already.
    pub(crate) fn start_on(self, port: ReservedPort) -> Result<RedisServer> {
        crate::stall::watch();
        let dir = crate::dir::for_sockets("redlatch-redis-")
            .map_err(|e| Error::io("cannot make a directory for the server", e))?;
        let clock = self.clock.then(|| Clock::new(dir.path())).transpose()?;
        let server = RedisServer {
            port,
            admin_password: self.admin_password.clone().unwrap_or_else(random_password),
            settings: self,
            paused: AtomicBool::new(false),
            clock,
            admin: Mutex::default(),
            state: Mutex::new(None),
            dir,
        };
        server.write_config()?;
        server.launch()?;
        Ok(server)
    }
}

/// A running server on a loopback port and a unix socket, in a directory of its own.
///
/// The kit talks to it over the unix socket as a user of its own, so that passwords, ACLs, TLS and client
/// limits of the test do not get in the way. Dropping it ends the process and removes the directory; both
/// happen as well when the test process is killed.
pub struct RedisServer {
    settings: RedisServerBuilder,
    port: ReservedPort,
    admin_password: String,
    admin: Mutex<Option<redis::Connection>>,
    state: Mutex<Option<Owned>>,
    paused: AtomicBool,
    clock: Option<Clock>,
    dir: TempDir,
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisServer")
            .field("url", &self.url())
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}

impl RedisServer {
    /// Settings to start from.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::default()
    }

    /// Starts a server with default settings: no persistence, no password.
    ///
    /// # Errors
    ///
    /// As for [`RedisServerBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// The server that all tests of this process share, started at the first call. For tests that use keys
    /// of their own and break nothing.
    ///
    /// # Panics
    ///
    /// When the server cannot be started.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisServer> = OnceLock::new();
        // A static is never dropped; the watcher process of the server ends it with the test process.
        SHARED.get_or_init(|| Self::start().unwrap_or_else(|e| panic!("the shared server: {e}")))
    }

    /// `redis://127.0.0.1:port`, or `rediss://` with TLS; without credentials.
    pub fn url(&self) -> String {
        let scheme = if self.settings.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    /// The address with the password of the default user, as given to the builder.
    pub fn url_with_password(&self) -> String {
        let scheme = if self.settings.tls.is_some() { "rediss" } else { "redis" };
        let password = self.settings.password.as_deref().map(|p| format!(":{}@", percent_encoded(p)));
        format!("{scheme}://{}127.0.0.1:{}", password.unwrap_or_default(), self.port())
    }

    /// `unix:///path/to/socket`.
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket_path().display())
    }

    /// The path of the unix socket.
    pub fn socket_path(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// The loopback port, which stays reserved while the server is down.
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    /// The working directory of the server.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The process id; 0 while the server is down.
    pub fn pid(&self) -> u32 {
        lock(&self.state).as_ref().map_or(0, Owned::pid)
    }

    /// Whether the server runs and is not paused.
    pub fn is_up(&self) -> bool {
        self.pid() != 0 && !self.paused.load(Ordering::SeqCst)
    }

    /// Kills the server (`SIGKILL`) and waits until it is gone. Connection attempts are then refused.
    pub fn kill9(&self) {
        *lock(&self.admin) = None;
        if let Some(mut owned) = lock(&self.state).take() {
            owned.kill9();
        }
    }

    /// Ends the server in order (`SIGTERM`), or by force after 5 seconds.
    pub fn stop(&self) {
        *lock(&self.admin) = None;
        if let Some(mut owned) = lock(&self.state).take() {
            // A paused server does not see the request to end until it goes on.
            let asked = owned.signal(Signal::TERM).and_then(|()| owned.signal(Signal::CONT));
            if !matches!(asked.and_then(|()| owned.wait_for_exit(STOP_LIMIT)), Ok(Some(_))) {
                owned.kill9();
            }
        }
    }

    /// Kills the server if it runs and starts it again with the same directory, port and settings; what it
    /// knew comes back only with [`RedisServerBuilder::appendonly`].
    ///
    /// # Errors
    ///
    /// As for [`RedisServerBuilder::start`].
    pub fn restart(&self) -> Result<()> {
        self.kill9();
        self.launch()
    }

    /// Kills the server if it runs, removes its data and starts it again on the same port.
    ///
    /// # Errors
    ///
    /// As for [`RedisServerBuilder::start`].
    pub fn restart_empty(&self) -> Result<()> {
        self.kill9();
        let io = |e| Error::io("cannot empty the directory of the server", e);
        std::fs::remove_dir_all(self.data_dir()).map_err(io)?;
        self.launch()
    }

    /// Stops the process where it stands (`SIGSTOP`): connections stay open, nothing is answered.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the server is down.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        self.paused.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Lets a paused server go on (`SIGCONT`).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the server is down.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)?;
        self.paused.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Moves the wall clock of a server with a [clock of its own](RedisServerBuilder::own_clock) by `step_ms`, and lets it gain
    /// (or lose) `gain_ppm` millionths from now on; `None` leaves its rate as it is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the server has no such clock.
    pub fn set_clock(&self, step_ms: i64, gain_ppm: Option<i64>) -> Result<()> {
        let clock = self.clock.as_ref();
        clock
            .ok_or_else(|| Error::new(ErrorKind::Io, "the server has no clock of its own"))?
            .set(step_ms, gain_ppm)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let state = lock(&self.state);
        let owned = state.as_ref().ok_or_else(|| Error::new(ErrorKind::Io, "the server is down"))?;
        owned.signal(signal).map_err(|e| Error::io("cannot signal the server", e))
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn write_config(&self) -> Result<()> {
        let dir = self.dir.path().display();
        let port = self.port();
        let mut text = format!(
            "bind 127.0.0.1\ndaemonize no\nsave \"\"\nunixsocket {dir}/redis.sock\nunixsocketperm 700\n\
             dir {dir}/data\nlogfile {dir}/redis.log\n\
             user {ADMIN_USER} on >{} ~* &* +@all\n",
            self.admin_password
        );
        match &self.settings.tls {
            None => text.push_str(&format!("port {port}\n")),
            Some(tls) => text.push_str(&format!(
                "port 0\ntls-port {port}\ntls-auth-clients {}\n\
                 tls-ca-cert-file {}\ntls-cert-file {}\ntls-key-file {}\n",
                if self.settings.tls_requires_clients { "yes" } else { "optional" },
                tls.ca_cert.display(),
                tls.server_cert.display(),
                tls.server_key.display()
            )),
        }
        for line in &self.settings.lines {
            text.push_str(line);
            text.push('\n');
        }
        // The directory is readable by its owner only, so the passwords in the file are too; on the
        // command line everybody could read them.
        std::fs::write(self.dir.path().join("redis.conf"), text)
            .map_err(|e| Error::io("cannot write the configuration", e))
    }

    fn launch(&self) -> Result<()> {
        std::fs::create_dir_all(self.data_dir())
            .map_err(|e| Error::io("cannot make the data directory", e))?;
        // A socket file of a killed server would answer connection attempts with a refusal all the same.
        let _ = std::fs::remove_file(self.socket_path());
        let program = self.settings.program;
        let mut command = program.command();
        command.arg(self.dir.path().join("redis.conf"));
        if self.settings.sentinel {
            command.arg("--sentinel");
        }
        if let Some(clock) = &self.clock {
            clock.preload(&mut command);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let owned = Owned::spawn(&mut command, Some(self.dir.path())).map_err(|e| program.cannot_start(e))?;
        self.paused.store(false, Ordering::SeqCst);
        *lock(&self.state) = Some(owned);
        self.wait_until_ready()
    }

    fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let last = match self.cmd(&["PING"]) {
                Ok(_) => return Ok(()),
                // A server whose PING has been renamed away is up when it says so.
                Err(e) if e.to_string().contains("unknown command") => return Ok(()),
                Err(e) => e,
            };
            let ended = match lock(&self.state).as_mut() {
                Some(owned) => !matches!(owned.wait_for_exit(Duration::ZERO), Ok(None)),
                None => true,
            };
            if ended || Instant::now() >= deadline {
                self.kill9();
                let log = self.log_tail();
                return Err(Error::because(
                    ErrorKind::Start,
                    format!("the server did not come up\n{log}"),
                    last,
                ));
            }
            std::thread::sleep(START_POLL);
        }
    }

    /// The last 20 lines of the server's log.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("redis.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A test that panicked while it held one of these locks left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The seeds of the standard hasher are random, which is all that a throw-away password needs.
pub(crate) fn random_password() -> String {
    (0..2).map(|n: u8| format!("{:016x}", RandomState::new().hash_one(n))).collect()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn percent_encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
