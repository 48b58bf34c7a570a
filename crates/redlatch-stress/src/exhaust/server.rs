//! The server: the engine runs each call on each keyspace once, and what it came to is kept.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redlatch_engine::{Engine, ManualClock, Publisher, Value};

use super::{
    keyspace::{Keyspace, UNIX_MS, from_now},
    scripts::Texts,
    world::{Call, Desk, HEARD, Known, Model, Ran, TICK_MS},
};

/// How many parts what is kept has, so that threads seldom wait for each other.
const PARTS: usize = 64;
/// The number that calls carry, and that replies begin with.
pub(super) const NUMBER: i64 = 7;

type Runs<V> = HashMap<(u32, Call<V>), Arc<[Ran]>>;

/// What all threads of a search share.
pub(super) struct Server<'a, M: Model> {
    model: &'a M,
    texts: Texts,
    /// Whether each call is held against what it is to do, and not only against what must hold whatever it does.
    has_rules: bool,
    known: Mutex<HashMap<Arc<Keyspace>, Arc<Known>>>,
    runs: Vec<Mutex<Runs<M::Verb>>>,
    ticks: Mutex<HashMap<u32, Arc<Known>>>,
    ran: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a, M: Model> Server<'a, M> {
    pub(super) fn new(model: &'a M, texts: Texts, has_rules: bool) -> Server<'a, M> {
        let runs = (0..PARTS).map(|_| Mutex::default()).collect();
        let (known, ticks) = (Mutex::default(), Mutex::default());
        Server { model, texts, has_rules, known, runs, ticks, ran: AtomicU64::new(0) }
    }

    /// How many scripts have run, and how many keyspaces there are.
    pub(super) fn counts(&self) -> (u64, usize) {
        (self.ran.load(Ordering::Relaxed), lock(&self.known).len())
    }

    pub(super) fn known(&self, keys: Keyspace) -> Arc<Known> {
        if let Some(known) = lock(&self.known).get(&keys) {
            return Arc::clone(known);
        }
        let wrong = self.model.sound(&keys).err();
        let keys = Arc::new(keys);
        let mut all = lock(&self.known);
        let id = u32::try_from(all.len()).expect("there are fewer keyspaces than that");
        let made = || Arc::new(Known { id, keys: Arc::clone(&keys), wrong });
        Arc::clone(all.entry(Arc::clone(&keys)).or_insert_with(made))
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<(String, String)>>);

impl Publisher for Heard {
    fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        lock(&self.0).push((text(channel), text(payload)));
        HEARD as usize
    }
}

/// One thread's engine.
pub(super) struct Bench<'a, M: Model> {
    server: &'a Server<'a, M>,
    engine: Engine,
    heard: Arc<Heard>,
    loaded: HashMap<&'static str, (String, bool)>,
}

impl<'a, M: Model> Bench<'a, M> {
    pub(super) fn new(server: &'a Server<'a, M>) -> Result<Self, String> {
        let clock = ManualClock::new(Duration::from_millis(UNIX_MS as u64));
        let heard = Arc::new(Heard::default());
        let publisher = Arc::clone(&heard) as Arc<dyn Publisher>;
        let engine = Engine::new(Arc::new(clock), publisher).map_err(|error| error.to_string())?;
        Ok(Bench { server, engine, heard, loaded: HashMap::new() })
    }

    /// The script's SHA-1, and whether it picks fields at random.
    fn script(&mut self, name: &'static str) -> Result<(String, bool), String> {
        if let Some(known) = self.loaded.get(name) {
            return Ok(known.clone());
        }
        let text = self.server.texts.get(name);
        let sha = self.engine.load(text.as_bytes()).map_err(|error| error.to_string())?;
        let loaded = (sha, text.contains("hrandfield"));
        self.loaded.insert(name, loaded.clone());
        Ok(loaded)
    }

    fn run(&mut self, before: &Arc<Known>, call: Call<M::Verb>) -> Vec<Ran> {
        let words = self.server.model.words(call);
        let failed = |wrong| Ran {
            after: Arc::clone(before),
            reply: Vec::new(),
            told: Vec::new(),
            wrong: Some(wrong),
        };
        let (sha, picks) = match self.script(words.script) {
            Ok(script) => script,
            Err(error) => return vec![failed(error)],
        };
        let mut all: Vec<Ran> = Vec::new();
        for turned in 0..if picks { before.keys.widest() } else { 1 } {
            self.engine.restore(before.keys.effects(turned), false);
            lock(&self.heard.0).clear();
            self.server.ran.fetch_add(1, Ordering::Relaxed);
            let reply = self.engine.eval_sha(&sha, &words.keys, &words.args);
            let told = std::mem::take(&mut *lock(&self.heard.0));
            let after = self.server.known(Keyspace::of(self.engine.snapshot()));
            let mut ran = Ran { after, reply: Vec::new(), told, wrong: None };
            match reply.map_err(|error| error.to_string()).and_then(|value| numbers(&value)) {
                Ok(reply) => ran.reply = reply,
                Err(wrong) => ran.wrong = Some(wrong),
            }
            if ran.wrong.is_none() {
                let judged = match self.server.has_rules {
                    true => self.server.model.contract(call, &before.keys, &ran.after.keys, &ran),
                    false => Ok(()),
                };
                ran.wrong = judged.err().or_else(|| ran.after.wrong.clone());
            }
            let known = |other: &Ran| {
                other.after.id == ran.after.id && other.reply == ran.reply && other.told == ran.told
            };
            if !all.iter().any(known) {
                all.push(ran);
            }
        }
        all
    }
}

/// A reply without the number of the call.
fn numbers(value: &Value) -> Result<Vec<i64>, String> {
    let Value::Array(items) = value else { return Err(format!("the reply is no list: {value:?}")) };
    let number = |item: &Value| match item {
        Value::Int(number) => Ok(from_now(*number)),
        other => Err(format!("the reply has {other:?} for a number")),
    };
    let mut numbers = items.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    if numbers.first() != Some(&NUMBER) {
        return Err(format!(
            "the reply begins with {:?}, and not with the number that was sent",
            numbers.first()
        ));
    }
    if numbers.len() == 1 {
        return Err("the reply ends behind its number".to_owned());
    }
    numbers.remove(0);
    Ok(numbers)
}

impl<M: Model> Desk<M> for Bench<'_, M> {
    fn call(&mut self, before: &Arc<Known>, call: Call<M::Verb>) -> Arc<[Ran]> {
        let part = &self.server.runs[before.id as usize % PARTS];
        if let Some(ran) = lock(part).get(&(before.id, call)) {
            return Arc::clone(ran);
        }
        let ran: Arc<[Ran]> = self.run(before, call).into();
        Arc::clone(lock(part).entry((before.id, call)).or_insert(ran))
    }

    fn tick(&mut self, before: &Arc<Known>) -> Arc<Known> {
        if let Some(after) = lock(&self.server.ticks).get(&before.id) {
            return Arc::clone(after);
        }
        let after = self.server.known(before.keys.tick(TICK_MS));
        lock(&self.server.ticks).insert(before.id, Arc::clone(&after));
        after
    }
}
