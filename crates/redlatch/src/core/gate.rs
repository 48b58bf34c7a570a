//! Gates: of the tasks of one process that wait for the same thing, one at a time asks the server.
//!
//! A message that something came free would otherwise make every waiting task ask, and all but a few in vain. Whoever gets
//! what it wants lets the next one ask at once, so nobody sleeps while there is something left. Tasks that want different
//! amounts have gates of their own: one that wants little must not wait behind one that wants more than there is.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::OwnedMutexGuard;

/// What is waited for, and how much of it.
pub(crate) type GateKey = (Arc<[u8]>, i64);

/// From how many gates on those that nobody uses are looked for.
const SWEEP_FROM: usize = 64;

struct Gate {
    /// The queue is first come, first served, and leaving it early is safe.
    queue: Arc<tokio::sync::Mutex<()>>,
    /// When the last request was sent of which the answer was that nothing is left. Whoever has heard every message since
    /// then, and has heard none, need not ask.
    nothing_left_ms: AtomicU64,
    /// When something may come free without a message.
    again_ms: AtomicU64,
}

/// The gates of one client.
#[derive(Default)]
pub(crate) struct Gates {
    open: Mutex<HashMap<GateKey, Weak<Gate>>>,
}

/// The right to ask, until dropped.
pub(crate) struct Turn {
    gate: Arc<Gate>,
    _queue: OwnedMutexGuard<()>,
}

impl Turn {
    /// Notes that a request of that moment left nothing, and when that may change without a message.
    pub(crate) fn nothing_left(&self, sent_ms: u64, again: Option<Duration>) {
        self.gate.nothing_left_ms.fetch_max(sent_ms, Ordering::Relaxed);
        if let Some(again) = again {
            let at_ms = sent_ms.saturating_add(u64::try_from(again.as_millis()).unwrap_or(u64::MAX));
            // A moment that has passed says nothing any more; of those to come the first one counts.
            let known = self.gate.again_ms.load(Ordering::Relaxed);
            let first = if known > sent_ms { known.min(at_ms) } else { at_ms };
            self.gate.again_ms.store(first, Ordering::Relaxed);
        }
    }

    /// Whether somebody who hears messages since `hears_ms` may trust that there is nothing, and until when.
    pub(crate) fn known_to_be_nothing(&self, hears_ms: u64, now_ms: u64) -> Option<Option<Duration>> {
        if hears_ms >= self.gate.nothing_left_ms.load(Ordering::Relaxed) {
            return None;
        }
        let again_ms = self.gate.again_ms.load(Ordering::Relaxed);
        Some((again_ms > now_ms).then(|| Duration::from_millis(again_ms - now_ms)))
    }
}

impl Gates {
    /// Waits for its turn.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future leaves the queue.
    pub(crate) async fn turn(&self, key: GateKey) -> Turn {
        let gate = self.gate(key);
        let queue = gate.queue.clone().lock_owned().await;
        Turn { gate, _queue: queue }
    }

    /// Whether somebody has the turn.
    pub(crate) fn is_taken(&self, key: &GateKey) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(key).and_then(Weak::upgrade).is_some_and(|gate| gate.queue.try_lock().is_err())
    }

    fn gate(&self, key: GateKey) -> Arc<Gate> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = open.get(&key).and_then(Weak::upgrade) {
            return gate;
        }
        if open.len() >= SWEEP_FROM && open.len().is_multiple_of(SWEEP_FROM) {
            open.retain(|_, gate| gate.strong_count() > 0);
        }
        let gate = Arc::new(Gate {
            queue: Arc::default(),
            nothing_left_ms: AtomicU64::new(0),
            again_ms: AtomicU64::new(0),
        });
        open.insert(key, Arc::downgrade(&gate));
        gate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: i64) -> GateKey {
        (Arc::from(&b"x"[..]), n)
    }

    #[tokio::test]
    async fn one_at_a_time_and_each_amount_for_itself() {
        let gates = Gates::default();
        let first = gates.turn(key(1)).await;
        let mut second = Box::pin(gates.turn(key(1)));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(gates.turn(key(2)).await);
        drop(first);
        drop(second.await);
    }

    #[tokio::test]
    async fn what_is_known_of_nothing_left_is_passed_on() {
        let turn = Gates::default().turn(key(1)).await;
        assert_eq!(turn.known_to_be_nothing(5, 5), None, "nobody has asked");
        turn.nothing_left(10, Some(Duration::from_millis(100)));
        assert_eq!(
            turn.known_to_be_nothing(10, 20),
            None,
            "a message of the same moment may have been missed"
        );
        assert_eq!(turn.known_to_be_nothing(9, 20), Some(Some(Duration::from_millis(90))));
        turn.nothing_left(20, Some(Duration::from_millis(500)));
        assert_eq!(
            turn.known_to_be_nothing(9, 20),
            Some(Some(Duration::from_millis(90))),
            "the first end counts"
        );
        turn.nothing_left(200, None);
        assert_eq!(turn.known_to_be_nothing(9, 200), Some(None), "an end that has passed says nothing");
    }

    #[tokio::test]
    async fn gates_that_nobody_uses_go() {
        let gates = Gates::default();
        for n in 0..10 * SWEEP_FROM as i64 {
            drop(gates.turn(key(n)).await);
        }
        assert!(gates.open.lock().unwrap().len() <= SWEEP_FROM);
    }
}
