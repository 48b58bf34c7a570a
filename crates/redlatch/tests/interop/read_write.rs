//! The read-write lock: which holds exclude each other, counts, and strangers, across the languages.

use redlatch::{
    Client, Error, ErrorKind, HoldMode, LockKind, LossReason, ReadGuard, ReadWriteLock, Unlocked,
};
use redlatch_testkit::redisson::RedissonVersion;

use crate::bed::{BLOCKED, Bed, Java, LIMIT, ms, run};

/// The two sides of a read-write lock for one Java thread.
#[derive(Clone)]
pub(crate) struct Sides {
    pub(crate) read: Java,
    pub(crate) write: Java,
}

impl Sides {
    /// A Java thread of its own, with the locks of the `main` client.
    pub(crate) fn new(bed: &Bed) -> Self {
        let thread = bed.thread();
        Self { read: thread.with("read"), write: thread.with("write") }
    }

    /// The same thread with the locks of another client.
    pub(crate) fn of(&self, client: &str) -> Self {
        Self {
            read: self.read.with(&format!("{client}@read")),
            write: self.write.with(&format!("{client}@write")),
        }
    }

    /// Asserts that this thread finds no way in; it must hold nothing itself.
    pub(crate) fn is_kept_out(&self, name: &str, from_reading: bool) {
        assert!(!self.write.try_lock(name), "Java writes beside a holder");
        if from_reading {
            assert!(!self.read.try_lock(name), "Java reads beside a writer");
        } else {
            assert!(self.read.try_lock(name), "Java may read beside readers");
            self.read.unlock(name);
        }
    }
}

pub(crate) fn channel_of(name: &str) -> String {
    format!("redisson_rwlock:{{{name}}}")
}

/// The timeout key of a read hold, i from 1.
pub(crate) fn timeout_key(name: &str, owner: &str, i: u64) -> String {
    format!("{{{name}}}:{owner}:rwlock_timeout:{i}")
}

pub(crate) fn try_read(lock: &ReadWriteLock) -> Option<ReadGuard> {
    run(lock.read().try_lock()).unwrap()
}

/// Asserts that a client of ours, which holds nothing, finds no way in.
pub(crate) fn we_are_kept_out(client: &Client, name: &str, from_reading: bool) {
    let lock = client.read_write_lock(name);
    assert!(run(lock.write().try_lock()).unwrap().is_none(), "we write beside a holder");
    let reading = try_read(&lock);
    assert_eq!(reading.is_none(), from_reading, "whether we read");
    if let Some(guard) = reading {
        assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
    }
}

/// A wait that ended without the lock. On a busy machine the look at its end may go without an answer, which is no grant either.
pub(crate) fn came_to_nothing<T>(outcome: Result<Option<T>, Error>) {
    match outcome {
        Ok(None) => {}
        Err(error) if error.kind() == ErrorKind::Timeout => {}
        Ok(Some(_)) => panic!("granted beside another holder"),
        Err(error) => panic!("{error}"),
    }
}

/// Nothing is left of the lock but perhaps Java's keys for repeated unlocks.
pub(crate) fn is_gone(bed: &Bed, name: &str) {
    let dump = bed.server.keys_dump().unwrap();
    let rest: Vec<String> = dump
        .keys()
        .map(|key| String::from_utf8_lossy(key).into_owned())
        .filter(|key| key == name || key.starts_with(&format!("{{{name}}}:")))
        .collect();
    assert!(rest.is_empty(), "{rest:?}");
}

