//! `SpinLock`: a lock that is waited for by looking again; shares its state with Redisson's `RSpinLock`
//! (`docs/protocol.md`, spin lock).

use crate::{
    backoff::Backoff,
    core::fork_safe::ForkSafeCore,
    keys::KeyKind,
    locks::shared::{
        Guard,
        lock::Lock,
        lock_handle::LockHandle,
        marker::{LockMarker, sealed::Named},
    },
    name::LockName,
    recipes::SPIN,
};
/// Marks the kind of [`SpinLock`].
#[derive(Debug)]
pub enum Spin {}

impl Named for Spin {
    const LOCK: &'static str = "SpinLock";
    const GUARD: &'static str = "Guard";
}

impl LockMarker for Spin {
    type Guard = Guard;
}

/// A reentrant lock without messages: nothing is published when it is released, and waiting is looking again after a pause.
///
/// For locks that are held for moments, where a subscription would cost more than it saves. Waiters of a [`Lock`]
/// of the same name are kept out too, but are not told of a release and find it at their next look.
///
/// It has the methods of every [`Lock`]; holding it is a [`Guard`](crate::Guard).
///
/// # Example
///
/// ```
/// # use std::time::Duration;
/// # use redlatch::Backoff;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// let lock = client.spin_lock("counter").backoff(Backoff::constant(Duration::from_millis(64))?);
/// lock.lock().await?.unlock().await?;
/// # Ok(()) }
/// ```
pub type SpinLock = Lock<Spin>;

impl Lock<Spin> {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        let handle = LockHandle::new(core, name, KeyKind::Lock, &SPIN);
        Lock::of(LockHandle { backoff: Some(Backoff::default()), ..handle })
    }

    /// How long to pause between looks; 1 ms doubled up to 128 ms unless set.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.0.backoff = Some(backoff);
        self
    }
}
