//! The same locks for code without async: a face around the async core that adds no logic.
//!
//! As in Java, each OS thread is an owner of its own: a thread that takes a lock twice enters it twice. A thread that holds nothing
//! is a new owner with its next acquire. So a guard stays on the thread that took it; code that hands guards on to other threads takes
//! them with [`run_to_send`](Acquire::run_to_send), under an owner that is no thread's.
//!
//! The calls run on the calling thread; connections and timers live on the client's background thread. In async code they belong into
//! `spawn_blocking` or `block_in_place`; elsewhere there they are refused.
//!
//! Dropping a guard releases it in the background. The last of a client's copies and guards to go waits for that, for up to 250 ms, also
//! in a thread-local of the main thread; in code that a runtime polls it does not wait. A client in a `static` never goes, so call `unlock`
//! before such a process ends.

mod latch;
mod locks;
mod permits;
mod rate;
mod read_write;
mod semaphore;
mod sets;
mod thread;

use std::{
    cell::RefCell,
    collections::HashMap,
    fmt,
    future::Future,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

pub use latch::CountDownLatch;
pub use locks::{
    Acquire, FairLock, FencedLock, Guard, Lock, NonReentrantFairLock, NonReentrantLock, OfNoThread, OfThread,
    ReadLock, SendGuard, SpinLock, WriteLock,
};
pub use permits::{PermitGuard, PermitRequest, PermitSemaphore};
pub use rate::RateLimiter;
pub use read_write::ReadWriteLock;
pub use semaphore::Semaphore;
pub use sets::{
    AcquireMulti, AcquireQuorum, AcquireSet, LockSet, MultiGuard, MultiLock, QuorumGuard, QuorumLock,
    SetGuard,
};

use self::thread::{block_on, is_inside, outside};
use crate::{
    ClientBuilder, ClientRecord, LockKind, LockName, LockState, ShutdownReport, Why, core::Core,
    error::Error, owner::Owner,
};

thread_local! {
    /// This thread's owner for each client, while the thread holds anything. Entries of clients that are gone are swept when a new one is added.
    static OWNERS: RefCell<HashMap<usize, (Weak<Core>, Owner)>> = RefCell::default();
}

/// How long the last one of a client's blocking handles and guards waits for releases that are on their way.
const FAREWELL_MAX: Duration = Duration::from_millis(250);

/// One of the blocking clients and guards of a client. The last one waits a moment for releases that are on their way: the process
/// may be about to end.
struct DrainOnDrop(Arc<Core>);

impl fmt::Debug for DrainOnDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrainOnDrop")
    }
}

impl DrainOnDrop {
    fn of(core: &Arc<Core>) -> DrainOnDrop {
        core.blocking_handles.fetch_add(1, Ordering::SeqCst);
        DrainOnDrop(core.clone())
    }
}

impl Clone for DrainOnDrop {
    fn clone(&self) -> Self {
        DrainOnDrop::of(&self.0)
    }
}

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        let core = &self.0;
        if core.blocking_handles.fetch_sub(1, Ordering::SeqCst) > 1
            || core.is_forked()
            || core.keeper.jobs() == 0
            || is_inside()
        {
            return;
        }
        // Where the values of the thread are being dropped, the runtime's own may have gone before: a channel does without.
        let _ = core.keeper.tell_drained().recv_timeout(FAREWELL_MAX);
    }
}

