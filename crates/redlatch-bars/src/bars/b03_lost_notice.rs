//! Bar 3: a holder that is cut off is told of its loss before the server lets the lock go, and one that was stopped past its lease
//! learns it from its first look at the guard. 1,000 times each. The control is a holder that goes by the answers of its renewals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlatch::{Client, Lease, Wait};
use redlatch_testkit::proxy::{Proxy, Scope};
use redlatch_testkit::server::RedisServer;

use crate::common::{
    LINE_LIMIT, Random, Result, Verdict, lanes, late, load, ms, orders, raw, raw_async, runtime, worker,
};

const CUT_LANES: usize = 125;
const CUT_ROUNDS: usize = 8;
/// What it is unless set.
const CUT_LEASE: Duration = Duration::from_secs(30);
/// By how much a deadline lies before the end of the lease: a hundredth of it (`docs/safety.md`). A timer of this process that is
/// itself later than that shows a machine that is too busy to tell, and the case is repeated.
const MARGIN: Duration = Duration::from_millis(300);
const STOP_LANES: usize = 8;
const STOP_ROUNDS: usize = 125;
const STOP_LEASE: Duration = Duration::from_millis(300);
const CONTROL_ROUNDS: usize = 1;
/// How long after the end of the lock a notice is waited for, so that one that is late has a figure.
const GRACE: Duration = Duration::from_millis(500);

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let server = RedisServer::start()?;
    let (cut, told, void) = cut_off(&server, control)?;
    let (stopped, lost) = stopped(&server, control)?;
    let least = told.iter().filter_map(|told| told.ok()).min().map_or("none".to_owned(), ms);
    let latest = told.iter().filter_map(|told| told.err()).max().unwrap_or_default();
    let in_time = told.iter().filter(|told| told.is_ok()).count();
    let figure = format!(
        "{in_time} of {cut} cut off told before the server's end of the lock (least time left {least}, latest by {}, {void} void \
         because timers were late, too), {lost} of {stopped} stopped see it at the first look; leases of {} s and {} ms, {}",
        ms(latest),
        CUT_LEASE.as_secs(),
        STOP_LEASE.as_millis(),
        load()
    );
    Ok(Verdict::new(in_time == cut && lost == stopped, figure))
}

/// For each blackhole the time that was left when the holder was told, or by how much that was late.
type Told = std::result::Result<Duration, Duration>;

fn cut_off(server: &RedisServer, control: bool) -> Result<(usize, Vec<Told>, usize)> {
    let rounds = if control { CONTROL_ROUNDS } else { CUT_ROUNDS };
    let runtime = runtime(2)?;
    let told = lanes(CUT_LANES, |lane| {
        let proxy = Proxy::start(&server.url())?;
        runtime.block_on(async {
            let mut raw = raw_async(&server.url()).await?;
            let client = Client::builder().url(proxy.url()).watchdog_lease(CUT_LEASE).connect().await?;
            let mut random = Random::new(lane as u64 + 1);
            let (mut told, mut void) = (Vec::new(), 0);
            // Ends also where every case is void.
            for attempt in 0..rounds * 2 {
                if told.len() == rounds {
                    break;
                }
                let name = format!("bar3:{lane}:{attempt}");
                let loss =
                    if control { naive_hold(&proxy, &name).await? } else { hold(&client, &name).await? };
                // The blackhole is to come at any moment of the renewal's period.
                tokio::time::sleep(Duration::from_millis(random.below(10_000))).await;
                proxy.blackhole(Scope::Both);
                let asked = Instant::now();
                let ttl_ms: i64 = redis::cmd("PTTL").arg(&name).query_async(&mut raw).await?;
                let end = asked + Duration::from_millis(u64::try_from(ttl_ms)?);
                let timer = async {
                    tokio::time::sleep_until((end - MARGIN).into()).await;
                    late(end - MARGIN, Instant::now())
                };
                let notice = async {
                    let _ = tokio::time::timeout_at((end + GRACE).into(), loss).await;
                    Instant::now()
                };
                let (timer_late, at) = tokio::join!(timer, notice);
                let lateness = late(end, at);
                match lateness.is_zero() {
                    true => told.push(Told::Ok(end.saturating_duration_since(at))),
                    false if timer_late >= MARGIN => void += 1,
                    false => told.push(Told::Err(lateness)),
                }
                proxy.heal()?;
            }
            Ok((told, void))
        })
    })?;
    let void = told.iter().map(|(_, void)| void).sum();
    let told: Vec<Told> = told.into_iter().flat_map(|(told, _)| told).collect();
    Ok((CUT_LANES * rounds, told, void))
}

type Loss = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

