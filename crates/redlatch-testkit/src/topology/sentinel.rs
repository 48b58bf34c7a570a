//! A master, its replicas, and sentinels that watch over them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::relay::{self, Relay};
use super::replication::{self, Credentials, follow, is_master, link_of, links, no_node};
use super::wait::{Missing, wait_until};
use crate::error::{Error, ErrorKind, Result};
use crate::net::ReservedPort;
use crate::server::{RedisServer, RedisServerBuilder, ServerProgram, TlsFiles, random_password};

/// The user of one sentinel on the data nodes and on the other sentinels, so that each can be forbidden what the kit may.
fn sentinel_user(index: usize) -> String {
    format!("redlatch-testkit-sentinel-{index}")
}

/// The name that the sentinels have for the master.
pub const MASTER_NAME: &str = "redlatch";

/// Settings of a [`SentinelSet`] before it starts.
#[derive(Debug, Clone)]
pub struct SentinelSetBuilder {
    servers: RedisServerBuilder,
    sentinels: RedisServerBuilder,
    replica_count: usize,
    sentinel_count: usize,
    down_after: Duration,
    failover_timeout: Duration,
}

impl SentinelSetBuilder {
    /// Starts every data node with these settings: passwords, users, append-only file. The port is chosen
    /// by the kit.
    pub fn servers(mut self, settings: RedisServerBuilder) -> Self {
        self.servers = settings;
        self
    }

    /// Starts every sentinel with these settings, such as a password of its own.
    pub fn sentinels(mut self, settings: RedisServerBuilder) -> Self {
        self.sentinels = settings;
        self
    }

    /// Runs this program as data nodes and sentinels.
    pub fn program(mut self, program: ServerProgram) -> Self {
        self.servers = self.servers.program(program);
        self.sentinels = self.sentinels.program(program);
        self
    }

    /// Serves TLS on all nodes, with required client certificates.
    pub fn mutual_tls(mut self, files: &TlsFiles) -> Self {
        self.servers = self.servers.mutual_tls(files);
        self.sentinels = self.sentinels.mutual_tls(files);
        self
    }

    /// How many replicas the master has: 0 or more, 2 unless told.
    pub fn replica_count(mut self, count: usize) -> Self {
        self.replica_count = count;
        self
    }

    /// How many sentinels there are: 1 or more, 3 unless told. More than half of them must agree.
    pub fn sentinel_count(mut self, count: usize) -> Self {
        self.sentinel_count = count;
        self
    }

    /// How long the master may be silent until the sentinels call it down, in whole milliseconds; 1 second
    /// unless told. A machine that pauses for as long as this may get a failover that nobody asked for.
    pub fn down_after(mut self, time: Duration) -> Self {
        self.down_after = time;
        self
    }

    /// The sentinels' `failover-timeout`, in whole milliseconds; 2 seconds unless told. When no sentinel gets
    /// enough votes, they try again after twice as long.
    pub fn failover_timeout(mut self, time: Duration) -> Self {
        self.failover_timeout = time;
        self
    }

    /// Starts all nodes and waits until the set [is ready](SentinelSet::wait_until_ready).
    ///
    /// # Errors
    ///
    /// As for [`RedisServerBuilder::start`], and [`ErrorKind::Timeout`] when the set does not get ready.
    pub fn start(self) -> Result<SentinelSet> {
        let credentials = Credentials::new(self.replica_count + 1);
        let has_tls = self.servers.has_tls();
        // Sentinels ask for the replicas only every 10 seconds, so they come when the replicas are linked.
        let servers = self.with_sentinel_users(self.servers.clone(), &credentials);
        let nodes = credentials.start_master_and_replicas(self.replica_count, &servers)?;
        let sentinels = self.start_sentinels(&nodes, &credentials)?;
        let set = SentinelSet { nodes, sentinels, relays: Mutex::default(), has_tls };
        set.wait_until_ready()?;
        Ok(set)
    }

    fn with_sentinel_users(
        &self,
        settings: RedisServerBuilder,
        credentials: &Credentials,
    ) -> RedisServerBuilder {
        (0..self.sentinel_count).fold(settings, |settings, index| {
            settings.acl(&format!("{} on >{} ~* &* +@all", sentinel_user(index), credentials.admin_password))
        })
    }