/// A [`redlatch::Client`](crate::Client) for blocking code.
#[derive(Clone)]
pub struct Client(crate::Client, #[expect(dead_code, reason = "it counts until it goes")] DrainOnDrop);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Client {
    fn new(client: crate::Client) -> Client {
        let stake = DrainOnDrop::of(&client.core);
        Client(client, stake)
    }

    /// Connects; see [`redlatch::Client::connect`](crate::Client::connect). `memory:` is a store of this client's own.
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    ///
    /// # Example
    ///
    /// ```
    /// let client = redlatch::blocking::Client::connect("memory:")?;
    /// let guard = client.lock("orders").lock()?;
    /// guard.unlock()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn connect(url: &str) -> Result<Client, Error> {
        Self::build(crate::Client::builder().url(url))
    }

    /// A client that connects when it is first used; see [`redlatch::Client::connect_lazy`](crate::Client::connect_lazy).
    ///
    /// # Errors
    ///
    /// As there. It may be called from async code, which must not use what it gives.
    pub fn connect_lazy(url: &str) -> Result<Client, Error> {
        crate::Client::connect_lazy(url).map(Client::new)
    }

    /// Connects with options.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn build(builder: ClientBuilder) -> Result<Client, Error> {
        outside()?;
        let keeper = builder.keeper()?;
        let handle = keeper.handle().clone();
        block_on(&handle, builder.connect_with(keeper)).map(Client::new)
    }

    /// The blocking face of a client, with which it shares everything: for one that was made
    /// [lazily](ClientBuilder::connect_lazy) with options, or that async code uses as well.
    pub fn of(client: crate::Client) -> Client {
        Client::new(client)
    }

    /// The async client that this one wraps.
    pub fn as_async(&self) -> &crate::Client {
        &self.0
    }

    /// The client's identity: a random UUID.
    pub fn id(&self) -> &str {
        self.0.id()
    }

    /// The lock of that name.
    pub fn lock(&self, name: impl Into<LockName>) -> Lock {
        Lock::new(self.0.lock(name))
    }

    /// The fair lock of that name.
    pub fn fair_lock(&self, name: impl Into<LockName>) -> FairLock {
        FairLock::new(self.0.fair_lock(name))
    }

    /// The fenced lock of that name.
    pub fn fenced_lock(&self, name: impl Into<LockName>) -> FencedLock {
        FencedLock::new(self.0.fenced_lock(name))
    }

    /// The spin lock of that name, with the pauses that [`crate::SpinLock::backoff`] starts from.
    pub fn spin_lock(&self, name: impl Into<LockName>) -> SpinLock {
        SpinLock::new(self.0.spin_lock(name))
    }

    /// The lock of that name that a thread cannot enter twice.
    pub fn non_reentrant_lock(&self, name: impl Into<LockName>) -> NonReentrantLock {
        NonReentrantLock::new(self.0.non_reentrant_lock(name))
    }

    /// The fair lock of that name that a thread cannot enter twice.
    pub fn non_reentrant_fair_lock(&self, name: impl Into<LockName>) -> NonReentrantFairLock {
        NonReentrantFairLock::new(self.0.non_reentrant_fair_lock(name))
    }

    /// The semaphore of that name.
    pub fn semaphore(&self, name: impl Into<LockName>) -> Semaphore {
        Semaphore(self.0.semaphore(name))
    }

    /// The semaphore of that name whose permits have ids and leases.
    pub fn permit_semaphore(&self, name: impl Into<LockName>) -> PermitSemaphore {
        PermitSemaphore(self.0.permit_semaphore(name))
    }

    /// The latch of that name.
    pub fn count_down_latch(&self, name: impl Into<LockName>) -> CountDownLatch {
        CountDownLatch(self.0.count_down_latch(name))
    }

    /// The rate limiter of that name.
    pub fn rate_limiter(&self, name: impl Into<LockName>) -> RateLimiter {
        RateLimiter(self.0.rate_limiter(name))
    }

    /// The owner that this thread is. It stays the same while the thread holds anything, and while the returned value or its
    /// text is in use; a thread that holds nothing is a new owner with its next acquire.
    pub fn owner(&self) -> Owner {
        let owner = thread_owner(&self.0.core);
        owner.pin();
        owner
    }

    /// Reads the state of one name; see [`redlatch::Client::inspect`](crate::Client::inspect).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn inspect(&self, name: impl Into<LockName>) -> Result<LockState, Error> {
        block(&self.0.core, self.0.inspect(name))
    }

    /// Lists locks; see [`redlatch::Client::list`](crate::Client::list).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn list(&self, pattern: Option<&str>, limit: usize) -> Result<Vec<LockState>, Error> {
        block(&self.0.core, self.0.list(pattern, limit))
    }

    /// Lists names of some kinds; see [`redlatch::Client::list_kinds`](crate::Client::list_kinds).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn list_kinds(
        &self,
        kinds: &[LockKind],
        pattern: Option<&str>,
        limit: usize,
    ) -> Result<Vec<LockState>, Error> {
        block(&self.0.core, self.0.list_kinds(kinds, pattern, limit))
    }

    /// What a client tells of itself; see [`redlatch::Client::client_record`](crate::Client::client_record).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn client_record(&self, owner_or_id: &str) -> Result<Option<ClientRecord>, Error> {
        block(&self.0.core, self.0.client_record(owner_or_id))
    }

    /// The clients that tell of themselves; see [`redlatch::Client::clients`](crate::Client::clients).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn clients(&self, limit: usize) -> Result<Vec<ClientRecord>, Error> {
        block(&self.0.core, self.0.clients(limit))
    }

    /// Why a name cannot be had; see [`redlatch::Client::why`](crate::Client::why).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn why(&self, name: impl Into<LockName>) -> Result<Why, Error> {
        block(&self.0.core, self.0.why(name))
    }

    /// Ends the client; see [`redlatch::Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn shutdown(self, limit: Duration) -> Result<ShutdownReport, Error> {
        outside()?;
        let handle = self.0.core.keeper.handle().clone();
        Ok(block_on(&handle, self.0.shutdown(limit)))
    }
}

fn block<T>(core: &Arc<Core>, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    outside()?;
    core.check_open()?;
    block_on(core.keeper.handle(), work)
}

fn thread_owner(core: &Arc<Core>) -> Owner {
    let fresh = || {
        let owner = core.fresh_owner();
        owner.becomes_a_thread();
        owner
    };
    let own = OWNERS.try_with(|owners| {
        let mut owners = owners.borrow_mut();
        let at = Arc::as_ptr(core) as usize;
        if let Some((weak, owner)) = owners.get(&at) {
            // An address may be used again after its client is gone. And a thread that holds nothing gets a new owner: a
            // release of the last one that is still on its way would end its next hold.
            if weak.upgrade().is_some_and(|other| Arc::ptr_eq(&other, core)) && !owner.is_spent() {
                return owner.clone();
            }
        }
        owners.retain(|_, (weak, _)| weak.strong_count() > 0);
        let owner = fresh();
        owners.insert(at, (Arc::downgrade(core), owner.clone()));
        owner
    });
    // A thread that is ending has no owner any more, and cannot lock.
    own.unwrap_or_else(|_| fresh())
}

/// Whether a thread's next acquire would be made as this owner.
fn is_of_this_thread(core: &Arc<Core>, owner: &Owner) -> bool {
    let own = OWNERS.try_with(|owners| {
        let owners = owners.borrow();
        let own = owners.get(&(Arc::as_ptr(core) as usize));
        own.is_some_and(|(weak, own)| {
            own == owner && weak.upgrade().is_some_and(|other| Arc::ptr_eq(&other, core))
        })
    });
    own.unwrap_or(false)
}

fn own_owner() -> Error {
    Error::new(
        crate::ErrorKind::InvalidOption,
        "a hold whose guard may be sent away cannot have this thread's owner",
    )
    .remedy("pass no owner, or one of its own")
}
