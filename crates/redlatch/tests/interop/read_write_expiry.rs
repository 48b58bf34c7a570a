//! Leases of a read-write lock: dead readers and writers, watchdogs, and holds that outlive their lease.

use std::time::{Duration, Instant, SystemTime};

use redlatch::{Client, LossReason, Unlocked};
use redlatch_testkit::{
    process::ChildProcess,
    redisson::{Redisson, RedissonVersion},
};

use crate::{
    bed::{BRISK, Bed, Java, LIMIT, awake, ms, run, runtime},
    expiry::{EARLY, LATE, assert_at_the_end_of},
    read_write::{Sides, came_to_nothing, channel_of, is_gone, timeout_key, we_are_kept_out},
};

/// Set for the child process that is to hold a lock: the server's URL, the name, and the side.
const HOLD_URL: &str = "REDLATCH_INTEROP_RW_URL";
const HOLD_NAME: &str = "REDLATCH_INTEROP_RW_NAME";
const HOLD_SIDE: &str = "REDLATCH_INTEROP_RW_SIDE";

/// Not a test by itself: the process that is started, holds one side of a lock, and is killed.
#[test]
fn rw_holder_process() {
    let words = [HOLD_URL, HOLD_NAME, HOLD_SIDE].map(std::env::var);
    let [Ok(url), Ok(name), Ok(side)] = words else { return };
    let client = run(Client::builder().url(url).watchdog_lease(BRISK).connect()).unwrap();
    let lock = client.read_write_lock(name);
    let _guards = match side.as_str() {
        "read" => {
            let guard = run(lock.read().lock()).unwrap();
            let again = run(guard.reenter()).unwrap();
            (None, vec![guard, again])
        }
        "write" => {
            let guard = run(lock.write().lock()).unwrap();
            let reading = run(guard.read()).unwrap();
            (Some(guard), vec![reading])
        }
        other => panic!("no side {other:?}"),
    };
    crate::expiry::say_held();
    // The parent kills this process long before.
    std::thread::sleep(LIMIT);
}

fn start_holder(bed: &Bed, name: &str, side: &str) -> ChildProcess {
    let args = ["--exact", "read_write_expiry::rw_holder_process", "--nocapture", "--test-threads=1"];
    let env = [(HOLD_URL, bed.server.url()), (HOLD_NAME, name.to_owned()), (HOLD_SIDE, side.to_owned())]
        .map(|(key, value)| (key.to_owned(), value));
    let child = ChildProcess::start(std::env::current_exe().unwrap(), args, env).unwrap();
    child.read_until("held", LIMIT).unwrap();
    child
}

pub(crate) fn killed_holders_of_java_are_followed_when_their_lease_ends(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (reading, writing) = (bed.name("rw-java-reader-dies"), bed.name("rw-java-writer-dies"));
    let dying =
        Redisson::start(version, &bed.server.url(), Some(BRISK)).unwrap_or_else(|error| panic!("{error}"));
    let thread = dying.thread(1);
    // Counted twice, as a reader that enters again is.
    for (verb, name) in
        [("read.lock", &reading), ("read.lock", &reading), ("write.lock", &writing), ("read.lock", &writing)]
    {
        thread.call(verb, &[name]).unwrap();
    }
    let (writer, reader) =
        (bed.ours.read_write_lock(reading.as_str()), bed.ours.read_write_lock(writing.as_str()));
    let writer = runtime().spawn(async move { (writer.write().lock().await.unwrap(), Instant::now()) });
    let reader = runtime().spawn(async move { (reader.read().lock().await.unwrap(), Instant::now()) });
    for name in [&reading, &writing] {
        bed.until_subscribed(&channel_of(name), 1);
    }
    // Longer than the lease, so that the holder is seen to renew it.
    std::thread::sleep(BRISK + ms(200));
    assert!(!writer.is_finished() && !reader.is_finished(), "the holder lives");
    dying.kill9();
    let (killed_at, left) = (Instant::now(), [bed.pttl(&reading), bed.pttl(&writing)]);
    let ((write, write_at), (read, read_at)) = (run(writer).unwrap(), run(reader).unwrap());
    assert_at_the_end_of(left[0], killed_at, write_at);
    assert_at_the_end_of(left[1], killed_at, read_at);
    assert_eq!(run(write.unlock()).unwrap(), Unlocked::Released);
    assert_eq!(run(read.unlock()).unwrap(), Unlocked::Released);
    is_gone(&bed, &reading);
    is_gone(&bed, &writing);
}

