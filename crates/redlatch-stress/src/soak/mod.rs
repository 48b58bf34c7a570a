//! What a million locks, grants and clients leave behind: nothing. Memory, descriptors, tasks, subscriptions and keys are counted before
//! and after each load.

mod bed;
mod engine;
mod figures;
mod loads;
mod place;
mod process;

use std::{
    thread,
    time::{Duration, Instant},
};

pub(crate) use self::engine::run as serve;
use self::{
    bed::{Bed, Leak},
    figures::{Course, Figures},
    loads::Load,
    place::Store,
};
use crate::bed::Outcome;

/// The lease of everything: what is left behind must not go by itself before it is counted.
const LEASE: Duration = Duration::from_secs(3_600);
/// How often it is looked whether all has come back; there is no event for that.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// For so long nothing may change before the baseline is taken.
const QUIET: Duration = Duration::from_millis(500);
/// How long that may take to come.
const QUIET_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(crate) struct Plan {
    /// How much of the loads is done: 1 for 1,000,000 names, 1,000,000 pairs, 100,000 grants, 1,000 clients and
    /// 8,000 holds.
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    scale: f64,
    #[arg(long, value_enum, default_value_t = Store::Redis)]
    store: Store,
    /// Only this load; all unless set.
    #[arg(long, value_enum)]
    load: Vec<Load>,
    /// In how many parts a load is done, with a look after each.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    parts: u64,
    /// Keeps something with each part of a load, which has to be found.
    #[arg(long, value_enum)]
    leak: Vec<Leak>,
    /// How long what is on its way may take to come back, in seconds.
    #[arg(long, default_value_t = 60)]
    patience: u64,
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse().ok().filter(|scale| *scale > 0.0 && *scale <= 100.0);
    scale.ok_or_else(|| "a scale is above 0, up to 100".to_owned())
}

impl Plan {
    /// `true` if everything came back.
    pub(crate) fn run(self) -> Outcome<bool> {
        process::settle_allocator()?;
        let mut bed = Bed::start(self.store)?;
        let loads = if self.load.is_empty() { Load::ALL.to_vec() } else { self.load.clone() };
        let mut red = Vec::new();
        let mut number = 0;
        for load in loads {
            let each = ((load.full() as f64 * self.scale / self.parts as f64) as u64).max(1);
            let count = each * self.parts;
            bed.runtime.block_on(bed.users.meet())?;
            self.part(&mut bed, load, &mut number, load.warm_up(each))?;
            let before = Self::settled(&mut bed)?;
            let mut course = Course { before, after: Vec::new() };
            let began = Instant::now();
            for _ in 0..self.parts {
                self.part(&mut bed, load, &mut number, each)?;
                for leak in &self.leak {
                    bed.leak(*leak, number)?;
                }
                course.after.push(self.back(&mut bed, &course.before)?);
            }
            let seconds = began.elapsed().as_secs_f64();
            println!("{:?}, {load:?}: {count} in {seconds:.1} s", self.store);
            print!("{course}");
            red.extend(course.strays().into_iter().map(|name| format!("{load:?}: {name}")));
        }
        println!("did not come back: {}", if red.is_empty() { "nothing".to_owned() } else { red.join(", ") });
        Ok(red.is_empty())
    }

    fn part(&self, bed: &mut Bed, load: Load, number: &mut u64, count: u64) -> Outcome<()> {
        let numbers = *number..*number + count;
        *number = numbers.end;
        bed.runtime.block_on(bed.users.run(load, numbers))
    }

    /// What there is when nothing has changed for a while.
    fn settled(bed: &mut Bed) -> Outcome<Figures> {
        let mut figures = bed.look()?;
        let began = Instant::now();
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            if began.elapsed() > QUIET_LIMIT {
                return Err(format!("nothing settles: {figures:?}").into());
            }
            thread::sleep(LOOK_EVERY);
            let now = bed.look()?;
            if !now.counts_as(&figures) {
                since = Instant::now();
            }
            figures = now;
        }
        Ok(figures)
    }

    /// What there is when all has come back, or when it has had the time to.
    fn back(&self, bed: &mut Bed, before: &Figures) -> Outcome<Figures> {
        let began = Instant::now();
        loop {
            let figures = bed.look()?;
            if figures.is_back(before) || began.elapsed() > Duration::from_secs(self.patience) {
                return Ok(figures);
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}
