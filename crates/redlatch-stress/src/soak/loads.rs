//! What is done a great many times. Each load leaves nothing behind when it has ended: every key goes with its lock. So there are no
//! fencing tokens, semaphores and latches here, whose keys are meant to stay.

use std::{sync::Arc, time::Duration};

use redlatch::{AnyGuard as _, Client, ClientBuilder, Lease, Lock, Wait, kinds::LockMarker};

use super::LEASE;
use crate::bed::Outcome;

/// How many tasks go through names and pairs.
const TASKS: usize = 64;
/// How many tasks wait for each other: four for each name.
const CONTENDERS: usize = 16;
/// How many clients are open at a time.
const CLIENTS_TOGETHER: usize = 8;
/// How long one waits who gives up.
const PATIENCE: Duration = Duration::from_millis(1);
/// How long a lock is held until its key is watched; the library begins with that after a second at the latest.
const HOLD_TIME: Duration = Duration::from_secs(1);
/// How long a client may take to end in order.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Load {
    /// Names that are used once.
    Names,
    /// Locks and unlocks of a few names.
    Pairs,
    /// Grants of locks that tasks of several clients want.
    Grants,
    /// Clients that are opened and dropped.
    Clients,
    /// Locks that are held until the server watches their keys.
    Holds,
}

impl Load {
    pub(super) const ALL: [Load; 5] = [Load::Names, Load::Pairs, Load::Grants, Load::Clients, Load::Holds];

    /// How often it is done at the full scale.
    pub(super) fn full(self) -> u64 {
        match self {
            Load::Names | Load::Pairs => 1_000_000,
            Load::Grants => 100_000,
            Load::Clients => 1_000,
            Load::Holds => 8_000,
        }
    }

    /// How often it is done before the baseline is taken, if so much of it is done in a part: as much as has all tasks meet, and takes as
    /// much memory at a time as later.
    pub(super) fn warm_up(self, part: u64) -> u64 {
        let least = match self {
            Load::Names | Load::Pairs | Load::Grants => 4 * TASKS as u64,
            Load::Clients | Load::Holds => 2 * CLIENTS_TOGETHER as u64,
        };
        least.max(part)
    }
}

/// The clients that last, and where more come from.
#[derive(Clone)]
pub(super) struct Users {
    /// Passes a lock on among its own tasks.
    pub(super) patient: Client,
    /// These give every lock to the server, so that the others get it from there.
    pub(super) hasty: [Client; 2],
    /// Builders of clients that do not last, used in turn.
    pub(super) more: [ClientBuilder; 2],
}

impl Users {
    /// Does a load with the numbers of the range, and ends when nothing of it is under way here.
    pub(super) async fn run(&self, load: Load, numbers: std::ops::Range<u64>) -> Outcome<()> {
        let users = Arc::new(self.clone());
        match load {
            Load::Names => share(numbers, TASKS, move |number, _| users.clone().once(number)).await,
            Load::Pairs => share(numbers, TASKS, move |number, task| users.clone().pair(number, task)).await,
            Load::Grants => {
                share(numbers, CONTENDERS, move |number, task| users.clone().grant(number, task)).await
            }
            Load::Clients => {
                let busy = users.patient.lock("soak:busy").lock().await?;
                share(numbers, CLIENTS_TOGETHER, move |number, _| users.clone().client(number)).await?;
                busy.unlock().await?;
                Ok(())
            }
            Load::Holds => {
                // All at the same time.
                let tasks = usize::try_from(numbers.end - numbers.start)?;
                share(numbers, tasks, move |number, _| users.clone().hold(number)).await
            }
        }
    }

    /// Has each client wait for another one, and leave something to the background, so that all connections are there that it may need.
    pub(super) async fn meet(&self) -> Outcome<()> {
        let clients = [&self.patient, &self.hasty[0], &self.hasty[1]];
        for at in 0..clients.len() {
            let lock = clients[(at + 1) % clients.len()].lock("soak:meeting");
            let guard = clients[at].lock("soak:meeting").lock().await?;
            let dropped = tokio::time::timeout(PATIENCE, lock.lock()).await;
            if dropped.is_ok() {
                return Err("two have the same lock".into());
            }
            let (granted, unlocked) = tokio::join!(lock.lock(), async {
                tokio::time::sleep(PATIENCE).await;
                guard.unlock().await
            });
            unlocked?;
            drop(granted?);
        }
        Ok(())
    }

