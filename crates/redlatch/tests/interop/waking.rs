//! Wake-ups: a release in one language ends the wait in the other, by a message. No waiter here looks before the limit.

use std::time::{Duration, Instant, SystemTime};

use redlatch::{Client, Guard, LossReason, Unlocked};
use redlatch_testkit::redisson::RedissonVersion;

use crate::bed::{BRISK, Bed, Java, LIMIT, awake, awake_between, ms, run, runtime};

/// How soon after a release a waiter of the other language holds the lock, on a machine that is busy. One who is not told finds out
/// when its time is up or the lease is over, which takes 8 s and more.
pub(crate) const WAKE_LIMIT: Duration = Duration::from_secs(5);
/// How often it is tried.
pub(crate) const SAMPLES: usize = 15;

/// Lets a Java thread wait for the lock while `release` frees it. How long after the beginning of the release it held
/// the lock, or `None` if it gave up after `wait_ms`.
pub(crate) fn java_woken(
    bed: &Bed,
    java: &Java,
    name: &str,
    wait_ms: u64,
    release: impl FnOnce(),
) -> Option<Duration> {
    let waiting = java.wait_for(name, wait_ms, -1);
    bed.until_waiting(name);
    let released_at = SystemTime::now();
    release();
    let reply = waiting.wait(LIMIT).unwrap();
    reply.as_bool().unwrap().then(|| reply.awake_after(released_at))
}

/// The same with a task of ours.
pub(crate) fn rust_woken(
    bed: &Bed,
    client: &Client,
    name: &str,
    wait_ms: u64,
    release: impl FnOnce(),
) -> Option<(Guard, Duration)> {
    let lock = client.lock(name);
    let waiting = runtime().spawn(async move {
        let guard = lock.lock_for(ms(wait_ms)).await.unwrap();
        guard.map(|guard| (guard, Instant::now()))
    });
    bed.until_waiting(name);
    let released_at = Instant::now();
    release();
    run(waiting).unwrap().map(|(guard, at)| (guard, awake_between(released_at, at)))
}

pub(crate) fn judge(what: &str, version: RedissonVersion, mut samples: Vec<Duration>) {
    samples.sort();
    let (median, max) = (samples[samples.len() / 2], samples[samples.len() - 1]);
    println!("{version:?}: {what}: p50 {median:?}, max {max:?} of {}", samples.len());
    assert!(max < WAKE_LIMIT, "{what}: {samples:?}");
}

pub(crate) fn a_release_by_us_wakes_java_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let java = bed.thread();
    let sample = || {
        // A name of its own, so that the end of an earlier subscription is not taken for the waiter's.
        let name = bed.name("wake-java");
        let guard = run(bed.ours.lock(name.as_str()).lock()).unwrap();
        let release = || assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
        let latency = java_woken(&bed, &java, &name, 10_000, release).expect("the lock was released");
        java.unlock(&name);
        latency
    };
    // The first waits load Java's classes.
    for _ in 0..2 {
        sample();
    }
    judge("Java woken by us", version, (0..SAMPLES).map(|_| sample()).collect());
}

pub(crate) fn a_release_by_java_wakes_us_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let java = bed.thread();
    let sample = || {
        let name = bed.name("wake-rust");
        java.lock(&name);
        let woken = rust_woken(&bed, &bed.patient[0], &name, 10_000, || java.unlock(&name));
        let (guard, latency) = woken.expect("the lock was released");
        run(guard.unlock()).unwrap();
        latency
    };
    sample();
    judge("we woken by Java", version, (0..SAMPLES).map(|_| sample()).collect());
}

pub(crate) fn a_forced_unlock_by_java_wakes_us_and_tells_our_holder(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (name, java) = (bed.name("forced-by-java"), bed.thread());
    assert!(!java.force_unlock(&name), "a free lock");
    let holder = run(bed.brisk.lock(name.as_str()).lock()).unwrap();
    let lost = runtime().spawn(holder.lost());
    let forced_at = Instant::now();
    let woken = rust_woken(&bed, &bed.patient[0], &name, 10_000, || assert!(java.force_unlock(&name)));
    let (next, latency) = woken.expect("the lock was freed");
    assert!(latency < WAKE_LIMIT, "woken only after {latency:?}");
    let reason = run(lost).unwrap();
    // A renewal that falls between the two finds the lock free.
    let heir = next.owner().to_text();
    let is_told = reason == LossReason::Deleted || reason == LossReason::TakenOver { by: heir };
    assert!(is_told, "{reason:?}");
    assert!(awake(forced_at) < BRISK, "told by the next renewal, not by the deadline");
    assert!(!holder.is_valid());
    assert_eq!(run(holder.unlock()).unwrap(), Unlocked::AlreadyLost(reason));
    assert!(run(bed.ours.lock(name.as_str()).is_held_by(next.owner())).unwrap(), "freed by the late unlock");
    assert_eq!(run(next.unlock()).unwrap(), Unlocked::Released);
}

pub(crate) fn a_forced_unlock_by_us_wakes_java_and_tells_its_holder(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (name, holder, waiter) = (bed.name("forced-by-us"), bed.thread().with("brisk@lock"), bed.thread());
    let lock = bed.ours.lock(name.as_str());
    assert!(!run(lock.force_unlock()).unwrap(), "a free lock");
    holder.lock(&name);
    let latency = java_woken(&bed, &waiter, &name, 10_000, || assert!(run(lock.force_unlock()).unwrap()));
    let latency = latency.expect("the lock was freed");
    assert!(latency < WAKE_LIMIT, "woken only after {latency:?}");
    holder.is_refused_to_unlock(&name);
    assert_eq!(waiter.holds(&name), 1, "freed by the late unlock");
    waiter.unlock(&name);
    assert!(!run(lock.is_locked()).unwrap());
}
