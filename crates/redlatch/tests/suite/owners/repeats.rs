//! What a process knows of a count when it asks: others may have changed it by the time that a request or its repeat arrives.

use std::sync::Arc;

use redlatch::{AnyGuard, Client, Guard, Lease, ManualClock, Owner, QuorumLock, Unlocked, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Nth, Proxy, Scope},
    server::RedisServer,
};

use super::{Rig, begun, rig, script};
use crate::fixture::{SOON, ms, soon};

const KINDS: [&str; 4] = ["plain", "fair", "write", "read"];

async fn lock(client: &Client, kind: &str, owner: Option<&Owner>) -> Option<Guard> {
    let both = client.read_write_lock("x");
    let looks = redlatch::Wait::No;
    macro_rules! take {
        ($lock:expr) => {{
            let lock = $lock;
            let asked = lock.acquire().wait(looks);
            let asked = match owner {
                Some(owner) => asked.owner(owner),
                None => asked,
            };
            asked.await.unwrap().map(AnyGuard::into_guard)
        }};
    }
    match kind {
        "fair" => take!(client.fair_lock("x")),
        "write" => take!(both.write()),
        "read" => take!(both.read()),
        _ => take!(client.lock("x")),
    }
}

/// Who would be a second holder.
async fn stranger(rig: &Rig, kind: &str) -> Option<Guard> {
    let third = Client::connect(&rig.server.url()).await.unwrap();
    lock(&third, if kind == "read" { "write" } else { kind }, None).await
}

fn handed_out(guard: &Guard) -> Owner {
    guard.owner().to_text().parse().unwrap()
}

/// A lease was passed on with a re-entry under way, which then was the next holder's: its release left the lock held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_re_entry_that_is_on_its_way_is_not_left_to_the_next_holder() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    let first = lock.lock().await.unwrap();
    let mut next = begun(lock.lock());
    rig.proxy.rule(script(&scripts::ENTER), Action::DelayRequest(ms(150)));
    drop(begun(first.reenter()));
    assert_eq!(soon("the release", first.unlock()).await.unwrap(), Unlocked::Released);
    let next = soon("the next holder", &mut next).await.unwrap();
    rig.quiet().await;
    let _handed_out = next.owner().to_text();
    assert_eq!(next.unlock().await.unwrap(), Unlocked::Released);
}

/// The same with a partial release, which then was counted down twice: two holders were valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_release_that_is_on_its_way_is_not_left_to_the_next_holder() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    let outer = lock.lock().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    let mut next = begun(lock.lock());
    rig.proxy.rule(script(&scripts::RELEASE_ONE).which(Nth::First(3)), Action::CloseBeforeRequest);
    let leaving = begun(inner.unlock());
    soon("the release", outer.unlock()).await.unwrap();
    let next = soon("the next holder", &mut next).await.unwrap();
    let again = soon("the re-entry", next.reenter()).await.unwrap();
    soon("the partial release", leaving).await.unwrap();
    rig.proxy.clear_rules();
    let _handed_out = next.owner().to_text();
    again.unlock().await.unwrap();
    assert!(stranger(&rig, "plain").await.is_none() && next.is_valid());
    assert_eq!(next.unlock().await.unwrap(), Unlocked::Released);
}

async fn a_repeated_partial_release(kind: &str) {
    let rig = rig().await;
    let outer = lock(&rig.client, kind, None).await.unwrap();
    let inner = outer.reenter().await.unwrap();
    let leave = match kind {
        "fair" => &scripts::FAIR_RELEASE_ONE,
        "write" => &scripts::WRITE_RELEASE_ONE,
        "read" => &scripts::READ_RELEASE_ONE,
        _ => &scripts::RELEASE_ONE,
    };
    let lost = rig.proxy.rule(script(leave).nth(1), Action::CloseAfterRequest);
    rig.proxy.rule(script(leave).nth(2), Action::DelayRequest(ms(600)));
    let leaving = tokio::spawn(inner.unlock());
    rig.proxy.wait_fired(lost, 1, SOON).await.unwrap();
    let theirs = lock(&rig.other, kind, Some(&handed_out(&outer))).await.expect("it enters");
    // It may say that it was not answered.
    let _unknown = soon("the partial release", leaving).await.unwrap();
    soon("the release", outer.unlock()).await.unwrap();
    assert!(theirs.is_valid() && stranger(&rig, kind).await.is_none(), "{kind}: two valid holders");
}

/// The first one ran, and only its answer was lost. Then the owner was handed out, and the repeat counted the other process away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_repeat_of_a_partial_release_counts_no_other_process_away() {
    for kind in KINDS {
        a_repeated_partial_release(kind).await;
    }
}

