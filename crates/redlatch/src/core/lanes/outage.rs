//! A server that cannot be asked, as the tasks in line for a name learn of it: from the one that contends.

use std::sync::Arc;

use super::{LaneKey, Lanes};
use crate::{
    core::{Request, lane::Outage},
    keys::Keys,
};

impl Lanes {
    /// What the last request for those in line has shown, if it was not answered.
    pub(in crate::core) fn outage(&self, keys: &Arc<Keys>) -> Option<Outage> {
        self.shard(keys).get(&LaneKey(keys.clone()))?.crowd().outage.clone()
    }

    /// The task that contends has had no answer, or has one again. What another one says is its own.
    pub(in crate::core) fn note_outage(&self, leader: &Arc<Request>, outage: Option<Outage>) {
        self.change(&leader.keys, |lane| match outage {
            _ if !lane.is_led_by(leader) => {}
            Some(outage) => lane.crowd_mut().outage = Some(outage),
            None => lane.outage_is_over(),
        });
    }
}
