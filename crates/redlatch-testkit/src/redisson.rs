//! The real Redisson, driven from Rust.
//!
//! A [`Redisson`] is a Java process with one Redisson client in it, built from the Maven project `interop/`. Its
//! threads take commands on their own, so that several lock owners can act and block at the same time. The process can
//! be killed like a holder that dies, and stopped like one that hangs.
//!
//! A verb is `kind.operation` (`lock.tryLockWait`, `read.unlock`, `sem.acquire`, …), its first argument the name of the
//! object; `interop/README.md` lists all of them. Every wait has a limit.
//!
//! # Example
//!
//! ```no_run
//! use redlatch_testkit::redisson::{Redisson, RedissonVersion};
//! use std::time::Duration;
//!
//! let java = Redisson::start(RedissonVersion::Newest, "redis://127.0.0.1:7000", Some(Duration::from_secs(3)))?;
//! let (holder, waiter) = (java.thread(1), java.thread(2));
//! holder.call("lock.lock", &["stock"])?;
//! let waiting = waiter.send("lock.lock", &["stock"])?;
//! holder.call("lock.unlock", &["stock"])?;
//! let woken = waiting.wait(Duration::from_secs(5))?;
//! println!("woken after {:?}", woken.elapsed());
//! # Ok::<(), redlatch_testkit::redisson::JavaError>(())
//! ```

mod build;
mod process;
mod wire;

use process::Process;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use process::PendingReply;
pub use wire::{JavaError, JavaErrorKind, Reply, member};

/// How long [`JavaThread::call`] waits for its reply.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a Java process may take to start and to connect. Generous, because many may start at once on few cores.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// The two releases of Redisson that redlatch is tested against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RedissonVersion {
    /// 3.15.1, the oldest release that redlatch shares locks with.
    Old3_15_1,
    /// The newest release on Maven Central when `interop/pom.xml` was last brought up to date.
    Newest,
}

impl RedissonVersion {
    /// Both releases, the older one first.
    pub const ALL: [Self; 2] = [Self::Old3_15_1, Self::Newest];

    /// The Maven profile that builds against this release.
    fn profile(self) -> &'static str {
        match self {
            Self::Old3_15_1 => "old",
            Self::Newest => "new",
        }
    }
}

/// Where and how a Redisson client connects.
#[derive(Clone)]
pub struct Connection {
    words: Vec<String>,
}

impl Connection {
    /// One server, `redis://[user:password@]host:port`.
    #[must_use]
    pub fn single(url: &str) -> Self {
        Self { words: vec!["single".into(), url.into()] }
    }

    /// A cluster, found through any of its nodes.
    #[must_use]
    pub fn cluster(urls: &[&str]) -> Self {
        Self { words: vec!["cluster".into(), urls.join(",")] }
    }

    /// The master of this name, found through the sentinels.
    #[must_use]
    pub fn sentinel(urls: &[&str], master: &str) -> Self {
        Self { words: vec!["sentinel".into(), urls.join(","), master.into()] }
    }

    /// Sets the lease that the watchdog renews, at millisecond precision. Redisson's default is 30 s.
    #[must_use]
    pub fn watchdog(self, lease: Duration) -> Self {
        self.option("watchdogMs", &lease.as_millis().to_string())
    }

    /// Names the client inside its Java process, for processes with several; verbs then say `name@kind.operation`.
    #[must_use]
    pub fn named(self, client: &str) -> Self {
        self.option("as", client)
    }

    /// Sets another option: `timeoutMs`, `retryAttempts`, `retryMs`, `database`, `scriptCache`, `username`, `password`
    /// with both releases; `sharded` (`on`, `off`, `auto`), `fairWaitMs`, `watchdogBatch`, `slavesSyncMs` and
    /// `checkSynced` with the newest.
    #[must_use]
    pub fn option(mut self, key: &str, value: &str) -> Self {
        self.words.push(format!("{key}={value}"));
        self
    }
}

impl fmt::Debug for Connection {
    /// Leaves out addresses and options, because both can hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.words[0]).finish_non_exhaustive()
    }
}

/// A Java process with a Redisson client. Dropping it kills the process.
pub struct Redisson {
    process: Arc<Process>,
    version: RedissonVersion,
    start_took: Duration,
}

impl Redisson {
    /// Builds the driver if that is needed, starts it and connects to one server. `watchdog` is the renewed lease, 30 s
    /// if `None`.
    ///
    /// # Errors
    ///
    /// Without Java or Maven the error names the command that installs them; a failed build carries Maven's output, a
    /// failed connection Redisson's message.
    pub fn start(
        version: RedissonVersion,
        redis_url: &str,
        watchdog: Option<Duration>,
    ) -> Result<Self, JavaError> {
        let connection = Connection::single(redis_url);
        let connection = match watchdog {
            Some(lease) => connection.watchdog(lease),
            None => connection,
        };
        Self::start_with(version, &connection)
    }

