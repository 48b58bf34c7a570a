//! Servers that announce addresses which a client cannot use: it reaches them where the map says.

use std::{collections::BTreeMap, future::IntoFuture};

use redlatch::{Client, ErrorKind, ReplicaAck, Replicas, ShardedPubSub, config::AddressMap};
use redlatch_testkit::{
    proxy::Proxy,
    server::RedisServer,
    topology::{RedisCluster, SentinelSet},
};

use crate::fixture::{ms, soon};

/// Nobody listens there; each server of a kit listens at 127.0.0.1 alone.
const ELSEWHERE: &str = "127.9.9.9";

/// A cluster whose nodes say that they are elsewhere, at the ports that they have.
fn elsewhere() -> RedisCluster {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    for node in cluster.nodes() {
        node.cmd(&["CONFIG", "SET", "cluster-announce-hostname", ELSEWHERE]).unwrap();
        node.cmd(&["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]).unwrap();
    }
    cluster
}

/// Waits until every node names all masters by the name that they announce.
async fn known_to_all(cluster: &RedisCluster) {
    soon("the names in the gossip", async {
        for node in cluster.nodes() {
            while format!("{:?}", node.cmd(&["CLUSTER", "SLOTS"]).unwrap()).matches(ELSEWHERE).count() < 3 {
                tokio::time::sleep(ms(10)).await;
            }
        }
    })
    .await;
}

/// Waits until a client listens to this server, in either way.
pub(crate) async fn listened_to(server: &RedisServer) {
    soon("a subscription", async {
        while server.clients().unwrap().iter().all(|client| client.subscriptions == 0) {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
}

/// Names of which each master has some.
fn names(cluster: &RedisCluster) -> Vec<String> {
    let mut by_owner: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for n in 0..60 {
        let name = format!("mapped-{n}");
        by_owner.entry(cluster.owner_of(cluster.slot_of(&name)).unwrap()).or_default().push(name);
    }
    assert_eq!(by_owner.len(), 3);
    by_owner.into_values().flat_map(|names| names.into_iter().take(3)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_announces_other_addresses_is_reached_through_the_map() {
    let cluster = elsewhere();
    known_to_all(&cluster).await;
    let names = names(&cluster);
    let plain = Client::builder().url(cluster.url()).connect().await.unwrap();
    let error = plain.lock(names[0].as_str()).try_lock().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "nobody is there: {error}");

    let mapped: AddressMap = format!("{ELSEWHERE}=127.0.0.1").parse().unwrap();
    for sharded in [ShardedPubSub::Auto, ShardedPubSub::Off] {
        let builder = || Client::builder().url(cluster.url()).address_map(mapped.clone()).sharded(sharded);
        let (client, other) = (builder().connect().await.unwrap(), builder().connect().await.unwrap());
        for name in &names {
            let guard = client.lock(name.as_str()).lock().await.unwrap();
            let lock = other.lock(name.as_str());
            let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
            listened_to(cluster.node(cluster.owner_of(cluster.slot_of(name)).unwrap())).await;
            guard.unlock().await.unwrap();
            soon("the lock", waiter).await.unwrap().unlock().await.unwrap();
        }
        // A slot that goes elsewhere is followed by what the servers refuse with: ASK while it moves, MOVED behind.
        let name = names[0].as_str();
        let slot = cluster.slot_of(name);
        let to = (cluster.owner_of(slot).unwrap() + 1) % 3;
        let moving = cluster.begin_move(slot, to).unwrap();
        client.lock(name).lock().await.unwrap().unlock().await.unwrap();
        moving.finish().unwrap();
        client.lock(name).lock().await.unwrap().unlock().await.unwrap();
        let findings = client.diagnose().await.unwrap();
        assert!(findings.iter().all(|finding| !finding.text.contains(ELSEWHERE)), "{findings:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_learns_by_redirections_alone_uses_the_map_of_the_url() {
    let cluster = elsewhere();
    known_to_all(&cluster).await;
    for node in cluster.nodes() {
        node.cmd(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-cluster"]).unwrap();
    }
    let url = cluster.url().replace("://", "://app:pw@");
    let client = Client::connect(&format!("{url}?address_map={ELSEWHERE}=127.0.0.1")).await.unwrap();
    for name in names(&cluster) {
        client.lock(name).lock().await.unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_sentinels_tell_is_reached_through_the_map() {
    let set = SentinelSet::start().unwrap();
    let proxy = |server: &RedisServer| Proxy::start(&server.url()).unwrap();
    let (nodes, sentinels): (Vec<Proxy>, Vec<Proxy>) =
        (set.nodes().iter().map(proxy).collect(), set.sentinels().iter().map(proxy).collect());
    let servers = set.nodes().iter().chain(set.sentinels());
    let pairs: Vec<String> = servers
        .zip(nodes.iter().chain(&sentinels))
        .map(|(server, proxy)| format!("127.0.0.1:{}=127.0.0.1:{}", server.port(), proxy.port()))
        .collect();
    // Only one sentinel is named; the others are learned from it.
    let named = &set.sentinel_addrs()[0];
    let client = Client::builder().url(format!("redis-sentinel://{named}/redlatch"));
    let client = client.address_map(pairs.join(",").parse().unwrap()).connect().await.unwrap();
    let master = set.master().unwrap();
    client.lock("forwarded").lock().await.unwrap().unlock().await.unwrap();
    assert!(nodes[master].connections_accepted() > 0, "the master by its proxy");
    // The master tells its replicas by the addresses that the map replaces, and each was another one than the sentinels list.
    let lock = client.lock("confirmed");
    let all = lock.acquire().replica_ack(ReplicaAck::all().within(ms(20_000)));
    let confirmed = soon("all replicas", all.into_future()).await.unwrap().unwrap();
    assert_eq!(confirmed.replicas(), Some(Replicas::new(2, 2)));
    confirmed.unlock().await.unwrap();
    soon("the other sentinels by their proxies", async {
        while sentinels[1..].iter().any(|proxy| proxy.connections_accepted() == 0) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;

    let next = set.failover().unwrap();
    assert_eq!(nodes[next].count("EVALSHA") + nodes[next].count("EVAL"), 0);
    client.lock("forwarded").lock().await.unwrap().unlock().await.unwrap();
    assert!(nodes[next].count("EVALSHA") + nodes[next].count("EVAL") > 0, "the next master by its proxy");
}

#[tokio::test]
async fn a_map_that_is_none_is_refused_with_the_url() {
    for map in ["a", "a=b:1", "a=b,a=c"] {
        let error =
            Client::connect(&format!("redis://127.0.0.1?address_map={map}")).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
        assert!(error.to_string().contains("address map"), "{error}");
    }
}
