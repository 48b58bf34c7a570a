//! Locks over several members, for code without async.

use std::{marker::PhantomData, time::Duration};

use super::{OfNoThread, OfThread, is_of_this_thread, own_owner, thread_owner, wait_for};
use crate::{
    Lease, LockName, LostMember, Member, Owner, UnlockReport, Wait, error::Error, locks::shared::members::Who,
};

macro_rules! blocking_set {
    ($set:ident, $acquire:ident, $guard:ident, $async_acquire:ident) => {
        impl $set {
            /// The members' names, in the order of listing.
            pub fn names(&self) -> impl Iterator<Item = &LockName> {
                self.0.names()
            }

            /// Waits as long as it takes.
            ///
            /// # Errors
            ///
            /// As the async form, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
            pub fn lock(&self) -> Result<$guard, Error> {
                self.acquire().wait(Wait::Forever).run()?.ok_or_else(|| self.0.members[0].endless())
            }

            /// Takes it if it is free now.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock).
            pub fn try_lock(&self) -> Result<Option<$guard>, Error> {
                self.acquire().run()
            }

            /// Waits at most this long.
            ///
            /// # Errors
            ///
            /// As [`lock`](Self::lock).
            pub fn lock_for(&self, wait: Duration) -> Result<Option<$guard>, Error> {
                self.acquire().wait(Wait::AtMost(wait)).run()
            }

            /// An acquire with options; end it with `run`. The owner is this thread, as each client knows it.
            pub fn acquire(&self) -> $acquire<'_> {
                let mut inner = self.0.acquire();
                inner.options.who = Who::Each(thread_owner);
                $acquire { inner }
            }
        }

        /// An acquire that is being put together; [`run`](Self::run) it.
        #[must_use = "an acquire does nothing until it is run"]
        #[derive(Debug, Clone)]
        pub struct $acquire<'a> {
            inner: crate::$async_acquire<'a>,
        }

        impl $acquire<'_> {
            /// How long to wait while it is busy; not at all unless set.
            pub fn wait(mut self, wait: Wait) -> Self {
                self.inner = self.inner.wait(wait);
                self
            }

            /// How long the hold lasts; renewed unless set.
            pub fn lease(mut self, lease: Lease) -> Self {
                self.inner = self.inner.lease(lease);
                self
            }

            /// Who will hold every member; this thread unless set.
            pub fn owner(mut self, owner: &Owner) -> Self {
                self.inner = self.inner.owner(owner);
                self
            }

            /// How many replicas have to confirm each member's grant; see the async form.
            pub fn replica_ack(mut self, ack: crate::ReplicaAck) -> Self {
                self.inner = self.inner.replica_ack(ack);
                self
            }

            /// Acquires; `None` if it was busy.
            ///
            /// # Errors
            ///
            /// As the async form, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
            pub fn run(self) -> Result<Option<$guard>, Error> {
                self.run_as()
            }

            /// As [`run`](Self::run), for a hold that is no thread's: it has owners of its own unless one was passed, its guard may be
            /// sent to another thread, and this thread does not enter it.
            ///
            /// # Errors
            ///
            /// As [`run`](Self::run), and [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) if the owner that was passed is this
            /// thread's: it would enter the hold.
            pub fn run_to_send(mut self) -> Result<Option<$guard<OfNoThread>>, Error> {
                match &self.inner.options.who {
                    Who::Each(_) => self.inner.options.who = Who::Fresh,
                    Who::This(owner)
                        if self
                            .inner
                            .set
                            .members
                            .iter()
                            .any(|member| is_of_this_thread(&member.core, owner)) =>
                    {
                        return Err(own_owner());
                    }
                    Who::This(_) | Who::Fresh => {}
                }
                self.run_as()
            }

            fn run_as<T>(self) -> Result<Option<$guard<T>>, Error> {
                let core = self.inner.set.members[0].core.clone();
                let stake = super::Stake::of(&core);
                Ok(wait_for(&core, self.inner.into_future())?.map(|guard| $guard(guard, stake, PhantomData)))
            }
        }

        /// The async guard of the same name, for blocking code. It stays on the thread that took it, whose hold it is, unless it was
        /// taken with `run_to_send`.
        #[must_use = "dropping the guard releases every member at once"]
        #[derive(Debug)]
        pub struct $guard<T = OfThread>(
            crate::$guard,
            #[expect(dead_code, reason = "it counts until it goes")] super::Stake,
            PhantomData<T>,
        );

        impl<T> $guard<T> {
            /// Gives every member back and says what became of each.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code, and
            /// [`ErrorKind::Closed`](crate::ErrorKind::Closed); the members are released in the background then.
            pub fn unlock(self) -> Result<UnlockReport, Error> {
                let core = self.0.members()[0].core().clone();
                wait_for(&core, async { Ok(self.0.unlock().await) })
            }

            /// Waits until the hold is lost, or at most this long; `None` if it is still good.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
            pub fn lost_within(&self, limit: Duration) -> Result<Option<LostMember>, Error> {
                let core = self.0.members()[0].core();
                let lost = self.0.lost();
                wait_for(core, async {
                    let end = core.keeper.sleep(limit);
                    tokio::select! {
                        biased;
                        lost = lost => Ok(Some(lost)),
                        () = end => Ok(None),
                    }
                })
            }

            /// Lets the hold go on without a guard; see the async form.
            pub fn detach(self) -> Vec<crate::Held> {
                self.0.detach()
            }

            /// As [`detach`](Self::detach), and every member is held for exactly this long; see the async form.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code, and
            /// [`ErrorKind::Closed`](crate::ErrorKind::Closed); the members are released in the background then.
            pub fn detach_for(
                self,
                time: Duration,
            ) -> Result<Vec<(crate::LockName, Result<bool, Error>)>, Error> {
                let core = self.0.members()[0].core().clone();
                wait_for(&core, async { Ok(self.0.detach_for(time).await) })
            }

            /// The guard that this one wraps, for the calls that do not block.
            pub fn as_async(&self) -> &crate::$guard {
                &self.0
            }

            /// Whether the hold is good at this moment: no round trip.
            pub fn is_valid(&self) -> bool {
                self.0.is_valid()
            }

            /// Makes every hold last longer; see the async form.
            ///
            /// # Errors
            ///
            /// As there.
            pub fn extend(&self, lease: Duration) -> Result<(), Error> {
                wait_for(self.0.members()[0].core(), self.0.extend(lease))
            }
        }
    };
}

