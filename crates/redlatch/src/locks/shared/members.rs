//! What locks over several members share: members, holding them together, and options for acquiring them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;

use crate::{
    DetachedHold, Guard, Lease, Unlocked, Wait,
    config::MEMBERS_MAX,
    core::{Core, lease::HeldLease},
    error::{Error, ErrorKind, LossReason},
    locks::shared::{lock_handle::LockHandle, protect::protected},
    name::LockName,
    owner::{Owner, Stay},
    panic_safe::Signal,
    recipes::LeaseTerm,
    replica_ack::ReplicaAck,
};

/// A lock that belongs to a [`MultiLock`](crate::MultiLock) or a [`QuorumLock`](crate::QuorumLock). Handles of every kind of lock
/// turn into one; a multi-lock turns into all of its members.
#[derive(Clone)]
pub struct Member(pub(crate) Vec<LockHandle>);

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(LockHandle::name)).finish()
    }
}

impl Member {
    pub(crate) fn of(handle: &LockHandle) -> Self {
        Member(vec![handle.clone()])
    }
}

/// Checks what was put together: not empty, not too many, names that may be used, clients that are open, and no name
/// twice in one keyspace.
pub(crate) fn checked<M: Into<Member>>(
    members: impl IntoIterator<Item = M>,
) -> Result<Arc<[LockHandle]>, Error> {
    let handles: Vec<LockHandle> =
        members.into_iter().flat_map(|member| member.into().0).take(MEMBERS_MAX + 1).collect();
    let out_of_range = |why: &str| Err(Error::new(ErrorKind::InvalidOption, why));
    if handles.is_empty() {
        return out_of_range("a lock over several members was given none");
    }
    if handles.len() > MEMBERS_MAX {
        return out_of_range("a lock over several members was given more than 1,000");
    }
    for handle in &handles {
        handle.ready()?;
    }
    let mut sorted: Vec<&LockHandle> = handles.iter().collect();
    sorted.sort_by(|a, b| a.keys.key.cmp(&b.keys.key));
    for alike in sorted.chunk_by(|a, b| a.keys.key == b.keys.key) {
        for (at, one) in alike.iter().enumerate() {
            if let Some(other) = alike[..at].iter().find(|other| share(&one.core, &other.core)) {
                let error = if one.keys.kind == other.keys.kind {
                    Error::new(ErrorKind::InvalidOption, "the lock is listed twice")
                        .remedy("list each lock once")
                } else {
                    Error::new(ErrorKind::WrongLockKind, "the name is listed as locks of different kinds")
                };
                return Err(error.on(one.name()));
            }
        }
    }
    Ok(handles.into())
}

/// Whether two clients use one keyspace, as far as can be told from here.
pub(crate) fn share(one: &Arc<Core>, other: &Arc<Core>) -> bool {
    Arc::ptr_eq(one, other)
        || Arc::ptr_eq(&one.store, &other.store)
        || one.store.place().is_some_and(|place| Some(place) == other.store.place())
}

/// Who is to hold the members.
#[derive(Clone, Default)]
pub(crate) enum Who {
    /// A fresh owner each time.
    #[default]
    Fresh,
    This(Owner),
    /// The owner that a caller is for each client.
    Each(fn(&Arc<Core>) -> Owner),
}

impl Who {
    pub(crate) fn of(&self, core: &Arc<Core>) -> Option<Owner> {
        match self {
            Who::Fresh => None,
            Who::This(owner) => Some(owner.clone()),
            Who::Each(of) => Some(of(core)),
        }
    }

    /// Keeps everybody who is to hold the members the same until the returned values are dropped.
    pub(crate) fn stays(&self, members: &[LockHandle]) -> Vec<Stay> {
        match self {
            Who::Fresh | Who::This(_) => Vec::new(),
            Who::Each(of) => members.iter().map(|member| of(&member.core).stays()).collect(),
        }
    }
}

