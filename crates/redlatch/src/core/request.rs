//! What an acquire asks for, and what it gets.

use std::{
    future::{Future, poll_fn},
    ops::Deref,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use super::{lease::HeldLease, task_liveness::TaskLiveness};
use crate::{
    backoff::Backoff,
    keys::Keys,
    owner::Owner,
    recipes::{LeaseTerm, Recipe},
    replica_ack::{Confirmed, Replication},
    sync::atomic::AtomicBool,
};

/// What an acquire asks for.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) keys: Arc<Keys>,
    pub(crate) recipe: &'static dyn Recipe,
    pub(crate) owner: Option<Owner>,
    pub(crate) lease_term: LeaseTerm,
    pub(crate) fenced: bool,
    pub(crate) wait: Wait,
    /// Whether an owner may enter a lock that it holds.
    pub(crate) reentrant: bool,
    /// The pauses between looks, for kinds without a channel.
    pub(crate) backoff: Option<Backoff>,
    /// Tasks of this process that want these keys go first.
    pub(crate) local_writers_first: Option<Arc<Keys>>,
    /// The replicas that have to confirm the grant.
    pub(crate) ack: Option<Replication>,
    /// A read hold that the owner of the write lock takes beside it.
    pub(crate) under_own_write_lock: bool,
    /// The replica acknowledgement that it inherits from the hold in whose place it comes.
    pub(crate) inherited_ack: Option<Confirmed>,
    /// Whether the task that asks is still polled.
    pub(crate) liveness: TaskLiveness,
    /// A transfer to its owner was not answered, and may have succeeded.
    pub(crate) outcome_unknown: OutcomeUnknown,
}

/// A mark on one request. Another request that is made like it has one of its own.
#[derive(Default)]
pub(crate) struct OutcomeUnknown(AtomicBool);

impl Deref for OutcomeUnknown {
    type Target = AtomicBool;

    fn deref(&self) -> &AtomicBool {
        &self.0
    }
}

impl Clone for OutcomeUnknown {
    fn clone(&self) -> Self {
        OutcomeUnknown::default()
    }
}

impl Request {
    pub(crate) fn new(
        keys: &Arc<Keys>,
        recipe: &'static dyn Recipe,
        lease_term: LeaseTerm,
        wait: Wait,
    ) -> Self {
        Request {
            keys: keys.clone(),
            recipe,
            owner: None,
            lease_term,
            fenced: false,
            wait,
            reentrant: true,
            backoff: None,
            local_writers_first: None,
            ack: None,
            under_own_write_lock: false,
            inherited_ack: None,
            liveness: TaskLiveness::default(),
            outcome_unknown: OutcomeUnknown::default(),
        }
    }
}

/// As [`TaskLiveness::run_noting_polls`] for several requests that one task makes.
pub(super) async fn all_noted<T>(
    requests: &[Arc<Request>],
    mut work: Pin<&mut impl Future<Output = T>>,
) -> T {
    poll_fn(|context| {
        requests.iter().for_each(|request| request.liveness.note(context));
        work.as_mut().poll(context)
    })
    .await
}

/// How long to wait for a lock that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Not at all.
    No,
    /// As long as it takes.
    Forever,
    /// At most this long, everything included: connecting, waiting, retrying. Less than 1 ms is [`No`](Self::No): one look,
    /// whose answer may take its time.
    AtMost(Duration),
}

impl Wait {
    /// A wait that has no time to wait for anybody is a look, and a look needs an answer.
    pub(crate) fn zero_as_no_wait(self) -> Wait {
        match self {
            Wait::AtMost(limit) if limit.as_millis() == 0 => Wait::No,
            wait => wait,
        }
    }
}

/// What an acquire got: a hold on a lease.
pub(crate) struct Grant {
    pub(crate) lease: Arc<HeldLease>,
    /// How this one hold is renewed, which goes with it.
    pub(crate) lease_term: LeaseTerm,
    pub(crate) path: GrantPath,
}

/// How a grant came to its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantPath {
    /// The task asked the server.
    Server,
    /// A task of this process passed it on.
    Passed,
    /// Its owner held it already.
    Reentered,
}
