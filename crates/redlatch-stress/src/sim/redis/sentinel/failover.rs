//! A failover: which sentinels are asked, which candidate each votes for, and what the leader does step by step.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use super::{
    ASK_PERIOD, DESYNC_MS_MAX, ELECTION_TIME, Failover, NAME, PING_PERIOD, Phase, SERVER_PORT, Seen,
    Sentinel, State, locked,
};
use crate::{
    clock,
    sim::redis::{
        net::{Machine, host},
        node::Role,
    },
};

impl Sentinel {
    /// Asks the others whether the master is down, and for their votes while there is a failover.
    pub(super) fn ask_others(self: &Arc<Self>, now: Instant, at_once: bool) {
        let (master, epoch, candidate) = {
            let state = self.state();
            if !self.is_down(&state, state.master, now) {
                return;
            }
            let votes = matches!(&state.failover, Some(failover) if failover.phase == Phase::WaitsForVotes);
            (state.master, state.epoch, votes.then(|| self.id.clone()))
        };
        for other in self.set.all() {
            {
                let mut state = self.state();
                let Some(peer) = state.peers.get_mut(&other.id) else { continue };
                if peer.ask_due > now && !at_once {
                    continue;
                }
                peer.ask_due = now + ASK_PERIOD;
            }
            if !self.hears(other.machine) || !other.answers() {
                continue;
            }
            let (says_down, vote) = other.asked(master, epoch, candidate.as_deref());
            let mut state = self.state();
            if let Some(peer) = state.peers.get_mut(&other.id) {
                peer.said_down = says_down.then_some(now);
                if vote.is_some() {
                    peer.vote = vote;
                }
            }
        }
    }

    /// Another one asks.
    pub(super) fn asked(
        &self,
        master: Machine,
        epoch: u64,
        candidate: Option<&str>,
    ) -> (bool, Option<(String, u64)>) {
        let now = Instant::now();
        let mut state = self.state();
        let says_down =
            state.tilts_until <= now && state.master == master && self.is_down(&state, master, now);
        if let Some(candidate) = candidate
            && state.master == master
        {
            self.vote(&mut state, epoch, candidate);
        }
        (says_down, state.vote.clone())
    }

    pub(super) fn vote(&self, state: &mut State, epoch: u64, candidate: &str) {
        state.epoch = state.epoch.max(epoch);
        let voted = state.vote.as_ref().map_or(0, |(_, epoch)| *epoch);
        if voted < epoch && state.epoch <= epoch {
            state.vote = Some((candidate.to_owned(), state.epoch));
            if candidate != self.id {
                let late = locked(&self.rng).ms(0, DESYNC_MS_MAX);
                state.tried = Some(Instant::now() + late);
            }
        }
    }

    pub(super) fn begin_failover(self: &Arc<Self>, now: Instant) {
        {
            let mut state = self.state();
            let pause = 2 * self.set.settings.failover_timeout;
            let may_try =
                state.tried.is_none_or(|at| now.saturating_duration_since(at) >= pause && at <= now);
            if state.failover.is_some() || !may_try || !self.is_down_for_most(&state, now) {
                return;
            }
            state.epoch += 1;
            let late = locked(&self.rng).ms(0, DESYNC_MS_MAX);
            state.tried = Some(now + late);
            let epoch = state.epoch;
            state.failover =
                Some(Failover { epoch, phase: Phase::WaitsForVotes, changed: now, promoted: None });
        }
        self.ask_others(now, true);
    }

    pub(super) fn is_elected(&self, state: &mut State, epoch: u64) -> bool {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (candidate, _) in
            state.peers.values().filter_map(|peer| peer.vote.clone()).filter(|vote| vote.1 == epoch)
        {
            *counts.entry(candidate).or_default() += 1;
        }
        let first = counts.iter().max_by_key(|(_, count)| **count).map(|(candidate, _)| candidate.clone());
        self.vote(state, epoch, &first.unwrap_or_else(|| self.id.clone()));
        if let Some((mine, at)) = state.vote.clone().filter(|vote| vote.1 == epoch) {
            debug_assert_eq!(at, epoch);
            *counts.entry(mine).or_default() += 1;
        }
        let voters = state.peers.len() + 1;
        counts.get(&self.id).is_some_and(|count| *count >= (voters / 2 + 1).max(self.set.settings.quorum))
    }

    /// The replica to promote: one that answers, the one with the most data.
    pub(super) fn choose(&self, state: &State, now: Instant) -> Option<Machine> {
        let may = |(machine, seen): &(&Machine, &Seen)| {
            **machine != state.master
                && !self.is_down(state, **machine, now)
                && now.duration_since(seen.answered) < 5 * PING_PERIOD
                && matches!(seen.role(), Some(Role::ReplicaOf(_)))
        };
        let offset = |seen: &Seen| seen.about.as_ref().map_or(0, |about| about.offset);
        state
            .servers
            .iter()
            .filter(may)
            .max_by_key(|(machine, seen)| (offset(seen), u16::MAX - **machine))
            .map(|(machine, _)| *machine)
    }

