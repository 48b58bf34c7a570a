//! What a run holds: one name or several, by locks or by a permit, as one thing that is lost as a whole.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use redlatch::{Guard, LockName, LossReason, LostMember, MultiGuard, PermitGuard, PermitSemaphore, Unlocked};
use tokio::task::JoinSet;

use crate::escape::{self, quoted};

/// One part of what is held, with a guard of its own.
#[derive(Debug)]
pub(crate) enum Part {
    /// A lock. `nested` when an outer run holds it too.
    Lock { guard: Guard, nested: bool },
    /// Several locks.
    Locks { guard: MultiGuard },
    /// A permit.
    Permit { permits: PermitSemaphore, guard: PermitGuard },
}

/// Everything that a run holds.
#[derive(Debug)]
pub(crate) struct Holding(Vec<Part>);

/// One name, and how it is held.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    pub(crate) name: LockName,
    /// The owner, or the id of the permit.
    pub(crate) owner: String,
    pub(crate) token: Option<u64>,
}

/// What became of one name at the end.
#[derive(Debug)]
pub(crate) struct Ended<T> {
    pub(crate) name: LockName,
    /// Whether an outer run holds it too.
    pub(crate) nested: bool,
    pub(crate) outcome: Result<T, redlatch::Error>,
}

/// What is known about a hold that was lost.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    pub(crate) reason: String,
    /// By its lease's end, so that no time is left, rather than by a user's deed.
    pub(crate) expired: bool,
}

impl From<LossReason> for Loss {
    fn from(reason: LossReason) -> Self {
        Loss { expired: reason == LossReason::Expired, reason: escape::text(&reason.to_string()).to_string() }
    }
}

impl From<LostMember> for Loss {
    fn from(lost: LostMember) -> Self {
        Loss {
            expired: lost.reason == LossReason::Expired,
            reason: escape::text(&lost.to_string()).to_string(),
        }
    }
}

type Lost = Pin<Box<dyn Future<Output = Loss> + Send>>;

impl Holding {
    /// Of these parts, at least one.
    pub(crate) fn new(parts: Vec<Part>) -> Self {
        Holding(parts)
    }

    /// How long all of it lasts if no renewal succeeds any more; zero if a part of it is over.
    pub(crate) fn remaining(&self) -> Duration {
        let remaining = self.0.iter().map(|part| match part {
            Part::Lock { guard, .. } => guard.remaining(),
            Part::Locks { guard, .. } => guard.remaining(),
            Part::Permit { guard, .. } => guard.remaining(),
        });
        remaining.min().unwrap_or_default()
    }

    /// Resolves when any part is lost.
    pub(crate) fn lost(&self) -> impl Future<Output = Loss> + Send + use<> {
        let mut lost: Vec<Lost> = self.0.iter().map(Part::lost).collect();
        poll_fn(move |context| {
            let ready = lost.iter_mut().find_map(|lost| match lost.as_mut().poll(context) {
                Poll::Ready(loss) => Some(loss),
                Poll::Pending => None,
            });
            ready.map_or(Poll::Pending, Poll::Ready)
        })
    }

    /// Whether an outer run holds all of it, too.
    pub(crate) fn is_nested(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Lock { nested: true, .. }))
    }

    /// The names, and how each is held.
    pub(crate) fn names(&self) -> Vec<Name> {
        let mut names = Vec::new();
        for part in &self.0 {
            match part {
                Part::Lock { guard, .. } => names.push(Name::of(guard)),
                Part::Locks { guard, .. } => names.extend(guard.members().iter().map(Name::of)),
                Part::Permit { guard, .. } => {
                    let (name, owner) = (guard.name().clone(), guard.id().to_owned());
                    names.push(Name { name, owner, token: None });
                }
            }
        }
        names
    }

    /// Gives everything back.
    pub(crate) async fn release(self) -> Vec<Ended<Unlocked>> {
        side_by_side(self.0, Part::release).await
    }

    /// Leaves it held without renewal, until its leases end or a user gives it back.
    pub(crate) fn detach(self) {
        for part in self.0 {
            match part {
                Part::Lock { guard, .. } => drop(guard.detach()),
                Part::Locks { guard, .. } => drop(guard.detach()),
                Part::Permit { guard, .. } => drop(guard.detach()),
            }
        }
    }

    /// Leaves it held without renewal for this long, but gives back what an outer run holds. Answers for each of the other names
    /// whether it was still held.
    pub(crate) async fn keep(self, rest: Duration) -> Vec<Ended<bool>> {
        side_by_side(self.0, move |part| part.keep(rest)).await
    }
}

/// Ends all parts at once: one whose server is silent takes up the time of no other. The outcomes come in the order of the parts.
async fn side_by_side<T, F>(parts: Vec<Part>, end: impl Fn(Part) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = Vec<T>> + Send + 'static,
{
    let mut work = JoinSet::new();
    for (at, part) in parts.into_iter().enumerate() {
        let ended = end(part);
        work.spawn(async move { (at, ended.await) });
    }
    let mut ended = work.join_all().await;
    ended.sort_unstable_by_key(|(at, _)| *at);
    ended.into_iter().flat_map(|(_, ended)| ended).collect()
}

impl Part {
    async fn release(self) -> Vec<Ended<Unlocked>> {
        match self {
            Part::Lock { guard, nested, .. } => {
                let name = guard.name().clone();
                vec![Ended { name, nested, outcome: guard.unlock_polled().await }]
            }
            Part::Locks { guard, .. } => {
                let members = guard.unlock().await.members.into_iter();
                members.map(|(name, outcome)| Ended { name, nested: false, outcome }).collect()
            }
            Part::Permit { guard, .. } => {
                let name = guard.name().clone();
                vec![Ended { name, nested: false, outcome: guard.release().await }]
            }
        }
    }

    async fn keep(self, rest: Duration) -> Vec<Ended<bool>> {
        let kept = |name, outcome| Ended { name, nested: false, outcome };
        match self {
            Part::Lock { nested: true, guard, .. } => {
                // The outer run goes on holding it, whatever comes of this.
                _ = guard.unlock().await;
                Vec::new()
            }
            Part::Lock { guard, .. } => {
                let name = guard.name().clone();
                vec![kept(name, guard.detach_for(rest).await)]
            }
            Part::Locks { guard, .. } => {
                let outcomes = guard.detach_for(rest).await;
                outcomes.into_iter().map(|(name, outcome)| kept(name, outcome)).collect()
            }
            Part::Permit { permits, guard } => {
                let name = guard.name().clone();
                let mut outcome = Ok(true);
                for id in guard.detach() {
                    outcome = permits.update_lease(&id, rest).await;
                }
                vec![kept(name, outcome)]
            }
        }
    }

    fn lost(&self) -> Lost {
        match self {
            Part::Lock { guard, .. } => {
                let lost = guard.lost();
                Box::pin(async move { lost.await.into() })
            }
            Part::Locks { guard, .. } => {
                let lost = guard.lost();
                Box::pin(async move { lost.await.into() })
            }
            Part::Permit { guard, .. } => {
                let lost = guard.lost();
                Box::pin(async move { lost.await.into() })
            }
        }
    }
}

impl Name {
    /// The name, and the owner that holds it.
    pub(crate) fn as_owner(&self) -> String {
        format!("{} of {}", quoted(&self.name), self.owner)
    }

    fn of(guard: &Guard) -> Self {
        Name { name: guard.name().clone(), owner: guard.owner().to_text(), token: guard.token() }
    }
}