    fn start_sentinels(&self, nodes: &[RedisServer], credentials: &Credentials) -> Result<Vec<RedisServer>> {
        let ports: Vec<_> = (0..self.sentinel_count).map(|_| ReservedPort::new(0)).collect::<Result<_>>()?;
        // Sentinels that know each other from the start need no seconds to find each other.
        let peers: Vec<(u16, String)> = ports.iter().map(|port| (port.port(), sentinel_id())).collect();
        let master = nodes.first().ok_or_else(|| no_node(0))?.port();
        let mut sentinels = Vec::new();
        for (index, port) in ports.into_iter().enumerate() {
            let mut lines = vec![
                format!("myid {}", peers[index].1),
                format!("monitor {MASTER_NAME} 127.0.0.1 {master} {}", self.sentinel_count / 2 + 1),
                format!("auth-user {MASTER_NAME} {}", sentinel_user(index)),
                format!("auth-pass {MASTER_NAME} {}", credentials.admin_password),
                format!("down-after-milliseconds {MASTER_NAME} {}", self.down_after.as_millis()),
                format!("failover-timeout {MASTER_NAME} {}", self.failover_timeout.as_millis()),
                format!("sentinel-user {}", sentinel_user(index)),
                format!("sentinel-pass {}", credentials.admin_password),
            ];
            for node in &nodes[1..] {
                lines.push(format!("known-replica {MASTER_NAME} 127.0.0.1 {}", node.port()));
            }
            for (port, id) in peers.iter().filter(|(port, _)| *port != peers[index].0) {
                lines.push(format!("known-sentinel {MASTER_NAME} 127.0.0.1 {port} {id}"));
            }
            let settings = self.with_sentinel_users(self.sentinels.clone(), credentials);
            let mut settings = settings.sentinel().admin_password(&credentials.admin_password);
            if settings.has_tls() {
                settings = settings.arg("tls-replication", "yes");
            }
            for line in lines {
                settings = settings.arg("sentinel", &line);
            }
            sentinels.push(settings.start_on(port)?);
        }
        Ok(sentinels)
    }
}

/// A master, its replicas and sentinels, on loopback ports. Dropping it ends all of them.
pub struct SentinelSet {
    nodes: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    relays: Mutex<BTreeMap<usize, Relay>>,
    has_tls: bool,
}

impl fmt::Debug for SentinelSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelSet").field("url", &self.url()).field("nodes", &self.nodes).finish()
    }
}

impl SentinelSet {
    /// Settings to start from: 1 master, 2 replicas, 3 sentinels, no passwords.
    pub fn builder() -> SentinelSetBuilder {
        SentinelSetBuilder {
            servers: RedisServer::builder(),
            sentinels: RedisServer::builder(),
            replica_count: 2,
            sentinel_count: 3,
            down_after: Duration::from_secs(1),
            failover_timeout: Duration::from_secs(2),
        }
    }

    /// Starts a set with the default settings.
    ///
    /// # Errors
    ///
    /// As for [`SentinelSetBuilder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// `redis-sentinel://127.0.0.1:p1,127.0.0.1:p2,127.0.0.1:p3/redlatch`, or `rediss-sentinel://` with TLS;
    /// without credentials.
    pub fn url(&self) -> String {
        let scheme = if self.has_tls { "rediss-sentinel" } else { "redis-sentinel" };
        format!("{scheme}://{}/{MASTER_NAME}", self.sentinel_addrs().join(","))
    }

    /// `127.0.0.1:port` of every sentinel.
    pub fn sentinel_addrs(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect()
    }

