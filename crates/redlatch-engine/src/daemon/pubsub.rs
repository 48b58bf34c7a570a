//! Subscriptions and messages.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use futures_util::task::AtomicWaker;

use super::resp::Writer;
use crate::glob;
use crate::publisher::Publisher;

/// How much a subscriber may leave unread before it is dropped, in bytes.
pub(crate) const UNREAD_BYTES_MAX: usize = 8 << 20;

/// The three kinds of subscriptions, each with names of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Channel,
    Pattern,
    Shard,
}

/// Messages on their way to one connection.
#[derive(Debug)]
pub(crate) struct Outbox {
    id: u64,
    state: Mutex<OutboxState>,
    /// There is something to write, or the connection has been dropped.
    changed: AtomicBool,
    waiting: AtomicWaker,
}

#[derive(Debug)]
struct OutboxState {
    writer: Writer,
    dropped: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outbox {
    pub(crate) fn new(id: u64) -> Arc<Outbox> {
        let writer = Writer { bytes: Vec::new(), resp3: false };
        Arc::new(Outbox {
            id,
            state: Mutex::new(OutboxState { writer, dropped: false }),
            changed: AtomicBool::new(false),
            waiting: AtomicWaker::new(),
        })
    }

    pub(crate) fn use_resp3(&self, resp3: bool) {
        lock(&self.state).writer.resp3 = resp3;
    }

    /// Whether there is something to drain. If not, the task is woken once there is.
    pub(crate) fn poll_changed(&self, cx: &Context<'_>) -> bool {
        // The waker goes first: what changes in between is seen here or wakes.
        self.waiting.register(cx.waker());
        self.changed.load(Ordering::Acquire)
    }

    /// Moves what waits behind `out`; false when the subscriber has been dropped.
    pub(crate) fn drain_into(&self, out: &mut Vec<u8>) -> bool {
        if !self.changed.swap(false, Ordering::AcqRel) {
            return true;
        }
        let mut state = lock(&self.state);
        out.append(&mut state.writer.bytes);
        !state.dropped
    }

    pub(crate) fn is_dropped(&self) -> bool {
        lock(&self.state).dropped
    }

    fn send(&self, words: &[&[u8]]) {
        let size: usize = words.iter().map(|word| word.len() + 16).sum();
        self.push(size, |writer| {
            writer.push(words.len());
            for word in words {
                writer.bulk(word);
            }
        });
    }

    /// Says that a key has changed, or all keys have, in the words of `CLIENT TRACKING`.
    fn invalidate(&self, key: Option<&[u8]>) {
        self.push(key.map_or(0, <[u8]>::len) + 48, |writer| {
            writer.push(2);
            writer.bulk(b"invalidate");
            match key {
                Some(key) => {
                    writer.array(1);
                    writer.bulk(key);
                }
                None => writer.null(),
            }
        });
    }

    fn push(&self, size: usize, write: impl FnOnce(&mut Writer)) {
        let mut state = lock(&self.state);
        if state.dropped {
            return;
        }
        if state.writer.bytes.len() + size > UNREAD_BYTES_MAX {
            state.dropped = true;
            state.writer.bytes = Vec::new();
        } else {
            write(&mut state.writer);
        }
        drop(state);
        self.changed.store(true, Ordering::Release);
        self.waiting.wake();
    }
}

type Subscribers = BTreeMap<u64, Arc<Outbox>>;

/// All subscriptions of the daemon.
#[derive(Default)]
pub(crate) struct Hub {
    names: Mutex<Names>,
    /// Who is to be told of the next change of a key.
    watchers: Mutex<HashMap<Vec<u8>, Subscribers>>,
}

/// The names of each [`Kind`], apart, so that a message only looks where it may be heard.
type Names = [HashMap<Vec<u8>, Subscribers>; 3];

impl Hub {
    pub(crate) fn subscribe(&self, kind: Kind, name: &[u8], outbox: &Arc<Outbox>) {
        lock(&self.names)[kind as usize]
            .entry(name.to_vec())
            .or_default()
            .insert(outbox.id, Arc::clone(outbox));
    }

    pub(crate) fn unsubscribe(&self, kind: Kind, name: &[u8], outbox: &Outbox) {
        let names = &mut lock(&self.names)[kind as usize];
        if let Some(subscribers) = names.get_mut(name) {
            subscribers.remove(&outbox.id);
            if subscribers.is_empty() {
                names.remove(name);
            }
        }
    }

    pub(crate) fn watch(&self, key: &[u8], outbox: &Arc<Outbox>) {
        lock(&self.watchers).entry(key.to_vec()).or_default().insert(outbox.id, Arc::clone(outbox));
    }

    /// A connection is gone.
    pub(crate) fn unwatch(&self, outbox: &Outbox) {
        lock(&self.watchers).retain(|_, watchers| {
            watchers.remove(&outbox.id);
            !watchers.is_empty()
        });
    }

    /// Names of one kind that a client listens to.
    pub(crate) fn names(&self, kind: Kind, pattern: Option<&[u8]>) -> Vec<Vec<u8>> {
        let names = lock(&self.names);
        names[kind as usize]
            .keys()
            .filter(|name| pattern.is_none_or(|pattern| glob::matches(pattern, name)))
            .cloned()
            .collect()
    }

    pub(crate) fn listeners(&self, kind: Kind, name: &[u8]) -> usize {
        lock(&self.names)[kind as usize].get(name).map_or(0, BTreeMap::len)
    }

    fn deliver(&self, kind: Kind, channel: &[u8], payload: &[u8]) -> usize {
        let names = lock(&self.names);
        let mut receivers = 0;
        let word: &[u8] = if kind == Kind::Shard { b"smessage" } else { b"message" };
        if let Some(subscribers) = names[kind as usize].get(channel) {
            for outbox in subscribers.values() {
                outbox.send(&[word, channel, payload]);
                receivers += 1;
            }
        }
        if kind == Kind::Channel {
            for (pattern, subscribers) in &names[Kind::Pattern as usize] {
                if glob::matches(pattern, channel) {
                    for outbox in subscribers.values() {
                        outbox.send(&[b"pmessage", pattern, channel, payload]);
                        receivers += 1;
                    }
                }
            }
        }
        receivers
    }
}

impl Publisher for Hub {
    fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        self.deliver(Kind::Channel, channel, payload)
    }

    fn publish_sharded(&self, channel: &[u8], payload: &[u8]) -> usize {
        self.deliver(Kind::Shard, channel, payload)
    }

    fn changed(&self, key: &[u8]) {
        let watchers = lock(&self.watchers).remove(key).unwrap_or_default();
        for outbox in watchers.values() {
            outbox.invalidate(Some(key));
        }
    }

    fn cleared(&self) {
        let mut all = Subscribers::new();
        for (_, watchers) in lock(&self.watchers).drain() {
            all.extend(watchers);
        }
        for outbox in all.values() {
            outbox.invalidate(None);
        }
    }
}
