//! One simulation, from its seed to its verdict.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redlatch::{Client, randomness};
use tokio::{
    runtime::{Builder, Handle},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    network::{Cut, Network, Weather},
    server::{MachineClock, Server},
};
use crate::{
    bed, clock,
    judge::{self, Expect, Logs, Verdict, Violation},
    mix::{Deed, Mix, Numbers},
    record::Log,
    rng::Rng,
    worker::{self, Simulated, board::Board, kind::CAPACITY},
};

/// What a clock gains or loses at most, in millionths: half of the margin of a deadline.
const GAIN_PPM_MAX: u64 = 5_000;
/// How long tasks may take to end what they do: each call has a limit of its own.
const DONE_MAX: Duration = Duration::from_secs(60);
/// The longest lease of any hold, and how much later it may be free.
const FREE_MAX: Duration = Duration::from_secs(12);

#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) seed: u64,
    pub(super) mix: Mix,
    pub(super) time: Duration,
    pub(super) processes: usize,
    pub(super) tasks: usize,
    /// The calls with a key in which this occurs are printed.
    pub(super) told: Option<String>,
}

#[derive(Debug)]
pub(super) struct Outcome {
    /// What happened when, as one number.
    pub(super) trace: u64,
    pub(super) calls: u64,
    pub(super) lost: u64,
    pub(super) verdict: Verdict,
}

struct Process {
    /// Its number in the network; one that takes another's place has a new one.
    node: usize,
    client: Client,
    tasks: Vec<JoinHandle<()>>,
}

struct World {
    scene: Scene,
    numbers: Numbers,
    network: Arc<Network>,
    begin: Instant,
    rng: Rng,
    stop: Arc<AtomicBool>,
    board: Board,
    faults: Arc<Log>,
    logs: Vec<(String, Arc<Log>)>,
    processes: Vec<Process>,
}

pub(super) fn run(scene: Scene) -> Outcome {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(simulate(scene)));
    outcome.unwrap_or_else(|error: Box<dyn std::error::Error>| {
        let story = format!("the simulation did not run: {error}");
        let violations = vec![Violation { kind: "no run", story }];
        Outcome { trace: 0, calls: 0, lost: 0, verdict: Verdict { violations, ..Verdict::default() } }
    })
}

/// The numbers of a mix, without what only processes of their own can do.
fn numbers(mix: Mix) -> Numbers {
    let mut numbers = mix.numbers();
    numbers.threads = 0;
    numbers.deeds.retain(|(_, deed)| !matches!(deed, Deed::Pass));
    numbers
}

async fn simulate(scene: Scene) -> bed::Outcome<Outcome> {
    clock::simulate();
    randomness::seed_thread(scene.seed);
    let mut rng = Rng::new(scene.seed);
    let (begin, numbers) = (Instant::now(), numbers(scene.mix));
    let server = Server::start(MachineClock::new(begin, gain(&mut rng)))?;
    // Every third seed has a network that loses nothing, so that what no loss excuses is seen.
    let (lost, slow, late) = match scene.seed % 3 {
        0 => (0, 20, 0),
        1 => (0, 100, 20),
        _ => (10, 100, 20),
    };
    let weather = Weather { lost, slow, late, slow_endings: 10 * numbers.slow_endings };
    let response = Duration::from_millis(numbers.response_ms);
    let network = Network::new(server, weather, response, scene.told.clone(), Rng::new(rng.next()));
    let mut world = World {
        scene,
        numbers,
        network,
        begin,
        rng,
        stop: Arc::default(),
        board: Board::shared(),
        faults: Arc::new(Log::kept()),
        logs: Vec::new(),
        processes: Vec::new(),
    };
    for at in 0..world.scene.processes {
        let process = world.start(at).await?;
        world.processes.push(process);
    }
    while world.begin.elapsed() < world.scene.time {
        sleep(world.rng.ms(20, 1_500)).await;
        world.trouble().await?;
    }
    let verdict = world.end().await;
    let (trace, calls, lost) = world.network.figures();
    Ok(Outcome { trace, calls, lost, verdict })
}

fn gain(rng: &mut Rng) -> i64 {
    rng.below(2 * GAIN_PPM_MAX + 1) as i64 - GAIN_PPM_MAX as i64
}

