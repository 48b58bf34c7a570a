//! `Lock`: the reentrant mutual-exclusion lock; shares its state with Redisson's `RLock` (`docs/protocol.md`, lock).

mod acquire;
mod guard;
mod with;

use std::{fmt, sync::Arc, time::Duration};

pub use acquire::{Acquire, Lease};
pub use guard::{Guard, Held};
pub use with::WithError;

use crate::{
    config::lease_ms,
    core::{Core, Recipe, Wait, lease::Lease as CoreLease, lease::Term, release::Unlocked},
    error::{Error, ErrorKind, LossReason},
    name::{Keys, LockName},
    owner::Owner,
    scripts,
    store::{Call, Fault, protocol_error},
};

/// The scripts and the channel of the plain lock.
struct Plain;

static PLAIN: Plain = Plain;

impl Recipe for Plain {
    fn acquire(&self, keys: &Keys, owner: &Owner, lease_ms: i64, fenced: bool) -> Call {
        let call = Call::new(&scripts::ACQUIRE).key(&keys.key);
        // The token's key is named only by those who draw one, so that accounts without rights to it can lock.
        let call = if fenced { call.key(&keys.token) } else { call };
        call.int(owner.number()).text(owner.field()).int(lease_ms).constant(if fenced { "1" } else { "0" })
    }

    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64, known: u32) -> Call {
        Call::new(&scripts::ENTER)
            .key(&keys.key)
            .int(owner.number())
            .text(owner.field())
            .int(lease_ms)
            .int(known.into())
    }

    fn release(&self, keys: &Keys, owner: &Owner, publish: &'static str) -> Call {
        Call::new(&scripts::RELEASE)
            .key(&keys.key)
            .int(owner.number())
            .text(owner.field())
            .bytes(&keys.channel)
            .constant(publish)
    }

    fn leave(&self, keys: &Keys, owner: &Owner, publish: &'static str, known: u32, lease_ms: i64) -> Call {
        Call::new(&scripts::LEAVE)
            .key(&keys.key)
            .int(owner.number())
            .text(owner.field())
            .bytes(&keys.channel)
            .constant(publish)
            .int(known.into())
            .int(lease_ms)
    }

    fn transfer(&self, keys: &Keys, from: &Owner, to: &Owner, lease_ms: i64, fenced: bool) -> Call {
        let call = Call::new(&scripts::TRANSFER).key(&keys.key);
        let call = if fenced { call.key(&keys.token) } else { call };
        call.int(to.number()).text(from.field()).text(to.field()).int(lease_ms).constant(if fenced {
            "1"
        } else {
            "0"
        })
    }

    fn renew(&self, batch: i64, leases: &[Arc<CoreLease>], lease_ms: i64) -> Call {
        let call = leases.iter().fold(Call::new(&scripts::RENEW), |call, lease| call.key(&lease.keys.key));
        leases.iter().fold(call.int(batch).int(lease_ms), |call, lease| call.text(lease.owner.field()))
    }

    fn channel(&self, keys: &Keys, _: &Owner) -> Arc<[u8]> {
        keys.channel.clone()
    }
}

/// What [`Lock::force_unlock_if`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Forced {
    /// The lock was held as expected and is free now.
    Released,
    /// Nobody held it.
    WasFree,
    /// Somebody else holds it; nothing was changed.
    OtherOwner,
}

/// A distributed lock by name: a cheap, shareable description. Holding it is a [`Guard`].
///
/// Every acquire has an owner of its own, so two tasks of one process exclude each other as two processes do; a lock
/// is re-entered only with [`Guard::reenter`] or by passing the same [`Owner`].
#[derive(Clone)]
pub struct Lock {
    pub(crate) core: Arc<Core>,
    pub(crate) keys: Arc<Keys>,
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("name", &self.keys.name).finish_non_exhaustive()
    }
}

impl Lock {
    pub(crate) fn new(core: &Arc<Core>, name: LockName) -> Self {
        Lock { core: core.clone(), keys: Arc::new(Keys::new(name)) }
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.keys.name
    }

