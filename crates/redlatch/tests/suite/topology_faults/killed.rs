//! A master that is killed while many locks are held and waited for.

use std::time::{Duration, Instant};

use redlatch::{Client, Lease, ReplicaAck};
use redlatch_testkit::{
    history::{Recorder, now_ns},
    server::RedisServer,
};
use tokio::task::JoinHandle;

use super::{
    DOWN_AFTER, EVENTUALLY, Servers, eventually, keys,
    load::{Entry, Holding, Load, Plan, judge},
    until,
};
use crate::fixture::ms;

const NAMES: usize = 24;
/// Longer than any change of the master takes, on any machine.
const LEASE: Duration = Duration::from_secs(30);

/// Takes every lock with one client and lets two others wait for each.
async fn held_and_waited_for(
    servers: &Servers,
    recorder: &Recorder,
) -> (Vec<Holding>, Vec<JoinHandle<bool>>, Vec<Client>) {
    let names: Vec<String> = (0..NAMES).map(|n| format!("held{n}")).collect();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(servers.builder().watchdog_lease(LEASE).connect().await.unwrap());
    }
    let (mut held, mut waiters) = (Vec::new(), Vec::new());
    for name in &names {
        let entry = Entry::new(recorder, name, 0);
        held.push(entry.granted(clients[0].lock(name.as_str()).lock().await.unwrap()));
    }
    for (task, client) in clients.iter().enumerate().skip(1) {
        for name in &names {
            let (lock, name, recorder) = (client.lock(name.as_str()), name.clone(), recorder.clone());
            waiters.push(tokio::spawn(async move {
                let entry = Entry::new(&recorder, &name, task as u64);
                let guard = lock.lock().await.expect("who waits without limit waits");
                entry.granted(guard).stay_and_release(ms(5)).await.expect("a release succeeds")
            }));
        }
    }
    until("all wait", || {
        let channels = servers.nodes().iter().flat_map(|node| node.subscriber_channels().unwrap());
        channels.filter(|channel| String::from_utf8_lossy(channel).contains("{held")).count() == NAMES
    })
    .await;
    (held, waiters, clients)
}

/// Waits until this many nodes have each of the locks.
async fn copied(nodes: &[RedisServer], copies: usize) {
    until("the replicas have the locks", || {
        let has: Vec<_> = nodes.iter().map(|node| keys([node])).collect();
        (0..NAMES).all(|n| has.iter().filter(|keys| keys.contains(&format!("held{n}"))).count() >= copies)
    })
    .await;
}

/// Kills the master of the first lock, or all there is, and returns when another server takes its place.
fn kill_a_master(servers: &Servers) {
    match servers {
        Servers::Single(server) => {
            server.kill9();
            // Long enough that everybody has noticed.
            std::thread::sleep(ms(1_500));
            server.restart().unwrap();
        }
        Servers::Sentinel(set) => {
            let old = set.master().unwrap();
            set.node(old).kill9();
            set.wait_for_master_other_than(set.node(old).port()).unwrap();
        }
        Servers::Cluster(cluster) => {
            let slot = cluster.slot_of("held0");
            let old = cluster.owner_of(slot).unwrap();
            cluster.node(old).kill9();
            cluster.wait_for_owner_other_than(slot, old).unwrap();
        }
    }
}

async fn the_master_dies(servers: Servers, ack: ReplicaAck) {
    let recorder = Recorder::new("killed", 0);
    let (held, waiters, clients) = held_and_waited_for(&servers, &recorder).await;
    let mut plan = Plan::of((0..12).map(|n| format!("busy{n}")).collect());
    (plan.ack, plan.lease) = (ack, Lease::RenewedEvery(ms(9_000)));
    let load = Load::start(&recorder, &clients, &plan);
    load.more_grants(100).await;
    let copies = match &servers {
        Servers::Single(_) => 1,
        Servers::Sentinel(set) => set.nodes().len(),
        Servers::Cluster(_) => 2,
    };
    copied(servers.nodes(), copies).await;
    // There are replicas to confirm what is asked to be confirmed.
    let sample = clients[0].lock("sample").acquire().replica_ack(ack).await.unwrap().expect("it is free");
    assert_eq!(sample.replicas().map_or(0, |replicas| replicas.wanted as usize), copies - 1);
    sample.unlock().await.unwrap();
    let killed = Instant::now();
    tokio::task::block_in_place(|| kill_a_master(&servers));
    let replaced = killed.elapsed();
    assert!(replaced < EVENTUALLY);
    // Every name is served again, not only those that were asked for at once.
    load.more_grants(200).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "nobody gets what others hold");
    for hold in held {
        assert!(hold.guard.is_valid(), "{}: {:?}", hold.guard.name(), hold.guard.loss());
        assert!(eventually("the release", hold.release(now_ns())).await.unwrap());
    }
    for waiter in waiters {
        assert!(eventually("the waiter's turn", waiter).await.unwrap(), "a new hold is lost");
    }
    let notes = load.end().await;
    let verdict = judge(&recorder);
    println!("replaced after {replaced:?}; {} errors; {verdict}", notes.errors().len());
    verdict.assert_ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_returns_costs_no_hold_and_no_turn() {
    the_master_dies(Servers::single(), ReplicaAck::none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_among_sentinels_costs_no_hold_and_no_turn() {
    the_master_dies(Servers::sentinel(DOWN_AFTER), ReplicaAck::all()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_in_a_cluster_costs_no_hold_and_no_turn() {
    the_master_dies(Servers::cluster(DOWN_AFTER), ReplicaAck::all()).await;
}
