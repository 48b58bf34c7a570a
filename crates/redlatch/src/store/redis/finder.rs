//! Those who know which server is the master, as a store that follows it asks them.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    node::Node,
    succession::{Memory, Said},
};
use crate::{config::addr::Addr, error::Error, finding::Finding};

/// A source that knows which server is the master.
pub(super) trait Finder: Send + Sync + 'static {
    /// Asks who is the master, for no longer than this. `memory`: what is known by now. It is an error if no server
    /// claims anything, though some may have answered.
    fn find(self: Arc<Self>, memory: Memory, limit: Duration) -> Found;
    /// How many replicas of this master may take its place, as far as anybody answers within this time; `None` if nobody does.
    fn replicas(self: Arc<Self>, master: Addr, limit: Duration) -> Listed;
    /// Begins to listen to news of changes, and asks for a look at each of them.
    fn listen(&self, look: &Arc<Look>);
    /// What tells that two clients use the same master, now and later; called after the first success.
    fn place(&self) -> String;
    /// Those who are asked, in words, without secrets.
    fn describe(&self) -> String;
    /// What there is to say about those who are asked.
    fn diagnose(self: Arc<Self>, present: Addr) -> Findings;
    /// Ends connections.
    fn close(&self);
}

pub(super) type Found = Pin<Box<dyn Future<Output = Result<Said, Error>> + Send>>;
pub(super) type Listed = Pin<Box<dyn Future<Output = Option<u32>> + Send>>;
pub(super) type Findings = Pin<Box<dyn Future<Output = Vec<Finding>> + Send>>;

/// Asking for a look at who is the master.
#[derive(Default)]
pub(super) struct Look {
    pub(super) wanted: Notify,
    pub(super) news: Notify,
    pub(super) begun: AtomicU64,
}

impl Look {
    /// Answers the number of the look that will begin after this call at the latest.
    pub(super) fn ask(&self) -> u64 {
        let number = self.begun.load(Ordering::SeqCst) + 1;
        self.wanted.notify_one();
        number
    }

    /// A source that knows has said that there is something to see.
    pub(super) fn news(&self) {
        self.news.notify_one();
    }
}

/// Since when a source has not answered. A connection over which nothing comes any more looks like one that is slow, and is
/// given up after the time that an answer may take.
#[derive(Default)]
pub(super) struct Quiet(Mutex<Option<Instant>>);

impl Quiet {
    pub(super) fn note(&self, answered: bool, node: &Node, limit: Duration) {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            *since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() >= limit {
            *since = None;
            node.distrust();
        }
    }
}
