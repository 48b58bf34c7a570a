//! Contention for permits: takers of both languages, and neither more nor fewer permits than there were.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redlatch::Semaphore;
use redlatch_testkit::redisson::RedissonVersion;

use crate::{
    bed::{Bed, JavaCounter, LIMIT, ms, run, runtime},
    semaphore::java,
    turns::{Language, Turns},
};

/// Rounds of each taker under contention.
const ROUNDS: u64 = 120;
/// Permits that the takers fight for.
const CAPACITY: i64 = 5;

/// Who is inside, and what has been seen of it.
struct Inside {
    now: AtomicI64,
    most: AtomicI64,
    turns: Turns,
}

impl Inside {
    /// Counted after the grant and uncounted before the release, so that it never counts a task that is not inside.
    fn enter(&self, permits: i64, language: Language) {
        let now = self.now.fetch_add(permits, Ordering::SeqCst) + permits;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.turns.note(language);
    }

    fn leave(&self, permits: i64) {
        self.now.fetch_sub(permits, Ordering::SeqCst);
    }
}

/// A turn's size and stay; different enough that the takers do not fall into step.
fn turn(taker: u64, round: u64) -> (i64, Duration) {
    let permits = 1 + (taker * 5 + round * 7) % 3;
    (i64::try_from(permits).unwrap(), ms((taker + round * 3) % 4))
}

async fn our_turns(semaphore: Semaphore, inside: Arc<Inside>, taker: u64) {
    for round in inside.turns.rounds(ROUNDS) {
        let (permits, stay) = turn(taker, round);
        let n = u32::try_from(permits).unwrap();
        match round % 3 {
            0 => assert!(semaphore.acquire_for(n, LIMIT).await.unwrap(), "nothing within {LIMIT:?}"),
            1 => semaphore.acquire(n).await.unwrap(),
            // Given up at once, or not: either way nothing may leak.
            _ if semaphore.try_acquire(n).await.unwrap() => {}
            _ => continue,
        }
        inside.enter(permits, Language::Rust);
        tokio::time::sleep(stay).await;
        inside.leave(permits);
        semaphore.release(n).await.unwrap();
    }
}

fn java_turns(java: &JavaCounter, inside: &Inside, taker: u64) {
    for round in inside.turns.rounds(ROUNDS) {
        let (permits, stay) = turn(taker, round);
        match round % 3 {
            0 => assert!(java.bool("tryAcquireWait", &[permits, 15_000]), "nothing within 15 s"),
            1 => drop(java.call("acquire", &[permits])),
            _ if java.bool("tryAcquire", &[permits]) => {}
            _ => continue,
        }
        inside.enter(permits, Language::Java);
        thread::sleep(stay);
        inside.leave(permits);
        java.call("release", &[permits]);
    }
}

pub(crate) fn no_permit_is_made_or_lost_between_the_languages(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("contended-permits");
    assert!(java(&bed, &name).bool("trySetPermits", &[CAPACITY]));
    let inside =
        Arc::new(Inside { now: AtomicI64::new(0), most: AtomicI64::new(0), turns: Turns::until(40) });
    let begin = Instant::now();
    let tasks: Vec<_> = (0..4)
        .map(|taker| {
            let client = if taker % 2 == 0 { &bed.ours } else { &bed.ours_too };
            runtime().spawn(our_turns(client.semaphore(name.as_str()), inside.clone(), taker))
        })
        .collect();
    thread::scope(|scope| {
        for taker in 4..8 {
            let (java, inside) = (java(&bed, &name), &inside);
            scope.spawn(move || java_turns(&java, inside, taker));
        }
    });
    for task in tasks {
        runtime().block_on(task).unwrap();
    }
    let most = inside.most.load(Ordering::SeqCst);
    println!(
        "{version:?}: {:?}, {most} of {CAPACITY} at most, {} changes of language",
        begin.elapsed(),
        inside.turns.changes()
    );
    assert!(most <= CAPACITY, "{most} permits were out at once");
    assert_eq!(most, CAPACITY, "never used up: no contention, no proof");
    inside.turns.assert_enough();
    assert_eq!(java(&bed, &name).number("available"), CAPACITY, "made or lost");
    assert_eq!(run(bed.ours.semaphore(name.as_str()).drain()).unwrap(), CAPACITY);
}
