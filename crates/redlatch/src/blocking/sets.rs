//! Locks over several members, for code without async.

use std::{fmt, marker::PhantomData, time::Duration};

use super::{DrainOnDrop, OfNoThread, OfThread, block, is_of_this_thread, own_owner, thread_owner};
use crate::{
    DetachedHold, Lease, LockName, LostMember, Member, Owner, ReplicaAck, UnlockReport, Wait,
    error::Error,
    kinds::{self, Multi, Quorum, SetMarker},
    locks::shared::members::Who,
};

/// A [`redlatch::kinds::LockSet`](kinds::LockSet) for blocking code: several locks that are taken as one. `S` is the kind of set;
/// each kind has a name of its own, [`MultiLock`] and [`QuorumLock`].
pub struct LockSet<S: SetMarker>(kinds::LockSet<S>);

impl<S: SetMarker> Clone for LockSet<S> {
    fn clone(&self) -> Self {
        LockSet(self.0.clone())
    }
}

impl<S: SetMarker> fmt::Debug for LockSet<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(S::LOCK).field(&self.0).finish()
    }
}

impl<S: SetMarker> LockSet<S> {
    /// The members' names, in the order of listing.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.0.names()
    }

    /// Waits as long as it takes.
    ///
    /// # Errors
    ///
    /// As the async form, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn lock(&self) -> Result<SetGuard<S>, Error> {
        self.acquire().wait(Wait::Forever).run()?.ok_or_else(|| self.0.members[0].unlimited_wait_error())
    }

    /// Takes it if it is free now.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Option<SetGuard<S>>, Error> {
        self.acquire().run()
    }

    /// Waits at most this long.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn lock_for(&self, wait: Duration) -> Result<Option<SetGuard<S>>, Error> {
        self.acquire().wait(Wait::AtMost(wait)).run()
    }

    /// An acquire with options; end it with [`run`](AcquireSet::run). The owner is this thread, as each client knows it.
    pub fn acquire(&self) -> AcquireSet<'_, S> {
        let mut inner = self.0.acquire();
        inner.options.who = Who::Each(thread_owner);
        AcquireSet { inner }
    }
}

/// An acquire of a [`LockSet`] that is being put together; [`run`](Self::run) it.
#[must_use = "an acquire does nothing until it is run"]
pub struct AcquireSet<'a, S: SetMarker> {
    inner: kinds::AcquireSet<'a, S>,
}

impl<S: SetMarker> Clone for AcquireSet<'_, S> {
    fn clone(&self) -> Self {
        AcquireSet { inner: self.inner.clone() }
    }
}

impl<S: SetMarker> fmt::Debug for AcquireSet<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(S::ACQUIRE).field("inner", &self.inner).finish()
    }
}

impl<S: SetMarker> AcquireSet<'_, S> {
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
    pub fn replica_ack(mut self, ack: ReplicaAck) -> Self {
        self.inner = self.inner.replica_ack(ack);
        self
    }

    /// Acquires; `None` if it was busy.
    ///
    /// # Errors
    ///
    /// As the async form, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn run(self) -> Result<Option<SetGuard<S>>, Error> {
        self.run_as()
    }

    /// As [`run`](Self::run), for a hold that is no thread's: it has owners of its own unless one was passed, its guard may be
    /// sent to another thread, and this thread does not enter it.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) if the owner that was passed is this
    /// thread's: it would enter the hold.
    pub fn run_to_send(mut self) -> Result<Option<SetGuard<S, OfNoThread>>, Error> {
        let members = &self.inner.set.members;
        match &self.inner.options.who {
            Who::Each(_) => self.inner.options.who = Who::Fresh,
            Who::This(owner) if members.iter().any(|member| is_of_this_thread(&member.core, owner)) => {
                return Err(own_owner());
            }
            Who::This(_) | Who::Fresh => {}
        }
        self.run_as()
    }

    fn run_as<T>(self) -> Result<Option<SetGuard<S, T>>, Error> {
        let core = self.inner.set.members[0].core.clone();
        let stake = DrainOnDrop::of(&core);
        Ok(block(&core, self.inner.into_future())?.map(|guard| SetGuard(guard, stake, PhantomData)))
    }
}

