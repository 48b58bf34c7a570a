//! Bar 4: the server forgets its locks (`FLUSHALL`, an empty restart, the promotion of a replica that lagged). Every holder is told
//! within a third of its lease and 500 ms, and fencing tokens go on above the old ones. The control is a holder that only its renewal
//! tells, with a long lease, and a token that is counted from what is stored.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redlatch::{Client, FencedGuard};
use redlatch_testkit::server::RedisServer;
use redlatch_testkit::topology::MasterReplica;

use crate::common::{Random, Result, Verdict, late, ms, percentile, raw, raw_async, runtime};

const RUNS: usize = 34;
const CONTROL_RUNS: usize = 5;
const HOLDERS: usize = 8;
const LEASE: Duration = Duration::from_secs(3);
/// So long the control's holder goes without a renewal.
const CONTROL_LEASE: Duration = Duration::from_secs(60);
const TOLD_WITHIN: Duration = Duration::from_millis(1_500);
/// What comes later than this counts as never.
const NEVER: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Seen {
    told: Vec<Duration>,
    holds: usize,
    tokens_low: usize,
}

/// One server or several, and how they lose what they know.
trait Rig {
    fn url(&self) -> String;
    /// Before the locks are taken.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }
    fn lose(&self) -> Result<()>;
    /// The server that counts after the loss, for a look past the library.
    fn is_gone(&self, name: &str) -> Result<bool>;
}

struct Flush(RedisServer);
struct EmptyRestart(RedisServer);
struct Lagging(MasterReplica);

fn exists(server: &RedisServer, name: &str) -> Result<bool> {
    Ok(redis::cmd("EXISTS").arg(name).query::<i64>(&mut raw(&server.url())?)? == 1)
}

impl Rig for Flush {
    fn url(&self) -> String {
        self.0.url()
    }
    fn lose(&self) -> Result<()> {
        Ok(self.0.flush_all()?)
    }
    fn is_gone(&self, name: &str) -> Result<bool> {
        Ok(!exists(&self.0, name)?)
    }
}

impl Rig for EmptyRestart {
    fn url(&self) -> String {
        self.0.url()
    }
    fn lose(&self) -> Result<()> {
        Ok(self.0.restart_empty()?)
    }
    fn is_gone(&self, name: &str) -> Result<bool> {
        Ok(!exists(&self.0, name)?)
    }
}

impl Lagging {
    fn next(&self) -> Result<usize> {
        Ok((self.0.master()? + 1) % self.0.nodes().len())
    }
}

impl Rig for Lagging {
    fn url(&self) -> String {
        self.0.url()
    }
    fn prepare(&self) -> Result<()> {
        Ok(self.0.block_replication(self.next()?)?)
    }
    fn lose(&self) -> Result<()> {
        let next = self.next()?;
        self.0.promote(next)?;
        Ok(self.0.release_replication(next)?)
    }
    fn is_gone(&self, name: &str) -> Result<bool> {
        Ok(!exists(self.0.node(self.0.master()?), name)?)
    }
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let runtime = runtime(2)?;
    let mut seen = Seen::default();
    let mut counter = "tokens of the server".to_owned();
    let mut counter_restarted = false;
    if control {
        let rig = Flush(RedisServer::start()?);
        let mut raw = raw(&rig.url())?;
        let before: i64 = redis::cmd("INCRBY").arg("naive-token").arg(7).query(&mut raw)?;
        runtime.block_on(repeat(&rig, CONTROL_RUNS, CONTROL_LEASE, Duration::from_secs(2), &mut seen))?;
        let after: i64 = redis::cmd("INCR").arg("naive-token").query(&mut raw)?;
        counter_restarted = after <= before;
        counter = format!("a counted token goes from {before} to {after}");
    } else {
        let (flush, restart) = (Flush(RedisServer::start()?), EmptyRestart(RedisServer::start()?));
        let lagging = Lagging(MasterReplica::start()?);
        for rig in [&flush as &dyn Rig, &restart, &lagging] {
            runtime.block_on(repeat(rig, RUNS, LEASE, NEVER, &mut seen))?;
        }
    }
    let in_time = seen.told.iter().filter(|told| **told <= TOLD_WITHIN).count();
    let (most, p99) = (seen.told.iter().max().copied().unwrap_or_default(), percentile(&mut seen.told, 99));
    let figure = format!(
        "{in_time} of {} holders told within {TOLD_WITHIN:?} (p99 {}, longest {}), {} tokens below an older one, {counter}",
        seen.holds,
        ms(p99),
        ms(most),
        seen.tokens_low,
    );
    Ok(Verdict::new(in_time == seen.holds && seen.tokens_low == 0 && !counter_restarted, figure))
}

/// A holder that asks the server when its renewal is due, and at no other time.
async fn next_renewal_fails(mut connection: MultiplexedConnection, key: &str, lease: Duration) {
    loop {
        tokio::time::sleep(lease / 3).await;
        let mut renewal = redis::cmd("PEXPIRE");
        renewal.arg(key).arg(60_000);
        if let Ok(0) = renewal.query_async::<i64>(&mut connection).await {
            return;
        }
    }
}

async fn repeat(rig: &dyn Rig, runs: usize, lease: Duration, wait: Duration, seen: &mut Seen) -> Result<()> {
    let is_naive = lease == CONTROL_LEASE;
    let client = Client::builder().url(rig.url()).watchdog_lease(lease).connect().await?;
    let mut random = Random::new(4);
    for _ in 0..runs {
        rig.prepare()?;
        let locks: Vec<_> = (0..HOLDERS).map(|n| client.fenced_lock(format!("bar4:{n}"))).collect();
        let mut guards: Vec<FencedGuard> = Vec::new();
        for lock in &locks {
            guards.push(lock.lock().await?);
        }
        // The loss is to come at any moment of the renewal's period.
        tokio::time::sleep(Duration::from_millis(random.below(1_000))).await;
        // The news may come before the one who brings the loss about is done with it, so it is waited for by a task.
        let mut waiting = Vec::new();
        for guard in &guards {
            let (lost, naive) = (guard.lost(), is_naive.then_some(raw_async(&rig.url()).await?));
            let key = guard.name().to_string();
            waiting.push(tokio::spawn(async move {
                match naive {
                    Some(connection) => next_renewal_fails(connection, &key, lease).await,
                    None => drop(lost.await),
                }
                Instant::now()
            }));
        }
        tokio::task::block_in_place(|| rig.lose())?;
        let since = Instant::now();
        for (guard, told) in guards
            .iter()
            .zip(join_all(waiting.into_iter().map(|told| tokio::time::timeout(wait, told))).await)
        {
            seen.holds += 1;
            seen.told.push(match told {
                Ok(at) => late(since, at?),
                Err(_) => NEVER,
            });
            let name = guard.name().to_string();
            if !tokio::task::block_in_place(|| rig.is_gone(&name))? {
                return Err(format!("the server still has {name}: nothing was lost").into());
            }
        }
        for (lock, old) in locks.iter().zip(&guards) {
            let new = lock.lock().await?;
            seen.tokens_low += usize::from(new.token() <= old.token());
            new.unlock().await?;
        }
    }
    Ok(())
}
