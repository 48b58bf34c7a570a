use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use redlatch::{Lease, Wait};

use crate::fixture::{Fixture, ms, soon};

/// Spawns a waiter and returns once it stands in line.
async fn in_line<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let mut work = Box::pin(work);
    // One poll puts it in line behind those who came before; from there a task drives it.
    let waker = std::task::Waker::noop();
    assert!(work.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    tokio::spawn(work)
}

pub(crate) async fn waiters_of_one_process_are_served_in_order(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for n in 0..20 {
        let (lock, order) = (lock.clone(), order.clone());
        let waiter = async move {
            let guard = lock.lock().await.unwrap();
            order.lock().unwrap().push(n);
            guard.unlock().await.unwrap();
        };
        waiters.push(in_line(waiter).await);
    }
    guard.unlock().await.unwrap();
    for waiter in waiters {
        soon("each waiter's turn", waiter).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    assert_eq!(client.stats().names, 0);
}

pub(crate) async fn a_waiter_with_a_token_of_its_own_is_handed_the_lock(on: Fixture) {
    // A long turn, so that the lock is handed on whatever the time between the steps.
    let client = on.builder().turn_time(ms(60_000)).connect().await.unwrap();
    let lock = on.lock(&client, on.name("x"));
    let owner = client.owner();
    let guard = lock.lock().await.unwrap();
    let (fenced, named, fixed) = (lock.clone(), lock.clone(), lock.clone());
    let named_owner = owner.clone();
    let fenced =
        in_line(async move { fenced.acquire().wait(Wait::Forever).fenced().await.unwrap().unwrap() }).await;
    let named =
        in_line(
            async move { named.acquire().wait(Wait::Forever).owner(&named_owner).await.unwrap().unwrap() },
        )
        .await;
    let fixed = in_line(async move {
        fixed.acquire().wait(Wait::Forever).lease(Lease::Fixed(ms(5_000))).await.unwrap().unwrap()
    })
    .await;
    guard.unlock().await.unwrap();
    let guard = soon("the fenced waiter's turn", fenced).await.unwrap();
    assert!(guard.token().is_some());
    guard.unlock().await.unwrap();
    let guard = soon("the named waiter's turn", named).await.unwrap();
    assert!(lock.is_held_by(&owner).await.unwrap());
    guard.unlock().await.unwrap();
    let guard = soon("the fixed waiter's turn", fixed).await.unwrap();
    let ttl = lock.remaining_ttl().await.unwrap().unwrap();
    assert!(ttl <= ms(5_000), "the next hold has a lease of its own: {ttl:?}");
    guard.unlock().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn a_known_owner_is_never_passed_on(on: Fixture) {
    let client = on.builder().turn_time(ms(60_000)).connect().await.unwrap();
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    let known = guard.owner().clone();
    let waiting = lock.clone();
    let waiter = in_line(async move { waiting.lock().await.unwrap() }).await;
    guard.unlock().await.unwrap();
    let next = soon("the waiter's turn", waiter).await.unwrap();
    assert!(!lock.is_held_by(&known).await.unwrap());
    assert!(
        lock.acquire().owner(&known).await.unwrap().is_none(),
        "the old owner would enter the new owner's hold"
    );
    assert!(next.is_valid());
}

pub(crate) async fn another_process_gets_its_turn(on: Fixture) {
    // Two clients stand for two processes: nothing is shared between them but the store.
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..16 {
        let (lock, stop) = (on.lock(&a, name.as_str()), stop.clone());
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                lock.lock().await.unwrap().unlock().await.unwrap();
            }
        }));
    }
    for _ in 0..10 {
        // How soon is a matter for the benchmark; that it comes at all, again and again, is the promise.
        let guard = soon("the other process's turn", on.lock(&b, name.as_str()).lock()).await.unwrap();
        guard.unlock().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        soon("the end", task).await.unwrap();
    }
}

pub(crate) async fn waiters_that_give_up_do_not_stop_the_line(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    for held_here in [true, false] {
        let holder = if held_here { &a } else { &b };
        let guard = on.lock(holder, name.as_str()).lock().await.unwrap();
        let mut waiters = Vec::new();
        for n in 0..12 {
            let lock = on.lock(&a, name.as_str());
            waiters.push(
                in_line(async move {
                    let wait = if n % 3 == 0 { Wait::Forever } else { Wait::AtMost(ms(10 + n)) };
                    match lock.acquire().wait(wait).await.unwrap() {
                        Some(guard) => guard.unlock().await.map(|_| true).unwrap(),
                        None => false,
                    }
                })
                .await,
            );
        }
        tokio::time::sleep(ms(100)).await;
        guard.unlock().await.unwrap();
        let mut served = 0;
        for waiter in waiters {
            served += usize::from(soon("each waiter's end", waiter).await.unwrap());
        }
        assert_eq!(served, 4, "those who stayed are served, those who left are not");
    }
    assert_eq!(a.stats().names, 0);
}
