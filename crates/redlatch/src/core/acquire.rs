//! Acquiring. An acquire that names an owner first claims that owner (`acquire_reusable.rs`). Then it joins the lane of the name (`lanes.rs`). The task
//! that leads the lane contends at the server (`contest.rs`, and `acquirer.rs` for what one attempt sends).
//!
//! Every attempt of one acquire uses the same owner, and the script grants an owner at most once however often it
//! asks. That makes it safe to ask again after an unknown outcome: either the earlier request is found to have been
//! granted, or this one is (`docs/protocol.md`, acquire). If another process may use the
//! owner, too, the acquire script grants the owner's first hold only. If it has one, that is the answer, and another script (`enter`) adds one to its count. If the
//! answer to that is lost, the server may count one too many until the lease ends, and never one too few.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
};

use super::{
    Core, Grant, Request, Wait,
    acquirer::{Acquirer, ContestStart},
    lane::{DisplacedLeases, WaiterHandle, WaiterMessage},
    lanes::JoinStep,
    lease::HeldLease,
    owner_claims::OwnerClaim,
    request::GrantPath,
    undo::RequestFate,
    wait::WaitDeadline,
};
use crate::{
    catch_panic::catch_panic,
    error::{Error, LossReason},
    keys::Keys,
};

impl Core {
    /// Acquires a hold, waiting as the request says. `None` means busy.
    pub(crate) async fn acquire(self: &Arc<Self>, request: Arc<Request>) -> Result<Option<Grant>, Error> {
        if self.is_observed() {
            // Boxed, so that the future stays small where there is no observer.
            return Box::pin(self.acquire_observed(request)).await;
        }
        self.acquire_unobserved(request).await
    }

    pub(super) async fn acquire_unobserved(
        self: &Arc<Self>,
        request: Arc<Request>,
    ) -> Result<Option<Grant>, Error> {
        self.check_process()?;
        // Noted before looking whether the client is open, so that shutting down waits for each task that found it so.
        let _under_way = self.keeper.hold_off_shutdown();
        self.check_open()?;
        request.keys.check()?;
        let deadline = WaitDeadline::new(self, request.wait);
        // Without a listener the clock is not asked.
        let began_ms = tracing::enabled!(tracing::Level::DEBUG).then(|| self.now_ms());
        let outcome = match &request.owner {
            None => {
                let work = pin!(self.acquire_in_lane(&request, &deadline, None));
                request.liveness.run_noting_polls(work).await.map(AcquireOutcome::grant)
            }
            // Boxed, so that the future of an acquire stays small for those who need no claim on an owner.
            Some(owner) => {
                let mut work = Box::pin(self.acquire_as(&request, owner, &deadline));
                request.liveness.run_noting_polls(work.as_mut()).await
            }
        };
        if let Ok(Some(grant)) = &outcome {
            grant.lease.note_task();
        }
        if let Some(began_ms) = began_ms {
            let granted = outcome.as_ref().ok().and_then(Option::as_ref);
            // A task in line that asked for no owner gets one only with the grant.
            let owner = granted.map(|grant| &grant.lease.owner).or(request.owner.as_ref());
            let owner = owner.map_or("", |owner| &**owner.field());
            let (after_ms, acquired) = (self.now_ms() - began_ms, granted.is_some());
            let error = outcome.as_ref().err().map(tracing::field::display);
            // A log that panics would take the grant with it.
            catch_panic(|| {
                tracing::debug!(lock = %request.keys.name, owner, after_ms, acquired, error, "an acquire has ended");
            });
        }
        outcome.map_err(|error| {
            let error = error.on(&request.keys.name);
            match &request.owner {
                Some(owner) => error.by(owner),
                None => error,
            }
        })
    }

    pub(super) async fn acquire_in_lane(
        self: &Arc<Self>,
        request: &Arc<Request>,
        deadline: &WaitDeadline,
        claim: Option<&OwnerClaim>,
    ) -> Result<AcquireOutcome, Error> {
        self.check_owner_holds_no_other_kind(request, claim)?;
        // Without a claim nothing was awaited since the deadline was made, so the time of its start is the current time.
        let mut now_ms = if claim.is_none() { deadline.began_ms() } else { self.now_ms() };
        loop {
            match self.join_lane(request, deadline, claim, now_ms).await? {
                AcquireOutcome::OfferExpired if deadline.is_over(self) => {
                    return Ok(AcquireOutcome::Done(None));
                }
                AcquireOutcome::OfferExpired => now_ms = self.now_ms(),
                entered => return Ok(entered),
            }
        }
    }

