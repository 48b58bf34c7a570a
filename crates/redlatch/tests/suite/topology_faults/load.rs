//! Clients that take locks and give them back, and write down when.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{Client, ErrorKind, Guard, Lease, ReplicaAck, Unlocked, Wait};
use redlatch_testkit::{
    history::{CheckOptions, Event, Kind, Outcome, Recorder, Verdict, check, now_ns},
    stall,
};

use super::eventually;
use crate::{
    fixture::ms,
    kinds::{AnyLock, Face},
};

/// What everybody does.
#[derive(Clone)]
pub(super) struct Plan {
    /// The names, and which kind of lock each is.
    pub(super) locks: Vec<(Face, String)>,
    pub(super) tasks_of_each: u64,
    pub(super) stay: Duration,
    pub(super) rest: Duration,
    pub(super) lease: Lease,
    pub(super) ack: ReplicaAck,
}

impl Plan {
    /// Plain locks of these names, renewed, confirmed by nobody: at most some ten pairs a second of each task.
    pub(super) fn of(names: Vec<String>) -> Plan {
        Plan {
            locks: names.into_iter().map(|name| (Face::Plain, name)).collect(),
            tasks_of_each: 3,
            stay: ms(5),
            rest: ms(60),
            lease: Lease::Renewed,
            ack: ReplicaAck::none(),
        }
    }
}

/// A grant, and the number of the client that got it.
pub(super) type Granted = (Instant, usize);

/// What is written down.
#[derive(Clone, Default)]
pub(super) struct Notes {
    grants: Arc<Mutex<Vec<Granted>>>,
    errors: Arc<Mutex<Vec<(ErrorKind, String)>>>,
    losses: Arc<Mutex<Vec<String>>>,
}

impl Notes {
    pub(super) fn errors(&self) -> Vec<(ErrorKind, String)> {
        self.errors.lock().unwrap().clone()
    }

    fn error(&self, error: &redlatch::Error) {
        self.errors.lock().unwrap().push((error.kind(), error.to_string()));
    }

    pub(super) fn losses(&self) -> Vec<String> {
        self.losses.lock().unwrap().clone()
    }

    pub(super) fn grants(&self) -> Vec<Granted> {
        let mut grants = self.grants.lock().unwrap().clone();
        grants.sort_unstable();
        grants
    }

    /// The longest time without a grant between two moments, without what the machine slept.
    pub(super) fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        let inside = self.grants().into_iter().map(|(at, _)| at).filter(|at| (from..to).contains(at));
        let mut ends = vec![from];
        ends.extend(inside);
        ends.push(to);
        ends.windows(2).map(|pair| stall::awake_between(pair[0], pair[1])).max().unwrap_or_default()
    }
}

/// Tasks at work.
pub(super) struct Load {
    plan: Plan,
    client: Client,
    recorder: Recorder,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    pub(super) notes: Notes,
}

impl Load {
    pub(super) fn start(recorder: &Recorder, clients: &[Client], plan: &Plan) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let notes = Notes::default();
        let mut tasks = Vec::new();
        for (number, client) in clients.iter().enumerate() {
            for task in 0..plan.tasks_of_each {
                let worker = Worker {
                    plan: plan.clone(),
                    client: client.clone(),
                    number,
                    recorder: recorder.clone(),
                    notes: notes.clone(),
                };
                let seed = number as u64 * plan.tasks_of_each + task;
                tasks.push(tokio::spawn(worker.work(seed, stop.clone())));
            }
        }
        let (plan, client, recorder) = (plan.clone(), clients[0].clone(), recorder.clone());
        Load { plan, client, recorder, stop, tasks, notes }
    }

    /// Waits for so many more grants.
    pub(super) async fn more_grants(&self, count: usize) {
        let wanted = self.notes.grants().len() + count;
        eventually("more grants", async {
            while self.notes.grants().len() < wanted {
                tokio::time::sleep(ms(20)).await;
            }
        })
        .await;
    }

    /// Ends it and takes every lock once more.
    pub(super) async fn end(self) -> Notes {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            eventually("each task's end", task).await.unwrap();
        }
        // What an acquire left whose end is unknown is gone: the next one gets the lock.
        let plan = Plan { rest: Duration::ZERO, stay: Duration::ZERO, ack: ReplicaAck::none(), ..self.plan };
        let notes = Notes::default();
        let worker = Worker {
            plan,
            client: self.client,
            number: 0,
            recorder: self.recorder.clone(),
            notes: notes.clone(),
        };
        for (face, name) in worker.plan.locks.clone() {
            let before = notes.grants().len();
            eventually("the last turn", async {
                while notes.grants().len() == before {
                    worker.turn(face, &name, u64::MAX).await;
                }
            })
            .await;
        }
        self.notes
    }
}

