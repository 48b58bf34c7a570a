//! The closure form: the work is stopped when the lock is lost.

use std::fmt;

use super::{Acquire, AnyGuard};
use crate::{
    core::{loss_reason::lost_error, release::Unlocked},
    error::Error,
};

/// Why work under a lock has no result. The text does not repeat that of the cause, which is its [source](std::error::Error::source).
#[derive(Debug)]
#[non_exhaustive]
pub enum WithError {
    /// The lock was busy for as long as the acquire waited; the work was not begun.
    Busy,
    /// The lock could not be acquired; the work was not begun.
    Acquire(Error),
    /// The lock was lost; the work was stopped half-way, or had ended when that was found.
    Lost(Error),
}

impl fmt::Display for WithError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WithError::Busy => f.write_str("the lock was busy"),
            WithError::Acquire(_) => {
                f.write_str("the lock could not be acquired, and the work was not begun")
            }
            WithError::Lost(_) => f.write_str("the lock was lost before the work was done"),
        }
    }
}

impl std::error::Error for WithError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WithError::Busy => None,
            WithError::Acquire(error) | WithError::Lost(error) => Some(error),
        }
    }
}

impl<G: AnyGuard> Acquire<'_, G> {
    /// Acquires the lock, does the work, and releases the lock; work whose lock is lost is dropped half-way.
    ///
    /// The work's own result comes back unchanged, unless the lock turns out to be lost when it is released. A release that fails is
    /// logged, because the lease ends the hold in any case.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases the lock in the background.
    ///
    /// # Errors
    ///
    /// [`WithError`] when the work was not begun or not finished.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// let sum = client.lock("sums").acquire().with(async |_guard| 1 + 2).await?;
    /// assert_eq!(sum, 3);
    /// # Ok(()) }
    /// ```
    pub async fn with<T, F>(self, work: F) -> Result<T, WithError>
    where
        F: AsyncFnOnce(&G) -> T,
    {
        let guard = self.await.map_err(WithError::Acquire)?.ok_or(WithError::Busy)?;
        let outcome = guard.as_guard().protect(work(&guard)).await.map_err(WithError::Lost)?;
        let guard = guard.into_guard();
        let (name, owner) = (guard.name().clone(), guard.lease().owner.clone());
        match guard.unlock().await {
            Ok(Unlocked::AlreadyLost(reason)) => {
                return Err(WithError::Lost(lost_error(&name, &owner, &reason)));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the work is done, but its lock could not be released; its lease ends it");
            }
        }
        Ok(outcome)
    }
}
