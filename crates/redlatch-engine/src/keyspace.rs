//! The keyspace: named values with an optional expiry.
//!
//! A key keeps its slot for as long as it lives. That makes `SCAN` exact (the cursor is a slot number, and what
//! stays is never moved past it) and gives active expiry something cheap to walk over.

pub(crate) mod expiry;
pub(crate) mod hash;
pub(crate) mod keys;
pub(crate) mod list;
mod replay;
pub(crate) mod string;
pub(crate) mod zset;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::clock::{Clock, SteadyClock};
use crate::effect::Effect;
use crate::fast_hash::FastMap;
use crate::publisher::Publisher;
use crate::recovery::Recovering;
use crate::value::{EngineError, Value, WRONGTYPE};
use hash::Hash;
use zset::SortedSet;

/// What a command answers.
pub(crate) type Reply = Result<Value, EngineError>;

/// Marks a key without expiry.
pub(crate) const NEVER: u64 = u64::MAX;

/// A value under a key.
pub(crate) enum Data {
    Str(Vec<u8>),
    Hash(Hash),
    List(VecDeque<Vec<u8>>),
    SortedSet(SortedSet),
}

impl Data {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Data::Str(_) => "string",
            Data::Hash(_) => "hash",
            Data::List(_) => "list",
            Data::SortedSet(_) => "zset",
        }
    }

    fn is_empty_collection(&self) -> bool {
        match self {
            Data::Str(_) => false,
            Data::Hash(hash) => hash.len() == 0,
            Data::List(list) => list.is_empty(),
            Data::SortedSet(set) => set.len() == 0,
        }
    }
}

pub(crate) struct Slot {
    pub(crate) key: Arc<[u8]>,
    pub(crate) data: Data,
    pub(crate) expires_at_ms: u64,
}

/// What the keys of records begin with: of a forced unlock, and of what a client tells of itself. They expire like a lease, and nobody holds them.
const RECORD_PREFIXES: [&[u8]; 2] = [b"redlatch_forced:", b"redlatch:client:"];

impl Slot {
    /// Whether it expires, has not yet, and stands for something that is held.
    pub(crate) fn is_lease(&self, now_ms: u64) -> bool {
        let is_record = RECORD_PREFIXES.iter().any(|prefix| self.key.starts_with(prefix));
        self.expires_at_ms != NEVER && self.expires_at_ms >= now_ms && !is_record
    }
}

/// How many bytes of changes there are between two looks at the memory in use.
const LOOK_BYTES: usize = 1 << 20;

/// How much memory may be in use.
pub(crate) struct MemoryLimit {
    pub(crate) bytes_max: u64,
    /// Says how much is in use, where that can be known.
    pub(crate) measure: Box<dyn Fn() -> Option<u64> + Send>,
    /// What was found last, and how much has been changed since.
    pub(crate) found: u64,
    pub(crate) grown: usize,
}

impl MemoryLimit {
    fn used(&mut self) -> u64 {
        if self.found > self.bytes_max || self.grown >= LOOK_BYTES {
            self.grown = 0;
            self.found = (self.measure)().unwrap_or(0);
        }
        self.found
    }
}

/// Everything that a command may touch.
pub(crate) struct Core {
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    index: FastMap<Arc<[u8]>, usize>,
    with_expiry: usize,
    probe_at: usize,
    clock: Arc<SteadyClock>,
    pub(crate) publisher: Arc<dyn Publisher>,
    /// The boot clock as the current command or script sees it. It stands still within a script, so that a key
    /// cannot vanish between two of its commands.
    pub(crate) now_us: u64,
    /// The same in whole milliseconds.
    pub(crate) now_ms: u64,
    /// Commands and scripts take no time of their own: it goes on when it is told to.
    pub(crate) is_time_held: bool,
    /// Whether effects are recorded at all.
    pub(crate) journaling: bool,
    /// Set while the journal cannot be written; every write is refused with this.
    pub(crate) refuse_writes: Option<EngineError>,
    /// Nothing is granted before this time on the boot clock.
    pub(crate) wait_until_ms: u64,
    /// What the running script does until then.
    pub(crate) recovering: Recovering,
    /// The keys that the running script has declared, where it may use no others.
    pub(crate) declared: Option<HashSet<Vec<u8>>>,
    /// What changed since the journal was last written.
    pub(crate) effects: Vec<Effect>,
    /// How much memory may be in use, where that is bounded.
    pub(crate) memory: Option<MemoryLimit>,
    /// The current command or script has changed something.
    changed: bool,
    /// The keys that the publisher is told of when they change; each of them exists.
    watched: HashSet<Arc<[u8]>>,
}