/// How to acquire. It is `pub` because a sealed trait names it; no path leads to it.
#[derive(Clone)]
pub struct Options {
    pub(crate) wait: Wait,
    pub(crate) lease: Lease,
    pub(crate) who: Who,
    pub(crate) fenced: bool,
    pub(crate) ack: ReplicaAck,
}

impl Options {
    /// No `Default`: code outside of the crate could make one.
    pub(crate) fn new() -> Self {
        Options {
            wait: Wait::No,
            lease: Lease::Renewed,
            who: Who::Fresh,
            fenced: false,
            ack: ReplicaAck::none(),
        }
    }
}

/// Whether an error is no reason to ask once more: it lasts, or it is an answer that its caller wants to have.
pub(crate) fn is_final(error: &Error) -> bool {
    !error.is_retryable() || error.kind() == ErrorKind::NotReplicated
}

/// A member that was lost while it was held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostMember {
    /// Which.
    pub name: LockName,
    /// Why.
    pub reason: LossReason,
}

impl fmt::Display for LostMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\": {}", self.name, self.reason)
    }
}

/// What giving back several members came to.
#[derive(Debug)]
#[must_use = "a member may have been lost before"]
#[non_exhaustive]
pub struct UnlockReport {
    /// Each member that was held, in the order of listing, and what became of it.
    pub members: Vec<(LockName, Result<Unlocked, Error>)>,
}

impl UnlockReport {
    /// Whether every member was held until now and has been given back.
    pub fn is_clean(&self) -> bool {
        let kept = |outcome: &Result<Unlocked, Error>| {
            matches!(outcome, Ok(Unlocked::Released | Unlocked::StillHeld(_)))
        };
        self.members.iter().all(|(_, outcome)| kept(outcome))
    }

    /// The first member that had been lost, as an error, if fewer than `needed` were held until now.
    pub(crate) fn lost(&self, needed: usize) -> Option<Error> {
        let lost = self.members.iter().filter_map(|(name, outcome)| match outcome {
            Ok(Unlocked::AlreadyLost(reason)) => Some((name, reason)),
            _ => None,
        });
        let (name, reason) = lost.clone().next().filter(|_| self.members.len() - lost.count() < needed)?;
        Some(lost_error(&LostMember { name: name.clone(), reason: reason.clone() }))
    }

    /// Nothing if the report is [clean](Self::is_clean), or else what is wrong with the first member that is not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] for a member that had been lost, or the error of a release that failed.
    pub fn into_result(self) -> Result<(), Error> {
        for (name, outcome) in self.members {
            if let Unlocked::AlreadyLost(reason) = outcome? {
                return Err(lost_error(&LostMember { name, reason }));
            }
        }
        Ok(())
    }
}

fn lost_error(lost: &LostMember) -> Error {
    Error::new(ErrorKind::Lost, format!("the hold was lost: {}", lost.reason))
        .on(&lost.name)
        .remedy("stop the work, or make its effects check the fencing token")
}

/// Whether a holding was seen to be over.
#[derive(Debug, Default)]
pub(crate) struct Over {
    seen: AtomicBool,
    told: Signal,
}

impl Over {
    fn is_seen(&self) -> bool {
        self.seen.load(Ordering::Acquire)
    }

    fn see(&self) {
        self.seen.store(true, Ordering::Release);
        self.told.tell();
    }

    async fn seen(&self) {
        self.told.until(|| self.is_seen().then_some(())).await;
    }
}

/// Members held together, of which so many are needed. It is `pub` because a sealed trait names it; no path leads to it.
pub struct Holding {
    pub(crate) guards: Vec<Guard>,
    pub(crate) needed: usize,
    /// What is taken off the deadline on top of each member's own margin.
    pub(crate) drift: Duration,
    /// It was seen not to be valid, and stays so though its members may be renewed.
    pub(crate) over: Arc<Over>,
    /// All members of the lock, of which these are held: nobody puts another quorum together meanwhile.
    pub(crate) _members: Option<Arc<[LockHandle]>>,
    /// How long giving back may take for each member before it goes on in the background; as long as it takes if `None`.
    pub(crate) patience: Option<Duration>,
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding")
            .field("guards", &self.guards)
            .field("needed", &self.needed)
            .finish_non_exhaustive()
    }
}

