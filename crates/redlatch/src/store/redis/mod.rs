//! Redis or Valkey: scripts over multiplexed connections, subscriptions over connections of their own.
//!
//! Commands and subscriptions never share a connection (decision D16). A store is one of several topologies, each in a file
//! of its own; all of them are made of nodes (a server's command connections) and hubs (its subscriptions).

mod acked;
mod backoff;
mod census;
mod certificates;
mod changes;
mod cluster;
mod connect;
mod diagnose;
mod driver;
mod failure;
mod finder;
mod following;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod hub;
mod known_nodes;
mod lasting;
mod link;
mod listed;
mod lookups;
mod mastership;
mod node;
mod password;
mod redirect;
mod replicated;
mod role;
mod role_of;
mod run;
mod sentinel;
mod server_process;
mod sharded_hub;
mod sharded_link;
mod slots;
mod succession;
mod timer;
mod tls;
mod topology;
mod trial;

use std::{os::fd::OwnedFd, sync::Arc};

pub(crate) use cluster::ClusterStore;
pub(crate) use connect::{Dial, LocalEngineHooks};
pub(crate) use following::FollowingStore;
use futures_util::TryFutureExt;
pub(crate) use slots::slot_of;
use tokio::runtime::Handle;

use self::{
    failure::Failure,
    hub::Hub,
    node::{InterruptionHooks, Node},
    trial::Messages,
};
use super::{
    AckedFuture, Call, ChangeHook, DiagnoseFuture, Fault, Listener, ListenersFuture, LoadFuture, RunFuture,
    Store, SubscribeFuture, WatchFuture,
};
use crate::{
    acl::Kind,
    config::{Config, url::Server},
    error::{Error, ErrorKind},
    replica_ack::ReplicaCount,
};

/// One server.
pub(crate) struct RedisStore {
    node: Arc<Node>,
    hub: Arc<Hub>,
    interruption: Arc<InterruptionHooks>,
}

impl RedisStore {
    /// Connects once, so that a wrong address or password is reported here and not by the first lock.
    pub(crate) async fn open(
        server: Server,
        config: &Config,
        background: &Handle,
    ) -> Result<Arc<dyn super::Store>, Error> {
        let dial = Dial::new(server, config, background)?;
        Self::open_with(dial, config, background).await
    }

    pub(crate) async fn open_with(
        dial: Dial,
        config: &Config,
        background: &Handle,
    ) -> Result<Arc<dyn super::Store>, Error> {
        let dial = Arc::new(dial.telling_changes());
        let interruption = Arc::new(InterruptionHooks::default());
        let node = Node::new(dial.clone(), config, background, interruption.clone());
        let hub = Arc::new(Hub::start(dial.clone(), background));
        let listening = Arc::downgrade(&hub);
        // The address may lead to another server by now, and its messages come over a new connection only.
        interruption.set_demotions(Arc::new(move || {
            if let Some(hub) = listening.upgrade() {
                hub.redirect(dial.clone());
            }
        }));
        node.link().await.map_err(Fault::into_error)?;
        node.check_functions().await.map_err(|failure| Fault::from(failure).into_error())?;
        Ok(Arc::new(RedisStore { node, hub, interruption }))
    }
}

impl Store for RedisStore {
    fn run(&self, call: Call) -> RunFuture {
        Box::pin(self.node.run(call).map_err(|failure| without_cluster(failure).into()))
    }

    fn run_acked(&self, call: Call, count: ReplicaCount, must: bool) -> AckedFuture {
        let answer = self.node.run_acked(call, count, must, None);
        Box::pin(answer.map_err(|failure| without_cluster(failure).into()))
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        self.hub.subscribe(channel, listener)
    }

    fn is_waiting(&self) -> bool {
        self.node.is_waiting()
    }

    fn own_receivers(&self, channel: &[u8]) -> i64 {
        self.hub.is_subscribed(channel).into()
    }

    fn listeners(&self, channels: Vec<Arc<[u8]>>) -> ListenersFuture {
        let node = self.node.clone();
        Box::pin(async move { node.listeners(&channels).await })
    }

    fn load_functions(&self) -> LoadFuture {
        if self.node.dial().is_local() {
            return super::no_functions(&self.describe());
        }
        let node = self.node.clone();
        Box::pin(async move { Ok(node.load_functions().await?) })
    }

    fn incarnation(&self, _key: &[u8]) -> u64 {
        server_process::incarnation(0, self.node.process_number())
    }

    fn drop_connections(&self, _key: &[u8]) {
        self.node.drop_connections();
    }

    fn on_interruption(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        self.interruption.set(hook);
    }

    fn on_change(&self, hook: ChangeHook) {
        self.node.dial().changes(hook);
    }

    fn watch(&self, keys: Vec<Arc<[u8]>>) -> WatchFuture {
        let node = self.node.clone();
        Box::pin(async move { Ok(node.watch(&keys).await?) })
    }

    fn diagnose(&self) -> DiagnoseFuture {
        // The local engine answers for itself; Redis's settings do not apply to it.
        if let Some(findings) = self.node.dial().local_findings() {
            return Box::pin(std::future::ready(Ok(findings)));
        }
        Box::pin(self.node.clone().diagnose(true))
    }

    fn trouble(&self) -> DiagnoseFuture {
        if self.node.dial().is_local() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        Box::pin(self.node.clone().trouble())
    }

    fn try_rights(&self, kinds: &[Kind], prefix: &str) -> DiagnoseFuture {
        if self.node.dial().is_local() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        let messages = Messages::of_one_server(self.hub.clone());
        Box::pin(self.node.clone().try_rights(messages, kinds.to_vec(), prefix.to_owned()))
    }

    fn outlives(&self, owner: &str) {
        if let Some(local_engine) = self.node.dial().local_engine() {
            local_engine.outlives(owner);
        }
    }

    fn lifeline(&self) -> Option<OwnedFd> {
        self.node.dial().local_engine()?.lifeline()
    }

    fn place(&self) -> Option<String> {
        Some(self.describe())
    }

    fn process(&self) -> Option<String> {
        self.node.process()
    }

    fn describe(&self) -> String {
        self.node.dial().describe()
    }

    fn close(&self) {
        self.hub.close();
        self.node.close();
        if let Some(local_engine) = self.node.dial().local_engine() {
            local_engine.close();
        }
    }
}

/// What a member of a cluster says to a client that takes it for a server on its own. That does not pass by itself.
fn without_cluster(failure: Failure) -> Failure {
    match &failure {
        Failure::Refused { code, detail, at } if matches!(&code[..], "MOVED" | "ASK") => {
            let who = at.as_deref().unwrap_or("the server");
            let text =
                format!("{who} is a member of a cluster and does not have this name ({code} {detail})");
            let error = Error::new(ErrorKind::InvalidUrl, text);
            Failure::Fault(Fault::Server(error.remedy("use redis-cluster:// in its URL")))
        }
        _ => failure,
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.close();
    }
}
