//! The locks of all kinds behind one face: what `run`, `lock` and their kin do to a name, whatever its kind.

use std::{str::FromStr, time::Duration};

use redlatch::{
    Acquire, AnyGuard, Client, ErrorKind, FairLock, Force, Forced, Guard, HoldMode, Lease, Lock, LockKind,
    LockName, Member, Owner, PermitSemaphore, ReadWriteLock, ReplicaAck, Unlocked, Wait,
};

use crate::{args::kind::HeldKind, escape::quoted, exit::Failure};

/// Who holds: the owner of a lock, or the permit that was taken.
#[derive(Debug, Clone)]
pub(crate) enum Holder {
    /// The owner of a lock.
    Owner(Owner),
    /// The id of a permit.
    Permit(String),
}

impl FromStr for Holder {
    type Err = redlatch::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if is_permit(text) { Ok(Holder::Permit(text.to_owned())) } else { Ok(Holder::Owner(text.parse()?)) }
    }
}

/// Whether this is the id of a permit. An owner has a colon and dashes.
fn is_permit(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Owner(owner) => f.write_str(&owner.to_text()),
            Holder::Permit(id) => f.write_str(id),
        }
    }
}

/// A lock that has owners.
#[derive(Debug, Clone)]
pub(crate) enum Handle {
    Lock(Lock),
    Fair(FairLock),
    Read(ReadWriteLock),
    Write(ReadWriteLock),
}

/// What all kinds of locks have alike, with the lock under a name.
macro_rules! with_lock {
    ($handle:expr, $lock:ident => $work:expr) => {
        match $handle {
            Handle::Lock($lock) => $work,
            Handle::Fair($lock) => $work,
            Handle::Read(both) => {
                let $lock = both.read();
                $work
            }
            Handle::Write(both) => {
                let $lock = both.write();
                $work
            }
        }
    };
}

/// How to ask for a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) wait: Wait,
    pub(crate) lease: Lease,
    pub(crate) fenced: bool,
    pub(crate) ack: ReplicaAck,
    /// Who is to hold it; a fresh owner if nobody is named.
    pub(crate) owner: Option<&'a Owner>,
}

impl Handle {
    /// The lock of that name and kind; nothing for permits, which have no owners.
    pub(crate) fn of(client: &Client, name: &LockName, kind: HeldKind) -> Option<Self> {
        Some(match kind {
            HeldKind::Lock => Handle::Lock(client.lock(name)),
            HeldKind::Fair => Handle::Fair(client.fair_lock(name)),
            HeldKind::Read => Handle::Read(client.read_write_lock(name)),
            HeldKind::Write => Handle::Write(client.read_write_lock(name)),
            HeldKind::Permits => return None,
        })
    }

    /// Asks for it.
    pub(crate) async fn acquire(&self, terms: Terms<'_>) -> Result<Option<Guard>, redlatch::Error> {
        with_lock!(self, lock => ask(lock.acquire(), terms).await)
    }

    /// The lock as one of several.
    pub(crate) fn member(&self) -> Member {
        with_lock!(self, lock => Member::from(lock))
    }

    /// Whether an outer run with this owner holds the name, so that a nested one may enter. A reader that wants to write
    /// enters too: the server refuses that, where a stranger would wait for its own outer run.
    pub(crate) async fn is_entered_by(&self, owner: &Owner) -> Result<bool, redlatch::Error> {
        match self {
            Handle::Lock(lock) => lock.is_held_by(owner).await,
            Handle::Fair(lock) => lock.is_held_by(owner).await,
            Handle::Read(lock) | Handle::Write(lock) => {
                Ok(lock.write().is_held_by(owner).await? || lock.read().is_held_by(owner).await?)
            }
        }
    }

    /// Sets the lease of an owner's hold anew; `false` if it has none.
    pub(crate) async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, redlatch::Error> {
        with_lock!(self, lock => lock.renew(owner, lease).await)
    }
}

async fn ask<G: AnyGuard>(
    attempt: Acquire<'_, G>,
    terms: Terms<'_>,
) -> Result<Option<Guard>, redlatch::Error> {
    let mut attempt = attempt.wait(terms.wait).lease(terms.lease).replica_ack(terms.ack);
    if terms.fenced {
        attempt = attempt.fenced();
    }
    if let Some(owner) = terms.owner {
        attempt = attempt.owner(owner);
    }
    Ok(attempt.await?.map(AnyGuard::into_guard))
}