/// Judges a history; holds that ended by themselves must have been announced.
pub(super) fn judge(recorder: &Recorder) -> Verdict {
    let options = CheckOptions { notice_late_max_ns: 5_000_000_000, ..CheckOptions::default() };
    check(&recorder.events(), &options)
}

struct Worker {
    plan: Plan,
    client: Client,
    number: usize,
    recorder: Recorder,
    notes: Notes,
}

impl Worker {
    async fn work(self, task: u64, stop: Arc<AtomicBool>) {
        let mut round = task;
        while !stop.load(Ordering::Relaxed) {
            round = round.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (face, name) = &self.plan.locks[(round >> 33) as usize % self.plan.locks.len()];
            self.turn(*face, name, task).await;
            tokio::time::sleep(self.plan.rest).await;
        }
    }

    async fn turn(&self, face: Face, name: &str, task: u64) {
        let entry = Entry::new(&self.recorder, name, task);
        let lock = AnyLock::new(face, &self.client, name);
        let acquire = lock.acquire().wait(Wait::AtMost(Duration::from_secs(30))).lease(self.plan.lease);
        match acquire.replica_ack(self.plan.ack).await {
            Ok(Some(guard)) => {
                let hold = entry.granted(guard);
                self.notes.grants.lock().unwrap().push((hold.since, self.number));
                match hold.stay_and_release(self.plan.stay).await {
                    Ok(true) => {}
                    Ok(false) => self.notes.losses.lock().unwrap().push(name.to_owned()),
                    Err(error) => self.notes.error(&error),
                }
            }
            Ok(None) => entry.ended(Outcome::No),
            Err(error) => {
                self.notes.error(&error);
                entry.ended(Outcome::Unknown);
            }
        }
    }
}

/// An acquire that goes into a history. Each is an owner to the checker, also when a process passes a lease on.
pub(super) struct Entry {
    recorder: Recorder,
    name: String,
    holder: String,
    op: u64,
    called: u64,
}

impl Entry {
    pub(super) fn new(recorder: &Recorder, name: &str, task: u64) -> Entry {
        let op = recorder.next_op_id();
        let holder = format!("{task}-{op}");
        Entry { recorder: recorder.clone(), name: name.to_owned(), holder, op, called: now_ns() }
    }

    fn event(&self, kind: Kind) -> Event {
        Event::new(kind, self.name.as_str(), self.holder.as_str()).op(0, self.op)
    }

    pub(super) fn ended(self, outcome: Outcome) {
        let event = self.event(Kind::AcquireRet).span(self.called, now_ns()).outcome(outcome);
        self.recorder.record(event);
    }

    pub(super) fn granted(self, guard: Guard) -> Holding {
        Holding { entry: self, guard, since: Instant::now(), granted: now_ns() }
    }
}

/// A hold that goes into a history.
pub(super) struct Holding {
    entry: Entry,
    pub(super) guard: Guard,
    pub(super) since: Instant,
    granted: u64,
}

impl Holding {
    /// Holds for this long and gives back. Whether the hold lasted as long as it was needed.
    pub(super) async fn stay_and_release(self, stay: Duration) -> Result<bool, redlatch::Error> {
        let mut seen_valid = self.granted;
        let end = tokio::time::Instant::now() + stay;
        while self.guard.is_valid() {
            seen_valid = now_ns();
            if tokio::time::Instant::now() >= end {
                break;
            }
            tokio::time::sleep(stay.min(ms(5))).await;
        }
        self.release(seen_valid).await
    }

    /// Gives back what has been watched up to this moment. Whether it was held.
    pub(super) async fn release(self, seen_valid: u64) -> Result<bool, redlatch::Error> {
        let Holding { entry, guard, granted, .. } = self;
        let called = now_ns();
        let valid = guard.is_valid();
        // A hold is definite as long as its guard said so.
        let until = if valid { called + guard.remaining().as_nanos() as u64 } else { seen_valid };
        let event = entry.event(Kind::AcquireRet).span(entry.called, granted);
        entry.recorder.record(event.outcome(Outcome::Ok).valid_until(until));
        if !valid {
            entry.recorder.record(entry.event(Kind::LostNotice).span(called, called));
            drop(guard);
            return Ok(false);
        }
        let outcome = guard.unlock().await;
        let said = match &outcome {
            Ok(Unlocked::Released) => Outcome::Ok,
            Ok(_) => Outcome::No,
            Err(_) => Outcome::Unknown,
        };
        entry.recorder.record(entry.event(Kind::ReleaseRet).span(called, now_ns()).outcome(said));
        outcome.map(|unlocked| unlocked == Unlocked::Released)
    }
}
