//! Redis or Valkey Cluster: each script runs at the master of its keys' slot.
//!
//! A node that is not the right one refuses before anything has run, so going elsewhere is never a second run. What ends a
//! connection does: the outcome is unknown then, and the callers' rules apply. Nodes have nothing in common here but the
//! picture of who has what: one that is frozen or gone holds up only those who want its slots.

use std::{sync::Arc, time::Duration};

use redis::Cmd;
use tokio::runtime::Handle;

use super::{
    Dial,
    changes::Changes,
    node::SearchCount,
    sharded_hub::{ShardedHub, Ways},
    sharded_link::Way,
    slots::slot_of,
    topology::{Member, Topology},
};
use crate::{
    acl::Kind,
    config::{
        Config, ShardedPubSub,
        url::{Nodes, Server},
    },
    error::{Error, ErrorKind},
    replica_ack::ReplicaCount,
    scripts::BOTH,
    store::{
        AckedFuture, Call, ChangeHook, DiagnoseFuture, Fault, Listener, ListenersFuture, LoadFuture,
        RunFuture, Store, SubscribeFuture, WatchFuture,
    },
};

mod looks;
mod route;

use route::Form;

/// One cluster.
pub(crate) struct ClusterStore {
    inner: Arc<Inner>,
}

struct Inner {
    topology: Arc<Topology>,
    ears: ShardedHub,
    /// The listener that all nodes tell of changes.
    changes: Option<Arc<Changes>>,
    ways: Ways,
    asked_for: ShardedPubSub,
    /// How long a call may look for the right node.
    patience: Duration,
    searching: SearchCount,
    name: String,
}

impl ClusterStore {
    /// Connects once, so that a wrong address or password is reported here and not by the first lock.
    pub(crate) async fn open(
        nodes: Nodes,
        config: &Config,
        background: &Handle,
    ) -> Result<Arc<dyn Store>, Error> {
        Ok(Arc::new(Self::start(nodes, config, background).await?))
    }

    async fn start(nodes: Nodes, config: &Config, background: &Handle) -> Result<Self, Error> {
        let scheme = if nodes.access.tls { "rediss-cluster" } else { "redis-cluster" };
        let name = format!("{scheme}://{nodes}");
        let Some(addr) = nodes.addrs.first().cloned() else {
            return Err(Error::new(ErrorKind::InvalidUrl, "the cluster's URL names no server"));
        };
        let dial = Dial::new(Server { addr, access: nodes.access }, config, background)?.telling_changes();
        let changes = dial.changes_heard().cloned();
        let (topology, first) = Topology::open(nodes.addrs, dial, config, background).await?;
        if let Err(failure) = first.node.check_functions().await {
            topology.close();
            return Err(Fault::from(failure).into_error());
        }
        let ways = match config.sharded {
            ShardedPubSub::Off => Ways::One(Way::Plain),
            ShardedPubSub::Compat => Ways::Both,
            ShardedPubSub::Auto => {
                Ways::One(if knows_sharding(&first).await.is_ok() { Way::Sharded } else { Way::Plain })
            }
            ShardedPubSub::On => {
                if let Err(fault) = knows_sharding(&first).await {
                    topology.close();
                    let error = fault.into_error();
                    let why = format!(
                        "sharded publish and subscribe is wanted, and {} has none: {error}",
                        first.addr
                    );
                    return Err(Error::new(ErrorKind::InvalidOption, why).remedy(
                        "use Redis 7.0 or later or Valkey, or plain messages on all sides, Java's included",
                    ));
                }
                Ways::One(Way::Sharded)
            }
        };
        let ears = ShardedHub::start(topology.clone(), ways, background);
        let patience = config.response_timeout;
        let searching = SearchCount::default();
        let asked_for = config.sharded;
        let inner = Inner { topology, ears, changes, ways, asked_for, patience, searching, name };
        Ok(ClusterStore { inner: Arc::new(inner) })
    }
}

/// Asks as Redisson does when it decides.
async fn knows_sharding(member: &Member) -> Result<(), Fault> {
    let mut cmd = Cmd::new();
    cmd.arg("PUBSUB").arg("SHARDNUMSUB").arg("0");
    member.node.send_in_time(&cmd).await?;
    Ok(())
}

/// The slot of a script's keys.
fn slot_of_all(call: &Call) -> u16 {
    let slot = call.keys.first().map_or(0, |key| slot_of(key));
    debug_assert!(
        call.keys.iter().all(|key| slot_of(key) == slot),
        "the keys of {call:?} have several slots"
    );
    slot
}

