//! Wake-ups on a read-write lock: all who may come in after a release are told, in either language.

use std::time::{Duration, Instant, SystemTime};

use redlatch::{Client, ReadGuard, Unlocked, WriteGuard};
use redlatch_testkit::redisson::RedissonVersion;

use crate::{
    bed::{BLOCKED, Bed, Java, LIMIT, awake_between, run, runtime},
    read_write::{Sides, channel_of, is_gone},
    waking::{SAMPLES, WAKE_LIMIT, judge},
};

/// Readers that wait at the same time; with one message for each only one of them would come in at once.
const READERS: usize = 4;
/// How long waiters get to stand in line after the first one has subscribed, which is the last event that can be seen.
const LINE_UP: Duration = Duration::from_millis(150);
/// Our longest pause between two looks, and a busy machine.
const NEXT_LOOK: Duration = Duration::from_secs(6);

/// Lets Java threads wait, each for its kind of side, and says how long after the beginning of the release each was in.
fn java_woken(bed: &Bed, waiters: &[Java], name: &str, release: impl FnOnce()) -> Vec<Duration> {
    let waiting: Vec<_> = waiters.iter().map(|java| java.wait_for(name, 10_000, -1)).collect();
    bed.until_subscribed(&channel_of(name), 1);
    assert!(waiting.iter().all(|reply| reply.is_still_waiting_after(LINE_UP / READERS as u32)), "kept out");
    let released_at = SystemTime::now();
    release();
    let in_after = |reply: redlatch_testkit::redisson::Reply| {
        assert!(reply.as_bool().unwrap(), "the lock was released");
        reply.awake_after(released_at)
    };
    waiting.iter().map(|reply| in_after(reply.wait(LIMIT).unwrap())).collect()
}

/// The same with readers of ours, spread over two clients.
fn our_readers_woken(
    bed: &Bed,
    clients: [&Client; 2],
    name: &str,
    release: impl FnOnce(),
) -> (Vec<ReadGuard>, Vec<Duration>) {
    let waiting: Vec<_> = (0..READERS)
        .map(|n| {
            let lock = clients[n % 2].read_write_lock(name);
            runtime().spawn(async move { (lock.read().lock().await.unwrap(), Instant::now()) })
        })
        .collect();
    bed.until_subscribed(&channel_of(name), 2);
    std::thread::sleep(LINE_UP);
    assert!(waiting.iter().all(|task| !task.is_finished()), "kept out");
    let released_at = Instant::now();
    release();
    let entered = waiting.into_iter().map(|task| run(task).unwrap());
    entered.map(|(guard, at)| (guard, awake_between(released_at, at))).unzip()
}

fn our_writer_woken(
    bed: &Bed,
    client: &Client,
    name: &str,
    release: impl FnOnce(),
) -> (WriteGuard, Duration) {
    let lock = client.read_write_lock(name);
    let waiting = runtime().spawn(async move { (lock.write().lock().await.unwrap(), Instant::now()) });
    bed.until_subscribed(&channel_of(name), 1);
    assert!(!waiting.is_finished(), "kept out");
    let released_at = Instant::now();
    release();
    let (guard, at) = run(waiting).unwrap();
    (guard, awake_between(released_at, at))
}

fn latest(times: Vec<Duration>) -> Duration {
    times.into_iter().max().expect("there were waiters")
}

fn released(unlocked: Result<Unlocked, redlatch::Error>) {
    assert_eq!(unlocked.unwrap(), Unlocked::Released);
}

/// Measures after two rounds in which Java loads its classes.
fn measure(what: &str, version: RedissonVersion, mut sample: impl FnMut() -> Duration) {
    for _ in 0..2 {
        sample();
    }
    judge(what, version, (0..SAMPLES).map(|_| sample()).collect());
}

pub(crate) fn our_writer_lets_all_readers_of_java_in_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let readers: Vec<Java> = (0..READERS).map(|_| Sides::new(&bed).read).collect();
    let sample = |end: &dyn Fn(WriteGuard, &str) -> Option<ReadGuard>| {
        let name = bed.name("rw-wake-java");
        let guard = run(bed.ours.read_write_lock(name.as_str()).write().lock()).unwrap();
        let mut rest = None;
        let times = java_woken(&bed, &readers, &name, || rest = end(guard, &name));
        assert_eq!(bed.number(&["HLEN", &name]), 1 + READERS as i64 + i64::from(rest.is_some()));
        readers.iter().for_each(|java| java.unlock(&name));
        if let Some(guard) = rest {
            released(run(guard.unlock()));
        }
        is_gone(&bed, &name);
        latest(times)
    };
    measure("readers of Java after our writer", version, || {
        sample(&|guard, _| {
            released(run(guard.unlock()));
            None
        })
    });
    // Redisson says nothing when a writer becomes a reader (R6).
    measure("readers of Java after our downgrade", version, || {
        sample(&|guard, _| Some(run(guard.downgrade()).unwrap()))
    });
    let latency = sample(&|guard, name| {
        assert!(run(bed.ours_too.read_write_lock(name).write().force_unlock()).unwrap());
        drop(guard);
        None
    });
    assert!(latency < WAKE_LIMIT, "after a forced unlock: {latency:?}");
}

