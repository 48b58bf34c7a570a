//! Asking for a lock of any kind.

use std::{future::Future, time::Duration};

use redlatch::{Acquire, AnyGuard, Error, Lease, MultiLock, Owner, QuorumLock, ReplicaAck, Wait};
use redlatch_testkit::cancel::poll_n_then_drop;

use super::{
    Worker,
    kind::{Kind, OneGuard},
};

/// When a call is dropped.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cut {
    Never,
    Polls(usize),
    After(Duration),
    /// It is not dropped: it is polled until `after`, not polled for `time`, and then polled to its end.
    Dozes {
        after: Duration,
        time: Duration,
    },
}

impl Cut {
    /// `None` if the call was dropped before its end.
    pub(super) async fn apply<F: Future>(self, call: F) -> Option<F::Output> {
        match self {
            Cut::Never => Some(call.await),
            Cut::Polls(polls) => poll_n_then_drop(call, polls).await,
            Cut::After(time) => tokio::time::timeout(time, call).await.ok(),
            Cut::Dozes { after, time } => {
                let mut call = std::pin::pin!(call);
                if let Ok(outcome) = tokio::time::timeout(after, &mut call).await {
                    return Some(outcome);
                }
                tokio::time::sleep(time).await;
                Some(call.await)
            }
        }
    }
}

/// An acquire.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) kind: Kind,
    pub(super) name: String,
    pub(super) wait: Wait,
    pub(super) lease: Lease,
    pub(super) owner: Option<Owner>,
    /// The owner in the log.
    pub(super) label: String,
    pub(super) fenced: bool,
    pub(super) permits: u32,
    pub(super) cut: Cut,
}

impl Ask {
    /// The lease as one word.
    pub(super) fn term(&self) -> String {
        match self.lease {
            Lease::Renewed => "renewed".to_owned(),
            Lease::RenewedEvery(lease) => format!("renewed:{}", lease.as_millis()),
            Lease::Fixed(lease) => format!("fixed:{}", lease.as_millis()),
            _ => "lease".to_owned(),
        }
    }

    fn put<'a, G: AnyGuard>(&self, worker: &Worker, acquire: Acquire<'a, G>) -> Acquire<'a, G> {
        let mut acquire = acquire.wait(self.wait).lease(self.lease);
        if let Some(owner) = &self.owner {
            acquire = acquire.owner(owner);
        }
        if self.fenced {
            acquire = acquire.fenced();
        }
        if worker.acknowledged {
            acquire = acquire.replica_ack(ReplicaAck::all());
        }
        acquire
    }

    /// `None` inside if it was busy; `None` outside if the call was dropped.
    pub(super) async fn run(&self, worker: &Worker) -> Option<Result<Option<OneGuard>, Error>> {
        let (client, name) = (&worker.client, self.name.as_str());
        macro_rules! ask {
            ($lock:expr, $held:expr) => {{
                let lock = $lock;
                let call = self.put(worker, lock.acquire());
                let outcome = self.cut.apply(call.into_future()).await?;
                Some(outcome.map(|guard| guard.map($held)))
            }};
        }
        match self.kind {
            Kind::Plain => ask!(client.lock(name), OneGuard::One),
            Kind::Fair => ask!(client.fair_lock(name), OneGuard::One),
            Kind::Spin => ask!(client.spin_lock(name), OneGuard::One),
            Kind::NonReentrant => ask!(client.non_reentrant_lock(name), OneGuard::One),
            Kind::NonReentrantFair => ask!(client.non_reentrant_fair_lock(name), OneGuard::One),
            Kind::Fenced => ask!(client.fenced_lock(name), OneGuard::Fenced),
            Kind::Read => ask!(client.read_write_lock(name).read().clone(), OneGuard::Read),
            Kind::Write => ask!(client.read_write_lock(name).write().clone(), OneGuard::Write),
            Kind::Permits => {
                let semaphore = client.permit_semaphore(name);
                let request = semaphore.request().permits(self.permits).wait(self.wait).lease(self.lease);
                let outcome = self.cut.apply(request.into_future()).await?;
                Some(outcome.map(|guard| guard.map(OneGuard::Permits)))
            }
            Kind::Quorum => {
                let lock = match QuorumLock::new(worker.members.iter().map(|client| client.lock(name))) {
                    Ok(lock) => lock,
                    Err(error) => return Some(Err(error)),
                };
                let acquire = lock.acquire().wait(self.wait).lease(self.lease);
                let outcome = self.cut.apply(acquire.into_future()).await?;
                Some(outcome.map(|guard| guard.map(OneGuard::Quorum)))
            }
            Kind::Multi => {
                let members = self.members().into_iter().map(|name| client.lock(name));
                let lock = match MultiLock::new(members) {
                    Ok(lock) => lock,
                    Err(error) => return Some(Err(error)),
                };
                let mut acquire = lock.acquire().wait(self.wait).lease(self.lease);
                if let Some(owner) = &self.owner {
                    acquire = acquire.owner(owner);
                }
                let outcome = self.cut.apply(acquire.into_future()).await?;
                Some(outcome.map(|guard| guard.map(OneGuard::Multi)))
            }
        }
    }

    /// The names that a hold is on.
    pub(super) fn members(&self) -> Vec<String> {
        match self.kind {
            Kind::Multi => vec!["plain0".to_owned(), "plain1".to_owned()],
            _ => vec![self.name.clone()],
        }
    }
}
