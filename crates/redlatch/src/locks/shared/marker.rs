//! What tells the kinds of locks apart in the type of a handle.

use super::AnyGuard;

/// A type that stands for one kind of lock: the `K` of [`Lock<K>`](crate::Lock).
///
/// This trait is sealed: it is for naming locks of all kinds, not for making new ones. The kinds are in
/// [`kinds`](crate::kinds).
///
/// # Example
///
/// ```
/// use redlatch::{Client, Error, Lock, kinds::LockMarker};
///
/// async fn is_free<K: LockMarker>(lock: &Lock<K>) -> Result<bool, Error> {
///     Ok(!lock.is_locked().await?)
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = Client::connect("memory:").await?;
/// assert!(is_free(&client.lock("orders")).await? && is_free(&client.fair_lock("turns")).await?);
/// # Ok(()) }
/// ```
pub trait LockMarker: sealed::Named + 'static {
    /// What holding a lock of this kind is.
    type Guard: AnyGuard + 'static;
}

pub(crate) mod sealed {
    /// Keeps [`LockMarker`](super::LockMarker) to the kinds of this crate.
    pub trait Named {
        /// What the handle calls itself.
        const LOCK: &'static str;
        /// What the guard calls itself.
        const GUARD: &'static str;
    }
}
