//! Bar 8: at `maxmemory` every renewal and every final release still works, and an acquire is refused at once with its own kind of
//! error. The control runs Redisson's release, which writes before it deletes.

use std::time::{Duration, Instant};

use redlatch::{Client, ErrorKind, Guard};
use redlatch_testkit::server::RedisServer;
use redlatch_testkit::stall;

use crate::common::{Result, Verdict, ms, raw, runtime};

const LOCKS: usize = 1_000;
const ACQUIRES: usize = 200;
const LEASE: Duration = Duration::from_secs(6);
const REFUSED_WITHIN: Duration = Duration::from_millis(50);

/// What Redisson 3.27 and later send to release, without the parts that are not reached with a count of 1.
const REDISSON_UNLOCK: &str = "if (redis.call('hexists', KEYS[1], ARGV[3]) == 0) then return nil end
local counter = redis.call('hincrby', KEYS[1], ARGV[3], -1)
redis.call('set', KEYS[3], 0, 'px', ARGV[5])
redis.call('del', KEYS[1])
redis.call(ARGV[4], KEYS[2], ARGV[1])
redis.call('set', KEYS[3], 1, 'px', ARGV[5])
return 1";

pub(crate) fn run(control: bool) -> Result<Verdict> {
    let server = RedisServer::builder().arg("maxmemory-policy", "noeviction").start()?;
    let mut raw = raw(&server.url())?;
    let runtime = runtime(2)?;
    let client = runtime.block_on(Client::builder().url(server.url()).watchdog_lease(LEASE).connect())?;
    let names: Vec<String> = (0..LOCKS).map(|n| format!("bar8:{n}")).collect();
    let mut guards: Vec<Guard> = Vec::new();
    for name in &names {
        guards.push(runtime.block_on(client.lock(name.as_str()).lock())?);
    }
    server.cmd(&["CONFIG", "SET", "maxmemory", "1mb"])?;
    let written: redis::RedisResult<()> = redis::cmd("SET").arg("more").arg(1).query(&mut raw);
    if written.is_ok() {
        return Err("the server takes new keys: it is not out of memory".into());
    }
    // Every lock is renewed at least twice while memory is out.
    std::thread::sleep(LEASE);
    let mut renewed = 0;
    for name in &names {
        let ttl_ms: i64 = redis::cmd("PTTL").arg(name).query(&mut raw)?;
        renewed += usize::from(ttl_ms > 0);
    }
    let (mut typed, mut longest) = (0, Duration::ZERO);
    for n in 0..ACQUIRES {
        let begin = Instant::now();
        let refused = runtime.block_on(client.lock(format!("bar8:new:{n}")).try_lock());
        longest = longest.max(stall::awake_since(begin));
        typed += usize::from(matches!(refused, Err(e) if e.kind() == ErrorKind::OutOfMemory));
    }
    let (mut told, mut kept) = (0, Vec::new());
    for (guard, name) in guards.into_iter().zip(&names) {
        if control {
            let fields: Vec<String> = redis::cmd("HKEYS").arg(name).query(&mut raw)?;
            let mut unlock = redis::cmd("EVAL");
            unlock.arg(REDISSON_UNLOCK).arg(3).arg(name).arg(format!("redisson_lock__channel:{{{name}}}"));
            unlock
                .arg(format!("redisson_unlock_latch:{{{name}}}:1"))
                .arg(0)
                .arg(30_000)
                .arg(&fields[0])
                .arg("publish");
            told += usize::from(unlock.arg(30_000).query::<i64>(&mut raw).is_ok());
            // A guard that is dropped would give back in the library's own way.
            kept.push(guard);
            continue;
        }
        told += usize::from(runtime.block_on(guard.unlock()).is_ok());
    }
    // What is there counts, not what was answered.
    let left: i64 = redis::cmd("EXISTS").arg(&names).query(&mut raw)?;
    let released = LOCKS - usize::try_from(left)?;
    let figure = format!(
        "{renewed} of {LOCKS} renewed, {released} of {LOCKS} released ({told} without an error), {typed} of {ACQUIRES} acquires \
         refused as out of memory, after at most {} of {}",
        ms(longest),
        ms(REFUSED_WITHIN)
    );
    let met = renewed == LOCKS && released == LOCKS && told == LOCKS && typed == ACQUIRES;
    Ok(Verdict::new(met && longest <= REFUSED_WITHIN, figure))
}
