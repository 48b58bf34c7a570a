//! `Semaphore`: permits without owners; shares its state with Redisson's `RSemaphore` (`docs/protocol.md`, semaphore).

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    core::observing::ObservedAcquire,
    core::{
        Core, Numbers, Wait,
        ask_gate::Availability,
        contest::{Attempt, Contender},
        flight::{AfterDrop, OnAbandon},
        fork_safe::ForkSafeCore,
        presence::Waiting,
        wait::WaitDeadline,
    },
    error::{Error, ErrorKind},
    jitter::jittered,
    kind::key_pattern::PERMITS_CHANNEL,
    name::LockName,
    observe::Subject,
    permits::counter::{Counter, amount, item},
    recipes::AskGateKey,
    scripts::{self, Script},
    store::{Call, Fault},
};

/// Pause between tries to give back what nobody took.
const GIVE_BACK_DELAY: Duration = Duration::from_millis(100);

/// A number of permits that are taken and put back by anybody.
///
/// Permits have no owner and no lease: there is no guard, the task that takes them has to [`release`](Self::release) them, and
/// anybody may. **A process that crashes between the two leaks its permits for good**; [`add`](Self::add) puts them back by
/// hand. Where that is not acceptable, use locks, which have leases.
///
/// Without an owner there is no [acknowledgement by replicas](crate::ReplicaAck) either: a take whose confirmation is lost could
/// be neither repeated nor taken back for certain. A [`PermitSemaphore`](crate::PermitSemaphore) has owners, leases and
/// acknowledgement.
///
/// Waiters of all processes are woken together when permits come free, and are not served in any order.
#[derive(Clone)]
pub struct Semaphore(Arc<Counter>);

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl Semaphore {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        let channel = PERMITS_CHANNEL.of(name.as_bytes());
        Semaphore(Counter::new(core, name, channel, None))
    }

    /// The semaphore's name.
    pub fn name(&self) -> &LockName {
        &self.0.name
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Waits as long as it takes for `n` permits (1 to 2,147,483,647), and takes them all at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait. A request that is on its way is finished in the background, and permits that it
    /// brings are given back to the server that counted them. If that one has lost its place meanwhile, or was started anew, they
    /// are left taken: the server that answers then may have more permits than there are.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotInitialised`] while nobody has set permits, also when they expire during the wait;
    /// [`ErrorKind::InvalidOption`] for a number out of range; a name that is not valid; a key of another type; a server
    /// that stays unreachable for the [outage tolerance](crate::ClientBuilder::outage_tolerance). When an answer was lost,
    /// the permits may have been taken: the request is not repeated, because it could take them twice.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// let client = redlatch::Client::connect("memory:").await?;
    /// let uploads = client.semaphore("uploads");
    /// uploads.set_if_absent(3, None).await?;
    /// uploads.acquire(2).await?;
    /// assert_eq!(uploads.available().await?, 1);
    /// uploads.release(2).await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self, n: u32) -> Result<(), Error> {
        if self.take(n, Wait::Forever).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Protocol, "a wait without limit ended as if it had one").on(self.name()))
    }

    /// Takes `n` permits (1 to 2,147,483,647) if that many are free now.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and sooner: a server that refuses the connection is reported at once, one that is silent after
    /// the response timeout (3 s unless set), or after the connect timeout (5 s unless set) where there is no connection yet.
    pub async fn try_acquire(&self, n: u32) -> Result<bool, Error> {
        self.take(n, Wait::No).await
    }

    /// Waits at most this long for `n` permits (1 to 2,147,483,647); `false` if too few were free all the time.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); trouble that lasts until the end of the time is reported, not hidden as `false`.
    pub async fn acquire_for(&self, n: u32, wait: Duration) -> Result<bool, Error> {
        self.take(n, Wait::AtMost(wait)).await
    }

    async fn take(&self, n: u32, wait: Wait) -> Result<bool, Error> {
        let core = &self.0.core;
        // Noted before looking whether the client is open, so that shutting down waits for each task that found it so.
        let _under_way = core.keeper.hold_off_shutdown();
        self.0.ready()?;
        let permits = amount("permits", n, self.name())?;
        let wait = wait.zero_as_no_wait();
        let deadline = WaitDeadline::new(core, wait);
        let mut taker = Taker { semaphore: self, permits, left: i64::MAX, incarnation: self.0.incarnation() };
        let observed = core.observed_acquire(Subject::new("semaphore", self.name()));
        let taken = core.contest(&mut taker, wait, &deadline, false).await.and_then(Option::transpose);
        ObservedAcquire::contest_ended(observed, &taken);
        let taken = taken.map_err(|error| error.on(self.name()))?.is_some();
        if taken && core.is_closed() {
            self.give_back(permits, taker.incarnation);
            return Err(core.closed_error().on(self.name()));
        }
        Ok(taken)
    }

    /// Puts `n` permits (1 to 2,147,483,647) in, and creates the semaphore if there is none.
    ///
    /// Nothing checks that they were taken before: permits have no owner. Where a restart or a failover has lost the take, they are
    /// permits too many.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a number out of range; a server that is unreachable or refuses. The request is sent
    /// once; when its answer was lost ([`ErrorKind::Timeout`]) it may have happened.
    pub async fn release(&self, n: u32) -> Result<(), Error> {
        self.put(n, false).await.map(|_| ())
    }

    /// Puts `n` permits (1 to 2,147,483,647) in if the semaphore exists; `false` if it does not.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release).
    pub async fn release_if_exists(&self, n: u32) -> Result<bool, Error> {
        self.put(n, true).await
    }

    async fn put(&self, n: u32, if_exists: bool) -> Result<bool, Error> {
        let permits = amount("permits", n, self.name())?;
        let reply =
            self.0.run(&scripts::SEMAPHORE_GIVE, |call| self.giving(call, permits, if_exists)).await?;
        Ok(item(&reply, 1) == 1)
    }

    fn giving(&self, call: Call, permits: i64, if_exists: bool) -> Call {
        self.0.with_channel(call.int(permits)).flag(if_exists)
    }

    /// How many permits are free; 0 if nobody has set any, below 0 after more were [taken out](Self::add) than there were.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn available(&self) -> Result<i64, Error> {
        self.0.value().await
    }

    /// Takes all free permits and answers how many there were; 0 if nobody has set any. A negative number, which
    /// [`add`](Self::add) can leave, becomes 0 too. A time to live stays.
    ///
    /// # Cancel safety
    ///
    /// Permits that were taken when the future was dropped are given back, as with [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses. When the answer was lost, the permits may have been taken.
    pub async fn drain(&self) -> Result<i64, Error> {
        let _under_way = self.0.core.keeper.hold_off_shutdown();
        self.0.ready()?;
        let incarnation = self.0.incarnation();
        let reply =
            self.taking(&scripts::SEMAPHORE_DRAIN, incarnation, |call| call, |reply| item(reply, 2)).await;
        Ok(item(&reply.map_err(|fault| fault.into_error().on(self.name()))?, 2))
    }

    /// Sets the number of permits (1 to 2,147,483,647) if none is set yet; `false` if one is.
    ///
    /// With a `ttl` (2 ms to 100 years) the semaphore disappears after that time, also while permits of it are taken.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a number or a time out of range; a server that is unreachable or refuses.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// let seats = client.semaphore("seats");
    /// assert!(seats.set_if_absent(40, None).await?);
    /// assert!(!seats.set_if_absent(50, None).await?, "the first one wins");
    /// # Ok(()) }
    /// ```
    pub async fn set_if_absent(&self, n: u32, ttl: Option<Duration>) -> Result<bool, Error> {
        let permits = amount("permits", n, self.name())?;
        self.0.set_if_absent(permits, ttl, permits).await
    }

    /// Changes the number of permits by this many, up or down but not by 0, and answers how many are free then.
    ///
    /// Going below what is free is allowed: the number becomes negative, and releases bring it back. A semaphore that does
    /// not exist is created. A time to live stays.
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
        let reply =
            self.0.run(&scripts::SEMAPHORE_GIVE, |call| self.giving(call, change.into(), false)).await?;
        Ok(item(&reply, 2))
    }

    /// Deletes the semaphore, also while permits of it are taken; `false` if there was none. Our waiters end with
    /// [`ErrorKind::NotInitialised`]; those of Redisson go on waiting.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses; a key of another type, which is left alone.
    pub async fn delete(&self) -> Result<bool, Error> {
        let reply = self.0.run(&scripts::SEMAPHORE_DELETE, |call| self.0.with_channel(call)).await?;
        Ok(item(&reply, 1) == 1)
    }

    /// Runs a script that takes permits. What it took when no task waits for the answer any more is given back to the server that answered
    /// in this incarnation, which is read before; `taken` reads from the reply how many that are.
    async fn taking(
        &self,
        script: &'static Script,
        incarnation: u64,
        args: impl FnOnce(Call) -> Call + Send,
        taken: impl FnOnce(&[i64]) -> i64 + Send + 'static,
    ) -> Result<Numbers, Fault> {
        let abandoned = |number| -> OnAbandon<_> {
            let semaphore = self.clone();
            Some(AfterDrop::Then(Box::new(move |outcome| {
                match semaphore.0.read(script, outcome, number) {
                    Ok(reply) => semaphore.give_back(taken(&reply), incarnation),
                    // Too few permits can be mended by hand; too many would let too many in.
                    Err(Fault::Unknown(error)) => {
                        tracing::warn!(semaphore = %semaphore.name(), %error, "permits may have been taken unseen");
                    }
                    Err(Fault::NotSent(_) | Fault::Server(_)) => {}
                }
            })))
        };
        self.0.ask(script, args, abandoned).await
    }

    /// Gives permits back in the background, to the semaphore they came from: one that is gone is not created again, and a server that
    /// may lack the take is not told.
    fn give_back(&self, permits: i64, incarnation: u64) {
        if permits <= 0 {
            return;
        }
        let semaphore = self.clone();
        self.core().keeper.spawn(async move {
            let core = semaphore.core();
            let over_ms = core.now_ms() + core.config.outage_tolerance.as_millis() as u64;
            loop {
                let giving = |call| semaphore.giving(call, permits, true).in_incarnation(incarnation);
                match semaphore.0.ask(&scripts::SEMAPHORE_GIVE, giving, |_| None).await {
                    Ok(_) => return,
                    // Certainly not done, so it may be asked for again, where the take is counted.
                    Err(Fault::NotSent(error) | Fault::Server(error))
                        if error.is_retryable()
                            && core.now_ms() < over_ms
                            && semaphore.0.incarnation() == incarnation =>
                    {
                        core.keeper.sleep(jittered(GIVE_BACK_DELAY)).await;
                    }
                    Err(error) => {
                        tracing::warn!(semaphore = %semaphore.name(), permits, %error, "permits could not be given back");
                        return;
                    }
                }
            }
        });
    }
}

