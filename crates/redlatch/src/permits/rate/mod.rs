//! `RateLimiter`: no more than so many permits in any interval; shares its state with Redisson's `RRateLimiter`
//! (`docs/protocol.md`, rate limiter).

mod setting;

use std::{fmt, sync::Arc, time::Duration};

pub use setting::Rate;

use crate::{
    core::observing::ObservedAcquire,
    core::{
        Core, Numbers, Wait,
        contest::{Attempt, Contender},
        flight::{AfterDrop, OnAbandon},
        fork_safe::ForkSafeCore,
        presence::Waiting,
        wait::WaitDeadline,
    },
    error::{Error, ErrorKind},
    jitter::jittered,
    kind::key_pattern::{RATE_PERMITS, RATE_VALUE},
    name::LockName,
    observe::Subject,
    permits::counter::{Counter, amount, item},
    scripts::{self, Script},
    store::{Call, Fault, Reply},
};

/// Pause between tries to give back what nobody took.
const GIVE_BACK_DELAY: Duration = Duration::from_millis(100);
/// By how much waiters that were told the same time are spread out, at most.
const SPREAD_TIME_MAX: Duration = Duration::from_millis(10);
/// The longest a waiter sleeps before it looks whether the rate was changed. No message tells of that.
const LOOK_AGAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// Lets no more than so many permits through in any interval, over all processes or for each client.
///
/// Permits that were taken come free by themselves when the interval has passed since. The server's clock alone decides when
/// that is, in whole milliseconds, as in Redisson, so an interval may be shorter by less than one. Waiters are told by the server how long to sleep, and are not served in any order: a caller that wants many permits
/// may be overtaken again and again by those who want few.
///
/// **Shared with Redisson 3.17 and later.** It reckons with the clock of each caller, so its machines must agree with
/// the server's clock. What an earlier Redisson has written is refused with [`ErrorKind::WrongType`].
#[derive(Clone)]
pub struct RateLimiter(Arc<Counter>);

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("name", self.name()).finish_non_exhaustive()
    }
}

