//! Who decides which server is the master, and what a process may know of that: when two holders are excused.

use std::sync::Arc;

use super::{cluster::Bus, net::Machine, node::Nodes, operator::Operator, sentinel::Set};

/// How long a process may take that hears of a change, and of one that most insist on against what it remembers.
const HEARS_NS: u64 = 4_000_000_000;
/// How long one may take that heard of a change which was never told to the others: they insist for 4 s, with a look before and one behind.
const GIVES_UP_NS: u64 = 6_000_000_000;
/// The same in a cluster, whose nodes are asked every 5 s.
const LOOKS_NS: u64 = 9_000_000_000;
const INSISTS_NS: u64 = 14_000_000_000;

/// Who decides which server is the master.
#[derive(Clone)]
pub(super) enum Authority {
    Sentinels(Arc<Set>),
    Cluster(Arc<Bus>),
    Operator(Arc<Operator>),
}

impl Authority {
    /// The latest epoch, and those that tell of it.
    pub(super) fn know(&self) -> (u64, Vec<Machine>) {
        match self {
            Authority::Sentinels(set) => set.know(),
            Authority::Operator(operator) => operator.know(),
            Authority::Cluster(bus) => {
                let (epoch, master) = bus.latest();
                (epoch, master.into_iter().collect())
            }
        }
    }

    /// Those that have named a master since, which they may have to give up.
    pub(super) fn promised_since(&self, since_ns: u64) -> Vec<Machine> {
        match self {
            Authority::Sentinels(set) => set.promised_since(since_ns),
            Authority::Cluster(_) | Authority::Operator(_) => Vec::new(),
        }
    }

    /// How many a process has to hear that was led away.
    pub(super) fn most(&self) -> usize {
        match self {
            Authority::Sentinels(set) => set.all().len() / 2 + 1,
            Authority::Cluster(_) | Authority::Operator(_) => 1,
        }
    }

    /// Whether all agree on who is the master.
    pub(super) fn agree(&self, nodes: &Nodes) -> bool {
        match self {
            Authority::Sentinels(set) => set.agree(nodes),
            Authority::Cluster(bus) => bus.agree(),
            Authority::Operator(_) => true,
        }
    }

    /// How long a process may take that hears of a change.
    pub(super) fn hears_ns(&self) -> u64 {
        match self {
            Authority::Sentinels(_) => HEARS_NS,
            Authority::Cluster(_) => LOOKS_NS,
            Authority::Operator(_) => INSISTS_NS,
        }
    }
}

/// What a process may know of the master.
#[derive(Default)]
pub(super) struct Knows {
    /// The epoch of the one that it has heard of for long enough.
    epoch: Option<u64>,
    /// Since when it hears of this one.
    hears: Option<(u64, u64)>,
    /// It has heard of a change, begun after this epoch, that the others may never hear of.
    led_away_from: Option<u64>,
}

impl Knows {
    /// It hears of a change begun after this epoch, which may never be told to the others. So what it knew does not count any more.
    pub(super) fn hear_promise(&mut self, after: u64) {
        *self = Knows { led_away_from: Some(after), ..Knows::default() };
    }

    /// Whether the change that it heard of was not kept, as far as this epoch tells.
    fn is_led_away(&self, epoch: u64) -> bool {
        self.led_away_from >= Some(epoch)
    }

    /// How many it has to hear to know the master of this epoch, where `most` are more than half.
    pub(super) fn needs(&self, epoch: u64, most: usize) -> usize {
        if self.is_led_away(epoch) { most } else { 1 }
    }

    /// Whether it knows the master of this epoch; `now_ns` if it hears of it.
    pub(super) fn has_heard(&mut self, epoch: u64, now_ns: Option<u64>, hears_ns: u64) -> bool {
        if self.epoch == Some(epoch) {
            self.hears = None;
            return true;
        }
        let since = self.hears.filter(|(of, _)| *of == epoch).map(|(_, since)| since);
        let Some(now_ns) = now_ns else {
            self.hears = None;
            return false;
        };
        let since_ns = since.unwrap_or(now_ns);
        self.hears = Some((epoch, since_ns));
        // A later epoch counts at once, an earlier one when most have insisted on it.
        let takes_ns = match self.is_led_away(epoch) {
            true => GIVES_UP_NS,
            false if self.epoch > Some(epoch) => INSISTS_NS,
            false => hears_ns,
        };
        if now_ns - since_ns >= takes_ns {
            (self.epoch, self.led_away_from) = (Some(epoch), None);
        }
        false
    }
}
