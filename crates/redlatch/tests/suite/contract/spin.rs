//! Cases of Redisson's own tests of the spin lock, which takes the lock in the background there and in a task here.

use std::time::Instant;

use crate::fixture::{Fixture, IN_VAIN, LATE, awake, ms, soon};

/// A waiter that is at its longest pause finds a release within it.
const FOUND: std::time::Duration = ms(200);

/// A task waits with this limit, if any, while another client holds the lock and releases it.
async fn waits_for_a_release(on: &Fixture, limit: Option<std::time::Duration>) {
    let (a, b) = (on.client().await, on.client().await);
    let guard = on.lock(&a, on.name("x")).lock().await.unwrap();
    let lock = on.lock(&b, on.name("x"));
    let waiter = tokio::spawn(async move {
        match limit {
            Some(limit) => lock.lock_for(limit).await.unwrap().expect("released in time"),
            None => lock.lock().await.unwrap(),
        }
    });
    // Long enough for the pauses to have grown to the longest one.
    tokio::time::sleep(ms(500)).await;
    assert!(!waiter.is_finished());
    let released = Instant::now();
    guard.unlock().await.unwrap();
    let guard = soon("the waiter's grant", waiter).await.unwrap();
    assert!(awake(released) < FOUND + LATE, "{:?}", released.elapsed());
    guard.unlock().await.unwrap();
}

pub(crate) async fn test_try_lock_async(on: Fixture) {
    waits_for_a_release(&on, None).await;
}

pub(crate) async fn test_timed_try_lock_async(on: Fixture) {
    waits_for_a_release(&on, Some(ms(5_000))).await;
}

pub(crate) async fn test_try_lock_async_wait_time(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let _guard = on.lock(&a, on.name("x")).lock().await.unwrap();
    let start = Instant::now();
    assert!(on.lock(&b, on.name("x")).lock_for(IN_VAIN).await.unwrap().is_none());
    assert!(start.elapsed() >= IN_VAIN - ms(5), "gave up early: {:?}", start.elapsed());
}

pub(crate) async fn test_try_lock_async_failed(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let _guard = on.lock(&a, on.name("x")).lock().await.unwrap();
    let start = Instant::now();
    assert!(on.lock(&b, on.name("x")).try_lock().await.unwrap().is_none());
    assert!(awake(start) < LATE, "waited: {:?}", start.elapsed());
}

pub(crate) async fn test_try_lock_async_succeed(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.try_lock().await.unwrap().expect("a free lock");
    assert!(lock.is_held_by(guard.owner()).await.unwrap());
}
