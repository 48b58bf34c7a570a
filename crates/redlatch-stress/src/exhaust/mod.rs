//! Every interleaving of the shipped scripts between three owners: each call answered, lost, on its way or repeated, with crashes, time, and
//! what Redisson does to the same keys. Each world is gone on from once, and an oracle outside of the scripts looks at it.

mod fair;
mod fair_rules;
mod keyspace;
mod lock;
mod multi;
mod mutants;
mod permits;
mod plain;
mod read_write;
mod read_write_rules;
mod scripts;
mod search;
mod semaphore;
mod server;
mod world;

use std::{thread, time::Instant};

use self::{
    fair::Fair,
    lock::Owners,
    multi::Multi,
    permits::Permits,
    plain::Plain,
    read_write::ReadWrite,
    scripts::{Mutant, Texts},
    search::{Bounds, Found, search},
    semaphore::Semaphore,
    world::TICK_MS,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Only this model.
    #[arg(long)]
    model: Option<String>,
    /// Steps from the beginning at most.
    #[arg(long, default_value_t = 1_000)]
    depth: usize,
    /// A model goes no deeper when it has found so many worlds.
    #[arg(long, default_value_t = 400_000)]
    worlds: usize,
    /// Takes each listed line of the scripts in turn for another one, and looks whether the models find it.
    #[arg(long)]
    mutants: bool,
    /// Only these mutants, with their stories.
    #[arg(long)]
    mutant: Vec<usize>,
    /// Does not hold each call against what it is to do, but only against what must hold whatever it does: shows what of the changed
    /// lines that finds alone.
    #[arg(long)]
    without_rules: bool,
    /// Threads; one for each core unless set.
    #[arg(long)]
    threads: Option<usize>,
}

const MODELS: &[&str] = &[
    "plain",
    "plain-java",
    "transfer",
    "multi",
    "multi-java",
    "semaphore",
    "permits",
    "permits-java",
    "fair",
    "fair-java",
    "fair-calm",
    "fair-java-calm",
    "read-write",
    "read-write-java",
];

/// How long permits last once that is bounded: no whole number of ticks.
const LIFE_MS: i64 = 2 * TICK_MS + TICK_MS / 2;
/// Two that find what the scripts and those who call them are known to leave open. They run when they are named.
const KNOWN: &[&str] = &["permits-last-ms", "fair-java-forgotten"];

fn run_model(name: &str, mutant: Option<&Mutant>, bounds: Bounds) -> Result<Found, String> {
    let texts = Texts::with(mutant)?;
    let ours = Owners { java: false };
    let java = Owners { java: true };
    match name {
        "plain" => search(&Plain { owners: ours, fenced: false, transfers: false }, texts, bounds),
        "plain-java" => search(&Plain { owners: java, fenced: true, transfers: false }, texts, bounds),
        "transfer" => search(&Plain { owners: ours, fenced: true, transfers: true }, texts, bounds),
        "multi" => search(&Multi { owners: ours }, texts, bounds),
        "multi-java" => search(&Multi { owners: java }, texts, bounds),
        "semaphore" => search(&Semaphore, texts, bounds),
        "permits" => search(&Permits { java: false, life_ms: LIFE_MS }, texts, bounds),
        "permits-java" => search(&Permits { java: true, life_ms: LIFE_MS }, texts, bounds),
        "fair" => search(&Fair { owners: ours, has_faults: true, recounts: true }, texts, bounds),
        "fair-java" => search(&Fair { owners: java, has_faults: true, recounts: true }, texts, bounds),
        "fair-calm" => search(&Fair { owners: ours, has_faults: false, recounts: true }, texts, bounds),
        "fair-java-calm" => search(&Fair { owners: java, has_faults: false, recounts: true }, texts, bounds),
        "read-write" => search(&ReadWrite { owners: ours }, texts, bounds),
        "read-write-java" => search(&ReadWrite { owners: java }, texts, bounds),
        "permits-last-ms" => search(&Permits { java: false, life_ms: 3 * TICK_MS }, texts, bounds),
        "fair-java-forgotten" => {
            search(&Fair { owners: java, has_faults: true, recounts: false }, texts, bounds)
        }
        other => Err(format!("there is no model {other}, but {}", [MODELS, KNOWN].concat().join(", "))),
    }
}

