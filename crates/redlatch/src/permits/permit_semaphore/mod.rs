//! `PermitSemaphore`: permits with ids and leases; shares its state with Redisson's `RPermitExpirableSemaphore`
//! (`docs/protocol.md`, leased permits).

mod guard;
mod ids;
mod permanent;
mod request;

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

pub use guard::PermitGuard;
pub use request::PermitRequest;

use crate::{
    config::lease_ms,
    core::{Core, Numbers, Wait, fork_safe::ForkSafeCore},
    error::{Error, ErrorKind},
    keys::{KeyKind, Keys},
    name::LockName,
    permits::counter::{Counter, amount, item},
    recipes::members,
    scripts::{self, Script},
    store::Call,
};

/// A number of permits, each of which is taken under an id and for a time.
///
/// Unlike those of a [`Semaphore`](crate::Semaphore), permits come back by themselves: a holder that crashes loses
/// it when its lease ends. What is taken here is held by a [`PermitGuard`] and renewed until the guard goes; what was taken
/// by another process or by Java is given back and prolonged [by id](Self::release).
///
/// Waiters of all processes are woken together when permits come free, and are not served in any order. Expiry is judged
/// by the server's clock, and every call gives back all permits whose time is up.
#[derive(Clone)]
pub struct PermitSemaphore {
    core: ForkSafeCore,
    keys: Arc<Keys>,
    counter: Arc<Counter>,
}

impl fmt::Debug for PermitSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitSemaphore").field("name", &self.keys.name).finish_non_exhaustive()
    }
}

/// For how long a permit is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PermitLease {
    /// For this long from now, unless it is renewed.
    Ends(Duration),
    /// Until it is given back.
    Permanent,
}

