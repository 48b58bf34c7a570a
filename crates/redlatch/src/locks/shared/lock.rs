//! `Lock`: a lock of any kind, and the plain one if no kind is named. The plain lock is the reentrant mutual-exclusion lock; it
//! shares its state with Redisson's `RLock` (`docs/protocol.md`, lock).

use std::{fmt, marker::PhantomData, time::Duration};

use super::{
    Acquire, AnyGuard, Force, Forced, Guard, Lease,
    lock_handle::LockHandle,
    marker::{LockMarker, sealed::Named},
    members::Member,
};
use crate::{
    core::{Wait, fork_safe::ForkSafeCore, release::Unlocked},
    error::Error,
    keys::KeyKind,
    name::LockName,
    owner::Owner,
    recipes::PLAIN,
};

/// Marks the plain lock, which [`Lock`] is if no kind is named.
#[derive(Debug)]
pub enum Plain {}

impl Named for Plain {
    const LOCK: &'static str = "Lock";
    const GUARD: &'static str = "Guard";
}

impl LockMarker for Plain {
    type Guard = Guard;
}

/// A distributed lock by name: a cheap, shareable description. Holding it is a [`Guard`].
///
/// Every acquire has an owner of its own, so two tasks of one process exclude each other as two processes do; a lock
/// is re-entered only with [`Guard::reenter`] or by passing the same [`Owner`](crate::Owner).
///
/// `K` is the kind of lock. `Lock` without it is the plain lock; the other kinds have names of their own, and the same methods:
/// [`FairLock`](crate::FairLock), [`FencedLock`](crate::FencedLock), [`SpinLock`](crate::SpinLock),
/// [`NonReentrantLock`](crate::NonReentrantLock), [`NonReentrantFairLock`](crate::NonReentrantFairLock),
/// [`ReadLock`](crate::ReadLock) and [`WriteLock`](crate::WriteLock).
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// let guard = client.lock("orders").lock().await?;
/// // … the work …
/// guard.unlock().await?;
/// # Ok(()) }
/// ```
pub struct Lock<K: LockMarker = Plain>(pub(crate) LockHandle, PhantomData<fn() -> K>);

impl<K: LockMarker> Clone for Lock<K> {
    fn clone(&self) -> Self {
        Lock::of(self.0.clone())
    }
}

impl<K: LockMarker> fmt::Debug for Lock<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(K::LOCK).field("name", &self.0.keys.name).finish_non_exhaustive()
    }
}

impl<K: LockMarker> From<&Lock<K>> for Member {
    fn from(lock: &Lock<K>) -> Self {
        Member::of(&lock.0)
    }
}

impl<K: LockMarker> From<Lock<K>> for Member {
    fn from(lock: Lock<K>) -> Self {
        Member::of(&lock.0)
    }
}

impl Lock<Plain> {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        Lock::of(LockHandle::new(core, name, KeyKind::Lock, &PLAIN))
    }
}

impl<K: LockMarker> Lock<K> {
    pub(crate) fn of(handle: LockHandle) -> Self {
        Lock(handle, PhantomData)
    }
}

