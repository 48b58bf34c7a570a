//! Nodes and sentinels that are told to forget all others, as operators do who mend a set, while clients hold and take locks.

use std::time::Duration;

use redlatch::{Client, Lease, Presence, ReplicaAck, Unlocked};
use redlatch_testkit::{
    history::Recorder,
    server::RedisServer,
    topology::{RedisCluster, SentinelSet},
};

use super::{
    NEVER, keys,
    load::{Load, Plan, judge},
    names_at, until,
};
use crate::fixture::{RENEWED, ms};

/// The node that is reset, and the one that takes its slots.
const GOES: usize = 2;
const HEIR: usize = 0;

fn text(node: &RedisServer, command: &[&str]) -> String {
    redis::from_redis_value(node.cmd(command).unwrap()).unwrap()
}

/// What a node says of itself: where its bus is, and its slots.
struct Own {
    bus: String,
    slots: Vec<u16>,
}

fn own(node: &RedisServer) -> Own {
    let nodes = text(node, &["CLUSTER", "NODES"]);
    let line = nodes.lines().find(|line| line.contains("myself")).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let bus = words[1].split(['@', ',']).nth(1).unwrap().to_owned();
    let range = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        first.parse::<u16>().unwrap()..=last.parse().unwrap()
    };
    Own { bus, slots: words[8..].iter().filter(|word| !word.starts_with('[')).flat_map(range).collect() }
}

/// Moves slots as `redis-cli --cluster reshard` does; keys of others than `names` are in none of them.
fn move_slots(cluster: &RedisCluster, slots: &[u16], from: usize, to: usize, names: &[String]) {
    let busy: Vec<u16> = names.iter().map(|name| cluster.slot_of(name)).collect();
    let (source, target) = (cluster.node(from), cluster.node(to));
    let (source_id, target_id) = (text(source, &["CLUSTER", "MYID"]), text(target, &["CLUSTER", "MYID"]));
    let keys_move = |slot: &str| loop {
        let keys = source.cmd(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]).unwrap();
        let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
        if keys.is_empty() {
            return;
        }
        let port = target.port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"];
        command.extend(keys.iter().map(String::as_str));
        // One that has ended meanwhile is no error.
        source.cmd(&command).unwrap();
    };
    for slot in slots {
        let (is_busy, slot) = (busy.contains(slot), slot.to_string());
        target.cmd(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).unwrap();
        source.cmd(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).unwrap();
        if is_busy {
            keys_move(&slot);
        }
        target.cmd(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).unwrap();
        source.cmd(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).unwrap();
        let other = (0..3).find(|node| ![from, to].contains(node)).unwrap();
        cluster.node(other).cmd(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).unwrap();
    }
}

/// Has a node that knows nobody join the others again.
fn meets(cluster: &RedisCluster, node: usize) {
    let port = cluster.node(node).port().to_string();
    let bus = own(cluster.node(node)).bus;
    for other in (0..3).filter(|other| *other != node) {
        cluster.node(other).cmd(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).unwrap();
    }
}

fn knows_all(node: &RedisServer) -> bool {
    let nodes = text(node, &["CLUSTER", "NODES"]);
    let is_good =
        |line: &&str| !line.contains("handshake") && !line.contains("noaddr") && line.contains(" connected");
    nodes.lines().filter(is_good).count() == 3
}

/// What a master is used for that was reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It meets the others again, and takes its slots back.
    Returns,
    /// It has slots and later epochs of its own, at an address that clients begin with, and grants whatever is asked for.
    IsAnotherCluster,
}