impl RateLimiter {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        // Nothing is ever published, so there is no channel.
        RateLimiter(Counter::new(core, name, Vec::new(), None))
    }

    /// The rate limiter's name.
    pub fn name(&self) -> &LockName {
        &self.0.name
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// Sets the rate if none is set yet; `false` if one is.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a rate out of range; [`ErrorKind::WrongLockKind`] or [`ErrorKind::WrongType`] when the
    /// name is used by something else; a server that is unreachable or refuses.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// use std::time::Duration;
    /// use redlatch::{Client, Rate};
    ///
    /// let client = Client::connect("memory:").await?;
    /// let mails = client.rate_limiter("mails");
    /// mails.set_if_absent(Rate::per(2, Duration::from_secs(60))).await?;
    /// mails.acquire(1).await?;
    /// assert!(mails.try_acquire(1).await?);
    /// assert!(!mails.try_acquire(1).await?, "two a minute");
    /// # Ok(()) }
    /// ```
    pub async fn set_if_absent(&self, rate: Rate) -> Result<bool, Error> {
        self.store(rate, "absent").await
    }

    /// Sets the rate whatever it was, and forgets what was taken: all its permits are free at once.
    ///
    /// With a rate for each client, what other clients have taken stays taken, of the new rate, as long as the keep-alive time lasts that was in
    /// force when they asked last.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// As [`set_if_absent`](Self::set_if_absent). When the answer was lost ([`ErrorKind::Timeout`]) it may have happened.
    pub async fn set(&self, rate: Rate) -> Result<(), Error> {
        self.store(rate, "always").await.map(|_| ())
    }

    /// Changes the rate and remembers what was taken: free then is the new rate less what was taken in the new interval,
    /// which may be below 0. Where the interval gets longer, what had left the old one is not counted any more. `false` if nobody has
    /// set a rate.
    ///
    /// A change between shared and for each client forgets what was taken. With a rate for each client, each one's count follows at its next
    /// request, and is forgotten with the keep-alive time that was in force when it asked last.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub async fn update(&self, rate: Rate) -> Result<bool, Error> {
        self.store(rate, "present").await
    }

    async fn store(&self, rate: Rate, case: &'static str) -> Result<bool, Error> {
        let (permits, interval_ms, keep_alive_ms) = rate.checked().map_err(|error| error.on(self.name()))?;
        let kind = if rate.is_per_client() { "1" } else { "0" };
        let reply = self
            .run(&scripts::RATE_SET, |call| {
                call.int(permits).int(interval_ms).constant(kind).int(keep_alive_ms).constant(case)
            })
            .await?;
        Ok(item(&reply, 1) == 1)
    }

    /// Waits as long as it takes for `n` permits (1 to the rate), and takes them all at once.
    ///
    /// # Cancel safety
    ///
    /// Permits that were granted when the future was dropped are given back in the background. Where that fails, they come
    /// free after the interval.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotInitialised`] when nobody has set a rate; [`ErrorKind::InvalidOption`] for 0, and for more permits
    /// than the rate has; [`ErrorKind::WrongLockKind`] or [`ErrorKind::WrongType`] when the name is used by something else;
    /// a server that stays unreachable for the [outage tolerance](crate::ClientBuilder::outage_tolerance). When an answer was
    /// lost ([`ErrorKind::Timeout`]), the request is not repeated, and what it may have taken is given back in the background.
    pub async fn acquire(&self, n: u32) -> Result<(), Error> {
        if self.take(n, Wait::Forever).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Protocol, "a wait without limit ended as if it had one").on(self.name()))
    }

    /// Takes `n` permits (1 to the rate) if that many are free now.
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

    /// Waits at most this long for `n` permits (1 to the rate). `false` as soon as it is known that they do not come free in
    /// that time, which is usually at once: permits that others would give back meanwhile are not waited for.
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
        let core = self.core();
        // Noted before looking whether the client is open, so that shutting down waits for each task that found it so.
        let _under_way = core.keeper.hold_off_shutdown();
        self.0.ready()?;
        let permits = amount("permits", n, self.name())?;
        let wait = wait.zero_as_no_wait();
        let deadline = WaitDeadline::new(core, wait);
        let id: Arc<[u8]> = Arc::from(&crate::randomness::identity().as_bytes()[..]);
        let mut taker = Taker { limiter: self, permits, id, deadline: &deadline };
        let observed = core.observed_acquire(Subject::new("rate", self.name()));
        let outcome = core.contest(&mut taker, wait, &deadline, false).await;
        ObservedAcquire::contest_ended(observed, &outcome);
        let taken = outcome.and_then(|prize| prize.unwrap_or(Ok(false)));
        let taken = taken.map_err(|error| error.on(self.name()))?;
        if taken && core.is_closed() {
            self.undo(permits, taker.id);
            return Err(core.closed_error().on(self.name()));
        }
        Ok(taken)
    }

    /// Gives up to `n` permits (1 to 2,147,483,647) back before their interval is over, and answers how many that were: as many
    /// as are taken at most.
    ///
    /// Permits have no owner, so the oldest are given back, of any task: those that stay then block for as long as any
    /// of them would have had to, and no interval sees more than its rate.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for a number out of range; [`ErrorKind::NotInitialised`] when nobody has set a rate; a server
    /// that is unreachable or refuses. The request is sent once; when its answer was lost ([`ErrorKind::Timeout`]) it may have
    /// happened.
    pub async fn release(&self, n: u32) -> Result<u64, Error> {
        let permits = amount("permits", n, self.name())?;
        let reply = self.run(&scripts::RATE_RELEASE, |call| call.int(permits).constant("")).await?;
        Ok(u64::try_from(item(&reply, 2)).unwrap_or(0))
    }

    /// How many permits are free now; below 0 after the rate was [lowered](Self::update) below what was taken.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotInitialised`] when nobody has set a rate; a server that is unreachable or refuses.
    pub async fn available(&self) -> Result<i64, Error> {
        Ok(item(&self.run(&scripts::RATE_SHOW, |call| call).await?, 2))
    }

    /// The rate in force; `None` if nobody has set one.
    ///
    /// # Errors
    ///
    /// A name that is used by something else; a server that is unreachable or refuses.
    pub async fn config(&self) -> Result<Option<Rate>, Error> {
        match self.run(&scripts::RATE_SHOW, |call| call).await {
            Ok(reply) => Ok(Some(Rate::stored(
                item(&reply, 3),
                item(&reply, 4),
                item(&reply, 5) == 1,
                item(&reply, 6),
            ))),
            Err(error) if error.kind() == ErrorKind::NotInitialised => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the rate limiter; `false` if there was none. Waiters end with [`ErrorKind::NotInitialised`] when they look again.
    ///
    /// With a rate for each client, what other clients have taken stays until its interval or a keep-alive time ends.
    ///
    /// # Cancel safety
    ///
    /// Once started it is finished in the background.
    ///
    /// # Errors
    ///
    /// A name that is used by something else, which is left alone; a server that is unreachable or refuses.
    pub async fn delete(&self) -> Result<bool, Error> {
        Ok(item(&self.run(&scripts::RATE_DELETE, |call| call).await?, 1) == 1)
    }

    fn keyed(&self, call: Call) -> Call {
        // Free permits, shared and of this client; permits taken, shared and of this client. A forked child is another one.
        let id = self.core().id.as_bytes();
        [RATE_VALUE, RATE_PERMITS].into_iter().fold(call, |call, place| {
            let shared = place.of(self.name().as_bytes());
            let own = [&shared[..], b":", id].concat();
            call.key(&shared.into()).key(&own.into())
        })
    }

    /// Runs a script once, and tells a refusal from an answer.
    async fn run(
        &self,
        script: &'static Script,
        args: impl FnOnce(Call) -> Call + Send,
    ) -> Result<Numbers, Error> {
        let reply = self.0.run(script, |call| args(self.keyed(call))).await?;
        match refusal(&reply, 0) {
            Some(error) => Err(error.on(self.name())),
            None => Ok(reply),
        }
    }

    /// Undoes one grant in the background. By its id it is undone once, however often that is asked for.
    fn undo(&self, permits: i64, id: Arc<[u8]>) {
        let limiter = self.clone();
        self.core().keeper.spawn(async move {
            let core = limiter.core();
            let over_ms = core.now_ms() + core.config.outage_tolerance.as_millis() as u64;
            loop {
                let args = |call| limiter.keyed(call).int(permits).bytes(&id);
                match limiter.0.ask(&scripts::RATE_RELEASE, args, |_| None).await {
                    Ok(_) => return,
                    Err(fault) => {
                        let error = fault.into_error();
                        if !error.is_retryable() || core.now_ms() >= over_ms {
                            tracing::warn!(
                                limiter = %limiter.name(), permits, %error,
                                "permits could not be given back; they come free after the interval"
                            );
                            return;
                        }
                        core.keeper.sleep(jittered(GIVE_BACK_DELAY)).await;
                    }
                }
            }
        });
    }
}

/// What a script has against a request, if anything.
fn refusal(reply: &[i64], permits: i64) -> Option<Error> {
    Some(match item(reply, 1) {
        -1 => Error::new(ErrorKind::NotInitialised, "nobody has set a rate")
            .remedy("set a rate first, with set_if_absent"),
        -2 => Error::new(
            ErrorKind::InvalidOption,
            format!("{permits} permits are more than the rate of {}", item(reply, 2)),
        )
        .remedy("ask for at most the rate, or raise it"),
        -3 => Error::new(ErrorKind::WrongLockKind, "the name is used by something other than a rate limiter")
            .remedy("choose another name"),
        _ => return None,
    })
}

/// A contender for permits.
struct Taker<'a> {
    limiter: &'a RateLimiter,
    permits: i64,
    /// The grant's name on the server.
    id: Arc<[u8]>,
    deadline: &'a WaitDeadline,
}

