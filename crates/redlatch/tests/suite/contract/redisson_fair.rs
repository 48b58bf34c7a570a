//! Cases of Redisson's own tests of the fair lock; each has the name of its case there. `docs/protocol.md` lists all cases.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use redlatch::{Lease, Unlocked, Wait};

use super::fair::queued;
use crate::fixture::{Fixture, IN_VAIN, ms, soon};

type Order = Arc<Mutex<Vec<usize>>>;

pub(crate) async fn lease_timeout(on: Fixture) {
    const WAITERS: usize = 4;
    // A grant whose lease is over when its answer is read counts for nothing, and a busy machine may be slow.
    const LEASE: Duration = ms(1_000);
    let (a, b) = (on.client().await, on.client().await);
    let (name, order) = (on.name("x"), Order::default());
    let first = on.lock(&a, name.as_str()).lock_with_lease(ms(1_500)).await.unwrap();
    let mut tasks = Vec::new();
    for n in 0..WAITERS {
        let (lock, order) = (on.lock([&a, &b][n % 2], name.as_str()), order.clone());
        tasks.push(tokio::spawn(async move {
            let wait = Wait::AtMost(Duration::from_secs(30));
            let guard = lock.acquire().wait(wait).lease(Lease::Fixed(LEASE)).await.unwrap();
            order.lock().unwrap().push(n);
            // Never given back: the lease ends it.
            guard.expect("its turn").detach();
        }));
        queued(&a, &name, n + 1).await;
    }
    let begin = Instant::now();
    first.detach();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(30), task).await.expect("each turn").unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..WAITERS).collect::<Vec<_>>());
    assert!(
        begin.elapsed() > LEASE * (WAITERS as u32 - 1),
        "before the leases were over: {:?}",
        begin.elapsed()
    );
}

pub(crate) async fn multiple_locks(on: Fixture) {
    let clients = [on.client().await, on.client().await, on.client().await];
    let name = on.name("x");
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let lock = on.lock(&clients[n % 3], name.as_str());
            tokio::spawn(async move {
                let guard = lock.lock_with_lease(Duration::from_secs(30)).await.unwrap();
                tokio::time::sleep(ms(3)).await;
                assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("every task's turn").unwrap();
    }
    assert!(clients[0].inspect(name.as_str()).await.unwrap().waiters.is_empty());
    assert!(!on.lock(&clients[0], name.as_str()).is_locked().await.unwrap());
}

/// The longest that any waiter may be counted for: a lease of 30 s, and 30 s of its own.
async fn no_time_drifts(client: &redlatch::Client, name: &str, waiters: usize) {
    // A waiter whose time is up gives its place up afterwards.
    queued(client, name, waiters).await;
    let state = client.inspect(name).await.unwrap();
    assert_eq!(state.waiters.len(), waiters, "{state:?}");
    for waiter in &state.waiters {
        let left = waiter.stale_in.expect("each has a time");
        assert!(left <= Duration::from_secs(60) && left > Duration::from_secs(20), "{left:?}");
    }
}

/// testWaitTimeoutDrift, and with a cancelled one testFirstThreadDeathTimeoutDrift.
pub(crate) async fn wait_timeout_drift(on: Fixture) {
    let client = on.client().await;
    let name = on.name("x");
    let guard = on.lock(&client, name.as_str()).lock().await.unwrap();
    let last = {
        let lock = on.lock(&client, name.as_str());
        tokio::spawn(async move { lock.lock().await })
    };
    queued(&client, &name, 1).await;
    for _ in 0..3 {
        let tries = (0..10).map(|_| {
            let lock = on.lock(&client, name.as_str());
            async move { assert!(lock.lock_for(IN_VAIN).await.unwrap().is_none()) }
        });
        futures_util::future::join_all(tries).await;
        no_time_drifts(&client, &name, 1).await;
    }
    let behind = {
        let lock = on.lock(&client, name.as_str());
        tokio::spawn(async move { lock.lock().await.unwrap() })
    };
    queued(&client, &name, 2).await;
    no_time_drifts(&client, &name, 2).await;
    last.abort();
    queued(&client, &name, 1).await;
    no_time_drifts(&client, &name, 1).await;
    guard.unlock().await.unwrap();
    soon("the last one's turn", behind).await.unwrap().unlock().await.unwrap();
}

pub(crate) async fn lock_acquired_timeout_drift(on: Fixture) {
    let clients = [on.client().await, on.client().await];
    let name = on.name("x");
    let mut guard = on.lock(&clients[0], name.as_str()).lock().await.unwrap();
    let mut tasks = std::collections::VecDeque::new();
    for n in 0..6 {
        let lock = on.lock(&clients[n % 2], name.as_str());
        tasks.push_back(tokio::spawn(async move { lock.lock().await.unwrap() }));
        queued(&clients[0], &name, n + 1).await;
    }
    while let Some(next) = tasks.pop_front() {
        guard.unlock().await.unwrap();
        guard = soon("the next", next).await.unwrap();
        no_time_drifts(&clients[0], &name, tasks.len()).await;
    }
    guard.unlock().await.unwrap();
}

pub(crate) async fn try_lock_non_delayed(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let (here, there) = (on.lock(&a, name.as_str()), on.lock(&b, name.as_str()));
    let at_most = |wait| Wait::AtMost(wait);
    let guard = here.acquire().wait(at_most(Duration::ZERO)).await.unwrap().expect("a free lock");
    let begin = Instant::now();
    assert!(there.acquire().wait(at_most(IN_VAIN)).await.unwrap().is_none());
    assert!(begin.elapsed() >= IN_VAIN - ms(5), "{:?}", begin.elapsed());
    assert!(there.acquire().wait(at_most(Duration::ZERO)).await.unwrap().is_none());
    // A wait that was over before an answer came gives its place up afterwards.
    queued(&a, &name, 0).await;
    guard.unlock().await.unwrap();
    let guard = there.acquire().wait(at_most(Duration::ZERO)).await.unwrap().expect("free, and nobody waits");
    guard.unlock().await.unwrap();
    assert!(!here.is_locked().await.unwrap());
}
