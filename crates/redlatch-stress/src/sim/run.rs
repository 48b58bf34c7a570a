//! One simulation, from its seed to its verdict, on any stage.

use std::{sync::Arc, time::Duration};

use redlatch::{Client, randomness};
use tokio::{
    runtime::{Builder, Handle},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{left::Left, server::MachineClock, stage::Stage};
use crate::{
    bed, clock,
    judge::{self, Expect, Logs, Verdict, Violation},
    mix::{Deed, Mix, Numbers},
    record::Log,
    rng::Rng,
    worker::{
        self, Simulated,
        board::Board,
        kind::CAPACITY,
        phase::{Phase, Phases},
    },
};

/// What a clock gains or loses at most, in millionths: half of the margin of a deadline.
const GAIN_PPM_MAX: u64 = 5_000;
/// How long tasks may take to end what they do: each call has a limit of its own.
const DONE_MAX: Duration = Duration::from_secs(60);
/// The longest lease that tasks ask for themselves.
const LEASE_MAX: Duration = Duration::from_secs(2);
/// How much later than its lease a hold may be free.
const FREE_MAX: Duration = Duration::from_secs(6);
/// How long processes work between two rests.
const WORK: Duration = Duration::from_secs(9);
/// How long it takes a process at rest to remove what its requests have left: until the last of its looks for one that comes late, with
/// what may delay that.
const SETTLED: Duration = Duration::from_secs(12);

#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) seed: u64,
    pub(super) mix: Mix,
    pub(super) time: Duration,
    pub(super) processes: usize,
    pub(super) tasks: usize,
    /// How long a task pauses between two deeds, where the mix does not say it.
    pub(super) pause_ms: Option<(u64, u64)>,
    /// The calls with a key in which this occurs are printed.
    pub(super) told: Option<String>,
}

#[derive(Debug)]
pub(super) struct Outcome {
    /// What happened when, as one number.
    pub(super) trace: u64,
    /// What there was of what.
    pub(super) counts: Vec<(&'static str, u64)>,
    pub(super) verdict: Verdict,
}

struct Process {
    /// Its number on the stage; one that takes another's place has a new one.
    node: usize,
    client: Client,
    tasks: Vec<JoinHandle<()>>,
}

struct World {
    scene: Scene,
    numbers: Numbers,
    stage: Box<dyn Stage>,
    begin: Instant,
    rng: Rng,
    phases: Phases,
    board: Board,
    faults: Arc<Log>,
    logs: Vec<(String, Arc<Log>)>,
    processes: Vec<Process>,
    /// The ids of the clients of processes that were killed.
    killed: Vec<String>,
    violations: Vec<Violation>,
}

/// Runs a scene on the stage that is set for it.
pub(super) fn run(scene: Scene, set: SetStage) -> Outcome {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let outcome = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(simulate(scene, set)));
    outcome.unwrap_or_else(|error: Box<dyn std::error::Error>| {
        let story = format!("the simulation did not run: {error}");
        let violations = vec![Violation { kind: "no run", story }];
        Outcome { trace: 0, counts: Vec::new(), verdict: Verdict { violations, ..Verdict::default() } }
    })
}

/// Sets the stage of a scene.
pub(super) type SetStage = fn(&Scene, &Numbers, &mut Rng) -> bed::Outcome<Box<dyn Stage>>;

/// The numbers of a scene's mix, without what only processes of their own can do.
fn numbers(scene: &Scene) -> Numbers {
    let mut numbers = scene.mix.numbers();
    numbers.threads = 0;
    numbers.pause_ms = scene.pause_ms.unwrap_or(numbers.pause_ms);
    numbers.deeds.retain(|(_, deed)| !matches!(deed, Deed::Pass));
    numbers
}