async fn a_slow_entry(kind: &str) {
    let rig = rig().await;
    let outer = lock(&rig.client, kind, None).await.unwrap();
    let enter = match kind {
        "write" => &scripts::WRITE_ENTER,
        "read" => &scripts::READ_ENTER,
        _ => &scripts::ENTER,
    };
    let slow = rig.proxy.rule(script(enter), Action::DelayRequest(ms(500)));
    let mut entering = begun(outer.reenter());
    rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
    let theirs = lock(&rig.other, kind, Some(&handed_out(&outer))).await.expect("it enters");
    let inner = soon("the entry", &mut entering).await.unwrap();
    drop(entering);
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    assert!(theirs.is_valid() && stranger(&rig, kind).await.is_none(), "{kind}: two valid holders");
}

/// A re-entry found the count raised by another process that had entered since, and was taken for a repeat of itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_re_entry_does_not_take_another_process_for_its_repeat() {
    for kind in KINDS {
        a_slow_entry(kind).await;
    }
}

/// What was not answered counts here alone, however it went, and the last release ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_re_entry_whose_answer_was_lost_is_one_and_ends_with_its_hold() {
    for lost in [Action::CloseBeforeRequest, Action::CloseAfterRequest] {
        let rig = rig().await;
        let outer = rig.client.lock("x").lock().await.unwrap();
        rig.proxy.rule(script(&scripts::ENTER).nth(1), lost);
        let inner = soon("the entry", outer.reenter()).await.unwrap();
        let third = soon("the next entry", inner.reenter()).await.unwrap();
        assert_eq!(outer.hold_count(), 3);
        assert_eq!(third.unlock().await.unwrap(), Unlocked::StillHeld(2));
        assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
        assert!(outer.is_valid() && stranger(&rig, "plain").await.is_none());
        assert_eq!(outer.unlock().await.unwrap(), Unlocked::Released);
        assert!(stranger(&rig, "plain").await.is_some());
    }
}

/// A re-entry that was lost counted here alone, and the one of two holds that was detached was another process's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_holds_with_a_count_in_doubt_one_is_detached_and_the_other_one_stays() {
    for lost in [Action::CloseBeforeRequest, Action::CloseAfterRequest] {
        for detached_ends_first in [true, false] {
            let rig = rig().await;
            let outer = rig.client.lock("x").lock().await.unwrap();
            rig.proxy.rule(script(&scripts::ENTER).nth(1), lost.clone());
            let inner = soon("the entry", outer.reenter()).await.unwrap();
            let held = inner.detach();
            if detached_ends_first {
                rig.other.lock("x").release(&held.owner.to_text().parse().unwrap()).await.unwrap();
                assert!(outer.is_valid());
            } else {
                soon("the release", outer.unlock()).await.unwrap();
            }
            assert!(stranger(&rig, "plain").await.is_none(), "two holders");
        }
    }
}

/// The repeat of what a downgrade sends took the write hold of another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_repeat_of_a_downgrade_takes_no_other_processs_hold() {
    for asked in [&scripts::READ_ACQUIRE, &scripts::WRITE_RELEASE_ONE] {
        let rig = rig().await;
        let outer = rig.client.read_write_lock("x").write().lock().await.unwrap();
        let inner = outer.reenter().await.unwrap();
        let lost = rig.proxy.rule(script(asked).nth(1), Action::CloseAfterRequest);
        rig.proxy.rule(script(asked).nth(2), Action::DelayRequest(ms(600)));
        let turning = tokio::spawn(inner.downgrade());
        rig.proxy.wait_fired(lost, 1, SOON).await.unwrap();
        let owner = handed_out(outer.as_guard());
        let theirs = lock(&rig.other, "write", Some(&owner)).await.expect("it enters");
        let turned = soon("the downgrade", turning).await.unwrap();
        drop(turned);
        rig.quiet().await;
        soon("the release", outer.unlock()).await.unwrap();
        assert!(theirs.is_valid() && stranger(&rig, "write").await.is_none());
        let reader = lock(&Client::connect(&rig.server.url()).await.unwrap(), "read", None).await;
        assert!(reader.is_none(), "{}: a writer and a reader", asked.name());
    }
}

/// An adopter got the last token drawn, which was of an earlier holder: this one had drawn none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_adopts_a_hold_without_a_token_draws_one() {
    let rig = rig().await;
    let early = rig.client.fenced_lock("x").lock().await.unwrap();
    let first = early.token();
    early.unlock().await.unwrap();
    let held = rig.client.lock("x").lock().await.unwrap().detach();
    let adopted = rig.other.fenced_lock("x").adopt(&held.owner, Lease::Renewed).await.unwrap().unwrap();
    assert!(adopted.token() > first, "one token, two holders");
}