impl Core {
    pub(crate) fn new(clock: Arc<SteadyClock>, publisher: Arc<dyn Publisher>, journaling: bool) -> Core {
        let now_us = clock.boot_us();
        Core {
            slots: Vec::new(),
            free: Vec::new(),
            index: FastMap::default(),
            with_expiry: 0,
            probe_at: 0,
            clock,
            publisher,
            now_us,
            now_ms: now_us / 1000,
            is_time_held: false,
            journaling,
            refuse_writes: None,
            wait_until_ms: 0,
            recovering: Recovering::Unsaid,
            declared: None,
            effects: Vec::new(),
            memory: None,
            changed: false,
            watched: HashSet::new(),
        }
    }

    /// Watches a key, if it exists.
    pub(crate) fn watch(&mut self, key: &[u8]) -> bool {
        let Some(at) = self.find(key) else { return false };
        if let Some(slot) = &self.slots[at] {
            self.watched.insert(Arc::clone(&slot.key));
        }
        true
    }

    /// An element of a key has gone, or all of it.
    pub(crate) fn lessened(&mut self, key: &[u8]) {
        if !self.watched.is_empty() && self.watched.remove(key) {
            self.publisher.changed(key);
        }
    }

    pub(crate) fn clock_us(&self) -> u64 {
        self.clock.boot_us()
    }

    pub(crate) fn set_time(&mut self, now_us: u64) {
        (self.now_us, self.now_ms) = (now_us, now_us / 1000);
    }

    /// Microseconds since 1970, as the current command or script sees it.
    pub(crate) fn unix_us(&self) -> u64 {
        self.clock.unix_at(self.now_us)
    }

    /// Starts a command or script: takes the time and expires a few keys.
    pub(crate) fn begin(&mut self) {
        if !self.is_time_held {
            self.set_time(self.clock_us());
        }
        self.changed = false;
        if self.with_expiry > 0 {
            self.expire_some(2);
        }
    }

    pub(crate) fn emit(&mut self, effect: impl FnOnce() -> Effect) {
        self.changed = true;
        if self.journaling {
            let effect = effect();
            if let Some(memory) = &mut self.memory {
                memory.grown += effect.size_bytes();
            }
            self.effects.push(effect);
        }
    }

    /// Whether so much memory is in use that nothing new may be kept. What has begun to change things is let through a little longer,
    /// or it would be cut off in the middle.
    pub(crate) fn is_full(&mut self) -> bool {
        let changed = self.changed;
        self.memory.as_mut().is_some_and(|memory| {
            let max = memory.bytes_max;
            memory.used() > if changed { max + max / 8 } else { max }
        })
    }

    /// The slot of a live key. A key past its expiry is removed here.
    pub(crate) fn find(&mut self, key: &[u8]) -> Option<usize> {
        let at = *self.index.get(key)?;
        if self.slots[at].as_ref().is_some_and(|slot| slot.expires_at_ms < self.now_ms) {
            self.remove_at(at);
            return None;
        }
        Some(at)
    }

    pub(crate) fn slot(&mut self, key: &[u8]) -> Option<&mut Slot> {
        let at = self.find(key)?;
        self.slots[at].as_mut()
    }

    /// Puts a value under a key, whatever was there.
    pub(crate) fn put(&mut self, key: &[u8], data: Data, expires_at_ms: u64) -> &mut Slot {
        let at = match self.index.get(key) {
            Some(&at) => {
                self.lessened(key);
                at
            }
            None => {
                let name: Arc<[u8]> = key.into();
                let slot = Slot { key: Arc::clone(&name), data: Data::Str(Vec::new()), expires_at_ms: NEVER };
                let at = match self.free.pop() {
                    Some(at) => {
                        self.slots[at] = Some(slot);
                        at
                    }
                    None => {
                        self.slots.push(Some(slot));
                        self.slots.len() - 1
                    }
                };
                self.index.insert(name, at);
                at
            }
        };
        let slot = self.slots[at].as_mut().expect("the index only names filled slots");
        self.with_expiry += usize::from(expires_at_ms != NEVER);
        self.with_expiry -= usize::from(slot.expires_at_ms != NEVER);
        slot.data = data;
        slot.expires_at_ms = expires_at_ms;
        slot
    }

