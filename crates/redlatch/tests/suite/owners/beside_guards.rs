//! What is done under an owner that has a guard in the same process, and what a shutdown leaves.

use std::future::IntoFuture;

use redlatch::{AnyGuard, Client, ErrorKind, Lease, Wait, scripts};
use redlatch_testkit::proxy::{Action, Gate};

use super::{KINDS, begun, rig, script, stranger, take};
use crate::fixture::{SOON, ms, soon};

/// Fair locks and plain ones have one field on the server and a lane each here: the hold was taken away from a guard that went on saying that it
/// was valid, for as long as 8.5 s.
#[tokio::test]
async fn an_owner_with_a_guard_of_the_other_kind_is_not_adopted() {
    let rig = rig().await;
    let client = &rig.client;
    for (from, to) in [("fair", "plain"), ("fair", "fenced"), ("fair", "spin"), ("plain", "fair")] {
        let (name, owner) = (format!("{from}-{to}"), client.owner());
        let name = name.as_str();
        let held = match from {
            "fair" => client.fair_lock(name).acquire().owner(&owner).await,
            _ => client.lock(name).acquire().owner(&owner).await,
        };
        let held = held.unwrap().unwrap();
        let adopted = match to {
            "fair" => client.fair_lock(name).adopt(&owner, Lease::Renewed).await,
            "fenced" => client
                .fenced_lock(name)
                .adopt(&owner, Lease::Renewed)
                .await
                .map(|guard| guard.map(AnyGuard::into_guard)),
            "spin" => client.spin_lock(name).adopt(&owner, Lease::Renewed).await,
            _ => client.lock(name).adopt(&owner, Lease::Renewed).await,
        };
        assert_eq!(adopted.unwrap_err().kind(), ErrorKind::AlreadyHeld, "{from}, {to}");
        assert!(held.is_valid());
    }
}

/// The guard did not hear of it.
#[tokio::test]
async fn an_owner_with_a_guard_is_not_released_beside_it() {
    let rig = rig().await;
    let owner = rig.client.owner();
    for fair in [false, true] {
        let held = match fair {
            true => rig.client.fair_lock("x").acquire().owner(&owner).await,
            false => rig.client.lock("x").acquire().owner(&owner).await,
        };
        let held = held.unwrap().unwrap();
        for released in
            [rig.client.lock("x").release(&owner).await, rig.client.fair_lock("x").release(&owner).await]
        {
            assert_eq!(released.unwrap_err().kind(), ErrorKind::AlreadyHeld);
        }
        assert!(rig.other.lock("x").try_lock().await.unwrap().is_none() && held.is_valid());
        // Once it is left, it is released by its owner.
        drop(held.detach());
        rig.client.lock("x").release(&owner).await.unwrap();
    }
}

/// One of several holds was counted down, and the lock stayed for its lease, though the report said that it was released.
#[tokio::test]
async fn a_shutdown_leaves_no_hold_of_an_owner_that_was_written_out() {
    for kind in KINDS {
        let rig = rig().await;
        let guard = take(&rig.client, kind).await;
        let guards = [guard.reenter().await.unwrap(), guard.reenter().await.unwrap()];
        let _text = guard.owner().to_text();
        let report = rig.client.clone().shutdown(SOON).await;
        assert!(report.failed.is_empty(), "{kind}: {report:?}");
        assert!(!guard.is_valid() && guards.iter().all(|guard| !guard.is_valid()));
        assert!(stranger(&rig, kind).await, "{kind}: a hold is left");
    }
}

