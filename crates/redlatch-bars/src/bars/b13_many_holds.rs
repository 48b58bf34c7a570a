//! Bar 13: one process holds 10,000 locks with a lease of 10 s for three minutes. None is lost, a cycle of renewals (a third of the
//! lease) takes at most 100 round trips, and the process at most 5 % of one core. The control renews each lock by itself.

use std::time::{Duration, Instant};

use futures_util::stream::{StreamExt as _, TryStreamExt as _};
use redlatch::{Client, Guard};
use redlatch_testkit::process::ChildProcess;
use redlatch_testkit::proxy::Proxy;
use redlatch_testkit::server::RedisServer;

use crate::common::{Result, Verdict, orders, raw, runtime, worker};

const LOCKS: usize = 10_000;
const LEASE: Duration = Duration::from_secs(10);
const TIME: Duration = Duration::from_secs(180);
const CONTROL_TIME: Duration = Duration::from_secs(20);
const ROUND_TRIPS_MAX: f64 = 100.0;
const CORE_PERCENT_MAX: f64 = 5.0;
const READY_LIMIT: Duration = Duration::from_secs(120);
/// What `/proc` counts processor time in: 100 a second on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let server = RedisServer::start()?;
    let proxy = Proxy::start(&server.url())?;
    let batch = if control { "1" } else { "100" };
    let mut holder = worker(13, &[&proxy.url(), batch])?;
    holder.read_until("ready", READY_LIMIT)?;
    // A whole cycle, so that what belongs to the acquires is over.
    std::thread::sleep(LEASE / 3);
    let counts = || ["EVALSHA", "EXISTS", "CLIENT"].map(|command| proxy.count(command));
    let (begin, requests, spent) = (Instant::now(), proxy.with_log(|log| log.total()), processor(&holder)?);
    let before = counts();
    std::thread::sleep(if control { CONTROL_TIME } else { TIME });
    let (time, requests) = (begin.elapsed(), proxy.with_log(|log| log.total()) - requests);
    let percent = (processor(&holder)? - spent) / time.as_secs_f64() * 100.0;
    let cycles = time.as_secs_f64() / (LEASE / 3).as_secs_f64();
    let [scripts, looks, caching] = [0, 1, 2].map(|at| (counts()[at] - before[at]) as f64 / cycles);
    // `CLIENT CACHING` goes along with the look behind it, in one write.
    let round_trips = requests as f64 / cycles - caching;
    let (gone, least_ms) = look(&server)?;
    holder.write_line("report")?;
    let told: usize = holder.read_until("lost ", READY_LIMIT)?[5..].parse()?;
    let figure = format!(
        "{gone} of {LOCKS} gone from the server and {told} told as lost, at most 0; {round_trips:.1} round trips a cycle of at most \
         {ROUND_TRIPS_MAX} ({scripts:.1} renewals, {looks:.1} looks with which the server is asked to tell of changes); {percent:.2} % of a core of at most {CORE_PERCENT_MAX} %; least time to live {least_ms} ms; {} s",
        time.as_secs()
    );
    let met = gone == 0 && told == 0 && round_trips <= ROUND_TRIPS_MAX && percent <= CORE_PERCENT_MAX;
    Ok(Verdict::new(met, figure))
}

/// How many locks the server does not have, and the least time to live of the others.
fn look(server: &RedisServer) -> Result<(usize, i64)> {
    let mut raw = raw(&server.url())?;
    let mut pipe = redis::pipe();
    for n in 0..LOCKS {
        pipe.cmd("PTTL").arg(format!("bar13:{n}"));
    }
    let ttls_ms: Vec<i64> = pipe.query(&mut raw)?;
    let gone = ttls_ms.iter().filter(|ttl_ms| **ttl_ms <= 0).count();
    Ok((gone, ttls_ms.into_iter().filter(|ttl_ms| *ttl_ms > 0).min().unwrap_or(0)))
}

/// The seconds of processor time that a process has taken.
fn processor(process: &ChildProcess) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid()))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks =
        |at: usize| fields.get(at).ok_or("a short line in /proc")?.parse::<f64>().map_err(|e| e.to_string());
    Ok((ticks(11)? + ticks(12)?) / TICKS_PER_SECOND)
}

/// The process that holds.
pub(crate) fn work(args: &[String]) -> Result<()> {
    let [url, batch] = args else { return Err("url batch".into()) };
    let runtime = runtime(1)?;
    let settings = Client::builder().url(url).watchdog_lease(LEASE).renewal_batch(batch.parse()?);
    let guards: Vec<Guard> = runtime.block_on(async {
        let client = settings.connect().await?;
        let client = &client;
        futures_util::stream::iter(0..LOCKS)
            .map(|n| async move { client.lock(format!("bar13:{n}")).lock().await })
            .buffer_unordered(200)
            .try_collect()
            .await
    })?;
    println!("ready");
    for _ in orders() {
        println!("lost {}", guards.iter().filter(|guard| guard.loss().is_some()).count());
    }
    Ok(())
}
