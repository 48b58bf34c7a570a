//! The builder of an acquire: each option is a method with a name that says it (decision D6).

use std::{
    fmt,
    future::{Future, IntoFuture},
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
};

use super::{AnyGuard, Guard, Lease, lock_handle::LockHandle};
use crate::{
    core::{Request, Wait},
    error::Error,
    owner::Owner,
    replica_ack::ReplicaAck,
};

/// An acquire that is being put together; `await` it for `Result<Option<G>, Error>`, where `G` is the guard of the kind.
#[must_use = "an acquire does nothing until it is awaited"]
pub struct Acquire<'a, G = Guard> {
    handle: &'a LockHandle,
    wait: Wait,
    lease: Lease,
    owner: Option<Owner>,
    fenced: bool,
    ack: ReplicaAck,
    guard: PhantomData<fn() -> G>,
}

impl<G> Clone for Acquire<'_, G> {
    fn clone(&self) -> Self {
        Acquire { owner: self.owner.clone(), ..*self }
    }
}

impl<G> fmt::Debug for Acquire<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("name", self.handle.name())
            .field("wait", &self.wait)
            .field("lease", &self.lease)
            .field("owner", &self.owner)
            .field("fenced", &self.fenced)
            .field("ack", &self.ack)
            .finish()
    }
}

impl<'a, G: AnyGuard> Acquire<'a, G> {
    pub(crate) fn new(handle: &'a LockHandle) -> Self {
        Acquire {
            handle,
            wait: Wait::No,
            lease: Lease::Renewed,
            owner: None,
            fenced: false,
            ack: ReplicaAck::none(),
            guard: PhantomData,
        }
    }

    /// How long to wait while the lock is busy; not at all unless set.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait.zero_as_no_wait();
        self
    }

    /// How long the hold lasts; renewed unless set.
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// Who will hold it; a fresh owner unless set. If this owner holds the lock already, it is entered once more.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.owner = Some(owner.mark_reusable().clone());
        self
    }

    /// The owner that has been set.
    pub(crate) fn given_owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    /// As [`owner`](Self::owner), unless one has been set.
    pub(crate) fn owner_or(mut self, owner: impl FnOnce() -> Owner) -> Self {
        self.owner = self.owner.or_else(|| Some(owner()));
        self
    }

    /// Draws a fencing token with the grant ([`Guard::token`]).
    pub fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// How many replicas have to confirm the grant before the acquire is done, and what happens if too few do; none unless set.
    ///
    /// A call that asks for it waits for the replicas, on connections that it shares with no other calls. Renewals and
    /// releases never do. A hold that is entered once more stands for what its first acquire was confirmed with.
    ///
    /// # Cancel safety
    ///
    /// A grant that is dropped while replicas are asked is given back at once.
    ///
    /// # Errors
    ///
    /// The acquire fails with [`ErrorKind::NotReplicated`] if too few confirm in time and the lock is not to be kept then;
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::Permission`], before the lock is taken, if the server does not know or does not
    /// allow what replicas are asked with; [`ErrorKind::InvalidOption`] for values out of range, for a store without
    /// replicas that are required, and for a re-entry of a hold that was not confirmed as asked for here.
    ///
    /// [`ErrorKind::NotReplicated`]: crate::ErrorKind::NotReplicated
    /// [`ErrorKind::Unsupported`]: crate::ErrorKind::Unsupported
    /// [`ErrorKind::Permission`]: crate::ErrorKind::Permission
    /// [`ErrorKind::InvalidOption`]: crate::ErrorKind::InvalidOption
    pub fn replica_ack(mut self, ack: ReplicaAck) -> Self {
        self.ack = ack;
        self
    }

    /// Built when it is awaited, so that a waiting future contains the request and not the builder, too.
    fn request(self) -> Result<Arc<Request>, Error> {
        let Acquire { handle, wait, lease, owner, fenced, ack, .. } = self;
        let ack = ack.checked().map_err(|error| error.on(handle.name()))?;
        Ok(Arc::new(Request { ack, ..handle.request(wait, lease, owner, fenced)? }))
    }

    async fn run(self) -> Result<Option<G>, Error> {
        let handle = self.handle;
        let grant = handle.core.acquire(self.request()?).await?;
        Ok(grant.map(|grant| G::from_guard(handle.guard(grant.lease, grant.lease_term))))
    }
}

impl<'a, G: AnyGuard + 'a> IntoFuture for Acquire<'a, G> {
    type Output = Result<Option<G>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl LockHandle {
    /// What an acquire with these options asks for.
    pub(crate) fn request(
        &self,
        wait: Wait,
        lease: Lease,
        owner: Option<Owner>,
        fenced: bool,
    ) -> Result<Request, Error> {
        if let Some(owner) = &owner {
            self.core.check_owner(owner).map_err(|error| error.on(self.name()).by(owner))?;
        }
        Ok(Request {
            owner,
            fenced: fenced || self.fenced,
            reentrant: self.reentrant,
            backoff: self.backoff,
            local_writers_first: self.local_writers_first.clone(),
            ..Request::new(&self.keys, self.recipe, self.lease_term_of(lease)?, wait)
        })
    }
}
