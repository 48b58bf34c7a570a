//! Calls whose callers are alive and not polled for a while: nobody else waits for them, and they come to their end themselves.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{Either, Ready, ready},
};
use redlatch::{Client, ErrorKind, ReplicaAck, Unlocked, Wait, config::LEASE_MIN};
use redlatch_testkit::{
    proxy::{Action, Match, Proxy},
    server::RedisServer,
    topology::{MasterReplica, RedisCluster, SentinelSet},
};
use tokio::{runtime, task::block_in_place};

use crate::fixture::{ms, soon};

/// How long nothing else happens, by when what was begun by one poll has come as far as it does by itself.
const BEGUN: Duration = ms(300);

/// Polls a call once, and then no more for a while. On a busy machine the one poll may see it through.
async fn begin<F: Future>(call: F) -> Either<Ready<F::Output>, Pin<Box<F>>> {
    let mut call = Box::pin(call);
    match futures_util::poll!(&mut call) {
        Poll::Ready(outcome) => Either::Left(ready(outcome)),
        Poll::Pending => Either::Right(call),
    }
}

fn cluster() -> RedisCluster {
    RedisCluster::builder().node_timeout(Duration::from_secs(120)).start().unwrap()
}

/// Gives the slots of a master to its replica, and has the client follow until it has forgotten the old one.
async fn leave(cluster: &RedisCluster, master: usize, client: &Client) {
    let replica = cluster.replicas_of(master).unwrap()[0];
    block_in_place(|| {
        cluster.failover(replica).unwrap();
        cluster.wait_for_master(replica).unwrap();
    });
    // The client looks at the cluster as often as it is used, and forgets the nodes that it does not need any more.
    for _ in 0..30 {
        let guard = soon("another lock of the same slot", client.lock("{orphan}2").lock()).await.unwrap();
        guard.unlock().await.unwrap();
        tokio::time::sleep(ms(100)).await;
    }
}

async fn acquire_at_a_node_that_was_left(wait: Wait) {
    let cluster = block_in_place(cluster);
    let master = cluster.owner_of(cluster.slot_of("orphan")).unwrap();
    // Through another node, so that nothing is connected to the master of the name yet.
    let other = cluster.masters().unwrap().into_iter().find(|other| *other != master).unwrap();
    let url = format!("redis-cluster://127.0.0.1:{}", cluster.node(other).port());
    let client = Client::builder().url(url).response_timeout(ms(1_000)).connect().await.unwrap();
    let lock = client.lock("orphan");
    let asked = begin(lock.acquire().wait(wait).into_future()).await;
    tokio::time::sleep(BEGUN).await;
    leave(&cluster, master, &client).await;
    cluster.node(master).pause().unwrap();
    let outcome = soon("the end of the acquire", asked).await;
    if wait == Wait::Forever {
        outcome.unwrap().unwrap().unlock().await.unwrap();
    }
    cluster.node(master).resume().unwrap();
}

/// The client forgot the server while the call had its connection and had sent nothing yet; nobody watched that connection then, and the
/// call waited without end when the server did not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_at_a_cluster_node_that_was_left_ends() {
    acquire_at_a_node_that_was_left(Wait::No).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_waits_at_a_cluster_node_that_was_left_goes_on() {
    acquire_at_a_node_that_was_left(Wait::Forever).await;
}

/// The same of a release on another runtime, which has to connect first.
#[test]
fn a_release_at_a_cluster_node_that_was_left_ends() {
    let build = || runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (main, second) = (build(), build());
    let cluster = cluster();
    let master = cluster.owner_of(cluster.slot_of("orphan")).unwrap();
    let builder = Client::builder().url(cluster.url()).response_timeout(ms(1_000));
    let client = main.block_on(builder.connect()).unwrap();
    let guard = main.block_on(client.lock("orphan").lock()).unwrap();
    let release = second.block_on(begin(guard.unlock()));
    main.block_on(async {
        tokio::time::sleep(BEGUN).await;
        let (client, cluster) = (&client, &cluster);
        leave(cluster, master, client).await;
    });
    cluster.node(master).pause().unwrap();
    // The new master has the hold, so whether the release is confirmed depends on who was asked last.
    let _ = second.block_on(soon("the end of the release", release));
    main.block_on(soon("the shutdown", client.shutdown(ms(3_000))));
    cluster.node(master).resume().unwrap();
}