    /// As [`Redisson::start`], for any topology and options.
    ///
    /// # Errors
    ///
    /// As for [`Redisson::start`].
    pub fn start_with(version: RedissonVersion, connection: &Connection) -> Result<Self, JavaError> {
        let mut redisson = Self::start_unconnected(version)?;
        let before = Instant::now();
        redisson.connect(connection)?;
        redisson.start_took += before.elapsed();
        Ok(redisson)
    }

    /// Starts the Java process without a client in it.
    ///
    /// # Errors
    ///
    /// As for [`Redisson::start`].
    pub fn start_unconnected(version: RedissonVersion) -> Result<Self, JavaError> {
        let classpath = build::classpath(version.profile())?;
        let before = Instant::now();
        let process = Process::spawn(&classpath)?;
        let mut redisson = Self { process, version, start_took: Duration::ZERO };
        redisson.thread(0).call_within(START_TIMEOUT, "ping", &[])?;
        redisson.start_took = before.elapsed();
        Ok(redisson)
    }

    /// Connects one more client in this process and gives its id, the UUID in its holder fields.
    ///
    /// # Errors
    ///
    /// Redisson's error if the servers cannot be reached, or if a client of this name exists.
    pub fn connect(&self, connection: &Connection) -> Result<String, JavaError> {
        let words: Vec<&str> = connection.words.iter().map(String::as_str).collect();
        Ok(self.thread(0).call_within(START_TIMEOUT, "connect", &words)?.text().to_owned())
    }

    /// A Java thread of this process, created by its first command. The same number is the same thread.
    #[must_use]
    pub fn thread(&self, number: u64) -> JavaThread {
        JavaThread { process: Arc::clone(&self.process), number }
    }

    /// The id of the client, the UUID in its holder fields.
    ///
    /// # Errors
    ///
    /// If the process is gone, or its client has been shut down.
    pub fn client_id(&self) -> Result<String, JavaError> {
        Ok(self.thread(0).call("id", &[])?.text().to_owned())
    }

    /// Interrupts a thread in its running command. False if it runs none.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn interrupt(&self, thread: &JavaThread) -> Result<bool, JavaError> {
        self.thread(0).call("interrupt", &[&thread.number.to_string()])?.as_bool()
    }

    /// Shuts the client down in the orderly way, without releasing its locks; the process stays.
    ///
    /// # Errors
    ///
    /// If the process is gone, or its client has been shut down already.
    pub fn shutdown_client(&self) -> Result<(), JavaError> {
        self.thread(0).call("shutdown", &[]).map(drop)
    }

    /// Kills the process at once, like a holder that dies. Calls that wait for a reply end with an error.
    pub fn kill9(&self) {
        self.process.kill9();
    }

    /// Stops the process in its tracks, like a holder that hangs: its watchdog stops, its connections stay. Returns
    /// when the process has stopped.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn pause(&self) -> Result<(), JavaError> {
        self.process.pause()
    }

    /// Lets a paused process continue.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn resume(&self) -> Result<(), JavaError> {
        self.process.resume()
    }

    /// The release that this process was started with.
    #[must_use]
    pub fn version(&self) -> RedissonVersion {
        self.version
    }

    /// How long the start of the process and its connection took, the build not included.
    #[must_use]
    pub fn start_took(&self) -> Duration {
        self.start_took
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }
}

impl fmt::Debug for Redisson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redisson")
            .field("version", &self.version)
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        self.process.kill9();
    }
}

/// A Java thread, hence a lock owner. Its commands run in order; those of different threads run side by side.
#[derive(Clone)]
pub struct JavaThread {
    process: Arc<Process>,
    number: u64,
}

impl JavaThread {
    /// Runs a command and waits for its reply, at most [`CALL_TIMEOUT`].
    ///
    /// # Errors
    ///
    /// The exception that Redisson throws, by its simple class name; a timeout; or the end of the process.
    pub fn call(&self, verb: &str, args: &[&str]) -> Result<Reply, JavaError> {
        self.call_within(CALL_TIMEOUT, verb, args)
    }

    /// As [`JavaThread::call`], with a limit of its own.
    ///
    /// # Errors
    ///
    /// As for [`JavaThread::call`].
    pub fn call_within(&self, limit: Duration, verb: &str, args: &[&str]) -> Result<Reply, JavaError> {
        self.send(verb, args)?.wait(limit)
    }

    /// Queues a command for this thread and returns at once.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn send(&self, verb: &str, args: &[&str]) -> Result<PendingReply, JavaError> {
        self.process.send(self.number, verb, args)
    }

    /// The id that Java gives this thread, the number in its holder fields.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub fn java_thread_id(&self) -> Result<i64, JavaError> {
        self.call("threadId", &[])?.as_i64()
    }
}

impl fmt::Debug for JavaThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JavaThread")
            .field("pid", &self.process.pid())
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
