//! What goes on in the process itself: it stands still, is starved, has ten thousand waiters, or uses an owner again at once.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use redlatch::{ErrorKind, LossReason, Unlocked};
use redlatch_testkit::server::RedisServer;

use super::{nothing_left, rig};
use crate::fixture::{LATE, RENEWED, awake, ms, quiet, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_starved_runtime_loses_no_lock() {
    let server = RedisServer::start().unwrap();
    let url = server.url();
    // A runtime with one thread that is blocked for longer than a lease: renewal goes on beside it.
    let valid = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = quiet().url(url).watchdog_lease(RENEWED).connect().await.unwrap();
            let guard = client.lock("starved").lock().await.unwrap();
            std::thread::sleep(RENEWED + ms(1_500));
            (guard.is_valid(), guard.unlock().await.unwrap())
        })
    })
    .join()
    .unwrap();
    assert_eq!(valid, (true, Unlocked::Released));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_06_after_a_suspended_machine_returns_the_holder_knows() {
    // A clock that runs through suspend, as the boot-time clock does, seen from a process whose timers stood still.
    let clock = redlatch::ManualClock::new(Duration::from_secs(1_000));
    let client = quiet()
        .url("memory:")
        .clock(std::sync::Arc::new(clock.clone()))
        .watchdog_lease(Duration::from_secs(3_600))
        .connect()
        .await
        .unwrap();
    let guard = client.lock("suspended").lock().await.unwrap();
    assert!(guard.is_valid());
    // Long enough for the background thread to have gone to sleep.
    tokio::time::sleep(ms(2_500)).await;
    clock.advance(Duration::from_secs(2 * 3_600));
    assert!(!guard.is_valid(), "the first look after the return says so");
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(soon("the notice", guard.lost()).await, LossReason::Expired);
    let next = client.lock("suspended").lock().await.unwrap();
    assert!(matches!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Expired)));
    assert!(next.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_38_ten_thousand_waiters_of_one_process_cost_the_server_next_to_nothing() {
    const WAITERS: usize = 10_000;
    let server = RedisServer::start().unwrap();
    let client = quiet().url(server.url()).connect().await.unwrap();
    let other = quiet().url(server.url()).connect().await.unwrap();
    let guard = other.lock("crowd").lock().await.unwrap();
    let mut waiters = Vec::with_capacity(WAITERS);
    for _ in 0..WAITERS {
        let lock = client.lock("crowd");
        waiters.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            guard.unlock().await.unwrap();
        }));
    }
    tokio::time::sleep(ms(300)).await;
    assert_eq!(server.subscriber_channels().unwrap().len(), 1);
    server.reset_command_counts().unwrap();
    guard.unlock().await.unwrap();
    let start = Instant::now();
    for waiter in waiters {
        soon("each waiter's turn", waiter).await.unwrap();
    }
    assert!(awake(start) < 2 * LATE, "{:?}", start.elapsed());
    let calls = server.command_count("evalsha").unwrap();
    assert!(calls < WAITERS as u64 / 5, "{calls} calls for {WAITERS} hand-overs");
    assert_eq!(client.stats().names, 0);
    nothing_left(&server, "crowd").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_used_again_is_not_taken_for_its_predecessor() {
    let rig = rig(ms(30_000)).await;
    let owner = rig.client.owner();
    let lock = rig.client.lock("again");
    rig.proxy.latency(ms(0), ms(10), 3);
    for round in 0..60 {
        let guard =
            soon("a grant", lock.acquire().wait(redlatch::Wait::Forever).owner(&owner).into_future()).await;
        // The release of this hold is on its way, by another connection, when the owner asks again.
        drop(guard.unwrap());
        if round % 3 == 0 {
            let _ = tokio::time::timeout(ms(round % 7), lock.acquire().owner(&owner).into_future()).await;
        }
        if let Some(next) = lock.acquire().owner(&owner).await.unwrap() {
            tokio::time::sleep(ms(25)).await;
            assert!(next.is_valid());
            let state = rig.direct.inspect("again").await.unwrap();
            assert_eq!(
                rig.direct.lock("again").hold_count(&owner).await.unwrap(),
                1,
                "round {round}: {next:?} {state:?}"
            );
        }
    }
    rig.proxy.heal().unwrap();
    nothing_left(&rig.server, "again").await;
}
