//! The nodes of a cluster and who has which slot; kept up to date by what nodes say.
//!
//! What a redirection says is noted at once. Besides, one of the nodes is asked for the whole picture: after a redirection, after a
//! connection ended, and every few seconds while the cluster is in use; one at a time, and never in a rush (F24).

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Dial,
    failure::Failure,
    kin::{self, Kin},
    lasting::lasting,
    life,
    node::{Interruption, Node},
    slots::{self, Layout, SLOTS},
};
use crate::{
    config::{Config, addr::Addr},
    error::{Error, ErrorKind},
    jitter::{jittered, shuffled},
    store::Fault,
};

/// How often the picture is looked at while the cluster is in use; as Redisson's `scanInterval`.
const SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time between two looks, whatever happens.
const SCAN_PAUSE_MIN: Duration = Duration::from_millis(100);
/// How long one node may take to say what it knows.
const SCAN_TIMEOUT: Duration = Duration::from_secs(1);
/// How many nodes are asked at the same time; the first answer counts. More than one, so that a frozen node costs no time.
const SCANS_UNDER_WAY_MAX: usize = 3;
/// How many nodes are asked before a look counts as failed.
const SCAN_NODES_MAX: usize = 12;
/// How long a call waits for a look: one that is under way and the next, in which all nodes hang.
const LOOKED_TIME_MAX: Duration = Duration::from_secs(10);
/// For how long a redirection counts more than what a third node says.
const TOLD_TIME: Duration = Duration::from_secs(2);
/// The shortest time between two calls to holders to look after their locks.
const RING_PAUSE: Duration = Duration::from_secs(1);

/// A server of the cluster.
pub(super) struct Member {
    pub(super) addr: Addr,
    pub(super) dial: Arc<Dial>,
    pub(super) node: Arc<Node>,
    /// What its data come from, as it said last.
    history: Mutex<Option<String>>,
}

/// Who has which slot.
struct Table {
    masters: Vec<Arc<Member>>,
    /// For each slot a place in `masters`, or [`NOBODY`].
    owners: Vec<u16>,
    /// Slots whose master was learned from a redirection, and when: other nodes may not have heard of it yet.
    told: HashMap<u16, Instant>,
    /// How often a slot has got another master, for those that have.
    seats: HashMap<u16, u64>,
    replicas: Vec<(Addr, Option<Addr>)>,
    /// The smallest id of a node, which tells clusters apart.
    id: Option<String>,
}

const NOBODY: u16 = u16::MAX;

