use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{
    Client, ErrorKind, Lease, LossReason, PermitGuard, PermitLease, PermitSemaphore, Unlocked, Wait, blocking,
};

use super::blocking::aside;
use crate::fixture::{Fixture, IN_VAIN, LATE, RENEWED, ms, renewed, soon, told};

const UNKNOWN: &str = "00112233445566778899aabbccddeeff";

async fn semaphore(on: &Fixture, permits: u32) -> (Client, PermitSemaphore) {
    of(on.client().await, on, permits).await
}

/// The same whose waiters do not look by themselves.
async fn patient(on: &Fixture, permits: u32) -> (Client, PermitSemaphore) {
    of(on.patient().await, on, permits).await
}

async fn of(client: Client, on: &Fixture, permits: u32) -> (Client, PermitSemaphore) {
    let semaphore = client.permit_semaphore(on.name("p"));
    assert!(semaphore.set_if_absent(permits).await.unwrap());
    (client, semaphore)
}

async fn take(semaphore: &PermitSemaphore, n: u32, lease: Duration) -> PermitGuard {
    let got = semaphore.request().permits(n).lease(Lease::Fixed(lease)).await.unwrap();
    got.expect("enough are free")
}

/// free, taken, all
async fn counts(semaphore: &PermitSemaphore) -> (i64, i64, i64) {
    (
        semaphore.available().await.unwrap(),
        semaphore.acquired().await.unwrap(),
        semaphore.total().await.unwrap(),
    )
}

