//! The rate limiter for threads.

use std::time::Duration;

use super::block;
use crate::{LockName, Rate, error::Error};

/// A [`redlatch::RateLimiter`](crate::RateLimiter) for blocking code.
#[derive(Debug, Clone)]
pub struct RateLimiter(pub(super) crate::RateLimiter);

impl RateLimiter {
    /// The rate limiter's name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Sets the rate if nobody has yet; see [`redlatch::RateLimiter::set_if_absent`](crate::RateLimiter::set_if_absent).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn set_if_absent(&self, rate: Rate) -> Result<bool, Error> {
        block(self.0.core(), self.0.set_if_absent(rate))
    }

    /// Sets the rate whatever it was, and forgets what was taken; see [`redlatch::RateLimiter::set`](crate::RateLimiter::set).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn set(&self, rate: Rate) -> Result<(), Error> {
        block(self.0.core(), self.0.set(rate))
    }

    /// Changes the rate and remembers what was taken; see [`redlatch::RateLimiter::update`](crate::RateLimiter::update).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn update(&self, rate: Rate) -> Result<bool, Error> {
        block(self.0.core(), self.0.update(rate))
    }

    /// Waits as long as it takes for `n` permits; see [`redlatch::RateLimiter::acquire`](crate::RateLimiter::acquire).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn acquire(&self, n: u32) -> Result<(), Error> {
        block(self.0.core(), self.0.acquire(n))
    }

    /// Takes `n` permits if that many are free now; see [`redlatch::RateLimiter::try_acquire`](crate::RateLimiter::try_acquire).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn try_acquire(&self, n: u32) -> Result<bool, Error> {
        block(self.0.core(), self.0.try_acquire(n))
    }

    /// Waits at most this long for `n` permits; see [`redlatch::RateLimiter::acquire_for`](crate::RateLimiter::acquire_for).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn acquire_for(&self, n: u32, wait: Duration) -> Result<bool, Error> {
        block(self.0.core(), self.0.acquire_for(n, wait))
    }

    /// Gives up to `n` permits back before their interval is over; see
    /// [`redlatch::RateLimiter::release`](crate::RateLimiter::release).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn release(&self, n: u32) -> Result<u64, Error> {
        block(self.0.core(), self.0.release(n))
    }

    /// How many permits are free now; see [`redlatch::RateLimiter::available`](crate::RateLimiter::available).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn available(&self) -> Result<i64, Error> {
        block(self.0.core(), self.0.available())
    }

    /// The rate in force; see [`redlatch::RateLimiter::config`](crate::RateLimiter::config).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn config(&self) -> Result<Option<Rate>, Error> {
        block(self.0.core(), self.0.config())
    }

    /// Deletes the rate limiter; see [`redlatch::RateLimiter::delete`](crate::RateLimiter::delete).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn delete(&self) -> Result<bool, Error> {
        block(self.0.core(), self.0.delete())
    }
}
