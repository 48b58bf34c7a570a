//! The read-write lock on every store. The tests that begin with `test_` are Redisson's own cases under their own names, with
//! times divided by five to ten; what is different on purpose is said where it is. A hold of ours ends up to 1 % before its lease.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{ErrorKind, Lease, LossReason, Owner, ReadWriteLock, Unlocked, Wait, blocking};

use super::blocking::aside;
use crate::fixture::{Fixture, LATE, RENEWED, awake, ms, renewed, soon};

/// Counts who is inside, and finds anybody who should not be.
#[derive(Default)]
struct Room {
    readers: AtomicI64,
    writers: AtomicI64,
    entries: AtomicUsize,
}

impl Room {
    async fn read(&self, stay: Duration) {
        self.readers.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        tokio::time::sleep(stay).await;
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        self.readers.fetch_sub(1, Ordering::SeqCst);
        self.entries.fetch_add(1, Ordering::SeqCst);
    }

    async fn write(&self, stay: Duration) {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        tokio::time::sleep(stay).await;
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        self.writers.fetch_sub(1, Ordering::SeqCst);
        self.entries.fetch_add(1, Ordering::SeqCst);
    }
}

async fn visit(lock: ReadWriteLock, room: Arc<Room>, write: bool, stay: Duration) {
    if write {
        let guard = lock.write().lock().await.unwrap();
        room.write(stay).await;
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    } else {
        let guard = lock.read().lock().await.unwrap();
        room.read(stay).await;
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

pub(crate) async fn test_force_unlock(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let read = ours.read().lock().await.unwrap();
    assert!(!theirs.write().force_unlock().await.unwrap(), "the write side is free");
    assert!(ours.read().is_locked().await.unwrap());
    assert!(theirs.read().force_unlock().await.unwrap());
    assert!(!ours.read().is_locked().await.unwrap());
    let write = theirs.write().try_lock().await.unwrap().unwrap();
    assert!(!ours.read().force_unlock().await.unwrap(), "the read side is free");
    assert!(ours.write().force_unlock().await.unwrap());
    assert!(matches!(read.unlock().await.unwrap(), Unlocked::AlreadyLost(_)));
    assert_eq!(write.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Deleted));
    assert!(!ours.read().force_unlock().await.unwrap());
}

pub(crate) async fn test_auto_expire(on: Fixture) {
    let (a, b) = (on.brisk(ms(3_000)).await, on.client().await);
    let lock = b.read_write_lock(on.name("x"));
    let start = Instant::now();
    let held = a.read_write_lock(on.name("x")).read().lock().await.unwrap().detach();
    assert!(lock.write().try_lock().await.unwrap().is_none());
    let write = soon("the end of the lease", lock.write().lock()).await.unwrap();
    assert!(awake(start) <= ms(3_000) + LATE, "{:?}", start.elapsed());
    assert!(held.remaining <= ms(3_000));
    write.unlock().await.unwrap();
    a.read_write_lock(on.name("x")).write().lock().await.unwrap().detach();
    assert!(lock.read().try_lock().await.unwrap().is_none());
    soon("the end of the lease", lock.read().lock()).await.unwrap().unlock().await.unwrap();
}

pub(crate) async fn test_get_hold_count(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(on.name("x"));
    let owner = client.owner();
    let (read, write) = (lock.read(), lock.write());
    let counts = async |expected| {
        assert_eq!(
            (read.hold_count(&owner).await.unwrap(), write.hold_count(&owner).await.unwrap()),
            expected
        );
    };
    counts((0, 0)).await;
    let first = write.acquire().owner(&owner).await.unwrap().unwrap();
    counts((0, 1)).await;
    let second = write.acquire().owner(&owner).await.unwrap().unwrap();
    counts((0, 2)).await;
    let third = read.acquire().owner(&owner).await.unwrap().unwrap();
    let fourth = read.acquire().owner(&owner).await.unwrap().unwrap();
    counts((2, 2)).await;
    assert_eq!(first.unlock().await.unwrap(), Unlocked::StillHeld(1));
    counts((2, 1)).await;
    assert_eq!(second.unlock().await.unwrap(), Unlocked::Released);
    counts((2, 0)).await;
    assert_eq!(third.unlock().await.unwrap(), Unlocked::StillHeld(1));
    counts((1, 0)).await;
    assert_eq!(fourth.unlock().await.unwrap(), Unlocked::Released);
    counts((0, 0)).await;
}

pub(crate) async fn test_is_held_and_is_locked_by_thread(on: Fixture) {
    let (builder, name) = (on.builder(), on.name("x"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let lock = client.read_write_lock(name.as_str());
        let (read, write) = (lock.read(), lock.write());
        assert!(!read.is_held_by_current_thread().unwrap() && !write.is_held_by_current_thread().unwrap());
        let reading = read.lock().unwrap();
        let held = |expected: (bool, bool)| {
            let sides = (read.is_held_by_current_thread(), write.is_held_by_current_thread());
            assert_eq!((sides.0.unwrap(), sides.1.unwrap()), expected);
        };
        let locked = |expected: (bool, bool)| {
            assert_eq!((read.is_locked().unwrap(), write.is_locked().unwrap()), expected);
        };
        let elsewhere = |what: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| scope.spawn(what).join()).unwrap();
        };
        held((true, false));
        elsewhere(&|| held((false, false)));
        elsewhere(&|| locked((true, false)));
        reading.unlock().unwrap();
        held((false, false));
        locked((false, false));
        let writing = write.lock().unwrap();
        held((false, true));
        elsewhere(&|| held((false, false)));
        elsewhere(&|| locked((false, true)));
        writing.unlock().unwrap();
        elsewhere(&|| locked((false, false)));
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}

pub(crate) async fn test_unlock_fail(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let read = ours.read().lock().await.unwrap();
    assert_eq!(theirs.read().release(&b.owner()).await.unwrap_err().kind(), ErrorKind::NotOwner);
    assert_eq!(theirs.write().release(&b.owner()).await.unwrap_err().kind(), ErrorKind::NotOwner);
    assert!(read.is_valid() && theirs.read().is_locked().await.unwrap());
    read.unlock().await.unwrap();
    let write = ours.write().lock().await.unwrap();
    assert_eq!(theirs.read().release(&b.owner()).await.unwrap_err().kind(), ErrorKind::NotOwner);
    assert_eq!(theirs.write().release(&b.owner()).await.unwrap_err().kind(), ErrorKind::NotOwner);
    assert!(write.is_valid() && theirs.write().is_locked().await.unwrap());
    write.unlock().await.unwrap();
    assert_eq!(ours.write().release(&a.owner()).await.unwrap_err().kind(), ErrorKind::NotOwner);
}

pub(crate) async fn test_lock_unlock(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(on.name("x"));
    for _ in 0..2 {
        assert_eq!(lock.read().lock().await.unwrap().unlock().await.unwrap(), Unlocked::Released);
        assert_eq!(lock.write().lock().await.unwrap().unlock().await.unwrap(), Unlocked::Released);
    }
    assert!(!lock.read().is_locked().await.unwrap() && !lock.write().is_locked().await.unwrap());
    assert_eq!(client.stats().names, 0);
}

pub(crate) async fn test_reentrancy(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let outer = ours.read().try_lock().await.unwrap().unwrap();
    let inner = outer.reenter().await.unwrap();
    outer.unlock().await.unwrap();
    assert!(theirs.write().try_lock().await.unwrap().is_none(), "one hold is left");
    inner.unlock().await.unwrap();
    let write = theirs.write().try_lock().await.unwrap().unwrap();
    let again = write.reenter().await.unwrap();
    write.unlock().await.unwrap();
    assert!(
        ours.read().try_lock().await.unwrap().is_none() && ours.write().try_lock().await.unwrap().is_none()
    );
    again.unlock().await.unwrap();
    assert!(ours.write().try_lock().await.unwrap().is_some());
}

pub(crate) async fn test_concurrency_single_instance(on: Fixture) {
    let client = on.client().await;
    let (room, name) = (Arc::new(Room::default()), on.name("x"));
    let visitors = (0..15)
        .map(|n| tokio::spawn(visit(client.read_write_lock(name.as_str()), room.clone(), n % 3 == 0, ms(5))));
    for visitor in futures_util::future::join_all(visitors).await {
        visitor.unwrap();
    }
    assert_eq!(room.entries.load(Ordering::SeqCst), 15);
    assert_eq!(client.stats().names, 0);
}

pub(crate) async fn test_concurrency_loop_multi_instance(on: Fixture) {
    let (room, name) = (Arc::new(Room::default()), on.name("x"));
    let mut visitors = Vec::new();
    for n in 0..16_u64 {
        let (client, room, name) = (on.client().await, room.clone(), name.clone());
        visitors.push(tokio::spawn(async move {
            for round in 0..10_u64 {
                let write = (n.wrapping_mul(31) + round.wrapping_mul(17)) % 3 == 0;
                visit(client.read_write_lock(name.as_str()), room.clone(), write, ms(1)).await;
            }
        }));
    }
    for visitor in visitors {
        tokio::time::timeout(Duration::from_secs(60), visitor).await.expect("everybody's turn").unwrap();
    }
    assert_eq!(room.entries.load(Ordering::SeqCst), 160);
}

/// Readers for 10 s and for 0.6 s: the writer comes in when the longer one unlocks, before its lease is over.
pub(crate) async fn test_read_lock_expiration(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let long = ours.read().lock_with_lease(ms(10_000)).await.unwrap();
    let short = ours.read().lock_with_lease(ms(600)).await.unwrap();
    let writer = tokio::spawn(async move {
        let guard = theirs.write().lock().await.unwrap();
        (guard, Instant::now())
    });
    assert_eq!(soon("the end of the short one", short.lost()).await, LossReason::Expired);
    tokio::time::sleep(ms(900)).await;
    assert!(!writer.is_finished());
    let left = Instant::now();
    long.unlock().await.unwrap();
    let (write, entered) = soon("the writer", writer).await.unwrap();
    assert!(entered >= left && awake(left) < LATE, "{:?}", left.elapsed());
    write.unlock().await.unwrap();
}

pub(crate) async fn test_read_lock_is_locked(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(on.name("x"));
    let write = lock.write().lock().await.unwrap();
    assert!(lock.write().is_locked().await.unwrap() && !lock.read().is_locked().await.unwrap());
    let read = write.read().await.unwrap();
    assert!(lock.write().is_locked().await.unwrap() && lock.read().is_locked().await.unwrap());
    write.unlock().await.unwrap();
    assert!(!lock.write().is_locked().await.unwrap() && lock.read().is_locked().await.unwrap());
    read.unlock().await.unwrap();
    assert!(!lock.write().is_locked().await.unwrap() && !lock.read().is_locked().await.unwrap());
}

pub(crate) async fn test_read_lock_expiration_renewal(on: Fixture) {
    let client = on.brisk(RENEWED).await;
    let lock = client.read_write_lock(on.name("x"));
    let readers = (0..50).map(|n| {
        let lock = lock.clone();
        tokio::spawn(async move {
            tokio::time::sleep(ms(n * 7)).await;
            let guard = lock.read().lock().await.unwrap();
            tokio::time::sleep(RENEWED + ms(500)).await;
            guard.unlock().await.unwrap()
        })
    });
    for reader in futures_util::future::join_all(readers).await {
        assert_eq!(reader.unwrap(), Unlocked::Released);
    }
    assert!(!lock.read().is_locked().await.unwrap());
}

pub(crate) async fn test_name(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(format!("{{{}}}:abc:key", on.name("test")));
    let tasks = (0..10).map(|_| {
        let lock = lock.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                assert_eq!(lock.read().lock().await.unwrap().unlock().await.unwrap(), Unlocked::Released);
            }
        })
    });
    for task in futures_util::future::join_all(tasks).await {
        task.unwrap();
    }
    assert!(lock.write().try_lock().await.unwrap().is_some());
}

