//! What a soak runs on: the store, two runtimes, the clients that last, and what it keeps on purpose.

use std::{thread, time::Duration};

use redlatch::{Client, Guard};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};

use super::{
    figures::Figures,
    loads::Users,
    place::{Place, Store},
    process,
};
use crate::bed::Outcome;

/// Threads of the runtime that the loads run on.
const WORKERS: usize = 2;
const LEAK_BYTES: usize = 6 << 20;

/// What is kept on purpose with each part of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Leak {
    /// A guard that is never dropped, until the server watches its key.
    Guard,
    /// A client that stays open.
    Client,
    /// A task that waits for a lock that nobody gives back.
    Waiter,
    /// A task on the runtime that renews.
    Task,
    /// 6 MiB here, and 6 MiB and a thread where the locks live.
    Memory,
}

/// A runtime of one thread for what clients do in the background. It stands in for the thread that each would have, whose tasks cannot
/// be counted from outside.
struct Background {
    handle: tokio::runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Background {
    fn start() -> Outcome<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("background".into()).spawn(move || {
            // Either way it is over.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Background { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Default)]
struct Kept {
    guards: Vec<Guard>,
    clients: Vec<Client>,
    bytes: Vec<Vec<u8>>,
}

pub(super) struct Bed {
    place: Place,
    pub(super) users: Users,
    kept: Kept,
    pub(super) runtime: Runtime,
    /// Behind all that uses it.
    background: Background,
}

impl Bed {
    pub(super) fn start(store: Store) -> Outcome<Self> {
        let place = Place::start(store)?;
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
        let background = Background::start()?;
        let builder = place.builder().background_on(background.handle.clone());
        let hasty = builder.clone().turn_time(Duration::ZERO);
        let users = runtime.block_on(async {
            Ok::<_, redlatch::Error>(Users {
                patient: builder.connect().await?,
                hasty: [hasty.clone().connect().await?, hasty.connect().await?],
                more: [place.builder(), place.builder_apart()],
            })
        })?;
        Ok(Bed { place, users, kept: Kept::default(), runtime, background })
    }

    /// Measures everything once.
    pub(super) fn look(&mut self) -> Outcome<Figures> {
        let mut figures = Figures::default();
        let pid = std::process::id();
        // First, because the other questions take memory, too.
        figures.bytes("live", process::live_bytes())?;
        figures.bytes("resident", process::resident_bytes(pid)?)?;
        figures.count("descriptors", process::descriptors(pid)?)?;
        figures.count("threads", process::threads(pid)?)?;
        figures.count("tasks", self.runtime.metrics().num_alive_tasks() as u64)?;
        figures
            .count("tasks in the background", self.background.handle.metrics().num_alive_tasks() as u64)?;
        let stats = [&self.users.patient, &self.users.hasty[0], &self.users.hasty[1]].map(Client::stats);
        let sum = |of: fn(&redlatch::Stats) -> usize| stats.iter().map(of).sum::<usize>() as u64;
        figures.count("names", sum(|stats| stats.names))?;
        figures.count("in line", sum(|stats| stats.in_line))?;
        figures.count("jobs", sum(|stats| stats.background_jobs))?;
        self.runtime.block_on(self.place.look(&self.users.patient, &mut figures))?;
        Ok(figures)
    }

    /// Keeps something more on purpose.
    pub(super) fn leak(&mut self, leak: Leak, number: u64) -> Outcome<()> {
        let users = &self.users;
        match leak {
            Leak::Guard => {
                let lock = users.patient.lock(format!("soak:kept:{number}"));
                let watched = self.place.watches_more_than(None)?;
                self.kept.guards.push(self.runtime.block_on(lock.lock())?);
                self.place.watches_more_than(Some(watched))?;
            }
            Leak::Client => {
                let client = self.runtime.block_on(self.place.builder().connect())?;
                let lock = client.lock(format!("soak:client:{number}"));
                let guard = self.runtime.block_on(lock.lock())?;
                self.runtime.block_on(guard.unlock())?;
                self.kept.clients.push(client);
            }
            Leak::Waiter => {
                let name = format!("soak:wanted:kept:{number}");
                self.kept.guards.push(self.runtime.block_on(users.patient.lock(name.as_str()).lock())?);
                for _ in 0..2 {
                    let lock = users.hasty[0].lock(name.as_str());
                    self.runtime.spawn(async move { lock.lock().await.map(drop) });
                }
            }
            Leak::Task => drop(self.background.handle.spawn(std::future::pending::<()>())),
            Leak::Memory => {
                self.kept.bytes.push(vec![1; LEAK_BYTES]);
                self.place.leak(number)?;
            }
        }
        Ok(())
    }
}
