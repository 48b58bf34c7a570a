//! Locks that nobody else wants on a cluster of three masters, against the same on one server; and how many commands
//! such a lock costs on a server alone, behind sentinels and in a cluster.

use std::{slice::from_ref, sync::Arc};

use redis::aio::MultiplexedConnection;
use redlatch::{Client, Lock};
use redlatch_testkit::{
    server::RedisServer,
    topology::{RedisCluster, SentinelSet},
};

use super::{pair::ours, stores::NOISE};
use crate::{
    bed::{Bed, locks, name},
    measure::{self, Rate},
    outcome::Outcome,
    proc::cpu_ns,
    raw::{self, Bare},
    report::{Bar, Report, Samples, median},
};

const MASTERS: usize = 3;
/// What a master has to do at once decides what it costs: with few tasks, three masters are woken where one is.
const TASKS: [usize; 4] = [8, 64, 1024, 4096];
const TASKS_MAX: usize = 4096;
/// How many of them count commands behind sentinels.
const TASKS_BEHIND_SENTINELS: usize = 64;
/// What a client can send for a pair, or around it; what scripts call in the server has other names. Sentinels and
/// replicas send none of these.
const SENT: [&str; 12] = [
    "eval",
    "evalsha",
    "eval_ro",
    "evalsha_ro",
    "fcall",
    "fcall_ro",
    "asking",
    "multi",
    "wait",
    "subscribe",
    "ssubscribe",
    "script|load",
];

#[derive(Clone, Copy)]
enum Contender {
    Single,
    Cluster,
    RawSingle,
    RawCluster,
}

const CONTENDERS: [Contender; 4] =
    [Contender::Single, Contender::Cluster, Contender::RawSingle, Contender::RawCluster];

impl Contender {
    fn key(self, tasks: usize) -> String {
        let name = match self {
            Contender::Single => "single",
            Contender::Cluster => "cluster",
            Contender::RawSingle => "raw-single",
            Contender::RawCluster => "raw-cluster",
        };
        format!("cluster.{tasks}.{name}")
    }

    fn words(self) -> &'static str {
        match self {
            Contender::Single => "one server",
            Contender::Cluster => "3 masters",
            Contender::RawSingle => "RAW, one server",
            Contender::RawCluster => "RAW, 3 masters",
        }
    }
}

pub(crate) struct Cluster {
    _clients: [Client; 2],
    single: Vec<Lock>,
    cluster: Vec<Lock>,
    bare_single: Vec<Arc<Bare>>,
    bare_cluster: Vec<Arc<Bare>>,
    raw_single: MultiplexedConnection,
    /// One to each master, in the order in which tasks go round them.
    raw_cluster: Vec<MultiplexedConnection>,
    masters: RedisCluster,
}

impl Cluster {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Cluster> {
        let masters = RedisCluster::builder().master_count(MASTERS).replicas_per_master(0).start()?;
        let clients = [bed.client(&bed.server.url()).await?, bed.client(&masters.url()).await?];
        let mut raw_single = bed.raw(None).await?;
        raw::load(&mut raw_single).await?;
        let mut raw_cluster = Vec::with_capacity(MASTERS);
        for node in masters.nodes() {
            let mut connection = bed.raw_to(&node.url(), None).await?;
            raw::load(&mut connection).await?;
            raw_cluster.push(connection);
        }
        let ours_names = spread_names(&masters, "cluster")?;
        let bare_names = spread_names(&masters, "cluster-bare")?;
        let section = Cluster {
            single: locks(&clients[0], "cluster-single", TASKS_MAX),
            cluster: ours_names.into_iter().map(|name| clients[1].lock(name)).collect(),
            bare_single: (0..TASKS_MAX)
                .map(|index| Bare::new(&name("cluster-bare-single", index), index + 1))
                .collect(),
            bare_cluster: (1..).zip(&bare_names).map(|(number, name)| Bare::sharded(name, number)).collect(),
            _clients: clients,
            raw_single,
            raw_cluster,
            masters,
        };
        for tasks in TASKS {
            for contender in CONTENDERS {
                section.slice(bed, contender, tasks).await?;
            }
        }
        Ok(section)
    }