    pub(super) fn go_on(self: &Arc<Self>, now: Instant) {
        let settings = self.set.settings;
        let Some(failover) = self.state().failover.clone() else { return };
        if failover.phase == Phase::WaitsForPromotion
            && let Some(last) = locked(&self.set.changes_ns).last_mut()
        {
            last.1 = clock::boot_ns();
        }
        if matches!(failover.phase, Phase::Promotes | Phase::WaitsForPromotion) {
            locked(&self.set.promises_ns).insert(self.machine, clock::boot_ns());
        }
        let waits = now.duration_since(failover.changed);
        match (failover.phase, failover.promoted) {
            (Phase::WaitsForVotes, _) => {
                let mut state = self.state();
                if self.is_elected(&mut state, failover.epoch) {
                    let chosen = self.choose(&state, now);
                    let Some(chosen) = chosen else {
                        state.failover = None;
                        return;
                    };
                    if let Some(seen) = state.servers.get_mut(&chosen) {
                        seen.is_promoted = true;
                    }
                    state.failover = Some(Failover {
                        phase: Phase::Promotes,
                        promoted: Some(chosen),
                        changed: now,
                        ..failover
                    });
                    drop(state);
                    locked(&self.set.promises_ns).insert(self.machine, clock::boot_ns());
                    self.publish(
                        "+selected-slave",
                        &format!("slave {}:{SERVER_PORT} @ {NAME}", host(chosen)),
                    );
                } else if waits > ELECTION_TIME.min(settings.failover_timeout) {
                    state.failover = None;
                }
            }
            (Phase::Promotes, Some(chosen)) => match self.node(chosen) {
                Some(node) => {
                    node.become_a(Role::Master);
                    let now_ns = clock::boot_ns();
                    locked(&self.set.changes_ns).push((now_ns, now_ns));
                    self.state().failover =
                        Some(Failover { phase: Phase::WaitsForPromotion, changed: now, ..failover });
                }
                None if waits > settings.failover_timeout => self.give_up(),
                None => {}
            },
            (Phase::WaitsForPromotion, Some(chosen)) => {
                let mut state = self.state();
                let is_master = state.servers.get(&chosen).and_then(Seen::role) == Some(Role::Master);
                if is_master {
                    state.config_epoch = failover.epoch;
                    state.says_now = true;
                    state.failover = Some(Failover { phase: Phase::TellsReplicas, changed: now, ..failover });
                    drop(state);
                    self.publish(
                        "+promoted-slave",
                        &format!("slave {}:{SERVER_PORT} @ {NAME}", host(chosen)),
                    );
                } else if waits > settings.failover_timeout {
                    drop(state);
                    self.give_up();
                }
            }
            (Phase::TellsReplicas, Some(chosen)) => {
                self.tell_replicas(chosen, waits > settings.failover_timeout)
            }
            _ => self.give_up(),
        }
    }

    pub(super) fn give_up(&self) {
        let mut state = self.state();
        state.failover = None;
        state.servers.values_mut().for_each(|seen| seen.is_promoted = false);
    }

    /// Tells the replicas, one after the other, which server to copy; then the change is through.
    pub(super) fn tell_replicas(&self, promoted: Machine, is_late: bool) {
        let others: Vec<(Machine, bool, bool)> = {
            let state = self.state();
            let is_other = |machine: Machine| machine != promoted && machine != state.master;
            let others = state.servers.iter().filter(|(machine, _)| is_other(**machine));
            let copies = |seen: &Seen| {
                seen.about
                    .as_ref()
                    .is_some_and(|about| about.role == Role::ReplicaOf(promoted) && about.linked)
            };
            others.map(|(machine, seen)| (*machine, seen.is_told, copies(seen))).collect()
        };
        let now = Instant::now();
        let down = |machine: Machine| {
            let state = self.state();
            self.is_down(&state, machine, now)
        };
        if is_late || others.iter().all(|(machine, _, done)| *done || down(*machine)) {
            for (machine, ..) in others {
                if let Some(node) = self.node(machine) {
                    node.become_a(Role::ReplicaOf(promoted));
                }
            }
            self.switch_to(promoted);
            return;
        }
        let under_way = others.iter().any(|(machine, told, done)| *told && !*done && !down(*machine));
        if under_way {
            return;
        }
        if let Some((machine, ..)) = others.iter().find(|(_, told, done)| !*told && !*done)
            && let Some(node) = self.node(*machine)
        {
            node.become_a(Role::ReplicaOf(promoted));
            if let Some(seen) = self.state().servers.get_mut(machine) {
                seen.is_told = true;
            }
        }
    }
}
