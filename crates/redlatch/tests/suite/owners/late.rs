//! Answers that come late: they end, prolong and promise nothing that is not true any more; and what goes on without its task.

use std::future::IntoFuture;

use redlatch::{Client, ErrorKind, Guard, Lease, LossReason, Owner, Unlocked, Wait, scripts};
use redlatch_testkit::proxy::{Action, Gate, Match, Nth, RequestLog};

use super::{begun, rig, script, text};
use crate::fixture::{SOON, ms, soon};

/// The guard stays valid for a while, during which no other client gets the lock, and is given back.
async fn stays_alone(guard: Guard, theirs: impl AsyncFn() -> Option<Guard>) {
    for _ in 0..20 {
        let other = theirs().await;
        assert!(!(guard.is_valid() && other.is_some()), "two valid holders");
        tokio::time::sleep(ms(50)).await;
    }
    assert!(guard.is_valid(), "{:?}", guard.loss());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

/// The lock had been granted to another task since, whose valid hold was called taken over and ended on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_late_answer_of_a_transfer_ends_no_hold_that_was_granted_since() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    let first = lock.acquire().lease(Lease::Fixed(ms(20_000))).await.unwrap().unwrap();
    let short = lock.acquire().lease(Lease::Fixed(ms(1_500))).wait(Wait::Forever);
    let mut recipient = begun(short.into_future());
    let mut next = begun(lock.lock());
    let slow = rig.proxy.rule(script(&scripts::TRANSFER).which(Nth::First(1)), Action::DelayReply(ms(4_000)));
    let unlock = begun(first.unlock());
    // The recipient's hold ends before the answer comes, and the next in line goes on without the release.
    rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
    let next = soon("the grant", &mut next).await.unwrap();
    assert_eq!(soon("the release", unlock).await.unwrap(), Unlocked::Released);
    stays_alone(next, async || rig.other.lock("x").try_lock().await.unwrap()).await;
    // The recipient has waited on.
    let recipient = soon("the recipient's turn", &mut recipient).await.unwrap().unwrap();
    assert!(recipient.is_valid(), "{:?}", recipient.loss());
}