pub(crate) fn killed_holders_of_ours_are_followed_when_their_lease_ends(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (reading, writing) = (bed.name("rw-our-reader-dies"), bed.name("rw-our-writer-dies"));
    let (writer, reader) = (Sides::new(&bed).write, Sides::new(&bed).read);
    let mut dying = [start_holder(&bed, &reading, "read"), start_holder(&bed, &writing, "write")];
    let waiting = [writer.wait_for(&reading, 15_000, -1), reader.wait_for(&writing, 15_000, -1)];
    assert!(waiting.iter().all(|reply| reply.is_still_waiting_after(BRISK)), "the holders live");
    let names = [&reading, &writing];
    let mut killed = Vec::new();
    for (child, name) in dying.iter_mut().zip(names) {
        child.kill9();
        killed.push((Instant::now(), SystemTime::now(), bed.pttl(name)));
    }
    for (reply, (killed_at, killed, left)) in waiting.iter().zip(killed) {
        let reply = reply.wait(LIMIT).unwrap();
        assert!(reply.as_bool().unwrap());
        assert_at_the_end_of(left, killed_at, killed_at + reply.finished_after(killed));
    }
    writer.unlock(&reading);
    reader.unlock(&writing);
    is_gone(&bed, &reading);
    is_gone(&bed, &writing);
}

/// testMultiInstanceReadLockZombieCleanup, with the dead and the living in different languages: a dead reader holds
/// a writer up no longer than its own lease, though others go on reading.
pub(crate) fn dead_readers_of_java_do_not_outlast_our_living_ones(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("rw-java-zombie");
    let dying =
        Redisson::start(version, &bed.server.url(), Some(BRISK)).unwrap_or_else(|error| panic!("{error}"));
    for thread in 1..=3 {
        dying.thread(thread).call("read.lock", &[&name]).unwrap();
    }
    let guard = run(bed.brisk.read_write_lock(name.as_str()).read().lock()).unwrap();
    dying.kill9();
    std::thread::sleep(BRISK + ms(1_000));
    assert!(guard.is_valid(), "renewed");
    // All of them are in the hash still, and none of the dead has a timeout key that anybody renews.
    let alive = timeout_key(&name, &guard.owner().to_text(), 1);
    let dump = bed.server.keys_dump().unwrap();
    let start = format!("{{{name}}}:");
    let keys: Vec<&Vec<u8>> = dump.keys().filter(|key| key.starts_with(start.as_bytes())).collect();
    assert_eq!(keys, [alive.as_bytes()]);
    let state = run(bed.ours.inspect(name.as_str())).unwrap();
    assert_eq!(state.holders.len(), 4, "{state:?}");
    we_are_kept_out(&bed.ours, &name, false);
    let (lock, java) = (bed.ours.read_write_lock(name.as_str()), Sides::new(&bed));
    java.is_kept_out(&name, false);
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
    let write = run(lock.write().try_lock()).unwrap().expect("nobody who lives holds it");
    assert_eq!(run(write.unlock()).unwrap(), Unlocked::Released);
    is_gone(&bed, &name);
}

