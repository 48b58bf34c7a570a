//! Other kinds of locks against the plain one: readers who share a name, and permits that pass from task to task.

use redlatch::{Client, Lock, PermitSemaphore, ReadLock, Semaphore, Wait};

use super::pairs;
use crate::{
    bed::{Bed, locks},
    measure::{self, Rate, Stop},
    outcome::Outcome,
    report::{Bar, Report, Samples, median},
};

const TASKS: usize = 64;

#[derive(Clone, Copy)]
enum Contender {
    /// Plain locks, a name for each task.
    Pairs,
    /// One name, which all tasks read.
    Readers,
    /// One plain lock that goes through the server each time.
    HandOff,
    /// A semaphore of one permit.
    Semaphore,
    /// One leased permit.
    Permit,
}

const CONTENDERS: [Contender; 5] =
    [Contender::Pairs, Contender::Readers, Contender::HandOff, Contender::Semaphore, Contender::Permit];

impl Contender {
    fn key(self) -> &'static str {
        match self {
            Contender::Pairs => "kinds.pairs",
            Contender::Readers => "kinds.readers",
            Contender::HandOff => "kinds.handoff",
            Contender::Semaphore => "kinds.semaphore",
            Contender::Permit => "kinds.permit",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Contender::Pairs => "64 tasks, a plain lock each",
            Contender::Readers => "64 readers of one name",
            Contender::HandOff => "64 tasks, one plain lock, never passed on inside the process",
            Contender::Semaphore => "64 tasks, a semaphore of one permit",
            Contender::Permit => "64 tasks, one leased permit",
        }
    }
}

pub(crate) struct Kinds {
    _clients: [Client; 2],
    plain: Vec<Lock>,
    readers: ReadLock,
    passed: Lock,
    semaphore: Semaphore,
    permits: PermitSemaphore,
}

impl Kinds {
    pub(crate) async fn open(bed: &Bed) -> Outcome<Kinds> {
        let client = bed.client(&bed.server.url()).await?;
        let builder = Client::builder().url(bed.server.url());
        let through = builder.turn_time(std::time::Duration::ZERO).connect().await?;
        let kinds = Kinds {
            plain: locks(&client, "kinds", TASKS),
            readers: client.read_write_lock("bench:kinds:readers").read().clone(),
            passed: through.lock("bench:kinds:passed"),
            semaphore: client.semaphore("bench:kinds:semaphore"),
            permits: client.permit_semaphore("bench:kinds:permits"),
            _clients: [client, through],
        };
        kinds.semaphore.set_if_absent(1, None).await?;
        kinds.permits.set_if_absent(1).await?;
        for contender in CONTENDERS {
            kinds.slice(bed, contender).await?;
        }
        Ok(kinds)
    }

    async fn slice(&self, bed: &Bed, contender: Contender) -> Outcome<Rate> {
        match contender {
            Contender::Pairs => {
                measure::run(TASKS, bed.slice, |at, stop| pairs(self.plain[at].clone(), stop)).await
            }
            Contender::Readers => {
                measure::run(TASKS, bed.slice, |_, stop| reads(self.readers.clone(), stop)).await
            }
            Contender::HandOff => {
                measure::run(TASKS, bed.slice, |_, stop| pairs(self.passed.clone(), stop)).await
            }
            Contender::Semaphore => {
                measure::run(TASKS, bed.slice, |_, stop| takes(self.semaphore.clone(), stop)).await
            }
            Contender::Permit => {
                measure::run(TASKS, bed.slice, |_, stop| leases(self.permits.clone(), stop)).await
            }
        }
    }

    pub(crate) async fn round(&mut self, bed: &Bed, round: usize, samples: &mut Samples) -> Outcome<()> {
        let mut rates = CONTENDERS.map(|_| Vec::with_capacity(bed.slices));
        for slice in 0..bed.slices {
            for turn in 0..CONTENDERS.len() {
                let at = (turn + slice + round) % CONTENDERS.len();
                rates[at].push(self.slice(bed, CONTENDERS[at]).await?.per_second());
            }
        }
        let medians = rates.map(|rates| median(&rates));
        for (at, contender) in CONTENDERS.iter().enumerate() {
            samples.push(contender.key(), medians[at]);
        }
        samples.push("kinds.readers.share", medians[1] / medians[0]);
        samples.push("kinds.semaphore.share", medians[3] / medians[2]);
        samples.push("kinds.permit.share", medians[4] / medians[2]);
        Ok(())
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        for contender in CONTENDERS {
            report.line("kinds", contender.words(), contender.key(), "/s", None);
        }
        report.line("kinds", "readers over plain locks", "kinds.readers.share", "", Some(Bar::AtLeast(0.7)));
        let as_plain = || Some(Bar::AtLeast(1.0));
        report.line("kinds", "semaphore over plain hand-off", "kinds.semaphore.share", "", as_plain());
        report.line("kinds", "leased permit over plain hand-off", "kinds.permit.share", "", as_plain());
    }
}

async fn reads(lock: ReadLock, stop: Stop) -> Outcome<u64> {
    let mut count = 0;
    while !stop.is_set() {
        lock.lock().await?.unlock().await?;
        count += 1;
    }
    Ok(count)
}

async fn takes(semaphore: Semaphore, stop: Stop) -> Outcome<u64> {
    let mut count = 0;
    while !stop.is_set() {
        semaphore.acquire(1).await?;
        semaphore.release(1).await?;
        count += 1;
    }
    Ok(count)
}

async fn leases(permits: PermitSemaphore, stop: Stop) -> Outcome<u64> {
    let mut count = 0;
    while !stop.is_set() {
        let held = permits.request().wait(Wait::Forever).await?;
        held.ok_or("a wait without limit ended")?.release().await?;
        count += 1;
    }
    Ok(count)
}
