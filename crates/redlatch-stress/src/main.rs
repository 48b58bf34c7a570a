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

use self::{bed::Outcome, judge::Expect, worker::kind::CAPACITY};

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
    /// Judges the logs in a folder once more.
    Judge { dir: PathBuf },
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
        Verb::Judge { dir } => judged(&dir),
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

fn judged(dir: &std::path::Path) -> Outcome<bool> {
    let verdict = judge::judge(dir, Expect { capacity: CAPACITY, ..Expect::default() })?;
    for violation in &verdict.violations {
        println!("{violation}");
    }
    Ok(verdict.violations.is_empty())
}
