//! The nodes of a cluster and who has which slot; kept up to date by what nodes say.
//!
//! What a redirection says is noted at once. Besides, one of the nodes is asked for the whole picture: after a redirection, after a
//! connection ended, and every few seconds while the cluster is in use; one at a time, and never in a rush (F24).

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, task::AbortHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Dial,
    known_nodes::KnownNodes,
    lasting::spawn_lasting,
    listed::is_told_otherwise,
    node::{InterruptionHooks, Node},
    run::closed_error,
    server_process,
    slots::SLOTS,
    timer,
};
use crate::{
    config::{Config, addr::Addr},
    error::Error,
    jitter::jittered,
    latest,
    panic_safe::panic_safe,
    randomness::SeededMap,
};
use age::Age;
use pictures::{Contradiction, SCAN_TIMEOUT};
use replicas::Replicas;

/// The shortest time between two looks, whatever happens.
const SCAN_PAUSE_MIN: Duration = Duration::from_millis(100);
/// How long a call waits for a look: one that is under way and the next, in which all nodes hang.
const LOOKED_TIME_MAX: Duration = Duration::from_secs(10);
/// The shortest time between two calls to holders to look after their locks.
const RING_PAUSE: Duration = Duration::from_secs(1);

/// A server of the cluster.
pub(super) struct Member {
    pub(super) addr: Addr,
    pub(super) dial: Arc<Dial>,
    pub(super) node: Arc<Node>,
    /// What its data come from, as it said last.
    history: Mutex<Option<String>>,
    age: Mutex<Age>,
}

impl Member {
    /// Connections of an earlier age lead elsewhere than its address does.
    pub(super) fn age(&self) -> u64 {
        self.age.lock().unwrap_or_else(PoisonError::into_inner).count()
    }
}

/// Who has which slot.
struct Table {
    masters: Vec<Arc<Member>>,
    /// For each slot a place in `masters`, or [`NOBODY`].
    owners: Vec<u16>,
    /// The configuration epochs of masters, as far as nodes have said.
    epochs: SeededMap<Addr, u64>,
    /// Slots whose master was told last at an address that another node has by now, with that master's epoch.
    strayed: SeededMap<u16, Option<u64>>,
    /// Slots whose master was learned from a redirection: other nodes may not have heard of it yet.
    told: SeededMap<u16, Told>,
    /// How often a slot has got another master, for those that have.
    eras: SeededMap<u16, u64>,
    /// The epochs of masters that most have insisted are none: up to these a picture in which they take a slot is not believed.
    refused: SeededMap<Addr, u64>,
    replicas: Replicas,
    /// Where each node is reached, by its id.
    nodes: SeededMap<String, Addr>,
    /// The smallest id of a node, which tells clusters apart.
    id: Option<String>,
}

const NOBODY: u16 = u16::MAX;

/// A redirection.
struct Told {
    at: Instant,
    /// The configuration epoch of the master that gave the slot away. The one that has it now has a later one.
    after: Option<u64>,
}

