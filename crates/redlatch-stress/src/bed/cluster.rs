//! A cluster whose slots move, whose masters change, or that loses an address to another cluster.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use redlatch_testkit::{
    process::ChildProcess, redisson::Connection, server::ServerProgram, topology::RedisCluster,
};
use tempfile::TempDir;

use super::{Bed, Outcome, single::left_on};
use crate::{
    mix::Mix,
    record::Log,
    rng::Rng,
    worker::{Order, kind::Kind},
};

/// When another cluster takes the address of a replica.
const REUSED_AT: Duration = Duration::from_millis(2_500);
/// How long a node of a cluster may take to start.
const START_MAX: Duration = Duration::from_secs(10);
/// How long the cluster is left alone after a change of a master.
const CALM: Duration = Duration::from_secs(3);

pub(super) struct Cluster {
    mix: Mix,
    cluster: RedisCluster,
    next: Instant,
    /// The nodes of other clusters, each of which is the only one of its cluster.
    others: Vec<(ChildProcess, TempDir)>,
}

impl Cluster {
    pub(super) fn start(mix: Mix) -> Outcome<Self> {
        // A machine that stands still for a moment is no reason for a failover.
        let (masters, replicas) = match mix {
            // Clients ask some nodes for the picture and masters answer first, so most nodes are others.
            Mix::ReusedAddress => (2, 2),
            Mix::Failovers => (3, 1),
            _ => (3, 0),
        };
        let builder = RedisCluster::builder().master_count(masters).replicas_per_master(replicas);
        let timeout = Duration::from_secs(if mix == Mix::Failovers { 5 } else { 60 });
        let cluster = builder.node_timeout(timeout).start()?;
        Ok(Cluster { mix, cluster, next: Instant::now() + Duration::from_secs(1), others: Vec::new() })
    }

    fn move_a_slot(&self, rng: &mut Rng, log: &Log) -> Outcome<()> {
        let kind = *rng.of(&[Kind::Plain, Kind::Plain, Kind::Read, Kind::Fair, Kind::Fenced]);
        let name = kind.name(rng, 4);
        let slot = self.cluster.slot_of(&name);
        let from = self.cluster.owner_of(slot)?;
        let masters: Vec<usize> =
            self.cluster.masters()?.into_iter().filter(|master| *master != from).collect();
        let to = *rng.of(&masters);
        log.fault(format!("the slot of {name} moves from node {from} to node {to}"));
        let step = self.cluster.begin_move(slot, to)?;
        if rng.percent(30) {
            std::thread::sleep(rng.ms(1, 60));
        }
        while step.move_keys(2)? > 0 {}
        step.finish()?;
        Ok(())
    }

    fn change_a_master(&self, rng: &mut Rng, log: &Log) -> Outcome<()> {
        let masters = self.cluster.masters()?;
        let master = *rng.of(&masters);
        if let Some(replica) = self.cluster.replicas_of(master)?.first() {
            log.fault(format!("node {replica} takes over from node {master}"));
            // Masters refuse to vote for replicas of one master twice in two node timeouts; then it stays as it is.
            self.cluster.node(*replica).cmd(&["CLUSTER", "FAILOVER"])?;
        }
        Ok(())
    }

    /// Stops the masters for a moment, in which the other cluster alone answers a client that asks who has which slot.
    fn silence_masters(&self, rng: &mut Rng, log: &Log) -> Outcome<()> {
        let (masters, time) = (self.cluster.masters()?, rng.ms(100, 800));
        log.fault(format!("the masters stand still for {time:?}"));
        for master in &masters {
            self.cluster.node(*master).pause()?;
        }
        std::thread::sleep(time);
        for master in &masters {
            self.cluster.node(*master).resume()?;
        }
        Ok(())
    }

    /// Kills the replicas and starts the only nodes of other clusters at their addresses.
    fn reuse_addresses(&mut self, log: &Log) -> Outcome<()> {
        for master in self.cluster.masters()? {
            for replica in self.cluster.replicas_of(master)? {
                let port = self.cluster.node(replica).port();
                self.cluster.node(replica).kill9();
                self.others.push(alone(port)?);
                log.fault(format!("the address of node {replica} belongs to another cluster"));
            }
        }
        Ok(())
    }
}

/// A cluster of one node at this port.
fn alone(port: u16) -> Outcome<(ChildProcess, TempDir)> {
    let dir = tempfile::tempdir()?;
    let mut node = Command::new(ServerProgram::System.path());
    node.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--cluster-enabled", "yes"])
        .args(["--cluster-announce-ip", "127.0.0.1", "--dir"])
        .arg(dir.path())
        .stderr(Stdio::null());
    let node = ChildProcess::spawn(node)?;
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/"))?;
    let begin = Instant::now();
    let mut connection = loop {
        match client.get_connection() {
            Ok(connection) => break connection,
            Err(error) if begin.elapsed() > START_MAX => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16_383).exec(&mut connection)?;
    // An older cluster than the first: by the epochs alone its picture would be the later one.
    redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(1_000).exec(&mut connection)?;
    Ok((node, dir))
}

impl Bed for Cluster {
    fn java(&self) -> Option<Connection> {
        let seeds: Vec<_> = self.cluster.seeds().iter().map(|at| format!("redis://{at}")).collect();
        Some(Connection::cluster(&seeds.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    fn address(&self, _: usize, order: &mut Order) {
        order.url = self.cluster.url();
    }

    fn trouble(&mut self, rng: &mut Rng, log: &Log, since: Duration) -> Outcome<()> {
        match self.mix {
            Mix::ReusedAddress => {
                if self.others.is_empty() && since > REUSED_AT {
                    self.reuse_addresses(log)?;
                }
                // Redirections make clients ask who has which slot.
                if !self.others.is_empty() && Instant::now() >= self.next {
                    self.move_a_slot(rng, log)?;
                    self.silence_masters(rng, log)?;
                    self.next = Instant::now() + rng.ms(20, 300);
                }
            }
            Mix::Failovers => {
                if Instant::now() >= self.next {
                    self.change_a_master(rng, log)?;
                    self.next = Instant::now() + CALM;
                }
            }
            _ => {
                if Instant::now() >= self.next {
                    self.move_a_slot(rng, log)?;
                    self.next = Instant::now() + rng.ms(5, 150);
                }
            }
        }
        Ok(())
    }

    fn heal(&mut self, _: &Log) -> Outcome<()> {
        Ok(())
    }

    fn left(&self) -> Outcome<Vec<String>> {
        let mut left = Vec::new();
        for master in self.cluster.masters()? {
            left.extend(left_on(self.cluster.node(master))?);
        }
        Ok(left)
    }

    fn keeps_data(&self) -> bool {
        self.mix != Mix::Failovers
    }
}
