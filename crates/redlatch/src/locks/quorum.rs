//! `QuorumLock`: one lock on several independent servers, held while more than half of them say so; the same keys as
//! Redisson's `RedissonRedLock` (`docs/protocol.md`, quorum lock).

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};

use crate::{
    Guard, Wait,
    config::{MEMBER_TIMEOUT_MAX, MEMBER_TIMEOUT_MIN, QUORUM_DRIFT},
    core::{
        Grant, Request,
        multi_subscription::MultiSubscription,
        wait::{ANSWER_TIME, WaitDeadline},
    },
    error::{Error, ErrorKind},
    jitter,
    locks::shared::{
        acquire_set::AcquireSet,
        lock_handle::LockHandle,
        lock_set::{LockSet, SetMarker, sealed::Gather},
        members::{Holding, Member, Options, checked, is_final},
        membership,
        set_guard::SetGuard,
    },
    replica_ack::Replication,
};

/// The shortest time that members have left when a quorum has granted.
const GRACE_MIN: Duration = Duration::from_millis(2);

/// The longest pause between rounds when nobody rings.
const PAUSE_MS_MAX: u64 = 250;

/// Marks the kind of [`QuorumLock`].
#[derive(Debug)]
pub enum Quorum {}

impl Gather for Quorum {
    const LOCK: &'static str = "QuorumLock";
    const ACQUIRE: &'static str = "AcquireQuorum";
    const GUARD: &'static str = "QuorumGuard";

    /// How long each member has for its answer, if that was set.
    type Extra = Option<Duration>;

    async fn gather(set: &QuorumLock, options: Options) -> Result<Option<Holding>, Error> {
        set.gather(options).await
    }
}

impl SetMarker for Quorum {}

/// One lock on several independent servers: it is held while a quorum of them, more than half, has granted it.
///
/// All members are asked at the same time, and each has only a little time for its answer, so that a server that is down or hangs
/// does not delay the others. The hold is good until the moment at which fewer than a quorum of members stand: each counts from
/// when its request was sent, less a hundredth of the lease (at least 10 ms), less 2 ms. If there is no quorum,
/// or no time left, everything is released again, also where the outcome is unknown. Members that did not grant in time are not
/// asked again while the lock is held.
///
/// Every process that takes the lock has to list the same members; a server that is down stays on the list.
///
/// The servers must not replicate each other. There is no fencing token, because no single server counts: use a
/// [`FencedLock`](crate::FencedLock) on one server where a resource can check tokens. A server that loses its data and returns
/// within a lease may grant again what it has granted before; start such a server after a pause of the longest lease.
///
/// It has the methods of every [`LockSet`]; holding it is a [`QuorumGuard`].
///
/// # Example
///
/// ```
/// # use redlatch::{Client, QuorumLock};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let mut members = Vec::new();
/// for url in ["memory:a", "memory:b", "memory:c"] {
///     members.push(Client::connect_lazy(url)?.lock("orders"));
/// }
/// let guard = QuorumLock::new(members)?.lock().await?;
/// assert!(guard.is_valid());
/// let _ = guard.unlock().await;
/// # Ok(()) }
/// ```
pub type QuorumLock = LockSet<Quorum>;

/// An acquire of a [`QuorumLock`] that is being put together; `await` it for `Result<Option<QuorumGuard>, Error>`.
///
/// It has the options of every [`AcquireSet`]. With [`replica_ack`](AcquireQuorum::replica_ack), a member whose replicas fall short is given
/// back and does not count towards the quorum, unless it is to be kept. The replicas have three quarters of the
/// [time of a member](QuorumLock::member_timeout) at most.
///
/// # Cancel safety
///
/// As [`QuorumLock::lock`].
///
/// # Errors
///
/// As [`QuorumLock::lock`]; an option that is out of range, such as a [time of a member](QuorumLock::member_timeout) that does not
/// suit the lease; two members that turn out to be on one server.
///
/// # Example
///
/// ```
/// # use std::time::Duration;
/// # use redlatch::{Client, Lease, QuorumLock};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// # let mut members = Vec::new();
/// # for url in ["memory:a", "memory:b", "memory:c"] {
/// #     members.push(Client::connect_lazy(url)?.lock("orders"));
/// # }
/// let set = QuorumLock::new(members)?;
/// let held = set.acquire().lease(Lease::Fixed(Duration::from_secs(60))).await?;
/// assert!(held.is_some());
/// # Ok(()) }
/// ```
pub type AcquireQuorum<'a> = AcquireSet<'a, Quorum>;

