//! Faults of the whole network, as opposed to those of single messages.

use std::time::Duration;

use super::rule::ConnectionKind;

/// What a network fault covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Both directions of all connections.
    Both,
    /// From client to server, on all connections.
    Requests,
    /// From server to client, on all connections.
    Replies,
    /// Both directions of the connections that have subscribed to something.
    PubSub,
    /// Both directions of the other connections.
    Commands,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Orderly,
    Reset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Requests = 0,
    Replies = 1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Passes,
    Waits,
    Lost,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Modes {
    pub(super) blackhole: Option<Scope>,
    pub(super) stall: Option<Scope>,
    /// Least delay and the most that is added to it.
    pub(super) latency: Option<(Duration, Duration)>,
    pub(super) slices: bool,
    pub(super) refuses: bool,
    /// Counts the calls of `heal`.
    pub(super) heals: u64,
    /// Counts the orders to close connections for commands and for pub/sub.
    pub(super) closings: [u64; 2],
    pub(super) closes_hard: bool,
}

impl Modes {
    pub(super) fn fate(&self, direction: Direction, kind: ConnectionKind) -> Fate {
        let covers = |scope: Option<Scope>| match scope {
            None => false,
            Some(Scope::Both) => true,
            Some(Scope::Requests) => direction == Direction::Requests,
            Some(Scope::Replies) => direction == Direction::Replies,
            Some(Scope::PubSub) => kind == ConnectionKind::PubSub,
            Some(Scope::Commands) => kind == ConnectionKind::Commands,
        };
        if covers(self.blackhole) {
            Fate::Lost
        } else if covers(self.stall) {
            Fate::Waits
        } else {
            Fate::Passes
        }
    }

    pub(super) fn closes(&self, started: &Self, kind: ConnectionKind) -> Option<End> {
        let ordered = self.closings[kind as usize] != started.closings[kind as usize];
        ordered.then_some(if self.closes_hard { End::Reset } else { End::Orderly })
    }

    /// Back to a network without faults; what was ordered once stays counted.
    pub(super) fn healed(&self) -> Self {
        Self {
            heals: self.heals + 1,
            closings: self.closings,
            closes_hard: self.closes_hard,
            ..Self::default()
        }
    }
}
