use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use redlatch::{ErrorKind, blocking};

use super::blocking::aside;
use crate::fixture::{Fixture, IN_VAIN, ms, soon, told};

pub(crate) async fn permits_are_taken_and_put_back(on: Fixture) {
    let (client, other) = (on.client().await, on.client().await);
    let ours = client.semaphore(on.name("s"));
    let theirs = other.semaphore(on.name("s"));
    assert!(ours.set_if_absent(10, None).await.unwrap());
    assert!(!theirs.set_if_absent(20, None).await.unwrap(), "only the first sets");
    ours.acquire(3).await.unwrap();
    assert_eq!(theirs.available().await.unwrap(), 7);
    assert!(!theirs.try_acquire(8).await.unwrap(), "all or none");
    assert!(theirs.try_acquire(7).await.unwrap());
    assert_eq!(ours.available().await.unwrap(), 0);
    // Nobody owns a permit: anybody puts it back.
    ours.release(7).await.unwrap();
    assert!(theirs.release_if_exists(1).await.unwrap());
    assert_eq!(ours.drain().await.unwrap(), 8);
    assert_eq!(ours.drain().await.unwrap(), 0);
    assert_eq!(ours.available().await.unwrap(), 0);
    assert_eq!(client.stats().background_jobs, 0);
}

pub(crate) async fn a_semaphore_without_permits_is_an_error_until_a_release(on: Fixture) {
    let client = on.client().await;
    let semaphore = client.semaphore(on.name("s"));
    for error in [
        soon("the refusal", semaphore.acquire(1)).await.unwrap_err(),
        semaphore.try_acquire(1).await.unwrap_err(),
        soon("the refusal", semaphore.acquire_for(1, ms(60_000))).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
        assert!(error.lock().is_some() && error.to_string().contains("set the number of permits"), "{error}");
    }
    assert_eq!(semaphore.available().await.unwrap(), 0);
    assert_eq!(semaphore.drain().await.unwrap(), 0);
    assert!(!semaphore.release_if_exists(1).await.unwrap());
    assert_eq!(semaphore.try_acquire(1).await.unwrap_err().kind(), ErrorKind::NotInitialised);
    // As in Java, a release creates it.
    semaphore.release(1).await.unwrap();
    semaphore.release(1).await.unwrap();
    semaphore.acquire(2).await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 0);
}

pub(crate) async fn a_waiter_gets_its_permits_when_there_are_enough(on: Fixture) {
    // The waiters do not look by themselves.
    let (client, other) = (on.patient().await, on.client().await);
    let (ours, theirs) = (client.semaphore(on.name("s")), other.semaphore(on.name("s")));
    theirs.set_if_absent(1, None).await.unwrap();
    let waiting = ours.clone();
    let waiter = tokio::spawn(async move { waiting.acquire(4).await });
    tokio::time::sleep(ms(50)).await;
    for _ in 0..2 {
        theirs.release(1).await.unwrap();
        tokio::time::sleep(ms(20)).await;
        assert!(!waiter.is_finished(), "three are not four");
    }
    theirs.add(1).await.unwrap();
    told("the fourth permit", waiter).await.unwrap().unwrap();
    assert_eq!(ours.available().await.unwrap(), 0);
    // Several waiters of one process, and one message: nobody sleeps on while permits are free.
    let mut waiters = Vec::new();
    for _ in 0..8 {
        let waiting = ours.clone();
        waiters.push(tokio::spawn(async move { waiting.acquire(1).await }));
    }
    tokio::time::sleep(ms(100)).await;
    theirs.release(8).await.unwrap();
    for waiter in waiters {
        told("each waiter's permit", waiter).await.unwrap().unwrap();
    }
}

pub(crate) async fn a_wait_for_permits_ends_when_its_time_is_up(on: Fixture) {
    let client = on.client().await;
    let semaphore = client.semaphore(on.name("s"));
    semaphore.set_if_absent(1, None).await.unwrap();
    let start = std::time::Instant::now();
    assert!(!semaphore.acquire_for(2, IN_VAIN).await.unwrap());
    assert!(start.elapsed() >= IN_VAIN - ms(1), "{:?}", start.elapsed());
    assert!(semaphore.acquire_for(1, ms(0)).await.unwrap(), "a look needs no time");
    assert!(!semaphore.acquire_for(1, ms(0)).await.unwrap());
}

