//! The face that the handles of all kinds of locks share.

/// Gives a handle, which wraps a [`Locker`](super::locker::Locker), the methods that every lock has; `$guard` is what
/// holding it is.
macro_rules! lock_face {
    ($handle:ident, $guard:ty) => {
        impl std::fmt::Debug for $handle {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($handle)).field("name", &self.0.keys.name).finish_non_exhaustive()
            }
        }

        impl From<&$handle> for $crate::Member {
            fn from(lock: &$handle) -> Self {
                $crate::Member::of(&lock.0)
            }
        }

        impl From<$handle> for $crate::Member {
            fn from(lock: $handle) -> Self {
                $crate::Member::of(&lock.0)
            }
        }

        impl $handle {
            /// The lock's name.
            pub fn name(&self) -> &$crate::LockName {
                self.0.name()
            }

            /// Waits as long as it takes for the lock, and holds it with a lease that is renewed until the guard goes.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future gives up the place in line. A request that is on its way is finished in the background,
            /// and a grant that nobody waits for is released at once.
            ///
            /// # Errors
            ///
            /// A name that is not valid; a server that stays unreachable for the
            /// [outage tolerance](crate::ClientBuilder::outage_tolerance); a key of another type, or a lock of another kind,
            /// under the name.
            pub async fn lock(&self) -> Result<$guard, $crate::Error> {
                self.acquire().wait($crate::Wait::Forever).await?.ok_or_else(|| self.0.endless())
            }

            /// Takes the lock if it is free now; `None` if it is busy.
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), and sooner: a server that refuses the connection is reported at once, one that is silent after
            /// the response timeout (3 s unless set). A request whose answer was lost is asked again for as long, so that nothing is left behind.
            pub async fn try_lock(&self) -> Result<Option<$guard>, $crate::Error> {
                self.acquire().wait($crate::Wait::No).await
            }

            /// Waits at most this long, connecting and retrying included; `None` if it was busy all the time.
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock); trouble that lasts until the end of the time is reported, not hidden as "busy".
            pub async fn lock_for(&self, wait: std::time::Duration) -> Result<Option<$guard>, $crate::Error> {
                self.acquire().wait($crate::Wait::AtMost(wait)).await
            }

            /// Waits for the lock and holds it for at most `lease` (1 ms to 100 years), without renewal.
            ///
            /// # Cancel safety
            ///
            /// As [`lock`](Self::lock).
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock), and [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) for a lease out
            /// of range.
            pub async fn lock_with_lease(&self, lease: std::time::Duration) -> Result<$guard, $crate::Error> {
                self.acquire()
                    .wait($crate::Wait::Forever)
                    .lease($crate::Lease::Fixed(lease))
                    .await?
                    .ok_or_else(|| self.0.endless())
            }

            /// An acquire with options; `await` it.
            ///
            /// # Example
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use redlatch::{Lease, Wait};
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
            /// # let client = redlatch::Client::connect("memory:").await?;
            /// let lock = client.lock("report");
            /// let minute = Lease::Fixed(Duration::from_secs(60));
            /// let held = lock.acquire().wait(Wait::AtMost(Duration::from_secs(2))).lease(minute).await?;
            /// assert!(held.is_some());
            /// # Ok(()) }
            /// ```
            pub fn acquire(&self) -> $crate::Acquire<'_, $guard> {
                $crate::Acquire::new(&self.0)
            }

            /// Frees the lock by force, and says what was found. [`Force`](crate::Force) says from whom, by whom and why.
            ///
            /// The holder is told at once where the server tells of changes, and at its next renewal otherwise, at the latest after a
            /// third of its lease: [`LossReason::Forced`](crate::LossReason::Forced). Waiters are woken.
            ///
            /// # Cancel safety
            ///
            /// Once started it may happen or not.
            ///
            /// # Errors
            ///
            /// Options that are not valid; a server that is unreachable or refuses; a key of another type or lock kind, which is left
            /// alone.
            pub async fn force(&self, force: $crate::Force) -> Result<$crate::Forced, $crate::Error> {
                self.0.force(&force).await
            }

            /// Frees the lock whoever holds it; `true` if somebody did. As [`force`](Self::force), without options.
            ///
            /// # Cancel safety
            ///
            /// Once started it may happen or not.
            ///
            /// # Errors
            ///
            /// As [`force`](Self::force).
            pub async fn force_unlock(&self) -> Result<bool, $crate::Error> {
                Ok(self.0.force(&$crate::Force::new()).await? == $crate::Forced::Released)
            }

            /// Frees the lock only while `owner`, as [`Client::inspect`](crate::Client::inspect) showed it, holds it.
            ///
            /// # Cancel safety
            ///
            /// Once started it may happen or not.
            ///
            /// # Errors
            ///
            /// As [`force`](Self::force).
            pub async fn force_unlock_if(&self, owner: &str) -> Result<$crate::Forced, $crate::Error> {
                self.0.force(&$crate::Force::new().owner(owner)).await
            }

            /// Whether anybody holds the lock.
            ///
            /// # Errors
            ///
            /// A server that is unreachable or refuses.
            pub async fn is_locked(&self) -> Result<bool, $crate::Error> {
                Ok(self.0.query(None).await?.0 != -2)
            }

            /// Whether this owner holds the lock.
            ///
            /// # Errors
            ///
            /// A server that is unreachable or refuses.
            pub async fn is_held_by(&self, owner: &$crate::Owner) -> Result<bool, $crate::Error> {
                Ok(self.hold_count(owner).await? > 0)
            }

            /// How many holds this owner has; 0 if none.
            ///
            /// # Errors
            ///
            /// A server that is unreachable or refuses.
            pub async fn hold_count(&self, owner: &$crate::Owner) -> Result<u32, $crate::Error> {
                let (_, holds) = self.0.query(Some(owner)).await?;
                Ok(u32::try_from(holds).unwrap_or(0))
            }

            /// How long the current hold lasts if it is not renewed; `None` when the lock is free or its key has no TTL.
            ///
            /// # Errors
            ///
            /// A server that is unreachable or refuses.
            pub async fn remaining_ttl(&self) -> Result<Option<std::time::Duration>, $crate::Error> {
                let (ttl, _) = self.0.query(None).await?;
                Ok(u64::try_from(ttl).ok().map(std::time::Duration::from_millis))
            }

            /// Takes up a hold that another process left with an owner ([`Guard::detach`](crate::Guard::detach)): moves it to a
            /// fresh owner, sets its lease anew, and renews it if the lease says so. `None` if that owner no longer holds the lock: of
            /// several processes that adopt one hold, one has it. A fenced lock draws a token for the hold, higher than the one that it had.
            ///
            /// Whether another process still has a guard under the owner cannot be seen here; its hold would be taken from it.
            ///
            /// # Cancel safety
            ///
            /// The hold stays with its owner, or goes back to it in the background. Its lease may have changed.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::AlreadyHeld`](crate::ErrorKind::AlreadyHeld) if a guard of this process holds under the owner, or the owner
            /// holds more than once; [`ErrorKind::WrongLockKind`](crate::ErrorKind::WrongLockKind) if it reads or writes under the name;
            /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) if another attempt or a release of the owner is under way for
            /// longer than the response timeout; a server that is unreachable or refuses; a lease out of range.
            pub async fn adopt(
                &self,
                owner: &$crate::Owner,
                lease: $crate::Lease,
            ) -> Result<Option<$guard>, $crate::Error> {
                let guard = self.0.adopt(owner, lease).await?;
                Ok(guard.map(<$guard as $crate::locks::shared::Hold>::from_guard))
            }

            /// Makes an owner's hold last at least `lease` (1 ms to 100 years) from now; `false` if the owner does not hold
            /// the lock. What is left of its lease is never shortened.
            ///
            /// # Cancel safety
            ///
            /// Once started it may happen or not.
            ///
            /// # Errors
            ///
            /// A server that is unreachable or refuses; a lease out of range.
            pub async fn renew(
                &self,
                owner: &$crate::Owner,
                lease: std::time::Duration,
            ) -> Result<bool, $crate::Error> {
                self.0.renew(owner, lease).await
            }

            /// Gives back one hold of an owner that has no guard here.
            ///
            /// # Cancel safety
            ///
            /// Once started it may happen or not.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::NotOwner`](crate::ErrorKind::NotOwner) if the owner does not hold the lock;
            /// [`ErrorKind::AlreadyHeld`](crate::ErrorKind::AlreadyHeld) if a guard of this client holds under it; a server that
            /// is unreachable or refuses.
            pub async fn release(&self, owner: &$crate::Owner) -> Result<$crate::Unlocked, $crate::Error> {
                self.0.release(owner).await
            }
        }
    };
}

