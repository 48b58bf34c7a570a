//! The simulated server: the engine with the scripts that are shipped, and those who listen to it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use redlatch::{
    Clock,
    store::{Arg, Call, Change, ChangeHook, Event, Fault, Listener, Reply},
};
use redlatch_engine::{Engine, Publisher, Value};
use tokio::time::Instant;

use super::left::{self, Left};

/// What the boot clocks of simulated machines show at the beginning, in ms.
const BOOT_US: u64 = 1_000_000_000;
/// What wall clocks show then, in µs since 1970.
const UNIX_US: u64 = 1_700_000_000_000_000;

/// The clock of one machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct MachineClock {
    since: Instant,
    /// What it gains, in millionths.
    gain_ppm: i64,
}

impl MachineClock {
    pub(super) fn new(since: Instant, gain_ppm: i64) -> Self {
        MachineClock { since, gain_ppm }
    }

    fn passed_us(&self) -> u64 {
        let us = self.since.elapsed().as_micros() as i64;
        (us + us * self.gain_ppm / 1_000_000) as u64
    }
}

impl Clock for MachineClock {
    fn boot_us(&self) -> u64 {
        BOOT_US + self.passed_us()
    }

    fn unix_us(&self) -> u64 {
        UNIX_US + self.passed_us()
    }
}

pub(super) struct Server {
    engine: Mutex<Engine>,
    board: Arc<Board>,
}

/// The way from the server to the processes.
pub(super) trait Carrier: Send + Sync {
    /// Brings a message of the server to a process.
    fn deliver(self: Arc<Self>, process: usize, message: Box<dyn FnOnce() + Send>);
}

/// Those who listen. The engine tells it of messages while a script runs.
#[derive(Default)]
struct Board {
    listeners: Mutex<BTreeMap<Vec<u8>, Vec<Listening>>>,
    hooks: Mutex<Vec<(usize, ChangeHook)>>,
    /// The way to those who listen.
    network: Mutex<Option<Weak<dyn Carrier>>>,
}

#[derive(Clone)]
struct Listening {
    ticket: u64,
    process: usize,
    listener: Listener,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    fn network(&self) -> Option<Arc<dyn Carrier>> {
        locked(&self.network).as_ref()?.upgrade()
    }

    fn tell(&self, change: &Change) {
        let Some(network) = self.network() else { return };
        let hooks = locked(&self.hooks).clone();
        for (process, hook) in hooks {
            let change = change.clone();
            network.clone().deliver(process, Box::new(move || hook(change)));
        }
    }
}

impl Publisher for Board {
    fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        let Some(network) = self.network() else { return 0 };
        let number = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        let Some(number) = number else { return 0 };
        let heard = locked(&self.listeners).get(channel).cloned().unwrap_or_default();
        for Listening { process, listener, .. } in &heard {
            let listener = listener.clone();
            network.clone().deliver(*process, Box::new(move || listener(Event::Message(number))));
        }
        heard.len()
    }

    fn changed(&self, key: &[u8]) {
        self.tell(&Change::Key(key.to_vec()));
    }

    fn cleared(&self) {
        self.tell(&Change::All);
    }
}

impl Server {
    pub(super) fn start(clock: MachineClock) -> Result<Self, Box<dyn std::error::Error>> {
        let board = Arc::new(Board::default());
        let engine = Engine::new(Arc::new(clock), board.clone())?;
        Ok(Server { engine: Mutex::new(engine), board })
    }

    pub(super) fn connect(&self, network: Weak<dyn Carrier>) {
        *locked(&self.board.network) = Some(network);
    }

    pub(super) fn run(&self, call: &Call) -> Result<Reply, Fault> {
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

    pub(super) fn flush_scripts(&self) {
        locked(&self.engine).flush_scripts();
    }

    pub(super) fn watch(&self, keys: &[Arc<[u8]>]) -> u64 {
        locked(&self.engine).watch(keys) as u64
    }

    pub(super) fn subscribe(&self, ticket: u64, process: usize, channel: &[u8], listener: Listener) {
        let mut listeners = locked(&self.board.listeners);
        listeners.entry(channel.to_vec()).or_default().push(Listening { ticket, process, listener });
    }

    pub(super) fn unsubscribe(&self, ticket: u64, channel: &[u8]) {
        let mut listeners = locked(&self.board.listeners);
        if let Some(list) = listeners.get_mut(channel) {
            list.retain(|listening| listening.ticket != ticket);
            if list.is_empty() {
                listeners.remove(channel);
            }
        }
    }

    /// All listeners of a process.
    pub(super) fn listeners_of(&self, process: usize) -> Vec<Listener> {
        let listeners = locked(&self.board.listeners);
        let all = listeners.values().flatten();
        all.filter(|listening| listening.process == process)
            .map(|listening| listening.listener.clone())
            .collect()
    }

    pub(super) fn on_change(&self, process: usize, hook: ChangeHook) {
        locked(&self.board.hooks).push((process, hook));
    }

    pub(super) fn left(&self) -> Vec<Left> {
        left::all(locked(&self.engine).dump())
    }
}

/// An argument as it is sent.
pub(crate) fn bytes(arg: &Arg) -> Vec<u8> {
    match arg {
        Arg::Int(number) => number.to_string().into_bytes(),
        Arg::Text(text) => text.as_bytes().to_vec(),
        Arg::Bytes(bytes) => bytes.to_vec(),
        Arg::Static(text) => text.as_bytes().to_vec(),
    }
}

/// A value of the engine as a store answers it.
pub(crate) fn reply(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(number) => Reply::Int(number),
        Value::Bytes(bytes) => Reply::Bytes(bytes),
        Value::Status(text) => Reply::Bytes(text.into_bytes()),
        Value::Array(items) => Reply::Array(items.into_iter().map(reply).collect()),
    }
}
