//! The promises of the read-write lock on every store; those that Redisson's tests have cases for are in
//! `redisson_read_write.rs`.

use std::time::{Duration, Instant};

use redlatch::{ErrorKind, Lease, LossReason, Owner, Unlocked, Wait, blocking};

use super::blocking::aside;
use crate::fixture::{Fixture, IN_VAIN, LATE, RENEWED, awake, ms, renewed, soon};

pub(crate) async fn a_writer_turns_into_a_reader_and_nobody_writes_in_between(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    for _ in 0..5 {
        let write = ours.write().lock().await.unwrap();
        let owner = write.owner().clone();
        let waiters = [ours.clone(), theirs.clone()].map(|lock| {
            tokio::spawn(async move { lock.write().lock().await.unwrap().unlock().await.unwrap() })
        });
        tokio::time::sleep(ms(30)).await;
        let read = write.downgrade().await.unwrap();
        assert_eq!(*read.owner(), owner);
        let beside = soon("another reader", theirs.read().lock()).await.unwrap();
        tokio::time::sleep(ms(30)).await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "writers wait for readers");
        assert!(!ours.write().is_locked().await.unwrap());
        beside.unlock().await.unwrap();
        assert_eq!(read.unlock().await.unwrap(), Unlocked::Released);
        for waiter in waiters {
            assert_eq!(soon("each writer", waiter).await.unwrap(), Unlocked::Released);
        }
    }
    soon("quiet", async {
        while a.stats().names + b.stats().names > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub(crate) async fn a_downgrade_of_a_hold_that_was_extended_lasts_as_long(on: Fixture) {
    let client = on.client().await;
    let writing = client.read_write_lock(on.name("x")).write().lock_with_lease(ms(5_000)).await.unwrap();
    writing.extend(ms(100_000)).await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    assert!(reading.remaining() > ms(5_000), "{:?}", reading.remaining());
    assert_eq!(reading.unlock().await.unwrap(), Unlocked::Released);
}

pub(crate) async fn a_lost_write_hold_cannot_be_downgraded(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let write = ours.write().lock().await.unwrap();
    theirs.write().force_unlock().await.unwrap();
    assert_eq!(write.downgrade().await.unwrap_err().kind(), ErrorKind::Lost);
    let write = ours.write().lock().await.unwrap();
    theirs.write().force_unlock().await.unwrap();
    let taken = theirs.write().try_lock().await.unwrap().unwrap();
    assert_eq!(write.read().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(taken.is_valid());
    taken.unlock().await.unwrap();
    let write = ours.write().lock_with_lease(ms(100)).await.unwrap();
    tokio::time::sleep(ms(150)).await;
    assert_eq!(write.read().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(write.downgrade().await.unwrap_err().kind(), ErrorKind::Lost);
    soon("quiet", async {
        while a.stats().names + a.stats().background_jobs > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!ours.read().is_locked().await.unwrap() && !ours.write().is_locked().await.unwrap());
}

pub(crate) async fn a_write_hold_with_a_read_hold_beside_is_not_passed_on(on: Fixture) {
    // Turns so long that a waiting task would be handed the lock.
    let client = on.builder().turn_time(ms(60_000)).connect().await.unwrap();
    let lock = client.read_write_lock(on.name("x"));
    let write = lock.write().lock().await.unwrap();
    let read = write.read().await.unwrap();
    let (waiting, owner) = (lock.clone(), client.owner());
    let writer = tokio::spawn(async move {
        let acquire = waiting.write().acquire().owner(&owner).wait(Wait::Forever);
        acquire.await.unwrap().unwrap()
    });
    tokio::time::sleep(ms(30)).await;
    assert_eq!(write.unlock().await.unwrap(), Unlocked::Released);
    tokio::time::sleep(ms(50)).await;
    assert!(!writer.is_finished(), "a reader holds it");
    assert!(read.is_valid() && lock.read().is_held_by(read.owner()).await.unwrap());
    read.unlock().await.unwrap();
    soon("the next writer", writer).await.unwrap().unlock().await.unwrap();
}

pub(crate) async fn a_reader_that_asks_to_write_is_refused(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(on.name("x"));
    let read = lock.read().lock().await.unwrap();
    let upgrade = lock.write().acquire().owner(read.owner()).wait(Wait::Forever);
    let error = soon("the refusal", std::future::IntoFuture::into_future(upgrade)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UpgradeRefused, "{error}");
    assert!(read.is_valid());
    let (builder, name) = (on.builder(), on.name("y"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let lock = client.read_write_lock(name.as_str());
        let read = lock.read().lock().unwrap();
        assert_eq!(lock.write().lock().unwrap_err().kind(), ErrorKind::UpgradeRefused);
        read.unlock().unwrap();
        let write = lock.write().lock().unwrap();
        let nested = lock.read().lock().unwrap();
        let read = write.downgrade().unwrap();
        assert_eq!(lock.read().hold_count().unwrap(), 2);
        assert_eq!(nested.unlock().unwrap(), Unlocked::StillHeld(1));
        assert_eq!(read.unlock().unwrap(), Unlocked::Released);
        let write = lock.write().acquire().lease(Lease::Fixed(ms(1_500))).run().unwrap().unwrap();
        assert_eq!(write.lost_within(ms(30_000)).unwrap(), Some(LossReason::Expired));
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}

pub(crate) async fn waiting_writers_go_first_where_that_is_asked_for(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(on.name("x")).prefer_writers();
    let read = lock.read().lock().await.unwrap();
    assert!(lock.read().try_lock().await.unwrap().is_some(), "nobody wants to write");
    soon("the release", async { while lock.read().remaining_ttl().await.unwrap().is_none() {} }).await;
    let waiting = lock.clone();
    let writer = tokio::spawn(async move { waiting.write().lock().await.unwrap() });
    soon("the writer's place", async {
        while lock.read().try_lock().await.unwrap().is_some() {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await;
    let again = read.reenter().await.expect("a reader may read once more");
    let unasked = client.read_write_lock(on.name("x"));
    assert!(unasked.read().try_lock().await.unwrap().is_some(), "the gate is for those who ask for it");
    let next = lock.clone();
    let reader = tokio::spawn(async move { next.read().lock().await.unwrap() });
    tokio::time::sleep(ms(100)).await;
    assert!(!reader.is_finished(), "the writer is first");
    read.unlock().await.unwrap();
    again.unlock().await.unwrap();
    let write = soon("the writer", writer).await.unwrap();
    assert!(!reader.is_finished());
    let nested =
        soon("a read hold beside", write.read()).await.expect("the gate is not for the writer itself");
    nested.unlock().await.unwrap();
    let another = lock.clone();
    let another = tokio::spawn(async move { another.write().lock().await.unwrap().unlock().await.unwrap() });
    tokio::time::sleep(ms(50)).await;
    let nested = lock.read().acquire().owner(write.owner()).await.unwrap();
    nested.expect("nor when another writer waits").unlock().await.unwrap();
    write.unlock().await.unwrap();
    soon("the other writer", another).await.unwrap();
    soon("the reader", reader).await.unwrap().unlock().await.unwrap();
    // A writer that gives up no longer holds anybody back, and one that never gets in does so for a limited time.
    let other = on.client().await;
    let outside = other.read_write_lock(on.name("x")).read().lock().await.unwrap();
    assert!(lock.write().lock_for(IN_VAIN).await.unwrap().is_none());
    soon("a reader", lock.read().lock()).await.unwrap().unlock().await.unwrap();
    let waiting = lock.clone();
    let writer = tokio::spawn(async move { waiting.write().lock().await.unwrap() });
    tokio::time::sleep(ms(50)).await;
    let start = Instant::now();
    let patient = soon("a reader after a while", lock.read().lock()).await.unwrap();
    assert!(start.elapsed() >= ms(1_995) && awake(start) < ms(2_000) + LATE, "{:?}", start.elapsed());
    patient.unlock().await.unwrap();
    outside.unlock().await.unwrap();
    soon("the writer", writer).await.unwrap().unlock().await.unwrap();
}

pub(crate) async fn writers_that_hand_the_lock_on_let_readers_of_the_same_client_in(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(on.name("x"));
    let begin = Instant::now();
    let goes_on = move || awake(begin) < ms(2_000);
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                let mut writes = 0;
                while goes_on() {
                    let guard = lock.write().lock().await.unwrap();
                    tokio::time::sleep(ms(1)).await;
                    guard.unlock().await.unwrap();
                    writes += 1;
                }
                writes
            })
        })
        .collect();
    let (mut reads, mut longest) = (0, Duration::ZERO);
    while goes_on() {
        let start = Instant::now();
        lock.read().lock().await.unwrap().unlock().await.unwrap();
        longest = longest.max(awake(start));
        reads += 1;
    }
    for writer in writers {
        assert!(soon("a writer's end", writer).await.unwrap() > 0);
    }
    println!("{reads} reads, at most {longest:?} of waiting");
    assert!(reads > 10 && longest < LATE, "{reads} reads, at most {longest:?} of waiting");
}

pub(crate) async fn readers_of_one_client_are_many_leases_and_each_is_told(on: Fixture) {
    let (a, b) = (on.brisk(RENEWED).await, on.client().await);
    let lock = a.read_write_lock(on.name("x"));
    let mut readers = Vec::new();
    for _ in 0..12 {
        readers.push(lock.read().lock().await.unwrap());
    }
    assert_eq!(a.stats().names, 1);
    renewed(2, async || {
        assert!(readers.iter().all(|reader| reader.is_valid()), "all are renewed");
        readers.iter().map(|reader| reader.remaining()).min().expect("there are twelve")
    })
    .await;
    assert!(b.read_write_lock(on.name("x")).write().try_lock().await.unwrap().is_none());
    readers.pop().unwrap().unlock().await.unwrap();
    drop(readers.pop());
    assert!(b.read_write_lock(on.name("x")).read().force_unlock().await.unwrap());
    let _taken = b.read_write_lock(on.name("x")).write().try_lock().await.unwrap().unwrap();
    for reader in &readers {
        let forced = LossReason::Forced { by: b.id().to_owned(), reason: None };
        assert_eq!(soon("the announcement", reader.lost()).await, forced);
    }
    soon("quiet", async {
        while a.stats().names + a.stats().background_jobs > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub(crate) async fn both_sides_are_released_by_a_shutdown(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (one, two) = (a.read_write_lock(on.name("x")), a.read_write_lock(on.name("y")));
    let reads = [one.read().lock().await.unwrap(), one.read().lock().await.unwrap()];
    let write = two.write().lock().await.unwrap();
    let nested = write.read().await.unwrap();
    let report = a.clone().shutdown(Duration::from_secs(5)).await;
    assert_eq!((report.released, report.failed.len()), (4, 0), "{report:?}");
    assert!(reads.iter().all(|read| read.loss() == Some(LossReason::Shutdown)));
    assert_eq!(nested.loss(), Some(LossReason::Shutdown));
    for name in ["x", "y"] {
        assert!(b.read_write_lock(on.name(name)).write().try_lock().await.unwrap().is_some(), "{name}");
    }
}

pub(crate) async fn a_detached_read_hold_is_adopted_elsewhere(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let held = a.read_write_lock(on.name("x")).read().lock_with_lease(ms(20_000)).await.unwrap().detach();
    let owner: Owner = held.owner.to_text().parse().unwrap();
    let lock = b.read_write_lock(on.name("x"));
    assert!(lock.write().try_lock().await.unwrap().is_none());
    assert!(lock.write().adopt(&owner, Lease::Renewed).await.unwrap().is_none(), "it does not write");
    let guard = lock.read().adopt(&owner, Lease::Renewed).await.unwrap().expect("it reads");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let held = a.read_write_lock(on.name("x")).write().lock().await.unwrap().detach();
    let owner: Owner = held.owner.to_text().parse().unwrap();
    assert!(lock.write().renew(&owner, ms(30_000)).await.unwrap());
    let guard = lock.write().adopt(&owner, Lease::Renewed).await.unwrap().expect("it writes");
    let read = guard.downgrade().await.unwrap();
    assert_eq!(read.unlock().await.unwrap(), Unlocked::Released);
    assert!(lock.write().try_lock().await.unwrap().is_some());
}

/// The hash stayed for the longer lease, so that writers waited for a reader that had gone.
pub(crate) async fn a_read_hold_that_is_left_for_less_keeps_writers_out_no_longer(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let left = async || theirs.read().remaining_ttl().await.unwrap().unwrap();
    // Beside another reader.
    let long = ours.read().lock_with_lease(ms(600_000)).await.unwrap();
    let short = theirs.read().lock_with_lease(ms(60_000)).await.unwrap();
    assert!(left().await > ms(500_000));
    assert!(long.detach_for(ms(30_000)).await.unwrap());
    let now = left().await;
    assert!(now > ms(30_000) && now <= ms(60_000), "what the other reader needs: {now:?}");
    // The one that needs the most goes, and the one that was left for a time is what remains.
    assert_eq!(short.unlock().await.unwrap(), Unlocked::Released);
    assert!(left().await <= ms(30_000));
    // Who takes a hold up for less than it had.
    let held = theirs.read().lock_with_lease(ms(600_000)).await.unwrap().detach();
    let owner: Owner = held.owner.to_text().parse().unwrap();
    let taken = ours.read().adopt(&owner, Lease::Fixed(ms(60_000))).await.unwrap().expect("it was left");
    let now = left().await;
    assert!(now > ms(30_000) && now <= ms(60_000), "what the taker needs: {now:?}");
    assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released);
    assert!(left().await <= ms(30_000));
}

/// The re-entry took the hold that was just going for its own, and the downgrade of another one of the three let readers in.
pub(crate) async fn a_reentry_beside_a_guard_that_goes_is_counted(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    for _ in 0..20 {
        let first = ours.write().lock().await.unwrap();
        drop(first.reenter().await.unwrap());
        let third = first.reenter().await.unwrap();
        let reading = first.downgrade().await.unwrap();
        let stranger = theirs.read().try_lock().await.unwrap();
        assert!(!(stranger.is_some() && third.is_valid()), "a reader beside a valid writer");
        assert_eq!(third.unlock().await.unwrap(), redlatch::Unlocked::Released);
        assert_eq!(reading.unlock().await.unwrap(), redlatch::Unlocked::Released);
        assert!(!ours.write().is_locked().await.unwrap());
    }
}
