//! A simulated operator of servers without sentinels: promotes a replica now and then, has the others copy it a little later, and the old master
//! as well.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

use super::{
    net::Machine,
    node::{Node, Nodes, Role},
};
use crate::{clock, record::Log, rng::Rng};

struct State {
    master: Machine,
    /// How many changes there were.
    changes: u64,
    changes_ns: Vec<(u64, u64)>,
}

pub(super) struct Operator {
    nodes: Arc<Nodes>,
    state: Mutex<State>,
}

impl Operator {
    pub(super) fn new(nodes: &Arc<Nodes>, master: Machine) -> Arc<Self> {
        let state = State { master, changes: 0, changes_ns: Vec::new() };
        Arc::new(Operator { nodes: nodes.clone(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changes_ns(&self) -> Vec<(u64, u64)> {
        self.state().changes_ns.clone()
    }

    /// How many changes there were, and the master if it answers.
    pub(super) fn know(&self) -> (u64, Vec<Machine>) {
        let (changes, master) = {
            let state = self.state();
            (state.changes, state.master)
        };
        let answers = self.nodes.at(master).filter(|node| node.answers());
        (changes, answers.into_iter().map(|node| node.machine).collect())
    }

    /// Promotes a replica that has its master's data.
    pub(super) fn promote(self: &Arc<Self>, faults: &Log, rng: &mut Rng) {
        let master = self.state().master;
        let nodes = self.nodes.all();
        let may = |node: &&Arc<Node>| node.machine != master && node.answers() && node.has_copied();
        let fit: Vec<_> = nodes.iter().filter(may).cloned().collect();
        if fit.is_empty() {
            return;
        }
        let next = rng.of(&fit).clone();
        faults.fault(format!("m{} is promoted in the place of m{master}", next.machine));
        {
            let mut state = self.state();
            state.master = next.machine;
            state.changes += 1;
            let now_ns = clock::boot_ns();
            state.changes_ns.push((now_ns, now_ns));
        }
        next.become_a(Role::Master);
        let (operator, changes) = (self.clone(), self.state().changes);
        let pauses: Vec<Duration> = nodes.iter().map(|_| rng.ms(0, 2_000)).collect();
        tokio::spawn(async move {
            for (node, pause) in nodes.into_iter().zip(pauses) {
                sleep(pause).await;
                operator.turn(&node, changes);
            }
        });
    }

    /// Has a server copy the master, unless there is another one by now.
    fn turn(&self, node: &Arc<Node>, changes: u64) {
        let now_ns = clock::boot_ns();
        let mut state = self.state();
        if state.changes == changes {
            if let Some(last) = state.changes_ns.last_mut() {
                last.1 = now_ns;
            }
            let master = state.master;
            drop(state);
            if node.machine != master && node.is_up() {
                node.become_a(Role::ReplicaOf(master));
            }
        }
    }

    /// Every server is what it is to be.
    pub(super) fn settle(&self) {
        let changes = self.state().changes;
        self.nodes.all().iter().for_each(|node| self.turn(node, changes));
    }
}
