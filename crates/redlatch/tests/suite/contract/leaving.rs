use std::time::Duration;

use redlatch::{ErrorKind, Lease, LossReason, Owner, Unlocked};

use crate::fixture::{Fixture, RENEWED, ms, renewed, soon};

pub(crate) async fn a_dropped_guard_releases(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    drop(guard);
    drop(soon("the release", on.lock(&b, name.as_str()).lock()).await.unwrap());
}

pub(crate) async fn a_guard_may_be_dropped_on_any_thread(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    std::thread::spawn(move || drop(guard)).join().expect("dropping needs no runtime");
    let next = soon("the release", on.lock(&b, name.as_str()).lock()).await.unwrap();
    drop(next);
    // A runtime that ends takes its tasks with it; their guards are dropped while it shuts down.
    let lock = on.lock(&a, name.as_str());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let guard = lock.lock().await.unwrap();
            tokio::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
        });
    })
    .join()
    .expect("shutting a runtime down under a guard is harmless");
    drop(soon("the release", on.lock(&b, name.as_str()).lock()).await.unwrap());
}

pub(crate) async fn a_panic_releases(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let failing = lock.clone();
    let outcome = tokio::spawn(async move {
        let _guard = failing.lock().await.unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(outcome.await.unwrap_err().is_panic());
    drop(soon("the release", lock.lock()).await.unwrap());
}

pub(crate) async fn a_dropped_wait_leaves_nothing_behind(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    for wait in [0, 1, 3, 10, 40] {
        let _ = tokio::time::timeout(ms(wait), on.lock(&b, name.as_str()).lock()).await;
        let _ = tokio::time::timeout(ms(wait), on.lock(&a, name.as_str()).lock()).await;
    }
    guard.unlock().await.unwrap();
    soon("quiet", async {
        while a.stats().names + b.stats().names + a.stats().background_jobs + b.stats().background_jobs > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!on.lock(&a, name.as_str()).is_locked().await.unwrap(), "nobody who gave up has the lock");
}

pub(crate) async fn unlocking_a_lost_lock_says_so(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    on.lock(&b, name.as_str()).force_unlock().await.unwrap();
    let forced = LossReason::Forced { by: b.id().to_owned(), reason: None };
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(forced));
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    on.lock(&b, name.as_str()).force_unlock().await.unwrap();
    let taken = on.lock(&b, name.as_str()).lock().await.unwrap();
    assert!(matches!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(_)));
    assert!(taken.is_valid() && on.lock(&b, name.as_str()).is_held_by(taken.owner()).await.unwrap());
}

pub(crate) async fn shutting_down_releases_and_tells(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let held = on.lock(&a, name.as_str()).lock().await.unwrap();
    let other = on.lock(&a, on.name("y")).lock().await.unwrap();
    let busy = on.lock(&b, on.name("z")).lock().await.unwrap();
    let (queued, contending) = (on.lock(&a, name.as_str()), on.lock(&a, on.name("z")));
    let queued = tokio::spawn(async move { queued.lock().await.map(|_| ()) });
    let contending = tokio::spawn(async move { contending.lock().await.map(|_| ()) });
    tokio::time::sleep(ms(100)).await;
    let report = a.clone().shutdown(Duration::from_secs(5)).await;
    assert_eq!((report.released, report.failed.len()), (2, 0), "{report:?}");
    for waiter in [queued, contending] {
        assert_eq!(soon("the waiter's end", waiter).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
    assert_eq!(held.loss(), Some(LossReason::Shutdown));
    assert!(matches!(other.unlock().await, Ok(Unlocked::AlreadyLost(LossReason::Shutdown))));
    assert_eq!(on.lock(&a, name.as_str()).try_lock().await.unwrap_err().kind(), ErrorKind::Closed);
    assert!(on.lock(&b, name.as_str()).try_lock().await.unwrap().is_some());
    assert!(busy.is_valid());
}

pub(crate) async fn a_detached_hold_goes_on_and_is_adopted(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let held = on.lock(&a, name.as_str()).lock_with_lease(ms(20_000)).await.unwrap().detach();
    assert!(on.lock(&a, name.as_str()).is_locked().await.unwrap());
    assert_eq!(a.stats().names, 0);
    let owner: Owner = held.owner.to_text().parse().unwrap();
    assert!(on.lock(&b, name.as_str()).renew(&owner, ms(30_000)).await.unwrap());
    let guard = on
        .lock(&b, name.as_str())
        .adopt(&owner, Lease::Renewed)
        .await
        .unwrap()
        .expect("the owner still holds it");
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    assert!(on.lock(&b, name.as_str()).adopt(&owner, Lease::Renewed).await.unwrap().is_none());
    assert!(!on.lock(&b, name.as_str()).renew(&owner, ms(30_000)).await.unwrap());
}

pub(crate) async fn a_hold_that_is_left_for_a_time_lasts_no_longer(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    let owner = guard.owner().clone();
    assert!(guard.detach_for(ms(9_000)).await.unwrap());
    let left = on.lock(&b, name.as_str()).remaining_ttl().await.unwrap().expect("it is held");
    assert!(left <= ms(9_000), "the lease was 30 s: {left:?}");
    assert_eq!(a.stats().names, 0);
    on.lock(&b, name.as_str()).release(&owner).await.unwrap();
    let guard = on.lock(&a, name.as_str()).lock_with_lease(ms(9_000)).await.unwrap();
    assert!(guard.detach_for(ms(30_000)).await.unwrap(), "and no shorter");
    assert!(on.lock(&b, name.as_str()).remaining_ttl().await.unwrap().unwrap() > ms(9_000));
}

pub(crate) async fn releasing_what_is_not_held_is_an_error(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    let error = on.lock(&b, name.as_str()).release(&b.owner()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOwner);
    let text = error.to_string();
    assert!(text.contains(name.as_str()) && text.contains(b.id()), "names lock and owner: {text}");
    assert!(guard.is_valid() && on.lock(&a, name.as_str()).is_locked().await.unwrap());
}

pub(crate) async fn a_dropped_client_leaves_its_guards_alone(on: Fixture) {
    let (a, b) = (on.brisk(RENEWED).await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    drop(a);
    let lock = on.lock(&b, name.as_str());
    // Renewal goes on as long as the guard.
    renewed(1, async || lock.remaining_ttl().await.unwrap().expect("it is held")).await;
    assert!(guard.is_valid());
    assert!(lock.try_lock().await.unwrap().is_none());
    drop(guard);
    drop(soon("the release", on.lock(&b, name.as_str()).lock()).await.unwrap());
}
