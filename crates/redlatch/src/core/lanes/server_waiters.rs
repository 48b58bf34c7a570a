//! Tasks that wait at the server and not in the lane: each in its queue there, or beside others that hold.

use std::sync::Arc;

use super::{LaneKey, Lanes};
use crate::{
    core::lane::{RareLaneState, WaiterEntry, Wakes},
    keys::Keys,
    owner::Owner,
};

impl Lanes {
    /// A task asks for a place in the queue on the server. From now on a release may hand over to it.
    pub(crate) fn line_up(&self, keys: &Arc<Keys>, entry: WaiterEntry) {
        let mut bucket = self.bucket(keys);
        bucket.entry(LaneKey(keys.clone())).or_default().rare_mut().queue.push_back(entry);
    }

    /// The server has the task in its queue, behind those that it was known to have.
    pub(crate) fn lined_up(&self, keys: &Arc<Keys>, owner: &Owner) {
        let mut bucket = self.bucket(keys);
        let Some(lane) = bucket.get_mut(&LaneKey(keys.clone())) else { return };
        let at = lane
            .rare()
            .queue
            .iter()
            .position(|entry| entry.owner.as_ref() == Some(owner) && !entry.is_in_server_queue);
        if let Some(mut entry) = at.and_then(|at| lane.rare_mut().queue.remove(at)) {
            entry.is_in_server_queue = true;
            let at = lane.server_queue_end();
            lane.rare_mut().queue.insert(at, entry);
        }
    }

    /// Whether a task in line may count on this process: a task of it has what it waits for, hands it over just now, or
    /// comes before it. If so it is woken when that was in vain.
    pub(crate) fn expects_local_grant(&self, keys: &Arc<Keys>, owner: &Owner) -> bool {
        let mut bucket = self.bucket(keys);
        let Some(lane) = bucket.get_mut(&LaneKey(keys.clone())) else { return false };
        let has_leases = lane.leases().next().is_some();
        let Some(RareLaneState { queue, granting_releases, next_relies_on_local_wake, .. }) =
            lane.rare_if_any()
        else {
            return false;
        };
        let is_handing = *granting_releases > 0;
        let held = is_handing || has_leases;
        let place = queue.iter().position(|entry| entry.owner.as_ref() == Some(owner));
        match place.and_then(|place| queue.get_mut(place)) {
            Some(entry) => entry.relies_on_local_wake = held || place > Some(0),
            // A release is on its way that may hand over to this very task.
            None => *next_relies_on_local_wake = is_handing,
        }
        place.map_or(is_handing, |place| held || place > 0)
    }

    /// A release that might have handed over is done; the task that it served is `None`, and otherwise waits on, first in line.
    pub(crate) fn release_and_grant_finished(&self, keys: &Arc<Keys>, waits_on: Option<WaiterEntry>) {
        let wakes = self.change(keys, |lane| {
            let rare = lane.rare_mut();
            rare.granting_releases = rare.granting_releases.saturating_sub(1);
            let next_relies_on_local_wake = std::mem::take(&mut rare.next_relies_on_local_wake);
            let Some(mut entry) = waits_on else { return Wakes::default() };
            entry.relies_on_local_wake |= next_relies_on_local_wake;
            if !entry.tell.is_closed() {
                let at = if entry.is_in_server_queue { 0 } else { lane.server_queue_end() };
                lane.rare_mut().queue.insert(at, entry);
            }
            lane.take_local_wakes()
        });
        wakes.unwrap_or_default().wake();
    }

    /// A task no longer waits in the queue on the server.
    pub(crate) fn leave_local_queue(&self, keys: &Arc<Keys>, owner: &Owner) {
        let left = self.change(keys, |lane| {
            let at = lane.rare().queue.iter().position(|entry| entry.owner.as_ref() == Some(owner));
            at.and_then(|at| lane.rare_mut().queue.remove(at))
        });
        drop(left);
    }

    /// A task waits at the server for a hold beside others, until [`remove_concurrent_waiter`](Self::remove_concurrent_waiter).
    pub(crate) fn add_concurrent_waiter(&self, keys: &Arc<Keys>) {
        self.bucket(keys).entry(LaneKey(keys.clone())).or_default().rare_mut().waiting_at_server += 1;
    }

    /// Such a task no longer waits.
    pub(crate) fn remove_concurrent_waiter(&self, keys: &Arc<Keys>) {
        self.change(keys, |lane| {
            let rare = lane.rare_mut();
            rare.waiting_at_server = rare.waiting_at_server.saturating_sub(1);
        });
    }

    /// Whether such tasks wait.
    pub(crate) fn has_concurrent_waiters(&self, keys: &Arc<Keys>) -> bool {
        self.bucket(keys).get(&LaneKey(keys.clone())).is_some_and(|lane| lane.rare().waiting_at_server > 0)
    }
}