async fn simulate(scene: Scene, set: SetStage) -> bed::Outcome<Outcome> {
    clock::simulate();
    randomness::seed_thread(scene.seed);
    let mut rng = Rng::new(scene.seed);
    let (begin, numbers) = (Instant::now(), numbers(&scene));
    let stage = set(&scene, &numbers, &mut rng)?;
    let mut world = World {
        scene,
        numbers,
        stage,
        begin,
        rng,
        phases: Phases::default(),
        board: Board::shared(),
        faults: Arc::new(Log::kept()),
        logs: Vec::new(),
        processes: Vec::new(),
        killed: Vec::new(),
        violations: Vec::new(),
    };
    for at in 0..world.scene.processes {
        let process = world.start(at).await?;
        world.processes.push(process);
    }
    let mut rested = world.begin;
    while world.begin.elapsed() < world.scene.time {
        if world.numbers.rests && rested.elapsed() > WORK {
            world.rest().await;
            rested = Instant::now();
        }
        let pause = world.stage.pause(&mut world.rng);
        sleep(pause).await;
        world.trouble().await?;
    }
    let verdict = world.end().await;
    Ok(Outcome { trace: world.stage.trace(), counts: world.stage.counts(), verdict })
}

/// How much faster or slower a clock goes, in millionths.
pub(super) fn gain(rng: &mut Rng) -> i64 {
    rng.below(2 * GAIN_PPM_MAX + 1) as i64 - GAIN_PPM_MAX as i64
}

impl World {
    async fn start(&mut self, at: usize) -> bed::Outcome<Process> {
        let (node, builder) = self.stage.join();
        let name = format!("p{at}n{node}");
        let client = builder
            .background_on(Handle::current())
            .clock(Arc::new(MachineClock::new(self.begin, gain(&mut self.rng))))
            .watchdog_lease(Duration::from_millis(self.numbers.lease_ms))
            .outage_tolerance(Duration::from_secs(5));
        // Where no server is there yet it waits for one.
        let client = match client.clone().connect().await {
            Ok(client) => client,
            Err(error) if error.is_retryable() => client.connect_lazy()?,
            Err(error) => return Err(error.into()),
        };
        let (permits, names) = (client.clone(), self.numbers.names);
        tokio::spawn(async move {
            for at in 0..names {
                // The first process sets them; the others find them set.
                let _ = permits.permit_semaphore(format!("permits{at}")).set_if_absent(CAPACITY).await;
            }
        });
        let log = Arc::new(Log::kept());
        self.logs.push((name.clone(), log.clone()));
        let (seed, tasks) = (self.rng.next(), self.scene.tasks);
        let simulated = Simulated {
            process: &name,
            numbers: &self.numbers,
            log: &log,
            seed,
            tasks,
            phases: &self.phases,
            board: &self.board,
        };
        let tasks = worker::simulated(client.clone(), &simulated)?;
        Ok(Process { node, client, tasks })
    }

    /// Something happens to a process, the network or the servers.
    async fn trouble(&mut self) -> bed::Outcome<()> {
        let at = self.rng.below(self.processes.len() as u64) as usize;
        let node = self.processes[at].node;
        if self.stage.trouble(node, &self.faults, &mut self.rng).await {
            self.faults.fault(format!("process {at} is killed"));
            self.stage.kill(node);
            self.processes[at].tasks.iter().for_each(JoinHandle::abort);
            self.killed.push(self.processes[at].client.id().to_owned());
            self.processes[at] = self.start(at).await?;
        }
        Ok(())
    }