/// A hold on a quorum of the members of a [`QuorumLock`]. It is lost when fewer than a quorum are left.
///
/// It has the methods of every [`SetGuard`], and [`quorum`](QuorumGuard::quorum).
///
/// # Example
///
/// ```
/// # use redlatch::{Client, QuorumLock};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// # let mut members = Vec::new();
/// # for url in ["memory:a", "memory:b", "memory:c"] {
/// #     members.push(Client::connect_lazy(url)?.lock("orders"));
/// # }
/// let guard = QuorumLock::new(members)?.lock().await?;
/// assert!(guard.quorum() == 2 && guard.members().len() >= 2);
/// assert!(guard.is_valid());
/// # Ok(()) }
/// ```
pub type QuorumGuard = SetGuard<Quorum>;

impl SetGuard<Quorum> {
    /// How many members have to stand.
    pub fn quorum(&self) -> usize {
        self.0.needed
    }
}

impl LockSet<Quorum> {
    /// Puts the members together, each on a server of its own. **All** of them, on every side: the number that is given here is
    /// what more than half is counted of. So their clients are made with
    /// [`connect_lazy`](crate::Client::connect_lazy), which succeeds while a server is down: a client that had to reach its server
    /// first is refused, because those who happened to answer could be left over as a smaller quorum beside that of others.
    ///
    /// Other processes cannot be seen from here. Give them the same list, from one configuration; to change it, end all holders
    /// first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for no members, for more than 1,000, for two on one server, for a client that was connected
    /// before (`memory:` excepted), and for other members than a quorum lock has that is in use in this process and shares one of
    /// them; [`ErrorKind::InvalidName`]; [`ErrorKind::Closed`] for a client that was shut down. Two members that turn out to be on
    /// one server when they are first reached are an error of the acquire, and everything is released.
    pub fn new<M: Into<Member>>(members: impl IntoIterator<Item = M>) -> Result<Self, Error> {
        let members = checked(members)?;
        membership::enter(&members)?;
        Ok(LockSet { members, extra: None })
    }

    /// How long each member has for its answer: 1 ms to half of the lease. Unless set, a fiftieth of the lease, from
    /// 50 to 500 ms, and never above a quarter of the lease.
    #[must_use]
    pub fn member_timeout(mut self, limit: Duration) -> Self {
        self.extra = Some(limit);
        self
    }

    /// How many members have to grant: more than half.
    pub fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    fn limit(&self, requests: &[Request]) -> Result<Duration, Error> {
        let lease_ms = requests.iter().map(|request| request.lease_term.lease_ms).min().unwrap_or_default();
        let lease = Duration::from_millis(u64::try_from(lease_ms).unwrap_or_default());
        let member_timeout = self.extra;
        match member_timeout {
            None => Ok((lease / 50).clamp(MEMBER_TIMEOUT_MIN, MEMBER_TIMEOUT_MAX).min(lease / 4)),
            Some(limit) if (Duration::from_millis(1)..=lease / 2).contains(&limit) => Ok(limit),
            Some(limit) => Err(Error::new(
                ErrorKind::InvalidOption,
                format!("{limit:?} for the answer of a member does not suit a lease of {lease:?}"),
            )
            .remedy("give at least 1 ms, and at most half of the lease")),
        }
    }
}

/// What members have answered so far.
#[derive(Default)]
struct Tally {
    granted: Vec<(usize, Guard)>,
    failed: usize,
    errors: Vec<Error>,
}

/// Why there is no quorum.
enum Miss {
    /// Too many members are busy.
    Busy,
    /// Too many are in trouble, or the grants came too late.
    Trouble(Error),
}

