//! A hold that is taken up has an owner of its own: what is on its way for the one that it was left under does not meet it.

use redlatch::{AnyGuard, Client, ErrorKind, Guard, Lease, Owner, Unlocked, scripts};
use redlatch_testkit::proxy::{Action, Nth};

use super::{KINDS, rig, script, stranger, take};
use crate::fixture::{SOON, ms, soon};

async fn adopt(client: &Client, kind: &str, owner: &Owner) -> Result<Option<Guard>, redlatch::Error> {
    of_kind!(client, kind, lock => lock.adopt(owner, Lease::Renewed).await.map(|guard| guard.map(AnyGuard::into_guard)))
}

fn as_text(owner: &Owner) -> Owner {
    owner.to_text().parse().unwrap()
}

fn transfer(kind: &str) -> &'static scripts::Script {
    match kind {
        "write" => &scripts::WRITE_TRANSFER,
        "read" => &scripts::READ_TRANSFER,
        _ => &scripts::TRANSFER,
    }
}

fn ending(kind: &str) -> [&'static scripts::Script; 2] {
    match kind {
        "fair" => [&scripts::SHORTEN, &scripts::FAIR_RELEASE_ONE],
        "write" => [&scripts::WRITE_SHORTEN, &scripts::WRITE_RELEASE_ONE],
        "read" => [&scripts::READ_SHORTEN, &scripts::READ_RELEASE_ONE],
        _ => [&scripts::SHORTEN, &scripts::RELEASE_ONE],
    }
}

/// A shorter lease that was asked for by the process that left it arrived late, and the hold ended under the one that had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shorter_lease_that_arrives_late_does_not_end_a_hold_that_was_taken_up() {
    for kind in KINDS {
        let rig = rig().await;
        let guard = take(&rig.client, kind).await;
        let owner = as_text(guard.owner());
        // The first one asks when the hold ends.
        let slow = rig.proxy.rule(script(ending(kind)[0]).nth(2), Action::DelayRequest(ms(400)));
        let leaving = tokio::spawn(guard.detach_for(ms(200)));
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        let taken = adopt(&rig.other, kind, &owner).await.unwrap().expect("it was left");
        let _ = soon("the shorter lease", leaving).await.unwrap();
        tokio::time::sleep(ms(250)).await;
        assert!(!stranger(&rig, kind).await && taken.is_valid(), "{kind}: two valid holders");
        assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released, "{kind}");
        assert!(stranger(&rig, kind).await, "{kind}: nothing is left");
    }
}

/// The count was the same, so the hold of the process that had taken the free lock under the owner was made as short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shorter_lease_that_arrives_late_shortens_no_hold_that_was_taken_since_under_the_owner() {
    for kind in KINDS {
        let rig = rig().await;
        let guard =
            of_kind!(rig.client, kind, lock => lock.lock_with_lease(ms(1_000)).await.unwrap().into_guard());
        let owner = as_text(guard.owner());
        let slow = rig.proxy.rule(script(ending(kind)[0]).nth(2), Action::DelayRequest(ms(2_500)));
        let leaving = tokio::spawn(guard.detach_for(ms(500)));
        soon("the end of the hold", async {
            while rig.server.cmd(&["EXISTS", "x"]).unwrap() != redis::Value::Int(0) {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        assert_eq!(rig.proxy.fired(slow), 1, "{kind}: it is on its way");
        let long = Lease::Fixed(ms(600_000));
        let taken = of_kind!(rig.other, kind, lock => lock.acquire().owner(&owner).lease(long).await.unwrap().map(AnyGuard::into_guard));
        let taken = taken.expect("it is free");
        assert!(!soon("the shorter lease", leaving).await.unwrap().unwrap(), "{kind}: it was lost");
        let left = of_kind!(rig.other, kind, lock => lock.remaining_ttl().await.unwrap().unwrap());
        assert!(left > ms(300_000), "{kind}: {left:?}");
        assert!(!stranger(&rig, kind).await && taken.is_valid(), "{kind}: two valid holders");
        assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released, "{kind}");
    }
}

/// Another process entered, one of the two holds was given back, and the hold of the one that had entered was made as short.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shorter_lease_that_arrives_late_shortens_no_hold_that_another_process_has_entered() {
    for kind in KINDS {
        let rig = rig().await;
        let guard =
            of_kind!(rig.client, kind, lock => lock.lock_with_lease(ms(20_000)).await.unwrap().into_guard());
        let owner = as_text(guard.owner());
        let slow = rig.proxy.rule(script(ending(kind)[0]).nth(2), Action::DelayRequest(ms(600)));
        let leaving = tokio::spawn(guard.detach_for(ms(200)));
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        let long = Lease::Fixed(ms(600_000));
        let entered = of_kind!(rig.other, kind, lock => lock.acquire().owner(&owner).lease(long).await.unwrap().map(AnyGuard::into_guard));
        let entered = entered.expect("the owner holds it");
        let third = Client::connect(&rig.server.url()).await.unwrap();
        let left = of_kind!(third, kind, lock => lock.release(&owner).await.unwrap());
        assert_eq!(left, Unlocked::StillHeld(1), "{kind}");
        assert!(soon("the shorter lease", leaving).await.unwrap().unwrap(), "{kind}: it is held");
        let left = of_kind!(rig.other, kind, lock => lock.remaining_ttl().await.unwrap().unwrap());
        assert!(left > ms(300_000), "{kind}: {left:?}");
        assert!(!stranger(&rig, kind).await && entered.is_valid(), "{kind}: two valid holders");
        assert_eq!(entered.unlock().await.unwrap(), Unlocked::Released, "{kind}");
    }
}