/// An adopter read the token in a request of its own, and got that of the next holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopter_has_no_token_of_a_later_holder() {
    let rig = rig().await;
    let held = rig.other.fenced_lock("x").lock().await.unwrap().into_guard().detach();
    for last in [&scripts::COUNTER_GET, &scripts::TRANSFER] {
        rig.proxy.rule(script(last), Action::DelayRequest(ms(1_000)));
    }
    let fenced = rig.client.fenced_lock("x");
    let owner: Owner = held.owner.to_text().parse().unwrap();
    let adopting = tokio::spawn(async move { fenced.adopt(&owner, Lease::Renewed).await });
    let is_last = |arg: &Vec<u8>| {
        [&scripts::COUNTER_GET, &scripts::TRANSFER].iter().any(|last| arg == last.sha1().as_bytes())
    };
    let sent = rig.proxy.wait_for(SOON, |log| log.requests().any(|request| request.args.iter().any(is_last)));
    sent.await.unwrap();
    rig.other.fenced_lock("x").force_unlock().await.unwrap();
    let next = rig.other.fenced_lock("x").lock().await.unwrap();
    if let Some(adopted) = soon("the adopter", adopting).await.unwrap().unwrap() {
        assert_ne!(adopted.token(), next.token(), "one token, two holders");
    }
}

