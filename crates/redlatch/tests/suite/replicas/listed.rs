//! What `all` means where others than the master know of its replicas: one that was cut off from it, and may take its place all
//! the same, is missing; one that has gone is not.

use std::{future::IntoFuture, time::Duration};

use redlatch::{Client, ErrorKind, Lock, ReplicaAck, Replicas, Unlocked};
use redlatch_testkit::{
    net::ReservedPort,
    server::RedisServer,
    topology::{MasterReplica, RedisCluster, SentinelSet},
};

use crate::fixture::{ms, soon};

/// Longer than any test: only an event ends such a wait.
const LONG: Duration = Duration::from_secs(300);

/// How many confirm a lock that is to be confirmed by all, and is given back then.
async fn all(lock: &Lock) -> (u32, u32) {
    let ack = ReplicaAck::all().within(ms(400)).keep_on_shortfall();
    let guard = soon("a grant", lock.acquire().replica_ack(ack).into_future()).await.unwrap().unwrap();
    let Replicas { acknowledged, wanted, .. } = guard.replicas().expect("replicas were asked");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    (acknowledged, wanted)
}

/// Until all are so many, and all of them confirm.
async fn all_are(lock: &Lock, count: u32) {
    soon(&format!("all are {count}"), async {
        while all(lock).await != (count, count) {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
}

/// One of two replicas, or the only one, was cut off at this moment, and the master knows one less.
async fn falls_short(lock: &Lock, master: &RedisServer, left: u32) {
    let known = format!("connected_slaves:{left}");
    assert!(format!("{:?}", master.cmd(&["INFO", "replication"]).unwrap()).contains(&known));
    assert_eq!(all(lock).await, (left, left + 1));
    let short = lock.acquire().replica_ack(ReplicaAck::all().within(ms(100)));
    let error = soon("the shortfall", short.into_future()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert!(error.to_string().contains(&format!("only {left} of {} replicas", left + 1)), "{error}");
    assert!(!lock.is_locked().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_cut_off_among_sentinels_is_missing_and_one_that_has_gone_is_not() {
    let set = SentinelSet::start().unwrap();
    let client = Client::connect(&set.url()).await.unwrap();
    let lock = client.lock("n");
    let (master, replica) = (set.master().unwrap(), set.replicas().unwrap()[0]);
    all_are(&lock, 2).await;
    tokio::task::block_in_place(|| set.block_replication(replica).unwrap());
    falls_short(&lock, set.node(master), 1).await;
    let one = lock.acquire().replica_ack(ReplicaAck::at_least(1).within(LONG));
    let guard = soon("a grant", one.into_future()).await.unwrap().unwrap();
    assert_eq!(guard.replicas(), Some(Replicas::new(1, 1)), "so many are so many");
    guard.unlock().await.unwrap();
    tokio::task::block_in_place(|| set.release_replication(replica).unwrap());
    all_are(&lock, 2).await;
    // The sentinels keep it in their lists, and know that it is not there.
    set.node(replica).kill9();
    all_are(&lock, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_cut_off_in_a_cluster_is_missing() {
    let cluster = RedisCluster::builder().node_timeout(LONG).start().unwrap();
    // A node lists a replica from when it has heard that this one has data.
    let lists = |node: &RedisServer| {
        let slots = format!("{:?}", node.cmd(&["CLUSTER", "SLOTS"]).unwrap());
        cluster.nodes().iter().all(|other| slots.contains(&format!("int({})", other.port())))
    };
    soon("a picture that is whole", async {
        while !cluster.nodes().iter().all(lists) {
            tokio::time::sleep(ms(50)).await;
        }
    })
    .await;
    let client = Client::connect(&cluster.url()).await.unwrap();
    let lock = client.lock("n");
    let master = cluster.owner_of(cluster.slot_of("n")).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    tokio::task::block_in_place(|| cluster.block_replication(replica).unwrap());
    falls_short(&lock, cluster.node(master), 0).await;
    tokio::task::block_in_place(|| cluster.unblock_replication(replica).unwrap());
    all_are(&lock, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_has_failed_in_a_cluster_is_not_waited_for() {
    let cluster = RedisCluster::builder().node_timeout(ms(1_000)).start().unwrap();
    let client = Client::connect(&cluster.url()).await.unwrap();
    let lock = client.lock("n");
    let master = cluster.owner_of(cluster.slot_of("n")).unwrap();
    all_are(&lock, 1).await;
    cluster.node(cluster.replicas_of(master).unwrap()[0]).kill9();
    all_are(&lock, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_named_by_the_url_and_cut_off_is_missing() {
    let set = MasterReplica::start().unwrap();
    let master = set.master().unwrap();
    let replica = (0..3).find(|at| *at != master).unwrap();
    // A server that is named twice is one all the same.
    let url = format!("{},localhost:{}", set.url(), set.node(replica).port());
    let client = Client::connect(&url).await.unwrap();
    let lock = client.lock("n");
    all_are(&lock, 2).await;
    tokio::task::block_in_place(|| set.block_replication(replica).unwrap());
    falls_short(&lock, set.node(master), 1).await;
    tokio::task::block_in_place(|| set.release_replication(replica).unwrap());
    all_are(&lock, 2).await;
    set.node(replica).kill9();
    all_are(&lock, 1).await;
}

/// The replica is the next master already when it is looked for, and may grant the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_superseded_master_grants_is_not_confirmed_by_all_of_none() {
    for _ in 0..3 {
        let set = MasterReplica::builder().replica_count(1).start().unwrap();
        let client = Client::connect(&set.url()).await.unwrap();
        all_are(&client.lock("before"), 1).await;
        let promoted = 1 - set.master().unwrap();
        // What was said of the replicas counts for so long.
        tokio::time::sleep(ms(1_050)).await;
        tokio::task::block_in_place(|| set.promote_alone(promoted).unwrap());
        let lock = client.lock("n");
        let ack = ReplicaAck::all().within(ms(400));
        match soon("an answer", lock.acquire().replica_ack(ack).into_future()).await {
            Ok(guard) => {
                let guard = guard.expect("it is free");
                let there = set.node(promoted).cmd(&["EXISTS", "n"]).unwrap();
                assert_eq!(there, redis::Value::Int(1), "{:?}", guard.replicas());
                guard.unlock().await.unwrap();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}"),
        }
    }
}

/// A server that copies the master, is in no list of those who may promote one, and confirms as any other does.
fn outsider(master: &RedisServer) -> RedisServer {
    let port = master.port().to_string();
    let server = RedisServer::start().unwrap();
    // Sentinels list none that is not announced, where servers know that.
    for option in [["replica-announced", "no"], ["replica-priority", "0"]] {
        let _unknown = server.cmd(&["CONFIG", "SET", option[0], option[1]]);
    }
    server.cmd(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    server
}

/// Only numbers were compared: a hidden replica confirmed in place of one that was cut off, and that was promoted later, without the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_hidden_from_sentinels_does_not_stand_in_for_one_that_is_cut_off() {
    let set = SentinelSet::start().unwrap();
    let client = Client::connect(&set.url()).await.unwrap();
    let lock = client.lock("n");
    let (master, replica) = (set.master().unwrap(), set.replicas().unwrap()[0]);
    all_are(&lock, 2).await;
    let hidden = outsider(set.node(master));
    all_are(&lock, 3).await;
    tokio::task::block_in_place(|| set.block_replication(replica).unwrap());
    falls_short(&lock, set.node(master), 2).await;
    hidden.kill9();
    soon("the end of the hidden one", async { while all(&lock).await != (1, 2) {} }).await;
    tokio::task::block_in_place(|| set.release_replication(replica).unwrap());
    all_are(&lock, 2).await;
}

/// Sentinels list the address of a name that a replica announces. The master tells the name, and all were never met when another replica announced nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_announces_a_name_is_the_one_that_sentinels_list_by_address() {
    let set = SentinelSet::start().unwrap();
    let client = Client::connect(&set.url()).await.unwrap();
    let lock = client.lock("n");
    let (master, replica) = (set.master().unwrap(), set.replicas().unwrap()[0]);
    all_are(&lock, 2).await;
    for sentinel in set.sentinels() {
        sentinel.cmd(&["SENTINEL", "CONFIG", "SET", "resolve-hostnames", "yes"]).unwrap();
    }
    set.node(replica).cmd(&["CONFIG", "SET", "replica-announce-ip", "localhost"]).unwrap();
    set.node(master).cmd(&["CLIENT", "KILL", "TYPE", "replica"]).unwrap();
    let told = || format!("{:?}", set.node(master).cmd(&["ROLE"]).unwrap());
    soon("the name", async { while !told().contains("localhost") {} }).await;
    all_are(&lock, 2).await;
    tokio::task::block_in_place(|| set.block_replication(replica).unwrap());
    falls_short(&lock, set.node(master), 1).await;
}

/// A set whose URL names all but one of the replicas.
struct Beside {
    set: MasterReplica,
    master: usize,
    replica: usize,
    lock: Lock,
    _outsider: RedisServer,
}

async fn beside_an_outsider() -> Beside {
    let set = MasterReplica::start().unwrap();
    let master = set.master().unwrap();
    let replica = (0..3).find(|at| *at != master).unwrap();
    let lock = Client::connect(&set.url()).await.unwrap().lock("n");
    let _outsider = outsider(set.node(master));
    all_are(&lock, 3).await;
    Beside { set, master, replica, lock, _outsider }
}

/// The same of a replica that the URL does not name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_the_url_does_not_name_does_not_stand_in_for_one_that_is_cut_off() {
    let Beside { set, master, replica, lock, _outsider } = beside_an_outsider().await;
    tokio::task::block_in_place(|| set.block_replication(replica).unwrap());
    falls_short(&lock, set.node(master), 2).await;
    tokio::task::block_in_place(|| set.release_replication(replica).unwrap());
    all_are(&lock, 3).await;
}

/// It said that its link was up, as long as it had not noticed, so as many were linked as confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_the_url_does_not_name_does_not_stand_in_for_one_that_has_not_noticed_that_it_is_cut_off()
 {
    let Beside { set, master, replica, lock, _outsider } = beside_an_outsider().await;
    tokio::task::block_in_place(|| set.stall_replication(replica).unwrap());
    set.node(master).cmd(&["CLIENT", "KILL", "TYPE", "replica"]).unwrap();
    let said = |node: usize| format!("{:?}", set.node(node).cmd(&["INFO", "replication"]).unwrap());
    soon("the others", async { while !said(master).contains("connected_slaves:2") {} }).await;
    for _ in 0..3 {
        falls_short(&lock, set.node(master), 2).await;
    }
    assert!(said(replica).contains("master_link_status:up"));
    tokio::task::block_in_place(|| set.release_replication(replica).unwrap());
    all_are(&lock, 3).await;
}

/// One that copies a replica never confirms to the master, and another one was counted in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_replica_is_to_have_the_grant_itself() {
    let set = MasterReplica::start().unwrap();
    let master = set.master().unwrap();
    let [near, far] = [1, 2].map(|on| (master + on) % 3);
    let client = Client::connect(&set.url()).await.unwrap();
    let lock = client.lock("n");
    let _outsider = outsider(set.node(master));
    all_are(&lock, 3).await;
    let port = set.node(near).port().to_string();
    set.node(far).cmd(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    all_are(&lock, 2).await;
    set.node(far).pause().unwrap();
    falls_short(&lock, set.node(master), 2).await;
    set.node(far).resume().unwrap();
    all_are(&lock, 2).await;
    let far = set.node(far);
    soon("a grant that it has", async {
        let guard = lock.acquire().replica_ack(ReplicaAck::all().within(LONG)).await.unwrap().unwrap();
        assert_eq!(far.cmd(&["EXISTS", "n"]).unwrap(), redis::Value::Int(1));
        guard.unlock().await.unwrap();
    })
    .await;
}

/// How far the master was with a grant was asked behind the first try, which the server had refused because it did not know the script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lacks_a_grant_is_missing_though_the_server_had_to_be_sent_the_script() {
    let set = MasterReplica::start().unwrap();
    let master = set.master().unwrap();
    let [near, far] = [1, 2].map(|on| (master + on) % 3);
    let client = Client::connect(&set.url()).await.unwrap();
    let lock = client.lock("n");
    all_are(&lock, 2).await;
    let port = set.node(near).port().to_string();
    set.node(far).cmd(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    all_are(&lock, 1).await;
    // It answers, has the same history, and gets nothing any more.
    let nowhere = ReservedPort::new(0).unwrap();
    set.node(far).cmd(&["REPLICAOF", "127.0.0.1", &nowhere.port().to_string()]).unwrap();
    set.node(master).cmd(&["SCRIPT", "FLUSH"]).unwrap();
    assert_eq!(all(&lock).await, (1, 2));
}
