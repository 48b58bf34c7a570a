//! From the end of a hold by another client to the notice at its holder.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use redis::aio::MultiplexedConnection;
use redlatch::{Client, Guard};

use crate::{
    bed::Bed,
    outcome::Outcome,
    report::{Bar, Report, Samples},
};

const HOLDERS: usize = 1_000;
/// Its renewal, after more than three minutes, tells nobody.
const LEASE: Duration = Duration::from_secs(600);
/// How long it may take until all holds are watched, and all losses are told.
const LIMIT: Duration = Duration::from_secs(60);
const BAR_MS: f64 = 50.0;

/// Ways to end holds: each on its own, and all at once.
const WAYS: [(&str, &str); 3] =
    [("del", "DEL of each"), ("force", "force-unlock of each"), ("flush", "FLUSHALL")];

pub(crate) struct Told {
    client: Client,
    other: Client,
    connection: MultiplexedConnection,
}

impl Told {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Told> {
        let client = bed.leased_client(&bed.server.url(), LEASE).await?;
        let other = bed.client(&bed.server.url()).await?;
        Ok(Told { client, other, connection: bed.raw_limited().await? })
    }

    pub(crate) async fn round(&mut self, bed: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        for (key, _) in WAYS {
            let mut guards = Vec::with_capacity(HOLDERS);
            for n in 0..HOLDERS {
                guards.push(self.client.lock(format!("bench:told:{key}:{n}")).lock().await?);
            }
            self.watched(bed).await?;
            let times = self.end(key, &guards).await?;
            for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
                samples.push(format!("told.{key}.{name}"), times.value_at_quantile(quantile) as f64 / 1e3);
            }
        }
        Ok(())
    }

    /// Waits until the server would tell of each key, and has been quiet for a moment.
    async fn watched(&mut self, bed: &Bed) -> Outcome<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let info: String = redis::cmd("INFO").arg("stats").query_async(&mut self.connection).await?;
            let keys = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
            if keys.and_then(|keys| keys.trim().parse::<usize>().ok()).is_some_and(|keys| keys >= HOLDERS) {
                tokio::time::sleep(bed.slice).await;
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err("the holds were not watched".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends all holds, and answers in microseconds after how long each holder knew, counted from the sending of what ended it.
    async fn end(&mut self, key: &str, guards: &[Guard]) -> Outcome<Histogram<u64>> {
        let notices: Vec<_> = guards
            .iter()
            .map(|guard| {
                let lost = guard.lost();
                tokio::spawn(async move {
                    lost.await;
                    Instant::now()
                })
            })
            .collect();
        let mut sent = Vec::with_capacity(guards.len());
        if key == "flush" {
            sent.resize(guards.len(), Instant::now());
            redis::cmd("FLUSHALL").exec_async(&mut self.connection).await?;
        } else {
            for guard in guards {
                sent.push(Instant::now());
                if key == "del" {
                    redis::cmd("DEL").arg(guard.name().as_bytes()).exec_async(&mut self.connection).await?;
                } else {
                    self.other.lock(guard.name()).force_unlock().await?;
                }
            }
        }
        let mut times = Histogram::<u64>::new(3)?;
        let end = tokio::time::Instant::now() + LIMIT;
        for (notice, sent) in notices.into_iter().zip(sent) {
            let time = tokio::time::timeout_at(end, notice).await??.saturating_duration_since(sent);
            times.record(u64::try_from(time.as_micros())?)?;
        }
        Ok(times)
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        for (key, what) in WAYS {
            for (name, bar) in [("p50", None), ("p99", Some(Bar::Below(BAR_MS)))] {
                let text = format!("{what} to the notice at 1,000 holders, {name}");
                report.line("told", text, &format!("told.{key}.{name}"), "ms", bar);
            }
        }
    }
}