impl Table {
    fn owner(&self, slot: u16) -> Option<&Arc<Member>> {
        self.masters.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// The configuration epoch by which a slot has its master, as far as it is known: at least so much.
    fn epoch_of(&self, slot: u16) -> Option<u64> {
        let at_its_address = || self.owner(slot).and_then(|owner| self.epochs.get(&owner.addr).copied());
        let owners = self.strayed.get(&slot).copied().unwrap_or_else(at_its_address);
        owners.max(self.told.get(&slot).and_then(|told| told.after))
    }

    /// The place of a master, which it gets if it has none.
    fn place(&mut self, member: &Arc<Member>) -> u16 {
        let known = self.masters.iter().position(|master| Arc::ptr_eq(master, member));
        known.unwrap_or_else(|| {
            self.masters.push(member.clone());
            self.masters.len() - 1
        }) as u16
    }
}

pub(super) struct Topology {
    seeds: Vec<Addr>,
    /// How to reach any of them.
    dial: Dial,
    /// Whose cluster it is.
    known_nodes: Arc<KnownNodes>,
    config: Config,
    background: Handle,
    table: RwLock<Table>,
    /// A picture that contradicts what is known.
    contradiction: Mutex<Option<Contradiction>>,
    /// All servers with connections, also those that have no slots any more but still owe answers.
    members: Mutex<SeededMap<Addr, Arc<Member>>>,
    /// Servers that were let go of, for as long as a call has them: it may yet be made there.
    past: Mutex<Vec<Weak<Member>>>,
    /// A look at the whole picture is wanted.
    wanted: Notify,
    /// How many looks have ended.
    looks: latest::Sender<u64>,
    /// How often an owner has changed.
    changes: latest::Sender<u64>,
    /// When it was last not certain which node answers for a slot.
    unsettled: Mutex<Option<Instant>>,
    /// Holders should look after their locks.
    alarm: Notify,
    /// How many changes they have been told of.
    told: AtomicU64,
    interruption: InterruptionHooks,
    closed: CancellationToken,
    this: Weak<Topology>,
}

impl Topology {
    /// Asks the servers named for the picture, and returns one that knew it.
    pub(super) async fn open(
        seeds: Vec<Addr>,
        dial: Dial,
        config: &Config,
        background: &Handle,
    ) -> Result<(Arc<Topology>, Arc<Member>), Error> {
        let known_nodes = Arc::new(KnownNodes::default());
        let topology = Arc::new_cyclic(|this| Topology {
            seeds,
            dial: dial.among(known_nodes.clone()),
            known_nodes,
            config: config.clone(),
            background: background.clone(),
            table: RwLock::new(Table {
                masters: Vec::new(),
                owners: vec![NOBODY; SLOTS],
                epochs: SeededMap::default(),
                strayed: SeededMap::default(),
                told: SeededMap::default(),
                eras: SeededMap::default(),
                refused: SeededMap::default(),
                nodes: SeededMap::default(),
                replicas: Replicas::default(),
                id: None,
            }),
            contradiction: Mutex::default(),
            members: Mutex::default(),
            past: Mutex::default(),
            wanted: Notify::new(),
            looks: latest::Sender::new(0),
            changes: latest::Sender::new(0),
            unsettled: Mutex::default(),
            alarm: Notify::new(),
            told: AtomicU64::new(0),
            interruption: InterruptionHooks::default(),
            closed: CancellationToken::new(),
            this: this.clone(),
        });
        // The caller's runtime may have no timers. If the other one has ended, nothing else works, either.
        let asking = topology.clone();
        let asked = background.spawn(async move {
            let first = asking.ask_seeds().await?;
            asking.ask_most(&first).await;
            Ok(first)
        });
        // A caller that gives up, or is refused, leaves no questions and no connections behind.
        let mut opening = Opening { topology: Some(&topology), work: asked.abort_handle() };
        let first = asked.await.unwrap_or_else(|_| Err(closed_error().into_error()))?;
        opening.topology = None;
        drop(opening);
        let member = topology.member(&first);
        topology.lasts("the watch over a cluster", Topology::watch_over);
        topology.lasts("the watch over its histories", Topology::watch_histories);
        topology.lasts("the alarm of a cluster", Topology::ring);
        Ok((topology, member))
    }

    /// Does some work for as long as the store is open.
    fn lasts<F>(self: &Arc<Self>, what: &'static str, work: impl Fn(Arc<Topology>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let topology = self.clone();
        spawn_lasting(&self.background, what, move || work(topology.clone()));
    }

