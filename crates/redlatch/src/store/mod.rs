//! The seam below the lock logic: two verbs, *run script* and *subscribe*, and nothing that knows of locks.
//!
//! A new backend or topology implements [`Store`]; no primitive changes. The built-in ones are the in-process engine
//! (`memory:`), the engine behind a socket (`local:`) and Redis or Valkey.

mod calls;
mod fault;
mod lazy;
mod local;
mod memory;
pub(crate) mod redis;
pub(crate) mod url;

use std::{fmt, future::Future, os::fd::OwnedFd, pin::Pin, sync::Arc, time::Duration};

pub(crate) use calls::{CallHook, Connection};
pub use fault::Fault;
pub use local::Bequests;
pub(crate) use redis::slot_of;

use smallvec::SmallVec;
pub use url::StoreUrl;

use crate::{
    acl::Kind,
    config::Config,
    doctor::Finding,
    error::{Error, ErrorKind},
    replica_ack::Replicas,
    scripts::Script,
};

/// One argument of a script.
#[derive(Debug, Clone)]
pub enum Arg {
    /// An integer, sent as ASCII decimal.
    Int(i64),
    /// Text.
    Text(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A constant.
    Static(&'static str),
}

/// One script call: what a [`Store`] runs atomically.
#[derive(Debug, Clone)]
pub struct Call {
    /// The script.
    pub script: &'static Script,
    /// Its keys; all in one cluster slot.
    pub keys: SmallVec<[Arc<[u8]>; 2]>,
    /// Its arguments.
    pub args: SmallVec<[Arg; 6]>,
    /// It is right only for the server that was asked in this [reign](Store::reign), and is not sent (`Fault::NotSent`) once it is another's.
    pub in_reign: Option<u64>,
}

impl Call {
    pub(crate) fn new(script: &'static Script) -> Self {
        Call { script, keys: SmallVec::new(), args: SmallVec::new(), in_reign: None }
    }

    pub(crate) fn in_reign(mut self, reign: u64) -> Self {
        self.in_reign = Some(reign);
        self
    }

    pub(crate) fn key(mut self, key: &Arc<[u8]>) -> Self {
        self.keys.push(key.clone());
        self
    }

    pub(crate) fn int(mut self, value: i64) -> Self {
        self.args.push(Arg::Int(value));
        self
    }

    pub(crate) fn text(mut self, value: &Arc<str>) -> Self {
        self.args.push(Arg::Text(value.clone()));
        self
    }

    pub(crate) fn bytes(mut self, value: &Arc<[u8]>) -> Self {
        self.args.push(Arg::Bytes(value.clone()));
        self
    }

    pub(crate) fn constant(mut self, value: &'static str) -> Self {
        self.args.push(Arg::Static(value));
        self
    }
}

/// Why a call was not sent that is right for one server only.
pub(crate) fn of_another_reign() -> Fault {
    Fault::NotSent(Error::new(
        ErrorKind::Unreachable,
        "another server answers now, which may lack what was granted",
    ))
}

/// What a script answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Nothing.
    Nil,
    /// An integer.
    Int(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// A list.
    Array(Vec<Reply>),
}

impl Reply {
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Reply::Int(value) => Some(*value),
            Reply::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Reply::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(crate) fn array(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(items) => Some(items),
            _ => None,
        }
    }
}

/// What a subscriber is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message arrived whose payload is this number.
    Message(i64),
    /// The subscription was interrupted and is back: anything may have happened meanwhile.
    Resumed,
}

/// Who is told; called from the store's own thread, so it must not block.
pub type Listener = Arc<dyn Fn(Event) + Send + Sync>;

/// What a store tells of keys that it [watches](Store::watch). It is a reason to look, and no more than that.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// This key may have changed or gone. It is not watched any more.
    Key(Vec<u8>),
    /// Every key may have. None is watched any more.
    All,
}

/// Who is told of changes; called from the store's own thread, so it must not block.
pub type ChangeHook = Arc<dyn Fn(Change) + Send + Sync>;

/// How many of the keys to watch exist, on its way.
pub type WatchFuture = Pin<Box<dyn Future<Output = Result<Option<u64>, Fault>> + Send + 'static>>;

/// A live subscription; dropping it ends it.
pub trait Subscription: Send + Sync {}

/// The answer to a script call, on its way.
pub type RunFuture = Pin<Box<dyn Future<Output = Result<Reply, Fault>> + Send + 'static>>;

/// How many replicas are to confirm a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaCount {
    /// So many, or more.
    AtLeast(u32),
    /// All that are in sync, and all that are known to the store besides.
    All,
}

/// The answer of the replicas, on its way.
pub type ConfirmFuture = Pin<Box<dyn Future<Output = Result<Replicas, Fault>> + Send + 'static>>;

