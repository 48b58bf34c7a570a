//! `SpinLock`: a lock that is waited for by looking again; shares its state with Redisson's `RSpinLock`
//! (`docs/protocol.md`, spin lock).

use std::sync::Arc;

use crate::{
    core::{Expected, Heir, Recipe, backoff::Backoff, home::Home, lease::Lease},
    lock::{Guard, PLAIN, face::lock_face, force::Forcing, locker::Locker},
    name::{Keys, Kind, LockName},
    owner::Owner,
    store::Call,
};

/// The scripts of the plain lock, without messages.
struct Spin;

static SPIN: Spin = Spin;

/// What stands for the publish command when nobody is to be told.
const SILENT: &str = "";

impl Recipe for Spin {
    fn acquire(&self, keys: &Keys, owner: &Owner, lease_ms: i64, fenced: bool) -> Call {
        PLAIN.acquire(keys, owner, lease_ms, fenced)
    }

    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> Call {
        PLAIN.enter(keys, owner, lease_ms)
    }

    fn release(&self, keys: &Keys, owner: &Owner, _: &'static str, expected: Expected) -> Call {
        PLAIN.release(keys, owner, SILENT, expected)
    }

    fn leave(&self, keys: &Keys, owner: &Owner, _: &'static str, known: u32, lease_ms: i64) -> Call {
        PLAIN.leave(keys, owner, SILENT, known, lease_ms)
    }

    fn transfer(&self, keys: &Keys, from: &Owner, heir: &Heir<'_>) -> Call {
        PLAIN.transfer(keys, from, heir)
    }

    fn renew(&self, batch: i64, leases: &[Arc<Lease>], lease_ms: i64) -> Call {
        PLAIN.renew(batch, leases, lease_ms)
    }

    fn force(&self, keys: &Keys, forcing: &Forcing<'_>) -> Call {
        PLAIN.force(keys, &Forcing { publish: SILENT, ..*forcing })
    }

    fn batches(&self) -> bool {
        true
    }

    fn channel(&self, _: &Keys, _: &Owner) -> Option<Arc<[u8]>> {
        None
    }
}

/// A reentrant lock without messages: nothing is published when it is released, and waiting is looking again after a pause.
///
/// For locks that are held for moments, where a subscription would cost more than it saves. Waiters of a [`Lock`](crate::Lock)
/// of the same name are kept out too, but are not told of a release and find it at their next look.
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
#[derive(Clone)]
pub struct SpinLock(pub(crate) Locker);

impl SpinLock {
    pub(crate) fn new(core: &Home, name: LockName) -> Self {
        let locker = Locker::new(core, name, Kind::Lock, &SPIN);
        SpinLock(Locker { backoff: Some(Backoff::default()), ..locker })
    }

    /// How long to pause between looks; 1 ms doubled up to 128 ms unless set.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.0.backoff = Some(backoff);
        self
    }
}

lock_face!(SpinLock, Guard);