    async fn join_lane(
        self: &Arc<Self>,
        request: &Arc<Request>,
        deadline: &WaitDeadline,
        claim: Option<&OwnerClaim>,
        now_ms: u64,
    ) -> Result<AcquireOutcome, Error> {
        let waits = request.wait != Wait::No;
        let grant = match self.lanes.join(request, claim, now_ms)? {
            // Boxed, so that the future of an acquire stays small for those who are handed the lock here.
            JoinStep::Lead => {
                let place = LanePlace::lead(self, request);
                return Box::pin(self.lead_to_grant(request, deadline, place, ContestStart::default())).await;
            }
            JoinStep::AskForItself => {
                let place = LanePlace::asks_for_itself(self, &request.keys);
                return Box::pin(self.lead_to_grant(request, deadline, place, ContestStart::default())).await;
            }
            JoinStep::Busy => None,
            JoinStep::OwnerBusyNoWait => self.busy_or_outage(&request.keys.key, deadline).await?,
            JoinStep::OwnerBusy => return Ok(AcquireOutcome::OwnerBusy),
            JoinStep::Reenter(lease) => return self.acquire_again(request, &lease).await,
            JoinStep::Queue(handle) => {
                let mut place = LanePlace::queued(self, handle);
                // The keeper looks at the hold in front of it, but only while it is told that calls are made.
                self.keeper.note_call();
                // A task that does not wait is in line only for a release that is on its way.
                let deadline = &if waits { *deadline } else { self.response_deadline() };
                match place.wait_until_handed(deadline).await? {
                    None => None,
                    Some(Handed::Lease(lease)) => {
                        self.observe_hold_began(&lease);
                        Some(Grant { lease_term: lease.lease_term(), lease, path: GrantPath::Passed })
                    }
                    Some(Handed::OfferExpired) => return Ok(AcquireOutcome::OfferExpired),
                    Some(Handed::Lead { other_processes_first, outcome_unknown }) => {
                        let place = LanePlace::lead(self, request);
                        // An outage that has outlasted the tolerance ends this wait, unless the owner may have been granted the lock unseen.
                        if request.wait == Wait::Forever && !outcome_unknown {
                            self.check_outage_tolerance(&request.keys.key, deadline).await?;
                        }
                        let start = ContestStart { other_processes_first, outcome_unknown };
                        return Box::pin(self.lead_to_grant(request, deadline, place, start)).await;
                    }
                }
            }
        };
        Ok(AcquireOutcome::Done(grant))
    }

    /// Contends at the server until granted, refused, or out of time.
    async fn lead_to_grant(
        self: &Arc<Self>,
        request: &Arc<Request>,
        deadline: &WaitDeadline,
        place: LanePlace,
        start: ContestStart,
    ) -> Result<AcquireOutcome, Error> {
        let owner = request.owner.clone().unwrap_or_else(|| self.fresh_owner());
        let mut acquirer = Acquirer::new(self, request, owner, *deadline, start);
        let won = self.contest(&mut acquirer, request.wait, deadline, start.other_processes_first).await?;
        // It comes in again. Only a fair lock is handed a lease while it asks; of any kind a grant may be over when its answer comes.
        if acquirer.offer_taken_back || acquirer.too_late {
            return Ok(AcquireOutcome::OfferExpired);
        }
        if acquirer.owner_busy {
            return Ok(AcquireOutcome::OwnerBusy);
        }
        let Some(lease) = won else {
            acquirer.leave_any_server_queue().await;
            return Ok(AcquireOutcome::Done(None));
        };
        if !acquirer.leave_local_queue_with_grant() {
            return Ok(AcquireOutcome::OfferExpired);
        }
        acquirer.granted = true;
        let outcome_unknown = acquirer.outcome_unknown;
        drop(acquirer);
        lease.outcome_unknown.fetch_or(outcome_unknown, Ordering::Relaxed);
        if let Err(closed) = place.granted(&lease) {
            self.release_in_background(&lease, request.lease_term);
            return Err(closed);
        }
        let lease_term = request.lease_term;
        Ok(AcquireOutcome::Done(Some(Grant { lease, lease_term, path: GrantPath::Server })))
    }

    /// Records a new lease. Leases of other owners that it shows to be gone from the server are lost: their holders are told at once, because
    /// two must not be valid.
    ///
    /// An error if the client is closed: shutting down may not have seen the lease, so the caller gives it back.
    pub(crate) fn add_lease_and_check_open(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        leader: Option<&Arc<Request>>,
    ) -> Result<(), Error> {
        self.observe_hold_began(lease);
        match self.lanes.install_grant(lease, leader, self.now_ms()) {
            Ok(lost) => self.lose_displaced_by(lost, lease),
            Err(newer) => {
                // One of the two is gone, and this grant is the older news. It ends, and the other one is looked at.
                self.lose(lease, LossReason::TakenOver { by: newer.owner.field().to_string() });
                self.remove_remains(lease);
                let core = self.clone();
                self.keeper.spawn(async move { core.recheck_now(newer).await });
            }
        }
        // Last: a shutdown that begins after this look finds the lease where it was put.
        if self.is_closed() { Err(self.closed_error()) } else { Ok(()) }
    }

    pub(super) fn lose_displaced_by(self: &Arc<Self>, lost: DisplacedLeases, lease: &Arc<HeldLease>) {
        for lost in lost {
            self.lose(&lost, LossReason::TakenOver { by: lease.owner.field().to_string() });
            // If the new grant is over by now, the displaced hold may be the later one, and still be on the server. Its holder is told that it is lost, so
            // it is removed there.
            self.remove_remains(&lost);
        }
        self.recheck_if_unseen_since_interruption(lease);
    }
}