    fn table(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who has a slot, as far as is known.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Member>> {
        self.table().owner(slot).cloned()
    }

    /// Which of the masters has a slot, as a number that is the same for slots of one master.
    pub(super) fn owner_number(&self, slot: u16) -> u16 {
        self.table().owners.get(usize::from(slot)).copied().unwrap_or(NOBODY)
    }

    /// All masters that have slots, each with one of them.
    pub(super) fn masters(&self) -> Vec<(u16, Arc<Member>)> {
        let table = self.table();
        let mut seen = vec![false; table.masters.len()];
        let is_first = |(_, owner): &(u16, &u16)| {
            seen.get_mut(usize::from(**owner)).is_some_and(|seen| !std::mem::replace(seen, true))
        };
        let firsts = (0..).zip(&table.owners).filter(is_first);
        firsts.map(|(slot, owner)| (slot, table.masters[usize::from(*owner)].clone())).collect()
    }

    /// How many replicas of a master the cluster lists, without those that it holds for failed; and those of its predecessor that have not turned to it yet.
    /// A redirection may name the master by a host where the picture has its address, or the other way round.
    pub(super) fn replicas_of(&self, master: &Addr) -> u32 {
        let table = self.table();
        let is_it = |other: &&Arc<Member>| other.addr == *master || is_told_otherwise(&other.addr, master);
        let counts = table.masters.iter().filter(is_it).map(|other| table.replicas.count_of(&other.addr));
        let most = counts.chain([table.replicas.count_of(master)]).max().unwrap_or(0);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// How many slots nobody has.
    pub(super) fn uncovered(&self) -> usize {
        let table = self.table();
        table.owners.iter().filter(|owner| usize::from(**owner) >= table.masters.len()).count()
    }

    pub(super) fn id(&self) -> Option<String> {
        self.table().id.clone()
    }

    /// The server at an address; it is connected when it is used. One that is to get slots is looked up under the table's lock, so that it
    /// is not let go of before it has them: its processes are counted by the member.
    pub(super) fn member(&self, addr: &Addr) -> Arc<Member> {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(member) = members.get(addr) {
            return member.clone();
        }
        let dial = Arc::new(self.dial.at(addr.clone()));
        let interruption = Arc::new(InterruptionHooks::default());
        let this = self.this.clone();
        interruption.set(Arc::new(move || {
            // The server may have failed, and another may have its slots now.
            if let Some(topology) = this.upgrade() {
                topology.wanted.notify_one();
                topology.alarm.notify_one();
            }
        }));
        let node = Node::new(dial.clone(), &self.config, &self.background, interruption);
        if self.closed.is_cancelled() {
            node.close();
        }
        let member = Arc::new(Member {
            addr: addr.clone(),
            dial,
            node,
            history: Mutex::default(),
            age: Mutex::default(),
        });
        members.insert(addr.clone(), member.clone());
        member
    }

    /// All servers with connections.
    pub(super) fn members(&self) -> Vec<Arc<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The same, and those that were let go of while a call had them.
    pub(super) fn everyone(&self) -> Vec<Arc<Member>> {
        let mut all = self.members();
        all.extend(self.past.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade));
        all
    }

    /// A node has said who has a slot. Only the one that has it can have given it away: what another one says may be long out of date, and
    /// has the whole picture asked for.
    pub(super) fn moved(&self, slot: u16, from: &Addr, to: &Addr) {
        self.wanted.notify_one();
        {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            let member = self.member(to);
            if table.owner(slot).is_some_and(|owner| owner.addr != *from || Arc::ptr_eq(owner, &member)) {
                return;
            }
            let after = table.epoch_of(slot);
            table.replicas.promoted(from, to);
            table.owners[usize::from(slot)] = table.place(&member);
            table.strayed.remove(&slot);
            *table.eras.entry(slot).or_default() += 1;
            // Callers' runtimes may have clocks of their own.
            table.told.insert(slot, Told { at: Instant::now(), after });
        }
        self.changed();
        // Last, because a program's log may panic.
        tracing::debug!(slot, %to, "a slot has another master");
    }

    /// A node has sent on to the address at which it was asked. All connections to that address are made anew, those that listen as well.
    pub(super) fn connect_anew(&self, member: &Member) {
        self.look();
        if member.age.lock().unwrap_or_else(PoisonError::into_inner).ends(Instant::now()) {
            member.node.drop_connections();
            self.changed();
        }
    }

    /// A call has gone to another node than the one that has its slot, or goes there now.
    pub(super) fn unsettled(&self) {
        *self.unsettled.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether answers that are just coming in are from the nodes that have their slots now. It takes a while until a call that
    /// has no answer is given up.
    pub(super) fn is_settled(&self) -> bool {
        let unsettled = *self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        unsettled.is_none_or(|at| at.elapsed() > 2 * self.config.response_timeout)
    }

    fn changed(&self) {
        self.unsettled();
        self.changes.change(|count| *count += 1);
        self.alarm.notify_one();
    }

    /// Nobody may be asked: everything is looked for at one server, and redirections teach the rest.
    fn assume(&self, addr: &Addr) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.masters.is_empty() {
            let member = self.member(addr);
            table.masters.push(member);
            table.owners.fill(0);
        }
    }

    /// Lets go of servers that have no slots and owe no answers. Those that never answer end as all silent connections do.
    fn forget(&self) {
        let table = self.table();
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.retain(|member| member.strong_count() > 0);
        members.retain(|addr, member| {
            let stays = member.node.is_waiting() || table.masters.iter().any(|master| master.addr == *addr);
            if !stays {
                past.push(Arc::downgrade(member));
            }
            stays
        });
    }

    /// Has a node asked for the picture soon.
    pub(super) fn look(&self) {
        self.wanted.notify_one();
    }

    /// As [`look`](Self::look), and waits until a node has answered or none would, or for as long as that may take.
    pub(super) async fn looked(&self) {
        let (looks, before) = (self.looks.subscribe(), self.looks.get());
        self.wanted.notify_one();
        panic_safe(async || {
            tokio::select! {
                biased;
                _ = looks.wait_for(|looks| *looks > before) => {}
                () = self.closed.cancelled() => {}
                () = self.sleep(LOOKED_TIME_MAX) => {}
            }
        })
        .await;
    }

    /// Counts changes of owners.
    pub(super) fn changes(&self) -> latest::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Resolves when a slot has another master than this one.
    pub(super) async fn leaves(&self, slot: u16, addr: &Addr) {
        let mut changes = self.changes();
        panic_safe(async || {
            while self.table().owner(slot).is_none_or(|owner| owner.addr == *addr) {
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        })
        .await;
    }

    /// Resolves when a slot has neither the master that it had in that mastership nor, right after that one, the `heir` that was getting it then.
    /// A master that lost the slot and has it again is not the one that it had.
    pub(super) async fn loses(&self, slot: u16, mastership: u64, heir: Option<&Addr>) {
        let mut changes = self.changes();
        panic_safe(async || {
            while self.is_served(slot, mastership, heir) {
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        })
        .await;
    }

    /// Whether a slot has one of these still.
    pub(super) fn is_served(&self, slot: u16, mastership: u64, heir: Option<&Addr>) -> bool {
        let table = self.table();
        let now = table.eras.get(&slot).copied().unwrap_or(0);
        let is_heirs = || heir.is_some() && table.owner(slot).map(|owner| &owner.addr) == heir;
        now == mastership || (now == mastership + 1 && is_heirs())
    }

    /// A timer that works in any runtime and in none.
    pub(super) fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        timer::sleep_on(&self.background, time)
    }

    pub(super) fn interruption(&self) -> &InterruptionHooks {
        &self.interruption
    }

    /// Keeps the picture up to date until the store is closed.
    async fn watch_over(self: Arc<Self>) {
        let mut last = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = self.wanted.notified() => {}
                // Also where no call is made: one that only holds is to hear of a master that has been replaced.
                () = tokio::time::sleep_until(last + jittered(self.scan_interval())) => {}
            }
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep_until(last + jittered(SCAN_PAUSE_MIN)) => {}
            }
            let ended = Ended(&self.looks);
            self.scan().await;
            last = Instant::now();
            drop(ended);
        }
    }

