//! Leased permits for blocking code.

use std::{fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{DrainOnDrop, block};
use crate::{
    Lease, LockName, PermitLease, Unlocked, Wait,
    core::Core,
    error::{Error, ErrorKind, LossReason},
};

/// A [`redlatch::PermitSemaphore`](crate::PermitSemaphore) for blocking code.
#[derive(Debug, Clone)]
pub struct PermitSemaphore(pub(super) crate::PermitSemaphore);

impl PermitSemaphore {
    /// The semaphore's name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Waits as long as it takes for one permit; see [`redlatch::PermitSemaphore::acquire`](crate::PermitSemaphore::acquire).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn acquire(&self) -> Result<PermitGuard, Error> {
        let inner = block(self.0.core(), self.0.acquire())?;
        let core = self.0.core();
        Ok(PermitGuard { core: core.clone(), inner, _stake: DrainOnDrop::of(core) })
    }

    /// Takes one permit if one is free now; see [`redlatch::PermitSemaphore::try_acquire`](crate::PermitSemaphore::try_acquire).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn try_acquire(&self) -> Result<Option<PermitGuard>, Error> {
        self.request().run()
    }

    /// Waits at most this long for one permit; see
    /// [`redlatch::PermitSemaphore::acquire_for`](crate::PermitSemaphore::acquire_for).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn acquire_for(&self, wait: Duration) -> Result<Option<PermitGuard>, Error> {
        self.request().wait(Wait::AtMost(wait)).run()
    }

    /// A request with options, as [`redlatch::PermitSemaphore::request`](crate::PermitSemaphore::request).
    pub fn request(&self) -> PermitRequest<'_> {
        PermitRequest { inner: self.0.request(), core: self.0.core(), cancel: None }
    }

    /// Gives a permit back by its id; see [`redlatch::PermitSemaphore::release`](crate::PermitSemaphore::release).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn release(&self, id: &str) -> Result<(), Error> {
        block(self.0.core(), self.0.release(id))
    }

    /// Gives permits back by their ids, all or none; see
    /// [`redlatch::PermitSemaphore::release_all`](crate::PermitSemaphore::release_all).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn release_all(&self, ids: &[impl AsRef<str>]) -> Result<(), Error> {
        block(self.0.core(), self.0.release_all(ids))
    }

    /// Sets the lease of a permit anew; see [`redlatch::PermitSemaphore::update_lease`](crate::PermitSemaphore::update_lease).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn update_lease(&self, id: &str, lease: Duration) -> Result<bool, Error> {
        block(self.0.core(), self.0.update_lease(id, lease))
    }

    /// For how long a permit is taken; see [`redlatch::PermitSemaphore::lease_of`](crate::PermitSemaphore::lease_of).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn lease_of(&self, id: &str) -> Result<Option<PermitLease>, Error> {
        block(self.0.core(), self.0.lease_of(id))
    }

    /// How many permits are free; see [`redlatch::PermitSemaphore::available`](crate::PermitSemaphore::available).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn available(&self) -> Result<i64, Error> {
        block(self.0.core(), self.0.available())
    }

    /// How many permits are taken; see [`redlatch::PermitSemaphore::acquired`](crate::PermitSemaphore::acquired).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn acquired(&self) -> Result<i64, Error> {
        block(self.0.core(), self.0.acquired())
    }

    /// How many permits there are; see [`redlatch::PermitSemaphore::total`](crate::PermitSemaphore::total).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn total(&self) -> Result<i64, Error> {
        block(self.0.core(), self.0.total())
    }

    /// Sets the number of permits if nobody has yet; see
    /// [`redlatch::PermitSemaphore::set_if_absent`](crate::PermitSemaphore::set_if_absent).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn set_if_absent(&self, n: u32) -> Result<bool, Error> {
        block(self.0.core(), self.0.set_if_absent(n))
    }

    /// Sets the number of permits; see [`redlatch::PermitSemaphore::set`](crate::PermitSemaphore::set).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn set(&self, n: u32) -> Result<i64, Error> {
        block(self.0.core(), self.0.set(n))
    }

    /// Changes the number of permits; see [`redlatch::PermitSemaphore::add`](crate::PermitSemaphore::add).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn add(&self, change: i32) -> Result<i64, Error> {
        block(self.0.core(), self.0.add(change))
    }

    /// Deletes all permits; see [`redlatch::PermitSemaphore::delete`](crate::PermitSemaphore::delete).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn delete(&self) -> Result<bool, Error> {
        block(self.0.core(), self.0.delete())
    }

    /// Has all permits deleted after this time; see [`redlatch::PermitSemaphore::expire`](crate::PermitSemaphore::expire).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn expire(&self, ttl: Duration) -> Result<bool, Error> {
        block(self.0.core(), self.0.expire(ttl))
    }
}

