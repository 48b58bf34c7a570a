//! The embedded engine: inside this process, and as a daemon against redis-server over the same kind of socket.

use redlatch::{Client, Lock};

use super::pair::{ours, pairs};
use crate::{
    bed::{Bed, locks},
    measure,
    outcome::Outcome,
    proc::cpu_ns,
    report::{Bar, Report, Samples, median},
};

const TASKS: [usize; 3] = [1, 8, 64];
const TASKS_MAX: usize = 64;
/// Two equal things never measure equal on a machine with other work.
pub(super) const NOISE: f64 = 0.05;

pub(crate) struct Memory {
    _client: Client,
    lock: Lock,
}

impl Memory {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Memory> {
        let client = bed.client("memory:").await?;
        Ok(Memory { lock: client.lock("bench:memory"), _client: client })
    }

    pub(crate) async fn round(&mut self, bed: &Bed, _: usize, samples: &mut Samples) -> Outcome<()> {
        let (own, mut rates, mut count) = (std::process::id(), Vec::with_capacity(bed.slices), 0);
        let before = cpu_ns(own)?;
        for _ in 0..bed.slices {
            let rate = measure::run(1, bed.slice, |_, stop| pairs(self.lock.clone(), stop)).await?;
            rates.push(rate.per_second());
            count += rate.count;
        }
        samples.push("memory.cpu", (cpu_ns(own)? - before) as f64 / 1e3 / count as f64);
        samples.push("memory.us", 1e6 / median(&rates));
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        report.line("memory", "1 task: time a pair", "memory.us", "µs", Some(Bar::AtMost(10.0)));
        report.line("memory", "1 task: processor time", "memory.cpu", "µs a pair", None);
    }
}

pub(crate) struct Local {
    _clients: [Client; 2],
    /// Locks on the local engine, and on redis-server over its unix socket.
    locks: [Vec<Lock>; 2],
}

const STORES: [(&str, &str); 2] = [("local", "local:"), ("unix", "redis-server, unix socket")];

impl Local {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Local> {
        let clients = [bed.client("local:").await?, bed.client(&bed.server.unix_url()).await?];
        let locks = [locks(&clients[0], "local", TASKS_MAX), locks(&clients[1], "unix", TASKS_MAX)];
        for tasks in TASKS {
            for locks in &locks {
                ours(locks, bed, tasks).await?;
            }
        }
        Ok(Local { _clients: clients, locks })
    }

    pub(crate) async fn round(&mut self, bed: &Bed, round: usize, samples: &mut Samples) -> Outcome<()> {
        let processes = [bed.engine_pid()?, bed.server.pid()];
        for tasks in TASKS {
            let mut rates = STORES.map(|_| Vec::with_capacity(bed.slices));
            let (mut counts, mut cpu) = ([0, 0], [0, 0]);
            for slice in 0..bed.slices {
                for turn in 0..2 {
                    let at = (turn + slice + round) % 2;
                    let before = cpu_ns(processes[at])?;
                    let rate = ours(&self.locks[at], bed, tasks).await?;
                    cpu[at] += cpu_ns(processes[at])? - before;
                    counts[at] += rate.count;
                    rates[at].push(rate.per_second());
                }
            }
            for (at, (store, _)) in STORES.iter().enumerate() {
                let key = format!("local.{tasks}.{store}");
                samples.push(format!("{key}.cpu"), cpu[at] as f64 / 1e3 / counts[at] as f64);
                samples.push(key, median(&rates[at]));
            }
        }
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        for tasks in TASKS {
            let plural = if tasks == 1 { "task" } else { "tasks" };
            for (store, words) in STORES {
                let (what, key) = (format!("{tasks} {plural}: {words}"), format!("local.{tasks}.{store}"));
                report.line("local", &what, &key, "pairs/s", None);
                report.line(
                    "local",
                    format!("{what}, in the server"),
                    &format!("{key}.cpu"),
                    "µs a pair",
                    None,
                );
            }
            let keys = (format!("local.{tasks}.local"), format!("local.{tasks}.unix"));
            let bar = Bar::AtLeastWithin(1.0, NOISE);
            report.ratio(
                "local",
                format!("{tasks} {plural}: local: over redis-server"),
                (&keys.0, &keys.1),
                Some(bar),
            );
        }
    }
}
