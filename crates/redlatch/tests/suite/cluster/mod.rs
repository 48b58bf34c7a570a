//! Redis Cluster: every lock in its slot, wherever the slot goes, and nodes that have nothing to do with each other.

mod failing;
mod foreign;
mod halfway;
mod lazy;
mod messages;
mod moving;
mod rights;
mod trust;
mod whole;

use redis::Value;
use redlatch::{Client, ClientBuilder};
use redlatch_testkit::{server::RedisServer, topology::RedisCluster};

use crate::{
    fixture::{ms, soon},
    kinds::Face,
};

/// Three masters without replicas.
fn masters() -> RedisCluster {
    RedisCluster::builder().replicas_per_master(0).start().unwrap()
}

fn builder(cluster: &RedisCluster) -> ClientBuilder {
    Client::builder().url(cluster.url())
}

async fn client(cluster: &RedisCluster) -> Client {
    builder(cluster).connect().await.unwrap()
}

/// The server that has the slot of a name.
fn home<'a>(cluster: &'a RedisCluster, name: &str) -> &'a RedisServer {
    cluster.node(cluster.owner_of(cluster.slot_of(name)).unwrap())
}

/// Which node has each slot.
fn owners(cluster: &RedisCluster) -> Vec<usize> {
    let Value::Array(runs) = cluster.node(0).cmd(&["CLUSTER", "SLOTS"]).unwrap() else { panic!("no runs") };
    let mut owners = vec![usize::MAX; 16_384];
    for run in runs {
        let Value::Array(run) = run else { panic!("{run:?}") };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &run[..] else {
            panic!("{run:?}")
        };
        let at = cluster.nodes().iter().position(|node| Value::Int(node.port().into()) == master[1]).unwrap();
        owners[*first as usize..=*last as usize].fill(at);
    }
    owners
}

/// So many names whose slots one master has.
fn names_at(cluster: &RedisCluster, master: usize, part: &str, count: usize) -> Vec<String> {
    let owners = owners(cluster);
    let names = (0..).map(|n| format!("{part}{n}"));
    names.filter(|name| owners[usize::from(cluster.slot_of(name))] == master).take(count).collect()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// The keys that a node has itself, whether it has their slots or not.
fn keys(server: &RedisServer) -> Vec<String> {
    server.keys().unwrap()
}

/// How many connections listen to a channel at a server: `NUMSUB` plain, `SHARDNUMSUB` sharded.
fn listening(server: &RedisServer, question: &str, channel: &str) -> i64 {
    match server.cmd(&["PUBSUB", question, channel]).unwrap() {
        Value::Array(items) => match items[..] {
            [_, Value::Int(count)] => count,
            _ => panic!("{items:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// How many calls have been told to wait for keys. Servers before 7 leave it to the new master to say so.
fn told_to_wait(cluster: &RedisCluster) -> u64 {
    cluster.nodes().iter().map(|node| refused(node, "TRYAGAIN")).sum()
}

/// How many calls a server has refused with this word.
fn refused(server: &RedisServer, code: &str) -> u64 {
    let info: String = redis::from_redis_value(server.cmd(&["INFO", "errorstats"]).unwrap()).unwrap();
    let word = format!("errorstat_{code}:count=");
    let count = info.lines().find_map(|line| line.strip_prefix(&word));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

const EVERY_FACE: [Face; 7] = [
    Face::Plain,
    Face::Fair,
    Face::Fenced,
    Face::Spin,
    Face::NonReentrant,
    Face::NonReentrantFair,
    Face::Write,
];

/// Changes the rights of the default account at every node.
fn allow(cluster: &RedisCluster, rule: &str) {
    cluster.nodes().iter().for_each(|node| drop(node.cmd(&["ACL", "SETUSER", "default", rule]).unwrap()));
}
