//! `memory:`: the engine inside this process, on the caller's thread.

use std::{
    collections::{HashMap, VecDeque},
    future::ready,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use redlatch_engine::{Engine, Publisher, Value};

use super::{
    Arg, Call, Change, ChangeHook, Event, Fault, Listener, ListenersFuture, Reply, RunFuture, Store,
    SubscribeFuture, Subscription, WatchFuture,
};
use crate::{
    config::{Config, url::STRICT_KEYS},
    error::{Error, ErrorKind},
    fork::PerProcess,
};

struct MemoryStore {
    engine: Mutex<Engine>,
    board: Arc<Board>,
    name: Option<String>,
}

type Listeners = Vec<(u64, Listener)>;

/// Who listens to what. The engine tells it of each message while a script runs.
#[derive(Default)]
struct Board {
    listeners: Mutex<HashMap<Arc<[u8]>, Listeners>>,
    /// The listeners to changes: each client by its number.
    hooks: Mutex<Vec<(u64, ChangeHook)>>,
    outbox: Mutex<Outbox>,
    next: AtomicU64,
}

/// What scripts have told and listeners have not heard. Listeners wake tasks, and a waker may run its task at once, which asks the
/// engine; so they hear of it when the script has ended and nobody has the engine.
#[derive(Default)]
struct Outbox {
    told: VecDeque<Told>,
    /// A thread is delivering. One does at a time, so that everything is heard in order.
    is_delivering: bool,
}

enum Told {
    Message(Listener, Event),
    Change(ChangeHook, Change),
}

impl Told {
    fn tell(self) {
        match self {
            Told::Message(listener, event) => listener(event),
            Told::Change(hook, change) => hook(change),
        }
    }
}

/// The right to deliver, until dropped, also by a listener that panics.
struct Delivering<'a>(&'a Board);

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        self.0.outbox().is_delivering = false;
    }
}

impl Publisher for Board {
    fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        let Some(number) = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok()) else {
            return 0;
        };
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = listeners.get(channel).map(Vec::as_slice).unwrap_or_default();
        let told = heard.iter().map(|(_, listener)| Told::Message(listener.clone(), Event::Message(number)));
        self.outbox().told.extend(told);
        heard.len()
    }

    fn changed(&self, key: &[u8]) {
        self.tell(&Change::Key(key.to_vec()));
    }

    fn cleared(&self) {
        self.tell(&Change::All);
    }
}

impl Board {
    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each client knows itself which keys it watches.
    fn tell(&self, change: &Change) {
        let hooks = self.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        let told = hooks.iter().map(|(_, hook)| Told::Change(hook.clone(), change.clone()));
        self.outbox().told.extend(told);
    }

    /// Tells what scripts have told, unless another thread is at it, or a listener further up: that one goes on.
    fn deliver(&self) {
        loop {
            let delivering = {
                let mut outbox = self.outbox();
                if outbox.told.is_empty() || std::mem::replace(&mut outbox.is_delivering, true) {
                    return;
                }
                Delivering(self)
            };
            while let Some(told) = self.next_told() {
                told.tell();
            }
            // What came between the last look and this is looked for once more.
            drop(delivering);
        }
    }

    fn next_told(&self) -> Option<Told> {
        self.outbox().told.pop_front()
    }
}

/// One client's way to an engine.
struct MemoryClient {
    store: Arc<MemoryStore>,
    id: u64,
}

impl MemoryClient {
    fn of(store: Arc<MemoryStore>) -> Arc<dyn Store> {
        let id = store.board.next.fetch_add(1, Ordering::Relaxed);
        Arc::new(MemoryClient { store, id })
    }
}

impl Drop for MemoryClient {
    fn drop(&mut self) {
        let mut hooks = self.store.board.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        hooks.retain(|(id, _)| *id != self.id);
    }
}

struct Ticket {
    board: Arc<Board>,
    channel: Arc<[u8]>,
    id: u64,
}

impl Subscription for Ticket {}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut listeners = self.board.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = listeners.get_mut(&self.channel) {
            list.retain(|(id, _)| *id != self.id);
            if list.is_empty() {
                listeners.remove(&self.channel);
            }
        }
    }
}

/// Engines that are shared by name; an engine ends with its last client. Those of a forked child are its own.
static SHARED: PerProcess<Mutex<HashMap<String, Weak<MemoryStore>>>> = PerProcess::new();