/// A connection on which replicas are asked was opened while the master changed, so it was not among those that were given up, and the
/// old master, which it is to, was watched no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_asks_replicas_of_a_master_that_was_left_ends() {
    for replicated in [false, true] {
        let sentinels = || SentinelSet::builder().down_after(Duration::from_secs(120)).start().unwrap();
        let replicas = || MasterReplica::builder().replica_count(2).start().unwrap();
        let sentinel = (!replicated).then(|| block_in_place(sentinels));
        let set = replicated.then(|| block_in_place(replicas));
        let url = set.as_ref().map_or_else(|| sentinel.as_ref().unwrap().url(), MasterReplica::url);
        let client = Client::builder().url(url).response_timeout(ms(1_000)).connect().await.unwrap();
        let ack = ReplicaAck::at_least(1).within(ms(500));
        let lock = client.lock("seat");
        let asked = begin(lock.acquire().wait(Wait::No).replica_ack(ack).into_future()).await;
        tokio::time::sleep(BEGUN).await;
        let before = client.store();
        let old = block_in_place(|| match (&set, &sentinel) {
            (Some(set), _) => {
                set.promote_alone(1).unwrap();
                let port = set.node(1).port().to_string();
                set.node(2).cmd(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
                set.node(0)
            }
            (_, Some(set)) => {
                let old = set.master().unwrap();
                set.failover().unwrap();
                set.node(old)
            }
            _ => unreachable!(),
        });
        soon("the new master", async {
            while client.store() == before {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        soon("another lock", client.lock("other").lock()).await.unwrap().unlock().await.unwrap();
        old.pause().unwrap();
        let _ = soon("the end of the acquire", asked).await;
        old.resume().unwrap();
    }
}

/// An answer counted as come when its caller was polled, so one that was not made the next slow answer look like none: the connection
/// was cut, and a semaphore lost a permit that nobody has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_has_read_is_no_sign_of_a_silent_server() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder().url(proxy.url()).response_timeout(ms(4_000)).connect().await.unwrap();
    let slow = client.semaphore("slow");
    slow.set_if_absent(3, None).await.unwrap();
    assert!(slow.try_acquire(1).await.unwrap());
    slow.release(1).await.unwrap();
    let before = proxy.connections_accepted();
    let lock = client.lock("idle");
    let idle = begin(lock.try_lock()).await;
    for pause in [2_400, 1_400, 0] {
        tokio::time::sleep(ms(pause)).await;
        // Most of the time that an answer may take.
        proxy.rule(Match::script().key_contains("slow"), Action::DelayReply(ms(3_400)));
        assert!(slow.try_acquire(1).await.unwrap(), "the answer came in time");
        proxy.clear_rules();
        slow.release(1).await.unwrap();
    }
    assert_eq!(proxy.connections_accepted(), before, "no connection was given up");
    assert_eq!(slow.available().await.unwrap(), 3);
    assert!(soon("the lock", idle).await.unwrap().is_some());
}

/// As long as eight calls had a connection each to ask replicas on and were not polled, nobody else had one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_are_not_polled_leave_others_a_connection_to_ask_replicas_on() {
    let set = block_in_place(|| MasterReplica::builder().replica_count(1).start().unwrap());
    let client = Client::connect(&set.url()).await.unwrap();
    let ack = ReplicaAck::at_least(1).within(ms(10_000));
    client.lock("warm").acquire().replica_ack(ack).await.unwrap().unwrap().unlock().await.unwrap();
    let locks: Vec<_> = (0..20).map(|n| client.lock(format!("idle{n}"))).collect();
    let mut idle = Vec::new();
    for lock in &locks {
        idle.push(begin(lock.acquire().replica_ack(ack).into_future()).await);
    }
    for wait in [Wait::No, Wait::Forever] {
        let other = client.lock("other");
        let asked = other.acquire().wait(wait).replica_ack(ack).into_future();
        let guard = soon("a grant", asked).await.unwrap().expect("it is free");
        guard.unlock().await.unwrap();
    }
    // They have lost nothing by that.
    for call in idle {
        let guard = soon("the grant of one that was not polled", call).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
}

/// More of them than there is room for: what is given up is theirs, and they are told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_acquires_are_not_polled_one_that_is_can_ask_replicas() {
    let set = block_in_place(|| MasterReplica::builder().replica_count(1).start().unwrap());
    let client = Client::connect(&set.url()).await.unwrap();
    let ack = ReplicaAck::at_least(1).within(ms(10_000));
    client.lock("warm").acquire().replica_ack(ack).await.unwrap().unwrap().unlock().await.unwrap();
    let locks: Vec<_> = (0..75).map(|n| client.lock(format!("idle{n}"))).collect();
    let mut idle = Vec::new();
    for lock in &locks {
        idle.push(begin(lock.acquire().wait(Wait::No).replica_ack(ack).into_future()).await);
    }
    let other = client.lock("other");
    let asked = other.acquire().wait(Wait::No).replica_ack(ack).into_future();
    soon("a grant", asked).await.unwrap().expect("it is free").unlock().await.unwrap();
    let mut given_up = 0;
    for call in idle {
        match soon("the end of one that was not polled", call).await {
            Ok(guard) => guard.expect("it is free").unlock().await.unwrap(),
            Err(error) => {
                assert!(error.kind() == ErrorKind::Timeout && error.to_string().contains("poll"), "{error}");
                given_up += 1;
                continue;
            }
        };
    }
    assert!(given_up <= 8, "{given_up} of 75 were given up, and there is room for 72");
}

/// What is often written: a bounded number of acquires at a time, and work for each that needs another lock. The stream is not
/// polled meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_in_a_stream_that_is_not_polled_do_not_keep_its_reader_from_asking_replicas() {
    const JOBS: u32 = 40;
    let set = block_in_place(|| MasterReplica::builder().replica_count(1).start().unwrap());
    let client = Client::connect(&set.url()).await.unwrap();
    let ack = ReplicaAck::at_least(1).within(ms(10_000));
    let work = async {
        let mut held = futures_util::stream::iter(0..JOBS)
            .map(|n| {
                let lock = client.lock(format!("job{n}"));
                async move { lock.acquire().replica_ack(ack).await }
            })
            .buffer_unordered(16);
        let mut done = 0;
        while let Some(guard) = held.next().await {
            let guard = guard.unwrap().unwrap();
            let inner = client.lock("shared").acquire().replica_ack(ack).await.unwrap().unwrap();
            inner.unlock().await.unwrap();
            guard.unlock().await.unwrap();
            done += 1;
        }
        done
    };
    assert_eq!(soon("the work", work).await, JOBS);
}

