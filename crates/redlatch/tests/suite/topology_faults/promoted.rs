//! A replica that lags behind and becomes the master: with replica acknowledgement nobody gets a lock twice, and without
//! it the first holder is told in time.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use redlatch::{Client, ErrorKind, Guard, Lease, LossReason, ReplicaAck, Unlocked};
use redlatch_testkit::{
    history::Recorder,
    stall,
    topology::{MasterReplica, RedisCluster, SentinelSet},
};
use tokio::task::JoinHandle;

use super::{
    DOWN_AFTER, NEVER, accepts_writes, eventually, keys,
    load::{Load, Plan, judge},
    names_at, until,
};
use crate::{
    fixture::{ms, soon},
    kinds::Face,
};

const NAMES: usize = 20;

fn names(part: &str) -> Vec<String> {
    (0..NAMES).map(|n| format!("{part}{n}")).collect()
}

/// A master with one replica, so that the sentinels choose the one that lags.
fn one_replica() -> Arc<SentinelSet> {
    Arc::new(SentinelSet::builder().replica_count(1).down_after(DOWN_AFTER).start().unwrap())
}

/// Takes some locks that replicas confirm and others when they no longer can, before one of them becomes the master.
async fn only_what_is_confirmed_is_held(
    url: &str,
    names: [Vec<String>; 2],
    ack: ReplicaAck,
    lag: impl FnOnce(),
    left: impl FnOnce() -> BTreeSet<String>,
    replace: impl FnOnce(),
) {
    let [confirmed, missed] = names;
    let builder = || Client::builder().url(url).watchdog_lease(Duration::from_secs(60));
    let (first, second) = (builder().connect().await.unwrap(), builder().connect().await.unwrap());
    let mut held = Vec::new();
    for name in &confirmed {
        let lock = first.lock(name.as_str());
        held.push(lock.acquire().replica_ack(ack.within(ms(20_000))).await.unwrap().expect("it is free"));
    }
    tokio::task::block_in_place(lag);
    for name in &missed {
        let lock = first.lock(name.as_str());
        let error = lock.acquire().replica_ack(ack.within(ms(300))).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    }
    let left = left();
    assert!(missed.iter().all(|name| !left.contains(name)), "{left:?}");
    tokio::task::block_in_place(replace);
    for name in &confirmed {
        let look = eventually("a look", second.lock(name.as_str()).try_lock()).await;
        assert!(look.unwrap().is_none(), "{name}");
    }
    for name in &missed {
        let guard = second.lock(name.as_str()).try_lock().await.unwrap().expect("nobody has it");
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
    for guard in held {
        assert!(guard.is_valid(), "{}: {:?}", guard.name(), guard.loss());
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_all_replicas_confirmed_has_no_second_holder_and_the_rest_has_none() {
    let set = one_replica();
    let (master, replica) = (set.master().unwrap(), set.replicas().unwrap()[0]);
    only_what_is_confirmed_is_held(
        &set.url(),
        ["confirmed", "missed"].map(names),
        ReplicaAck::all(),
        || set.stall_replication(replica).unwrap(),
        || keys([set.node(master)]),
        || {
            set.node(master).kill9();
            set.wait_for_master_other_than(set.node(master).port()).unwrap();
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_replica_in_a_cluster_confirmed_has_no_second_holder_and_the_rest_has_none() {
    let cluster = RedisCluster::builder().node_timeout(NEVER).start().unwrap();
    let replica = cluster.replicas_of(0).unwrap()[0];
    only_what_is_confirmed_is_held(
        &cluster.url(),
        ["confirmed", "missed"].map(|part| names_at(&cluster, 0, part, NAMES)),
        // The picture of a young cluster may lack the replica, so that all might be none.
        ReplicaAck::at_least(1),
        || cluster.block_replication(replica).unwrap(),
        || keys([cluster.node(0)]),
        || {
            cluster.node(0).kill9();
            cluster.take_over(replica).unwrap();
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confirmed_holds_exclude_while_a_replica_lags_and_is_promoted() {
    let set = one_replica();
    let (master, replica) = (set.master().unwrap(), set.replicas().unwrap()[0]);
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Client::builder().url(set.url()).watchdog_lease(ms(6_000)).connect().await.unwrap());
    }
    let recorder = Recorder::new("promoted", 0);
    let mut brief = Plan::of((0..6).map(|n| format!("brief{n}")).collect());
    brief.ack = ReplicaAck::all().within(ms(300));
    // Those that are held when the replica hears no more stay held there until their lease ends.
    (brief.stay, brief.lease) = (ms(40), Lease::RenewedEvery(ms(4_000)));
    // Some hold on while the master changes: those that were confirmed before, and those that nobody confirms at first.
    let steady = |part: &str| {
        let mut plan = brief.clone();
        plan.locks = (0..6).map(|n| (Face::Plain, format!("{part}{n}"))).collect();
        (plan.stay, plan.lease) = (ms(7_000), Lease::RenewedEvery(Duration::from_secs(30)));
        plan
    };
    let load = Load::start(&recorder, &clients, &brief);
    let early = Load::start(&recorder, &clients, &steady("early"));
    load.more_grants(150).await;
    early.more_grants(3).await;
    set.stall_replication(replica).unwrap();
    let late = Load::start(&recorder, &clients, &steady("late"));
    let short = |load: &Load| {
        load.notes.errors().iter().filter(|(kind, _)| *kind == ErrorKind::NotReplicated).count()
    };
    until("acquires that nobody confirms", || short(&load) >= 6 && short(&late) >= 12).await;
    set.node(master).kill9();
    tokio::task::block_in_place(|| set.wait_for_master_other_than(set.node(master).port())).unwrap();
    load.more_grants(150).await;
    late.more_grants(3).await;
    for load in [load, early, late] {
        let losses = load.end().await.losses();
        assert_eq!(losses, [] as [String; 0], "what is granted is confirmed, and what is confirmed stays");
    }
    let verdict = judge(&recorder);
    println!("{verdict}");
    verdict.assert_ok();
}

/// The lease of holders who are to be told, renewed every third.
const LEASE: Duration = ms(9_000);
/// When they must have been told, after the new master takes writes.
const TOLD_WITHIN: Duration = ms(3_000 + 500);

type Told = JoinHandle<(LossReason, Instant)>;

/// Holders of locks that the replica has not got, and what each will be told.
async fn unheard(client: &Client, names: &[String]) -> (Vec<Guard>, Vec<Told>) {
    let (mut guards, mut told) = (Vec::new(), Vec::new());
    for name in names {
        let guard = client.lock(name.as_str()).lock().await.unwrap();
        let lost = guard.lost();
        told.push(tokio::spawn(async move { (lost.await, Instant::now()) }));
        guards.push(guard);
    }
    // Their first renewals are over and the next ones are not due all at once.
    tokio::time::sleep(LEASE / 3).await;
    assert!(guards.iter().all(Guard::is_valid));
    (guards, told)
}

/// Others take the locks at once, and the first holders are told all the same.
async fn told_in_time(other: &Client, guards: Vec<Guard>, told: Vec<Told>, accepting: Instant) {
    let mut second = Vec::new();
    for guard in &guards {
        let lock = other.lock(guard.name());
        second.push(tokio::spawn(async move { lock.lock().await.unwrap() }));
    }
    let mut latest = Duration::ZERO;
    for (guard, told) in guards.iter().zip(told) {
        let (reason, at) = soon("the notice", told).await.unwrap();
        let late = stall::awake_between(accepting, at);
        assert!(late <= TOLD_WITHIN, "{}: {reason:?} after {late:?}", guard.name());
        assert!(!matches!(reason, LossReason::Expired), "{}: only its own clock said so", guard.name());
        latest = latest.max(late);
    }
    println!("told within {latest:?}");
    for guard in second {
        let guard = eventually("the second holder's turn", guard).await.unwrap();
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_lock_the_new_master_never_heard_of_is_told_by_sentinels() {
    let set = one_replica();
    let (master, replica) = (set.master().unwrap(), set.replicas().unwrap()[0]);
    let client = Client::builder().url(set.url()).watchdog_lease(LEASE).connect().await.unwrap();
    let other = Client::connect(&set.url()).await.unwrap();
    set.stall_replication(replica).unwrap();
    let (guards, told) = unheard(&client, &names("unheard")).await;
    set.node(master).kill9();
    let accepting = tokio::task::block_in_place(|| accepts_writes(set.node(replica), "accepting"));
    told_in_time(&other, guards, told, accepting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_lock_the_new_master_never_heard_of_is_told_among_replicas() {
    let servers = MasterReplica::builder().replica_count(1).start().unwrap();
    let client = Client::builder().url(servers.url()).watchdog_lease(LEASE).connect().await.unwrap();
    let other = Client::connect(&servers.url()).await.unwrap();
    servers.stall_replication(1).unwrap();
    let (guards, told) = unheard(&client, &names("unheard")).await;
    let accepting = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| accepts_writes(servers.node(1), "accepting"));
            // The old master stays up and follows the new one.
            servers.promote(1).unwrap();
            accepting.join().unwrap()
        })
    });
    told_in_time(&other, guards, told, accepting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_lock_the_new_master_never_heard_of_is_told_in_a_cluster() {
    let cluster = RedisCluster::builder().node_timeout(NEVER).start().unwrap();
    let client = Client::builder().url(cluster.url()).watchdog_lease(LEASE).connect().await.unwrap();
    let other = Client::connect(&cluster.url()).await.unwrap();
    let lost = names_at(&cluster, 0, "unheard", NAMES);
    let kept = names_at(&cluster, 1, "kept", NAMES);
    let replica = cluster.replicas_of(0).unwrap()[0];
    cluster.block_replication(replica).unwrap();
    let (guards, told) = unheard(&client, &lost).await;
    let (safe, _) = unheard(&client, &kept).await;
    // The old master stays up, so no connection breaks.
    let accepting = tokio::task::block_in_place(|| {
        let key = format!("{{{}}}accepting", lost[0]);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| accepts_writes(cluster.node(replica), &key));
            cluster.take_over(replica).unwrap();
            accepting.join().unwrap()
        })
    });
    told_in_time(&other, guards, told, accepting).await;
    for guard in safe {
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}