pub(crate) fn readers_share_and_writers_keep_everybody_out(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java, other) = (bed.name("rw-shared"), Sides::new(&bed), Sides::new(&bed));
    let lock = bed.ours.read_write_lock(name.as_str());

    // Two readers of each language, who go one after the other.
    java.read.lock(&name);
    let first = try_read(&lock).expect("beside a reader of Java");
    other.read.lock(&name);
    let second = try_read(&bed.ours_too.read_write_lock(name.as_str())).expect("beside three readers");
    assert_eq!(bed.number(&["HLEN", &name]), 5, "the mode and four readers");
    we_are_kept_out(&bed.ours_too, &name, false);
    Sides::new(&bed).is_kept_out(&name, false);
    java.read.unlock(&name);
    assert_eq!(run(first.unlock()).unwrap(), Unlocked::Released);
    we_are_kept_out(&bed.ours, &name, false);
    java.is_kept_out(&name, false);
    other.read.unlock(&name);
    java.is_kept_out(&name, false);
    assert_eq!(run(second.unlock()).unwrap(), Unlocked::Released);
    is_gone(&bed, &name);

    // A writer of each language.
    java.write.lock(&name);
    we_are_kept_out(&bed.ours, &name, true);
    came_to_nothing(run(lock.write().lock_for(BLOCKED)));
    came_to_nothing(run(lock.read().lock_for(BLOCKED)));
    java.write.unlock(&name);
    let guard = run(lock.write().try_lock()).unwrap().expect("Java has gone");
    java.is_kept_out(&name, true);
    assert!(java.read.wait_for(&name, 10_000, -1).is_still_waiting_after(BLOCKED));
    // That wait is ended by the release, and the next command of the thread waits for it.
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
    java.read.unlock(&name);
    is_gone(&bed, &name);
}

pub(crate) fn holds_of_java_are_counted_by_us(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("rw-java-counts"), Sides::new(&bed));
    let lock = bed.ours.read_write_lock(name.as_str());
    let field = java.read.field(&bed);
    let owner = field.parse().unwrap();
    let counts = |expected: (u32, u32)| {
        let found =
            (run(lock.read().hold_count(&owner)).unwrap(), run(lock.write().hold_count(&owner)).unwrap());
        assert_eq!(found, expected, "read and write holds of Java");
        let (read, write) = (java.read.holds(&name), java.write.holds(&name));
        assert_eq!((read, write), (expected.0.into(), expected.1.into()), "as Java counts them");
    };
    java.write.lock(&name);
    java.write.lock(&name);
    counts((0, 2));
    assert!(run(lock.write().is_locked()).unwrap());
    assert!(!run(lock.read().is_locked()).unwrap(), "a writer does not read");
    java.read.lock(&name);
    java.read.lock(&name);
    counts((2, 2));
    assert!(run(lock.read().is_locked()).unwrap());
    let state = run(bed.ours.inspect(name.as_str())).unwrap();
    assert_eq!(state.kind, LockKind::ReadWrite);
    let mut holders: Vec<_> =
        state.holders.iter().map(|holder| (holder.owner.clone(), holder.holds, holder.mode)).collect();
    holders.sort_by(|a, b| a.0.cmp(&b.0));
    let expected = [(field.clone(), 2, HoldMode::Read), (format!("{field}:write"), 2, HoldMode::Write)];
    assert_eq!(holders, expected);
    assert!(state.findings.is_empty(), "{state:?}");
    for (write, left) in [(true, (2, 1)), (false, (1, 1))] {
        if write {
            java.write.unlock(&name)
        } else {
            java.read.unlock(&name)
        }
        counts(left);
        we_are_kept_out(&bed.ours, &name, true);
    }
    // Java's way to downgrade: other readers may come, writers may not.
    java.write.unlock(&name);
    counts((1, 0));
    assert!(!run(lock.write().is_locked()).unwrap());
    we_are_kept_out(&bed.ours, &name, false);
    java.read.unlock(&name);
    counts((0, 0));
    is_gone(&bed, &name);
}

