//! Holding: re-entry, strangers, and names, seen from the other language.

use redlatch::{ErrorKind, LockKind, Unlocked};
use redlatch_testkit::{redisson::RedissonVersion, server::KeyDump};

use crate::bed::{BLOCKED, Bed, LIMIT, ms, run, runtime};

pub(crate) fn re_entries_of_java_keep_us_out_until_the_last_unlock(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("java-twice"), bed.thread());
    let lock = bed.ours.lock(name.as_str());
    java.lock(&name);
    java.lock(&name);
    let field = java.field(&bed);
    let state = run(bed.ours.inspect(name.as_str())).unwrap();
    assert_eq!(state.kind, LockKind::Lock);
    assert_eq!(
        (state.holders.len(), state.holders[0].owner.as_str(), state.holders[0].holds),
        (1, field.as_str(), 2)
    );
    assert!(state.findings.is_empty(), "{state:?}");
    assert_eq!(run(lock.hold_count(&field.parse().unwrap())).unwrap(), 2);
    assert!(run(lock.try_lock()).unwrap().is_none());
    assert!(run(lock.remaining_ttl()).unwrap().is_some_and(|left| left > ms(28_000) && left <= ms(30_000)));
    java.unlock(&name);
    assert!(run(lock.try_lock()).unwrap().is_none(), "one hold is left");
    assert!(run(lock.lock_for(BLOCKED)).unwrap().is_none());
    assert_eq!(run(lock.hold_count(&field.parse().unwrap())).unwrap(), 1);
    java.unlock(&name);
    let guard = run(lock.try_lock()).unwrap().expect("nobody holds it");
    assert_eq!(java.holds(&name), 0);
    run(guard.unlock()).unwrap();
}

pub(crate) fn re_entries_of_ours_keep_java_out_until_the_last_unlock(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("rust-thrice"), bed.thread());
    let outer = run(bed.ours.lock(name.as_str()).lock()).unwrap();
    let inner = run(outer.reenter()).unwrap();
    let passed = bed.ours.lock(name.as_str());
    let innermost =
        run(async { passed.acquire().owner(outer.owner()).await }).unwrap().expect("the owner enters again");
    let field = outer.owner().to_text();
    for (guard, left) in [(innermost, 2), (inner, 1)] {
        assert_eq!(bed.number(&["HGET", &name, &field]), left + 1);
        assert!(java.is_locked(&name));
        assert!(!java.try_lock(&name));
        assert_eq!(java.holds(&name), 0, "the count is the owner's, not the asking thread's");
        assert_eq!(run(guard.unlock()).unwrap(), Unlocked::StillHeld(u32::try_from(left).unwrap()));
    }
    let waiting = java.wait_for(&name, 10_000, -1);
    assert!(waiting.is_still_waiting_after(BLOCKED));
    assert_eq!(run(outer.unlock()).unwrap(), Unlocked::Released);
    assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap());
    assert_eq!(bed.number(&["HGET", &name, &java.field(&bed)]), 1);
    java.unlock(&name);
    assert!(!java.is_locked(&name));
}

/// What is stored under the name, with leases left out because they run down.
fn stored(bed: &Bed, name: &str) -> Vec<(Vec<u8>, KeyDump)> {
    let dump = bed.server.keys_dump().unwrap().into_iter();
    let part = name.as_bytes();
    dump.filter(|(key, _)| key.windows(part.len()).any(|window| window == part))
        .map(|(key, dump)| (key, KeyDump { pttl_ms: None, ..dump }))
        .collect()
}

pub(crate) fn strangers_cannot_unlock_and_change_nothing(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("strange"), bed.thread());
    let lock = bed.ours.lock(name.as_str());
    let guard = run(lock.lock_with_lease(ms(20_000))).unwrap();
    let before = stored(&bed, &name);
    assert_eq!(before.len(), 1);
    java.is_refused_to_unlock(&name);
    assert_eq!(stored(&bed, &name), before);
    assert!(bed.pttl(&name) <= ms(20_000), "a refused unlock prolongs nothing");
    assert!(guard.is_valid());
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);

    java.lock_lease(&name, 20_000);
    let before = stored(&bed, &name);
    let error = run(lock.release(&bed.ours.owner())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotOwner, "{error}");
    // The thread number of the holder under our identity, and a thread next to it under its own.
    let field = java.field(&bed);
    let (client, number) = field.split_once(':').unwrap();
    for other in
        [format!("{}:{number}", bed.ours.id()), format!("{client}:{}", number.parse::<u64>().unwrap() + 1)]
    {
        assert_eq!(run(lock.release(&other.parse().unwrap())).unwrap_err().kind(), ErrorKind::NotOwner);
    }
    bed.thread().is_refused_to_unlock(&name);
    assert_eq!(stored(&bed, &name), before);
    assert!(bed.pttl(&name) <= ms(20_000));
    java.unlock(&name);

    // A client that is told Java's owner can release for it, and Java learns that it holds nothing.
    java.lock(&name);
    assert_eq!(run(lock.release(&field.parse().unwrap())).unwrap(), Unlocked::Released);
    java.is_refused_to_unlock(&name);
    assert!(stored(&bed, &name).is_empty());
}

pub(crate) fn names_of_any_shape_are_one_lock(version: RedissonVersion) {
    let bed = Bed::of(version);
    let java = bed.thread();
    let names = [
        "plain",
        "a{b}c",
        "{tag}:rest",
        "a{b}{c}",
        "with spaces  in it",
        " ",
        "Ä-锁-😀",
        "line\nend\r\n",
        "tab\tquote\"'\\",
        "100%,=:*?[x]",
        "-",
    ];
    for name in names {
        let lock = bed.ours.lock(name);
        java.lock(name);
        assert!(run(lock.is_locked()).unwrap(), "{name:?}");
        assert!(run(lock.try_lock()).unwrap().is_none(), "{name:?}");
        let waiter = bed.ours_too.lock(name);
        let waiting = runtime().spawn(async move { waiter.lock_for(LIMIT).await });
        bed.until_waiting(name);
        java.unlock(name);
        let guard = run(waiting).unwrap().unwrap().expect("the lock was released");
        assert!(java.is_locked(name), "{name:?}");
        assert!(!java.try_lock(name), "{name:?}");
        let waiting = java.wait_for(name, 10_000, -1);
        assert!(waiting.is_still_waiting_after(ms(50)));
        run(guard.unlock()).unwrap();
        assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "{name:?}");
        java.unlock(name);
        assert!(!run(lock.is_locked()).unwrap(), "{name:?}");
    }
}
