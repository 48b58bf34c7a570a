//! Wire facts of the semaphore: keys, times to live and messages after each step (`docs/protocol.md`, semaphore).

use redlatch_testkit::{assert_keyspace, server::KeyContent};

use crate::{
    fixture::{ms, soon},
    wire::{alone, heard},
};

fn told(payloads: &[&str]) -> Vec<(String, String)> {
    payloads.iter().map(|payload| ("redisson_sc:{s}".to_owned(), (*payload).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_of_a_semaphore_leaves_the_documented_key_and_message() {
    let (server, client) = alone().await;
    let semaphore = client.semaphore("s");
    let free = |n: &str| KeyContent::string(n);
    let messages = heard(&server, async {
        assert!(semaphore.set_if_absent(3, None).await.unwrap());
        assert_keyspace!(server, tolerance_ms = 1_000, [("s", free("3"), None)]);
        assert!(!semaphore.set_if_absent(9, None).await.unwrap());
    })
    .await;
    assert_eq!(messages, told(&["3"]), "set once, told once");
    let messages = heard(&server, async {
        semaphore.acquire(2).await.unwrap();
        assert_keyspace!(server, tolerance_ms = 1_000, [("s", free("1"), None)]);
        assert!(!semaphore.try_acquire(2).await.unwrap());
    })
    .await;
    assert_eq!(messages, told(&[]), "taking tells nobody");
    let messages = heard(&server, async {
        semaphore.release(1).await.unwrap();
        assert!(semaphore.release_if_exists(2).await.unwrap());
        assert_keyspace!(server, tolerance_ms = 1_000, [("s", free("4"), None)]);
    })
    .await;
    assert_eq!(messages, told(&["2", "4"]), "S4: the total, not what was added");
    let messages = heard(&server, async {
        assert_eq!(semaphore.add(-6).await.unwrap(), -2);
        assert_keyspace!(server, tolerance_ms = 1_000, [("s", free("-2"), None)]);
        semaphore.release(2).await.unwrap();
        assert_eq!(semaphore.add(5).await.unwrap(), 5);
    })
    .await;
    assert_eq!(messages, told(&["5"]), "S2: what nobody can take from is not told");
    let messages = heard(&server, async {
        assert_eq!(semaphore.drain().await.unwrap(), 5);
        assert_keyspace!(server, tolerance_ms = 1_000, [("s", free("0"), None)]);
    })
    .await;
    assert_eq!(messages, told(&[]));
    server.cmd(&["DEL", "s"]).unwrap();
    let messages = heard(&server, async {
        assert!(!semaphore.release_if_exists(2).await.unwrap());
        assert_eq!(semaphore.drain().await.unwrap(), 0);
        semaphore.acquire(1).await.unwrap_err();
    })
    .await;
    assert_eq!(messages, told(&[]));
    assert_keyspace!(server, tolerance_ms = 1_000, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_a_time_to_live_outlasts_every_change() {
    let (server, client) = alone().await;
    let semaphore = client.semaphore("s");
    assert!(semaphore.set_if_absent(5, Some(ms(60_000))).await.unwrap());
    assert_keyspace!(server, tolerance_ms = 2_000, [("s", KeyContent::string("5"), Some(60_000))]);
    semaphore.acquire(1).await.unwrap();
    assert_keyspace!(server, tolerance_ms = 2_000, [("s", KeyContent::string("4"), Some(60_000))]);
    semaphore.release(2).await.unwrap();
    assert_keyspace!(server, tolerance_ms = 2_000, [("s", KeyContent::string("6"), Some(60_000))]);
    semaphore.add(-2).await.unwrap();
    assert_keyspace!(server, tolerance_ms = 2_000, [("s", KeyContent::string("4"), Some(60_000))]);
    semaphore.drain().await.unwrap();
    assert_keyspace!(server, tolerance_ms = 2_000, [("s", KeyContent::string("0"), Some(60_000))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_a_waiter_finds_permits_that_no_message_told_of() {
    let (server, client) = alone().await;
    server.cmd(&["SET", "s", "0"]).unwrap();
    let semaphore = client.semaphore("s");
    let waiter = tokio::spawn(async move { semaphore.acquire(1).await });
    tokio::time::sleep(ms(50)).await;
    server.cmd(&["SET", "s", "1"]).unwrap();
    soon("the poll", waiter).await.unwrap().unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, [("s", KeyContent::string("0"), None)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_a_semaphore_makes_waiters_look_again() {
    let (server, client) = alone().await;
    let semaphore = client.semaphore("s");
    semaphore.set_if_absent(3, None).await.unwrap();
    let messages = heard(&server, async {
        assert!(semaphore.delete().await.unwrap());
        assert_keyspace!(server, tolerance_ms = 1_000, []);
        assert!(!semaphore.delete().await.unwrap());
    })
    .await;
    assert_eq!(messages, told(&["1"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_is_no_number_is_reported_and_kept() {
    let (server, client) = alone().await;
    server.cmd(&["SET", "s", "text"]).unwrap();
    let (semaphore, latch) = (client.semaphore("s"), client.count_down_latch("s"));
    for error in [
        semaphore.acquire(1).await.unwrap_err(),
        semaphore.available().await.unwrap_err(),
        latch.count().await.unwrap_err(),
        latch.delete().await.unwrap_err(),
        semaphore.delete().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), redlatch::ErrorKind::WrongType, "{error}");
    }
    semaphore.release(1).await.unwrap_err();
    semaphore.drain().await.unwrap_err();
    latch.count_down().await.unwrap_err();
    assert_keyspace!(server, tolerance_ms = 1_000, [("s", KeyContent::string("text"), None)]);
}
