//! One run: a program, a list of choices, and what is seen after each step.

use std::{sync::Arc, time::Duration};

use redlatch::{
    Acquire, Client, Lease, Member, MultiLock, Owner, Presence, Unlocked, Wait, config::TURN_TIME_MAX,
    randomness,
};
use tokio::{
    runtime::{Builder, Handle},
    task::JoinHandle,
    time::sleep,
};

use super::{
    call::{Call, Ended, Gate, Gated, detach, downgrade, extend, owner_of, read_beside, reenter, unlock},
    choice::Chooser,
    network::{Network, Server},
    oracle::{self, Slot},
    program::{EXTENDED, Kind, LEASE, Length, NAME, OWNERS, Op, Program, Who},
};
use crate::worker::kind::OneGuard;

/// The lock that a set has besides.
const BESIDES: &str = "m";
const FIXED: Duration = Duration::from_millis(1_200);
pub(super) const RESPONSE: Duration = Duration::from_millis(500);
const BRIEF: Duration = Duration::from_millis(200);
/// After so long everything has happened that does not wait for more time.
const SETTLED: Duration = Duration::from_millis(1);
/// Longer than any pause between tasks of a process.
const MOMENT: Duration = Duration::from_millis(20);
/// How long everything may take to end when nothing is held any more and each guard is given back.
const END_MAX: Duration = Duration::from_secs(20);

/// How much a run may have of what is not usual.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Bounds {
    /// Messages that are held.
    #[arg(long = "held", default_value_t = 1)]
    pub(super) held: usize,
    /// Times that pass: the response timeout, or a lease.
    #[arg(long = "passes", default_value_t = 1)]
    pub(super) passes: usize,
    /// Calls that are dropped half-way, or not polled any more.
    #[arg(long = "cancels", default_value_t = 1)]
    pub(super) cancels: usize,
}

/// What a run has shown.
pub(super) struct Outcome {
    pub(super) chooser: Chooser,
    pub(super) violation: Option<String>,
    pub(super) steps: u64,
    pub(super) calls: u64,
    /// A process took a free lock in the name of another one's owner.
    pub(super) excused: bool,
    pub(super) story: String,
}

struct Running {
    call: JoinHandle<Ended>,
    gate: Arc<Gate>,
    op: Op,
    kind: Kind,
    renewed: bool,
    /// The hold that it gives back: its owner, and whether it was valid.
    gives: Option<(String, bool)>,
}

struct TaskState {
    at: usize,
    slots: Vec<Slot>,
    running: Option<Running>,
}

struct ProcessState {
    client: Client,
    owners: Vec<Owner>,
    texts: Vec<Option<Owner>>,
}

/// Something that may happen next.
#[derive(Debug, Clone, Copy)]
enum Next {
    Start(usize),
    Release(usize),
    Cancel(usize),
    Leave(usize),
    Poll(usize),
    Pass(Duration),
    /// Time passes because nothing else can happen.
    Wait(Duration),
    End,
}

struct World<'a> {
    program: &'a Program,
    bounds: Bounds,
    network: Arc<Network>,
    processes: Vec<ProcessState>,
    tasks: Vec<TaskState>,
    last: usize,
    /// How many waits in a row have changed nothing.
    waits: usize,
    steps: u64,
    /// Something happened after which holds may be on the server that nobody has: a call was dropped, a hold was left.
    untidy: bool,
    violation: Option<String>,
    /// Holds that were left without a guard.
    left: Vec<(Kind, Owner)>,
}

pub(super) fn run(
    server: &Arc<Server>,
    program: &Program,
    bounds: Bounds,
    given: &[u8],
    told: bool,
) -> Outcome {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let outcome = runtime
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(explore(server, program, bounds, given, told)));
    outcome.unwrap_or_else(|error: Box<dyn std::error::Error>| Outcome {
        chooser: Chooser::new(Vec::new()),
        violation: Some(format!("the run did not begin: {error}")),
        steps: 0,
        calls: 0,
        excused: false,
        story: String::new(),
    })
}

