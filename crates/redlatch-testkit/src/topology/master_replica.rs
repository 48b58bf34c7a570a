//! A master and its replicas, with nobody who watches over them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::relay::{self, Relay};
use super::replication::{self, Credentials, follow, is_master, link_of, no_node, wait_for_links};
use super::wait::wait_until;
use crate::error::{Error, ErrorKind, Result};
use crate::server::{RedisServer, RedisServerBuilder, ServerProgram, TlsFiles};

/// Settings of a [`MasterReplica`] before it starts.
#[derive(Debug, Clone)]
pub struct MasterReplicaBuilder {
    servers: RedisServerBuilder,
    replica_count: usize,
}

impl MasterReplicaBuilder {
    /// Starts every node with these settings: passwords, users, append-only file. The port is chosen by the
    /// kit.
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

    /// How many replicas the master has: 0 or more, 2 unless told.
    pub fn replica_count(mut self, count: usize) -> Self {
        self.replica_count = count;
        self
    }

    /// Starts all nodes and waits until every replica is linked.
    ///
    /// # Errors
    ///
    /// As for [`RedisServerBuilder::start`], and [`ErrorKind::Timeout`] when a replica does not get linked.
    pub fn start(self) -> Result<MasterReplica> {
        let credentials = Credentials::new(self.replica_count + 1);
        let has_tls = self.servers.has_tls();
        let nodes = credentials.start_master_and_replicas(self.replica_count, &self.servers)?;
        Ok(MasterReplica { nodes, relays: Mutex::default(), has_tls })
    }
}

/// A master and its replicas on loopback ports. Node 0 starts as the master. Dropping it ends all nodes.
pub struct MasterReplica {
    nodes: Vec<RedisServer>,
    relays: Mutex<BTreeMap<usize, Relay>>,
    has_tls: bool,
}

impl fmt::Debug for MasterReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterReplica").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl MasterReplica {
    /// Settings to start from: 1 master, 2 replicas, no passwords.
    pub fn builder() -> MasterReplicaBuilder {
        MasterReplicaBuilder { servers: RedisServer::builder(), replica_count: 2 }
    }

    /// Starts a master and two replicas.
    ///
    /// # Errors
    ///
    /// As for [`MasterReplicaBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// `redis-replicated://127.0.0.1:p1,…` with all nodes, or `rediss-replicated://` with TLS; without
    /// credentials.
    pub fn url(&self) -> String {
        let scheme = if self.has_tls { "rediss-replicated" } else { "redis-replicated" };
        format!("{scheme}://{}", self.addrs().join(","))
    }

    /// `127.0.0.1:port` of every node.
    pub fn addrs(&self) -> Vec<String> {
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

    /// The indexes of the nodes that are up and call themselves master, in ascending order.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`].
    pub fn masters(&self) -> Result<Vec<usize>> {
        let mut masters = Vec::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_up()) {
            if is_master(node)? {
                masters.push(index);
            }
        }
        Ok(masters)
    }

    /// The index of the only master.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when none or more than one is up, or as for [`RedisServer::cmd`].
    pub fn master(&self) -> Result<usize> {
        match self.masters()?[..] {
            [master] => Ok(master),
            ref masters => Err(Error::new(ErrorKind::Server, format!("the masters are {masters:?}"))),
        }
    }

    /// Makes a replica the master with what it has, and lets all nodes that are up follow it, the old master
    /// included; replicas that are [stalled](Self::stall_replication) stay where they are. Returns when they
    /// are linked.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`]; [`ErrorKind::Timeout`] when a node does not get linked.
    pub fn promote(&self, index: usize) -> Result<()> {
        self.promote_alone(index)?;
        let relays = self.relays();
        let port = self.node(index).port();
        let others = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(other, node)| *other != index && node.is_up() && !relays.contains_key(other));
        for (_, node) in others {
            follow(node, port)?;
            wait_until("a replica of the new master", || {
                Ok(match link_of(node)? {
                    Ok(master) if master == port => Ok(()),
                    Ok(_) => Err("it follows another one".to_owned()),
                    Err(missing) => Err(missing),
                })
            })?;
        }
        Ok(())
    }

    /// Makes a replica a master with what it has, and tells nobody: there are two masters if the old one is
    /// up.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`]; [`ErrorKind::Invalid`] when there is no such node.
    pub fn promote_alone(&self, index: usize) -> Result<()> {
        let node = self.nodes.get(index).ok_or_else(|| no_node(index))?;
        node.cmd(&["REPLICAOF", "NO", "ONE"])?;
        self.relays().remove(&index);
        Ok(())
    }

    /// Holds back everything between a replica and the master: what is written from now on does not get
    /// there, and is lost when the replica is promoted. The master does not notice: it counts the replica as
    /// online, until `repl-timeout` has passed (60 seconds unless told), but gets no acknowledgement.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`]; [`ErrorKind::Invalid`] when the node is no replica.
    pub fn stall_replication(&self, index: usize) -> Result<()> {
        let master = self.node(self.master()?);
        let node = self.nodes.get(index).ok_or_else(|| no_node(index))?;
        if node.port() == master.port() {
            return Err(Error::new(ErrorKind::Invalid, format!("node {index} is the master")));
        }
        let relay = relay::stall(node, master)?;
        self.relays().insert(index, relay);
        Ok(())
    }

    /// Cuts a replica off: what is written from now on does not get there, also after a change of the master.
    /// The master notices at once and counts one replica less. Nodes that are down or paused are not told.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`]; [`ErrorKind::Timeout`] when the replica does not notice.
    pub fn block_replication(&self, index: usize) -> Result<()> {
        replication::block(self.nodes.iter(), index)
    }

    /// Ends [`stall_replication`](Self::stall_replication) and
    /// [`block_replication`](Self::block_replication): the node follows the master and gets what it missed.
    /// Returns when it is linked.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`]; [`ErrorKind::Timeout`] when the replica does not get linked.
    pub fn release_replication(&self, index: usize) -> Result<()> {
        replication::unblock(self.nodes.iter(), index)?;
        let port = self.node(self.master()?).port();
        let node = self.nodes.get(index).ok_or_else(|| no_node(index))?;
        if node.port() == port {
            return Ok(());
        }
        follow(node, port)?;
        self.relays().remove(&index);
        wait_until("a replica that is linked again", || Ok(link_of(node)?.map(drop)))
    }

    /// Waits until every node that is up follows the master directly and has its data.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after 60 seconds; as for [`master`](Self::master).
    pub fn wait_until_ready(&self) -> Result<()> {
        wait_for_links(&self.nodes, self.master()?)
    }

    fn relays(&self) -> MutexGuard<'_, BTreeMap<usize, Relay>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
