//! What the keeper and the renewal find in the lanes, and end there: the leases of a name, and what tasks wait for.

use std::sync::{Arc, PoisonError};

use super::{Bucket, LaneKey, Lanes};
use crate::{
    core::{lane::WaiterEntry, lease::HeldLease},
    keys::Keys,
    recipes::LanePolicy,
    sync::{Mutex, atomic::Ordering},
};

impl Lanes {
    /// The lease that a hold goes on as: it, or the one that it was passed on as since it was last seen on the server.
    pub(in crate::core) fn present(&self, lease: &Arc<HeldLease>) -> Option<Arc<HeldLease>> {
        if lease.is_held() {
            return Some(lease.clone());
        }
        let mut found = self.find(&lease.keys).into_iter();
        found.find(|held| held.continues(lease))
    }

    /// The server was seen not to have a hold: ends it, or the one that it was passed on as, and returns it. Passing on is done under the same
    /// mutex, so what is passed on later is over as well.
    pub(in crate::core) fn end_gone(&self, lease: &Arc<HeldLease>) -> Option<Arc<HeldLease>> {
        let bucket = self.bucket(&lease.keys);
        let lane = bucket.get(&LaneKey(lease.keys.clone()));
        let is_here = lane.is_some_and(|lane| lane.leases().any(|held| Arc::ptr_eq(held, lease)));
        lease.mark_gone();
        if let Some(lane) = lane.filter(|_| !is_here) {
            lane.leases().filter(|held| held.continues(lease)).for_each(|held| held.mark_gone());
        }
        drop(bucket);
        self.present(lease)
    }

    /// The leases that are held under a name.
    pub(crate) fn find(&self, keys: &Arc<Keys>) -> Vec<Arc<HeldLease>> {
        let bucket = self.bucket(keys);
        bucket.get(&LaneKey(keys.clone())).map_or_else(Vec::new, |lane| lane.leases().cloned().collect())
    }

    /// Looks at every lease.
    pub(crate) fn each_lease(&self, mut look: impl FnMut(&Arc<HeldLease>)) {
        for bucket in &self.buckets {
            for lane in bucket.lock().unwrap_or_else(PoisonError::into_inner).values() {
                lane.leases().for_each(&mut look);
            }
        }
    }

    /// Looks at tasks that stand in line and ask nobody themselves, up to so many.
    pub(in crate::core) fn each_in_line(&self, count_max: usize, mut look: impl FnMut(&WaiterEntry)) {
        let mut left = count_max;
        for bucket in &self.buckets {
            for lane in bucket.lock().unwrap_or_else(PoisonError::into_inner).values() {
                let waiting = lane.rare().queue.iter().filter(|entry| {
                    entry.request.recipe.lane_policy() == LanePolicy::OneContends && !entry.tell.is_closed()
                });
                for entry in waiting.take(left) {
                    look(entry);
                    left -= 1;
                }
            }
        }
    }

    /// Makes the next [`waited_for`](Self::waited_for) look at all lines again.
    pub(in crate::core) fn look_at_lines(&self) {
        self.waiters_behind_lease.store(true, Ordering::Relaxed);
    }

    /// The holds that tasks of this process wait for, and that have not been seen on the server for so long.
    pub(in crate::core) fn waited_for(&self, now_ms: u64, unseen_ms: u64) -> Vec<Arc<HeldLease>> {
        let mut found = Vec::new();
        if !self.waiters_behind_lease.swap(false, Ordering::Relaxed) {
            return found;
        }
        for bucket in &self.buckets {
            for lane in bucket.lock().unwrap_or_else(PoisonError::into_inner).values() {
                let Some(lease) = lane.held().filter(|_| !lane.rare().queue.is_empty()) else {
                    continue;
                };
                if lease.last_proof_sent_ms() + unseen_ms <= now_ms {
                    found.push(lease.clone());
                } else {
                    // It may be worth it by the next time.
                    self.waiters_behind_lease.store(true, Ordering::Relaxed);
                }
            }
        }
        found
    }

    /// Whether tasks stand in line for a name.
    pub(in crate::core) fn has_line(&self, keys: &Arc<Keys>) -> bool {
        let bucket = self.bucket(keys);
        bucket
            .get(&LaneKey(keys.clone()))
            .is_some_and(|lane| lane.rare().queue.iter().any(|entry| !entry.tell.is_closed()))
    }

    /// How many lanes there are (names held, contended or waited for), and how many tasks stand in them.
    pub(crate) fn count(&self) -> (usize, usize) {
        let count = |bucket: &Mutex<Bucket>| {
            let bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            (bucket.len(), bucket.values().map(|lane| lane.rare().queue.len()).sum::<usize>())
        };
        self.buckets.iter().map(count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}