impl Holding {
    /// Nothing yet, of which everything is needed.
    pub(crate) fn of_all() -> Self {
        Holding {
            guards: Vec::new(),
            needed: 0,
            drift: Duration::ZERO,
            over: Arc::default(),
            _members: None,
            patience: None,
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        // In a forked child nothing is to be seen: telling it takes a mutex of the parent's, and calls its wakers.
        if self.is_forked() || self.over.is_seen() {
            return Duration::ZERO;
        }
        let remaining = self.remaining_of_members();
        if remaining.is_zero() && !self.guards.is_empty() {
            self.over.see();
        }
        remaining
    }

    fn remaining_of_members(&self) -> Duration {
        let mut remaining: Vec<_> = self.guards.iter().map(Guard::remaining).collect();
        remaining.sort_unstable_by(|a, b| b.cmp(a));
        let last = self.needed.checked_sub(1).and_then(|last| remaining.get(last));
        last.map_or(Duration::ZERO, |remaining| remaining.saturating_sub(self.drift))
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    pub(crate) fn lost(&self) -> impl Future<Output = LostMember> + Send + 'static {
        let mut ended: FuturesUnordered<_> = self
            .guards
            .iter()
            .map(|guard| {
                let (ended, name) = (guard.ended(), guard.name().clone());
                async move { (name, ended.await) }
            })
            .collect();
        let (mut left, needed) = (self.guards.len(), self.needed);
        let over = self.over.clone();
        let first = self.guards.first().map(|guard| guard.name().clone());
        async move {
            loop {
                let next = tokio::select! {
                    biased;
                    next = ended.next() => next,
                    () = over.seen() => match &first {
                        Some(name) => return LostMember { name: name.clone(), reason: LossReason::Expired },
                        None => None,
                    },
                };
                let Some((name, ended)) = next else { break };
                let Some(reason) = ended else { continue };
                left -= 1;
                if left < needed {
                    return LostMember { name, reason };
                }
            }
            // What was given back is not lost.
            std::future::pending().await
        }
    }

    pub(crate) fn loss(&self) -> Option<LostMember> {
        let mut lost = self
            .guards
            .iter()
            .filter_map(|guard| guard.loss().map(|reason| LostMember { name: guard.name().clone(), reason }));
        let spare = self.guards.len().saturating_sub(self.needed);
        lost.nth(spare).or_else(|| {
            // The quorum's deadline is a little before that of its members.
            let over = !self.is_valid();
            over.then(|| LostMember { name: self.guards[0].name().clone(), reason: LossReason::Expired })
        })
    }

    pub(crate) fn loss_token(&self) -> CancellationToken {
        let token = CancellationToken::new();
        if self.check_process().is_err() {
            token.cancel();
            return token;
        }
        let (lost, cancel) = (self.lost(), token.clone());
        let ended = join_all(self.guards.iter().map(Guard::ended));
        // The task ends with the holds, however they end.
        self.guards[0].core().keeper.handle().spawn(async move {
            tokio::select! {
                biased;
                _ = lost => cancel.cancel(),
                _ = ended => {}
            }
        });
        token
    }

    /// Whether another process made the holds.
    fn is_forked(&self) -> bool {
        self.guards.iter().any(|guard| guard.core().is_forked())
    }

    /// An error in a process that did not make the holds.
    fn check_process(&self) -> Result<(), Error> {
        self.guards.iter().try_for_each(Guard::check_process)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_process()?;
        self.loss().map_or(Ok(()), |lost| Err(lost_error(&lost)))
    }

    pub(crate) async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.check_process()?;
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost_error(&lost)),
            outcome = protected(work, || self.check()) => outcome,
        }
    }

    pub(crate) async fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.check()?;
        let outcomes = join_all(self.guards.iter().map(|guard| guard.extend(lease))).await;
        let extended = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        if extended >= self.needed {
            // Seen to be over meanwhile, it stays so.
            return self.check();
        }
        outcomes.into_iter().collect::<Result<Vec<_>, _>>().map(|_| ())
    }

    /// Lets the members be held without guards.
    pub(crate) fn detach(mut self) -> Vec<DetachedHold> {
        std::mem::take(&mut self.guards).into_iter().map(Guard::detach).collect()
    }

    /// Leaves every member held for exactly this long.
    pub(crate) fn detach_for(
        mut self,
        time: Duration,
    ) -> impl Future<Output = Vec<(LockName, Result<bool, Error>)>> + Send + 'static {
        // All begin here, before anything that may be dropped without having been polled has them.
        let detaching: Vec<_> = std::mem::take(&mut self.guards)
            .into_iter()
            .map(|guard| {
                let (name, detached) = (guard.name().clone(), guard.detach_for(time));
                async move { (name, detached.await) }
            })
            .collect();
        join_all(detaching)
    }

    /// Gives everything back; one request for those that go together.
    pub(crate) async fn unlock(mut self) -> UnlockReport {
        let names: Vec<_> = self.guards.iter().map(|guard| guard.name().clone()).collect();
        let patience = self.patience;
        let mut clients = by_client(std::mem::take(&mut self.guards));
        // All releases begin here, before anything that may be dropped without having been polled has them.
        let releases = clients.iter_mut().map(|(core, at, holds)| {
            let (core, at, holds) = (&*core, std::mem::take(at), std::mem::take(holds));
            // In a forked child they are the parent's.
            let work = (!core.is_forked()).then(|| core.unlock_all(holds));
            async move {
                let Some(work) = work else {
                    return at
                        .into_iter()
                        .map(|at| (at, core.check_process().map(|()| Unlocked::Released)))
                        .collect();
                };
                let outcomes = match patience {
                    None => work.await,
                    Some(patience) => tokio::select! {
                        biased;
                        outcomes = work => outcomes,
                        () = core.keeper.sleep(patience) => at.iter().map(|_| Err(late())).collect(),
                    },
                };
                at.into_iter().zip(outcomes).collect::<Vec<_>>()
            }
        });
        let outcomes = join_all(releases.collect::<Vec<_>>()).await;
        let mut outcomes: Vec<_> = outcomes.into_iter().flatten().collect();
        outcomes.sort_unstable_by_key(|(at, _)| *at);
        let members = names
            .into_iter()
            .zip(outcomes)
            .map(|(name, (_, outcome))| {
                let outcome = outcome.map_err(|error| error.on(&name));
                (name, outcome)
            })
            .collect();
        UnlockReport { members }
    }
}

fn late() -> Error {
    Error::new(ErrorKind::Timeout, "the release was not confirmed in time")
        .remedy("it goes on in the background until the lease has ended")
}

impl Drop for Holding {
    fn drop(&mut self) {
        for (core, _, holds) in by_client(std::mem::take(&mut self.guards)) {
            // In a forked child nothing may be touched.
            if !core.is_forked() {
                core.drop_holds(holds);
            }
        }
    }
}

type Holds = Vec<(Arc<HeldLease>, LeaseTerm)>;

/// The holds of each client, and where in the list they stand.
fn by_client(guards: Vec<Guard>) -> Vec<(Arc<Core>, Vec<usize>, Holds)> {
    let mut clients: Vec<(Arc<Core>, Vec<usize>, Holds)> = Vec::new();
    for (at, guard) in guards.into_iter().enumerate() {
        let (core, lease, lease_term) = guard.into_hold();
        match clients.iter_mut().find(|(other, ..)| Arc::ptr_eq(other, &core)) {
            Some((_, places, holds)) => {
                places.push(at);
                holds.push((lease, lease_term));
            }
            None => clients.push((core, vec![at], vec![(lease, lease_term)])),
        }
    }
    clients
}
