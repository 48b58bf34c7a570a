//! The read-write lock for threads.

use std::marker::PhantomData;

use super::{Client, Guard, ReadLock, WriteLock, block, is_of_this_thread};
use crate::{LockName, error::Error};

impl Client {
    /// The read-write lock of that name.
    pub fn read_write_lock(&self, name: impl Into<LockName>) -> ReadWriteLock {
        ReadWriteLock(self.0.read_write_lock(name))
    }
}

/// A [`redlatch::ReadWriteLock`](crate::ReadWriteLock) for blocking code.
///
/// Each thread is an owner: a thread that writes may read besides, and a thread that reads and asks to write is refused with
/// [`ErrorKind::UpgradeRefused`](crate::ErrorKind::UpgradeRefused).
///
/// # Example
///
/// ```
/// let client = redlatch::blocking::Client::connect("memory:")?;
/// let prices = client.read_write_lock("prices");
/// let writing = prices.write().lock()?;
/// let reading = writing.downgrade()?;
/// reading.unlock()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ReadWriteLock(crate::ReadWriteLock);

impl ReadWriteLock {
    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// The side for readers.
    pub fn read(&self) -> ReadLock {
        ReadLock::new(self.0.read().clone())
    }

    /// The side for the writer.
    pub fn write(&self) -> WriteLock {
        WriteLock::new(self.0.write().clone())
    }

    /// Lets new readers of this client stand back while a writer of this client waits; see
    /// [`redlatch::ReadWriteLock::prefer_writers`](crate::ReadWriteLock::prefer_writers).
    #[must_use]
    pub fn prefer_writers(self) -> Self {
        ReadWriteLock(self.0.prefer_writers())
    }
}

impl<T> Guard<crate::WriteGuard, T> {
    /// Turns this write hold into a read hold of the same owner; see
    /// [`redlatch::WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn downgrade(self) -> Result<Guard<crate::ReadGuard, T>, Error> {
        let Guard { core, inner, _stake, .. } = self;
        let inner = block(&core, inner.downgrade())?;
        Ok(Guard { core, inner, _stake, _whose: PhantomData })
    }

    /// Takes a read hold of the same owner besides; see [`redlatch::WriteGuard::read`](crate::WriteGuard::read).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) on another thread than the one whose hold it is.
    pub fn read(&self) -> Result<Guard<crate::ReadGuard, T>, Error> {
        self.inner.check_thread(|owner| is_of_this_thread(&self.core, owner))?;
        let inner = block(&self.core, self.inner.read_here())?;
        Ok(Guard { core: self.core.clone(), inner, _stake: self._stake.clone(), _whose: PhantomData })
    }
}