/// The slots of a master go to another one, it is reset, and then it is used again.
async fn a_master_is_reset(how: &str, then: Then) {
    // It stays a master when it has no slots any more.
    let servers = RedisServer::builder().arg("cluster-allow-replica-migration", "no");
    let builder = RedisCluster::builder().servers(servers).replicas_per_master(0).node_timeout(NEVER);
    let cluster = builder.start().unwrap();
    let names: Vec<String> = (0..3).flat_map(|node| names_at(&cluster, node, "reset", 6)).collect();
    let mut clients = Vec::new();
    for _ in 0..3 {
        // The slots that move hold no keys but those of the names.
        let builder =
            Client::builder().url(cluster.url()).presence(Presence::untold()).watchdog_lease(RENEWED);
        clients.push(builder.connect().await.unwrap());
    }
    let mut held = Vec::new();
    for (n, name) in names.iter().enumerate() {
        held.push(clients[n % 3].lock(format!("{{{name}}}held")).lock().await.unwrap());
    }
    let recorder = Recorder::new("reset", 0);
    let load = Load::start(&recorder, &clients, &Plan::of(names.clone()));
    load.more_grants(100).await;
    let node = cluster.node(GOES);
    let slots = own(node).slots;
    tokio::task::block_in_place(|| move_slots(&cluster, &slots, GOES, HEIR, &names));
    let id = text(node, &["CLUSTER", "MYID"]);
    node.cmd(&["CLUSTER", "RESET", how]).unwrap();
    assert_eq!(text(node, &["CLUSTER", "NODES"]).lines().count(), 1, "it knows nobody");
    assert_eq!(text(node, &["CLUSTER", "MYID"]) == id, how == "SOFT");
    load.more_grants(200).await;
    if how == "HARD" {
        // The others know the id of old, and a new one comes from its address.
        for other in [0, 1] {
            cluster.node(other).cmd(&["CLUSTER", "FORGET", &id]).unwrap();
        }
        load.more_grants(100).await;
    }
    if then == Then::Returns {
        meets(&cluster, GOES);
        until("a whole cluster", || cluster.nodes().iter().all(knows_all)).await;
        // A master that has just come takes no writes for a moment.
        let is_ok = |node: &RedisServer| text(node, &["CLUSTER", "INFO"]).contains("cluster_state:ok");
        until("a good state", || cluster.nodes().iter().all(is_ok)).await;
        tokio::task::block_in_place(|| move_slots(&cluster, &slots, HEIR, GOES, &names));
        load.more_grants(200).await;
    } else {
        node.cmd(&["CLUSTER", "SET-CONFIG-EPOCH", "1000"]).unwrap();
        node.cmd(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]).unwrap();
        until("a cluster of its own", || node.cmd(&["SET", "new", "1"]).is_ok()).await;
        let mut late = Vec::new();
        for _ in 0..2 {
            late.push(Client::connect(&cluster.url()).await.unwrap());
        }
        let late = Load::start(&recorder, &late, &Plan::of(names.clone()));
        load.more_grants(100).await;
        late.more_grants(100).await;
        assert_eq!(late.end().await.losses(), [] as [String; 0]);
        assert_eq!(keys([node]).len(), 1, "{:?}", keys([node]));
    }
    let notes = load.end().await;
    let verdict = judge(&recorder);
    println!("{how}, {then:?}: {} errors; {verdict}", notes.errors().len());
    verdict.assert_ok();
    assert_eq!(notes.losses(), [] as [String; 0]);
    for guard in held {
        assert!(guard.is_valid(), "{}: {:?}", guard.name(), guard.loss());
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_forgets_the_others_when_its_slots_have_gone_and_returns_makes_no_second_holder() {
    a_master_is_reset("SOFT", Then::Returns).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_returns_as_another_node_when_its_slots_have_gone_makes_no_second_holder() {
    a_master_is_reset("HARD", Then::Returns).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_becomes_another_cluster_when_its_slots_have_gone_makes_no_second_holder() {
    a_master_is_reset("HARD", Then::IsAnotherCluster).await;
}

/// Its locks were free at that moment, so it was empty; it still had its slots, and its replica takes them.
async fn a_master_with_slots_is_reset(how: &str) {
    let cluster = RedisCluster::builder().node_timeout(NEVER).start().unwrap();
    let [at_others, here] = [vec![0, 1], vec![GOES]].map(|nodes| {
        nodes.into_iter().flat_map(|node| names_at(&cluster, node, "reset", 6)).collect::<Vec<_>>()
    });
    let mut clients = Vec::new();
    for _ in 0..3 {
        // The slots that move hold no keys but those of the names.
        let builder =
            Client::builder().url(cluster.url()).presence(Presence::untold()).watchdog_lease(RENEWED);
        clients.push(builder.connect().await.unwrap());
    }
    let mut held = Vec::new();
    for (n, name) in at_others.iter().enumerate() {
        held.push(clients[n % 3].lock(format!("{{{name}}}held")).lock().await.unwrap());
    }
    let recorder = Recorder::new("reset", 0);
    let load = Load::start(&recorder, &clients, &Plan::of(at_others));
    let mut plan = Plan::of(here);
    plan.rest = ms(300);
    let load_here = Load::start(&recorder, &clients, &plan);
    load_here.more_grants(30).await;
    let (node, replica) = (cluster.node(GOES), cluster.replicas_of(GOES).unwrap()[0]);
    until("a moment without a key", || node.cmd(&["CLUSTER", "RESET", how]).is_ok()).await;
    load.more_grants(100).await;
    let heir = cluster.node(replica);
    heir.cmd(&["CLUSTER", "FAILOVER", "TAKEOVER"]).unwrap();
    until("the slots", || own(heir).slots.len() > 5_000).await;
    load_here.more_grants(60).await;
    for load in [load, load_here] {
        let notes = load.end().await;
        println!("{how}: {} errors", notes.errors().len());
        assert_eq!(notes.losses(), [] as [String; 0]);
    }
    let verdict = judge(&recorder);
    println!("{how}: {verdict}");
    verdict.assert_ok();
    for guard in held {
        assert!(guard.is_valid(), "{}: {:?}", guard.name(), guard.loss());
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_told_to_forget_the_others_in_an_empty_moment_makes_no_second_holder() {
    a_master_with_slots_is_reset("SOFT").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_becomes_another_node_in_an_empty_moment_makes_no_second_holder() {
    a_master_with_slots_is_reset("HARD").await;
}

fn forgets(sentinel: &RedisServer) {
    assert_eq!(sentinel.cmd(&["SENTINEL", "RESET", "*"]).unwrap(), redis::Value::Int(1));
}

/// What sentinels list is asked for once a second, and one that becomes the master before that is not waited for.
const LISTED: Duration = ms(1_500);

/// Sentinels forget each other and all replicas: one after the other, all at once, and while another one of them has a replica promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_forget_everybody_make_no_second_holder() {
    let set = SentinelSet::builder().down_after(NEVER).start().unwrap();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Client::builder().url(set.url()).watchdog_lease(ms(60_000)).connect().await.unwrap());
    }
    let mut held = Vec::new();
    for n in 0..12 {
        let lock = clients[n % 3].lock(format!("held{n}"));
        let acquire = lock.acquire().replica_ack(ReplicaAck::all().within(ms(20_000)));
        held.push(acquire.await.unwrap().expect("it is free"));
    }
    // What replicas have confirmed outlasts a change of the master, and nothing else is granted.
    let mut plan = Plan::of((0..12).map(|n| format!("busy{n}")).collect());
    (plan.ack, plan.lease) = (ReplicaAck::all().within(ms(1_000)), Lease::RenewedEvery(ms(9_000)));
    let recorder = Recorder::new("forgotten", 0);
    let load = Load::start(&recorder, &clients, &plan);
    load.more_grants(100).await;
    let ready = async || {
        tokio::task::block_in_place(|| set.wait_until_ready()).unwrap();
        tokio::time::sleep(LISTED).await;
    };
    for sentinel in set.sentinels() {
        forgets(sentinel);
        load.more_grants(40).await;
    }
    ready().await;
    set.sentinels().iter().for_each(forgets);
    load.more_grants(100).await;
    ready().await;
    for forgetful in [&[][..], &[1, 2]] {
        let before = set.node(set.master().unwrap()).port();
        set.sentinel(0).cmd(&["SENTINEL", "FAILOVER", "redlatch"]).unwrap();
        forgetful.iter().for_each(|index| forgets(set.sentinel(*index)));
        tokio::task::block_in_place(|| set.wait_for_master_other_than(before)).unwrap();
        load.more_grants(100).await;
        ready().await;
    }
    let notes = load.end().await;
    let verdict = judge(&recorder);
    println!("{} errors; {verdict}", notes.errors().len());
    verdict.assert_ok();
    assert_eq!(notes.losses(), [] as [String; 0]);
    for guard in held {
        assert!(guard.is_valid(), "{}: {:?}", guard.name(), guard.loss());
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}
