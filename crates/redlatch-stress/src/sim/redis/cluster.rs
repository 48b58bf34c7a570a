//! Simulated cluster nodes beside the servers: each has a view of its own of who has which slots, and tells it to those that it reaches. A replica
//! whose master most of the masters hold for failed is elected in its place; the later epoch has the slots.
//!
//! As with sentinels what nodes say takes no time; whether it arrives depends on the network and on who stands still.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    net::{Machine, Net, host},
    node::{ClusterPart, Node, Nodes, PORT, Role},
    wire::{Request, array, bulk, error, int, verb},
};
use crate::rng::Rng;

const SLOTS: u32 = 16_384;
/// Slots change hands in blocks.
const BLOCKS: usize = 12;
const TICK_MS: u64 = 100;
const PING_PERIOD: Duration = Duration::from_millis(500);
pub(super) const NODE_TIMEOUT: Duration = Duration::from_millis(2_000);
/// How long a node that was cut off refuses requests after it has met the others again.
const REJOIN_TIME: Duration = Duration::from_millis(2_000);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one node knows of another, or of itself.
#[derive(Debug, Clone)]
struct Peer {
    epoch: u64,
    master: Option<Machine>,
    heard: Instant,
    due: Instant,
    /// The masters that do not hear it, and when they said so.
    missed_by: BTreeMap<Machine, Instant>,
    failed: bool,
}

#[derive(Debug, Clone)]
struct View {
    /// The latest epoch of any node.
    epoch: u64,
    voted: u64,
    peers: BTreeMap<Machine, Peer>,
    owners: [Machine; BLOCKS],
    /// When this replica asks for votes, and what it was last.
    election: Option<Instant>,
    /// Requests are refused until then.
    down_until: Option<Instant>,
}

/// The cluster's part of one server.
pub(super) struct Member {
    machine: Machine,
    id: String,
    bus: Arc<Bus>,
    view: Mutex<View>,
    rng: Mutex<Rng>,
}

/// All nodes of a cluster.
pub(super) struct Bus {
    net: Arc<Net>,
    nodes: Arc<Nodes>,
    members: OnceLock<BTreeMap<Machine, Arc<Member>>>,
    /// When a replica took over.
    changes_ns: Mutex<Vec<u64>>,
}

/// What a node tells of itself.
struct Hello {
    epoch: u64,
    own_epoch: u64,
    master: Option<Machine>,
    blocks: Vec<usize>,
    missed: Vec<Machine>,
}