impl Table {
    fn owner(&self, slot: u16) -> Option<&Arc<Member>> {
        self.masters.get(usize::from(*self.owners.get(usize::from(slot))?))
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
    kin: Arc<Kin>,
    config: Config,
    background: Handle,
    table: RwLock<Table>,
    /// All servers with connections, also those that have no slots any more but still owe answers.
    members: Mutex<HashMap<Addr, Arc<Member>>>,
    /// Servers that were let go of, for as long as a call has them: it may yet be made there.
    past: Mutex<Vec<Weak<Member>>>,
    /// A look at the whole picture is wanted.
    wanted: Notify,
    /// How many looks have ended.
    looks: watch::Sender<u64>,
    /// How often an owner has changed.
    changes: watch::Sender<u64>,
    /// When it was last not certain which node answers for a slot.
    unsettled: Mutex<Option<std::time::Instant>>,
    /// Holders should look after their locks.
    alarm: Notify,
    /// How many changes they have been told of.
    told: AtomicU64,
    interruption: Interruption,
    closed: CancellationToken,
    this: Weak<Topology>,
}

/// Why nobody could say where the slots are.
enum Blind {
    /// The right to ask is missing; nodes still say who has a slot that they have not.
    Forbidden,
    Failed(Error),
}

impl Topology {
    /// Asks the servers named for the picture, one after the other, and answers who knew it.
    pub(super) async fn open(
        seeds: Vec<Addr>,
        dial: Dial,
        config: &Config,
        background: &Handle,
    ) -> Result<(Arc<Topology>, Arc<Member>), Error> {
        let kin = Arc::new(Kin::default());
        let topology = Arc::new_cyclic(|this| Topology {
            seeds,
            dial: dial.among(kin.clone()),
            kin,
            config: config.clone(),
            background: background.clone(),
            table: RwLock::new(Table {
                masters: Vec::new(),
                owners: vec![NOBODY; SLOTS],
                told: HashMap::new(),
                seats: HashMap::new(),
                replicas: Vec::new(),
                id: None,
            }),
            members: Mutex::default(),
            past: Mutex::default(),
            wanted: Notify::new(),
            looks: watch::Sender::new(0),
            changes: watch::Sender::new(0),
            unsettled: Mutex::default(),
            alarm: Notify::new(),
            told: AtomicU64::new(0),
            interruption: Interruption::default(),
            closed: CancellationToken::new(),
            this: this.clone(),
        });
        let mut first = None;
        for addr in &topology.seeds {
            let member = topology.member(addr);
            match member.ask().await {
                Ok(layout) => drop(topology.install(layout)),
                Err(Blind::Forbidden) => topology.assume(addr),
                Err(Blind::Failed(error)) => {
                    // A wrong password or a server without a cluster is worth more than one that is away.
                    let worse = |first: &Error| first.kind() == ErrorKind::Unreachable;
                    if first.as_ref().is_none_or(worse) {
                        first = Some(error);
                    }
                    continue;
                }
            }
            topology.lasts("the watch over a cluster", Topology::watch_over);
            topology.lasts("the watch over its histories", Topology::watch_histories);
            topology.lasts("the alarm of a cluster", Topology::ring);
            return Ok((topology, member));
        }
        Err(first.unwrap_or_else(|| Error::new(ErrorKind::InvalidUrl, "no server of the cluster is named")))
    }

    /// Does some work for as long as the store is open.
    fn lasts<F>(self: &Arc<Self>, what: &'static str, work: impl Fn(Arc<Topology>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let topology = self.clone();
        lasting(&self.background, what, move || work(topology.clone()));
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
        let mut seen = HashSet::new();
        let firsts = (0..SLOTS as u16).filter_map(|slot| Some((slot, table.owner(slot)?)));
        firsts
            .filter(|(_, member)| seen.insert(member.addr.clone()))
            .map(|(slot, member)| (slot, member.clone()))
            .collect()
    }

