//! Reliability bars: each measures one figure from outside of the library and compares it with a bar. Each has a control, an
//! unprotected variant that the same measure has to find wanting.
//!
//! `redlatch-bars run N` ends with 0 if bar N was met and with 1 if not. `run N --control` ends with 0 if the control failed, as it
//! has to. `scripts/bars/` has a script for each.

mod bars;
mod common;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// A bar ends by itself long before that; what hangs is a failure, too.
const RUN_LIMIT: Duration = Duration::from_secs(590);
/// Could not be measured: neither met nor missed.
const BROKEN: u8 = 2;

#[derive(Parser)]
#[command(about = "Measures one reliability bar and prints one line")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures bar N.
    Run {
        /// The number of the bar.
        number: u32,
        /// Runs the unprotected variant, and ends with 0 only if it is found wanting.
        #[arg(long)]
        control: bool,
    },
    /// A process that a bar starts, stops and kills.
    #[command(hide = true)]
    Worker {
        /// The bar it belongs to.
        number: u32,
        /// What the bar tells it.
        args: Vec<String>,
    },
    /// The numbers of the bars that this program measures.
    List,
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::Run { number, control } => run(number, control),
        Command::Worker { number, args } => match bars::work(number, &args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("worker of bar {number:02}: {e}");
                ExitCode::from(BROKEN)
            }
        },
        Command::List => {
            for bar in bars::BARS {
                println!("{:02}  {}", bar.number, bar.title);
            }
            ExitCode::SUCCESS
        }
    }
}

fn run(number: u32, control: bool) -> ExitCode {
    let Some(bar) = bars::BARS.iter().find(|bar| bar.number == number) else {
        eprintln!("no bar {number}");
        return ExitCode::from(BROKEN);
    };
    let title = bar.title;
    std::thread::spawn(move || {
        std::thread::sleep(RUN_LIMIT);
        println!("bar {number:02}  {title}: no result within {} s: not met", RUN_LIMIT.as_secs());
        // Servers and workers have watchers that end them with this process.
        std::process::exit(i32::from(BROKEN));
    });
    redlatch_testkit::stall::watch();
    match (bar.run)(control) {
        Ok(verdict) if control => {
            let found = !verdict.met;
            let word = if found { "found to fail, as it has to" } else { "NOT FOUND to fail" };
            println!("bar {number:02} control  {title}: {}: {word}", verdict.figure);
            if found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Ok(verdict) => {
            let word = if verdict.met { "met" } else { "NOT MET" };
            println!("bar {number:02}  {title}: {}: {word}", verdict.figure);
            if verdict.met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(e) => {
            println!("bar {number:02}  {title}: could not be measured: {e}");
            ExitCode::from(BROKEN)
        }
    }
}