pub(crate) fn dead_readers_of_ours_do_not_outlast_javas_living_ones(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java, alive) = (bed.name("rw-our-zombie"), Sides::new(&bed), Sides::new(&bed).of("brisk"));
    let mut dying = start_holder(&bed, &name, "read");
    alive.read.lock(&name);
    dying.kill9();
    std::thread::sleep(BRISK + ms(1_000));
    let keys = || {
        let dump = bed.server.keys_dump().unwrap();
        let start = format!("{{{name}}}:");
        dump.keys().filter(|key| key.starts_with(start.as_bytes())).count()
    };
    assert_eq!(alive.read.holds(&name), 1);
    match version {
        // It renews the keys of every reader in the hash (R11), so ours seem to live until Java has gone, and for what
        // is left of the lease that Java gave them.
        RedissonVersion::Old3_15_1 => assert_eq!(keys(), 3),
        RedissonVersion::Newest => assert_eq!(keys(), 1),
    }
    we_are_kept_out(&bed.ours, &name, false);
    let waiting = java.write.wait_for(&name, 10_000, -1);
    bed.until_subscribed(&channel_of(&name), 1);
    let left = bed.pttl(&name);
    let (unlocked_at, unlocked) = (Instant::now(), SystemTime::now());
    alive.read.unlock(&name);
    let reply = waiting.wait(LIMIT).unwrap();
    assert!(reply.as_bool().unwrap());
    match version {
        RedissonVersion::Old3_15_1 => {
            assert_at_the_end_of(left, unlocked_at, unlocked_at + reply.finished_after(unlocked))
        }
        RedissonVersion::Newest => assert!(reply.awake_after(unlocked) < LATE),
    }
    java.write.unlock(&name);
    is_gone(&bed, &name);
}

pub(crate) fn a_reader_of_one_language_neither_cuts_nor_prolongs_that_of_the_other(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("rw-leases"), Sides::new(&bed));
    let lock = bed.ours.read_write_lock(name.as_str());
    let near = |left: Duration, expected_ms: u64| {
        assert!(
            left <= ms(expected_ms) && left + ms(3_000) > ms(expected_ms),
            "{left:?} of {expected_ms} ms"
        );
    };
    // The TTL is always what the longest reader needs, whichever of them comes and goes.
    java.read.lock_lease(&name, 40_000);
    let guard = run(lock.read().lock_with_lease(ms(10_000))).unwrap();
    near(bed.pttl(&name), 40_000);
    java.read.unlock(&name);
    near(bed.pttl(&name), 10_000);
    java.read.lock_lease(&name, 5_000);
    near(bed.pttl(&name), 10_000);
    let longer = run(lock.read().lock_with_lease(ms(60_000))).unwrap();
    near(bed.pttl(&name), 60_000);
    assert_eq!(run(longer.unlock()).unwrap(), Unlocked::Released);
    near(bed.pttl(&name), 10_000);
    assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
    near(bed.pttl(&name), 5_000);
    java.read.unlock(&name);
    is_gone(&bed, &name);

    // testReadLockLeaseTimeoutDiffThreadsRRW: the second reader goes early, the first is followed when its lease ends.
    for java_first in [true, false] {
        let begin = Instant::now();
        let first = if java_first {
            java.read.lock_lease(&name, 1_200);
            None
        } else {
            Some(run(lock.read().lock_with_lease(ms(1_200))).unwrap())
        };
        std::thread::sleep(ms(400));
        if java_first {
            let second = run(lock.read().lock_with_lease(ms(20_000))).unwrap();
            released(run(second.unlock()));
            let write = run(lock.write().lock()).unwrap();
            ended_after(begin, ms(1_200));
            assert_eq!(run(write.unlock()).unwrap(), Unlocked::Released);
        } else {
            java.read.lock_lease(&name, 20_000);
            java.read.unlock(&name);
            assert!(java.write.wait_for(&name, 10_000, -1).wait(LIMIT).unwrap().as_bool().unwrap());
            ended_after(begin, ms(1_200));
            java.write.unlock(&name);
        }
        if let Some(guard) = first {
            assert!(!guard.is_valid());
        }
        is_gone(&bed, &name);
    }
}