impl Plan {
    /// `true` if nothing was found that should not be, or all mutants were.
    pub(crate) fn run(self) -> crate::bed::Outcome<bool> {
        let threads = self.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let bounds =
            Bounds { depth: self.depth, worlds: self.worlds, threads, has_rules: !self.without_rules };
        if self.mutants || !self.mutant.is_empty() {
            return self.run_mutants(bounds);
        }
        let mut good = true;
        let (mut transitions, mut worlds, mut ran, begin) = (0, 0, 0, Instant::now());
        let named = self.model.as_deref().into_iter().filter(|name| !MODELS.contains(name));
        for name in MODELS.iter().copied().filter(|name| self.is_meant(name)).chain(named) {
            let found = run_model(name, None, bounds)?;
            println!(
                "{name}: {} worlds, {} transitions, {} steps deep{}; {} scripts run on {} keyspaces; {:.1} s",
                found.worlds,
                found.transitions,
                found.depth,
                if found.is_whole { ", whole" } else { "" },
                found.ran,
                found.keyspaces,
                found.took.as_secs_f64()
            );
            transitions += found.transitions;
            worlds += found.worlds;
            ran += found.ran;
            if let Some(story) = found.story {
                println!("{story}");
                good = false;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        let speed = transitions as f64 / seconds;
        println!(
            "{worlds} worlds, {transitions} transitions, {ran} scripts run; {seconds:.1} s, {speed:.0} transitions per s"
        );
        Ok(good)
    }

    fn is_meant(&self, name: &str) -> bool {
        self.model.as_deref().is_none_or(|only| only == name)
    }

    fn run_mutants(&self, bounds: Bounds) -> crate::bed::Outcome<bool> {
        let all = mutants::list()?;
        // Each has to fit, though only some are run.
        for mutant in &all {
            Texts::with(Some(mutant))?;
        }
        let listed = |mutant: &&Mutant| self.mutant.is_empty() || self.mutant.contains(&mutant.number);
        let chosen: Vec<_> =
            all.iter().filter(listed).filter(|mutant| self.is_meant(&mutant.model)).collect();
        // What is wrong without them says nothing of them.
        for name in MODELS.iter().filter(|name| chosen.iter().any(|mutant| mutant.model == **name)) {
            if let Some(story) = run_model(name, None, bounds)?.story {
                println!("{name} finds something in the scripts as they are:\n{story}");
                return Ok(false);
            }
        }
        let (mut run, mut survived, mut transitions, begin) = (0, Vec::new(), 0, Instant::now());
        for mutant in chosen {
            let found = run_model(&mutant.model, Some(mutant), bounds)?;
            run += 1;
            transitions += found.transitions;
            let Mutant { number, script, before, after, model } = mutant;
            let told = found.story.as_deref().and_then(|story| story.lines().last()).map(str::trim);
            if told.is_some_and(|told| told.contains("Error compiling")) {
                return Err(format!("mutant {number} of {script} is no Lua: {before} -> {after}").into());
            }
            println!(
                "{number:>3} {model}: {script}: `{before}` -> `{after}`\n      {} ({} steps, {} transitions)",
                told.unwrap_or("SURVIVED"),
                found.depth,
                found.transitions
            );
            if found.story.is_none() {
                survived.push(*number);
            } else if !self.mutant.is_empty() {
                println!("{}", found.story.unwrap_or_default());
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{} of {run} mutants found, {transitions} transitions; {seconds:.1} s; survived: {survived:?}",
            run - survived.len()
        );
        Ok(survived.is_empty() && run > 0)
    }
}
