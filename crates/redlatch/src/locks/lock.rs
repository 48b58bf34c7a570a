//! `Lock`: the reentrant mutual-exclusion lock; shares its state with Redisson's `RLock` (`docs/protocol.md`, lock).

use crate::{
    core::home::Home,
    keys::Kind,
    locks::shared::{Guard, face::lock_face, locker::Locker},
    name::LockName,
    recipes::PLAIN,
};

/// A distributed lock by name: a cheap, shareable description. Holding it is a [`Guard`].
///
/// Every acquire has an owner of its own, so two tasks of one process exclude each other as two processes do; a lock
/// is re-entered only with [`Guard::reenter`] or by passing the same [`Owner`](crate::Owner).
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// let guard = client.lock("orders").lock().await?;
/// // … the work …
/// guard.unlock().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Lock(pub(crate) Locker);

impl Lock {
    pub(crate) fn new(core: &Home, name: LockName) -> Self {
        Lock(Locker::new(core, name, Kind::Lock, &PLAIN))
    }
}

lock_face!(Lock, Guard);