    /// Waits as long as it takes for the lock, and holds it with a lease that is renewed until the guard goes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place in line. A request that is on its way is finished in the background, and a
    /// grant that nobody waits for is released at once.
    ///
    /// # Errors
    ///
    /// A name that is not valid; a server that stays unreachable for the
    /// [outage tolerance](crate::ClientBuilder::outage_tolerance); a key of another type under the name.
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
    pub async fn lock(&self) -> Result<Guard, Error> {
        match self.acquire().wait(Wait::Forever).run().await? {
            Some(guard) => Ok(guard),
            None => Err(Error::new(ErrorKind::Protocol, "a wait without limit ended as if it had one")
                .on(self.name())),
        }
    }

    /// Takes the lock if it is free now; `None` if it is busy.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), but an unreachable server is reported at once.
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.acquire().wait(Wait::No).run().await
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
    pub async fn lock_for(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        self.acquire().wait(Wait::AtMost(wait)).run().await
    }

    /// Waits for the lock and holds it for at most `lease` (1 ms to 100 years), without renewal.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`ErrorKind::InvalidOption`] for a lease out of range.
    pub async fn lock_with_lease(&self, lease: Duration) -> Result<Guard, Error> {
        match self.acquire().wait(Wait::Forever).lease(Lease::Fixed(lease)).run().await? {
            Some(guard) => Ok(guard),
            None => Err(Error::new(ErrorKind::Protocol, "a wait without limit ended as if it had one")
                .on(self.name())),
        }
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
    /// let held = lock.acquire().wait(Wait::AtMost(Duration::from_secs(2))).lease(Lease::Fixed(Duration::from_secs(60))).fenced().await?;
    /// assert!(held.is_some_and(|guard| guard.token().is_some()));
    /// # Ok(()) }
    /// ```
    pub fn acquire(&self) -> Acquire<'_> {
        Acquire::new(self)
    }

