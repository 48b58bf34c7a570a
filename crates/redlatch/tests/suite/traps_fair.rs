//! The traps of the fair lock, each named after its number in `docs/protocol.md`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redlatch::{Client, ErrorKind, FairLock, Lease, LossReason, ManualClock, Unlocked, Wait, scripts};
use redlatch_testkit::{
    proxy::{Action, Match},
    server::RedisServer,
};

use crate::{
    faults::rig,
    fixture::{LATE, awake, ms, quiet, soon},
    wire::{alone, heard},
    wire_fair::{CHANNEL, QUEUE, TIMES, ended, line, members, move_time, told, waiting},
    wire_fair_java::Java,
};

/// The longest pause of a waiter that is next, and of one that is not.
const LOOK: Duration = ms(800);
const LOOK_BEHIND: Duration = ms(3_000);
/// A member that one of our clients could have, for a process that is gone without a trace.
const GONE: &str = "1b671a64-40d5-4ed1-a7c4-da01ff1f3341:1";

/// Puts a waiter into the queue that never looks again, as a process leaves it that was killed.
fn leave_behind(server: &RedisServer, member: &str, left_ms: i64) {
    let at = crate::wire_fair::server_now_ms(server) + left_ms;
    server.cmd(&["RPUSH", QUEUE, member]).unwrap();
    server.cmd(&["ZADD", TIMES, &at.to_string(), member]).unwrap();
}

