//! What is on its way for an owner when another process is handed it: it takes along nothing that this process enters meanwhile.

use std::future::IntoFuture;

use redlatch::{AnyGuard, Guard, Lease, MultiLock, Owner, Unlocked, Wait, scripts};
use redlatch_testkit::proxy::{Action, Gate, Match, Nth};

use super::{KINDS, Rig, begun, rig, script, stranger, take};
use crate::fixture::{SOON, ms, soon};

/// How long what is on its way takes.
const SLOW: std::time::Duration = ms(300);

fn releasing(kind: &str) -> &'static scripts::Script {
    match kind {
        "fair" => &scripts::FAIR_RELEASE,
        "write" => &scripts::WRITE_RELEASE,
        "read" => &scripts::READ_RELEASE,
        _ => &scripts::RELEASE,
    }
}

/// Another process comes to hold under an owner that it was handed as text.
async fn enter(rig: &Rig, kind: &str, owner: &Owner) -> Guard {
    let handed: Owner = owner.to_text().parse().unwrap();
    let entered = of_kind!(rig.other, kind, lock =>
        lock.acquire().owner(&handed).await.unwrap().map(AnyGuard::into_guard));
    entered.expect("the owner holds it")
}

/// What was entered is there alone, and goes like any hold.
async fn is_the_only_hold(rig: &Rig, kind: &str, entered: Guard) {
    assert!(!stranger(rig, kind).await && entered.is_valid(), "{kind}: two valid holders");
    assert_eq!(entered.unlock().await.unwrap(), Unlocked::Released, "{kind}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_takes_nothing_along_that_another_process_enters() {
    for kind in KINDS {
        let rig = rig().await;
        let guard = take(&rig.client, kind).await;
        let owner = guard.owner().clone();
        let slow = rig.proxy.rule(script(releasing(kind)).which(Nth::First(1)), Action::DelayRequest(SLOW));
        let unlocking = tokio::spawn(guard.unlock());
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        let entered = enter(&rig, kind, &owner).await;
        let unlocked = soon("the release", unlocking).await.unwrap().unwrap();
        assert_eq!(unlocked, Unlocked::StillHeld(1), "{kind}");
        is_the_only_hold(&rig, kind, entered).await;
        assert!(stranger(&rig, kind).await, "{kind}: nothing is left");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_guard_takes_nothing_along_that_another_process_enters() {
    for kind in KINDS {
        let rig = rig().await;
        let guard = take(&rig.client, kind).await;
        let owner = guard.owner().clone();
        let slow = rig.proxy.rule(script(releasing(kind)).which(Nth::First(1)), Action::DelayRequest(SLOW));
        drop(guard);
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        let entered = enter(&rig, kind, &owner).await;
        rig.quiet().await;
        is_the_only_hold(&rig, kind, entered).await;
        assert!(stranger(&rig, kind).await, "{kind}: nothing is left");
    }
}

/// A repeat finds the hold of the other process alone, and its first request may still arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_is_lost_takes_nothing_along_that_another_process_enters() {
    for kind in KINDS {
        let rig = rig().await;
        let guard = take(&rig.client, kind).await;
        let owner = guard.owner().clone();
        let lost = rig.proxy.rule(script(releasing(kind)).which(Nth::First(1)), Action::CloseBeforeRequest);
        let slow = rig.proxy.rule(script(releasing(kind)).which(Nth::Only(2)), Action::DelayRequest(SLOW));
        drop(guard);
        rig.proxy.wait_fired(lost, 1, SOON).await.unwrap();
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        let entered = enter(&rig, kind, &owner).await;
        tokio::time::sleep(2 * SLOW).await;
        rig.arrives_late(releasing(kind));
        is_there_with_what_was_not_counted_down(&rig, kind, entered).await;
    }
}

/// Nothing is counted down, because the first request may still arrive; what is left ends with its lease.
async fn is_there_with_what_was_not_counted_down(rig: &Rig, kind: &str, entered: Guard) {
    assert!(!stranger(rig, kind).await && entered.is_valid(), "{kind}: two valid holders");
    assert_eq!(entered.unlock().await.unwrap(), Unlocked::StillHeld(1), "{kind}");
}

/// The lock was to go to a task that waits in the process that gives it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_goes_to_a_waiting_task_takes_nothing_along_that_another_process_enters() {
    for kind in ["plain", "fair", "write"] {
        let rig = rig().await;
        let guard = take(&rig.client, kind).await;
        let owner = guard.owner().clone();
        let own = rig.client.owner();
        let next = of_kind!(rig.client, kind, lock => {
            let lock = lock.clone();
            tokio::spawn(begun(async move {
                let acquire = lock.acquire().owner(&own).wait(Wait::Forever);
                acquire.lease(Lease::Fixed(ms(20_000))).await.map(|guard| guard.map(AnyGuard::into_guard))
            }))
        });
        if kind == "fair" {
            soon("its place", async {
                while rig.server.cmd(&["LLEN", "redisson_lock_queue:{x}"]).unwrap() != redis::Value::Int(1) {}
            })
            .await;
        }
        let moving = match kind {
            "plain" => &scripts::TRANSFER,
            "fair" => &scripts::FAIR_RELEASE,
            _ => &scripts::WRITE_TRANSFER,
        };
        let slow = rig.proxy.rule(script(moving).which(Nth::First(1)), Action::DelayRequest(SLOW));
        let unlocking = tokio::spawn(guard.unlock());
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        let entered = enter(&rig, kind, &owner).await;
        let unlocked = soon("the release", unlocking).await.unwrap().unwrap();
        assert_eq!(unlocked, Unlocked::StillHeld(1), "{kind}");
        is_the_only_hold(&rig, kind, entered).await;
        let next = soon("the next holder", next).await.unwrap().unwrap().expect("it waits");
        assert!(!stranger(&rig, kind).await && next.is_valid(), "{kind}");
        assert_eq!(next.unlock().await.unwrap(), Unlocked::Released, "{kind}");
    }
}

/// A grant that a task did not wait for is given back while another process comes to hold under its owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_undone_takes_nothing_along_that_another_process_enters() {
    for kind in KINDS {
        let rig = rig().await;
        let owner = rig.client.owner();
        let (taking, undoing) = match kind {
            "fair" => (&scripts::FAIR_ACQUIRE, &scripts::FAIR_UNDO),
            "write" => (&scripts::WRITE_ACQUIRE, &scripts::WRITE_RELEASE),
            "read" => (&scripts::READ_ACQUIRE, &scripts::READ_RELEASE),
            _ => (&scripts::ACQUIRE, &scripts::RELEASE),
        };
        let taken = rig.proxy.rule(script(taking).which(Nth::First(1)), Action::DelayReply(ms(100)));
        let slow = rig.proxy.rule(script(undoing).which(Nth::First(1)), Action::DelayRequest(SLOW));
        let dropped = of_kind!(rig.client, kind, lock => {
            let acquire = lock.acquire().owner(&owner).lease(Lease::Fixed(ms(20_000))).into_future();
            tokio::time::timeout(ms(40), acquire).await.is_err()
        });
        assert!(dropped, "{kind}: its answer takes longer");
        rig.proxy.wait_fired(taken, 1, SOON).await.unwrap();
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        let entered = enter(&rig, kind, &owner).await;
        rig.quiet().await;
        is_the_only_hold(&rig, kind, entered).await;
        assert!(stranger(&rig, kind).await, "{kind}: nothing is left");
    }
}

