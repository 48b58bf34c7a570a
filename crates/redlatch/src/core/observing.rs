//! What the client tells its observer. Without one each place costs one look whether there is one.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::Instant;

use super::{Core, Grant, Request, lease::HeldLease, request::GrantPath};
use crate::{
    catch_panic::catch_panic,
    error::Error,
    keys::{KeyKind, Keys},
    observe::{CallOutcome, Event, HoldEnd, Outcome, Subject},
    scripts::Script,
    store::Fault,
};

/// From how much on the background thread is late.
const KEEPER_LATE_MS_MIN: u64 = 20;

impl Keys {
    pub(super) fn subject(&self) -> Subject<'_> {
        let kind = match self.kind {
            KeyKind::Lock => "lock",
            KeyKind::Fair => "fair",
            KeyKind::Read => "read",
            KeyKind::Write => "write",
            KeyKind::Permits => "permits",
        };
        Subject::new(kind, &self.name)
    }
}

/// An acquire under way, which is told to have been cancelled if it is dropped.
pub(crate) struct ObservedAcquire<'a> {
    core: &'a Core,
    subject: Subject<'a>,
    began: Instant,
    outcome: Outcome,
}

impl ObservedAcquire<'_> {
    /// A contest for something without holds has ended, if it is observed.
    pub(crate) fn contest_ended<T>(observed: Option<Self>, outcome: &Result<Option<T>, Error>) {
        if let Some(observed) = observed {
            observed.ended(match outcome {
                Ok(Some(_)) => Outcome::Granted,
                Ok(None) => Outcome::Busy,
                Err(_) => Outcome::Failed,
            });
        }
    }

    /// It has ended.
    fn ended(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for ObservedAcquire<'_> {
    fn drop(&mut self) {
        let (subject, outcome, after) = (self.subject, self.outcome, self.began.elapsed());
        self.core.observe(|| Event::AcquireEnded { subject, outcome, after });
    }
}

/// A call under way.
struct ObservedCall {
    core: Arc<Core>,
    script: &'static str,
    sent: Instant,
    outcome: CallOutcome,
}

impl Drop for ObservedCall {
    fn drop(&mut self) {
        let (script, outcome, after) = (self.script, self.outcome, self.sent.elapsed());
        self.core.observe(|| Event::CallEnded { script, outcome, after });
    }
}

impl Core {
    pub(super) fn is_observed(&self) -> bool {
        self.config.observer.is_some()
    }

    /// Tells the observer, if there is one. Not to be called under a mutex: an observer may do anything.
    pub(super) fn observe<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(observer) = &self.config.observer {
            catch_panic(|| observer.observe(&event()));
        }
    }

    /// An acquire begins, which the observer is told of; `None` without one.
    pub(crate) fn observed_acquire<'a>(&'a self, subject: Subject<'a>) -> Option<ObservedAcquire<'a>> {
        self.is_observed().then(|| {
            self.observe(|| Event::AcquireBegan { subject });
            ObservedAcquire { core: self, subject, began: Instant::now(), outcome: Outcome::Cancelled }
        })
    }

    pub(super) async fn acquire_observed(
        self: &Arc<Self>,
        request: Arc<Request>,
    ) -> Result<Option<Grant>, Error> {
        let keys = request.keys.clone();
        let observed = self.observed_acquire(keys.subject());
        let outcome = self.acquire_unobserved(request).await;
        if let Some(observed) = observed {
            observed.ended(match &outcome {
                Ok(Some(grant)) => match grant.path {
                    GrantPath::Server => Outcome::Granted,
                    GrantPath::Passed => Outcome::Passed,
                    GrantPath::Reentered => Outcome::Reentered,
                },
                Ok(None) => Outcome::Busy,
                Err(_) => Outcome::Failed,
            });
        }
        outcome
    }

    /// One of several that were asked for in one request.
    pub(super) fn acquired_at_once(&self, subject: Subject<'_>, after: Duration, outcome: Outcome) {
        self.observe(|| Event::AcquireBegan { subject });
        self.observe(|| Event::AcquireEnded { subject, outcome, after });
    }

    /// This process has a hold from now on.
    pub(super) fn observe_hold_began(&self, lease: &HeldLease) {
        if self.is_observed() && lease.begin_telling_of() {
            self.observe(|| Event::HoldBegan { subject: lease.keys.subject() });
            lease.note_told_of(self.now_ms());
            // What ended it before has told nothing.
            if !lease.is_held() {
                let end = lease.loss().map_or(HoldEnd::GivenBack, HoldEnd::Lost);
                self.hold_ended(lease, end);
            }
        }
    }

    /// A hold is over. Of one that no task has had, the observer was told nothing.
    pub(crate) fn hold_ended(&self, lease: &HeldLease, end: HoldEnd<'_>) {
        if self.is_observed()
            && let Some(since_ms) = lease.take_told_of()
        {
            let after = Duration::from_millis(self.now_ms().saturating_sub(since_ms));
            self.observe(|| Event::HoldEnded { subject: lease.keys.subject(), end, after });
        }
    }

    /// The server was seen to have a hold.
    pub(super) fn hold_renewed(&self, lease: &HeldLease) {
        self.observe(|| {
            let left = Duration::from_millis(u64::try_from(lease.left_ms(self.now_ms())).unwrap_or(0));
            Event::Renewed { subject: lease.keys.subject(), left }
        });
    }

    /// The background thread runs at `now_ms`, and had meant to at `due_ms`.
    pub(super) fn keeper_runs(&self, due_ms: u64, now_ms: u64) {
        let late_ms = now_ms.saturating_sub(due_ms);
        if late_ms >= KEEPER_LATE_MS_MIN {
            self.observe(|| Event::KeeperLate { by: Duration::from_millis(late_ms) });
        }
    }

    /// Tells how a call ends.
    pub(super) fn observed_call<T: Send + 'static>(
        &self,
        script: &'static Script,
        call: BoxFuture<'static, Result<T, Fault>>,
    ) -> BoxFuture<'static, Result<T, Fault>> {
        let Some(core) = self.config.observer.as_ref().and_then(|_| self.me.upgrade()) else { return call };
        let mut observed =
            ObservedCall { core, script: script.name(), sent: Instant::now(), outcome: CallOutcome::Left };
        call.map(move |outcome| {
            observed.outcome = match &outcome {
                Ok(_) => CallOutcome::Answered,
                Err(Fault::Unknown(_)) => CallOutcome::Unknown,
                Err(_) => CallOutcome::Refused,
            };
            drop(observed);
            outcome
        })
        .boxed()
    }
}
