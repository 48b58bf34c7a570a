//! Asking for permits, with options that are words (decision D6).

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

use super::{PermitGuard, PermitSemaphore, ids};
use crate::{
    core::{Request, Wait, wait::WaitDeadline},
    error::{Error, ErrorKind},
    locks::shared::Lease,
    owner::Owner,
    recipes::PermitsRecipe,
    replica_ack::{ReplicaAck, Replication},
};

/// A request for permits that is being put together; `await` it for `Result<Option<PermitGuard>, Error>`.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is awaited"]
pub struct PermitRequest<'a> {
    semaphore: &'a PermitSemaphore,
    permits: u32,
    wait: Wait,
    /// `None` for permits that never end.
    lease: Option<Lease>,
    ack: ReplicaAck,
}

impl<'a> PermitRequest<'a> {
    pub(super) fn new(semaphore: &'a PermitSemaphore) -> Self {
        PermitRequest {
            semaphore,
            permits: 1,
            wait: Wait::No,
            lease: Some(Lease::Renewed),
            ack: ReplicaAck::none(),
        }
    }

    /// How many permits (1 to 1,000), all at once or none; 1 unless set.
    pub fn permits(mut self, n: u32) -> Self {
        self.permits = n;
        self
    }

    /// How long to wait while too few are free; not at all unless set.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait.zero_as_no_wait();
        self
    }

    /// How long they are taken for; renewed unless set.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Takes them without a lease: until they are given back. **A process that crashes leaks them**; that is what
    /// Redisson's lease of −1 means.
    ///
    /// They are taken with the client's watchdog lease, which a second request takes off; so what arrives when the caller has gone ends by
    /// itself. Replicas are asked after each.
    pub fn permanent(mut self) -> Self {
        self.lease = None;
        self
    }

    /// How many replicas have to confirm them, and what happens if too few do; none unless set. See
    /// [`Acquire::replica_ack`](crate::Acquire::replica_ack).
    pub fn replica_ack(mut self, ack: ReplicaAck) -> Self {
        self.ack = ack;
        self
    }

    pub(super) async fn run(self) -> Result<Option<PermitGuard>, Error> {
        let PermitSemaphore { core, keys, .. } = self.semaphore;
        let ack = self.ack.checked().map_err(|error| error.on(&keys.name))?;
        if let Some(lease) = self.lease {
            return self.take(lease, self.wait, ack).await;
        }
        let deadline = WaitDeadline::new(core, self.wait);
        let mut wait = self.wait;
        loop {
            let lease = Lease::Fixed(core.config.watchdog_lease);
            let Some(guard) = self.take(lease, wait, ack).await? else { return Ok(None) };
            match guard.never_ends(ack, &deadline).await {
                // Another server has taken over and lacks them.
                Err(error) if error.kind() == ErrorKind::Lost && self.wait != Wait::No => {
                    wait = deadline.left(core).map_or(Wait::Forever, Wait::AtMost).zero_as_no_wait();
                }
                outcome => return outcome.map(Some),
            }
        }
    }

    async fn take(
        &self,
        lease: Lease,
        wait: Wait,
        ack: Option<Replication>,
    ) -> Result<Option<PermitGuard>, Error> {
        let PermitSemaphore { core, keys, .. } = self.semaphore;
        let named = |error: Error| error.on(&keys.name);
        let permits = ids::amount(self.permits as usize, &keys.name)?;
        let lease_term = lease.lease_term(&core.config).map_err(named)?;
        // The ids are the owner. Each attempt asks for the same ones, so that they are counted once.
        let owner = Owner::of_permits(&ids::fresh(permits, core).map_err(named)?, core.fresh_number());
        let recipe = PermitsRecipe::for_publishing(core.store.publish_command());
        let request = Request { owner: Some(owner), ack, ..Request::new(keys, recipe, lease_term, wait) };
        let grant = core.acquire(Arc::new(request)).await?;
        Ok(grant.map(|grant| PermitGuard::new(core, grant)))
    }
}

impl<'a> IntoFuture for PermitRequest<'a> {
    type Output = Result<Option<PermitGuard>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
