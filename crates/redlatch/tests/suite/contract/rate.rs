//! The promises of the rate limiter. The names in brackets are those of the cases in Redisson's own tests.

use std::time::{Duration, Instant};

use redlatch::{ErrorKind, Rate, RateLimiter, blocking};

use super::blocking::aside;
use crate::fixture::{Fixture, LATE, SOON, awake, ms, soon};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

async fn limiter(on: &Fixture, rate: Rate) -> RateLimiter {
    let limiter = on.client().await.rate_limiter(on.name("r"));
    assert!(limiter.set_if_absent(rate).await.unwrap());
    limiter
}

/// [testTryAcquire, testAcquire, test, testAcquisitionInterval]
pub(crate) async fn permits_come_free_when_their_interval_is_over(on: Fixture) {
    let limiter = limiter(&on, Rate::per(2, ms(400))).await;
    let start = Instant::now();
    assert!(limiter.try_acquire(1).await.unwrap());
    assert!(limiter.try_acquire(1).await.unwrap());
    let (third, left) = (limiter.try_acquire(1).await.unwrap(), limiter.available().await.unwrap());
    let taken = Instant::now();
    // Looked at afterwards, because a machine that pauses may have come after the interval.
    if start.elapsed() < ms(390) {
        assert!(!third, "two were taken within the interval");
        assert_eq!(left, 0);
    }
    soon("the interval", limiter.acquire(2)).await.unwrap();
    assert!(start.elapsed() >= ms(400), "{:?}", start.elapsed());
    assert!(awake(taken) < ms(400) + LATE, "it sleeps on: {:?}", taken.elapsed());
    assert!(!limiter.try_acquire(1).await.unwrap());
    assert!(limiter.acquire_for(1, SOON).await.unwrap());
    assert!(start.elapsed() >= ms(800), "{:?}", start.elapsed());
}

/// [testZeroTimeout]
pub(crate) async fn a_wait_that_cannot_succeed_ends_at_once(on: Fixture) {
    let limiter = limiter(&on, Rate::per(1, LONG)).await;
    assert!(limiter.acquire_for(1, ms(0)).await.unwrap(), "a look needs no time");
    for wait in [ms(0), ms(50_000), ms(500_000)] {
        let start = Instant::now();
        assert!(!soon("the answer", limiter.acquire_for(1, wait)).await.unwrap());
        assert!(awake(start) < LATE, "{wait:?}: {:?}", start.elapsed());
    }
}

/// [testPermitsExceeding]
pub(crate) async fn numbers_out_of_range_are_refused(on: Fixture) {
    let limiter = limiter(&on, Rate::per(2, LONG)).await;
    for n in [0, 3, i32::MAX as u32, u32::MAX] {
        for error in [
            soon("the refusal", limiter.acquire(n)).await.unwrap_err(),
            limiter.try_acquire(n).await.unwrap_err(),
            soon("the refusal", limiter.acquire_for(n, LONG)).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
            assert!(error.to_string().contains("; ask for at "), "with a remedy: {error}");
        }
    }
    for n in [0, u32::MAX] {
        assert_eq!(limiter.release(n).await.unwrap_err().kind(), ErrorKind::InvalidOption);
    }
    let day = ms(86_400_000);
    for bad in [
        Rate::per(0, day),
        Rate::per(u32::MAX, day),
        Rate::per(1, ms(0)),
        Rate::per(1, Duration::MAX),
        Rate::per(1, day).keep_alive(day - ms(1)),
    ] {
        for error in [
            limiter.set_if_absent(bad).await.unwrap_err(),
            limiter.set(bad).await.unwrap_err(),
            limiter.update(bad).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        }
    }
    assert_eq!(limiter.config().await.unwrap(), Some(Rate::per(2, LONG)), "nothing was changed");
    let client = on.client().await;
    assert_eq!(client.rate_limiter("").try_acquire(1).await.unwrap_err().kind(), ErrorKind::InvalidName);
    assert_eq!(client.rate_limiter("a}b").try_acquire(1).await.unwrap_err().kind(), ErrorKind::InvalidName);
}