/// Asks the replicas for at most this long (1 ms or more) whether they have what a call changed. Dropped uncalled it asks
/// nothing, and the future that it gives may be dropped, too.
pub type Confirm = Box<dyn FnOnce(Duration) -> ConfirmFuture + Send>;

/// The answer to a script call that replicas can be asked about, on its way.
pub type AckedFuture = Pin<Box<dyn Future<Output = Result<(Reply, Confirm), Fault>> + Send + 'static>>;

/// A subscription, on its way to being confirmed.
pub type SubscribeFuture =
    Pin<Box<dyn Future<Output = Result<Box<dyn Subscription>, Fault>> + Send + 'static>>;

/// Numbers of listeners, one for each channel, on their way.
pub type ListenersFuture = Pin<Box<dyn Future<Output = Result<Option<Vec<u64>>, Fault>> + Send + 'static>>;

/// Findings about a store, on their way.
pub type DiagnoseFuture = Pin<Box<dyn Future<Output = Result<Vec<Finding>, Fault>> + Send + 'static>>;

/// The loading of functions, on its way.
pub type LoadFuture = Pin<Box<dyn Future<Output = Result<(), Fault>> + Send + 'static>>;

/// A place that runs scripts atomically and passes messages on.
pub trait Store: Send + Sync + 'static {
    /// Runs a script once.
    ///
    /// The future must be free of timers of the caller's runtime, because it may be finished elsewhere, and it must not
    /// send the script again once it may have run.
    fn run(&self, call: Call) -> RunFuture;

    /// Runs a script over the connection of the background thread, which works on while the caller's runtime is busy.
    fn run_apart(&self, call: Call) -> RunFuture {
        self.run(call)
    }

    /// As [`run`](Self::run), for calls that replicas are to confirm. What is in the way of asking them is an error before the
    /// script runs, and whoever waits for them holds up nobody else's calls.
    ///
    /// A store without replicas, as this is unless said otherwise, confirms for all of none; for more it refuses if they `must`
    /// be there.
    fn run_acked(&self, call: Call, count: ReplicaCount, must: bool) -> AckedFuture {
        without_replicas(count, must, || self.run(call))
    }

    /// Subscribes to a channel; resolves when the server has confirmed it.
    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture;

    /// Called about every quarter of a second by the background thread while calls may be pending: time to notice
    /// connections that no longer answer.
    fn tick(&self, _now_ms: u64) {}

    /// Sets what to call when a connection ended on its own, so that held locks are looked after at once.
    fn on_interruption(&self, _hook: Arc<dyn Fn() + Send + Sync>) {}

    /// Sets whom to tell of changes of the keys that are [watched](Self::watch).
    fn on_change(&self, _hook: ChangeHook) {}

    /// Has the next change of each of these keys told, once, by the hook of [`on_change`](Self::on_change): at least when the key or
    /// an element of it goes, and not when scripts that were run [apart](Self::run_apart) change it. Those scripts may end the
    /// watching, so keys are watched anew after each of them. All keys are of one shard.
    ///
    /// Answers how many of the keys exist, and `None` where changes are not told, as here. Called on the background thread.
    fn watch(&self, _keys: Vec<Arc<[u8]>>) -> WatchFuture {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// How often another server has taken the keyspace over. After each time, and after telling so by the hook of
    /// [`on_interruption`](Self::on_interruption), every hold is looked at, also those whose last renewal failed.
    fn moves(&self) -> u64 {
        0
    }

    /// Whose turn it is to answer for a key: another number as soon as calls go to another server, which may not have what this one has
    /// answered. Read before a call is sent, it tells later whether what that call did is still there to be counted.
    fn reign(&self, _key: &[u8]) -> u64 {
        0
    }

    /// Drops every connection over which the answer to a call with this key, the first one of the call, may just have come: it
    /// belongs to another request.
    fn distrust(&self, _key: &[u8]) {}

    /// Whether answers are outstanding.
    fn is_waiting(&self) -> bool {
        false
    }

    /// How many of the receivers of a message on this channel are this very store's connections.
    fn own_receivers(&self, _channel: &[u8]) -> i64 {
        0
    }

    /// How many connections listen to each of these channels; `None` where that cannot be known.
    fn listeners(&self, _channels: Vec<Arc<[u8]>>) -> ListenersFuture {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Loads the scripts as a library of functions, in place of one of the same name, on every server that may run them.
    fn load_functions(&self) -> LoadFuture {
        no_functions(&self.describe())
    }

    /// Resolves when the store has been reached for the first time. One that connects when it is made is ready.
    fn ready(&self) -> LoadFuture {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Which part of the store holds a key: one script names keys of one shard only. In a cluster it is the slot.
    fn shard(&self, _key: &[u8]) -> u16 {
        0
    }

    /// Which server holds a shard at present, as a number that is the same for shards of one server. Only for spreading work: it
    /// may be another one by the time of a call.
    fn shard_owner(&self, _shard: u16) -> u16 {
        0
    }

    /// One shard of each server that holds keys, for scripts that look at all keys of a server.
    fn shards(&self) -> Vec<u16> {
        vec![0]
    }

    /// Runs a script without keys at the server that holds this shard.
    fn run_at(&self, _shard: u16, call: Call) -> RunFuture {
        self.run(call)
    }

    /// The holds of this owner are to outlive this process. Only a store that frees what dead processes held has to know, and must do so
    /// before this returns.
    fn outlives(&self, _owner: &str) {}

    /// A descriptor that keeps what is held over this store as long as any process has it open, where the store frees what dead
    /// processes held.
    fn lifeline(&self) -> Option<OwnedFd> {
        None
    }

    /// What tells that two clients share one keyspace; `None` when nothing does.
    fn place(&self) -> Option<String> {
        None
    }

    /// The publish command that scripts use here.
    fn publish_command(&self) -> &'static str {
        "publish"
    }

    /// The store in words, without secrets.
    fn describe(&self) -> String;

    /// What the store's settings mean for locks.
    fn diagnose(&self) -> DiagnoseFuture {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Tries whether the account may do what these kinds need for names that begin with the prefix; nothing where there are no
    /// accounts.
    fn try_rights(&self, _kinds: &[Kind], _prefix: &str) -> DiagnoseFuture {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Ends connections. Calls after this fail.
    fn close(&self) {}
}

impl fmt::Debug for dyn Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.describe())
    }
}

