//! What ten thousand held locks cost while nothing else happens.

use std::time::{Duration, Instant};

use crate::{
    bed::{Bed, CHILD_LIMIT},
    outcome::Outcome,
    proc::{cpu_ns, rss_bytes},
    report::{Bar, Report, Samples},
};

const LOCKS: u64 = 10_000;
const LEASE: Duration = Duration::from_secs(30);
const LEASE_QUICK: Duration = Duration::from_secs(15);
/// How often to look whether the first renewal has come.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) struct Held;

impl Held {
    pub(crate) async fn round(&mut self, bed: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        let lease = if bed.quick { LEASE_QUICK } else { LEASE };
        let period = lease / 3;
        // A process of its own, so that its memory is that of the locks alone.
        let lease_ms = lease.as_millis().to_string();
        let mut holder = bed.child(&["hold", &bed.server.url(), &LOCKS.to_string(), &lease_ms])?;
        let empty = rss_bytes(holder.pid())?;
        holder.write_line("take")?;
        holder.read_until("held", CHILD_LIMIT)?;
        let taken = rss_bytes(holder.pid())?;

        // From half a period after one renewal to half a period after the next lies exactly one.
        let calls = bed.server.command_count("evalsha")?;
        let deadline = Instant::now() + lease;
        while bed.server.command_count("evalsha")? == calls {
            if Instant::now() > deadline {
                return Err("ten thousand locks were not renewed within their lease".into());
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        tokio::time::sleep(period / 2).await;
        let begun = Instant::now();
        let (calls, cpu) = (bed.server.command_count("evalsha")?, cpu_ns(holder.pid())?);
        tokio::time::sleep(period).await;
        let calls = bed.server.command_count("evalsha")? - calls;
        let cpu = cpu_ns(holder.pid())? - cpu;
        let share = cpu as f64 / begun.elapsed().as_nanos() as f64;
        let renewed = rss_bytes(holder.pid())?;

        holder.write_line("end")?;
        let lost = holder.read_until("lost", CHILD_LIMIT)?;
        if lost != "lost 0" {
            return Err(format!("locks were lost while they were held: {lost}").into());
        }
        holder.wait(CHILD_LIMIT)?;
        let each = |bytes: u64| bytes.saturating_sub(empty) as f64 / LOCKS as f64;
        samples.push("held.calls", calls as f64);
        samples.push("held.cpu", share * 100.0);
        samples.push("held.taken", each(taken));
        samples.push("held.bytes", each(renewed.max(taken)));
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        report.line(
            "held",
            "10,000 locks: renewal calls a period",
            "held.calls",
            "calls",
            Some(Bar::AtMost(100.0)),
        );
        report.line("held", "10,000 locks: processor time", "held.cpu", "% of a core", Some(Bar::Below(2.0)));
        report.line("held", "10,000 locks: memory each, just taken", "held.taken", "bytes", None);
        let bar = Some(Bar::Below(1024.0));
        report.line("held", "10,000 locks: memory each, after renewals", "held.bytes", "bytes", bar);
    }
}
