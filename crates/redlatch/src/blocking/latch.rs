//! The latch for threads.

use std::time::Duration;

use super::block;
use crate::{LockName, error::Error};

/// A [`redlatch::CountDownLatch`](crate::CountDownLatch) for blocking code.
#[derive(Debug, Clone)]
pub struct CountDownLatch(pub(super) crate::CountDownLatch);

impl CountDownLatch {
    /// The latch's name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Closes the latch with a count if it has none; see
    /// [`redlatch::CountDownLatch::set_if_absent`](crate::CountDownLatch::set_if_absent).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn set_if_absent(&self, count: u32) -> Result<bool, Error> {
        block(self.0.core(), self.0.set_if_absent(count))
    }

    /// Counts down by one; see [`redlatch::CountDownLatch::count_down`](crate::CountDownLatch::count_down).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn count_down(&self) -> Result<u64, Error> {
        block(self.0.core(), self.0.count_down())
    }

    /// The count; see [`redlatch::CountDownLatch::count`](crate::CountDownLatch::count).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn count(&self) -> Result<u64, Error> {
        block(self.0.core(), self.0.count())
    }

    /// Waits as long as it takes until the latch is open; see [`redlatch::CountDownLatch::wait`](crate::CountDownLatch::wait).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn wait(&self) -> Result<(), Error> {
        block(self.0.core(), self.0.wait())
    }

    /// Waits at most this long until the latch is open; see
    /// [`redlatch::CountDownLatch::wait_for`](crate::CountDownLatch::wait_for).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn wait_for(&self, limit: Duration) -> Result<bool, Error> {
        block(self.0.core(), self.0.wait_for(limit))
    }

    /// Takes the count away and lets everybody through; see [`redlatch::CountDownLatch::delete`](crate::CountDownLatch::delete).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn delete(&self) -> Result<bool, Error> {
        block(self.0.core(), self.0.delete())
    }
}
