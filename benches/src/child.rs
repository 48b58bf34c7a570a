//! The other processes of a benchmark. They are told what to do on their standard input, line by line, and answer on
//! their standard output.

use std::{
    io::{BufRead as _, Write as _},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use redlatch::{Client, Lock};
use serde::{Deserialize, Serialize};

use crate::{
    bed,
    measure::{self, Stop},
    outcome::Outcome,
    proc::clock_ns,
    sections::pairs,
};

/// How many locks are taken at a time when many are to be held.
const ACQUIRES_AT_ONCE: usize = 64;

/// What a child is to do.
pub(crate) enum Job {
    /// Compete for one lock with some tasks, with a pause between unlocking and locking.
    Compete { url: String, name: String, tasks: usize, pause: Duration },
    /// Wait for one lock once for each line, and say when it came.
    Receive { url: String, name: String },
    /// Take many locks and hold them.
    Hold { url: String, count: usize, lease: Duration },
    /// Lock and unlock with nothing beside it: for a profiler.
    Pairs { url: String, tasks: usize, time: Duration },
}

impl Job {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Outcome<Job> {
        let args: Vec<String> = args.collect();
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        Ok(match words[..] {
            ["compete", url, name, tasks, pause_us] => Job::Compete {
                url: url.into(),
                name: name.into(),
                tasks: tasks.parse()?,
                pause: Duration::from_micros(pause_us.parse()?),
            },
            ["receive", url, name] => Job::Receive { url: url.into(), name: name.into() },
            ["hold", url, count, lease_ms] => Job::Hold {
                url: url.into(),
                count: count.parse()?,
                lease: Duration::from_millis(lease_ms.parse()?),
            },
            ["pairs", url, tasks, time_ms] => Job::Pairs {
                url: url.into(),
                tasks: tasks.parse()?,
                time: Duration::from_millis(time_ms.parse()?),
            },
            _ => return Err("a child without a job that it knows".into()),
        })
    }
}

/// What a competitor got.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) acquisitions: u64,
    /// How long each acquisition was waited for.
    pub(crate) wait_us_p50: u64,
    pub(crate) wait_us_p99: u64,
    pub(crate) wait_us_max: u64,
}

pub(crate) async fn run(job: Job) -> Outcome<()> {
    match job {
        Job::Compete { url, name, tasks, pause } => compete(&url, &name, tasks, pause).await,
        Job::Receive { url, name } => receive(&url, &name).await,
        Job::Hold { url, count, lease } => hold(&url, count, lease).await,
        Job::Pairs { url, tasks, time } => {
            let client = Client::connect(&url).await?;
            let locks = bed::locks(&client, "pairs", tasks);
            let rate = measure::run(tasks, time, |at, stop| pairs(locks[at].clone(), stop)).await?;
            say(&format!("{:.0} pairs/s", rate.per_second()))
        }
    }
}

fn say(line: &str) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The next line; `None` when the process that started this one is done with it. Blocks the main thread, which drives nothing.
fn hear() -> Outcome<Option<String>> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}

async fn compete(url: &str, name: &str, tasks: usize, pause: Duration) -> Outcome<()> {
    let client = Client::connect(url).await?;
    let lock = client.lock(name);
    say("ready")?;
    hear()?;
    let stop = Stop::default();
    let running: Vec<_> =
        (0..tasks).map(|_| tokio::spawn(waits(lock.clone(), pause, stop.clone()))).collect();
    hear()?;
    stop.set();
    let mut all = Histogram::<u64>::new(3)?;
    for task in running {
        all.add(task.await??)?;
    }
    let share = Share {
        acquisitions: all.len(),
        wait_us_p50: all.value_at_quantile(0.5),
        wait_us_p99: all.value_at_quantile(0.99),
        wait_us_max: all.max(),
    };
    say(&serde_json::to_string(&share)?)?;
    client.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

async fn waits(lock: Lock, pause: Duration, stop: Stop) -> Outcome<Histogram<u64>> {
    let mut waits = Histogram::<u64>::new_with_max(60_000_000, 3)?;
    while !stop.is_set() {
        let asked = Instant::now();
        let guard = lock.lock().await?;
        waits.saturating_record(asked.elapsed().as_micros() as u64);
        guard.unlock().await?;
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
    Ok(waits)
}

async fn receive(url: &str, name: &str) -> Outcome<()> {
    let client = Client::connect(url).await?;
    let lock = client.lock(name);
    say("ready")?;
    while hear()?.is_some() {
        let lock = lock.clone();
        // On a worker, where the connection is driven: a real waiter would not be on the main thread either.
        let granted_ns = tokio::spawn(async move {
            let guard = lock.lock().await?;
            let granted_ns = clock_ns();
            guard.unlock().await?;
            Outcome::Ok(granted_ns)
        });
        say(&granted_ns.await??.to_string())?;
    }
    Ok(())
}

async fn hold(url: &str, count: usize, lease: Duration) -> Outcome<()> {
    let client = Client::builder().url(url).watchdog_lease(lease).connect().await?;
    // Connections, threads and buffers come into being with the first use, and belong to no lock.
    drop(take(&client, "warm", ACQUIRES_AT_ONCE).await?);
    while client.stats().names > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    say("ready")?;
    hear()?;
    let guards = take(&client, "held", count).await?;
    say("held")?;
    hear()?;
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    say(&format!("lost {lost}"))?;
    client.shutdown(Duration::from_secs(10)).await;
    Ok(())
}

/// Takes many locks and keeps nothing of them but the guards.
async fn take(client: &Client, prefix: &str, count: usize) -> Outcome<Vec<redlatch::Guard>> {
    let mut guards = Vec::with_capacity(count);
    let locks = |from: usize| (from..count).step_by(ACQUIRES_AT_ONCE);
    let mut running = Vec::with_capacity(ACQUIRES_AT_ONCE);
    for from in 0..ACQUIRES_AT_ONCE {
        let mine: Vec<Lock> = locks(from).map(|index| client.lock(bed::name(prefix, index))).collect();
        running.push(tokio::spawn(async move {
            let mut guards = Vec::with_capacity(mine.len());
            for lock in mine {
                guards.push(lock.lock().await?);
            }
            Outcome::Ok(guards)
        }));
    }
    for task in running {
        guards.append(&mut task.await??);
    }
    Ok(guards)
}
