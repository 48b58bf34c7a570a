//! Having permits is having their guard.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::ids;
use crate::{
    core::{Core, Grant, release::Unlocked},
    error::{Error, ErrorKind, LossReason},
    locks::shared::Guard,
    name::LockName,
    replica_ack::Replicas,
};

/// Permits that are taken. Dropping it stops the renewal at once and gives them back in the background;
/// [`release`](Self::release) gives them back and says what happened.
///
/// Permits that were taken together are kept together: they are lost when one of them is, which happens when another client
/// [gives one back by its id](super::PermitSemaphore::release); the others come back when their lease ends. The guard may be sent
/// to other tasks and threads and dropped anywhere, as a lock's [`Guard`].
#[must_use = "dropping the guard gives the permits back at once"]
pub struct PermitGuard {
    pub(super) hold: Guard,
    ids: Arc<str>,
    pub(super) permanent: bool,
    /// How many replicas confirmed them.
    pub(super) replicas: Option<Replicas>,
}

impl fmt::Debug for PermitGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitGuard")
            .field("name", self.name())
            .field("id", &self.id())
            .field("permits", &ids::each(&self.ids).count())
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl PermitGuard {
    pub(super) fn new(core: &Arc<Core>, grant: Grant) -> Self {
        let ids = grant.lease.owner.field().clone();
        let hold = Guard::new(core.clone(), grant.lease, grant.lease_term, false);
        let replicas = hold.replicas();
        PermitGuard { hold, ids, permanent: false, replicas }
    }

    /// The semaphore's name.
    pub fn name(&self) -> &LockName {
        self.hold.name()
    }

    /// The id of the permit, 32 hexadecimal digits; of the first one if there are several.
    pub fn id(&self) -> &str {
        ids::each(&self.ids).next().unwrap_or_default()
    }

    /// The ids of all permits.
    pub fn ids(&self) -> Vec<String> {
        ids::each(&self.ids).map(str::to_owned).collect()
    }

    /// How many replicas confirmed the grant; `None` if none were asked.
    pub fn replicas(&self) -> Option<Replicas> {
        self.replicas
    }

    /// Whether the permits are ours at this moment, by the local clock: no round trip.
    pub fn is_valid(&self) -> bool {
        self.hold.is_valid()
    }

    /// How long they are ours if no renewal succeeds any more; zero if it is over, [`Duration::MAX`] if they never end.
    pub fn remaining(&self) -> Duration {
        match self.hold.remaining() {
            left if self.permanent && !left.is_zero() => Duration::MAX,
            left => left,
        }
    }

    /// Resolves when the permits are lost, no later than their deadline; never if they are given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + 'static {
        self.hold.lost()
    }

    /// Why the permits were lost, if they were.
    pub fn loss(&self) -> Option<LossReason> {
        self.hold.loss()
    }

    /// A token that is cancelled when the permits are lost, for code that takes one.
    pub fn loss_token(&self) -> CancellationToken {
        self.hold.loss_token()
    }

    /// Makes the permits last at least `lease` from now (2 ms to 100 years); what is left of them is never shortened. Permits that are
    /// renewed keep being renewed.
    ///
    /// Permanent permits cannot be given an end here; use [`update_lease`](super::PermitSemaphore::update_lease).
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the permits are lost; [`ErrorKind::InvalidOption`] for a
    /// lease out of range and for permanent permits; a server that is unreachable or refuses.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        if self.permanent {
            return Err(Error::new(ErrorKind::InvalidOption, "permanent permits have no lease to extend")
                .on(self.name())
                .remedy("detach them, and give them a lease by their ids"));
        }
        self.hold.extend(lease).await
    }

    /// Gives the permits back and says what became of them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release: it is finished in the background.
    ///
    /// # Errors
    ///
    /// A server that refuses, or one that cannot be reached before the lease ends; the lease then ends the hold.
    pub async fn release(self) -> Result<Unlocked, Error> {
        self.hold.unlock().await
    }

    /// Lets the permits live on without a guard: renewal stops, they stay taken until their lease ends or a process
    /// [gives them back](super::PermitSemaphore::release_all) by the ids that this answers with.
    pub fn detach(self) -> Vec<String> {
        let ids = self.ids();
        self.hold.detach();
        ids
    }
}