/// A hold that nobody has a guard of: one that `lock` left, or that of another process.
#[derive(Debug)]
pub(crate) struct Detached {
    which: Which,
    name: LockName,
}

#[derive(Debug)]
enum Which {
    Lock(Handle),
    Permits(PermitSemaphore),
}

impl Detached {
    /// What `holder` has of the name: of the kind that was given, or else of the one that is found there.
    ///
    /// # Errors
    ///
    /// Those of the look.
    pub(crate) async fn find(
        client: &Client,
        name: &LockName,
        holder: &str,
        kind: Option<HeldKind>,
    ) -> Result<Self, Failure> {
        let kind = match kind {
            Some(kind) => kind,
            None if is_permit(holder) => HeldKind::Permits,
            None => look(client, name, holder).await?,
        };
        let which = match Handle::of(client, name, kind) {
            Some(lock) => Which::Lock(lock),
            None => Which::Permits(client.permit_semaphore(name)),
        };
        Ok(Detached { which, name: name.clone() })
    }

    /// Sets the lease anew; `false` if it is not held.
    ///
    /// # Errors
    ///
    /// Usage, for a holder of another kind; those of the store.
    pub(crate) async fn renew(&self, holder: &Holder, lease: Duration) -> Result<bool, Failure> {
        match (&self.which, holder) {
            (Which::Lock(lock), Holder::Owner(owner)) => Ok(lock.renew(owner, lease).await?),
            (Which::Permits(permits), Holder::Permit(id)) => Ok(permits.update_lease(id, lease).await?),
            _ => Err(self.mismatch(holder)),
        }
    }

    /// Gives it back.
    ///
    /// # Errors
    ///
    /// Usage, for a holder of another kind; those of the store.
    pub(crate) async fn release(&self, holder: &Holder) -> Result<Unlocked, Failure> {
        match (&self.which, holder) {
            (Which::Lock(lock), Holder::Owner(owner)) => {
                Ok(with_lock!(lock, lock => lock.release(owner).await)?)
            }
            (Which::Permits(permits), Holder::Permit(id)) => {
                permits.release(id).await?;
                Ok(Unlocked::Released)
            }
            _ => Err(self.mismatch(holder)),
        }
    }

    /// Takes it away from `holder`, and from nobody else.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn force(&self, holder: &str, by: &str, reason: &str) -> Result<Forced, Failure> {
        match &self.which {
            Which::Lock(lock) => {
                let force = Force::new().owner(holder).by(by).reason(reason);
                Ok(with_lock!(lock, lock => lock.force(force).await)?)
            }
            Which::Permits(permits) => match permits.release(holder).await {
                Ok(()) => Ok(Forced::Released),
                Err(error) if error.kind() == ErrorKind::NotOwner => Ok(Forced::OtherOwner),
                Err(error) => Err(error.into()),
            },
        }
    }

    fn mismatch(&self, holder: &Holder) -> Failure {
        let (is, kind) = match holder {
            Holder::Owner(_) => ("the owner of a lock", "lock, fair, read or write"),
            Holder::Permit(_) => ("the id of a permit", "permits"),
        };
        let name = quoted(&self.name);
        Failure::usage(format!("{name}: {holder} is {is}; give --kind {kind}, or leave --kind out"))
    }
}

/// The kind of lock that `holder` has of the name. A fair lock for which nobody queues looks like a plain one and is given back
/// like one; a waiter that queues just then finds it free at the next of its regular attempts.
async fn look(client: &Client, name: &LockName, holder: &str) -> Result<HeldKind, Failure> {
    let state = client.inspect(name).await?;
    let writes = |owner: &str| owner == holder || owner.strip_suffix(":write") == Some(holder);
    Ok(match state.kind {
        LockKind::ReadWrite => {
            let mut holders = state.holders.iter();
            let writer = holders.any(|found| found.mode == HoldMode::Write && writes(&found.owner));
            if writer { HeldKind::Write } else { HeldKind::Read }
        }
        LockKind::Fair => HeldKind::Fair,
        _ => HeldKind::Lock,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_permits_are_told_apart() {
        let read = |text: &str| text.parse::<Holder>();
        assert!(matches!(read("1b671a64-40d5-491e-99b0-da01ff1f3341:7"), Ok(Holder::Owner(_))));
        assert!(matches!(read("00ff00ff00ff00ff00ff00ff00ff00ff"), Ok(Holder::Permit(_))));
        assert!(read("00ff").is_err());
        assert!(read("").is_err());
    }
}
