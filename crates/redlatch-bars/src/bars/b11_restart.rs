//! Bar 11: a server that syncs every write is killed and comes back within half a lease, 50 times. No lock is lost, no waiter gets an
//! error, and waiters are granted something within 500 ms after the port is open. The control is a server that keeps nothing.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redlatch::{Client, Guard};
use redlatch_testkit::server::RedisServer;
use tokio::sync::Notify;

use crate::common::{Random, Result, Verdict, late, ms, percentile, raw, runtime};

const RESTARTS: usize = 50;
const CONTROL_RESTARTS: usize = 3;
const HOLDERS: usize = 20;
const CLIENTS: usize = 4;
const TASKS: usize = 3;
const LEASE: Duration = Duration::from_secs(6);
const FIRST_GRANT_WITHIN: Duration = Duration::from_millis(500);
const GRANT_LIMIT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Run {
    end: AtomicBool,
    /// When each client was last granted something.
    last_grant: Mutex<[Option<Instant>; CLIENTS]>,
    granted: Notify,
    errors: AtomicUsize,
    release_errors: AtomicUsize,
    grants: AtomicUsize,
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let server = RedisServer::builder().appendonly(!control).start()?;
    let runtime = runtime(2)?;
    runtime.block_on(measure(&server, if control { CONTROL_RESTARTS } else { RESTARTS }))
}

async fn measure(server: &RedisServer, restarts: usize) -> Result<Verdict> {
    let holder = Client::builder().url(server.url()).watchdog_lease(LEASE).connect().await?;
    let mut guards: Vec<Guard> = Vec::new();
    for n in 0..HOLDERS {
        guards.push(holder.lock(format!("bar11:held:{n}")).lock().await?);
    }
    let before = fields(server)?;
    let run = Arc::new(Run::default());
    let mut tasks = Vec::new();
    for number in 0..CLIENTS {
        let client = Client::connect(&server.url()).await?;
        // Two names are everybody's, one is the client's own.
        for task in 0..TASKS {
            let name = if task == 0 { format!("bar11:own:{number}") } else { format!("bar11:shared:{task}") };
            tasks.push(tokio::spawn(use_lock(Arc::clone(&run), client.lock(name), number)));
        }
    }
    let mut random = Random::new(11);
    let (mut first_grants, mut lost, mut longest_down) = (Vec::new(), 0, Duration::ZERO);
    for _ in 0..restarts {
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        let killed = Instant::now();
        let opened = tokio::task::block_in_place(|| restart(server))?;
        longest_down = longest_down.max(killed.elapsed());
        let deadline = tokio::time::Instant::now() + GRANT_LIMIT;
        for client in 0..CLIENTS {
            first_grants.push(first_grant(&run, client, opened, deadline).await);
        }
        let after = fields(server)?;
        lost += before.iter().zip(&after).filter(|(before, after)| before != after).count();
    }
    run.end.store(true, Ordering::SeqCst);
    for task in tasks {
        tokio::time::timeout(GRANT_LIMIT, task).await??;
    }
    lost += guards.iter().filter(|guard| guard.loss().is_some()).count();
    if longest_down > LEASE / 2 {
        return Err(format!("the server was down for {longest_down:?}, longer than half a lease").into());
    }
    let p99 = percentile(&mut first_grants, 99);
    let errors = run.errors.load(Ordering::Relaxed);
    let figure = format!(
        "{lost} holds of {HOLDERS} lost in {restarts} restarts, {errors} errors of waiters ({} of releases), first grant p99 {} of \
         at most {} after the port is open, {} grants",
        run.release_errors.load(Ordering::Relaxed),
        ms(p99),
        ms(FIRST_GRANT_WITHIN),
        run.grants.load(Ordering::Relaxed),
    );
    Ok(Verdict::new(lost == 0 && errors == 0 && p99 <= FIRST_GRANT_WITHIN, figure))
}

/// Who holds each lock, as the server has it.
fn fields(server: &RedisServer) -> Result<Vec<Vec<String>>> {
    let mut raw = raw(&server.url())?;
    let all = (0..HOLDERS).map(|n| redis::cmd("HKEYS").arg(format!("bar11:held:{n}")).query(&mut raw));
    Ok(all.collect::<redis::RedisResult<_>>()?)
}

/// Returns when the port was open again.
fn restart(server: &RedisServer) -> Result<Instant> {
    server.kill9();
    let port = server.port();
    let prober = std::thread::spawn(move || {
        let begin = Instant::now();
        while begin.elapsed() < GRANT_LIMIT {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Instant::now()
    });
    server.restart()?;
    prober.join().map_err(|_| "the prober panicked".into())
}

async fn first_grant(run: &Run, client: usize, opened: Instant, deadline: tokio::time::Instant) -> Duration {
    loop {
        let granted = run.granted.notified();
        let last = run.last_grant.lock().unwrap_or_else(PoisonError::into_inner)[client];
        if let Some(last) = last.filter(|last| *last > opened) {
            return late(opened, last);
        }
        if tokio::time::timeout_at(deadline, granted).await.is_err() {
            return GRANT_LIMIT;
        }
    }
}

async fn use_lock(run: Arc<Run>, lock: redlatch::Lock, number: usize) {
    while !run.end.load(Ordering::SeqCst) {
        match lock.lock().await {
            Ok(guard) => {
                run.grants.fetch_add(1, Ordering::Relaxed);
                run.last_grant.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(Instant::now());
                run.granted.notify_waiters();
                tokio::time::sleep(Duration::from_millis(5)).await;
                if guard.unlock().await.is_err() {
                    run.release_errors.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(e) => {
                eprintln!("a waiter: {e}");
                run.errors.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
