//! Faults between client and server: connections that end, fall silent, are slow, or lose what they carry.

use std::time::{Duration, Instant};

use redlatch::{Client, ErrorKind, LossReason, Unlocked, scripts};
use redlatch_testkit::{
    proxy::{Action, ConnectionKind, Gate, Match, Nth, Proxy, Scope},
    server::RedisServer,
};

use super::{nothing_left, rig};
use crate::fixture::{IN_VAIN, LATE, RENEWED, SOON, awake, ms, patient, renewed, soon, told};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_a_reset_connection_costs_nobody_anything() {
    let rig = rig(RENEWED).await;
    let guard = rig.client.lock("reset").lock().await.unwrap();
    for _ in 0..20 {
        rig.proxy.reset_all();
        tokio::time::sleep(ms(60)).await;
        assert!(rig.client.lock("reset").lock_for(ms(500)).await.unwrap().is_none());
        rig.client.lock("free").lock_for(SOON).await.unwrap().unwrap().unlock().await.unwrap();
    }
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    nothing_left(&rig.server, "free").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_10_a_lost_acquire_reply_never_counts_twice_and_never_leaks() {
    let rig = rig(ms(30_000)).await;
    for (n, action) in
        [Action::CloseAfterRequest, Action::DropReply, Action::CloseBeforeRequest].into_iter().enumerate()
    {
        let name = format!("lost-{n}");
        for wait in ["lock", "try", "short"] {
            rig.proxy.clear_rules();
            let rule = rig.proxy.rule(Match::script().key_contains(&name).nth(1), action.clone());
            let lock = rig.client.lock(name.as_str());
            match wait {
                "lock" => {
                    let guard = soon("the grant", lock.lock()).await.unwrap();
                    assert_eq!(rig.direct.lock(name.as_str()).hold_count(guard.owner()).await.unwrap(), 1);
                    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
                }
                "try" => {
                    // Resolved by asking again under the same owner: granted once, or an error with nothing left.
                    if let Ok(Some(guard)) = soon("an answer", lock.try_lock()).await {
                        assert_eq!(
                            rig.direct.lock(name.as_str()).hold_count(guard.owner()).await.unwrap(),
                            1
                        );
                        guard.unlock().await.unwrap();
                    }
                }
                _ => {
                    let start = Instant::now();
                    if let Ok(Some(guard)) = lock.lock_for(ms(200)).await {
                        guard.unlock().await.unwrap();
                    }
                    assert!(awake(start) < ms(200) + LATE, "{:?}", start.elapsed());
                }
            }
            assert_eq!(rig.proxy.fired(rule), 1, "the fault was there");
            rig.proxy.heal().unwrap();
            nothing_left(&rig.server, &name).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_11_a_lost_unlock_reply_frees_nobody_else_and_is_no_false_alarm() {
    let rig = rig(ms(30_000)).await;
    for (n, action) in [Action::CloseAfterRequest, Action::DropReply].into_iter().enumerate() {
        let name = format!("unlock-{n}");
        let guard = rig.client.lock(name.as_str()).lock().await.unwrap();
        let rule = rig.proxy.rule(Match::script().arg_contains(scripts::RELEASE.sha1()).nth(1), action);
        let unlocking = tokio::spawn(guard.unlock());
        // Another owner takes the lock while the first reply is lost; the repeat must not free it.
        let next = soon("the next grant", rig.direct.lock(name.as_str()).lock()).await.unwrap();
        assert_eq!(soon("the outcome", unlocking).await.unwrap().unwrap(), Unlocked::Released);
        assert_eq!(rig.proxy.fired(rule), 1);
        assert!(rig.direct.lock(name.as_str()).is_held_by(next.owner()).await.unwrap());
        next.unlock().await.unwrap();
        rig.proxy.clear_rules();
        rig.proxy.heal().unwrap();
        nothing_left(&rig.server, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_11_lost_replies_of_reentry_never_count_too_few() {
    let rig = rig(ms(30_000)).await;
    let guard = rig.client.lock("count").lock().await.unwrap();
    for script in [&scripts::ENTER, &scripts::RELEASE_ONE] {
        rig.proxy.rule(
            Match::script().arg_contains(script.sha1()).which(Nth::First(1)),
            Action::CloseAfterRequest,
        );
    }
    let plain = rig.client.lock("count");
    // `owner()` would mark the owner as shared; the hold count is read by what the server shows.
    let count = async || rig.direct.inspect("count").await.unwrap().holders[0].holds;
    let inner = soon("the re-entry", guard.reenter()).await.unwrap();
    // Whether it ran is not known, so it counts here at least.
    assert!(count().await >= 1);
    assert_eq!(soon("the partial release", inner.unlock()).await.unwrap(), Unlocked::StillHeld(1));
    assert!(count().await >= 1 && guard.is_valid());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    assert!(!plain.is_locked().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_12_every_second_renewal_may_fail_and_the_lock_holds() {
    let rig = rig(RENEWED).await;
    let guard = rig.client.lock("flaky").lock().await.unwrap();
    for nth in (1..40).step_by(2) {
        rig.proxy
            .rule(Match::script().arg_contains(scripts::RENEW.sha1()).nth(nth), Action::CloseAfterRequest);
    }
    renewed(4, async || {
        assert!(guard.is_valid(), "{:?}", guard.loss());
        rig.direct.lock("flaky").remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    assert!(rig.direct.lock("flaky").try_lock().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_a_silent_network_means_loss_by_the_deadline_and_an_answer_in_time() {
    for scope in [Scope::Both, Scope::Requests, Scope::Replies, Scope::Commands] {
        let rig = rig(ms(900)).await;
        let guard = rig.client.lock("dark").lock().await.unwrap();
        rig.proxy.blackhole(scope);
        let start = Instant::now();
        let waiting = rig.client.lock("other");
        let waiter = tokio::spawn(async move {
            let start = Instant::now();
            (waiting.lock_for(ms(400)).await.map(|_| ()), awake(start))
        });
        assert_eq!(soon("the notice", guard.lost()).await, LossReason::Expired);
        assert!(awake(start) <= ms(900) + LATE, "{scope:?}: {:?}", start.elapsed());
        let (outcome, took) = soon("the waiter's end", waiter).await.unwrap();
        assert!(outcome.is_err(), "trouble is not 'busy'");
        assert!(took < ms(400) + LATE, "{scope:?}: {took:?}");
        let start = Instant::now();
        let error = rig.client.lock("try").try_lock().await.map(|_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Timeout), "{error}");
        assert!(awake(start) < ms(3_000) + LATE, "{scope:?}: {:?}", start.elapsed());
        rig.proxy.heal().unwrap();
        drop(soon("service after the fault", rig.client.lock("after").lock()).await.unwrap());
        for name in ["dark", "other", "try"] {
            nothing_left(&rig.server, name).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_without_messages_waiters_look_for_themselves() {
    let rig = rig(ms(30_000)).await;
    let guard = rig.direct.lock("mute").lock().await.unwrap();
    let lock = rig.client.lock("mute");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    tokio::time::sleep(ms(300)).await;
    rig.proxy.blackhole(Scope::PubSub);
    let start = Instant::now();
    guard.unlock().await.unwrap();
    soon("the poll", waiter).await.unwrap().unwrap();
    assert!(awake(start) < ms(800) + LATE, "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_14_a_grant_that_comes_too_late_is_given_back() {
    let rig = rig(ms(30_000)).await;
    rig.proxy.rule(Match::script().key_contains("late").nth(1), Action::DelayReply(ms(350)));
    let error = rig
        .client
        .lock("late")
        .acquire()
        .lease(redlatch::Lease::Fixed(ms(200)))
        .await
        .map(|_| ())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    nothing_left(&rig.server, "late").await;
    // With latency and jitter on every message the deadline still counts from the sending.
    rig.proxy.clear_rules();
    rig.proxy.latency(ms(50), ms(50), 7);
    let guard = rig.client.lock("slow").lock_with_lease(ms(2_000)).await.unwrap();
    assert!(guard.remaining() <= ms(2_000 - 100), "{:?}", guard.remaining());
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_15_replies_in_single_bytes_are_understood() {
    let rig = rig(ms(30_000)).await;
    rig.proxy.slice_replies();
    for _ in 0..5 {
        let guard = rig.client.lock("sliced").acquire().fenced().await.unwrap().unwrap();
        assert!(guard.token().is_some());
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_16_a_shifted_reply_is_never_a_grant() {
    let rig = rig(ms(30_000)).await;
    let rule = rig.proxy.rule(Match::script().key_contains("shift").nth(3), Action::SkipReply);
    let mut tasks = Vec::new();
    for n in 0..40 {
        let client = rig.client.clone();
        tasks.push(tokio::spawn(async move {
            // Each name is held by another owner or free, so a shifted reply would grant what is held.
            let lock = client.lock(format!("shift-{n}"));
            lock.lock_for(ms(4_000)).await.map(|guard| guard.map(|guard| (n, guard)))
        }));
    }
    let mut held = Vec::new();
    for task in tasks {
        if let Some((n, guard)) = soon("an answer", task).await.unwrap().unwrap() {
            let holds = rig.direct.lock(format!("shift-{n}")).hold_count(guard.owner()).await.unwrap();
            assert_eq!(holds, 1, "a guard without a hold: shift-{n}");
            held.push(guard);
        }
    }
    assert_eq!(rig.proxy.fired(rule), 1);
    assert_eq!(held.len(), 40);
    drop(held);
    nothing_left(&rig.server, "shift").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_18_killed_subscriptions_leave_no_waiter_asleep() {
    let rig = rig(ms(30_000)).await;
    let other = Client::connect(&rig.proxy.url()).await.unwrap();
    let killer = {
        let proxy = &rig.proxy;
        async move {
            loop {
                proxy.reset(ConnectionKind::PubSub);
                tokio::time::sleep(ms(100)).await;
            }
        }
    };
    let work = async {
        let mut longest = Duration::ZERO;
        for _ in 0..25 {
            let guard = rig.client.lock("killed").lock().await.unwrap();
            let lock = other.lock("killed");
            let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
            tokio::time::sleep(ms(60)).await;
            guard.unlock().await.unwrap();
            let start = Instant::now();
            soon("the waiter's turn", waiter).await.unwrap().unwrap();
            longest = longest.max(awake(start));
        }
        longest
    };
    tokio::select! {
        longest = work => assert!(longest < ms(800) + LATE, "a hand-off took {longest:?}"),
        () = killer => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_whose_reply_is_lost_hands_the_lock_on_all_the_same() {
    let rig = rig(ms(30_000)).await;
    for action in [Action::CloseAfterRequest, Action::CloseBeforeRequest] {
        rig.proxy.clear_rules();
        let rule = rig.proxy.rule(Match::script().arg_contains(scripts::TRANSFER.sha1()).nth(1), action);
        let guard = rig.client.lock("pass").lock().await.unwrap();
        let lock = rig.client.lock("pass");
        let waiter = tokio::spawn(async move {
            lock.acquire().wait(redlatch::Wait::Forever).fenced().await.unwrap().unwrap()
        });
        tokio::time::sleep(ms(100)).await;
        assert_eq!(soon("the outcome", guard.unlock()).await.unwrap(), Unlocked::Released);
        let next = soon("the waiter's turn", waiter).await.unwrap();
        assert!(next.token().is_some());
        let state = rig.direct.inspect("pass").await.unwrap();
        assert_eq!(state.holders.len(), 1, "{next:?} {state:?}");
        assert_eq!((state.holders[0].owner.as_str(), state.holders[0].holds), (&*next.owner().to_text(), 1));
        next.unlock().await.unwrap();
        assert_eq!(rig.proxy.fired(rule), 1);
        soon("quiet", async {
            while rig.client.stats().names + rig.client.stats().background_jobs > 0 {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        let state = rig.direct.inspect("pass").await.unwrap();
        assert!(state.holders.is_empty(), "{state:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_between_the_refusal_and_the_subscription_is_not_missed() {
    let rig = rig(ms(30_000)).await;
    let guard = rig.direct.lock("gap").lock_with_lease(ms(600_000)).await.unwrap();
    let rule = rig.proxy.rule(Match::command("SUBSCRIBE"), Action::DelayRequest(ms(100)));
    // It does not look by itself.
    let client = patient(Client::builder().url(rig.proxy.url())).connect().await.unwrap();
    let lock = client.lock("gap");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    rig.proxy.wait_for(Duration::from_secs(5), |log| log.count("SUBSCRIBE") == 1).await.unwrap();
    // The message goes out while nobody has subscribed yet.
    guard.unlock().await.unwrap();
    told("the waiter's turn", waiter).await.unwrap().unwrap();
    assert_eq!(rig.proxy.fired(rule), 1);
}

/// A grant whose first request went missing is looked after once more when it has been given back, and not before: that look
/// would find the hold, and the release, which is late, nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_of_a_lock_that_was_granted_in_doubt_is_no_loss() {
    let rig = rig(ms(30_000)).await;
    rig.proxy.rule(Match::script().key_contains("doubtful").nth(1), Action::CloseAfterRequest);
    let guard = soon("the grant", rig.client.lock("doubtful").lock()).await.unwrap();
    let release = scripts::RELEASE.sha1();
    let late = rig.proxy.rule(
        Match::script().key_contains("doubtful").arg_contains(release).nth(1),
        Action::DelayRequest(ms(500)),
    );
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(rig.proxy.fired(late), 1);
}

/// No release had reached the server that lost the lock, and the one that found nothing was taken for the repeat of one that had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_could_not_be_sent_before_the_lock_was_lost_says_so() {
    let net = rig(ms(30_000)).await;
    let lock = net.client.lock("x");
    let guard = lock.lock().await.unwrap();
    net.proxy.refuse_new().unwrap();
    net.proxy.reset_all();
    net.server.cmd(&["DEL", "x"]).unwrap();
    // The client has noticed that the connection is gone.
    let error = soon("an answer", net.client.lock("y").try_lock()).await.map(drop).unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let unlocking = tokio::spawn(guard.unlock());
    soon("the release under way", async {
        while net.client.stats().background_jobs == 0 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    net.proxy.heal().unwrap();
    let unlocked = soon("the release", unlocking).await.unwrap().unwrap();
    assert!(matches!(unlocked, Unlocked::AlreadyLost(_)), "{unlocked:?}");
}

/// The local engine's disk was full: what it had done in memory was told like what it had refused, so a lock that was said not to be granted
/// stayed for its lease, and a release that was done was a loss at its repeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engine_did_and_could_not_write_down_is_no_refusal() {
    let rig = rig(ms(30_000)).await;
    let lock = rig.client.lock("x");
    let unsaved = || Action::ReplaceReply(b"-UNSAVED The journal cannot be written\r\n".to_vec());
    for script in [&scripts::ACQUIRE, &scripts::RELEASE] {
        rig.proxy.rule(Match::script().arg_contains(script.sha1()).nth(1), unsaved());
    }
    let guard = soon("the grant", lock.try_lock()).await.unwrap().expect("it has been granted");
    assert_eq!(soon("the release", guard.unlock()).await.unwrap(), Unlocked::Released);
    nothing_left(&rig.server, "x").await;
    // Nor may it arrive later, so its owner can be used again.
    let owner = rig.client.owner();
    for _ in 0..2 {
        rig.proxy.clear_rules();
        rig.proxy.rule(Match::script().arg_contains(scripts::RELEASE.sha1()).nth(1), unsaved());
        let guard = lock.acquire().owner(&owner).await.unwrap().expect("it is free");
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

/// An extension that never reached the server had its release tried for as long as it would have lasted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_was_never_sent_does_not_put_off_the_end_of_a_release() {
    let rig = rig(ms(30_000)).await;
    let lock = rig.client.lock("x");
    let guard = lock.acquire().lease(redlatch::Lease::Fixed(ms(2_000))).await.unwrap().expect("it is free");
    rig.proxy.refuse_new().unwrap();
    rig.proxy.reset_all();
    let error = soon("an answer", rig.client.lock("y").try_lock()).await.map(drop).unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let error = soon("an answer", guard.extend(Duration::from_secs(3_600))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "nothing is sent: {error}");
    let error = soon("the end of the release", guard.unlock()).await.unwrap_err();
    assert!(error.to_string().contains("before the lease ended"), "{error}");
    rig.proxy.heal().unwrap();
}

/// Each for itself they would learn of it one after the other: here the last one after a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_in_line_learn_of_an_outage_together() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder().url(proxy.url()).outage_tolerance(ms(2_000)).connect().await.unwrap();
    let held = Client::connect(&server.url()).await.unwrap().lock("away").lock().await.unwrap();
    let tasks: Vec<_> = (0..30)
        .map(|_| {
            let lock = client.lock("away");
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .collect();
    soon("the line", async {
        while client.stats().in_line < 29 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    proxy.refuse_new().unwrap();
    proxy.close_all();
    let outcomes = soon("all errors", async {
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.unwrap());
        }
        outcomes
    });
    for outcome in outcomes.await {
        assert!(outcome.as_ref().is_err_and(redlatch::Error::is_retryable), "{outcome:?}");
    }
    // What was learnt of the outage is forgotten with it.
    proxy.heal().unwrap();
    held.unlock().await.unwrap();
    soon("the grant", client.lock("away").lock()).await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_in_line_whose_time_is_up_in_an_outage_does_not_call_the_lock_busy() {
    let rig = rig(ms(30_000)).await;
    let _held = rig.direct.lock("away").lock().await.unwrap();
    let lock = rig.client.lock("away");
    let mut leader = std::pin::pin!(lock.lock());
    assert!(tokio::time::timeout(ms(50), &mut leader).await.is_err(), "another process holds it");
    let mut in_line = std::pin::pin!(lock.lock_for(ms(4_000)));
    assert!(tokio::time::timeout(ms(50), &mut in_line).await.is_err(), "the leader is before it");
    rig.proxy.refuse_new().unwrap();
    rig.proxy.close_all();
    let outcome = tokio::select! {
        outcome = &mut leader => panic!("it rides the outage out: {outcome:?}"),
        outcome = soon("an end", in_line) => outcome,
    };
    assert!(outcome.as_ref().is_err_and(redlatch::Error::is_retryable), "{outcome:?}");
    rig.proxy.heal().unwrap();
    // With an answer it is busy again.
    let busy = lock.lock_for(ms(1_500));
    let outcome = tokio::select! {
        outcome = &mut leader => panic!("another process holds it: {outcome:?}"),
        outcome = soon("an end", busy) => outcome,
    };
    assert!(matches!(outcome, Ok(None)), "{outcome:?}");
}

/// A look that began more than 0.1 s before the limit and had no answer by then made an error of a lock that had been busy all the time: on a busy machine, one
/// wait in some thousands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_without_an_answer_when_time_is_up_is_an_outage_only_if_it_has_waited_for_a_second() {
    let rig = rig(ms(30_000)).await;
    let _held = rig.direct.lock("late").lock().await.unwrap();
    let lock = rig.client.lock("late");
    assert!(lock.try_lock().await.unwrap().is_none());
    let holds_replies = |gate: &Gate| {
        for nth in 1..100 {
            let hold = Action::HoldReplyUntilReleased(gate.clone());
            rig.proxy.rule(Match::script().key_contains("late").nth(nth), hold);
        }
    };
    let gate = Gate::new();
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock_for(IN_VAIN).await }
    });
    // Looks are 0.4 to 0.8 s apart, so one begins in what is left of the time.
    tokio::time::sleep(IN_VAIN - ms(800)).await;
    holds_replies(&gate);
    let waited = soon("an end", waiter).await.unwrap();
    assert!(matches!(waited, Ok(None)), "{waited:?}");
    gate.release();
    rig.proxy.clear_rules();
    let gate = Gate::new();
    let waiter = tokio::spawn(async move { lock.lock_for(2 * IN_VAIN).await });
    tokio::time::sleep(IN_VAIN).await;
    holds_replies(&gate);
    let waited = soon("an end", waiter).await.unwrap();
    let error = waited.map(|guard| guard.is_some()).expect_err("an outage");
    assert!(error.is_retryable(), "{error}");
    gate.release();
}

/// The reply to a release of one name, read as that to an acquire of another one by the same owner, would be a grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_to_another_request_of_the_same_owner_is_no_grant() {
    let rig = rig(ms(30_000)).await;
    let owner = rig.client.owner();
    let _held = rig.direct.lock("taken").lock().await.unwrap();
    let own = rig.client.lock("own").acquire().owner(&owner).await.unwrap().unwrap();
    let rule = rig.proxy.rule(Match::script().key_contains("taken").nth(1), Action::SkipReply);
    let taken = rig.client.lock("taken");
    let mut acquire =
        std::pin::pin!(taken.acquire().owner(&owner).wait(redlatch::Wait::AtMost(ms(1_500))).into_future());
    tokio::select! {
        outcome = acquire.as_mut() => panic!("its reply is lost: {outcome:?}"),
        fired = rig.proxy.wait_fired(rule, 1, SOON) => fired.unwrap(),
    }
    let (acquired, released) = tokio::join!(soon("an end", acquire), soon("the release", own.unlock()));
    assert!(!matches!(acquired, Ok(Some(_))), "{acquired:?}");
    assert_eq!(released.unwrap(), Unlocked::Released);
}
