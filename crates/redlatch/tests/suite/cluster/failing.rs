//! Masters that die or freeze.

use std::time::{Duration, Instant};

use redlatch::{Client, ErrorKind, Lease, LossReason, Unlocked, Wait, config::AddressMap, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy},
    topology::RedisCluster,
};

use super::{builder, client, home, keys, names_at, until};
use crate::fixture::{SOON, ms, soon};

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

/// The new master had the grants alone, and ended them long before their holders knew of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_extension_said_is_told_to_a_master_that_had_not_heard_of_it() {
    let cluster = RedisCluster::start().unwrap();
    let client = builder(&cluster).watchdog_lease(ms(20_000)).connect().await.unwrap();
    let name = "extended";
    let slot = cluster.slot_of(name);
    let master = cluster.owner_of(slot).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    let (fixed, hour) = (Lease::Fixed(ms(20_000)), Duration::from_secs(3_600));
    let named = |part: &str| format!("{part}{{{name}}}");
    let plain = client.lock(named("plain")).acquire().lease(fixed).await.unwrap().unwrap();
    let renewed = client.lock(named("renewed")).lock().await.unwrap();
    let entered = client.lock(named("entered"));
    let first = entered.acquire().lease(fixed).await.unwrap().unwrap();
    let readers = client.read_write_lock(named("read"));
    let reading = readers.read().acquire().lease(fixed).await.unwrap().unwrap();
    until("the replica has them", || keys(cluster.node(replica)).len() >= 5).await;
    cluster.block_replication(replica).unwrap();
    plain.extend(hour).await.unwrap();
    renewed.extend(hour).await.unwrap();
    reading.extend(hour).await.unwrap();
    let second = entered.acquire().owner(first.owner()).lease(Lease::Fixed(hour)).await.unwrap().unwrap();
    cluster.node(master).kill9();
    tokio::task::block_in_place(|| cluster.take_over(replica)).unwrap();
    let ttl =
        |key: String| redis::from_redis_value::<i64>(cluster.node(replica).cmd(&["PTTL", &key]).unwrap());
    for part in ["plain", "renewed", "entered", "read"] {
        until(part, || ttl(named(part)).unwrap() > 3_000_000).await;
    }
    for guard in [&plain, &renewed, &first, &second] {
        assert!(guard.is_valid(), "{:?}", guard.loss());
    }
    assert!(reading.is_valid());
}

/// A client that reaches one master through a proxy, and the rest directly.
async fn through_a_proxy(cluster: &RedisCluster, master: usize, answer: Duration) -> (Proxy, Client) {
    let proxy = Proxy::start(&cluster.node(master).url()).unwrap();
    let addr = |port| format!("127.0.0.1:{port}");
    let map: AddressMap =
        format!("{}={}", addr(cluster.node(master).port()), addr(proxy.port())).parse().unwrap();
    let other = cluster.masters().unwrap().into_iter().find(|other| *other != master).unwrap();
    let url = format!("redis-cluster://{}", addr(cluster.node(other).port()));
    let client =
        Client::builder().url(url).address_map(map).response_timeout(answer).connect().await.unwrap();
    (proxy, client)
}

/// A lock is granted, and the answer is held up until the slot has the `replica` for its master, which `changes` sees to and which lacks the grant.
async fn is_granted_anew(
    cluster: &RedisCluster,
    replica: usize,
    proxy: &Proxy,
    client: &Client,
    name: &str,
    changes: impl FnOnce(),
) {
    let (lock, beside) = (client.lock(name), client.lock(format!("{{{name}}}beside")));
    let gate = Gate::new();
    let first = Match::script().arg_contains(scripts::ACQUIRE.sha1()).nth(1);
    let rule = proxy.rule(first, Action::HoldReplyUntilReleased(gate.clone()));
    let asked = tokio::spawn(async move { lock.lock().await });
    proxy.wait_fired(rule, 1, SOON).await.unwrap();
    tokio::task::block_in_place(changes);
    // The client knows the new master when that has answered; on another runtime it has another connection.
    let known = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { beside.lock().await.unwrap().unlock().await.unwrap() })
    });
    soon("another lock", known).await.unwrap();
    assert!(!keys(cluster.node(replica)).contains(&name.to_owned()));
    gate.release();
    let guard = soon("the grant", asked).await.unwrap().unwrap();
    assert!(keys(cluster.node(replica)).contains(&name.to_owned()), "the new master has granted it, too");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

/// The grant of a master was believed though it came when the slot had another one, which did not have it: two holders for as long as
/// it took to look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grant_of_a_former_master_is_asked_for_again() {
    let cluster = RedisCluster::start().unwrap();
    let name = "granted before";
    let master = cluster.owner_of(cluster.slot_of(name)).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    let (proxy, client) = through_a_proxy(&cluster, master, ms(20_000)).await;
    client.lock(name).lock().await.unwrap().unlock().await.unwrap();
    cluster.block_replication(replica).unwrap();
    is_granted_anew(&cluster, replica, &proxy, &client, name, || cluster.take_over(replica).unwrap()).await;
}

/// The same of a grant that was sent on: while it was on its way the slot came to that node, and went to its replica, which did not have it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grant_of_a_former_master_is_asked_for_again_though_it_was_sent_on() {
    let cluster = RedisCluster::start().unwrap();
    let name = "granted before";
    let slot = cluster.slot_of(name);
    let from = cluster.owner_of(slot).unwrap();
    let to = cluster.masters().unwrap().into_iter().find(|other| *other != from).unwrap();
    let replica = cluster.replicas_of(to).unwrap()[0];
    let (proxy, client) = through_a_proxy(&cluster, to, ms(20_000)).await;
    // That node knows the script, so the answer that is held up is the grant.
    cluster.node(to).cmd(&["SCRIPT", "LOAD", scripts::ACQUIRE.source()]).unwrap();
    let step = cluster.begin_move(slot, to).unwrap();
    cluster.block_replication(replica).unwrap();
    let arrives_and_goes = || {
        step.finish().unwrap();
        cluster.take_over(replica).unwrap();
    };
    is_granted_anew(&cluster, replica, &proxy, &client, name, arrives_and_goes).await;
}

