//! Speed and memory of the locks, side by side with their limits, in one run; see the README beside this crate.

mod args;
mod bed;
mod child;
mod engine;
mod measure;
mod options;
mod outcome;
mod proc;
mod raw;
mod report;
mod sections;

use std::{process::ExitCode, time::Instant};

use crate::{args::Mode, bed::Bed, options::Options, outcome::Outcome, report::Report, sections::Section};

/// As many workers as the machine that the published figures come from has cores.
const WORKERS: usize = 2;

fn main() -> ExitCode {
    match args::parse(std::env::args().skip(1)).and_then(start) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("redlatch-benches: {error}");
            ExitCode::from(2)
        }
    }
}

fn start(mode: Mode) -> Outcome<ExitCode> {
    // The daemon makes a runtime of its own, so it must not be run inside of one.
    if let Mode::Engine { dir } = &mode {
        return engine::run(dir).map(|()| ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        match mode {
            Mode::Help => {
                print!("{}", args::HELP);
                Ok(ExitCode::SUCCESS)
            }
            Mode::Child(job) => child::run(job).await.map(|()| ExitCode::SUCCESS),
            Mode::Bench(options) => bench(options).await,
            Mode::Engine { .. } => unreachable!("the engine was run above"),
        }
    })
}

async fn bench(options: Options) -> Outcome<ExitCode> {
    let started = Instant::now();
    let bed = Bed::make(&options).await?;
    let mut report = Report::default();
    let mut sections = Vec::new();
    for name in &options.only {
        sections.push(Section::open(name, &bed).await?);
    }
    for round in 0..options.rounds {
        for section in &mut sections {
            let begun = Instant::now();
            section.round(&bed, round, &mut report.samples).await?;
            let took_s = begun.elapsed().as_secs_f64();
            eprintln!("round {} of {}: {} ({took_s:.1} s)", round + 1, options.rounds, section.name());
        }
    }
    for section in &sections {
        section.judge(&mut report);
    }
    report.describe(&options, started.elapsed());
    print!("{}", report.table());
    if let Some(file) = &options.json {
        std::fs::write(file, report.json()?)?;
    }
    Ok(if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