/// A release by text, of which the answer was slow, ended the hold of the process that had taken it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_arrives_late_does_not_end_a_hold_that_was_taken_up() {
    for kind in KINDS {
        let rig = rig().await;
        let owner = as_text(&take(&rig.client, kind).await.detach().owner);
        let slow = rig.proxy.rule(script(ending(kind)[1]), Action::DelayRequest(ms(400)));
        let (client, by) = (rig.client.clone(), owner.clone());
        let releasing = tokio::spawn(async move { of_kind!(client, kind, lock => lock.release(&by).await) });
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        let taken = adopt(&rig.other, kind, &owner).await.unwrap().expect("it was left");
        let error = soon("the release", releasing).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotOwner, "{kind}: {error}");
        assert!(!stranger(&rig, kind).await && taken.is_valid(), "{kind}: two valid holders");
        assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released, "{kind}");
    }
}

/// Each of them took itself for the holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_that_take_up_a_hold_one_has_it() {
    for kind in KINDS {
        let rig = rig().await;
        let owner = as_text(&take(&rig.client, kind).await.detach().owner);
        let third = Client::connect(&rig.server.url()).await.unwrap();
        let (one, two) = tokio::join!(adopt(&rig.other, kind, &owner), adopt(&third, kind, &owner));
        let mut taken: Vec<_> = [one.unwrap(), two.unwrap()].into_iter().flatten().collect();
        assert_eq!(taken.len(), 1, "{kind}");
        assert!(!stranger(&rig, kind).await);
        let taken = taken.remove(0);
        assert_ne!(taken.owner(), &owner, "{kind}");
        assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released, "{kind}");
    }
}

/// What the owner holds besides is other processes': each of two adopters took itself for the holder, and one took the live hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_of_an_owner_that_holds_more_than_once_is_not_taken_up() {
    for kind in KINDS {
        let rig = rig().await;
        let first = take(&rig.client, kind).await;
        let owner = as_text(first.owner());
        drop(first.reenter().await.unwrap().detach());
        let error = adopt(&rig.other, kind, &owner).await.map(|guard| guard.is_some()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{kind}: {error}");
        assert_eq!(first.unlock().await.unwrap(), Unlocked::StillHeld(1), "{kind}");
        let taken = adopt(&rig.other, kind, &owner).await.unwrap().expect("it was left");
        assert!(!stranger(&rig, kind).await && taken.is_valid(), "{kind}");
        assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released, "{kind}");
        assert!(stranger(&rig, kind).await, "{kind}: nothing is left");
    }
}

/// A writer that reads besides is both: another writer would stand beside its read hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_of_a_writer_that_reads_besides_is_not_taken_up() {
    let rig = rig().await;
    let both = rig.client.read_write_lock("x");
    let writing = both.write().lock_with_lease(ms(20_000)).await.unwrap();
    let reading = writing.read().await.unwrap();
    let owner = as_text(&writing.detach().owner);
    for kind in ["write", "read"] {
        let error = adopt(&rig.other, kind, &owner).await.map(|guard| guard.is_some()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{kind}: {error}");
    }
    reading.unlock().await.unwrap();
    let taken = adopt(&rig.other, "write", &owner).await.unwrap().expect("it was left");
    assert!(!stranger(&rig, "read").await && taken.is_valid());
    assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released);
    assert!(stranger(&rig, "read").await);
}

/// Plain locks that two owners had taken up, who read: both were valid, and for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_reads_holds_no_lock_of_another_kind() {
    let rig = rig().await;
    let owner = as_text(&take(&rig.client, "read").await.detach().owner);
    for kind in ["plain", "fair"] {
        let error = adopt(&rig.other, kind, &owner).await.map(|guard| guard.is_some()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongLockKind, "{kind}: {error}");
        let error = of_kind!(rig.other, kind, lock => lock.acquire().owner(&owner).await.map(|guard| guard.is_some()));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::WrongLockKind, "{kind}");
    }
    let taken = adopt(&rig.other, "read", &owner).await.unwrap().expect("it reads");
    assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released);
}