impl Store for ClusterStore {
    fn run(&self, call: Call) -> RunFuture {
        self.run_at(slot_of_all(&call), call)
    }

    fn run_at(&self, slot: u16, call: Call) -> RunFuture {
        let inner = self.inner.clone();
        Box::pin(async move {
            let call = &inner.prepared(call);
            let run = |member: Arc<Member>, form: Form, _| async move {
                member.node.run_here(&form.of(call), form.asking).await
            };
            inner.route(slot, call, run).await
        })
    }

    fn run_acked(&self, call: Call, count: ReplicaCount, _must: bool) -> AckedFuture {
        let slot = slot_of_all(&call);
        let inner = self.inner.clone();
        Box::pin(async move {
            let call = inner.prepared(call);
            inner.route_acked(slot, &call, count).await
        })
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        self.inner.ears.subscribe(channel, listener)
    }

    fn is_waiting(&self) -> bool {
        self.inner.searching.any()
            || self.inner.topology.members().iter().any(|member| member.node.is_waiting())
    }

    fn own_receivers(&self, channel: &[u8]) -> i64 {
        // A script counts those who listen at the node that ran it.
        let owner = self.inner.topology.owner(slot_of(channel));
        owner.map_or(0, |owner| self.inner.ears.heard_at(channel, &owner.addr))
    }

    fn listeners(&self, channels: Vec<Arc<[u8]>>) -> ListenersFuture {
        let inner = self.inner.clone();
        Box::pin(async move { inner.listeners(channels).await })
    }

    fn slot(&self, key: &[u8]) -> u16 {
        slot_of(key)
    }

    fn slot_owner(&self, slot: u16) -> u16 {
        self.inner.topology.owner_number(slot)
    }

    fn slot_of_each_server(&self) -> Vec<u16> {
        self.inner.topology.masters().into_iter().map(|(slot, _)| slot).collect()
    }

    fn takeovers(&self) -> u64 {
        self.inner.topology.takeovers()
    }

    fn incarnation(&self, key: &[u8]) -> u64 {
        self.inner.topology.incarnation(slot_of(key))
    }

    fn try_rights(&self, kinds: &[Kind], prefix: &str) -> DiagnoseFuture {
        let (inner, kinds, prefix) = (self.inner.clone(), kinds.to_vec(), prefix.to_owned());
        Box::pin(async move { inner.try_rights(&kinds, &prefix).await })
    }

    fn load_functions(&self) -> LoadFuture {
        // Each master passes them on to its replicas.
        let masters = self.inner.topology.masters();
        Box::pin(async move {
            for (_, member) in masters {
                member.node.load_functions().await?;
            }
            Ok(())
        })
    }

    fn drop_connections(&self, key: &[u8]) {
        let topology = &self.inner.topology;
        match topology.owner(slot_of(key)) {
            Some(owner) if topology.is_settled() => owner.node.drop_connections(),
            // The answer may have come from another node than the one that has the slot now.
            _ => topology.everyone().iter().for_each(|member| member.node.drop_connections()),
        }
    }

    fn on_interruption(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        self.inner.topology.interruption().set(hook);
    }

    fn on_change(&self, hook: ChangeHook) {
        if let Some(changes) = &self.inner.changes {
            changes.set(hook);
        }
    }

    fn watch(&self, keys: Vec<Arc<[u8]>>) -> WatchFuture {
        let owner = keys.first().and_then(|key| self.inner.topology.owner(slot_of(key)));
        Box::pin(async move {
            let Some(owner) = owner else {
                let error = Error::new(ErrorKind::ServerBusy, "no master of the cluster has the slot");
                return Err(Fault::Server(error));
            };
            Ok(owner.node.watch(&keys).await?)
        })
    }

    fn place(&self) -> Option<String> {
        Some(self.inner.topology.id().map_or_else(|| self.describe(), |id| format!("cluster {id}")))
    }

    fn publish_command(&self) -> &'static str {
        match self.inner.ways {
            Ways::One(Way::Plain) => "publish",
            Ways::One(Way::Sharded) => "spublish",
            Ways::Both => BOTH,
        }
    }

    fn describe(&self) -> String {
        self.inner.name.clone()
    }

    fn diagnose(&self) -> DiagnoseFuture {
        let inner = self.inner.clone();
        Box::pin(async move { inner.diagnose().await })
    }

    fn trouble(&self) -> DiagnoseFuture {
        let inner = self.inner.clone();
        Box::pin(async move { inner.trouble().await })
    }

    fn close(&self) {
        self.inner.ears.close();
        self.inner.topology.close();
    }
}

impl Drop for ClusterStore {
    fn drop(&mut self) {
        self.close();
    }
}
