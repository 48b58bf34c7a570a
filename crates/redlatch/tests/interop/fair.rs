//! The fair lock: one queue for both languages.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use redlatch::{FairLock, Guard, Unlocked};
use redlatch_testkit::redisson::{Redisson, RedissonVersion};
use tokio::task::JoinHandle;

use crate::{
    bed::{BLOCKED, BRISK, Bed, Java, LIMIT, awake, awake_between, channel_of, ms, run, runtime},
    waking::{SAMPLES, WAKE_LIMIT, judge},
};

/// How much later than a moment something may be that looks only now and then, on a machine that is busy.
const LATE: Duration = Duration::from_secs(5);
/// The longest pause between two looks of a waiter of ours that is not the next, with its jitter.
const LOOK: Duration = Duration::from_millis(3_600);

fn queue(bed: &Bed, name: &str) -> Vec<String> {
    let queue = bed.server.cmd(&["LRANGE", &format!("redisson_lock_queue:{{{name}}}"), "0", "-1"]).unwrap();
    let redis::Value::Array(members) = queue else { panic!("{queue:?}") };
    let text = |member| match member {
        redis::Value::BulkString(text) => String::from_utf8(text).unwrap(),
        other => panic!("{other:?}"),
    };
    members.into_iter().map(text).collect()
}

/// Waits until that many stand in the queue, and listen; who came last.
fn until_queued(bed: &Bed, name: &str, waiters: usize) -> String {
    let deadline = Instant::now() + LIMIT;
    let members = loop {
        let members = queue(bed, name);
        if members.len() == waiters {
            break members;
        }
        assert!(Instant::now() < deadline, "{members:?} instead of {waiters}");
        thread::sleep(ms(2));
    };
    let last = members[waiters - 1].clone();
    bed.until_subscribed(&format!("{}:{last}", channel_of(name)), 1);
    last
}

fn nothing_is_left(bed: &Bed, name: &str) {
    let keys = [
        name.to_owned(),
        format!("redisson_lock_queue:{{{name}}}"),
        format!("redisson_lock_timeout:{{{name}}}"),
    ];
    for key in keys {
        assert_eq!(bed.number(&["EXISTS", &key]), 0, "{key}");
    }
}

fn fair(bed: &Bed) -> Java {
    bed.thread().with("fair")
}

/// A task of ours that waits.
fn waiting(lock: &FairLock) -> JoinHandle<(Guard, Instant)> {
    let lock = lock.clone();
    runtime().spawn(async move { (lock.lock().await.unwrap(), Instant::now()) })
}

/// Numbers in the order of the grants.
type Order = Arc<Mutex<Vec<usize>>>;

/// One queue with these waiters in this order, `true` for Java's; asserts that grants come in this order.
fn in_order(bed: &Bed, languages: &[bool]) {
    let name = bed.name("in-line");
    let locks = [&bed.ours, &bed.ours_too].map(|client| client.fair_lock(name.as_str()));
    let first = fair(bed);
    first.lock(&name);
    let order = Order::default();
    let (mut tasks, mut threads) = (Vec::new(), Vec::new());
    for (n, is_java) in languages.iter().enumerate() {
        let order = order.clone();
        if *is_java {
            let (java, name) = (fair(bed), name.clone());
            threads.push(thread::spawn(move || {
                assert!(java.wait_for(&name, 20_000, -1).wait(LIMIT).unwrap().as_bool().unwrap());
                order.lock().unwrap().push(n);
                java.unlock(&name);
            }));
        } else {
            let lock = locks[n % 2].clone();
            tasks.push(runtime().spawn(async move {
                let guard = lock.lock().await.unwrap();
                order.lock().unwrap().push(n);
                assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
            }));
        }
        until_queued(bed, &name, n + 1);
    }
    let released = Instant::now();
    first.unlock(&name);
    tasks.into_iter().for_each(|task| run(task).unwrap());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    println!("{} grants in {:?}", languages.len(), released.elapsed());
    assert_eq!(*order.lock().unwrap(), (0..languages.len()).collect::<Vec<_>>(), "{languages:?}");
    assert!(awake(released) < WAKE_LIMIT * languages.len() as u32, "one was not told");
    nothing_is_left(bed, &name);
}