    /// How many replicas of a master the cluster lists, without those that it holds for failed.
    pub(super) fn replicas_of(&self, master: &Addr) -> u32 {
        let table = self.table();
        let its = table.replicas.iter().filter(|(_, whose)| whose.as_ref() == Some(master));
        u32::try_from(its.count()).unwrap_or(u32::MAX)
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
    /// is not let go of before it has them: its lives are counted by the member.
    pub(super) fn member(&self, addr: &Addr) -> Arc<Member> {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(member) = members.get(addr) {
            return member.clone();
        }
        let dial = Arc::new(self.dial.at(addr.clone()));
        let interruption = Arc::new(Interruption::default());
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
        let member = Arc::new(Member { addr: addr.clone(), dial, node, history: Mutex::default() });
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

    /// A node has said who has a slot.
    pub(super) fn moved(&self, slot: u16, to: &Addr) {
        {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            let member = self.member(to);
            if table.owner(slot).is_some_and(|owner| Arc::ptr_eq(owner, &member)) {
                return;
            }
            table.owners[usize::from(slot)] = table.place(&member);
            *table.seats.entry(slot).or_default() += 1;
            // Callers' runtimes may have clocks of their own.
            table.told.insert(slot, Instant::from_std(std::time::Instant::now()));
        }
        self.wanted.notify_one();
        self.changed();
        // Last, because a program's log may panic.
        tracing::debug!(slot, %to, "a slot has another master");
    }

    /// A call has gone to another node than the one that has its slot, or goes there now.
    pub(super) fn unsettled(&self) {
        *self.unsettled.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::time::Instant::now());
    }

    /// Whether answers that are just coming in are from the nodes that have their slots now. It takes a while until a call that
    /// has no answer is given up.
    pub(super) fn is_settled(&self) -> bool {
        let unsettled = *self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        unsettled.is_none_or(|at| at.elapsed() > 2 * self.config.response_timeout)
    }

    fn changed(&self) {
        self.unsettled();
        self.changes.send_modify(|count| *count += 1);
        self.alarm.notify_one();
    }

    /// Takes over what a node knows. `false`: it knows nobody of this cluster, so it has got the address of one who was.
    fn install(&self, layout: Layout) -> bool {
        if !self.kin.admit(&layout.ids) {
            return false;
        }
        let changed = {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            let id = layout.ids.first().cloned();
            let mut new = Table {
                masters: Vec::new(),
                owners: vec![NOBODY; SLOTS],
                told: HashMap::new(),
                seats: table.seats.clone(),
                replicas: layout.replicas,
                id,
            };
            for (run, addr) in layout.runs {
                let at = new.place(&self.member(&addr));
                new.owners[usize::from(*run.start())..=usize::from(*run.end())].fill(at);
            }
            for (slot, at) in &table.told {
                if at.elapsed() < TOLD_TIME
                    && let Some(member) = table.owner(*slot)
                {
                    new.owners[usize::from(*slot)] = new.place(member);
                    new.told.insert(*slot, *at);
                }
            }
            let stays = |slot: &u16| match (table.owner(*slot), new.owner(*slot)) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            let moved = (0..SLOTS as u16).filter(|slot| !stays(slot));
            let moved: Vec<u16> = if table.masters.is_empty() { Vec::new() } else { moved.collect() };
            for slot in &moved {
                *new.seats.entry(*slot).or_default() += 1;
            }
            *table = new;
            !moved.is_empty()
        };
        if changed {
            self.changed();
        }
        self.forget();
        if changed {
            tracing::debug!("the masters of the cluster have changed");
        }
        true
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
        let mut looks = self.looks.subscribe();
        let before = *looks.borrow_and_update();
        self.wanted.notify_one();
        tokio::select! {
            _ = looks.wait_for(|looks| *looks > before) => {}
            () = self.closed.cancelled() => {}
            () = self.sleep(LOOKED_TIME_MAX) => {}
        }
    }

    /// Counts changes of owners.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Resolves when a slot has another master than this one.
    pub(super) async fn leaves(&self, slot: u16, addr: &Addr) {
        let mut changes = self.changes();
        while self.table().owner(slot).is_none_or(|owner| owner.addr == *addr) {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Resolves when a slot has neither the master that it had at this seat nor, right after that one, the `heir` that was getting it then.
    /// A master that lost the slot and has it again is not the one that it had.
    pub(super) async fn loses(&self, slot: u16, seat: u64, heir: Option<&Addr>) {
        let mut changes = self.changes();
        while self.is_served(slot, seat, heir) {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn is_served(&self, slot: u16, seat: u64, heir: Option<&Addr>) -> bool {
        let table = self.table();
        let now = table.seats.get(&slot).copied().unwrap_or(0);
        let is_heirs = || heir.is_some() && table.owner(slot).map(|owner| &owner.addr) == heir;
        now == seat || (now == seat + 1 && is_heirs())
    }

    /// A timer that works in any runtime and in none.
    pub(super) fn sleep(&self, time: Duration) -> tokio::time::Sleep {
        let _inside = self.background.enter();
        tokio::time::sleep(time)
    }

    pub(super) fn interruption(&self) -> &Interruption {
        &self.interruption
    }

    /// Keeps the picture up to date until the store is closed.
    async fn watch_over(self: Arc<Self>) {
        let mut last = Instant::now();
        loop {
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = self.wanted.notified() => {}
                // Also where no call is made: one that only holds is to hear of a master that has been replaced.
                () = tokio::time::sleep_until(last + jittered(SCAN_INTERVAL)) => {}
            }
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep_until(last + jittered(SCAN_PAUSE_MIN)) => {}
            }
            let ended = Ended(&self.looks);
            self.scan().await;
            last = Instant::now();
            drop(ended);
        }
    }

    /// Asks several nodes and takes the first answer.
    async fn scan(&self) {
        let mut known: Vec<Addr> = Vec::new();
        {
            let table = self.table();
            known.extend(table.masters.iter().map(|member| member.addr.clone()));
            known.extend(table.replicas.iter().map(|(addr, _)| addr.clone()));
        }
        let mut known = shuffled(known);
        known.extend(self.seeds.iter().cloned());
        let mut seen = HashSet::new();
        known.retain(|addr| seen.insert(addr.clone()));
        known.truncate(SCAN_NODES_MAX);
        let asked = futures_util::stream::iter(known)
            .map(|addr| {
                let member = self.member(&addr);
                async move { (tokio::time::timeout(SCAN_TIMEOUT, member.ask()).await, member) }
            })
            .buffer_unordered(SCANS_UNDER_WAY_MAX);
        let mut asked = std::pin::pin!(asked);
        while let Some((answer, member)) = asked.next().await {
            match answer {
                // A node that has been told to forget the others knows of nobody.
                Ok(Ok(layout)) if !layout.runs.is_empty() => {
                    if self.install(layout) {
                        return;
                    }
                    // Its connections are from before it changed sides, and the next ones will be refused.
                    member.node.distrust();
                    tracing::warn!(error = %kin::stranger(&member.addr), "a server is not believed");
                }
                Ok(Err(Blind::Forbidden)) => return,
                Ok(Err(Blind::Failed(error))) => {
                    tracing::debug!(%error, "a node did not say who has which slot")
                }
                Ok(Ok(_)) | Err(_) => {}
            }
        }
        self.forget();
    }

    /// Tells holders to look after their locks, once for many reasons that come together.
    async fn ring(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = self.alarm.notified() => {
                    // The number comes first: the task that is told to look compares it.
                    self.told.store(*self.changes.borrow(), Ordering::Release);
                    self.interruption.ring();
                }
            }
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep(RING_PAUSE) => {}
            }
        }
    }

