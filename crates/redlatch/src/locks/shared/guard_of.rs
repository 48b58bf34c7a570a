//! The guards of kinds whose holds can do more than those of all kinds.

use std::{fmt, marker::PhantomData, ops::Deref, time::Duration};

use super::{AnyGuard, DetachedHold, Guard, marker::LockMarker, sealed::Sealed};
use crate::{core::release::Unlocked, error::Error};

/// A hold on a lock of the kind `K`: a [`Guard`] that can do more. [`FencedGuard`](crate::FencedGuard),
/// [`ReadGuard`](crate::ReadGuard) and [`WriteGuard`](crate::WriteGuard) are such guards; the other kinds have a [`Guard`].
#[must_use = "dropping the guard releases the lock at once"]
pub struct GuardOf<K: LockMarker>(pub(crate) Guard, PhantomData<fn() -> K>);

impl<K: LockMarker> fmt::Debug for GuardOf<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(K::GUARD).field(&self.0).finish()
    }
}

impl<K: LockMarker> Sealed for GuardOf<K> {}

impl<K: LockMarker> AnyGuard for GuardOf<K> {
    fn from_guard(guard: Guard) -> Self {
        GuardOf::of(guard)
    }

    fn as_guard(&self) -> &Guard {
        &self.0
    }

    fn into_guard(self) -> Guard {
        self.0
    }
}

impl<K: LockMarker> Deref for GuardOf<K> {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl<K: LockMarker> GuardOf<K> {
    pub(crate) fn of(guard: Guard) -> Self {
        GuardOf(guard, PhantomData)
    }
}

impl<K: LockMarker> GuardOf<K> {
    /// Gives this hold back and says what became of it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release: it is finished in the background.
    ///
    /// # Errors
    ///
    /// As [`Guard::unlock`](crate::Guard::unlock).
    pub async fn unlock(self) -> Result<Unlocked, Error> {
        self.0.unlock().await
    }

    /// Enters the lock once more under the same owner.
    ///
    /// # Cancel safety
    ///
    /// A re-entry that is on its way is finished in the background and given back.
    ///
    /// # Errors
    ///
    /// As [`Guard::reenter`](crate::Guard::reenter).
    pub async fn reenter(&self) -> Result<Self, Error> {
        self.0.reenter().await.map(GuardOf::of)
    }

    /// Lets the hold go on without a guard; see [`Guard::detach`](crate::Guard::detach).
    pub fn detach(self) -> DetachedHold {
        self.0.detach()
    }

    /// As [`detach`](Self::detach), and the hold lasts for exactly this long; see
    /// [`Guard::detach_for`](crate::Guard::detach_for).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn detach_for(self, time: Duration) -> impl Future<Output = Result<bool, Error>> + Send + 'static {
        self.0.detach_for(time)
    }
}
