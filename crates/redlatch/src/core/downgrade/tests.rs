//! Guards of an owner that go at a chosen moment of its downgrade. With real threads that moment is too short to be met often.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use crate::{
    Client, Unlocked,
    lock::Guard,
    read_write::{ReadGuard, WriteGuard},
};

/// What a wait of two requests for each other would last.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(60);

/// When the other guards of an owner go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// The downgrade has its owner's turn, and has not begun to turn the hold.
    Before,
    /// It has begun.
    Meanwhile,
}

async fn downgrade_while(writing: WriteGuard, others: Vec<Box<dyn std::any::Any>>, when: When) -> ReadGuard {
    let (core, lease, _) = writing.0.into_hold();
    let turn = core.before_downgrade(&lease).await.unwrap();
    let mut others = Some(others).filter(|_| when == When::Meanwhile);
    let mut turned = std::pin::pin!(core.downgrade(&lease, true, turn));
    let turned = std::future::poll_fn(|cx| {
        let polled = turned.as_mut().poll(cx);
        drop(others.take());
        polled
    });
    let grant = tokio::time::timeout(SOON, turned).await.expect("it waited for a guard that goes").unwrap();
    ReadGuard(Guard::new(core.clone(), grant.lease, grant.renewed, true))
}

async fn clients() -> (Client, Client) {
    let name = format!("memory:{}", uuid::Uuid::new_v4());
    let client = Client::builder().url(&name).response_timeout(RESPONSE_TIMEOUT).connect().await.unwrap();
    (client, Client::connect(&name).await.unwrap())
}

#[tokio::test]
async fn what_goes_beside_a_downgrade_takes_nothing_of_what_came_of_it() {
    for when in [When::Before].into_iter().chain([When::Meanwhile; 20]) {
        for writes in 0..3 {
            for reads in 0..4 {
                goes_beside(writes, reads, when).await;
            }
        }
    }
}

async fn goes_beside(writes: u32, reads: u32, when: When) {
    let which = format!("{writes} other write holds and {reads} read holds go {when:?}");
    let (client, stranger) = clients().await;
    let writing = client.read_write_lock("x").write().lock().await.unwrap();
    let mut others: Vec<Box<dyn std::any::Any>> = Vec::new();
    for _ in 0..writes {
        others.push(Box::new(writing.reenter().await.unwrap()));
    }
    for _ in 0..reads {
        others.push(Box::new(writing.read().await.unwrap()));
    }
    let reading = downgrade_while(writing, others, when).await;
    let core = reading.0.core().clone();
    let began = Instant::now();
    while core.keeper.jobs() > 0 {
        assert!(began.elapsed() < SOON, "{which}: one waits for ever");
        tokio::task::yield_now().await;
    }
    let lock = stranger.read_write_lock("x");
    assert!(lock.write().try_lock().await.unwrap().is_none(), "{which}: the hold is gone");
    let beside =
        lock.read().try_lock().await.unwrap().unwrap_or_else(|| panic!("{which}: a write hold is left"));
    beside.unlock().await.unwrap();
    assert!(reading.is_valid());
    assert_eq!(reading.unlock().await.unwrap(), Unlocked::Released, "{which}");
    assert!(lock.write().try_lock().await.unwrap().is_some(), "{which}: a read hold is left");
}