    fn servers<'a>(&'a self, bed: &'a Bed, contender: Contender) -> &'a [RedisServer] {
        match contender {
            Contender::Single | Contender::RawSingle => from_ref(&bed.server),
            Contender::Cluster | Contender::RawCluster => self.masters.nodes(),
        }
    }

    async fn slice(&self, bed: &Bed, contender: Contender, tasks: usize) -> Outcome<Rate> {
        match contender {
            Contender::Single => ours(&self.single, bed, tasks).await,
            Contender::Cluster => ours(&self.cluster, bed, tasks).await,
            Contender::RawSingle => {
                measure::run(tasks, bed.slice, |at, stop| {
                    self.bare_single[at].clone().pairs(self.raw_single.clone(), stop)
                })
                .await
            }
            Contender::RawCluster => {
                measure::run(tasks, bed.slice, |at, stop| {
                    self.bare_cluster[at].clone().pairs(self.raw_cluster[at % MASTERS].clone(), stop)
                })
                .await
            }
        }
    }

    pub(crate) async fn round(&mut self, bed: &Bed, round: usize, samples: &mut Samples) -> Outcome<()> {
        let mut sent = CONTENDERS.map(|_| 0);
        let mut pairs = CONTENDERS.map(|_| 0);
        for tasks in TASKS {
            let mut rates = CONTENDERS.map(|_| Vec::with_capacity(bed.slices));
            let mut counts = CONTENDERS.map(|_| 0);
            let mut cpu = CONTENDERS.map(|_| [0, 0]);
            for slice in 0..bed.slices {
                for turn in 0..CONTENDERS.len() {
                    // Nobody always follows the same contender.
                    let at = (turn + slice + round) % CONTENDERS.len();
                    let servers = self.servers(bed, CONTENDERS[at]);
                    let sent_before = commands(servers)?;
                    let before = [cpu_ns(std::process::id())?, cpu_of(servers)?];
                    let rate = self.slice(bed, CONTENDERS[at], tasks).await?;
                    cpu[at][0] += cpu_ns(std::process::id())? - before[0];
                    cpu[at][1] += cpu_of(servers)? - before[1];
                    sent[at] += commands(servers)? - sent_before;
                    counts[at] += rate.count;
                    rates[at].push(rate.per_second());
                }
            }
            for (at, contender) in CONTENDERS.iter().enumerate() {
                let key = contender.key(tasks);
                let [client, servers] = cpu[at].map(|ns| ns as f64);
                samples.push(format!("{key}.client"), client / 1e3 / counts[at] as f64);
                samples.push(format!("{key}.servers"), servers / 1e3 / counts[at] as f64);
                samples.push(format!("{key}.per-core"), counts[at] as f64 * 1e9 / (client + servers));
                samples.push(key, median(&rates[at]));
                pairs[at] += counts[at];
            }
        }
        for (at, contender) in CONTENDERS.iter().enumerate() {
            match contender {
                Contender::Single => {
                    samples.push("cluster.commands.single", sent[at] as f64 / pairs[at] as f64)
                }
                Contender::Cluster => {
                    samples.push("cluster.commands.cluster", sent[at] as f64 / pairs[at] as f64)
                }
                Contender::RawSingle | Contender::RawCluster => {}
            }
        }
        samples.push("cluster.commands.sentinel", behind_sentinels(bed).await?);
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        for tasks in TASKS {
            for contender in CONTENDERS {
                let (what, key) = (format!("{tasks} tasks: {}", contender.words()), contender.key(tasks));
                report.line("cluster", &what, &key, "pairs/s", None);
                for (part, words, unit) in [
                    ("client", "processor time here", "µs a pair"),
                    ("servers", "in the servers", "µs a pair"),
                    ("per-core", "per core used", "pairs/s"),
                ] {
                    report.line("cluster", format!("{what}, {words}"), &format!("{key}.{part}"), unit, None);
                }
            }
            report.ratio(
                "cluster",
                format!("{tasks} tasks: 3 masters over one server, by the clock"),
                (&Contender::Cluster.key(tasks), &Contender::Single.key(tasks)),
                None,
            );
            let per_core = |contender: Contender| format!("{}.per-core", contender.key(tasks));
            report.ratio(
                "cluster",
                format!("{tasks} tasks: 3 masters over one server, per core used"),
                (&per_core(Contender::Cluster), &per_core(Contender::Single)),
                Some(Bar::AtLeastWithin(1.0, NOISE)),
            );
            report.ratio(
                "cluster",
                format!("{tasks} tasks: RAW on 3 masters over RAW on one server, per core used"),
                (&per_core(Contender::RawCluster), &per_core(Contender::RawSingle)),
                None,
            );
        }
        judge_commands(report);
    }
}

