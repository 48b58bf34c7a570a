//! Holding a lock is having a guard.

use std::{convert::identity, fmt, future::Future, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    config::lease_ms,
    core::{
        Core,
        flight::Driven,
        lease::HeldLease,
        loss_reason::lost_error,
        multi_process::already_held,
        release::{Caller, Unlocked},
    },
    error::{Error, ErrorKind, LossReason},
    fork,
    locks::shared::protect::protected,
    name::LockName,
    observe::HoldEnd,
    owner::Owner,
    recipes::LeaseTerm,
    replica_ack::{Replicas, Replication},
    store::Fault,
};

/// A hold on a lock. Dropping it stops the renewal at once and releases in the background; [`unlock`](Self::unlock)
/// releases and says what happened.
///
/// The guard may be sent to other tasks and threads and dropped anywhere: outside of a runtime, while one shuts down, or in a
/// forked child. The hold is the process's that acquired it: a child's copy of the guard is not valid, its calls fail with
/// [`ErrorKind::Forked`], and dropping it does nothing.
#[must_use = "dropping the guard releases the lock at once"]
pub struct Guard {
    core: Arc<Core>,
    lease: Arc<HeldLease>,
    lease_term: LeaseTerm,
    /// Whether the owner may enter once more.
    reentrant: bool,
    armed: bool,
}

