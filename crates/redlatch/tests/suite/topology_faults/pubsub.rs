//! Subscriptions that are killed all the time.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use redlatch::{ClientBuilder, ShardedPubSub};
use redlatch_testkit::history::Recorder;

use super::{
    NEVER, Servers,
    load::{Load, Plan, judge},
};
use crate::fixture::ms;

/// How often all subscriptions are killed.
const KILLED_EVERY: Duration = ms(200);
/// How long nobody may get the lock.
const GAP_MAX: Duration = ms(1_000);

/// Two clients take turns with one lock, so that each turn needs a message.
async fn cut_off(servers: Servers, settings: impl Fn(ClientBuilder) -> ClientBuilder) {
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(settings(servers.builder()).watchdog_lease(ms(60_000)).connect().await.unwrap());
    }
    let mut plan = Plan::of(vec!["contended".to_owned()]);
    // Longer than subscribing takes, so that the other one listens by then.
    (plan.tasks_of_each, plan.stay, plan.rest) = (1, ms(25), ms(5));
    let recorder = Recorder::new("cut off", 0);
    let load = Load::start(&recorder, &clients, &plan);
    load.more_grants(10).await;
    let stop = AtomicBool::new(false);
    let killed = AtomicBool::new(false);
    let from = Instant::now();
    tokio::join!(
        async {
            while !stop.load(Ordering::Relaxed) {
                for node in servers.everybody() {
                    let count = node.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
                    killed.fetch_or(count != redis::Value::Int(0), Ordering::Relaxed);
                }
                tokio::time::sleep(KILLED_EVERY).await;
            }
        },
        async {
            tokio::time::sleep(ms(8_000)).await;
            stop.store(true, Ordering::Relaxed);
        },
    );
    let to = Instant::now();
    let notes = load.end().await;
    assert_eq!(notes.errors(), []);
    judge(&recorder).assert_ok();
    assert!(killed.into_inner(), "nobody listened");
    let gap = notes.longest_gap(from, to);
    assert!(gap <= GAP_MAX, "no grant for {gap:?}");
    // Who only looks now and then gets the lock once or twice a second at best.
    let turns: Vec<_> = notes.grants().into_iter().filter(|(at, _)| (from..to).contains(at)).collect();
    let changes = turns.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
    let awake = redlatch_testkit::stall::awake_between(from, to).as_millis();
    println!("longest gap {gap:?}, {} turns, {changes} of them the other's, in {awake} ms", turns.len());
    assert!(changes as u128 * 300 > awake, "the lock changed hands {changes} times in {awake} ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_grants_on_while_subscriptions_are_killed() {
    cut_off(Servers::single(), |builder| builder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_followed_master_grants_on_while_subscriptions_are_killed() {
    cut_off(Servers::sentinel(NEVER), |builder| builder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_grants_on_while_plain_subscriptions_are_killed() {
    cut_off(Servers::cluster(NEVER), |builder| builder.sharded(ShardedPubSub::Off)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_grants_on_while_sharded_subscriptions_are_killed() {
    cut_off(Servers::cluster(NEVER), |builder| builder.sharded(ShardedPubSub::On)).await;
}
