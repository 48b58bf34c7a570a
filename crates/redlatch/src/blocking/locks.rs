//! Locks of all kinds for blocking code; each thread is an owner of its own unless one is passed.

use std::{fmt, future::IntoFuture, marker::PhantomData, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{DrainOnDrop, block, is_of_this_thread, own_owner, thread_owner};
use crate::{
    AnyGuard, DetachedHold, Force, Forced, Lease, LockName, Unlocked, Wait,
    core::Core,
    error::{Error, ErrorKind, LossReason},
    kinds::{Fair, Fenced, LockMarker, NonReentrant, NonReentrantFair, Plain, Read, Spin, Write},
    owner::Owner,
};

/// A [`redlatch::Lock`](crate::Lock) for blocking code. `K` is the kind of lock; `Lock` without it is the plain lock, and the other
/// kinds have names of their own.
pub struct Lock<K: LockMarker = Plain>(crate::Lock<K>);

impl<K: LockMarker> Clone for Lock<K> {
    fn clone(&self) -> Self {
        Lock(self.0.clone())
    }
}

impl<K: LockMarker> fmt::Debug for Lock<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(K::LOCK).field(&self.0).finish()
    }
}

impl<K: LockMarker> From<&Lock<K>> for crate::Member {
    fn from(lock: &Lock<K>) -> Self {
        crate::Member::from(&lock.0)
    }
}

impl<K: LockMarker> From<Lock<K>> for crate::Member {
    fn from(lock: Lock<K>) -> Self {
        crate::Member::from(lock.0)
    }
}

impl<K: LockMarker> Lock<K> {
    pub(crate) fn new(inner: crate::Lock<K>) -> Self {
        Lock(inner)
    }

    fn core(&self) -> &Arc<Core> {
        &self.0.0.core
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// The async lock that this one wraps.
    pub fn as_async(&self) -> &crate::Lock<K> {
        &self.0
    }

    /// Waits as long as it takes.
    ///
    /// # Errors
    ///
    /// As the async form, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn lock(&self) -> Result<Guard<K::Guard>, Error> {
        self.acquire().wait(Wait::Forever).run()?.ok_or_else(|| self.0.0.unlimited_wait_error())
    }

    /// Takes the lock if it is free now.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and sooner: a server that refuses the connection is reported at once, one that is silent after
    /// the response timeout (3 s unless set). A request whose answer was lost is asked again for as long, so that nothing is left behind.
    pub fn try_lock(&self) -> Result<Option<Guard<K::Guard>>, Error> {
        self.acquire().run()
    }

    /// Waits at most this long.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock).
    pub fn lock_for(&self, wait: Duration) -> Result<Option<Guard<K::Guard>>, Error> {
        self.acquire().wait(Wait::AtMost(wait)).run()
    }

    /// An acquire with options; end it with [`run`](Acquire::run).
    pub fn acquire(&self) -> Acquire<'_, K::Guard> {
        Acquire { inner: self.0.acquire(), core: self.core(), cancel: None }
    }

    /// Frees the lock by force, and says what was found.
    ///
    /// # Errors
    ///
    /// As the async form, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn force(&self, force: Force) -> Result<Forced, Error> {
        block(self.core(), self.0.force(force))
    }

    /// Frees the lock, of any holder; `true` if it was held.
    ///
    /// # Errors
    ///
    /// As the async form, and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn force_unlock(&self) -> Result<bool, Error> {
        block(self.core(), self.0.force_unlock())
    }

    /// Frees the lock while `owner` holds it.
    ///
    /// # Errors
    ///
    /// As [`force_unlock`](Self::force_unlock).
    pub fn force_unlock_if(&self, owner: &str) -> Result<Forced, Error> {
        block(self.core(), self.0.force_unlock_if(owner))
    }

    /// Whether anybody holds the lock.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub fn is_locked(&self) -> Result<bool, Error> {
        block(self.core(), self.0.is_locked())
    }

    /// Whether this thread holds the lock.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub fn is_held_by_current_thread(&self) -> Result<bool, Error> {
        Ok(self.hold_count()? > 0)
    }

    /// How many holds this thread has.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub fn hold_count(&self) -> Result<u32, Error> {
        block(self.core(), self.0.hold_count(&thread_owner(self.core())))
    }

    /// How long the current hold lasts if it is not renewed.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub fn remaining_ttl(&self) -> Result<Option<Duration>, Error> {
        block(self.core(), self.0.remaining_ttl())
    }
}

