//! Exclusion on a read-write lock: readers and writers of both languages at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use redis::aio::MultiplexedConnection;
use redlatch::{Lease, ReadWriteLock, Unlocked, Wait};
use redlatch_testkit::redisson::RedissonVersion;

use crate::{
    bed::{BRISK, Bed, ms, patient_connection, runtime},
    read_write::{Sides, is_gone},
    turns::{Language, Turns},
};

const ROUNDS: u64 = 150;
const TASKS: u64 = 4;
const JAVA_THREADS: u64 = 4;
/// A reader of Java that a message reaches right before its sleep sleeps for the whole TTL (`docs/protocol.md`), here of all that are held.
const LEASE: Lease = Lease::RenewedEvery(BRISK);

/// Three numbers in Redis that a writer changes one after the other, and the count of those who are inside.
struct Page {
    url: String,
    key: String,
    readers: AtomicU64,
    writers: AtomicU64,
    /// The most readers at once, of both languages.
    together: AtomicU64,
    /// Of writers.
    turns: Turns,
    writes: AtomicU64,
    /// Readers inside, by language, and how often a reader of one met one of the other.
    inside: [AtomicU64; 2],
    met: AtomicU64,
}

impl Page {
    async fn connect(&self) -> MultiplexedConnection {
        patient_connection(&self.url).await
    }

    async fn number(&self, connection: &mut MultiplexedConnection, part: u8) -> u64 {
        let found: Option<u64> =
            redis::cmd("GET").arg(format!("{}-{part}", self.key)).query_async(connection).await.unwrap();
        found.unwrap_or(0)
    }

    async fn write(&self, connection: &mut MultiplexedConnection, language: Language) {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        for part in 0..3 {
            let next = self.number(connection, part).await + 1;
            let key = format!("{}-{part}", self.key);
            redis::cmd("SET").arg(key).arg(next).query_async::<()>(connection).await.unwrap();
        }
        self.turns.note(language);
        self.writes.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        self.writers.fetch_sub(1, Ordering::SeqCst);
    }

    async fn read(&self, connection: &mut MultiplexedConnection, language: Language) {
        let its = usize::from(matches!(language, Language::Java));
        let together = self.readers.fetch_add(1, Ordering::SeqCst) + 1;
        self.together.fetch_max(together, Ordering::SeqCst);
        self.inside[its].fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a reader beside a writer");
        let first = self.number(connection, 0).await;
        tokio::time::sleep(ms(1)).await;
        for part in 1..3 {
            assert_eq!(self.number(connection, part).await, first, "a page half written");
        }
        if self.inside[1 - its].load(Ordering::SeqCst) > 0 {
            self.met.fetch_add(1, Ordering::SeqCst);
        }
        assert_eq!(self.writers.load(Ordering::SeqCst), 0, "a writer beside a reader");
        self.inside[its].fetch_sub(1, Ordering::SeqCst);
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Every owner writes in one of three rounds, not all in the same.
fn writes(owner: u64, round: u64) -> bool {
    (owner + round).is_multiple_of(3)
}

fn pause(round: u64) -> Duration {
    ms(round * 7 % 5)
}

async fn rust_rounds(lock: ReadWriteLock, page: Arc<Page>, owner: u64) {
    let mut connection = page.connect().await;
    for round in page.turns.rounds(ROUNDS) {
        let unlocked = if writes(owner, round) {
            let write = lock.write().acquire().wait(Wait::Forever).lease(LEASE);
            let guard = write.await.unwrap().unwrap();
            page.write(&mut connection, Language::Rust).await;
            if round % 2 == 0 {
                // A writer that stays to read what it has written.
                let reading = guard.downgrade().await.unwrap();
                page.read(&mut connection, Language::Rust).await;
                reading.unlock().await
            } else {
                guard.unlock().await
            }
        } else {
            let read = lock.read().acquire().wait(Wait::Forever).lease(LEASE);
            let guard = read.await.unwrap().unwrap();
            page.read(&mut connection, Language::Rust).await;
            guard.unlock().await
        };
        assert_eq!(unlocked.unwrap(), Unlocked::Released);
        tokio::time::sleep(pause(round)).await;
    }
}

fn java_rounds(java: &Sides, name: &str, page: &Page, owner: u64) {
    let mut connection = runtime().block_on(page.connect());
    for round in page.turns.rounds(ROUNDS) {
        if writes(owner, round) {
            java.write.lock(name);
            runtime().block_on(page.write(&mut connection, Language::Java));
            if round % 2 == 0 {
                java.read.lock(name);
                java.write.unlock(name);
                runtime().block_on(page.read(&mut connection, Language::Java));
                java.read.unlock(name);
            } else {
                java.write.unlock(name);
            }
        } else {
            java.read.lock(name);
            runtime().block_on(page.read(&mut connection, Language::Java));
            java.read.unlock(name);
        }
        thread::sleep(pause(round));
    }
}

pub(crate) fn readers_never_meet_a_writer_and_writers_meet_nobody(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("rw-contended");
    let page = Arc::new(Page {
        url: bed.server.url(),
        key: bed.name("page"),
        readers: AtomicU64::new(0),
        writers: AtomicU64::new(0),
        together: AtomicU64::new(0),
        turns: Turns::until(30),
        writes: AtomicU64::new(0),
        inside: Default::default(),
        met: AtomicU64::new(0),
    });
    let mut tasks = Vec::new();
    for owner in 0..TASKS {
        let client = if owner % 2 == 0 { &bed.ours } else { &bed.ours_too };
        let lock = client.read_write_lock(name.as_str());
        tasks.push(runtime().spawn(rust_rounds(lock, page.clone(), owner)));
    }
    thread::scope(|scope| {
        for owner in 0..JAVA_THREADS {
            let (java, name, page) = (Sides::new(&bed).of("brisk"), &name, &page);
            scope.spawn(move || java_rounds(&java, name, page, owner));
        }
    });
    for task in tasks {
        runtime().block_on(task).unwrap();
    }
    let [together, met, writes] = [&page.together, &page.met, &page.writes].map(|n| n.load(Ordering::SeqCst));
    println!(
        "{version:?}: {writes} writes, {} changes of language, at most {together} readers, {met} meetings",
        page.turns.changes()
    );
    for part in 0..3 {
        let found = bed.number(&["GET", &format!("{}-{part}", page.key)]);
        assert_eq!(found, i64::try_from(writes).unwrap(), "lost updates of number {part}");
    }
    page.turns.assert_enough();
    assert!(together >= 3 && met >= 30, "readers shared too little: {together}, {met}");
    is_gone(&bed, &name);
}
