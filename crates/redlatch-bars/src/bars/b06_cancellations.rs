//! Bar 6: 10,000 futures are dropped at every await point, before, while and after their reply is under way. Nothing stays on the
//! server: no key, no place in a queue, no subscription, no renewal; 99 % is gone within a round trip and 100 ms. The control drops a
//! plain request.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redlatch::{Client, MultiLock};
use redlatch_testkit::cancel::{DropMoment, poll_n_then_drop_at};
use redlatch_testkit::proxy::Proxy;
use redlatch_testkit::server::RedisServer;

use crate::common::{Result, Verdict, late, ms, percentile, raw_async, runtime};

const CASES: usize = 10_400;
/// A few come to their end before they are dropped.
const DROPPED_MIN: usize = 10_000;
const CONTROL_CASES: usize = 160;
const LANES: usize = 16;
/// More polls than any of the operations needs.
const POLLS: usize = 8;
/// A future that waits for another holder is not woken again; this is then the moment of the drop.
const AT_LAST: Duration = Duration::from_millis(25);
/// The proxy delays each direction by up to 4 ms.
const ROUND_TRIP_MAX: Duration = Duration::from_millis(8);
const CLEAN_WITHIN: Duration = Duration::from_millis(108);
/// What is still there then stays.
const STAYS: Duration = Duration::from_secs(5);
/// No request may come in this time when all is done: a renewal of a hold that nobody has would.
const QUIET: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, PartialEq)]
enum Operation {
    TryLock,
    Lock,
    Fair,
    Read,
    Write,
    Multi,
    Unlock,
    Semaphore,
    Permit,
    Latch,
}

const OPERATIONS: [Operation; 10] = {
    use Operation::*;
    [TryLock, Lock, Fair, Read, Write, Multi, Unlock, Semaphore, Permit, Latch]
};

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let server = RedisServer::start()?;
    let proxy = Proxy::start(&server.url())?;
    let cases = if control { CONTROL_CASES } else { CASES };
    runtime(2)?.block_on(async {
        let client = Client::connect(&proxy.url()).await?;
        proxy.latency(Duration::ZERO, ROUND_TRIP_MAX / 2, 6);
        let lanes = (0..LANES).map(|lane| one_lane(&server, &proxy, &client, lane, cases / LANES, control));
        let (mut times, mut left, mut finished) = (Vec::new(), Vec::new(), 0);
        for lane in futures_util::future::join_all(lanes).await {
            let (some, stayed, ended) = lane?;
            times.extend(some);
            left.extend(stayed);
            finished += ended;
        }
        let requests = if control { 0 } else { requests_while_quiet(&proxy).await };
        let (dropped, p99) = (times.len(), percentile(&mut times, 99));
        let figure = format!(
            "{} of {dropped} cancellations left something ({}), {requests} requests afterwards, 99 % gone within {} of at most {}; \
             {finished} more ended before they were dropped",
            left.len(),
            left.first().map_or("nothing", String::as_str),
            ms(p99),
            ms(CLEAN_WITHIN)
        );
        let enough = control || dropped >= DROPPED_MIN;
        Ok(Verdict::new(left.is_empty() && requests == 0 && p99 <= CLEAN_WITHIN && enough, figure))
    })
}

/// Script calls that come when nobody holds or waits any more.
async fn requests_while_quiet(proxy: &Proxy) -> u64 {
    let calls = || proxy.count("EVALSHA") + proxy.count("EVAL");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = calls();
    tokio::time::sleep(QUIET).await;
    calls() - before
}

type Lane = (Vec<Duration>, Vec<String>, usize);

async fn one_lane(
    server: &RedisServer,
    proxy: &Proxy,
    client: &Client,
    lane: usize,
    cases: usize,
    control: bool,
) -> Result<Lane> {
    let other = Client::connect(&server.url()).await?;
    let mut raw = raw_async(&server.url()).await?;
    let mut naive = raw_async(&proxy.url()).await?;
    let (mut times, mut left, mut finished) = (Vec::new(), Vec::new(), 0);
    for case in 0..cases {
        // Each lane goes through all operations, numbers of polls and moments, shifted against the others.
        let at = case + lane * 7;
        let operation = OPERATIONS[at % OPERATIONS.len()];
        let polls = (at / OPERATIONS.len()) % POLLS;
        let moment = if (at / OPERATIONS.len() / POLLS).is_multiple_of(2) {
            DropMoment::AfterPoll
        } else {
            DropMoment::AtWakeUp
        };
        let name = format!("bar6:{lane}:{case}.");
        let holder = occupy(&other, &mut raw, operation, &name).await?;
        let work = if control {
            naive_work(&mut naive, &name)
        } else {
            work(client.clone(), operation, name.clone()).await?
        };
        let ended = tokio::time::timeout(AT_LAST, poll_n_then_drop_at(work, polls, moment)).await;
        let since = Instant::now();
        vacate(&mut raw, holder, operation, &name).await?;
        if matches!(ended, Ok(Some(()))) {
            finished += 1;
        } else {
            match clean_after(&mut raw, operation, &name, since).await? {
                Ok(time) => times.push(time),
                Err(what) => {
                    times.push(STAYS);
                    left.push(what);
                }
            }
        }
        let () = redis::cmd("DEL").arg(&name).query_async(&mut raw).await?;
    }
    Ok((times, left, finished))
}

