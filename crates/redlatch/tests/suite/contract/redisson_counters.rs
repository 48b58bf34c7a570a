//! Cases of Redisson's own tests of semaphore and latch that no other test here has in the same form; each has the name of
//! its case there. `docs/protocol.md` lists all cases, with these and with the tests that cover the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::fixture::{Fixture, ms, soon, told};

/// Far more than all rounds of a test take together.
const ALL_ROUNDS: Duration = Duration::from_secs(60);

pub(crate) async fn acquire_after_add_permits(on: Fixture) {
    let client = on.client().await;
    let semaphore = client.semaphore(on.name("s"));
    semaphore.set_if_absent(1, None).await.unwrap();
    let waiting = semaphore.clone();
    let waiter = tokio::spawn(async move { waiting.acquire(2).await });
    tokio::time::sleep(ms(100)).await;
    assert!(!waiter.is_finished(), "one is not two");
    semaphore.acquire(1).await.unwrap();
    semaphore.release(1).await.unwrap();
    tokio::time::sleep(ms(50)).await;
    assert!(!waiter.is_finished(), "still one");
    assert_eq!(semaphore.add(1).await.unwrap(), 2);
    soon("the second permit", waiter).await.unwrap().unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 0);
}

pub(crate) async fn try_n_acquire(on: Fixture) {
    // The waiter does not look by itself.
    let (client, other) = (on.patient().await, on.client().await);
    let (ours, theirs) = (client.semaphore(on.name("s")), other.semaphore(on.name("s")));
    ours.set_if_absent(5, None).await.unwrap();
    assert!(ours.try_acquire(3).await.unwrap());
    assert!(!ours.try_acquire(4).await.unwrap());
    let start = Instant::now();
    let puts = tokio::spawn(async move {
        for _ in 0..2 {
            tokio::time::sleep(ms(250)).await;
            theirs.release(1).await.unwrap();
        }
    });
    assert!(told("enough permits", ours.acquire_for(4, ms(600_000))).await.unwrap());
    assert!(start.elapsed() >= ms(500), "before there were enough: {:?}", start.elapsed());
    soon("the second permit", puts).await.unwrap();
    assert_eq!(ours.available().await.unwrap(), 0);
}

/// Each of many clients takes the only permit so many times; alone each time.
async fn one_permit(on: &Fixture, clients: usize, rounds: usize) {
    let first = on.client().await;
    first.semaphore(on.name("s")).set_if_absent(1, None).await.unwrap();
    let (inside, entered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let semaphore = on.client().await.semaphore(on.name("s"));
        let (inside, entered) = (inside.clone(), entered.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..rounds {
                semaphore.acquire(1).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two had one permit");
                tokio::time::sleep(ms(1)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                entered.fetch_add(1, Ordering::SeqCst);
                semaphore.release(1).await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(ALL_ROUNDS, task).await.expect("every client's turns").unwrap();
    }
    assert_eq!(entered.load(Ordering::SeqCst), clients * rounds);
    assert_eq!(first.semaphore(on.name("s")).available().await.unwrap(), 1);
}

pub(crate) async fn concurrency_multi_instance_1_permits(on: Fixture) {
    one_permit(&on, 30, 1).await;
}

pub(crate) async fn concurrency_loop_multi_instance(on: Fixture) {
    one_permit(&on, 16, 20).await;
}

pub(crate) async fn concurrency_loop_max_multi_instance(on: Fixture) {
    let most = i32::MAX as u32;
    let first = on.client().await;
    assert!(first.semaphore(on.name("s")).set_if_absent(most, None).await.unwrap());
    let mut tasks = Vec::new();
    for taker in 0..4_u32 {
        let semaphore = on.client().await.semaphore(on.name("s"));
        tasks.push(tokio::spawn(async move {
            for round in 0..10_u32 {
                // From one permit to all of them.
                let n = if (taker + round).is_multiple_of(4) {
                    most
                } else {
                    1 + (most / 40) * (taker * 10 + round)
                };
                semaphore.acquire(n).await.unwrap();
                semaphore.release(n).await.unwrap();
            }
        }));
    }
    for task in tasks {
        tokio::time::timeout(ALL_ROUNDS, task).await.expect("every client's turns").unwrap();
    }
    assert_eq!(first.semaphore(on.name("s")).drain().await.unwrap(), i64::from(most));
}

pub(crate) async fn single_count_down_await_single_instance(on: Fixture) {
    const PAIRS: u32 = 12;
    let client = on.client().await;
    let latch = client.count_down_latch(on.name("l"));
    assert!(latch.set_if_absent(PAIRS).await.unwrap());
    let steps = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for pair in 0..PAIRS {
        let (waits, counts) = (latch.clone(), latch.clone());
        let (seen, made) = (steps.clone(), steps.clone());
        tasks.push(tokio::spawn(async move {
            waits.wait().await.unwrap();
            assert_eq!(seen.load(Ordering::SeqCst), PAIRS as usize, "let through before the last step");
            assert_eq!(waits.count().await.unwrap(), 0);
        }));
        tasks.push(tokio::spawn(async move {
            // The last step comes late, so that a waiter that is let through before it is seen.
            tokio::time::sleep(ms(if pair + 1 == PAIRS { 100 } else { 1 })).await;
            made.fetch_add(1, Ordering::SeqCst);
            counts.count_down().await.unwrap();
        }));
    }
    for task in tasks {
        soon("each one's end", task).await.unwrap();
    }
    assert_eq!(latch.count().await.unwrap(), 0);
}
