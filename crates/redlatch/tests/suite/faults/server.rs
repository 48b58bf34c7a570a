//! Servers that go away, come back with their data or without, or are busy.

use std::time::Instant;

use redlatch::{Client, Error, ErrorKind, LossReason, Unlocked};
use redlatch_testkit::server::RedisServer;

use super::{nothing_left, rig};
use crate::fixture::{LATE, RENEWED, awake, ms, renewed, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_01_a_restarted_server_that_kept_its_data_loses_no_lock() {
    let server = RedisServer::builder().appendonly(true).arg("appendfsync", "always").start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(ms(4_000)).connect().await.unwrap();
    let guard = client.lock("kept").lock().await.unwrap();
    let lock = client.lock("kept");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    let other = Client::connect(&server.url()).await.unwrap();
    let distant = other.lock("kept");
    let distant = tokio::spawn(async move { distant.lock().await.map(drop) });
    tokio::time::sleep(ms(200)).await;
    server.kill9();
    server.restart().unwrap();
    tokio::time::sleep(ms(4_500)).await;
    assert!(guard.is_valid(), "renewed after the restart: {:?}", guard.loss());
    assert!(other.lock("kept").try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
    soon("the waiter's turn", waiter).await.unwrap().unwrap();
    soon("the distant waiter's turn", distant).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_02_a_server_that_comes_back_empty_is_noticed_by_every_holder() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(ms(120_000)).connect().await.unwrap();
    let renewed = client.lock("renewed").lock().await.unwrap();
    let fixed = client.lock("fixed").lock_with_lease(ms(60_000)).await.unwrap();
    server.kill9();
    server.restart_empty().unwrap();
    // On reconnecting, because a renewal comes only after 40 s.
    assert_eq!(soon("the renewed holder's notice", renewed.lost()).await, LossReason::Deleted);
    assert_eq!(soon("the fixed holder's notice", fixed.lost()).await, LossReason::Deleted);
    drop(soon("a new grant", client.lock("renewed").lock()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_02_flushed_data_is_noticed_at_the_next_renewal() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let guard = client.lock("flushed").lock().await.unwrap();
    server.flush_all().unwrap();
    // By its deadline it would be `Expired`.
    assert_eq!(soon("the notice", guard.lost()).await, LossReason::Deleted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_03_a_server_gone_for_longer_than_the_lease_means_loss_by_the_deadline() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(ms(900)).connect().await.unwrap();
    let guard = client.lock("gone").lock().await.unwrap();
    server.kill9();
    let start = Instant::now();
    assert_eq!(soon("the notice", guard.lost()).await, LossReason::Expired);
    assert!(awake(start) <= ms(900) + LATE, "{:?}", start.elapsed());
    server.restart().unwrap();
    tokio::time::sleep(ms(300)).await;
    assert!(!guard.is_valid(), "what is lost stays lost");
    assert!(matches!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Expired)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_17_flushed_scripts_are_sent_again() {
    let rig = rig(RENEWED).await;
    let guard = rig.client.lock("scripts").lock().await.unwrap();
    renewed(4, async || {
        rig.server.flush_scripts().unwrap();
        rig.client.lock("other").lock().await.unwrap().unlock().await.unwrap();
        rig.direct.lock("scripts").remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_and_returns_serves_waiters_without_limit() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let strict = Client::builder().url(server.url()).outage_tolerance(ms(500)).connect().await.unwrap();
    server.stop();
    let error = client.lock("w").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let start = Instant::now();
    let error: Error = strict.lock("w").lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(awake(start) < ms(500) + LATE, "{:?}", start.elapsed());
    let lock = client.lock("w");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    tokio::time::sleep(ms(300)).await;
    assert!(!waiter.is_finished());
    server.restart().unwrap();
    soon("service", waiter).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_44_a_server_that_is_busy_for_a_while_is_waited_for() {
    let server = RedisServer::builder().arg("enable-debug-command", "yes").start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("slow").lock().await.unwrap();
    let sleeping = std::thread::spawn(move || {
        server.cmd(&["DEBUG", "SLEEP", "1"]).unwrap();
        server
    });
    tokio::time::sleep(ms(100)).await;
    let start = Instant::now();
    assert_eq!(soon("the release", guard.unlock()).await.unwrap(), Unlocked::Released);
    assert!(start.elapsed() > ms(500), "the server was not busy");
    let server = sleeping.join().unwrap();
    client.lock("slow").lock().await.unwrap().unlock().await.unwrap();
    nothing_left(&server, "slow").await;
}
