//! Everything at once: many tasks, few locks, faults without end, and a checker that judges the recorded history.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{Client, Lease, Unlocked, Wait};
use redlatch_testkit::{
    history::{CheckId, CheckOptions, Event, Kind, Outcome, Recorder, check, now_ns},
    leftovers::LeftoverCheck,
    proxy::{ConnectionKind, Proxy, Scope},
    server::RedisServer,
};

use crate::{
    fixture::{SOON, ms, soon},
    kinds::{AnyLock, Face},
};

const RUN_TIME: Duration = Duration::from_secs(15);
const MORE_TIME: Duration = Duration::from_secs(60);
const GRANTS_MIN: u64 = 500;
const CLIENTS: u32 = 4;
const TASKS: u32 = 6;
const NAMES: u64 = 4;

/// What the tasks of a run share.
#[derive(Default)]
struct Run {
    stop: AtomicBool,
    grants: AtomicU64,
    /// What each task does at present, for those that do not come to their end.
    does: Mutex<HashMap<u64, String>>,
}

impl Run {
    fn does(&self, task: u64, what: impl Into<String>) {
        self.does.lock().unwrap().insert(task, what.into());
    }
}

/// One task: takes a lock, stays a moment, gives it back, and writes down when.
async fn work(face: Face, client: Client, recorder: Recorder, task: u64, run: Arc<Run>) {
    let mut round = task;
    while !run.stop.load(Ordering::Relaxed) {
        round = round.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let name = format!("chaos-{}", (round >> 33) % NAMES);
        let op = recorder.next_op_id();
        // Each grant is an owner to the checker, also when one process passes a lease from task to task.
        let holder = format!("{task}-{op}");
        let lock = AnyLock::new(face, &client, name.as_str());
        let acquire = lock.acquire().wait(Wait::AtMost(ms(1_500)));
        let acquire = match (round >> 40) % 4 {
            0 => acquire.lease(Lease::Fixed(ms(900))),
            1 => acquire.fenced(),
            _ => acquire,
        };
        let called = now_ns();
        run.does(task, format!("asks for {name}, way {}", (round >> 40) % 4));
        let outcome = acquire.await;
        let event =
            Event::new(Kind::AcquireRet, name.as_str(), holder.as_str()).op(0, op).span(called, now_ns());
        let guard = match outcome {
            Ok(Some(guard)) => guard,
            Ok(None) => {
                recorder.record(event.outcome(Outcome::No));
                continue;
            }
            Err(_) => {
                recorder.record(event.outcome(Outcome::Unknown));
                continue;
            }
        };
        run.grants.fetch_add(1, Ordering::Relaxed);
        run.does(task, format!("holds {name}"));
        let mut valid_until = now_ns() + guard.remaining().as_nanos() as u64;
        let event = match guard.token() {
            Some(token) => event.token(token),
            None => event,
        };
        let stay = ms((round >> 44) % 12);
        let end = tokio::time::Instant::now() + stay;
        while tokio::time::Instant::now() < end && guard.is_valid() {
            tokio::time::sleep(ms(2)).await;
            valid_until = valid_until.max(now_ns() + guard.remaining().as_nanos() as u64);
        }
        // The hold is definite up to the last deadline that the guard vouched for.
        recorder.record(event.outcome(Outcome::Ok).valid_until(valid_until));
        if !guard.is_valid() {
            // A machine that paused. A holder that looks after the deadline is told, so this is when it was announced.
            let notice = Event::new(Kind::LostNotice, name.as_str(), holder.as_str()).op(0, op);
            recorder.record(notice.span(valid_until.min(now_ns()), now_ns()));
        }
        let released = now_ns();
        run.does(task, format!("gives back {}, way {}", guard.name(), (round >> 40) % 4));
        let outcome = match guard.unlock().await {
            Ok(Unlocked::Released) => Outcome::Ok,
            Ok(_) => Outcome::No,
            Err(_) => Outcome::Unknown,
        };
        let event = Event::new(Kind::ReleaseRet, name, holder).op(0, op).span(released, now_ns());
        recorder.record(event.outcome(outcome));
    }
}

