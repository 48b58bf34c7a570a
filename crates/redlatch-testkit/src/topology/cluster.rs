//! A Redis Cluster.

mod form;
mod slot;
mod slot_move;
mod view;

use std::fmt;
use std::time::Duration;

pub use self::slot::{SLOTS, slot_of};
pub use self::slot_move::SlotMove;
use self::view::{Line, view};
use super::replication::{self, Credentials, no_node};
use super::wait::wait_until;
use crate::error::{Error, ErrorKind, Result};
use crate::net::ReservedPort;
use crate::server::{RedisServer, RedisServerBuilder, ServerProgram, TlsFiles};

/// How far the bus of a node is above its port; servers before Redis 7.0 cannot be told another place.
const BUS_OFFSET: u16 = 10_000;

/// Settings of a [`RedisCluster`] before it starts.
#[derive(Debug, Clone)]
pub struct RedisClusterBuilder {
    servers: RedisServerBuilder,
    master_count: usize,
    replicas_per_master: usize,
    node_timeout: Duration,
}

impl RedisClusterBuilder {
    /// Starts every node with these settings: passwords, users, append-only file,
    /// `cluster-require-full-coverage`. The port is chosen by the kit.
    pub fn servers(mut self, settings: RedisServerBuilder) -> Self {
        self.servers = settings;
        self
    }

    /// Runs this program as nodes.
    pub fn program(mut self, program: ServerProgram) -> Self {
        self.servers = self.servers.program(program);
        self
    }

    /// Serves TLS on all nodes, with required client certificates.
    pub fn mutual_tls(mut self, files: &TlsFiles) -> Self {
        self.servers = self.servers.mutual_tls(files);
        self
    }

    /// How many masters start: 1 to 100, 3 unless told. With less than 3 no replica can be elected.
    pub fn master_count(mut self, count: usize) -> Self {
        self.master_count = count;
        self
    }

    /// How many replicas each master has at the start: 0 or more, 1 unless told.
    pub fn replicas_per_master(mut self, count: usize) -> Self {
        self.replicas_per_master = count;
        self
    }

    /// How long a node may be silent until the others suspect it (`cluster-node-timeout`), in whole
    /// milliseconds; 2 seconds unless told. A machine that pauses for as long as this may get a failover that
    /// nobody asked for.
    pub fn node_timeout(mut self, time: Duration) -> Self {
        self.node_timeout = time;
        self
    }

    /// Starts all nodes and waits until the cluster [is ready](RedisCluster::wait_until_ready).
    ///
    /// # Errors
    ///
    /// As for [`RedisServerBuilder::start`], and [`ErrorKind::Timeout`] when the cluster does not get ready.
    pub fn start(self) -> Result<RedisCluster> {
        let count = self.master_count * (self.replicas_per_master + 1);
        let credentials = Credentials::new(count);
        let has_tls = self.servers.has_tls();
        let (mut nodes, mut buses, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..count {
            let (port, bus) = ReservedPort::pair(BUS_OFFSET)?;
            let mut settings = credentials
                .data_node(index, self.servers.clone())
                .arg("cluster-enabled", "yes")
                .arg("cluster-config-file", "nodes.conf")
                .arg("cluster-node-timeout", &self.node_timeout.as_millis().to_string());
            if has_tls {
                settings = settings.arg("tls-cluster", "yes");
            }
            let node = settings.start_on(port)?;
            ids.push(form::id_of(&node)?);
            nodes.push(node);
            buses.push(bus);
        }
        let admin_password = credentials.admin_password;
        let master_count = self.master_count;
        let cluster = RedisCluster { nodes, buses, ids, master_count, admin_password, has_tls };
        cluster.form()?;
        Ok(cluster)
    }
}

/// A cluster on loopback ports. The first nodes start as masters, node `m + k` as a replica of one of them.
/// Dropping it ends all nodes.
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    buses: Vec<ReservedPort>,
    ids: Vec<String>,
    master_count: usize,
    admin_password: String,
    has_tls: bool,
}

impl fmt::Debug for RedisCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCluster").field("url", &self.url()).field("nodes", &self.nodes).finish()
    }
}