/// The guard ended with its lease, and the lock stayed for what was left of the earlier one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_taken_up_lasts_for_its_new_lease() {
    for kind in KINDS {
        let rig = rig().await;
        let owner = as_text(&take(&rig.client, kind).await.detach().owner);
        let short = Lease::Fixed(ms(300));
        let taken = of_kind!(rig.other, kind, lock => lock.adopt(&owner, short).await.unwrap().map(AnyGuard::into_guard));
        let taken = taken.expect("it was left");
        soon("its end", taken.lost()).await;
        soon("the end on the server", async {
            while !stranger(&rig, kind).await {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    }
}

/// Another process had come to read under the owner, and the two holds became one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_goes_back_is_one_more_of_its_owner() {
    let rig = rig().await;
    let owner = as_text(&take(&rig.other, "read").await.detach().owner);
    let slow = rig.proxy.rule(script(transfer("read")).which(Nth::First(1)), Action::DelayReply(ms(300)));
    let dropped = tokio::time::timeout(ms(60), adopt(&rig.client, "read", &owner)).await;
    assert!(dropped.is_err(), "its answer takes longer");
    rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
    let both = rig.other.read_write_lock("x");
    let reading = both.read().acquire().owner(&owner).await.unwrap().expect("it reads");
    rig.quiet().await;
    assert_eq!(reading.unlock().await.unwrap(), Unlocked::StillHeld(1));
    assert!(!stranger(&rig, "read").await, "what was left is there");
    let taken = adopt(&rig.other, "read", &owner).await.unwrap().expect("it is back");
    assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released);
}

/// A hold that was taken up for a task that had gone was nobody's until its lease ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_taking_up_is_dropped_goes_back_to_its_owner() {
    for kind in KINDS {
        let rig = rig().await;
        let owner = as_text(&take(&rig.other, kind).await.detach().owner);
        let slow = rig.proxy.rule(script(transfer(kind)).which(Nth::First(1)), Action::DelayReply(ms(200)));
        let dropped = tokio::time::timeout(ms(60), adopt(&rig.client, kind, &owner)).await;
        assert!(dropped.is_err(), "its answer takes longer");
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        rig.quiet().await;
        let taken = adopt(&rig.other, kind, &owner).await.unwrap().expect("it is back");
        assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released, "{kind}");
    }
}

/// Without an answer the hold goes back, so that the next try finds it, in this process and in others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_taking_up_was_not_answered_is_taken_up_again() {
    for kind in KINDS {
        for lost in [Action::CloseAfterRequest, Action::CloseBeforeRequest] {
            let rig = rig().await;
            let owner = as_text(&take(&rig.other, kind).await.detach().owner);
            let before = rig.proxy.rule(script(transfer(kind)).which(Nth::First(1)), lost);
            let error =
                adopt(&rig.client, kind, &owner).await.map(|guard| guard.is_some()).expect_err("it is lost");
            assert!(error.is_retryable(), "{kind}: {error}");
            rig.proxy.wait_fired(before, 1, SOON).await.unwrap();
            let taken = soon("the next try", adopt(&rig.client, kind, &owner)).await.unwrap();
            let taken = taken.expect("it went back");
            rig.quiet().await;
            assert!(taken.is_valid() && !stranger(&rig, kind).await, "{kind}");
            assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released, "{kind}");
        }
    }
}

/// The request arrived after it had been looked for, and took the hold up for no task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taking_up_that_arrives_late_is_undone() {
    for kind in KINDS {
        let rig = rig().await;
        let client =
            Client::builder().url(rig.proxy.url()).response_timeout(ms(500)).connect().await.unwrap();
        let owner = as_text(&take(&rig.other, kind).await.detach().owner);
        let late = Action::DelayRequest(ms(1_300));
        let late = rig.proxy.rule(script(transfer(kind)).which(Nth::First(1)), late);
        let error = adopt(&client, kind, &owner).await.map(|guard| guard.is_some());
        assert!(error.is_err(), "{kind}: it is late");
        rig.proxy.wait_fired(late, 1, SOON).await.unwrap();
        soon("quiet", async {
            while client.stats().background_jobs > 0 {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        let taken = adopt(&rig.other, kind, &owner).await.unwrap().expect("it is back");
        assert_eq!(taken.unlock().await.unwrap(), Unlocked::Released, "{kind}");
    }
}
