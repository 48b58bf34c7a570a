//! `MultiLock`: several locks held as one, all or nothing; takes and frees the same keys as Redisson's `RedissonMultiLock`
//! (`docs/protocol.md`, multi-lock).
//!
//! Nothing is held while something is waited for, so that no two sets can wait for each other in a ring: a task that finds a member
//! busy gives everything back, waits for that one alone, and then asks for the rest without waiting.

use std::{pin::pin, sync::Arc, time::Duration};

use crate::{
    Guard, Owner, Wait,
    core::{Grant, Request, batch::Batch, wait::WaitDeadline},
    error::{Error, ErrorKind},
    jitter::jittered,
    locks::shared::{
        acquire_set::AcquireSet,
        lock_handle::LockHandle,
        lock_set::{LockSet, SetMarker, sealed::Gather},
        members::{Holding, Member, Options, checked, is_final},
        set_guard::SetGuard,
    },
};

/// How long to pause at most after a round that came to nothing, so that sets that overlap fall out of step.
const PAUSE_MS_MAX: u64 = 64;

/// Marks the kind of [`MultiLock`].
#[derive(Debug)]
pub enum Multi {}

impl Gather for Multi {
    const LOCK: &'static str = "MultiLock";
    const ACQUIRE: &'static str = "AcquireMulti";
    const GUARD: &'static str = "MultiGuard";

    /// The members that one request takes, and these groups in the order in which they are tried.
    type Extra = Arc<[Vec<usize>]>;

    async fn gather(set: &MultiLock, options: Options) -> Result<Option<Holding>, Error> {
        set.gather(options).await
    }
}

impl SetMarker for Multi {}

/// Several locks as one: all of them are held, or none.
///
/// The members may be of any kinds of locks and of any clients. Those of one client that are plain, fenced, spin or non-reentrant
/// locks are taken by one request and released by one; in a cluster, those with the same hash tag. Each has a lease and a renewal
/// of its own. While a member is busy nothing is held: it is waited for alone, and the others are tried when it has been had.
///
/// It has the methods of every [`LockSet`]; holding it is a [`MultiGuard`].
///
/// # Example
///
/// ```
/// # use redlatch::MultiLock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
/// let guard = both.lock().await?;
/// assert!(client.lock("account:2").try_lock().await?.is_none());
/// guard.unlock().await.into_result()?;
/// # Ok(()) }
/// ```
pub type MultiLock = LockSet<Multi>;

impl From<&MultiLock> for Member {
    fn from(lock: &MultiLock) -> Self {
        Member(lock.members.to_vec())
    }
}

impl From<MultiLock> for Member {
    fn from(lock: MultiLock) -> Self {
        Member::from(&lock)
    }
}

/// An acquire of a [`MultiLock`] that is being put together; `await` it for `Result<Option<MultiGuard>, Error>`.
///
/// It has the options of every [`AcquireSet`], and [`fenced`](AcquireMulti::fenced).
///
/// # Cancel safety
///
/// As [`MultiLock::lock`].
///
/// # Errors
///
/// As [`MultiLock::lock`]; an option that is out of range.
///
/// # Example
///
/// ```
/// # use std::time::Duration;
/// # use redlatch::{MultiLock, Wait};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// # let client = redlatch::Client::connect("memory:").await?;
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
/// let held = both.acquire().wait(Wait::AtMost(Duration::from_secs(2))).fenced().await?;
/// assert!(held.is_some_and(|guard| guard.tokens().all(|token| token.is_some())));
/// # Ok(()) }
/// ```
pub type AcquireMulti<'a> = AcquireSet<'a, Multi>;

/// A hold on every member of a [`MultiLock`]. It is lost as soon as one member is; the others are then kept, and renewed,
/// until the guard goes, because the work may not have stopped yet.
///
/// It has the methods of every [`SetGuard`], and [`tokens`](MultiGuard::tokens).
///
/// # Example
///
/// ```
/// # use redlatch::MultiLock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// # let client = redlatch::Client::connect("memory:").await?;
/// let both = MultiLock::new([client.lock("account:1"), client.lock("account:2")])?;
/// let guard = both.lock().await?;
/// assert!(guard.is_valid() && guard.members().len() == 2);
/// client.lock("account:2").force_unlock().await?;
/// assert_eq!(guard.lost().await.name.as_str(), Some("account:2"));
/// # Ok(()) }
/// ```
pub type MultiGuard = SetGuard<Multi>;

