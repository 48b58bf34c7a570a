//! Bar 15: fair locks grant in the order of asking: 100 runs of 200 waiters, of which 10 % are cancelled and 5 % killed. A dead waiter at
//! the head holds the others up for its time-out at most. A client whose wall clock is ten minutes off costs nobody a place or a
//! second. The control is a lock that is not fair.

use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redlatch::{Client, Guard};
use redlatch_testkit::process::ChildProcess;
use redlatch_testkit::server::{Clock, RedisServer};
use rustix::time::{ClockId, clock_gettime};

use crate::common::{LINE_LIMIT, Result, Verdict, orders, raw_async, runtime, worker};

const RUNS: usize = 100;
/// So many runs go on at once, because a dead head costs its time-out in each.
const RUNS_AT_ONCE: usize = 25;
const WAITERS: usize = 200;
const PROCESSES: usize = 5;
/// Each tenth waiter is cancelled, each twentieth is in a process that is killed.
const CANCELLED: (usize, usize) = (10, 3);
const KILLED: (usize, usize) = (20, 7);
/// How long the place of a dead waiter counts, and what a look may be late by.
const DEAD_HEAD_MAX: Duration = Duration::from_millis(30_000 + 1_500);
const CLOCK_STEPS_MS: [i64; 2] = [600_000, -600_000];
const CLOCK_WAITERS: usize = 40;
const CLOCK_STALL_MAX: Duration = Duration::from_secs(1);
/// How long a run may take, with several dead heads.
const RUN_LIMIT: Duration = Duration::from_secs(240);

/// What the grants of some runs were like.
#[derive(Default)]
struct Seen {
    runs: usize,
    grants: usize,
    inversions: usize,
    missing: usize,
    longest: Duration,
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let server = RedisServer::start()?;
    let runtime = runtime(2)?;
    if control {
        let workers = start(&server.url(), "plain", PROCESSES)?;
        let seen = runtime.block_on(batch(&server, &workers, 0..2, false))?;
        let (inversions, grants) = (seen.inversions, seen.grants);
        let figure =
            format!("{inversions} inversions in {grants} grants of a lock that is not fair, at most 0");
        return Ok(Verdict::new(inversions == 0, figure));
    }
    let workers = start(&server.url(), "fair", PROCESSES)?;
    let mut seen = Seen::default();
    for first in (0..RUNS).step_by(RUNS_AT_ONCE) {
        let part = runtime.block_on(batch(&server, &workers, first..first + RUNS_AT_ONCE, true))?;
        seen.add(part);
    }
    drop(workers);
    let clock = runtime.block_on(off_clocks(&server))?;
    let figure = format!(
        "{} inversions and {} missing in {} runs of {WAITERS} waiters ({} grants), longest time behind a dead head {:.1} s of at most \
         31.5 s; clocks 10 min off: {} inversions, {} missing, longest gap {:.3} s of at most 1 s",
        seen.inversions,
        seen.missing,
        seen.runs,
        seen.grants,
        seen.longest.as_secs_f64(),
        clock.inversions,
        clock.missing,
        clock.longest.as_secs_f64()
    );
    let kept_order = seen.inversions + seen.missing + clock.inversions + clock.missing == 0;
    let in_time = seen.longest <= DEAD_HEAD_MAX && clock.longest <= CLOCK_STALL_MAX;
    Ok(Verdict::new(kept_order && in_time && seen.runs == RUNS, figure))
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.runs += other.runs;
        self.grants += other.grants;
        self.inversions += other.inversions;
        self.missing += other.missing;
        self.longest = self.longest.max(other.longest);
    }
}

/// A process with waiters, which several runs tell what to do.
struct Worker(Mutex<ChildProcess>);

impl Worker {
    fn tell(&self, line: &str) -> Result<()> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).write_line(line)?)
    }
}

fn start(url: &str, kind: &str, count: usize) -> Result<Vec<Worker>> {
    (0..count).map(|_| Ok(Worker(Mutex::new(worker(15, &[url, kind])?)))).collect()
}

async fn batch(
    server: &RedisServer,
    workers: &[Worker],
    runs: std::ops::Range<usize>,
    fair: bool,
) -> Result<Seen> {
    let all = runs.map(|number| one_run(server, workers, number, fair));
    let mut seen = Seen::default();
    for one in futures_util::future::join_all(all).await {
        seen.add(one?);
    }
    Ok(seen)
}

/// Waiters ask one after the other, each when the server shows the one before it.
async fn one_run(server: &RedisServer, workers: &[Worker], number: usize, fair: bool) -> Result<Seen> {
    let name = format!("bar15:{number}");
    let is = |waiter: usize, (of, at): (usize, usize)| fair && waiter % of == at;
    let mut raw = raw_async(&server.url()).await?;
    let first = first_hold(server, &name, fair).await?;
    let victims = start(&server.url(), "fair", usize::from(fair))?;
    for waiter in 0..WAITERS {
        let process = if is(waiter, KILLED) { &victims[0] } else { &workers[waiter % workers.len()] };
        process.tell(&format!("ask {name} {waiter}"))?;
        asked(&mut raw, &name, waiter + 1, fair).await?;
    }
    let mut expected: Vec<usize> = Vec::new();
    for waiter in 0..WAITERS {
        if is(waiter, CANCELLED) {
            workers[waiter % workers.len()].tell(&format!("cancel {name} {waiter}"))?;
        } else if !is(waiter, KILLED) {
            expected.push(waiter);
        }
    }
    for victim in victims {
        victim.0.lock().unwrap_or_else(PoisonError::into_inner).kill9();
    }
    first.unlock().await?;
    judge(&mut raw, &name, &expected).await
}

