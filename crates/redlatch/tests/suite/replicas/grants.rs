//! Grants that replicas confirm, or do not.

use std::future::IntoFuture;

use redlatch::{Client, ErrorKind, ReplicaAck, Replicas, Unlocked, Wait};
use redlatch_testkit::server::RedisServer;

use super::{FACES, all, at_least, numbers, rig, rig_with};
use crate::{
    fixture::{Fixture, SOON, ms, soon},
    kinds::AnyLock,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_no_replicas_pays_for_none() {
    let rig = rig(1).await;
    let client = rig.client().await;
    let pair = async |n: u32| {
        let guard = client.lock(format!("n{n}")).try_lock().await.unwrap().unwrap();
        assert_eq!(guard.replicas(), None);
        guard.unlock().await.unwrap();
    };
    pair(0).await;
    rig.proxy.clear_log();
    let connections = rig.proxy.connections_accepted();
    for n in 1..=20 {
        pair(n).await;
    }
    assert_eq!(rig.proxy.with_log(|log| log.total()), 40, "two requests a pair");
    assert_eq!(rig.proxy.count("EVALSHA"), 40);
    assert_eq!(rig.proxy.connections_accepted(), connections);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_confirm_locks_of_every_kind() {
    let rig = rig(2).await;
    let client = rig.client().await;
    let mut acquired = 0;
    for face in FACES {
        let asks = [(at_least(1), 1), (at_least(2), 2), (all(), 2)];
        for (ack, least) in asks {
            let name = format!("{face:?}-{acquired}");
            let lock = AnyLock::new(face, &client, name.as_str());
            let guard = lock.acquire().replica_ack(ack).await.unwrap().unwrap();
            acquired += 1;
            let (acknowledged, wanted) = numbers(&guard);
            assert!(acknowledged >= least && wanted == least, "{face:?}: {acknowledged} of {wanted}");
            let has = |replica: &&RedisServer| {
                replica.keys_dump().unwrap().keys().any(|key| key == name.as_bytes())
            };
            assert!(rig.replicas.iter().filter(has).count() >= least as usize, "{face:?} is on the replicas");
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        }
    }
    let read = client.read_write_lock("r").read().acquire().replica_ack(all()).await;
    assert_eq!(numbers(&read.unwrap().unwrap()), (2, 2));
    let permits = client.permit_semaphore("p");
    permits.set_if_absent(3).await.unwrap();
    let permit = permits.request().permits(2).replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(permit.replicas(), Some(Replicas::new(2, 2)));
    acquired += 2;
    assert_eq!(rig.proxy.count("WAIT"), acquired + 1, "one probe, and one for each grant");
    assert_eq!(rig.proxy.count("WAITAOF"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocking_twin_asks_too() {
    let rig = rig(1).await;
    let url = rig.proxy.url();
    let thread = std::thread::spawn(move || {
        let client = redlatch::blocking::Client::connect(&url).unwrap();
        let guard = client.lock("b").acquire().replica_ack(all()).run().unwrap().unwrap();
        assert_eq!(guard.as_async().replicas(), Some(Replicas::new(1, 1)));
        let missing = client.lock("c").acquire().replica_ack(at_least(2).within(ms(50))).run();
        assert_eq!(missing.map(|_| ()).unwrap_err().kind(), ErrorKind::NotReplicated);
    });
    thread.join().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shortfall_gives_the_lock_back() {
    let rig = rig(2).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    for face in FACES {
        let lock = AnyLock::new(face, &client, "short");
        for ack in [all(), at_least(2), at_least(3)] {
            let asked = lock.acquire().wait(Wait::Forever).replica_ack(ack.within(ms(60)));
            let error = soon("the shortfall", asked.into_future()).await.map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotReplicated, "{face:?}: {error}");
            let text = error.to_string();
            assert!(
                text.contains("\"short\"") && text.contains(" of ") && text.contains("given back"),
                "{text}"
            );
            assert!(error.is_retryable());
            // Not soon, but now: the error comes after the release.
            assert!(!rig.exists("short"), "{face:?}");
        }
        let guard = lock.acquire().replica_ack(at_least(1)).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1));
        guard.unlock().await.unwrap();
    }
    let permits = client.permit_semaphore("p");
    permits.set_if_absent(3).await.unwrap();
    let short = permits.request().replica_ack(all().within(ms(60))).await;
    assert_eq!(short.map(|_| ()).unwrap_err().kind(), ErrorKind::NotReplicated);
    assert_eq!(permits.available().await.unwrap(), 3);
    rig.replicas[0].resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_a_lock_that_was_given_back() {
    let rig = rig(1).await;
    let (client, other) = (rig.client().await, rig.client().await);
    rig.replicas[0].pause().unwrap();
    let lock = client.lock("n");
    let asked =
        tokio::spawn(async move { lock.acquire().replica_ack(all().within(ms(3_000))).await.map(|_| ()) });
    rig.proxy.wait_for(SOON, |log| log.count("WAIT") == 2).await.unwrap();
    assert_eq!(client.inspect("n").await.unwrap().holders[0].holds, 1);
    let waiter = other.lock("n");
    let guard = soon("the lock", waiter.lock()).await.unwrap();
    assert_eq!(soon("the shortfall", asked).await.unwrap().unwrap_err().kind(), ErrorKind::NotReplicated);
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    rig.replicas[0].resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shortfall_keeps_the_lock_if_asked_to() {
    let rig = rig(2).await;
    let client = rig.client().await;
    rig.replicas.iter().for_each(|replica| replica.pause().unwrap());
    for face in FACES {
        let lock = AnyLock::new(face, &client, "kept");
        let ack = all().within(ms(60)).keep_on_shortfall();
        let guard = lock.acquire().replica_ack(ack).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (0, 2), "{face:?}");
        assert!(!guard.replicas().unwrap().is_complete());
        assert!(guard.is_valid() && rig.exists("kept"));
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        assert!(!rig.exists("kept"));
    }
    rig.replicas.iter().for_each(|replica| replica.resume().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_lock_asks_no_replicas() {
    let rig = rig(1).await;
    let (client, other) = (rig.client().await, rig.client().await);
    let held = other.lock("busy").try_lock().await.unwrap().unwrap();
    rig.replicas[0].pause().unwrap();
    for _ in 0..5 {
        let lock = client.lock("busy");
        let busy = lock.acquire().replica_ack(all());
        assert!(soon("the refusal", busy.into_future()).await.unwrap().is_none());
    }
    assert_eq!(rig.proxy.count("WAIT"), 1, "the probe alone");
    held.unlock().await.unwrap();
    rig.replicas[0].resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_wait_refuses_before_the_lock_is_taken() {
    let rig = rig_with(0, &[("rename-command", "WAIT \"\"")]).await;
    let client = rig.client().await;
    for ack in [all(), at_least(1), at_least(1).keep_on_shortfall()] {
        let lock = client.lock("n");
        let asked = lock.acquire().wait(Wait::Forever).replica_ack(ack);
        let error = soon("the refusal", asked.into_future()).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("WAIT") && error.to_string().contains("\"n\""), "{error}");
    }
    assert_eq!(rig.proxy.count("EVALSHA") + rig.proxy.count("EVAL"), 0);
    client.lock("n").try_lock().await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_asked_for_before_the_lock_is_taken_and_again_when_they_change() {
    let rig = rig(1).await;
    let set = |rules: &[&str]| {
        rig.master.cmd(&[&["ACL", "SETUSER", "poor"], rules].concat()).unwrap();
    };
    set(&["on", ">pw", "~*", "&*", "+@all", "-wait"]);
    let client = Client::connect(&rig.proxy.url().replace("redis://", "redis://poor:pw@")).await.unwrap();
    let lock = client.lock("n");
    let acquire = async |ack: ReplicaAck| match lock.acquire().replica_ack(ack).await {
        Ok(guard) => {
            let guard = guard.unwrap();
            let numbers = numbers(&guard);
            guard.unlock().await.unwrap();
            Ok(numbers)
        }
        Err(error) => Err(error),
    };
    let denied = acquire(all()).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Permission, "{denied}");
    assert!(denied.to_string().contains("rights to WAIT"), "{denied}");
    assert_eq!(rig.proxy.count("EVALSHA"), 0);
    // Without ROLE and INFO nobody knows how many all are.
    set(&["+wait", "-role", "-info"]);
    let denied = acquire(all()).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Permission, "{denied}");
    assert_eq!(rig.proxy.count("EVALSHA"), 0);
    assert_eq!(acquire(at_least(1)).await.unwrap(), (1, 1));
    set(&["+info"]);
    assert_eq!(acquire(all()).await.unwrap(), (1, 1));
    assert_eq!(acquire(all()).await.unwrap(), (1, 1));
    // A right that is taken away later is found out too, and then the lock is not kept.
    set(&["-wait"]);
    let denied = acquire(all()).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Permission, "{denied}");
    soon("the release", async {
        while rig.exists("n") {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

async fn without_replicas(store: Fixture) {
    let client = store.client().await;
    let lock = client.lock(store.name("n"));
    let guard = lock.acquire().replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(numbers(&guard), (0, 0));
    guard.unlock().await.unwrap();
    let error = lock.acquire().replica_ack(at_least(1)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert!(!lock.is_locked().await.unwrap());
    let kept = lock.acquire().replica_ack(at_least(1).keep_on_shortfall()).await.unwrap().unwrap();
    assert_eq!(numbers(&kept), (0, 1));
    kept.unlock().await.unwrap();
    let error = lock.acquire().replica_ack(at_least(0)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_replicas_says_so() {
    without_replicas(Fixture::memory()).await;
    without_replicas(Fixture::local()).await;
}