pub(crate) async fn permits_may_be_owed(on: Fixture) {
    let client = on.client().await;
    let semaphore = client.semaphore(on.name("s"));
    semaphore.set_if_absent(5, None).await.unwrap();
    assert_eq!(semaphore.add(-10).await.unwrap(), -5);
    assert_eq!(semaphore.available().await.unwrap(), -5);
    assert!(!semaphore.try_acquire(1).await.unwrap());
    semaphore.release(6).await.unwrap();
    assert!(semaphore.try_acquire(1).await.unwrap());
    assert_eq!(semaphore.add(-3).await.unwrap(), -3);
    assert_eq!(semaphore.drain().await.unwrap(), -3);
    assert_eq!(semaphore.available().await.unwrap(), 0);
    assert_eq!(client.semaphore(on.name("new")).add(2).await.unwrap(), 2, "a change creates it");
}

pub(crate) async fn one_permit_excludes(on: Fixture) {
    let inside = Arc::new(AtomicUsize::new(0));
    let entered = Arc::new(AtomicUsize::new(0));
    let first = on.client().await;
    first.semaphore(on.name("s")).set_if_absent(1, None).await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let client = on.client().await;
        for _ in 0..2 {
            let semaphore = client.semaphore(on.name("s"));
            let (inside, entered) = (inside.clone(), entered.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    semaphore.acquire(1).await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two had one permit");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    entered.fetch_add(1, Ordering::SeqCst);
                    semaphore.release(1).await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        soon("each round", task).await.unwrap();
    }
    assert_eq!(entered.load(Ordering::SeqCst), 80);
    assert_eq!(first.semaphore(on.name("s")).available().await.unwrap(), 1);
}

pub(crate) async fn a_dropped_acquire_gives_its_permits_back(on: Fixture) {
    let client = on.client().await;
    let semaphore = client.semaphore(on.name("s"));
    semaphore.set_if_absent(2, None).await.unwrap();
    for _ in 0..50 {
        let mut acquire = Box::pin(semaphore.acquire(2));
        // Polled once, so that the request is on its way, and dropped before its answer is read.
        let polled = futures_util::poll!(acquire.as_mut());
        drop(acquire);
        if polled.is_ready() {
            semaphore.release(2).await.unwrap();
        }
        let mut drain = Box::pin(semaphore.drain());
        let polled = futures_util::poll!(drain.as_mut());
        drop(drain);
        if let std::task::Poll::Ready(Ok(permits @ 1..)) = polled {
            semaphore.add(i32::try_from(permits).unwrap()).await.unwrap();
        }
    }
    soon("the permits", async {
        while client.stats().background_jobs > 0 || semaphore.available().await.unwrap() != 2 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    tokio::time::sleep(ms(50)).await;
    assert_eq!(semaphore.available().await.unwrap(), 2, "given back once");
}

pub(crate) async fn numbers_out_of_range_are_refused(on: Fixture) {
    let client = on.client().await;
    let semaphore = client.semaphore(on.name("s"));
    let most = i32::MAX as u32;
    for n in [0, most + 1, u32::MAX] {
        for error in [
            semaphore.acquire(n).await.unwrap_err(),
            semaphore.try_acquire(n).await.unwrap_err(),
            semaphore.acquire_for(n, ms(10)).await.unwrap_err(),
            semaphore.release(n).await.unwrap_err(),
            semaphore.release_if_exists(n).await.unwrap_err(),
            semaphore.set_if_absent(n, None).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        }
    }
    assert_eq!(semaphore.add(0).await.unwrap_err().kind(), ErrorKind::InvalidOption);
    for ttl in [ms(0), std::time::Duration::from_micros(999), std::time::Duration::MAX] {
        let error = semaphore.set_if_absent(1, Some(ttl)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
    assert!(semaphore.set_if_absent(most, None).await.unwrap(), "nothing was set before");
    semaphore.acquire(most).await.unwrap();
    semaphore.release(most).await.unwrap();
    assert_eq!(client.semaphore("").release(1).await.unwrap_err().kind(), ErrorKind::InvalidName);
    client.set_stock(on.name("stock"), 3).await.unwrap();
    let held = on.name("lock");
    let _guard = client.lock(held.as_str()).lock().await.unwrap();
    for error in [
        client.semaphore(held.as_str()).acquire(1).await.unwrap_err(),
        client.semaphore(held.as_str()).release(1).await.unwrap_err(),
        client.semaphore(held.as_str()).drain().await.unwrap_err(),
        client.semaphore(held.as_str()).available().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    }
}

pub(crate) async fn permits_that_expire_end_the_wait(on: Fixture) {
    let client = on.client().await;
    let semaphore = client.semaphore(on.name("s"));
    semaphore.set_if_absent(1, Some(ms(300))).await.unwrap();
    let error = soon("the end of the permits", semaphore.acquire(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
}

pub(crate) async fn deleting_ends_the_wait(on: Fixture) {
    let client = on.client().await;
    let semaphore = client.semaphore(on.name("s"));
    assert!(!semaphore.delete().await.unwrap(), "there is none");
    semaphore.set_if_absent(1, None).await.unwrap();
    let waiting = semaphore.clone();
    let waiter = tokio::spawn(async move { waiting.acquire(2).await });
    tokio::time::sleep(ms(50)).await;
    assert!(semaphore.delete().await.unwrap());
    let error = soon("the end of the wait", waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
    assert_eq!(semaphore.available().await.unwrap(), 0);
    let guard = client.lock(semaphore.name()).lock().await.unwrap();
    assert_eq!(semaphore.delete().await.unwrap_err().kind(), ErrorKind::WrongType);
    assert!(guard.is_valid());
}

pub(crate) async fn shutting_down_ends_the_wait(on: Fixture) {
    let client = on.client().await;
    let semaphore = client.semaphore(on.name("s"));
    semaphore.set_if_absent(1, None).await.unwrap();
    let latch = client.count_down_latch(on.name("l"));
    latch.set_if_absent(1).await.unwrap();
    let (waiting, gate) = (semaphore.clone(), latch.clone());
    let waiters = tokio::spawn(async move { tokio::join!(waiting.acquire(2), gate.wait()) });
    tokio::time::sleep(ms(50)).await;
    client.shutdown(ms(2_000)).await;
    let (permits, passed) = soon("the end of the waits", waiters).await.unwrap();
    assert_eq!(permits.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(passed.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(semaphore.release(1).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(latch.count_down().await.unwrap_err().kind(), ErrorKind::Closed);
}

pub(crate) async fn a_blocking_semaphore_and_latch(on: Fixture) {
    let (builder, semaphore, latch) = (on.builder(), on.name("s"), on.name("l"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let (semaphore, latch) = (client.semaphore(semaphore), client.count_down_latch(latch));
        assert!(semaphore.set_if_absent(1, None).unwrap());
        assert!(latch.set_if_absent(2).unwrap());
        semaphore.acquire(1).unwrap();
        assert!(!semaphore.try_acquire(1).unwrap());
        assert!(!semaphore.acquire_for(1, IN_VAIN).unwrap());
        assert!(!latch.wait_for(IN_VAIN).unwrap());
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| semaphore.acquire(2));
            let passer = scope.spawn(|| latch.wait());
            std::thread::sleep(ms(50));
            semaphore.release(1).unwrap();
            assert!(semaphore.release_if_exists(1).unwrap());
            assert_eq!(latch.count_down().unwrap(), 1);
            assert_eq!(latch.count_down().unwrap(), 0);
            taker.join().unwrap().unwrap();
            passer.join().unwrap().unwrap();
        });
        assert_eq!(semaphore.add(3).unwrap(), 3);
        assert_eq!((semaphore.available().unwrap(), semaphore.drain().unwrap()), (3, 3));
        assert!(semaphore.delete().unwrap());
        assert_eq!((latch.count().unwrap(), latch.delete().unwrap()), (0, false));
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}

/// R9: the one who had the turn to ask was not polled, and the others waited for the turn.
pub(crate) async fn a_waiter_that_is_not_polled_does_not_hold_up_the_others(on: Fixture) {
    let (client, other) = (on.client().await, on.client().await);
    let (ours, theirs) = (client.semaphore(on.name("s")), other.semaphore(on.name("s")));
    theirs.set_if_absent(1, None).await.unwrap();
    theirs.acquire(1).await.unwrap();
    let mut first = Box::pin(ours.acquire(1));
    assert!(tokio::time::timeout(IN_VAIN, &mut first).await.is_err(), "there is none");
    let mut second = Box::pin(ours.acquire(1));
    assert!(futures_util::poll!(&mut second).is_pending());
    let waiting = ours.clone();
    let mut third = Box::pin(async move { waiting.acquire(1).await });
    assert!(futures_util::poll!(&mut third).is_pending());
    // Their requests go before this one, and find none either.
    assert_eq!(ours.available().await.unwrap(), 0);
    let third = tokio::spawn(third);
    theirs.release(1).await.unwrap();
    soon("the permit of the waiter that is polled", third).await.unwrap().unwrap();
    theirs.release(2).await.unwrap();
    soon("the permit of the first", first).await.unwrap();
    soon("the permit of the second", second).await.unwrap();
    assert_eq!(ours.available().await.unwrap(), 0);
}
