//! Bar 14: 10,000 waiters of one process for one name have one subscription, cost at most 2 requests a hand-off, are through within
//! 10 s and need at most 64 MiB. With 50 processes of 200 waiters a release is followed by at most 55 attempts. The control wakes all
//! waiters at every release.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use redlatch::Client;
use redlatch_testkit::process::ChildProcess;
use redlatch_testkit::proxy::Proxy;
use redlatch_testkit::server::RedisServer;

use crate::common::{Result, Verdict, late, orders, raw, raw_async, runtime, worker};

const NAME: &str = "bar14";
const CHANNEL: &str = "redisson_lock__channel:{bar14}";
const WAITERS: usize = 10_000;
const REQUESTS_PER_HANDOFF_MAX: f64 = 2.0;
const DRAINED_WITHIN: Duration = Duration::from_secs(10);
const MEMORY_KIB_MAX: u64 = 64 * 1024;
const PROCESSES: usize = 50;
const WAITERS_EACH: usize = 200;
const TRIES_PER_RELEASE_MAX: f64 = 55.0;
/// Longer than the turn in which a process passes the lock on among its own tasks, so that each release is told to all.
const HOLD: Duration = Duration::from_millis(20);
const HERD_TIME: Duration = Duration::from_secs(15);
const CONTROL_WAITERS: usize = 500;
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn run(control: bool) -> Result<Verdict> {
    if control {
        return naive();
    }
    let (one, is_one_met) = one_process()?;
    let (many, are_many_met) = many_processes()?;
    Ok(Verdict::new(is_one_met && are_many_met, format!("{one}; {many}")))
}

fn one_process() -> Result<(String, bool)> {
    let server = RedisServer::start()?;
    let proxy = Proxy::start(&server.url())?;
    let mut raw = raw(&server.url())?;
    let runtime = runtime(1)?;
    let client = runtime.block_on(Client::connect(&server.url()))?;
    let guard = runtime.block_on(client.lock(NAME).lock())?;
    let waiters = worker(14, &[&proxy.url(), "once", &WAITERS.to_string()])?;
    waiters.read_until("waiting", LIMIT)?;
    let subscriptions = subscriptions(&mut raw)?;
    proxy.clear_log();
    let begin = Instant::now();
    runtime.block_on(guard.unlock())?;
    waiters.read_until("drained", LIMIT)?;
    let drained = late(begin, Instant::now());
    let per_handoff = proxy.with_log(|log| log.total()) as f64 / WAITERS as f64;
    let memory_kib = memory_kib_most(&waiters)?;
    let is_met = subscriptions == 1
        && per_handoff <= REQUESTS_PER_HANDOFF_MAX
        && drained <= DRAINED_WITHIN
        && memory_kib <= MEMORY_KIB_MAX;
    let figure = format!(
        "{WAITERS} in one process: {subscriptions} subscription, {per_handoff:.2} requests a hand-off of at most \
         {REQUESTS_PER_HANDOFF_MAX}, drained in {:.2} s of at most 10 s, {:.1} MiB of at most 64 MiB",
        drained.as_secs_f64(),
        memory_kib as f64 / 1024.0
    );
    Ok((figure, is_met))
}

