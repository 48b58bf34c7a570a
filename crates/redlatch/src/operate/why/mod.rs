//! Why a name cannot be had: who holds it, what that one waits for, and so on to the one who holds all of them up.

mod graph;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use super::inspect::LockState;
use crate::{
    client::Client,
    error::Error,
    name::LockName,
    owner::client_of,
    presence::{ClientRecord, HoldOrWait},
};

/// How many names are looked at.
const NAMES_MAX: usize = 100;
/// How many clients are asked what they wait for.
const CLIENTS_MAX: usize = 1_000;
/// What the owner field of a write hold ends with.
const WRITE: &str = ":write";

/// Why a name cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Why {
    /// The name that was asked about, and then those that its holders wait for, each with its own holders.
    pub names: Vec<BlockedName>,
    /// Names whose holders wait for each other in a circle, each one for the next.
    pub cycles: Vec<WaitCycle>,
    /// There are more names, or more clients, than were looked at.
    pub is_cut: bool,
}

/// Names whose holders wait for each other: none of them goes on until one gives up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitCycle {
    /// The names; the holder of each waits for the next, and that of the last for the first.
    pub names: Vec<LockName>,
    /// Each of these waits is one of the very task or owner that holds. Otherwise it may be another task of the same client.
    pub is_certain: bool,
}

/// One name, and who is about it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedName {
    /// Its state at the server.
    pub state: LockState,
    /// Who holds it.
    pub blockers: Vec<Blocker>,
    /// Who waits for it, as the clients tell, longest first; those that tell nothing are only counted, in [`state`](Self::state).
    pub waiting: Vec<BlockedWaiter>,
}

/// One holder of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocker {
    /// The owner field, as in [`Holder`](super::inspect::Holder).
    pub owner: String,
    /// What its client tells of itself; `None` for one that tells nothing, as those of Redisson.
    pub client: Option<ClientRecord>,
    /// For how long it has held the name, if its client tells.
    pub lasts: Option<Duration>,
    /// What it waits for itself, if its client tells.
    pub waits_for: Vec<WaitsFor>,
}

/// Something that a holder waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitsFor {
    /// The name.
    pub name: LockName,
    /// The owner that waits, if it has one yet.
    pub owner: Option<String>,
    /// For how long.
    pub lasts: Duration,
    /// It is the task or owner that holds which waits. Otherwise it may be another task of the same client.
    pub is_certain: bool,
}

/// A client that waits for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockedWaiter {
    /// The client.
    pub client: ClientRecord,
    /// How it waits.
    pub told: HoldOrWait,
}

impl Client {
    /// Why a name cannot be had: who holds it, for how long, what for, and what that one waits for itself, up to the one who holds all of them up; and
    /// circles in which all wait for each other. At most 100 names and 1,000 clients are looked at.
    ///
    /// Who holds is what the server says at this moment. Who the holder is and what it waits for is what its client told at some time in the last half
    /// minute ([`ClientRecord::age`]), so a wait may have ended meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    ///
    /// # Errors
    ///
    /// A name that is not valid; a server that is unreachable or refuses.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// let _guard = client.lock("report").lock().await?;
    /// let why = client.why("report").await?;
    /// assert_eq!(why.names[0].blockers.len(), 1);
    /// assert!(why.cycles.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn why(&self, name: impl Into<LockName>) -> Result<Why, Error> {
        let name = name.into();
        name.check()?;
        let clients = self.clients(CLIENTS_MAX).await?;
        let told = Told::by(&clients);
        let mut is_cut = clients.len() == CLIENTS_MAX;
        let mut seen: HashSet<LockName> = HashSet::from([name.clone()]);
        let mut next: VecDeque<LockName> = VecDeque::from([name]);
        let mut names = Vec::new();
        while let Some(name) = next.pop_front() {
            let blocked = told.about(self.inspect(name).await?);
            for waits_for in blocked.blockers.iter().flat_map(|blocker| &blocker.waits_for) {
                if seen.contains(&waits_for.name) {
                    continue;
                }
                if seen.len() >= NAMES_MAX {
                    is_cut = true;
                    continue;
                }
                seen.insert(waits_for.name.clone());
                next.push_back(waits_for.name.clone());
            }
            names.push(blocked);
        }
        Ok(Why::of(names, is_cut))
    }
}

impl Why {
    /// The same of names and clients that were looked at already, as [`Client::list`] and [`Client::clients`] return them. Asks no server. Names that
    /// are waited for and not among `states` are left out.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
    /// # use redlatch::Why;
    /// # let client = redlatch::Client::connect("memory:").await?;
    /// let _guard = client.lock("report").lock().await?;
    /// let why = Why::among(client.list(None, 100).await?, &client.clients(100).await?);
    /// assert_eq!(why.names[0].blockers.len(), 1);
    /// # Ok(()) }
    /// ```
    pub fn among(states: Vec<LockState>, clients: &[ClientRecord]) -> Why {
        let told = Told::by(clients);
        Why::of(states.into_iter().map(|state| told.about(state)).collect(), false)
    }

    fn of(mut names: Vec<BlockedName>, is_cut: bool) -> Why {
        let of = |(number, blocked): (usize, &BlockedName)| (blocked.state.name.clone(), number);
        let numbers: HashMap<LockName, usize> = names.iter().enumerate().map(of).collect();
        leave_out_ended(&mut names, &numbers);
        let cycles = cycles(&names, &numbers);
        Why { names, cycles, is_cut }
    }
}

