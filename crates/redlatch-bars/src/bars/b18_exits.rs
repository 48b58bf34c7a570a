//! Bar 18: the ways in which a holder goes. A task that panics frees its lock within 100 ms; a killed process within its lease and
//! 50 ms on Redis, within 50 ms on the local engine; a guard that is dropped while its runtime ends, after that, or in a forked child
//! panics nowhere and takes no other hold away. 500 cases each. The control's holders have a lease alone, and a release that does not
//! know its process.

use std::os::unix::fs::DirBuilderExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redlatch::{Client, Lease, Lock, Wait};
use redlatch_testkit::server::RedisServer;
use redlatch_testkit::stall;

use crate::common::{LINE_LIMIT, Result, Verdict, lanes, late, load, ms, orders, raw, runtime, worker};

const CASES: usize = 500;
const CONTROL_CASES: usize = 20;
const LANES: usize = 4;
/// One at a time where a few milliseconds count.
const LOCAL_LANES: usize = 1;
/// A look that takes longer, before or after, shows a machine that is too busy: the case is repeated.
const LOOK_MAX: Duration = Duration::from_millis(10);
/// How many cases are tried for one that counts, before they are given up.
const TRIES_EACH: usize = 2;
const LEASE: Duration = Duration::from_millis(300);
const AT_ONCE: Duration = Duration::from_millis(100);
const KILLED_REDIS: Duration = Duration::from_millis(350);
const KILLED_LOCAL: Duration = Duration::from_millis(50);
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// One way to go: how often, how long the lock stayed at most, and how many cases were not as they have to be.
struct Way {
    name: &'static str,
    limit: Duration,
    stayed: Vec<Duration>,
    wrong: usize,
}

impl Way {
    fn of(name: &'static str, limit: Duration, parts: Vec<(Vec<Duration>, usize)>) -> Self {
        let wrong = parts.iter().map(|(_, wrong)| wrong).sum();
        Self { name, limit, stayed: parts.into_iter().flat_map(|(stayed, _)| stayed).collect(), wrong }
    }

    fn is_met(&self) -> bool {
        self.wrong == 0 && self.stayed.iter().all(|stayed| *stayed <= self.limit)
    }

    fn figure(&self) -> String {
        let late = self.stayed.iter().filter(|stayed| **stayed > self.limit).count();
        let most = self.stayed.iter().max().copied().unwrap_or_default();
        let (name, cases, wrong) = (self.name, self.stayed.len(), self.wrong);
        if self.limit == Duration::MAX {
            return format!("{name} {cases}: {wrong} wrong");
        }
        format!(
            "{name} {cases}: longest {} of at most {}, {late} late, {wrong} wrong",
            ms(most),
            ms(self.limit)
        )
    }
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    // Panics are what is tried; their texts would hide the figure.
    std::panic::set_hook(Box::new(|_| {}));
    let server = RedisServer::start()?;
    let url = server.url();
    let cases = if control { CONTROL_CASES } else { CASES } / LANES;
    let mut ways = vec![Way::of("panic", AT_ONCE, lanes(LANES, |lane| panics(&url, lane, cases, control))?)];
    if !control {
        ways.push(Way::of("kill -9 on Redis", KILLED_REDIS, lanes(LANES, |lane| killed(&url, lane, cases))?));
        let [free, granted] = killed_local()?;
        ways.push(Way::of("kill -9 on local:", KILLED_LOCAL, free));
        ways.push(Way::of("the same until a waiter has it", KILLED_LOCAL, granted));
        ways.push(Way::of(
            "drop as the runtime ends",
            AT_ONCE,
            lanes(LANES, |lane| shut_down(&url, lane, cases))?,
        ));
    }
    ways.push(Way::of("fork", Duration::MAX, lanes(LANES, |lane| forked(&url, lane, cases, control))?));
    let figure: Vec<String> = ways.iter().map(Way::figure).collect();
    let figure = format!("{}; {}", figure.join("; "), load());
    let all_counted = ways.iter().all(|way| way.stayed.len() == cases * LANES);
    Ok(Verdict::new(all_counted && ways.iter().all(Way::is_met), figure))
}

