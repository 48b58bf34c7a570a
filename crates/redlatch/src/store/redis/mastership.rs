//! The master that a store has, and its connections.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock,
    atomic::{AtomicU64, Ordering},
};

use tokio::time::Instant;

use super::{
    node::Node,
    succession::{Claim, History, Memory, Said, Verdict},
};
use crate::config::addr::Addr;

/// The master of a store and its connections. Only [`install`](Self::install) changes it, and only to the server that the memory says it is, and
/// [`vacate`](Self::vacate), when the memory says that none is.
pub(super) struct Mastership {
    memory: Mutex<Memory>,
    node: RwLock<Arc<Node>>,
    /// Counts the changes.
    mastership: AtomicU64,
}

impl Mastership {
    pub(super) fn new(memory: Memory, node: Arc<Node>) -> Self {
        Mastership { memory: Mutex::new(memory), node: RwLock::new(node), mastership: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn memory(&self) -> Memory {
        self.lock().clone()
    }

    /// The master, and how many there have been before.
    pub(super) fn present(&self) -> (u64, Arc<Node>) {
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner);
        (self.mastership(), node.clone())
    }

    pub(super) fn node(&self) -> Arc<Node> {
        self.present().1
    }

    pub(super) fn mastership(&self) -> u64 {
        self.mastership.load(Ordering::SeqCst)
    }

    pub(super) fn judge(&self, said: &Said) -> Verdict {
        self.lock().judge(said, Instant::now())
    }

    /// Those who claim where none counts.
    pub(super) fn claimants(&self) -> Vec<String> {
        self.lock().claimants()
    }

    pub(super) fn hear_nobody(&self) {
        self.lock().hear_nobody();
    }

    /// Whether the master was promised, and nobody has confirmed that yet.
    pub(super) fn is_promised(&self) -> bool {
        self.lock().present().is_some_and(Claim::is_promise)
    }

    /// Whether the master has to be asked itself for changes that nobody else counts.
    pub(super) fn is_uncounted(&self) -> bool {
        self.lock().is_uncounted()
    }

    pub(super) fn hear_of(&self, addr: &Addr, history: &History) -> Verdict {
        self.lock().hear_of(addr, history)
    }

    pub(super) fn is_abandoned(&self, said: &Said) -> bool {
        self.lock().is_abandoned(said)
    }

    pub(super) fn hear_promised(&self, answers: bool, said: &Said) -> Option<Claim> {
        self.lock().hear_promised(answers, said, Instant::now())
    }

    pub(super) fn has_rival(&self, said: &Said) -> bool {
        self.lock().has_rival(said)
    }

    pub(super) fn follow(&self, replica: &Addr, master: &Addr, said: &Said) -> Option<Claim> {
        self.lock().follow(replica, master, said)
    }

    /// Puts the server into its place that the claim is for, and returns which one had it. `None`, and no change, if the claim is out of date.
    pub(super) fn install(&self, claim: &Claim, node: Arc<Node>) -> Option<Arc<Node>> {
        let mut memory = self.lock();
        if memory.present() != Some(claim) && !memory.admit(claim) {
            return None;
        }
        Some(self.replace(node))
    }

    /// Puts a node into the place that connects to nobody, and returns which one had it. `None`, and no change, if a server counts.
    pub(super) fn vacate(&self, node: Arc<Node>) -> Option<Arc<Node>> {
        let memory = self.lock();
        memory.present().is_none().then(|| self.replace(node))
    }

    /// With the memory locked.
    fn replace(&self, node: Arc<Node>) -> Arc<Node> {
        let mut place = self.node.write().unwrap_or_else(PoisonError::into_inner);
        // Counted before the change can be seen, so that an answer of the old master is never taken for one of the new.
        self.mastership.fetch_add(1, Ordering::SeqCst);
        std::mem::replace(&mut *place, node)
    }
}