pub(crate) fn both_languages_are_served_in_the_order_of_asking(version: RedissonVersion) {
    let bed = Bed::alone(version);
    in_order(&bed, &[true, false, true, false, true, false, true, false]);
    in_order(&bed, &[false, false, true, true, false, false, true, true]);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..4 {
        let mut languages = Vec::new();
        for _ in 0..9 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            languages.push(seed >> 63 == 1);
        }
        in_order(&bed, &languages);
    }
}

pub(crate) fn a_fair_release_by_us_wakes_java_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let java = fair(&bed);
    let sample = || {
        let name = bed.name("fair-wake-java");
        let guard = run(bed.ours.fair_lock(name.as_str()).lock()).unwrap();
        let waiting = java.wait_for(&name, 10_000, -1);
        until_queued(&bed, &name, 1);
        let released_at = std::time::SystemTime::now();
        assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
        let reply = waiting.wait(LIMIT).unwrap();
        assert!(reply.as_bool().unwrap());
        java.unlock(&name);
        nothing_is_left(&bed, &name);
        reply.awake_after(released_at)
    };
    for _ in 0..2 {
        sample();
    }
    judge("Java woken by our fair lock", version, (0..SAMPLES).map(|_| sample()).collect());
}

pub(crate) fn a_fair_release_by_java_wakes_us_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let java = fair(&bed);
    let sample = || {
        let name = bed.name("fair-wake-rust");
        java.lock(&name);
        let task = waiting(&bed.patient[0].fair_lock(name.as_str()));
        until_queued(&bed, &name, 1);
        let released_at = Instant::now();
        java.unlock(&name);
        let (guard, at) = run(task).unwrap();
        run(guard.unlock()).unwrap();
        nothing_is_left(&bed, &name);
        awake_between(released_at, at)
    };
    sample();
    judge("we woken by Java's fair lock", version, (0..SAMPLES).map(|_| sample()).collect());
}

pub(crate) fn a_waiter_of_ours_that_is_cancelled_lets_java_through(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("fair-cancel"), fair(&bed));
    let lock = bed.ours.fair_lock(name.as_str());
    let guard = run(lock.lock()).unwrap();
    let task = waiting(&bed.ours_too.fair_lock(name.as_str()));
    until_queued(&bed, &name, 1);
    let behind = java.wait_for(&name, 15_000, -1);
    let last = until_queued(&bed, &name, 2);
    task.abort();
    assert_eq!(until_queued(&bed, &name, 1), last);
    assert!(!run(bed.ours_too.fair_lock(name.as_str()).lock_for(ms(1_000))).unwrap().is_some_and(|_| true));
    assert!(behind.is_still_waiting_after(BLOCKED));
    let released_at = std::time::SystemTime::now();
    run(guard.unlock()).unwrap();
    let reply = behind.wait(LIMIT).unwrap();
    assert!(reply.as_bool().unwrap());
    assert!(reply.awake_after(released_at) < LATE);
    java.unlock(&name);
    nothing_is_left(&bed, &name);
}

