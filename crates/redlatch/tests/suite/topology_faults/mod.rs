//! Faults of whole topologies under load: several clients, many names, and a checker that judges the history.

mod flushed;
mod frozen;
mod killed;
mod load;
mod moving;
mod passed_on;
mod promoted;
mod pubsub;
mod reset;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use redlatch::{Client, ClientBuilder};
use redlatch_testkit::{
    server::RedisServer,
    topology::{RedisCluster, SentinelSet},
};

use crate::fixture::{ms, soon};

/// What a busy machine may take for things that have no limit of their own: elections, restarts, many turns.
const EVENTUALLY: Duration = Duration::from_secs(60);

/// How long a master may be silent in tests in which none is to be replaced, though the machine pauses.
const NEVER: Duration = Duration::from_secs(60);
/// The same where one is to be replaced, and only that one.
const DOWN_AFTER: Duration = Duration::from_secs(3);

/// Servers of some topology.
enum Servers {
    Single(Box<RedisServer>),
    Sentinel(SentinelSet),
    Cluster(RedisCluster),
}

impl Servers {
    fn single() -> Self {
        let settings = RedisServer::builder().appendonly(true).arg("appendfsync", "always");
        Servers::Single(Box::new(settings.start().unwrap()))
    }

    /// A master that is called down after this time.
    fn sentinel(down_after: Duration) -> Self {
        Servers::Sentinel(SentinelSet::builder().down_after(down_after).start().unwrap())
    }

    fn cluster(node_timeout: Duration) -> Self {
        Servers::Cluster(RedisCluster::builder().node_timeout(node_timeout).start().unwrap())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().url(match self {
            Servers::Single(server) => server.url(),
            Servers::Sentinel(set) => set.url(),
            Servers::Cluster(cluster) => cluster.url(),
        })
    }

    /// Those that have locks, whatever their role.
    fn nodes(&self) -> &[RedisServer] {
        match self {
            Servers::Single(server) => std::slice::from_ref(&**server),
            Servers::Sentinel(set) => set.nodes(),
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// All that a client has connections to.
    fn everybody(&self) -> impl Iterator<Item = &RedisServer> {
        let sentinels = match self {
            Servers::Sentinel(set) => set.sentinels(),
            _ => &[],
        };
        self.nodes().iter().chain(sentinels)
    }
}

/// The keys that nodes have, together.
pub(crate) fn keys<'a>(nodes: impl IntoIterator<Item = &'a RedisServer>) -> BTreeSet<String> {
    let of = |node: &RedisServer| -> Vec<String> { node.keys().unwrap() };
    nodes.into_iter().flat_map(of).collect()
}

/// So many names whose slots one master has; each may be the tag of others.
fn names_at(cluster: &RedisCluster, master: usize, part: &str, count: usize) -> Vec<String> {
    let here = |name: &String| cluster.owner_of(cluster.slot_of(name)).unwrap() == master;
    (0..).map(|n| format!("{part}{n}")).filter(here).take(count).collect()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

/// As [`soon`], for what takes the machine longer.
async fn eventually<T>(what: &str, work: impl Future<Output = T>) -> T {
    let limited = tokio::time::timeout(EVENTUALLY, work).await;
    limited.unwrap_or_else(|_| panic!("{what} did not happen within {EVENTUALLY:?}"))
}

/// Asks a server until it takes a write of this key; that moment. Blocks.
fn accepts_writes(node: &RedisServer, key: &str) -> Instant {
    let end = Instant::now() + EVENTUALLY;
    while node.cmd(&["SET", key, "1"]).is_err() {
        assert!(Instant::now() < end, "port {} takes no writes", node.port());
        std::thread::sleep(ms(2));
    }
    Instant::now()
}

/// How long a test goes on that is about time: `REDLATCH_SOAK_S` in seconds, or this.
pub(crate) fn soak(unless_told: Duration) -> Duration {
    let told = std::env::var("REDLATCH_SOAK_S").ok();
    told.map_or(unless_told, |s| Duration::from_secs(s.parse().expect("REDLATCH_SOAK_S: whole seconds")))
}