    /// The data nodes, whatever their role; the first one started as the master.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// One data node.
    ///
    /// # Panics
    ///
    /// When there is no node of that index.
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index]
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// One sentinel.
    ///
    /// # Panics
    ///
    /// When there is no sentinel of that index.
    pub fn sentinel(&self, index: usize) -> &RedisServer {
        &self.sentinels[index]
    }

    /// The index of the master that all sentinels name that are up.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when they name none or more than one, [`ErrorKind::Io`] when none is up.
    pub fn master(&self) -> Result<usize> {
        self.agreed_master()?.map_err(|missing| Error::new(ErrorKind::Server, missing))
    }

    fn agreed_master(&self) -> Result<Result<usize, Missing>> {
        let mut named: Vec<u16> = Vec::new();
        for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_up()) {
            let command: [&[u8]; 3] = [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", MASTER_NAME.as_bytes()];
            let (_, port): (String, u16) = sentinel.query(&command)?;
            named.push(port);
        }
        named.dedup();
        match named[..] {
            [] => Err(Error::new(ErrorKind::Io, "no sentinel is up")),
            [port] => self.index_of(port).map(Ok),
            _ => Ok(Err(format!("the sentinels name several masters: {named:?}"))),
        }
    }

    fn index_of(&self, port: u16) -> Result<usize> {
        let index = self.nodes.iter().position(|node| node.port() == port);
        index.ok_or_else(|| Error::new(ErrorKind::Server, format!("no node has the port {port}")))
    }

    /// The indexes of the replicas that the first sentinel knows that is up, in ascending order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when it answers with an error, [`ErrorKind::Io`] when none is up.
    pub fn replicas(&self) -> Result<Vec<usize>> {
        let up = self.sentinels.iter().find(|sentinel| sentinel.is_up());
        let sentinel = up.ok_or_else(|| Error::new(ErrorKind::Io, "no sentinel is up"))?;
        let mut indexes = Vec::new();
        for fields in self.known_replicas(sentinel)? {
            let port = fields.get("port").and_then(|port| port.parse().ok()).unwrap_or(0);
            indexes.push(self.index_of(port)?);
        }
        indexes.sort_unstable();
        Ok(indexes)
    }

    fn known_replicas(&self, sentinel: &RedisServer) -> Result<Vec<Fields>> {
        sentinel.query(&[b"SENTINEL", b"REPLICAS", MASTER_NAME.as_bytes()])
    }

    /// Tells the sentinels to make one of the replicas the master, although nothing is wrong, and waits until
    /// they have. Returns the index of the new master.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when the sentinels refuse, [`ErrorKind::Timeout`] when it does not come about.
    pub fn failover(&self) -> Result<usize> {
        let before = self.node(self.master()?).port();
        let up = self.sentinels.iter().find(|sentinel| sentinel.is_up());
        let sentinel = up.ok_or_else(|| Error::new(ErrorKind::Io, "no sentinel is up"))?;
        sentinel.cmd(&["SENTINEL", "FAILOVER", MASTER_NAME])?;
        self.wait_for_master_other_than(before)
    }

    /// Waits until all sentinels that are up name one master on another port than this, and it is one.
    /// Returns its index.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after 60 seconds.
    pub fn wait_for_master_other_than(&self, port: u16) -> Result<usize> {
        wait_until("another master", || {
            let index = match self.agreed_master()? {
                Ok(index) => index,
                Err(missing) => return Ok(Err(missing)),
            };
            let node = self.node(index);
            if node.port() == port {
                return Ok(Err(format!("the master is still on port {port}")));
            }
            let settled = node.is_up() && is_master(node)?;
            Ok(if settled { Ok(index) } else { Err("the new master does not know it yet".to_owned()) })
        })
    }

    /// Waits until all nodes that are up belong together: the sentinels agree on the master, see every
    /// replica and each other, and the replicas are linked. A failover is possible from then on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after 60 seconds.
    pub fn wait_until_ready(&self) -> Result<()> {
        wait_until("a Sentinel set that is ready", || {
            let master = match self.agreed_master()? {
                Ok(master) => master,
                Err(missing) => return Ok(Err(missing)),
            };
            for sentinel in self.sentinels.iter().filter(|sentinel| sentinel.is_up()) {
                if let Some(missing) = self.missing_on(sentinel)? {
                    return Ok(Err(format!("the sentinel on port {}: {missing}", sentinel.port())));
                }
            }
            links(&self.nodes, master)
        })
    }

    fn missing_on(&self, sentinel: &RedisServer) -> Result<Option<Missing>> {
        let name = MASTER_NAME.as_bytes();
        let master: Fields = sentinel.query(&[b"SENTINEL", b"MASTER", name])?;
        if master.get("flags").is_none_or(|flags| flags != "master") {
            return Ok(Some(format!("the master is {:?}", master.get("flags"))));
        }
        let peers: Vec<Fields> = sentinel.query(&[b"SENTINEL", b"SENTINELS", name])?;
        let live = peers.iter().filter(|peer| peer.get("flags").is_some_and(|f| f == "sentinel")).count();
        let wanted = self.sentinels.iter().filter(|sentinel| sentinel.is_up()).count() - 1;
        if live < wanted {
            return Ok(Some(format!("{live} of {wanted} other sentinels")));
        }
        // A replica that was never asked has no link status, and a sentinel would not promote it.
        let usable = |replica: &Fields| {
            let is = |key: &str, value: &str| replica.get(key).is_some_and(|v| v == value);
            is("flags", "slave") && is("master-link-status", "ok")
        };
        let usable = self.known_replicas(sentinel)?.iter().filter(|replica| usable(replica)).count();
        let wanted = self.nodes.iter().filter(|node| node.is_up()).count() - 1;
        Ok((usable < wanted).then(|| format!("{usable} of {wanted} replicas")))
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

    /// Holds back everything between a replica and the master: what is written from now on does not get
    /// there. The master does not notice: it counts the replica as online, until `repl-timeout` has passed
    /// (60 seconds unless told), but gets no acknowledgement. The sentinels can promote the replica, but not
    /// let it follow another master; of several replicas they would choose one that has more.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`]; [`ErrorKind::Invalid`] when the node is no replica.
    pub fn stall_replication(&self, index: usize) -> Result<()> {
        let node = self.nodes.get(index).ok_or_else(|| no_node(index))?;
        let master = self.master()?;
        if index == master {
            return Err(Error::new(ErrorKind::Invalid, format!("node {index} is the master")));
        }
        // Otherwise they would undo the detour after a while.
        self.let_sentinels(node, &["-slaveof", "+slaveof|no"])?;
        let relay = relay::stall(node, self.node(master))?;
        self.relays().insert(index, relay);
        Ok(())
    }

    /// Ends [`stall_replication`](Self::stall_replication) and
    /// [`block_replication`](Self::block_replication): the node follows the master, if it is none itself, and
    /// gets what it missed. Returns when it is linked.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`]; [`ErrorKind::Timeout`] when the replica does not get linked.
    pub fn release_replication(&self, index: usize) -> Result<()> {
        let node = self.nodes.get(index).ok_or_else(|| no_node(index))?;
        replication::unblock(self.nodes.iter(), index)?;
        let was_stalled = self.relays().remove(&index).is_some();
        if was_stalled {
            self.let_sentinels(node, &["+slaveof"])?;
        }
        if is_master(node)? {
            return Ok(());
        }
        if was_stalled {
            follow(node, self.node(self.master()?).port())?;
        }
        wait_until("a replica that is linked again", || Ok(link_of(node)?.map(drop)))
    }

    /// Changes what every sentinel may do at a data node.
    fn let_sentinels(&self, node: &RedisServer, rules: &[&str]) -> Result<()> {
        for index in 0..self.sentinels.len() {
            let user = sentinel_user(index);
            node.cmd(&[&["ACL", "SETUSER", &user], rules].concat())?;
        }
        Ok(())
    }

    /// Forbids the sentinels to make a data node a replica, as if it were out of their reach: it stays a master if it is one.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`].
    pub fn keep_role(&self, index: usize) -> Result<()> {
        let node = self.nodes.get(index).ok_or_else(|| no_node(index))?;
        self.let_sentinels(node, &["-slaveof", "+slaveof|no"])
    }

    /// Cuts the set in two: these sentinels and data nodes on one side, all others on the other. No sentinel reaches a node or
    /// a sentinel of the other side, and no replica its master there. Clients reach both sides.
    ///
    /// Data nodes and sentinels must want passwords: a sentinel that is refused goes on as the default user.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`].
    pub fn part(&self, sentinels: &[usize], nodes: &[usize]) -> Result<()> {
        self.let_across(sentinels, nodes, "off")
    }

    /// Ends [`part`](Self::part), which was called with the same sides. Returns at once; those who were apart find each other within
    /// seconds, and sentinels may take more than a minute to count each other as live again.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`].
    pub fn join(&self, sentinels: &[usize], nodes: &[usize]) -> Result<()> {
        self.let_across(sentinels, nodes, "on")
    }

    fn let_across(&self, sentinels: &[usize], nodes: &[usize], state: &str) -> Result<()> {
        let of_sentinels = (0..self.sentinels.len()).map(|i| (sentinel_user(i), sentinels.contains(&i)));
        let of_replicas = (0..self.nodes.len()).map(|i| (replication::replica_user(i), nodes.contains(&i)));
        let servers = self.nodes.iter().enumerate().map(|(i, node)| (node, nodes.contains(&i), true));
        let watchers =
            self.sentinels.iter().enumerate().map(|(i, node)| (node, sentinels.contains(&i), false));
        let servers: Vec<_> = servers.chain(watchers).filter(|(server, ..)| server.is_up()).collect();
        for (server, ..) in &servers {
            // A change of its role may have closed our connection.
            _ = server.cmd(&["PING"]);
        }
        let users = of_sentinels.map(|(user, side)| (user, side, false));
        for (user, side, is_replica) in users.chain(of_replicas.map(|(user, side)| (user, side, true))) {
            for (server, _, has_data) in servers.iter().filter(|(_, other, _)| *other != side) {
                if *has_data || !is_replica {
                    server.cmd(&["ACL", "SETUSER", &user, state])?;
                    server.cmd(&["CLIENT", "KILL", "USER", &user])?;
                }
            }
        }
        Ok(())
    }

    fn relays(&self) -> MutexGuard<'_, BTreeMap<usize, Relay>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fields as a sentinel lists them, by name.
type Fields = BTreeMap<String, String>;

/// Sentinels are named by 40 hexadecimal digits.
fn sentinel_id() -> String {
    let digits = random_password() + &random_password();
    digits.chars().take(40).collect()
}