/// A [`redlatch::kinds::SetGuard`](kinds::SetGuard) for blocking code; `S` is the kind of set. It stays on the thread that took it,
/// whose hold it is, unless it was taken with [`run_to_send`](AcquireSet::run_to_send).
#[must_use = "dropping the guard releases every member at once"]
pub struct SetGuard<S: SetMarker, T = OfThread>(kinds::SetGuard<S>, DrainOnDrop, PhantomData<T>);

impl<S: SetMarker, T> fmt::Debug for SetGuard<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(S::GUARD).field(&self.0).field(&self.1).field(&self.2).finish()
    }
}

impl<S: SetMarker, T> SetGuard<S, T> {
    /// Gives every member back and says what became of each.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code, and
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed); the members are released in the background then.
    pub fn unlock(self) -> Result<UnlockReport, Error> {
        let core = self.0.members()[0].core().clone();
        block(&core, async { Ok(self.0.unlock().await) })
    }

    /// Waits until the hold is lost, or at most this long; `None` if it is still good.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<LostMember>, Error> {
        let core = self.0.members()[0].core();
        let lost = self.0.lost();
        block(core, async {
            let end = core.keeper.sleep(limit);
            tokio::select! {
                biased;
                lost = lost => Ok(Some(lost)),
                () = end => Ok(None),
            }
        })
    }

    /// Lets the hold go on without a guard; see the async form.
    pub fn detach(self) -> Vec<DetachedHold> {
        self.0.detach()
    }

    /// As [`detach`](Self::detach), and every member is held for exactly this long; see the async form.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code, and
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed); the members are released in the background then.
    #[expect(clippy::type_complexity, reason = "it is what the async form answers, or why it was not asked")]
    pub fn detach_for(self, time: Duration) -> Result<Vec<(LockName, Result<bool, Error>)>, Error> {
        let core = self.0.members()[0].core().clone();
        block(&core, async { Ok(self.0.detach_for(time).await) })
    }

    /// The guard that this one wraps, for the calls that do not block.
    pub fn as_async(&self) -> &kinds::SetGuard<S> {
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
        block(self.0.members()[0].core(), self.0.extend(lease))
    }
}

/// A [`redlatch::MultiLock`](crate::MultiLock) for blocking code. It has the methods of every [`LockSet`]; holding it is a [`MultiGuard`].
///
/// # Example
///
/// ```
/// use redlatch::blocking::{Client, MultiLock};
///
/// let client = Client::connect("memory:")?;
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
/// if let Some(guard) = both.try_lock()? {
///     guard.unlock()?.into_result()?;
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
pub type MultiLock = LockSet<Multi>;

/// A [`redlatch::AcquireMulti`](crate::AcquireMulti) for blocking code. It has the options of every [`AcquireSet`];
/// [`run`](AcquireSet::run) it.
///
/// # Errors
///
/// As the async form, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
///
/// # Example
///
/// ```
/// # use std::time::Duration;
/// use redlatch::{Lease, blocking::{Client, MultiLock}};
///
/// let client = Client::connect("memory:")?;
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
/// let held = both.acquire().lease(Lease::Fixed(Duration::from_secs(60))).run()?;
/// assert!(held.is_some());
/// # Ok::<(), redlatch::Error>(())
/// ```
pub type AcquireMulti<'a> = AcquireSet<'a, Multi>;

/// A [`redlatch::MultiGuard`](crate::MultiGuard) for blocking code. It has the methods of every [`SetGuard`], and stays on the thread that took
/// it, whose hold it is, unless it was taken with [`run_to_send`](AcquireSet::run_to_send).
///
/// # Example
///
/// ```
/// use redlatch::blocking::{Client, MultiLock};
///
/// let client = Client::connect("memory:")?;
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
/// let guard = both.acquire().run_to_send()?.expect("it is free");
/// std::thread::spawn(move || guard.unlock()).join().expect("it has not panicked")?.into_result()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
pub type MultiGuard<T = OfThread> = SetGuard<Multi, T>;