/// A call where there are no replicas.
pub(crate) fn without_replicas(
    count: ReplicaCount,
    must: bool,
    run: impl FnOnce() -> RunFuture,
) -> AckedFuture {
    let wanted = match count {
        ReplicaCount::AtLeast(n) => n,
        ReplicaCount::All => 0,
    };
    if must && wanted > 0 {
        let error = Error::new(
            ErrorKind::InvalidOption,
            format!("{wanted} replicas are to confirm, and this store has none"),
        );
        let error = error.remedy("use a replicated server, or acquire without replica acknowledgement");
        return Box::pin(std::future::ready(Err(Fault::Server(error))));
    }
    let answer = run();
    Box::pin(async move {
        let confirm: Confirm = Box::new(move |_| Box::pin(std::future::ready(Ok(Replicas::new(0, wanted)))));
        Ok((answer.await?, confirm))
    })
}

/// The command to publish with, in calls that are put together before it is known.
pub(crate) const PUBLISH_LATER: &str = "publish-later";

/// Whether the store that the configuration names has nothing to connect to.
pub(crate) fn is_at_hand(config: &Config) -> bool {
    matches!(StoreUrl::parse(&config.url), Ok(StoreUrl::Memory { .. }))
}

/// The store that the configuration names, which its first call opens. `memory:` has nothing to wait for.
pub(crate) fn open_lazily(
    config: &Config,
    background: &tokio::runtime::Handle,
) -> Result<Arc<dyn Store>, Error> {
    match StoreUrl::parse(&config.url)? {
        StoreUrl::Memory { name } => memory::open(name.as_deref(), config),
        url => Ok(Arc::new(lazy::LazyStore::new(url, config, background))),
    }
}

/// Opens the store that the configuration names.
pub(crate) async fn open(
    config: &Config,
    background: &tokio::runtime::Handle,
) -> Result<Arc<dyn Store>, Error> {
    let url = StoreUrl::parse(&config.url)?;
    match &url {
        StoreUrl::Memory { name } => memory::open(name.as_deref(), config),
        StoreUrl::Local { name, dir } => {
            local::open(name.as_deref(), dir.as_deref(), config, background).await
        }
        StoreUrl::Redis(server) => Ok(redis::RedisStore::open(server.clone(), config, background).await?),
        StoreUrl::Sentinel(sentinels) => {
            Ok(redis::FollowingStore::of_sentinels(sentinels, config, background).await?)
        }
        StoreUrl::Replicated(nodes) => {
            Ok(redis::FollowingStore::of_replicated(nodes, config, background).await?)
        }
        StoreUrl::Cluster(nodes) => redis::ClusterStore::open(nodes.clone(), config, background).await,
    }
}

/// The answer of a store that has its scripts built in.
fn no_functions(store: &str) -> LoadFuture {
    let error = Error::new(ErrorKind::InvalidOption, format!("{store} has no functions to load"));
    Box::pin(std::future::ready(Err(Fault::NotSent(error))))
}

pub(crate) fn protocol_error(call: &str, reply: &Reply) -> Error {
    Error::new(ErrorKind::Protocol, format!("the script {call} answered {reply:?}, which it never does"))
}