pub(crate) fn holds_of_ours_keep_java_out_until_the_last_one_goes(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("rw-our-counts"), Sides::new(&bed));
    let lock = bed.ours.read_write_lock(name.as_str());

    let outer = run(lock.write().lock()).unwrap();
    let inner = run(outer.reenter()).unwrap();
    let field = outer.owner().to_text();
    let (reading, again) = (run(outer.read()).unwrap(), run(inner.read()).unwrap());
    let counts = || {
        let count = |field: &str| match bed.server.cmd(&["HGET", &name, field]).unwrap() {
            redis::Value::Nil => 0,
            _ => bed.number(&["HGET", &name, field]),
        };
        (count(&field), count(&format!("{field}:write")))
    };
    assert_eq!(counts(), (2, 2));
    assert!(java.write.is_locked(&name));
    assert_eq!(java.write.holds(&name), 0, "the count is the owner's, not the asking thread's");
    java.is_kept_out(&name, true);
    assert_eq!(run(outer.unlock()).unwrap(), Unlocked::StillHeld(1));
    assert_eq!(counts(), (2, 1));
    java.is_kept_out(&name, true);
    assert_eq!(run(again.unlock()).unwrap(), Unlocked::StillHeld(1));
    java.is_kept_out(&name, true);
    let downgraded = run(inner.downgrade()).unwrap();
    assert_eq!(counts(), (2, 0), "the read hold from before and the one that the write hold became");
    assert!(!java.write.is_locked(&name));
    assert!(java.read.is_locked(&name));
    java.is_kept_out(&name, false);
    assert_eq!(run(reading.unlock()).unwrap(), Unlocked::StillHeld(1));
    java.is_kept_out(&name, false);
    let waiting = java.write.wait_for(&name, 10_000, -1);
    assert!(waiting.is_still_waiting_after(BLOCKED));
    assert_eq!(run(downgraded.unlock()).unwrap(), Unlocked::Released);
    assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap());
    java.write.unlock(&name);
    is_gone(&bed, &name);
}

pub(crate) fn strangers_to_a_read_write_lock_change_nothing(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("rw-strange"), Sides::new(&bed));
    let lock = bed.ours.read_write_lock(name.as_str());
    let stored = || {
        let mut dump = bed.server.keys_dump().unwrap();
        let braced = format!("{{{name}}}:");
        dump.retain(|key, _| key == name.as_bytes() || key.starts_with(braced.as_bytes()));
        dump.values_mut().for_each(|key| key.pttl_ms = None);
        dump
    };
    let refused = |java: &Sides| {
        java.read.is_refused_to_unlock(&name);
        java.write.is_refused_to_unlock(&name);
        for owner in [bed.ours.owner(), java.read.field(&bed).parse().unwrap()] {
            assert_eq!(run(lock.read().release(&owner)).unwrap_err().kind(), ErrorKind::NotOwner);
            assert_eq!(run(lock.write().release(&owner)).unwrap_err().kind(), ErrorKind::NotOwner);
        }
    };
    let read = run(lock.read().lock_with_lease(ms(20_000))).unwrap();
    let before = stored();
    assert_eq!(before.len(), 2, "the hash and a timeout key");
    refused(&java);
    assert_eq!(stored(), before);
    assert!(read.is_valid());
    assert_eq!(run(read.unlock()).unwrap(), Unlocked::Released);
    let write = run(lock.write().lock_with_lease(ms(20_000))).unwrap();
    let before = stored();
    refused(&java);
    assert_eq!(stored(), before);
    assert!(write.is_valid() && bed.pttl(&name) <= ms(20_000), "a refused unlock prolongs nothing");
    assert_eq!(run(write.unlock()).unwrap(), Unlocked::Released);

    let stranger = Sides::new(&bed);
    java.read.lock_lease(&name, 20_000);
    let before = stored();
    refused(&stranger);
    java.write.is_refused_to_unlock(&name);
    assert_eq!(stored(), before);
    java.read.unlock(&name);
    java.write.lock_lease(&name, 20_000);
    let before = stored();
    refused(&stranger);
    java.read.is_refused_to_unlock(&name);
    assert_eq!(stored(), before);
    assert!(bed.pttl(&name) <= ms(20_000));
    java.write.unlock(&name);
    is_gone(&bed, &name);

    // A client that is told Java's owner can release for it, and Java learns that it holds nothing.
    let owner = java.read.field(&bed).parse().unwrap();
    java.read.lock(&name);
    assert_eq!(run(lock.read().release(&owner)).unwrap(), Unlocked::Released);
    java.write.lock(&name);
    assert_eq!(run(lock.write().release(&owner)).unwrap(), Unlocked::Released);
    is_gone(&bed, &name);
    let learns = |side: &Java| match version {
        // It takes any unlock of a lock that is free for a success.
        RedissonVersion::Old3_15_1 => side.unlock(&name),
        RedissonVersion::Newest => side.is_refused_to_unlock(&name),
    };
    learns(&java.read);
    learns(&java.write);
    is_gone(&bed, &name);
}

