//! The face that locks over several members share.

/// Gives a lock over several members its methods, its options (`$acquire`) and its guard. The handle has a field `members` and
/// a method `gather`, which acquires.
macro_rules! set_face {
    ($set:ident, $(#[$ack:meta])* $acquire:ident, $(#[$doc:meta])* $guard:ident) => {
        impl std::fmt::Debug for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let names = self.members.iter().map($crate::locks::shared::locker::Locker::name);
                f.debug_tuple(stringify!($set)).field(&names.collect::<Vec<_>>()).finish()
            }
        }

        impl $set {
            /// The members' names, in the order of listing.
            pub fn names(&self) -> impl Iterator<Item = &$crate::LockName> {
                self.members.iter().map($crate::locks::shared::locker::Locker::name)
            }

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
            pub async fn lock(&self) -> Result<$guard, $crate::Error> {
                let guard = self.acquire().wait($crate::Wait::Forever).await?;
                guard.ok_or_else(|| self.members[0].endless())
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
            pub async fn try_lock(&self) -> Result<Option<$guard>, $crate::Error> {
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
            pub async fn lock_for(&self, wait: std::time::Duration) -> Result<Option<$guard>, $crate::Error> {
                self.acquire().wait($crate::Wait::AtMost(wait)).await
            }

            /// Waits, and holds for at most `lease` (1 ms to 100 years), without renewal.
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
                let guard = self.acquire().wait($crate::Wait::Forever).lease($crate::Lease::Fixed(lease)).await?;
                guard.ok_or_else(|| self.members[0].endless())
            }

            /// An acquire with options; `await` it.
            pub fn acquire(&self) -> $acquire<'_> {
                $acquire { set: self, options: Default::default() }
            }
        }

        /// An acquire that is being put together; `await` it for `Result<Option<Guard>, Error>`.
        #[must_use = "an acquire does nothing until it is awaited"]
        #[derive(Clone)]
        pub struct $acquire<'a> {
            pub(crate) set: &'a $set,
            pub(crate) options: $crate::locks::shared::members::Options,
        }

        impl std::fmt::Debug for $acquire<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($acquire))
                    .field("set", self.set)
                    .field("wait", &self.options.wait)
                    .field("lease", &self.options.lease)
                    .finish_non_exhaustive()
            }
        }

        impl $acquire<'_> {
            /// How long to wait while it is busy; not at all unless set.
            pub fn wait(mut self, wait: $crate::Wait) -> Self {
                self.options.wait = wait.or_look();
                self
            }

            /// How long the hold lasts; renewed unless set, with each client's own watchdog lease.
            pub fn lease(mut self, lease: $crate::Lease) -> Self {
                self.options.lease = lease;
                self
            }

            /// Who will hold every member; a fresh owner unless set. A member that this owner holds already is entered once
            /// more.
            pub fn owner(mut self, owner: &$crate::Owner) -> Self {
                self.options.who = $crate::locks::shared::members::Who::This(owner.expose().clone());
                self
            }

            /// How many replicas have to confirm each member's grant, and what happens if too few do; none unless set. See
            /// [`Acquire::replica_ack`](crate::Acquire::replica_ack).
            ///
            /// Members that one request takes are confirmed by one answer; for the others each has the whole time that is
            /// allowed, as far as the wait and the lease allow it.
            $(#[$ack])*
            ///
            /// # Errors
            ///
            /// As there; the error names the member, and the whole set is given back. A shortfall ends the acquire also while it
            /// may still wait.
            pub fn replica_ack(mut self, ack: $crate::ReplicaAck) -> Self {
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
            pub async fn with<T, F>(self, work: F) -> Result<T, $crate::WithError>
            where
                F: AsyncFnOnce(&$guard) -> T,
            {
                let guard = self.await.map_err($crate::WithError::Acquire)?.ok_or($crate::WithError::Busy)?;
                let outcome = guard.protect(work(&guard)).await.map_err($crate::WithError::Lost)?;
                let needed = guard.0.needed;
                let report = guard.unlock().await;
                if let Some(lost) = report.lost(needed) {
                    return Err($crate::WithError::Lost(lost));
                }
                if let Err(error) = report.into_result() {
                    tracing::warn!(%error, "the work is done, but a member could not be released; its lease ends it");
                }
                Ok(outcome)
            }
        }

        impl<'a> IntoFuture for $acquire<'a> {
            type Output = Result<Option<$guard>, $crate::Error>;
            type IntoFuture = std::pin::Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(async move { Ok(self.set.gather(self.options).await?.map($guard)) })
            }
        }

        $(#[$doc])*
        #[must_use = "dropping the guard releases every member at once"]
        #[derive(Debug)]
        pub struct $guard(pub(crate) $crate::locks::shared::members::Holding);

        impl $guard {
            /// Gives every member back and says what became of each. A member whose release fails does not stop the others.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future does not cancel the releases: they are finished in the background.
            pub async fn unlock(self) -> $crate::UnlockReport {
                self.0.unlock().await
            }

            /// Lets the hold go on without a guard: renewal stops, and every member stays held until its lease ends or somebody
            /// releases it by its owner. Answers in the order of listing.
            pub fn detach(self) -> Vec<$crate::Held> {
                self.0.detach()
            }

            /// As [`detach`](Self::detach), and every member is held for exactly this long, as [`Guard::detach_for`]($crate::Guard::detach_for)
            /// does it. Answers for each that was held, in the order of listing.
            ///
            /// # Cancel safety
            ///
            /// Members that have not been asked for yet are given back.
            pub async fn detach_for(
                self,
                time: std::time::Duration,
            ) -> Vec<($crate::LockName, Result<bool, $crate::Error>)> {
                self.0.detach_for(time).await
            }

            /// Whether the hold is good at this moment, by the local clock: no round trip.
            pub fn is_valid(&self) -> bool {
                self.0.is_valid()
            }

            /// How long the hold lasts if no renewal succeeds any more; zero if it is over.
            pub fn remaining(&self) -> std::time::Duration {
                self.0.remaining()
            }

            /// Resolves when the hold is lost, with the member that made it so; never if it is given back.
            ///
            /// # Cancel safety
            ///
            /// Dropping the future changes nothing.
            pub fn lost(&self) -> impl Future<Output = $crate::LostMember> + Send + 'static {
                self.0.lost()
            }

            /// The member whose loss ended the hold, if it is lost.
            pub fn loss(&self) -> Option<$crate::LostMember> {
                self.0.loss()
            }

            /// A token that is cancelled when the hold is lost.
            pub fn loss_token(&self) -> tokio_util::sync::CancellationToken {
                self.0.loss_token()
            }

            /// An error unless the hold is good at this moment: no round trip.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if it is not.
            pub fn check(&self) -> Result<(), $crate::Error> {
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
            pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T, $crate::Error> {
                self.0.protect(work).await
            }

            /// Sets every member's lease to `lease` from now (1 ms to 100 years).
            ///
            /// # Cancel safety
            ///
            /// Once started it may happen to some members and not to others.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the hold is lost; a lease out of range; a server that is
            /// unreachable or refuses.
            pub async fn extend(&self, lease: std::time::Duration) -> Result<(), $crate::Error> {
                self.0.extend(lease).await
            }

            /// How many replicas confirmed the grant of each member that is held, in the order of listing; `None` where none were
            /// asked.
            pub fn replicas(&self) -> impl Iterator<Item = Option<$crate::Replicas>> {
                self.0.guards.iter().map($crate::Guard::replicas)
            }

            /// The guards of the members that are held, in the order of listing.
            pub fn members(&self) -> &[$crate::Guard] {
                &self.0.guards
            }
        }
    };
}

pub(crate) use set_face;