    /// Frees the lock whoever holds it; `true` if somebody did.
    ///
    /// The holder is told at its next renewal, at the latest after a third of its lease. Waiters are woken.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses; a key of another type or lock kind, which is left alone.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        Ok(self.force("").await? == Forced::Released)
    }

    /// Frees the lock only while `owner`, as [`Client::inspect`](crate::Client::inspect) showed it, holds it.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// As [`force_unlock`](Self::force_unlock).
    pub async fn force_unlock_if(&self, owner: &str) -> Result<Forced, Error> {
        if owner.is_empty() {
            return Err(Error::new(ErrorKind::InvalidOption, "no owner was named").on(self.name()));
        }
        self.force(owner).await
    }

    async fn force(&self, owner: &str) -> Result<Forced, Error> {
        self.ready()?;
        let number = self.core.fresh_number();
        let call = Call::new(&scripts::FORCE)
            .key(&self.keys.key)
            .int(number)
            .text(&owner.into())
            .bytes(&self.keys.channel)
            .constant(self.core.store.publish_command());
        let reply = self.core.run_checked(call, number, false).await.map_err(|fault| self.error(fault))?;
        let forced = match reply.get(1) {
            Some(1) => Forced::Released,
            Some(0) => Forced::WasFree,
            Some(-1) => return Ok(Forced::OtherOwner),
            Some(-2) => {
                return Err(Error::new(
                    ErrorKind::WrongLockKind,
                    "a read-write lock is held under this name",
                )
                .on(self.name()));
            }
            _ => {
                return Err(
                    Error::new(ErrorKind::Protocol, "a forced release answered nonsense").on(self.name())
                );
            }
        };
        if let Some(lease) = self.core.lanes.find(&self.keys) {
            self.core.gone(&lease).await;
        }
        Ok(forced)
    }

    /// Whether anybody holds the lock.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.query("").await?.0 != -2)
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
        let (_, holds) = self.query(owner.field()).await?;
        Ok(u32::try_from(holds).unwrap_or(0))
    }

    /// How long the current hold lasts if it is not renewed; `None` when the lock is free or its key has no TTL.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn remaining_ttl(&self) -> Result<Option<Duration>, Error> {
        let (ttl, _) = self.query("").await?;
        Ok(u64::try_from(ttl).ok().map(Duration::from_millis))
    }

    async fn query(&self, owner: &str) -> Result<(i64, i64), Error> {
        self.ready()?;
        self.core.keeper.touch();
        let call = Call::new(&scripts::QUERY).key(&self.keys.key).text(&owner.into());
        let reply = self.core.store.run(call).await.map_err(|fault| self.error(fault))?;
        match reply.array() {
            Some([ttl, holds]) => ttl.int().zip(holds.int()),
            _ => None,
        }
        .ok_or_else(|| protocol_error("query", &reply).on(self.name()))
    }

    /// Takes up a hold that another process left with an owner ([`Guard::detach`]): confirms it, sets its lease anew,
    /// and renews it if the lease says so. `None` if that owner no longer holds the lock.
    ///
    /// # Cancel safety
    ///
    /// The lease may have been set anew; the hold stays as it was otherwise.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses; a lease out of range.
    pub async fn adopt(&self, owner: &Owner, lease: Lease) -> Result<Option<Guard>, Error> {
        let term = lease.term(&self.core.config)?;
        let sent_ms = self.core.now_ms();
        if !self.renew_owner(owner, term.lease_ms).await? {
            return Ok(None);
        }
        let lease = Arc::new(CoreLease::new(self.keys.clone(), owner.clone(), &PLAIN, None, term, sent_ms));
        self.core.lanes.granted(&lease, false, sent_ms);
        self.core.schedule(&lease);
        Ok(Some(Guard::new(self.core.clone(), lease, term.renewed)))
    }

    /// Sets the lease of an owner's hold anew; `false` if the owner does not hold the lock.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses; a lease out of range (1 ms to 100 years).
    pub async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, Error> {
        self.renew_owner(owner, lease_ms(lease)?).await
    }

    async fn renew_owner(&self, owner: &Owner, lease_ms: i64) -> Result<bool, Error> {
        self.ready()?;
        let number = self.core.fresh_number();
        let call =
            Call::new(&scripts::RENEW).key(&self.keys.key).int(number).int(lease_ms).text(owner.field());
        let reply =
            self.core.run_checked(call, number, false).await.map_err(|fault| self.error(fault).by(owner))?;
        Ok(reply.get(1) == Some(&1))
    }

    /// Gives back one hold of an owner that has no guard here.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotOwner`] if the owner does not hold the lock; a server that is unreachable or refuses.
    pub async fn release(&self, owner: &Owner) -> Result<Unlocked, Error> {
        self.ready()?;
        let call = PLAIN.leave(&self.keys, owner, self.core.store.publish_command(), 0, 0);
        let reply = self
            .core
            .run_checked(call, owner.number(), false)
            .await
            .map_err(|fault| self.error(fault).by(owner))?;
        match reply.get(1) {
            Some(0) => Ok(Unlocked::Released),
            Some(left) if *left > 0 => Ok(Unlocked::StillHeld(u32::try_from(*left).unwrap_or(u32::MAX))),
            _ => Err(Error::new(ErrorKind::NotOwner, "the lock is not held by this owner")
                .on(self.name())
                .by(owner)
                .remedy("its lease may have ended; `redlatch show` names the present holder")),
        }
    }

    fn ready(&self) -> Result<(), Error> {
        self.core.check_open().and_then(|()| self.keys.check()).map_err(|error| error.on(self.name()))
    }

    fn error(&self, fault: Fault) -> Error {
        fault.into_error().on(self.name())
    }

    pub(crate) fn term_of(&self, lease: Lease) -> Result<Term, Error> {
        lease.term(&self.core.config).map_err(|error| error.on(self.name()))
    }
}

/// Why a hold ended, for callers that only have the error of a failed operation.
pub(crate) fn lost_error(name: &LockName, owner: &Owner, reason: &LossReason) -> Error {
    Error::new(ErrorKind::Lost, format!("the hold was lost: {reason}"))
        .on(name)
        .by(owner)
        .remedy("stop the work, or make its effects check the fencing token")
}