/// Makes a guard type of one kind around the [`Guard`](crate::Guard) that all have in common.
macro_rules! guard_face {
    ($(#[$doc:meta])* $guard:ident) => {
        $(#[$doc])*
        #[must_use = "dropping the guard releases the lock at once"]
        #[derive(Debug)]
        pub struct $guard(pub(crate) $crate::Guard);

        impl $crate::locks::shared::sealed::Sealed for $guard {}

        impl $crate::locks::shared::Hold for $guard {
            fn from_guard(guard: $crate::Guard) -> Self {
                $guard(guard)
            }

            fn as_guard(&self) -> &$crate::Guard {
                &self.0
            }

            fn into_guard(self) -> $crate::Guard {
                self.0
            }
        }

        impl std::ops::Deref for $guard {
            type Target = $crate::Guard;

            fn deref(&self) -> &$crate::Guard {
                &self.0
            }
        }

        impl $guard {
            /// Gives this hold back and says what became of it.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future does not cancel the release: it is finished in the background.
            ///
            /// # Errors
            ///
            /// As [`Guard::unlock`](crate::Guard::unlock).
            pub async fn unlock(self) -> Result<$crate::Unlocked, $crate::Error> {
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
            pub async fn reenter(&self) -> Result<Self, $crate::Error> {
                self.0.reenter().await.map($guard)
            }

            /// Lets the hold go on without a guard; see [`Guard::detach`](crate::Guard::detach).
            pub fn detach(self) -> $crate::Held {
                self.0.detach()
            }

            /// As [`detach`](Self::detach), and the hold lasts for exactly this long; see
            /// [`Guard::detach_for`]($crate::Guard::detach_for).
            ///
            /// # Errors
            ///
            /// As there.
            pub async fn detach_for(self, time: std::time::Duration) -> Result<bool, $crate::Error> {
                self.0.detach_for(time).await
            }
        }
    };
}

pub(crate) use {guard_face, lock_face};
