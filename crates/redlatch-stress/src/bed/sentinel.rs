//! A master, its replicas and their sentinels; the master changes on purpose, or is killed.

use std::time::{Duration, Instant};

use redlatch_testkit::{
    redisson::Connection,
    topology::{MASTER_NAME, SentinelSet},
};

use super::{Bed, Outcome, single::left_on};
use crate::{mix::Mix, record::Log, rng::Rng, worker::Order};

/// How long the set is left alone after a change.
const CALM: Duration = Duration::from_secs(4);

/// How many changes in a hundred are made by killing the master, where some are.
const KILLED: u64 = 40;

pub(super) struct Sentinel {
    set: SentinelSet,
    next: Instant,
    kills: bool,
}

impl Sentinel {
    pub(super) fn start(mix: Mix) -> Outcome<Self> {
        let set = SentinelSet::builder().replica_count(1).start()?;
        Ok(Sentinel { set, next: Instant::now() + CALM / 2, kills: mix == Mix::Heritage })
    }

    /// The master dies, and comes back when another one has its place.
    fn kill(&self, log: &Log) -> Outcome<usize> {
        let old = self.set.node(self.set.master()?);
        log.fault("the master is killed");
        old.kill9();
        let new = self.set.wait_for_master_other_than(old.port())?;
        old.restart()?;
        Ok(new)
    }
}

impl Bed for Sentinel {
    fn java(&self) -> Option<Connection> {
        let sentinels: Vec<_> = self.set.sentinel_addrs().iter().map(|at| format!("redis://{at}")).collect();
        Some(Connection::sentinel(&sentinels.iter().map(String::as_str).collect::<Vec<_>>(), MASTER_NAME))
    }

    fn address(&self, _: usize, order: &mut Order) {
        order.url = self.set.url();
    }

    fn trouble(&mut self, rng: &mut Rng, log: &Log, _: Duration) -> Outcome<()> {
        if Instant::now() >= self.next {
            let new = if self.kills && rng.percent(KILLED) {
                self.kill(log)?
            } else {
                log.fault("the master is to change");
                self.set.failover()?
            };
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
