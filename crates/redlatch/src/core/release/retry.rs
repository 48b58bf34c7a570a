//! A release whose first request did not do: it was not answered, or its task has gone. It is repeated until its effect is certain.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{Outcome, RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_MIN, ReleaseMode, Unlocked};
use crate::{
    core::{
        Core, flight::Work, keeper::received, lease::HeldLease, owner_claims::OwnerBlock, wait::ANSWER_TIME,
    },
    error::{Error, ErrorKind},
    jitter::jittered,
    store::{Fault, Reply},
};

impl Core {
    /// Sees a release through whose first request has ended somehow.
    pub(in crate::core) async fn finish_after_first_try(
        self: Arc<Self>,
        lease: Arc<HeldLease>,
        lane_waits: bool,
        block: OwnerBlock,
        mode: ReleaseMode,
        outcome: Result<Reply, Fault>,
    ) -> Result<Unlocked, Error> {
        let outcome = match self.read_release(&lease, &block, mode, outcome) {
            Ok(outcome) => Ok(outcome),
            Err(fault) => self.release_again(&lease, &block, fault).await,
        };
        self.finish_release_in_lane(&lease, lane_waits, block, outcome)
    }

    /// As [`finish_after_first_try`](Self::finish_after_first_try) for a release that nobody waits for. Without an answer it is repeated on the keeper's
    /// connection, because its own may be driven by a runtime that does not run any more.
    pub(super) async fn finish_abandoned(
        self: Arc<Self>,
        lease: Arc<HeldLease>,
        lane_waits: bool,
        block: OwnerBlock,
        mode: ReleaseMode,
        outcome: Result<Outcome, Work<Outcome>>,
    ) -> Result<Unlocked, Error> {
        let work = match outcome {
            Err(work) if mode == ReleaseMode::AllHolds => work,
            Err(work) => {
                return self.clone().finish_after_first_try(lease, lane_waits, block, mode, work.await).await;
            }
            Ok(outcome) => return self.finish_after_first_try(lease, lane_waits, block, mode, outcome).await,
        };
        lease.mark_end_in_doubt();
        let (another, held, core) = (block.another(), lease.clone(), self.clone());
        self.keeper.handle().spawn(async move {
            // Until it is answered it may still arrive.
            let _ = core.read_release(&held, &another, mode, work.await);
        });
        let outcome = match self.try_release(&lease, true, &block).await {
            Ok(outcome) => Ok(outcome),
            Err(fault) => self.release_again(&lease, &block, fault).await,
        };
        self.finish_release_in_lane(&lease, lane_waits, block, outcome)
    }

    /// Releases what all guards of a lease hold: under a shared owner they are counted down one by one.
    pub(in crate::core) async fn release_all_holds(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        block: &OwnerBlock,
    ) -> Result<(Unlocked, i64), Error> {
        let guards = if lease.is_count_in_doubt() { 1 } else { lease.holds().count.max(1) };
        for _ in 1..guards {
            let outcome = self.release_last_hold(lease, true, block).await?;
            if !matches!(outcome.0, Unlocked::StillHeld(_)) {
                return Ok(outcome);
            }
        }
        self.release_last_hold(lease, true, block).await
    }

    /// After a release that failed: has the keeper repeat it, if that can help.
    pub(in crate::core) async fn release_again(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        block: &OwnerBlock,
        fault: Fault,
    ) -> Result<(Unlocked, i64), Error> {
        if let Fault::Server(error) = &fault
            && !error.is_retryable()
        {
            return Err(error.clone());
        }
        let (tell, outcome) = oneshot::channel();
        let (core, held, block) = (self.clone(), lease.clone(), block.another());
        if fault.is_unknown() {
            lease.mark_end_in_doubt();
        }
        self.keeper.spawn(async move {
            let work = async |block: &OwnerBlock| core.release_until_done(&held, block).await;
            let _ = tell.send(block.during(work).await);
        });
        received(outcome).await?
    }

    /// Repeats a release until its effect is certain or the lease has ended on the server.
    ///
    /// A release that was not answered is not repeated where another process may hold under the same owner: two of them would take away
    /// the other one's hold. Then it is only watched, and for no longer than an answer is waited for: what is there may be the other one's for ever.
    async fn release_until_done(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        block: &OwnerBlock,
    ) -> Result<(Unlocked, i64), Error> {
        let mut over_ms = lease.kept_until_ms(self.now_ms());
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        let mut watched_until_ms = None;
        loop {
            tokio::time::sleep(jittered(Duration::from_millis(delay_ms))).await;
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
            let mode = self.release_mode(lease);
            if mode == ReleaseMode::AllHolds {
                over_ms = self.ends_at_ms(&lease.keys, &lease.owner, over_ms);
            }
            // What is only watched may be another process's, which has no end here.
            let is_watched = mode == ReleaseMode::OneHold && lease.is_end_in_doubt();
            let timeout_ms = u64::try_from(self.config.response_timeout.as_millis()).unwrap_or(u64::MAX);
            if is_watched {
                watched_until_ms.get_or_insert_with(|| self.now_ms().saturating_add(timeout_ms));
            }
            let attempt = async {
                if !is_watched {
                    return self.try_release(lease, true, block).await.map(Some);
                }
                Ok((!self.is_there(lease.into()).await?).then_some((Unlocked::Released, 0)))
            };
            // A server that is silent is not waited for any longer than it may have the hold.
            let left = Duration::from_millis(over_ms.saturating_sub(self.now_ms())).max(ANSWER_TIME);
            let outcome = match tokio::time::timeout(left, attempt).await {
                Ok(Ok(Some(outcome))) => Ok(outcome),
                Ok(Ok(None)) => {
                    if watched_until_ms.is_some_and(|until_ms| self.now_ms() >= over_ms.min(until_ms)) {
                        let text = "the release was not answered, and a hold of this owner is still there";
                        return Err(Error::new(ErrorKind::Timeout, text)
                            .remedy("it is another process's, or this one, which then ends with its lease"));
                    }
                    continue;
                }
                Ok(Err(fault)) => Err(fault),
                Err(_) => Err(Fault::Unknown(Error::new(ErrorKind::Timeout, "no answer"))),
            };
            if outcome.as_ref().is_err_and(Fault::is_unknown) {
                lease.mark_end_in_doubt();
            }
            match outcome {
                // Nothing there within the lease: the first request did it, and only its reply was lost.
                Ok((Unlocked::AlreadyLost(_), _))
                    if lease.is_end_in_doubt() && self.now_ms() < lease.deadline_ms() =>
                {
                    return Ok((Unlocked::Released, 0));
                }
                Ok(outcome) => return Ok(outcome),
                Err(Fault::Server(error)) if !error.is_retryable() => return Err(error),
                Err(fault) if self.now_ms() >= over_ms || self.is_disconnected() => {
                    let end =
                        if self.now_ms() >= over_ms { "the lease ended" } else { "the client was shut down" };
                    let text = format!("the release could not be confirmed before {end}: {fault}");
                    return Err(Error::new(ErrorKind::Timeout, text));
                }
                Err(_) => {}
            }
        }
    }
}
