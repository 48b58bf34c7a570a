//! A master, its replicas and their sentinels; the master changes on purpose.

use std::time::{Duration, Instant};

use redlatch_testkit::topology::SentinelSet;

use super::{Bed, Outcome, single::left_on};
use crate::{record::Log, rng::Rng, worker::Order};

/// How long the set is left alone after a change.
const CALM: Duration = Duration::from_secs(4);

pub(super) struct Sentinel {
    set: SentinelSet,
    next: Instant,
}

impl Sentinel {
    pub(super) fn start() -> Outcome<Self> {
        let set = SentinelSet::builder().replica_count(1).start()?;
        Ok(Sentinel { set, next: Instant::now() + CALM / 2 })
    }
}

impl Bed for Sentinel {
    fn address(&self, _: usize, order: &mut Order) {
        order.url = self.set.url();
    }

    fn trouble(&mut self, _: &mut Rng, log: &Log, _: Duration) -> Outcome<()> {
        if Instant::now() >= self.next {
            log.fault("the master is to change");
            let new = self.set.failover()?;
            log.fault(format!("node {new} is the master"));
            self.set.wait_until_ready()?;
            self.next = Instant::now() + CALM;
        }
        Ok(())
    }

    fn heal(&mut self, _: &Log) -> Outcome<()> {
        Ok(self.set.wait_until_ready()?)
    }

    fn left(&self) -> Outcome<Vec<String>> {
        left_on(self.set.node(self.set.master()?))
    }

    /// A release that the new master did not get leaves its lock for a lease.
    fn keeps_data(&self) -> bool {
        false
    }
}
