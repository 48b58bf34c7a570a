//! Slots that get another master on purpose.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use redlatch::{Unlocked, scripts};
use redlatch_testkit::{server::RedisServer, topology::RedisCluster};

use super::{builder, client, keys, masters, refused, told_to_wait, until};
use crate::{
    fixture::{ms, soon},
    kinds::{AnyLock, Face},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_on_its_way_is_followed_key_by_key() {
    let cluster = masters();
    let client = builder(&cluster).watchdog_lease(ms(3_000)).connect().await.unwrap();
    let (held, moved, fresh) = ("{way}held", "{way}moved", "{way}fresh");
    let slot = cluster.slot_of(held);
    let from = cluster.owner_of(slot).unwrap();
    let to = (from + 1) % 3;
    let (stays, goes) = (client.lock(held).lock().await.unwrap(), client.lock(moved).lock().await.unwrap());
    // The other node knows no script, so its refusal for that reason must be met there, too.
    cluster.nodes().iter().for_each(|node| node.flush_scripts().unwrap());
    let step = cluster.begin_move(slot, to).unwrap();
    step.move_key(moved).unwrap();
    // Not there, on its way, and made on the other side.
    for name in [held, moved] {
        assert!(client.lock(name).try_lock().await.unwrap().is_none(), "{name}");
        assert!(client.lock(name).is_locked().await.unwrap(), "{name}");
    }
    // A listing names also what cannot be read where it was found.
    let page = ["EVAL", scripts::LIST.source(), "0", "0", "*", "1000", "1000", "hash"];
    let page: (String, String) = redis::from_redis_value(cluster.node(to).cmd(&page).unwrap()).unwrap();
    assert_eq!(page.1, moved);
    let new = client.lock(fresh).try_lock().await.unwrap().expect("free");
    assert!(keys(cluster.node(to)).contains(&fresh.to_owned()));
    assert!(cluster.node(to).command_counts().unwrap().get("asking").is_some_and(|count| *count >= 3));
    assert_eq!(cluster.owner_of(slot).unwrap(), from, "nobody has been told that the slot has moved");
    new.unlock().await.unwrap();
    goes.unlock().await.unwrap();
    assert!(!client.lock(moved).is_locked().await.unwrap());
    // Renewed all along.
    tokio::time::sleep(ms(4_000)).await;
    assert!(stays.is_valid(), "{:?}", stays.loss());
    while step.move_keys(10).unwrap() > 0 {}
    step.finish().unwrap();
    assert_eq!(stays.unlock().await.unwrap(), Unlocked::Released);
    assert!(cluster.nodes().iter().all(|node| keys(node).is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_on_both_sides_are_waited_for() {
    let cluster = masters();
    let client = client(&cluster).await;
    let lock = client.fair_lock("{half}fair");
    let guard = lock.lock().await.unwrap();
    let slot = cluster.slot_of("{half}");
    let from = cluster.owner_of(slot).unwrap();
    let step = cluster.begin_move(slot, (from + 1) % 3).unwrap();
    // The lock is here and its queue is nowhere, so the server cannot tell where a script with both belongs.
    let attempt = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.try_lock().await.map(|guard| guard.is_some()) })
    };
    until("it is told to wait", || told_to_wait(&cluster) > 0).await;
    while step.move_keys(10).unwrap() > 0 {}
    step.finish().unwrap();
    assert!(!soon("the answer", attempt).await.unwrap().expect("no error reaches the caller"));
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

/// Moves a slot round the masters until the work is over; answers how often.
async fn travelling<T>(cluster: &Arc<RedisCluster>, slot: u16, work: impl Future<Output = T>) -> (T, u32) {
    let stop = Arc::new(AtomicBool::new(false));
    let mover = {
        let (cluster, stop) = (cluster.clone(), stop.clone());
        tokio::task::spawn_blocking(move || {
            let mut moves = 0;
            while !stop.load(Ordering::Acquire) {
                let to = (cluster.owner_of(slot).unwrap() + 1) % 3;
                cluster.move_slot(slot, to).unwrap();
                moves += 1;
                std::thread::sleep(ms(20));
            }
            moves
        })
    };
    let outcome = work.await;
    stop.store(true, Ordering::Release);
    (outcome, mover.await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_all_the_time_cost_nobody_an_error() {
    let cluster = Arc::new(masters());
    let slot = cluster.slot_of("{m}");
    let holder = builder(&cluster).watchdog_lease(ms(2_000)).connect().await.unwrap();
    let held = holder.lock("{m}held").lock().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    let grants = Arc::new(AtomicU64::new(0));
    let clients = [client(&cluster).await, client(&cluster).await];
    // Kinds with one key, and kinds that need several of them in one place.
    for face in [Face::Plain, Face::Fair, Face::Write] {
        let inside = Arc::new(AtomicU32::new(0));
        for at in 0..4 {
            let lock = AnyLock::new(face, &clients[at % 2], format!("{{m}}{face:?}"));
            let (inside, grants) = (inside.clone(), grants.clone());
            tasks.spawn(async move {
                for _ in 0..20 {
                    let guard = lock.lock().await.expect("no error reaches a caller");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    tokio::time::sleep(ms(5)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(guard.unlock().await.expect("no error reaches a caller"), Unlocked::Released);
                    grants.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
    let work = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap()
        }
    };
    let work = tokio::time::timeout(Duration::from_secs(120), work);
    let (done, moves) = travelling(&cluster, slot, work).await;
    done.expect("all get their turns");
    assert!(moves >= 5, "only {moves} moves");
    assert_eq!(grants.load(Ordering::Relaxed), 240);
    assert!(held.is_valid(), "{:?}", held.loss());
    assert_eq!(held.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_that_meet_a_moved_slot_are_redirected_once() {
    let cluster = masters();
    let client = client(&cluster).await;
    let slot = cluster.slot_of("{crowd}");
    let from = cluster.owner_of(slot).unwrap();
    let to = (from + 1) % 3;
    client.lock("{crowd}warm").lock().await.unwrap().unlock().await.unwrap();
    cluster.move_slot(slot, to).unwrap();
    let before = refused(cluster.node(from), "MOVED");
    let tasks: Vec<_> = (0..500)
        .map(|n| {
            let lock = client.lock(format!("{{crowd}}{n}"));
            tokio::spawn(async move { lock.lock().await?.unlock().await })
        })
        .collect();
    for task in tasks {
        assert_eq!(soon("its turn", task).await.unwrap().unwrap(), Unlocked::Released);
    }
    let astray = refused(cluster.node(from), "MOVED") - before;
    // At most those that were under way before the first was told.
    assert!(astray <= 500, "{astray} calls went to the node that has not the slot any more");
    let scans: u64 = cluster
        .nodes()
        .iter()
        .map(|node| {
            node.command_counts()
                .unwrap()
                .iter()
                .filter(|(command, _)| command.starts_with("cluster|slots"))
                .map(|(_, count)| count)
                .sum::<u64>()
        })
        .sum();
    assert!(scans <= 60, "{scans} looks at the whole picture");
}

/// A client that only holds looked once and then no more, so it did not hear of a master that had been replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_makes_no_call_goes_on_looking_where_the_slots_are() {
    let cluster = masters();
    let client = client(&cluster).await;
    let looks = || {
        let of =
            |node: &RedisServer| node.command_counts().unwrap().get("cluster|slots").copied().unwrap_or(0);
        cluster.nodes().iter().map(of).sum::<u64>()
    };
    let before = looks();
    until("three looks", || looks() >= before + 3).await;
    drop(client);
}

/// Each look that met a node which tells hosts in another way was a change of all masters: all holders looked after their holds, and what two processes had
/// entered under one owner was left to its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_told_by_other_names_are_the_same() {
    let cluster = masters();
    let (one, other) = (client(&cluster).await, client(&cluster).await);
    let outer = one.lock("named").lock().await.unwrap();
    let inner = other.lock("named").acquire().owner(outer.owner()).await.unwrap().unwrap();
    for node in cluster.nodes() {
        node.cmd(&["CONFIG", "SET", "cluster-announce-hostname", "localhost"]).unwrap();
    }
    // One of them for good, as where its configuration is another one.
    cluster.node(0).cmd(&["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]).unwrap();
    let looks = || -> usize {
        let calls = |node: &RedisServer| {
            let stats = format!("{:?}", node.cmd(&["INFO", "commandstats"]).unwrap());
            let slots = stats.split("cmdstat_cluster|slots:calls=").nth(1).unwrap_or("0,");
            slots.split(',').next().unwrap().parse::<usize>().unwrap()
        };
        calls(cluster.node(0))
    };
    let before = looks();
    soon("looks of both clients at the node that tells names", async {
        while looks() < before + 6 {
            // A connection that ends has them look.
            cluster.node(0).cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
            tokio::time::sleep(ms(100)).await;
        }
    })
    .await;
    assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
    assert_eq!(outer.unlock().await.unwrap(), Unlocked::Released);
    let guard = soon("the next holder", client(&cluster).await.lock("named").lock()).await.unwrap();
    guard.unlock().await.unwrap();
}