/// Locks that are given back in one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_of_several_takes_nothing_along_that_another_process_enters() {
    let rig = rig().await;
    let owner = rig.client.owner();
    let both = MultiLock::new([rig.client.lock("x"), rig.client.lock("y")]).unwrap();
    let guard =
        both.acquire().owner(&owner).lease(Lease::Fixed(ms(20_000))).await.unwrap().expect("they are free");
    let slow = rig.proxy.rule(script(&scripts::RELEASE_ALL).which(Nth::First(1)), Action::DelayRequest(SLOW));
    let unlocking = tokio::spawn(guard.unlock());
    rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
    let entered = enter(&rig, "plain", &owner).await;
    let report = soon("the release", unlocking).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    is_the_only_hold(&rig, "plain", entered).await;
    assert!(stranger(&rig, "plain").await, "nothing is left");
    assert!(rig.other.lock("y").try_lock().await.unwrap().is_some(), "the other one went");
}

/// A read hold beside a write hold was on its way when the writer's owner was handed out. The server took it for a repeat of what the other
/// process had entered, counted one for both, and a writer came in beside the reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_beside_a_write_hold_is_counted_beside_what_another_process_enters() {
    let rig = rig().await;
    let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
    let slow =
        rig.proxy.rule(script(&scripts::READ_ACQUIRE).which(Nth::First(1)), Action::DelayRequest(SLOW));
    let mut reading = begun(writing.read());
    rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
    let theirs = enter(&rig, "read", writing.owner()).await;
    let ours = soon("the read hold", &mut reading).await.unwrap();
    drop(reading);
    assert_eq!(theirs.unlock().await.unwrap(), Unlocked::StillHeld(1));
    writing.unlock().await.unwrap();
    assert!(!stranger(&rig, "read").await && ours.is_valid(), "two valid holders");
    ours.unlock().await.unwrap();
    assert!(stranger(&rig, "read").await, "nothing is left");
}