/// Write holds for 4 s and then 0.2 s: the inner one neither cuts the outer one nor is added to it.
pub(crate) async fn test_write_lock_expiration(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let owner = a.owner();
    let start = Instant::now();
    let hold = |lease| ours.write().acquire().owner(&owner).lease(Lease::Fixed(ms(lease)));
    let (outer, _inner) = (hold(4_000).await.unwrap().unwrap(), hold(200).await.unwrap().unwrap());
    assert!(theirs.write().lock_for(ms(600)).await.unwrap().is_none(), "the short one is over by now");
    assert!(outer.is_valid());
    let write = soon("the end", theirs.write().lock()).await.unwrap();
    assert!(start.elapsed() >= ms(3_950) && awake(start) < ms(4_000) + LATE, "{:?}", start.elapsed());
    write.unlock().await.unwrap();
}

pub(crate) async fn test_read_lock_lease_timeout_diff_threads_wrr(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let start = Instant::now();
    let _write = a.read_write_lock(on.name("x")).write().lock_with_lease(ms(1_000)).await.unwrap();
    let readers = [&a, &b].map(|client| {
        let lock = client.read_write_lock(on.name("x"));
        tokio::spawn(async move { lock.read().lock().await.unwrap() })
    });
    for reader in readers {
        let guard = soon("a reader", reader).await.unwrap();
        assert!(guard.is_valid());
        // Both are in before either has gone.
        guard.detach();
    }
    assert!(start.elapsed() >= ms(985) && awake(start) < ms(1_000) + LATE, "{:?}", start.elapsed());
}