impl Taker<'_> {
    /// What to do with the outcome when nobody waits for it any more.
    fn abandoned(&self, number: i64) -> OnAbandon<Result<Reply, Fault>> {
        let (limiter, permits, id) = (self.limiter.clone(), self.permits, self.id.clone());
        let then = move |outcome| match limiter.0.read(&scripts::RATE_TAKE, outcome, number) {
            Ok(reply) if item(&reply, 1) == 1 => limiter.undo(permits, id),
            Err(Fault::Unknown(_)) => limiter.undo(permits, id),
            _ => {}
        };
        Some(AfterDrop::Then(Box::new(then)))
    }
}

impl Contender for Taker<'_> {
    /// Errors that another try would not mend end the contest too, and so does the news that it would take too long.
    type Gain = Result<bool, Error>;

    fn key(&self) -> &[u8] {
        self.limiter.0.key()
    }

    /// Time alone frees permits.
    fn key_to_watch(&self) -> Option<Arc<[u8]>> {
        None
    }

    fn channel(&self) -> Option<Arc<[u8]>> {
        None
    }

    fn waiting(&self, since_ms: u64) -> Vec<Waiting> {
        vec![Waiting::here(Subject::new("rate", self.limiter.name()), None, since_ms)]
    }

    async fn attempt(&mut self) -> Result<Attempt<Self::Gain>, Fault> {
        let (limiter, permits) = (self.limiter, self.permits);
        let args = |call| limiter.keyed(call).int(permits).bytes(&self.id);
        let asked = limiter.0.ask(&scripts::RATE_TAKE, args, |number| self.abandoned(number));
        match asked.await {
            Ok(reply) => {
                if let Some(error) = refusal(&reply, permits) {
                    return Ok(Attempt::Won(Err(error)));
                }
                if item(&reply, 1) == 1 {
                    return Ok(Attempt::Won(Ok(true)));
                }
                let delay = Duration::from_millis(u64::try_from(item(&reply, 2)).unwrap_or(0));
                if self.deadline.left(limiter.core()).is_some_and(|left| left < delay) {
                    return Ok(Attempt::Won(Ok(false)));
                }
                // Only ever later: a look before the time is in vain.
                let spread = jittered(SPREAD_TIME_MAX.min(delay / 8));
                Ok(Attempt::Busy(Some(delay.min(LOOK_AGAIN_TIME_MAX) + spread)))
            }
            Err(Fault::Unknown(error)) => {
                limiter.undo(permits, self.id.clone());
                Ok(Attempt::Won(Err(
                    error.remedy("what may have been taken unseen is given back in the background")
                )))
            }
            Err(fault) => Err(fault),
        }
    }

    fn mark_outcome_unknown(&mut self) {}
}