impl LockSet<Quorum> {
    async fn gather(&self, options: Options) -> Result<Option<Holding>, Error> {
        let ack = options.ack.checked().map_err(|error| error.on(self.members[0].name()))?;
        // A child that was forked off has quorums in use of its own.
        membership::enter(&self.members)?;
        let clock = &self.members[0].core;
        let deadline = WaitDeadline::new(clock, options.wait);
        let mut bell = None;
        let (mut rounds, mut trouble_ms) = (0u32, None);
        loop {
            // What a silent member was asked for in the last round may still arrive, so who can be another owner by now is.
            let (requests, limit) = self.requests(&options, ack, &deadline)?;
            let miss = match self.round(&requests, limit).await {
                Ok(holding) => return Ok(Some(holding)),
                Err(miss) => miss,
            };
            let over = options.wait == Wait::No || deadline.is_over(clock);
            match miss {
                Miss::Busy if over => return Ok(None),
                Miss::Busy => trouble_ms = None,
                Miss::Trouble(error) => {
                    let since_ms = *trouble_ms.get_or_insert(clock.now_ms());
                    let patience_ms = clock.config.outage_tolerance.as_millis() as u64;
                    let patient = options.wait != Wait::Forever || clock.now_ms() - since_ms < patience_ms;
                    if over || !patient || is_final(&error) {
                        return Err(error);
                    }
                }
            }
            let pause = jitter::jittered(Duration::from_millis((16 << rounds.min(4)).min(PAUSE_MS_MAX)));
            let pause = deadline.left(clock).map_or(pause, |left| left.min(pause));
            bell.get_or_insert_with(|| self.bell()).wait(clock, pause).await;
            // Those who were woken by the same release fall out of step, or they would split the members between them.
            clock.keeper.sleep(Duration::from_millis(1 << rounds.min(5)).mul_f64(jitter::fraction())).await;
            rounds = rounds.saturating_add(1);
        }
    }

    /// What each member is asked for, and how long it may take to answer.
    fn requests(
        &self,
        options: &Options,
        ack: Option<Replication>,
        deadline: &WaitDeadline,
    ) -> Result<(Vec<Request>, Duration), Error> {
        let requests = self.members.iter().map(|member| {
            let owner = options.who.of(&member.core);
            member.request(Wait::No, options.lease, owner, false)
        });
        let mut requests: Vec<Request> = requests.collect::<Result<_, _>>()?;
        let mut limit = self.limit(&requests)?;
        if let Some(left) = deadline.left(&self.members[0].core) {
            // The last look takes no longer than that of a single lock.
            limit = limit.min(left.max(ANSWER_TIME));
        }
        for request in &mut requests {
            // The rest of the member's time is for its own answer.
            request.ack = ack.map(|ack| Replication { within: ack.within.min(limit * 3 / 4), ..ack });
        }
        Ok((requests, limit))
    }

    fn bell(&self) -> MultiSubscription {
        let mut bell = MultiSubscription::default();
        for member in self.members.iter() {
            if let Some(channel) = member.recipe.channel(&member.keys, &member.core.fresh_owner()) {
                bell.listen(&member.core, channel);
            }
        }
        bell
    }

    /// Asks every member once, all at the same time.
    async fn round(&self, requests: &[Request], limit: Duration) -> Result<Holding, Miss> {
        let quorum = self.quorum();
        let tally = self.ask(requests, limit).await;
        let Tally { mut granted, errors, .. } = tally;
        granted.sort_unstable_by_key(|(at, _)| *at);
        // Clients that have not been there before may only now turn out to be at one place.
        let distinct = membership::distinct(&self.members);
        let holding = Holding {
            _members: Some(self.members.clone()),
            guards: granted.into_iter().map(|(_, guard)| guard).collect(),
            needed: quorum,
            drift: QUORUM_DRIFT,
            over: Arc::default(),
            patience: Some(limit),
        };
        let enough = holding.guards.len() >= quorum;
        if distinct.is_ok() && enough && holding.is_valid() {
            return Ok(holding);
        }
        // What is not confirmed by then is finished in the background.
        let _ = holding.unlock().await;
        distinct.map_err(Miss::Trouble)?;
        if enough {
            let error =
                Error::new(ErrorKind::Timeout, "the quorum took longer to grant than the lease lasts");
            return Err(Miss::Trouble(error.on(self.members[0].name()).remedy("use a longer lease")));
        }
        // Members that are busy may be free the next time; what counts is whether the others could make a quorum.
        let lasting = errors.iter().filter(|error| is_final(error)).count();
        let spare = self.members.len() - quorum;
        let worst = match () {
            () if lasting > spare => errors.into_iter().find(is_final),
            () if errors.len() > spare => errors.into_iter().find(Error::is_retryable),
            () => None,
        };
        Err(worst.map_or(Miss::Busy, Miss::Trouble))
    }