/// What a pair without contention asks of the servers, wherever its lock is.
fn judge_commands(report: &mut Report) {
    for (key, words) in [("single", "one server"), ("sentinel", "behind sentinels"), ("cluster", "3 masters")]
    {
        report.line(
            "cluster",
            format!("commands of an uncontended pair: {words}"),
            &format!("cluster.commands.{key}"),
            "commands",
            Some(Bar::Exactly(2.0)),
        );
    }
}

/// Names of which each master has its share, whatever the first few hash to: name `i` is on node `i % MASTERS`.
fn spread_names(cluster: &RedisCluster, prefix: &str) -> Outcome<Vec<String>> {
    let mut names: [Vec<String>; MASTERS] = Default::default();
    let each = TASKS_MAX.div_ceil(MASTERS);
    for index in 0.. {
        let name = name(prefix, index);
        let owner = cluster.owner_of(cluster.slot_of(&name))?;
        if names[owner].len() < each {
            names[owner].push(name);
        }
        if names.iter().all(|names| names.len() == each) {
            break;
        }
    }
    Ok((0..TASKS_MAX).map(|index| names[index % MASTERS][index / MASTERS].clone()).collect())
}

fn cpu_of(servers: &[RedisServer]) -> Outcome<u64> {
    servers.iter().map(|server| cpu_ns(server.pid())).sum()
}

fn commands(servers: &[RedisServer]) -> Outcome<u64> {
    let mut total = 0;
    for server in servers {
        let counts = server.command_counts()?;
        total += SENT.iter().filter_map(|name| counts.get(*name)).sum::<u64>();
    }
    Ok(total)
}

/// Commands a pair of many tasks whose master was found through sentinels. They are gone afterwards, so that what they
/// say to each other falls into nobody's slices.
async fn behind_sentinels(bed: &Bed) -> Outcome<f64> {
    let set = SentinelSet::start()?;
    let client = bed.client(&set.url()).await?;
    let locks = locks(&client, "sentinel", TASKS_BEHIND_SENTINELS);
    ours(&locks, bed, TASKS_BEHIND_SENTINELS).await?;
    let master = from_ref(set.node(set.master()?));
    let before = commands(master)?;
    let rate = ours(&locks, bed, TASKS_BEHIND_SENTINELS).await?;
    Ok((commands(master)? - before) as f64 / rate.count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_two_commands_wherever_its_lock_is() {
        let fails = |wrong: &str, commands: f64| {
            let mut report = Report::default();
            for key in ["single", "sentinel", "cluster"] {
                let rounds = [2.0, if key == wrong { commands } else { 2.0 }];
                rounds
                    .iter()
                    .for_each(|round| report.samples.push(format!("cluster.commands.{key}"), *round));
            }
            judge_commands(&mut report);
            report.failed()
        };
        for key in ["single", "sentinel", "cluster"] {
            assert!(!fails(key, 2.0) && fails(key, 3.0) && fails(key, 1.99), "{key}");
        }
    }
}
