//! Leaders of lanes that are alive and not polled, releases that hang, and the tasks in line behind them.

use std::sync::{Arc, PoisonError, atomic::Ordering};

use super::{LaneKey, Lanes};
use crate::{
    core::{
        lane::LaneState,
        task_liveness::{LOOKED_FOR_MAX, TASK_POLL_DUE_MS},
    },
    keys::Keys,
};

impl Lanes {
    /// Wakes each leader that tasks stand behind. If one was not polled since it was last woken, the next in line leads. A lane whose release takes
    /// longer than two due polls goes on, too: its task may not be polled. In trouble with the server each task in line looks at what is known of it.
    /// Returns whether there is a line.
    pub(in crate::core) fn pass_over_the_unpolled(&self, now_ms: u64, troubled: bool) -> bool {
        if !self.has_waiters.swap(false, Ordering::AcqRel) {
            return false;
        }
        let (mut has_line, mut leaders, mut stuck, mut told) = (false, Vec::new(), Vec::new(), Vec::new());
        for bucket in &self.buckets {
            for (key, lane) in &mut *bucket.lock().unwrap_or_else(PoisonError::into_inner) {
                if matches!(lane.state, LaneState::Releases { since_ms } if since_ms + 2 * TASK_POLL_DUE_MS <= now_ms)
                {
                    lane.state = LaneState::Nothing;
                    stuck.push(key.0.clone());
                }
                has_line |= !lane.rare().queue.is_empty() && (lane.held().is_some() || lane.is_busy());
                leaders.extend(lane.leader().cloned());
                if troubled {
                    told.extend(lane.some_in_line(usize::MAX));
                }
            }
        }
        self.has_waiters.fetch_or(has_line || !stuck.is_empty(), Ordering::AcqRel);
        stuck.iter().for_each(|keys| self.promote(keys, false));
        told.iter().for_each(|request| request.liveness.wake());
        for leader in leaders {
            if !leader.liveness.ask() || leader.liveness.is_looked_for_in_vain(now_ms) {
                self.look_for_those_behind(&leader.keys, now_ms);
                tracing::debug!(lock = %leader.keys.name, "a task that leads its line is not polled; the next one goes on");
                self.give_up_lead(&leader, false);
            }
        }
        has_line || !stuck.is_empty()
    }

    /// A task was not polled, and others of the same runtime may not be either: each is looked for, so that they are not found out one after
    /// the other.
    pub(in crate::core) fn look_for_those_behind(&self, keys: &Arc<Keys>, now_ms: u64) {
        let behind =
            self.bucket(keys).get(&LaneKey(keys.clone())).map(|lane| lane.some_in_line(LOOKED_FOR_MAX));
        for request in behind.unwrap_or_default() {
            request.liveness.look_for(now_ms);
        }
    }
}