enum Holder {
    None,
    Guard(redlatch::Guard),
    Write(redlatch::WriteGuard),
    Permit(redlatch::PermitGuard),
}

/// Makes the operation wait, if it is one that waits.
async fn occupy(
    other: &Client,
    raw: &mut MultiplexedConnection,
    operation: Operation,
    name: &str,
) -> Result<Holder> {
    Ok(match operation {
        Operation::TryLock | Operation::Unlock => Holder::None,
        Operation::Lock | Operation::Multi => Holder::Guard(other.lock(name).lock().await?),
        Operation::Fair => Holder::Guard(other.fair_lock(name).lock().await?),
        Operation::Read | Operation::Write => {
            Holder::Write(other.read_write_lock(name).write().lock().await?)
        }
        Operation::Semaphore => {
            let () = redis::cmd("SET").arg(name).arg(0).query_async(raw).await?;
            Holder::None
        }
        Operation::Permit => {
            other.permit_semaphore(name).set_if_absent(1).await?;
            Holder::Permit(other.permit_semaphore(name).acquire().await?)
        }
        Operation::Latch => {
            let () = redis::cmd("SET").arg(name).arg(1).query_async(raw).await?;
            Holder::None
        }
    })
}

/// Frees what was occupied, so that a request that is still under way may be granted.
async fn vacate(
    raw: &mut MultiplexedConnection,
    holder: Holder,
    operation: Operation,
    name: &str,
) -> Result<()> {
    match holder {
        Holder::None => {}
        Holder::Guard(guard) => drop(guard.unlock().await?),
        Holder::Write(guard) => drop(guard.unlock().await?),
        Holder::Permit(guard) => drop(guard.release().await?),
    }
    match operation {
        Operation::Semaphore => {
            let () = redis::cmd("INCR").arg(name).query_async(raw).await?;
            Ok(redis::cmd("PUBLISH").arg(format!("redisson_sc:{{{name}}}")).arg(1).query_async(raw).await?)
        }
        Operation::Latch => Ok(redis::cmd("DEL").arg(name).query_async(raw).await?),
        _ => Ok(()),
    }
}

async fn work(client: Client, operation: Operation, name: String) -> Result<BoxFuture<'static, ()>> {
    // A hold to give back is taken before, and its future gives it back alone.
    let guard = match operation {
        Operation::Unlock => Some(client.lock(name.as_str()).lock().await?),
        _ => None,
    };
    Ok(Box::pin(async move {
        match operation {
            Operation::TryLock => drop(client.lock(name).try_lock().await),
            Operation::Lock => drop(client.lock(name).lock().await),
            Operation::Fair => drop(client.fair_lock(name).lock().await),
            Operation::Read => drop(client.read_write_lock(name).read().lock().await),
            Operation::Write => drop(client.read_write_lock(name).write().lock().await),
            Operation::Multi => {
                let second = format!("{name}second");
                if let Ok(both) = MultiLock::new([client.lock(name), client.lock(second)]) {
                    drop(both.lock().await);
                }
            }
            Operation::Unlock => {
                if let Some(guard) = guard {
                    let _ = guard.unlock().await;
                }
            }
            Operation::Semaphore => {
                let semaphore = client.semaphore(name);
                if semaphore.acquire(1).await.is_ok() {
                    let _ = semaphore.release(1).await;
                }
            }
            Operation::Permit => drop(client.permit_semaphore(name).acquire().await),
            Operation::Latch => drop(client.count_down_latch(name).wait().await),
        }
    }))
}

/// A request that nobody looks after when its future is dropped.
fn naive_work(connection: &mut MultiplexedConnection, name: &str) -> BoxFuture<'static, ()> {
    let (mut connection, name) = (connection.clone(), format!("{name}naive"));
    Box::pin(async move {
        let mut take = redis::cmd("SET");
        take.arg(&name).arg(1).arg("NX").arg("PX").arg(30_000);
        if take.query_async::<Option<String>>(&mut connection).await.is_ok_and(|taken| taken.is_some()) {
            let _ = redis::cmd("DEL").arg(&name).query_async::<()>(&mut connection).await;
        }
    })
}

/// How long it took until the server had nothing left of it, or what stayed.
async fn clean_after(
    raw: &mut MultiplexedConnection,
    operation: Operation,
    name: &str,
    since: Instant,
) -> Result<std::result::Result<Duration, String>> {
    // What the semaphore itself is, apart from those who use it.
    let rest = match operation {
        Operation::Semaphore | Operation::Permit => Some("1"),
        _ => None,
    };
    loop {
        let mut keys: Vec<String> = redis::cmd("KEYS").arg(format!("*{name}*")).query_async(raw).await?;
        if let Some(rest) = rest {
            let count: Option<String> = redis::cmd("GET").arg(name).query_async(raw).await?;
            if count.as_deref() == Some(rest) {
                keys.retain(|key| key != name);
            }
        }
        let channels: Vec<String> =
            redis::cmd("PUBSUB").arg("CHANNELS").arg(format!("*{name}*")).query_async(raw).await?;
        if keys.is_empty() && channels.is_empty() {
            return Ok(Ok(late(since, Instant::now())));
        }
        if since.elapsed() > STAYS {
            return Ok(Err(format!("keys {keys:?}, channels {channels:?}")));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
