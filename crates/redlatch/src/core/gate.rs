//! Gates: of the tasks of one process that wait for the same thing, one at a time asks the server.
//!
//! A message that something came free would otherwise make every waiting task ask, and all but a few in vain. Whoever gets
//! what it wants lets the next one ask at once, so nobody sleeps while there is something left. Tasks that want different
//! amounts have gates of their own: one that wants little must not wait behind one that wants more than there is.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::OwnedMutexGuard;

/// What is waited for, and how much of it.
pub(crate) type GateKey = (Arc<[u8]>, i64);

/// The queue is first come, first served, and leaving it early is safe.
type Gate = tokio::sync::Mutex<()>;

/// From how many gates on those that nobody uses are looked for.
const SWEEP_FROM: usize = 64;

/// The gates of one client.
#[derive(Default)]
pub(crate) struct Gates {
    open: Mutex<HashMap<GateKey, Weak<Gate>>>,
}

/// The right to ask, until dropped.
pub(crate) struct Turn(#[expect(dead_code, reason = "held so that others wait")] OwnedMutexGuard<()>);

impl Gates {
    /// Waits for its turn.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future leaves the queue.
    pub(crate) async fn turn(&self, key: GateKey) -> Turn {
        let gate = self.gate(key);
        Turn(gate.lock_owned().await)
    }

    fn gate(&self, key: GateKey) -> Arc<Gate> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = open.get(&key).and_then(Weak::upgrade) {
            return gate;
        }
        if open.len() >= SWEEP_FROM && open.len().is_multiple_of(SWEEP_FROM) {
            open.retain(|_, gate| gate.strong_count() > 0);
        }
        let gate = Arc::new(Gate::default());
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
    async fn gates_that_nobody_uses_go() {
        let gates = Gates::default();
        for n in 0..10 * SWEEP_FROM as i64 {
            drop(gates.turn(key(n)).await);
        }
        assert!(gates.open.lock().unwrap().len() <= SWEEP_FROM);
    }
}