impl AcquireSet<'_, Multi> {
    /// Draws a fencing token for every member ([`MultiGuard::tokens`]).
    pub fn fenced(mut self) -> Self {
        self.options.fenced = true;
        self
    }
}

impl SetGuard<Multi> {
    /// The fencing tokens of the members, in the order of listing. Each counts for its own name only.
    pub fn tokens(&self) -> impl Iterator<Item = Option<u64>> {
        self.0.guards.iter().map(Guard::token)
    }
}

impl LockSet<Multi> {
    /// Puts locks together. The members may be given as [`Member`]s, or as anything that turns into them; a multi-lock turns
    /// into all of its members.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidOption`] for no members, for more than 1,000, or for one that is listed twice;
    /// [`ErrorKind::WrongLockKind`] for one name as two kinds of locks; [`ErrorKind::InvalidName`];
    /// [`ErrorKind::Closed`] for a client that was shut down. That two clients use one server is noticed when they name it alike.
    pub fn new<M: Into<Member>>(members: impl IntoIterator<Item = M>) -> Result<Self, Error> {
        let members = checked(members)?;
        let mut order: Vec<usize> = (0..members.len()).collect();
        // The same order in every process, so that sets that overlap meet at the same member first.
        order.sort_by_cached_key(|at| (members[*at].core.store.place(), members[*at].keys.key.clone()));
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for at in order {
            let fits = |group: &&mut Vec<usize>| go_together(&members[group[0]], &members[at]);
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(at),
                None => groups.push(vec![at]),
            }
        }
        Ok(LockSet { members, extra: groups.into() })
    }

    /// Whether this owner holds every member.
    ///
    /// # Errors
    ///
    /// A server that is unreachable or refuses.
    pub async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        for member in self.members.iter() {
            if member.query(Some(owner)).await?.1 == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn gather(&self, options: Options) -> Result<Option<Holding>, Error> {
        let ack = options.ack.checked().map_err(|error| error.on(self.members[0].name()))?;
        // Several members of a client have one owner, and what was given back of a round is asked for again in its name.
        let _stays = options.who.stays(&self.members);
        let requests = self.members.iter().map(|member| {
            let owner = options.who.of(&member.core);
            let request = member.request(Wait::No, options.lease, owner, options.fenced)?;
            Ok(Arc::new(Request { ack, ..request }))
        });
        // Leases are worked out once, however many rounds there are, and are what members are asked for from the start.
        let requests: Vec<Arc<Request>> = requests.collect::<Result<_, Error>>()?;
        let clock = &self.members[0].core;
        let deadline = WaitDeadline::new(clock, options.wait);
        let (mut first, mut rounds, mut trouble_ms) = (None, 0u32, None);
        loop {
            let began_ms = clock.now_ms();
            let miss = match self.round(&requests, options.wait, &deadline, first).await {
                Ok(holding) => return Ok(Some(holding)),
                Err(miss) => miss,
            };
            let over = options.wait == Wait::No || deadline.is_over(clock);
            first = match miss {
                Miss::TimeUp => return Ok(None),
                Miss::Busy(_) if over => return Ok(None),
                Miss::Busy(at) => {
                    trouble_ms = None;
                    Some(at)
                }
                // A server in trouble is waited for like a member that is busy: alone, and with nothing held.
                Miss::Trouble(at, error) => {
                    let since_ms = *trouble_ms.get_or_insert(began_ms);
                    let patience_ms = clock.config.outage_tolerance.as_millis() as u64;
                    let patient = options.wait != Wait::Forever || clock.now_ms() - since_ms < patience_ms;
                    if over || !patient || is_final(&error) {
                        return Err(error);
                    }
                    Some(at)
                }
            };
            rounds += 1;
            if rounds > 1 {
                let pause = jittered(Duration::from_millis((1 << rounds.min(6)).min(PAUSE_MS_MAX)));
                clock.keeper.sleep(deadline.left(clock).map_or(pause, |left| left.min(pause))).await;
            }
        }
    }

    /// Waits for one member if one is named, then tries the others without waiting. What was had is given back on a miss.
    async fn round(
        &self,
        requests: &[Arc<Request>],
        wait: Wait,
        deadline: &WaitDeadline,
        first: Option<usize>,
    ) -> Result<Holding, Miss> {
        let mut round = Round { set: self, requests, deadline, held: Vec::new(), holding: Holding::of_all() };
        let outcome = round.take(wait, first).await;
        let clock = &self.members[0].core;
        let Round { held, mut holding, .. } = round;
        let miss = match outcome {
            Ok(()) => {
                let mut sorted: Vec<_> = held.into_iter().zip(std::mem::take(&mut holding.guards)).collect();
                sorted.sort_unstable_by_key(|(at, _)| *at);
                holding.guards = sorted.into_iter().map(|(_, guard)| guard).collect();
                holding.needed = holding.guards.len();
                if holding.is_valid() {
                    return Ok(holding);
                }
                let late = Error::new(ErrorKind::Timeout, "taking all members took longer than their lease");
                Miss::Trouble(0, late.remedy("use a longer lease, or look at the servers' load"))
            }
            Err(miss) => miss,
        };
        let limit = clock.config.response_timeout;
        holding.patience = Some(deadline.left(clock).map_or(limit, |left| left.min(limit)));
        // What is not confirmed by then is finished in the background.
        let _ = holding.unlock().await;
        Err(miss)
    }
}