/// The last step of the work lasted for longer than the lease, and its outcome came back as if the lock had been held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_whose_last_step_outlives_the_lease_is_told_of_the_loss() {
    let client = Client::connect("memory:").await.unwrap();
    let lease = redlatch::Lease::Fixed(ms(200));
    let outlives = async || block_in_place(|| std::thread::sleep(ms(250)));
    let guard = client.lock("x").acquire().lease(lease).await.unwrap().unwrap();
    assert_eq!(guard.protect(outlives()).await.unwrap_err().kind(), ErrorKind::Lost);
    let other = client.lock("y");
    let with = other.acquire().lease(lease).with(async |_| outlives().await).await;
    assert!(matches!(with, Err(redlatch::WithError::Lost(_))), "{with:?}");
    let both = redlatch::MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
    let guard = both.acquire().lease(lease).await.unwrap().unwrap();
    assert_eq!(guard.protect(outlives()).await.unwrap_err().kind(), ErrorKind::Lost);
}

/// The lock was forced free during the last step of the work, and the loss was known to the release alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_whose_lock_is_found_lost_by_its_release_is_told_of_the_loss() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let lock = client.lock("x");
    let deletes = async |_: &redlatch::Guard| drop(server.cmd(&["DEL", "x"]).unwrap());
    let outcome = lock.acquire().with(deletes).await;
    assert!(matches!(outcome, Err(redlatch::WithError::Lost(_))), "{outcome:?}");
}