/// A contender for permits.
struct Taker<'a> {
    semaphore: &'a Semaphore,
    permits: i64,
    /// How many permits were left by what was won.
    left: i64,
    /// In which the last request was sent.
    incarnation: u64,
}

impl Contender for Taker<'_> {
    /// Errors that another try would not mend are a prize too: they end the contest.
    type Gain = Result<(), Error>;

    fn key(&self) -> &[u8] {
        self.semaphore.0.key()
    }

    fn key_to_watch(&self) -> Option<Arc<[u8]>> {
        None
    }

    fn channel(&self) -> Option<Arc<[u8]>> {
        Some(self.semaphore.0.channel.clone())
    }

    fn ask_gate(&self) -> Option<AskGateKey> {
        Some((self.semaphore.0.channel.clone(), self.permits))
    }

    fn left_for_others(&self) -> Availability {
        if self.left < self.permits {
            Availability::Nothing { again_after: None }
        } else {
            Availability::MayBeEnough
        }
    }

    fn waiting(&self, since_ms: u64) -> Vec<Waiting> {
        vec![Waiting::here(Subject::new("semaphore", self.semaphore.name()), None, since_ms)]
    }

    async fn attempt(&mut self) -> Result<Attempt<Self::Gain>, Fault> {
        let permits = self.permits;
        self.incarnation = self.semaphore.0.incarnation();
        let taken = move |reply: &[i64]| if item(reply, 1) == 1 { permits } else { 0 };
        let asked = self.semaphore.taking(
            &scripts::SEMAPHORE_TAKE,
            self.incarnation,
            |call| call.int(permits),
            taken,
        );
        match asked.await {
            Ok(reply) => Ok(match item(&reply, 1) {
                1 => {
                    self.left = item(&reply, 2);
                    Attempt::Won(Ok(()))
                }
                0 => Attempt::Busy(None),
                _ => Attempt::Won(Err(Error::new(ErrorKind::NotInitialised, "nobody has set permits"))),
            }),
            Err(Fault::Unknown(error)) => Ok(Attempt::Won(Err(error.remedy(
                "the permits may have been taken unseen; `available` tells, and `release` puts them back",
            )))),
            Err(fault) => Err(fault),
        }
    }

    fn mark_outcome_unknown(&mut self) {}
}