/// A [`redlatch::FairLock`](crate::FairLock) for blocking code. It has the methods of every [`Lock`]; holding it is a [`Guard`](Guard).
pub type FairLock = Lock<Fair>;

/// A [`redlatch::FencedLock`](crate::FencedLock) for blocking code. It has the methods of every [`Lock`]; holding it is a [`Guard<FencedGuard>`](Guard).
pub type FencedLock = Lock<Fenced>;

/// A [`redlatch::SpinLock`](crate::SpinLock) for blocking code. It has the methods of every [`Lock`]; holding it is a [`Guard`](Guard).
pub type SpinLock = Lock<Spin>;

/// A [`redlatch::NonReentrantLock`](crate::NonReentrantLock) for blocking code. It has the methods of every [`Lock`]; holding it is a [`Guard`](Guard).
pub type NonReentrantLock = Lock<NonReentrant>;

/// A [`redlatch::NonReentrantFairLock`](crate::NonReentrantFairLock) for blocking code. It has the methods of every [`Lock`]; holding it is a [`Guard`](Guard).
pub type NonReentrantFairLock = Lock<NonReentrantFair>;

/// A [`redlatch::ReadLock`](crate::ReadLock) for blocking code. It has the methods of every [`Lock`]; holding it is a [`Guard<ReadGuard>`](Guard).
pub type ReadLock = Lock<Read>;

/// A [`redlatch::WriteLock`](crate::WriteLock) for blocking code. It has the methods of every [`Lock`]; holding it is a [`Guard<WriteGuard>`](Guard).
pub type WriteLock = Lock<Write>;

impl Lock<Fenced> {
    /// The last token that was drawn; `None` if none was.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub fn token(&self) -> Result<Option<u64>, Error> {
        block(self.core(), self.0.token())
    }
}

impl Lock<Spin> {
    /// How long to pause between looks; see [`redlatch::SpinLock::backoff`](crate::SpinLock::backoff).
    #[must_use]
    pub fn backoff(self, backoff: crate::Backoff) -> Self {
        Lock(self.0.backoff(backoff))
    }
}

/// An acquire that is being put together; [`run`](Self::run) it.
#[must_use = "an acquire does nothing until it is run"]
pub struct Acquire<'a, G = crate::Guard> {
    inner: crate::Acquire<'a, G>,
    core: &'a Arc<Core>,
    cancel: Option<CancellationToken>,
}