/// The look that would have found the loss met the lease passed on, and nobody told the next holder until its renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_is_found_while_the_lease_is_passed_on_is_told_to_the_next_holder() {
    let rig = rig().await;
    // Its renewals come too late to tell.
    let clock = ManualClock::new(ms(1_000_000));
    let builder = Client::builder().url(rig.proxy.url()).watchdog_lease(ms(600_000));
    let builder = builder.clock(Arc::new(clock.clone()));
    let client = builder.turn_time(ms(300_000)).response_timeout(ms(60_000)).connect().await.unwrap();
    let lock = client.lock("x");
    let first = lock.lock().await.unwrap();
    // Once renewed, it is watched, and for as long as the clock stands still it was seen just now and may be passed on.
    clock.advance(ms(200_001));
    let watched = rig.proxy.wait_for(SOON, |log| {
        let mut requests = log.requests();
        let is_renewal = |arg: &Vec<u8>| arg == scripts::RENEW.sha1().as_bytes();
        requests.any(|request| request.args.iter().any(is_renewal))
            && requests.any(|request| request.args.first().is_some_and(|arg| arg == b"EXISTS"))
    });
    watched.await.unwrap();
    soon("quiet", async {
        while client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    let mut next = begun(lock.lock());
    let gate = Gate::new();
    let look = rig.proxy.rule(script(&scripts::RENEW), Action::HoldReplyUntilReleased(gate.clone()));
    rig.other.lock("x").force_unlock().await.unwrap();
    let theirs = rig.other.lock("x").lock_with_lease(ms(600_000)).await.unwrap();
    rig.proxy.wait_fired(look, 1, SOON).await.unwrap();
    let _passed_on = soon("the release", first.unlock()).await;
    let next = soon("the next holder", &mut next).await.unwrap();
    gate.release();
    soon("the loss", next.lost()).await;
    drop(theirs);
}

/// One member after the other was asked, and those that came last were renewed while one did not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_is_kept_for_a_time_at_all_members_at_once() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    let proxies: Vec<_> = servers.iter().map(|server| Proxy::start(&server.url()).unwrap()).collect();
    let mut locks = Vec::new();
    for proxy in &proxies {
        let builder = Client::builder().url(proxy.url()).watchdog_lease(ms(600_000));
        let client = builder.response_timeout(ms(60_000)).connect_lazy().unwrap();
        drop(client.lock("warm").lock().await.unwrap());
        locks.push(client.lock("q"));
    }
    let guard = QuorumLock::new(locks).unwrap().lock().await.unwrap();
    proxies[0].stall(Scope::Both);
    let keeping = tokio::spawn(guard.detach_for(ms(500)));
    for server in &servers[1..] {
        soon("the end of its time", async {
            while server.cmd(&["EXISTS", "q"]).unwrap() != redis::Value::Int(0) {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    }
    keeping.abort();
}

/// More permits were taken away than were free, and the repeat of a request that had been granted was told to wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeat_of_granted_permits_is_granted_while_less_than_none_is_free() {
    let rig = rig().await;
    let (permits, theirs) = (rig.client.permit_semaphore("p"), rig.other.permit_semaphore("p"));
    theirs.set_if_absent(3).await.unwrap();
    let lost = rig.proxy.rule(script(&scripts::PERMIT_TAKE).nth(1), Action::CloseAfterRequest);
    rig.proxy.rule(script(&scripts::PERMIT_TAKE).nth(2), Action::DelayRequest(ms(300)));
    let taking = tokio::spawn(async move { permits.acquire().await });
    rig.proxy.wait_fired(lost, 1, SOON).await.unwrap();
    theirs.add(-3).await.unwrap();
    drop(soon("the permit", taking).await.unwrap().unwrap());
}

/// It took the write hold for its own whatever the server counted, and readers came in beside the other process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_that_is_on_its_way_takes_no_write_hold_that_another_process_enters() {
    for asked in [&scripts::READ_ACQUIRE, &scripts::WRITE_RELEASE] {
        let rig = rig().await;
        let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
        let owner = writing.owner().clone();
        let slow = rig.proxy.rule(script(asked), Action::DelayRequest(ms(400)));
        let turning = tokio::spawn(writing.downgrade());
        rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
        let theirs =
            lock(&rig.other, "write", Some(&owner.to_text().parse().unwrap())).await.expect("it enters");
        let reading = soon("the downgrade", turning).await.unwrap().unwrap();
        let third = Client::connect(&rig.server.url()).await.unwrap();
        assert!(lock(&third, "read", None).await.is_none() && theirs.is_valid(), "a reader beside a writer");
        assert!(stranger(&rig, "write").await.is_none());
        assert_eq!(theirs.unlock().await.unwrap(), Unlocked::Released);
        let beside = lock(&third, "read", None).await;
        assert!(reading.is_valid() && beside.is_some(), "{}: only readers are left", asked.name());
        reading.unlock().await.unwrap();
    }
}

/// The release of a read hold was never answered, and arrived when its owner read again by way of a downgrade.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_with_a_release_on_its_way_turns_into_no_reader() {
    let rig = rig().await;
    let brisk = Client::builder().url(rig.proxy.url()).watchdog_lease(ms(900)).connect().await.unwrap();
    let writing = brisk.read_write_lock("x").write().lock().await.unwrap();
    let _handed_out = writing.owner().to_text();
    let reading = writing.reenter().await.unwrap().downgrade().await.unwrap();
    let lost = rig.proxy.rule(script(&scripts::READ_RELEASE_ONE), Action::CloseBeforeRequest);
    // Until its lease is over, because it is not repeated.
    let _gone = soon("the end of the read hold", reading.unlock()).await.unwrap();
    rig.proxy.remove_rule(lost);
    match writing.reenter().await.unwrap().downgrade().await {
        Err(error) => assert_eq!(error.kind(), redlatch::ErrorKind::OwnerInDoubt, "{error}"),
        Ok(again) => {
            rig.arrives_late(&scripts::READ_RELEASE_ONE);
            let there = rig.field("x", &again.owner().to_text()) != redis::Value::Nil;
            assert!(there || !again.is_valid(), "a valid reader that the server does not know");
        }
    }
    assert!(writing.is_valid() && stranger(&rig, "write").await.is_none());
    writing.unlock().await.unwrap();
}

/// The renewal had run, and its answer was on its way: the hold was there for longer than its guard knew, and the unlock failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_without_an_answer_is_watched_for_as_long_as_a_renewal_before_it_lasts() {
    let rig = rig().await;
    let brisk = Client::builder().url(rig.proxy.url()).watchdog_lease(ms(3_000)).connect().await.unwrap();
    let held = brisk.lock("x").lock().await.unwrap();
    let _handed_out = held.owner().to_text();
    let gate = Gate::new();
    let renewal = rig.proxy.rule(script(&scripts::RENEW), Action::HoldReplyUntilReleased(gate.clone()));
    // The first is a look.
    rig.proxy.wait_fired(renewal, 2, SOON).await.unwrap();
    rig.proxy.remove_rule(renewal);
    rig.proxy.rule(script(&scripts::RELEASE_ONE), Action::CloseBeforeRequest);
    let unlocking = begun(held.unlock());
    // The renewal is answered when the guard has gone.
    gate.release();
    assert_eq!(soon("the unlock", unlocking).await.unwrap(), Unlocked::Released);
    assert!(stranger(&rig, "plain").await.is_some(), "its lease is over");
}

