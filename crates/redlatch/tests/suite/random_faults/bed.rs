//! Servers, and everything that can happen to them.

use std::time::{Duration, Instant};

use redlatch::{Client, ClientBuilder};
use redlatch_testkit::{
    proxy::{Action, ConnectionKind, Match, Proxy, Scope},
    server::RedisServer,
    topology::{MasterReplica, RedisCluster, SentinelSet},
};

use super::{
    judge::Book,
    rng::Rng,
    work::{FAIR, LATCH, LONG, PERMITS, PLAIN, READ_WRITE, SEMAPHORE, SPIN},
};
use crate::fixture::ms;

/// How long a master may be silent before anybody but the test replaces it: never, so that each change is known.
const NEVER: Duration = Duration::from_secs(120);
/// What the kit does in a moment, on a machine that pauses.
const READY_MAX: Duration = Duration::from_secs(60);

/// Which servers a test is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topology {
    Single,
    Replicated,
    Sentinel,
    Cluster,
}

pub(super) enum Servers {
    Single(Box<RedisServer>),
    Replicated(MasterReplica),
    Sentinel(SentinelSet),
    Cluster(RedisCluster),
}

pub(super) struct Bed {
    pub(super) servers: Servers,
    /// In front of each node, where clients can be led through proxies.
    proxies: Vec<Proxy>,
    /// Servers of a quorum, with a proxy each.
    quorum: Vec<(RedisServer, Proxy)>,
}

fn durable() -> redlatch_testkit::server::RedisServerBuilder {
    RedisServer::builder().appendonly(true).arg("appendfsync", "always")
}

impl Bed {
    pub(super) fn start(topology: Topology) -> Bed {
        let mut bed = Bed {
            servers: match topology {
                Topology::Single => Servers::Single(Box::new(durable().start().unwrap())),
                Topology::Replicated => {
                    Servers::Replicated(MasterReplica::builder().servers(durable()).start().unwrap())
                }
                Topology::Sentinel => Servers::Sentinel(
                    SentinelSet::builder().servers(durable()).down_after(NEVER).start().unwrap(),
                ),
                Topology::Cluster => Servers::Cluster(
                    RedisCluster::builder().servers(durable()).node_timeout(NEVER).start().unwrap(),
                ),
            },
            proxies: Vec::new(),
            quorum: Vec::new(),
        };
        if matches!(topology, Topology::Single | Topology::Replicated) {
            bed.proxies = bed.nodes().iter().map(|node| Proxy::start(&node.url()).unwrap()).collect();
        }
        if topology == Topology::Single {
            for _ in 0..3 {
                let server = durable().start().unwrap();
                let proxy = Proxy::start(&server.url()).unwrap();
                bed.quorum.push((server, proxy));
            }
        }
        bed
    }

    /// Clients of one process: of the servers, and of those of a quorum.
    pub(super) fn builders(&self) -> (ClientBuilder, Vec<ClientBuilder>) {
        let url = match &self.servers {
            Servers::Single(_) => self.proxies[0].url(),
            Servers::Replicated(_) => {
                let addrs: Vec<_> =
                    self.proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
                format!("redis-replicated://{}", addrs.join(","))
            }
            Servers::Sentinel(set) => set.url(),
            Servers::Cluster(cluster) => cluster.url(),
        };
        let quorum = self.quorum.iter().map(|(_, proxy)| Client::builder().url(proxy.url())).collect();
        (Client::builder().url(url), quorum)
    }

