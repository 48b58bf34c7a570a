//! The end of a client: it gives back its own holds, each once, and for as long as it may take. Beside it others hold under its owners.

use redlatch::{AnyGuard, Guard, Owner, scripts};
use redlatch_testkit::proxy::{Action, Gate, Nth};

use super::{KINDS, Rig, begun, rig, script, stranger, take};
use crate::fixture::{SOON, ms, soon};

fn renewing(kind: &str) -> &'static scripts::Script {
    match kind {
        "write" => &scripts::WRITE_RENEW,
        "read" => &scripts::READ_RENEW,
        _ => &scripts::RENEW,
    }
}

fn entering(kind: &str) -> &'static scripts::Script {
    match kind {
        "write" => &scripts::WRITE_ENTER,
        "read" => &scripts::READ_ENTER,
        _ => &scripts::ENTER,
    }
}

fn leaving(kind: &str) -> &'static scripts::Script {
    match kind {
        "fair" => &scripts::FAIR_RELEASE_ONE,
        "write" => &scripts::WRITE_RELEASE_ONE,
        "read" => &scripts::READ_RELEASE_ONE,
        _ => &scripts::RELEASE_ONE,
    }
}

/// Another process comes to hold under an owner that it was handed as text.
async fn enter(rig: &Rig, kind: &str, owner: &Owner) -> Guard {
    let handed: Owner = owner.to_text().parse().unwrap();
    let entered = of_kind!(rig.other, kind, lock =>
        lock.acquire().owner(&handed).await.unwrap().map(AnyGuard::into_guard));
    entered.expect("the owner holds it")
}

/// The answer of the extension counted the hold down that the shutdown had given back, and that was the other process's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_is_answered_after_a_shutdown_takes_no_hold_of_another_process() {
    for kind in KINDS {
        let rig = rig().await;
        let guard = take(&rig.client, kind).await;
        let entered = enter(&rig, kind, guard.owner()).await;
        let (extended, released) = (Gate::new(), Gate::new());
        let hold = |script_of, gate: &Gate| {
            rig.proxy.rule(script(script_of).nth(1), Action::HoldReplyUntilReleased(gate.clone()))
        };
        let (extending, releasing) = (hold(renewing(kind), &extended), hold(leaving(kind), &released));
        let extension = tokio::spawn(async move {
            let extension = guard.extend(ms(3_600_000)).await;
            (guard, extension)
        });
        rig.proxy.wait_fired(extending, 1, SOON).await.unwrap();
        let shutdown = tokio::spawn(rig.client.clone().shutdown(SOON));
        rig.proxy.wait_fired(releasing, 1, SOON).await.unwrap();
        extended.release();
        let (_guard, extension) = soon("the answer", extension).await.unwrap();
        assert!(extension.is_err(), "{kind}");
        released.release();
        let report = soon("the end", shutdown).await.unwrap();
        assert_eq!((report.released, report.failed.len()), (1, 0), "{kind}: {report:?}");
        assert!(entered.is_valid() && !stranger(&rig, kind).await, "{kind}: two valid holders");
        entered.unlock().await.unwrap();
        assert!(stranger(&rig, kind).await, "{kind}: nothing is left");
    }
}

/// A guard that had gone just before was forgotten, and its hold stayed for as long as the other process's was renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_about_to_be_given_back_goes_with_a_shutdown_too() {
    for kind in KINDS {
        let rig = rig().await;
        let guard = take(&rig.client, kind).await;
        let entered = enter(&rig, kind, guard.owner()).await;
        let again = guard.reenter().await.unwrap();
        let gate = Gate::new();
        let entering =
            rig.proxy.rule(script(entering(kind)).nth(1), Action::HoldReplyUntilReleased(gate.clone()));
        let entry = tokio::spawn(async move {
            let entry = guard.reenter().await.map(drop);
            (guard, entry)
        });
        rig.proxy.wait_fired(entering, 1, SOON).await.unwrap();
        // Its release waits for the entry.
        drop(again);
        let mut shutdown = Box::pin(rig.client.clone().shutdown(SOON));
        assert!(futures_util::poll!(shutdown.as_mut()).is_pending());
        gate.release();
        let (_guard, entry) = soon("the answer", entry).await.unwrap();
        assert!(entry.is_err(), "{kind}");
        let report = soon("the end", shutdown).await;
        assert_eq!((report.released, report.failed.len()), (1, 0), "{kind}: {report:?}");
        assert!(entered.is_valid() && !stranger(&rig, kind).await, "{kind}: two valid holders");
        entered.unlock().await.unwrap();
        assert!(stranger(&rig, kind).await, "{kind}: nothing is left");
    }
}

/// It gave up with the second try, 35 ms after it had begun, and said that the lease had ended. The lock was nobody's for the rest of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_repeats_its_releases_while_it_may_take_time() {
    let rig = rig().await;
    let _guard = take(&rig.client, "plain").await;
    let lost = rig.proxy.rule(script(&scripts::RELEASE).which(Nth::First(5)), Action::CloseBeforeRequest);
    let report = soon("the end", rig.client.clone().shutdown(SOON)).await;
    assert_eq!((report.released, report.failed.len()), (1, 0), "{report:?}");
    assert_eq!(rig.proxy.fired(lost), 5);
    assert!(stranger(&rig, "plain").await, "nothing is left");
}

/// The same for what an acquire that was given up may have been granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_undoes_what_an_acquire_may_have_left_while_it_may_take_time() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    let granted = rig.proxy.rule(script(&scripts::ACQUIRE).nth(1), Action::DropReply);
    let acquire = begun(lock.lock());
    rig.proxy.wait_fired(granted, 1, SOON).await.unwrap();
    drop(acquire);
    let lost = rig.proxy.rule(script(&scripts::RELEASE).which(Nth::First(5)), Action::CloseBeforeRequest);
    soon("the end", rig.client.clone().shutdown(SOON)).await;
    assert!(rig.proxy.fired(lost) >= 5);
    assert!(stranger(&rig, "plain").await, "nothing is left");
}

/// It takes no longer than it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_without_a_server_ends_in_time_and_says_what_is_left() {
    let rig = rig().await;
    let _guard = take(&rig.client, "plain").await;
    rig.proxy.refuse_new().unwrap();
    rig.proxy.reset_all();
    let report = soon("the end", rig.client.clone().shutdown(ms(500))).await;
    assert_eq!((report.released, report.failed.len()), (0, 1), "{report:?}");
    soon("the end of all work", async {
        while rig.client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}
