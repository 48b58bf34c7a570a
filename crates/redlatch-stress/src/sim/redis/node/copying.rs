//! How replicas come by their master's data: the whole of it first, and its changes from then on, with a delay.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use redlatch_engine::{Effect, Journal};
use tokio::time::{Instant, sleep, timeout};

use super::{Node, Role, locked};

/// How long a replica takes its master for alive that it does not hear.
const REPLICATION_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a replica tries to reach its master.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// The changes of a master, for its replicas.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) effects: Vec<Effect>,
    /// The offset of the first of them.
    pub(super) since: u64,
}

impl Stream {
    pub(super) fn offset(&self) -> u64 {
        self.since + self.effects.len() as u64
    }
}

#[derive(Clone, Default)]
pub(super) struct Record(pub(super) Arc<Mutex<Stream>>);

impl Journal for Record {
    fn append(&mut self, effects: &[Effect]) -> std::io::Result<()> {
        locked(&self.0).effects.extend_from_slice(effects);
        Ok(())
    }
}

impl Node {
    /// Copies its master for as long as it has one.
    pub(super) fn follow(self: &Arc<Self>) {
        let (era, role) = {
            let state = self.state();
            (state.era, state.role)
        };
        if let Role::ReplicaOf(master) = role {
            let node = self.clone();
            tokio::spawn(async move {
                while node.is_in(era) {
                    if let Some(master) = node.nodes.at(master) {
                        node.copy(&master, era).await;
                    }
                    if node.is_in(era) {
                        node.state().linked = false;
                    }
                    sleep(RECONNECT_PAUSE).await;
                }
            });
        }
    }

    fn is_in(&self, era: u64) -> bool {
        let state = self.state();
        state.is_up && state.era == era
    }

    fn hears(&self, other: &Node) -> bool {
        self.net.meet(self.machine, other.machine) && other.answers()
    }

    /// Takes the master's data, and its changes from then on, until the connection is lost.
    async fn copy(self: &Arc<Self>, master: &Arc<Node>, era: u64) {
        let takes = locked(&self.rng).ms(1, 300);
        sleep(takes).await;
        if !self.hears(master) || !self.is_in(era) {
            return;
        }
        let (mut offset, masters_era) = {
            let mut from = master.state();
            // A replica has no data to give before it has its master's.
            if from.loads_until > Instant::now() || (from.role != Role::Master && !from.linked) {
                return;
            }
            let data = from.engine.snapshot();
            let offset = locked(&from.stream).offset();
            let history = (from.history.clone(), from.history_before.clone());
            let its_era = from.era;
            drop(from);
            let mut state = self.state();
            state.engine.restore(std::iter::once(Effect::Clear).chain(data), false);
            (state.history, state.history_before) = history;
            *locked(&state.stream) = Stream { effects: Vec::new(), since: offset };
            (state.linked, state.has_copied) = (true, true);
            (offset, its_era)
        };
        let mut heard = Instant::now();
        while self.is_in(era) {
            let news = master.news.notified();
            if locked(&master.state().stream).offset() <= offset {
                let _news_or_time = timeout(Duration::from_millis(500), news).await;
            }
            sleep(self.net.delay() + master.lag_now()).await;
            if !self.is_in(era) || master.state().era != masters_era || !master.is_up() {
                return;
            }
            if !self.hears(master) {
                if heard.elapsed() > REPLICATION_TIMEOUT {
                    return;
                }
                continue;
            }
            heard = Instant::now();
            let effects: Vec<Effect> = {
                let from = master.state();
                let stream = locked(&from.stream);
                if stream.since > offset {
                    return;
                }
                stream.effects[(offset - stream.since) as usize..].to_vec()
            };
            if !effects.is_empty() {
                offset += effects.len() as u64;
                let mut state = self.state();
                locked(&state.stream).effects.extend_from_slice(&effects);
                state.engine.restore(effects, false);
                drop(state);
                // Its own replicas are told.
                self.news.notify_waiters();
            }
            let (master, net, machine) = (master.clone(), self.net.clone(), self.machine);
            tokio::spawn(async move {
                sleep(net.delay()).await;
                if net.reaches(machine, master.machine) && master.state().era == masters_era {
                    master.state().acked.insert(machine, offset);
                    master.news.notify_waiters();
                }
            });
        }
    }
}
