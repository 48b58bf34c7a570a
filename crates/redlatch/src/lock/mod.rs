//! `Lock`: the reentrant mutual-exclusion lock; shares its state with Redisson's `RLock` (`docs/protocol.md`, lock).

mod acquire;
pub(crate) mod face;
pub(crate) mod force;
mod guard;
pub(crate) mod locker;
mod with;

use std::sync::Arc;

pub use acquire::{Acquire, Lease};
pub use force::Force;
pub use guard::{Guard, Held};
pub use with::WithError;

use self::{face::lock_face, locker::Locker};
use crate::{
    core::{Expected, Heir, Recipe, home::Home, lease::Lease as CoreLease},
    error::{Error, ErrorKind, LossReason},
    name::{Keys, Kind, LockName},
    owner::Owner,
    scripts,
    store::Call,
};

/// The scripts and the channel of the plain lock.
pub(crate) struct Plain;

pub(crate) static PLAIN: Plain = Plain;

impl Recipe for Plain {
    fn acquire(&self, keys: &Keys, owner: &Owner, lease_ms: i64, fenced: bool) -> Call {
        let call = Call::new(&scripts::ACQUIRE).key(&keys.key);
        // The token's key is named only by those who draw one, so that accounts without rights to it can lock.
        let call = if fenced { call.key(keys.token()) } else { call };
        call.int(owner.number()).text(owner.field()).int(lease_ms).constant(if fenced { "1" } else { "0" })
    }

    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> Call {
        Call::new(&scripts::ENTER).key(&keys.key).int(owner.number()).text(owner.field()).int(lease_ms)
    }

    fn release(&self, keys: &Keys, owner: &Owner, publish: &'static str, expected: Expected) -> Call {
        let call = Call::new(&scripts::RELEASE).key(&keys.key).int(owner.number()).text(owner.field());
        expected.named(call.bytes(keys.channel()).constant(publish))
    }

    fn leave(&self, keys: &Keys, owner: &Owner, publish: &'static str, known: u32, lease_ms: i64) -> Call {
        Call::new(&scripts::LEAVE)
            .key(&keys.key)
            .int(owner.number())
            .text(owner.field())
            .bytes(keys.channel())
            .constant(publish)
            .int(known.into())
            .int(lease_ms)
    }

    fn transfer(&self, keys: &Keys, from: &Owner, heir: &Heir<'_>) -> Call {
        let call = Call::new(&scripts::TRANSFER).key(&keys.key);
        let call = if heir.fenced { call.key(keys.token()) } else { call };
        heir.named(
            call.int(heir.owner.number()).text(from.field()).text(heir.owner.field()).int(heir.lease_ms),
        )
    }

    fn renew(&self, batch: i64, leases: &[Arc<CoreLease>], lease_ms: i64) -> Call {
        let call = leases.iter().fold(Call::new(&scripts::RENEW), |call, lease| call.key(&lease.keys.key));
        leases.iter().fold(call.int(batch).int(lease_ms), |call, lease| call.text(lease.owner.field()))
    }

    fn batches(&self) -> bool {
        true
    }

    fn channel(&self, keys: &Keys, _: &Owner) -> Option<Arc<[u8]>> {
        Some(keys.channel().clone())
    }
}

/// What [`Lock::force_unlock_if`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forced {
    /// The lock was held as expected and is free now.
    Released,
    /// Nobody held it.
    WasFree,
    /// Somebody else holds it; nothing was changed.
    OtherOwner,
}

/// A guard of any kind.
///
/// This trait is sealed: it is for naming guards of all kinds, not for making new ones.
pub trait Hold: sealed::Sealed + Send + Sized {
    /// The kind's own guard.
    #[doc(hidden)]
    fn from_guard(guard: Guard) -> Self;

    /// What all kinds of guards have in common.
    fn as_guard(&self) -> &Guard;

    /// The guard without what is special about its kind.
    fn into_guard(self) -> Guard;
}

pub(crate) mod sealed {
    /// Keeps [`Hold`](super::Hold) to the guards of this crate.
    pub trait Sealed {}
}

/// A distributed lock by name: a cheap, shareable description. Holding it is a [`Guard`].
///
/// Every acquire has an owner of its own, so two tasks of one process exclude each other as two processes do; a lock
/// is re-entered only with [`Guard::reenter`] or by passing the same [`Owner`].
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

/// Why a hold ended, for callers that only have the error of a failed operation.
pub(crate) fn lost_error(name: &LockName, owner: &Owner, reason: &LossReason) -> Error {
    Error::new(ErrorKind::Lost, format!("the hold was lost: {reason}"))
        .on(name)
        .by(owner)
        .remedy("stop the work, or make its effects check the fencing token")
}