pub(crate) async fn test_read_lock_lease_timeout_diff_threads_rrw(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let lock = a.read_write_lock(on.name("x"));
    let start = Instant::now();
    let _first = lock.read().lock_with_lease(ms(4_000)).await.unwrap();
    tokio::time::sleep(ms(700)).await;
    let second = lock.read().lock_with_lease(ms(6_000)).await.unwrap();
    let waiting = b.read_write_lock(on.name("x"));
    let writer = tokio::spawn(async move { waiting.write().lock().await.unwrap() });
    tokio::time::sleep(ms(50)).await;
    second.unlock().await.unwrap();
    let left = lock.read().remaining_ttl().await.unwrap().unwrap();
    assert!(left <= ms(3_300), "only what the first reader needs: {left:?}");
    drop(soon("the writer", writer).await.unwrap());
    assert!(start.elapsed() >= ms(3_950) && awake(start) < ms(4_000) + LATE, "{:?}", start.elapsed());
}

/// In Redisson the hold that stays keeps its own lease; here all holds of an owner last as long as the longest (R4).
pub(crate) async fn test_read_lock_lease_timeout(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let lock = a.read_write_lock(on.name("x"));
    let owner = a.owner();
    let start = Instant::now();
    let hold = || lock.read().acquire().owner(&owner).lease(Lease::Fixed(ms(4_000)));
    let first = hold().await.unwrap().unwrap();
    tokio::time::sleep(ms(400)).await;
    let second = hold().await.unwrap().unwrap();
    first.unlock().await.unwrap();
    assert!(b.read_write_lock(on.name("x")).write().try_lock().await.unwrap().is_none());
    let waiting = b.read_write_lock(on.name("x"));
    drop(soon("the writer", waiting.write().lock()).await.unwrap());
    assert!(start.elapsed() >= ms(4_350) && awake(start) < ms(4_400) + LATE, "{:?}", start.elapsed());
    assert_eq!(second.loss(), Some(LossReason::Expired));
}

