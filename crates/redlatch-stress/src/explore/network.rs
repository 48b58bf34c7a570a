//! The way between processes and the server, on which each message is delivered at once or held, as is chosen.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redlatch::{
    Clock, Error, ErrorKind,
    store::{
        Call, Change, ChangeHook, Event, Fault, Listener, Reply, RunFuture, Store, SubscribeFuture,
        Subscription, WatchFuture,
    },
};
use redlatch_engine::{Engine, Publisher, Value};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{
    choice::Chooser,
    program::{LEASE, NAME},
};
use crate::sim::{bytes, reply};

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock of all machines: one, because the margin of deadlines is not what is explored.
#[derive(Debug, Default)]
pub(super) struct OneClock {
    since: Mutex<Option<Instant>>,
}

impl OneClock {
    fn passed_us(&self) -> u64 {
        locked(&self.since).map_or(0, |since| since.elapsed().as_micros() as u64)
    }
}

impl Clock for OneClock {
    fn boot_us(&self) -> u64 {
        1_000_000_000 + self.passed_us()
    }

    fn unix_us(&self) -> u64 {
        1_700_000_000_000_000 + self.passed_us()
    }
}

#[derive(Clone)]
struct Listening {
    ticket: u64,
    process: usize,
    channel: Arc<[u8]>,
    listener: Listener,
}

/// Those who listen. The engine tells it of messages while a script runs.
#[derive(Default)]
struct Board {
    listeners: Mutex<Vec<Listening>>,
    hooks: Mutex<Vec<ChangeHook>>,
    /// What was published by the script that runs.
    said: Mutex<Vec<(usize, Listener, i64)>>,
}

impl Publisher for Board {
    fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        let number = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        let Some(number) = number else { return 0 };
        let mut heard = 0;
        for listening in locked(&self.listeners).iter().filter(|listening| *listening.channel == *channel) {
            heard += 1;
            locked(&self.said).push((listening.process, listening.listener.clone(), number));
        }
        heard
    }

    fn changed(&self, key: &[u8]) {
        for hook in locked(&self.hooks).clone() {
            let change = Change::Key(key.to_vec());
            tokio::spawn(async move { hook(change) });
        }
    }

    fn cleared(&self) {}
}

/// The server, which is used again by the next run.
pub(super) struct Server {
    engine: Mutex<Engine>,
    clock: Arc<OneClock>,
    board: Arc<Board>,
}

impl Server {
    pub(super) fn start() -> Result<Arc<Self>, Box<dyn std::error::Error>> {
        let (clock, board) = (Arc::new(OneClock::default()), Arc::new(Board::default()));
        let engine = Engine::new(clock.clone(), board.clone())?;
        Ok(Arc::new(Server { engine: Mutex::new(engine), clock, board }))
    }

    /// Forgets the last run. The scripts stay.
    fn begin(&self) -> Result<(), Box<dyn std::error::Error>> {
        locked(&self.engine).call(&["FLUSHALL"])?;
        *locked(&self.clock.since) = Some(Instant::now());
        locked(&self.board.listeners).clear();
        locked(&self.board.hooks).clear();
        locked(&self.board.said).clear();
        Ok(())
    }

    pub(super) fn clock(&self) -> Arc<OneClock> {
        self.clock.clone()
    }

    fn run(&self, call: &Call) -> Result<Reply, Fault> {
        let args: Vec<Vec<u8>> = call.args.iter().map(bytes).collect();
        let mut engine = locked(&self.engine);
        let outcome = match engine.eval_sha(call.script.sha1(), &call.keys, &args) {
            Err(error) if error.to_string().starts_with("NOSCRIPT") => {
                engine.eval(call.script.source().as_bytes(), &call.keys, &args)
            }
            outcome => outcome,
        };
        outcome.map(reply).map_err(|error| {
            let text = error.to_string();
            let (code, detail) = text.split_once(' ').unwrap_or((&text, ""));
            Fault::server(code, detail)
        })
    }

    /// The fields of the lock and what they count.
    pub(super) fn fields(&self) -> Vec<(String, u64)> {
        self.counted(|key| key == NAME.as_bytes())
    }

    /// The fields of all locks and what they count.
    pub(super) fn left(&self) -> Vec<(String, u64)> {
        self.counted(|_| true)
    }

    fn counted(&self, of: impl Fn(&[u8]) -> bool) -> Vec<(String, u64)> {
        let dumped = locked(&self.engine).dump();
        let mut fields = Vec::new();
        for key in dumped.into_iter().filter(|key| key.kind == "hash" && of(&key.key)) {
            let Value::Array(items) = key.content else { continue };
            for pair in items.chunks_exact(2) {
                let text = |value: &Value| match value {
                    Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                    other => format!("{other:?}"),
                };
                if let Ok(count) = text(&pair[1]).parse() {
                    fields.push((text(&pair[0]), count));
                }
            }
        }
        fields
    }
}

