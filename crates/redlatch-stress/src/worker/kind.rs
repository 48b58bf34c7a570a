//! The kinds of locks, their names, and what holding each of them is.

use std::{future::Future, pin::Pin};

use redlatch::{
    FencedGuard, Guard, Hold as _, LossReason, MultiGuard, PermitGuard, QuorumGuard, ReadGuard, WriteGuard,
};

use crate::{record::Mode, rng::Rng};

/// How many permits the permit semaphores have.
pub(crate) const CAPACITY: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Fair,
    Read,
    Write,
    Fenced,
    Spin,
    NonReentrant,
    NonReentrantFair,
    Permits,
    /// Two plain locks as one.
    Multi,
    /// A lock on most of several servers.
    Quorum,
}

impl Kind {
    /// The beginning of the names of this kind; sides of one lock have the same.
    pub(crate) fn stem(self) -> &'static str {
        match self {
            Kind::Plain | Kind::Multi => "plain",
            Kind::Fair => "fair",
            Kind::Read | Kind::Write => "rw",
            Kind::Fenced => "fenced",
            Kind::Spin => "spin",
            Kind::NonReentrant => "once",
            Kind::NonReentrantFair => "oncefair",
            Kind::Permits => "permits",
            Kind::Quorum => "quorum",
        }
    }

    pub(crate) fn name(self, rng: &mut Rng, names: u64) -> String {
        format!("{}{}", self.stem(), rng.below(names))
    }

    pub(crate) fn mode(self) -> Mode {
        match self {
            Kind::Read => Mode::Shared,
            Kind::Permits => Mode::Permits,
            _ => Mode::Exclusive,
        }
    }

    pub(crate) fn enters_again(self) -> bool {
        !matches!(self, Kind::NonReentrant | Kind::NonReentrantFair | Kind::Permits | Kind::Quorum)
    }
}

/// A guard of any kind.
#[derive(Debug)]
pub(crate) enum AnyGuard {
    One(Guard),
    Fenced(FencedGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permits(PermitGuard),
    Multi(MultiGuard),
    Quorum(QuorumGuard),
}

/// Resolves when the holder is told, with the reason as one word.
pub(crate) type Told = Pin<Box<dyn Future<Output = String> + Send>>;

pub(crate) fn word(reason: &LossReason) -> String {
    match reason {
        LossReason::Expired => "expired".to_owned(),
        LossReason::TakenOver { by } => format!("taken-over-by-{by}"),
        other => format!("{other:?}").to_lowercase().replace(' ', "-"),
    }
}

impl AnyGuard {
    /// What locks have in common, where one lock is held.
    pub(crate) fn guard(&self) -> Option<&Guard> {
        match self {
            AnyGuard::One(guard) => Some(guard),
            AnyGuard::Fenced(guard) => Some(guard.as_guard()),
            AnyGuard::Read(guard) => Some(guard.as_guard()),
            AnyGuard::Write(guard) => Some(guard.as_guard()),
            AnyGuard::Permits(_) | AnyGuard::Multi(_) | AnyGuard::Quorum(_) => None,
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        match self {
            AnyGuard::Permits(guard) => guard.is_valid(),
            AnyGuard::Multi(guard) => guard.is_valid(),
            AnyGuard::Quorum(guard) => guard.is_valid(),
            other => other.guard().is_some_and(Guard::is_valid),
        }
    }

    pub(crate) fn told(&self) -> Told {
        match self {
            AnyGuard::Permits(guard) => {
                let lost = guard.lost();
                Box::pin(async move { word(&lost.await) })
            }
            AnyGuard::Multi(guard) => {
                let lost = guard.lost();
                Box::pin(async move { word(&lost.await.reason) })
            }
            AnyGuard::Quorum(guard) => {
                let lost = guard.lost();
                Box::pin(async move { word(&lost.await.reason) })
            }
            other => {
                let lost = other.guard().map(Guard::lost);
                Box::pin(async move {
                    match lost {
                        Some(lost) => word(&lost.await),
                        None => std::future::pending().await,
                    }
                })
            }
        }
    }

    pub(crate) fn token(&self) -> Option<u64> {
        self.guard().and_then(Guard::token)
    }

    /// Gives it back; what came of it in words.
    pub(crate) async fn unlock(self) -> String {
        let outcome = match self {
            AnyGuard::One(guard) => guard.unlock().await,
            AnyGuard::Fenced(guard) => guard.unlock().await,
            AnyGuard::Read(guard) => guard.unlock().await,
            AnyGuard::Write(guard) => guard.unlock().await,
            AnyGuard::Permits(guard) => guard.release().await,
            AnyGuard::Quorum(guard) => {
                // A member that is down is no reason to look further.
                return match guard.unlock().await.into_result() {
                    Ok(()) => "Released".to_owned(),
                    Err(error) => format!("error: {:?}", error.kind()),
                };
            }
            AnyGuard::Multi(guard) => {
                return match guard.unlock().await.into_result() {
                    Ok(()) => "Released".to_owned(),
                    Err(error) => format!("error: {error}"),
                };
            }
        };
        match outcome {
            Ok(unlocked) => format!("{unlocked:?}"),
            Err(error) => format!("error: {error}"),
        }
    }

    pub(crate) async fn reenter(&self) -> Option<Result<AnyGuard, redlatch::Error>> {
        match self {
            AnyGuard::One(guard) => Some(guard.reenter().await.map(AnyGuard::One)),
            AnyGuard::Fenced(guard) => Some(guard.reenter().await.map(AnyGuard::Fenced)),
            AnyGuard::Read(guard) => Some(guard.reenter().await.map(AnyGuard::Read)),
            AnyGuard::Write(guard) => Some(guard.reenter().await.map(AnyGuard::Write)),
            AnyGuard::Permits(_) | AnyGuard::Multi(_) | AnyGuard::Quorum(_) => None,
        }
    }
}
