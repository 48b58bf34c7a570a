//! Exclusion: many owners of both languages fight for one name.

use std::{sync::Arc, thread, time::Duration};

use redlatch::{Client, Error, FairLock, Guard, Lock};
use redlatch_testkit::{
    history::{CheckOptions, Event, Floors, Kind, Outcome, Recorder, check, now_ns},
    redisson::RedissonVersion,
};

use crate::{
    bed::{Bed, Java, ms, patient_connection, runtime},
    turns::{Language, Turns},
};

const ROUNDS: u64 = 200;
const TASKS_PER_CLIENT: u64 = 3;
const JAVA_THREADS: u64 = 3;

/// What an owner does between two rounds. The lock is not fair: an owner that asks again at once keeps it among the quickest, and
/// the languages would fight one after the other.
fn pause(round: u64) -> Duration {
    ms(round * 7 % 5)
}

/// A number in Redis that is read and written in two commands, so that two holders at once lose an update.
struct Counter {
    url: String,
    key: String,
}

impl Counter {
    async fn connect(&self) -> redis::aio::MultiplexedConnection {
        patient_connection(&self.url).await
    }

    async fn raise(&self, connection: &mut redis::aio::MultiplexedConnection) {
        let seen: Option<u64> = redis::cmd("GET").arg(&self.key).query_async(connection).await.unwrap();
        let next = seen.unwrap_or(0) + 1;
        redis::cmd("SET").arg(&self.key).arg(next).query_async::<()>(connection).await.unwrap();
    }
}

/// One owner's notes for the judge.
struct Notes {
    recorder: Recorder,
    name: String,
    owner: String,
    turns: Arc<Turns>,
}

impl Notes {
    fn granted(&self, asked_ns: u64, language: Language) {
        self.turns.note(language);
        let event = Event::new(Kind::AcquireRet, &self.name, &self.owner).span(asked_ns, now_ns());
        self.recorder.record(event.op(0, self.recorder.next_op_id()).outcome(Outcome::Ok));
    }

    fn released(&self, asked_ns: u64) {
        let event = Event::new(Kind::ReleaseRet, &self.name, &self.owner).span(asked_ns, now_ns());
        self.recorder.record(event.op(0, self.recorder.next_op_id()).outcome(Outcome::Ok));
    }
}

/// A lock of ours of either kind.
trait Takes: Send + Sync + 'static {
    fn of(client: &Client, name: &str) -> Self;
    fn take(&self) -> impl Future<Output = Result<Guard, Error>> + Send;
}

impl Takes for Lock {
    fn of(client: &Client, name: &str) -> Self {
        client.lock(name)
    }

    async fn take(&self) -> Result<Guard, Error> {
        self.lock().await
    }
}

impl Takes for FairLock {
    fn of(client: &Client, name: &str) -> Self {
        client.fair_lock(name)
    }

    async fn take(&self) -> Result<Guard, Error> {
        self.lock().await
    }
}

async fn rust_rounds<L: Takes>(lock: L, least: u64, counter: Arc<Counter>, notes: Notes) -> u64 {
    let (mut connection, mut rounds) = (counter.connect().await, 0);
    for round in notes.turns.rounds(least) {
        let asked = now_ns();
        let guard = lock.take().await.unwrap();
        notes.granted(asked, Language::Rust);
        counter.raise(&mut connection).await;
        assert!(guard.is_valid());
        let asked = now_ns();
        assert_eq!(guard.unlock().await.unwrap(), redlatch::Unlocked::Released);
        notes.released(asked);
        tokio::time::sleep(pause(round)).await;
        rounds += 1;
    }
    rounds
}

fn java_rounds(java: &Java, least: u64, counter: &Counter, notes: &Notes) -> u64 {
    let (mut connection, mut rounds) = (runtime().block_on(counter.connect()), 0);
    for round in notes.turns.rounds(least) {
        let asked = now_ns();
        java.lock(&notes.name);
        notes.granted(asked, Language::Java);
        runtime().block_on(counter.raise(&mut connection));
        let asked = now_ns();
        java.unlock(&notes.name);
        notes.released(asked);
        thread::sleep(pause(round));
        rounds += 1;
    }
    rounds
}

pub(crate) fn owners_of_both_languages_never_overlap(version: RedissonVersion) {
    fight::<Lock>(version, "lock", ROUNDS);
}

pub(crate) fn owners_of_a_fair_lock_never_overlap(version: RedissonVersion) {
    fight::<FairLock>(version, "fair", ROUNDS / 3);
}

fn fight<L: Takes>(version: RedissonVersion, kind: &str, rounds_each: u64) {
    let bed = Bed::of(version);
    let name = bed.name("contended");
    let counter = Arc::new(Counter { url: bed.server.url(), key: bed.name("counter") });
    let recorder = Recorder::new("contention", 0);
    let turns = Arc::new(Turns::until(40));
    let notes =
        |owner: String| Notes { recorder: recorder.clone(), name: name.clone(), owner, turns: turns.clone() };
    let begin = now_ns();
    let mut tasks = Vec::new();
    for (client, letter) in [(&bed.ours, 'a'), (&bed.ours_too, 'b')] {
        for task in 0..TASKS_PER_CLIENT {
            let rounds = rust_rounds(
                L::of(client, &name),
                rounds_each,
                counter.clone(),
                notes(format!("rust-{letter}{task}")),
            );
            tasks.push(runtime().spawn(rounds));
        }
    }
    let mut total: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..JAVA_THREADS)
            .map(|number| {
                let (java, counter, notes) =
                    (bed.thread().with(kind), &counter, notes(format!("java-{number}")));
                scope.spawn(move || java_rounds(&java, rounds_each, counter, &notes))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    for task in tasks {
        total += runtime().block_on(task).unwrap();
    }
    let took_ms = (now_ns() - begin) / 1_000_000;

    assert_eq!(bed.number(&["GET", &counter.key]), i64::try_from(total).unwrap(), "lost updates");
    let events = recorder.events();
    let floors = Floors { grants: total, contended: total / 4, ..Floors::default() };
    let verdict = check(&events, &CheckOptions { floors, ..CheckOptions::default() });
    verdict.assert_ok();
    println!(
        "{version:?}, {kind}: {total} grants in {took_ms} ms, {} contended, {} changes of language",
        verdict.stats.contended,
        turns.changes()
    );
    turns.assert_enough();
    assert_eq!(bed.number(&["EXISTS", &name]), 0);
}
