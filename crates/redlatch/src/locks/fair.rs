//! `FairLock`: a lock that is granted in the order of asking; shares its state with Redisson's `RFairLock`
//! (`docs/protocol.md`, fair lock).

use crate::{
    core::fork_safe::ForkSafeCore,
    keys::KeyKind,
    locks::shared::{
        Guard,
        lock::Lock,
        lock_handle::LockHandle,
        marker::{LockMarker, sealed::Named},
    },
    name::LockName,
    recipes::FAIR,
};
/// Marks the kind of [`FairLock`].
#[derive(Debug)]
pub enum Fair {}

impl Named for Fair {
    const LOCK: &'static str = "FairLock";
    const GUARD: &'static str = "Guard";
}

impl LockMarker for Fair {
    type Guard = Guard;
}

/// A reentrant lock that is granted in the order in which it was asked for, over all processes and languages.
///
/// Every task that waits has a place of its own in a queue on the server. A waiter that gives up or is cancelled leaves the
/// queue at once. One whose process dies is dropped 30 s after it has come to be next, and several that died together a lease and
/// 30 s after their last look at the latest; `local:` drops them at once. `try_lock` never overtakes: it gets the lock only if the
/// queue is empty. All this costs more than a [`Lock`], which is also fair between processes, but only roughly.
///
/// It has the methods of every [`Lock`]; holding it is a [`Guard`](crate::Guard).
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// let turn = client.fair_lock("counter").lock().await?;
/// turn.unlock().await?;
/// # Ok(()) }
/// ```
pub type FairLock = Lock<Fair>;

impl Lock<Fair> {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        Lock::of(LockHandle::new(core, name, KeyKind::Fair, &FAIR))
    }
}
