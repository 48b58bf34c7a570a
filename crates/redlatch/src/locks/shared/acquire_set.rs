//! Taking a set of locks: its methods for that, and its options, which are words (decision D6).

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    time::Duration,
};

use super::{
    Lease, WithError,
    lock_set::{LockSet, SetMarker},
    members::{Options, Who},
    set_guard::SetGuard,
};
use crate::{core::Wait, error::Error, owner::Owner, replica_ack::ReplicaAck};

impl<S: SetMarker> LockSet<S> {
    /// Waits as long as it takes, and holds with a lease that is renewed until the guard goes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up. Requests that are on their way are finished in the background, and whatever they
    /// were granted is released at once.
    ///
    /// # Errors
    ///
    /// As a single lock's; the error names the member.
    pub async fn lock(&self) -> Result<SetGuard<S>, Error> {
        let guard = self.acquire().wait(Wait::Forever).await?;
        guard.ok_or_else(|| self.members[0].unlimited_wait_error())
    }

    /// Takes it if it is free now; `None` if it is busy.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<SetGuard<S>>, Error> {
        self.acquire().await
    }

    /// Waits at most this long, everything included; `None` if it was busy all the time.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); trouble that lasts until the end of the time is reported.
    pub async fn lock_for(&self, wait: Duration) -> Result<Option<SetGuard<S>>, Error> {
        self.acquire().wait(Wait::AtMost(wait)).await
    }

    /// Waits, and holds for at most `lease` (2 ms to 100 years), without renewal.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) for a lease out
    /// of range.
    pub async fn lock_with_lease(&self, lease: Duration) -> Result<SetGuard<S>, Error> {
        let guard = self.acquire().wait(Wait::Forever).lease(Lease::Fixed(lease)).await?;
        guard.ok_or_else(|| self.members[0].unlimited_wait_error())
    }

    /// An acquire with options; `await` it.
    ///
    /// # Example
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redlatch::{MultiLock, Wait};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
    /// let held = both.acquire().wait(Wait::AtMost(Duration::from_secs(2))).await?;
    /// assert!(held.is_some());
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> AcquireSet<'_, S> {
        AcquireSet { set: self, options: Options::new() }
    }
}

/// An acquire of a [`LockSet`] that is being put together; `await` it for `Result<Option<SetGuard<S>>, Error>`.
/// [`AcquireMulti`](crate::AcquireMulti) and [`AcquireQuorum`](crate::AcquireQuorum) are the names of each kind.
#[must_use = "an acquire does nothing until it is awaited"]
pub struct AcquireSet<'a, S: SetMarker> {
    pub(crate) set: &'a LockSet<S>,
    pub(crate) options: Options,
}

impl<S: SetMarker> Clone for AcquireSet<'_, S> {
    fn clone(&self) -> Self {
        AcquireSet { set: self.set, options: self.options.clone() }
    }
}

impl<S: SetMarker> fmt::Debug for AcquireSet<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(S::ACQUIRE)
            .field("set", self.set)
            .field("wait", &self.options.wait)
            .field("lease", &self.options.lease)
            .finish_non_exhaustive()
    }
}

impl<S: SetMarker> AcquireSet<'_, S> {
    /// How long to wait while it is busy; not at all unless set.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.options.wait = wait.zero_as_no_wait();
        self
    }

    /// How long the hold lasts; renewed unless set, with each client's own watchdog lease.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.options.lease = lease;
        self
    }

    /// Who will hold every member; a fresh owner unless set. A member that this owner holds already is entered once
    /// more.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.options.who = Who::This(owner.mark_reusable().clone());
        self
    }

    /// How many replicas have to confirm each member's grant, and what happens if too few do; none unless set. See
    /// [`Acquire::replica_ack`](crate::Acquire::replica_ack).
    ///
    /// Members that one request takes are confirmed by one answer; for the others each has the whole time that is
    /// allowed, as far as the wait and the lease allow it.
    ///
    /// A member of a [`QuorumLock`](crate::QuorumLock) whose replicas fall short is given back and does not count towards the
    /// quorum, unless it is to be kept. The replicas have three quarters of the
    /// [time of a member](crate::QuorumLock::member_timeout) at most.
    ///
    /// # Errors
    ///
    /// As there; the error names the member, and the whole set is given back. A shortfall ends the acquire also while it
    /// may still wait.
    pub fn replica_ack(mut self, ack: ReplicaAck) -> Self {
        self.options.ack = ack;
        self
    }

    /// Acquires, does the work, and releases; work whose lock is lost is dropped half-way.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work and releases in the background.
    ///
    /// # Errors
    ///
    /// [`WithError`](crate::WithError) when the work was not begun or not finished, or when a member turned out to be lost when
    /// it was released.
    pub async fn with<T, F>(self, work: F) -> Result<T, WithError>
    where
        F: AsyncFnOnce(&SetGuard<S>) -> T,
    {
        let guard = self.await.map_err(WithError::Acquire)?.ok_or(WithError::Busy)?;
        let outcome = guard.protect(work(&guard)).await.map_err(WithError::Lost)?;
        let needed = guard.0.needed;
        let report = guard.unlock().await;
        if let Some(lost) = report.lost(needed) {
            return Err(WithError::Lost(lost));
        }
        if let Err(error) = report.into_result() {
            tracing::warn!(%error, "the work is done, but a member could not be released; its lease ends it");
        }
        Ok(outcome)
    }
}

impl<'a, S: SetMarker> IntoFuture for AcquireSet<'a, S> {
    type Output = Result<Option<SetGuard<S>>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(S::gather(self.set, self.options).await?.map(SetGuard::of)) })
    }
}