/// The new master has the write hold, and not the read hold that was taken beside it; then the write hold is given back there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_whose_read_hold_a_failover_lost_is_none() {
    let cluster = RedisCluster::start().unwrap();
    let name = "turned";
    let master = cluster.owner_of(cluster.slot_of(name)).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    let (proxy, client) = through_a_proxy(&cluster, master, ms(2_000)).await;
    let lock = client.read_write_lock(name);
    lock.write().lock().await.unwrap().unlock().await.unwrap();
    lock.read().lock().await.unwrap().unlock().await.unwrap();
    let writing = lock.write().lock().await.unwrap();
    until("the replica has the write hold", || keys(cluster.node(replica)).contains(&name.to_owned())).await;
    cluster.block_replication(replica).unwrap();
    let second = Match::script().arg_contains(scripts::WRITE_RELEASE.sha1()).nth(1);
    let rule = proxy.rule(second, Action::DropRequest);
    let turning = tokio::spawn(writing.downgrade());
    proxy.wait_fired(rule, 1, SOON).await.unwrap();
    tokio::task::block_in_place(|| cluster.take_over(replica)).unwrap();
    let turned = soon("the end of the downgrade", turning).await.unwrap();
    if let Ok(reading) = &turned {
        assert!(
            !reading.is_valid() || keys(cluster.node(replica)).contains(&name.to_owned()),
            "others may write"
        );
    }
    assert_eq!(turned.map(drop).unwrap_err().kind(), ErrorKind::Lost);
    soon("a writer", lock.write().lock()).await.unwrap().unlock().await.unwrap();
}

/// Neither hold was at the new master when it granted the read hold, and the answer that would have said so was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_whose_write_hold_a_failover_lost_is_none_though_the_answer_to_its_release_is_lost() {
    let cluster = RedisCluster::start().unwrap();
    let name = "turned late";
    let master = cluster.owner_of(cluster.slot_of(name)).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    let proxy = Proxy::start(&cluster.node(replica).url()).unwrap();
    let addr = |port| format!("127.0.0.1:{port}");
    let map: AddressMap =
        format!("{}={}", addr(cluster.node(replica).port()), addr(proxy.port())).parse().unwrap();
    let other = cluster.masters().unwrap().into_iter().find(|other| *other != master).unwrap();
    let url = format!("redis-cluster://{}", addr(cluster.node(other).port()));
    let client =
        Client::builder().url(url).address_map(map).response_timeout(ms(3_000)).connect().await.unwrap();
    let lock = client.read_write_lock(name);
    lock.write().lock().await.unwrap().unlock().await.unwrap();
    cluster.block_replication(replica).unwrap();
    let writing = lock.write().lock().await.unwrap();
    // A look for the write hold is told late that it is gone.
    let looks = Match::script().arg_contains(scripts::WRITE_RENEW.sha1());
    proxy.rule(looks, Action::DelayReply(ms(1_000)));
    let release = Match::script().arg_contains(scripts::WRITE_RELEASE.sha1()).nth(1);
    proxy.rule(release, Action::CloseAfterRequest);
    tokio::task::block_in_place(|| cluster.take_over(replica)).unwrap();
    let turned = soon("the end of the downgrade", writing.downgrade()).await;
    assert_eq!(turned.map(drop).unwrap_err().kind(), ErrorKind::Lost);
    soon("a writer", lock.write().lock()).await.unwrap().unlock().await.unwrap();
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

/// With `cluster-allow-reads-when-down` a script begins, and its first write is refused by a text of its own. That was taken for an error of the script: a task that waited was
/// refused, and a release was not sent again, so that the lock stayed until its lease ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_down_and_can_be_read_is_waited_for() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    // For longer than one call goes on.
    let call_time = ms(500);
    let client = builder(&cluster).response_timeout(call_time).connect().await.unwrap();
    let [held, free]: [String; 2] = names_at(&cluster, 0, "x", 2).try_into().unwrap();
    let guard = client.lock(held.as_str()).lock().await.unwrap();
    let node = cluster.node(0);
    node.cmd(&["CONFIG", "SET", "cluster-allow-reads-when-down", "yes"]).unwrap();
    for other in [1, 2] {
        cluster.node(other).pause().unwrap();
    }
    let state = || format!("{:?}", node.cmd(&["CLUSTER", "INFO"]).unwrap());
    until("the cluster is down", || state().contains("cluster_state:fail")).await;
    assert!(node.cmd(&["GET", &free]).is_ok(), "it can be read");
    let refused = || node.cmd(&["INFO", "errorstats"]).map(|stats| format!("{stats:?}")).unwrap();
    let before = refused();
    let waiter = {
        let lock = client.lock(free.as_str());
        tokio::spawn(async move { lock.lock().await })
    };
    let release = tokio::spawn(guard.unlock());
    let begun = Instant::now();
    until("both were refused", || refused() != before && begun.elapsed() > 3 * call_time).await;
    assert!(!waiter.is_finished() && !release.is_finished());
    for other in [1, 2] {
        cluster.node(other).resume().unwrap();
    }
    assert_eq!(soon("the release", release).await.unwrap().unwrap(), Unlocked::Released);
    soon("a grant", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    assert!(!keys(node).contains(&held));
}
