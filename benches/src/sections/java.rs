//! The same work by Redisson, in one JVM on the same server, in the same run.

use std::time::Duration;

use redlatch::{Client, FairLock, Lock};
use redlatch_testkit::redisson::{Connection, Redisson, RedissonVersion};

use crate::{
    bed::Bed,
    measure::{self, Stop},
    outcome::Outcome,
    report::{Bar, Report, Samples},
};

const WAITERS: usize = 64;
/// A JVM needs longer than a slice to get up to speed.
const TIME: Duration = Duration::from_secs(4);

pub(crate) struct Java {
    _client: Client,
    fair: FairLock,
    plain: Lock,
    redisson: Redisson,
}

macro_rules! turns {
    ($lock:expr) => {
        |_, stop: Stop| {
            let lock = $lock.clone();
            async move {
                let mut count = 0;
                while !stop.is_set() {
                    lock.lock().await?.unlock().await?;
                    count += 1;
                }
                Ok(count)
            }
        }
    };
}

impl Java {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Java> {
        let url = bed.server.url();
        let client = bed.client(&url).await?;
        let connection = Connection::single(&url).option("size", "service");
        let redisson = Redisson::start_with(RedissonVersion::Newest, &connection)?;
        let (fair, plain) = (client.fair_lock("bench:java:fair"), client.lock("bench:java:lock"));
        Ok(Java { _client: client, fair, plain, redisson })
    }

    pub(crate) async fn round(&mut self, _: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        for (kind, name) in [("fair", self.fair.name()), ("lock", self.plain.name())] {
            let (threads, ms) = (WAITERS.to_string(), TIME.as_millis().to_string());
            let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
            let thread = self.redisson.thread(1);
            let verb = format!("{kind}.turns");
            let reply = tokio::task::spawn_blocking(move || {
                thread.call_within(TIME * 5, &verb, &[&name, &threads, &ms])?.as_i64()
            });
            samples.push(format!("java.{kind}"), reply.await?? as f64);
            let ours = match kind {
                "fair" => measure::run(WAITERS, TIME, turns!(self.fair)).await?,
                _ => measure::run(WAITERS, TIME, turns!(self.plain)).await?,
            };
            samples.push(format!("java.{kind}.ours"), ours.per_second());
        }
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        for (kind, what, bar) in [
            ("fair", "fair lock, 64 waiters", Some(Bar::AtLeast(1.0))),
            ("lock", "plain lock, 64 waiters", Some(Bar::AtLeast(1.0))),
        ] {
            let ours = format!("java.{kind}.ours");
            let theirs = format!("java.{kind}");
            report.line("java", format!("{what}: Redisson's grants"), &theirs, "grants/s", None);
            report.line("java", format!("{what}: ours"), &ours, "grants/s", None);
            report.ratio("java", format!("{what}: ours over Redisson's"), (&ours, &theirs), bar);
        }
    }
}