/// How long a key stays from `since` on.
fn stays(raw: &mut redis::Connection, name: &str, since: Instant) -> Result<Duration> {
    loop {
        let is_there: bool = redis::cmd("EXISTS").arg(name).query(raw)?;
        if !is_there {
            return Ok(late(since, Instant::now()));
        }
        if since.elapsed() > LINE_LIMIT {
            return Ok(since.elapsed());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

type Part = (Vec<Duration>, usize);

fn panics(url: &str, lane: usize, cases: usize, control: bool) -> Result<Part> {
    let runtime = runtime(1)?;
    let client = runtime.block_on(Client::connect(url))?;
    let (mut raw, mut stayed, mut wrong) = (raw(url)?, Vec::new(), 0);
    for case in 0..cases {
        let name = format!("bar18:panic:{lane}:{case}");
        let lock = client.lock(name.as_str());
        let (at, when) = std::sync::mpsc::channel();
        let task = runtime.spawn(async move {
            let guard = lock.lock_with_lease(Duration::from_secs(2)).await;
            if control {
                // A hold that nobody gives back: its lease is all that ends it.
                let _ = guard.map(redlatch::Guard::detach);
                let _ = at.send(Instant::now());
                panic!("on purpose");
            }
            let _ = at.send(Instant::now());
            panic!("on purpose, with {guard:?}");
        });
        let since = when.recv_timeout(LINE_LIMIT)?;
        wrong += usize::from(!runtime.block_on(task).is_err_and(|e| e.is_panic()));
        stayed.push(stays(&mut raw, &name, since)?);
    }
    Ok((stayed, wrong))
}

fn killed(url: &str, lane: usize, cases: usize) -> Result<Part> {
    let (mut raw, mut stayed) = (raw(url)?, Vec::new());
    for case in 0..cases {
        let name = format!("bar18:kill:{lane}:{case}");
        let mut holder = worker(18, &["hold", url, &name])?;
        holder.read_until("held", LINE_LIMIT)?;
        holder.kill9();
        stayed.push(stays(&mut raw, &name, Instant::now())?);
    }
    Ok((stayed, 0))
}

/// The command that starts the local engine lies beside this program.
fn engine() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("redlatch"))
}

/// Stops the engine of a directory, also after a failure.
struct StopEngine<'a>(&'a Path);

impl Drop for StopEngine<'_> {
    fn drop(&mut self) {
        let Ok(engine) = engine() else { return };
        let mut stop = std::process::Command::new(engine);
        stop.args(["engine", "stop"]).env("REDLATCH_URL", "local:bars").env("REDLATCH_RUNTIME_DIR", self.0);
        // What is left then ends by itself when its directory is gone.
        let _ = stop.output();
    }
}

/// How long until a look finds the lock free, and until a waiter is granted it.
fn killed_local() -> Result<[Vec<Part>; 2]> {
    let dir = redlatch_testkit::dir::for_sockets("redlatch-bars-")?;
    let place = dir.path().join("engine");
    // The engine uses no directory that others may look into.
    std::fs::DirBuilder::new().mode(0o700).create(&place)?;
    let text = place.to_string_lossy().into_owned();
    let runtime = runtime(2)?;
    // Starts the engine.
    let settings = || Client::builder().url("local:bars").engine_dir(&place);
    let _first = runtime.block_on(settings().engine_binary(engine()?).connect())?;
    let _engine = StopEngine(&place);
    let all = |waits: bool| {
        lanes(LOCAL_LANES, |lane| {
            let client = runtime.block_on(settings().engine_binary(engine()?).connect())?;
            let mut stayed = Vec::new();
            // Ends also where every case is void; there are then fewer than were asked for.
            for case in 0..CASES / LOCAL_LANES * TRIES_EACH {
                if stayed.len() == CASES / LOCAL_LANES {
                    break;
                }
                let name = format!("bar18:local:{waits}:{lane}:{case}");
                let mut holder = worker(18, &["hold", &format!("local:bars@{text}"), &name])?;
                holder.read_until("held", LINE_LIMIT)?;
                let lock: Lock = client.lock(name.as_str());
                let look = || -> Result<Duration> {
                    let begin = Instant::now();
                    runtime.block_on(lock.is_locked())?;
                    Ok(begin.elapsed())
                };
                let before = look()?;
                let waiter = waits.then(|| {
                    let lock = lock.clone();
                    runtime.spawn(async move { (lock.lock().await.map(drop), Instant::now()) })
                });
                holder.kill9();
                let since = Instant::now();
                let at = match waiter {
                    Some(waiter) => {
                        let ended =
                            runtime.block_on(async { tokio::time::timeout(LINE_LIMIT, waiter).await });
                        let (granted, at) = ended??;
                        granted?;
                        at
                    }
                    None => {
                        while runtime.block_on(lock.is_locked())? && since.elapsed() < LINE_LIMIT {
                            std::thread::sleep(LOOK_EVERY);
                        }
                        Instant::now()
                    }
                };
                if before.max(look()?) <= LOOK_MAX {
                    stayed.push(late(since, at));
                }
            }
            Ok((stayed, 0))
        })
    };
    Ok([all(false)?, all(true)?])
}

