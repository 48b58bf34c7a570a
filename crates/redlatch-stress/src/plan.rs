//! Which rounds are run, and what is told of them.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::{
    bed::{Outcome, Round, Store},
    mix::Mix,
    rng::Rng,
    round,
};

/// How long a round runs at least, and at most.
const ROUND_S: (u64, u64) = (6, 25);

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// How long to run, start and end of rounds included.
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Where choices begin; the same seed makes the same choices, though not the same run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One round for each defect that was found once, and one among real sentinels, in about two minutes.
    #[arg(long, conflicts_with_all = ["minutes", "store", "mix", "round"])]
    known: bool,
    /// Only these stores; each in turn unless set.
    #[arg(long, value_delimiter = ',')]
    store: Vec<Store>,
    /// Redisson uses the same names besides, on single, sentinel and cluster.
    #[arg(long, conflicts_with = "known")]
    java: bool,
    /// Only this mix; each in turn unless set.
    #[arg(long)]
    mix: Option<Mix>,
    #[arg(long, default_value_t = 3)]
    processes: usize,
    /// Tasks of each process, some of which are threads.
    #[arg(long, default_value_t = 14)]
    tasks: usize,
    /// So many times the names of a mix: fewer tasks want the same one, so there are more grants and fewer collisions.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    spread: u64,
    /// How long each round runs, in seconds.
    #[arg(long)]
    round: Option<u64>,
    /// Where the logs of rounds with violations are kept.
    #[arg(long)]
    logs: Option<PathBuf>,
    /// Keeps the logs of all rounds.
    #[arg(long)]
    keep: bool,
    /// Ends with the first round that has a violation.
    #[arg(long)]
    first: bool,
}

/// What finds each of the defects that were found once, and for how many seconds: about three times as long as that took; and a round among real
/// sentinels, whose masters change under owners that are used again.
const KNOWN: [(Store, Mix, u64); 10] = [
    (Store::Single, Mix::Passes, 14),
    (Store::Single, Mix::Heirs, 8),
    (Store::Single, Mix::Late, 8),
    (Store::Memory, Mix::Turns, 4),
    (Store::Local, Mix::Twice, 4),
    (Store::Cluster, Mix::ReusedAddress, 10),
    (Store::Sentinel, Mix::Heritage, 14),
    (Store::FakeSentinel, Mix::Superseded, 9),
    (Store::FakeSentinel, Mix::Stale, 14),
    (Store::Single, Mix::Slow, 8),
];

/// The mixes that mean something on a store, in the order in which they are run.
fn mixes(store: Store) -> &'static [Mix] {
    match store {
        Store::Single => &[
            Mix::All,
            Mix::Late,
            Mix::Heirs,
            Mix::Passes,
            Mix::Turns,
            Mix::Walks,
            Mix::Twice,
            Mix::Slow,
            Mix::Restarts,
            Mix::Fresh,
        ],
        Store::Local => &[Mix::All, Mix::Fresh, Mix::Passes, Mix::Turns, Mix::Walks, Mix::Twice],
        Store::Memory => &[Mix::All, Mix::Turns, Mix::Walks, Mix::Twice],
        Store::Sentinel => &[Mix::Failovers, Mix::Heritage],
        Store::FakeSentinel => &[Mix::Superseded, Mix::Stale],
        Store::Cluster => &[Mix::Slots, Mix::ReusedAddress, Mix::Failovers, Mix::All, Mix::Turns, Mix::Walks],
        Store::Quorum => &[Mix::Quorum],
        Store::Java => &[Mix::All, Mix::Fresh, Mix::Turns, Mix::Walks, Mix::Twice, Mix::Late],
    }
}

impl Plan {
    /// `true` if there was no violation.
    pub(crate) fn run(self) -> Outcome<bool> {
        let begin = Instant::now();
        let time = Duration::from_secs_f64(self.minutes * 60.0);
        let stores = match self.store.as_slice() {
            [] => <Store as clap::ValueEnum>::value_variants(),
            stores => stores,
        };
        let share = time.as_secs() / stores.len().max(1) as u64;
        let seconds = share.clamp(ROUND_S.0, ROUND_S.1);
        let turn = |number: usize| {
            if self.known {
                return KNOWN.get(number).copied();
            }
            let store = stores[number % stores.len()];
            let mixes = mixes(store);
            let mix = self.mix.unwrap_or(mixes[number / stores.len() % mixes.len()]);
            let seconds = self.round.unwrap_or(seconds.max(mix.least_s()));
            (begin.elapsed() < time).then_some((store, mix, seconds))
        };
        let logs = match &self.logs {
            Some(logs) => logs.clone(),
            None => std::env::temp_dir().join(format!("redlatch-stress-{}", std::process::id())),
        };
        let mut rng = Rng::new(self.seed);
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut holds, mut operations, mut number) = (0, 0, 0_usize);
        while let Some((store, mix, seconds)) = turn(number) {
            number += 1;
            let seed = if number == 1 { self.seed } else { rng.next() % 1_000_000 };
            let round = Round {
                store,
                mix,
                seed,
                time: Duration::from_secs(seconds),
                processes: self.processes,
                tasks: self.tasks,
                spread: self.spread,
                java: self.java,
            };
            let dir = logs.join(format!("{number:03}"));
            std::fs::create_dir_all(&dir)?;
            let verdict = round::run(&round, &dir)?;
            holds += verdict.holds;
            operations += verdict.operations;
            println!(
                "{:7.1} s  {store:?} {mix:?}, seed {seed}: {} holds, {} lost, {} deeds, {} violations{}",
                begin.elapsed().as_secs_f64(),
                verdict.holds,
                verdict.lost,
                verdict.operations,
                verdict.violations.len(),
                verdict
                    .first_after
                    .map_or(String::new(), |after| format!(", the first after {:.1} s", after.as_secs_f64())),
            );
            if verdict.violations.is_empty() {
                if !self.keep {
                    std::fs::remove_dir_all(&dir)?;
                }
                continue;
            }
            for violation in &verdict.violations {
                *found.entry(violation.kind).or_default() += 1;
                // Of each kind the first few are told in full.
                if violation.story.contains('\n') {
                    println!("\n{violation}\n");
                }
            }
            let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
            for violation in &verdict.violations {
                *kinds.entry(violation.kind).or_default() += 1;
            }
            println!("violations of this round: {kinds:?}");
            println!(
                "repeat with: scripts/stress --store {} --mix {} --seed {seed} --round {seconds}{}; logs in {}",
                word(&store),
                word(&mix),
                if self.java { " --java" } else { "" },
                dir.display()
            );
            if self.first {
                break;
            }
        }
        println!(
            "{holds} holds, {operations} deeds in {:.0} s; violations: {found:?}",
            begin.elapsed().as_secs_f64()
        );
        Ok(found.is_empty())
    }
}

fn word<T: clap::ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