async fn explore(
    server: &Arc<Server>,
    program: &Program,
    bounds: Bounds,
    given: &[u8],
    told: bool,
) -> Result<Outcome, Box<dyn std::error::Error>> {
    randomness::seed_thread(1);
    let network = Network::new(server, RESPONSE, given.to_vec(), bounds.held, told)?;
    let mut processes = Vec::new();
    for process in 0..program.processes() {
        let turn = if program.passes_on { Duration::from_secs(60) } else { TURN_TIME_MAX };
        let client = Client::builder()
            .turn_time(turn)
            .url("memory:")
            .custom_store(network.way(process))
            .background_on(Handle::current())
            .clock(server.clock())
            .watchdog_lease(LEASE)
            .response_timeout(RESPONSE)
            .outage_tolerance(Duration::from_secs(5))
            .presence(Presence::untold()) // its writes would be steps of every run
            .connect()
            .await?;
        network.connected(client.id());
        let owners: Vec<_> = (0..OWNERS).map(|_| client.owner()).collect();
        processes.push(ProcessState { client, owners, texts: vec![None; OWNERS] });
    }
    let tasks = program.tasks.iter().map(|_| TaskState { at: 0, slots: Vec::new(), running: None }).collect();
    let mut world = World {
        program,
        bounds,
        network: network.clone(),
        processes,
        tasks,
        last: 0,
        waits: 0,
        steps: 0,
        untidy: false,
        violation: None,
        left: Vec::new(),
    };
    world.settle().await;
    network.set_open(true);
    world.go().await;
    network.set_open(false);
    if world.violation.is_none() && !network.is_excused() {
        world.end().await;
    }
    let (violation, steps) = (world.violation.take(), world.steps);
    let excused = network.is_excused();
    drop(world);
    Ok(Outcome {
        violation: violation.filter(|_| !excused),
        steps,
        calls: network.calls(),
        excused,
        story: network.story(),
        chooser: network.into_chooser(),
    })
}

