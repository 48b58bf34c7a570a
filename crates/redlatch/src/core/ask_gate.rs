//! Gates: of the tasks of one process that wait for the same thing, one at a time asks the server.
//!
//! A message that something came free would otherwise make every waiting task ask, and all but a few in vain. A task that gets
//! what it wants lets the next one ask at once, so nobody sleeps while there is something left. Tasks that want different
//! amounts have gates of their own: one that wants little must not wait behind one that wants more than there is.

#[cfg(redlatch_shuttle)]
pub(crate) mod threads;

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    sync::{Arc, PoisonError, Weak},
    task::Poll,
    time::Duration,
};

use super::task_liveness::{LOOKED_FOR_MAX, TaskLiveness};
use crate::{
    randomness::SeededMap,
    recipes::AskGateKey,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

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

type Line = VecDeque<Arc<TaskLiveness>>;

impl Gate {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn some_in_line(&self) -> Vec<Arc<TaskLiveness>> {
        self.line().iter().take(LOOKED_FOR_MAX).cloned().collect()
    }

    /// A task leaves the line. The next one is woken if it was the first.
    fn leave(&self, task: &Arc<TaskLiveness>) {
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
    open: Mutex<SeededMap<AskGateKey, Weak<Gate>>>,
    /// A task may stand in line behind another one.
    lined: AtomicBool,
}

/// What an answer told about what is left for others who want the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Availability {
    /// There may be enough.
    MayBeEnough,
    /// There is not, until a message comes, or until this time has passed, where it is known.
    Nothing { again_after: Option<Duration> },
}

/// A place in the line, and the right to ask once it is the first, until dropped.
pub(crate) struct RightToAsk {
    gate: Arc<Gate>,
    task: Arc<TaskLiveness>,
}

impl RightToAsk {
    /// Waits until this task is the first in line.
    async fn comes(self) -> RightToAsk {
        poll_fn(|context| {
            self.task.note(context);
            // One that was passed over because it was not polled is in no line any more, and need not wait either.
            let line = self.gate.line();
            let is_own = |other: &Arc<TaskLiveness>| Arc::ptr_eq(other, &self.task);
            let waits = !line.front().is_none_or(is_own) && line.iter().rev().any(is_own);
            if waits { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        self
    }
}

impl Drop for RightToAsk {
    fn drop(&mut self) {
        self.gate.leave(&self.task);
    }
}

impl RightToAsk {
    /// Notes that a request is sent at that moment.
    pub(crate) fn note_asking(&self, now_ms: u64) {
        self.gate.asked_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// Notes what a request of that moment left to others.
    pub(crate) fn note(&self, sent_ms: u64, rest: Availability) {
        let Availability::Nothing { again_after } = rest else { return };
        self.gate.nothing_left_ms.fetch_max(sent_ms, Ordering::Relaxed);
        if let Some(after) = again_after {
            let at_ms = sent_ms.saturating_add(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
            // A moment that has passed says nothing any more; of those to come the first one counts.
            let known = self.gate.again_ms.load(Ordering::Relaxed);
            let first = if known > sent_ms { known.min(at_ms) } else { at_ms };
            self.gate.again_ms.store(first, Ordering::Relaxed);
        }
    }

    /// What a waiter may trust in that hears messages since `hears_since_ms`.
    pub(crate) fn left_for_others(&self, hears_since_ms: u64, now_ms: u64) -> Availability {
        let nothing_left_ms = self.gate.nothing_left_ms.load(Ordering::Relaxed);
        if hears_since_ms >= nothing_left_ms || self.gate.asked_ms.load(Ordering::Relaxed) > nothing_left_ms {
            return Availability::MayBeEnough;
        }
        let again_ms = self.gate.again_ms.load(Ordering::Relaxed);
        if again_ms > nothing_left_ms && again_ms <= now_ms {
            // Something has come free since, and nobody has looked.
            return Availability::MayBeEnough;
        }
        let again_after = (again_ms > now_ms).then(|| Duration::from_millis(again_ms - now_ms));
        Availability::Nothing { again_after }
    }
}

impl Gates {
    /// Puts the task in line at once. The future resolves when the task may ask, and the task is to note its polls as long as it has the pass.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future leaves the line.
    pub(crate) fn pass(
        &self,
        key: AskGateKey,
        task: Arc<TaskLiveness>,
    ) -> impl Future<Output = RightToAsk> + Send + use<> {
        let gate = self.gate(key);
        let is_behind = {
            let mut line = gate.line();
            line.push_back(task.clone());
            line.len() > 1
        };
        if is_behind {
            self.lined.store(true, Ordering::Release);
        }
        let pass = RightToAsk { gate, task };
        async move { pass.comes().await }
    }

    /// Asks the tasks to show themselves that have a pass while others wait for it, and lets the next one ask where they have not been
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
            if !first.ask() || first.is_looked_for_in_vain(now_ms) {
                gate.leave(&first);
                // Others of the same runtime may not be polled, either, and are not to be found out one after the other.
                for task in gate.some_in_line() {
                    if task.is_looked_for_in_vain(now_ms) {
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

    /// Whether a waiter has the pass of this gate, or waits for it.
    pub(crate) fn is_taken(&self, key: &AskGateKey) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(key).and_then(Weak::upgrade).is_some_and(|gate| !gate.line().is_empty())
    }

    fn gate(&self, key: AskGateKey) -> Arc<Gate> {
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

    fn key(n: i64) -> AskGateKey {
        (Arc::from(&b"x"[..]), n)
    }

    fn nothing(again_after: Option<Duration>) -> Availability {
        Availability::Nothing { again_after }
    }

    #[tokio::test]
    async fn one_at_a_time_and_each_amount_for_itself() {
        let gates = Gates::default();
        let first = gates.pass(key(1), Arc::default()).await;
        let mut second = Box::pin(gates.pass(key(1), Arc::default()));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(gates.pass(key(2), Arc::default()).await);
        drop(first);
        drop(second.await);
    }

    #[tokio::test]
    async fn one_that_is_not_polled_is_passed_over() {
        let gates = Gates::default();
        let first = gates.pass(key(1), Arc::default()).await;
        assert!(!gates.pass_over_the_unpolled(0), "nobody waits");
        let (mut second, mut third) =
            (Box::pin(gates.pass(key(1), Arc::default())), Box::pin(gates.pass(key(1), Arc::default())));
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
        let _first = gates.pass(key(1), Arc::default()).await;
        let mut others = [(); 20].map(|()| Box::pin(gates.pass(key(1), Arc::default())));
        let mut last = Box::pin(gates.pass(key(1), Arc::default()));
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
    async fn what_is_known_of_the_rest_is_passed_on() {
        let pass = Gates::default().pass(key(1), Arc::default()).await;
        assert_eq!(pass.left_for_others(5, 5), Availability::MayBeEnough, "nobody has asked");
        pass.note(10, nothing(Some(Duration::from_millis(100))));
        assert_eq!(
            pass.left_for_others(10, 20),
            Availability::MayBeEnough,
            "a message of the same moment may have been missed"
        );
        assert_eq!(pass.left_for_others(9, 20), nothing(Some(Duration::from_millis(90))));
        pass.note(20, nothing(Some(Duration::from_millis(500))));
        assert_eq!(
            pass.left_for_others(9, 20),
            nothing(Some(Duration::from_millis(90))),
            "the first end counts"
        );
        pass.note(200, nothing(None));
        assert_eq!(pass.left_for_others(9, 200), nothing(None), "an end that has passed says nothing");
        pass.note(300, nothing(Some(Duration::from_millis(50))));
        assert_eq!(pass.left_for_others(9, 349), nothing(Some(Duration::from_millis(1))));
        assert_eq!(pass.left_for_others(9, 350), Availability::MayBeEnough, "it has ended since");
    }

    #[tokio::test]
    async fn what_was_answered_before_a_request_without_an_answer_is_not_trusted() {
        let pass = Gates::default().pass(key(1), Arc::default()).await;
        pass.note_asking(10);
        pass.note(10, nothing(None));
        assert_eq!(pass.left_for_others(9, 20), nothing(None));
        pass.note_asking(20);
        assert_eq!(pass.left_for_others(9, 20), Availability::MayBeEnough);
        pass.note(15, nothing(None));
        assert_eq!(pass.left_for_others(9, 30), Availability::MayBeEnough, "that was asked before");
        pass.note(20, nothing(None));
        assert_eq!(pass.left_for_others(9, 30), nothing(None), "the server answers");
    }

    #[tokio::test]
    async fn gates_that_nobody_uses_go() {
        let gates = Gates::default();
        for n in 0..10 * SWEEP_FROM as i64 {
            drop(gates.pass(key(n), Arc::default()).await);
        }
        assert!(gates.open.lock().unwrap().len() <= SWEEP_FROM);
    }
}