    /// Removes a live key and records it.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        match self.find(key) {
            Some(at) => {
                self.remove_at(at);
                true
            }
            None => false,
        }
    }

    fn remove_at(&mut self, at: usize) {
        if let Some(slot) = self.slots[at].take() {
            self.index.remove(&slot.key);
            self.free.push(at);
            self.with_expiry -= usize::from(slot.expires_at_ms != NEVER);
            self.lessened(&slot.key);
            self.emit(|| Effect::Delete { key: slot.key.to_vec() });
        }
    }

    /// Removes the key when nothing is left in its collection. Call after every removal of an element.
    pub(crate) fn remove_if_empty(&mut self, key: &[u8]) {
        if let Some(at) = self.find(key)
            && self.slots[at].as_ref().is_some_and(|slot| slot.data.is_empty_collection())
        {
            self.remove_at(at);
        }
    }

    pub(crate) fn set_expiry(&mut self, key: &[u8], expires_at_ms: u64) {
        let Some(at) = self.find(key) else { return };
        if let Some(slot) = self.slots[at].as_mut() {
            self.with_expiry += usize::from(expires_at_ms != NEVER);
            self.with_expiry -= usize::from(slot.expires_at_ms != NEVER);
            slot.expires_at_ms = expires_at_ms;
        }
        self.emit(|| Effect::Expire {
            key: key.to_vec(),
            expires_at_ms: (expires_at_ms != NEVER).then_some(expires_at_ms),
        });
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.index.clear();
        self.with_expiry = 0;
        if !self.watched.is_empty() {
            self.watched.clear();
            self.publisher.cleared();
        }
        self.emit(|| Effect::Clear);
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// How many positions there are, filled or not.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// The slots in order from one position on, with their positions.
    pub(crate) fn slots_from(&self, from: usize) -> impl Iterator<Item = (usize, &Slot)> {
        let from = from.min(self.slots.len());
        self.slots[from..].iter().enumerate().filter_map(move |(i, slot)| Some((from + i, slot.as_ref()?)))
    }

    /// Looks at up to `limit` slots and removes the expired ones. Returns how many went.
    pub(crate) fn expire_some(&mut self, limit: usize) -> usize {
        let mut gone = 0;
        for _ in 0..limit.min(self.slots.len()) {
            if self.probe_at >= self.slots.len() {
                self.probe_at = 0;
            }
            if self.slots[self.probe_at].as_ref().is_some_and(|slot| slot.expires_at_ms < self.now_ms) {
                self.remove_at(self.probe_at);
                gone += 1;
            }
            self.probe_at += 1;
        }
        gone
    }

    /// Removes every key that has an expiry.
    pub(crate) fn drop_expiring(&mut self) {
        for at in 0..self.slots.len() {
            if self.slots[at].as_ref().is_some_and(|slot| slot.expires_at_ms != NEVER) {
                self.remove_at(at);
            }
        }
    }

    /// How many live keys will expire; dead ones are removed on the way.
    pub(crate) fn expiring_key_count(&mut self) -> usize {
        self.expire_some(self.slots.len());
        self.with_expiry
    }

    pub(crate) fn hash(&mut self, key: &[u8]) -> Result<Option<&mut Hash>, EngineError> {
        match self.slot(key) {
            None => Ok(None),
            Some(Slot { data: Data::Hash(hash), .. }) => Ok(Some(hash)),
            Some(_) => Err(WRONGTYPE),
        }
    }

    pub(crate) fn list(&mut self, key: &[u8]) -> Result<Option<&mut VecDeque<Vec<u8>>>, EngineError> {
        match self.slot(key) {
            None => Ok(None),
            Some(Slot { data: Data::List(list), .. }) => Ok(Some(list)),
            Some(_) => Err(WRONGTYPE),
        }
    }

    pub(crate) fn sorted(&mut self, key: &[u8]) -> Result<Option<&mut SortedSet>, EngineError> {
        match self.slot(key) {
            None => Ok(None),
            Some(Slot { data: Data::SortedSet(set), .. }) => Ok(Some(set)),
            Some(_) => Err(WRONGTYPE),
        }
    }

    pub(crate) fn string(&mut self, key: &[u8]) -> Result<Option<&mut Vec<u8>>, EngineError> {
        match self.slot(key) {
            None => Ok(None),
            Some(Slot { data: Data::Str(text), .. }) => Ok(Some(text)),
            Some(_) => Err(WRONGTYPE),
        }
    }

    pub(crate) fn hash_or_new(&mut self, key: &[u8]) -> Result<&mut Hash, EngineError> {
        let slot = match self.find(key) {
            Some(at) => self.slots[at].as_mut().expect("the index only names filled slots"),
            None => self.put(key, Data::Hash(Hash::default()), NEVER),
        };
        match &mut slot.data {
            Data::Hash(hash) => Ok(hash),
            _ => Err(WRONGTYPE),
        }
    }

    pub(crate) fn list_or_new(&mut self, key: &[u8]) -> Result<&mut VecDeque<Vec<u8>>, EngineError> {
        let slot = match self.find(key) {
            Some(at) => self.slots[at].as_mut().expect("the index only names filled slots"),
            None => self.put(key, Data::List(VecDeque::new()), NEVER),
        };
        match &mut slot.data {
            Data::List(list) => Ok(list),
            _ => Err(WRONGTYPE),
        }
    }

    pub(crate) fn sorted_or_new(&mut self, key: &[u8]) -> Result<&mut SortedSet, EngineError> {
        let slot = match self.find(key) {
            Some(at) => self.slots[at].as_mut().expect("the index only names filled slots"),
            None => self.put(key, Data::SortedSet(SortedSet::default()), NEVER),
        };
        match &mut slot.data {
            Data::SortedSet(set) => Ok(set),
            _ => Err(WRONGTYPE),
        }
    }
}