/// An extension that arrived in the owner's next hold kept the lock for its hour, though that hold was over after three seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_extension_does_not_keep_the_next_hold_of_its_owner() {
    let rig = rig().await;
    let (owner, hour) = (rig.client.owner(), ms(3_600_000));
    let lock = rig.client.lock("x");
    let first = lock.acquire().owner(&owner).lease(Lease::Fixed(ms(5_000))).await.unwrap().unwrap();
    let slow = rig.proxy.rule(script(&scripts::RENEW).arg_is("3600000"), Action::DelayRequest(ms(600)));
    let first = std::sync::Arc::new(first);
    let extended = first.clone();
    // Over a connection of another runtime, or what comes after would wait behind it.
    let extending = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            assert!(tokio::time::timeout(ms(150), extended.extend(hour)).await.is_err());
            drop(extended);
            // So that the request is sent on.
            tokio::time::sleep(ms(1_000)).await;
        });
    });
    rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
    let first = soon("the extension is given up", async {
        let mut shared = first;
        loop {
            match std::sync::Arc::try_unwrap(shared) {
                Ok(first) => return first,
                Err(both) => shared = both,
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    first.unlock().await.unwrap();
    let term = Lease::Fixed(ms(1_500));
    let second = lock.acquire().owner(&owner).lease(term).await.unwrap().unwrap();
    tokio::task::spawn_blocking(move || extending.join().unwrap()).await.unwrap();
    soon("the end of the second hold", second.lost()).await;
    let taken = rig.other.lock("x").acquire().wait(Wait::AtMost(SOON)).await.unwrap();
    assert!(taken.is_some(), "the server keeps it for the hour");
}

/// It was renewed for as long as the first hold was granted for: every 33 ms, and lost when the server was silent for 300.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_hold_does_not_live_on_the_lease_of_a_shorter_one() {
    let rig = rig().await;
    let (owner, lock) = (rig.client.owner(), rig.client.lock("x"));
    let term = |lease| lock.acquire().owner(&owner).lease(lease);
    let renewals = |lease_ms| script(&scripts::RENEW).arg_is(lease_ms);
    let too_short = rig.proxy.rule(renewals("1277"), Action::DelayRequest(ms(1)));
    let right = rig.proxy.rule(renewals("2999"), Action::DelayRequest(ms(1)));
    let short = term(Lease::Fixed(ms(1_277))).await.unwrap().unwrap();
    let long = term(Lease::RenewedEvery(ms(2_999))).await.unwrap().unwrap();
    drop(short);
    rig.proxy.wait_fired(right, 2, SOON).await.unwrap();
    assert_eq!(rig.proxy.fired(too_short), 0);
    assert!(long.is_valid());
}

/// It was told as a deleted lock, though the hold was there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_takes_too_long_beside_a_write_hold_is_no_loss() {
    let rig = rig().await;
    let client = Client::builder().url(rig.proxy.url()).response_timeout(ms(300)).connect().await.unwrap();
    let writing = client.read_write_lock("x").write().lock().await.unwrap();
    let reading = writing.read().await.unwrap();
    let gate = Gate::new();
    // The owner is granted nothing until this is answered.
    for asked in [&scripts::READ_RELEASE_ONE, &scripts::READ_RENEW] {
        rig.proxy.rule(script(asked), Action::HoldReplyUntilReleased(gate.clone()));
    }
    drop(reading);
    let error = soon("the read hold", writing.read()).await.unwrap_err();
    // A busy machine may take the silent connection for dead first.
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable), "{error}");
    assert!(writing.is_valid() && writing.loss().is_none());
    gate.release();
    writing.unlock().await.unwrap();
}

/// The read hold that it joined had ended meanwhile, and the guard of that one counted the new read hold down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_of_a_read_hold_that_ends_during_a_downgrade_takes_nothing_along() {
    let rig = rig().await;
    let both = rig.client.read_write_lock("x");
    let writing = both.write().lock().await.unwrap();
    let short = Lease::Fixed(ms(600));
    let besides = both.read().acquire().owner(writing.owner()).lease(short).await.unwrap().unwrap();
    let slow = rig.proxy.rule(script(&scripts::READ_ENTER).nth(1), Action::DelayRequest(ms(1_000)));
    let turning = begun(writing.downgrade());
    rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
    drop(besides);
    let reading = soon("the downgrade", turning).await.unwrap();
    rig.quiet().await;
    assert!(!stranger(&rig, "read").await && reading.is_valid(), "two valid holders");
    reading.unlock().await.unwrap();
    assert!(stranger(&rig, "read").await, "nothing is left");
}

/// The server could not be told of a write hold that went, and it stayed beside the read hold for as long as that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_hold_that_the_server_was_not_told_of_goes_with_the_last_downgrade() {
    let rig = rig().await;
    let client = Client::builder().url(rig.server.url()).response_timeout(ms(300)).connect().await.unwrap();
    let first = client.read_write_lock("x").write().lock().await.unwrap();
    let second = first.reenter().await.unwrap();
    rig.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    soon("the release", second.unlock()).await.unwrap_err();
    rig.server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    let reading = soon("the downgrade", first.downgrade()).await.unwrap();
    let beside = soon("another reader", rig.other.read_write_lock("x").read().lock()).await.unwrap();
    beside.unlock().await.unwrap();
    reading.unlock().await.unwrap();
    assert!(stranger(&rig, "read").await, "nothing is left");
}

/// It looked for a guard, then waited for an attempt of the owner, and ended what that had been granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_by_owner_that_waits_for_an_attempt_takes_nothing_from_its_guard() {
    let rig = rig().await;
    let (owner, lock, gate) = (rig.client.owner(), rig.client.lock("x"), Gate::new());
    let held = rig.proxy.rule(script(&scripts::ACQUIRE), Action::HoldReplyUntilReleased(gate.clone()));
    let acquiring = begun(lock.acquire().owner(&owner).into_future());
    rig.proxy.wait_for(SOON, |log| log.fired(held) > 0).await.unwrap();
    let releasing = begun(lock.release(&owner));
    gate.release();
    let (guard, released) = soon("both", async { tokio::join!(acquiring, releasing) }).await;
    let guard = guard.unwrap().expect("it is free");
    assert_eq!(released.unwrap_err().kind(), ErrorKind::AlreadyHeld);
    assert!(guard.is_valid() && rig.other.lock("x").try_lock().await.unwrap().is_none(), "two valid holders");
    guard.unlock().await.unwrap();
}
