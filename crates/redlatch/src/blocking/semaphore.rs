//! The semaphore for threads.

use std::time::Duration;

use super::block;
use crate::{LockName, error::Error};

/// A [`redlatch::Semaphore`](crate::Semaphore) for blocking code.
#[derive(Debug, Clone)]
pub struct Semaphore(pub(super) crate::Semaphore);

impl Semaphore {
    /// The semaphore's name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Waits as long as it takes for `n` permits; see [`redlatch::Semaphore::acquire`](crate::Semaphore::acquire).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn acquire(&self, n: u32) -> Result<(), Error> {
        block(self.0.core(), self.0.acquire(n))
    }

    /// Takes `n` permits if that many are free now; see [`redlatch::Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn try_acquire(&self, n: u32) -> Result<bool, Error> {
        block(self.0.core(), self.0.try_acquire(n))
    }

    /// Waits at most this long for `n` permits; see [`redlatch::Semaphore::acquire_for`](crate::Semaphore::acquire_for).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn acquire_for(&self, n: u32, wait: Duration) -> Result<bool, Error> {
        block(self.0.core(), self.0.acquire_for(n, wait))
    }

    /// Puts `n` permits in; see [`redlatch::Semaphore::release`](crate::Semaphore::release).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn release(&self, n: u32) -> Result<(), Error> {
        block(self.0.core(), self.0.release(n))
    }

    /// Puts `n` permits in if the semaphore exists; see
    /// [`redlatch::Semaphore::release_if_exists`](crate::Semaphore::release_if_exists).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn release_if_exists(&self, n: u32) -> Result<bool, Error> {
        block(self.0.core(), self.0.release_if_exists(n))
    }

    /// How many permits are free; see [`redlatch::Semaphore::available`](crate::Semaphore::available).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn available(&self) -> Result<i64, Error> {
        block(self.0.core(), self.0.available())
    }

    /// Deletes the semaphore; see [`redlatch::Semaphore::delete`](crate::Semaphore::delete).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn delete(&self) -> Result<bool, Error> {
        block(self.0.core(), self.0.delete())
    }

    /// Takes all free permits; see [`redlatch::Semaphore::drain`](crate::Semaphore::drain).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn drain(&self) -> Result<i64, Error> {
        block(self.0.core(), self.0.drain())
    }

    /// Sets the number of permits if nobody has yet; see [`redlatch::Semaphore::set_if_absent`](crate::Semaphore::set_if_absent).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn set_if_absent(&self, n: u32, ttl: Option<Duration>) -> Result<bool, Error> {
        block(self.0.core(), self.0.set_if_absent(n, ttl))
    }

    /// Changes the number of permits; see [`redlatch::Semaphore::add`](crate::Semaphore::add).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn add(&self, change: i32) -> Result<i64, Error> {
        block(self.0.core(), self.0.add(change))
    }
}
