//! One hot lock with an empty section and 64 waiters in this process, alone and beside another process's waiter.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redlatch::{Client, Lock};

use super::pair::pairs;
use crate::{
    bed::{Bed, CHILD_LIMIT},
    child::Share,
    measure::{self, Rate},
    outcome::Outcome,
    raw,
    report::{Bar, Report, Samples, median},
};

const WAITERS: usize = 64;
const NAME: &str = "bench:hot";
/// The other process waits for the lock, gives it back at once, and thinks for this long.
const THINK_US: &str = "1000";
/// As the other process gets the lock about every 8 ms, its slowest hundredth needs time to show.
const SLICE_WITH_OTHER: Duration = Duration::from_millis(250);

pub(crate) struct Handoff {
    _client: Client,
    lock: Lock,
    connection: MultiplexedConnection,
}

impl Handoff {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Handoff> {
        let client = bed.client(&bed.server.url()).await?;
        let mut connection = bed.raw_limited().await?;
        raw::load(&mut connection).await?;
        Ok(Handoff { lock: client.lock(NAME), _client: client, connection })
    }

    pub(crate) async fn round(&mut self, bed: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        let (mut trips, mut alone, mut passes, mut commands) = (Vec::new(), Vec::new(), 0, 0);
        for _ in 0..bed.slices {
            trips.push(round_trips(&self.connection, bed).await?.per_second());
            let before = bed.commands()?;
            let rate = measure::run(WAITERS, bed.slice, |_, stop| pairs(self.lock.clone(), stop)).await?;
            alone.push(rate.per_second());
            passes += rate.count;
            commands += bed.commands()? - before;
        }
        samples.push("handoff.trips", median(&trips));
        samples.push("handoff.alone", median(&alone));
        samples.push("handoff.alone.commands", 1e3 * commands as f64 / passes as f64);

        let mut other = bed.child(&["compete", &bed.server.url(), NAME, "1", THINK_US])?;
        let before = bed.commands()?;
        other.write_line("go")?;
        let mut beside = Vec::new();
        let (mut passes, mut time_s) = (0, 0.0);
        for _ in 0..bed.slices {
            let rate =
                measure::run(WAITERS, SLICE_WITH_OTHER, |_, stop| pairs(self.lock.clone(), stop)).await?;
            beside.push(rate.per_second());
            passes += rate.count;
            time_s += rate.time.as_secs_f64();
        }
        other.write_line("stop")?;
        let share: Share = serde_json::from_str(&other.read_line(CHILD_LIMIT)?)?;
        let commands = bed.commands()? - before;
        other.wait(CHILD_LIMIT)?;
        samples.push("handoff.beside", median(&beside));
        samples.push("handoff.beside.commands", 1e3 * commands as f64 / (passes + share.acquisitions) as f64);
        samples.push("handoff.other.turns", share.acquisitions as f64 / time_s);
        samples.push("handoff.other.p50", share.wait_us_p50 as f64 / 1e3);
        samples.push("handoff.other.p99", share.wait_us_p99 as f64 / 1e3);
        samples.push("handoff.other.max", share.wait_us_max as f64 / 1e3);
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        let trips = "handoff.trips";
        report.line("handoff", "round trips, one after the other", trips, "trips/s", None);
        report.line("handoff", "64 waiters alone", "handoff.alone", "hand-offs/s", None);
        report.ratio(
            "handoff",
            "64 waiters alone, over round trips",
            ("handoff.alone", trips),
            Some(Bar::AtLeast(10.0)),
        );
        report.line("handoff", "64 waiters beside another process", "handoff.beside", "hand-offs/s", None);
        let bar = Some(Bar::AtLeast(10.0));
        report.ratio(
            "handoff",
            "64 waiters beside another, over round trips",
            ("handoff.beside", trips),
            bar,
        );
        report.line("handoff", "the other process: turns", "handoff.other.turns", "turns/s", None);
        report.line("handoff", "the other process: wait p50", "handoff.other.p50", "ms", None);
        report.line(
            "handoff",
            "the other process: wait p99",
            "handoff.other.p99",
            "ms",
            Some(Bar::AtMost(20.0)),
        );
        report.line("handoff", "the other process: wait max", "handoff.other.max", "ms", None);
        report.line(
            "handoff",
            "alone: commands per 1,000 acquisitions",
            "handoff.alone.commands",
            "commands",
            None,
        );
        report.line(
            "handoff",
            "beside: commands per 1,000 acquisitions",
            "handoff.beside.commands",
            "commands",
            None,
        );
    }
}

/// One slice of round trips, which hand-offs are compared with.
pub(super) async fn round_trips(connection: &MultiplexedConnection, bed: &Bed) -> Outcome<Rate> {
    measure::run(1, bed.slice, |_, stop| raw::round_trips(connection.clone(), stop)).await
}