pub(crate) async fn test_wr(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let write = ours.write().lock().await.unwrap();
    let read = write.read().await.unwrap();
    read.unlock().await.unwrap();
    assert!(write.is_valid() && ours.write().is_held_by(write.owner()).await.unwrap());
    assert!(theirs.read().try_lock().await.unwrap().is_none());
    write.unlock().await.unwrap();
    assert!(theirs.read().try_lock().await.unwrap().is_some());
}

/// Twenty readers who stay 300 ms each are let in together, not one after the other.
pub(crate) async fn test_write_read(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let write = a.read_write_lock(on.name("x")).write().lock().await.unwrap();
    let room = Arc::new(Room::default());
    let readers: Vec<_> = (0..20)
        .map(|n| {
            let client = if n % 2 == 0 { &a } else { &b };
            tokio::spawn(visit(client.read_write_lock(on.name("x")), room.clone(), false, ms(300)))
        })
        .collect();
    tokio::time::sleep(ms(200)).await;
    assert_eq!(room.readers.load(Ordering::SeqCst), 0);
    let start = Instant::now();
    write.unlock().await.unwrap();
    for reader in readers {
        soon("each reader", reader).await.unwrap();
    }
    assert!(awake(start) < ms(1_000), "{:?}", start.elapsed());
    assert_eq!(room.entries.load(Ordering::SeqCst), 20);
}