/// Makes trouble of every kind that a single node can have without losing its data.
async fn trouble(server: &RedisServer, proxy: &Proxy, run: &Run) -> usize {
    let mut faults = 0;
    while !run.stop.load(Ordering::Relaxed) {
        match faults % 9 {
            0 => proxy.reset_all(),
            1 => proxy.latency(ms(0), ms(20), faults as u64),
            2 => proxy.reset(ConnectionKind::PubSub),
            3 => server.flush_scripts().unwrap(),
            4 => {
                server.pause().unwrap();
                tokio::time::sleep(ms(250)).await;
                server.resume().unwrap();
            }
            5 => {
                proxy.blackhole(Scope::Replies);
                tokio::time::sleep(ms(300)).await;
                proxy.heal().unwrap();
            }
            6 => {
                server.kill9();
                server.restart().unwrap();
            }
            7 => proxy.close_all(),
            _ => proxy.heal().unwrap(),
        }
        faults += 1;
        tokio::time::sleep(ms(200)).await;
    }
    proxy.heal().unwrap();
    faults
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valid_holds_exclude_under_every_fault_at_once() {
    everything_at_once(Face::Plain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn valid_holds_of_a_fair_lock_exclude_under_every_fault_at_once() {
    everything_at_once(Face::Fair).await;
}

async fn everything_at_once(face: Face) {
    let server = RedisServer::builder().appendonly(true).arg("appendfsync", "always").start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let recorder = Recorder::new("chaos", 0);
    let run = Arc::new(Run::default());
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    for n in 0..CLIENTS {
        let client = Client::builder()
            .url(proxy.url())
            .watchdog_lease(ms(1_500))
            .response_timeout(ms(400))
            .connect()
            .await
            .unwrap();
        for task in 0..TASKS {
            let id = u64::from(n * TASKS + task);
            tasks.push(tokio::spawn(work(face, client.clone(), recorder.clone(), id, run.clone())));
        }
        clients.push(client);
    }
    let timer = async {
        tokio::time::sleep(RUN_TIME).await;
        // A slow machine takes longer for enough of them.
        let begin = Instant::now();
        while run.grants.load(Ordering::Relaxed) <= GRANTS_MIN && begin.elapsed() < MORE_TIME {
            tokio::time::sleep(ms(50)).await;
        }
        run.stop.store(true, Ordering::Relaxed);
    };
    let (faults, ()) = tokio::join!(trouble(&server, &proxy, &run), timer);
    for (n, task) in tasks.into_iter().enumerate() {
        let end = tokio::time::timeout(SOON, task).await;
        end.unwrap_or_else(|_| {
            let stats: Vec<_> = clients.iter().map(Client::stats).collect();
            panic!("task {n} does not end, of {:#?}\nwith {stats:?}", run.does.lock().unwrap())
        })
        .unwrap();
        run.does.lock().unwrap().remove(&(n as u64));
    }
    soon("quiet", async {
        while clients.iter().any(|client| client.stats().names + client.stats().background_jobs > 0) {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    // What an unknown outcome may have left ends with its lease; token counters stay for ever by design.
    soon("a clean server", async {
        let left = || LeftoverCheck::new(&server, "chaos").look().unwrap();
        while left().iter().any(|what| !what.contains("redisson_lock_token")) {
            tokio::time::sleep(ms(50)).await;
        }
    })
    .await;
    // It is the end of what no answer told of.
    for n in 0..NAMES {
        let op = recorder.next_op_id();
        let free = Event::new(Kind::SeenFree, format!("chaos-{n}"), "").op(0, op);
        recorder.record(free.span(now_ns(), now_ns()));
    }
    let verdict = check(&recorder.events(), &CheckOptions::default());
    println!("{faults} faults: {verdict}");
    verdict.assert_ok();
    assert!(verdict.stats.grants > GRANTS_MIN, "too few grants to mean anything: {verdict}");
    assert!(faults > 20, "too few faults: {faults}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checker_sees_what_happens_without_a_lock() {
    let recorder = Recorder::new("control", 0);
    let mut tasks = Vec::new();
    for task in 0..4 {
        let recorder = recorder.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let (op, called) = (recorder.next_op_id(), now_ns());
                let holder = format!("{task}-{op}");
                let event =
                    Event::new(Kind::AcquireRet, "unguarded", holder.as_str()).op(0, op).span(called, called);
                tokio::time::sleep(ms(3)).await;
                recorder.record(event.outcome(Outcome::Ok).valid_until(called + 1_000_000_000));
                let released = now_ns();
                let event =
                    Event::new(Kind::ReleaseRet, "unguarded", holder).op(0, op).span(released, released);
                recorder.record(event.outcome(Outcome::Ok));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(check(&recorder.events(), &CheckOptions::default()).ids().contains(&CheckId::C1));
}
