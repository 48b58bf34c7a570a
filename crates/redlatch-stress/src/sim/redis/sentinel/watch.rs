//! What a sentinel sees and says: pings, information, hellos, and servers with the wrong role.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    ASK_PERIOD, HELLO_PERIOD, INFO_PERIOD, NAME, PING_PERIOD, Peer, SERVER_PORT, Seen, Sentinel, State,
};
use crate::sim::redis::{
    net::{Machine, host},
    node::Role,
};

impl Sentinel {
    /// Pings, and asks for information.
    pub(super) fn look(self: &Arc<Self>, now: Instant) {
        let (machines, hurry) = {
            let state = self.state();
            let down = self.is_down(&state, state.master, now);
            (state.servers.keys().copied().collect::<Vec<_>>(), down || state.failover.is_some())
        };
        for machine in machines {
            let node = self.node(machine);
            let about = node.as_ref().map(|node| node.about());
            let mut state = self.state();
            let is_master = state.master == machine;
            let Some(seen) = state.servers.get_mut(&machine) else { continue };
            if seen.ping_due > now {
                continue;
            }
            seen.ping_due = now + PING_PERIOD;
            let Some(about) = about else { continue };
            seen.answered = now;
            let period = if hurry { PING_PERIOD } else { INFO_PERIOD };
            if seen.informed.is_some_and(|at| now.duration_since(at) < period) {
                continue;
            }
            seen.informed = Some(now);
            if seen.role() != Some(about.role) {
                seen.role_since = now;
            }
            let replicas = about.replicas.clone();
            seen.about = Some(about);
            if is_master {
                for replica in replicas {
                    state.servers.entry(replica).or_insert_with(Seen::new);
                }
            }
        }
    }

    /// Notes when each server began to be down.
    pub(super) fn note_down(&self, now: Instant) {
        let mut state = self.state();
        let all: Vec<Machine> = state.servers.keys().copied().collect();
        for machine in all {
            let is_down = self.is_down(&state, machine, now);
            let Some(seen) = state.servers.get_mut(&machine) else { continue };
            if is_down && !seen.is_down {
                seen.down_since = Some(now);
            }
            seen.is_down = is_down;
        }
    }

    pub(super) fn is_down(&self, state: &State, machine: Machine, now: Instant) -> bool {
        let Some(seen) = state.servers.get(&machine) else { return false };
        let settings = self.set.settings;
        let silent = now.duration_since(seen.answered) > settings.down_after;
        let is_demoted = machine == state.master
            && matches!(seen.role(), Some(Role::ReplicaOf(_)))
            && now.duration_since(seen.role_since) > settings.down_after + 2 * INFO_PERIOD;
        silent || is_demoted
    }

    pub(super) fn is_down_for_most(&self, state: &State, now: Instant) -> bool {
        let said = |peer: &&Peer| peer.said_down.is_some_and(|at| now.duration_since(at) < 5 * ASK_PERIOD);
        self.is_down(state, state.master, now)
            && state.peers.values().filter(said).count() + 1 >= self.set.settings.quorum
    }

    /// Says hello through each server that it reaches.
    pub(super) fn greet(self: &Arc<Self>, now: Instant) {
        let (servers, epoch, config_epoch) = {
            let mut state = self.state();
            if state.hello_due > now && !state.says_now {
                return;
            }
            state.hello_due = now + HELLO_PERIOD;
            state.says_now = false;
            (state.servers.keys().copied().collect::<Vec<_>>(), state.epoch, state.config_epoch)
        };
        let master = self.names();
        for server in servers.into_iter().filter(|server| self.node(*server).is_some()) {
            for other in self.set.all() {
                if other.machine != self.machine && other.answers() && other.net.meet(server, other.machine) {
                    other.hear(self, epoch, master, config_epoch);
                }
            }
        }
    }

    pub(super) fn hear(self: &Arc<Self>, other: &Sentinel, epoch: u64, master: Machine, config_epoch: u64) {
        let mut state = self.state();
        let now = Instant::now();
        state.peers.entry(other.id.clone()).or_insert_with(|| Peer {
            machine: other.machine,
            said_down: None,
            vote: None,
            ask_due: now,
        });
        state.epoch = state.epoch.max(epoch);
        if config_epoch > state.config_epoch {
            state.config_epoch = config_epoch;
            if state.master != master {
                drop(state);
                self.switch_to(master);
            }
        }
    }

    pub(super) fn switch_to(&self, master: Machine) {
        let was = {
            let mut state = self.state();
            let was = std::mem::replace(&mut state.master, master);
            state.failover = None;
            state.tried = None;
            state.servers.values_mut().for_each(|seen| *seen = Seen::new());
            state.servers.entry(master).or_insert_with(Seen::new);
            for peer in state.peers.values_mut() {
                peer.said_down = None;
            }
            was
        };
        let text = format!("{NAME} {} {SERVER_PORT} {} {SERVER_PORT}", host(was), host(master));
        self.publish("+switch-master", &text);
    }

    /// Demotes masters that are none, and turns replicas to the right one.
    pub(super) fn correct(&self, now: Instant) {
        let wrong: Vec<Machine> = {
            let state = self.state();
            let master = state.servers.get(&state.master);
            let is_sane = master.is_some_and(|seen| {
                seen.role() == Some(Role::Master)
                    && seen.informed.is_some_and(|at| now.duration_since(at) < 2 * INFO_PERIOD)
            }) && !self.is_down(&state, state.master, now);
            if !is_sane || state.failover.is_some() {
                return;
            }
            let patience = |role| match role {
                Role::Master => 4 * HELLO_PERIOD,
                Role::ReplicaOf(_) => self.set.settings.failover_timeout,
            };
            let is_wrong = |(machine, seen): &(&Machine, &Seen)| {
                let Some(role) = seen.role() else { return false };
                **machine != state.master
                    && role != Role::ReplicaOf(state.master)
                    && !self.is_down(&state, **machine, now)
                    && seen.down_since.is_none_or(|at| now.duration_since(at) > patience(role))
                    && seen.informed.is_some_and(|at| at > seen.role_since)
                    && now.duration_since(seen.role_since) > patience(role)
            };
            state.servers.iter().filter(is_wrong).map(|(machine, _)| *machine).collect()
        };
        let master = self.state().master;
        for machine in wrong {
            if let Some(node) = self.node(machine) {
                self.set.note_correction(machine);
                node.become_a(Role::ReplicaOf(master));
            }
        }
    }
}
