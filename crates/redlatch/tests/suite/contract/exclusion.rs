use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use redlatch::{ErrorKind, LockName};

use crate::{
    fixture::{Fixture, LATE, awake, ms, soon, told},
    kinds::AnyLock,
};

pub(crate) async fn a_held_lock_is_busy_for_everybody_else(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).try_lock().await.unwrap().expect("a free lock is granted");
    assert!(guard.is_valid());
    assert!(
        on.lock(&a, name.as_str()).try_lock().await.unwrap().is_none(),
        "another task of the same client is another owner"
    );
    assert!(on.lock(&b, name.as_str()).try_lock().await.unwrap().is_none());
    assert!(on.lock(&b, name.as_str()).is_locked().await.unwrap());
    guard.unlock().await.unwrap();
    assert!(!on.lock(&b, name.as_str()).is_locked().await.unwrap());
    assert!(on.lock(&b, name.as_str()).try_lock().await.unwrap().is_some());
}

pub(crate) async fn a_release_wakes_a_waiter_of_another_client(on: Fixture) {
    let (a, b) = (on.patient().await, on.patient().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    let lock = on.lock(&b, name.as_str());
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
    // It has looked after its subscription, and does not look by itself again.
    tokio::time::sleep(ms(300)).await;
    assert!(!waiter.is_finished());
    guard.unlock().await.unwrap();
    let guard = told("the waiter's grant", waiter).await.unwrap();
    assert!(guard.is_valid());
}

pub(crate) async fn a_wait_ends_when_its_time_is_up(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let _guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    // Of a server that takes longer to answer than there is time it is not known whether the lock is busy.
    let is_busy = async |lock: AnyLock, limit| match lock.lock_for(limit).await {
        Ok(guard) => guard.is_none(),
        Err(error) => error.kind() == ErrorKind::Timeout,
    };
    for client in [&a, &b] {
        let start = Instant::now();
        assert!(is_busy(on.lock(client, name.as_str()), ms(250)).await);
        assert!(start.elapsed() >= ms(245), "gave up early: {:?}", start.elapsed());
        assert!(awake(start) < ms(250) + LATE, "gave up late: {:?}", start.elapsed());
    }
    assert!(is_busy(on.lock(&a, name.as_str()), ms(0)).await);
}

pub(crate) async fn a_counter_guarded_by_the_lock_never_slips(on: Fixture) {
    let name = on.name("x");
    let counter = std::sync::Arc::new(AtomicU64::new(0));
    let inside = std::sync::Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let client = on.client().await;
        for _ in 0..4 {
            let (lock, counter, inside) = (on.lock(&client, name.as_str()), counter.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..20 {
                    let guard = lock.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                    let seen = counter.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        soon("every task's turn", task).await.unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), 3 * 4 * 20);
}

pub(crate) async fn many_locks_are_held_at_once(on: Fixture) {
    let client = on.client().await;
    let mut guards = Vec::new();
    for n in 0..500 {
        guards.push(client.lock(on.name(&format!("many-{n}"))).try_lock().await.unwrap().unwrap());
    }
    assert_eq!(client.stats().names, 500);
    for guard in guards {
        guard.unlock().await.unwrap();
    }
    assert_eq!(client.stats().names, 0, "nothing is left in the client");
}

pub(crate) async fn names_are_bytes_and_differ_by_case(on: Fixture) {
    let client = on.client().await;
    let tag = on.name("");
    let names: Vec<Vec<u8>> =
        [b"x".as_slice(), b"X", b"x ", b"x\0", b"\xff\xfe", "ä".as_bytes(), b"a\nb", b"{t}x"]
            .iter()
            .map(|end| [tag.as_bytes(), end].concat())
            .collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(
            client
                .lock(LockName::new(name).unwrap())
                .try_lock()
                .await
                .unwrap()
                .expect("each name is a lock of its own"),
        );
    }
    for name in &names {
        assert!(client.lock(name.as_slice()).try_lock().await.unwrap().is_none());
    }
}
