//! Coming into a lane under an owner that can be used again: it may hold the name already, and another request of it may be under way.

use std::sync::Arc;

use super::{Bucket, JoinStep, LaneKey, Lanes, kinds};
use crate::{
    core::{Request, Wait, owner_claims::OwnerClaim},
    error::{Error, ErrorKind},
    owner::Owner,
    sync::MutexGuard,
};

impl Lanes {
    /// What is done for the owner of a request before its lane is looked at; `None` to go on as for an owner that is made for one acquire.
    ///
    /// A release blocks its owner first and takes the lease out of the lane second, so an owner without either has nothing under way.
    pub(super) fn join_as_owner(
        &self,
        bucket: &MutexGuard<'_, Bucket>,
        request: &Arc<Request>,
        owner: &Owner,
        claim: Option<&OwnerClaim>,
        now_ms: u64,
    ) -> Result<Option<JoinStep>, Error> {
        let keys = &request.keys;
        let mut leases = bucket.get(&LaneKey(keys.clone())).into_iter().flat_map(|lane| lane.leases());
        if let Some(lease) = leases.find(|lease| lease.owner == *owner && lease.is_valid(now_ms)) {
            if !lease.owner.lets_in(owner) {
                return Err(not_reusable());
            }
            return Ok(Some(JoinStep::Reenter(lease.clone())));
        }
        // The server lets an owner in beside its hold of another kind.
        if self
            .held_as_other_kinds(bucket, keys, now_ms)
            .any(|held| held.owner == *owner && !held.owner.lets_in(owner))
        {
            return Err(not_reusable());
        }
        if let Some(claim) = claim
            && !claim.try_begin()?
        {
            let waits = request.wait != Wait::No;
            return Ok(Some(if waits { JoinStep::OwnerBusy } else { JoinStep::OwnerBusyNoWait }));
        }
        // The server would refuse an upgrade as well, but a task in line does not hear that, and the release of its owner's read hold waits for
        // this attempt.
        if self.is_upgrade(bucket, keys, owner, now_ms) {
            return Err(kinds::upgrade_refused());
        }
        Ok(None)
    }
}

/// An owner whose text was read off the server: its guard counts nobody else, and its hold may be passed on at any moment.
fn not_reusable() -> Error {
    Error::new(ErrorKind::NotOwner, "the guard that holds under this owner has not handed it out")
        .remedy("enter with the owner that `guard.owner()` returns, or acquire without an owner")
}
