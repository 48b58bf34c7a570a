//! Locks of several kinds under one name. On the server their holds stand in one hash, which lets in no owner of one kind beside another
//! owner of another kind.

use std::{
    borrow::Borrow,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::{Bucket, LaneKey, Lanes};
use crate::{
    core::{
        lane::{DisplacedLeases, Lane, LaneState},
        lease::HeldLease,
    },
    error::{Error, ErrorKind},
    keys::{KeyKind, Keys},
    owner::Owner,
    sync::{
        MutexGuard,
        atomic::{AtomicU8, Ordering},
    },
};

/// The kinds of which a client has had holds. Most have one kind.
#[derive(Default)]
pub(super) struct Kinds(AtomicU8);

impl Kinds {
    /// Whether there were holds of other kinds than this one.
    fn has_others(&self, kind: KeyKind) -> bool {
        // Holds of one name are noted under the mutex of its bucket.
        let known = self.0.load(Ordering::Relaxed);
        if known & kind.bit() == 0 {
            self.0.fetch_or(kind.bit(), Ordering::Relaxed);
        }
        known & !kind.bit() != 0
    }
}

/// What a lane is found by, without keys of its kind.
trait Named {
    fn parts(&self) -> (u64, KeyKind, &[u8]);
}

impl Named for LaneKey {
    fn parts(&self) -> (u64, KeyKind, &[u8]) {
        (self.0.lane_hash, self.0.kind, &self.0.key)
    }
}

struct OtherKind<'a> {
    of: &'a Keys,
    kind: KeyKind,
}

impl Named for OtherKind<'_> {
    fn parts(&self) -> (u64, KeyKind, &[u8]) {
        (self.of.lane_hash_as(self.kind), self.kind, &self.of.key)
    }
}

impl<'a> Borrow<dyn Named + 'a> for LaneKey {
    fn borrow(&self) -> &(dyn Named + 'a) {
        self
    }
}

impl Hash for dyn Named + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.parts().0);
    }
}

impl PartialEq for dyn Named + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Named + '_ {}

impl Lanes {
    /// Whether a task waits here for what is held elsewhere or by another owner than `owner`. One that leads and is not polled does not count.
    pub(crate) fn is_wanted(&self, keys: &Arc<Keys>, owner: &Owner, now_ms: u64) -> bool {
        let leader = {
            let bucket = self.bucket(keys);
            let Some(lane) = bucket.get(&LaneKey(keys.clone())) else { return false };
            if lane.held().is_some_and(|lease| lease.owner == *owner) {
                return false;
            }
            match &lane.state {
                LaneState::Contends(leader) => leader.clone(),
                _ => return lane.rare().queue.iter().any(|entry| !entry.tell.is_closed()),
            }
        };
        leader.liveness.look_for(now_ms);
        !leader.liveness.is_looked_for_in_vain(now_ms)
    }

    /// The holds that other owners have of the name by locks of other kinds. A grant shows that they are gone, or that it is gone itself.
    pub(super) fn of_other_kinds(
        &self,
        bucket: &MutexGuard<'_, Bucket>,
        lease: &HeldLease,
        now_ms: u64,
    ) -> DisplacedLeases {
        let held = self.held_as_other_kinds(bucket, &lease.keys, now_ms);
        held.filter(|held| held.owner != lease.owner).cloned().collect()
    }

    /// Whether an owner that reads asks to write.
    pub(super) fn is_upgrade(
        &self,
        bucket: &MutexGuard<'_, Bucket>,
        keys: &Keys,
        owner: &Owner,
        now_ms: u64,
    ) -> bool {
        let reads = |held: &Arc<HeldLease>| held.keys.kind == KeyKind::Read && held.owner == *owner;
        keys.kind == KeyKind::Write && self.held_as_other_kinds(bucket, keys, now_ms).any(reads)
    }

    /// The valid holds of the name by locks of other kinds, of any owner.
    pub(super) fn held_as_other_kinds<'a>(
        &self,
        bucket: &'a MutexGuard<'_, Bucket>,
        keys: &'a Keys,
        now_ms: u64,
    ) -> impl Iterator<Item = &'a Arc<HeldLease>> {
        let kinds = self.kinds.has_others(keys.kind).then(|| keys.kind.others()).into_iter().flatten();
        let lanes = kinds.filter_map(move |kind| {
            let name: &dyn Named = &OtherKind { of: keys, kind };
            bucket.get(name)
        });
        lanes.flat_map(Lane::leases).filter(move |held| held.is_valid(now_ms))
    }
}

/// An owner that reads does not get to write: two that asked for that would wait for each other.
pub(in crate::core) fn upgrade_refused() -> Error {
    Error::new(
        ErrorKind::UpgradeRefused,
        "the owner holds the read lock, and would wait for itself to give it up",
    )
    .remedy("release the read lock first; another owner may write before you then")
}