fn released(unlocked: Result<Unlocked, redlatch::Error>) {
    assert_eq!(unlocked.unwrap(), Unlocked::Released);
}

fn ended_after(begin: Instant, lease: Duration) {
    let after = begin.elapsed();
    assert!(after + EARLY >= lease, "granted {after:?} after the beginning of a lease of {lease:?}");
    assert!(
        awake(begin) < lease + LATE,
        "granted only {after:?} after the beginning of a lease of {lease:?}"
    );
}

pub(crate) fn two_readers_of_the_other_language_follow_a_write_lease(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("rw-wrr"), Sides::new(&bed));
    let lock = bed.ours.read_write_lock(name.as_str());

    let begin = Instant::now();
    java.write.lock_lease(&name, 1_000);
    let (one, two) = (lock.clone(), bed.ours_too.read_write_lock(name.as_str()));
    let guards = run(async { tokio::join!(one.read().lock(), two.read().lock()) });
    ended_after(begin, ms(1_000));
    assert_eq!(bed.number(&["HLEN", &name]), 3, "both are in at once");
    released(run(guards.0.unwrap().unlock()));
    released(run(guards.1.unwrap().unlock()));

    let begin = Instant::now();
    let write = run(lock.write().lock_with_lease(ms(1_000))).unwrap();
    let readers = [Sides::new(&bed).read, Sides::new(&bed).read];
    let waiting = readers.each_ref().map(|reader| reader.wait_for(&name, 10_000, -1));
    for reply in waiting {
        assert!(reply.wait(LIMIT).unwrap().as_bool().unwrap());
    }
    ended_after(begin, ms(1_000));
    assert_eq!(bed.number(&["HLEN", &name]), 3, "both are in at once");
    assert!(!write.is_valid());
    readers.iter().for_each(|reader| reader.unlock(&name));
    is_gone(&bed, &name);
}

pub(crate) fn watchdogs_of_either_side_keep_the_other_language_out_for_three_leases(
    version: RedissonVersion,
) {
    let bed = Bed::of(version);
    let names = ["rw-java-reads", "rw-java-writes", "rw-we-read", "rw-we-write"].map(|what| bed.name(what));
    let [java_reads, java_writes, we_read, we_write] = &names;
    let holder = Sides::new(&bed).of("brisk");
    holder.read.lock(java_reads);
    holder.write.lock(java_writes);
    let lock = |name: &str| bed.brisk.read_write_lock(name);
    let (reading, writing) =
        (run(lock(we_read).read().lock()).unwrap(), run(lock(we_write).write().lock()).unwrap());
    let inner = run(reading.reenter()).unwrap();
    let leases_ms = u64::try_from(BRISK.as_millis() * 3).unwrap();
    let kept_out: Vec<(&str, Java)> = vec![
        (we_read, Sides::new(&bed).write),
        (we_write, Sides::new(&bed).read),
        (we_write, Sides::new(&bed).write),
    ];
    let waiting: Vec<_> = kept_out.iter().map(|(name, java)| java.wait_for(name, leases_ms, -1)).collect();
    let (reader, writer) = (
        bed.ours.read_write_lock(java_writes.as_str()),
        [bed.ours.read_write_lock(java_reads.as_str()), bed.ours.read_write_lock(java_writes.as_str())],
    );
    let ours = run(async {
        tokio::join!(
            reader.read().lock_for(ms(leases_ms)),
            writer[0].write().lock_for(ms(leases_ms)),
            writer[1].write().lock_for(ms(leases_ms)),
        )
    });
    came_to_nothing(ours.0);
    came_to_nothing(ours.1);
    came_to_nothing(ours.2);
    for reply in waiting {
        assert!(!reply.wait(LIMIT).unwrap().as_bool().unwrap(), "we hold");
    }
    assert!(reading.is_valid() && inner.is_valid() && writing.is_valid());
    assert_eq!((holder.read.holds(java_reads), holder.write.holds(java_writes)), (1, 1));
    for name in &names {
        let left = bed.pttl(name);
        assert!(left <= BRISK && !left.is_zero(), "{name}: {left:?}");
    }
    for i in 1..=2 {
        let left = bed.pttl(&timeout_key(we_read, &reading.owner().to_text(), i));
        assert!(left <= BRISK && !left.is_zero(), "our read hold {i}: {left:?}");
    }
    holder.read.unlock(java_reads);
    holder.write.unlock(java_writes);
    assert_eq!(run(inner.unlock()).unwrap(), Unlocked::StillHeld(1));
    released(run(reading.unlock()));
    released(run(writing.unlock()));
    // Nothing goes on renewing what is given back.
    names.iter().for_each(|name| is_gone(&bed, name));
}

