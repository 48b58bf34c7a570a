//! Permits of a semaphore whose task has gone, when another server answers than the one that counted their take.
//!
//! A semaphore is a bare number. What is added to one that never counted the take is a permit too many, for good.

use redlatch::{Client, Semaphore, config::AddressMap, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy},
    server::RedisServer,
    topology::{MasterReplica, RedisCluster},
};

use crate::fixture::{SOON, ms, soon};

#[derive(Debug, Clone, Copy)]
enum Take {
    Acquire,
    Drain,
}

const TAKES: [Take; 2] = [Take::Acquire, Take::Drain];

async fn take(how: Take, semaphore: Semaphore) {
    match how {
        Take::Acquire => semaphore.acquire(1).await.unwrap(),
        Take::Drain => assert_eq!(semaphore.drain().await.unwrap(), 1),
    }
}

fn free(server: &RedisServer) -> Option<i64> {
    redis::from_redis_value(server.cmd(&["GET", "s"]).unwrap()).unwrap()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    soon(what, async {
        while !is_so() {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
}

/// Makes a semaphore with one permit, and teaches the server the scripts, so that later calls are one command each.
async fn prepare(client: &Client) {
    let semaphore = client.semaphore("s");
    assert!(semaphore.set_if_absent(1, None).await.unwrap());
    for how in TAKES {
        take(how, semaphore.clone()).await;
        semaphore.release(1).await.unwrap();
    }
}

/// The task of a take goes before its answer comes. The server refuses what is given back, without a change, until it is told otherwise.
async fn drop_a_take(how: Take, client: &Client, proxy: &Proxy, server: &RedisServer) {
    let gate = Gate::new();
    for script in [scripts::SEMAPHORE_TAKE.sha1(), scripts::SEMAPHORE_DRAIN.sha1()] {
        proxy.rule(Match::script().arg_contains(script), Action::HoldReplyUntilReleased(gate.clone()));
    }
    let giving = Match::script().arg_contains(scripts::SEMAPHORE_GIVE.sha1());
    let giving = proxy.rule(giving, Action::DelayReply(ms(0)));
    let task = tokio::spawn(take(how, client.semaphore("s")));
    until("the take", || free(server) == Some(0)).await;
    server.cmd(&["CONFIG", "SET", "min-replicas-to-write", "9"]).unwrap();
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    gate.release();
    // The second try shows that the first one was answered.
    until("two tries to give back", || proxy.fired(giving) >= 2).await;
    assert_eq!(free(server), Some(0), "they were refused");
}

/// Another process has the only permit, and nothing is added to none.
async fn one_has_it(client: Client, server: &RedisServer, what: &str) {
    soon("an answer", async { while client.semaphore("s").available().await.is_err() {} }).await;
    until("the end of the giving back", || client.stats().background_jobs == 0).await;
    assert_eq!(free(server), Some(0), "{what}: two permits of one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_not_given_back_to_a_server_that_never_counted_their_take() {
    for how in TAKES {
        let server = tokio::task::block_in_place(|| RedisServer::start().unwrap());
        let proxy = Proxy::start(&server.url()).unwrap();
        let client = Client::connect(&proxy.url()).await.unwrap();
        prepare(&client).await;
        drop_a_take(how, &client, &proxy, &server).await;
        proxy.refuse_new().unwrap();
        tokio::task::block_in_place(|| server.restart_empty().unwrap());
        let other = Client::connect(&server.url()).await.unwrap();
        assert!(other.semaphore("s").set_if_absent(1, None).await.unwrap());
        assert!(other.semaphore("s").try_acquire(1).await.unwrap());
        proxy.heal().unwrap();
        one_has_it(client, &server, &format!("{how:?}")).await;
    }
}

/// A proxy for each server, and a map that leads through them.
fn proxied(servers: &[RedisServer]) -> (Vec<Proxy>, AddressMap) {
    let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(&server.url()).unwrap()).collect();
    let pair = |(server, proxy): (&RedisServer, &Proxy)| {
        format!("127.0.0.1:{}=127.0.0.1:{}", server.port(), proxy.port())
    };
    let pairs: Vec<String> = servers.iter().zip(&proxies).map(pair).collect();
    (proxies, pairs.join(",").parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_semaphore_are_not_given_back_to_a_master_that_lacks_their_take() {
    for how in TAKES {
        let set = tokio::task::block_in_place(|| MasterReplica::builder().replica_count(1).start().unwrap());
        let (proxies, map) = proxied(set.nodes());
        let addrs: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
        let url = format!("redis-replicated://{}", addrs.join(","));
        let client = Client::builder().url(url).address_map(map).connect().await.unwrap();
        prepare(&client).await;
        until("its copy", || free(set.node(1)) == Some(1)).await;
        tokio::task::block_in_place(|| set.stall_replication(1).unwrap());
        drop_a_take(how, &client, &proxies[0], set.node(0)).await;
        let port = set.node(1).port().to_string();
        tokio::task::block_in_place(|| {
            set.promote_alone(1).unwrap();
            set.node(0).cmd(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
        });
        let other = Client::connect(&set.node(1).url()).await.unwrap();
        assert!(other.semaphore("s").try_acquire(1).await.unwrap());
        one_has_it(client, set.node(1), &format!("{how:?}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_semaphore_are_not_given_back_to_a_node_of_a_cluster_that_lacks_their_take() {
    let cluster =
        tokio::task::block_in_place(|| RedisCluster::builder().node_timeout(4 * SOON).start().unwrap());
    let master = cluster.owner_of(cluster.slot_of("s")).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    let (proxies, map) = proxied(cluster.nodes());
    let client = Client::builder().url(cluster.url()).address_map(map).connect().await.unwrap();
    prepare(&client).await;
    tokio::task::block_in_place(|| cluster.block_replication(replica).unwrap());
    drop_a_take(Take::Acquire, &client, &proxies[master], cluster.node(master)).await;
    tokio::task::block_in_place(|| cluster.take_over(replica).unwrap());
    let other = Client::connect(&cluster.url()).await.unwrap();
    soon("the permit", other.semaphore("s").acquire(1)).await.unwrap();
    one_has_it(client, cluster.node(replica), "a node that took over").await;
    tokio::task::block_in_place(|| cluster.unblock_replication(replica).unwrap());
}

/// Also by a client that was not connected yet when it asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_semaphore_are_given_back_to_the_server_that_counted_their_take() {
    for (how, lazy) in [(Take::Acquire, false), (Take::Acquire, true), (Take::Drain, true)] {
        let server = tokio::task::block_in_place(|| RedisServer::start().unwrap());
        let proxy = Proxy::start(&server.url()).unwrap();
        prepare(&Client::connect(&server.url()).await.unwrap()).await;
        let client = match lazy {
            true => Client::connect_lazy(&proxy.url()).unwrap(),
            false => Client::connect(&proxy.url()).await.unwrap(),
        };
        drop_a_take(how, &client, &proxy, &server).await;
        server.cmd(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap();
        until("the permit", || free(&server) == Some(1)).await;
        until("the end of the giving back", || client.stats().background_jobs == 0).await;
        assert_eq!(free(&server), Some(1), "{how:?}: once");
    }
}

/// Its runtime had driven the connection, so nobody read the answer, and the permit was nobody's for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_call_whose_runtime_has_ended_are_given_back() {
    for (how, threads) in [(Take::Acquire, 1), (Take::Acquire, 2), (Take::Drain, 2)] {
        let server = tokio::task::block_in_place(|| RedisServer::start().unwrap());
        let proxy = Proxy::start(&server.url()).unwrap();
        let client = Client::connect(&proxy.url()).await.unwrap();
        prepare(&client).await;
        let gate = Gate::new();
        for script in [scripts::SEMAPHORE_TAKE.sha1(), scripts::SEMAPHORE_DRAIN.sha1()] {
            proxy.rule(Match::script().arg_contains(script), Action::HoldReplyUntilReleased(gate.clone()));
        }
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(threads).enable_all().build().unwrap();
        runtime.spawn(take(how, client.semaphore("s")));
        until("the take", || free(&server) == Some(0)).await;
        runtime.shutdown_background();
        gate.release();
        until("the permit", || free(&server) == Some(1)).await;
        until("the end of the giving back", || client.stats().background_jobs == 0).await;
        assert_eq!(free(&server), Some(1), "{how:?}: once");
    }
}
