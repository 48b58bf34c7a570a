//! From the death of a holder on this machine to the next grant, and from the death of a server to the error that says so.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use redlatch::{Client, ErrorKind};
use redlatch_testkit::server::RedisServer;

use crate::{
    bed::{self, Bed, CHILD_LIMIT},
    outcome::Outcome,
    report::{Bar, Report, Samples},
};

const HOLDERS: usize = 20;
const HOLDERS_QUICK: usize = 5;
const SERVERS: usize = 5;
/// No grant of this section comes because it is over.
const LEASE_MS: &str = "600000";
/// By then the waiter has asked, and is told of the rest.
const SETTLE_TIME: Duration = Duration::from_millis(50);
const BAR_MS: f64 = 50.0;

pub(crate) struct Dead {
    /// The one that waits behind the holders.
    next: Client,
    url: String,
}

impl Dead {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Dead> {
        let next = bed.client("local:").await?;
        // Starts the engine, which the holders find.
        next.lock("bench:dead").lock().await?.unlock().await?;
        Ok(Dead { next, url: bed.local_url() })
    }

    pub(crate) async fn round(&mut self, bed: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        let mut times = Histogram::<u64>::new(3)?;
        for _ in 0..if bed.quick { HOLDERS_QUICK } else { HOLDERS } {
            times.record(self.kill_holder(bed).await?)?;
        }
        samples.push("dead.holder.p50", times.value_at_quantile(0.5) as f64 / 1e3);
        samples.push("dead.holder.max", times.max() as f64 / 1e3);
        for _ in 0..SERVERS {
            samples.push("dead.server", kill_server(bed).await?);
        }
        Ok(())
    }

    /// In microseconds.
    async fn kill_holder(&self, bed: &Bed) -> Outcome<u64> {
        let mut holder = bed.child(&["hold", &self.url, "1", LEASE_MS])?;
        holder.write_line("take")?;
        holder.read_until("held", CHILD_LIMIT)?;
        let lock = self.next.lock(bed::name("held", 0));
        let waiter = tokio::spawn(async move {
            let guard = lock.lock().await?;
            let granted = Instant::now();
            guard.unlock().await?;
            Outcome::Ok(granted)
        });
        tokio::time::sleep(SETTLE_TIME).await;
        if waiter.is_finished() {
            return Err("the holder's lock was granted while it lived".into());
        }
        let killed = Instant::now();
        holder.kill9();
        let granted = tokio::time::timeout(CHILD_LIMIT, waiter).await???;
        Ok(u64::try_from(granted.saturating_duration_since(killed).as_micros())?)
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        let text = "kill of a holder on local: to the next grant";
        report.line("dead", format!("{text}, p50"), "dead.holder.p50", "ms", None);
        report.line("dead", format!("{text}, max"), "dead.holder.max", "ms", Some(Bar::Below(BAR_MS)));
        let text = "try_lock on a server that was killed: time to its error";
        report.line("dead", text, "dead.server", "ms", Some(Bar::Below(BAR_MS)));
    }
}

/// How long the first call after a server's death takes, in milliseconds.
async fn kill_server(bed: &Bed) -> Outcome<f64> {
    let server = RedisServer::start()?;
    let client = bed.client(&server.url()).await?;
    let lock = client.lock("bench:dead");
    lock.lock().await?.unlock().await?;
    server.kill9();
    let asked = Instant::now();
    let outcome = lock.try_lock().await;
    let time = asked.elapsed();
    match outcome {
        Err(error) if error.kind() == ErrorKind::Unreachable => Ok(time.as_secs_f64() * 1e3),
        Err(error) => Err(format!("a killed server was reported as {error}").into()),
        Ok(_) => Err("a killed server answered".into()),
    }
}
