//! Leases: dead holders, watchdogs, and holds that outlive their lease.

use std::{
    io::Write as _,
    time::{Duration, Instant, SystemTime},
};

use redlatch::{Client, LossReason, Unlocked};
use redlatch_testkit::{
    process::ChildProcess,
    redisson::{Redisson, RedissonVersion},
};

use crate::bed::{BLOCKED, BRISK, Bed, LIMIT, awake, awake_between, ms, run, runtime};

/// How much later than the end of a lease a waiter may come: it looks at fixed times, on a machine that is busy.
pub(crate) const LATE: Duration = Duration::from_secs(5);
/// How far the clocks of server and waiter, and the ways between them, may make an end look early.
pub(crate) const EARLY: Duration = Duration::from_millis(60);

/// Set for the child process that is to hold a lock: the server's URL and the name.
const HOLD_URL: &str = "REDLATCH_INTEROP_HOLD_URL";
const HOLD_NAME: &str = "REDLATCH_INTEROP_HOLD_NAME";

/// Not a test by itself: the process that `a_killed_rust_holder_…` starts, holds a lock with, and kills.
#[test]
fn holder_process() {
    let (Ok(url), Ok(name)) = (std::env::var(HOLD_URL), std::env::var(HOLD_NAME)) else { return };
    let client = run(Client::builder().url(url).watchdog_lease(BRISK).connect()).unwrap();
    let _guard = run(client.lock(name).lock()).unwrap();
    say_held();
    // The parent kills this process long before.
    std::thread::sleep(LIMIT);
}

/// Tells the parent of a process that is to be killed that it holds the lock.
pub(crate) fn say_held() {
    // The line of the test harness is unfinished at this point.
    println!("\nheld");
    std::io::stdout().flush().unwrap();
}

/// The next holder came when the lease was over of which that much was left when `from` was just past.
pub(crate) fn assert_at_the_end_of(lease_left: Duration, from: Instant, to: Instant) {
    let (after, awake) = (to.saturating_duration_since(from), awake_between(from, to));
    println!("{lease_left:?} were left, followed after {after:?}");
    assert!(after + EARLY >= lease_left, "granted {after:?} after the kill, when {lease_left:?} were left");
    assert!(
        awake <= lease_left + LATE,
        "granted only {after:?} after the kill, when {lease_left:?} were left"
    );
}

pub(crate) fn a_killed_java_holder_is_followed_when_its_lease_ends(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("java-dies");
    let dying =
        Redisson::start(version, &bed.server.url(), Some(BRISK)).unwrap_or_else(|error| panic!("{error}"));
    dying.thread(1).call("lock.lock", &[&name]).unwrap();
    let lock = bed.ours.lock(name.as_str());
    let waiting = runtime().spawn(async move { lock.lock().await.map(|guard| (guard, Instant::now())) });
    bed.until_waiting(&name);
    // Longer than the lease, so that the holder is seen to renew it.
    std::thread::sleep(BRISK + ms(200));
    assert!(!waiting.is_finished(), "the holder lives");
    dying.kill9();
    let (killed_at, left) = (Instant::now(), bed.pttl(&name));
    let (guard, at) = run(waiting).unwrap().unwrap();
    assert_at_the_end_of(left, killed_at, at);
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
}

pub(crate) fn a_killed_rust_holder_is_followed_when_its_lease_ends(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("rust-dies"), bed.thread());
    let args = ["--exact", "expiry::holder_process", "--nocapture", "--test-threads=1"];
    let env = [(HOLD_URL.to_owned(), bed.server.url()), (HOLD_NAME.to_owned(), name.clone())];
    let mut dying = ChildProcess::start(std::env::current_exe().unwrap(), args, env).unwrap();
    dying.read_until("held", LIMIT).unwrap();
    let waiting = java.wait_for(&name, 15_000, -1);
    assert!(waiting.is_still_waiting_after(BRISK + ms(200)), "the holder lives");
    dying.kill9();
    let (killed_at, killed, left) = (Instant::now(), SystemTime::now(), bed.pttl(&name));
    let reply = waiting.wait(LIMIT).unwrap();
    assert!(reply.as_bool().unwrap());
    assert_at_the_end_of(left, killed_at, killed_at + reply.finished_after(killed));
    java.unlock(&name);
}