pub(crate) fn waits_of_java_that_time_out_let_us_through(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("fair-timeout");
    let lock = bed.ours.fair_lock(name.as_str());
    let guard = run(lock.lock()).unwrap();
    // With a lease of its own, with the watchdog, and asynchronously, which subtracts the wrong time from ours (F5, F6).
    let (with_lease, with_watchdog, asynchronous) = (fair(&bed), fair(&bed), fair(&bed));
    let waits = [
        with_lease.wait_for(&name, 1_500, 5_000),
        with_watchdog.thread.send("fair.tryLockWait", &[&name, "1500"]).unwrap(),
        asynchronous.thread.send("fair.tryLockAsync", &[&name, "4711", "1500", "5000"]).unwrap(),
    ];
    let deadline = Instant::now() + ms(1_400);
    while queue(&bed, &name).len() < 3 {
        assert!(Instant::now() < deadline, "{:?}", queue(&bed, &name));
    }
    let task = waiting(&bed.ours_too.fair_lock(name.as_str()));
    for wait in waits {
        assert!(!wait.wait(LIMIT).unwrap().as_bool().unwrap(), "we hold");
    }
    until_queued(&bed, &name, 1);
    // Another one behind us must not overtake, whatever the failed ones have subtracted from our time: our next look is
    // within a second, because we are next.
    thread::sleep(ms(1_000));
    let java = fair(&bed);
    let behind = java.wait_for(&name, 10_000, -1);
    until_queued(&bed, &name, 2);
    let released_at = Instant::now();
    run(guard.unlock()).unwrap();
    let (guard, at) = run(task).unwrap();
    assert!(awake_between(released_at, at) < LATE, "{:?}", at - released_at);
    assert!(behind.is_still_waiting_after(BLOCKED));
    run(guard.unlock()).unwrap();
    assert!(behind.wait(LIMIT).unwrap().as_bool().unwrap());
    java.unlock(&name);
    nothing_is_left(&bed, &name);
}

pub(crate) fn a_killed_java_waiter_is_passed_over(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("fair-waiter-dies");
    let dying = Redisson::start(version, &bed.server.url(), None).unwrap_or_else(|error| panic!("{error}"));
    let guard = run(bed.brisk.fair_lock(name.as_str()).lock()).unwrap();
    // It counts for the rest of the lease and the 2 s that it wants to wait.
    let dead = dying.thread(1);
    drop(dead.send("fair.tryLockWait", &[&name, "2000", "5000"]).unwrap());
    until_queued(&bed, &name, 1);
    dying.kill9();
    let killed_at = Instant::now();
    let task = waiting(&bed.ours.fair_lock(name.as_str()));
    until_queued(&bed, &name, 2);
    run(guard.unlock()).unwrap();
    let (guard, at) = run(task).unwrap();
    assert!(at - killed_at > ms(1_500), "overtaken while it still counted: {:?}", at - killed_at);
    assert!(awake_between(killed_at, at) < BRISK + ms(2_000) + LOOK + LATE, "{:?}", at - killed_at);
    run(guard.unlock()).unwrap();
    nothing_is_left(&bed, &name);
}

pub(crate) fn a_killed_java_holder_of_a_fair_lock_is_followed_in_order(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("fair-holder-dies");
    let dying =
        Redisson::start(version, &bed.server.url(), Some(BRISK)).unwrap_or_else(|error| panic!("{error}"));
    dying.thread(1).call("fair.lock", &[&name]).unwrap();
    let task = waiting(&bed.ours.fair_lock(name.as_str()));
    until_queued(&bed, &name, 1);
    let java = fair(&bed);
    let behind = java.wait_for(&name, 15_000, -1);
    until_queued(&bed, &name, 2);
    thread::sleep(BRISK);
    assert!(!task.is_finished(), "the holder lives");
    dying.kill9();
    let (killed_at, left) = (Instant::now(), bed.pttl(&name));
    let (guard, at) = run(task).unwrap();
    assert!(
        at - killed_at + ms(60) >= left && awake_between(killed_at, at) < left + LATE,
        "{left:?}, {:?}",
        at - killed_at
    );
    assert!(behind.is_still_waiting_after(BLOCKED));
    run(guard.unlock()).unwrap();
    assert!(behind.wait(LIMIT).unwrap().as_bool().unwrap());
    java.unlock(&name);
    nothing_is_left(&bed, &name);
}

