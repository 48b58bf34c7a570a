//! The client: a connection to one store, and the place where locks come from.

mod builder;

use std::{fmt, time::Duration};

pub use self::builder::ClientBuilder;
use crate::{
    core::fork_safe::ForkSafeCore,
    error::Error,
    locks::{
        fair::FairLock,
        fenced::FencedLock,
        non_reentrant::{NonReentrantFairLock, NonReentrantLock},
        read_write::ReadWriteLock,
        shared::lock::{Lock, Plain},
        spin::SpinLock,
    },
    name::LockName,
    owner::Owner,
    permits::{
        latch::CountDownLatch, permit_semaphore::PermitSemaphore, rate::RateLimiter, semaphore::Semaphore,
    },
    store::Fault,
};

/// The store that is used where none is named.
const DEFAULT_URL: &str = "local:";

/// A handle to one store. Cloning is cheap, and clones share everything.
///
/// One client is enough for a process. Its identity (a UUID) stands in the owner of every lock taken through it.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: ForkSafeCore,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.core.id)
            .field("store", &self.core.store.describe())
            .finish_non_exhaustive()
    }
}

/// What [`Client::shutdown`] could and could not do.
#[derive(Debug)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// How many held locks were released.
    pub released: usize,
    /// Locks that could not be released in time, and why; their leases end them.
    pub failed: Vec<(LockName, Error)>,
}

/// What a client is busy with; all zero when nothing is held and nothing is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Names that are held, contended or waited for.
    pub names: usize,
    /// Tasks that stand in line for a name behind another task of this client, or in the queue of a fair lock.
    pub in_line: usize,
    /// Acquires under way, and releases and clean-ups in the background.
    pub background_jobs: usize,
}

impl Client {
    /// Connects to the store that the URL names: `memory:` (an engine of this client's own; `memory:name` is shared in this
    /// process), `local:`, `redis://…`, `rediss://…`,
    /// `unix:///…`, `redis-sentinel://…`, `redis-cluster://…`, `redis-replicated://…`, or `redisson-yaml:/path` for a file of
    /// Redisson (`docs/configuration.md`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up.
    ///
    /// # Errors
    ///
    /// A URL that cannot be understood, a server that is unreachable, refused credentials, or a local engine that
    /// cannot be started.
    pub async fn connect(url: &str) -> Result<Client, Error> {
        Client::builder().url(url).connect().await
    }

    /// A client that connects when it is first used, and anew after a failure: for servers that may be down at present, such as
    /// the members of a [`QuorumLock`](crate::QuorumLock). No server is asked for anything, and no engine is started; a file of
    /// Redisson that the URL names is read.
    ///
    /// # Errors
    ///
    /// A URL that cannot be understood. Everything else, such as a server that is unreachable, refused credentials or a
    /// certificate that cannot be read, is an error of the first call that needs it, and may be over by the next.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// // Nobody listens there.
    /// let client = redlatch::Client::connect_lazy("redis://127.0.0.1:1")?;
    /// let error = client.lock("orders").try_lock().await.unwrap_err();
    /// assert_eq!(error.kind(), redlatch::ErrorKind::Unreachable);
    /// # Ok(()) }
    /// ```
    pub fn connect_lazy(url: &str) -> Result<Client, Error> {
        Client::builder().url(url).connect_lazy()
    }

    /// A client with options.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// The client's identity: a random UUID.
    pub fn id(&self) -> &str {
        &self.core.id
    }

    /// The store in words, without secrets.
    pub fn store(&self) -> String {
        self.core.store.describe()
    }

    /// The lock of that name. Nothing happens on the server yet.
    pub fn lock(&self, name: impl Into<LockName>) -> Lock {
        Lock::<Plain>::new(&self.core, name.into())
    }

    /// The fair lock of that name: granted in the order of asking. Nothing happens on the server yet.
    pub fn fair_lock(&self, name: impl Into<LockName>) -> FairLock {
        FairLock::new(&self.core, name.into())
    }

    /// The fenced lock of that name: every grant draws a token. Nothing happens on the server yet.
    pub fn fenced_lock(&self, name: impl Into<LockName>) -> FencedLock {
        FencedLock::new(&self.core, name.into())
    }