/// A hold that goes on without a guard: what another process needs to renew or release it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DetachedHold {
    /// The lock.
    pub name: LockName,
    /// Who holds it.
    pub owner: Owner,
    /// The fencing token, if one was drawn.
    pub token: Option<u64>,
    /// How long it lasts from now, by the local deadline.
    pub remaining: Duration,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.lease.keys.name)
            .field("owner", &self.lease.owner)
            .field("token", &self.lease.token)
            .field("valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

impl Guard {
    pub(crate) fn new(
        core: Arc<Core>,
        lease: Arc<HeldLease>,
        lease_term: LeaseTerm,
        reentrant: bool,
    ) -> Self {
        Guard { core, lease, lease_term, reentrant, armed: true }
    }

    /// Resolves when the hold has ended, with the reason if it is lost.
    pub(crate) fn ended(&self) -> impl Future<Output = Option<LossReason>> + Send + 'static {
        let (lease, maker) = (self.lease.clone(), self.core.pid());
        async move {
            if fork::here() != maker {
                return Some(LossReason::Forked);
            }
            lease.ended().await
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn lease(&self) -> &Arc<HeldLease> {
        &self.lease
    }

    /// The lease time of this guard, for further guards that are to have the same.
    pub(crate) fn lease_term(&self) -> LeaseTerm {
        self.lease_term
    }

    /// Turns a hold of a write side into one of the read side.
    pub(crate) async fn downgrade(mut self) -> Result<Guard, Error> {
        self.core.check_open().map_err(|error| error.on(self.name()))?;
        self.armed = false;
        let (core, lease) = (self.core.clone(), self.lease.clone());
        let grant = core.downgrade(&lease, self.lease_term).await?;
        Ok(Guard::new(core, grant.lease, grant.lease_term, true))
    }

    /// An error in a process that did not make the hold.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        self.core.check_process().map_err(|error| error.on(self.name()).by(&self.lease.owner))
    }

    /// As [`into_hold`](Self::into_hold), in the process that made the hold.
    fn into_hold_here(self) -> Result<(Arc<Core>, Arc<HeldLease>, LeaseTerm), Error> {
        self.check_process()?;
        Ok(self.into_hold())
    }

    /// The hold without its guard, for the task that gives it back in the guard's place.
    pub(crate) fn into_hold(mut self) -> (Arc<Core>, Arc<HeldLease>, LeaseTerm) {
        self.armed = false;
        (self.core.clone(), self.lease.clone(), self.lease_term)
    }

    /// Gives this hold back and says what became of it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the release: it is finished in the background.
    ///
    /// # Errors
    ///
    /// A server that refuses, or one that cannot be reached before the lease ends; the lease then ends the hold. Under an owner that other processes may
    /// use, also an answer that is lost while a hold of that owner is still there: `Timeout`, after the response timeout.
    pub async fn unlock(self) -> Result<Unlocked, Error> {
        let (core, lease, lease_term) = self.into_hold_here()?;
        core.unlock(&lease, lease_term, Caller::MayStopPolling).await
    }

    /// As [`unlock`](Self::unlock), for `redlatch run`, which polls the future until it is done or drops it. So the request may go over the
    /// connection of the caller, if that has granted the hold just now. `unlock` sends it over the keeper's where others use the owner, because
    /// a task may keep the future and not poll it, and the others would wait for that.
    #[doc(hidden)]
    pub async fn unlock_polled(self) -> Result<Unlocked, Error> {
        let (core, lease, lease_term) = self.into_hold_here()?;
        core.unlock(&lease, lease_term, Caller::PollsToTheEnd).await
    }

    /// Whether the hold is good at this moment, by the local clock: no round trip.
    pub fn is_valid(&self) -> bool {
        !self.core.is_forked() && self.lease.is_valid(self.core.now_ms())
    }

    /// How long the hold lasts if no renewal succeeds any more; zero if it is over.
    pub fn remaining(&self) -> Duration {
        if !self.is_valid() {
            return Duration::ZERO;
        }
        Duration::from_millis(self.lease.deadline_ms().saturating_sub(self.core.now_ms()))
    }

    /// Resolves when the hold is lost, no later than its deadline; never if it is given back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + 'static {
        let ended = self.ended();
        async move {
            match ended.await {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        }
    }

    /// Why the hold was lost, if it was.
    pub fn loss(&self) -> Option<LossReason> {
        if self.core.is_forked() {
            return Some(LossReason::Forked);
        }
        if let Some(reason) = self.lease.loss() {
            return Some(reason.clone());
        }
        // It may be known to be gone before it is known why.
        (self.lease.is_held() && !self.is_valid()).then(|| self.lease.reason_if_missing(self.core.now_ms()))
    }

    /// A token that is cancelled when the hold is lost, for code that takes one.
    pub fn loss_token(&self) -> CancellationToken {
        let token = CancellationToken::new();
        if self.core.is_forked() {
            token.cancel();
            return token;
        }
        let (ended, cancel) = (self.ended(), token.clone());
        // The task ends with the hold, however it ends.
        self.core.keeper.handle().spawn(async move {
            if ended.await.is_some() {
                cancel.cancel();
            }
        });
        token
    }

    /// The fencing token, if the acquire asked for one: grows with every grant of the name, also across owners and languages.
    pub fn token(&self) -> Option<u64> {
        self.lease.token
    }

    /// How many replicas confirmed the grant when it was made; `None` if none were asked. A hold that was entered once more,
    /// passed on inside the process, or turned from writing to reading, has the confirmation that it was granted with.
    pub fn replicas(&self) -> Option<Replicas> {
        self.lease.replicated().map(|confirmed| confirmed.replicas)
    }

    /// The lock's name.
    pub fn name(&self) -> &LockName {
        &self.lease.keys.name
    }

    /// Who holds the lock. A task that knows the owner can enter again, so a hold whose owner was asked for is not passed
    /// on inside the process without a round trip.
    pub fn owner(&self) -> &Owner {
        self.lease.owner.mark_reusable()
    }

    /// How many guards hold under this owner here.
    pub fn hold_count(&self) -> u32 {
        if self.core.is_forked() { 0 } else { self.lease.holds().count }
    }

    /// Enters the lock once more under the same owner.
    ///
    /// # Cancel safety
    ///
    /// A re-entry that is on its way is finished in the background and given back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the hold is lost; [`ErrorKind::AlreadyHeld`] for a non-reentrant lock; a server that is
    /// unreachable or refuses; [`ErrorKind::InvalidOption`] for the hold of a blocking thread, which enters it by locking again. A re-entry that was
    /// not answered is asked for again, unless another process may hold under the owner.
    pub async fn reenter(&self) -> Result<Guard, Error> {
        if !self.reentrant {
            return Err(already_held().on(self.name()).by(&self.lease.owner));
        }
        self.core.check_open()?;
        self.lease.owner.check_may_be_sent().map_err(|error| error.on(self.name()))?;
        let grant = self.core.reenter(&self.lease, self.lease_term()).await?;
        Ok(Guard::new(self.core.clone(), grant.lease, grant.lease_term, true))
    }

    /// Makes the hold last at least `lease` from now (2 ms to 100 years); what is left of it is never shortened. A hold that
    /// is renewed keeps being renewed.
    ///
    /// # Cancel safety
    ///
    /// Once started it may happen or not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the hold is lost; a lease out of range; a server that is unreachable or refuses.
    pub async fn extend(&self, lease: Duration) -> Result<(), Error> {
        let lease_ms = lease_ms(lease).map_err(|error| error.on(self.name()))?;
        self.lasts(lease_ms, None).await.map(drop)
    }

    /// As [`extend`](Self::extend), and asks replicas whether they have it.
    pub(crate) async fn lasts(
        &self,
        lease_ms: i64,
        ack: Option<Replication>,
    ) -> Result<Option<Replicas>, Error> {
        self.core.check_open()?;
        if let Some(reason) = self.loss() {
            return Err(lost_error(self.name(), &self.lease.owner, &reason));
        }
        let sent_at = self.core.sent_at(&self.lease.keys);
        let until_ms = sent_at.at_ms.saturating_add(lease_ms as u64);
        let before_ms = self.lease.note_pending_extension(until_ms);
        let renewed = match ack {
            None => self.core.renew_one(&self.lease, lease_ms).await.map(|renewed| (renewed, None)),
            Some(ack) => self.core.renew_acked(&self.lease, lease_ms, ack).await,
        };
        match &renewed {
            // An earlier one that comes late does not make it last longer.
            Ok(_) => self.lease.extension_resolved(until_ms, 0),
            Err(fault) if !fault.is_unknown() => self.lease.extension_resolved(until_ms, before_ms),
            Err(_) => {}
        }
        let (renewed, replicas) =
            renewed.map_err(|fault| fault.into_error().on(self.name()).by(&self.lease.owner))?;
        if !renewed {
            self.core.end_as_gone(&self.lease).await;
        }
        if !renewed || !self.core.confirm_hold(&self.lease, sent_at, lease_ms) {
            let reason = self.lease.reason_if_missing(self.core.now_ms());
            return Err(lost_error(self.name(), &self.lease.owner, &reason));
        }
        self.core.schedule(&self.lease);
        Ok(replicas)
    }

    /// Lets the hold go on without a guard: renewal stops, the lock stays held until its lease ends or a process releases
    /// it with [`Lock::release`](crate::Lock::release).
    pub fn detach(mut self) -> DetachedHold {
        self.armed = false;
        let remaining = self.remaining();
        if !self.core.is_forked() {
            // From now on there is a hold of this owner that no guard counts, so releases leave it on the server.
            self.lease.owner.becomes_multi_process();
            if self.lease.is_count_in_doubt() {
                // What was not answered may arrive in the owner's next hold.
                self.core.owners.block(&self.lease.keys, &self.lease.owner).unanswered();
            }
            self.core.store.outlives(self.lease.owner.field());
            if self.lease.guard_goes_unreleased(self.lease_term) {
                self.core.lanes.forget(&self.lease);
                if self.lease.mark_given_back() {
                    self.core.hold_ended(&self.lease, HoldEnd::Detached);
                }
            }
        }
        DetachedHold {
            name: self.name().clone(),
            owner: self.lease.owner.clone(),
            token: self.lease.token,
            remaining,
        }
    }

    /// As [`detach`](Self::detach), and the hold lasts for exactly `time` (2 ms to 100 years) from now on, even if its lease would
    /// have lasted longer; a renewal or a look that is under way just now may still arrive and set the whole lease once more. `false` if it was lost.
    /// Where the owner has entered more than once, the time is never shortened, because another process may count on it; nor for a write
    /// hold below the lease of a read hold that its owner has besides. For an owner that
    /// was handed out it takes two round trips, so that what arrives late shortens no hold that another process has taken under it since.
    ///
    /// # Cancel safety
    ///
    /// It begins at the call, whether the future is polled or not: the guard is gone, and the hold stays until `time` or the lease is over.
    ///
    /// # Errors
    ///
    /// A time out of range, or a client that was shut down: the hold is then given back. A server that is unreachable or refuses: the hold then lasts until its lease is over, and a request that was
    /// not answered may still shorten it, unless another process has adopted it meanwhile.
    pub fn detach_for(self, time: Duration) -> impl Future<Output = Result<bool, Error>> + Send + 'static {
        let by = self.lease.clone();
        let begun = self.begin_to_detach(time);
        async move {
            let Some(shortening) = begun? else { return Ok(false) };
            let kept = shortening.outcome().await.and_then(identity);
            kept.map_err(|error| error.on(&by.keys.name).by(&by.owner))
        }
    }

    /// `None` if it was lost.
    fn begin_to_detach(self, time: Duration) -> Result<Option<Driven<Result<bool, Error>>>, Error> {
        let time_ms = lease_ms(time).map_err(|error| error.on(self.name()))?;
        self.core.check_open()?;
        if self.loss().is_some() {
            return Ok(None);
        }
        let (core, lease) = (self.core.clone(), self.lease.clone());
        // An owner that was handed out may come to be another process's, and this one meets its hold then.
        let remaining = self.remaining();
        let ends_ms = core.now_ms().saturating_add(remaining.as_millis() as u64);
        let ends_ms = lease.owner.is_reusable().then_some(ends_ms);
        // What shortens a hold would shorten the owner's next one if it came late.
        lease.owner.mark_reusable();
        let block = core.owners.block(&lease.keys, &lease.owner);
        // First of all nobody renews it any more, and nobody believes in the longer time.
        self.detach();
        let (here, held) = (core.clone(), lease.clone());
        // The owner's next attempt waits for it.
        let shortening = core.run_on_keeper(
            async move {
                // A hold that is just being entered or given back is counted on the server, and nothing is shortened where several are.
                tokio::select! {
                    biased;
                    () = held.count_stays() => {}
                    () = here.keeper.sleep(remaining) => {}
                }
                let sent = block.sent();
                // Other guards of this process that share the hold count on what is left of it.
                let kept = match held.holds().count > 0 {
                    true => here.renew_one(&held, time_ms).await,
                    false => here.shorten(&held, time_ms, ends_ms).await,
                };
                sent.answered(&kept);
                kept.map_err(Fault::into_error)
            },
            |_| {},
        );
        Ok(Some(shortening))
    }

    /// Does the work while the lock is held, and stops polling it when the hold is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work; the guard stays as it is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the hold was lost before the work was done; [`ErrorKind::Forked`] in a forked child.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.check_process()?;
        tokio::select! {
            biased;
            reason = self.lost() => Err(lost_error(self.name(), &self.lease.owner, &reason)),
            outcome = protected(work, || self.check()) => outcome,
        }
    }

    /// An error unless the hold is good at this moment: no round trip.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if it is not; [`ErrorKind::Forked`] in a forked child, whose parent has the hold.
    pub fn check(&self) -> Result<(), Error> {
        self.check_process()?;
        match self.loss() {
            Some(reason) => Err(lost_error(self.name(), &self.lease.owner, &reason)),
            None if self.lease.is_held() => Ok(()),
            None => Err(Error::new(ErrorKind::Lost, "the hold was given back").on(self.name())),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // In a forked child nothing may be touched, not even a mutex, which may have been locked at the fork.
        if self.armed && !self.core.is_forked() {
            self.core.release_in_background(&self.lease, self.lease_term);
        }
    }
}
