//! Acquiring for an owner that can be used again: one attempt after the other, and never beside a request that may take its hold away.

use std::sync::Arc;

use super::{
    Core, Grant, Request, Wait,
    acquire::AcquireOutcome,
    lease::HeldLease,
    multi_process::already_held,
    owner_claims::{AttemptMode, OwnerClaim},
    wait::{ServerWait, WaitDeadline},
};
use crate::{
    error::{Error, ErrorKind},
    keys::{KeyKind, Keys},
    owner::Owner,
    replica_ack::Replication,
};

impl Core {
    /// Acquires for an owner that can be used again: with the claim on it, and when nothing of it is under way that could take the hold
    /// away. The attempt keeps the claim until the lane knows the hold, or what is left of the attempt [blocks](super::owner_claims::OwnerBlock) the owner.
    pub(super) async fn acquire_as(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        deadline: &WaitDeadline,
    ) -> Result<Option<Grant>, Error> {
        let Some(mut claim) = self.claim_of(request, owner, deadline).await? else { return Ok(None) };
        claim.blocked_by_reads_only = request.under_own_write_lock;
        let key = &*request.keys.key;
        loop {
            match self.acquire_in_lane(request, deadline, Some(&claim)).await? {
                // A late request may have removed the hold. It is given back, and then asked for again.
                AcquireOutcome::Done(Some(grant)) if claim.is_disturbed() => {
                    claim.pause();
                    self.release_in_background(&grant.lease, grant.lease_term);
                }
                AcquireOutcome::Done(grant) => return Ok(grant),
                AcquireOutcome::OfferExpired | AcquireOutcome::OwnerBusy => {}
            }
            // What is under way for the owner waits for its attempt.
            claim.pause();
            // A call that does not wait for others waits for its own release all the same, for the response timeout at most.
            let moment = self.response_deadline();
            let deadline = if request.wait == Wait::No { &moment } else { deadline };
            match ServerWait::default()
                .wait_behind_local_tasks_subscribed(self, key, claim.quiet(), deadline)
                .await?
            {
                Some(quiet) => quiet?,
                None => return Ok(None),
            }
        }
    }

    /// Refuses an owner that holds the name as a lock of another kind: the server has one field for both, and would take the one for
    /// a repeat of the other. The caller has the claim on the owner, because without it another attempt of the owner may be granted after the look. An
    /// owner that is made for one acquire needs none.
    pub(super) fn check_owner_holds_no_other_kind(
        &self,
        request: &Request,
        claim: Option<&OwnerClaim>,
    ) -> Result<(), Error> {
        debug_assert_eq!(
            claim.is_some(),
            request.owner.is_some(),
            "an owner that can be used again is claimed by one attempt"
        );
        let Some(owner) = &request.owner else { return Ok(()) };
        // Holds of a shared owner may be noted with another value of it.
        if !owner.is_multi_process() && !owner.is_holding() {
            return Ok(());
        }
        let Some(other_kind) = request.keys.other_kind() else { return Ok(()) };
        if !self.lanes.find(other_kind).iter().any(|lease| lease.owner == *owner && lease.is_held()) {
            return Ok(());
        }
        let kind = if request.keys.kind == KeyKind::Fair { "a lock that is not fair" } else { "a fair lock" };
        let message = format!("the owner holds the name already, as {kind}");
        Err(Error::new(ErrorKind::WrongLockKind, message))
    }

    /// Waits for the claim on the owner. An attempt that does not wait for others waits for one that does not, either.
    async fn claim_of(
        self: &Arc<Self>,
        request: &Request,
        owner: &Owner,
        deadline: &WaitDeadline,
    ) -> Result<Option<OwnerClaim>, Error> {
        let what = if request.wait == Wait::No { AttemptMode::Once } else { AttemptMode::Waits };
        let other = match self.owners.try_claim(&request.keys, owner, what) {
            Ok(claim) => return Ok(Some(claim)),
            Err(other) => other,
        };
        let moment = self.response_deadline();
        let deadline = match (what, other) {
            (AttemptMode::Waits, _) => deadline,
            (AttemptMode::Once, AttemptMode::Once) => &moment,
            (AttemptMode::Once, AttemptMode::Waits) => return Ok(None),
        };
        let claim = self.owners.claim(&request.keys, owner, what);
        ServerWait::default()
            .wait_behind_local_tasks_subscribed(self, &request.keys.key, claim, deadline)
            .await
    }

