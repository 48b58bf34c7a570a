//! Gates: of the tasks of one process that wait for the same thing, one at a time asks the server.
//!
//! A message that something came free would otherwise make every waiting task ask, and all but a few in vain. A task that gets
//! what it wants lets the next one ask at once, so nobody sleeps while there is something left. Tasks that want different
//! amounts have gates of their own: one that wants little must not wait behind one that wants more than there is.

use crate::recipes::GateKey;
use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use super::pulse::{LOOKED_FOR_MAX, Pulse};

/// From how many gates on those that nobody uses are looked for.
const SWEEP_FROM: usize = 64;

struct Gate {
    /// The tasks that want to ask, in the order in which they came. The first one may.
    line: Mutex<Line>,
    /// When the last request was sent of which the answer was that nothing is left. A task that has heard every message since
    /// then, and has heard none, need not ask.
    nothing_left_ms: AtomicU64,
    /// When the last request was sent. Until it is answered, what an earlier answer said is not trusted: the server may be gone, and
    /// each that waits has to learn of it in its own time.
    asked_ms: AtomicU64,
    /// When something may come free without a message.
    again_ms: AtomicU64,
}

type Line = VecDeque<Arc<Pulse>>;

impl Gate {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn some_in_line(&self) -> Vec<Arc<Pulse>> {
        self.line().iter().take(LOOKED_FOR_MAX).cloned().collect()
    }

    /// A task leaves the line. The next one is woken if it was the first.
    fn leave(&self, task: &Arc<Pulse>) {
        let mut line = self.line();
        let Some(at) = line.iter().position(|other| Arc::ptr_eq(other, task)) else { return };
        line.remove(at);
        let next = if at == 0 { line.front().cloned() } else { None };
        // Waking may run anything, so it is done without the mutex.
        drop(line);
        if let Some(next) = next {
            next.wake();
        }
    }
}

/// The gates of one client.
#[derive(Default)]
pub(crate) struct Gates {
    open: Mutex<HashMap<GateKey, Weak<Gate>>>,
    /// A task may stand in line behind another one.
    lined: AtomicBool,
}

/// A place in the line, and the right to ask once it is the first, until dropped.
pub(crate) struct AskTurn {
    gate: Arc<Gate>,
    task: Arc<Pulse>,
}