    /// Tells holders to look after their locks, once for many reasons that come together.
    async fn ring(self: Arc<Self>) {
        loop {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = self.alarm.notified() => {
                    // The number comes first: the task that is told to look compares it.
                    self.told.store(self.changes.get(), Ordering::Release);
                    self.interruption.ring();
                }
            }
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep(RING_PAUSE) => {}
            }
        }
    }

    /// How often a slot has got another master: one that lost it and got it back may lack what it had. Read after the owner, it is not
    /// that of an earlier one.
    pub(super) fn mastership(&self, slot: u16) -> u64 {
        self.table().eras.get(&slot).copied().unwrap_or(0)
    }

    /// The same, and which process of that master answers.
    pub(super) fn incarnation(&self, slot: u16) -> u64 {
        let table = self.table();
        let mastership = table.eras.get(&slot).copied().unwrap_or(0);
        server_process::incarnation(
            mastership,
            table.owner(slot).map_or(0, |owner| owner.node.process_number()),
        )
    }

    /// How many changes of owners holders have been told of.
    pub(super) fn takeovers(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
        for member in self.everyone() {
            member.node.close();
        }
    }
}

/// A topology that no caller has yet.
struct Opening<'a> {
    topology: Option<&'a Arc<Topology>>,
    work: AbortHandle,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.work.abort();
        if let Some(topology) = self.topology {
            topology.close();
        }
    }
}

/// A look that has begun: it ends however it ends, and those who wait are told.
struct Ended<'a>(&'a latest::Sender<u64>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.change(|looks| *looks += 1);
    }
}

mod age;
mod histories;
mod pictures;
mod replicas;
#[cfg(test)]
mod tests;
