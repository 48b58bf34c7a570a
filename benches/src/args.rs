//! The command line.

use std::path::PathBuf;

use crate::{
    child::Job,
    options::{NAMES, Options},
    outcome::Outcome,
};

pub(crate) const HELP: &str = "\
Measures locks against their limits, all in one run, and says which bars they clear.

Usage: redlatch-benches [--quick] [--rounds N] [--only NAME…] [--json FILE] [--engine FILE]

  --quick        short slices and a shorter lease: for trying things out, not for figures to keep
  --rounds N     how often everything is measured; medians are reported (default 3)
  --only NAME…   these sections only: pair, multi, memory, local, handoff, fair, latency, held, contention, kinds,
                 cluster, failover, told, dead, java (needs Java and Maven; the only one that is not run unless named)
  --json FILE    write the figures, round by round, to a file
  --engine FILE  the redlatch command to serve local: with, instead of this program itself

Ends with 0 when every bar is cleared, 1 when one is missed, 2 when something could not be measured.
";

/// What this process is for.
pub(crate) enum Mode {
    Help,
    Bench(Options),
    /// Another process of a benchmark.
    Child(Job),
    /// The daemon behind `local:`, as a client starts it.
    Engine {
        dir: PathBuf,
    },
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Outcome<Mode> {
    let mut args = args.peekable();
    match args.peek().map(String::as_str) {
        Some("engine") => {
            let dir = args.skip_while(|arg| arg != "--dir").nth(1);
            return Ok(Mode::Engine { dir: dir.ok_or("the engine needs --dir")?.into() });
        }
        Some("child") => return Ok(Mode::Child(Job::parse(args.skip(1))?)),
        _ => {}
    }
    let mut options = Options { quick: false, rounds: 3, only: Vec::new(), json: None, engine: None };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(Mode::Help),
            "--quick" => options.quick = true,
            "--rounds" => {
                options.rounds =
                    value()?.parse().ok().filter(|n| (1..=99).contains(n)).ok_or("--rounds takes 1 to 99")?
            }
            "--json" => options.json = Some(value()?.into()),
            "--engine" => options.engine = Some(value()?.into()),
            "--only" => {
                options.only.push(value()?);
                while let Some(name) = args.next_if(|arg| !arg.starts_with('-')) {
                    options.only.push(name);
                }
            }
            _ => return Err(format!("what is {arg}? See --help").into()),
        }
    }
    if let Some(name) = options.only.iter().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(format!("there is no section {name}; there are {}", NAMES.join(", ")).into());
    }
    if options.only.is_empty() {
        // Java and its packages are asked of nobody who did not ask for them.
        let names = NAMES.iter().filter(|name| **name != "java");
        options.only = names.map(|name| (*name).to_owned()).collect();
    }
    Ok(Mode::Bench(options))
}
