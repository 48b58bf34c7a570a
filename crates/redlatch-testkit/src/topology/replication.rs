//! Masters and replicas, in every topology.

use std::collections::BTreeMap;

use super::wait::{Missing, wait_until};
use crate::error::{Error, ErrorKind, Result};
use crate::server::{RedisServer, RedisServerBuilder};

/// What a replica may do on its master.
const REPLICA_RIGHTS: &str = "-@all +psync +sync +replconf +ping";

/// The passwords of one topology.
pub(super) struct Credentials {
    pub(super) admin_password: String,
    replica_password: String,
    nodes: usize,
}

impl Credentials {
    pub(super) fn new(nodes: usize) -> Self {
        let random = crate::server::random_password;
        Self { admin_password: random(), replica_password: random(), nodes }
    }

    /// The settings of data node `index`. It follows its master as a user of its own, which every node
    /// knows, so that one replica can be cut off alone.
    pub(super) fn data_node(&self, index: usize, settings: RedisServerBuilder) -> RedisServerBuilder {
        let mut settings = settings
            .admin_password(&self.admin_password)
            .arg("masteruser", &replica_user(index))
            .arg("masterauth", &self.replica_password)
            // Replicas are there from the start on; the default waits 5 seconds for more of them.
            .arg("repl-diskless-sync-delay", "0");
        for index in 0..self.nodes {
            let password = &self.replica_password;
            settings = settings.acl(&format!("{} on >{password} {REPLICA_RIGHTS}", replica_user(index)));
        }
        if settings.has_tls() { settings.arg("tls-replication", "yes") } else { settings }
    }
}

impl Credentials {
    /// Starts node 0 as the master of the others, and waits until these are linked.
    pub(super) fn start_master_and_replicas(
        &self,
        replica_count: usize,
        settings: &RedisServerBuilder,
    ) -> Result<Vec<RedisServer>> {
        let mut nodes: Vec<RedisServer> = Vec::new();
        for index in 0..=replica_count {
            let mut settings = self.data_node(index, settings.clone());
            if let Some(master) = nodes.first() {
                settings = settings.arg("replicaof", &format!("127.0.0.1 {}", master.port()));
            }
            nodes.push(settings.start()?);
        }
        wait_for_links(&nodes, 0)?;
        Ok(nodes)
    }
}

/// The user as which a replica follows its master.
pub(super) fn replica_user(index: usize) -> String {
    format!("redlatch-testkit-replica-{index}")
}

/// Makes a node a replica of the server on a loopback port.
pub(super) fn follow(node: &RedisServer, port: u16) -> Result<()> {
    node.cmd(&["REPLICAOF", "127.0.0.1", &port.to_string()]).map(drop)
}

/// The fields of `INFO replication`.
pub(super) fn replication_info(server: &RedisServer) -> Result<BTreeMap<String, String>> {
    let info: String = server.query(&[b"INFO", b"replication"])?;
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    Ok(fields.map(|(key, value)| (key.to_owned(), value.trim().to_owned())).collect())
}

/// Whether the server says that it is a master.
pub(super) fn is_master(server: &RedisServer) -> Result<bool> {
    Ok(replication_info(server)?.get("role").is_some_and(|role| role == "master"))
}

/// Whether the link of a replica to its master is up, and the master's port.
pub(super) fn link_of(server: &RedisServer) -> Result<Result<u16, Missing>> {
    let info = replication_info(server)?;
    let is = |key: &str, value: &str| info.get(key).is_some_and(|v| v == value);
    if !is("role", "slave") || !is("master_link_status", "up") {
        return Ok(Err(format!("the server on port {} is no linked replica", server.port())));
    }
    let port = info.get("master_port").and_then(|port| port.parse().ok());
    Ok(port.ok_or_else(|| "no port of the master".to_owned()))
}

/// How many replicas the master has that got its whole data.
pub(super) fn online_replicas(server: &RedisServer) -> Result<usize> {
    let info = replication_info(server)?;
    // Such as `slave0:ip=127.0.0.1,port=6380,state=online,offset=14,lag=0`.
    Ok(info.iter().filter(|(key, value)| key.starts_with("slave") && value.contains("state=online")).count())
}

/// Whether all nodes that are up follow the master and got its data.
pub(super) fn links(nodes: &[RedisServer], master: usize) -> Result<Result<(), Missing>> {
    let Some(master) = nodes.get(master) else { return Err(no_node(master)) };
    let mut wanted = 0;
    for node in nodes.iter().filter(|node| node.is_up() && node.port() != master.port()) {
        match link_of(node)? {
            Ok(port) if port == master.port() => wanted += 1,
            Ok(other) => return Ok(Err(format!("port {} follows port {other}", node.port()))),
            Err(missing) => return Ok(Err(missing)),
        }
    }
    let online = online_replicas(master)?;
    Ok(if online >= wanted { Ok(()) } else { Err(format!("{online} of {wanted} replicas are online")) })
}

pub(super) fn wait_for_links(nodes: &[RedisServer], master: usize) -> Result<()> {
    wait_until("replicas that are linked", || links(nodes, master))
}

/// Cuts one node off from whatever master it has or will have: what is written from now on does not get
/// there. Returns when the node has noticed.
pub(super) fn block<'a>(nodes: impl Iterator<Item = &'a RedisServer>, index: usize) -> Result<()> {
    let user = replica_user(index);
    let mut replica = None;
    for (number, node) in nodes.enumerate() {
        if number == index {
            replica = Some(node);
        }
        if node.is_up() {
            node.cmd(&["ACL", "SETUSER", &user, "off"])?;
            node.cmd(&["CLIENT", "KILL", "USER", &user])?;
        }
    }
    let replica = replica.ok_or_else(|| no_node(index))?;
    if !replica.is_up() || is_master(replica)? {
        return Ok(());
    }
    wait_until("cutting a replica off", || {
        let down =
            replication_info(replica)?.get("master_link_status").is_some_and(|status| status == "down");
        Ok(if down { Ok(()) } else { Err("the link is still up".to_owned()) })
    })
}

/// Ends [`block`]; the replica links again by itself.
pub(super) fn unblock<'a>(nodes: impl Iterator<Item = &'a RedisServer>, index: usize) -> Result<()> {
    for node in nodes.filter(|node| node.is_up()) {
        node.cmd(&["ACL", "SETUSER", &replica_user(index), "on"])?;
    }
    Ok(())
}

pub(super) fn no_node(index: usize) -> Error {
    Error::new(ErrorKind::Invalid, format!("there is no node {index}"))
}
