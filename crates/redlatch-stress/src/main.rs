//! Processes that use every kind of lock at random while things happen to them, and an oracle outside of the library.

mod bed;
mod clock;
mod exhaust;
mod explore;
mod judge;
mod mix;
mod plan;
mod record;
mod rng;
mod round;
mod sim;
mod soak;
mod worker;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use self::{bed::Outcome, judge::Expect};

/// Looks for two valid holders, silent losses and locks that nobody gets.
#[derive(Debug, Parser)]
#[command(name = "redlatch-stress")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs rounds for some time.
    Run(plan::Plan),
    /// Runs the same tasks in simulated time over a simulated network; a seed repeats its run exactly.
    Simulate(sim::Plan),
    /// Goes through what can happen between a few tasks, systematically.
    Explore(explore::Plan),
    /// Does everything a great many times, and looks what is left behind.
    Soak(soak::Plan),
    /// Goes through everything that can happen between three owners and the scripts.
    Exhaust(exhaust::Plan),
    /// Judges histories, of this program or of any client that writes the same lines (docs/reliability.md, *Histories*): exits with 0 if nothing is wrong, with 1 if
    /// something is, with 2 if a line is none.
    Check(Check),
    /// One process of a round; started by the others.
    #[command(hide = true)]
    Worker { order: PathBuf },
    /// The local engine of a soak; started by it.
    #[command(hide = true)]
    SoakEngine { dir: PathBuf },
}

fn main() -> ExitCode {
    let outcome = match Args::parse().verb {
        Verb::Run(plan) => plan.run(),
        Verb::Simulate(plan) => plan.run(),
        Verb::Explore(plan) => plan.run(),
        Verb::Soak(plan) => plan.run(),
        Verb::SoakEngine { dir } => soak::serve(&dir),
        Verb::Exhaust(plan) => plan.run(),
        Verb::Check(check) => check.run(),
        Verb::Worker { order } => worker::run(&order).map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("redlatch-stress: {error}");
            ExitCode::from(2)
        }
    }
}

#[derive(Debug, clap::Args)]
struct Check {
    /// Files, one of each process, or folders, of which those files count that end in `.log`.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// How many permits each semaphore has; without it they are not counted.
    #[arg(long, default_value_t = 0)]
    capacity: u32,
    /// All renewals were answered in time, so no renewed hold may expire.
    #[arg(long)]
    nothing_expires: bool,
    /// Nobody deleted anything, so no renewed hold may vanish.
    #[arg(long)]
    nothing_vanishes: bool,
}

impl Check {
    fn run(self) -> Outcome<bool> {
        let Check { paths, capacity, nothing_expires, nothing_vanishes } = self;
        let verdict = judge::judge(
            &paths,
            &Expect { capacity, nothing_expires, nothing_vanishes, ..Expect::default() },
        )?;
        for violation in &verdict.violations {
            println!("{violation}");
        }
        println!("{} holds, {} lost, {} violations", verdict.holds, verdict.lost, verdict.violations.len());
        Ok(verdict.violations.is_empty())
    }
}
