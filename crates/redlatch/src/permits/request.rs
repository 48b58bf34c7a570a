//! Asking for permits, with options that are words (ARCHITECTURE D6).

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
};

use super::{
    PermitGuard, PermitSemaphore, ids,
    recipe::{NEVER_MS, Permits},
};
use crate::{
    core::{Request, Wait, lease::Term},
    error::Error,
    lock::Lease,
    owner::Owner,
    replica_ack::ReplicaAck,
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
        self.wait = wait.or_look();
        self
    }

    /// How long they are taken for; renewed unless set.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Takes them without a lease: until somebody gives them back. **A process that crashes leaks them**; that is what
    /// Redisson's lease of −1 means.
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
        let named = |error: Error| error.on(&keys.name);
        let permits = ids::amount(self.permits as usize, &keys.name)?;
        let term = match self.lease {
            Some(lease) => lease.term(&core.config).map_err(named)?,
            None => Term { lease_ms: NEVER_MS, renewed: false },
        };
        // The ids are the owner. Each attempt asks for the same ones, so that they are counted once.
        let owner = Owner::of_permits(&ids::fresh(permits).map_err(named)?, core.fresh_number());
        let recipe = Permits::of(&**core.store);
        let ack = self.ack.checked().map_err(named)?;
        let request = Request { owner: Some(owner), ack, ..Request::new(keys, recipe, term, self.wait) };
        let grant = core.acquire(request).await?;
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