/// The releases kept the next attempt of their owner out for as long as they were not polled, though the lock was free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_not_polled_keeps_its_owner_out_of_nothing() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let (lock, owner) = (client.lock("x"), client.owner());
    let mut begun = Vec::new();
    for how in ["unlock", "detach for a moment", "release by owner"] {
        let guard = soon(how, lock.acquire().wait(Wait::Forever).owner(&owner).into_future()).await;
        let guard = guard.unwrap().expect("it waits as long as it takes");
        let (lock, owner) = (&lock, &owner);
        begun.push(
            begin(async move {
                match how {
                    "unlock" => drop(guard.unlock().await.unwrap()),
                    "detach for a moment" => drop(guard.detach_for(LEASE_MIN).await.unwrap()),
                    _ => {
                        guard.detach();
                        drop(lock.release(owner).await.unwrap());
                    }
                }
            })
            .await,
        );
    }
    let guard = soon("the last one", lock.acquire().wait(Wait::Forever).owner(&owner).into_future()).await;
    guard.unwrap().expect("it waits as long as it takes").unlock().await.unwrap();
    for call in begun {
        soon("the end of a call that was not polled", call).await;
    }
}

/// It let go of the lock, because the guard went with a future that had not begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detach_for_that_is_not_polled_leaves_the_lock_held() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let long = ms(600_000);
    drop(client.lock("plain").lock().await.unwrap().detach_for(long));
    drop(client.fenced_lock("fenced").lock().await.unwrap().detach_for(long));
    drop(client.read_write_lock("read").read().lock().await.unwrap().detach_for(long));
    for name in ["plain", "fenced", "read"] {
        soon("the time that was asked for", async {
            while !matches!(server.cmd(&["PTTL", name]).unwrap(), redis::Value::Int(300_000..)) {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
    }
    assert!(other.lock("plain").try_lock().await.unwrap().is_none());
}

/// Its task was dropped under the mutex that its own end takes, and the calling thread, then the background thread, waited for ever.
#[test]
fn a_caller_whose_runtime_has_shut_down_gives_back_all_the_same() {
    let server = RedisServer::start().unwrap();
    let [stays, gone] = [(); 2].map(|()| runtime::Builder::new_multi_thread().enable_all().build().unwrap());
    let client = stays.block_on(Client::connect(&server.url())).unwrap();
    let lock = client.lock("given back late");
    let guard = gone.block_on(lock.lock()).unwrap();
    let handle = gone.handle().clone();
    drop(gone);
    let released = std::thread::spawn(move || handle.block_on(guard.unlock()));
    stays.block_on(async {
        soon("the end of the release", async {
            while !released.is_finished() {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        assert_eq!(released.join().unwrap().unwrap(), Unlocked::Released);
        soon("the next holder", lock.lock()).await.unwrap().unlock().await.unwrap();
    });
}

/// Each of them held up those behind it for a second before the next one was asked for a sign.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_that_are_not_polled_hold_nobody_up_for_longer_than_one() {
    const UNPOLLED: usize = 60;
    let server = RedisServer::start().unwrap();
    let [client, other] =
        [Client::connect(&server.url()).await.unwrap(), Client::connect(&server.url()).await.unwrap()];
    other.semaphore("permits").set_if_absent(1, None).await.unwrap();
    other.semaphore("permits").acquire(1).await.unwrap();
    let (lock, permits) = (client.lock("x"), client.semaphore("permits"));
    let held = other.lock("x").lock().await.unwrap();
    let (mut locking, mut taking): (Vec<_>, Vec<_>) =
        (0..UNPOLLED).map(|_| (Box::pin(lock.lock()), Box::pin(permits.acquire(1)))).unzip();
    for _ in 0..20 {
        for (one, two) in locking.iter_mut().zip(&mut taking) {
            assert!(futures_util::poll!(one).is_pending() && futures_util::poll!(two).is_pending());
        }
        tokio::time::sleep(ms(10)).await;
    }
    let [behind_lock, behind_permits] = [(); 2].map(|()| client.clone());
    let waits_for_lock = tokio::spawn(async move { behind_lock.lock("x").lock().await.map(drop) });
    let waits_for_permit = tokio::spawn(async move { behind_permits.semaphore("permits").acquire(1).await });
    tokio::time::sleep(ms(100)).await;
    held.unlock().await.unwrap();
    other.semaphore("permits").release(1).await.unwrap();
    // One after the other they would take a minute.
    soon("the lock", waits_for_lock).await.unwrap().unwrap();
    soon("the permit", waits_for_permit).await.unwrap().unwrap();
}