/// How joining a lane has ended.
pub(super) enum AcquireOutcome {
    Done(Option<Grant>),
    /// An earlier request of the owner is under way; come in again when it is not.
    OwnerBusy,
    /// The task was handed the lock, and was not polled before the offer or the lease was over, or its grant was over when the answer came; come in again.
    OfferExpired,
}

impl AcquireOutcome {
    fn grant(self) -> Option<Grant> {
        match self {
            AcquireOutcome::Done(grant) => grant,
            // Not reached: only a claimed owner can be busy, and `acquire_in_lane` joins again after `OfferExpired`.
            AcquireOutcome::OwnerBusy | AcquireOutcome::OfferExpired => None,
        }
    }
}

/// What a task in line has come to.
pub(super) enum Handed {
    /// The lease itself.
    Lease(Arc<HeldLease>),
    /// The duty to contend; its owner may have been given the lock unseen if it is `outcome_unknown`.
    Lead { other_processes_first: bool, outcome_unknown: bool },
    /// It was handed the lease, and did not take it before the offer or the lease was over: it has to come in again.
    OfferExpired,
}

/// A place in the lane; leaving it on drop lets the next task go on, whatever happened to this one.
pub(super) struct LanePlace {
    core: Arc<Core>,
    keys: Arc<Keys>,
    role: Role,
}

enum Role {
    /// Beside the lane, which another task leads.
    AskForItself,
    /// The lane's leader.
    Leader(Arc<Request>),
    /// In line.
    Queued(WaiterHandle),
    /// Gone on to be something else.
    Gone,
}

impl LanePlace {
    pub(super) fn lead(core: &Arc<Core>, request: &Arc<Request>) -> LanePlace {
        let role = Role::Leader(request.clone());
        LanePlace { core: core.clone(), keys: request.keys.clone(), role }
    }

    pub(super) fn asks_for_itself(core: &Arc<Core>, keys: &Arc<Keys>) -> LanePlace {
        LanePlace { core: core.clone(), keys: keys.clone(), role: Role::AskForItself }
    }

    pub(super) fn queued(core: &Arc<Core>, handle: WaiterHandle) -> LanePlace {
        LanePlace { core: core.clone(), keys: handle.request.keys.clone(), role: Role::Queued(handle) }
    }

    /// The grant came: the lane has a lease now. An error as in [`Core::add_lease_and_check_open`].
    pub(super) fn granted(mut self, lease: &Arc<HeldLease>) -> Result<(), Error> {
        match std::mem::replace(&mut self.role, Role::Gone) {
            Role::Leader(request) => self.core.add_lease_and_check_open(lease, Some(&request)),
            _ => self.core.add_lease_and_check_open(lease, None),
        }
    }

    /// Waits in line. `None` when time is up.
    pub(super) async fn wait_until_handed(
        &mut self,
        deadline: &WaitDeadline,
    ) -> Result<Option<Handed>, Error> {
        let Role::Queued(handle) = &mut self.role else { return Ok(None) };
        let core = &self.core;
        // A task that came in line before the client was closed is told through the lane; one that came after sees it here.
        if core.is_closed() {
            return Err(core.closed_error());
        }
        let Some(handed) = core.wait_in_lane(&self.keys.key, deadline, pin!(handle.inbox())).await? else {
            return Ok(None);
        };
        let outcome_unknown = handle.is_outcome_unknown();
        if core.is_closed() {
            // What it was handed is its own to give back: shutting down may not have seen it.
            if let Ok(WaiterMessage::Lease(lease)) = handed
                && lease.take()
            {
                core.release_in_background(&lease, lease.lease_term());
            }
            return Err(core.closed_error());
        }
        self.role = Role::Gone;
        match handed {
            Ok(WaiterMessage::Lease(lease)) if !lease.take() => Ok(Some(Handed::OfferExpired)),
            Ok(WaiterMessage::Lease(lease)) if lease.is_valid(core.now_ms()) => {
                Ok(Some(Handed::Lease(lease)))
            }
            Ok(WaiterMessage::Lease(lease)) => {
                core.release_in_background(&lease, lease.lease_term());
                Ok(Some(Handed::OfferExpired))
            }
            Ok(WaiterMessage::Lead { other_processes_first }) => {
                Ok(Some(Handed::Lead { other_processes_first, outcome_unknown }))
            }
            // Only `Lanes::close` drops the sender, at shutdown.
            Err(_) => Err(self.core.closed_error()),
        }
    }
}

impl Drop for LanePlace {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.role, Role::Gone) {
            Role::AskForItself | Role::Gone => {}
            Role::Leader(request) => self.core.lanes.give_up_lead(&request, false),
            Role::Queued(handle) => {
                let left = handle.close();
                if left.is_outcome_unknown
                    && let Some(owner) = &left.request.owner
                {
                    drop(self.core.undo_later(&left.request, owner, RequestFate::MayArriveLater));
                }
                if let Some(lease) = self.core.lanes.leave_line(left) {
                    self.core.release_in_background(&lease, lease.lease_term());
                }
            }
        }
    }
}
