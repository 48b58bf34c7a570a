//! Cases of Redisson's own tests of the read-write lock; each has the name of its case there, and its times divided by five to
//! ten. What is different on purpose is said where it is. A hold of ours ends up to 1 % before its lease. `docs/protocol.md`
//! lists all cases.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{ErrorKind, Lease, LossReason, ReadWriteLock, Unlocked, blocking};

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
    let forced = LossReason::Forced { by: a.id().to_owned(), reason: None };
    assert_eq!(write.unlock().await.unwrap(), Unlocked::AlreadyLost(forced));
    assert!(!ours.read().force_unlock().await.unwrap());
}

pub(crate) async fn test_auto_expire(on: Fixture) {
    let (a, b) = (on.brisk(ms(3_000)).await, on.client().await);
    let (lock, other) = (b.read_write_lock(on.name("x")), b.read_write_lock(on.name("y")));
    let start = Instant::now();
    let held = a.read_write_lock(on.name("x")).read().lock().await.unwrap().detach();
    a.read_write_lock(on.name("y")).write().lock().await.unwrap().detach();
    assert!(lock.write().try_lock().await.unwrap().is_none());
    assert!(other.read().try_lock().await.unwrap().is_none());
    let write = soon("the end of the lease", lock.write().lock()).await.unwrap();
    assert!(awake(start) <= ms(3_000) + LATE, "{:?}", start.elapsed());
    assert!(held.remaining <= ms(3_000));
    write.unlock().await.unwrap();
    soon("the end of the lease", other.read().lock()).await.unwrap().unlock().await.unwrap();
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
    let left = theirs.write().remaining_ttl().await.unwrap().expect("it is held");
    assert!(left <= ms(4_000), "{left:?}");
    assert!(theirs.write().lock_for(ms(2_000)).await.unwrap().is_none(), "the short one is over by now");
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
    let second = lock.read().lock_with_lease(ms(60_000)).await.unwrap();
    let waiting = b.read_write_lock(on.name("x"));
    let writer = tokio::spawn(async move { waiting.write().lock().await.unwrap() });
    tokio::time::sleep(ms(50)).await;
    second.unlock().await.unwrap();
    let left = lock.read().remaining_ttl().await.unwrap().unwrap();
    assert!(left <= ms(4_000), "only what the first reader needs: {left:?}");
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

/// Twenty readers who stay 600 ms each are let in together, not one after the other.
pub(crate) async fn test_write_read(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let write = a.read_write_lock(on.name("x")).write().lock().await.unwrap();
    let room = Arc::new(Room::default());
    let readers: Vec<_> = (0..20)
        .map(|n| {
            let client = if n % 2 == 0 { &a } else { &b };
            tokio::spawn(visit(client.read_write_lock(on.name("x")), room.clone(), false, ms(600)))
        })
        .collect();
    tokio::time::sleep(ms(200)).await;
    assert_eq!(room.readers.load(Ordering::SeqCst), 0);
    let start = Instant::now();
    write.unlock().await.unwrap();
    for reader in readers {
        soon("each reader", reader).await.unwrap();
    }
    assert!(awake(start) < ms(600) + LATE, "{:?}", start.elapsed());
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
        renewed(2, async || lock.read().remaining_ttl().await.unwrap().expect("a reader holds it")).await;
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
    renewed(1, async || lock.read().remaining_ttl().await.unwrap().expect("a reader holds it")).await;
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