impl<G> fmt::Debug for Acquire<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<G: AnyGuard> Acquire<'_, G> {
    /// How long to wait while the lock is busy; not at all unless set.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.inner = self.inner.wait(wait);
        self
    }

    /// How long the hold lasts; renewed unless set.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.inner = self.inner.lease(lease);
        self
    }

    /// Who will hold it; the thread that [runs](Self::run) this unless set.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.inner = self.inner.owner(owner);
        self
    }

    /// Draws a fencing token with the grant.
    pub fn fenced(mut self) -> Self {
        self.inner = self.inner.fenced();
        self
    }

    /// How many replicas have to confirm the grant; see [`redlatch::Acquire::replica_ack`](crate::Acquire::replica_ack).
    pub fn replica_ack(mut self, ack: crate::ReplicaAck) -> Self {
        self.inner = self.inner.replica_ack(ack);
        self
    }

    /// Ends the wait with [`ErrorKind::Cancelled`] when this token is cancelled.
    pub fn cancel(mut self, token: &CancellationToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }

    /// Acquires; `None` if the lock was busy.
    ///
    /// # Errors
    ///
    /// As the async form, [`ErrorKind::Cancelled`], and [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn run(mut self) -> Result<Option<Guard<G>>, Error> {
        // Not before: a thread may have another owner by now, and this may be another thread.
        self.inner = self.inner.owner_or(|| thread_owner(self.core));
        self.run_as()
    }

    /// As [`run`](Self::run), for a hold that is no thread's: it has an owner of its own unless one was passed, its guard may be sent to
    /// another thread, and this thread does not enter it.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and [`ErrorKind::InvalidOption`] if the [owner](Self::owner) that was passed is this thread's: it would enter the hold.
    ///
    /// # Example
    ///
    /// ```
    /// let client = redlatch::blocking::Client::connect("memory:")?;
    /// let lock = client.lock("orders");
    /// let guard = lock.acquire().run_to_send()?.expect("it is free");
    /// assert!(lock.try_lock()?.is_none(), "it is not this thread's");
    /// std::thread::spawn(move || guard.unlock()).join().expect("it has not panicked")?;
    /// # Ok::<(), redlatch::Error>(())
    /// ```
    pub fn run_to_send(self) -> Result<Option<SendGuard<G>>, Error> {
        if self.inner.given_owner().is_some_and(|owner| is_of_this_thread(self.core, owner)) {
            return Err(own_owner());
        }
        self.run_as()
    }

    fn run_as<T>(self) -> Result<Option<Guard<G, T>>, Error> {
        let Acquire { inner, core, cancel } = self;
        let guard = block(core, async {
            let cancelled = async {
                match &cancel {
                    Some(token) => token.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                guard = inner.into_future() => guard,
                () = cancelled => Err(Error::new(ErrorKind::Cancelled, "the wait was cancelled")),
            }
        })?;
        Ok(guard.map(|inner| Guard {
            core: core.clone(),
            inner,
            _stake: DrainOnDrop::of(core),
            _whose: PhantomData,
        }))
    }
}