    /// A name that is never used again.
    async fn once(self: Arc<Self>, number: u64) -> Result<(), redlatch::Error> {
        let (client, name) = (&self.patient, format!("soak:once:{number}"));
        match number % 16 {
            0 => hold(&client.fair_lock(name)).await,
            1 => hold(client.read_write_lock(name).read()).await,
            2 => hold(client.read_write_lock(name).write()).await,
            3 => hold(&client.spin_lock(name)).await,
            4 => hold(&client.non_reentrant_lock(name)).await,
            5 => {
                // Its release goes on in the background.
                drop(client.lock(name).lock().await?);
                // Tasks that are ahead of the background would make a peak of memory, a different one each time.
                while client.stats().background_jobs > TASKS {
                    tokio::time::sleep(PATIENCE).await;
                }
                Ok(())
            }
            _ => hold(&client.lock(name)).await,
        }
    }

    /// A name of the task's own, with both sorts of lease.
    async fn pair(self: Arc<Self>, number: u64, task: usize) -> Result<(), redlatch::Error> {
        let lock = self.patient.lock(format!("soak:pair:{task}"));
        if number.is_multiple_of(2) {
            return hold(&lock).await;
        }
        let fixed = lock.acquire().wait(Wait::Forever).lease(Lease::Fixed(LEASE)).await?;
        if let Some(guard) = fixed {
            guard.unlock().await?;
        }
        Ok(())
    }

    /// A name that other tasks of this client and of another one want.
    async fn grant(self: Arc<Self>, number: u64, task: usize) -> Result<(), redlatch::Error> {
        let client = [&self.patient, &self.hasty[0], &self.hasty[0], &self.hasty[1]][task % 4];
        match (task / 2 % 2, task / 4 % 2) {
            (0, 0) => contend(&client.lock("soak:wanted:0"), number).await,
            (0, _) => contend(&client.fair_lock("soak:wanted:1"), number).await,
            (_, 0) => contend(&client.lock("soak:wanted:2"), number).await,
            (..) => contend(client.read_write_lock("soak:wanted:3").write(), number).await,
        }
    }

    /// A lock that is held until it is watched, and then released or dropped.
    async fn hold(self: Arc<Self>, number: u64) -> Result<(), redlatch::Error> {
        let guard = self.patient.lock(format!("soak:held:{number}")).lock().await?;
        tokio::time::sleep(HOLD_TIME).await;
        if number.is_multiple_of(2) {
            guard.unlock().await?;
        }
        Ok(())
    }

    /// A client that does something and goes in one of the ways in which clients go.
    async fn client(self: Arc<Self>, number: u64) -> Result<(), redlatch::Error> {
        let client = self.more[number as usize % self.more.len()].clone().connect().await?;
        let lock = client.lock(format!("soak:client:{number}"));
        hold(&lock).await?;
        match number / 2 % 4 {
            0 => drop(client.shutdown(SHUTDOWN_LIMIT).await),
            1 => {
                // Its guard outlives it.
                let guard = lock.lock().await?;
                drop((client, lock));
                drop(guard);
            }
            2 => {
                // It waits for a lock and is dropped half-way.
                let busy = client.lock("soak:busy");
                let _given_up = tokio::time::timeout(PATIENCE, busy.lock()).await;
            }
            _ => {}
        }
        Ok(())
    }
}

async fn hold<K: LockMarker>(lock: &Lock<K>) -> Result<(), redlatch::Error> {
    lock.lock().await?.into_guard().unlock().await.map(drop)
}

/// One grant. Others give up beside it, in order or by dropping what waits.
async fn contend<K: LockMarker>(lock: &Lock<K>, number: u64) -> Result<(), redlatch::Error> {
    match number % 16 {
        0 => {
            if let Some(guard) = lock.lock_for(PATIENCE).await? {
                guard.into_guard().unlock().await?;
            }
        }
        8 => drop(tokio::time::timeout(PATIENCE, lock.lock()).await),
        _ => {}
    }
    let guard = lock.lock().await?;
    // The others have a go meanwhile and find it taken.
    tokio::task::yield_now().await;
    guard.into_guard().unlock().await.map(drop)
}

/// Does the work with each number, on so many tasks, each of which has as much to do. The first failure ends them all.
async fn share<F>(
    numbers: std::ops::Range<u64>,
    tasks: usize,
    work: impl Fn(u64, usize) -> F + Clone + Send + 'static,
) -> Outcome<()>
where
    F: Future<Output = Result<(), redlatch::Error>> + Send + 'static,
{
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let (numbers, work) = (numbers.clone().skip(task).step_by(tasks), work.clone());
        running.spawn(async move {
            for number in numbers {
                work(number, task).await?;
            }
            Ok::<(), redlatch::Error>(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}
