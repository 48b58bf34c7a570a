//! What can happen between a few tasks, gone through systematically: the real library and the real scripts in simulated time, and each
//! choice that tasks, the network and time have, with few of them off the usual way at first.

mod call;
mod choice;
mod network;
mod oracle;
mod program;
mod run;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use self::{
    choice::Frontier,
    network::Server,
    program::Program,
    run::{Bounds, Outcome},
};

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// Only this program, such as `Pa u | 1:P. u`; all that are known unless set.
    #[arg(long)]
    program: Option<Program>,
    /// Only the programs that are written out, and not those that are generated.
    #[arg(long)]
    table: bool,
    #[command(flatten)]
    bounds: Bounds,
    /// How often a run leaves the usual way at most.
    #[arg(long, default_value_t = 6)]
    off: usize,
    /// Runs of each program at most. When a level has more runs than are left, a sample of it is run.
    #[arg(long, default_value_t = 1_500)]
    max_executions: usize,
    /// Begins no further program after this time.
    #[arg(long)]
    seconds: Option<u64>,
    /// Goes on with a program after a violation, and tells the first of each kind.
    #[arg(long)]
    all: bool,
    /// Tells one run: its choices, as a violation names them.
    #[arg(long, value_parser = choices)]
    choices: Option<Choices>,
    /// Programs at the same time; one for each core unless set.
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Debug, Clone)]
struct Choices(Vec<u8>);

fn choices(text: &str) -> Result<Choices, String> {
    let numbers = text.split(',').filter(|part| !part.is_empty()).map(str::parse);
    numbers.collect::<Result<_, _>>().map(Choices).map_err(|_| "choices are numbers, as in 0,0,2".to_owned())
}

#[derive(Debug, Default)]
struct Sum {
    programs: usize,
    exhausted: usize,
    executions: usize,
    steps: u64,
    calls: u64,
    excused: usize,
    violations: usize,
    differing: usize,
    /// How many programs have had all runs that leave the usual way less often than this.
    levels: BTreeMap<usize, usize>,
}

fn kind(violation: &str) -> String {
    violation.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default().to_owned()
}

impl Plan {
    /// `true` if there was no violation.
    pub(crate) fn run(self) -> crate::bed::Outcome<bool> {
        let begin = Instant::now();
        if let (Some(program), Some(Choices(list))) = (&self.program, &self.choices) {
            let outcome = run::run(&Server::start()?, program, self.bounds, list, true);
            println!("{}", outcome.story);
            println!("{}", outcome.violation.as_deref().unwrap_or("no violation"));
            return Ok(outcome.violation.is_none());
        }
        let programs = match &self.program {
            Some(program) => vec![program.clone()],
            None if self.table => program::table(),
            None => [program::table(), program::generated()].concat(),
        };
        let next = AtomicUsize::new(0);
        let sum = Mutex::new(Sum::default());
        let threads = self.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let over = || self.seconds.is_some_and(|seconds| begin.elapsed() > Duration::from_secs(seconds));
        let failed: Mutex<Option<String>> = Mutex::new(None);
        thread::scope(|scope| {
            for _ in 0..threads.min(programs.len()) {
                scope.spawn(|| {
                    while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if over() {
                            return;
                        }
                        if let Err(error) = self.explore(program, &sum) {
                            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                        }
                    }
                });
            }
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error.into());
        }
        let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{} of {} programs ({} exhausted), {} executions, {} steps, {} calls, {:.0} executions and {:.0} steps per s; {seconds:.1} s; \
             {} excused; violations: {}",
            sum.programs,
            programs.len(),
            sum.exhausted,
            sum.executions,
            sum.steps,
            sum.calls,
            sum.executions as f64 / seconds,
            sum.steps as f64 / seconds,
            sum.excused,
            sum.violations
        );
        println!("programs by how often their runs left the usual way, all such runs done: {:?}", sum.levels);
        if sum.differing > 0 {
            println!("runs that did not repeat: {}", sum.differing);
        }
        Ok(sum.violations == 0 && sum.differing == 0)
    }

    fn explore(&self, program: &Program, sum: &Mutex<Sum>) -> crate::bed::Outcome<()> {
        let server = Server::start()?;
        let mut frontier = Frontier::new(self.max_executions, self.off);
        let mut own = Sum { programs: 1, ..Sum::default() };
        let mut seen = Vec::new();
        while let Some(list) = frontier.next() {
            let outcome = run::run(&server, program, self.bounds, &list, false);
            own.executions += 1;
            own.steps += outcome.steps;
            own.calls += outcome.calls;
            own.excused += usize::from(outcome.excused);
            own.differing += usize::from(outcome.chooser.differs);
            if let Some(violation) = &outcome.violation {
                own.violations += 1;
                if !seen.contains(&kind(violation)) {
                    seen.push(kind(violation));
                    self.tell(&server, program, &outcome, own.executions);
                }
                if !self.all {
                    break;
                }
                continue;
            }
            frontier.extend(&outcome.chooser);
        }
        own.exhausted = usize::from(frontier.is_exhausted());
        *own.levels.entry(frontier.whole_levels()).or_default() += 1;
        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
        sum.programs += own.programs;
        sum.exhausted += own.exhausted;
        sum.executions += own.executions;
        sum.steps += own.steps;
        sum.calls += own.calls;
        sum.excused += own.excused;
        sum.violations += own.violations;
        sum.differing += own.differing;
        for (level, programs) in own.levels {
            *sum.levels.entry(level).or_default() += programs;
        }
        Ok(())
    }

    /// Tells a run again.
    fn tell(&self, server: &std::sync::Arc<Server>, program: &Program, outcome: &Outcome, executions: usize) {
        let list = outcome.chooser.list();
        let again = run::run(server, program, self.bounds, &list, true);
        let list: Vec<_> = list.iter().map(u8::to_string).collect();
        let Bounds { held, passes, cancels } = self.bounds;
        println!(
            "program `{}`, execution {executions}: {}\n{}\nrepeat with: scripts/explore --program '{}' --held {held} --passes {passes} \
             --cancels {cancels} --choices {}\n",
            program.text,
            outcome.violation.as_deref().unwrap_or_default(),
            again.story,
            program.text,
            list.join(",")
        );
        if again.violation != outcome.violation {
            println!("the repeat came to {:?}\n", again.violation);
        }
    }
}