impl World<'_> {
    /// Lets everything happen that needs no more time, and takes in what has ended.
    async fn settle(&mut self) {
        sleep(SETTLED).await;
        for at in 0..self.tasks.len() {
            if !self.tasks[at].running.as_ref().is_some_and(|running| running.call.is_finished()) {
                continue;
            }
            let Some(running) = self.tasks[at].running.take() else { continue };
            self.waits = 0;
            match running.call.await {
                Ok(ended) => self.ended(at, ended, running.op, running.kind, running.renewed, running.gives),
                Err(error) if error.is_cancelled() => {}
                Err(error) => self.violates(format!("a panic in task {at}: {error}")),
            }
        }
        self.judge();
    }

    fn violates(&mut self, what: String) {
        self.network.tell(|| format!("VIOLATION: {what}"));
        self.violation.get_or_insert(what);
    }

    fn ended(
        &mut self,
        task: usize,
        ended: Ended,
        op: Op,
        kind: Kind,
        renewed: bool,
        gives: Option<(String, bool)>,
    ) {
        match ended {
            Ended::Granted(held) => {
                let owner = owner_of(&held);
                self.network.tell(|| format!("task {task}: {op:?} is granted to {owner}"));
                self.tasks[task].slots.push(Slot { held: Arc::new(held), owner, kind, renewed });
            }
            Ended::Unlocked(unlocked) => {
                self.network.tell(|| format!("task {task}: {op:?} : {unlocked:?}"));
                if let (Some((owner, true)), Unlocked::AlreadyLost(reason)) = (gives, unlocked)
                    && renewed
                    && !self.network.any_held()
                {
                    self.violates(format!("a hold of {owner} that was valid is told to be lost: {reason}"));
                }
            }
            Ended::Busy => self.network.tell(|| format!("task {task}: {op:?} : busy")),
            Ended::Done => self.network.tell(|| format!("task {task}: {op:?} : done")),
            Ended::Failed(error) => {
                self.network.tell(|| format!("task {task}: {op:?} : {error}"));
            }
        }
    }

    fn judge(&mut self) {
        self.steps += 1;
        if self.violation.is_some() || self.network.is_excused() {
            return;
        }
        let slots: Vec<_> = self.tasks.iter().flat_map(|task| &task.slots).collect();
        let fields = self.network.server().fields();
        let under_way = self.tasks.iter().any(|task| task.running.is_some());
        let exact = !self.untidy && !under_way && !self.network.any_held();
        if let Some(what) = oracle::judge(&slots, &fields, exact) {
            self.violates(what);
        }
        // What was lost with its lease is seen once.
        for task in &mut self.tasks {
            task.slots.retain(|slot| slot.held.is_valid() || Arc::strong_count(&slot.held) > 1);
        }
    }

    /// The steps of the program and what happens beside them, until nothing is left to choose.
    async fn go(&mut self) {
        let mut bounds = self.bounds;
        while self.violation.is_none() && !self.network.is_excused() {
            let nexts = self.nexts(bounds);
            let next = nexts[self.network.pick(nexts.len())];
            match next {
                Next::End => return,
                Next::Start(task) => {
                    self.waits = 0;
                    self.start(task);
                }
                Next::Release(at) => {
                    self.waits = 0;
                    self.network.release(at);
                }
                Next::Cancel(task) => {
                    bounds.cancels -= 1;
                    self.waits = 0;
                    self.untidy = true;
                    let op = self.tasks[task].running.as_ref().map(|running| running.op);
                    self.network.tell(|| format!("task {task}: {op:?} is dropped half-way"));
                    if let Some(running) = self.tasks[task].running.take() {
                        running.call.abort();
                    }
                }
                Next::Leave(task) => {
                    bounds.cancels -= 1;
                    self.untidy = true;
                    self.network.tell(|| format!("task {task} is not polled any more"));
                    self.poll(task, false);
                }
                Next::Poll(task) => {
                    self.network.tell(|| format!("task {task} is polled again"));
                    self.poll(task, true);
                }
                Next::Pass(time) => {
                    bounds.passes -= 1;
                    self.network.tell(|| format!("{time:?} pass"));
                    self.pass(time).await;
                }
                Next::Wait(time) => {
                    self.waits += 1;
                    self.network.tell(|| format!("{time:?} pass, because nothing else happens"));
                    self.pass(time).await;
                }
            }
            self.settle().await;
        }
    }

    async fn pass(&mut self, time: Duration) {
        let mut left = time;
        while left > Duration::ZERO && self.violation.is_none() {
            let part = left.min(Duration::from_millis(200));
            sleep(part).await;
            left -= part;
            self.settle().await;
        }
    }

    fn poll(&mut self, task: usize, polled: bool) {
        if let Some(running) = &self.tasks[task].running {
            running.gate.set_polled(polled);
        }
    }

    /// The next operation of a task that has one and may begin it.
    fn ready(&mut self, task: usize) -> bool {
        if self.tasks[task].running.is_some() {
            return false;
        }
        loop {
            let state = &self.tasks[task];
            let Some(op) = self.program.tasks[task].ops.get(state.at) else { return false };
            match op {
                Op::Acquire { who: Who::Text(which), .. } => {
                    // The owner's own process holds at this moment.
                    let owner = format!("{:?}", self.processes[0].owners[*which]);
                    let owner = owner.trim_start_matches("Owner(").trim_end_matches(')');
                    let fields = self.network.server().fields();
                    return fields.iter().any(|(field, _)| field.trim_end_matches(":write") == owner);
                }
                Op::Acquire { .. } => return true,
                Op::Adopt => return !self.left.is_empty(),
                Op::Downgrade | Op::ReadBeside => {
                    if state.slots.last().is_some_and(|slot| slot.kind == Kind::Write) {
                        return true;
                    }
                }
                _ => {
                    if !state.slots.is_empty() {
                        return true;
                    }
                }
            }
            // There is nothing to do it with.
            self.tasks[task].at += 1;
        }
    }

    /// All that may happen next; the first is the usual way.
    fn nexts(&mut self, bounds: Bounds) -> Vec<Next> {
        let mut nexts = Vec::new();
        for step in 0..self.tasks.len() {
            let task = (self.last + step) % self.tasks.len();
            if self.ready(task) {
                nexts.push(Next::Start(task));
            }
        }
        let running = self.tasks.iter().any(|task| task.running.is_some());
        if nexts.is_empty() {
            nexts.push(match self.waits {
                0 if running => Next::Wait(MOMENT),
                1 if running => Next::Wait(RESPONSE + MOMENT),
                _ => Next::End,
            });
        }
        nexts.extend((0..self.network.held()).map(Next::Release));
        for (task, state) in self.tasks.iter().enumerate() {
            let Some(running) = &state.running else { continue };
            if running.gate.is_shut() {
                nexts.push(Next::Poll(task));
            } else if bounds.cancels > 0 {
                nexts.push(Next::Cancel(task));
                nexts.push(Next::Leave(task));
            }
        }
        if bounds.passes > 0 && (running || self.tasks.iter().any(|task| !task.slots.is_empty())) {
            nexts.push(Next::Pass(RESPONSE + MOMENT));
            nexts.push(Next::Pass(LEASE + LEASE / 3));
            if self.program.has_brief() {
                // Twice that is longer than such a hold.
                nexts.push(Next::Pass(BRIEF / 2 + MOMENT));
            }
        }
        nexts
    }

    /// Begins the next operation of a task.
    fn start(&mut self, task: usize) {
        self.last = task;
        let op = self.program.tasks[task].ops[self.tasks[task].at];
        self.tasks[task].at += 1;
        self.network.tell(|| format!("task {task}: {op:?}"));
        let process = self.program.tasks[task].process;
        let last = |slots: &[Slot]| slots.last().map(|slot| (slot.held.clone(), slot.kind, slot.renewed));
        let mut gives = None;
        let (call, kind, renewed): (Call, Kind, bool) = match op {
            Op::Acquire { kind, lease, .. } => (self.acquire(process, op), kind, lease.is_renewed()),
            Op::Adopt => {
                let Some((kind, owner)) = self.left.pop() else { return };
                (self.adopt(process, kind, owner), kind, true)
            }
            Op::Unlock | Op::UnlockFirst | Op::Drop | Op::Detach | Op::Downgrade => {
                let slots = &mut self.tasks[task].slots;
                let at = if op == Op::UnlockFirst { 0 } else { slots.len() - 1 };
                let Slot { held, owner, renewed, kind, .. } = slots.remove(at);
                gives = Some((owner, held.is_valid()));
                let Some(held) = Arc::into_inner(held) else { return };
                match op {
                    Op::Drop => {
                        drop(held);
                        self.untidy = true;
                        return;
                    }
                    Op::Detach => {
                        self.untidy = true;
                        self.left.extend(detach(held).map(|owner| (kind, owner)));
                        return;
                    }
                    Op::Downgrade => (Box::pin(downgrade(held)), Kind::Read, renewed),
                    _ => (Box::pin(unlock(held)), kind, renewed),
                }
            }
            Op::Reenter => {
                let Some((held, kind, renewed)) = last(&self.tasks[task].slots) else { return };
                (Box::pin(reenter(held)), kind, renewed)
            }
            Op::Extend => {
                let Some((held, kind, renewed)) = last(&self.tasks[task].slots) else { return };
                (Box::pin(extend(held)), kind, renewed)
            }
            Op::ReadBeside => {
                let Some((held, _, renewed)) = last(&self.tasks[task].slots) else { return };
                (Box::pin(read_beside(held)), Kind::Read, renewed)
            }
        };
        self.run(task, call, op, kind, renewed, gives);
    }

    fn run(
        &mut self,
        task: usize,
        call: Call,
        op: Op,
        kind: Kind,
        renewed: bool,
        gives: Option<(String, bool)>,
    ) {
        let gate = Arc::<Gate>::default();
        let call = tokio::spawn(Gated::new(call, &gate));
        self.tasks[task].running = Some(Running { call, gate, op, kind, renewed, gives });
    }

    fn acquire(&mut self, process: usize, op: Op) -> Call {
        let Op::Acquire { kind, who, waits, lease, fenced, set } = op else {
            return Box::pin(async { Ended::Done });
        };
        let owner = match who {
            Who::Fresh => None,
            Who::Shared(which) => Some(self.processes[process].owners[which].clone()),
            Who::Text(which) => {
                let text = self.processes[0].owners[which].to_text();
                let known = &mut self.processes[process].texts[which];
                let owner = known.clone().or_else(|| text.parse().ok());
                known.clone_from(&owner);
                owner
            }
        };
        let client = self.processes[process].client.clone();
        let wait = if waits { Wait::Forever } else { Wait::No };
        let lease = match lease {
            Length::Renewed => Lease::Renewed,
            Length::RenewedForLonger => Lease::RenewedEvery(EXTENDED),
            Length::Fixed => Lease::Fixed(FIXED),
            Length::Brief => Lease::Fixed(BRIEF),
        };
        macro_rules! ask {
            ($lock:expr, $held:expr, $with:expr) => {{
                let lock = $lock;
                Box::pin(async move {
                    let mut acquire = $with(lock.acquire().wait(wait).lease(lease));
                    if let Some(owner) = &owner {
                        acquire = acquire.owner(owner);
                    }
                    match acquire.await {
                        Ok(Some(guard)) => Ended::Granted($held(guard)),
                        Ok(None) => Ended::Busy,
                        Err(error) => Ended::Failed(error),
                    }
                })
            }};
            ($lock:expr, $held:expr) => {
                ask!($lock, $held, |acquire| if fenced { Acquire::fenced(acquire) } else { acquire })
            };
        }
        if set {
            let (besides, both) = (client.lock(BESIDES), client.read_write_lock(NAME));
            let first = if kind == Kind::Write { both.write().into() } else { (&client.lock(NAME)).into() };
            return match MultiLock::new([first, Member::from(&besides)]) {
                Ok(pair) => ask!(pair, OneGuard::Multi, std::convert::identity),
                Err(error) => Box::pin(async { Ended::Failed(error) }),
            };
        }
        match kind {
            Kind::Plain => ask!(client.lock(NAME), OneGuard::One),
            Kind::Fair => ask!(client.fair_lock(NAME), OneGuard::One),
            Kind::Read => ask!(client.read_write_lock(NAME).read().clone(), OneGuard::Read),
            Kind::Write => ask!(client.read_write_lock(NAME).write().clone(), OneGuard::Write),
        }
    }

    fn adopt(&self, process: usize, kind: Kind, owner: Owner) -> Call {
        let client = self.processes[process].client.clone();
        macro_rules! adopt {
            ($lock:expr, $held:expr) => {{
                let lock = $lock;
                Box::pin(async move {
                    match lock.adopt(&owner, Lease::Renewed).await {
                        Ok(Some(guard)) => Ended::Granted($held(guard)),
                        Ok(None) => Ended::Busy,
                        Err(error) => Ended::Failed(error),
                    }
                })
            }};
        }
        match kind {
            Kind::Plain => adopt!(client.lock(NAME), OneGuard::One),
            Kind::Fair => adopt!(client.fair_lock(NAME), OneGuard::One),
            Kind::Read => adopt!(client.read_write_lock(NAME).read().clone(), OneGuard::Read),
            Kind::Write => adopt!(client.read_write_lock(NAME).write().clone(), OneGuard::Write),
        }
    }

    /// What was held arrives while what is held is still there; then all is given back, and everything must come to its end.
    async fn end(&mut self) {
        self.network.tell(|| "it is over".into());
        while self.network.held() > 0 && self.violation.is_none() {
            self.network.release(0);
            self.settle().await;
        }
        (0..self.tasks.len()).for_each(|task| self.poll(task, true));
        if self.tasks.iter().any(|task| !task.slots.is_empty()) {
            // What is held is renewed for longer than a lease.
            self.pass(LEASE + LEASE / 3).await;
        }
        let mut waited = Duration::ZERO;
        while self.violation.is_none() {
            self.settle().await;
            for task in 0..self.tasks.len() {
                if self.tasks[task].running.is_none()
                    && let Some(slot) = self.tasks[task].slots.pop()
                {
                    let Slot { held, owner, kind, renewed, .. } = slot;
                    let gives = Some((owner, held.is_valid()));
                    let Some(held) = Arc::into_inner(held) else { continue };
                    self.network.tell(|| format!("task {task}: gives back what it has"));
                    self.run(task, Box::pin(unlock(held)), Op::Unlock, kind, renewed, gives);
                }
            }
            if self.tasks.iter().all(|task| task.running.is_none() && task.slots.is_empty()) {
                break;
            }
            if waited > END_MAX {
                let running = self.tasks.iter().flat_map(|task| &task.running);
                let ops: Vec<_> = running.map(|running| running.op).collect();
                self.violates(format!("{END_MAX:?} after everything was free these have not ended: {ops:?}"));
            }
            self.pass(MOMENT).await;
            waited += MOMENT;
        }
        // An extension has made a hold last for so long that a lost release left.
        self.pass(EXTENDED + RESPONSE).await;
        let left = self.network.server().left();
        if self.violation.is_none() && !left.is_empty() {
            self.violates(format!("a lease after everybody has ended the server has {left:?}"));
        }
    }
}