impl World {
    async fn start(&mut self, at: usize) -> bed::Outcome<Process> {
        let (node, store) = self.network.join();
        let name = format!("p{at}n{node}");
        let client = Client::builder()
            .url("memory:")
            .custom_store(store)
            .background_on(Handle::current())
            .clock(Arc::new(MachineClock::new(self.begin, gain(&mut self.rng))))
            .watchdog_lease(Duration::from_millis(self.numbers.lease_ms))
            .outage_tolerance(Duration::from_secs(5))
            .connect()
            .await?;
        for at in 0..self.numbers.names {
            // The first process sets them; the others find them set.
            let _ = client.permit_semaphore(format!("permits{at}")).set_if_absent(CAPACITY).await;
        }
        let log = Arc::new(Log::kept());
        self.logs.push((name.clone(), log.clone()));
        let (seed, tasks) = (self.rng.next(), self.scene.tasks);
        let simulated = Simulated {
            process: &name,
            numbers: &self.numbers,
            log: &log,
            seed,
            tasks,
            stop: &self.stop,
            board: &self.board,
        };
        let tasks = worker::simulated(client.clone(), &simulated)?;
        Ok(Process { node, client, tasks })
    }

    /// Something happens to a process, the network or the server.
    async fn trouble(&mut self) -> bed::Outcome<()> {
        let at = self.rng.below(self.processes.len() as u64) as usize;
        let node = self.processes[at].node;
        match self.rng.below(12) {
            0..4 => {
                let cut = *self.rng.of(&[Cut::Both, Cut::Requests, Cut::Replies]);
                let time = self.rng.ms(1, self.numbers.lease_ms * 3 / 2);
                self.faults.fault(format!("process {at} is cut off ({cut:?}) for {time:?}"));
                self.network.cut(node, cut);
                let network = self.network.clone();
                tokio::spawn(async move {
                    sleep(time).await;
                    network.mend(node);
                });
            }
            4..6 => {
                let time = self.rng.ms(1, self.numbers.lease_ms / 2);
                self.faults.fault(format!("the server stands still for {time:?}"));
                self.network.stand_still(time);
            }
            6 => {
                self.faults.fault("the server forgets its scripts");
                self.network.server().flush_scripts();
            }
            7 => {
                self.faults.fault(format!("process {at} is killed"));
                self.network.kill(node);
                self.processes[at].tasks.iter().for_each(JoinHandle::abort);
                self.processes[at] = self.start(at).await?;
            }
            8 => {
                self.faults.fault(format!("the connections of process {at} end"));
                self.network.cut(node, Cut::Both);
                self.network.mend(node);
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything heals, every task ends, and nothing may be left.
    async fn end(&mut self) -> Verdict {
        self.processes.iter().for_each(|process| self.network.mend(process.node));
        self.faults.fault("it is over");
        self.stop.store(true, Ordering::Relaxed);
        let mut violations = Vec::new();
        for (at, process) in self.processes.iter_mut().enumerate() {
            for task in process.tasks.drain(..) {
                match timeout(DONE_MAX, task).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => violations
                        .push(Violation { kind: "a panic", story: format!("process {at}: {error}") }),
                    Err(_) => violations.push(Violation {
                        kind: "a call without an end",
                        story: format!("process {at}: some call has not ended {DONE_MAX:?} after the end"),
                    }),
                }
            }
        }
        for (at, process) in self.processes.iter().enumerate() {
            if timeout(DONE_MAX, process.client.clone().shutdown(DONE_MAX / 2)).await.is_err() {
                let story = format!("process {at}: the shutdown has not ended after {DONE_MAX:?}");
                violations.push(Violation { kind: "a call without an end", story });
            }
        }
        // What was killed or never answered is free when its lease ends.
        sleep(FREE_MAX).await;
        let held = self.network.server().held();
        if !held.is_empty() {
            let story = format!("{FREE_MAX:?} after everybody has ended: {held:?}");
            violations.push(Violation { kind: "a lock that nobody has and nobody gets", story });
        }
        let mut files: Vec<_> = self.logs.iter().map(|(name, log)| (name.clone(), log.text())).collect();
        files.push(("faults".into(), self.faults.text()));
        if let Some(part) = &self.scene.told {
            let lines = files.iter().flat_map(|(name, text)| text.lines().map(move |line| (name, line)));
            lines.filter(|(_, line)| line.contains(part)).for_each(|(name, line)| println!("{name} {line}"));
        }
        let expect = Expect { capacity: CAPACITY, nothing_expires: false, nothing_vanishes: true };
        let logs = Logs::of(files).expect("they were written here");
        let mut verdict = judge::judge_logs(&logs, expect);
        verdict.violations.extend(violations);
        verdict
    }
}