pub(crate) async fn test_write_read_reentrancy(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let write = ours.write().lock().await.unwrap();
    let read = write.read().await.unwrap();
    assert!(theirs.read().try_lock().await.unwrap().is_none());
    write.unlock().await.unwrap();
    assert!(theirs.write().try_lock().await.unwrap().is_none(), "the read hold stays");
    let beside = theirs.read().try_lock().await.unwrap().expect("for reading it is open");
    read.unlock().await.unwrap();
    assert!(ours.write().try_lock().await.unwrap().is_none());
    beside.unlock().await.unwrap();
    assert!(theirs.write().try_lock().await.unwrap().is_some());
}

pub(crate) async fn test_write_lock(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let write = ours.write().try_lock().await.unwrap().unwrap();
    let again = write.reenter().await.unwrap();
    assert!(theirs.read().try_lock().await.unwrap().is_none());
    write.unlock().await.unwrap();
    assert!(theirs.read().try_lock().await.unwrap().is_none());
    again.unlock().await.unwrap();
    let _read = theirs.read().try_lock().await.unwrap().unwrap();
    assert!(ours.write().try_lock().await.unwrap().is_none());
    assert!(theirs.write().try_lock().await.unwrap().is_none(), "another owner of the same client, too");
}

pub(crate) async fn test_multi_read(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    assert!(!ours.read().force_unlock().await.unwrap(), "a free lock");
    let (one, two) =
        (ours.read().try_lock().await.unwrap().unwrap(), theirs.read().try_lock().await.unwrap().unwrap());
    assert!(ours.write().try_lock().await.unwrap().is_none());
    one.unlock().await.unwrap();
    assert!(ours.write().try_lock().await.unwrap().is_none());
    two.unlock().await.unwrap();
    assert!(ours.write().try_lock().await.unwrap().is_some());
}

pub(crate) async fn test_read_write_ttl(on: Fixture) {
    let client = on.brisk(RENEWED).await;
    let lock = client.read_write_lock(on.name("x"));
    let write = lock.write().lock().await.unwrap();
    let read = write.read().await.unwrap();
    let watch = async || {
        renewed(2, async || lock.read().remaining_ttl().await.unwrap().expect("somebody reads")).await;
    };
    watch().await;
    write.unlock().await.unwrap();
    watch().await;
    assert!(read.is_valid());
    read.unlock().await.unwrap();
}

pub(crate) async fn test_expire_read_and_write(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let late = ours.read().lock_with_lease(ms(500)).await.unwrap();
    let read = soon("a second reader", theirs.read().lock()).await.unwrap();
    assert_eq!(soon("the end", late.lost()).await, LossReason::Expired);
    assert_eq!(late.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Expired));
    assert!(read.is_valid());
    read.unlock().await.unwrap();
    let start = Instant::now();
    let late = ours.write().lock_with_lease(ms(500)).await.unwrap();
    let write = soon("the next writer", theirs.write().lock()).await.unwrap();
    assert!(start.elapsed() >= ms(485) && awake(start) < ms(500) + LATE, "{:?}", start.elapsed());
    assert!(matches!(late.unlock().await.unwrap(), Unlocked::AlreadyLost(_)));
    assert!(write.is_valid() && theirs.write().is_held_by(write.owner()).await.unwrap());
}

pub(crate) async fn test_multi_instance_read_lock_zombie_cleanup(on: Fixture) {
    let (dead, live, next) = (on.brisk(ms(500)).await, on.brisk(RENEWED).await, on.client().await);
    dead.read_write_lock(on.name("x")).read().lock().await.unwrap().detach();
    let read = live.read_write_lock(on.name("x")).read().lock().await.unwrap();
    let lock = next.read_write_lock(on.name("x"));
    // The first renewal comes long after the end of the dead one.
    renewed(1, async || lock.read().remaining_ttl().await.unwrap().expect("somebody reads")).await;
    assert!(lock.write().try_lock().await.unwrap().is_none(), "one reader is alive");
    read.unlock().await.unwrap();
    assert!(lock.write().try_lock().await.unwrap().is_some(), "the dead one does not count");
}

