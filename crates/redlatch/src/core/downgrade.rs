//! Downgrading: a write hold becomes a read hold of the same owner, without a moment in between.
//!
//! The read hold is taken beside the write hold, and then the write hold goes. Both are requests that are made anyway, so what is lost,
//! late or repeated of a downgrade is what is lost, late or repeated of an acquire and of a release (`docs/decisions.md`).

use std::{convert::identity, sync::Arc, time::Duration};

use super::{
    Core, Grant, Request, Wait,
    lease::HeldLease,
    release::{Caller, Unlocked},
    wait::WaitDeadline,
};
use crate::{
    core::loss_reason::lost_error,
    error::{Error, ErrorKind},
    jitter::jittered,
    recipes::{LeaseTerm, READ},
    replica_ack::Confirmed,
};

/// How many answers may be lost until a read hold beside a write hold, or the release of that, is given up.
const ANSWERS: u32 = 3;
/// Between two looks at one hold.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

impl Core {
    /// Takes a read hold beside a write hold that is `held` for so long, with a lease of the same length. Replicas are not asked for it; it may stand for what
    /// they have confirmed of the write hold.
    pub(crate) async fn read_beside(
        self: &Arc<Self>,
        writing: &Arc<HeldLease>,
        held: LeaseTerm,
        inherited_ack: Option<Confirmed>,
    ) -> Result<Grant, Error> {
        let Some(readers) = &writing.keys.readers else {
            let error = Error::new(ErrorKind::WrongLockKind, "this hold has no read side");
            return Err(error.on(&writing.keys.name));
        };
        // An extension of a hold that is not renewed is all that it has.
        let left_ms = i64::try_from(writing.deadline_ms().saturating_sub(self.now_ms())).unwrap_or(i64::MAX);
        let lease_ms = if held.renewed { held.lease_ms } else { held.lease_ms.max(left_ms) };
        let lease_term = LeaseTerm { lease_ms, ..held };
        // The owner of a write hold waits for nobody but its own read hold that is just being given back.
        let deadline = WaitDeadline::new(self, Wait::AtMost(ANSWERS * self.config.response_timeout));
        let lost =
            || lost_error(&writing.keys.name, &writing.owner, &writing.reason_if_missing(self.now_ms()));
        let grant = loop {
            let wait = Wait::AtMost(deadline.left(self).unwrap_or_default()).zero_as_no_wait();
            let request = Request {
                owner: Some(writing.owner.mark_reusable().clone()),
                under_own_write_lock: true,
                inherited_ack,
                ..Request::new(readers, &READ, lease_term, wait)
            };
            let grant = tokio::select! {
                biased;
                grant = self.acquire(Arc::new(request)) => grant,
                _ = writing.clone().ended() => return Err(lost()),
            };
            match grant {
                // The read hold that was to be entered once more has ended meanwhile.
                Err(error) if error.kind() == ErrorKind::Lost && !deadline.is_over(self) => {}
                grant => break grant?,
            }
        };
        let Some(grant) = grant else {
            self.recheck_now(writing.clone()).await;
            if !writing.is_valid(self.now_ms()) {
                return Err(lost());
            }
            let what = "an earlier request of the owner about read holds is not answered";
            return Err(Error::new(ErrorKind::Timeout, what).on(&writing.keys.name).by(&writing.owner));
        };
        if !writing.is_valid(self.now_ms()) {
            // Others may have written before it was granted.
            self.release_in_background(&grant.lease, grant.lease_term);
            return Err(lost());
        }
        Ok(grant)
    }

    /// Turns one write hold into a read hold. Whatever comes of it, the write hold is over for its guard, and after an error nothing is
    /// held.
    pub(crate) async fn downgrade(
        self: &Arc<Self>,
        writing: &Arc<HeldLease>,
        held: LeaseTerm,
    ) -> Result<Grant, Error> {
        let core = self.clone();
        // Its task may drop the future, or poll it no more.
        let turning = self.run_on_keeper(self.clone().turn(writing.clone(), held), move |outcome| {
            if let Ok(grant) = outcome {
                core.release_in_background(&grant.lease, grant.lease_term);
            }
        });
        let turned = turning.outcome().await.and_then(identity);
        turned.map_err(|error| error.on(&writing.keys.name).by(&writing.owner))
    }