fn shut_down(url: &str, lane: usize, cases: usize) -> Result<Part> {
    let (mut raw, mut stayed, mut wrong) = (raw(url)?, Vec::new(), 0);
    for case in 0..cases {
        let (inner, other) = (format!("bar18:during:{lane}:{case}"), format!("bar18:after:{lane}:{case}"));
        let ended = catch_unwind(AssertUnwindSafe(|| -> Result<Instant> {
            let runtime = runtime(1)?;
            let client = runtime.block_on(Client::connect(url))?;
            let (during, after) = (client.lock(inner.as_str()), client.lock(other.as_str()));
            let (held, seen) = std::sync::mpsc::channel();
            runtime.spawn(async move {
                let guard = during.lock().await;
                let _ = held.send(guard.is_ok());
                std::future::pending::<()>().await;
            });
            let guard = runtime.block_on(after.lock())?;
            if !seen.recv_timeout(LINE_LIMIT)? {
                return Err("the task got no lock".into());
            }
            let since = Instant::now();
            // One guard goes with its task while the runtime ends, the other one when there is none any more.
            drop(runtime);
            drop(guard);
            Ok(since)
        }));
        let Ok(since) = ended else {
            wrong += 1;
            continue;
        };
        let since = since?;
        stayed.push(stays(&mut raw, &inner, since)?.max(stays(&mut raw, &other, since)?));
        stall::watch();
    }
    Ok((stayed, wrong))
}

fn forked(url: &str, lane: usize, cases: usize, control: bool) -> Result<Part> {
    let name = format!("bar18:fork:{lane}");
    let mut raw = raw(url)?;
    let mut parent = worker(18, &[if control { "fork-naive" } else { "fork" }, url, &name])?;
    parent.read_until("held", LINE_LIMIT)?;
    let owner: Vec<String> = redis::cmd("HKEYS").arg(&name).query(&mut raw)?;
    let (mut stayed, mut wrong) = (Vec::new(), 0);
    for _ in 0..cases {
        parent.write_line("fork")?;
        let said = parent.read_until("child", LINE_LIMIT)?;
        // The hold is the parent's, whatever its child has dropped.
        let now: Vec<String> = redis::cmd("HKEYS").arg(&name).query(&mut raw)?;
        wrong += usize::from(now != owner || said != "child ended well");
        stayed.push(Duration::ZERO);
    }
    Ok((stayed, wrong))
}

/// The processes that hold.
pub(crate) fn work(args: &[String]) -> Result<()> {
    let [how, url, name] = args else { return Err("how url name".into()) };
    let runtime = runtime(1)?;
    let mut settings = Client::builder();
    settings = match url.split_once('@') {
        Some((url, dir)) => settings.url(url).engine_dir(dir).engine_binary(engine()?),
        None => settings.url(url),
    };
    let client = runtime.block_on(settings.connect())?;
    let lock = client.lock(name.as_str());
    let acquire = lock.acquire().lease(Lease::RenewedEvery(LEASE)).wait(Wait::Forever);
    let mut guard = runtime.block_on(async { acquire.await })?;
    println!("held");
    for _ in orders() {
        match fork::fork()? {
            fork::Fork::Child => {
                let dropped = catch_unwind(AssertUnwindSafe(|| {
                    if how == "fork-naive" {
                        // Gives back what it finds in its memory, without asking whose it is.
                        let _ = raw(url)
                            .and_then(|mut raw| Ok(redis::cmd("DEL").arg(name).query::<()>(&mut raw)?));
                    }
                    drop(guard.take());
                }));
                std::process::exit(i32::from(dropped.is_err()));
            }
            fork::Fork::Parent(pid) => {
                let status = fork::waitpid(pid)?;
                println!("child ended {}", if status == 0 { "well" } else { "badly" });
            }
        }
    }
    Ok(())
}