/// A [`redlatch::MultiLock`](crate::MultiLock) for blocking code.
#[derive(Debug, Clone)]
pub struct MultiLock(crate::MultiLock);

blocking_set!(MultiLock, AcquireMulti, MultiGuard, AcquireMulti);

impl MultiLock {
    /// Puts locks together; see [`redlatch::MultiLock::new`](crate::MultiLock::new).
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Example
    ///
    /// ```
    /// use redlatch::blocking::{Client, MultiLock};
    ///
    /// let client = Client::connect("memory:")?;
    /// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
    /// let guard = both.lock()?;
    /// guard.unlock()?.into_result()?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn new<M: Into<Member>>(members: impl IntoIterator<Item = M>) -> Result<Self, Error> {
        crate::MultiLock::new(members).map(MultiLock)
    }

    /// Whether this thread holds every member.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub fn is_held_by_current_thread(&self) -> Result<bool, Error> {
        wait_for(&self.0.members[0].core, async {
            for member in self.0.members.iter() {
                if member.query(Some(&thread_owner(&member.core))).await?.1 == 0 {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

/// A [`redlatch::QuorumLock`](crate::QuorumLock) for blocking code.
#[derive(Debug, Clone)]
pub struct QuorumLock(crate::QuorumLock);

blocking_set!(QuorumLock, AcquireQuorum, QuorumGuard, AcquireQuorum);

impl QuorumLock {
    /// Puts the members together; see [`redlatch::QuorumLock::new`](crate::QuorumLock::new).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn new<M: Into<Member>>(members: impl IntoIterator<Item = M>) -> Result<Self, Error> {
        crate::QuorumLock::new(members).map(QuorumLock)
    }

    /// How long each member has for its answer; see [`redlatch::QuorumLock::member_timeout`](crate::QuorumLock::member_timeout).
    #[must_use]
    pub fn member_timeout(self, limit: Duration) -> Self {
        QuorumLock(self.0.member_timeout(limit))
    }
}
