//! From unlocking in one process to the grant in another that waits.

use std::time::Duration;

use hdrhistogram::Histogram;
use redis::aio::MultiplexedConnection;
use redlatch::{Client, Lock};

use super::handoff::round_trips;
use crate::{
    bed::{Bed, CHILD_LIMIT},
    outcome::Outcome,
    proc::clock_ns,
    raw,
    report::{Report, Samples, median},
};

const NAME: &str = "bench:baton";
/// By then a waiter on an idle machine has looked twice, subscribed and gone to sleep. It tells nobody that it has.
const SETTLE_TIME: Duration = Duration::from_millis(4);
const PASSES: usize = 250;
const PASSES_QUICK: usize = 60;

pub(crate) struct Latency {
    _client: Client,
    lock: Lock,
    connection: MultiplexedConnection,
}

impl Latency {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Latency> {
        let client = bed.client(&bed.server.url()).await?;
        let mut connection = bed.raw_limited().await?;
        raw::load(&mut connection).await?;
        Ok(Latency { lock: client.lock(NAME), _client: client, connection })
    }

    pub(crate) async fn round(&mut self, bed: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        let mut trips = Vec::with_capacity(bed.slices);
        for _ in 0..bed.slices {
            trips.push(round_trips(&self.connection, bed).await?.per_second());
        }
        let trip_us = 1e6 / median(&trips);
        let mut other = bed.child(&["receive", &bed.server.url(), NAME])?;
        let (mut times, mut unlocks) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
        for _ in 0..if bed.quick { PASSES_QUICK } else { PASSES } {
            let guard = self.lock.lock().await?;
            other.write_line("wait")?;
            tokio::time::sleep(SETTLE_TIME).await;
            let released = tokio::spawn(async move {
                let sent_ns = clock_ns();
                guard.unlock().await?;
                Outcome::Ok((sent_ns, clock_ns()))
            });
            let (sent_ns, answered_ns) = released.await??;
            unlocks.record(answered_ns.saturating_sub(sent_ns))?;
            let granted_ns: u64 = other.read_line(CHILD_LIMIT)?.parse()?;
            times.record(granted_ns.saturating_sub(sent_ns))?;
        }
        other.close_stdin();
        other.wait(CHILD_LIMIT)?;
        for (key, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            let us = times.value_at_quantile(quantile) as f64 / 1e3;
            samples.push(format!("latency.{key}.us"), us);
            samples.push(format!("latency.{key}.trips"), us / trip_us);
        }
        samples.push("latency.trip", trip_us);
        samples.push("latency.unlock", unlocks.value_at_quantile(0.5) as f64 / 1e3);
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        report.line("latency", "a round trip, mean", "latency.trip", "µs", None);
        // The round trips above never let anybody fall asleep; this one, like the hand-off, begins after a pause.
        report.line(
            "latency",
            "the unlock itself, a round trip after a pause, p50",
            "latency.unlock",
            "µs",
            None,
        );
        for key in ["p50", "p99"] {
            report.line(
                "latency",
                format!("unlock here to grant there, {key}"),
                &format!("latency.{key}.us"),
                "µs",
                None,
            );
            report.line(
                "latency",
                format!("the same in round trips, {key}"),
                &format!("latency.{key}.trips"),
                "trips",
                None,
            );
        }
    }
}