impl<K: LockMarker> Lock<K> {
    /// The lock's name.
    pub fn name(&self) -> &LockName {
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
    pub async fn lock(&self) -> Result<K::Guard, Error> {
        self.acquire().wait(Wait::Forever).await?.ok_or_else(|| self.0.unlimited_wait_error())
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
    /// the response timeout (3 s unless set), or after the connect timeout (5 s unless set) where there is no connection yet. A request whose
    /// answer was lost is asked again for the response timeout, so that nothing is left behind.
    pub async fn try_lock(&self) -> Result<Option<K::Guard>, Error> {
        self.acquire().wait(Wait::No).await
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
    pub async fn lock_for(&self, wait: Duration) -> Result<Option<K::Guard>, Error> {
        self.acquire().wait(Wait::AtMost(wait)).await
    }

    /// Waits for the lock and holds it for at most `lease` (2 ms to 100 years), without renewal.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) for a lease out
    /// of range.
    pub async fn lock_with_lease(&self, lease: Duration) -> Result<K::Guard, Error> {
        self.acquire()
            .wait(Wait::Forever)
            .lease(Lease::Fixed(lease))
            .await?
            .ok_or_else(|| self.0.unlimited_wait_error())
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
    pub fn acquire(&self) -> Acquire<'_, K::Guard> {
        Acquire::new(&self.0)
    }

    /// Frees the lock by force, and says what was found. [`Force`](crate::Force) names the holder, who asks, and why.
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
    pub async fn force(&self, force: Force) -> Result<Forced, Error> {
        self.0.force(&force).await
    }

    /// Frees the lock, of any holder; `true` if it was held. As [`force`](Self::force), without options.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// As [`force`](Self::force).
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        Ok(self.0.force(&Force::new()).await? == Forced::Released)
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
    pub async fn force_unlock_if(&self, owner: &str) -> Result<Forced, Error> {
        self.0.force(&Force::new().owner(owner)).await
    }

    /// Whether anybody holds the lock.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.0.query(None).await?.0 != -2)
    }

    /// Whether this owner holds the lock.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        Ok(self.hold_count(owner).await? > 0)
    }

    /// How many holds this owner has; 0 if none.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn hold_count(&self, owner: &Owner) -> Result<u32, Error> {
        let (_, holds) = self.0.query(Some(owner)).await?;
        Ok(u32::try_from(holds).unwrap_or(0))
    }

    /// How long the current hold lasts if it is not renewed; `None` when the lock is free or its key has no TTL.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn remaining_ttl(&self) -> Result<Option<Duration>, Error> {
        let (ttl, _) = self.0.query(None).await?;
        Ok(u64::try_from(ttl).ok().map(Duration::from_millis))
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
    pub async fn adopt(&self, owner: &Owner, lease: Lease) -> Result<Option<K::Guard>, Error> {
        let guard = self.0.adopt(owner, lease).await?;
        Ok(guard.map(AnyGuard::from_guard))
    }

    /// Makes an owner's hold last at least `lease` (2 ms to 100 years) from now; `false` if the owner does not hold
    /// the lock. What is left of its lease is never shortened.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses; a lease out of range.
    pub async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, Error> {
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
    pub async fn release(&self, owner: &Owner) -> Result<Unlocked, Error> {
        self.0.release(owner).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    fn shows(lock: &(impl fmt::Debug + Clone + Send + Sync + 'static), name: &str, guard: &impl fmt::Debug) {
        assert_eq!(format!("{lock:?}"), format!("{name}Lock {{ name: LockName({name:?}), .. }}"));
        assert_eq!(format!("{:?}", lock.clone()), format!("{lock:?}"));
        let guard = format!("{guard:?}");
        assert!(
            guard.starts_with("Guard {") || guard.starts_with(&format!("{name}Guard(Guard {{")),
            "{guard}"
        );
    }

    #[tokio::test]
    async fn handles_and_guards_of_each_kind_show_their_names() {
        let client = Client::connect("memory:").await.unwrap();
        let lock = client.lock("");
        assert!(format!("{lock:?}").starts_with("Lock {"), "{lock:?}");
        macro_rules! all_show {
            ($($name:literal: $lock:expr),*) => {$(
                let guard = $lock.lock().await.unwrap();
                shows(&$lock.clone(), $name, &guard);
                guard.unlock().await.unwrap();
            )*};
        }
        all_show! {
            "Fair": client.fair_lock("Fair"),
            "Fenced": client.fenced_lock("Fenced"),
            "Spin": client.spin_lock("Spin"),
            "NonReentrant": client.non_reentrant_lock("NonReentrant"),
            "NonReentrantFair": client.non_reentrant_fair_lock("NonReentrantFair"),
            "Read": client.read_write_lock("Read").read(),
            "Write": client.read_write_lock("Write").write()
        }
        let fenced = client.fenced_lock("Fenced").lock().await.unwrap();
        assert!(format!("{fenced:?}").starts_with("FencedGuard(Guard {"), "{fenced:?}");
    }
}
