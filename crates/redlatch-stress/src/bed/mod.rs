//! Where a round runs: the servers, the way to them, and what can happen to both.

mod clock;
mod cluster;
mod fake_sentinel;
mod java;
mod local;
mod memory;
mod quorum;
mod sentinel;
mod single;

use std::{path::Path, time::Duration};

use redlatch::scripts::Script;
use redlatch_testkit::redisson::Connection;

use crate::{
    mix::{Mix, Numbers},
    record::Log,
    rng::Rng,
    worker::Order,
};

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A store of one sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Store {
    /// One Redis, with a network that delays.
    Single,
    /// The daemon of this user.
    Local,
    /// The engine in one process with several clients.
    Memory,
    /// A master, its replicas and their sentinels.
    Sentinel,
    /// Two servers and sentinels that say what the round wants.
    FakeSentinel,
    Cluster,
    /// One Redis that Redisson uses, too.
    Java,
    /// Three servers, most of which have to agree.
    Quorum,
}

/// A round: where it is run, what happens, and who takes part.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    pub(crate) store: Store,
    pub(crate) mix: Mix,
    pub(crate) seed: u64,
    pub(crate) time: Duration,
    pub(crate) processes: usize,
    pub(crate) tasks: usize,
    /// So many times the names of the mix.
    pub(crate) spread: u64,
    /// Redisson uses the same names besides.
    pub(crate) java: bool,
}

/// Whether a script gives a hold back or undoes a grant.
pub(crate) fn ends_a_hold(script: &Script) -> bool {
    ["release", "undo"].iter().any(|word| script.name().contains(word))
}

/// A store in use.
pub(crate) trait Bed {
    /// Fills in where a process of that index finds the store.
    fn address(&self, process: usize, order: &mut Order);

    /// Something happens to the servers or the network; called every few ms, with the time since the processes are ready.
    fn trouble(&mut self, rng: &mut Rng, log: &Log, since: Duration) -> Outcome<()>;

    /// Nothing happens any more.
    fn heal(&mut self, log: &Log) -> Outcome<()>;

    /// Locks that are held though nobody is there, in words.
    fn left(&self) -> Outcome<Vec<String>>;

    /// How Java reaches the servers, where it can.
    fn java(&self) -> Option<Connection> {
        None
    }

    /// All clients are in one process.
    fn is_one_process(&self) -> bool {
        false
    }

    /// No data is lost and no lock is deleted.
    fn keeps_data(&self) -> bool {
        true
    }
}

/// Starts the store of a round. What uses it besides its processes writes a log into the folder.
pub(crate) fn start(round: &Round, numbers: &Numbers, dir: &Path) -> Outcome<Box<dyn Bed>> {
    let &Round { store, mix, processes, .. } = round;
    let bed: Box<dyn Bed> = match store {
        Store::Single => Box::new(single::Single::start(mix, numbers, processes)?),
        Store::Local => Box::new(local::Local::start()?),
        Store::Memory => Box::new(memory::Memory),
        Store::Sentinel => Box::new(sentinel::Sentinel::start(mix)?),
        Store::FakeSentinel => Box::new(fake_sentinel::FakeSentinel::start(mix, processes)?),
        Store::Cluster => Box::new(cluster::Cluster::start(mix)?),
        Store::Quorum => Box::new(quorum::Quorum::start()?),
        Store::Java => Box::new(java::Java::start(numbers, processes, dir)?),
    };
    Ok(if round.java { Box::new(java::WithJava::start(bed, numbers, dir)?) } else { bed })
}