/// A [`redlatch::PermitRequest`](crate::PermitRequest) for blocking code.
#[must_use = "a request does nothing until it is run"]
pub struct PermitRequest<'a> {
    inner: crate::PermitRequest<'a>,
    core: &'a Arc<Core>,
    cancel: Option<CancellationToken>,
}

impl fmt::Debug for PermitRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PermitRequest<'_> {
    /// How many permits (1 to 1,000), all at once or none; 1 unless set.
    pub fn permits(mut self, n: u32) -> Self {
        self.inner = self.inner.permits(n);
        self
    }

    /// How long to wait while too few are free; not at all unless set.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.inner = self.inner.wait(wait);
        self
    }

    /// How long they are taken for; renewed unless set.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.inner = self.inner.lease(lease);
        self
    }

    /// Takes them without a lease; see [`redlatch::PermitRequest::permanent`](crate::PermitRequest::permanent).
    pub fn permanent(mut self) -> Self {
        self.inner = self.inner.permanent();
        self
    }

    /// How many replicas have to confirm them; see [`redlatch::PermitRequest::replica_ack`](crate::PermitRequest::replica_ack).
    pub fn replica_ack(mut self, ack: crate::ReplicaAck) -> Self {
        self.inner = self.inner.replica_ack(ack);
        self
    }

    /// Ends the wait with [`ErrorKind::Cancelled`] when this token is cancelled.
    pub fn cancel(mut self, token: &CancellationToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }

    /// Takes the permits; `None` if too few were free.
    ///
    /// # Errors
    ///
    /// As the async form, [`ErrorKind::Cancelled`], and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn run(self) -> Result<Option<PermitGuard>, Error> {
        let PermitRequest { inner, core, cancel } = self;
        let guard = block(core, async {
            let cancelled = async {
                match &cancel {
                    Some(token) => token.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                guard = std::future::IntoFuture::into_future(inner) => guard,
                () = cancelled => Err(Error::new(ErrorKind::Cancelled, "the wait was cancelled")),
            }
        })?;
        Ok(guard.map(|inner| PermitGuard { core: core.clone(), inner, _stake: DrainOnDrop::of(core) }))
    }
}

/// A [`redlatch::PermitGuard`](crate::PermitGuard) for blocking code.
#[must_use = "dropping the guard gives the permits back at once"]
pub struct PermitGuard {
    core: Arc<Core>,
    inner: crate::PermitGuard,
    /// Goes last.
    _stake: DrainOnDrop,
}

impl fmt::Debug for PermitGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PermitGuard {
    /// The guard that this one wraps, for the calls that do not block.
    pub fn as_async(&self) -> &crate::PermitGuard {
        &self.inner
    }

    /// The id of the permit, 32 hexadecimal digits; of the first one if there are several.
    pub fn id(&self) -> &str {
        self.inner.id()
    }

    /// The ids of all permits.
    pub fn ids(&self) -> Vec<String> {
        self.inner.ids()
    }

    /// Whether the permits are ours at this moment: no round trip.
    pub fn is_valid(&self) -> bool {
        self.inner.is_valid()
    }

    /// Waits until the permits are lost, or at most this long; `None` if they are still ours.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<LossReason>, Error> {
        let lost = self.inner.lost();
        block(&self.core, async {
            let end = self.core.keeper.sleep(limit);
            tokio::select! {
                biased;
                reason = lost => Ok(Some(reason)),
                () = end => Ok(None),
            }
        })
    }

    /// Makes the permits last longer; see [`redlatch::PermitGuard::extend`](crate::PermitGuard::extend).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        block(&self.core, self.inner.extend(lease))
    }

    /// Gives the permits back; see [`redlatch::PermitGuard::release`](crate::PermitGuard::release).
    ///
    /// # Errors
    ///
    /// As there, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn release(self) -> Result<Unlocked, Error> {
        let PermitGuard { core, inner, _stake } = self;
        block(&core, inner.release())
    }

    /// Lets the permits live on without a guard; see [`redlatch::PermitGuard::detach`](crate::PermitGuard::detach).
    pub fn detach(self) -> Vec<String> {
        self.inner.detach()
    }
}
