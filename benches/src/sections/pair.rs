//! Locking and unlocking locks that nobody else wants, against the same scripts without us and against Redisson's.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redlatch::{Client, Lock};

use crate::{
    bed::{Bed, locks, name},
    measure::{self, Rate, Stop},
    outcome::Outcome,
    proc::cpu_ns,
    raw::{self, Bare, RedissonShaped},
    report::{Bar, Report, Samples, median},
};

const TASKS: [usize; 3] = [1, 64, 1024];
const TASKS_MAX: usize = 1024;

#[derive(Clone, Copy)]
enum Contender {
    Ours,
    Raw,
    RawUntimed,
    Redisson,
}

const CONTENDERS: [Contender; 4] =
    [Contender::Ours, Contender::Raw, Contender::RawUntimed, Contender::Redisson];

impl Contender {
    fn key(self, tasks: usize) -> String {
        let name = match self {
            Contender::Ours => "ours",
            Contender::Raw => "raw",
            Contender::RawUntimed => "raw-untimed",
            Contender::Redisson => "redisson",
        };
        format!("pair.{tasks}.{name}")
    }

    fn words(self) -> &'static str {
        match self {
            Contender::Ours => "redlatch",
            Contender::Raw => "RAW",
            Contender::RawUntimed => "RAW without a time limit",
            Contender::Redisson => "REDISSON-SHAPED, bare",
        }
    }
}

pub(crate) struct Pair {
    _client: Client,
    ours: Vec<Lock>,
    bare: Vec<Arc<Bare>>,
    redisson: Vec<Arc<RedissonShaped>>,
    limited: MultiplexedConnection,
    untimed: MultiplexedConnection,
}

impl Pair {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Pair> {
        let client = bed.client(&bed.server.url()).await?;
        let mut limited = bed.raw_limited().await?;
        raw::load(&mut limited).await?;
        let pair = Pair {
            ours: locks(&client, "ours", TASKS_MAX),
            _client: client,
            bare: (0..TASKS_MAX).map(|index| Bare::new(&name("bare", index), index + 1)).collect(),
            redisson: (0..TASKS_MAX)
                .map(|index| RedissonShaped::new(&name("java", index), index + 1))
                .collect(),
            limited,
            untimed: bed.raw(None).await?,
        };
        for tasks in TASKS {
            for contender in CONTENDERS {
                pair.slice(bed, contender, tasks).await?;
            }
        }
        Ok(pair)
    }

    async fn slice(&self, bed: &Bed, contender: Contender, tasks: usize) -> Outcome<Rate> {
        match contender {
            Contender::Ours => ours(&self.ours, bed, tasks).await,
            Contender::Raw => {
                let connection = &self.limited;
                measure::run(tasks, bed.slice, |at, stop| {
                    self.bare[at].clone().pairs(connection.clone(), stop)
                })
                .await
            }
            Contender::RawUntimed => {
                let connection = &self.untimed;
                measure::run(tasks, bed.slice, |at, stop| {
                    self.bare[at].clone().pairs(connection.clone(), stop)
                })
                .await
            }
            Contender::Redisson => {
                let connection = &self.limited;
                measure::run(tasks, bed.slice, |at, stop| {
                    self.redisson[at].clone().pairs(connection.clone(), stop)
                })
                .await
            }
        }
    }

    pub(crate) async fn round(&mut self, bed: &Bed, round: usize, samples: &mut Samples) -> Outcome<()> {
        let processes = [std::process::id(), bed.server.pid()];
        for tasks in TASKS {
            let mut rates = CONTENDERS.map(|_| Vec::with_capacity(bed.slices));
            let mut counts = CONTENDERS.map(|_| 0);
            let mut cpu = CONTENDERS.map(|_| [0, 0]);
            for slice in 0..bed.slices {
                for turn in 0..CONTENDERS.len() {
                    // Nobody always follows the same contender.
                    let at = (turn + slice + round) % CONTENDERS.len();
                    let before = [cpu_ns(processes[0])?, cpu_ns(processes[1])?];
                    let rate = self.slice(bed, CONTENDERS[at], tasks).await?;
                    for (side, process) in processes.iter().enumerate() {
                        cpu[at][side] += cpu_ns(*process)? - before[side];
                    }
                    counts[at] += rate.count;
                    rates[at].push(rate.per_second());
                }
            }
            for (at, contender) in CONTENDERS.iter().enumerate() {
                let key = contender.key(tasks);
                samples.push(format!("{key}.client"), cpu[at][0] as f64 / 1e3 / counts[at] as f64);
                samples.push(format!("{key}.server"), cpu[at][1] as f64 / 1e3 / counts[at] as f64);
                samples.push(key, median(&rates[at]));
            }
        }
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        for tasks in TASKS {
            let plural = if tasks == 1 { "task" } else { "tasks" };
            for contender in CONTENDERS {
                let (what, key) = (format!("{tasks} {plural}: {}", contender.words()), contender.key(tasks));
                report.line("pair", &what, &key, "pairs/s", None);
                report.line(
                    "pair",
                    format!("{what}, processor time here"),
                    &format!("{key}.client"),
                    "µs a pair",
                    None,
                );
                report.line(
                    "pair",
                    format!("{what}, in the server"),
                    &format!("{key}.server"),
                    "µs a pair",
                    None,
                );
            }
            let ours = Contender::Ours.key(tasks);
            let bar = Bar::AtLeast(if tasks == 1 { 0.90 } else { 0.75 });
            let what = format!("{tasks} {plural}: redlatch over RAW");
            report.ratio("pair", what, (&ours, &Contender::Raw.key(tasks)), Some(bar));
            let bar = (tasks == TASKS_MAX).then_some(Bar::AtLeast(1.0));
            let what = format!("{tasks} {plural}: redlatch over REDISSON-SHAPED");
            report.ratio("pair", what, (&ours, &Contender::Redisson.key(tasks)), bar);
        }
    }
}

/// One slice of our own locks, one for each task.
pub(super) async fn ours(locks: &[Lock], bed: &Bed, tasks: usize) -> Outcome<Rate> {
    measure::run(tasks, bed.slice, |at, stop| pairs(locks[at].clone(), stop)).await
}

pub(crate) async fn pairs(lock: Lock, stop: Stop) -> Outcome<u64> {
    let mut count = 0;
    while !stop.is_set() {
        lock.lock().await?.unlock().await?;
        count += 1;
    }
    Ok(count)
}
