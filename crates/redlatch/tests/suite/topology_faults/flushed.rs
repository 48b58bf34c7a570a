//! Servers that forget their scripts all the time.

use redlatch::Unlocked;
use redlatch_testkit::history::Recorder;

use super::{
    NEVER, Servers,
    load::{Load, Plan, judge},
};
use crate::{fixture::ms, kinds::Face};

/// Every kind is taken, waited for and renewed while all nodes forget the scripts every few milliseconds.
async fn forgetting(servers: Servers) {
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(servers.builder().watchdog_lease(ms(6_000)).connect().await.unwrap());
    }
    let faces = [Face::Plain, Face::Fair, Face::Fenced, Face::Write, Face::NonReentrant];
    let mut plan = Plan::of(Vec::new());
    plan.locks = (0..15).map(|n| (faces[n % faces.len()], format!("flushed{n}"))).collect();
    (plan.tasks_of_each, plan.rest) = (6, ms(20));
    let mut held = Vec::new();
    for n in 0..12 {
        held.push(clients[n % 2].lock(format!("held{n}")).lock().await.unwrap());
    }
    let recorder = Recorder::new("flushed", 0);
    let load = Load::start(&recorder, &clients, &plan);
    let end = tokio::time::Instant::now() + ms(9_000);
    let mut flushes = 0;
    while tokio::time::Instant::now() < end {
        servers.nodes().iter().for_each(|node| node.flush_scripts().unwrap());
        flushes += 1;
        tokio::time::sleep(ms(15)).await;
    }
    let notes = load.end().await;
    let verdict = judge(&recorder);
    assert_eq!(notes.errors(), [], "no error reaches a caller");
    assert_eq!(notes.losses(), [] as [String; 0]);
    verdict.assert_ok();
    // A busy machine does less of both, but not so little that nothing was met.
    assert!(flushes > 50 && verdict.stats.grants > 200, "{flushes} flushes, {verdict}");
    for guard in held {
        assert!(guard.is_valid(), "{:?}", guard.loss());
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_that_forgets_scripts_costs_no_caller_an_error() {
    forgetting(Servers::single()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_followed_master_that_forgets_scripts_costs_no_caller_an_error() {
    forgetting(Servers::sentinel(NEVER)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_forgets_scripts_costs_no_caller_an_error() {
    forgetting(Servers::cluster(NEVER)).await;
}
