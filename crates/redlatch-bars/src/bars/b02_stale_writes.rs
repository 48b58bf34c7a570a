//! Bar 2: a holder is stopped past its lease between its look at the guard and its write. The resource compares fencing tokens and
//! has to refuse that write, 1,000 times of 1,000. The control is a resource that does not compare.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redlatch::{Client, Lease};
use redlatch_testkit::server::RedisServer;

use crate::common::{LINE_LIMIT, Result, Verdict, lanes, orders, raw, runtime, worker};

const LANES: usize = 8;
const LEASE: Duration = Duration::from_millis(300);
const CASES: usize = 1_000;
const CONTROL_CASES: usize = 200;
/// So many stale writes the control has to let through, or it shows nothing.
const CONTROL_STALE_MIN: u32 = 100;

/// The resource: refuses a token below the highest that it has seen, and keeps who wrote last.
const WRITE_FENCED: &str = "local seen = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
if tonumber(ARGV[1]) < seen then return 0 end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'writer', ARGV[2])
return 1";
/// The same without the comparison.
const WRITE_UNFENCED: &str = "redis.call('HSET', KEYS[1], 'token', ARGV[1], 'writer', ARGV[2])
return 1";

fn write(
    raw: &mut redis::Connection,
    fenced: bool,
    resource: &str,
    token: u64,
    writer: &str,
) -> Result<bool> {
    let script = if fenced { WRITE_FENCED } else { WRITE_UNFENCED };
    let done: i64 = redis::cmd("EVAL").arg(script).arg(1).arg(resource).arg(token).arg(writer).query(raw)?;
    Ok(done == 1)
}

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let server = RedisServer::start()?;
    let url = server.url();
    let runtime = runtime(2)?;
    let cases = if control { CONTROL_CASES } else { CASES };
    let (stale, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    lanes(LANES, |lane| {
        let (name, resource) = (format!("bar2:{lane}"), format!("resource:{lane}"));
        let fenced = if control { "unfenced" } else { "fenced" };
        let mut holder = worker(2, &[&url, &name, &resource, fenced])?;
        let client = runtime.block_on(Client::connect(&url))?;
        let lock = client.fenced_lock(name.as_str());
        let mut raw = raw(&url)?;
        for case in 0..cases / LANES {
            holder.write_line("take")?;
            // The holder has the lock, has looked at its guard, and is about to write.
            holder.read_until("checked", LINE_LIMIT)?;
            holder.pause()?;
            holder.write_line("write")?;
            let guard = runtime.block_on(lock.lock())?;
            let successor = format!("successor {case}");
            if !write(&mut raw, !control, &resource, guard.token(), &successor)? {
                return Err("the resource refused the newest token".into());
            }
            holder.resume()?;
            let said = holder.read_until("wrote", LINE_LIMIT)?;
            // What the resource has counts, not what the holder says.
            let writer: String = redis::cmd("HGET").arg(&resource).arg("writer").query(&mut raw)?;
            let counter = if writer == successor { &refused } else { &stale };
            counter.fetch_add(1, Ordering::Relaxed);
            if (writer == successor) != (said == "wrote refused") {
                return Err(format!("the holder says {said:?}, the resource has {writer:?}").into());
            }
            runtime.block_on(guard.unlock())?;
        }
        Ok(())
    })?;
    let (stale, refused) = (stale.into_inner(), refused.into_inner());
    let all = stale + refused;
    if control {
        let figure = format!(
            "{stale} of {all} stale writes accepted without a fence, at least {CONTROL_STALE_MIN} wanted"
        );
        return Ok(Verdict::new(stale < CONTROL_STALE_MIN, figure));
    }
    let met = stale == 0 && all as usize == CASES;
    Ok(Verdict::new(
        met,
        format!("{stale} of {all} stale writes accepted, at most 0; lease {LEASE:?}, {LANES} lanes"),
    ))
}

/// The holder: takes the lock, looks at the guard, and writes when it is told to, without another look.
pub(crate) fn work(args: &[String]) -> Result<()> {
    let [url, name, resource, fenced] = args else { return Err("url name resource fenced".into()) };
    let runtime = runtime(1)?;
    let client = runtime.block_on(Client::connect(url))?;
    let lock = client.fenced_lock(name.as_str());
    let mut raw = raw(url)?;
    let mut held = None;
    for order in orders() {
        if order == "take" {
            // What is left of a lost hold is given back late, which must do no harm either.
            drop(held.take());
            let acquire = lock.acquire().lease(Lease::RenewedEvery(LEASE)).wait(redlatch::Wait::Forever);
            let guard =
                runtime.block_on(async { acquire.await })?.ok_or("a wait without end found it busy")?;
            if !guard.is_valid() {
                return Err("lost before it was stopped".into());
            }
            println!("checked");
            held = Some(guard);
        } else if let Some(guard) = &held {
            let done = write(&mut raw, fenced == "fenced", resource, guard.token(), "stopped holder")?;
            println!("wrote {}", if done { "accepted" } else { "refused" });
        }
    }
    Ok(())
}