/// The same with the queue on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_late_answer_of_a_hand_over_ends_no_hold_that_was_granted_since() {
    let rig = rig().await;
    let lock = rig.client.fair_lock("x");
    let first = lock.acquire().lease(Lease::Fixed(ms(20_000))).await.unwrap().unwrap();
    let short = lock.acquire().lease(Lease::Fixed(ms(1_500))).wait(Wait::Forever);
    let mut recipient = Box::pin(short.into_future());
    assert!(tokio::time::timeout(ms(200), &mut recipient).await.is_err(), "it is busy");
    let mut next = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await.unwrap() }
    });
    soon("two in the queue", async {
        while rig.server.cmd(&["LLEN", "redisson_lock_queue:{x}"]).unwrap() != redis::Value::Int(2) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    let slow =
        rig.proxy.rule(script(&scripts::FAIR_RELEASE).which(Nth::First(1)), Action::DelayReply(ms(4_000)));
    let unlock = begun(first.unlock());
    rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
    let next = soon("the grant", &mut next).await.unwrap();
    assert_eq!(soon("the release", unlock).await.unwrap(), Unlocked::Released);
    stays_alone(next, async || rig.other.fair_lock("x").try_lock().await.unwrap()).await;
    let recipient = soon("the recipient's turn", &mut recipient).await.unwrap().unwrap();
    assert!(recipient.is_valid(), "{:?}", recipient.loss());
}

/// The answer came after the deadline: the guard was told "yes" and was not valid, and the server kept the lock for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_after_the_deadline_prolongs_nothing() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    let short = || lock.acquire().lease(Lease::Fixed(ms(1_000)));
    let free = async || {
        rig.quiet().await;
        assert_eq!(rig.server.cmd(&["EXISTS", "x"]).unwrap(), redis::Value::Int(0));
    };
    let late = rig.proxy.rule(script(&scripts::RENEW), Action::DelayReply(ms(1_200)));
    let guard = short().await.unwrap().unwrap();
    let error = guard.extend(ms(3_600_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(guard.loss(), Some(LossReason::Expired));
    free().await;
    rig.proxy.remove_rule(late);
    let late = rig.proxy.rule(script(&scripts::ENTER), Action::DelayReply(ms(1_200)));
    let owner = rig.client.owner();
    let guard = short().owner(&owner).await.unwrap().unwrap();
    let again = lock.acquire().owner(&owner).lease(Lease::Fixed(ms(3_600_000))).await;
    assert_eq!(again.map(|guard| guard.is_some()).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.loss(), Some(LossReason::Expired));
    free().await;
    rig.proxy.remove_rule(late);
}

/// It said that the hold had been deleted, and it had ended while the request was on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_arrives_after_the_lease_finds_a_hold_that_has_expired() {
    let rig = rig().await;
    let rw = rig.client.read_write_lock("rw");
    for (script_of, kind) in [(&scripts::RELEASE, "plain"), (&scripts::READ_RELEASE, "read")] {
        let slow = rig.proxy.rule(script(script_of), Action::DelayRequest(ms(800)));
        let lease = Lease::Fixed(ms(500));
        let outcome = match kind {
            "plain" => {
                let guard = rig.client.lock("x").acquire().lease(lease).await.unwrap().unwrap();
                guard.unlock().await
            }
            _ => {
                let guard = rw.read().acquire().lease(lease).await.unwrap().unwrap();
                redlatch::AnyGuard::into_guard(guard).unlock().await
            }
        };
        assert_eq!(outcome.unwrap(), Unlocked::AlreadyLost(LossReason::Expired), "{kind}");
        rig.proxy.remove_rule(slow);
    }
}

/// Requests that other tasks wait for were driven by their own task, which may not be polled any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_wait_for_is_done_though_its_task_is_not_polled() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    let slow = |script_of: &scripts::Script| {
        rig.proxy.rule(script(script_of).which(Nth::First(1)), Action::DelayReply(ms(50)))
    };
    // A transfer: the task that is to have the lock.
    let first = lock.acquire().lease(Lease::Fixed(ms(20_000))).await.unwrap().unwrap();
    let mut recipient = begun(lock.lock_with_lease(ms(20_000)));
    slow(&scripts::TRANSFER);
    let unlock = begun(first.unlock());
    let recipient = soon("the transfer", &mut recipient).await.unwrap();
    recipient.unlock().await.unwrap();
    drop(unlock);
    // One of two holds is given back: the other one's release.
    let first = lock.lock().await.unwrap();
    let second = first.reenter().await.unwrap();
    slow(&scripts::RELEASE_ONE);
    let leaving = begun(second.unlock());
    drop(first);
    soon("the lock", rig.other.lock("x").lock()).await.unwrap().unlock().await.unwrap();
    drop(leaving);
    // A re-entry: the same.
    let first = lock.lock().await.unwrap();
    slow(&scripts::ENTER);
    let entering = begun(first.reenter());
    rig.proxy
        .wait_for(SOON, |log| {
            log.requests()
                .any(|request| request.args.iter().any(|arg| arg == scripts::ENTER.sha1().as_bytes()))
        })
        .await
        .unwrap();
    soon("the answer", async {
        while first.hold_count() < 2 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    drop(entering);
    first.unlock().await.unwrap();
    soon("the lock", rig.other.lock("x").lock()).await.unwrap().unlock().await.unwrap();
    // A downgrade: those who wait to read.
    let rw = rig.client.read_write_lock("rw");
    let writing = rw.write().lock().await.unwrap();
    slow(&scripts::READ_ACQUIRE);
    slow(&scripts::WRITE_RELEASE);
    let turning = begun(writing.downgrade());
    let reading = soon("another reader", rig.other.read_write_lock("rw").read().lock()).await.unwrap();
    drop(soon("one of the same process", rw.read().lock()).await.unwrap());
    drop((turning, reading));
}

/// The task that the server had moved it to saw the client closed, and dropped what it was handed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_moved_to_a_task_while_the_client_is_shut_down_is_given_back() {
    let rig = rig().await;
    let lock = rig.client.fenced_lock("x");
    let one = lock.lock().await.unwrap();
    let next = tokio::spawn(begun(async move { lock.lock().await.map(drop) }));
    let slow = rig.proxy.rule(script(&scripts::TRANSFER), Action::DelayReply(ms(800)));
    let unlocking = tokio::spawn(one.unlock());
    rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
    rig.client.shutdown(SOON).await;
    assert_eq!(unlocking.await.unwrap().unwrap(), Unlocked::Released);
    assert_eq!(next.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    soon("its release", async {
        while rig.server.cmd(&["EXISTS", "x"]).unwrap() != redis::Value::Int(0) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

/// Nothing waited for them: their connection was closed, and their holds stayed for the rest of the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutting_down_waits_for_what_is_under_way() {
    for what in ["unlock", "downgrade", "adopt", "release"] {
        let rig = rig().await;
        let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
        let plain = rig.client.lock("y").lock().await.unwrap();
        let left = rig.client.lock("z").lock().await.unwrap().detach();
        let slow = [&scripts::RELEASE, &scripts::WRITE_RELEASE, &scripts::TRANSFER, &scripts::RELEASE_ONE];
        for asked in slow {
            rig.proxy.rule(script(asked), Action::DelayReply(ms(300)));
        }
        let asked = |asked: &scripts::Script| {
            let hash = asked.sha1().as_bytes().to_vec();
            rig.proxy.wait_for(SOON, move |log| log.requests().any(|request| request.args.contains(&hash)))
        };
        let z = rig.client.lock("z");
        match what {
            "unlock" => {
                let unlock = tokio::spawn(plain.unlock());
                asked(&scripts::RELEASE).await.unwrap();
                rig.client.shutdown(SOON).await;
                assert_eq!(unlock.await.unwrap().unwrap(), Unlocked::Released);
            }
            "downgrade" => {
                let turning = tokio::spawn(writing.downgrade());
                asked(&scripts::WRITE_RELEASE).await.unwrap();
                rig.client.shutdown(SOON).await;
                let error = turning.await.unwrap().map(drop).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            }
            "adopt" => {
                let owner = left.owner.clone();
                let adopting = tokio::spawn(async move { z.adopt(&owner, Lease::Renewed).await });
                asked(&scripts::TRANSFER).await.unwrap();
                rig.client.shutdown(SOON).await;
                let error = adopting.await.unwrap().map(|guard| guard.is_some()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            }
            _ => {
                let owner = left.owner.clone();
                let release = tokio::spawn(async move { z.release(&owner).await });
                asked(&scripts::RELEASE_ONE).await.unwrap();
                rig.client.shutdown(SOON).await;
                assert_eq!(release.await.unwrap().unwrap(), Unlocked::Released);
            }
        }
        for name in ["x", "y"] {
            let there = rig.server.cmd(&["EXISTS", name]).unwrap();
            assert_eq!(there, redis::Value::Int(0), "{what}: {name} is free");
        }
        let there = rig.server.cmd(&["EXISTS", "z"]).unwrap();
        let detached = what != "release";
        assert_eq!(there, redis::Value::Int(i64::from(detached)), "{what}: z");
    }
}

/// The answer was read by nobody, so that the permit was gone for ever.
#[test]
fn permits_that_a_dropped_acquire_took_come_back_though_its_runtime_is_idle() {
    let outside = tokio::runtime::Runtime::new().unwrap();
    let rig = outside.block_on(rig());
    let permits = rig.client.semaphore("s");
    outside.block_on(permits.set_if_absent(2, None)).unwrap();
    for ends in [false, true] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let slow = rig.proxy.rule(script(&scripts::SEMAPHORE_TAKE), Action::DelayReply(ms(300)));
        let dropped = runtime.block_on(async { tokio::time::timeout(ms(100), permits.acquire(1)).await });
        assert!(dropped.is_err(), "the answer takes longer");
        let idle = (!ends).then_some(runtime);
        outside.block_on(async {
            rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
            rig.quiet().await;
            assert_eq!(permits.available().await.unwrap(), 2);
        });
        rig.proxy.remove_rule(slow);
        drop(idle);
    }
}

/// The release went first when it had waited for long enough, and the slow answer was believed all the same: a valid hold
/// that the server did not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_released_beside_a_slow_answer_is_asked_for_anew() {
    let rig = rig().await;
    let client = Client::builder().url(rig.proxy.url()).response_timeout(ms(1_000)).connect().await.unwrap();
    // The connection is given up at about the same time, and then there is no late answer to be believed.
    let mut seen = 0;
    for round in 0..20 {
        let name = format!("several-{round}");
        let (lock, beside) = (client.lock(name.as_str()), client.lock(format!("{name}-beside")));
        let owner = client.owner();
        // Left by another process, which was given the owner.
        let there: Owner = text(&owner).parse().unwrap();
        let left = rig.other.lock(name.as_str()).acquire().owner(&there).await.unwrap().unwrap();
        drop(left.detach());
        let gate = Gate::new();
        let hold = Action::HoldReplyUntilReleased(gate.clone());
        let slow = rig.proxy.rule(script(&scripts::ACQUIRE_ALL).which(Nth::First(1)), hold);
        let (asking, by) = (lock.clone(), owner.clone());
        let taking = tokio::spawn(async move {
            redlatch::MultiLock::new([asking, beside]).unwrap().acquire().owner(&by).await
        });
        rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
        let releasing = tokio::spawn({
            let (lock, owner) = (lock.clone(), owner.clone());
            async move { lock.release(&owner).await }
        });
        let leave = scripts::RELEASE_ONE.sha1().as_bytes();
        let is_release = |args: &[Vec<u8>]| {
            args.iter().any(|arg| arg == leave) && args.iter().any(|arg| arg == name.as_bytes())
        };
        let sent = |log: &RequestLog| log.requests().any(|request| is_release(&request.args));
        rig.proxy.wait_for(SOON, sent).await.unwrap();
        gate.release();
        let released = releasing.await.unwrap();
        rig.proxy.remove_rule(slow);
        let taken = soon("the answer", taking).await.unwrap();
        let (Ok(Unlocked::Released), Ok(several)) = (released, taken) else { continue };
        // Busy, where what was given back is on its way still.
        let there = rig.field(&name, &text(&owner)) != redis::Value::Nil;
        assert!(there || several.is_none(), "what is held is there");
        seen += 1;
        if seen == 3 {
            break;
        }
    }
    assert!(seen > 0, "no answer was late enough");
}

/// What arrived half a second late was looked for once, before, and stayed for its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dropped_acquire_of_an_owner_is_granted_late_is_given_back() {
    let rig = rig().await;
    let owner = rig.client.owner();
    let slow = rig.proxy.rule(Match::script().which(Nth::First(1)), Action::DelayRequest(ms(900)));
    let lock = rig.client.lock("x");
    let acquire = lock.acquire().owner(&owner).wait(Wait::Forever);
    assert!(tokio::time::timeout(ms(50), acquire.into_future()).await.is_err(), "nothing is answered");
    rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
    soon("the late grant", async {
        while rig.field("x", &text(&owner)) == redis::Value::Nil {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await;
    soon("the lock", rig.other.lock("x").lock()).await.unwrap().unlock().await.unwrap();
    let again = soon("the owner's next turn", lock.acquire().owner(&owner).wait(Wait::Forever).into_future());
    assert!(again.await.unwrap().unwrap().is_valid());
}

/// A release, an entry and a downgrade that wait for each other come to the same count in whatever order they are done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_goes_while_a_downgrade_is_on_its_way_is_counted_once() {
    let rig = rig().await;
    let lock = rig.client.read_write_lock("x");
    let writing = lock.write().lock().await.unwrap();
    let owner = redlatch::AnyGuard::as_guard(&writing).owner().clone();
    let first = writing.read().await.unwrap();
    let second = redlatch::AnyGuard::as_guard(&first).reenter().await.unwrap();
    // One more is on its way, so that the others wait in line for the same count.
    let gate = Gate::new();
    let held = rig.proxy.rule(script(&scripts::READ_ENTER), Action::HoldReplyUntilReleased(gate.clone()));
    let entering = begun(redlatch::AnyGuard::as_guard(&first).reenter());
    rig.proxy.wait_for(SOON, |log| log.fired(held) > 0).await.unwrap();
    let leaving = begun(second.unlock());
    let turning = begun(writing.downgrade());
    rig.proxy.remove_rule(held);
    gate.release();
    let (third, left, reading) = soon("all", async { tokio::join!(entering, leaving, turning) }).await;
    let (third, reading) = (third.unwrap(), reading.unwrap());
    // With or without the one that came of the downgrade, whichever was first.
    assert!(matches!(left.unwrap(), Unlocked::StillHeld(2 | 3)));
    rig.quiet().await;
    assert_eq!(rig.field("x", &text(&owner)), redis::Value::BulkString(b"3".into()));
    assert_eq!(rig.field("x", &format!("{}:write", text(&owner))), redis::Value::Nil, "nobody writes");
    let beside = soon("another reader", rig.other.read_write_lock("x").read().lock()).await.unwrap();
    beside.unlock().await.unwrap();
    assert_eq!(third.unlock().await.unwrap(), Unlocked::StillHeld(2));
    assert_eq!(redlatch::AnyGuard::into_guard(first).unlock().await.unwrap(), Unlocked::StillHeld(1));
    assert_eq!(redlatch::AnyGuard::into_guard(reading).unlock().await.unwrap(), Unlocked::Released);
}

/// The server had counted a write hold that no guard here had, and it stayed beside the read hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_re_entry_that_was_given_up_leaves_no_write_hold_behind_a_downgrade() {
    let rig = rig().await;
    let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
    let owner = redlatch::AnyGuard::as_guard(&writing).owner().clone();
    let gate = Gate::new();
    let held = rig.proxy.rule(script(&scripts::WRITE_ENTER), Action::HoldReplyUntilReleased(gate.clone()));
    {
        let entering = begun(redlatch::AnyGuard::as_guard(&writing).reenter());
        rig.proxy.wait_for(SOON, |log| log.fired(held) > 0).await.unwrap();
        drop(entering);
    }
    let turning = begun(writing.downgrade());
    gate.release();
    let reading = soon("the downgrade", turning).await.unwrap();
    rig.quiet().await;
    assert_eq!(rig.field("x", &format!("{}:write", text(&owner))), redis::Value::Nil, "nobody writes");
    let beside = soon("another reader", rig.other.read_write_lock("x").read().lock()).await.unwrap();
    beside.unlock().await.unwrap();
    assert_eq!(redlatch::AnyGuard::into_guard(reading).unlock().await.unwrap(), Unlocked::Released);
    drop(rig.other.read_write_lock("x").write().try_lock().await.unwrap().expect("nothing is left"));
}

/// It was granted unseen beside a write hold. Until that goes it is left alone, because another process may come to read under the owner; then
/// it goes, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_was_given_up_beside_a_write_hold_goes_with_it() {
    for answered in [true, false] {
        let rig = rig().await;
        let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
        let gate = Gate::new();
        let action =
            if answered { Action::HoldReplyUntilReleased(gate.clone()) } else { Action::CloseAfterRequest };
        let unseen = rig.proxy.rule(script(&scripts::READ_ACQUIRE).which(Nth::First(1)), action);
        drop(begun(writing.read()));
        rig.proxy.wait_for(SOON, |log| log.fired(unseen) > 0).await.unwrap();
        gate.release();
        // What removes at once what was given up has been and gone.
        tokio::time::sleep(ms(500)).await;
        soon("the end of writing", redlatch::AnyGuard::into_guard(writing).unlock()).await.unwrap();
        soon("the lock", rig.other.read_write_lock("x").write().lock())
            .await
            .unwrap()
            .unlock()
            .await
            .unwrap();
    }
}

/// The server had granted it unseen, and counted it twice when it was asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_beside_a_write_hold_whose_answer_is_lost_is_counted_once() {
    let rig = rig().await;
    let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
    let owner = redlatch::AnyGuard::as_guard(&writing).owner().clone();
    rig.proxy.rule(script(&scripts::READ_ACQUIRE).which(Nth::First(1)), Action::CloseAfterRequest);
    let reading = soon("the read hold", writing.read()).await.unwrap();
    assert_eq!(rig.field("x", &text(&owner)), redis::Value::BulkString(b"1".into()));
    redlatch::AnyGuard::into_guard(writing).unlock().await.unwrap();
    assert_eq!(redlatch::AnyGuard::into_guard(reading).unlock().await.unwrap(), Unlocked::Released);
    drop(rig.other.read_write_lock("x").write().try_lock().await.unwrap().expect("nothing is left"));
}

/// Its answer was read by no one, because its runtime ran no more.
#[test]
fn a_read_hold_that_was_given_up_with_an_idle_runtime_goes_with_its_write_hold() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (idle, running, gate) = (runtime(), runtime(), Gate::new());
    let (rig, writing) = idle.block_on(async {
        let rig = rig().await;
        let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
        let held =
            rig.proxy.rule(script(&scripts::READ_ACQUIRE), Action::HoldReplyUntilReleased(gate.clone()));
        let reading = begun(writing.read());
        rig.proxy.wait_for(SOON, |log| log.fired(held) > 0).await.unwrap();
        drop(reading);
        (rig, writing)
    });
    gate.release();
    drop(writing);
    running.block_on(async {
        let other = Client::connect(&rig.server.url()).await.unwrap();
        drop(soon("the lock", other.read_write_lock("x").write().lock()).await.unwrap());
    });
}
