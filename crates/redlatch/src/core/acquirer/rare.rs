//! Answers of the server that are rare: a write lock refused beside the owner's own read hold, and keys that are in two places.

use std::{sync::Arc, time::Duration};

use super::Acquirer;
use crate::{
    call::{Call, Reply},
    core::{
        Core, Request, contest::Attempt, lanes::kinds::upgrade_refused, lease::HeldLease,
        upgrade::OwnReadHold,
    },
    keys::KeyKind,
    owner::Owner,
    scripts::QUERY,
    store::Fault,
};

impl Acquirer {
    /// Whether a hold of the same owner is just being given back.
    pub(super) fn own_release_under_way(&self) -> bool {
        self.owner.is_reusable() && self.core.owners.is_blocked(&self.request.keys, &self.owner)
    }

    /// The server has refused the write lock because it counts a read hold of the same owner: for good, unless that hold is over or ends.
    pub(super) async fn upgrade(
        &mut self,
        own_release_was_under_way: bool,
    ) -> Result<Attempt<Arc<HeldLease>>, Fault> {
        let reading = if own_release_was_under_way || self.own_release_under_way() {
            OwnReadHold::Ends(Some(Duration::ZERO))
        } else {
            self.core.reading(&self.request, &self.owner, &mut self.read_hold_end_ms).await
        };
        // This look comes after the reading: a release blocks its owner before the lease leaves its lane, so the look finds a release
        // that the reading has missed.
        if self.own_release_under_way() {
            self.owner_busy = true;
            return Ok(Attempt::OwnerBusy);
        }
        match reading {
            OwnReadHold::Ends(left) => Ok(Attempt::Busy(left)),
            OwnReadHold::Continues => Err(Fault::Server(upgrade_refused())),
        }
    }
}

impl Core {
    /// While the keys of a lock are in two places, the hash alone tells that another owner holds it, and for how long (-1:
    /// without end). Plain and fair locks only: the scripts of read-write locks get by on the hash themselves, and permits need two keys.
    pub(super) async fn held_by_another(self: &Arc<Self>, request: &Request, owner: &Owner) -> Option<i64> {
        match request.keys.kind {
            KeyKind::Lock | KeyKind::Fair => {}
            KeyKind::Read | KeyKind::Write | KeyKind::Permits => return None,
        }
        let call = Call::new(&QUERY).key(&request.keys.key).text(owner.field());
        let reply = self.run(call).await.ok()?;
        match *reply.array()? {
            [Reply::Int(ttl_ms), Reply::Int(0)] if ttl_ms != -2 => Some(ttl_ms),
            _ => None,
        }
    }
}