pub(crate) async fn without_a_rate_requests_are_errors(on: Fixture) {
    let limiter = on.client().await.rate_limiter(on.name("r"));
    for error in [
        soon("the refusal", limiter.acquire(1)).await.unwrap_err(),
        limiter.try_acquire(1).await.unwrap_err(),
        soon("the refusal", limiter.acquire_for(1, LONG)).await.unwrap_err(),
        limiter.release(1).await.unwrap_err(),
        limiter.available().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
        assert!(error.to_string().contains("set a rate first") && error.lock().is_some(), "{error}");
    }
    assert_eq!(limiter.config().await.unwrap(), None);
    assert!(!limiter.update(Rate::per(1, LONG)).await.unwrap());
    assert!(!limiter.delete().await.unwrap());
    assert_eq!(limiter.config().await.unwrap(), None, "none of that created it");
}

/// [testConcurrency, testConcurrency2]
pub(crate) async fn takers_of_all_clients_together_keep_to_the_rate(on: Fixture) {
    const RATE: usize = 7;
    const INTERVAL: Duration = ms(150);
    let first = limiter(&on, Rate::per(RATE as u32, INTERVAL)).await;
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let client = on.client().await;
        for _ in 0..4 {
            let limiter = client.rate_limiter(on.name("r"));
            tasks.push(tokio::spawn(async move {
                let mut grants = Vec::new();
                while grants.len() < 5 {
                    let sent = Instant::now();
                    if limiter.try_acquire(1).await.unwrap() {
                        grants.push((sent, Instant::now()));
                    } else {
                        tokio::time::sleep(ms(3)).await;
                    }
                }
                grants
            }));
        }
    }
    let mut grants = Vec::new();
    for task in tasks {
        grants.extend(soon("each grant", task).await.unwrap());
    }
    grants.sort_by_key(|(_, received)| *received);
    // The server granted somewhere between the two moments, so no set of one grant too many may fit into an interval.
    for window in grants.windows(RATE + 1) {
        let sent = window.iter().map(|(sent, _)| *sent).min().unwrap();
        let received = window[RATE].1;
        // The server counts in whole milliseconds.
        assert!(received - sent + ms(1) >= INTERVAL, "{:?} for {}", received - sent, RATE + 1);
    }
    assert!(first.available().await.unwrap() <= RATE as i64);
}

/// [testConcurrency with waiting]
pub(crate) async fn waiters_are_all_served_in_time_and_not_before(on: Fixture) {
    const INTERVAL: Duration = ms(100);
    let first = limiter(&on, Rate::per(5, INTERVAL)).await;
    let other = on.client().await.rate_limiter(on.name("r"));
    let start = Instant::now();
    let waiters: Vec<_> = (0..30)
        .map(|n| {
            let limiter = if n % 2 == 0 { first.clone() } else { other.clone() };
            tokio::spawn(async move { limiter.acquire(1).await })
        })
        .collect();
    for waiter in waiters {
        soon("each turn", waiter).await.unwrap().unwrap();
    }
    assert!(
        start.elapsed() >= INTERVAL * 5,
        "30 take six intervals, the first for nothing: {:?}",
        start.elapsed()
    );
}

/// [testRateConfig, testUpdateRateConfig]
pub(crate) async fn the_rate_in_force_is_seen_by_all(on: Fixture) {
    let (ours, theirs) =
        (on.client().await.rate_limiter(on.name("r")), on.client().await.rate_limiter(on.name("r")));
    let rates = [
        Rate::per(5, ms(2_000)),
        Rate::per(i32::MAX as u32, ms(1)).per_client(),
        Rate::per(1, LONG).keep_alive(LONG),
        Rate::per(1, LONG).per_client().overall(),
    ];
    assert!(ours.set_if_absent(rates[0]).await.unwrap());
    assert!(!theirs.set_if_absent(rates[1]).await.unwrap(), "only the first sets");
    assert_eq!(theirs.config().await.unwrap(), Some(rates[0]));
    for rate in rates {
        ours.set(rate).await.unwrap();
        assert_eq!(theirs.config().await.unwrap(), Some(rate));
    }
    for rate in rates {
        assert!(theirs.update(rate).await.unwrap());
        assert_eq!(ours.config().await.unwrap(), Some(rate));
    }
}