/// It never arrived, and what removes it expected the one hold that another process had entered meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_was_given_up_beside_a_write_hold_takes_nothing_along_that_another_process_enters() {
    let rig = rig().await;
    let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
    let never =
        rig.proxy.rule(script(&scripts::READ_ACQUIRE).which(Nth::First(1)), Action::CloseBeforeRequest);
    // A release declares its keys, so it has another text.
    let releasing = Match::script().arg_contains("redisson_rwlock:{x}").which(Nth::First(1));
    rig.proxy.rule(releasing, Action::DelayRequest(2 * SLOW));
    drop(begun(writing.read()));
    rig.proxy.wait_for(SOON, |log| log.fired(never) > 0).await.unwrap();
    // What is on its way for the owner, if anything is, is on its way by now, and arrives when another process reads.
    tokio::time::sleep(SLOW).await;
    let theirs = enter(&rig, "read", writing.owner()).await;
    tokio::time::sleep(2 * SLOW).await;
    writing.unlock().await.unwrap();
    is_the_only_hold(&rig, "read", theirs).await;
}

/// The answer to the first request for a read hold had never come, so it was looked for again when the read hold had gone; and that look
/// found the one of another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_for_a_late_read_hold_takes_nothing_along_that_another_process_enters() {
    let rig = rig().await;
    let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
    rig.proxy.rule(script(&scripts::READ_ACQUIRE).which(Nth::First(1)), Action::CloseBeforeRequest);
    let reading = soon("the read hold", writing.read()).await.unwrap();
    assert_eq!(soon("its end", reading.unlock()).await.unwrap(), Unlocked::Released);
    let releasing = Match::script().arg_contains("redisson_rwlock:{x}").which(Nth::First(1));
    rig.proxy.rule(releasing, Action::DelayRequest(2 * SLOW));
    tokio::time::sleep(SLOW).await;
    let theirs = enter(&rig, "read", writing.owner()).await;
    tokio::time::sleep(2 * SLOW).await;
    writing.unlock().await.unwrap();
    is_the_only_hold(&rig, "read", theirs).await;
}

/// The release of a read hold was repeated and said to be done. Its first request came late, and found the read hold of a process that was
/// handed the writer's owner since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_of_a_read_hold_beside_a_write_hold_takes_nothing_along_that_another_process_enters() {
    let rig = rig().await;
    let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
    let owner = writing.owner().clone();
    let reading = soon("the read hold", writing.read()).await.unwrap();
    let releasing = Match::script().arg_contains("redisson_rwlock:{x}").which(Nth::First(1));
    let lost = rig.proxy.rule(releasing, Action::CloseBeforeRequest);
    let mut unlocking = begun(reading.unlock());
    rig.proxy.wait_fired(lost, 1, SOON).await.unwrap();
    let first = rig.proxy.with_log(|log| {
        let is_first = |args: &[Vec<u8>]| args.iter().any(|arg| arg == b"redisson_rwlock:{x}");
        log.requests().find(|request| is_first(&request.args)).map(|request| request.args.clone())
    });
    // Either it says within that time that it is done, or it has sent nothing more.
    let _ = tokio::time::timeout(2 * SLOW, &mut unlocking).await;
    let theirs = enter(&rig, "read", &owner).await;
    rig.server.cmd(&first.expect("it was sent")).unwrap();
    drop(unlocking);
    writing.unlock().await.unwrap();
    is_the_only_hold(&rig, "read", theirs).await;
}

/// The answer of an abandoned acquire told of its grant while another undoing of it was still repeated. The grant was counted down, and the
/// repeat, which expected one hold, found that of the other process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_undoings_of_one_acquire_take_nothing_along_that_another_process_enters() {
    let rig = rig().await;
    let (lock, owner) = (rig.client.fair_lock("x"), rig.client.owner());
    let gate = Gate::new();
    let taken = script(&scripts::FAIR_ACQUIRE).nth(1);
    let taken = rig.proxy.rule(taken, Action::HoldReplyUntilReleased(gate.clone()));
    let lost = rig.proxy.rule(script(&scripts::FAIR_UNDO), Action::CloseBeforeRequest);
    let abandoned = begun(lock.acquire().owner(&owner).wait(Wait::Forever).into_future());
    rig.proxy.wait_fired(taken, 1, SOON).await.unwrap();
    drop(abandoned);
    rig.proxy.wait_fired(lost, 1, SOON).await.unwrap();
    let entered = enter(&rig, "fair", &owner).await;
    gate.release();
    // Either it counts down within that time what nobody took, or it leaves that to its lease.
    let counted_down = async {
        while rig.field("x", &owner.to_text()) != redis::Value::BulkString(b"1".into()) {
            tokio::time::sleep(ms(5)).await;
        }
    };
    let _ = tokio::time::timeout(2 * SLOW, counted_down).await;
    rig.proxy.remove_rule(lost);
    rig.quiet().await;
    is_there_with_what_was_not_counted_down(&rig, "fair", entered).await;
}