async fn first_hold(server: &RedisServer, name: &str, fair: bool) -> Result<Guard> {
    let client = Client::connect(&server.url()).await?;
    Ok(if fair { client.fair_lock(name).lock().await? } else { client.lock(name).lock().await? })
}

/// Until the server shows so many waiters; those of a lock that is not fair it does not know, so they say it themselves.
async fn asked(raw: &mut MultiplexedConnection, name: &str, count: usize, fair: bool) -> Result<()> {
    let begin = Instant::now();
    loop {
        let seen: usize = if fair {
            redis::cmd("LLEN").arg(format!("redisson_lock_queue:{{{name}}}")).query_async(raw).await?
        } else {
            redis::cmd("GET")
                .arg(format!("asked:{name}"))
                .query_async::<Option<usize>>(raw)
                .await?
                .unwrap_or(0)
        };
        if seen >= count {
            return Ok(());
        }
        if begin.elapsed() > LINE_LIMIT {
            return Err(format!("{name} has {seen} waiters and not {count}").into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Reads who was granted the lock, in the order in which the holders wrote it down.
async fn judge(raw: &mut MultiplexedConnection, name: &str, expected: &[usize]) -> Result<Seen> {
    let begin = Instant::now();
    let lines = loop {
        let lines: Vec<String> =
            redis::cmd("LRANGE").arg(format!("grants:{name}")).arg(0).arg(-1).query_async(raw).await?;
        if lines.len() >= expected.len() || begin.elapsed() > RUN_LIMIT {
            break lines;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let mut grants: Vec<(usize, Duration)> = Vec::new();
    for line in &lines {
        let (waiter, at_us) = line.split_once(' ').ok_or("a grant without a time")?;
        grants.push((waiter.parse()?, Duration::from_micros(at_us.parse()?)));
    }
    let inversions = grants.windows(2).filter(|pair| pair[0].0 >= pair[1].0).count();
    let missing =
        expected.iter().filter(|waiter| !grants.iter().any(|(granted, _)| granted == *waiter)).count();
    let longest = grants.windows(2).map(|pair| pair[1].1.saturating_sub(pair[0].1)).max().unwrap_or_default();
    Ok(Seen { runs: 1, grants: grants.len(), inversions, missing, longest })
}

/// Two processes ask in turn, and the wall clock of one of them is wrong.
async fn off_clocks(server: &RedisServer) -> Result<Seen> {
    let mut seen = Seen::default();
    for step_ms in CLOCK_STEPS_MS {
        let dir = tempfile::tempdir()?;
        let clock = Clock::new(dir.path())?;
        clock.set(step_ms, None)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "15", &server.url(), "fair"]);
        clock.preload(&mut command);
        let wrong = Worker(Mutex::new(ChildProcess::spawn(command)?));
        let right = Worker(Mutex::new(worker(15, &[&server.url(), "fair"])?));
        let mut raw = raw_async(&server.url()).await?;
        let name = format!("bar15:clock:{step_ms}");
        let first = first_hold(server, &name, true).await?;
        for waiter in 0..CLOCK_WAITERS {
            if waiter % 2 == 0 { &wrong } else { &right }.tell(&format!("ask {name} {waiter}"))?;
            asked(&mut raw, &name, waiter + 1, true).await?;
        }
        first.unlock().await?;
        seen.add(judge(&mut raw, &name, &(0..CLOCK_WAITERS).collect::<Vec<_>>()).await?);
    }
    Ok(seen)
}

/// The time of the boot clock, which all processes share, whatever their wall clock says.
fn boot_us() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

/// A process that asks and cancels as it is told.
pub(crate) fn work(args: &[String]) -> Result<()> {
    let [url, kind] = args else { return Err("url kind".into()) };
    let runtime = runtime(1)?;
    let client = runtime.block_on(Client::connect(url))?;
    let raw = runtime.block_on(raw_async(url))?;
    let tasks = Arc::new(Mutex::new(HashMap::new()));
    for order in orders() {
        let mut words = order.split(' ').map(str::to_owned);
        let (Some(what), Some(name), Some(waiter)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let key = (name.clone(), waiter.clone());
        let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if what == "cancel" {
            if let Some(task) = tasks.remove(&key) {
                tokio::task::JoinHandle::<Result<()>>::abort(&task);
            }
            continue;
        }
        let (client, mut raw, fair) = (client.clone(), raw.clone(), kind == "fair");
        let task = runtime.spawn(async move {
            let (fair_lock, plain) = (client.fair_lock(name.as_str()), client.lock(name.as_str()));
            if !fair {
                let () = redis::cmd("INCR").arg(format!("asked:{name}")).query_async(&mut raw).await?;
            }
            let guard: Guard = if fair { fair_lock.lock().await? } else { plain.lock().await? };
            let line = format!("{waiter} {}", boot_us());
            let () =
                redis::cmd("RPUSH").arg(format!("grants:{name}")).arg(line).query_async(&mut raw).await?;
            guard.unlock().await?;
            Ok(())
        });
        tasks.insert(key, task);
    }
    Ok(())
}