/// [testSetStateArgs*, testChangeRate]
pub(crate) async fn setting_a_rate_forgets_what_was_taken(on: Fixture) {
    let limiter = limiter(&on, Rate::per(5, LONG)).await;
    limiter.acquire(5).await.unwrap();
    assert!(!limiter.set_if_absent(Rate::per(9, LONG)).await.unwrap());
    assert_eq!(limiter.available().await.unwrap(), 0, "a set that was refused changes nothing");
    limiter.set(Rate::per(3, LONG)).await.unwrap();
    assert_eq!(limiter.available().await.unwrap(), 3);
    limiter.acquire(3).await.unwrap();
    assert!(!limiter.try_acquire(1).await.unwrap());
    limiter.set(Rate::per(3, LONG).per_client()).await.unwrap();
    limiter.acquire(3).await.unwrap();
    limiter.set(Rate::per(3, LONG).per_client()).await.unwrap();
    assert_eq!(limiter.available().await.unwrap(), 3, "our own count too");
}

/// [testUpdateRate*]
pub(crate) async fn updating_a_rate_remembers_what_was_taken(on: Fixture) {
    let limiter = limiter(&on, Rate::per(5, LONG)).await;
    assert!(limiter.update(Rate::per(6, LONG)).await.unwrap());
    assert_eq!(limiter.available().await.unwrap(), 6, "nothing was taken yet");
    limiter.acquire(3).await.unwrap();
    limiter.acquire(1).await.unwrap();
    for (rate, free) in [(10, 6), (4, 0), (1, -3), (5, 1)] {
        assert!(limiter.update(Rate::per(rate, LONG)).await.unwrap());
        assert_eq!(limiter.available().await.unwrap(), free, "of {rate}");
        assert_eq!(limiter.try_acquire(1).await.unwrap(), free > 0);
        if free > 0 {
            assert_eq!(limiter.release(1).await.unwrap(), 1);
        }
    }
    assert_eq!(limiter.available().await.unwrap(), 1);
    // What is older than the new interval does not count any more.
    tokio::time::sleep(ms(60)).await;
    assert!(limiter.update(Rate::per(5, ms(50))).await.unwrap());
    assert_eq!(limiter.available().await.unwrap(), 5);
    limiter.set(Rate::per(5, LONG)).await.unwrap();
    limiter.acquire(5).await.unwrap();
    assert!(limiter.update(Rate::per(5, LONG).per_client()).await.unwrap());
    assert_eq!(limiter.available().await.unwrap(), 5, "another kind starts anew");
}

/// [testAvailablePermits, testRelease]
pub(crate) async fn what_is_given_back_is_free_once_and_never_more_than_the_rate(on: Fixture) {
    let limiter = limiter(&on, Rate::per(5, LONG)).await;
    assert_eq!(limiter.available().await.unwrap(), 5);
    assert_eq!(limiter.release(2).await.unwrap(), 0, "nothing is taken");
    assert_eq!(limiter.available().await.unwrap(), 5);
    limiter.acquire(1).await.unwrap();
    limiter.acquire(3).await.unwrap();
    // One of the three goes with the one before: the rest of the grant stays.
    assert_eq!(limiter.release(2).await.unwrap(), 2);
    assert_eq!(limiter.available().await.unwrap(), 3);
    assert!(!limiter.try_acquire(4).await.unwrap());
    assert_eq!(limiter.release(100).await.unwrap(), 2);
    assert_eq!(limiter.available().await.unwrap(), 5);
    limiter.set(Rate::per(2, ms(300))).await.unwrap();
    limiter.acquire(2).await.unwrap();
    limiter.release(2).await.unwrap();
    tokio::time::sleep(ms(150)).await;
    let start = Instant::now();
    limiter.acquire(2).await.unwrap();
    // The first two would be old by now, but they were given back already.
    tokio::time::sleep(ms(160)).await;
    let third = limiter.try_acquire(1).await.unwrap();
    assert!(!third || start.elapsed() >= ms(290), "given back twice");
}

