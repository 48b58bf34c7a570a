//! Who watches what a client has sent: one list of its open connections.
//!
//! A connection enters the list when it is opened and leaves it when it is gone. So no call can be on one that nobody watches,
//! whatever the store that opened it has forgotten since: a call may have got a connection and be polled much later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A connection over which answers come in the order of the requests.
pub(crate) trait Connection: Send + Sync {
    /// Whether answers are outstanding.
    fn is_waiting(&self) -> bool;

    /// Gives the connection up if the server has been silent for longer than an answer may take.
    fn check_stall(&self, now_ms: u64, timeout_ms: u64);
}

/// What the connections of one client call when they have counted a request as sent, and the list of those connections: from then on
/// the request is watched until it has its answer.
#[derive(Clone, Default)]
pub(crate) struct CallHook {
    hook: Option<Arc<dyn Fn() + Send + Sync>>,
    open: Arc<Mutex<Vec<Weak<dyn Connection>>>>,
}

impl CallHook {
    pub(crate) fn new(hook: impl Fn() + Send + Sync + 'static) -> Self {
        CallHook { hook: Some(Arc::new(hook)), open: Arc::default() }
    }

    pub(crate) fn call(&self) {
        if let Some(hook) = &self.hook {
            hook();
        }
    }

    /// Has a connection watched from now on, until it is gone.
    pub(crate) fn opened(&self, connection: Weak<dyn Connection>) {
        let mut open = self.open();
        open.retain(|connection| connection.strong_count() > 0);
        open.push(connection);
    }

    /// Time to notice connections that no longer answer.
    pub(crate) fn tick(&self, now_ms: u64, timeout_ms: u64) {
        // Without the mutex, because a connection that is given up wakes those who wait.
        for connection in self.all() {
            connection.check_stall(now_ms, timeout_ms);
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.all().iter().any(|connection| connection.is_waiting())
    }

    fn all(&self) -> Vec<Arc<dyn Connection>> {
        self.open().iter().filter_map(Weak::upgrade).collect()
    }

    fn open(&self) -> MutexGuard<'_, Vec<Weak<dyn Connection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