pub(crate) fn late_unlocks_of_a_read_write_lock_free_nobody(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("rw-late"), Sides::new(&bed));
    let lock = bed.ours.read_write_lock(name.as_str());
    // testExpireWrite, testExpireRead: the lease of a hold of Java ends.
    for side in [&java.read, &java.write] {
        let begin = Instant::now();
        side.lock_lease(&name, 500);
        let guard = run(lock.write().lock()).unwrap();
        ended_after(begin, ms(500));
        side.is_refused_to_unlock(&name);
        assert!(guard.is_valid() && run(lock.write().is_held_by(guard.owner())).unwrap());
        assert!(!java.read.try_lock(&name));
        released(run(guard.unlock()));
    }
    // The same with holds of ours.
    for write in [false, true] {
        let begin = Instant::now();
        let late: Box<dyn FnOnce() -> Unlocked> = if write {
            let guard = run(lock.write().lock_with_lease(ms(500))).unwrap();
            Box::new(move || run(guard.unlock()).unwrap())
        } else {
            let guard = run(lock.read().lock_with_lease(ms(500))).unwrap();
            Box::new(move || run(guard.unlock()).unwrap())
        };
        assert!(java.write.wait_for(&name, 10_000, 20_000).wait(LIMIT).unwrap().as_bool().unwrap());
        ended_after(begin, ms(500));
        let unlocked = late();
        assert!(
            matches!(&unlocked, Unlocked::AlreadyLost(LossReason::Expired | LossReason::TakenOver { .. })),
            "{unlocked:?}"
        );
        assert_eq!(java.write.holds(&name), 1);
        java.write.unlock(&name);
    }
    // A reader whose time is over stays in the hash as long as others read (R5). Its late unlock takes nothing from them.
    java.read.lock_lease(&name, 20_000);
    let late = run(lock.read().lock_with_lease(ms(400))).unwrap();
    let owner = late.owner().clone();
    assert_eq!(run(lock.read().hold_count(&owner)).unwrap(), 1);
    run(late.lost());
    std::thread::sleep(ms(100));
    assert_eq!(run(lock.read().hold_count(&owner)).unwrap(), 0, "it does not seem to hold");
    assert_eq!(run(late.unlock()).unwrap(), Unlocked::AlreadyLost(LossReason::Expired));
    assert_eq!(java.read.holds(&name), 1);
    let ours = run(lock.read().lock_with_lease(ms(20_000))).unwrap();
    let stale = Sides::new(&bed);
    stale.read.lock_lease(&name, 400);
    java.read.unlock(&name);
    std::thread::sleep(ms(600));
    // Redisson takes its own late unlock for a success. We still read.
    stale.read.unlock(&name);
    assert_eq!(run(lock.read().hold_count(ours.owner())).unwrap(), 1);
    java.is_kept_out(&name, false);
    released(run(ours.unlock()));
    is_gone(&bed, &name);
}
