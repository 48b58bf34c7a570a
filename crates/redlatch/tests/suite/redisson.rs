//! Cases of Redisson's own tests that need a server of their own; each has the name of its case there.
//! `docs/protocol.md` lists all cases.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use redlatch::{Client, ErrorKind, LossReason, Unlocked};
use redlatch_testkit::server::RedisServer;

use crate::{
    fixture::{LATE, RENEWED, SOON, awake, ms, renewed, soon},
    kinds::{AnyLock, Face},
    wire::alone,
};

/// Shorter than the pause between two looks, so that a waiter who gets the lock within it was woken.
const SHORT: Duration = ms(390);

async fn until_nobody_is_subscribed(server: &RedisServer) {
    soon("the end of the subscriptions", async {
        while !server.subscriber_channels().unwrap().is_empty() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_failed() {
    for face in [Face::Plain, Face::Spin] {
        let (server, client) = alone().await;
        let lock = AnyLock::new(face, &client, "failed");
        lock.lock().await.unwrap().unlock().await.unwrap();
        server.stop();
        let start = Instant::now();
        let error = soon("the refusal", lock.try_lock()).await.map(|_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Timeout), "{face:?}: {error}");
        assert!(awake(start) < ms(3_000) + LATE, "{face:?}: {:?}", start.elapsed());
        server.restart().unwrap();
        let guard = soon("service after the restart", lock.lock_for(ms(8_000))).await.unwrap();
        guard.expect("a free lock").unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_per_connection() {
    let (server, client) = alone().await;
    let before = server.clients().unwrap().len();
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for round in 0..150 {
                    let lock = client.lock(format!("sub-{}", (task + round) % 5));
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        })
        .collect();
    // Others fight for the same names, so that waiting takes subscriptions.
    let other = Client::connect(&server.url()).await.unwrap();
    let mut channels_most = 0;
    for round in 0..300 {
        let guard = other.lock(format!("sub-{}", round % 5)).lock().await.unwrap();
        channels_most = channels_most.max(server.subscriber_channels().unwrap().len());
        guard.unlock().await.unwrap();
    }
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("every task's turns").unwrap();
    }
    assert!((1..=5).contains(&channels_most), "{channels_most} channels for 5 names");
    let after = server.clients().unwrap().len();
    assert!(after <= before + 4, "connections grew from {before} to {after}");
    until_nobody_is_subscribed(&server).await;
    assert_eq!((client.stats().names, other.stats().names), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_pub_sub() {
    let (server, client) = alone().await;
    let other = Client::connect(&server.url()).await.unwrap();
    // Four waiters on two names at a time share the one connection for messages, and none has to give up.
    for round in 0..20 {
        let names = [format!("one-{round}"), format!("two-{round}")];
        let mut holders = Vec::new();
        for name in &names {
            holders.push(other.lock(name.as_str()).lock().await.unwrap());
        }
        let waiters: Vec<_> = (0..4)
            .map(|waiter| {
                let lock = client.lock(names[waiter % 2].as_str());
                tokio::spawn(async move {
                    let begin = std::time::Instant::now();
                    let guard = lock.lock_for(SOON).await.unwrap().expect("not within its time");
                    assert!(awake(begin) < SHORT, "found, not told: {:?}", begin.elapsed());
                    guard.unlock().await.unwrap();
                })
            })
            .collect();
        tokio::time::sleep(ms(20)).await;
        for holder in holders {
            holder.unlock().await.unwrap();
        }
        for waiter in waiters {
            soon("each waiter's turn", waiter).await.unwrap();
        }
    }
    until_nobody_is_subscribed(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_after_timeout() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let lock = client.lock("after");
    let guard = lock.lock().await.unwrap();
    server.kill9();
    server.restart_empty().unwrap();
    let unlocked = soon("the late unlock", guard.unlock()).await.unwrap();
    assert_eq!(unlocked, Unlocked::AlreadyLost(LossReason::Deleted));
    // The next hold of the same name is renewed as ever.
    let other = Client::connect(&server.url()).await.unwrap();
    let guard = soon("a new grant", lock.lock()).await.unwrap();
    renewed(4, async || {
        assert!(guard.is_valid(), "{:?}", guard.loss());
        assert!(other.lock("after").try_lock().await.unwrap().is_none());
        other.lock("after").remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

/// The contract names a test for each case and each trap; a test that was renamed or removed must not stay in it.
#[test]
fn every_test_that_the_contract_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = std::fs::read_to_string(root.join("../../docs/protocol.md")).unwrap();
    let named: BTreeSet<(&str, &str)> =
        document.split('`').filter_map(|words| words.split_once(".rs::")).collect();
    assert!(named.len() > 60, "the tables were not found: {named:?}");
    for (file, test) in named {
        let folder = match file.split_once('/') {
            Some(("interop", _)) => "tests",
            Some(("src", _)) => "",
            _ => "tests/suite",
        };
        let path = root.join(folder).join(format!("{file}.rs"));
        let source = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(&format!("fn {test}(")), "{file}.rs has no {test}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_failed_not_called_on_redis_timeout() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).response_timeout(ms(500)).connect().await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let guard = other.fair_lock("slow").lock().await.unwrap();
    let lock = client.fair_lock("slow");
    let waiter = tokio::spawn(async move { lock.lock_for(ms(2_000)).await });
    let left = || server.cmd(&["LLEN", "redisson_lock_queue:{slow}"]).unwrap();
    soon("its place", async {
        while left() != redis::Value::Int(1) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    server.pause().unwrap();
    tokio::time::sleep(ms(2_500)).await;
    server.resume().unwrap();
    // Time is up, or nobody knows; a lock that another holds it is not.
    let outcome = soon("an answer", waiter).await.unwrap();
    assert!(!matches!(outcome, Ok(Some(_))), "{outcome:?}");
    soon("an empty queue", async {
        while left() != redis::Value::Int(0) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    guard.unlock().await.unwrap();
    client.fair_lock("slow").try_lock().await.unwrap().expect("nobody waits").unlock().await.unwrap();
}
