//! Every kind of lock behind one face, so that a promise of all locks is tested for each.

use std::{
    future::{Future, IntoFuture},
    panic::Location,
    pin::Pin,
    time::Duration,
};

use redlatch::{
    AnyGuard, Client, Error, FairLock, FencedLock, Force, Forced, Guard, Lease, Lock, LockName,
    NonReentrantFairLock, NonReentrantLock, Owner, ReplicaAck, SpinLock, Unlocked, Wait, WriteLock,
};

use crate::limit::{Call, Steps};

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

/// A lock of some kind, whose calls are noted while they are under way.
#[derive(Clone)]
pub(crate) struct AnyLock {
    kind: AnyKind,
    steps: Steps,
    name: LockName,
}

#[derive(Clone)]
enum AnyKind {
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
            AnyKind::Plain($any) => $work,
            AnyKind::Fair($any) => $work,
            AnyKind::Fenced($any) => $work,
            AnyKind::Spin($any) => $work,
            AnyKind::NonReentrant($any) => $work,
            AnyKind::NonReentrantFair($any) => $work,
            AnyKind::Write($any) => $work,
        }
    };
}

impl AnyKind {
    fn new(face: Face, client: &Client, name: LockName) -> Self {
        match face {
            Face::Plain => AnyKind::Plain(client.lock(name)),
            Face::Fair => AnyKind::Fair(client.fair_lock(name)),
            Face::Fenced => AnyKind::Fenced(client.fenced_lock(name)),
            Face::Spin => AnyKind::Spin(client.spin_lock(name)),
            Face::NonReentrant => AnyKind::NonReentrant(client.non_reentrant_lock(name)),
            Face::NonReentrantFair => AnyKind::NonReentrantFair(client.non_reentrant_fair_lock(name)),
            Face::Write => AnyKind::Write(client.read_write_lock(name).write().clone()),
        }
    }
}

impl AnyLock {
    pub(crate) fn new(face: Face, client: &Client, name: impl Into<LockName>) -> Self {
        let name = name.into();
        AnyLock { kind: AnyKind::new(face, client, name.clone()), steps: Steps::default(), name }
    }

    /// The same lock for a test that says what it waits for when it hangs.
    pub(crate) fn noted_in(self, steps: &Steps) -> Self {
        AnyLock { steps: steps.clone(), ..self }
    }

    #[track_caller]
    fn begin(&self, what: &str) -> Call {
        self.steps.begin(&format!("{what} of {}", self.name), Location::caller())
    }

    #[track_caller]
    pub(crate) fn lock(&self) -> impl Future<Output = Result<Guard, Error>> + Send {
        let call = self.begin("lock");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.lock().await.map(AnyGuard::into_guard))
        }
    }

    #[track_caller]
    pub(crate) fn try_lock(&self) -> impl Future<Output = Result<Option<Guard>, Error>> + Send {
        let call = self.begin("try_lock");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.try_lock().await.map(|guard| guard.map(AnyGuard::into_guard)))
        }
    }

    #[track_caller]
    pub(crate) fn lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Guard>, Error>> + Send {
        let call = self.begin("lock_for");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.lock_for(wait).await.map(|guard| guard.map(AnyGuard::into_guard)))
        }
    }

    #[track_caller]
    pub(crate) fn lock_with_lease(
        &self,
        lease: Duration,
    ) -> impl Future<Output = Result<Guard, Error>> + Send {
        let call = self.begin("lock_with_lease");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.lock_with_lease(lease).await.map(AnyGuard::into_guard))
        }
    }

    #[track_caller]
    pub(crate) fn force_unlock(&self) -> impl Future<Output = Result<bool, Error>> + Send {
        let call = self.begin("force_unlock");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.force_unlock().await)
        }
    }

    #[track_caller]
    pub(crate) fn force(&self, force: Force) -> impl Future<Output = Result<Forced, Error>> + Send {
        let call = self.begin("force");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.force(force).await)
        }
    }

    #[track_caller]
    pub(crate) fn force_unlock_if<'a>(
        &'a self,
        owner: &'a str,
    ) -> impl Future<Output = Result<Forced, Error>> + Send + 'a {
        let call = self.begin("force_unlock_if");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.force_unlock_if(owner).await)
        }
    }

    #[track_caller]
    pub(crate) fn is_locked(&self) -> impl Future<Output = Result<bool, Error>> + Send {
        let call = self.begin("is_locked");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.is_locked().await)
        }
    }

    #[track_caller]
    pub(crate) fn is_held_by<'a>(
        &'a self,
        owner: &'a Owner,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'a {
        let call = self.begin("is_held_by");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.is_held_by(owner).await)
        }
    }

    #[track_caller]
    pub(crate) fn hold_count<'a>(
        &'a self,
        owner: &'a Owner,
    ) -> impl Future<Output = Result<u32, Error>> + Send + 'a {
        let call = self.begin("hold_count");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.hold_count(owner).await)
        }
    }

    #[track_caller]
    pub(crate) fn remaining_ttl(&self) -> impl Future<Output = Result<Option<Duration>, Error>> + Send {
        let call = self.begin("remaining_ttl");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.remaining_ttl().await)
        }
    }

    #[track_caller]
    pub(crate) fn adopt<'a>(
        &'a self,
        owner: &'a Owner,
        lease: Lease,
    ) -> impl Future<Output = Result<Option<Guard>, Error>> + Send + 'a {
        let call = self.begin("adopt");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.adopt(owner, lease).await.map(|guard| guard.map(AnyGuard::into_guard)))
        }
    }

    #[track_caller]
    pub(crate) fn renew<'a>(
        &'a self,
        owner: &'a Owner,
        lease: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 'a {
        let call = self.begin("renew");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.renew(owner, lease).await)
        }
    }

    #[track_caller]
    pub(crate) fn release<'a>(
        &'a self,
        owner: &'a Owner,
    ) -> impl Future<Output = Result<Unlocked, Error>> + Send + 'a {
        let call = self.begin("release");
        async move {
            let _call = call;
            each!(&self.kind, lock => lock.release(owner).await)
        }
    }

    #[track_caller]
    pub(crate) fn acquire(&self) -> AnyAcquire<'_> {
        AnyAcquire {
            lock: self,
            at: Location::caller(),
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
    at: &'static Location<'static>,
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
        let what = format!("acquire of {} ({:?})", self.lock.name, self.wait);
        let _call = self.lock.steps.begin(&what, self.at);
        each!(&self.lock.kind, lock => {
            let mut acquire = lock.acquire().wait(self.wait).lease(self.lease).replica_ack(self.ack);
            if let Some(owner) = &self.owner {
                acquire = acquire.owner(owner);
            }
            if self.fenced {
                acquire = acquire.fenced();
            }
            acquire.await.map(|guard| guard.map(AnyGuard::into_guard))
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
