//! Several locks as one: a set of eight names against pairs of one name on the same client.

use redlatch::{Client, Lock, MultiLock};

use super::pairs;
use crate::{
    bed::{Bed, locks},
    measure::{self, Stop},
    outcome::Outcome,
    proc::cpu_ns,
    report::{Bar, Report, Samples, median},
};

/// How many names the set has.
const MEMBERS: usize = 8;

pub(crate) struct Multi {
    _client: Client,
    set: MultiLock,
    single: Lock,
}

impl Multi {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Multi> {
        let client = bed.client(&bed.server.url()).await?;
        let set = MultiLock::new(locks(&client, "multi:{set}", MEMBERS))?;
        Ok(Multi { set, single: client.lock("bench:multi:single"), _client: client })
    }

    pub(crate) async fn round(&mut self, bed: &Bed, round: usize, samples: &mut Samples) -> Outcome<()> {
        let (mut ours, mut theirs) = (Vec::with_capacity(bed.slices), Vec::with_capacity(bed.slices));
        let (mut counts, mut cpu) = ([0, 0], [0, 0]);
        for slice in 0..bed.slices {
            for turn in 0..2 {
                let at = (turn + slice + round) % 2;
                let before = cpu_ns(bed.server.pid())?;
                let rate = if at == 0 {
                    measure::run(1, bed.slice, |_, stop| sets(self.set.clone(), stop)).await?
                } else {
                    measure::run(1, bed.slice, |_, stop| pairs(self.single.clone(), stop)).await?
                };
                cpu[at] += cpu_ns(bed.server.pid())? - before;
                counts[at] += rate.count;
                if at == 0 { &mut ours } else { &mut theirs }.push(rate.per_second());
            }
        }
        let (set_us, pair_us) = (1e6 / median(&ours), 1e6 / median(&theirs));
        samples.push("multi.set", set_us);
        samples.push("multi.two", 2.0 * pair_us);
        samples.push("multi.share", set_us / (2.0 * pair_us));
        samples.push("multi.set.cpu", cpu[0] as f64 / 1e3 / counts[0] as f64);
        samples.push("multi.two.cpu", 2.0 * cpu[1] as f64 / 1e3 / counts[1] as f64);
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        report.line("multi", "1 task: lock and unlock 8 names as one", "multi.set", "µs", None);
        report.line("multi", "1 task: two pairs of one name", "multi.two", "µs", None);
        report.line("multi", "8 names over two pairs", "multi.share", "", Some(Bar::AtMost(1.0)));
        report.line("multi", "8 names, in the server", "multi.set.cpu", "µs", None);
        report.line("multi", "two pairs, in the server", "multi.two.cpu", "µs", None);
    }
}

async fn sets(set: MultiLock, stop: Stop) -> Outcome<u64> {
    let mut count = 0;
    while !stop.is_set() {
        set.lock().await?.unlock().await.into_result()?;
        count += 1;
    }
    Ok(count)
}