pub(crate) fn javas_writer_lets_all_our_readers_in_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (java, other) = (Sides::new(&bed), Sides::new(&bed));
    let sample = |end: &dyn Fn(&str)| {
        let name = bed.name("rw-wake-us");
        java.write.lock(&name);
        let (guards, times) = our_readers_woken(&bed, bed.patient.each_ref(), &name, || end(&name));
        assert_eq!(bed.number(&["HLEN", &name]), 1 + READERS as i64);
        guards.into_iter().for_each(|guard| released(run(guard.unlock())));
        is_gone(&bed, &name);
        latest(times)
    };
    measure("readers of ours after Java's writer", version, || sample(&|name| java.write.unlock(name)));
    let latency = sample(&|name| assert!(other.write.force_unlock(name)));
    assert!(latency < WAKE_LIMIT, "after a forced unlock: {latency:?}");
}

pub(crate) fn the_last_reader_lets_a_writer_of_the_other_language_in_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (java, other) = (Sides::new(&bed), Sides::new(&bed));
    measure("a writer of Java after our last reader", version, || {
        let name = bed.name("rw-last");
        let lock = bed.ours.read_write_lock(name.as_str());
        let (first, last) = (run(lock.read().lock()).unwrap(), run(lock.read().lock()).unwrap());
        let latency = java_woken(&bed, std::slice::from_ref(&java.write), &name, || {
            released(run(first.unlock()));
            released(run(last.unlock()));
        });
        java.write.unlock(&name);
        latest(latency)
    });
    measure("a writer of ours after Java's last reader", version, || {
        let name = bed.name("rw-last");
        java.read.lock(&name);
        java.read.lock(&name);
        other.read.lock(&name);
        let (guard, latency) = our_writer_woken(&bed, &bed.patient[0], &name, || {
            java.read.unlock(&name);
            other.read.unlock(&name);
            java.read.unlock(&name);
        });
        released(run(guard.unlock()));
        latency
    });
    // The last of readers of both languages; the one who goes before does not make room.
    for java_last in [false, true] {
        let name = bed.name("rw-last");
        java.read.lock(&name);
        let guard = run(bed.ours.read_write_lock(name.as_str()).read().lock()).unwrap();
        let latency = if java_last {
            let ours = our_writer_woken(&bed, &bed.patient[1], &name, || {
                released(run(guard.unlock()));
                std::thread::sleep(BLOCKED);
                assert!(!run(bed.ours.read_write_lock(name.as_str()).write().is_locked()).unwrap());
                java.read.unlock(&name);
            });
            released(run(ours.0.unlock()));
            ours.1
        } else {
            let latency = java_woken(&bed, std::slice::from_ref(&other.write), &name, || {
                java.read.unlock(&name);
                std::thread::sleep(BLOCKED);
                assert!(!java.write.is_locked(&name));
                released(run(guard.unlock()));
            });
            other.write.unlock(&name);
            latest(latency)
        };
        // It was still kept out in the middle of this.
        assert!(latency < BLOCKED + WAKE_LIMIT, "{latency:?}");
        is_gone(&bed, &name);
    }
}

pub(crate) fn a_writer_lets_a_writer_of_the_other_language_in_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let java = Sides::new(&bed);
    measure("a writer of Java after ours", version, || {
        let name = bed.name("rw-next");
        let guard = run(bed.ours.read_write_lock(name.as_str()).write().lock()).unwrap();
        let release = || released(run(guard.unlock()));
        let latency = java_woken(&bed, std::slice::from_ref(&java.write), &name, release);
        java.write.unlock(&name);
        latest(latency)
    });
    measure("a writer of ours after Java's", version, || {
        let name = bed.name("rw-next");
        java.write.lock(&name);
        let (guard, latency) = our_writer_woken(&bed, &bed.patient[0], &name, || java.write.unlock(&name));
        released(run(guard.unlock()));
        latency
    });
}

pub(crate) fn the_silent_downgrade_of_java_is_found_at_the_next_look(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (name, java) = (bed.name("rw-silent"), Sides::new(&bed));
    java.write.lock(&name);
    java.read.lock(&name);
    let writer = bed.ours.read_write_lock(name.as_str());
    let writer = runtime().spawn(async move { writer.write().lock().await.unwrap() });
    let (guards, times) =
        our_readers_woken(&bed, [&bed.ours, &bed.ours_too], &name, || java.write.unlock(&name));
    let last = latest(times);
    println!("{version:?}: all readers found a silent downgrade within {last:?}");
    assert!(last < NEXT_LOOK, "found only after {last:?}");
    assert!(!writer.is_finished(), "a writer beside readers");
    assert_eq!(java.read.holds(&name), 1);
    guards.into_iter().for_each(|guard| released(run(guard.unlock())));
    assert!(!writer.is_finished(), "a writer beside a reader of Java");
    java.read.unlock(&name);
    released(run(run(writer).unwrap().unlock()));
    is_gone(&bed, &name);
}