    /// The spin lock of that name: without messages. Nothing happens on the server yet.
    pub fn spin_lock(&self, name: impl Into<LockName>) -> SpinLock {
        SpinLock::new(&self.core, name.into())
    }

    /// The lock of that name that its owner cannot enter twice. Nothing happens on the server yet.
    pub fn non_reentrant_lock(&self, name: impl Into<LockName>) -> NonReentrantLock {
        NonReentrantLock::new(&self.core, name.into())
    }

    /// The fair lock of that name that its owner cannot enter twice. Nothing happens on the server yet.
    pub fn non_reentrant_fair_lock(&self, name: impl Into<LockName>) -> NonReentrantFairLock {
        NonReentrantFairLock::new(&self.core, name.into())
    }

    /// The read-write lock of that name. Nothing happens on the server yet.
    pub fn read_write_lock(&self, name: impl Into<LockName>) -> ReadWriteLock {
        ReadWriteLock::new(&self.core, name.into())
    }

    /// The semaphore of that name. Nothing happens on the server yet.
    pub fn semaphore(&self, name: impl Into<LockName>) -> Semaphore {
        Semaphore::new(&self.core, name.into())
    }

    /// The semaphore of that name whose permits have ids and leases. Nothing happens on the server yet.
    pub fn permit_semaphore(&self, name: impl Into<LockName>) -> PermitSemaphore {
        PermitSemaphore::new(&self.core, name.into())
    }

    /// The latch of that name. Nothing happens on the server yet.
    pub fn count_down_latch(&self, name: impl Into<LockName>) -> CountDownLatch {
        CountDownLatch::new(&self.core, name.into())
    }

    /// The rate limiter of that name. Nothing happens on the server yet.
    pub fn rate_limiter(&self, name: impl Into<LockName>) -> RateLimiter {
        RateLimiter::new(&self.core, name.into())
    }

    /// A fresh owner, for acquires that are to enter each other's locks.
    pub fn owner(&self) -> Owner {
        let owner = self.core.fresh_owner();
        owner.mark_reusable();
        owner
    }

    /// Loads the function library of this version, for clients in [`ScriptMode::Functions`](crate::config::ScriptMode::Functions). Needs the right to `FUNCTION LOAD`,
    /// which such clients should not have.
    ///
    /// A library of the same name is replaced in one step, so loading again while clients work does no harm. Libraries of other
    /// versions have other names and stay, so that both versions work while a fleet is upgraded; `FUNCTION DELETE` removes one
    /// that nobody uses any more.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FunctionMissing`](crate::ErrorKind::FunctionMissing) for a server without functions;
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) for `memory:` and `local:`, which have none to load; a
    /// server that is unreachable or refuses.
    pub async fn load_functions(&self) -> Result<(), Error> {
        self.core.check_open()?;
        self.core.keeper.note_call();
        self.core.store.load_functions().await.map_err(Fault::into_error)
    }

    /// A descriptor that keeps what this client holds while any process has it open, for commands that go on with the work should
    /// this process be killed: duplicate it without `O_CLOEXEC` for the start of the command, and drop it after that. Only on
    /// `local:`, where what a dead process held is free at once; `None` elsewhere, and from the second call on.
    ///
    /// The holds are freed when this process and all that have the descriptor are gone. If the engine ends before, leases end
    /// what a dead process held.
    pub fn lifeline(&self) -> Option<std::os::fd::OwnedFd> {
        if self.core.is_forked() { None } else { self.core.store.lifeline() }
    }

    /// What the client is busy with.
    pub fn stats(&self) -> Stats {
        if self.core.is_forked() {
            return Stats { names: 0, in_line: 0, background_jobs: 0 };
        }
        let (names, in_line) = self.core.lanes.count();
        Stats { names, in_line, background_jobs: self.core.keeper.jobs() }
    }

    /// Ends the client: no new acquires, waiters get [`ErrorKind::Closed`](crate::ErrorKind::Closed), holders are told
    /// and their locks released, then connections close. Takes at most `limit`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future lets the releases go on in the background, but leaves connections open.
    pub async fn shutdown(self, limit: Duration) -> ShutdownReport {
        let (released, failed) = self.core.shutdown(limit).await;
        ShutdownReport { released, failed }
    }
}