impl PermitSemaphore {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        let keys = Arc::new(Keys::new(name.clone(), KeyKind::Permits));
        let counter = Counter::new(core, name, keys.channel().to_vec(), None);
        PermitSemaphore { core: core.clone(), keys, counter }
    }

    /// The semaphore's name.
    pub fn name(&self) -> &LockName {
        &self.keys.name
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Waits as long as it takes for one permit, and has it renewed until the guard goes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait. A request that is on its way is finished in the background, and permits that it
    /// brings are given back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotInitialised`] while nobody has set permits, also when they are deleted during the wait; a name that
    /// is not valid; a key of another type; a server that stays unreachable for the
    /// [outage tolerance](crate::ClientBuilder::outage_tolerance).
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// let client = redlatch::Client::connect("memory:").await?;
    /// let licences = client.permit_semaphore("licences");
    /// licences.set_if_absent(3).await?;
    /// let permit = licences.acquire().await?;
    /// assert_eq!(licences.available().await?, 2);
    /// permit.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self) -> Result<PermitGuard, Error> {
        match self.request().wait(Wait::Forever).run().await? {
            Some(guard) => Ok(guard),
            None => Err(Error::new(ErrorKind::Protocol, "a wait without limit ended as if it had one")
                .on(self.name())),
        }
    }

    /// Takes one permit if one is free now; `None` if not.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and sooner: a server that refuses the connection is reported at once, one that is silent after
    /// the response timeout (3 s unless set), or after the connect timeout (5 s unless set) where there is no connection yet. A request whose
    /// answer was lost is asked again for the response timeout, so that nothing is left behind.
    pub async fn try_acquire(&self) -> Result<Option<PermitGuard>, Error> {
        self.request().run().await
    }

    /// Waits at most this long for one permit; `None` if none was free all the time.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); trouble that lasts until the end of the time is reported, not hidden as `None`.
    pub async fn acquire_for(&self, wait: Duration) -> Result<Option<PermitGuard>, Error> {
        self.request().wait(Wait::AtMost(wait)).run().await
    }

    /// A request with options; `await` it.
    ///
    /// Asking for more permits than there are is no error: it waits, because they may become [more](Self::add).
    ///
    /// # Example
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redlatch::{Lease, Wait};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// let licences = client.permit_semaphore("licences");
    /// licences.set_if_absent(3).await?;
    /// let minute = Lease::Fixed(Duration::from_secs(60));
    /// let two = licences.request().permits(2).wait(Wait::AtMost(Duration::from_secs(2))).lease(minute).await?;
    /// // Passed to another process, which gives them back by id.
    /// let ids = two.expect("three are free").detach();
    /// licences.release_all(&ids).await?;
    /// # Ok(()) }
    /// ```
    pub fn request(&self) -> PermitRequest<'_> {
        PermitRequest::new(self)
    }

    /// Gives back the permit with this id (32 hexadecimal digits), of any holder.
    ///
    /// A guard of another client that holds it is told within moments where the server tells of changes, and at its next renewal otherwise, so both it and the
    /// next holder may be valid until then. One of this client gives it back itself. A permit whose lease has ended goes back as well, and is an error all the
    /// same: its holder had lost it.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotOwner`] if no permit is taken under this id, or no longer; [`ErrorKind::AlreadyHeld`] if this client has a guard of it, which
    /// would not hear of it; [`ErrorKind::InvalidOption`] for a text
    /// that is no id; a server that is unreachable or refuses. The request is sent once; when its answer was lost
    /// ([`ErrorKind::Timeout`]) it may have happened, and giving back again is harmless.
    pub async fn release(&self, id: &str) -> Result<(), Error> {
        self.release_all(&[id]).await
    }

    /// Gives back the permits with these ids (1 to 1,000), all or none of them.
    ///
    /// # Cancel safety
    ///
    /// As [`release`](Self::release).
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release), naming the first id that is not taken; nothing was given back then but what is over.
    pub async fn release_all(&self, ids: &[impl AsRef<str>]) -> Result<(), Error> {
        let members = self.members(ids)?;
        self.refuse_beside_a_guard(&members, "release or drop the guard, or detach it first")?;
        let reply = self
            .run(&scripts::PERMIT_GIVE, |call| {
                self.counter.with_channel(call.bytes(&members)).constant("1").constant("1").constant("0")
            })
            .await?;
        if item(&reply, 1) == 1 {
            return Ok(());
        }
        let missing = usize::try_from(item(&reply, 2) - 1).ok().and_then(|at| ids.get(at));
        let id = missing.map_or("", AsRef::as_ref);
        Err(Error::new(ErrorKind::NotOwner, format!("no permit is taken under the id {id}"))
            .on(self.name())
            .remedy("it was given back, or its lease has ended"))
    }

    /// Sets the lease of the permit with this id anew (2 ms to 100 years from now), of any holder; `false` if no permit
    /// is taken under it, or no longer. A permanent permit gets an end that way.
    ///
    /// A guard of another client does not learn of a shorter lease; it renews as before, and sets its own time anew after an interruption.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a text that is no id or a lease out of range; [`ErrorKind::AlreadyHeld`] if this client has a guard of
    /// it, which can be [extended](PermitGuard::extend); a server that is unreachable or refuses.
    pub async fn update_lease(&self, id: &str, lease: Duration) -> Result<bool, Error> {
        let members = self.members(&[id])?;
        let lease_ms = lease_ms(lease).map_err(|error| error.on(self.name()))?;
        self.counter.ready()?;
        self.refuse_beside_a_guard(&members, "extend the guard, or detach it first")?;
        let number = self.core.fresh_number();
        let call = Call::new(&scripts::PERMIT_RENEW).key(&self.keys.timeouts).request_number(number);
        let reply = self.core.run_checked(call.int(-lease_ms).bytes(&members), number, false).await;
        Ok(item(&reply.map_err(|fault| fault.into_error().on(self.name()))?, 1) == 1)
    }

    /// For how long the permit with this id is taken; `None` if no permit is, or no longer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a text that is no id; a server that is unreachable or refuses.
    pub async fn lease_of(&self, id: &str) -> Result<Option<PermitLease>, Error> {
        let members = self.members(&[id])?;
        let reply = self.look(|call| call.bytes(&members)).await?;
        Ok(match item(&reply, 3) {
            -1 => Some(PermitLease::Permanent),
            left => u64::try_from(left).ok().map(|left| PermitLease::Ends(Duration::from_millis(left))),
        })
    }

    /// How many permits are free; 0 if nobody has set any, below 0 after more were [taken out](Self::add) than there were.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn available(&self) -> Result<i64, Error> {
        Ok(item(&self.look(|call| call.constant("")).await?, 1))
    }

    /// How many permits are taken.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn acquired(&self) -> Result<i64, Error> {
        Ok(item(&self.look(|call| call.constant("")).await?, 2))
    }

    /// How many permits there are, free and taken.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn total(&self) -> Result<i64, Error> {
        let reply = self.look(|call| call.constant("")).await?;
        Ok(item(&reply, 1) + item(&reply, 2))
    }

    /// Sets the number of permits (1 to 2,147,483,647) if none is set yet; `false` if one is.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a number out of range; a server that is unreachable or refuses.
    pub async fn set_if_absent(&self, n: u32) -> Result<bool, Error> {
        Ok(item(&self.change(amount("permits", n, self.name())?, "absent").await?, 1) == 1)
    }

    /// Makes it `n` permits (0 to 2,147,483,647), free and taken together, and answers how many are free then.
    ///
    /// Taken permits stay taken, so the answer is below 0 when more than `n` are. A time to live stays.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// As [`set_if_absent`](Self::set_if_absent).
    pub async fn set(&self, n: u32) -> Result<i64, Error> {
        let permits = if n == 0 { 0 } else { amount("permits", n, self.name())? };
        Ok(item(&self.change(permits, "total").await?, 2))
    }

    /// Changes the number of permits by this many, up or down but not by 0, and answers how many are free then.
    ///
    /// Going below what is free is allowed: the number becomes negative, and permits that come back raise it. A semaphore
    /// that does not exist is created. A time to live stays.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a change of 0; a server that is unreachable or refuses. The request is sent once;
    /// when its answer was lost ([`ErrorKind::Timeout`]) it may have happened.
    pub async fn add(&self, change: i32) -> Result<i64, Error> {
        if change == 0 {
            return Err(Error::new(ErrorKind::InvalidOption, "a change of 0 permits changes nothing")
                .on(self.name())
                .remedy("give a number above or below 0"));
        }
        Ok(item(&self.change(change.into(), "add").await?, 2))
    }

    /// Deletes all permits, free and taken; `false` if there were none. Guards of this client are over when it returns, those of others
    /// are told within moments where the server tells of changes, and at their next renewal otherwise; those who wait get [`ErrorKind::NotInitialised`] at once.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses; a key of another type, which is left alone.
    pub async fn delete(&self) -> Result<bool, Error> {
        let reply = self.run(&scripts::PERMIT_END, |call| self.counter.with_channel(call.int(0))).await?;
        for lease in self.core.lanes.find(&self.keys) {
            self.core.recheck_now(lease).await;
        }
        Ok(item(&reply, 1) == 1)
    }

    /// Has all permits, free and taken, deleted after this time (2 ms to 100 years); `false` if there are none. The deadlines of guards do not
    /// know of it: they are told when it has happened, as after a [`delete`](Self::delete) by another client.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a time out of range; a server that is unreachable or refuses.
    pub async fn expire(&self, ttl: Duration) -> Result<bool, Error> {
        let ttl_ms = lease_ms(ttl)
            .map_err(|error| error.on(self.name()).remedy("give a time to live of 2 ms to 100 years"))?;
        Ok(item(
            &self.run(&scripts::PERMIT_END, |call| self.counter.with_channel(call.int(ttl_ms))).await?,
            1,
        ) == 1)
    }

    fn members(&self, ids: &[impl AsRef<str>]) -> Result<Arc<[u8]>, Error> {
        ids::read(ids.iter().map(AsRef::as_ref), self.name())
    }

    /// Refuses to act by their ids on permits that this client has a guard of: the guard would not hear of it, and say that it is valid. Ids are never
    /// used again, so no guard comes to have them later.
    fn refuse_beside_a_guard(&self, asked: &[u8], remedy: &'static str) -> Result<(), Error> {
        let asked: HashSet<&[u8]> = asked.chunks_exact(ids::ID_BYTES).collect();
        let leases = self.core.lanes.find(&self.keys);
        let held = leases.iter().filter(|lease| lease.is_held()).find_map(|lease| {
            let ids = ids::each(lease.owner.field());
            ids.into_iter().find(|id| asked.contains(&*members(id))).map(str::to_owned)
        });
        match held {
            None => Ok(()),
            Some(id) => {
                let text = format!("this client has a guard of the permit {id}");
                Err(Error::new(ErrorKind::AlreadyHeld, text).on(self.name()).remedy(remedy))
            }
        }
    }

    async fn look(&self, id: impl FnOnce(Call) -> Call + Send) -> Result<Numbers, Error> {
        self.run(&scripts::PERMIT_LOOK, |call| self.counter.with_channel(id(call))).await
    }

    async fn change(&self, permits: i64, how: &'static str) -> Result<Numbers, Error> {
        self.run(&scripts::PERMIT_SET, |call| self.counter.with_channel(call.int(permits)).constant(how))
            .await
    }

    /// Runs a script over both keys once.
    async fn run(
        &self,
        script: &'static Script,
        args: impl FnOnce(Call) -> Call + Send,
    ) -> Result<Numbers, Error> {
        self.counter.run(script, |call| args(call.key(&self.keys.timeouts))).await
    }
}