pub(crate) fn either_watchdog_keeps_the_other_language_out_for_three_leases(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (javas, ours) = (bed.name("java-renews"), bed.name("rust-renews"));
    let (holder, waiter) = (bed.thread().with("brisk@lock"), bed.thread());
    holder.lock(&javas);
    let guard = run(bed.brisk.lock(ours.as_str()).lock()).unwrap();
    let three_leases_ms = u64::try_from(BRISK.as_millis() * 3).unwrap();
    let waiting = waiter.wait_for(&ours, three_leases_ms, -1);
    assert!(
        run(bed.ours.lock(javas.as_str()).lock_for(ms(three_leases_ms))).unwrap().is_none(),
        "Java holds"
    );
    assert!(!waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "we hold");
    assert!(guard.is_valid());
    assert_eq!(holder.holds(&javas), 1);
    for name in [&javas, &ours] {
        let left = bed.pttl(name);
        assert!(left <= BRISK && !left.is_zero(), "{name}: {left:?}");
    }
    holder.unlock(&javas);
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
    // Nothing goes on renewing what is given back.
    let keys = |name: &str| bed.number(&["EXISTS", name]);
    assert_eq!((keys(&javas), keys(&ours)), (0, 0));
}

pub(crate) fn a_fixed_lease_of_java_ends_and_its_late_unlock_frees_nobody(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("java-late"), bed.thread());
    let begin = Instant::now();
    java.lock_lease(&name, 500);
    let lock = bed.ours.lock(name.as_str());
    let guard = run(lock.lock()).unwrap();
    assert!(begin.elapsed() + EARLY >= ms(500), "granted before the lease ended");
    assert!(awake(begin) < ms(500) + LATE, "granted only after {:?}", begin.elapsed());
    java.is_refused_to_unlock(&name);
    assert!(run(lock.is_held_by(guard.owner())).unwrap());
    assert!(guard.is_valid());
    assert!(!java.try_lock(&name));
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
}

pub(crate) fn a_fixed_lease_of_ours_ends_and_its_late_unlock_frees_nobody(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("rust-late"), bed.thread());
    let begin = Instant::now();
    let guard = run(bed.ours.lock(name.as_str()).lock_with_lease(ms(500))).unwrap();
    assert!(java.wait_for(&name, 10_000, 20_000).wait(LIMIT).unwrap().as_bool().unwrap());
    assert!(begin.elapsed() + EARLY >= ms(500), "granted before the lease ended");
    assert!(awake(begin) < ms(500) + LATE, "granted only after {:?}", begin.elapsed());
    assert!(!guard.is_valid(), "over before Java can have it");
    let unlocked = run(guard.unlock()).unwrap();
    let is_told =
        matches!(&unlocked, Unlocked::AlreadyLost(LossReason::Expired | LossReason::TakenOver { .. }));
    assert!(is_told, "{unlocked:?}");
    assert_eq!(java.holds(&name), 1);
    assert_eq!(bed.number(&["HGET", &name, &java.field(&bed)]), 1);
    java.unlock(&name);
}

pub(crate) fn holds_counted_twice_by_a_retry_end_with_their_lease(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("java-retried"), bed.thread());
    java.lock_lease(&name, 4_000);
    // What a resent acquire of Java leaves: a count that its owner does not know of.
    assert_eq!(bed.number(&["HINCRBY", &name, &java.field(&bed), "1"]), 2);
    java.unlock(&name);
    let (unlocked_at, left) = (Instant::now(), bed.pttl(&name));
    assert!(left > BLOCKED, "one hold is left, for {left:?}");
    let lock = bed.ours.lock(name.as_str());
    assert!(run(lock.try_lock()).unwrap().is_none());
    let guard = run(lock.lock()).unwrap();
    assert_at_the_end_of(left, unlocked_at, Instant::now());
    run(guard.unlock()).unwrap();
}