/// Switched off in Redisson.
pub(crate) async fn test_multi_instance_zombie_read_lock_performance(on: Fixture) {
    let next = on.client().await;
    for _ in 0..20 {
        let dead = on.brisk(ms(900)).await;
        for _ in 0..3 {
            dead.read_write_lock(on.name("x")).read().lock().await.unwrap().detach();
        }
    }
    let start = Instant::now();
    drop(soon("the writer", next.read_write_lock(on.name("x")).write().lock()).await.unwrap());
    assert!(awake(start) <= ms(900) + LATE, "{:?}", start.elapsed());
}

pub(crate) async fn a_writer_turns_into_a_reader_and_nobody_writes_in_between(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    for _ in 0..5 {
        let write = ours.write().lock().await.unwrap();
        let owner = write.owner().clone();
        let waiters = [ours.clone(), theirs.clone()].map(|lock| {
            tokio::spawn(async move { lock.write().lock().await.unwrap().unlock().await.unwrap() })
        });
        tokio::time::sleep(ms(30)).await;
        let read = write.downgrade().await.unwrap();
        assert_eq!(*read.owner(), owner);
        let beside = soon("another reader", theirs.read().lock()).await.unwrap();
        tokio::time::sleep(ms(30)).await;
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "writers wait for readers");
        assert!(!ours.write().is_locked().await.unwrap());
        beside.unlock().await.unwrap();
        assert_eq!(read.unlock().await.unwrap(), Unlocked::Released);
        for waiter in waiters {
            assert_eq!(soon("each writer", waiter).await.unwrap(), Unlocked::Released);
        }
    }
    soon("quiet", async {
        while a.stats().names + b.stats().names > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub(crate) async fn a_lost_write_hold_cannot_be_downgraded(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (ours, theirs) = (a.read_write_lock(on.name("x")), b.read_write_lock(on.name("x")));
    let write = ours.write().lock().await.unwrap();
    theirs.write().force_unlock().await.unwrap();
    assert_eq!(write.downgrade().await.unwrap_err().kind(), ErrorKind::Lost);
    let write = ours.write().lock().await.unwrap();
    theirs.write().force_unlock().await.unwrap();
    let taken = theirs.write().try_lock().await.unwrap().unwrap();
    assert_eq!(write.read().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(taken.is_valid());
    taken.unlock().await.unwrap();
    let write = ours.write().lock_with_lease(ms(100)).await.unwrap();
    tokio::time::sleep(ms(150)).await;
    assert_eq!(write.read().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(write.downgrade().await.unwrap_err().kind(), ErrorKind::Lost);
    soon("quiet", async {
        while a.stats().names + a.stats().background_jobs > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!ours.read().is_locked().await.unwrap() && !ours.write().is_locked().await.unwrap());
}

pub(crate) async fn a_write_hold_with_a_read_hold_beside_is_not_passed_on(on: Fixture) {
    // Turns so long that a waiting task would be handed the lock.
    let client = on.builder().turn_time(ms(60_000)).connect().await.unwrap();
    let lock = client.read_write_lock(on.name("x"));
    let write = lock.write().lock().await.unwrap();
    let read = write.read().await.unwrap();
    let (waiting, owner) = (lock.clone(), client.owner());
    let writer = tokio::spawn(async move {
        let acquire = waiting.write().acquire().owner(&owner).wait(Wait::Forever);
        acquire.await.unwrap().unwrap()
    });
    tokio::time::sleep(ms(30)).await;
    assert_eq!(write.unlock().await.unwrap(), Unlocked::Released);
    tokio::time::sleep(ms(50)).await;
    assert!(!writer.is_finished(), "somebody reads");
    assert!(read.is_valid() && lock.read().is_held_by(read.owner()).await.unwrap());
    read.unlock().await.unwrap();
    soon("the next writer", writer).await.unwrap().unlock().await.unwrap();
}

pub(crate) async fn a_reader_that_asks_to_write_is_refused(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(on.name("x"));
    let read = lock.read().lock().await.unwrap();
    let upgrade = lock.write().acquire().owner(read.owner()).wait(Wait::Forever);
    let error = soon("the refusal", std::future::IntoFuture::into_future(upgrade)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UpgradeRefused, "{error}");
    assert!(read.is_valid());
    let (builder, name) = (on.builder(), on.name("y"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let lock = client.read_write_lock(name.as_str());
        let read = lock.read().lock().unwrap();
        assert_eq!(lock.write().lock().unwrap_err().kind(), ErrorKind::UpgradeRefused);
        read.unlock().unwrap();
        let write = lock.write().lock().unwrap();
        let nested = lock.read().lock().unwrap();
        let read = write.downgrade().unwrap();
        assert_eq!(lock.read().hold_count().unwrap(), 2);
        assert_eq!(nested.unlock().unwrap(), Unlocked::StillHeld(1));
        assert_eq!(read.unlock().unwrap(), Unlocked::Released);
        let write = lock.write().acquire().lease(Lease::Fixed(ms(100))).run().unwrap().unwrap();
        assert_eq!(write.lost_within(ms(5_000)).unwrap(), Some(LossReason::Expired));
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}

pub(crate) async fn waiting_writers_go_first_where_that_is_asked_for(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(on.name("x")).prefer_writers();
    let read = lock.read().lock().await.unwrap();
    assert!(lock.read().try_lock().await.unwrap().is_some(), "nobody wants to write");
    soon("the release", async { while lock.read().remaining_ttl().await.unwrap().is_none() {} }).await;
    let waiting = lock.clone();
    let writer = tokio::spawn(async move { waiting.write().lock().await.unwrap() });
    soon("the writer's place", async {
        while lock.read().try_lock().await.unwrap().is_some() {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await;
    let again = read.reenter().await.expect("whoever reads may read once more");
    let unasked = client.read_write_lock(on.name("x"));
    assert!(unasked.read().try_lock().await.unwrap().is_some(), "the gate is for those who ask for it");
    let next = lock.clone();
    let reader = tokio::spawn(async move { next.read().lock().await.unwrap() });
    tokio::time::sleep(ms(100)).await;
    assert!(!reader.is_finished(), "the writer is first");
    read.unlock().await.unwrap();
    again.unlock().await.unwrap();
    let write = soon("the writer", writer).await.unwrap();
    assert!(!reader.is_finished());
    let nested =
        soon("a read hold beside", write.read()).await.expect("the gate is not for the writer itself");
    nested.unlock().await.unwrap();
    let another = lock.clone();
    let another = tokio::spawn(async move { another.write().lock().await.unwrap().unlock().await.unwrap() });
    tokio::time::sleep(ms(50)).await;
    let nested = lock.read().acquire().owner(write.owner()).await.unwrap();
    nested.expect("nor when another writer waits").unlock().await.unwrap();
    write.unlock().await.unwrap();
    soon("the other writer", another).await.unwrap();
    soon("the reader", reader).await.unwrap().unlock().await.unwrap();
    // A writer that gives up no longer holds anybody back, and one that never gets in does so for a limited time.
    let other = on.client().await;
    let outside = other.read_write_lock(on.name("x")).read().lock().await.unwrap();
    assert!(lock.write().lock_for(ms(400)).await.unwrap().is_none());
    soon("a reader", lock.read().lock()).await.unwrap().unlock().await.unwrap();
    let waiting = lock.clone();
    let writer = tokio::spawn(async move { waiting.write().lock().await.unwrap() });
    tokio::time::sleep(ms(50)).await;
    let start = Instant::now();
    let patient = soon("a reader after a while", lock.read().lock()).await.unwrap();
    assert!(start.elapsed() >= ms(2_000) && awake(start) < ms(4_500), "{:?}", start.elapsed());
    patient.unlock().await.unwrap();
    outside.unlock().await.unwrap();
    soon("the writer", writer).await.unwrap().unlock().await.unwrap();
}

pub(crate) async fn writers_that_hand_the_lock_on_let_readers_of_the_same_client_in(on: Fixture) {
    let client = on.client().await;
    let lock = client.read_write_lock(on.name("x"));
    let begin = Instant::now();
    let goes_on = move || awake(begin) < ms(2_000);
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move {
                let mut writes = 0;
                while goes_on() {
                    let guard = lock.write().lock().await.unwrap();
                    tokio::time::sleep(ms(1)).await;
                    guard.unlock().await.unwrap();
                    writes += 1;
                }
                writes
            })
        })
        .collect();
    let (mut reads, mut longest) = (0, Duration::ZERO);
    while goes_on() {
        let start = Instant::now();
        lock.read().lock().await.unwrap().unlock().await.unwrap();
        longest = longest.max(awake(start));
        reads += 1;
    }
    for writer in writers {
        assert!(soon("a writer's end", writer).await.unwrap() > 0);
    }
    println!("{reads} reads, at most {longest:?} of waiting");
    assert!(reads > 10 && longest < ms(1_500), "{reads} reads, at most {longest:?} of waiting");
}

pub(crate) async fn readers_of_one_client_are_many_leases_and_each_is_told(on: Fixture) {
    let (a, b) = (on.brisk(RENEWED).await, on.client().await);
    let lock = a.read_write_lock(on.name("x"));
    let mut readers = Vec::new();
    for _ in 0..12 {
        readers.push(lock.read().lock().await.unwrap());
    }
    assert_eq!(a.stats().names, 1);
    renewed(4, async || {
        assert!(readers.iter().all(|reader| reader.is_valid()), "all are renewed");
        readers.iter().map(|reader| reader.remaining()).min().expect("there are twelve")
    })
    .await;
    assert!(b.read_write_lock(on.name("x")).write().try_lock().await.unwrap().is_none());
    readers.pop().unwrap().unlock().await.unwrap();
    drop(readers.pop());
    assert!(b.read_write_lock(on.name("x")).read().force_unlock().await.unwrap());
    let taken = b.read_write_lock(on.name("x")).write().try_lock().await.unwrap().unwrap();
    for reader in &readers {
        match soon("the announcement", reader.lost()).await {
            LossReason::TakenOver { by } => assert_eq!(by, taken.owner().to_string()),
            other => panic!("{other:?}"),
        }
    }
    soon("quiet", async {
        while a.stats().names + a.stats().background_jobs > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub(crate) async fn both_sides_are_released_by_a_shutdown(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (one, two) = (a.read_write_lock(on.name("x")), a.read_write_lock(on.name("y")));
    let reads = [one.read().lock().await.unwrap(), one.read().lock().await.unwrap()];
    let write = two.write().lock().await.unwrap();
    let nested = write.read().await.unwrap();
    let report = a.clone().shutdown(Duration::from_secs(5)).await;
    assert_eq!((report.released, report.failed.len()), (4, 0), "{report:?}");
    assert!(reads.iter().all(|read| read.loss() == Some(LossReason::Shutdown)));
    assert_eq!(nested.loss(), Some(LossReason::Shutdown));
    for name in ["x", "y"] {
        assert!(b.read_write_lock(on.name(name)).write().try_lock().await.unwrap().is_some(), "{name}");
    }
}

pub(crate) async fn a_detached_read_hold_is_adopted_elsewhere(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let held = a.read_write_lock(on.name("x")).read().lock_with_lease(ms(20_000)).await.unwrap().detach();
    let owner: Owner = held.owner.to_string().parse().unwrap();
    let lock = b.read_write_lock(on.name("x"));
    assert!(lock.write().try_lock().await.unwrap().is_none());
    assert!(lock.write().adopt(&owner, Lease::Renewed).await.unwrap().is_none(), "it does not write");
    let guard = lock.read().adopt(&owner, Lease::Renewed).await.unwrap().expect("it reads");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let held = a.read_write_lock(on.name("x")).write().lock().await.unwrap().detach();
    let owner: Owner = held.owner.to_string().parse().unwrap();
    assert!(lock.write().renew(&owner, ms(30_000)).await.unwrap());
    let guard = lock.write().adopt(&owner, Lease::Renewed).await.unwrap().expect("it writes");
    let read = guard.downgrade().await.unwrap();
    assert_eq!(read.unlock().await.unwrap(), Unlocked::Released);
    assert!(lock.write().try_lock().await.unwrap().is_some());
}