    async fn turn(self: Arc<Self>, writing: Arc<HeldLease>, held: LeaseTerm) -> Result<Grant, Error> {
        let incarnation = self.store.incarnation(&writing.keys.key);
        let reading = match self.check_count(&writing) {
            // A replica that has only the write hold keeps everybody else out, too, so what was confirmed stays true.
            Ok(()) => self.read_beside(&writing, held, writing.replicated()).await,
            Err(error) => Err(error),
        };
        let reading = match reading {
            Ok(grant) => match self.was_beside(&writing).await {
                Ok(()) => Ok(grant),
                Err(error) => {
                    self.release_in_background(&grant.lease, grant.lease_term);
                    Err(error)
                }
            },
            Err(error) => Err(error),
        };
        let written = tokio::select! {
            biased;
            written = self.unlock(&writing, held, Caller::PollsToTheEnd) => written,
            () = self.keeper.sleep(ANSWERS * self.config.response_timeout) => {
                Err(Error::new(ErrorKind::Timeout, "the release of the write hold is not answered"))
            }
        };
        let grant = match reading {
            Ok(grant) => grant,
            Err(error) => {
                if let Err(error) = written {
                    tracing::warn!(lock = %writing.keys.name, %error, "a write hold that could not be downgraded could not be released; its lease ends it");
                }
                return Err(error);
            }
        };
        let turned = self.turned(&writing, &grant.lease, written, incarnation).await;
        if turned.is_err() {
            self.release_in_background(&grant.lease, grant.lease_term);
        }
        turned.map(|()| grant)
    }

    /// An error if the server that granted the read hold perhaps had no write hold then: others may have written before it. The release of
    /// the write hold shows it only where that is answered.
    async fn was_beside(self: &Arc<Self>, writing: &Arc<HeldLease>) -> Result<(), Error> {
        if writing.is_seen_since(self.last_interruption(&writing.keys)) {
            return Ok(());
        }
        self.look_until_seen(writing).await?;
        if writing.is_valid(self.now_ms()) {
            return Ok(());
        }
        Err(lost_error(&writing.keys.name, &writing.owner, &writing.reason_if_missing(self.now_ms())))
    }

    /// Finds out whether a hold is there, and tells its holder if it is not. One unanswered look is no reason to give up what may be good.
    async fn look_until_seen(self: &Arc<Self>, lease: &Arc<HeldLease>) -> Result<(), Error> {
        let deadline = WaitDeadline::new(self, Wait::AtMost(ANSWERS * self.config.response_timeout));
        loop {
            match self.is_there(lease.into()).await {
                Ok(there) => {
                    if !there {
                        self.end_as_gone(lease).await;
                    }
                    return Ok(());
                }
                Err(fault) => {
                    let error = fault.into_error();
                    let is_pointless = !error.is_retryable() || self.is_closed();
                    if is_pointless || deadline.is_over(self) || !lease.is_valid(self.now_ms()) {
                        return Err(error);
                    }
                }
            }
            self.keeper.sleep(jittered(LOOK_PAUSE)).await;
        }
    }

    /// Whether the read hold is there, has been since the write hold was, and has no write hold of this process beside it.
    async fn turned(
        self: &Arc<Self>,
        writing: &Arc<HeldLease>,
        reading: &Arc<HeldLease>,
        written: Result<Unlocked, Error>,
        incarnation: u64,
    ) -> Result<(), Error> {
        match written? {
            Unlocked::AlreadyLost(reason) => {
                return Err(lost_error(&writing.keys.name, &writing.owner, &reason));
            }
            // What stays is another process's, or nobody knows.
            Unlocked::StillHeld(_) if !writing.is_held() => self.check_count(writing)?,
            Unlocked::StillHeld(_) | Unlocked::Released => {}
        }
        if self.store.incarnation(&writing.keys.key) != incarnation
            || !reading.is_seen_since(self.last_interruption(&reading.keys))
        {
            // The server that has taken over may have had the write hold and not the read hold.
            self.look_until_seen(reading).await?;
        }
        if self.is_closed() {
            return Err(self.closed_error());
        }
        if !reading.is_valid(self.now_ms()) {
            let reason = reading.reason_if_missing(self.now_ms());
            return Err(lost_error(&reading.keys.name, &reading.owner, &reason));
        }
        reading.note_predecessor(writing);
        Ok(())
    }

    /// An error if the server may count a write hold of this process too many, which would stay beside the read hold and be renewed with it;
    /// or one too few, and what it counts is another process's.
    fn check_count(&self, writing: &HeldLease) -> Result<(), Error> {
        let is_uncounted = !writing.is_counted_in(self.store.incarnation(&writing.keys.key));
        let is_last = writing.holds().count <= 1;
        if writing.owner.is_multi_process() && (is_uncounted || (is_last && writing.is_count_in_doubt())) {
            let what = "an earlier re-entry or release of this owner was never answered, and another process may hold under it";
            return Err(Error::new(ErrorKind::OwnerInDoubt, what).remedy("acquire the read lock anew"));
        }
        Ok(())
    }
}