pub(crate) async fn a_rate_for_each_client_is_each_ones_own(on: Fixture) {
    let ours = limiter(&on, Rate::per(2, LONG).per_client()).await;
    let theirs = on.client().await.rate_limiter(on.name("r"));
    ours.acquire(2).await.unwrap();
    assert!(!ours.try_acquire(1).await.unwrap());
    theirs.acquire(1).await.unwrap();
    assert_eq!((ours.available().await.unwrap(), theirs.available().await.unwrap()), (0, 1));
    ours.release(1).await.unwrap();
    assert_eq!((ours.available().await.unwrap(), theirs.available().await.unwrap()), (1, 1));
}

/// A client that asked steadily went on at the old rate when another one had lowered it.
pub(crate) async fn a_rate_for_each_client_that_another_one_changes_counts_from_the_next_request(
    on: Fixture,
) {
    let each = |permits| Rate::per(permits, LONG).per_client();
    let ours = limiter(&on, each(10)).await;
    let theirs = on.client().await.rate_limiter(on.name("r"));
    theirs.acquire(1).await.unwrap();
    theirs.acquire(3).await.unwrap();
    let counts = async |free, case: &str| {
        assert_eq!(theirs.available().await.unwrap(), free, "{case}");
        assert_eq!(theirs.try_acquire(1).await.unwrap(), free > 0, "{case}");
        if free > 0 {
            assert_eq!(theirs.release(1).await.unwrap(), 1);
        }
    };
    for (rate, free) in [(20, 16), (4, 0), (2, -2), (5, 1)] {
        assert!(ours.update(each(rate)).await.unwrap());
        counts(free, &format!("of {rate}")).await;
    }
    ours.set(each(6)).await.unwrap();
    counts(2, "only our own count is forgotten").await;
    assert!(ours.delete().await.unwrap() && ours.set_if_absent(each(3)).await.unwrap());
    counts(-1, "and stays with a limiter that was deleted").await;
    assert_eq!(theirs.release(9).await.unwrap(), 4);
    assert_eq!(theirs.available().await.unwrap(), 3);
}