    /// Everything heals and no task does anything: what is on the servers then is of processes that were killed.
    async fn rest(&mut self) {
        self.stage.heal();
        self.faults.fault("all is well, and everybody rests");
        self.phases.set(Phase::Rest);
        let tasks = self.processes.iter().map(|process| process.tasks.len()).sum();
        let since = Instant::now();
        while self.phases.resting() < tasks {
            if since.elapsed() > DONE_MAX {
                let story = format!("some call has not ended {DONE_MAX:?} after all was well");
                self.violations.push(Violation { kind: "a call without an end", story });
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        sleep(SETTLED).await;
        let left: Vec<Left> =
            self.stage.left().into_iter().filter(|left| !self.is_of_the_dead(left)).collect();
        if !left.is_empty() {
            let story = format!("{SETTLED:?} after the last task has come to rest: {left:?}");
            self.violations.push(Violation { kind: "something left behind", story });
        }
        self.faults.fault("they go on");
        self.phases.set(Phase::Work);
    }

    /// Permits do not tell their client.
    fn is_of_the_dead(&self, left: &Left) -> bool {
        let names_none = left.key.contains("permits") && !self.killed.is_empty();
        names_none || self.killed.iter().any(|client| left.owner.contains(client.as_str()))
    }

    /// Everything heals, every task ends, and nothing may be left.
    async fn end(&mut self) -> Verdict {
        self.stage.heal();
        self.faults.fault("it is over");
        self.phases.set(Phase::Over);
        let mut violations = std::mem::take(&mut self.violations);
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
        sleep(Duration::from_millis(self.numbers.lease_ms).max(LEASE_MAX) + FREE_MAX).await;
        let held: Vec<Left> = self.stage.left().into_iter().filter(|left| left.kind == "hash").collect();
        if !held.is_empty() {
            let story = format!("a lease after everybody has ended: {held:?}");
            violations.push(Violation { kind: "a lock that nobody has and nobody gets", story });
        }
        let mut files: Vec<_> = self.logs.iter().map(|(name, log)| (name.clone(), log.text())).collect();
        files.push(("faults".into(), self.faults.text()));
        if let Some(part) = &self.scene.told {
            let lines = files.iter().flat_map(|(name, text)| text.lines().map(move |line| (name, line)));
            lines.filter(|(_, line)| line.contains(part)).for_each(|(name, line)| println!("{name} {line}"));
            for excuse in self.excuses() {
                let [from, to] = [excuse.from_ns, excuse.to_ns].map(|ns| clock::seconds(ns, 0));
                let process = excuse.process.as_deref().unwrap_or("any");
                println!("{process} may hold beside another one from {from} s to {to} s");
            }
        }
        let expect = Expect {
            capacity: CAPACITY,
            nothing_expires: false,
            nothing_vanishes: !self.stage.may_vanish(),
            excuses: self.excuses(),
            counted_late: self.stage.counted_late(),
        };
        let logs = Logs::of(files).expect("they were written here");
        if !self.numbers.rests {
            violations.extend(self.without_grants(&logs));
        }
        let mut verdict = judge::judge_logs(&logs, &expect);
        verdict.violations.extend(violations);
        verdict
    }

    fn excuses(&self) -> Vec<judge::Excuse> {
        let mut excuses = Vec::new();
        for (node, (from_ns, to_ns)) in self.stage.excused() {
            let is_it = |name: &String| node.is_some_and(|node| name.ends_with(&format!("n{node}")));
            let process = self.logs.iter().map(|(name, _)| name).find(|name| is_it(name)).cloned();
            if node.is_none() || process.is_some() {
                excuses.push(judge::Excuse { process, from_ns, to_ns });
            }
        }
        excuses
    }

    /// Who was granted nothing while all was well.
    fn without_grants(&self, logs: &Logs) -> Vec<Violation> {
        let mut found = Vec::new();
        for (from_ns, to_ns) in self.stage.well() {
            for (name, _) in self.logs.iter().filter(|(name, _)| self.lives(name)) {
                let is_in = |interval: &&judge::Interval| (from_ns..to_ns).contains(&interval.start_ns);
                let of_it = logs.intervals.iter().filter(|interval| interval.process == *name);
                if of_it.clone().any(|interval| interval.start_ns < from_ns)
                    && of_it.filter(is_in).count() == 0
                {
                    let [from, to] = [from_ns, to_ns].map(|ns| clock::seconds(ns, 0));
                    let story =
                        format!("{name} was granted nothing from {from} s to {to} s, when all was well");
                    found.push(Violation { kind: "no progress", story });
                }
            }
        }
        found
    }

    /// Whether a log is of a process that was there to the end.
    fn lives(&self, name: &str) -> bool {
        self.processes.iter().any(|process| name.ends_with(&format!("n{}", process.node)))
    }
}