    /// How often a slot has got another master: one that lost it and got it back may lack what it had. Read after the owner, it is not
    /// that of an earlier one.
    pub(super) fn seat(&self, slot: u16) -> u64 {
        self.table().seats.get(&slot).copied().unwrap_or(0)
    }

    /// The same, and which process of that master answers.
    pub(super) fn reign(&self, slot: u16) -> u64 {
        let table = self.table();
        let seat = table.seats.get(&slot).copied().unwrap_or(0);
        life::reign(seat, table.owner(slot).map_or(0, |owner| owner.node.life()))
    }

    /// How many changes of owners holders have been told of.
    pub(super) fn moves(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.closed.cancel();
        for member in self.everyone() {
            member.node.close();
        }
    }
}

/// A look that has begun: it ends however it ends, and those who wait are told.
struct Ended<'a>(&'a watch::Sender<u64>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|looks| *looks += 1);
    }
}

impl Member {
    /// What this server knows of the cluster.
    async fn ask(&self) -> Result<Layout, Blind> {
        match self.node.send_in_time(&slots::question()).await {
            Ok(reply) => Layout::read(&reply, &self.addr)
                .map(|layout| layout.mapped(|addr| self.dial.reachable(addr)))
                .ok_or_else(|| {
                    Blind::Failed(Error::new(
                        ErrorKind::Protocol,
                        "CLUSTER SLOTS was answered with something else",
                    ))
                }),
            Err(Failure::Refused { detail, .. }) if slots::is_alone(&detail) => {
                let error = format!("{} is not a member of a cluster", self.addr);
                Err(Blind::Failed(
                    Error::new(ErrorKind::InvalidUrl, error).remedy("use redis:// for a single server"),
                ))
            }
            Err(failure) if slots::may_not_ask(&failure) => Err(Blind::Forbidden),
            Err(failure) => Err(Blind::Failed(Fault::from(failure).into_error())),
        }
    }
}

mod histories;
#[cfg(test)]
mod tests;
