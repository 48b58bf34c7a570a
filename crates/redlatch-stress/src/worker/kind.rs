//! The kinds of locks, their names, and what holding each of them is.

use std::{future::Future, pin::Pin};

use redlatch::{
    AnyGuard as _, FencedGuard, Guard, LossReason, MultiGuard, PermitGuard, QuorumGuard, ReadGuard,
    WriteGuard,
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
pub(crate) enum OneGuard {
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

impl OneGuard {
    /// What locks have in common, where one lock is held.
    pub(crate) fn guard(&self) -> Option<&Guard> {
        match self {
            OneGuard::One(guard) => Some(guard),
            OneGuard::Fenced(guard) => Some(guard.as_guard()),
            OneGuard::Read(guard) => Some(guard.as_guard()),
            OneGuard::Write(guard) => Some(guard.as_guard()),
            OneGuard::Permits(_) | OneGuard::Multi(_) | OneGuard::Quorum(_) => None,
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        match self {
            OneGuard::Permits(guard) => guard.is_valid(),
            OneGuard::Multi(guard) => guard.is_valid(),
            OneGuard::Quorum(guard) => guard.is_valid(),
            other => other.guard().is_some_and(Guard::is_valid),
        }
    }

    pub(crate) fn told(&self) -> Told {
        match self {
            OneGuard::Permits(guard) => {
                let lost = guard.lost();
                Box::pin(async move { word(&lost.await) })
            }
            OneGuard::Multi(guard) => {
                let lost = guard.lost();
                Box::pin(async move { word(&lost.await.reason) })
            }
            OneGuard::Quorum(guard) => {
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
            OneGuard::One(guard) => guard.unlock().await,
            OneGuard::Fenced(guard) => guard.unlock().await,
            OneGuard::Read(guard) => guard.unlock().await,
            OneGuard::Write(guard) => guard.unlock().await,
            OneGuard::Permits(guard) => guard.release().await,
            OneGuard::Quorum(guard) => {
                // A member that is down is no reason to look further.
                return match guard.unlock().await.into_result() {
                    Ok(()) => "Released".to_owned(),
                    Err(error) => format!("error: {:?}", error.kind()),
                };
            }
            OneGuard::Multi(guard) => {
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

    pub(crate) async fn reenter(&self) -> Option<Result<OneGuard, redlatch::Error>> {
        match self {
            OneGuard::One(guard) => Some(guard.reenter().await.map(OneGuard::One)),
            OneGuard::Fenced(guard) => Some(guard.reenter().await.map(OneGuard::Fenced)),
            OneGuard::Read(guard) => Some(guard.reenter().await.map(OneGuard::Read)),
            OneGuard::Write(guard) => Some(guard.reenter().await.map(OneGuard::Write)),
            OneGuard::Permits(_) | OneGuard::Multi(_) | OneGuard::Quorum(_) => None,
        }
    }
}
