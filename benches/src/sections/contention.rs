//! What 64 waiters cost when they live in four processes, and whether the processes get equal shares.

use crate::{
    bed::{Bed, CHILD_LIMIT},
    child::Share,
    outcome::Outcome,
    report::{Report, Samples},
};

const PROCESSES: usize = 4;
const WAITERS_EACH: &str = "16";
const NAME: &str = "bench:crowd";
/// A turn lasts some milliseconds, so shares even out only over many of them.
const SLICES: u32 = 20;

pub(crate) struct Contention;

impl Contention {
    pub(crate) async fn round(&mut self, bed: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        let url = bed.server.url();
        let mut crowd = Vec::new();
        for _ in 0..PROCESSES {
            crowd.push(bed.child(&["compete", &url, NAME, WAITERS_EACH, "0"])?);
        }
        let before = bed.commands()?;
        for child in &mut crowd {
            child.write_line("go")?;
        }
        tokio::time::sleep(bed.slice * SLICES).await;
        for child in &mut crowd {
            child.write_line("stop")?;
        }
        let mut counts = Vec::new();
        let mut wait_ms_max: f64 = 0.0;
        for child in &mut crowd {
            let share: Share = serde_json::from_str(&child.read_line(CHILD_LIMIT)?)?;
            counts.push(share.acquisitions as f64);
            wait_ms_max = wait_ms_max.max(share.wait_us_max as f64 / 1e3);
        }
        let commands = bed.commands()? - before;
        for child in &mut crowd {
            child.wait(CHILD_LIMIT)?;
        }
        let all: f64 = counts.iter().sum();
        let squares: f64 = counts.iter().map(|count| count * count).sum();
        samples.push("contention.rate", all / (bed.slice * SLICES).as_secs_f64());
        samples.push("contention.commands", 1e3 * commands as f64 / all);
        samples.push("contention.jain", all * all / (PROCESSES as f64 * squares));
        samples.push("contention.max", wait_ms_max);
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        report.line("contention", "4 processes x 16 waiters", "contention.rate", "hand-offs/s", None);
        report.line("contention", "commands per 1,000 acquisitions", "contention.commands", "commands", None);
        report.line("contention", "evenness over processes (Jain, 1 = even)", "contention.jain", "", None);
        report.line("contention", "longest wait of all", "contention.max", "ms", None);
    }
}