async fn hold(client: &Client, name: &str) -> Result<Loss> {
    let guard = client.lock(name).lock().await?;
    Ok(Box::pin(async move {
        guard.lost().await;
    }))
}

/// A hold that is lost when the server says so, and asked again while it says nothing.
async fn naive_hold(proxy: &Proxy, name: &str) -> Result<Loss> {
    let mut connection = raw_async(&proxy.url()).await?;
    let lease_ms = u64::try_from(CUT_LEASE.as_millis())?;
    let name = name.to_owned();
    let () = redis::cmd("SET").arg(&name).arg(1).arg("PX").arg(lease_ms).query_async(&mut connection).await?;
    Ok(Box::pin(async move {
        loop {
            tokio::time::sleep(CUT_LEASE / 3).await;
            let mut renewal = redis::cmd("PEXPIRE");
            renewal.arg(&name).arg(lease_ms);
            if let Ok(0) = renewal.query_async::<i64>(&mut connection).await {
                return;
            }
        }
    }))
}

fn stopped(server: &RedisServer, control: bool) -> Result<(usize, usize)> {
    let rounds = if control { CONTROL_ROUNDS } else { STOP_ROUNDS };
    let url = server.url();
    let lost = lanes(STOP_LANES, |lane| {
        let name = format!("bar3:stopped:{lane}");
        let mut holder = worker(3, &[&url, &name, if control { "naive" } else { "guard" }])?;
        let mut raw = raw(&url)?;
        let mut lost = 0;
        for _ in 0..rounds {
            holder.write_line("take")?;
            holder.read_until("held", LINE_LIMIT)?;
            holder.pause()?;
            holder.write_line("look")?;
            wait_until_gone(&mut raw, &name)?;
            // Another owner has it before the stopped one goes on.
            let () = redis::cmd("HSET").arg(&name).arg("another").arg(1).query(&mut raw)?;
            holder.resume()?;
            lost += usize::from(holder.read_until("look", LINE_LIMIT)? == "look lost");
            let () = redis::cmd("DEL").arg(&name).query(&mut raw)?;
        }
        Ok(lost)
    })?;
    Ok((STOP_LANES * rounds, lost.into_iter().sum()))
}

/// The end of a lease is a moment that the server names.
fn wait_until_gone(raw: &mut redis::Connection, name: &str) -> Result<()> {
    let begin = Instant::now();
    loop {
        let ttl_ms: i64 = redis::cmd("PTTL").arg(name).query(raw)?;
        let Ok(ttl_ms) = u64::try_from(ttl_ms) else { return Ok(()) };
        if begin.elapsed() > LINE_LIMIT {
            return Err(format!("{name} is still there").into());
        }
        std::thread::sleep(Duration::from_millis(ttl_ms + 1));
    }
}

/// The holder that is stopped.
pub(crate) fn work(args: &[String]) -> Result<()> {
    let [url, name, how] = args else { return Err("url name how".into()) };
    if how == "naive" {
        return naive_work(url, name);
    }
    let runtime = runtime(1)?;
    let client = runtime.block_on(Client::connect(url))?;
    let lock = client.lock(name.as_str());
    let mut held = None;
    for order in orders() {
        if order == "take" {
            drop(held.take());
            let acquire = lock.acquire().lease(Lease::RenewedEvery(STOP_LEASE)).wait(Wait::Forever);
            held = runtime.block_on(async { acquire.await })?;
            println!("held");
        } else if let Some(guard) = &held {
            println!("look {}", if guard.is_valid() { "valid" } else { "lost" });
        }
    }
    Ok(())
}

/// Believes what its last renewal said.
fn naive_work(url: &str, name: &str) -> Result<()> {
    let lease_ms = u64::try_from(STOP_LEASE.as_millis())?;
    let mut own = raw(url)?;
    let lost = Arc::new(AtomicBool::new(true));
    for order in orders() {
        if order == "take" {
            let () = redis::cmd("HSET").arg(name).arg("naive").arg(1).query(&mut own)?;
            let () = redis::cmd("PEXPIRE").arg(name).arg(lease_ms).query(&mut own)?;
            lost.store(false, Ordering::SeqCst);
            let (seen, key, mut renewer) = (Arc::clone(&lost), name.to_owned(), raw(url)?);
            std::thread::spawn(move || {
                loop {
                    std::thread::sleep(STOP_LEASE / 3);
                    let mut renewal = redis::cmd("PEXPIRE");
                    if let Ok(0) = renewal.arg(&key).arg(lease_ms).query::<i64>(&mut renewer) {
                        seen.store(true, Ordering::SeqCst);
                        return;
                    }
                }
            });
            println!("held");
        } else {
            println!("look {}", if lost.load(Ordering::SeqCst) { "lost" } else { "valid" });
        }
    }
    Ok(())
}
