//! `FencedLock`: a lock whose every grant carries a token that grows; shares its state and its counter with Redisson's
//! `RFencedLock` (`docs/protocol.md`, fenced lock).

use crate::{
    core::fork_safe::ForkSafeCore,
    error::Error,
    keys::KeyKind,
    locks::shared::{
        guard_of::GuardOf,
        lock::Lock,
        lock_handle::LockHandle,
        marker::{LockMarker, sealed::Named},
    },
    name::LockName,
    recipes::PLAIN,
};

/// A hold on a [`FencedLock`]: a [`Guard`](crate::Guard) that has a token for certain.
pub type FencedGuard = GuardOf<Fenced>;

impl GuardOf<Fenced> {
    /// The fencing token: above every token that was drawn for the name before, by any client in any language. A re-entry
    /// has the token of the hold that it entered.
    pub fn token(&self) -> u64 {
        // The acquire refuses a grant without a token, so there always is one.
        self.0.token().unwrap_or_default()
    }
}
/// Marks the kind of [`FencedLock`].
#[derive(Debug)]
pub enum Fenced {}

impl Named for Fenced {
    const LOCK: &'static str = "FencedLock";
    const GUARD: &'static str = "FencedGuard";
}

impl LockMarker for Fenced {
    type Guard = FencedGuard;
}

/// A reentrant lock whose every grant draws a fencing token.
///
/// A resource that remembers the highest token it has seen, and refuses lower ones, accepts no write of a holder whose lease
/// ran out while it was paused. Tokens are drawn by the script that grants, so order of grants and order of tokens are
/// the same. The floor of each token is the server's clock in microseconds: after the counter was lost (FLUSHALL, a restart
/// without data) tokens still grow, unless the clock was set back. That is a mitigation, not a proof.
///
/// It has the methods of every [`Lock`]; holding it is a [`FencedGuard`].
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// let lock = client.fenced_lock("ledger");
/// let first = lock.lock().await?;
/// let token = first.token();
/// first.unlock().await?;
/// assert!(lock.lock().await?.token() > token);
/// assert!(lock.token().await? > Some(token));
/// # Ok(()) }
/// ```
pub type FencedLock = Lock<Fenced>;

impl Lock<Fenced> {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        Lock::of(LockHandle { fenced: true, ..LockHandle::new(core, name, KeyKind::Lock, &PLAIN) })
    }

    /// The last token that was drawn; `None` if none was.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses; a token key that holds no number.
    pub async fn token(&self) -> Result<Option<u64>, Error> {
        self.0.last_token().await
    }
}