impl LockSet<Multi> {
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
        crate::MultiLock::new(members).map(LockSet)
    }

    /// Whether this thread holds every member.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub fn is_held_by_current_thread(&self) -> Result<bool, Error> {
        block(&self.0.members[0].core, async {
            for member in self.0.members.iter() {
                if member.query(Some(&thread_owner(&member.core))).await?.1 == 0 {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

/// A [`redlatch::QuorumLock`](crate::QuorumLock) for blocking code. It has the methods of every [`LockSet`]; holding it is a [`QuorumGuard`].
///
/// # Example
///
/// ```
/// use redlatch::blocking::{Client, QuorumLock};
///
/// let client = Client::connect("memory:")?;
/// let set = QuorumLock::new([client.lock("orders")])?;
/// if let Some(guard) = set.try_lock()? {
///     guard.unlock()?.into_result()?;
/// }
/// # Ok::<(), redlatch::Error>(())
/// ```
pub type QuorumLock = LockSet<Quorum>;

/// A [`redlatch::AcquireQuorum`](crate::AcquireQuorum) for blocking code. It has the options of every [`AcquireSet`];
/// [`run`](AcquireSet::run) it.
///
/// # Errors
///
/// As the async form, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
///
/// # Example
///
/// ```
/// # use std::time::Duration;
/// use redlatch::{Lease, blocking::{Client, QuorumLock}};
///
/// let client = Client::connect("memory:")?;
/// let set = QuorumLock::new([client.lock("orders")])?;
/// let held = set.acquire().lease(Lease::Fixed(Duration::from_secs(60))).run()?;
/// assert!(held.is_some());
/// # Ok::<(), redlatch::Error>(())
/// ```
pub type AcquireQuorum<'a> = AcquireSet<'a, Quorum>;

/// A [`redlatch::QuorumGuard`](crate::QuorumGuard) for blocking code. It has the methods of every [`SetGuard`], and stays on the thread that took
/// it, whose hold it is, unless it was taken with [`run_to_send`](AcquireSet::run_to_send).
///
/// # Example
///
/// ```
/// use redlatch::blocking::{Client, QuorumLock};
///
/// let client = Client::connect("memory:")?;
/// let set = QuorumLock::new([client.lock("orders")])?;
/// let guard = set.acquire().run_to_send()?.expect("it is free");
/// std::thread::spawn(move || guard.unlock()).join().expect("it has not panicked")?.into_result()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
pub type QuorumGuard<T = OfThread> = SetGuard<Quorum, T>;

impl LockSet<Quorum> {
    /// Puts the members together; see [`redlatch::QuorumLock::new`](crate::QuorumLock::new).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn new<M: Into<Member>>(members: impl IntoIterator<Item = M>) -> Result<Self, Error> {
        crate::QuorumLock::new(members).map(LockSet)
    }

    /// How long each member has for its answer; see [`redlatch::QuorumLock::member_timeout`](crate::QuorumLock::member_timeout).
    #[must_use]
    pub fn member_timeout(self, limit: Duration) -> Self {
        LockSet(self.0.member_timeout(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking::Client;

    #[test]
    fn blocking_sets_show_the_ones_that_they_wrap() {
        let client = Client::connect("memory:").unwrap();
        let both = MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
        assert_eq!(format!("{:?}", both.clone()), format!("MultiLock({:?})", both.0));
        let acquire = both.acquire();
        let shown = format!("{:?}", acquire.clone());
        assert_eq!(shown, format!("AcquireMulti {{ inner: {:?} }}", acquire.inner));
        let guard = acquire.run().unwrap().expect("they are free");
        let shown = format!("{guard:?}");
        assert!(shown.starts_with("MultiGuard(MultiGuard(Holding {"), "{shown}");
        assert!(shown.ends_with("OfThread>)"), "{shown}");
        let quorum = QuorumLock::new([client.lock("q")]).unwrap();
        assert_eq!(format!("{quorum:?}"), "QuorumLock(QuorumLock([LockName(\"q\")]))");
        let guard = quorum.acquire().run_to_send().unwrap().expect("it is free");
        let shown = format!("{guard:?}");
        assert!(shown.starts_with("QuorumGuard(QuorumGuard(Holding {"), "{shown}");
        assert!(shown.ends_with("OfNoThread>)"), "{shown}");
    }
}
