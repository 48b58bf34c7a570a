//! Replica acknowledgement: what is confirmed, what becomes of a shortfall, and that nobody else waits. On a master with replicas
//! behind a proxy, unless said otherwise.

use std::time::Duration;

use redlatch::{AnyGuard, Client, ReplicaAck, Replicas};
use redlatch_testkit::{proxy::Proxy, server::RedisServer};

use crate::{
    fixture::{ms, quiet, soon},
    kinds::Face,
};

mod following;
mod grants;
mod holds;
mod listed;
mod sets;
mod trouble;

pub(super) const FACES: [Face; 7] = [
    Face::Plain,
    Face::Fair,
    Face::Fenced,
    Face::Spin,
    Face::NonReentrant,
    Face::NonReentrantFair,
    Face::Write,
];

/// Longer than any test: only an event ends such a wait.
pub(super) const LONG: Duration = Duration::from_secs(300);

pub(super) fn all() -> ReplicaAck {
    ReplicaAck::all().within(LONG)
}

pub(super) fn at_least(n: u32) -> ReplicaAck {
    ReplicaAck::at_least(n).within(LONG)
}

pub(super) struct Rig {
    pub(super) replicas: Vec<RedisServer>,
    pub(super) proxy: Proxy,
    pub(super) master: RedisServer,
}

pub(super) async fn rig(replicas: usize) -> Rig {
    rig_with(replicas, &[]).await
}

pub(super) async fn rig_with(replicas: usize, settings: &[(&str, &str)]) -> Rig {
    let master = RedisServer::builder().arg("repl-diskless-sync-delay", "0");
    let master = settings.iter().fold(master, |master, (key, value)| master.arg(key, value));
    let master = master.start().unwrap();
    let port = master.port();
    let replica = |_| RedisServer::builder().arg("replicaof", &format!("127.0.0.1 {port}")).start().unwrap();
    let replicas: Vec<RedisServer> = (0..replicas).map(replica).collect();
    in_sync(&master, replicas.len()).await;
    let proxy = Proxy::start(&master.url()).unwrap();
    Rig { replicas, proxy, master }
}

/// Until the master knows so many replicas that keep up. The kit's own connection may always ask.
pub(super) async fn in_sync(master: &RedisServer, count: usize) {
    soon("replicas in sync", async {
        while online(master) != count {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

fn online(master: &RedisServer) -> usize {
    format!("{:?}", master.cmd(&["INFO", "replication"]).unwrap()).matches("state=online").count()
}

impl Rig {
    pub(super) async fn client(&self) -> Client {
        quiet().url(self.proxy.url()).connect().await.unwrap()
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.master.keys_dump().unwrap().keys().any(|key| key == name.as_bytes())
    }
}

pub(super) fn numbers(guard: &impl AnyGuard) -> (u32, u32) {
    let Replicas { acknowledged, wanted, .. } = guard.as_guard().replicas().expect("replicas were asked");
    (acknowledged, wanted)
}

/// A request that really waits, and is not the probe.
pub(super) fn waits(request: &redlatch_testkit::proxy::RequestRecord) -> bool {
    request.command == "WAIT" && request.args[1] != b"0"
}