impl RedisCluster {
    /// Settings to start from: 3 masters with 1 replica each, no passwords.
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder {
            servers: RedisServer::builder(),
            master_count: 3,
            replicas_per_master: 1,
            node_timeout: Duration::from_secs(2),
        }
    }

    /// Starts a cluster with the default settings.
    ///
    /// # Errors
    ///
    /// As for [`RedisClusterBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// `redis-cluster://127.0.0.1:p1,…` with all nodes, or `rediss-cluster://` with TLS; without credentials.
    pub fn url(&self) -> String {
        let scheme = if self.has_tls { "rediss-cluster" } else { "redis-cluster" };
        format!("{scheme}://{}", self.seeds().join(","))
    }

    /// `127.0.0.1:port` of every node.
    pub fn seeds(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect()
    }

    /// The nodes, whatever their role.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// One node.
    ///
    /// # Panics
    ///
    /// When there is no node of that index.
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index]
    }

    fn id(&self, index: usize) -> &str {
        &self.ids[index]
    }

    fn admin_password(&self) -> &str {
        &self.admin_password
    }

    /// The slot of a key, as [`slot_of`].
    pub fn slot_of(&self, key: impl AsRef<[u8]>) -> u16 {
        slot_of(key)
    }

    /// What is to be believed about each node: its own word if it is up, or else the newest of the others.
    fn believed(&self) -> Result<Vec<Option<Line>>> {
        let mut believed: Vec<Option<Line>> = vec![None; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_up()) {
            for line in view(node)? {
                let Some(about) = self.ids.iter().position(|id| *id == line.id) else { continue };
                let known = believed[about].as_ref();
                let is_newer = known.is_none_or(|known| known.epoch < line.epoch);
                if about == index || (!self.nodes[about].is_up() && is_newer) {
                    believed[about] = Some(line);
                }
            }
        }
        Ok(believed)
    }

    /// The index of the node that owns a slot. When two say so, the one of the newer configuration does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when nobody does, or when a node answers with an error.
    pub fn owner_of(&self, slot: u16) -> Result<usize> {
        let believed = self.believed()?;
        owner_in(&believed, slot)
            .ok_or_else(|| Error::new(ErrorKind::Server, format!("nobody owns the slot {slot}")))
    }

    /// The indexes of the nodes that own slots, in ascending order; also one that is down and not replaced.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when a node answers with an error.
    pub fn masters(&self) -> Result<Vec<usize>> {
        let believed = self.believed()?;
        let mut masters: Vec<usize> = (0..SLOTS).filter_map(|slot| owner_in(&believed, slot)).collect();
        masters.sort_unstable();
        masters.dedup();
        Ok(masters)
    }

    /// The indexes of the replicas of a node, in ascending order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when a node answers with an error.
    pub fn replicas_of(&self, master: usize) -> Result<Vec<usize>> {
        let id = self.ids.get(master).ok_or_else(|| no_node(master))?;
        let believed = self.believed()?;
        let follows =
            |line: &Option<Line>| line.as_ref().is_some_and(|line| line.master_id.as_ref() == Some(id));
        Ok((0..self.nodes.len()).filter(|&index| follows(&believed[index])).collect())
    }

    /// Makes a replica the master in agreement with its master, without loss (`CLUSTER FAILOVER`), and waits
    /// until it owns the slots.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when the node is no replica or its master is down, [`ErrorKind::Timeout`] when
    /// it does not come about.
    pub fn failover(&self, replica: usize) -> Result<()> {
        self.take_slots(replica, &["CLUSTER", "FAILOVER"])
    }

    /// Makes a replica the master without asking anybody (`CLUSTER FAILOVER TAKEOVER`): what it has not got
    /// is lost. Works while its master is down or the replica is
    /// [blocked](Self::block_replication).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when the node is no replica, [`ErrorKind::Timeout`] when it does not come about.
    pub fn take_over(&self, replica: usize) -> Result<()> {
        self.take_slots(replica, &["CLUSTER", "FAILOVER", "TAKEOVER"])
    }

    fn take_slots(&self, replica: usize, command: &[&str]) -> Result<()> {
        let node = self.nodes.get(replica).ok_or_else(|| no_node(replica))?;
        node.cmd(command)?;
        self.wait_for_master(replica)
    }

    /// Waits until a node owns slots.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after 60 seconds.
    pub fn wait_for_master(&self, index: usize) -> Result<()> {
        wait_until("a node that owns slots", || {
            let found = self.masters()?.contains(&index);
            Ok(if found { Ok(()) } else { Err(format!("node {index} owns none")) })
        })
    }

    /// Waits until a node other than this owns a slot, and is up. Returns its index.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after 60 seconds.
    pub fn wait_for_owner_other_than(&self, slot: u16, index: usize) -> Result<usize> {
        wait_until("another owner of a slot", || {
            let owner = self.owner_of(slot)?;
            let changed = owner != index && self.node(owner).is_up();
            Ok(if changed { Ok(owner) } else { Err(format!("node {owner} owns the slot {slot}")) })
        })
    }

    /// Cuts a replica off: what is written from now on does not get there. Its master notices at once and
    /// counts one replica less. Nodes that are down or paused are not told.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`]; [`ErrorKind::Timeout`] when the replica does not notice.
    pub fn block_replication(&self, index: usize) -> Result<()> {
        replication::block(self.nodes.iter(), index)
    }

    /// Ends [`block_replication`](Self::block_replication); the replica links again by itself.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`].
    pub fn unblock_replication(&self, index: usize) -> Result<()> {
        replication::unblock(self.nodes.iter(), index)
    }
}

fn owner_in(believed: &[Option<Line>], slot: u16) -> Option<usize> {
    let owners = believed.iter().enumerate().filter_map(|(index, line)| Some((index, line.as_ref()?)));
    let owners = owners.filter(|(_, line)| line.owns(slot));
    owners.max_by_key(|(_, line)| line.epoch).map(|(index, _)| index)
}
