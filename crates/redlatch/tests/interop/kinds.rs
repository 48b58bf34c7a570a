//! What else Java may do under the same name: waits with a limit, spin locks, fenced locks, and keys of its own.

use std::time::Instant;

use redlatch::{Lease, Unlocked, Wait};
use redlatch_testkit::redisson::RedissonVersion;

use crate::{
    bed::{BLOCKED, Bed, LIMIT, awake, ms, run, runtime},
    waking::WAKE_LIMIT,
};

pub(crate) fn waits_and_leases_are_limited_in_both_languages(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("limited"), bed.thread());
    let lock = bed.ours.lock(name.as_str());

    let guard = run(lock.lock()).unwrap();
    let reply = java.wait_for(&name, 600, 700).wait(LIMIT).unwrap();
    assert!(!reply.as_bool().unwrap(), "we hold, and renew");
    // Java counts the wait in whole milliseconds of the wall clock.
    assert!(reply.elapsed() >= ms(590) && reply.elapsed() < ms(600) + WAKE_LIMIT, "{:?}", reply.elapsed());
    // The lease must outlast the next wait of ours: the newer release begins a renewed hold with the last lease that it had.
    let waiting = java.wait_for(&name, 10_000, 4_000);
    assert!(waiting.is_still_waiting_after(BLOCKED));
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
    assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap());
    let left = bed.pttl(&name);
    assert!(left <= ms(4_000), "a lease that is not renewed: {left:?}");

    let guard = run(lock.lock_for(LIMIT)).unwrap().expect("Java's lease ends");
    run(guard.unlock()).unwrap();
    java.lock(&name);
    let begin = Instant::now();
    assert!(run(lock.lock_for(ms(600))).unwrap().is_none(), "Java holds, and renews");
    // So do we, by the clock that counts while a machine sleeps.
    assert!(begin.elapsed() >= ms(598) && awake(begin) < ms(600) + WAKE_LIMIT, "{:?}", begin.elapsed());
    let waiter = bed.ours.lock(name.as_str());
    let waiting = runtime()
        .spawn(async move { waiter.acquire().wait(Wait::AtMost(LIMIT)).lease(Lease::Fixed(ms(700))).await });
    bed.until_waiting(&name);
    java.unlock(&name);
    let guard = run(waiting).unwrap().unwrap().expect("Java released it");
    assert!(bed.pttl(&name) <= ms(700));
    assert!(java.wait_for(&name, 10_000, -1).wait(LIMIT).unwrap().as_bool().unwrap(), "our lease ends");
    assert!(!guard.is_valid());
    java.unlock(&name);
}

pub(crate) fn the_spin_lock_is_the_same_lock(version: RedissonVersion) {
    let bed = Bed::of(version);
    for kind in ["spin", "spinconstant"] {
        let (name, java) = (bed.name(kind), bed.thread().with(kind));
        let lock = bed.ours.lock(name.as_str());
        java.lock(&name);
        assert!(run(lock.try_lock()).unwrap().is_none(), "{kind}");
        let waiter = lock.clone();
        let waiting = runtime().spawn(async move { waiter.lock().await });
        bed.until_waiting(&name);
        assert!(!waiting.is_finished());
        let unlocked_at = Instant::now();
        java.unlock(&name);
        let guard = run(waiting).unwrap().unwrap();
        assert!(
            awake(unlocked_at) < ms(800) + WAKE_LIMIT,
            "{kind}: found free only after {:?}",
            unlocked_at.elapsed()
        );
        assert!(!java.try_lock(&name), "{kind}");
        let waiting = java.wait_for(&name, 10_000, -1);
        assert!(waiting.is_still_waiting_after(BLOCKED), "{kind}");
        assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
        assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "{kind}");
        java.unlock(&name);
        assert!(!run(lock.is_locked()).unwrap(), "{kind}");
    }
}

pub(crate) fn latch_keys_of_java_are_left_alone(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("latched"), bed.thread());
    let lock = bed.ours.lock(name.as_str());
    // As an unlock whose reply was lost leaves them: one that freed the lock, one that left a hold.
    let latches = [("0123456789abcdef0123456789abcdef", "1"), ("fedcba9876543210fedcba9876543210", "0")]
        .map(|(request, value)| (format!("redisson_unlock_latch:{{{name}}}:{request}"), value));
    for (key, value) in &latches {
        bed.server.cmd(&["SET", key, value, "PX", "20000"]).unwrap();
    }
    let guard = run(lock.lock()).unwrap();
    let inner = run(guard.reenter()).unwrap();
    assert!(!java.try_lock(&name));
    assert_eq!(run(inner.unlock()).unwrap(), Unlocked::StillHeld(1));
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
    java.lock(&name);
    assert!(run(lock.try_lock()).unwrap().is_none());
    assert!(run(lock.force_unlock()).unwrap());
    java.is_refused_to_unlock(&name);
    let state = run(bed.ours.inspect(name.as_str())).unwrap();
    assert!(state.holders.is_empty() && state.findings.is_empty(), "{state:?}");
    for (key, value) in &latches {
        assert_eq!(bed.number(&["GET", key]).to_string(), *value);
        assert!(bed.pttl(key) > ms(5_000), "its own lease");
    }
    let listed = run(bed.ours.list(Some(&format!("*{name}*")), 10)).unwrap();
    assert!(listed.is_empty(), "a latch is no lock: {listed:?}");
}

pub(crate) fn fencing_tokens_grow_across_both_languages(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("fenced"), bed.thread().with("fenced"));
    let lock = bed.ours.lock(name.as_str());
    let ours = || {
        let guard = run(async { lock.acquire().fenced().await }).unwrap().expect("nobody holds it");
        let token = guard.token().expect("a token was asked for");
        assert_eq!(
            bed.number(&["GET", &format!("redisson_lock_token:{{{name}}}")]),
            i64::try_from(token).unwrap()
        );
        (guard, token)
    };
    if version == RedissonVersion::Old3_15_1 {
        // It has no fenced lock, but a fenced hold of ours is a lock to it like any other.
        let error = java.try_unlock(&name).unwrap_err();
        assert_eq!(error.exception(), Some("UnsupportedOperationException"), "{error}");
        let plain = java.with("lock");
        let (guard, first) = ours();
        assert!(!plain.try_lock(&name));
        run(guard.unlock()).unwrap();
        plain.lock(&name);
        plain.unlock(&name);
        let (guard, second) = ours();
        assert!(second > first);
        run(guard.unlock()).unwrap();
        return;
    }
    let javas = || {
        let token = java.thread.call("fenced.lockAndGetToken", &[&name]).unwrap().as_i64().unwrap();
        u64::try_from(token).unwrap()
    };
    let mut tokens = Vec::new();
    for _ in 0..5 {
        tokens.push(javas());
        assert!(run(async { lock.acquire().fenced().await }).unwrap().is_none(), "Java holds");
        java.unlock(&name);
        let (guard, token) = ours();
        tokens.push(token);
        assert!(!java.try_lock(&name));
        run(guard.unlock()).unwrap();
        assert_eq!(
            java.thread.call("fenced.getToken", &[&name]).unwrap().as_i64().unwrap(),
            i64::try_from(token).unwrap()
        );
    }
    tokens.push(javas());
    java.unlock(&name);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}