/// Of a guard: the hold is the thread's that took it, which enters it with its next acquire. So the guard stays on that thread, as one of
/// [`std::sync::Mutex`] does; other threads may look at it.
#[derive(Debug)]
pub struct OfThread(PhantomData<std::sync::MutexGuard<'static, ()>>);

/// Of a guard: the hold is no thread's, so the guard may be sent to any.
#[derive(Debug)]
pub struct OfNoThread(());

/// A guard that may be sent to another thread, of [`run_to_send`](Acquire::run_to_send).
pub type SendGuard<G = crate::Guard> = Guard<G, OfNoThread>;

/// A guard of any kind for blocking code; `G` is the async one. It stays on the thread that took it, whose hold it is; a
/// [`SendGuard`] is no thread's.
///
/// ```compile_fail,E0277
/// let client = redlatch::blocking::Client::connect("memory:").unwrap();
/// let guard = client.lock("orders").lock().unwrap();
/// std::thread::spawn(move || guard.unlock());
/// ```
#[must_use = "dropping the guard releases the lock at once"]
pub struct Guard<G = crate::Guard, T = OfThread> {
    pub(super) core: Arc<Core>,
    pub(super) inner: G,
    /// Goes last.
    pub(super) _stake: DrainOnDrop,
    pub(super) _whose: PhantomData<T>,
}

impl<G: fmt::Debug, T> fmt::Debug for Guard<G, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<G: AnyGuard, T> Guard<G, T> {
    /// Gives this hold back; see [`redlatch::Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn unlock(self) -> Result<Unlocked, Error> {
        let Guard { core, inner, _stake, .. } = self;
        block(&core, inner.into_guard().unlock_polled())
    }

    /// Lets the hold go on without a guard; see [`redlatch::Guard::detach`](crate::Guard::detach).
    pub fn detach(self) -> DetachedHold {
        self.inner.into_guard().detach()
    }

    /// As [`detach`](Self::detach), and the hold lasts for exactly this long from now on; see
    /// [`redlatch::Guard::detach_for`](crate::Guard::detach_for). `false` if it was lost.
    ///
    /// # Errors
    ///
    /// As there: the hold then lasts until its lease is over. [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when
    /// called from async code, and a time out of range: the hold is then given back in the background.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// # fn main() -> Result<(), redlatch::Error> {
    /// let client = redlatch::blocking::Client::connect("memory:")?;
    /// let guard = client.lock("nightly").lock()?;
    /// // Nobody else begins for an hour, whatever becomes of this process.
    /// assert!(guard.detach_for(Duration::from_secs(3_600))?);
    /// assert!(client.lock("nightly").try_lock()?.is_none());
    /// # Ok(()) }
    /// ```
    pub fn detach_for(self, time: Duration) -> Result<bool, Error> {
        let Guard { core, inner, _stake, .. } = self;
        // It begins when it may be waited for, and not before: otherwise the guard is dropped.
        block(&core, async { inner.into_guard().detach_for(time).await })
    }

    /// Waits until the hold is lost, or at most this long; `None` if it is still good.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InsideRuntime`](crate::ErrorKind::InsideRuntime) when called from async code.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<LossReason>, Error> {
        let lost = self.inner.as_guard().lost();
        block(&self.core, async {
            let end = self.core.keeper.sleep(limit);
            tokio::select! {
                biased;
                reason = lost => Ok(Some(reason)),
                () = end => Ok(None),
            }
        })
    }

    /// The guard that this one wraps, for the calls that do not block.
    pub fn as_async(&self) -> &G {
        &self.inner
    }

    /// Whether the hold is good at this moment: no round trip.
    pub fn is_valid(&self) -> bool {
        self.inner.as_guard().is_valid()
    }

    /// The fencing token, if one was drawn.
    pub fn token(&self) -> Option<u64> {
        self.inner.as_guard().token()
    }

    /// Makes the hold last longer; see [`redlatch::Guard::extend`](crate::Guard::extend).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        block(&self.core, self.inner.as_guard().extend(lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking::Client;

    const KEPT: Duration = Duration::from_secs(7);

    #[test]
    fn a_blocking_guard_is_detached_for_a_time() {
        let client = Client::connect("memory:").unwrap();
        let lock = client.lock("kept");
        assert!(lock.lock().unwrap().detach_for(KEPT).unwrap());
        let left = lock.remaining_ttl().unwrap().expect("it is held");
        assert!(left <= KEPT, "it is shorter than the lease of a renewed hold: {left:?}");
        assert!(lock.try_lock().unwrap().is_none());
        assert!(lock.force_unlock().unwrap());
        let lost = lock.lock().unwrap();
        assert!(lock.force_unlock().unwrap());
        assert!(!lost.detach_for(KEPT).unwrap(), "nothing is left that could be kept");
        let held = lock.lock().unwrap().detach();
        assert_eq!(held.name, *lock.name());
        assert!(lock.is_locked().unwrap());
    }

    #[test]
    fn a_blocking_handle_shows_the_one_that_it_wraps() {
        let client = Client::connect("memory:").unwrap();
        let shown = format!("{:?}", client.fair_lock("turn").clone());
        assert_eq!(shown, "FairLock(FairLock { name: LockName(\"turn\"), .. })");
    }

    #[test]
    fn blocking_sets_are_detached_for_a_time() {
        let client = Client::connect("memory:").unwrap();
        let locks = [client.lock("a"), client.lock("b")];
        let both = crate::blocking::MultiLock::new(locks.iter()).unwrap();
        let kept = both.lock().unwrap().detach_for(KEPT).unwrap();
        assert!(kept.len() == 2 && kept.iter().all(|(_, kept)| matches!(kept, Ok(true))), "{kept:?}");
        for lock in &locks {
            assert!(lock.remaining_ttl().unwrap().is_some_and(|left| left <= KEPT));
        }
    }
}