/// The slot of a key.
fn slot_of(key: &[u8]) -> u32 {
    let open = key.iter().position(|byte| *byte == b'{');
    let tag = open.and_then(|open| {
        let close = key[open + 1..].iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &key[open + 1..open + 1 + close])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    u32::from(crc) % SLOTS
}

fn block_of(slot: u32) -> usize {
    (slot as usize * BLOCKS) / SLOTS as usize
}

/// The first and the last slot of a block.
fn slots_of(block: usize) -> (u32, u32) {
    let first = |block: usize| (block as u32 * SLOTS).div_ceil(BLOCKS as u32);
    (first(block), first(block + 1) - 1)
}

impl Bus {
    /// The servers form a cluster: the first ones are the masters, and each of the others is a replica of one.
    pub(super) fn start(net: &Arc<Net>, nodes: &Arc<Nodes>, masters: usize, rng: &mut Rng) -> Arc<Bus> {
        let bus = Arc::new(Bus {
            net: net.clone(),
            nodes: nodes.clone(),
            members: OnceLock::new(),
            changes_ns: Mutex::default(),
        });
        let now = Instant::now();
        let machines: Vec<Machine> = nodes.all().iter().map(|node| node.machine).collect();
        let peers: BTreeMap<Machine, Peer> = machines
            .iter()
            .enumerate()
            .map(|(at, machine)| {
                let master = (at >= masters).then(|| machines[at % masters]);
                let epoch = if at < masters { at as u64 + 1 } else { 0 };
                let missed_by = BTreeMap::new();
                (*machine, Peer { epoch, master, heard: now, due: now, missed_by, failed: false })
            })
            .collect();
        let mut owners = [0; BLOCKS];
        owners.iter_mut().enumerate().for_each(|(block, owner)| *owner = machines[block * masters / BLOCKS]);
        let members: BTreeMap<Machine, Arc<Member>> = machines
            .iter()
            .map(|machine| {
                let view = View {
                    epoch: masters as u64,
                    voted: 0,
                    peers: peers.clone(),
                    owners,
                    election: None,
                    down_until: None,
                };
                let member = Arc::new(Member {
                    machine: *machine,
                    id: format!("{:040x}", u64::from(*machine) + 0xc0de),
                    bus: bus.clone(),
                    view: Mutex::new(view),
                    rng: Mutex::new(Rng::new(rng.next())),
                });
                if let Some(node) = nodes.at(*machine) {
                    node.join(member.clone());
                }
                let ticks = member.clone();
                tokio::spawn(async move {
                    loop {
                        let beat = locked(&ticks.rng).ms(TICK_MS * 4 / 5, TICK_MS * 6 / 5);
                        sleep(beat).await;
                        if ticks.is_there() {
                            ticks.tick();
                        }
                    }
                });
                (*machine, member)
            })
            .collect();
        let _first = bus.members.set(members);
        bus
    }

    fn members(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.get().into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn changes_ns(&self) -> Vec<u64> {
        locked(&self.changes_ns).clone()
    }

    /// Whether all nodes serve and agree on who has which slots.
    pub(super) fn agree(&self) -> bool {
        let mut owners = None;
        self.members().all(|member| {
            let view = locked(&member.view);
            let same = *owners.get_or_insert(view.owners) == view.owners;
            same && view.down_until.is_none() && view.peers.values().all(|peer| !peer.failed)
        })
    }

    /// The latest epoch by which a master that answers has slots, and that master.
    pub(super) fn latest(&self) -> (u64, Option<Machine>) {
        let there = self.members().filter(|member| member.is_there());
        let masters = there.filter_map(|member| {
            let view = locked(&member.view);
            let has_slots = view.owners.contains(&member.machine);
            has_slots.then(|| (view.peers[&member.machine].epoch, Some(member.machine)))
        });
        masters.max().unwrap_or_default()
    }

    /// Hands a message of one node to the subscribers at the others.
    fn spread(self: &Arc<Self>, from: Machine, channel: &[u8], payload: &[u8]) {
        for node in self.nodes.all().into_iter().filter(|node| node.machine != from) {
            let (bus, channel, payload) = (self.clone(), channel.to_vec(), payload.to_vec());
            tokio::spawn(async move {
                sleep(bus.net.delay()).await;
                if bus.net.reaches(from, node.machine) && node.answers() {
                    node.deliver(&channel, &payload);
                }
            });
        }
    }
}

impl Member {
    fn node(&self) -> Option<Arc<Node>> {
        self.bus.nodes.at(self.machine)
    }

    fn is_there(&self) -> bool {
        self.node().is_some_and(|node| node.answers())
    }

    fn tick(&self) {
        let now = Instant::now();
        self.meet_others(now);
        let mut view = locked(&self.view);
        self.look_for_failures(&mut view, now);
        self.look_whether_it_is_up(&mut view, now);
        drop(view);
        self.elect(now);
    }

    /// Exchanges hellos with those that it reaches.
    fn meet_others(&self, now: Instant) {
        for other in self.bus.members().filter(|other| other.machine != self.machine) {
            let is_due = {
                let mut view = locked(&self.view);
                let Some(peer) = view.peers.get_mut(&other.machine) else { continue };
                let is_due = peer.due <= now;
                if is_due {
                    peer.due = now + PING_PERIOD;
                }
                is_due
            };
            if is_due && self.bus.net.meet(self.machine, other.machine) && other.is_there() {
                other.hear(self.machine, &self.hello(now), now);
                self.hear(other.machine, &other.hello(now), now);
            }
        }
    }

    fn hello(&self, now: Instant) -> Hello {
        let view = locked(&self.view);
        let own = &view.peers[&self.machine];
        let is_missed = |(_, peer): &(&Machine, &Peer)| now.duration_since(peer.heard) > NODE_TIMEOUT;
        let others = view.peers.iter().filter(|(machine, _)| **machine != self.machine);
        Hello {
            epoch: view.epoch,
            own_epoch: own.epoch,
            master: own.master,
            blocks: (0..BLOCKS).filter(|block| view.owners[*block] == self.machine).collect(),
            missed: others.filter(is_missed).map(|(machine, _)| *machine).collect(),
        }
    }

    /// Another node says what it is.
    fn hear(&self, from: Machine, hello: &Hello, now: Instant) {
        let mut view = locked(&self.view);
        view.epoch = view.epoch.max(hello.epoch);
        let is_voter = hello.master.is_none() && !hello.blocks.is_empty();
        for (machine, peer) in &mut view.peers {
            if is_voter && hello.missed.contains(machine) {
                peer.missed_by.insert(from, now);
            } else {
                peer.missed_by.remove(&from);
            }
        }
        let Some(peer) = view.peers.get_mut(&from) else { return };
        (peer.heard, peer.epoch, peer.master) = (now, hello.own_epoch, hello.master);
        if peer.failed && (hello.master.is_some() || hello.blocks.is_empty() || peer.missed_by.is_empty()) {
            peer.failed = false;
        }
        if hello.master.is_some() {
            return;
        }
        // The later epoch has the slots.
        let own_master = view.peers[&self.machine].master;
        let had = |view: &View, machine: Machine| view.owners.contains(&machine);
        let (mine, masters) = (had(&view, self.machine), own_master.is_some_and(|master| had(&view, master)));
        for block in &hello.blocks {
            let owner = view.owners[*block];
            let known = view.peers.get(&owner).map_or(0, |peer| peer.epoch);
            if owner != from && known < hello.own_epoch {
                view.owners[*block] = from;
            }
        }
        let lost_mine = mine && !had(&view, self.machine);
        let lost_masters = masters && own_master.is_some_and(|master| !had(&view, master));
        if lost_mine || (lost_masters && own_master != Some(from)) {
            if let Some(own) = view.peers.get_mut(&self.machine) {
                own.master = Some(from);
            }
            view.election = None;
            drop(view);
            if let Some(node) = self.node() {
                node.turn_into(Role::ReplicaOf(from));
            }
        }
    }

    fn voters(view: &View) -> BTreeSet<Machine> {
        view.owners.iter().copied().collect()
    }

    fn look_for_failures(&self, view: &mut View, now: Instant) {
        let voters = Self::voters(view);
        let is_voter = voters.contains(&self.machine);
        let mut failed = Vec::new();
        for (machine, peer) in view.peers.iter_mut().filter(|(machine, _)| **machine != self.machine) {
            let is_missed = now.duration_since(peer.heard) > NODE_TIMEOUT;
            let said = peer
                .missed_by
                .iter()
                .filter(|(by, at)| voters.contains(by) && now.duration_since(**at) < 2 * NODE_TIMEOUT);
            if is_missed && !peer.failed && 2 * (said.count() + usize::from(is_voter)) > voters.len() {
                peer.failed = true;
                failed.push(*machine);
            }
        }
        for other in self.bus.members().filter(|other| other.machine != self.machine) {
            if !failed.is_empty() && self.bus.net.meet(self.machine, other.machine) && other.is_there() {
                let mut view = locked(&other.view);
                for machine in failed.iter().filter(|machine| **machine != other.machine) {
                    if let Some(peer) = view.peers.get_mut(machine) {
                        peer.failed = true;
                    }
                }
            }
        }
    }

    /// A node that hears few masters refuses requests, and does so for a while when it hears them again.
    fn look_whether_it_is_up(&self, view: &mut View, now: Instant) {
        let voters = Self::voters(view);
        let is_heard = |machine: &&Machine| {
            let peer = &view.peers[*machine];
            **machine == self.machine || now.duration_since(peer.heard) <= NODE_TIMEOUT
        };
        let heard = voters.iter().filter(is_heard).count();
        let is_whole = voters.iter().all(|machine| !view.peers[machine].failed);
        if 2 * heard <= voters.len() || !is_whole {
            view.down_until = Some(now + REJOIN_TIME);
        } else if view.down_until.is_some_and(|until| until <= now) {
            view.down_until = None;
        }
    }

    /// A replica of a failed master asks for votes, and takes over if most masters give it theirs.
    fn elect(&self, now: Instant) {
        let (master, epoch) = {
            let mut view = locked(&self.view);
            let Some(master) = view.peers[&self.machine].master else { return };
            let is_failed = view.peers[&master].failed && view.owners.contains(&master);
            let has_data = self.node().is_some_and(|node| node.has_copied());
            if !is_failed || !has_data {
                view.election = None;
                return;
            }
            let late = || now + locked(&self.rng).ms(500, 1_000);
            let due = *view.election.get_or_insert_with(late);
            if due > now {
                return;
            }
            view.election = Some(now + 2 * NODE_TIMEOUT);
            view.epoch += 1;
            (master, view.epoch)
        };
        let voters = Self::voters(&locked(&self.view));
        let votes = self.bus.members().filter(|other| {
            voters.contains(&other.machine)
                && self.bus.net.meet(self.machine, other.machine)
                && other.is_there()
                && other.votes_for(master, epoch)
        });
        if 2 * votes.count() <= voters.len() {
            return;
        }
        {
            let mut view = locked(&self.view);
            view.owners.iter_mut().filter(|owner| **owner == master).for_each(|owner| *owner = self.machine);
            view.election = None;
            if let Some(own) = view.peers.get_mut(&self.machine) {
                (own.epoch, own.master) = (epoch, None);
            }
            // All are told at once.
            view.peers.values_mut().for_each(|peer| peer.due = now);
        }
        locked(&self.bus.changes_ns).push(crate::clock::boot_ns());
        if let Some(node) = self.node() {
            node.turn_into(Role::Master);
        }
        self.meet_others(now);
    }

    fn votes_for(&self, master: Machine, epoch: u64) -> bool {
        let mut view = locked(&self.view);
        let may = view.voted < epoch && view.epoch <= epoch && view.peers[&master].failed;
        if may {
            (view.voted, view.epoch) = (epoch, epoch);
        }
        may
    }

    fn id_of(&self, machine: Machine) -> String {
        let member = self.bus.members().find(|member| member.machine == machine);
        member.map_or_else(String::new, |member| member.id.clone())
    }
}

impl ClusterPart for Member {
    fn refusal(&self, request: &Request) -> Option<Vec<u8>> {
        let keys: &[Vec<u8>] = match verb(request).as_str() {
            "EVALSHA" | "EVAL" => {
                let count = String::from_utf8_lossy(request.get(2)?).parse::<usize>().ok()?;
                request.get(3..3 + count)?
            }
            "EXISTS" | "SSUBSCRIBE" => request.get(1..)?,
            _ => return None,
        };
        let slots: BTreeSet<u32> = keys.iter().map(|key| slot_of(key)).collect();
        let slot = *slots.first()?;
        if slots.len() > 1 {
            return Some(error("CROSSSLOT Keys in request don't hash to the same slot"));
        }
        let view = locked(&self.view);
        if view.down_until.is_some() {
            return Some(error("CLUSTERDOWN The cluster is down"));
        }
        let owner = view.owners[block_of(slot)];
        (owner != self.machine).then(|| error(&format!("MOVED {slot} {}:{PORT}", host(owner))))
    }

    fn tell(&self, request: &Request) -> Vec<u8> {
        let what = request.get(1).map(|word| String::from_utf8_lossy(word).to_ascii_uppercase());
        let view = locked(&self.view).clone();
        match what.unwrap_or_default().as_str() {
            "SLOTS" => {
                let node = |machine: Machine| {
                    array([bulk(host(machine)), int(i64::from(PORT)), bulk(self.id_of(machine)), array([])])
                };
                array((0..BLOCKS).map(|block| {
                    let (first, last) = slots_of(block);
                    let owner = view.owners[block];
                    let is_replica =
                        |(_, peer): &(&Machine, &Peer)| peer.master == Some(owner) && !peer.failed;
                    let replicas = view.peers.iter().filter(is_replica).map(|(machine, _)| node(*machine));
                    let range = [int(i64::from(first)), int(i64::from(last)), node(owner)];
                    array(range.into_iter().chain(replicas))
                }))
            }
            "NODES" => {
                let lines = view.peers.iter().map(|(machine, peer)| {
                    let mut flags = vec![if peer.master.is_some() { "slave" } else { "master" }];
                    if *machine == self.machine {
                        flags.insert(0, "myself");
                    }
                    if peer.failed {
                        flags.push("fail");
                    }
                    let master = peer.master.map_or_else(|| "-".to_owned(), |master| self.id_of(master));
                    let (id, at, epoch) = (self.id_of(*machine), host(*machine), peer.epoch);
                    format!("{id} {at}:{PORT}@1{PORT} {} {master} 0 0 {epoch} connected\n", flags.join(","))
                });
                bulk(lines.collect::<String>())
            }
            "MYID" => bulk(&self.id),
            other => error(&format!("ERR unknown subcommand '{other}'")),
        }
    }

    fn spread(&self, channel: &[u8], payload: &[u8]) {
        self.bus.spread(self.machine, channel, payload);
    }
}