    async fn ask(&self, requests: &[Request], limit: Duration) -> Tally {
        let clock = &self.members[0].core;
        let began_ms = clock.now_ms();
        let mut asks: FuturesUnordered<_> = self
            .members
            .iter()
            .zip(requests)
            .enumerate()
            .map(async |(at, (member, request))| (at, ask_one(member, request, limit).await))
            .collect();
        let (quorum, count) = (self.quorum(), self.members.len());
        let mut tally = Tally::default();
        let grace = clock.keeper.sleep(limit);
        let mut grace = std::pin::pin!(grace);
        loop {
            let outcome = tokio::select! {
                biased;
                outcome = asks.next() => outcome,
                // Asks that are dropped here are finished, and undone, in the background.
                () = &mut grace, if tally.granted.len() >= quorum => return tally,
            };
            match outcome {
                None => return tally,
                Some((at, Ok(Some(grant)))) => {
                    let guard = self.members[at].guard(grant.lease, grant.lease_term);
                    tally.granted.push((at, guard));
                    if tally.granted.len() == quorum {
                        // The others get as much time again as the quorum took.
                        let took = Duration::from_millis(clock.now_ms() - began_ms).max(GRACE_MIN);
                        grace.set(clock.keeper.sleep(took.min(limit)));
                    }
                }
                Some((_, outcome)) => {
                    tally.failed += 1;
                    tally.errors.extend(outcome.err());
                    // Where one has not answered, the others show whether it is they who are busy. They have no more time than it had.
                    if count - tally.failed < quorum && tally.errors.is_empty() {
                        return tally;
                    }
                }
            }
        }
    }
}

async fn ask_one(member: &LockHandle, request: &Request, limit: Duration) -> Result<Option<Grant>, Error> {
    tokio::select! {
        biased;
        outcome = member.core.acquire(Arc::new(request.clone())) => outcome,
        () = member.core.keeper.sleep(limit) => {
            Err(Error::new(ErrorKind::Timeout, format!("the server did not answer within {limit:?}"))
                .on(member.name()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use redlatch_engine::{Clock, ManualClock};

    use super::*;
    use crate::{
        Client,
        store::{Call, Listener, RunFuture, Store, SubscribeFuture},
    };

    /// A store whose clock moves on with each answer.
    struct Slow {
        inner: Arc<dyn Store>,
        clock: ManualClock,
        step_ms: Arc<AtomicU64>,
    }

    impl Store for Slow {
        fn run(&self, call: Call) -> RunFuture {
            let (work, clock, step_ms) = (self.inner.run(call), self.clock.clone(), self.step_ms.clone());
            Box::pin(async move {
                let outcome = work.await;
                clock.advance(Duration::from_millis(step_ms.load(Ordering::SeqCst)));
                outcome
            })
        }

        fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
            self.inner.subscribe(channel, listener)
        }

        fn describe(&self) -> String {
            self.inner.describe()
        }
    }

    #[tokio::test]
    async fn a_quorum_is_granted_only_while_its_second_best_member_is_valid_with_the_drift() {
        let clock = ManualClock::new(Duration::from_secs(1_000_000));
        let step_ms = Arc::new(AtomicU64::new(0));
        let mut clients = Vec::new();
        for _ in 0..3 {
            let shared: Arc<dyn Clock> = Arc::new(clock.clone());
            let memory = Client::builder().url("memory:").clock(shared.clone()).connect().await.unwrap();
            let slow =
                Slow { inner: memory.core.store.clone(), clock: clock.clone(), step_ms: step_ms.clone() };
            let client =
                Client::builder().custom_store(Arc::new(slow)).clock(shared).connect().await.unwrap();
            clients.push((memory, client));
        }
        let set = QuorumLock::new(clients.iter().map(|(_, client)| client.lock("q"))).unwrap();
        let lease = crate::Lease::Fixed(Duration::from_millis(100));
        // The members are asked at 0, 43 and 86 and answer at 129. Each is valid for 90 ms from when it was asked: the first is
        // over, the second has 4 ms, of which the drift takes two.
        step_ms.store(43, Ordering::SeqCst);
        let guard = set.acquire().lease(lease).await.unwrap().expect("two are valid");
        assert_eq!(guard.remaining(), Duration::from_millis(2));
        step_ms.store(0, Ordering::SeqCst);
        let _ = guard.unlock().await;
        // At 132 the second has 2 ms by itself, and none with the drift.
        step_ms.store(44, Ordering::SeqCst);
        let error = set.acquire().lease(lease).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        step_ms.store(0, Ordering::SeqCst);
        for (memory, client) in &clients {
            client.core.keeper.drained().await;
            assert!(!memory.lock("q").is_locked().await.unwrap(), "what came too late is released");
        }
    }
}