    /// The claim on the owner, when nothing of it is under way that could take a hold away.
    ///
    /// # Errors
    ///
    /// Another attempt or a release of the owner does not come to its end; a guard of this process holds under it,
    /// and counts for all that the owner has.
    pub(crate) async fn claim_to_adopt(
        self: &Arc<Self>,
        keys: &Arc<Keys>,
        owner: &Owner,
    ) -> Result<OwnerClaim, Error> {
        let busy = || Error::new(ErrorKind::Timeout, "an earlier request of this owner is still under way");
        let moment = self.response_deadline();
        let claim = self.owners.claim(keys, owner, AttemptMode::Once);
        let claim = ServerWait::default()
            .wait_behind_local_tasks_subscribed(self, &keys.key, claim, &moment)
            .await?
            .ok_or_else(busy)?;
        // Doubt is no matter: what is still on its way for the owner does not meet the hold once it has moved.
        ServerWait::default()
            .wait_behind_local_tasks_subscribed(self, &keys.key, claim.begun_with_a_hold(), &moment)
            .await?
            .ok_or_else(busy)?;
        self.refuse_beside_a_guard(keys, owner)
            .map_err(|held| held.remedy("enter with `acquire().owner(…)`, or detach the guard first"))?;
        Ok(claim)
    }

    /// Refuses to act for an owner under which this process has a guard, which would not hear of it. What another client has under it is not known
    /// by name, so any guard there counts.
    pub(crate) fn refuse_beside_a_guard(&self, keys: &Arc<Keys>, owner: &Owner) -> Result<(), Error> {
        let elsewhere = !owner.is_foreign() && !self.has_made(owner) && owner.is_holding();
        if elsewhere || self.has_guard(keys, owner) {
            return Err(Error::new(ErrorKind::AlreadyHeld, "this process has a guard under this owner"));
        }
        Ok(())
    }

    /// Whether this client has a guard under an owner, of this kind of lock or of the one that shares its field on the server.
    fn has_guard(&self, keys: &Arc<Keys>, owner: &Owner) -> bool {
        let holds = |keys| self.lanes.find(keys).iter().any(|lease| lease.owner == *owner && lease.is_held());
        holds(keys) || keys.other_kind().is_some_and(holds)
    }

    /// Whether a lease of an owner is here, of this kind of lock or of the one that shares its field on the server: what the server has of
    /// the owner may be that one's.
    pub(super) fn has_lease(&self, keys: &Arc<Keys>, owner: &Owner) -> bool {
        let has = |keys| self.lanes.find(keys).iter().any(|lease| lease.owner == *owner);
        has(keys) || keys.other_kind().is_some_and(has)
    }

    /// The write hold here of an owner about whose read holds something is done. Its guard can hand the owner out at any moment, and a process
    /// that was handed it may read before a request arrives that is on its way.
    pub(super) fn own_write_lease(&self, keys: &Arc<Keys>, owner: &Owner) -> Option<Arc<HeldLease>> {
        if keys.kind != KeyKind::Read || !owner.is_reusable() || !owner.is_holding() {
            return None;
        }
        let writing = Arc::new(Keys::new(keys.name.clone(), KeyKind::Write));
        self.lanes.find(&writing).into_iter().find(|lease| lease.owner == *owner && lease.is_held())
    }

    /// Enters a hold that the same owner has.
    pub(super) async fn acquire_again(
        self: &Arc<Self>,
        request: &Request,
        lease: &Arc<HeldLease>,
    ) -> Result<AcquireOutcome, Error> {
        if !request.reentrant {
            return Err(already_held());
        }
        if request.fenced && lease.token.is_none() {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                "the owner holds the lock without a token, and a re-entry draws none",
            )
            .remedy("draw the token with the first hold"));
        }
        if let Some(error) = unconfirmed(lease, request.ack) {
            return Err(error);
        }
        match self.reenter(lease, request.lease_term).await {
            Ok(grant) => Ok(AcquireOutcome::Done(Some(grant))),
            // Its last guard gave it back meanwhile, so it is to be acquired anew.
            Err(error) if lease.is_given_back() && error.kind() == ErrorKind::Lost => {
                Ok(if request.wait == Wait::No {
                    AcquireOutcome::Done(None)
                } else {
                    AcquireOutcome::OwnerBusy
                })
            }
            Err(error) => Err(error),
        }
    }
}

/// Why an owner cannot enter a hold once more, when it wants replicas to have confirmed it.
fn unconfirmed(lease: &HeldLease, ack: Option<Replication>) -> Option<Error> {
    let ack = ack?;
    let enough = ack.is_met_by(lease.replicated()) || (ack.keep && lease.replicated().is_some());
    (!enough).then(|| {
        Error::new(
            ErrorKind::InvalidOption,
            "the owner holds the lock without that acknowledgement by replicas, and a re-entry asks for none",
        )
        .remedy("ask for it with the first hold")
    })
}