pub(crate) fn holds_of_a_fair_lock_are_counted_by_both(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("fair-twice"), fair(&bed));
    let lock = bed.ours.fair_lock(name.as_str());
    java.lock(&name);
    java.lock(&name);
    assert_eq!(run(lock.hold_count(&java.field(&bed).parse().unwrap())).unwrap(), 2);
    let task = waiting(&lock);
    until_queued(&bed, &name, 1);
    // Entering again does not wait behind those who queue, in either language.
    java.lock(&name);
    java.unlock(&name);
    java.unlock(&name);
    thread::sleep(BLOCKED);
    assert!(!task.is_finished(), "one hold is left");
    assert!(!java.thread.call("fair.isHeldByThread", &[&name, "1"]).unwrap().as_bool().unwrap());
    java.unlock(&name);
    let (outer, _) = run(task).unwrap();
    let waiting = java.wait_for(&name, 10_000, -1);
    until_queued(&bed, &name, 1);
    let inner = run(outer.reenter()).unwrap();
    assert_eq!(run(inner.unlock()).unwrap(), Unlocked::StillHeld(1));
    assert!(waiting.is_still_waiting_after(BLOCKED), "one hold is left");
    assert_eq!(run(outer.unlock()).unwrap(), Unlocked::Released);
    assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap());
    assert!(run(lock.try_lock()).unwrap().is_none());
    bed.thread().with("fair").is_refused_to_unlock(&name);
    java.unlock(&name);
    nothing_is_left(&bed, &name);
}

pub(crate) fn either_watchdog_keeps_a_fair_lock_for_three_leases(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (javas, ours) = (bed.name("fair-java-renews"), bed.name("fair-rust-renews"));
    let (holder, waiter) = (bed.thread().with("brisk@fair"), fair(&bed));
    holder.lock(&javas);
    let guard = run(bed.brisk.fair_lock(ours.as_str()).lock()).unwrap();
    let three_leases_ms = u64::try_from(BRISK.as_millis() * 3).unwrap();
    let waiting = waiter.wait_for(&ours, three_leases_ms, 5_000);
    let mine = run(bed.ours.fair_lock(javas.as_str()).lock_for(ms(three_leases_ms))).unwrap();
    assert!(mine.is_none(), "Java holds");
    assert!(!waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "we hold");
    assert!(guard.is_valid());
    assert_eq!(holder.holds(&javas), 1);
    for name in [&javas, &ours] {
        let left = bed.pttl(name);
        assert!(left <= BRISK && !left.is_zero(), "{name}: {left:?}");
    }
    holder.unlock(&javas);
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
    nothing_is_left(&bed, &javas);
    nothing_is_left(&bed, &ours);
}

pub(crate) fn a_forced_unlock_of_a_fair_lock_tells_the_next_of_the_other_language(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (name, java) = (bed.name("fair-forced"), fair(&bed));
    let lock = bed.ours.fair_lock(name.as_str());
    let holder = fair(&bed).with("brisk@fair");
    holder.lock(&name);
    let waiting_java = java.wait_for(&name, 10_000, -1);
    until_queued(&bed, &name, 1);
    let forced_at = std::time::SystemTime::now();
    assert!(run(lock.force_unlock()).unwrap());
    let reply = waiting_java.wait(LIMIT).unwrap();
    assert!(reply.as_bool().unwrap());
    assert!(reply.awake_after(forced_at) < WAKE_LIMIT, "{:?}", reply.awake_after(forced_at));
    let task = waiting(&bed.patient[0].fair_lock(name.as_str()));
    until_queued(&bed, &name, 1);
    let forced_at = Instant::now();
    assert!(java.force_unlock(&name));
    let (guard, at) = run(task).unwrap();
    assert!(awake_between(forced_at, at) < WAKE_LIMIT, "{:?}", at - forced_at);
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
    nothing_is_left(&bed, &name);
}