pub(crate) fn each_side_is_freed_by_force_from_the_other_language(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java, other) = (bed.name("rw-forced"), Sides::new(&bed), Sides::new(&bed));
    let (ours, too) = (bed.ours.read_write_lock(name.as_str()), bed.ours_too.read_write_lock(name.as_str()));
    assert!(!java.read.force_unlock(&name) && !java.write.force_unlock(&name), "it is free");
    assert!(!run(ours.read().force_unlock()).unwrap() && !run(ours.write().force_unlock()).unwrap());

    // Readers of both languages, freed by us and by Java.
    for by_java in [false, true] {
        java.read.lock(&name);
        java.read.lock(&name);
        let guard = try_read(&ours).expect("readers share");
        assert!(!other.write.force_unlock(&name), "nobody writes");
        assert!(!run(too.write().force_unlock()).unwrap(), "nobody writes");
        let owners = [(java.read.field(&bed), 2), (guard.owner().to_text(), 1)];
        if by_java {
            assert!(other.read.force_unlock(&name));
            // Java leaves the timeout keys (R7). Later readers and writers do not mind them.
            for (owner, holds) in &owners {
                assert_eq!(bed.number(&["EXISTS", &timeout_key(&name, owner, *holds)]), 1);
            }
            let guard = run(too.write().try_lock()).unwrap().expect("it is free");
            run(guard.unlock()).unwrap();
            other.write.lock(&name);
            other.write.unlock(&name);
        } else {
            assert!(run(too.read().force_unlock()).unwrap());
            is_gone(&bed, &name);
        }
        // The hold is lost, whether or not a renewal has told so yet, and its late end frees nobody.
        let write = run(too.write().try_lock()).unwrap().expect("it is free");
        let lost = run(guard.unlock()).unwrap();
        assert!(
            matches!(&lost, Unlocked::AlreadyLost(LossReason::TakenOver { by }) if *by == write.owner().to_text())
                || matches!(&lost, Unlocked::AlreadyLost(LossReason::Deleted | LossReason::Forced { .. })),
            "{lost:?}"
        );
        java.read.is_refused_to_unlock(&name);
        assert!(write.is_valid());
        assert_eq!(run(write.unlock()).unwrap(), Unlocked::Released);
        for (owner, holds) in &owners {
            (1..=*holds).for_each(|i| drop(bed.server.cmd(&["DEL", &timeout_key(&name, owner, i)])));
        }
    }

    // A writer who reads besides.
    java.write.lock(&name);
    java.read.lock(&name);
    assert!(!run(ours.read().force_unlock()).unwrap(), "that would leave the writer with half");
    assert!(run(ours.write().force_unlock()).unwrap());
    is_gone(&bed, &name);
    let write = run(ours.write().try_lock()).unwrap().expect("it is free");
    java.write.is_refused_to_unlock(&name);
    java.read.is_refused_to_unlock(&name);
    let read = run(write.read()).unwrap();
    assert!(!java.read.force_unlock(&name));
    assert!(java.write.force_unlock(&name));
    java.write.lock(&name);
    assert!(matches!(run(write.unlock()).unwrap(), Unlocked::AlreadyLost(_)));
    assert!(matches!(run(read.unlock()).unwrap(), Unlocked::AlreadyLost(_)));
    assert_eq!(java.write.holds(&name), 1);
    java.write.unlock(&name);
}
