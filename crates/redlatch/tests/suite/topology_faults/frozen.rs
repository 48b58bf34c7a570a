//! One master of three that stands still for a minute.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use redlatch::{Client, LossReason, Unlocked};
use redlatch_testkit::{history::Recorder, stall, topology::RedisCluster};

use super::{
    NEVER, eventually, keys,
    load::{Load, Plan, judge},
    names_at, soak,
};
use crate::fixture::ms;

const FROZEN: usize = 1;
const LEASE: Duration = ms(8_000);
/// What a pair or a notice may take that has nothing to wait for; a frozen server would cost what an answer may take.
const NORMAL: Duration = ms(5_000);
/// How long a waiter waits for a lock of the frozen server.
const PATIENCE: Duration = ms(2_500);

/// Waits again and again for locks that nobody can get; each wait ends when it should.
async fn ask_in_vain(client: &Client, names: &[String], stop: &AtomicBool) -> u32 {
    let mut asked = 0;
    for name in names.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let begin = Instant::now();
        let outcome = client.lock(name.as_str()).lock_for(PATIENCE).await;
        let took = stall::awake_since(begin);
        assert!(!matches!(outcome, Ok(Some(_))), "a frozen server granted {name}");
        assert!(took < PATIENCE + NORMAL, "{name}: an answer after {took:?}");
        asked += 1;
    }
    asked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_frozen_for_a_minute_costs_only_its_own_locks() {
    let cluster = RedisCluster::builder().replicas_per_master(0).node_timeout(10 * NEVER).start().unwrap();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let builder = Client::builder().url(cluster.url()).watchdog_lease(LEASE).response_timeout(3 * NORMAL);
        clients.push(builder.connect().await.unwrap());
    }
    let client = clients[0].clone();
    let doomed = names_at(&cluster, FROZEN, "doomed", 40);
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for name in &doomed {
        lost.push(client.lock(name.as_str()).lock().await.unwrap());
    }
    for name in [0, 2].into_iter().flat_map(|master| names_at(&cluster, master, "kept", 20)) {
        kept.push(client.lock(name).lock().await.unwrap());
    }
    let mut names = names_at(&cluster, 0, "busy", 4);
    names.extend(names_at(&cluster, 2, "busy", 4));
    // Looked for now, because the kit asks all nodes.
    let free: Vec<String> = [0, 2].into_iter().flat_map(|at| names_at(&cluster, at, "free", 3)).collect();
    let mut plan = Plan::of(names);
    plan.rest = ms(25);
    let recorder = Recorder::new("frozen", 0);
    let load = Load::start(&recorder, &clients, &plan);
    load.more_grants(50).await;

    cluster.node(FROZEN).pause().unwrap();
    let from = Instant::now();
    // Answers that were on their way are there.
    tokio::time::sleep(ms(300)).await;
    let notices: Vec<_> = lost
        .iter()
        .map(|guard| {
            let deadline = Instant::now() + guard.remaining();
            let notice = guard.lost();
            tokio::spawn(async move { (deadline, notice.await, Instant::now()) })
        })
        .collect();
    let stop = AtomicBool::new(false);
    let (in_vain, slowest) = tokio::join!(ask_in_vain(&client, &doomed, &stop), async {
        let mut slowest = Duration::ZERO;
        let end = from + soak(Duration::from_secs(60));
        while Instant::now() < end {
            for name in &free {
                let begin = Instant::now();
                let guard = client.lock(name.as_str()).try_lock().await.unwrap().expect("it is free");
                assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
                slowest = slowest.max(stall::awake_since(begin));
            }
            assert!(kept.iter().all(|guard| guard.remaining() > LEASE / 6), "renewals are late");
            tokio::time::sleep(ms(50)).await;
        }
        stop.store(true, Ordering::Relaxed);
        slowest
    });
    let gap = load.notes.longest_gap(from, Instant::now());
    println!("slowest pair {slowest:?}, longest gap {gap:?}, {in_vain} waits in vain");
    assert!(slowest < NORMAL && gap < NORMAL, "a pair took {slowest:?}, nobody was granted for {gap:?}");
    for (name, notice) in doomed.iter().zip(notices) {
        let (deadline, reason, at) = eventually("the notice", notice).await.unwrap();
        assert_eq!(reason, LossReason::Expired, "{name}");
        assert!(at + ms(5) >= deadline, "{name}: told {:?} too early", deadline - at);
        let late = stall::awake_between(deadline, at);
        assert!(late < NORMAL, "{name}: told {late:?} too late");
    }
    for guard in &kept {
        assert!(guard.is_valid(), "{}: {:?}", guard.name(), guard.loss());
    }

    cluster.node(FROZEN).resume().unwrap();
    drop(lost);
    // Requests that the server reads only now leave nothing that lasts.
    for name in &doomed {
        let guard =
            eventually("a grant after the thaw", clients[1].lock(name.as_str()).lock()).await.unwrap();
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
    let notes = load.end().await;
    assert_eq!(notes.errors(), [], "no error reaches a caller of others");
    assert_eq!(notes.losses(), [] as [String; 0]);
    judge(&recorder).assert_ok();
    for guard in kept {
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
    eventually("clean servers", async {
        while !keys(cluster.nodes()).is_empty() {
            tokio::time::sleep(ms(50)).await;
        }
    })
    .await;
}