/// Why a round came to nothing.
enum Miss {
    TimeUp,
    Busy(usize),
    Trouble(usize, Error),
}

struct Round<'a> {
    set: &'a MultiLock,
    requests: &'a [Arc<Request>],
    deadline: &'a WaitDeadline,
    /// Which members are held, in the order of `holding`.
    held: Vec<usize>,
    holding: Holding,
}

impl Round<'_> {
    async fn take(&mut self, wait: Wait, first: Option<usize>) -> Result<(), Miss> {
        if let Some(at) = first {
            let left = self.deadline.left(&self.set.members[0].core);
            let wait = left.map_or(wait, Wait::AtMost);
            let request = Request { wait, ..Request::clone(&self.requests[at]) };
            match self.set.members[at].core.acquire(Arc::new(request)).await {
                Ok(Some(grant)) => self.hold(at, grant),
                Ok(None) => return Err(Miss::TimeUp),
                Err(error) => return Err(Miss::Trouble(at, error)),
            }
        }
        let groups = &self.set.extra;
        for group in groups.iter() {
            let open: Vec<usize> = group.iter().copied().filter(|at| Some(*at) != first).collect();
            match *open {
                [] => {}
                [at] => self.take_one(at).await?,
                [..] => self.take_group(&open).await?,
            }
        }
        Ok(())
    }

    async fn take_group(&mut self, group: &[usize]) -> Result<(), Miss> {
        let core = &self.set.members[group[0]].core;
        let requests: Vec<_> = group.iter().map(|at| self.requests[*at].clone()).collect();
        match core.acquire_all(&requests, self.deadline).await {
            Ok(Batch::Taken(grants)) => {
                group.iter().zip(grants).for_each(|(at, grant)| self.hold(*at, grant));
                Ok(())
            }
            Ok(Batch::Busy(nth)) => Err(Miss::Busy(group[nth])),
            Ok(Batch::OneByOne) => {
                for at in group {
                    self.take_one(*at).await?;
                }
                Ok(())
            }
            Err(error) => Err(Miss::Trouble(group[0], error)),
        }
    }

    async fn take_one(&mut self, at: usize) -> Result<(), Miss> {
        let core = &self.set.members[at].core;
        let mut request = Request::clone(&self.requests[at]);
        // A member that does not wait has no deadline of its own that replicas would keep.
        if let (Some(ack), Some(left)) = (&mut request.ack, self.deadline.left(core)) {
            ack.within = ack.within.min(left * 3 / 4);
        }
        match self.deadline.bound(core, pin!(core.acquire(Arc::new(request)))).await {
            Some(Ok(Some(grant))) => {
                self.hold(at, grant);
                Ok(())
            }
            Some(Ok(None)) => Err(Miss::Busy(at)),
            Some(Err(error)) => Err(Miss::Trouble(at, error)),
            None => {
                let late = "the server did not answer within the time allowed for waiting";
                let error = Error::new(ErrorKind::Timeout, late).on(self.set.members[at].name());
                Err(Miss::Trouble(at, error))
            }
        }
    }

    fn hold(&mut self, at: usize, grant: Grant) {
        self.held.push(at);
        self.holding.guards.push(self.set.members[at].guard(grant.lease, grant.lease_term));
    }
}

/// Whether one request takes both.
fn go_together(one: &LockHandle, other: &LockHandle) -> bool {
    let slot = |handle: &LockHandle| one.core.store.slot(&handle.keys.key);
    Arc::ptr_eq(&one.core, &other.core)
        && one.recipe.batches()
        && other.recipe.batches()
        && one.fenced == other.fenced
        && slot(one) == slot(other)
}
