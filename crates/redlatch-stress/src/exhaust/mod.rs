//! Every interleaving of the shipped scripts between three owners: each call answered, lost, on its way or repeated, with crashes, time, and
//! what Redisson does to the same keys. Each world is gone on from once, and an oracle outside of the scripts looks at it.

mod keyspace;
mod lock;
mod plain;
mod scripts;
mod search;
mod server;
mod world;

use std::thread;

use self::{
    lock::Owners,
    plain::Plain,
    scripts::{Mutant, Texts},
    search::{Bounds, Found, search},
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
    #[arg(long, default_value_t = 300_000)]
    worlds: usize,
    /// Takes each listed line of the scripts in turn for another one, and looks whether the models find it.
    #[arg(long)]
    mutants: bool,
    /// Only this mutant.
    #[arg(long)]
    mutant: Option<usize>,
    /// Threads; one for each core unless set.
    #[arg(long)]
    threads: Option<usize>,
}

const MODELS: &[&str] = &["plain", "plain-java", "transfer"];

fn run_model(name: &str, mutant: Option<&Mutant>, bounds: Bounds) -> Result<Found, String> {
    let texts = Texts::with(mutant)?;
    let ours = Owners { java: false };
    let java = Owners { java: true };
    match name {
        "plain" => search(&Plain { owners: ours, fenced: false, transfers: false }, texts, bounds),
        "plain-java" => search(&Plain { owners: java, fenced: true, transfers: false }, texts, bounds),
        "transfer" => search(&Plain { owners: ours, fenced: true, transfers: true }, texts, bounds),
        other => Err(format!("there is no model {other}, but {}", MODELS.join(", "))),
    }
}

impl Plan {
    /// `true` if nothing was found that should not be, or all mutants were.
    pub(crate) fn run(self) -> crate::bed::Outcome<bool> {
        let threads = self.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let bounds = Bounds { depth: self.depth, worlds: self.worlds, threads };
        let mut good = true;
        for name in MODELS.iter().filter(|name| self.model.as_deref().is_none_or(|only| only == **name)) {
            let found = run_model(name, None, bounds)?;
            println!(
                "{name}: {} worlds, {} transitions, {} steps deep{}, {} scripts run, {} keyspaces, {:.1} s",
                found.worlds,
                found.transitions,
                found.depth,
                if found.is_whole { " (whole)" } else { "" },
                found.ran,
                found.keyspaces,
                found.took.as_secs_f64()
            );
            if let Some(story) = found.story {
                println!("{story}");
                good = false;
            }
        }
        Ok(good)
    }
}
