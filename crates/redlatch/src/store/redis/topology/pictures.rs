//! Pictures of the whole cluster, and which of two counts.
//!
//! A node that was stopped, restarted or cut off tells what was true before, and offers itself as the master of slots that another one has by
//! now. The nodes themselves decide by the configuration epoch of the two masters: a failover, and a slot that moves, give the new one
//! a later epoch than all others have. So a picture that takes a slot from a master for one with an earlier epoch is out of
//! date. A person who resets epochs by hand contradicts that, too; most of the masters say so then, look after look.

use std::{
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;

use super::{
    super::{
        failure::Failure,
        known_nodes::{self, Ids},
        listed::is_told_otherwise,
        slots::{self, Layout, SLOTS},
    },
    Member, NOBODY, Table, Topology,
    replicas::Replicas,
};
use crate::{
    config::addr::Addr,
    error::{Error, ErrorKind},
    jitter::shuffled,
    randomness::{SeededMap, SeededSet},
    store::{Fault, Reply},
};

/// How often the picture is looked at while the cluster is in use; as Redisson's `scanInterval`.
const SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// The same while a picture contradicts what is known.
pub(super) const CONTRADICTION_INTERVAL: Duration = Duration::from_secs(1);
/// For how long most of the masters have to contradict what is known before they are believed. As behind sentinels.
pub(super) const INSISTED_TIME: Duration = Duration::from_secs(10);
/// The same where the master in question is heard, and says so itself: it may have taken over from one that it alone does not see any more, and the others have heard
/// that within `cluster-node-timeout`, which is 15 s unless set.
pub(super) const INSISTED_BESIDE_TIME: Duration = Duration::from_secs(60);
/// How many masters are remembered that most have insisted against.
const REFUSED_MAX: usize = 64;
/// How long one node may take to say what it knows. Where tests are under way, no machine is too busy for that.
pub(super) const SCAN_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });
/// How many nodes are asked at the same time. More than one, so that a frozen node costs no time.
const SCANS_UNDER_WAY_MAX: usize = 3;
/// How many answers without news end a look: the first may come from the master that was replaced, which has not heard of that.
const VOICES: usize = 3;
/// How many nodes are asked before a look counts as failed, unless they contradict what is known: then all masters are.
pub(super) const SCAN_NODES_MAX: usize = 12;
/// How long the servers that a URL names have to say which cluster they are of, once one has.
const SEEDS_TIME: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });
/// For how long a redirection counts more than what a third node says. No test waits for it.
pub(super) const TOLD_TIME: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 2 });

/// Why nobody could say where the slots are.
pub(super) enum Blind {
    /// The right to ask is missing; nodes still say who has a slot that they have not.
    Forbidden,
    Failed(Error),
}

/// By what a picture is judged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Epochs,
    /// Most of the masters have said so for long enough.
    Insistence,
}

/// What became of a picture.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judged {
    Believed,
    /// It knows nobody of this cluster, so the node has got the address of one who was.
    Strange,
    /// It gives slots to masters with earlier epochs than the known ones have.
    OutOfDate,
}

/// Slots, each with the master that a picture gives it.
type Disputed = Vec<(u16, Addr)>;

/// Who has the slots in question in a picture that contradicts what is known, and since when each look has shown that. Other slots may move meanwhile.
pub(super) struct Contradiction {
    slots: Disputed,
    since: Instant,
    /// A master in question was heard since, and has said itself that they are its own.
    is_beside: bool,
}

/// What the servers of one cluster say, and of more than one if it cannot be told which is ours. Each with its place in the URL.
fn clusters(said: &[(usize, Layout)]) -> Vec<Vec<&(usize, Layout)>> {
    // None of the ids in a layout is told to be the server's own.
    known_nodes::largest_groups(said.iter().collect(), |(_, layout)| Ids {
        own: None,
        others: layout.ids.clone(),
    })
}

