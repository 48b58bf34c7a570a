//! One client, as the daemon knows it.

use std::sync::Arc;

use super::lifelines::{Line, User};
use super::pubsub::{Kind, Outbox};
use super::resp::Writer;

/// What the daemon knows of a client.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) out: Writer,
    pub(crate) subscriptions: Vec<(Kind, Vec<u8>)>,
    /// It has asked to be told of changes.
    pub(crate) watches: bool,
    pub(crate) closing: bool,
    /// Whether the client acts for the user that the daemon belongs to.
    pub(crate) is_owner: bool,
    /// The process at the other end, where that is known.
    pub(crate) pid: Option<i32>,
    /// The user that it acts for, if that is counted.
    pub(super) uid: Option<u32>,
    /// Whose lifeline it is, if it is one.
    pub(crate) line: Option<Line>,
    /// The client of this process whose owner it has used last.
    pub(crate) known: Vec<u8>,
    /// It has ended as a connection does whose other side is closed everywhere.
    pub(super) at_end_of_file: bool,
}

impl Session {
    pub(super) fn new(id: u64, (pid, uid): (Option<i32>, Option<u32>), is_owner: bool) -> Session {
        Session {
            id,
            is_owner,
            pid,
            uid,
            line: None,
            known: Vec::new(),
            at_end_of_file: false,
            name: Vec::new(),
            outbox: Outbox::new(id),
            out: Writer { bytes: Vec::new(), resp3: false },
            subscriptions: Vec::new(),
            watches: false,
            closing: false,
        }
    }

    pub(crate) fn user(&self) -> User {
        User { pid: self.pid, client: self.id }
    }

    /// How many subscriptions of the same count Redis reports: channels and patterns together, shards apart.
    pub(crate) fn subscription_count(&self, kind: Kind) -> usize {
        let shard = kind == Kind::Shard;
        self.subscriptions.iter().filter(|(other, _)| (*other == Kind::Shard) == shard).count()
    }
}
