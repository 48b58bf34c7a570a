//! Masters that die or freeze.

use std::time::{Duration, Instant};

use redlatch::{ErrorKind, LossReason, Unlocked, Wait};
use redlatch_testkit::topology::RedisCluster;

use super::{builder, client, home, keys, names_at, until};
use crate::fixture::{ms, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_replaced_for_holders_and_waiters() {
    let cluster = RedisCluster::start().unwrap();
    let brisk = builder(&cluster).watchdog_lease(ms(6_000)).connect().await.unwrap();
    let other = client(&cluster).await;
    let name = "failed over";
    let slot = cluster.slot_of(name);
    let master = cluster.owner_of(slot).unwrap();
    let elsewhere = names_at(&cluster, (master + 1) % 3, "elsewhere", 1).remove(0);
    let guard = brisk.lock(name).lock().await.unwrap();
    let away = brisk.lock(elsewhere.as_str()).lock().await.unwrap();
    let waiter = {
        let lock = other.lock(name);
        tokio::spawn(async move { lock.lock().await })
    };
    until("the waiter listens", || !home(&cluster, name).subscriber_channels().unwrap().is_empty()).await;
    let replica = cluster.replicas_of(master).unwrap()[0];
    until("the replica has the lock", || keys(cluster.node(replica)).contains(&name.to_owned())).await;
    cluster.node(master).kill9();
    tokio::task::block_in_place(|| cluster.wait_for_owner_other_than(slot, master)).unwrap();
    // The replica had the lock, so it goes on, and its release wakes the waiter at the new master.
    until("the holder has been confirmed at the new master", || guard.is_valid()).await;
    until("the waiter listens there", || !home(&cluster, name).subscriber_channels().unwrap().is_empty())
        .await;
    assert_eq!(soon("the release", guard.unlock()).await.unwrap(), Unlocked::Released);
    soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    assert!(away.is_valid(), "{:?}", away.loss());
    soon("a new grant", brisk.lock(name).lock()).await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_failover_lost_is_announced_at_once() {
    let cluster = RedisCluster::start().unwrap();
    let client = builder(&cluster).watchdog_lease(Duration::from_secs(60)).connect().await.unwrap();
    let name = "not replicated";
    let slot = cluster.slot_of(name);
    let master = cluster.owner_of(slot).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    client.lock(name).lock().await.unwrap().unlock().await.unwrap();
    cluster.block_replication(replica).unwrap();
    let guard = client.lock(name).lock().await.unwrap();
    cluster.node(master).kill9();
    tokio::task::block_in_place(|| cluster.take_over(replica)).unwrap();
    assert_eq!(soon("the notice", guard.lost()).await, LossReason::Deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_costs_no_lock_of_another() {
    let cluster = RedisCluster::builder()
        .replicas_per_master(0)
        .node_timeout(Duration::from_secs(120))
        .start()
        .unwrap();
    let lease = ms(4_500);
    let client = builder(&cluster).watchdog_lease(lease).connect().await.unwrap();
    let frozen = 1;
    // More than one connection has room for, so that waiting for the frozen one would cost the others their turns.
    let doomed = names_at(&cluster, frozen, "doomed", 1_500);
    let kept: Vec<String> =
        [0, 2].into_iter().flat_map(|master| names_at(&cluster, master, "kept", 40)).collect();
    let mut held = Vec::new();
    let mut lost = Vec::new();
    for name in &doomed {
        lost.push(client.lock(name.as_str()).lock().await.unwrap());
    }
    for name in &kept {
        held.push(client.lock(name.as_str()).lock().await.unwrap());
    }
    let free = names_at(&cluster, 0, "free", 3);
    cluster.node(frozen).pause().unwrap();
    let start = Instant::now();
    while start.elapsed() < 3 * lease {
        for name in &free {
            let guard = client.lock(name.as_str()).lock_for(ms(2_000)).await.unwrap().expect("free");
            guard.unlock().await.unwrap();
        }
        tokio::time::sleep(ms(100)).await;
    }
    for (name, guard) in kept.iter().zip(&held) {
        assert!(guard.is_valid(), "{name}: {:?}", guard.loss());
    }
    assert!(lost.iter().all(|guard| !guard.is_valid()), "nobody can renew at a frozen node");
    cluster.node(frozen).resume().unwrap();
    let again = client.lock(doomed[0].as_str());
    soon("a grant after the thaw", again.lock()).await.unwrap().unlock().await.unwrap();
    for guard in held {
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_master_that_is_replaced_is_not_waited_for() {
    let cluster = RedisCluster::start().unwrap();
    let client = builder(&cluster).watchdog_lease(Duration::from_secs(60)).connect().await.unwrap();
    let name = "frozen and replaced";
    let slot = cluster.slot_of(name);
    let master = cluster.owner_of(slot).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    let guard = client.lock(name).lock().await.unwrap();
    until("the replica has the lock", || keys(cluster.node(replica)).contains(&name.to_owned())).await;
    let waiter = {
        let lock = client.lock(name);
        let owner = client.owner();
        tokio::spawn(async move { lock.acquire().owner(&owner).wait(Wait::Forever).await })
    };
    cluster.node(master).pause().unwrap();
    tokio::task::block_in_place(|| cluster.wait_for_owner_other_than(slot, master)).unwrap();
    assert_eq!(soon("the release", guard.unlock()).await.unwrap(), Unlocked::Released);
    soon("the waiter's turn", waiter).await.unwrap().unwrap().unwrap().unlock().await.unwrap();
    cluster.node(master).resume().unwrap();
    cluster.wait_until_ready().unwrap();
    soon("a grant after the thaw", client.lock(name).lock()).await.unwrap().unlock().await.unwrap();
}

/// Most masters are gone, so the one that is left refuses everything (`CLUSTERDOWN`), its holders' renewals too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_down_for_a_while_grants_nothing_and_costs_no_hold() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    // Renewals are due while it is down, and it is up again before the lease has ended.
    let ours = builder(&cluster).watchdog_lease(ms(45_000)).connect().await.unwrap();
    let theirs = builder(&cluster).outage_tolerance(ms(2_000)).connect().await.unwrap();
    let name = names_at(&cluster, 0, "x", 1).remove(0);
    let free = names_at(&cluster, 0, "free", 1).remove(0);
    let guard = ours.lock(name.as_str()).lock().await.unwrap();
    for other in [1, 2] {
        cluster.node(other).pause().unwrap();
    }
    let state = || format!("{:?}", cluster.node(0).cmd(&["CLUSTER", "INFO"]).unwrap());
    until("the cluster is down", || state().contains("cluster_state:fail")).await;
    for _ in 0..3 {
        let outcome = soon("an answer", theirs.lock(free.as_str()).try_lock()).await;
        let error = outcome.map(|guard| guard.is_some()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ServerBusy | ErrorKind::Unreachable), "{error}");
    }
    assert!(!keys(cluster.node(0)).contains(&free));
    let error = soon("the end of the extension", guard.extend(ms(60_000))).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(guard.is_valid(), "{:?}", guard.loss());
    for other in [1, 2] {
        cluster.node(other).resume().unwrap();
    }
    until("the cluster is up", || state().contains("cluster_state:ok")).await;
    let other = soon("a grant", theirs.lock(free.as_str()).lock()).await.unwrap();
    assert!(soon("an answer", theirs.lock(name.as_str()).try_lock()).await.unwrap().is_none());
    assert!(guard.is_valid(), "{:?}", guard.loss());
    guard.extend(ms(60_000)).await.unwrap();
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    other.unlock().await.unwrap();
}
