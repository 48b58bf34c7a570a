//! Exclusion: many owners of both languages fight for one name.

use std::{sync::Arc, thread, time::Duration};

use redlatch::{Client, Error, FairLock, Guard, Lock};
use redlatch_testkit::{
    history::{CheckOptions, Event, Floors, Kind, Outcome, Recorder, check, now_ns},
    redisson::RedissonVersion,
};

use crate::bed::{Bed, Java, ms, patient_connection, runtime};

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
}

impl Notes {
    fn granted(&self, asked_ns: u64) {
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

async fn rust_rounds<L: Takes>(lock: L, rounds: u64, counter: Arc<Counter>, notes: Notes) {
    let mut connection = counter.connect().await;
    for round in 0..rounds {
        let asked = now_ns();
        let guard = lock.take().await.unwrap();
        notes.granted(asked);
        counter.raise(&mut connection).await;
        assert!(guard.is_valid());
        let asked = now_ns();
        assert_eq!(guard.unlock().await.unwrap(), redlatch::Unlocked::Released);
        notes.released(asked);
        tokio::time::sleep(pause(round)).await;
    }
}

fn java_rounds(java: &Java, rounds: u64, counter: &Counter, notes: &Notes) {
    let mut connection = runtime().block_on(counter.connect());
    for round in 0..rounds {
        let asked = now_ns();
        java.lock(&notes.name);
        notes.granted(asked);
        runtime().block_on(counter.raise(&mut connection));
        let asked = now_ns();
        java.unlock(&notes.name);
        notes.released(asked);
        thread::sleep(pause(round));
    }
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
    let notes = |owner: String| Notes { recorder: recorder.clone(), name: name.clone(), owner };
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
    thread::scope(|scope| {
        for number in 0..JAVA_THREADS {
            let (java, counter, notes) = (bed.thread().with(kind), &counter, notes(format!("java-{number}")));
            scope.spawn(move || java_rounds(&java, rounds_each, counter, &notes));
        }
    });
    for task in tasks {
        runtime().block_on(task).unwrap();
    }
    let took_ms = (now_ns() - begin) / 1_000_000;

    let total = rounds_each * (2 * TASKS_PER_CLIENT + JAVA_THREADS);
    assert_eq!(bed.number(&["GET", &counter.key]), i64::try_from(total).unwrap(), "lost updates");
    let events = recorder.events();
    let floors = Floors { grants: total, contended: total / 4, ..Floors::default() };
    let verdict = check(&events, &CheckOptions { floors, ..CheckOptions::default() });
    verdict.assert_ok();
    // One language after the other would prove nothing.
    let mut grants: Vec<&Event> = events.iter().filter(|event| event.kind == Kind::AcquireRet).collect();
    grants.sort_by_key(|event| event.t_ret_ns);
    let languages = |event: &Event| event.owner.starts_with("java");
    let changes = grants.windows(2).filter(|pair| languages(pair[0]) != languages(pair[1])).count();
    println!(
        "{version:?}, {kind}: {total} grants in {took_ms} ms, {} contended, {changes} changes of language",
        verdict.stats.contended
    );
    assert!(changes >= 40, "the languages took turns only {changes} times");
    assert_eq!(bed.number(&["EXISTS", &name]), 0);
}