    /// Those that have locks, whatever their role.
    pub(super) fn nodes(&self) -> &[RedisServer] {
        match &self.servers {
            Servers::Single(server) => std::slice::from_ref(&**server),
            Servers::Replicated(set) => set.nodes(),
            Servers::Sentinel(set) => set.nodes(),
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// All nodes, those of the quorum too.
    pub(super) fn everywhere(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes().iter().chain(self.quorum.iter().map(|(server, _)| server))
    }

    /// How many keys there are if two have been written everywhere.
    pub(super) fn copies(&self) -> usize {
        match &self.servers {
            Servers::Cluster(_) => 4,
            _ => 2 * self.nodes().len(),
        }
    }

    /// Whether no change of master loses anything.
    pub(super) fn keeps_data(&self) -> bool {
        matches!(self.servers, Servers::Single(_))
    }

    /// One thing goes wrong, for a while. Blocks.
    pub(super) fn trouble(&self, rng: &mut Rng, book: &Book) {
        let quorum = !self.quorum.is_empty() && rng.percent(25);
        let (nodes, proxies): (Vec<&RedisServer>, Vec<&Proxy>) = if quorum {
            self.quorum.iter().map(|(server, proxy)| (server, proxy)).unzip()
        } else {
            (self.nodes().iter().collect(), self.proxies.iter().collect())
        };
        let at = rng.below(nodes.len() as u64) as usize;
        if !quorum && rng.percent(30) {
            return self.change(rng, book);
        }
        if !proxies.is_empty() && rng.percent(60) {
            return network(proxies[at], rng, book, at);
        }
        node(nodes[at], rng, book, at, matches!(self.servers, Servers::Single(_)));
    }

    /// A master is replaced, or slots move.
    fn change(&self, rng: &mut Rng, book: &Book) {
        match &self.servers {
            Servers::Single(_) => {}
            Servers::Replicated(set) => {
                let Ok(master) = set.master() else { return };
                let next =
                    (master + 1 + rng.below(set.nodes().len() as u64 - 1) as usize) % set.nodes().len();
                book.fault(format!("promote {next} instead of {master}"));
                let begin = Instant::now();
                if rng.percent(50) {
                    // What is granted from now on is lost.
                    book.fault("the next master lags");
                    set.stall_replication(next).unwrap();
                    std::thread::sleep(rng.time(20, 600));
                }
                if set.promote(next).is_ok() {
                    book.loss(begin);
                    book.count("changes of master");
                }
            }
            Servers::Sentinel(set) => {
                let Ok(master) = set.master() else { return };
                let begin = Instant::now();
                let how = rng.below(3);
                book.fault(format!("failover from {master}, how {how}"));
                match how {
                    0 => set.node(master).kill9(),
                    1 => set.node(master).pause().unwrap(),
                    _ => {}
                }
                let next = set.failover();
                std::thread::sleep(rng.time(0, 400));
                match how {
                    0 => restart(set.node(master)),
                    1 => set.node(master).resume().unwrap(),
                    _ => {}
                }
                book.fault(format!("failover to {next:?}"));
                if next.is_ok() {
                    book.loss(begin);
                    book.count("changes of master");
                }
            }
            Servers::Cluster(cluster) => self.change_cluster(cluster, rng, book),
        }
    }

    fn change_cluster(&self, cluster: &RedisCluster, rng: &mut Rng, book: &Book) {
        let Ok(masters) = cluster.masters() else { return };
        if masters.len() < 2 {
            return;
        }
        let master = rng.of(&masters);
        let how = rng.below(9);
        if how >= 4 {
            // A slot moves, in one go or with a pause half-way.
            let names = [
                PLAIN[0], PLAIN[1], FAIR[0], FAIR[1], SPIN, READ_WRITE, SEMAPHORE, PERMITS, LATCH, LONG[0],
                LONG[1],
            ];
            let slot = cluster.slot_of(rng.of(&names));
            let others: Vec<usize> = masters
                .iter()
                .copied()
                .filter(|node| cluster.owner_of(slot).is_ok_and(|owner| owner != *node))
                .collect();
            if others.is_empty() {
                return;
            }
            let to = rng.of(&others);
            book.fault(format!("slot {slot} to {to}"));
            let moved = (|| {
                let step = cluster.begin_move(slot, to)?;
                std::thread::sleep(rng.time(0, 300));
                while step.move_keys(1 + rng.below(3) as usize)? > 0 {
                    std::thread::sleep(rng.time(0, 80));
                }
                step.finish()
            })();
            match moved {
                Ok(()) => book.count("slots moved"),
                Err(error) => book.fault(format!("slot {slot} stays half-way: {error}")),
            }
            return;
        }
        let replicas = cluster.replicas_of(master).unwrap_or_default();
        let Some(replica) = replicas.first().copied() else { return };
        let begin = Instant::now();
        book.fault(format!("replica {replica} takes over from {master}, how {how}"));
        match how {
            // In agreement with its master, so that nothing is lost.
            0 => {
                if cluster.failover(replica).is_ok() {
                    book.count("agreed changes of master");
                }
            }
            1 => {
                cluster.node(master).kill9();
                let taken = cluster.take_over(replica);
                std::thread::sleep(rng.time(0, 400));
                restart(cluster.node(master));
                taken.unwrap();
                book.loss(begin);
                book.count("changes of master");
            }
            2 => {
                cluster.block_replication(replica).unwrap();
                std::thread::sleep(rng.time(0, 600));
                let taken = cluster.take_over(replica);
                cluster.unblock_replication(replica).unwrap();
                if taken.is_ok() {
                    book.loss(begin);
                    book.count("changes of master");
                }
            }
            _ => {
                // The old master goes on as one for a moment when it comes back.
                cluster.node(master).pause().unwrap();
                let taken = cluster.node(replica).cmd(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
                std::thread::sleep(rng.time(100, 900));
                cluster.node(master).resume().unwrap();
                taken.unwrap();
                cluster.wait_for_master(replica).unwrap();
                book.loss(begin);
                book.count("changes of master");
            }
        }
        book.fault("took over");
    }

    /// Ends all trouble. Blocks.
    pub(super) fn heal(&self) {
        for proxy in self.proxies.iter().chain(self.quorum.iter().map(|(_, proxy)| proxy)) {
            proxy.clear_rules();
            proxy.heal().unwrap();
        }
        for node in self.everywhere() {
            if !node.is_up() {
                restart(node);
            }
            let _ = node.cmd(&["PING"]);
        }
        let end = Instant::now() + READY_MAX;
        loop {
            let ready = match &self.servers {
                Servers::Single(_) => Ok(()),
                Servers::Replicated(set) => set.wait_until_ready(),
                Servers::Sentinel(set) => set.wait_until_ready(),
                Servers::Cluster(cluster) => cluster.wait_until_ready(),
            };
            match ready {
                Ok(()) => return,
                Err(error) => assert!(Instant::now() < end, "the servers do not get ready: {error}"),
            }
        }
    }
}

/// Something happens to the network before a node.
fn network(proxy: &Proxy, rng: &mut Rng, book: &Book, at: usize) {
    let what = rng.below(14);
    let time = rng.time(20, 700);
    book.fault(format!("network {what} of node {at} for {time:?}"));
    book.count("network faults");
    let scope = rng.of(&[Scope::Both, Scope::Requests, Scope::Replies, Scope::PubSub, Scope::Commands]);
    let nth = 1 + rng.below(12);
    match what {
        0 => return proxy.reset_all(),
        1 => return proxy.close_all(),
        2 => return proxy.reset(ConnectionKind::PubSub),
        3 => return proxy.reset(ConnectionKind::Commands),
        4 => proxy.blackhole(scope),
        5 => proxy.stall(scope),
        6 => proxy.latency(ms(rng.below(15)), ms(rng.below(60)), rng.below(1_000) + 1),
        7 => proxy.slice_replies(),
        8 => {
            proxy.refuse_new().unwrap();
            proxy.reset_all();
        }
        9 => drop(proxy.rule(Match::script().nth(nth), Action::DropReply)),
        10 => drop(proxy.rule(Match::script().nth(nth), Action::CloseAfterRequest)),
        11 => drop(proxy.rule(Match::script().nth(nth), Action::CloseBeforeRequest)),
        12 => drop(proxy.rule(Match::script().nth(nth), Action::DelayRequest(rng.time(50, 1_500)))),
        _ => drop(proxy.rule(Match::script().nth(nth), Action::DelayReply(rng.time(50, 1_500)))),
    }
    std::thread::sleep(time);
    proxy.clear_rules();
    proxy.heal().unwrap();
}

/// Something happens to a node.
fn node(node: &RedisServer, rng: &mut Rng, book: &Book, at: usize, alone: bool) {
    if !node.is_up() {
        return;
    }
    let what = rng.below(8);
    let time = rng.time(20, 1_000);
    book.fault(format!("node {at}: {what} for {time:?}"));
    book.count("faults of nodes");
    match what {
        0 | 1 => {
            node.pause().unwrap();
            std::thread::sleep(time);
            node.resume().unwrap();
        }
        2 => drop(node.flush_scripts()),
        3 => drop(node.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"])),
        4 => drop(node.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])),
        5 => drop(node.cmd(&["CLIENT", "PAUSE", &rng.time(20, 600).as_millis().to_string(), "WRITE"])),
        6 => drop(node.cmd(&["CLIENT", "PAUSE", &rng.time(20, 600).as_millis().to_string(), "ALL"])),
        // With its data it comes back as what it was. A node that has replicas is replaced elsewhere.
        _ if alone => {
            node.kill9();
            std::thread::sleep(time);
            restart(node);
        }
        _ => {}
    }
}

/// Starts a node again. The kit's own connection to it is an old one, which the first command finds out.
fn restart(node: &RedisServer) {
    node.restart().unwrap();
    let _ = node.cmd(&["PING"]);
}