impl Table {
    /// The slots that a picture takes from their masters for some with earlier epochs. Where epochs are not known there is nothing to compare.
    fn disputes<'a>(&'a self, layout: &'a Layout) -> impl Iterator<Item = (u16, &'a Addr)> {
        let known = layout.runs.iter().filter_map(|(run, addr)| Some((run, addr, layout.epochs.get(addr)?)));
        known.flat_map(move |(run, addr, theirs)| {
            let is_disputed = move |slot: u16| {
                let moves = self.owner(slot).is_some_and(|owner| owner.addr != *addr);
                match self.told.get(&slot) {
                    // A node that has not heard of it yet is no older in the rest.
                    Some(told) if told.at.elapsed() < TOLD_TIME => false,
                    Some(told) => moves && told.after >= Some(*theirs),
                    None if self.refused.get(addr) >= Some(theirs) => moves,
                    None => moves && self.epoch_of(slot) > Some(*theirs),
                }
            };
            run.clone().filter(move |slot| is_disputed(*slot)).map(move |slot| (slot, addr))
        })
    }

    /// The masters that lose slots to those of a picture with earlier epochs, and the epochs that count for nothing then. One of them that comes back would take
    /// its slots again by its own picture, from some clients and not from others. A master that loses a slot to a later epoch is none of them.
    fn refused_by(&self, layout: &Layout) -> SeededMap<Addr, u64> {
        // At the address of a master that has strayed is another node.
        let losers = self.disputes(layout).filter(|(slot, _)| !self.strayed.contains_key(slot));
        let losers = losers.filter_map(|(slot, _)| self.owner(slot));
        losers.filter_map(|owner| Some((owner.addr.clone(), *self.epochs.get(&owner.addr)?))).collect()
    }

    /// A picture tells who has a slot. It does not tell that nobody has one: a node that has just joined knows of few masters. A slot that it
    /// lacks stays with its master, who refuses what is no longer its own; and with it stay the epoch by which the next picture is
    /// judged, also when another node has that master's address by now. Whether there was such a slot.
    fn keeps_what_is_missing(&mut self, before: &Table, nodes: &SeededMap<Addr, String>) -> bool {
        let mut is_partial = false;
        for slot in 0..SLOTS {
            if self.owners[slot] == NOBODY
                && let Some(master) = before.owner(slot as u16)
            {
                self.owners[slot] = self.place(master);
                let slot = slot as u16;
                if before.strayed.contains_key(&slot) || before.had_another_at(&master.addr, nodes) {
                    self.strayed.insert(slot, before.epoch_of(slot));
                }
                is_partial = true;
            }
        }
        is_partial
    }

    /// Whether another node was reached where these nodes are told.
    fn had_another_at(&self, addr: &Addr, nodes: &SeededMap<Addr, String>) -> bool {
        let is_another = |now: &String| {
            self.nodes.get(now) != Some(addr) && self.nodes.values().any(|known| known == addr)
        };
        nodes.get(addr).is_some_and(is_another)
    }

    /// What is known of the epoch of the node at this address, there or where it was before.
    fn known_epoch(&self, addr: &Addr, nodes: &SeededMap<Addr, String>) -> Option<u64> {
        let before = match nodes.get(addr).and_then(|id| self.nodes.get(id)) {
            Some(before) => before,
            None if self.had_another_at(addr, nodes) => return None,
            None => addr,
        };
        self.epochs.get(before).copied()
    }

    /// Who has the slots that a master of the table before had, if it has none any more.
    fn heir(&self, before: &Table, master: &Addr) -> Option<Addr> {
        if self.is_master(master) {
            return None;
        }
        let had = |slot: &u16| before.owner(*slot).is_some_and(|owner| owner.addr == *master);
        let slot = (0..SLOTS as u16).find(had)?;
        self.owner(slot).map(|owner| owner.addr.clone())
    }

    fn is_master(&self, addr: &Addr) -> bool {
        self.masters.iter().any(|master| master.addr == *addr)
    }
}

impl Topology {
    pub(super) fn scan_interval(&self) -> Duration {
        let contradiction = self.contradiction.lock().unwrap_or_else(PoisonError::into_inner);
        if contradiction.is_some() { CONTRADICTION_INTERVAL } else { SCAN_INTERVAL }
    }

