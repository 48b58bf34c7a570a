//! `ReadWriteLock`: many readers or one writer; shares its state with Redisson's `RReadWriteLock` (`docs/protocol.md`,
//! read-write lock).

use std::{fmt, sync::Arc};

use crate::{
    core::fork_safe::ForkSafeCore,
    error::Error,
    keys::{KeyKind, Keys},
    locks::shared::{
        Guard,
        guard_of::GuardOf,
        lock::Lock,
        lock_handle::LockHandle,
        marker::{LockMarker, sealed::Named},
    },
    name::LockName,
    owner::Owner,
    recipes::{READ, WRITE},
};

/// A lock with two sides: any number of readers, or one writer.
///
/// The sides are locks of their own, [`read`](Self::read) and [`write`](Self::write). As in Redisson, a writer may read
/// besides ([`WriteGuard::read`]) and turn into a reader ([`WriteGuard::downgrade`]); a reader cannot turn into a writer, and
/// asking for that is [`ErrorKind::UpgradeRefused`](crate::ErrorKind::UpgradeRefused) at once instead of a wait for oneself,
/// where the read hold is in this process or the owner came from another one. Where another process has the read hold of an owner of this client, the writer waits for its end, and is refused when it is made to last for longer.
///
/// Readers that come and go without a gap keep writers waiting for ever; see [`prefer_writers`](Self::prefer_writers).
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// let prices = client.read_write_lock("prices");
/// let (one, two) = (prices.read().lock().await?, prices.read().lock().await?);
/// assert!(prices.write().try_lock().await?.is_none());
/// one.unlock().await?;
/// two.unlock().await?;
///
/// let writing = prices.write().lock().await?;
/// // … write …
/// let reading = writing.downgrade().await?;
/// // … nobody has written in between, and others may read again …
/// reading.unlock().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ReadWriteLock {
    read: ReadLock,
    write: WriteLock,
}

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadWriteLock").field("name", self.name()).finish_non_exhaustive()
    }
}

impl ReadWriteLock {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        let read = LockHandle::new(core, name.clone(), KeyKind::Read, &READ);
        let mut write = LockHandle::new(core, name, KeyKind::Write, &WRITE);
        write.keys = Arc::new(Keys::writing_beside(&read.keys));
        ReadWriteLock { read: Lock::of(read), write: Lock::of(write) }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.read.name()
    }

    /// The side for readers.
    pub fn read(&self) -> &ReadLock {
        &self.read
    }

    /// The side for the writer.
    pub fn write(&self) -> &WriteLock {
        &self.write
    }

    /// Lets new readers of this client stand back while a writer of this client waits.
    ///
    /// The gate is local: readers of other clients and of Java know nothing of it. It holds a reader back for at most 3 s,
    /// because what the writer waits for may be waiting for this very reader; `try_lock` answers `None` meanwhile. Holds that an
    /// owner has already are entered again without regard to it.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// let prices = client.read_write_lock("prices").prefer_writers();
    /// prices.read().lock().await?.unlock().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn prefer_writers(mut self) -> Self {
        self.read.0.local_writers_first = Some(self.write.0.keys.clone());
        self
    }
}
/// Marks the kind of [`ReadLock`].
#[derive(Debug)]
pub enum Read {}

impl Named for Read {
    const LOCK: &'static str = "ReadLock";
    const GUARD: &'static str = "ReadGuard";
}

impl LockMarker for Read {
    type Guard = ReadGuard;
}

/// The read side of a [`ReadWriteLock`]: busy while another owner writes.
///
/// `is_locked` says whether there is a reader, and `force_unlock` ends all read holds unless there is a writer.
///
/// It has the methods of every [`Lock`]; holding it is a [`ReadGuard`].
pub type ReadLock = Lock<Read>;
/// Marks the kind of [`WriteLock`].
#[derive(Debug)]
pub enum Write {}

impl Named for Write {
    const LOCK: &'static str = "WriteLock";
    const GUARD: &'static str = "WriteGuard";
}

impl LockMarker for Write {
    type Guard = WriteGuard;
}

/// The write side of a [`ReadWriteLock`]: busy while anybody else reads or writes.
///
/// `is_locked` says whether there is a writer, and `force_unlock` ends the write hold and the writer's read holds.
///
/// It has the methods of every [`Lock`]; holding it is a [`WriteGuard`].
pub type WriteLock = Lock<Write>;

/// A read hold on a [`ReadWriteLock`].
pub type ReadGuard = GuardOf<Read>;

/// The write hold on a [`ReadWriteLock`].
pub type WriteGuard = GuardOf<Write>;

impl GuardOf<Write> {
    /// Turns this write hold into a read hold of the same owner, with a lease of the same kind: nobody else can write in
    /// between. Other readers may come in.
    ///
    /// It takes two round trips: the owner reads beside ([`read`](Self::read)), and then gives the write hold back. If the owner has other
    /// write holds they stay, and shut others out as before. Replicas are not asked: the read hold stands
    /// for what the write hold was confirmed with ([`Guard::replicas`]).
    ///
    /// # Cancel safety
    ///
    /// A downgrade that is on its way is finished in the background, and the read hold is given back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the hold is lost; [`ErrorKind::OwnerInDoubt`](crate::ErrorKind::OwnerInDoubt) if an earlier request of the owner was never answered that
    /// would end the read hold, or if the server may count another write hold of it; [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) if a request of the owner is not
    /// answered; a server that is unreachable or refuses. After an error nothing is held. If the server did not answer and other processes may use the owner,
    /// the lease ends what is left.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// let prices = client.read_write_lock("prices");
    /// let reading = prices.write().lock().await?.downgrade().await?;
    /// assert!(prices.read().try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        self.0.downgrade().await.map(GuardOf::of)
    }

    /// Takes a read hold of the same owner besides, with a lease of the same kind. It is a hold of its own: when the write hold
    /// goes first, the lock stays held for reading. No replicas are asked; an [acquire](ReadLock::acquire) with this owner can
    /// ask.
    ///
    /// # Cancel safety
    ///
    /// A request that is on its way is finished in the background and given back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the write hold is lost; [`ErrorKind::OwnerInDoubt`](crate::ErrorKind::OwnerInDoubt) if an earlier request of the owner was never answered that
    /// would end the read hold; [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) if an earlier read hold of the owner is still being given
    /// back after three times the response timeout; [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) for the hold of a blocking thread, whose own
    /// [guard](crate::blocking::Guard::read) does it; a server that is unreachable or refuses.
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.0.lease().owner.check_may_be_sent().map_err(|error| error.on(self.0.name()))?;
        self.read_here().await
    }

    /// Refuses where the hold is a thread's, unless `is_here` says that it is this one's.
    pub(crate) fn check_thread(&self, is_here: impl FnOnce(&Owner) -> bool) -> Result<(), Error> {
        let owner = &self.0.lease().owner;
        match is_here(owner) {
            true => Ok(()),
            false => owner.check_may_be_sent().map_err(|error| error.on(self.0.name())),
        }
    }

    /// As [`read`](Self::read), for a guard that stays where this one is.
    pub(crate) async fn read_here(&self) -> Result<ReadGuard, Error> {
        self.0.check()?;
        let core = self.0.core();
        let grant = core.read_beside(self.0.lease(), self.0.lease_term(), None).await?;
        Ok(GuardOf::of(Guard::new(core.clone(), grant.lease, grant.lease_term, true)))
    }
}
