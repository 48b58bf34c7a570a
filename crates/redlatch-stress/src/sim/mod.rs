//! The same tasks and the same oracle, with everything but the library simulated: the network, the server's process and time.
//!
//! One thread runs one simulation. Its time is tokio's paused clock, so a run takes as long as its work and none of its waits, and
//! whatever is random follows from the seed, in the library as well. A seed therefore repeats its run exactly, which
//! [`Outcome::trace`] shows.

mod left;
mod network;
mod one_server;
mod redis;
mod run;
mod server;
mod stage;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use self::run::{Outcome, Scene, SetStage};
pub(crate) use self::server::{bytes, reply};
use clap::ValueEnum as _;

use crate::mix::Mix;

/// The mixes that are about locks alone, and not about the servers around them.
const MIXES: [Mix; 8] =
    [Mix::All, Mix::Turns, Mix::Twice, Mix::Heirs, Mix::Late, Mix::Fresh, Mix::Handed, Mix::Walks];

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Setting {
    /// The lock logic, with every message of the store lost, late or out of order.
    Store,
    /// The connections as well: one simulated Redis.
    Redis,
    /// A master with replicas, and sentinels.
    Sentinel,
    /// Three masters with replicas.
    Cluster,
    /// A master with replicas, and an operator who changes them.
    Replicated,
}

impl Setting {
    /// What its tasks do, seed after seed: as many for each setting.
    fn mixes(self) -> &'static [Mix; 8] {
        match self {
            Setting::Store => &MIXES,
            Setting::Redis => &[
                Mix::All,
                Mix::Restarts,
                Mix::Fresh,
                Mix::Twice,
                Mix::Late,
                Mix::Superseded,
                Mix::Handed,
                Mix::Walks,
            ],
            Setting::Sentinel | Setting::Cluster | Setting::Replicated => &[
                Mix::All,
                Mix::Failovers,
                Mix::Superseded,
                Mix::Fresh,
                Mix::Failovers,
                Mix::Superseded,
                Mix::Handed,
                Mix::Restarts,
            ],
        }
    }

    fn stage(self) -> SetStage {
        match self {
            Setting::Store => one_server::set,
            Setting::Redis => redis::single,
            Setting::Sentinel => redis::sentinel,
            Setting::Cluster => redis::cluster,
            Setting::Replicated => redis::replicated,
        }
    }
}

const PROCESSES: usize = 3;
const TASKS: usize = 3;

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// What is simulated.
    #[arg(long, value_enum, default_value_t = Setting::Store)]
    on: Setting,
    /// The seeds to run: one, or the first and the last as in `1-100`.
    #[arg(long, default_value = "1-100", value_parser = range)]
    seeds: (u64, u64),
    /// How long each run is, in simulated seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only this mix; the seed chooses it unless set.
    #[arg(long)]
    mix: Option<Mix>,
    #[arg(long, default_value_t = PROCESSES)]
    processes: usize,
    /// Tasks of each process.
    #[arg(long, default_value_t = TASKS)]
    tasks: usize,
    /// How long a task pauses between two deeds, as in `100-400`; the mix says it unless set. More seeds with fewer deeds cost the same time.
    #[arg(long, value_parser = range)]
    pause_ms: Option<(u64, u64)>,
    /// Runs every seed twice and compares.
    #[arg(long)]
    twice: bool,
    /// Ends with the first seed that has a violation.
    #[arg(long)]
    first: bool,
    /// Prints each call to the server with a key in which this occurs, and the lines of the logs in which it occurs.
    #[arg(long)]
    calls: Option<String>,
    /// Runs at the same time; one for each core unless set.
    #[arg(long)]
    threads: Option<usize>,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err("one number, or a range like 1-100".into()),
    }
}

/// What all runs came to.
#[derive(Debug, Default)]
struct Sum {
    runs: u64,
    grants: usize,
    losses: usize,
    excused: usize,
    counts: BTreeMap<&'static str, u64>,
    seeds: Vec<u64>,
    kinds: BTreeMap<&'static str, usize>,
    differing: Vec<u64>,
}

impl Plan {
    /// `true` if there was no violation, and every repeat was the same.
    pub(crate) fn run(self) -> crate::bed::Outcome<bool> {
        let begin = Instant::now();
        let next = AtomicU64::new(self.seeds.0);
        let sum = Mutex::new(Sum::default());
        let threads = self.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed > self.seeds.1 {
                            return;
                        }
                        let outcome = run::run(self.scene(seed), self.on.stage());
                        let differs =
                            self.twice && run::run(self.scene(seed), self.on.stage()).trace != outcome.trace;
                        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                        self.count(&mut sum, seed, &outcome, differs);
                        if self.first && !sum.seeds.is_empty() {
                            next.store(u64::MAX - 1_000, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
        let seconds = begin.elapsed().as_secs_f64();
        let simulated = Duration::from_secs(sum.runs * self.seconds).as_secs_f64();
        let counts: Vec<String> = sum.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        println!(
            "{} runs of {} s: {} grants, {} holds lost, {} excused, {}; {seconds:.1} s, {:.0} simulated s in one; violations: {:?}",
            sum.runs,
            self.seconds,
            sum.grants,
            sum.losses,
            sum.excused,
            counts.join(", "),
            simulated / seconds,
            sum.kinds
        );
        if !sum.seeds.is_empty() {
            println!("seeds with violations: {:?}", sum.seeds);
        }
        if !sum.differing.is_empty() {
            println!("seeds whose repeat differed: {:?}", sum.differing);
        }
        Ok(sum.seeds.is_empty() && sum.differing.is_empty())
    }

    fn scene(&self, seed: u64) -> Scene {
        Scene {
            seed,
            mix: self.mix.unwrap_or(self.on.mixes()[seed as usize % MIXES.len()]),
            time: Duration::from_secs(self.seconds),
            processes: self.processes,
            tasks: self.tasks,
            pause_ms: self.pause_ms,
            told: self.calls.clone(),
        }
    }

    fn count(&self, sum: &mut Sum, seed: u64, outcome: &Outcome, differs: bool) {
        sum.runs += 1;
        sum.grants += outcome.verdict.holds;
        sum.losses += outcome.verdict.lost;
        sum.excused += outcome.verdict.excused;
        for (what, count) in &outcome.counts {
            *sum.counts.entry(what).or_default() += count;
        }
        if differs {
            sum.differing.push(seed);
        }
        let violations = &outcome.verdict.violations;
        let Some(first) = violations.first() else { return };
        sum.seeds.push(seed);
        for violation in violations {
            *sum.kinds.entry(violation.kind).or_default() += 1;
        }
        let mix = self.scene(seed).mix;
        println!(
            "seed {seed} ({mix:?}, trace {:016x}): {} violations\n{first}\n",
            outcome.trace,
            violations.len()
        );
        println!("repeat with: scripts/simulate {}\n", self.of_one(seed));
    }

    /// The options that repeat one seed.
    fn of_one(&self, seed: u64) -> String {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map_or_else(String::new, |value| value.get_name().to_owned())
        };
        let on = name(self.on.to_possible_value());
        let mut options = format!("--on {on} --seeds {seed} --seconds {}", self.seconds);
        if let Some(mix) = self.mix {
            options += &format!(" --mix {}", name(mix.to_possible_value()));
        }
        if (self.processes, self.tasks) != (PROCESSES, TASKS) {
            options += &format!(" --processes {} --tasks {}", self.processes, self.tasks);
        }
        if let Some((least, most)) = self.pause_ms {
            options += &format!(" --pause-ms {least}-{most}");
        }
        options
    }
}