    /// A picture with the addresses under which nodes are connected. Each may be told by its name or by its address, by each other one in its own way, and one
    /// that is reached where it was told first has not moved. One that is told at another address has.
    fn by_known_addresses(&self, layout: Layout) -> Layout {
        let moved: Vec<(Addr, Addr)> = {
            let table = self.table();
            let told = layout.nodes.iter().filter_map(|(addr, id)| Some((addr, table.nodes.get(id)?)));
            // What another node has by now is no address of this one.
            let moved = told
                .filter(|(addr, known)| is_told_otherwise(addr, known) && !layout.nodes.contains_key(*known));
            moved.map(|(addr, known)| (addr.clone(), known.clone())).collect()
        };
        let is_connected = |addr: &Addr| {
            let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
            members.get(addr).is_some_and(|member| member.node.is_connected())
        };
        let known: SeededMap<Addr, Addr> =
            moved.into_iter().filter(|(_, known)| is_connected(known)).collect();
        match known.is_empty() {
            true => layout,
            false => layout.mapped(|addr| known.get(&addr).cloned().unwrap_or(addr)),
        }
    }

    /// Takes over what a node knows, unless that is out of date or of another cluster.
    pub(super) fn install(&self, layout: Layout, by: By) -> Judged {
        let layout = self.by_known_addresses(layout);
        if !self.known_nodes.knows(&layout.ids) {
            return Judged::Strange;
        }
        let changed = {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            if by == By::Epochs && table.disputes(&layout).next().is_some() {
                return Judged::OutOfDate;
            }
            let (id, now) = (layout.ids.first().cloned(), Instant::now());
            let refused = match by {
                By::Epochs => table.refused.clone(),
                By::Insistence => {
                    let mut refused = table.refused_by(&layout);
                    if table.refused.len() < REFUSED_MAX {
                        let earlier = table.refused.iter().map(|(addr, epoch)| (addr.clone(), *epoch));
                        earlier.for_each(|(addr, epoch)| {
                            let known = refused.entry(addr).or_default();
                            *known = (*known).max(epoch);
                        });
                    }
                    refused
                }
            };
            let mut new = Table {
                masters: Vec::new(),
                owners: vec![NOBODY; SLOTS],
                epochs: layout.epochs,
                strayed: SeededMap::default(),
                told: SeededMap::default(),
                eras: table.eras.clone(),
                refused,
                replicas: Replicas::told(layout.replicas, &layout.nodes, now),
                nodes: layout.nodes.iter().map(|(addr, id)| (id.clone(), addr.clone())).collect(),
                id,
            };
            for (run, addr) in layout.runs {
                let at = new.place(&self.member(&addr));
                new.owners[usize::from(*run.start())..=usize::from(*run.end())].fill(at);
            }
            let is_partial = by == By::Epochs && new.keeps_what_is_missing(&table, &layout.nodes);
            if is_partial {
                let earlier = table.nodes.iter().map(|(id, addr)| (id.clone(), addr.clone()));
                // What another node has by now is no address of this one.
                let earlier = earlier.filter(|(_, addr)| !layout.nodes.contains_key(addr));
                earlier.for_each(|(id, addr)| _ = new.nodes.entry(id).or_insert(addr));
                self.known_nodes.admit_more(&layout.ids);
            } else {
                self.known_nodes.admit(&layout.ids);
            }
            let mut told = std::mem::take(&mut table.told);
            told.retain(|_, told| told.at.elapsed() < TOLD_TIME);
            for slot in told.keys() {
                if let Some(member) = table.owner(*slot) {
                    new.owners[usize::from(*slot)] = new.place(member);
                }
            }
            new.told = told;
            if by == By::Epochs {
                let mut replicas = std::mem::take(&mut new.replicas);
                let heir = |of: &Addr| new.heir(&table, of);
                let is_told = |addr: &Addr, id: Option<&String>| {
                    new.is_master(addr) || id.is_some_and(|id| layout.nodes.values().any(|told| told == id))
                };
                replicas.keep(&table.replicas, is_partial, heir, is_told, now);
                new.replicas = replicas;
                // The picture of a node that was away may be out of date although it moves nothing.
                for master in &new.masters {
                    if let Some(epoch) = table.known_epoch(&master.addr, &layout.nodes) {
                        let known = new.epochs.entry(master.addr.clone()).or_default();
                        *known = (*known).max(epoch);
                    }
                }
            }
            let stays = |slot: &u16| match (table.owner(*slot), new.owner(*slot)) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            let moved = (0..SLOTS as u16).filter(|slot| !stays(slot));
            let moved: Vec<u16> = if table.masters.is_empty() { Vec::new() } else { moved.collect() };
            for slot in &moved {
                *new.eras.entry(*slot).or_default() += 1;
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
        Judged::Believed
    }

    /// Asks several nodes and takes over what does not contradict what is known.
    pub(super) async fn scan(&self) {
        if self.table().masters.is_empty() {
            // As at the beginning, there is no memory by which to judge a single answer.
            if let Err(error) = self.ask_seeds().await {
                tracing::debug!(%error, "no server of the cluster said who has which slot");
            }
            return;
        }
        let (masters, replicas): (Vec<Addr>, Vec<Addr>) = {
            let table = self.table();
            let masters = table.masters.iter().map(|member| member.addr.clone()).collect();
            (masters, table.replicas.addrs().cloned().collect())
        };
        let mut known = shuffled(masters.iter().cloned().chain(replicas).collect());
        known.extend(self.seeds.iter().cloned());
        let mut seen = SeededSet::default();
        known.retain(|addr| seen.insert(addr.clone()));
        known.truncate(SCAN_NODES_MAX);
        // Only most of the masters are believed against what is known, and there may be many.
        let others: Vec<Addr> = masters.into_iter().filter(|addr| !known.contains(addr)).collect();
        let is_contradicted = AtomicBool::new(false);
        let others = others.into_iter().take_while(|_| is_contradicted.load(Ordering::Relaxed));
        let asked = futures_util::stream::iter(known.into_iter().chain(others))
            .map(|addr| {
                let member = self.member(&addr);
                async move { (tokio::time::timeout(SCAN_TIMEOUT, member.ask()).await, member) }
            })
            .buffer_unordered(SCANS_UNDER_WAY_MAX);
        let mut asked = std::pin::pin!(asked);
        let (mut against, mut believed) = (Vec::new(), Vec::new());
        let before = self.changes.get();
        // News end a look at once: calls wait for it.
        while believed.len() < VOICES
            && self.changes.get() == before
            && let Some((answer, member)) = asked.next().await
        {
            match answer {
                // A node that has been told to forget the others knows of nobody.
                Ok(Ok(layout)) if !layout.runs.is_empty() => {
                    let layout = self.by_known_addresses(layout);
                    match self.install(layout.clone(), By::Epochs) {
                        Judged::Believed => believed.push(member.addr.clone()),
                        Judged::OutOfDate => {
                            against.push((member.addr.clone(), layout));
                            is_contradicted.store(true, Ordering::Relaxed);
                        }
                        Judged::Strange => {
                            // Its connections are from before it changed sides, and the next ones will be refused.
                            member.node.drop_connections();
                            tracing::warn!(error = %known_nodes::stranger(&member.addr), "a server is not believed");
                        }
                    }
                }
                Ok(Err(Blind::Forbidden)) => return,
                Ok(Err(Blind::Failed(error))) => {
                    tracing::debug!(%error, "a node did not say who has which slot");
                }
                Ok(Ok(_)) | Err(_) => {}
            }
        }
        if let Some(layout) = self.insisted(against, &believed, Instant::now()) {
            tracing::warn!(
                "most masters of the cluster insist on what contradicts their epochs, and are believed"
            );
            self.install(layout, By::Insistence);
        } else if !believed.is_empty() {
            return;
        }
        self.forget();
    }

    /// Asks all servers that the URL names, at once. What most of them belong to is the cluster; or, where most do not answer in time, what
    /// most of those belong to that do. There is no memory yet by which a stranger would be known that has got the address of one of them.
    pub(super) async fn ask_seeds(&self) -> Result<Addr, Error> {
        let seeds = || self.seeds.iter();
        let asked = seeds().enumerate().map(async |(at, addr)| (at, self.member(addr).ask().await));
        let mut asked = asked.collect::<FuturesUnordered<_>>();
        let (count, mut said, mut blind) = (asked.len(), Vec::<(usize, Layout)>::new(), Vec::new());
        let mut knows_nobody = None;
        let mut until = None;
        loop {
            let next = async {
                match until {
                    None => Ok(asked.next().await),
                    Some(until) => tokio::time::timeout_at(until, asked.next()).await,
                }
            };
            match next.await {
                // It has been told to forget the others, or has not met them.
                Ok(Some((at, Ok(layout)))) if layout.runs.is_empty() => {
                    until.get_or_insert_with(|| Instant::now() + SEEDS_TIME);
                    knows_nobody = Some(at);
                }
                Ok(Some((at, Ok(layout)))) => {
                    until.get_or_insert_with(|| Instant::now() + SEEDS_TIME);
                    said.push((at, layout));
                    said.sort_by_key(|(at, _)| *at);
                    let most = clusters(&said);
                    if most.first().is_some_and(|cluster| cluster.len() * 2 > count) {
                        break;
                    }
                }
                Ok(Some((at, Err(why)))) => {
                    if matches!(why, Blind::Forbidden) {
                        until.get_or_insert_with(|| Instant::now() + SEEDS_TIME);
                    }
                    blind.push((at, why));
                }
                Ok(None) | Err(_) => break,
            }
        }
        let mut most = clusters(&said);
        let Some(cluster) = most.pop() else { return self.nobody_told(blind, knows_nobody) };
        let addr = |cluster: &[&(usize, Layout)]| cluster.first().map(|(at, _)| self.seeds[*at].clone());
        let first = addr(&cluster);
        if let Some(other) = most.first() {
            let names =
                [addr(other), first].map(|addr| addr.map_or_else(String::new, |addr| addr.to_string()));
            let text = format!("{} and {} belong to different clusters", names[0], names[1]);
            return Err(Error::new(ErrorKind::InvalidUrl, text)
                .remedy("name more servers of the cluster in the URL, and none of another one"));
        }
        // Connections were made before it was known whose cluster it is. Only those on which these pictures came go on being used: a picture may
        // name an address that a stranger has got.
        for (at, _) in &cluster {
            self.member(&self.seeds[*at]).node.trust();
        }
        for (_, layout) in cluster {
            self.install(layout.clone(), By::Epochs);
        }
        first.ok_or_else(|| Error::new(ErrorKind::InvalidUrl, "no server of the cluster is named"))
    }

    /// None of the servers named could say where the slots are.
    fn nobody_told(
        &self,
        mut blind: Vec<(usize, Blind)>,
        knows_nobody: Option<usize>,
    ) -> Result<Addr, Error> {
        blind.sort_by_key(|(at, _)| *at);
        let mut first: Option<Error> = None;
        for (at, why) in blind {
            match why {
                Blind::Forbidden => {
                    self.assume(&self.seeds[at]);
                    return Ok(self.seeds[at].clone());
                }
                // A wrong password or a server without a cluster is worth more than one that is away.
                Blind::Failed(error)
                    if first.as_ref().is_none_or(|first| first.kind() == ErrorKind::Unreachable) =>
                {
                    first = Some(error);
                }
                Blind::Failed(_) => {}
            }
        }
        match knows_nobody {
            Some(at) => Ok(self.seeds[at].clone()),
            None => Err(first
                .unwrap_or_else(|| Error::new(ErrorKind::InvalidUrl, "no server of the cluster is named"))),
        }
    }

    /// Asks the other masters of the first picture until most have answered: the node that gave it may have been away, and there is
    /// nothing yet to judge it by.
    pub(super) async fn ask_most(&self, first: &Addr) {
        let masters: Vec<Arc<Member>> = self.masters().into_iter().map(|(_, member)| member).collect();
        let is_first = |member: &Arc<Member>| member.addr == *first;
        let mut answers = masters.iter().filter(|member| is_first(member)).count();
        let others: Vec<_> = masters.iter().filter(|member| !is_first(member)).cloned().collect();
        let asked = futures_util::stream::iter(others)
            .map(|member| async move { tokio::time::timeout(SCAN_TIMEOUT, member.ask()).await })
            .buffer_unordered(SCAN_NODES_MAX);
        let mut asked = std::pin::pin!(asked);
        while answers * 2 <= masters.len() {
            match asked.next().await {
                // One that may not tell epochs is as likely to be the one that was away.
                Some(Ok(Ok(layout))) if !layout.runs.is_empty() && !layout.epochs.is_empty() => {
                    answers += usize::from(self.install(layout, By::Epochs) != Judged::Strange);
                }
                Some(_) => {}
                None => return,
            }
        }
    }

    /// The picture that most of the known masters have shown in each look for long enough, against what is known; or most of those in it, if
    /// nobody shows another one, not even the one that is known, as those who are `believed` do.
    pub(super) fn insisted(
        &self,
        against: Vec<(Addr, Layout)>,
        believed: &[Addr],
        now: Instant,
    ) -> Option<Layout> {
        let masters: SeededSet<Addr> =
            self.masters().into_iter().map(|(_, member)| member.addr.clone()).collect();
        let mut pictures: SeededMap<Disputed, (SeededSet<Addr>, Layout)> = SeededMap::default();
        for (addr, layout) in against {
            tracing::debug!(%addr, "what a node says of the cluster is out of date");
            let slots: Disputed =
                self.table().disputes(&layout).map(|(slot, addr)| (slot, addr.clone())).collect();
            // Of those that agree in what is in question the one that has heard most is taken over.
            let latest = |layout: &Layout| layout.epochs.values().max().copied();
            let (by, kept) = pictures.entry(slots).or_insert_with(|| (SeededSet::default(), layout.clone()));
            by.insert(addr);
            if latest(&layout) > latest(kept) {
                *kept = layout;
            }
        }
        let one_voice = believed.is_empty() && pictures.len() == 1;
        let most = pictures.into_iter().find(|(_, (by, layout))| {
            let most_of = |masters: &SeededSet<Addr>| 2 * masters.intersection(by).count() > masters.len();
            // Those who are gone for good say nothing any more. Without contradiction most of those count that have slots now.
            let present = layout.runs.iter().map(|(_, addr)| addr.clone()).collect();
            most_of(&masters) || one_voice && most_of(&present)
        });
        let mut contradiction = self.contradiction.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((slots, (_, layout))) = most else {
            *contradiction = None;
            return None;
        };
        let is_its_own = |slot: u16| self.owner(slot).is_some_and(|owner| believed.contains(&owner.addr));
        let is_heard = slots.iter().any(|(slot, _)| is_its_own(*slot));
        let before = contradiction.take().filter(|before| before.slots == slots);
        let is_beside = is_heard || before.as_ref().is_some_and(|before| before.is_beside);
        let since = before.map_or(now, |before| before.since);
        if now - since < if is_beside { INSISTED_BESIDE_TIME } else { INSISTED_TIME } {
            *contradiction = Some(Contradiction { slots, since, is_beside });
            return None;
        }
        *contradiction = None;
        Some(layout)
    }
}

impl Member {
    /// What this server knows of the cluster. An account that may not ask for epochs has to do without them.
    pub(super) async fn ask(&self) -> Result<Layout, Blind> {
        let (slots, epochs) = (slots::question(), slots::question_for_epochs());
        let (slots, epochs) = tokio::join!(self.node.send_in_time(&slots), self.node.send_in_time(&epochs));
        let epochs = match epochs {
            Ok(epochs) => epochs,
            Err(failure) if slots::may_not_ask(&failure) => Reply::Nil,
            // What nobody can judge is not believed.
            Err(failure) if slots.is_ok() => {
                return Err(Blind::Failed(Fault::from(failure).into_error()));
            }
            Err(_) => Reply::Nil,
        };
        match slots {
            Ok(reply) => Layout::read(&reply, &self.addr)
                .map(|layout| layout.with_epochs(&epochs).mapped(|addr| self.dial.reachable(addr)))
                .ok_or_else(|| {
                    Blind::Failed(Error::new(
                        ErrorKind::Protocol,
                        "CLUSTER SLOTS was answered with something else",
                    ))
                }),
            Err(Failure::Refused { detail, .. }) if slots::says_it_is_no_cluster(&detail) => {
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
