//! One process: tasks and threads that use locks, and write down when they certainly held them.

mod answers;
mod ask;
pub(crate) mod board;
mod deeds;
mod handing;
pub(crate) mod kind;
mod pass;
pub(crate) mod phase;
mod task;
mod threads;
mod walk;

use std::{
    io::{BufRead as _, Write as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{Client, Owner, blocking};
use serde::{Deserialize, Serialize};

use self::{
    board::Board,
    kind::CAPACITY,
    phase::{Phase, Phases},
    task::Task,
};
use crate::{
    mix::{Mix, Numbers},
    record::Log,
    rng::Rng,
};

/// How long a process tries to connect.
const CONNECT_MAX: Duration = Duration::from_secs(40);
/// How many runtimes the tasks of a process are spread over; each has a connection of its own.
const RUNTIMES: usize = 2;

/// What the parent tells a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The process, as it is called in the logs.
    pub(crate) process: String,
    pub(crate) url: String,
    /// Where the other members of a quorum are.
    pub(crate) members: Vec<String>,
    pub(crate) log: PathBuf,
    pub(crate) mix: Mix,
    pub(crate) seed: u64,
    pub(crate) tasks: usize,
    /// So many times the names of the mix.
    pub(crate) spread: u64,
    /// How many clients the process has: more than one where nobody else can come to the store.
    pub(crate) clients: usize,
    pub(crate) engine_dir: Option<PathBuf>,
    pub(crate) engine_binary: Option<PathBuf>,
    /// Grants count when all replicas have them.
    pub(crate) acknowledged: bool,
}

/// An owner that several acquires use.
#[derive(Debug, Clone)]
struct Pooled {
    owner: Owner,
    label: String,
}

/// What the tasks of one client share.
struct Worker {
    process: String,
    client: Client,
    blocking: blocking::Client,
    /// The clients of a quorum, this one's first.
    members: Vec<Client>,
    log: Arc<Log>,
    owners: Vec<Pooled>,
    numbers: Numbers,
    acknowledged: bool,
    /// Where processes leave holds to each other.
    board: Board,
    phases: Phases,
    next: AtomicU64,
}

impl Worker {
    fn is_over(&self) -> bool {
        self.phases.is_over()
    }

    /// A word for an owner that nobody used before.
    fn fresh_label(&self, task: &str) -> String {
        format!("{}.{task}.{}", self.process, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// Does what the order says until a line comes from the parent, or its end.
pub(crate) fn run(order: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let order: Order = serde_json::from_slice(&std::fs::read(order)?)?;
    let log = Arc::new(Log::create(&order.log)?);
    let numbers = order.mix.numbers().spread(order.spread);
    let phases = Phases::default();
    let mut runtimes = Vec::new();
    for _ in 0..RUNTIMES {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        runtimes.push(builder.worker_threads(1).enable_all().build()?);
    }
    let mut workers = Vec::new();
    for at in 0..order.clients {
        let blocking = connected(&order, &order.url, &numbers)?;
        let client = blocking.as_async().clone();
        let mut members = vec![client.clone()];
        for url in &order.members {
            members.push(connected(&order, url, &numbers)?.as_async().clone());
        }
        let process =
            if order.clients > 1 { format!("{}c{at}", order.process) } else { order.process.clone() };
        let owners = pool(&client, &process, &numbers)?;
        workers.push(Arc::new(Worker {
            process,
            client,
            blocking,
            members,
            log: log.clone(),
            owners,
            numbers: numbers.clone(),
            acknowledged: order.acknowledged,
            board: Board::Folder(order.log.with_file_name("left")),
            phases: phases.clone(),
            next: AtomicU64::new(0),
        }));
    }
    if let Some(worker) = workers.first() {
        runtimes[0].block_on(async {
            for at in 0..numbers.names {
                if !order.members.is_empty() {
                    break;
                }
                // The first worker sets them; the others find them set.
                let _ = worker.client.permit_semaphore(format!("permits{at}")).set_if_absent(CAPACITY).await;
            }
        });
    }
    println!("ready");
    std::io::stdout().flush()?;
    {
        let phases = phases.clone();
        std::thread::spawn(move || {
            // A line, or the end of the parent.
            let _ = std::io::stdin().lock().lines().next();
            phases.set(Phase::Over);
        });
    }
    let answers = match order.mix {
        Mix::Slow => Some(answers::watch(&order.url, &log, &phases)?),
        _ => None,
    };
    let mut running = Vec::new();
    let mut threads: Vec<_> = answers.into_iter().collect();
    for (client, worker) in workers.iter().enumerate() {
        for at in 0..order.tasks {
            let rng = Rng::new(order.seed.wrapping_mul(0x1_0001).wrapping_add((client * 1_000 + at) as u64));
            let (worker, label) = (worker.clone(), format!("t{client}{at:02}"));
            if at < numbers.threads {
                threads.push(std::thread::spawn(move || threads::work(&worker, &label, rng)));
            } else {
                let task = Task { worker, label, rng, at };
                running.push(runtimes[at % RUNTIMES].spawn(task.work()));
            }
        }
    }
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")?;
    }
    runtimes[0].block_on(async {
        for task in running {
            task.await?;
        }
        Ok::<_, tokio::task::JoinError>(())
    })?;
    println!("done");
    std::io::stdout().flush()?;
    // What was dropped goes on in the background, and nobody waits for a process that ends.
    let begin = Instant::now();
    while workers.iter().any(|worker| worker.client.stats().background_jobs > 0)
        && begin.elapsed() < Duration::from_secs(10)
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A process of a simulation.
pub(crate) struct Simulated<'a> {
    pub(crate) process: &'a str,
    pub(crate) numbers: &'a Numbers,
    pub(crate) log: &'a Arc<Log>,
    pub(crate) seed: u64,
    pub(crate) tasks: usize,
    pub(crate) phases: &'a Phases,
    pub(crate) board: &'a Board,
}

/// The tasks of one client, on the runtime of the caller.
pub(crate) fn simulated(
    client: Client,
    simulated: &Simulated<'_>,
) -> Result<Vec<tokio::task::JoinHandle<()>>, redlatch::Error> {
    let Simulated { process, numbers, log, seed, tasks, phases, board } = simulated;
    let worker = Arc::new(Worker {
        process: (*process).to_owned(),
        blocking: blocking::Client::of(client.clone()),
        members: vec![client.clone()],
        log: Arc::clone(log),
        owners: pool(&client, process, numbers)?,
        numbers: Numbers::clone(numbers),
        acknowledged: numbers.acknowledged,
        board: Board::clone(board),
        phases: Phases::clone(phases),
        next: AtomicU64::new(0),
        client,
    });
    let spawn = |at: usize| {
        let rng = Rng::new(seed.wrapping_mul(0x1_0001).wrapping_add(at as u64));
        tokio::spawn(Task { worker: worker.clone(), label: format!("t{at:02}"), rng, at }.work())
    };
    Ok((0..*tasks).map(spawn).collect())
}

fn connected(order: &Order, url: &str, numbers: &Numbers) -> Result<blocking::Client, redlatch::Error> {
    let begin = Instant::now();
    loop {
        let mut builder = Client::builder()
            .url(url)
            .watchdog_lease(Duration::from_millis(numbers.lease_ms))
            .response_timeout(Duration::from_millis(numbers.response_ms))
            .outage_tolerance(Duration::from_secs(5));
        if let Some(dir) = &order.engine_dir {
            builder = builder.engine_dir(dir);
        }
        if let Some(binary) = &order.engine_binary {
            builder = builder.engine_binary(binary);
        }
        if !order.members.is_empty() {
            // Members of a quorum count while their servers are down.
            return builder.connect_lazy().map(blocking::Client::of);
        }
        match blocking::Client::build(builder) {
            Err(_) if begin.elapsed() < CONNECT_MAX => std::thread::sleep(Duration::from_millis(50)),
            outcome => return outcome,
        }
    }
}

/// Owners of every sort: known to this process only, written out, and read back.
fn pool(client: &Client, process: &str, numbers: &Numbers) -> Result<Vec<Pooled>, redlatch::Error> {
    let mut owners = Vec::new();
    for at in 0..numbers.owners {
        let owner = client.owner();
        let owner = match at % 6 {
            4 => {
                let _ = owner.to_text();
                owner
            }
            5 => owner.to_text().parse()?,
            _ => owner,
        };
        owners.push(Pooled { owner, label: format!("{process}.o{at}") });
    }
    Ok(owners)
}
