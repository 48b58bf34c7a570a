//! `SetGuard`: a hold on several locks that were taken as one.

use std::{fmt, marker::PhantomData, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    DetachedHold, Guard,
    lock_set::SetMarker,
    members::{Holding, LostMember, UnlockReport},
};
use crate::{error::Error, name::LockName, replica_ack::Replicas};

/// A hold on a [`LockSet`](crate::kinds::LockSet) of the kind `S`. [`MultiGuard`](crate::MultiGuard) and
/// [`QuorumGuard`](crate::QuorumGuard) are such guards, and their pages say when the hold is lost.
#[must_use = "dropping the guard releases every member at once"]
pub struct SetGuard<S: SetMarker>(pub(crate) Holding, PhantomData<fn() -> S>);

impl<S: SetMarker> fmt::Debug for SetGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(S::GUARD).field(&self.0).finish()
    }
}

impl<S: SetMarker> SetGuard<S> {
    pub(crate) fn of(holding: Holding) -> Self {
        SetGuard(holding, PhantomData)
    }
}

impl<S: SetMarker> SetGuard<S> {
    /// Gives every member back and says what became of each. A member whose release fails does not stop the others.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the releases: they are finished in the background.
    pub async fn unlock(self) -> UnlockReport {
        self.0.unlock().await
    }

    /// Lets the hold go on without a guard: renewal stops, and every member stays held until its lease ends or it is released
    /// by its owner. Answers in the order of listing.
    pub fn detach(self) -> Vec<DetachedHold> {
        self.0.detach()
    }

    /// As [`detach`](Self::detach), and every member is held for exactly this long, as
    /// [`Guard::detach_for`](crate::Guard::detach_for) does it. Answers for each that was held, in the order of listing.
    ///
    /// # Cancel safety
    ///
    /// It begins at the call, whether the future is polled or not.
    pub fn detach_for(
        self,
        time: Duration,
    ) -> impl Future<Output = Vec<(LockName, Result<bool, Error>)>> + Send + 'static {
        self.0.detach_for(time)
    }

    /// Whether the hold is good at this moment, by the local clock: no round trip.
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// How long the hold lasts if no renewal succeeds any more; zero if it is over.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Resolves when the hold is lost, with the member that made it so; never if it is given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub fn lost(&self) -> impl Future<Output = LostMember> + Send + 'static {
        self.0.lost()
    }

    /// The member whose loss ended the hold, if it is lost.
    pub fn loss(&self) -> Option<LostMember> {
        self.0.loss()
    }

    /// A token that is cancelled when the hold is lost.
    pub fn loss_token(&self) -> CancellationToken {
        self.0.loss_token()
    }

    /// An error unless the hold is good at this moment: no round trip.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if it is not.
    pub fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// Does the work while the lock is held, and stops polling it when the hold is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work; the guard stays as it is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the hold was lost before the work was done.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.0.protect(work).await
    }

    /// Makes every member's hold last at least `lease` from now (2 ms to 100 years); what is left of one is never shortened.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen to some members and not to others.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the hold is lost; a lease out of range; a server that is
    /// unreachable or refuses.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.0.extend(lease).await
    }

    /// How many replicas confirmed the grant of each member that is held, in the order of listing; `None` where none were
    /// asked.
    pub fn replicas(&self) -> impl Iterator<Item = Option<Replicas>> {
        self.0.guards.iter().map(Guard::replicas)
    }

    /// The guards of the members that are held, in the order of listing.
    pub fn members(&self) -> &[Guard] {
        &self.0.guards
    }
}