impl AskTurn {
    /// Waits until this task is the first in line.
    async fn comes(self) -> AskTurn {
        poll_fn(|context| {
            self.task.show(context);
            // One that was passed over because it was not polled is in no line any more, and need not wait either.
            let line = self.gate.line();
            let is_own = |other: &Arc<Pulse>| Arc::ptr_eq(other, &self.task);
            let waits = !line.front().is_none_or(is_own) && line.iter().rev().any(is_own);
            if waits { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        self
    }
}

impl Drop for AskTurn {
    fn drop(&mut self) {
        self.gate.leave(&self.task);
    }
}

impl AskTurn {
    /// Notes that a request is sent at that moment.
    pub(crate) fn asks(&self, now_ms: u64) {
        self.gate.asked_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

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

    /// Whether a waiter that hears messages since `hears_ms` may trust that there is nothing, and until when.
    pub(crate) fn known_to_be_nothing(&self, hears_ms: u64, now_ms: u64) -> Option<Option<Duration>> {
        let nothing_left_ms = self.gate.nothing_left_ms.load(Ordering::Relaxed);
        if hears_ms >= nothing_left_ms || self.gate.asked_ms.load(Ordering::Relaxed) > nothing_left_ms {
            return None;
        }
        let again_ms = self.gate.again_ms.load(Ordering::Relaxed);
        if again_ms > nothing_left_ms && again_ms <= now_ms {
            // Something has come free since, and nobody has looked.
            return None;
        }
        Some((again_ms > now_ms).then(|| Duration::from_millis(again_ms - now_ms)))
    }
}

impl Gates {
    /// Stands in line at once, and waits for its turn when polled. The task is to show its pulse as long as it has the turn.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future leaves the line.
    pub(crate) fn turn(
        &self,
        key: GateKey,
        task: Arc<Pulse>,
    ) -> impl Future<Output = AskTurn> + Send + use<> {
        let gate = self.gate(key);
        let is_behind = {
            let mut line = gate.line();
            line.push_back(task.clone());
            line.len() > 1
        };
        if is_behind {
            self.lined.store(true, Ordering::Release);
        }
        let turn = AskTurn { gate, task };
        async move { turn.comes().await }
    }

    /// Asks those to show themselves who have a turn while others wait for it, and lets the next one ask where they have not been
    /// polled since the last time. Answers whether there is such a line.
    pub(super) fn pass_over_the_unpolled(&self, now_ms: u64) -> bool {
        if !self.lined.swap(false, Ordering::AcqRel) {
            return false;
        }
        let gates: Vec<_> = {
            let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.values().filter_map(Weak::upgrade).collect()
        };
        let mut lined = false;
        for gate in gates {
            let first = {
                let line = gate.line();
                line.front().filter(|_| line.len() > 1).cloned()
            };
            let Some(first) = first else { continue };
            lined = true;
            if !first.ask() || first.is_missing(now_ms) {
                gate.leave(&first);
                // Others of the same runtime may not be polled, either, and are not to be found out one after the other.
                for task in gate.some_in_line() {
                    if task.is_missing(now_ms) {
                        gate.leave(&task);
                    } else {
                        task.look_for(now_ms);
                    }
                }
            }
        }
        self.lined.fetch_or(lined, Ordering::AcqRel);
        lined
    }

    /// Whether a waiter has the turn.
    pub(crate) fn is_taken(&self, key: &GateKey) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(key).and_then(Weak::upgrade).is_some_and(|gate| !gate.line().is_empty())
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
            line: Mutex::default(),
            nothing_left_ms: AtomicU64::new(0),
            asked_ms: AtomicU64::new(0),
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
        let first = gates.turn(key(1), Arc::default()).await;
        let mut second = Box::pin(gates.turn(key(1), Arc::default()));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(gates.turn(key(2), Arc::default()).await);
        drop(first);
        drop(second.await);
    }

    #[tokio::test]
    async fn one_that_is_not_polled_is_passed_over() {
        let gates = Gates::default();
        let first = gates.turn(key(1), Arc::default()).await;
        assert!(!gates.pass_over_the_unpolled(0), "nobody waits");
        let (mut second, mut third) =
            (Box::pin(gates.turn(key(1), Arc::default())), Box::pin(gates.turn(key(1), Arc::default())));
        assert!(
            futures_util::poll!(&mut second).is_pending() && futures_util::poll!(&mut third).is_pending()
        );
        assert!(gates.pass_over_the_unpolled(0), "the first one is asked");
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(gates.pass_over_the_unpolled(0), "and has not shown itself");
        let second = second.await;
        drop(first);
        assert!(futures_util::poll!(&mut third).is_pending(), "what was passed over takes nothing along");
        drop(second);
        drop(third.await);
    }

    #[tokio::test]
    async fn those_that_are_not_polled_are_passed_over_together() {
        let gates = Gates::default();
        let _first = gates.turn(key(1), Arc::default()).await;
        let mut others = [(); 20].map(|()| Box::pin(gates.turn(key(1), Arc::default())));
        let mut last = Box::pin(gates.turn(key(1), Arc::default()));
        for other in &mut others {
            assert!(futures_util::poll!(other).is_pending());
        }
        for now_ms in [500, 1_000, 1_500] {
            assert!(futures_util::poll!(&mut last).is_pending());
            assert!(gates.pass_over_the_unpolled(now_ms));
        }
        drop(last.await);
    }

    #[tokio::test]
    async fn what_is_known_of_nothing_left_is_passed_on() {
        let turn = Gates::default().turn(key(1), Arc::default()).await;
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
        turn.nothing_left(300, Some(Duration::from_millis(50)));
        assert_eq!(turn.known_to_be_nothing(9, 349), Some(Some(Duration::from_millis(1))));
        assert_eq!(turn.known_to_be_nothing(9, 350), None, "it has ended since");
    }

    #[tokio::test]
    async fn what_was_answered_before_a_request_without_an_answer_is_not_trusted() {
        let turn = Gates::default().turn(key(1), Arc::default()).await;
        turn.asks(10);
        turn.nothing_left(10, None);
        assert_eq!(turn.known_to_be_nothing(9, 20), Some(None));
        turn.asks(20);
        assert_eq!(turn.known_to_be_nothing(9, 20), None);
        turn.nothing_left(15, None);
        assert_eq!(turn.known_to_be_nothing(9, 30), None, "that was asked before");
        turn.nothing_left(20, None);
        assert_eq!(turn.known_to_be_nothing(9, 30), Some(None), "the server answers");
    }

    #[tokio::test]
    async fn gates_that_nobody_uses_go() {
        let gates = Gates::default();
        for n in 0..10 * SWEEP_FROM as i64 {
            drop(gates.turn(key(n), Arc::default()).await);
        }
        assert!(gates.open.lock().unwrap().len() <= SWEEP_FROM);
    }
}