pub(super) fn open(name: Option<&str>, config: &Config) -> Result<Arc<dyn Store>, Error> {
    let Some(name) = name else { return Ok(MemoryClient::of(Arc::new(MemoryStore::new(None, config)?))) };
    let mut engines = SHARED.get()?.lock().unwrap_or_else(PoisonError::into_inner);
    engines.retain(|_, store| store.strong_count() > 0);
    if let Some(store) = engines.get(name).and_then(Weak::upgrade) {
        return Ok(MemoryClient::of(store));
    }
    let store = Arc::new(MemoryStore::new(Some(name), config)?);
    engines.insert(name.to_owned(), Arc::downgrade(&store));
    Ok(MemoryClient::of(store))
}

impl MemoryStore {
    fn new(name: Option<&str>, config: &Config) -> Result<Self, Error> {
        let board = Arc::new(Board::default());
        let mut engine = Engine::new(config.clock.clone(), board.clone())
            .map_err(|error| Error::new(ErrorKind::Engine, format!("the engine did not start: {error}")))?;
        engine.set_strict_keys(name.is_some_and(|name| name.ends_with(STRICT_KEYS)));
        Ok(MemoryStore { engine: Mutex::new(engine), board, name: name.map(str::to_owned) })
    }

    fn execute(&self, call: &Call) -> Result<Reply, Fault> {
        let outcome = self.eval(call);
        self.board.deliver();
        outcome
    }

    fn eval(&self, call: &Call) -> Result<Reply, Fault> {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let args: smallvec::SmallVec<[Argument<'_>; 8]> = call.args.iter().map(Argument::new).collect();
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
}

/// An argument as bytes; integers are written into a buffer of their own.
enum Argument<'a> {
    Borrowed(&'a [u8]),
    Number([u8; 20], usize),
}

impl<'a> Argument<'a> {
    fn new(arg: &'a Arg) -> Self {
        match arg {
            Arg::Text(text) => Argument::Borrowed(text.as_bytes()),
            Arg::Bytes(bytes) => Argument::Borrowed(bytes),
            Arg::Static(text) => Argument::Borrowed(text.as_bytes()),
            Arg::Int(value) => {
                use std::io::Write;
                let mut digits = [0; 20];
                let mut rest = &mut digits[..];
                // Twenty bytes hold every i64 with its sign, so writing cannot fail.
                let _ = write!(rest, "{value}");
                let used = 20 - rest.len();
                Argument::Number(digits, used)
            }
        }
    }
}

impl AsRef<[u8]> for Argument<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Argument::Borrowed(bytes) => bytes,
            Argument::Number(digits, used) => &digits[..*used],
        }
    }
}

fn reply(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(value) => Reply::Int(value),
        Value::Bytes(bytes) => Reply::Bytes(bytes),
        Value::Status(text) => Reply::Bytes(text.into_bytes()),
        Value::Array(items) => Reply::Array(items.into_iter().map(reply).collect()),
    }
}

impl Store for MemoryClient {
    fn run(&self, call: Call) -> RunFuture {
        let store = self.store.clone();
        Box::pin(async move { store.execute(&call) })
    }

    fn on_change(&self, hook: ChangeHook) {
        let mut hooks = self.store.board.hooks.lock().unwrap_or_else(PoisonError::into_inner);
        hooks.push((self.id, hook));
    }

    fn watch(&self, keys: Vec<Arc<[u8]>>) -> WatchFuture {
        let mut engine = self.store.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let there = engine.watch(&keys) as u64;
        drop(engine);
        // Looking may have found that the time of a key is over.
        self.store.board.deliver();
        Box::pin(ready(Ok(Some(there))))
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        let board = &self.store.board;
        let id = board.next.fetch_add(1, Ordering::Relaxed);
        let mut listeners = board.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.entry(channel.clone()).or_default().push((id, listener));
        drop(listeners);
        let ticket: Box<dyn Subscription> = Box::new(Ticket { board: board.clone(), channel, id });
        Box::pin(ready(Ok(ticket)))
    }

    fn listeners(&self, channels: Vec<Arc<[u8]>>) -> ListenersFuture {
        let listeners = self.store.board.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |channel| listeners.get(channel).map_or(0, |list| list.len() as u64);
        let counts = channels.iter().map(count).collect();
        drop(listeners);
        Box::pin(ready(Ok(Some(counts))))
    }

    fn place(&self) -> Option<String> {
        self.store.name.as_ref().map(|_| self.describe())
    }

    fn describe(&self) -> String {
        format!("memory:{}", self.store.name.as_deref().unwrap_or(""))
    }
}