/// What is held back on its way.
enum Message {
    Request { process: usize, call: Box<Call>, answer: oneshot::Sender<Result<Reply, Fault>> },
    Reply { answer: oneshot::Sender<Result<Reply, Fault>>, outcome: Result<Reply, Fault> },
    News { listener: Listener, number: i64 },
}

struct HeldBack {
    since: Instant,
    number: u64,
    what: String,
    message: Message,
}

struct State {
    chooser: Chooser,
    held: Vec<HeldBack>,
    held_left: usize,
    /// Choices are made; otherwise everything is prompt.
    open: bool,
    /// Something happened under an owner of several processes for which nothing is promised (`docs/dangers.md`).
    excused: bool,
    /// An owner is used by two processes.
    handed: bool,
    /// Something was held in this run.
    any_held: bool,
    interrupted: Vec<Arc<dyn Fn() + Send + Sync>>,
    ids: Vec<String>,
    story: Option<Vec<String>>,
}

pub(super) struct Network {
    server: Arc<Server>,
    state: Mutex<State>,
    response: Duration,
    begin: Instant,
    numbers: AtomicU64,
    calls: AtomicU64,
}

impl Network {
    pub(super) fn new(
        server: &Arc<Server>,
        response: Duration,
        given: Vec<u8>,
        held_max: usize,
        told: bool,
    ) -> Result<Arc<Self>, Box<dyn std::error::Error>> {
        server.begin()?;
        Ok(Arc::new(Network {
            server: server.clone(),
            state: Mutex::new(State {
                chooser: Chooser::new(given),
                held: Vec::new(),
                held_left: held_max,
                open: false,
                excused: false,
                handed: false,
                any_held: false,
                interrupted: Vec::new(),
                ids: Vec::new(),
                story: told.then(Vec::new),
            }),
            response,
            begin: Instant::now(),
            numbers: AtomicU64::new(1),
            calls: AtomicU64::new(0),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    pub(super) fn way(self: &Arc<Self>, process: usize) -> Arc<dyn Store> {
        Arc::new(Way { network: self.clone(), process })
    }

    /// A process is connected, and its client has this id.
    pub(super) fn connected(&self, id: &str) {
        self.state().ids.push(id.to_owned());
    }

    pub(super) fn set_open(&self, open: bool) {
        self.state().open = open;
    }

    pub(super) fn pick(&self, of: usize) -> usize {
        self.state().chooser.pick(of)
    }

    pub(super) fn into_chooser(self: Arc<Self>) -> Chooser {
        std::mem::take(&mut self.state().chooser)
    }

    pub(super) fn is_excused(&self) -> bool {
        self.state().excused
    }

    pub(super) fn any_held(&self) -> bool {
        self.state().any_held
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    pub(super) fn tell(&self, line: impl FnOnce() -> String) {
        let mut state = self.state();
        if state.story.is_none() {
            return;
        }
        let now_ms = self.begin.elapsed().as_millis();
        let line = format!("{now_ms:>6} ms  {}", line());
        if let Some(story) = &mut state.story {
            story.push(line);
        }
    }

    /// The story so far; identities of clients are told as the process's number.
    pub(super) fn story(&self) -> String {
        let state = self.state();
        let mut story = state.story.clone().unwrap_or_default().join("\n");
        for (process, id) in state.ids.iter().enumerate() {
            story = story.replace(id, &format!("p{process}"));
        }
        story
    }

    pub(super) fn held(&self) -> usize {
        self.state().held.len()
    }

    /// Lets a message go on that was held.
    pub(super) fn release(&self, at: usize) {
        let HeldBack { since, number, what, message } = self.state().held.remove(at);
        self.tell(|| format!("#{number} arrives late: {what}"));
        match message {
            Message::Request { process, call, answer } => {
                // What releases a hold under an owner of several processes and takes longer than its lease is promised nothing.
                let releases = call.script.name().contains("release");
                if releases && since.elapsed() >= LEASE {
                    let mut state = self.state();
                    state.excused |= state.handed;
                }
                let _ = answer.send(self.run(number, process, &call));
            }
            Message::Reply { answer, outcome } => drop(answer.send(outcome)),
            Message::News { listener, number } => listener(Event::Message(number)),
        }
    }

    fn words(call: &Call) -> String {
        let args: Vec<_> =
            call.args.iter().map(|arg| String::from_utf8_lossy(&bytes(arg)).into_owned()).collect();
        format!("{} {}", call.script.name(), args.join(" "))
    }

    /// The server runs a script.
    fn run(&self, number: u64, process: usize, call: &Call) -> Result<Reply, Fault> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.look_for_an_excuse(process, call);
        let outcome = self.server.run(call);
        self.tell(|| match &outcome {
            Ok(reply) => format!("#{number} p{process} {} -> {reply:?}", Self::words(call)),
            Err(fault) => format!("#{number} p{process} {} -> {fault}", Self::words(call)),
        });
        let said = std::mem::take(&mut *locked(&self.server.board.said));
        for (to, listener, said) in said {
            let mut state = self.state();
            let may_hold = state.open && state.held_left > 0;
            let news = self.numbers.fetch_add(1, Ordering::Relaxed);
            if may_hold && state.chooser.pick(2) == 1 {
                state.held_left -= 1;
                state.any_held = true;
                let what = format!("the news {said} for p{to}");
                state.held.push(HeldBack {
                    since: Instant::now(),
                    number: news,
                    what: what.clone(),
                    message: Message::News { listener, number: said },
                });
                drop(state);
                self.tell(|| format!("#{news} is held: {what}"));
            } else {
                drop(state);
                tokio::spawn(async move { listener(Event::Message(said)) });
            }
        }
        outcome
    }

    /// Who asks in the name of another process's owner is to do so while that one holds.
    fn look_for_an_excuse(&self, process: usize, call: &Call) {
        let takes = ["acquire", "acquire_all", "read_acquire", "write_acquire", "fair_acquire"];
        let takes = takes.contains(&call.script.name())
            || ["enter", "adopt"].iter().any(|part| call.script.name().contains(part));
        if !takes {
            return;
        }
        let mut state = self.state();
        let args: Vec<_> =
            call.args.iter().map(|arg| String::from_utf8_lossy(&bytes(arg)).into_owned()).collect();
        let foreign = args.iter().find(|arg| {
            state.ids.iter().enumerate().any(|(at, id)| at != process && arg.starts_with(id.as_str()))
        });
        let Some(owner) = foreign else { return };
        state.handed = true;
        let owner = owner.trim_end_matches(":write");
        let is_there =
            self.server.fields().iter().any(|(field, _)| field.trim_end_matches(":write") == owner);
        state.excused |= !is_there;
    }

    async fn call(self: Arc<Self>, process: usize, call: Call) -> Result<Reply, Fault> {
        let (answer, answered) = oneshot::channel();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let fate = {
            let mut state = self.state();
            let fate = if state.open && state.held_left > 0 { state.chooser.pick(3) } else { 0 };
            if fate > 0 {
                state.held_left -= 1;
                state.any_held = true;
            }
            if fate == 1 {
                let what = format!("the request p{process} {}", Self::words(&call));
                let message = Message::Request { process, call: Box::new(call.clone()), answer };
                state.held.push(HeldBack { since: Instant::now(), number, what, message });
                drop(state);
                self.tell(|| format!("#{number} p{process} {}: the request is held", Self::words(&call)));
            } else {
                drop(state);
                let network = self.clone();
                // What has been sent goes on its way, also when its caller has gone.
                tokio::spawn(async move {
                    let outcome = network.run(number, process, &call);
                    if fate == 0 {
                        let _ = answer.send(outcome);
                        return;
                    }
                    network.tell(|| format!("#{number} the reply is held"));
                    let what = format!("the reply to p{process} {}", Self::words(&call));
                    let message = Message::Reply { answer, outcome };
                    network.state().held.push(HeldBack { since: Instant::now(), number, what, message });
                });
            }
            fate
        };
        match timeout(self.response, answered).await {
            Ok(Ok(outcome)) => outcome,
            _ => {
                self.tell(|| format!("#{number} no answer in time"));
                debug_assert!(fate > 0, "only what is held is not answered");
                Err(Fault::Unknown(Error::new(ErrorKind::Unreachable, "no answer in time")))
            }
        }
    }
}

/// The way of one process.
struct Way {
    network: Arc<Network>,
    process: usize,
}

struct Ticket {
    network: Arc<Network>,
    number: u64,
}

impl Subscription for Ticket {}

impl Drop for Ticket {
    fn drop(&mut self) {
        locked(&self.network.server.board.listeners).retain(|listening| listening.ticket != self.number);
    }
}

impl Store for Way {
    fn run(&self, call: Call) -> RunFuture {
        Box::pin(self.network.clone().call(self.process, call))
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        let (network, process) = (self.network.clone(), self.process);
        Box::pin(async move {
            let ticket = network.numbers.fetch_add(1, Ordering::Relaxed);
            locked(&network.server.board.listeners).push(Listening { ticket, process, channel, listener });
            tokio::task::yield_now().await;
            let ticket: Box<dyn Subscription> = Box::new(Ticket { network: network.clone(), number: ticket });
            Ok(ticket)
        })
    }

    fn on_interruption(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        self.network.state().interrupted.push(hook);
    }

    fn on_change(&self, hook: ChangeHook) {
        locked(&self.network.server.board.hooks).push(hook);
    }

    fn watch(&self, keys: Vec<Arc<[u8]>>) -> WatchFuture {
        let network = self.network.clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            let there = locked(&network.server.engine).watch(&keys) as u64;
            Ok(Some(there))
        })
    }

    fn describe(&self) -> String {
        "an explored server".into()
    }
}
