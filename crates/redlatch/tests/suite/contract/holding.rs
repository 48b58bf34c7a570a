use std::time::{Duration, Instant};

use redlatch::{ErrorKind, Force, Forced, Lease, LossReason, Unlocked, Wait, WithError};

use crate::fixture::{Fixture, LATE, NEXT_RENEWAL, RENEWED, awake, ms, renewed, soon};

pub(crate) async fn a_fixed_lease_ends_and_its_holder_is_told(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let start = Instant::now();
    let guard = on.lock(&a, name.as_str()).lock_with_lease(ms(400)).await.unwrap();
    let lost = soon("the announcement", guard.lost()).await;
    let told = awake(start);
    assert_eq!(lost, LossReason::Expired);
    assert!(told < ms(400) + LATE, "{told:?}");
    assert!(!guard.is_valid());
    let next = soon("the next grant", on.lock(&b, name.as_str()).lock()).await.unwrap();
    // The holder's own deadline is 10 ms before the server's, and a kind may give up what is over then.
    assert!(start.elapsed() >= ms(390), "granted before the lease was over: {:?}", start.elapsed());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Expired));
    assert!(next.is_valid(), "a late unlock harms nobody");
    assert!(on.lock(&b, name.as_str()).is_locked().await.unwrap());
}

pub(crate) async fn renewal_holds_a_lock_for_many_leases(on: Fixture) {
    let (a, b) = (on.brisk(RENEWED).await, on.client().await);
    let guard = on.lock(&a, on.name("x")).lock().await.unwrap();
    let lock = on.lock(&b, on.name("x"));
    // The fourth comes when the first lease is over.
    renewed(4, async || {
        assert!(guard.is_valid());
        assert!(lock.try_lock().await.unwrap().is_none(), "the lock slipped");
        lock.remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

/// What a holder waits with is the program's own code. The background thread ended with it, and with it the renewal of every lock of the client, and
/// nobody was told.
pub(crate) async fn a_waker_that_panics_costs_no_other_holder_its_lock(on: Fixture) {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: std::sync::Arc<Self>) {
            // Without the hook, which would look for the lines of a backtrace for seconds, on the thread that renews.
            std::panic::resume_unwind(Box::new("the program's own fault"));
        }
    }
    fn waits_for(lost: &mut std::pin::Pin<Box<impl Future>>) {
        let waker = std::task::Waker::from(std::sync::Arc::new(Panics));
        assert!(lost.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    }
    let (a, b) = (on.brisk(RENEWED).await, on.client().await);
    // One is over at its deadline, and one is found gone when it is renewed; in both cases others are at the same moment.
    let (over, gone) = (on.name("over"), on.name("gone"));
    let gone = on.lock(&a, gone.as_str()).lock().await.unwrap();
    let guard = on.lock(&a, on.name("x")).lock().await.unwrap();
    // Last, so that it is waited for before it is over.
    let over = on.lock(&a, over.as_str()).lock_with_lease(RENEWED).await.unwrap();
    let (mut over_lost, mut gone_lost) = (Box::pin(over.lost()), Box::pin(gone.lost()));
    waits_for(&mut over_lost);
    waits_for(&mut gone_lost);
    assert!(on.lock(&b, gone.name()).force_unlock().await.unwrap());
    soon("both losses", async {
        while over.is_valid() || gone.is_valid() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    // Those of its own process get what was lost, like any.
    let name = over.name().to_owned();
    soon("the next hold", on.lock(&a, name).lock()).await.unwrap().unlock().await.unwrap();
    let lock = on.lock(&b, on.name("x"));
    renewed(4, async || {
        assert!(guard.is_valid());
        assert!(lock.try_lock().await.unwrap().is_none(), "the lock slipped");
        lock.remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    // What comes later is watched, too.
    let later = on.lock(&a, on.name("later")).lock_with_lease(ms(200)).await.unwrap();
    soon("its loss", later.lost()).await;
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

pub(crate) async fn renewal_stops_with_the_guard(on: Fixture) {
    let (a, b) = (on.brisk(ms(300)).await, on.client().await);
    let name = on.name("x");
    for _ in 0..5 {
        let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
        tokio::time::sleep(ms(130)).await;
        drop(guard);
        let taken = soon("the release", on.lock(&b, name.as_str()).lock_with_lease(ms(5_000))).await.unwrap();
        tokio::time::sleep(ms(150)).await;
        assert!(taken.is_valid());
        taken.unlock().await.unwrap();
    }
    assert!(!on.lock(&b, name.as_str()).is_locked().await.unwrap());
}

pub(crate) async fn the_same_owner_enters_again(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let lock = on.lock(&a, on.name("x"));
    let outer = lock.lock().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    let innermost = inner.reenter().await.unwrap();
    assert_eq!(lock.hold_count(outer.owner()).await.unwrap(), 3);
    assert_eq!(outer.hold_count(), 3);
    assert!(lock.is_held_by(outer.owner()).await.unwrap());
    assert!(!lock.is_held_by(&b.owner()).await.unwrap());
    assert_eq!(outer.unlock().await.unwrap(), Unlocked::StillHeld(2), "holds are given back in any order");
    assert_eq!(innermost.unlock().await.unwrap(), Unlocked::StillHeld(1));
    assert!(inner.is_valid());
    assert!(on.lock(&b, on.name("x")).try_lock().await.unwrap().is_none());
    assert_eq!(inner.unlock().await.unwrap(), Unlocked::Released);
    assert!(on.lock(&b, on.name("x")).try_lock().await.unwrap().is_some());
}

pub(crate) async fn one_owner_of_two_processes_holds_twice(on: Fixture) {
    let (a, b, stranger) = (on.client().await, on.client().await, on.client().await);
    let name = on.name("x");
    for round in 0..50 {
        let owner = a.owner();
        let told = owner.to_text().parse().unwrap();
        let (here, there) = (on.lock(&a, name.as_str()), on.lock(&b, name.as_str()));
        let one = tokio::spawn(async move { here.acquire().owner(&owner).wait(Wait::Forever).await });
        let two = there.acquire().owner(&told).wait(Wait::Forever);
        let (one, two) = soon("both", async { tokio::join!(one, two) }).await;
        let (one, two) = (one.unwrap().unwrap().unwrap(), two.unwrap().unwrap());
        let lock = on.lock(&stranger, name.as_str());
        assert_eq!(lock.hold_count(one.owner()).await.unwrap(), 2, "round {round}");
        let (first, last) = if round % 2 == 0 { (one, two) } else { (two, one) };
        assert_eq!(first.unlock().await.unwrap(), Unlocked::StillHeld(1));
        assert!(last.is_valid());
        assert!(lock.try_lock().await.unwrap().is_none(), "round {round}: a stranger beside a valid hold");
        assert_eq!(last.unlock().await.unwrap(), Unlocked::Released);
    }
    assert!(!on.lock(&stranger, name.as_str()).is_locked().await.unwrap());
}

pub(crate) async fn a_hold_that_was_entered_elsewhere_is_not_shortened(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let lock = on.lock(&a, on.name("x"));
    let outer = lock.lock().await.unwrap();
    let owner = outer.owner().to_text().parse().unwrap();
    // Another process enters with the owner that it was told, and counts on its lease.
    let inner = on.lock(&b, on.name("x")).acquire().owner(&owner).await.unwrap().unwrap();
    assert!(outer.detach_for(ms(5_000)).await.unwrap());
    let left = on.lock(&b, on.name("x")).remaining_ttl().await.unwrap().unwrap();
    assert!(left > ms(9_000), "{left:?}");
    assert!(inner.is_valid());
}

pub(crate) async fn an_owner_value_enters_from_another_task(on: Fixture) {
    let client = on.client().await;
    let (owner, other) = (client.owner(), client.owner());
    let lock = on.lock(&client, on.name("x"));
    let outer = lock.acquire().owner(&owner).await.unwrap().unwrap();
    let again = lock.clone();
    let inner = tokio::spawn(async move { again.acquire().owner(&owner).await.unwrap() }).await.unwrap();
    let inner = inner.expect("the same owner is never kept out");
    assert!(lock.acquire().owner(&other).await.unwrap().is_none());
    assert_eq!(lock.hold_count(outer.owner()).await.unwrap(), 2);
    drop(outer);
    assert!(inner.is_valid());
    inner.unlock().await.unwrap();
}

pub(crate) async fn a_short_inner_hold_does_not_cut_the_outer_one(on: Fixture) {
    let client = on.client().await;
    let owner = client.owner();
    let lock = on.lock(&client, on.name("x"));
    let outer = lock.acquire().owner(&owner).lease(Lease::Fixed(ms(20_000))).await.unwrap().unwrap();
    let inner = lock.acquire().owner(&owner).lease(Lease::Fixed(ms(200))).await.unwrap().unwrap();
    assert!(lock.remaining_ttl().await.unwrap().unwrap() > ms(15_000));
    inner.unlock().await.unwrap();
    assert!(lock.remaining_ttl().await.unwrap().unwrap() > ms(15_000));
    assert!(outer.is_valid());
}

pub(crate) async fn a_forced_unlock_is_announced_to_the_holder(on: Fixture) {
    // Renewed so rarely that nothing but the news can tell.
    let (a, b) = (on.brisk(Duration::from_secs(600)).await, on.client().await);
    let name = on.name("x");
    assert!(!on.lock(&b, name.as_str()).force_unlock().await.unwrap(), "nobody holds it");
    let freed = on.lock(&a, name.as_str()).lock().await.unwrap();
    let other = on.name("other");
    let passed = on.lock(&a, other.as_str()).lock().await.unwrap();
    assert!(on.lock(&b, other.as_str()).force_unlock().await.unwrap());
    let taken = on.lock(&b, other.as_str()).try_lock().await.unwrap().unwrap();
    assert!(on.lock(&b, name.as_str()).force_unlock().await.unwrap());
    let forced = LossReason::Forced { by: b.id().to_owned(), reason: None };
    assert_eq!(soon("the announcement", freed.lost()).await, forced);
    assert_eq!(soon("the announcement", passed.lost()).await, forced, "also after it was passed on");
    assert!(taken.is_valid());
}

/// The lease is so long that no renewal tells.
pub(crate) async fn the_holder_learns_at_once_who_forced_its_lock_free_and_why(on: Fixture) {
    let (a, b) =
        (on.brisk(Duration::from_secs(600)).await, on.builder().client_name("ops").connect().await.unwrap());
    let lock = on.lock(&b, on.name("x"));
    for force in [Force::new(), Force::new().by("anna\u{e9}").reason("it hangs\nsince noon")] {
        for late in [ms(0), ms(1_500)] {
            let held = on.lock(&a, on.name("x")).lock().await.unwrap();
            let fixed = on.lock(&a, on.name("y")).lock_with_lease(Duration::from_secs(600)).await.unwrap();
            // Before and after the hold is watched.
            tokio::time::sleep(late).await;
            let owner = held.owner().to_text();
            assert_eq!(
                lock.force(force.clone().owner("1b671a64-40d5-491e-99b0-da01ff1f3341:1")).await.unwrap(),
                Forced::OtherOwner
            );
            assert!(held.is_valid());
            assert_eq!(lock.force(force.clone().owner(owner)).await.unwrap(), Forced::Released);
            assert_eq!(on.lock(&b, on.name("y")).force(force.clone()).await.unwrap(), Forced::Released);
            for guard in [held, fixed] {
                match soon("the loss", guard.lost()).await {
                    LossReason::Forced { by, reason: Some(why) } => {
                        assert_eq!((by.as_str(), why.as_str()), ("anna\u{e9}", "it hangs\nsince noon"))
                    }
                    LossReason::Forced { by, reason: None } => assert_eq!(by, format!("ops ({})", b.id())),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    // Another hold that ends otherwise is not said to have been forced free.
    let after = on.lock(&a, on.name("x")).lock().await.unwrap();
    after.unlock().await.unwrap();
    for (force, what) in [
        (Force::new().owner(""), "no owner"),
        (Force::new().by(""), "1 to 1,000"),
        (Force::new().reason("x".repeat(1_001)), "1 to 1,000"),
        (Force::new().by("a\nb"), "one line"),
    ] {
        let error = lock.force(force).await.unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidOption && error.to_string().contains(what), "{error}");
    }
}

pub(crate) async fn a_forced_unlock_of_the_shown_owner_only(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    let owner = guard.owner().to_text();
    assert_eq!(
        lock.force_unlock_if("1b671a64-40d5-491e-99b0-da01ff1f3341:1").await.unwrap(),
        Forced::OtherOwner
    );
    assert!(guard.is_valid());
    assert_eq!(lock.force_unlock_if(&owner).await.unwrap(), Forced::Released);
    assert!(!guard.is_valid(), "a client knows at once what it did itself");
    assert_eq!(lock.force_unlock_if(&owner).await.unwrap(), Forced::WasFree);
    assert_eq!(lock.force_unlock_if("").await.unwrap_err().kind(), ErrorKind::InvalidOption);
}

pub(crate) async fn tokens_grow_with_every_grant(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let mut last = 0;
    for client in [&a, &b, &a, &a, &b] {
        let guard = on.lock(client, name.as_str()).acquire().fenced().await.unwrap().unwrap();
        let token = guard.token().expect("a token was asked for");
        assert!(token > last, "{token} after {last}");
        last = token;
        let inner = guard.reenter().await.unwrap();
        assert_eq!(inner.token(), Some(token), "a re-entry keeps the token of its hold");
        inner.unlock().await.unwrap();
        guard.unlock().await.unwrap();
    }
    let plain = on.lock(&a, name.as_str()).lock().await.unwrap();
    assert_eq!(plain.token(), None);
    assert_eq!(a.inspect(name.as_str()).await.unwrap().token, Some(last));
}

pub(crate) async fn extending_moves_the_deadline(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock_with_lease(ms(10_000)).await.unwrap();
    guard.extend(ms(60_000)).await.unwrap();
    assert!(guard.remaining() > ms(50_000));
    assert!(lock.remaining_ttl().await.unwrap().unwrap() > ms(50_000));
    lock.force_unlock().await.unwrap();
    assert_eq!(guard.extend(ms(1_000)).await.unwrap_err().kind(), ErrorKind::Lost);
}

/// Server and holder must agree on the end of a hold: were the server's sooner, two holds could be valid.
pub(crate) async fn a_renewal_does_not_cut_an_extension_short(on: Fixture) {
    let client = on.brisk(RENEWED).await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    guard.extend(ms(60_000)).await.unwrap();
    // Two renewals, which must not show.
    tokio::time::sleep(2 * NEXT_RENEWAL).await;
    assert!(guard.remaining() > ms(50_000));
    assert!(lock.remaining_ttl().await.unwrap().unwrap() > ms(50_000), "{:?}", lock.remaining_ttl().await);
    guard.extend(ms(1_000)).await.unwrap();
    assert!(lock.remaining_ttl().await.unwrap().unwrap() > ms(50_000), "nor does an extension by less");
}

pub(crate) async fn work_is_stopped_when_the_lock_is_lost(on: Fixture) {
    let client = on.brisk(RENEWED).await;
    let lock = client.lock(on.name("x"));
    assert!(lock.acquire().with(async |guard| guard.is_valid()).await.unwrap());
    assert!(!lock.is_locked().await.unwrap());
    let stopped = lock
        .acquire()
        .with(async |_| {
            lock.force_unlock().await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
    assert!(matches!(stopped, Err(WithError::Lost(error)) if error.kind() == ErrorKind::Lost));
    let _held = lock.lock().await.unwrap();
    assert!(matches!(
        lock.acquire().wait(Wait::AtMost(ms(50))).with(async |_| ()).await,
        Err(WithError::Busy)
    ));
}

pub(crate) async fn loss_cancels_the_token(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock_with_lease(ms(300)).await.unwrap();
    let token = guard.loss_token();
    soon("the token", token.cancelled()).await;
    assert!(guard.check().is_err());
    let guard = lock.lock().await.unwrap();
    let token = guard.loss_token();
    guard.unlock().await.unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(100), token.cancelled()).await.is_err(),
        "giving back is no loss"
    );
}