/// How many connections listen for releases; the first one may be under way.
fn subscriptions(raw: &mut redis::Connection) -> Result<i64> {
    let begin = Instant::now();
    loop {
        let (_, count): (String, i64) = redis::cmd("PUBSUB").arg("NUMSUB").arg(CHANNEL).query(raw)?;
        if count > 0 || begin.elapsed() > LIMIT {
            return Ok(count);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The most memory that a process has had at once.
fn memory_kib_most(process: &ChildProcess) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM in /proc")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn many_processes() -> Result<(String, bool)> {
    let server = RedisServer::start()?;
    let proxy = Proxy::start(&server.url())?;
    let runtime = runtime(1)?;
    let client = runtime.block_on(Client::connect(&server.url()))?;
    let guard = runtime.block_on(client.lock(NAME).lock())?;
    let count = WAITERS_EACH.to_string();
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        workers.push(worker(14, &[&proxy.url(), "again", &count])?);
    }
    for worker in &workers {
        worker.read_until("waiting", LIMIT)?;
    }
    let sha = redlatch::scripts::ACQUIRE.sha1().as_bytes();
    let (tries, releases) = runtime.block_on(async {
        let mut messages = redis::Client::open(server.url())?.get_async_pubsub().await?;
        messages.subscribe(CHANNEL).await?;
        proxy.clear_log();
        guard.unlock().await?;
        let releases = AtomicUsize::new(0);
        let count = messages.on_message().for_each(|_| async {
            releases.fetch_add(1, Ordering::Relaxed);
        });
        // The time is what ends this.
        let _ = tokio::time::timeout(HERD_TIME, count).await;
        let tries = proxy.with_log(|log| {
            log.requests()
                .filter(|request| request.args.get(1).is_some_and(|arg| arg.as_slice() == sha))
                .count()
        });
        Ok::<_, crate::common::Error>((tries, releases.into_inner()))
    })?;
    drop(workers);
    let per_release = tries as f64 / releases.max(1) as f64;
    let figure = format!(
        "{PROCESSES} processes of {WAITERS_EACH}: {per_release:.1} attempts a release of at most {TRIES_PER_RELEASE_MAX}, {releases} \
         releases"
    );
    Ok((figure, per_release <= TRIES_PER_RELEASE_MAX && releases >= 100))
}

/// Waiters that all look when a release is told.
fn naive() -> Result<Verdict> {
    let server = RedisServer::start()?;
    runtime(2)?.block_on(async {
        let mut connection = raw_async(&server.url()).await?;
        let mut messages = redis::Client::open(server.url())?.get_async_pubsub().await?;
        messages.subscribe(NAME).await?;
        let (told, _) = tokio::sync::broadcast::channel::<()>(1024);
        let () = redis::cmd("SET").arg(NAME).arg("first").query_async(&mut connection).await?;
        let tries = Arc::new(AtomicUsize::new(0));
        let mut waiters = Vec::new();
        for _ in 0..CONTROL_WAITERS {
            let (mut told, mut connection, tries) =
                (told.subscribe(), connection.clone(), Arc::clone(&tries));
            waiters.push(tokio::spawn(async move {
                loop {
                    tries.fetch_add(1, Ordering::Relaxed);
                    let mut take = redis::cmd("SET");
                    take.arg(NAME).arg(1).arg("NX");
                    if take.query_async::<Option<String>>(&mut connection).await?.is_some() {
                        break;
                    }
                    // One that missed messages looks as well.
                    let _ = told.recv().await;
                }
                let () = redis::cmd("DEL").arg(NAME).query_async(&mut connection).await?;
                redis::cmd("PUBLISH").arg(NAME).arg(1).query_async::<()>(&mut connection).await
            }));
        }
        let passing = tokio::spawn(messages.into_on_message().for_each(move |_| {
            let _ = told.send(());
            std::future::ready(())
        }));
        let () = redis::cmd("DEL").arg(NAME).query_async(&mut connection).await?;
        let () = redis::cmd("PUBLISH").arg(NAME).arg(1).query_async(&mut connection).await?;
        for waiter in waiters {
            tokio::time::timeout(LIMIT, waiter).await???;
        }
        passing.abort();
        let per_handoff = tries.load(Ordering::Relaxed) as f64 / CONTROL_WAITERS as f64;
        let figure = format!(
            "{CONTROL_WAITERS} waiters that are all woken: {per_handoff:.1} requests a hand-off of at most 2"
        );
        Ok(Verdict::new(per_handoff <= REQUESTS_PER_HANDOFF_MAX, figure))
    })
}

/// The process that waits: each task once, or again and again.
pub(crate) fn work(args: &[String]) -> Result<()> {
    let [url, how, count] = args else { return Err("url how count".into()) };
    let (count, again): (usize, bool) = (count.parse()?, how == "again");
    runtime(1)?.block_on(async {
        let client = Client::connect(url).await?;
        let lock = client.lock(NAME);
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for _ in 0..count {
            let (lock, waiting) = (lock.clone(), Arc::clone(&waiting));
            tasks.push(tokio::spawn(async move {
                let noted = AtomicBool::new(false);
                loop {
                    let mut acquire = pin!(lock.lock());
                    let guard = poll_fn(|cx| {
                        let polled = acquire.as_mut().poll(cx);
                        if polled.is_pending()
                            && !noted.swap(true, Ordering::Relaxed)
                            && waiting.fetch_add(1, Ordering::Relaxed) + 1 == count
                        {
                            println!("waiting");
                        }
                        match polled {
                            Poll::Ready(guard) => Poll::Ready(guard),
                            Poll::Pending => Poll::Pending,
                        }
                    })
                    .await?;
                    if !again {
                        return guard.unlock().await.map(drop);
                    }
                    tokio::time::sleep(HOLD).await;
                    guard.unlock().await?;
                }
            }));
        }
        for task in tasks {
            task.await??;
        }
        println!("drained");
        Ok::<_, crate::common::Error>(())
    })?;
    // The parent looks at this process before it ends it.
    orders().for_each(drop);
    Ok(())
}
