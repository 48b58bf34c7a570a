//! The fair lock: what a hand-over takes inside the process, and what a grant costs the server however many wait.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use redis::aio::MultiplexedConnection;
use redlatch::{Client, FairLock, scripts};

use super::handoff::round_trips;
use crate::{
    bed::Bed,
    measure::{self, Stop},
    outcome::Outcome,
    raw,
    report::{Report, Samples, median},
};

const WAITERS: usize = 64;
const NAME: &str = "bench:fair";
const KEYS: [&str; 4] = [
    "bench:queue",
    "redisson_lock_queue:{bench:queue}",
    "redisson_lock_timeout:{bench:queue}",
    "redisson_lock_channel:{bench:queue}",
];
/// How many wait while a grant is measured.
const CROWDS: [usize; 4] = [10, 100, 1_000, 10_000];
const GRANTS: usize = 400;

pub(crate) struct Fair {
    _client: Client,
    lock: FairLock,
    connection: MultiplexedConnection,
}

/// Takes turns with others, and notes how long after a release the next had the lock.
async fn turns(
    lock: FairLock,
    released: Arc<Mutex<Instant>>,
    stop: Stop,
    us: Arc<Mutex<Vec<f64>>>,
) -> Outcome<u64> {
    let mut count = 0;
    while !stop.is_set() {
        let guard = lock.lock().await?;
        let since = released.lock().map_err(|_| "poisoned")?.elapsed();
        us.lock().map_err(|_| "poisoned")?.push(since.as_secs_f64() * 1e6);
        *released.lock().map_err(|_| "poisoned")? = Instant::now();
        guard.unlock().await?;
        count += 1;
    }
    Ok(count)
}

/// A field as our clients have them, of a client that is not there.
fn member(number: usize) -> String {
    format!("1b671a64-40d5-4ed1-a7c4-da01ff1f3341:{number}")
}

impl Fair {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Fair> {
        let client = bed.client(&bed.server.url()).await?;
        let mut connection = bed.raw_limited().await?;
        raw::load(&mut connection).await?;
        for script in [&scripts::FAIR_RELEASE, &scripts::FAIR_ACQUIRE] {
            redis::cmd("SCRIPT").arg("LOAD").arg(script.source()).query_async::<()>(&mut connection).await?;
        }
        Ok(Fair { lock: client.fair_lock(NAME), _client: client, connection })
    }

    pub(crate) async fn round(&mut self, bed: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        for (tasks, key) in [(2, "fair.two"), (WAITERS, "fair.crowd")] {
            let (mut trips, mut rates, us) = (Vec::new(), Vec::new(), Arc::new(Mutex::new(Vec::new())));
            let released = Arc::new(Mutex::new(Instant::now()));
            for _ in 0..bed.slices {
                trips.push(round_trips(&self.connection, bed).await?.per_second());
                let make = |_, stop| turns(self.lock.clone(), released.clone(), stop, us.clone());
                rates.push(measure::run(tasks, bed.slice, make).await?.per_second());
            }
            samples.push(format!("{key}.rate"), median(&rates));
            let p50_us = median(&us.lock().map_err(|_| "poisoned")?);
            samples.push(format!("{key}.p50"), p50_us);
            samples.push(format!("{key}.trips"), p50_us * median(&trips) / 1e6);
        }
        for waiters in CROWDS {
            self.grants(bed, waiters, samples).await?;
        }
        Ok(())
    }

    /// What the server spends on a release that grants to the next, on a grant that is asked for, and on a waiter
    /// that comes and stands behind all the others.
    async fn grants(&mut self, bed: &Bed, waiters: usize, samples: &mut Samples) -> Outcome<()> {
        let connection = &mut self.connection;
        let far = "4102444800000";
        let mut filling = redis::pipe();
        for key in KEYS {
            filling.del(key);
        }
        filling.hset(KEYS[0], member(0), 1);
        for number in 1..=waiters + GRANTS {
            filling.rpush(KEYS[1], member(number));
            filling.zadd(KEYS[2], member(number), far);
        }
        filling.query_async::<()>(connection).await?;
        let call = |script: &scripts::Script, args: &[&str]| {
            let mut command = redis::cmd("EVALSHA");
            command.arg(script.sha1()).arg(3).arg(&KEYS[..3]).arg(args);
            command
        };
        let arrive = |number: usize| {
            let number = member(number);
            call(
                &scripts::FAIR_ACQUIRE,
                &["1", &number, "60000", "0", "30000", KEYS[3], "publish", "300000", "1"],
            )
        };
        let mut before = bed.script_us()?;
        let mut push = |what: &str, count: usize, now: f64| {
            samples.push(format!("fair.{what}.{waiters}"), (now - before) / count as f64);
            before = now;
        };
        for number in 0..GRANTS / 2 {
            let (from, to) = (member(number), member(number + 1));
            let release = call(&scripts::FAIR_RELEASE, &["1", &from, KEYS[3], "publish", &to, "60000", "0"]);
            let reply: Vec<i64> = release.query_async(connection).await?;
            if reply[1] != 2 {
                return Err(format!("no grant but {reply:?}").into());
            }
        }
        push("release", GRANTS / 2, bed.script_us()?);
        let mut asked = 0.0;
        for number in GRANTS / 2..GRANTS {
            redis::cmd("DEL").arg(KEYS[0]).query_async::<()>(connection).await?;
            let reply: Vec<i64> = arrive(number + 1).query_async(connection).await?;
            if reply[1] != 1 {
                return Err(format!("no grant but {reply:?}").into());
            }
            asked += 1.0;
        }
        push("ask", asked as usize, bed.script_us()?);
        for number in 0..GRANTS / 2 {
            let _: Vec<i64> = arrive(1_000_000 + number).query_async(connection).await?;
        }
        push("arrive", GRANTS / 2, bed.script_us()?);
        redis::cmd("DEL").arg(&KEYS).query_async::<()>(connection).await?;
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        for (key, what) in [("fair.two", "2 tasks"), ("fair.crowd", "64 tasks")] {
            report.line("fair", format!("{what}: grants"), &format!("{key}.rate"), "grants/s", None);
            report.line(
                "fair",
                format!("{what}: from unlock to the next grant, p50"),
                &format!("{key}.p50"),
                "µs",
                None,
            );
            report.line(
                "fair",
                format!("{what}: the same in round trips, p50"),
                &format!("{key}.trips"),
                "trips",
                None,
            );
        }
        for (key, what) in [
            ("release", "a release that grants to the next"),
            ("ask", "a grant to the next that asks"),
            ("arrive", "an arrival behind all the others"),
        ] {
            for waiters in CROWDS {
                let what = format!("in the server, {waiters} waiters: {what}");
                report.line("fair", what, &format!("fair.{key}.{waiters}"), "µs", None);
            }
        }
    }
}