/// Waits until so many permits are free.
async fn free(semaphore: &PermitSemaphore, n: i64) {
    soon("free permits", async {
        while semaphore.available().await.unwrap() != n {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

/// Waits until so many permits are taken.
async fn taken(semaphore: &PermitSemaphore, n: i64) {
    soon("the end of the others", async {
        while semaphore.acquired().await.unwrap() != n {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

fn waiting(semaphore: &PermitSemaphore, n: u32) -> tokio::task::JoinHandle<PermitGuard> {
    let semaphore = semaphore.clone();
    tokio::spawn(async move {
        semaphore.request().permits(n).wait(Wait::Forever).await.unwrap().expect("a wait without limit")
    })
}

/// testTryAcquire, testBlockingAcquire: an id of 32 digits; a waiter passes after a release.
pub(crate) async fn a_permit_has_an_id_and_its_release_wakes_a_waiter(on: Fixture) {
    let (_client, ours) = patient(&on, 1).await;
    let other = on.patient().await;
    let theirs = other.permit_semaphore(on.name("p"));
    let guard = ours.acquire().await.unwrap();
    assert!(guard.id().len() == 32 && guard.id().bytes().all(|digit| digit.is_ascii_hexdigit()), "{guard:?}");
    assert_eq!(guard.ids(), [guard.id()]);
    assert!(guard.is_valid() && guard.remaining() > ms(20_000));
    assert!(theirs.try_acquire().await.unwrap().is_none());
    let waiter = waiting(&theirs, 1);
    tokio::time::sleep(ms(100)).await;
    assert!(!waiter.is_finished());
    let id = guard.id().to_owned();
    assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
    let next = told("the wake-up", waiter).await.unwrap();
    assert_ne!(next.id(), id, "every grant has ids of its own");
    assert_eq!(counts(&ours).await, (0, 1, 1));
    drop(next);
    free(&ours, 1).await;
}

/// testBlockingAcquireMany, testTryAcquireMany, testAcquire, testAcquireAsyncMany.
pub(crate) async fn several_permits_are_taken_together_or_not_at_all(on: Fixture) {
    let (_client, ours) = semaphore(&on, 6).await;
    let three = take(&ours, 3, ms(60_000)).await;
    let mut ids = three.ids();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    assert_eq!(counts(&ours).await, (3, 3, 6));
    assert!(ours.request().permits(4).await.unwrap().is_none(), "all or none");
    assert_eq!(counts(&ours).await, (3, 3, 6));
    let begin = Instant::now();
    assert!(ours.request().permits(4).wait(Wait::AtMost(IN_VAIN)).await.unwrap().is_none());
    assert!(begin.elapsed() >= IN_VAIN - ms(1), "{:?}", begin.elapsed());
    let waiter = waiting(&ours, 4);
    let two = take(&ours, 2, ms(60_000)).await;
    assert_eq!(two.release().await.unwrap(), Unlocked::Released);
    tokio::time::sleep(ms(50)).await;
    assert!(!waiter.is_finished(), "three are not four");
    assert_eq!(three.release().await.unwrap(), Unlocked::Released);
    let four = soon("four permits", waiter).await.unwrap();
    assert_eq!((four.ids().len(), counts(&ours).await), (4, (2, 4, 6)));
}

/// Their guard does not hear of it, and said for half a second that it was valid beside the next holder, or for a third of its lease where the server
/// tells of no changes.
pub(crate) async fn permits_that_a_guard_has_are_not_given_back_by_their_ids(on: Fixture) {
    let (_client, ours) = semaphore(&on, 3).await;
    let guard = take(&ours, 2, ms(60_000)).await;
    let one = take(&ours, 1, ms(60_000)).await;
    let ids = guard.ids();
    let unknown_too = [UNKNOWN, &ids[1]];
    for (id, outcome) in [
        (&ids[1], ours.release(&ids[1]).await),
        (&ids[0], ours.release_all(&[ids[0].to_uppercase()]).await),
        (&ids[1], ours.release_all(&unknown_too).await),
        (&ids[0], ours.update_lease(&ids[0], ms(50)).await.map(drop)),
    ] {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{error}");
        assert!(error.to_string().contains(id) && error.to_string().contains("guard"), "{error}");
    }
    assert!(guard.is_valid() && one.is_valid());
    assert_eq!(counts(&ours).await, (0, 3, 3));
    // Without a guard they are, and those of another guard stay.
    let ids = guard.detach();
    assert!(ours.update_lease(&ids[0], ms(60_000)).await.unwrap());
    ours.release_all(&ids).await.unwrap();
    assert_eq!((counts(&ours).await, one.is_valid()), ((2, 1, 3), true));
    assert_eq!(one.release().await.unwrap(), Unlocked::Released);
}

/// It was valid beside those who took the new permits.
pub(crate) async fn a_guard_is_over_when_its_client_has_deleted_the_permits(on: Fixture) {
    let (_client, ours) = semaphore(&on, 1).await;
    let guard = take(&ours, 1, ms(60_000)).await;
    assert!(ours.delete().await.unwrap());
    assert!(!guard.is_valid());
    assert_eq!(told("the loss", guard.lost()).await, LossReason::Deleted);
    assert!(!ours.delete().await.unwrap());
}

/// testUpdateLeaseTime, testGetLeaseTime.
pub(crate) async fn leases_are_read_and_set_by_id(on: Fixture) {
    let (_client, ours) = semaphore(&on, 3).await;
    let other = on.client().await;
    let theirs = other.permit_semaphore(on.name("p"));
    assert!(!theirs.update_lease(UNKNOWN, ms(5_000)).await.unwrap());
    assert_eq!(theirs.lease_of(UNKNOWN).await.unwrap(), None);
    let guard = take(&ours, 1, ms(5_000)).await;
    let (id, begin) = (guard.id().to_owned(), Instant::now());
    let Some(PermitLease::Ends(left)) = theirs.lease_of(&id).await.unwrap() else { panic!("it has a lease") };
    assert!(left <= ms(5_001) && left + begin.elapsed() + ms(5) > ms(5_000) - LATE, "{left:?}");
    assert!(theirs.update_lease(&id, ms(30_000)).await.unwrap());
    tokio::time::sleep(ms(800)).await;
    let Some(PermitLease::Ends(left)) = theirs.lease_of(&id).await.unwrap() else {
        panic!("it was prolonged")
    };
    assert!(left > ms(20_000) && left < ms(29_500), "{left:?}");
    assert!(theirs.update_lease(&id, ms(40)).await.unwrap());
    tokio::time::sleep(ms(60)).await;
    assert_eq!(theirs.lease_of(&id).await.unwrap(), None);
    assert!(!theirs.update_lease(&id, ms(5_000)).await.unwrap(), "what has ended stays ended");
    assert_eq!(counts(&theirs).await, (3, 0, 3));
    let permanent = ours.request().permanent().await.unwrap().unwrap();
    assert_eq!(theirs.lease_of(permanent.id()).await.unwrap(), Some(PermitLease::Permanent));
    assert_eq!((permanent.remaining(), permanent.is_valid()), (Duration::MAX, true));
    assert_eq!(permanent.extend(ms(1_000)).await.unwrap_err().kind(), ErrorKind::InvalidOption);
    let id = permanent.detach().remove(0);
    assert!(theirs.update_lease(&id, ms(30)).await.unwrap(), "it gets an end");
    free(&theirs, 3).await;
}

/// testNotExistent, and what a semaphore without permits answers otherwise.
pub(crate) async fn permits_that_nobody_set_are_an_error(on: Fixture) {
    let client = on.client().await;
    let ours = client.permit_semaphore(on.name("p"));
    assert_eq!(counts(&ours).await, (0, 0, 0));
    for error in [
        soon("the refusal", ours.acquire()).await.map(drop).unwrap_err(),
        ours.try_acquire().await.map(drop).unwrap_err(),
        soon("the refusal", ours.acquire_for(ms(60_000))).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
        assert!(error.lock().is_some() && error.to_string().contains("set the number of permits"), "{error}");
    }
    assert_eq!(ours.release(UNKNOWN).await.unwrap_err().kind(), ErrorKind::NotOwner);
    assert!(!ours.delete().await.unwrap());
    assert_eq!(counts(&ours).await, (0, 0, 0));
    assert_eq!(ours.add(2).await.unwrap(), 2, "a change creates it");
    drop(ours.acquire().await.unwrap());
    assert_eq!(client.permit_semaphore(on.name("q")).set(2).await.unwrap(), 2, "so does a total");
}

/// testAvailablePermits, testAcquiredPermits, testGetPermits.
pub(crate) async fn counts_follow_leases_that_run_out(on: Fixture) {
    let (_client, ours) = semaphore(&on, 5).await;
    let begin = Instant::now();
    // Long enough for a busy machine to look meanwhile.
    let (two, one) = (take(&ours, 2, ms(2_000)).await, take(&ours, 1, ms(60_000)).await);
    assert_eq!(counts(&ours).await, (2, 3, 5));
    taken(&ours, 1).await;
    assert!(begin.elapsed() >= ms(1_950), "{:?}", begin.elapsed());
    assert_eq!(counts(&ours).await, (4, 1, 5));
    assert!(!two.is_valid() && one.is_valid());
    assert_eq!(two.release().await.unwrap(), Unlocked::AlreadyLost(LossReason::Expired));
    assert_eq!(counts(&ours).await, (4, 1, 5), "they come back once");
}

/// testExpiration.
pub(crate) async fn a_semaphore_that_expires_is_gone_with_its_permits(on: Fixture) {
    let (_client, ours) = semaphore(&on, 2).await;
    let guard = take(&ours, 1, ms(60_000)).await;
    // Long enough for a busy machine to look meanwhile.
    assert!(ours.expire(ms(3_000)).await.unwrap());
    assert_eq!(counts(&ours).await, (1, 1, 2));
    let error =
        soon("the end", ours.request().permits(2).wait(Wait::Forever).into_future()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
    assert_eq!(counts(&ours).await, (0, 0, 0));
    assert_eq!(guard.release().await.unwrap(), Unlocked::AlreadyLost(LossReason::Deleted));
    assert_eq!(counts(&ours).await, (0, 0, 0), "what is given back too late makes no new semaphore");
}

/// testExpire, testExpireTryAcquire.
pub(crate) async fn a_waiter_gets_a_permit_when_its_lease_runs_out(on: Fixture) {
    let (_client, ours) = semaphore(&on, 1).await;
    let other = on.client().await;
    let theirs = other.permit_semaphore(on.name("p"));
    for limited in [false, true] {
        let lost = take(&ours, 1, ms(1_000)).await;
        let (begin, id) = (Instant::now(), lost.id().to_owned());
        let next = if limited {
            soon("the permit", theirs.acquire_for(ms(5_000))).await.unwrap().expect("in time")
        } else {
            soon("the permit", theirs.acquire()).await.unwrap()
        };
        assert!(begin.elapsed() > ms(900), "{:?}", begin.elapsed());
        assert_eq!(ours.release(&id).await.unwrap_err().kind(), ErrorKind::NotOwner, "testReleaseExpired");
        assert_eq!(counts(&ours).await, (0, 1, 1), "it frees nobody else's");
        assert_eq!(next.release().await.unwrap(), Unlocked::Released);
        assert_eq!(soon("the loss", lost.lost()).await, LossReason::Expired);
    }
}

/// testTrySetPermits, testSetPermits, testAddPermits.
pub(crate) async fn the_number_is_set_once_resized_and_changed(on: Fixture) {
    let (_client, ours) = patient(&on, 2).await;
    assert!(!ours.set_if_absent(9).await.unwrap());
    assert_eq!(counts(&ours).await, (2, 0, 2));
    let guard = take(&ours, 2, ms(60_000)).await;
    assert_eq!(ours.set(1).await.unwrap(), -1, "below what is taken");
    assert_eq!(counts(&ours).await, (-1, 2, 1));
    assert!(ours.try_acquire().await.unwrap().is_none());
    assert_eq!(ours.set(4).await.unwrap(), 2);
    assert_eq!(ours.set(4).await.unwrap(), 2);
    assert_eq!(ours.add(-5).await.unwrap(), -3);
    assert_eq!(ours.add(1).await.unwrap(), -2);
    assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
    assert_eq!(counts(&ours).await, (0, 0, 0));
    assert_eq!(ours.set(0).await.unwrap(), 0);
    assert!(ours.try_acquire().await.unwrap().is_none(), "none is not unset");
    // Asking for more than there are is no error: they may become more.
    let waiter = waiting(&ours, 3);
    tokio::time::sleep(ms(50)).await;
    assert_eq!(ours.add(2).await.unwrap(), 2);
    tokio::time::sleep(ms(50)).await;
    assert!(!waiter.is_finished());
    assert_eq!(ours.set(3).await.unwrap(), 3);
    drop(told("the third permit", waiter).await.unwrap());
}

/// testReleaseWithoutPermits, testRelease, testReleaseAsyncMany, testReleaseManyNotExistOrExpired.
pub(crate) async fn permits_are_given_back_by_id_all_or_none(on: Fixture) {
    let (_client, ours) = semaphore(&on, 6).await;
    let other = on.client().await;
    let theirs = other.permit_semaphore(on.name("p"));
    let error = theirs.release(UNKNOWN).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOwner);
    assert!(error.to_string().contains(UNKNOWN) && error.to_string().contains("lease"), "{error}");
    let ids = take(&ours, 5, ms(60_000)).await.detach();
    assert_eq!(counts(&theirs).await, (1, 5, 6), "they live on without a guard");
    theirs.release_all(&ids[..2]).await.unwrap();
    assert_eq!(counts(&theirs).await, (3, 3, 6));
    let error = theirs.release_all(&ids[..2]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOwner, "the second time");
    let mixed = [ids[2].as_str(), UNKNOWN, &ids[3]];
    let error = theirs.release_all(&mixed).await.unwrap_err();
    assert!(error.kind() == ErrorKind::NotOwner && error.to_string().contains(UNKNOWN), "{error}");
    assert_eq!(counts(&theirs).await, (3, 3, 6), "nothing was given back");
    theirs.release(&ids[2].to_uppercase()).await.unwrap();
    theirs.release_all(&[&ids[3], &ids[4]]).await.unwrap();
    assert_eq!(counts(&theirs).await, (6, 0, 6));
}

/// testReleaseManyExpiredDoesNotThrow, testTryReleaseManyExpired.
pub(crate) async fn permits_that_ran_out_come_back_once_however_many_look(on: Fixture) {
    let (_client, ours) = semaphore(&on, 5).await;
    let (brief, long) = (take(&ours, 3, ms(1_000)).await.detach(), take(&ours, 1, ms(60_000)).await.detach());
    tokio::time::sleep(ms(1_020)).await;
    let error = ours.release_all(&[&long[0], &brief[1]]).await.unwrap_err();
    assert!(error.kind() == ErrorKind::NotOwner && error.to_string().contains(&brief[1]), "{error}");
    assert_eq!(counts(&ours).await, (4, 1, 5), "the three came back, the one is still taken");
    ours.release_all(&brief).await.unwrap_err();
    assert_eq!(counts(&ours).await, (4, 1, 5));
}

/// testConcurrency_SingleInstance, testConcurrencyLoop_MultiInstance.
pub(crate) async fn one_leased_permit_excludes(on: Fixture) {
    let (first, ours) = semaphore(&on, 1).await;
    let (inside, entered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for at in 0..4 {
        let client = if at == 0 { first.clone() } else { on.client().await };
        for _ in 0..4 {
            let semaphore = client.permit_semaphore(on.name("p"));
            let (inside, entered) = (inside.clone(), entered.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = semaphore.acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two had one permit");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    entered.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
                }
            }));
        }
    }
    for task in tasks {
        tokio::time::timeout(ms(60_000), task).await.expect("each round").unwrap();
    }
    assert_eq!(entered.load(Ordering::SeqCst), 160);
    assert_eq!(counts(&ours).await, (1, 0, 1));
    assert_eq!(first.stats().names, 0, "nobody holds or waits any more");
}

/// testConcurrencyMultiPermits, testConcurrencyMultiPermits2.
pub(crate) async fn tasks_that_want_one_and_two_of_two_all_get_them(on: Fixture) {
    let (_client, ours) = semaphore(&on, 2).await;
    for wanted in [[2, 2], [1, 2], [2, 1]] {
        let tasks = wanted.map(|n| {
            let semaphore = ours.clone();
            tokio::spawn(async move {
                let guard = semaphore.request().permits(n).wait(Wait::AtMost(ms(2_000))).await.unwrap();
                let guard = guard.expect("within two seconds");
                tokio::time::sleep(ms(20)).await;
                guard.release().await.unwrap();
            })
        });
        for task in tasks {
            soon("its permits", task).await.unwrap();
        }
        assert_eq!(counts(&ours).await, (2, 0, 2));
    }
}

pub(crate) async fn permits_of_one_process_are_held_and_renewed_side_by_side(on: Fixture) {
    let client = on.brisk(RENEWED).await;
    let ours = client.permit_semaphore(on.name("p"));
    ours.set_if_absent(12).await.unwrap();
    let mut guards = Vec::new();
    for n in 1..=4 {
        guards.push(ours.request().permits(n).await.unwrap().expect("twelve are enough"));
    }
    let fixed = take(&ours, 1, ms(300)).await;
    let extended = take(&ours, 1, ms(10_000)).await;
    extended.extend(ms(60_000)).await.unwrap();
    let lost = soon("the end of the fixed lease", fixed.lost());
    renewed(4, async || {
        assert!(guards.iter().all(|guard| guard.is_valid() && guard.loss().is_none()));
        guards.iter().map(PermitGuard::remaining).min().expect("there are four")
    })
    .await;
    assert_eq!(lost.await, LossReason::Expired);
    assert!(extended.is_valid() && extended.remaining() > ms(50_000));
    assert_eq!(counts(&ours).await, (1, 11, 12));
    let dropped = guards.remove(1);
    drop(dropped);
    taken(&ours, 9).await;
    assert_eq!(guards.remove(0).release().await.unwrap(), Unlocked::Released);
    // Without a guard nothing renews them.
    let ids = guards.remove(0).detach();
    assert_eq!((ids.len(), ours.acquired().await.unwrap()), (3, 8));
    taken(&ours, 5).await;
    assert!(guards[0].is_valid());
}

pub(crate) async fn a_guard_is_told_when_its_permits_are_gone(on: Fixture) {
    let client = on.brisk(RENEWED).await;
    let ours = client.permit_semaphore(on.name("p"));
    ours.set_if_absent(4).await.unwrap();
    let (two, one) =
        (ours.request().permits(2).await.unwrap().unwrap(), ours.try_acquire().await.unwrap().unwrap());
    let stop = two.loss_token();
    let other = on.client().await;
    let theirs = other.permit_semaphore(on.name("p"));
    // One of two is gone, so what needed both must stop.
    theirs.release(&two.ids()[1]).await.unwrap();
    assert_eq!(soon("the loss", two.lost()).await, LossReason::Deleted);
    soon("the token", stop.cancelled()).await;
    assert!(!two.is_valid() && two.remaining().is_zero() && one.is_valid());
    assert_eq!(two.extend(ms(1_000)).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(two.release().await.unwrap(), Unlocked::AlreadyLost(LossReason::Deleted));
    taken(&theirs, 1).await;
    assert!(theirs.delete().await.unwrap());
    assert_eq!(soon("the loss", one.lost()).await, LossReason::Deleted);
    assert_eq!(counts(&theirs).await, (0, 0, 0));
}

pub(crate) async fn one_message_wakes_all_who_can_be_served(on: Fixture) {
    let (_client, ours) = patient(&on, 8).await;
    let all = take(&ours, 8, ms(600_000)).await;
    let waiters: Vec<_> = (0..8).map(|_| waiting(&ours, 1)).collect();
    tokio::time::sleep(ms(100)).await;
    all.release().await.unwrap();
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(told("each waiter's permit", waiter).await.unwrap());
    }
    assert_eq!(counts(&ours).await, (0, 8, 8));
}

pub(crate) async fn a_dropped_request_gives_its_permits_back(on: Fixture) {
    let (client, ours) = semaphore(&on, 2).await;
    for _ in 0..50 {
        let mut request = Box::pin(ours.request().permits(2).into_future());
        // Polled once, so that the request is on its way, and dropped before its answer is read.
        let _ = futures_util::poll!(request.as_mut());
        drop(request);
        let mut release = Box::pin(ours.release(UNKNOWN));
        let _ = futures_util::poll!(release.as_mut());
    }
    soon("the permits", async {
        while client.stats().background_jobs > 0 || ours.available().await.unwrap() != 2 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert_eq!((counts(&ours).await, client.stats().names), ((2, 0, 2), 0));
}

pub(crate) async fn numbers_leases_and_ids_out_of_range_are_refused(on: Fixture) {
    let (client, ours) = semaphore(&on, 5).await;
    let zero = Lease::Fixed(Duration::ZERO);
    let many: Vec<&str> = vec![UNKNOWN; 1_001];
    for error in [
        ours.request().permits(0).await.map(drop).unwrap_err(),
        ours.request().permits(1_001).await.map(drop).unwrap_err(),
        ours.request().lease(zero).await.map(drop).unwrap_err(),
        ours.set_if_absent(0).await.map(drop).unwrap_err(),
        ours.set(u32::MAX).await.map(drop).unwrap_err(),
        ours.add(0).await.map(drop).unwrap_err(),
        ours.expire(Duration::ZERO).await.map(drop).unwrap_err(),
        ours.release("short").await.unwrap_err(),
        ours.release(&UNKNOWN.replace('0', "x")).await.unwrap_err(),
        ours.release_all(&[] as &[&str]).await.unwrap_err(),
        ours.release_all(&many).await.unwrap_err(),
        ours.update_lease(UNKNOWN, Duration::ZERO).await.map(drop).unwrap_err(),
        ours.update_lease("", ms(1_000)).await.map(drop).unwrap_err(),
        ours.lease_of("é".repeat(16).as_str()).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        assert!(error.lock().is_some(), "{error}");
    }
    assert_eq!(counts(&ours).await, (5, 0, 5));
    let most = ours.request().permits(1_000);
    assert!(most.await.unwrap().is_none());
    for name in ["", "a{b"] {
        let error = client.permit_semaphore(name).try_acquire().await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
        let error = client.permit_semaphore(name).update_lease(UNKNOWN, ms(50)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{error}");
    }
    let held = on.name("lock");
    let _guard = client.lock(held.as_str()).lock().await.unwrap();
    let error = client.permit_semaphore(held.as_str()).acquire().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
}

pub(crate) async fn shutting_down_gives_permits_back(on: Fixture) {
    let (client, ours) = semaphore(&on, 3).await;
    let other = on.client().await;
    let theirs = other.permit_semaphore(on.name("p"));
    let (renewed, permanent) =
        (ours.acquire().await.unwrap(), ours.request().permanent().await.unwrap().unwrap());
    let waiting = ours.clone();
    let waiter =
        tokio::spawn(async move { waiting.request().permits(3).wait(Wait::Forever).await.map(drop) });
    tokio::time::sleep(ms(50)).await;
    let report = client.shutdown(ms(2_000)).await;
    assert_eq!((report.released, report.failed.len()), (2, 0));
    let error = soon("the end of the wait", waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    for guard in [renewed, permanent] {
        assert_eq!(soon("the loss", guard.lost()).await, LossReason::Shutdown);
    }
    assert_eq!(counts(&theirs).await, (3, 0, 3));
    assert_eq!(ours.available().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(ours.update_lease(UNKNOWN, ms(1_000)).await.unwrap_err().kind(), ErrorKind::Closed);
}

pub(crate) async fn a_blocking_permit_semaphore(on: Fixture) {
    let (builder, name) = (on.builder(), on.name("p"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let semaphore = client.permit_semaphore(name);
        assert_eq!(semaphore.try_acquire().map(drop).unwrap_err().kind(), ErrorKind::NotInitialised);
        assert!(semaphore.set_if_absent(2).unwrap());
        let guard = semaphore.acquire().unwrap();
        let two = semaphore.request().permits(2);
        assert!(two.wait(Wait::AtMost(IN_VAIN)).run().unwrap().is_none());
        assert!(semaphore.acquire_for(IN_VAIN).unwrap().is_some(), "and dropped at once");
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| semaphore.request().permits(2).wait(Wait::Forever).run());
            std::thread::sleep(ms(50));
            guard.extend(ms(60_000)).unwrap();
            assert_eq!(guard.release().unwrap(), Unlocked::Released);
            let both = taker.join().unwrap().unwrap().expect("a wait without limit");
            assert_eq!(both.lost_within(ms(10)).unwrap(), None);
            let ids = both.detach();
            assert!(semaphore.update_lease(&ids[0], ms(60_000)).unwrap());
            assert!(matches!(semaphore.lease_of(&ids[0]).unwrap(), Some(PermitLease::Ends(_))));
            semaphore.release(&ids[0]).unwrap();
            semaphore.release_all(&ids[1..]).unwrap();
        });
        let token = redlatch::CancellationToken::new();
        token.cancel();
        let cancelled = semaphore.request().permits(9).wait(Wait::Forever).cancel(&token).run();
        assert_eq!(cancelled.map(drop).unwrap_err().kind(), ErrorKind::Cancelled);
        let permanent =
            semaphore.request().permanent().lease(Lease::Renewed).permanent().run().unwrap().unwrap();
        assert!(permanent.is_valid() && permanent.ids() == [permanent.id()]);
        assert_eq!(semaphore.set(5).unwrap(), 4);
        assert_eq!(semaphore.add(-1).unwrap(), 3);
        let found =
            (semaphore.available().unwrap(), semaphore.acquired().unwrap(), semaphore.total().unwrap());
        assert_eq!(found, (3, 1, 4));
        assert!(semaphore.expire(ms(60_000)).unwrap() && semaphore.delete().unwrap());
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}