/// It waited for an attempt of its owner, and was sent when the server counted another process's hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_release_that_waits_until_its_lease_is_over_is_not_sent() {
    let rig = rig().await;
    let both = rig.client.read_write_lock("x");
    let outer = both.write().lock_with_lease(ms(800)).await.unwrap();
    let owner = handed_out(&outer);
    let inner = outer.reenter().await.unwrap();
    let slow = rig.proxy.rule(script(&scripts::READ_ACQUIRE), Action::DelayRequest(ms(1_500)));
    let (read, by) = (both.read().clone(), owner.clone());
    let reading = tokio::spawn(async move { read.acquire().owner(&by).await.map(|guard| guard.is_some()) });
    rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
    let left = soon("the partial release", inner.unlock()).await.unwrap();
    assert!(matches!(left, Unlocked::AlreadyLost(_)), "{left:?}");
    let leave = scripts::WRITE_RELEASE_ONE.sha1().as_bytes();
    let sent =
        rig.proxy.with_log(|log| log.requests().any(|request| request.args.iter().any(|arg| arg == leave)));
    assert!(!sent, "it would count down what another process holds by now");
    drop((outer, soon("the read hold", reading).await));
}

/// A read hold that was given up beside a write hold was removed when that had gone; its owner had been handed out since the last look, and the
/// read hold was another process's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_beside_a_write_hold_takes_nothing_when_that_has_gone() {
    for round in 0..3 {
        let rig = rig().await;
        let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
        let lost = rig.proxy.rule(script(&scripts::READ_ACQUIRE).nth(1), Action::CloseBeforeRequest);
        drop(begun(writing.read()));
        rig.proxy.wait_fired(lost, 1, SOON).await.unwrap();
        // What removes it waits for the end of the write hold.
        rig.quiet().await;
        tokio::time::sleep(ms(300 + 30 * round)).await;
        let owner = handed_out(writing.as_guard());
        let theirs = lock(&rig.other, "read", Some(&owner)).await.expect("it enters");
        soon("the end of writing", writing.unlock()).await.unwrap();
        tokio::time::sleep(ms(400)).await;
        assert!(theirs.is_valid() && stranger(&rig, "read").await.is_none(), "a writer beside a reader");
        assert_eq!(theirs.unlock().await.unwrap(), Unlocked::Released);
    }
}

/// What was given up beside a write hold was removed while the owner gave its own read hold back, which was told as a loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_goes_after_its_write_hold_is_not_taken_for_what_was_given_up() {
    let rig = rig().await;
    let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
    let lost = rig.proxy.rule(script(&scripts::READ_ACQUIRE).nth(1), Action::CloseBeforeRequest);
    drop(begun(writing.read()));
    rig.proxy.wait_fired(lost, 1, SOON).await.unwrap();
    let reading = soon("the read hold", writing.read()).await.unwrap();
    let twice = reading.reenter().await.unwrap();
    soon("the end of writing", writing.unlock()).await.unwrap();
    let gate = Gate::new();
    let slow =
        rig.proxy.rule(script(&scripts::READ_RELEASE_ONE), Action::HoldReplyUntilReleased(gate.clone()));
    drop(twice);
    rig.proxy.wait_fired(slow, 1, SOON).await.unwrap();
    let last = begun(reading.unlock());
    tokio::time::sleep(ms(500)).await;
    gate.release();
    assert_eq!(soon("the release", last).await.unwrap(), Unlocked::Released);
}

/// A grant that came when its time was over was counted down, and what was counted by then was another process's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_comes_too_late_takes_no_other_processs_hold() {
    let rig = rig().await;
    let brisk = Client::builder().url(rig.proxy.url()).watchdog_lease(ms(1_000)).response_timeout(ms(60_000));
    let writing = brisk.connect().await.unwrap().read_write_lock("x").write().lock().await.unwrap();
    let owner = handed_out(writing.as_guard());
    let late = rig.proxy.rule(script(&scripts::READ_ACQUIRE).nth(1), Action::DelayReply(ms(1_600)));
    let reading = begun(writing.read());
    rig.proxy.wait_fired(late, 1, SOON).await.unwrap();
    // The server's lease of it ends meanwhile.
    tokio::time::sleep(ms(1_150)).await;
    let theirs = lock(&rig.other, "read", Some(&owner)).await.expect("it enters");
    let reading = soon("the read hold", reading).await.unwrap();
    reading.unlock().await.unwrap();
    writing.unlock().await.unwrap();
    assert!(theirs.is_valid() && stranger(&rig, "read").await.is_none(), "a writer beside a reader");
    assert_eq!(theirs.unlock().await.unwrap(), Unlocked::Released);
}
