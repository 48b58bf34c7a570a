//! What a hostile review found in lanes that tasks of several kinds share, and at the shortest leases.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use redlatch::{Backoff, Client, ErrorKind, Lease, Wait, config::LEASE_MIN};
use redlatch_testkit::{proxy::Proxy, server::RedisServer};

use crate::fixture::{ms, soon};

async fn client(url: &str) -> Client {
    Client::connect(url).await.unwrap()
}

/// The server counts in whole milliseconds, and takes a read hold with less than one left for over. A lease of 1 ms was valid for all of it: a writer was
/// valid beside its reader in one of twelve.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_of_the_shortest_lease_is_over_before_a_writer_comes_in() {
    let server = RedisServer::start().unwrap();
    let (a, b) = (client(&server.unix_url()).await, client(&server.unix_url()).await);
    let (reads, other) = (a.read_write_lock("r"), b.read_write_lock("r"));
    let short = Lease::Fixed(LEASE_MIN);
    let refused = reads.read().acquire().lease(Lease::Fixed(LEASE_MIN - ms(1))).await.map(|_| ());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidOption);
    let (mut granted, mut wrote) = (0, 0);
    for _ in 0..1_500 {
        let beside = other.read().lock_for(ms(30_000)).await.unwrap().unwrap();
        let asked = Instant::now();
        let reader = match reads.read().acquire().lease(short).await {
            Ok(Some(reader)) => reader,
            // On a busy machine it is over before its answer comes.
            Ok(None) | Err(_) => continue,
        };
        granted += 1;
        // The writer asks when less than a millisecond is left at the server.
        while asked.elapsed() < LEASE_MIN - Duration::from_micros(900) {
            std::hint::spin_loop();
        }
        beside.unlock().await.unwrap();
        if let Some(writer) = other.write().try_lock().await.unwrap() {
            wrote += 1;
            let both = reader.is_valid() && writer.is_valid() && reader.is_valid();
            assert!(!both, "a writer beside a reader, grant {granted}");
            writer.unlock().await.unwrap();
        }
    }
    assert!(granted > 100 && wrote > 20, "{granted} {wrote}");
}

/// A task whose lease is always over when its grant is answered asked again and again, and kept the lead of its lane: the lock was free, and no other task of
/// its client got it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_lease_is_shorter_than_the_way_holds_nobody_of_its_process_up() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = client(&proxy.url()).await;
    proxy.latency(ms(10), ms(0), 1);
    let short = Lease::Fixed(ms(5));
    let seats = client.permit_semaphore("seats");
    seats.set_if_absent(1).await.unwrap();
    let (lock, rw) = (client.lock("x"), client.read_write_lock("rw"));
    let plain = tokio::spawn(async move { lock.acquire().wait(Wait::Forever).lease(short).await.map(drop) });
    let write =
        tokio::spawn(async move { rw.write().acquire().wait(Wait::Forever).lease(short).await.map(drop) });
    let permits =
        tokio::spawn(async move { seats.request().wait(Wait::Forever).lease(short).await.map(drop) });
    tokio::time::sleep(ms(200)).await;
    for _ in 0..2 {
        drop(soon("the plain lock", client.lock("x").lock()).await.unwrap());
        drop(soon("the write lock", client.read_write_lock("rw").write().lock()).await.unwrap());
        drop(soon("the permit", client.permit_semaphore("seats").acquire()).await.unwrap());
    }
    for task in [&plain, &write, &permits] {
        assert!(!task.is_finished(), "it asks on");
        task.abort();
    }
}

/// The task that led the lane slept for its own pause, without a subscription, and a task behind it that would have heard the release slept with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_behind_a_spinning_one_of_its_process_does_not_sleep_for_its_pause() {
    let server = RedisServer::start().unwrap();
    let (client, other) = (client(&server.url()).await, client(&server.url()).await);
    let held = other.lock("x").lock().await.unwrap();
    // Longer than the test waits for anything.
    let spinning = client.spin_lock("x").backoff(Backoff::constant(ms(60_000)).unwrap());
    let spins = tokio::spawn(async move { spinning.lock().await.map(drop) });
    until(|| async { client.stats().names == 1 }).await;
    tokio::time::sleep(ms(300)).await;
    let plain = client.lock("x");
    let waits = tokio::spawn(async move { plain.lock().await.map(drop) });
    until(|| async { client.stats().in_line == 1 }).await;
    held.unlock().await.unwrap();
    soon("the grant", waits).await.unwrap().unwrap();
    spins.abort();
}

async fn until<F: Future<Output = bool>>(done: impl Fn() -> F) {
    soon("what was to come", async {
        while !done().await {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

/// A guard of a lock that tells of its release, whose hold a spinning guard of its process had passed on, ended in silence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_came_from_a_spinning_guard_ends_as_its_own_kind_does() {
    let server = RedisServer::start().unwrap();
    let client =
        Client::builder().url(server.url()).turn_time(Duration::from_secs(60)).connect().await.unwrap();
    let published = || server.command_count("publish").unwrap();
    // Passed on without the server, and moved by it, because a token is wanted.
    for fenced in [false, true] {
        let spinning = client.spin_lock("x").lock().await.unwrap();
        let next = client.lock("x");
        let waits = tokio::spawn(async move {
            let acquire = next.acquire().wait(Wait::Forever);
            if fenced { acquire.fenced().await } else { acquire.await }
        });
        until(|| async { client.stats().in_line == 1 }).await;
        spinning.unlock().await.unwrap();
        let guard = soon("the hold", waits).await.unwrap().unwrap().unwrap();
        let before = published();
        guard.unlock().await.unwrap();
        assert_eq!(published() - before, 1, "fenced: {fenced}");
    }
}