fn scripts_run(server: &RedisServer) -> u64 {
    server.command_count("evalsha").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_no_clock_but_the_servers_counts() {
    // The store's clock stands in 1970, ours in the present.
    let clock = ManualClock::new(Duration::from_secs(1_000));
    let connect = async |clock: &ManualClock| {
        quiet().url("memory:f1").clock(Arc::new(clock.clone())).connect().await.unwrap()
    };
    let (a, b) = (connect(&clock).await, connect(&clock).await);
    let guard = a.fair_lock("x").lock_with_lease(Duration::from_secs(600)).await.unwrap();
    let waiting = |client: &Client, lock: FairLock| {
        let client = client.clone();
        let task = tokio::spawn(async move { lock.lock().await.unwrap() });
        async move {
            soon("its place", async {
                while client.stats().in_line == 0 {
                    tokio::time::sleep(ms(5)).await;
                }
            })
            .await;
            // The handle itself is wanted, not what it waits for.
            (task,)
        }
    };
    let (first,) = waiting(&a, a.fair_lock("x")).await;
    let (second,) = waiting(&b, b.fair_lock("x")).await;
    // Far beyond the 30 s for which a waiter counts that is not heard of, and the lease goes on.
    for _ in 0..4 {
        let left: Vec<_> =
            a.inspect("x").await.unwrap().waiters.iter().map(|waiter| waiter.stale_in.unwrap()).collect();
        assert!(left.iter().all(|left| *left > Duration::from_secs(200)), "{left:?}");
        clock.advance(Duration::from_secs(100));
        tokio::time::sleep(LOOK_BEHIND / 2).await;
    }
    assert_eq!(a.inspect("x").await.unwrap().waiters.len(), 2);
    guard.unlock().await.unwrap();
    soon("the first", first).await.unwrap().unlock().await.unwrap();
    soon("the second", second).await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_java_client_whose_clock_is_ahead_costs_places_and_nothing_else() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    let (first, one) = waiting(&server, &lock).await;
    let (second, other) = waiting(&server, &lock).await;
    let ahead = Java::new(&server, 2).with_clock(3_600_000);
    assert!(!ahead.ask());
    assert_eq!(
        members(&server),
        std::slice::from_ref(&ahead.field),
        "the whole queue is dropped: that is the trap"
    );
    soon("their way back into the queue", async {
        while members(&server).len() < 3 {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    ahead.give_up();
    assert!(holder.unlock());
    let (first, second) =
        tokio::join!(async { soon("a grant", first).await.unwrap().unlock().await.unwrap() }, async {
            soon("a grant", second).await.unwrap().unlock().await.unwrap()
        },);
    assert_eq!((first, second), (Unlocked::Released, Unlocked::Released));
    assert!(one != other && line(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_behind_a_slow_head_nobody_asks_without_pause() {
    let (server, client) = alone().await;
    let holder = Java::new(&server, 1);
    let slow = Java::new(&server, 2);
    assert!(holder.ask() && !slow.ask() && holder.unlock());
    // The lock is free, and the one whose turn it is does not come.
    let lock = client.fair_lock("x");
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(waiting(&server, &lock).await.0);
    }
    server.reset_command_counts().unwrap();
    tokio::time::sleep(LOOK_BEHIND).await;
    let run = scripts_run(&server);
    assert!((1..=5 * 3).contains(&run), "{run} looks of 5 waiters in {LOOK_BEHIND:?}");
    slow.give_up();
    for waiter in waiters {
        soon("a grant", waiter).await.unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f2_a_holder_whose_time_runs_out_is_not_asked_for_without_pause() {
    let (server, client) = alone().await;
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    let (task, _) = waiting(&server, &client.fair_lock("x")).await;
    // A key that is about to end for as long as a client goes on setting it.
    server.reset_command_counts().unwrap();
    let end = Instant::now() + ms(1_000);
    while Instant::now() < end {
        server.cmd(&["HSET", "x", holder.field.as_str(), "1"]).unwrap();
        server.cmd(&["PEXPIRE", "x", "20"]).unwrap();
        tokio::time::sleep(ms(2)).await;
    }
    let run = scripts_run(&server);
    assert!(run <= 500, "{run} looks in a second");
    soon("the end", task).await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_a_dead_head_of_ours_holds_others_up_for_its_30_seconds_only() {
    let (server, client) = alone().await;
    let guard = client.fair_lock("x").lock_with_lease(Duration::from_secs(20)).await.unwrap();
    // A waiter that is never driven again: its process is gone. What it wrote is what a dead one leaves.
    let dying = quiet().url(server.url()).connect().await.unwrap();
    let lock = dying.fair_lock("x");
    let mut dead = Box::pin(lock.lock());
    soon("its place", async {
        while members(&server).is_empty() {
            tokio::select! {
                biased;
                _ = &mut dead => panic!("the lock is held"),
                () = tokio::time::sleep(ms(5)) => {}
            }
        }
    })
    .await;
    let (member, left) = line(&server).remove(0);
    assert!((45_000..=50_000).contains(&left), "the lease, and 30 s: {left}");
    let (task, next) = waiting(&server, &client.fair_lock("x")).await;
    guard.unlock().await.unwrap();
    assert!(client.fair_lock("x").try_lock().await.unwrap().is_none(), "it still counts");
    tokio::time::sleep(ms(200)).await;
    assert!(!task.is_finished());
    let left = line(&server)[0].1;
    move_time(&server, &member, -left);
    let begin = Instant::now();
    let guard = ended(task, &next).await;
    assert!(awake(begin) < LOOK_BEHIND + LATE, "{:?}", begin.elapsed());
    guard.unlock().await.unwrap();
    // It was only slow: it asks again, and gets its turn.
    soon("its turn", dead).await.unwrap().unlock().await.unwrap();
    assert!(line(&server).is_empty());
}

/// A head that others of ours see has the time of a head, however far ahead its own was when its process ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_a_dead_head_of_ours_with_a_long_time_is_cut_short() {
    let (server, client) = alone().await;
    leave_behind(&server, GONE, 3_600_000);
    let (task, next) = waiting(&server, &client.fair_lock("x")).await;
    let left = line(&server)[0].1;
    assert!((25_000..=30_000).contains(&left), "{left}");
    // One of Java's keeps what it has: nobody knows how long it wants to wait.
    move_time(&server, GONE, -31_000);
    let guard = ended(task, &next).await;
    let java = Java::new(&server, 1).with_wait(3_600_000);
    assert!(!java.ask());
    let (task, next) = waiting(&server, &client.fair_lock("x")).await;
    assert!(line(&server)[0].1 > 3_500_000);
    java.give_up();
    guard.unlock().await.unwrap();
    ended(task, &next).await.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_a_waiter_that_lives_is_never_dropped() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    let (head, one) = waiting(&server, &lock).await;
    let (behind, other) = waiting(&server, &lock).await;
    // Both have a second left when they look again, and would be gone a little later.
    for _ in 0..2 {
        for (member, left) in line(&server) {
            move_time(&server, &member, 3_600 - left);
        }
        soon("the looks of both", async {
            while line(&server).iter().any(|(_, left)| *left <= 20_000) {
                assert_eq!(members(&server), [one.clone(), other.clone()]);
                tokio::time::sleep(ms(20)).await;
            }
        })
        .await;
        assert!(client.fair_lock("x").try_lock().await.unwrap().is_none());
        assert_eq!(members(&server), [one.clone(), other.clone()]);
    }
    assert!(holder.unlock());
    ended(head, &one).await.unlock().await.unwrap();
    ended(behind, &other).await.unlock().await.unwrap();
}

/// A waiter of ours whose time has run out, and which nobody has dropped, lives and keeps its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_a_waiter_does_not_drop_itself() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    let (head, one) = waiting(&server, &lock).await;
    let behind = Java::new(&server, 2);
    assert!(!behind.ask());
    move_time(&server, &one, -100_000);
    tokio::time::sleep(LOOK + ms(300)).await;
    assert_eq!(members(&server), [one.clone(), behind.field.clone()]);
    assert!(holder.unlock());
    assert!(!behind.ask(), "overtaken");
    ended(head, &one).await.unlock().await.unwrap();
    assert!(behind.ask() && behind.unlock());
}

/// F5: 10 s are added as 10 ms and subtracted as 10 s. F6: 1 s is added and 300 s are subtracted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f5_f6_what_java_miscounts_does_not_move_us() {
    for (added, subtracted) in [(10, 10_000), (1_000, 300_000)] {
        let (server, client) = alone().await;
        let lock = client.fair_lock("x");
        let holder = Java::new(&server, 1);
        assert!(holder.ask());
        let before: Vec<_> = (10..14).map(|thread| Java::new(&server, thread).with_wait(added)).collect();
        assert!(before.iter().all(|java| !java.ask()));
        let (task, member) = waiting(&server, &lock).await;
        let behind = Java::new(&server, 99);
        assert!(!behind.ask());
        for java in before {
            java.with_wait(subtracted).give_up();
        }
        let line = line(&server);
        assert!(line[0].0 == member && line[0].1 > 25_000, "{line:?}");
        assert!(holder.unlock());
        assert!(!behind.ask(), "overtaken");
        ended(task, &member).await.unlock().await.unwrap();
        assert!(behind.ask() && behind.unlock());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_head_without_a_time_is_given_one() {
    let (server, client) = alone().await;
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    server.cmd(&["RPUSH", QUEUE, Java::new(&server, 2).field.as_str()]).unwrap();
    assert!(holder.unlock());
    let head = Java::new(&server, 2).field;
    let asked = Instant::now();
    let lock = client.fair_lock("x");
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
    soon("a time for the head", async {
        while server.cmd(&["ZSCORE", TIMES, &head]).unwrap() == redis::Value::Nil {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    let left = line(&server)[0].1;
    assert!((3_000..=5_000).contains(&left), "{left}");
    // Time enough for one that lives to come.
    assert!(client.fair_lock("x").try_lock().await.unwrap().is_none());
    move_time(&server, &head, -left);
    let guard = soon("the grant", waiter).await.unwrap();
    assert!(awake(asked) < LOOK_BEHIND + LATE, "{:?}", asked.elapsed());
    guard.unlock().await.unwrap();
    assert!(line(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f7_a_waiter_of_ours_that_lost_its_time_writes_it_again_and_stands_in_line_once() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    let (head, one) = waiting(&server, &lock).await;
    let (behind, other) = waiting(&server, &lock).await;
    server.cmd(&["DEL", TIMES]).unwrap();
    soon("both times", async {
        while server.cmd(&["ZCARD", TIMES]).unwrap() != redis::Value::Int(2) {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    tokio::time::sleep(LOOK_BEHIND).await;
    assert_eq!(members(&server), [one.clone(), other.clone()]);
    assert!(holder.unlock());
    ended(head, &one).await.unlock().await.unwrap();
    ended(behind, &other).await.unlock().await.unwrap();
    assert!(line(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_an_unlock_of_a_fair_lock_that_was_lost_says_so_and_changes_nothing() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let next = Java::new(&server, 1);
    assert!(!next.ask());
    server.cmd(&["DEL", "x"]).unwrap();
    let messages = heard(&server, async {
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Deleted));
        for stranger in [client.owner(), "somebody:1".parse().unwrap()] {
            let error = lock.release(&stranger).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotOwner, "{error}");
        }
    })
    .await;
    assert_eq!(messages, []);
    assert_eq!(members(&server), std::slice::from_ref(&next.field));
    assert!(next.ask());
    let error = lock.release(&client.owner()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOwner, "{error}");
    assert!(lock.is_held_by(&next.field.parse().unwrap()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_a_queue_that_expires_costs_places_and_nothing_else() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let (one, _) = waiting(&server, &lock).await;
    let (other, _) = waiting(&server, &lock).await;
    for key in [QUEUE, TIMES] {
        server.cmd(&["PEXPIRE", key, "1"]).unwrap();
    }
    tokio::time::sleep(ms(5)).await;
    soon("their way back into the queue", async {
        while members(&server).len() < 2 {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    guard.extend(Duration::from_secs(60)).await.unwrap();
    for key in [QUEUE, TIMES] {
        assert_eq!(server.cmd(&["PTTL", key]).unwrap(), redis::Value::Int(-1), "{key} has no end");
    }
    guard.unlock().await.unwrap();
    let turn = async |task: tokio::task::JoinHandle<redlatch::Guard>| {
        soon("a grant", task).await.unwrap().unlock().await.unwrap()
    };
    tokio::join!(turn(one), turn(other));
    assert!(line(&server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_a_head_that_is_not_told_looks_for_itself() {
    let (server, client) = alone().await;
    let holder = Java::new(&server, 1);
    assert!(holder.ask());
    server.cmd(&["PEXPIRE", "x", "3600000"]).unwrap();
    let (task, member) = waiting(&server, &client.fair_lock("x")).await;
    let freed = Instant::now();
    let messages = heard(&server, async {
        server.cmd(&["DEL", "x"]).unwrap();
        let guard = ended(task, &member).await;
        assert!(awake(freed) < LOOK + LATE, "{:?}", freed.elapsed());
        guard.unlock().await.unwrap();
    })
    .await;
    assert!(messages.iter().all(|(channel, _)| !channel.starts_with(CHANNEL)), "{messages:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_the_queue_is_given_up_though_the_server_was_away_for_longer_than_the_lease() {
    let rig = rig(ms(30_000)).await;
    let held = rig.direct.fair_lock("x").lock().await.unwrap();
    // The place is taken, the answer is lost, and the first attempts to give it up do not arrive, either.
    let asks = Match::script().arg_contains(scripts::FAIR_ACQUIRE.sha1());
    let asked = rig.proxy.rule(asks, Action::CloseAfterRequest);
    for nth in [1, 2] {
        let undo = Match::script().arg_contains(scripts::FAIR_UNDO.sha1()).nth(nth);
        rig.proxy.rule(undo, Action::CloseBeforeRequest);
    }
    let short = Lease::Fixed(ms(300));
    let wait = Wait::AtMost(ms(100));
    let error = rig.client.fair_lock("x").acquire().lease(short).wait(wait).await.map(drop).unwrap_err();
    assert!(error.is_retryable() && rig.proxy.fired(asked) > 0, "{error}");
    // Nobody else is in line who would drop it, and it counts for 30 s.
    soon("an empty queue", async {
        while rig.server.cmd(&["LLEN", QUEUE]).unwrap() != redis::Value::Int(0) {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    held.unlock().await.unwrap();
}

/// Otherwise it would find a lease that has run out only when it looks by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_to_be_next_is_told_though_the_lock_is_held() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    assert!(Java::new(&server, 1).ask());
    let (first, _) = waiting(&server, &lock).await;
    let (second, next) = waiting(&server, &lock).await;
    let before = scripts_run(&server);
    let messages = heard(&server, async {
        first.abort();
        soon("the head's leaving", async {
            while members(&server) != std::slice::from_ref(&next) {
                tokio::time::sleep(ms(1)).await;
            }
        })
        .await;
    })
    .await;
    assert_eq!(messages, told(&[&next]), "after the head has left");
    // The one that was told looks, and would otherwise be the one that finds the dead one.
    soon("its look", async {
        // The head's leaving is one more.
        while scripts_run(&server) < before + 2 {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;

    // A dead one comes first now, and a waiter that is not the next finds that its time is over.
    server.cmd(&["LPUSH", QUEUE, GONE]).unwrap();
    server.cmd(&["ZADD", TIMES, "1", GONE]).unwrap();
    let messages = heard(&server, async {
        let third = tokio::spawn(async move { lock.lock().await });
        soon("the dead one's end", async {
            while members(&server)[0] != next {
                tokio::time::sleep(ms(1)).await;
            }
        })
        .await;
        third.abort();
    })
    .await;
    assert_eq!(messages, told(&[&next]), "after a dead head was dropped");
    second.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_gives_back_what_it_only_waits_for_makes_way_and_the_next_is_told() {
    let (server, client) = alone().await;
    assert!(Java::new(&server, 1).ask());
    leave_behind(&server, GONE, 60_000);
    let (second, next) = waiting(&server, &client.fair_lock("x")).await;
    let messages = heard(&server, async {
        let owner = GONE.parse().unwrap();
        client.fair_lock("x").release(&owner).await.unwrap_err();
    })
    .await;
    assert_eq!(members(&server), std::slice::from_ref(&next));
    assert_eq!(messages, told(&[&next]));
    second.abort();
}

/// What may fail for the heir is the heir's; what may fail for all comes before anything has changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_fails_has_changed_nothing_and_one_that_fails_for_its_heir_does_not_fail() {
    let (server, client) = alone().await;
    let lock = client.fair_lock("x");
    let guard = lock.lock().await.unwrap();
    let heir = lock.clone();
    let heir = tokio::spawn(async move { heir.acquire().fenced().wait(Wait::Forever).await });
    soon("the heir in line", async { while members(&server).is_empty() {} }).await;
    server.cmd(&["SET", "redisson_lock_token:{x}", "nonsense"]).unwrap();
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    soon("the heir's error", heir).await.unwrap().unwrap_err();
    server.flush_all().unwrap();

    for (spoilt, value) in [(QUEUE, "no queue"), (TIMES, "no times")] {
        let guard = lock.lock().await.unwrap();
        if spoilt == TIMES {
            server.cmd(&["RPUSH", QUEUE, GONE]).unwrap();
        }
        server.cmd(&["SET", spoilt, value]).unwrap();
        assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::WrongType, "{spoilt}");
        assert!(lock.is_locked().await.unwrap(), "half a release: {spoilt}");
        server.flush_all().unwrap();
    }
}
