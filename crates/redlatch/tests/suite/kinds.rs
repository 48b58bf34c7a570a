//! Every kind of lock behind one face, so that a promise of all locks is tested for each.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    time::Duration,
};

use redlatch::{
    Client, Error, FairLock, FencedLock, Forced, Guard, Hold, Lease, Lock, LockName, NonReentrantFairLock,
    NonReentrantLock, Owner, ReplicaAck, SpinLock, Unlocked, Wait, WriteLock,
};

/// Which kind of lock a test is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Face {
    Plain,
    Fair,
    Fenced,
    Spin,
    NonReentrant,
    NonReentrantFair,
    /// The write side of a read-write lock.
    Write,
}

/// A lock of some kind.
#[derive(Clone)]
pub(crate) enum AnyLock {
    Plain(Lock),
    Fair(FairLock),
    Fenced(FencedLock),
    Spin(SpinLock),
    NonReentrant(NonReentrantLock),
    NonReentrantFair(NonReentrantFairLock),
    Write(WriteLock),
}

macro_rules! each {
    ($lock:expr, $any:ident => $work:expr) => {
        match $lock {
            AnyLock::Plain($any) => $work,
            AnyLock::Fair($any) => $work,
            AnyLock::Fenced($any) => $work,
            AnyLock::Spin($any) => $work,
            AnyLock::NonReentrant($any) => $work,
            AnyLock::NonReentrantFair($any) => $work,
            AnyLock::Write($any) => $work,
        }
    };
}

impl AnyLock {
    pub(crate) fn new(face: Face, client: &Client, name: impl Into<LockName>) -> Self {
        match face {
            Face::Plain => AnyLock::Plain(client.lock(name)),
            Face::Fair => AnyLock::Fair(client.fair_lock(name)),
            Face::Fenced => AnyLock::Fenced(client.fenced_lock(name)),
            Face::Spin => AnyLock::Spin(client.spin_lock(name)),
            Face::NonReentrant => AnyLock::NonReentrant(client.non_reentrant_lock(name)),
            Face::NonReentrantFair => AnyLock::NonReentrantFair(client.non_reentrant_fair_lock(name)),
            Face::Write => AnyLock::Write(client.read_write_lock(name).write().clone()),
        }
    }

    pub(crate) async fn lock(&self) -> Result<Guard, Error> {
        each!(self, lock => lock.lock().await.map(Hold::into_guard))
    }

    pub(crate) async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        each!(self, lock => lock.try_lock().await.map(|guard| guard.map(Hold::into_guard)))
    }

    pub(crate) async fn lock_for(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        each!(self, lock => lock.lock_for(wait).await.map(|guard| guard.map(Hold::into_guard)))
    }

    pub(crate) async fn lock_with_lease(&self, lease: Duration) -> Result<Guard, Error> {
        each!(self, lock => lock.lock_with_lease(lease).await.map(Hold::into_guard))
    }

    pub(crate) async fn force_unlock(&self) -> Result<bool, Error> {
        each!(self, lock => lock.force_unlock().await)
    }

    pub(crate) async fn force_unlock_if(&self, owner: &str) -> Result<Forced, Error> {
        each!(self, lock => lock.force_unlock_if(owner).await)
    }

    pub(crate) async fn is_locked(&self) -> Result<bool, Error> {
        each!(self, lock => lock.is_locked().await)
    }

    pub(crate) async fn is_held_by(&self, owner: &Owner) -> Result<bool, Error> {
        each!(self, lock => lock.is_held_by(owner).await)
    }

    pub(crate) async fn hold_count(&self, owner: &Owner) -> Result<u32, Error> {
        each!(self, lock => lock.hold_count(owner).await)
    }

    pub(crate) async fn remaining_ttl(&self) -> Result<Option<Duration>, Error> {
        each!(self, lock => lock.remaining_ttl().await)
    }

    pub(crate) async fn adopt(&self, owner: &Owner, lease: Lease) -> Result<Option<Guard>, Error> {
        each!(self, lock => lock.adopt(owner, lease).await.map(|guard| guard.map(Hold::into_guard)))
    }

    pub(crate) async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, Error> {
        each!(self, lock => lock.renew(owner, lease).await)
    }

    pub(crate) async fn release(&self, owner: &Owner) -> Result<Unlocked, Error> {
        each!(self, lock => lock.release(owner).await)
    }

    pub(crate) fn acquire(&self) -> AnyAcquire<'_> {
        AnyAcquire {
            lock: self,
            wait: Wait::No,
            lease: Lease::Renewed,
            owner: None,
            fenced: false,
            ack: ReplicaAck::none(),
        }
    }
}

/// An acquire of a lock of some kind.
pub(crate) struct AnyAcquire<'a> {
    lock: &'a AnyLock,
    wait: Wait,
    lease: Lease,
    owner: Option<Owner>,
    fenced: bool,
    ack: ReplicaAck,
}

impl<'a> AnyAcquire<'a> {
    pub(crate) fn wait(self, wait: Wait) -> Self {
        AnyAcquire { wait, ..self }
    }

    pub(crate) fn lease(self, lease: Lease) -> Self {
        AnyAcquire { lease, ..self }
    }

    pub(crate) fn owner(self, owner: &Owner) -> Self {
        AnyAcquire { owner: Some(owner.clone()), ..self }
    }

    pub(crate) fn fenced(self) -> Self {
        AnyAcquire { fenced: true, ..self }
    }

    pub(crate) fn replica_ack(self, ack: ReplicaAck) -> Self {
        AnyAcquire { ack, ..self }
    }

    async fn run(self) -> Result<Option<Guard>, Error> {
        each!(self.lock, lock => {
            let mut acquire = lock.acquire().wait(self.wait).lease(self.lease).replica_ack(self.ack);
            if let Some(owner) = &self.owner {
                acquire = acquire.owner(owner);
            }
            if self.fenced {
                acquire = acquire.fenced();
            }
            acquire.await.map(|guard| guard.map(Hold::into_guard))
        })
    }
}

impl<'a> IntoFuture for AnyAcquire<'a> {
    type Output = Result<Option<Guard>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