/// [testKeepAliveTime]
pub(crate) async fn a_rate_limiter_without_requests_is_forgotten(on: Fixture) {
    let limiter = limiter(&on, Rate::per(100, ms(100)).keep_alive(ms(2_500))).await;
    let start = Instant::now();
    while start.elapsed() < ms(3_000) {
        limiter.try_acquire(1).await.unwrap();
        tokio::time::sleep(ms(20)).await;
    }
    assert!(limiter.config().await.unwrap().is_some(), "requests keep it alive");
    soon("its end", async {
        while limiter.config().await.unwrap().is_some() {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    assert_eq!(limiter.try_acquire(1).await.unwrap_err().kind(), ErrorKind::NotInitialised);
}

/// [testRemove]
pub(crate) async fn a_deleted_rate_limiter_ends_its_waiters(on: Fixture) {
    let limiter = limiter(&on, Rate::per(1, LONG)).await;
    limiter.acquire(1).await.unwrap();
    let waiting = limiter.clone();
    let waiter = tokio::spawn(async move { waiting.acquire(1).await });
    tokio::time::sleep(ms(50)).await;
    assert!(!waiter.is_finished());
    assert!(limiter.delete().await.unwrap());
    assert!(!limiter.delete().await.unwrap());
    let error = soon("the next look", waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
    assert!(limiter.set_if_absent(Rate::per(1, LONG)).await.unwrap());
    assert!(limiter.try_acquire(1).await.unwrap(), "nothing is left of the old one");
}

pub(crate) async fn a_waiter_learns_of_a_new_rate(on: Fixture) {
    let limiter = limiter(&on, Rate::per(1, LONG)).await;
    limiter.acquire(1).await.unwrap();
    let waiting = limiter.clone();
    let waiter = tokio::spawn(async move { waiting.acquire(1).await });
    tokio::time::sleep(ms(50)).await;
    assert!(!waiter.is_finished());
    assert!(limiter.update(Rate::per(2, LONG)).await.unwrap());
    soon("the next look", waiter).await.unwrap().unwrap();
}

pub(crate) async fn a_dropped_acquire_gives_its_permits_back(on: Fixture) {
    let client = on.client().await;
    let limiter = client.rate_limiter(on.name("r"));
    limiter.set_if_absent(Rate::per(2, LONG)).await.unwrap();
    for _ in 0..50 {
        let mut acquire = Box::pin(limiter.acquire(2));
        // Polled once, so that the request is on its way, and dropped before its answer is read.
        let polled = futures_util::poll!(acquire.as_mut());
        drop(acquire);
        if polled.is_ready() {
            limiter.release(2).await.unwrap();
        }
    }
    soon("the permits", async {
        while client.stats().background_jobs > 0 || limiter.available().await.unwrap() != 2 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

pub(crate) async fn shutting_down_ends_the_wait(on: Fixture) {
    let client = on.client().await;
    let limiter = client.rate_limiter(on.name("r"));
    limiter.set_if_absent(Rate::per(1, LONG)).await.unwrap();
    limiter.acquire(1).await.unwrap();
    let waiting = limiter.clone();
    let waiter = tokio::spawn(async move { waiting.acquire(1).await });
    tokio::time::sleep(ms(50)).await;
    client.shutdown(ms(2_000)).await;
    let error = soon("the end of the wait", waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert_eq!(limiter.try_acquire(1).await.unwrap_err().kind(), ErrorKind::Closed);
}

pub(crate) async fn a_name_of_something_else_is_left_alone(on: Fixture) {
    let client = on.client().await;
    let held = on.name("lock");
    let guard = client.lock(held.as_str()).lock().await.unwrap();
    client.set_stock(on.name("stock"), 3).await.unwrap();
    for (name, kind) in [(held, ErrorKind::WrongLockKind), (on.name("stock"), ErrorKind::WrongType)] {
        let limiter = client.rate_limiter(name);
        for error in [
            limiter.set_if_absent(Rate::per(1, LONG)).await.unwrap_err(),
            limiter.set(Rate::per(1, LONG)).await.unwrap_err(),
            limiter.update(Rate::per(1, LONG)).await.unwrap_err(),
            limiter.acquire(1).await.unwrap_err(),
            limiter.release(1).await.unwrap_err(),
            limiter.available().await.unwrap_err(),
            limiter.config().await.unwrap_err(),
            limiter.delete().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
    assert_eq!(client.stock(on.name("stock")).await.unwrap(), Some(3));
    guard.unlock().await.unwrap();
}

pub(crate) async fn a_blocking_rate_limiter(on: Fixture) {
    let (builder, name) = (on.builder(), on.name("r"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let limiter = client.rate_limiter(name);
        let rate = Rate::per(2, ms(300));
        assert!(limiter.set_if_absent(rate).unwrap());
        assert_eq!(limiter.config().unwrap(), Some(rate));
        let start = Instant::now();
        limiter.acquire(2).unwrap();
        assert!(!limiter.acquire_for(1, ms(0)).unwrap() || start.elapsed() >= ms(300));
        limiter.acquire(1).unwrap();
        assert!(start.elapsed() >= ms(300));
        limiter.set(Rate::per(3, LONG)).unwrap();
        assert!(limiter.try_acquire(3).unwrap() && !limiter.try_acquire(1).unwrap());
        assert!(limiter.update(Rate::per(4, LONG)).unwrap());
        assert_eq!((limiter.available().unwrap(), limiter.release(2).unwrap()), (1, 2));
        assert!(limiter.delete().unwrap());
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}