/// What clients tell, by what it is looked up by.
struct Told<'a> {
    by_id: HashMap<&'a str, &'a ClientRecord>,
    /// Those that wait for a name.
    by_name: HashMap<&'a LockName, Vec<(&'a ClientRecord, &'a HoldOrWait)>>,
    /// Those that work under the hold of an owner, which another client has.
    by_outer_owner: HashMap<&'a str, Vec<&'a ClientRecord>>,
}

impl<'a> Told<'a> {
    fn by(clients: &'a [ClientRecord]) -> Self {
        let by_id = clients.iter().map(|client| (&*client.id, client)).collect();
        let mut told = Told { by_id, by_name: HashMap::new(), by_outer_owner: HashMap::new() };
        for client in clients {
            for wait in &client.waits {
                told.by_name.entry(&wait.name).or_default().push((client, wait));
            }
            for owner in &client.under {
                told.by_outer_owner.entry(owner).or_default().push(client);
            }
        }
        told
    }

    /// A name as the server has it, with what the clients tell of it.
    fn about(&self, state: LockState) -> BlockedName {
        let name = &state.name;
        let blockers = state.holders.iter().map(|holder| self.blocker(name, &holder.owner)).collect();
        let waits = self.by_name.get(name).into_iter().flatten();
        let of = |(client, told): &(&ClientRecord, &HoldOrWait)| BlockedWaiter {
            client: (*client).clone(),
            told: (*told).clone(),
        };
        let mut waiting: Vec<BlockedWaiter> = waits.map(of).collect();
        waiting.sort_by_key(|waits| std::cmp::Reverse(waits.told.lasts));
        BlockedName { blockers, waiting, state }
    }

    fn blocker(&self, name: &LockName, owner: &str) -> Blocker {
        let record = self.by_id.get(client_of(owner)).copied();
        let bare = owner.strip_suffix(WRITE).unwrap_or(owner);
        let hold = record.and_then(|record| record.hold(name, bare));
        let waits = record.into_iter().flat_map(|record| &record.waits);
        let of = |wait: &HoldOrWait| {
            let is_certain = is_by_holder(hold?, wait)?;
            Some(waits_for_told(wait, is_certain))
        };
        let mut waits_for: Vec<WaitsFor> = waits.filter_map(of).collect();
        // Another process that the holder has started, and that works under its hold.
        let under = self.by_outer_owner.get(bare).into_iter().flatten();
        waits_for.extend(under.flat_map(|client| &client.waits).map(|wait| waits_for_told(wait, true)));
        Blocker {
            owner: owner.to_owned(),
            client: record.cloned(),
            lasts: hold.map(|hold| hold.lasts),
            waits_for,
        }
    }
}

fn waits_for_told(wait: &HoldOrWait, is_certain: bool) -> WaitsFor {
    WaitsFor { name: wait.name.clone(), owner: wait.owner.clone(), lasts: wait.lasts, is_certain }
}

/// Whether it is the holder that waits: `Some(true)` if so, `Some(false)` if that is not known, `None` if it is another one.
fn is_by_holder(hold: &HoldOrWait, wait: &HoldOrWait) -> Option<bool> {
    if hold.owner.is_some() && hold.owner == wait.owner {
        return Some(true);
    }
    match (hold.task, wait.task) {
        (Some(hold), Some(wait)) => (hold == wait).then_some(true),
        // Threads without a runtime have owners of their own; what runs in no task may be the same thread or not.
        _ => Some(false),
    }
}

/// Leaves out waits that have ended by now: the server says that the owner who waited holds.
fn leave_out_ended(names: &mut [BlockedName], numbers: &HashMap<LockName, usize>) {
    let holders = |blocked: &BlockedName| -> Vec<String> {
        let owners = blocked.blockers.iter().map(|blocker| &*blocker.owner);
        owners.map(|owner| owner.strip_suffix(WRITE).unwrap_or(owner).to_owned()).collect()
    };
    let holders: Vec<Vec<String>> = names.iter().map(holders).collect();
    let has_ended = |waits_for: &WaitsFor| {
        let number = numbers.get(&waits_for.name);
        let owners = number.and_then(|number| holders.get(*number));
        owners.zip(waits_for.owner.as_ref()).is_some_and(|(owners, owner)| owners.contains(owner))
    };
    for blocker in names.iter_mut().flat_map(|blocked| &mut blocked.blockers) {
        blocker.waits_for.retain(|waits_for| !has_ended(waits_for));
    }
}

fn cycles(names: &[BlockedName], numbers: &HashMap<LockName, usize>) -> Vec<WaitCycle> {
    let waits = |blocked: &BlockedName| {
        let all = blocked.blockers.iter().flat_map(|blocker| &blocker.waits_for);
        all.filter_map(|waits_for| numbers.get(&waits_for.name).copied()).collect::<Vec<_>>()
    };
    let edges: Vec<Vec<usize>> = names.iter().map(waits).collect();
    let is_certain = |from: usize, to: usize| {
        let mut all = names[from].blockers.iter().flat_map(|blocker| &blocker.waits_for);
        all.any(|waits_for| waits_for.is_certain && numbers.get(&waits_for.name) == Some(&to))
    };
    let cycle = |nodes: Vec<usize>| {
        let next = |at: usize| nodes[(at + 1) % nodes.len()];
        WaitCycle {
            is_certain: (0..nodes.len()).all(|at| is_certain(nodes[at], next(at))),
            names: nodes.iter().map(|node| names[*node].state.name.clone()).collect(),
        }
    };
    graph::cycles(&edges).into_iter().map(cycle).collect()
}
