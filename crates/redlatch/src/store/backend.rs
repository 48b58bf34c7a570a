//! What a store is: two verbs, *run script* and *subscribe*; the other methods say when they matter, and all but `describe` have defaults.

use std::{fmt, future::Future, os::fd::OwnedFd, pin::Pin, sync::Arc, time::Duration};

use super::Fault;
use crate::{
    acl::Kind,
    call::{Call, Reply},
    error::{Error, ErrorKind},
    finding::Finding,
    replica_ack::{ReplicaCount, Replicas},
};

/// Why a call was not sent that is right for one server only.
pub(crate) fn of_stale_incarnation() -> Fault {
    let error = "another server answers now, which may lack what was granted";
    Fault::NotSent(Error::new(ErrorKind::Unreachable, error).elsewhere())
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
    fn run_as_keeper(&self, call: Call) -> RunFuture {
        self.run(call)
    }

    /// As [`run`](Self::run), for calls that replicas are to confirm. What is in the way of asking them is an error before the
    /// script runs, and a task that waits for them holds up no other task's calls.
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

    /// Sets the listener to changes of the keys that are [watched](Self::watch).
    fn on_change(&self, _hook: ChangeHook) {}

    /// Has the next change of each of these keys told, once, by the hook of [`on_change`](Self::on_change): at least when the key or
    /// an element of it goes, and not when scripts that were run [apart](Self::run_as_keeper) change it. Those scripts may end the
    /// watching, so keys are watched anew after each of them. All keys are of one slot.
    ///
    /// Answers how many of the keys exist, and `None` where changes are not told, as here. Called on the background thread.
    fn watch(&self, _keys: Vec<Arc<[u8]>>) -> WatchFuture {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// How often another server has taken the keyspace over. After each time, and after telling so by the hook of
    /// [`on_interruption`](Self::on_interruption), every hold is looked at, also those whose last renewal failed.
    fn takeovers(&self) -> u64 {
        0
    }

    /// Whose turn it is to answer for a key: another number as soon as calls go to another server, which may not have what this one has
    /// answered. Read before a call is sent, it tells later whether what that call did is still there to be counted.
    fn incarnation(&self, _key: &[u8]) -> u64 {
        0
    }

    /// Drops every connection over which the answer to a call with this key, the first one of the call, may just have come: it
    /// belongs to another request.
    fn drop_connections(&self, _key: &[u8]) {}

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

    /// Which slot of the store a key is in: one script names keys of one slot only. A single server has one, which is 0; a cluster has those of its protocol.
    fn slot(&self, _key: &[u8]) -> u16 {
        0
    }

    /// Which server holds a slot at present, as a number that is the same for slots of one server. Only for spreading work: it
    /// may be another one by the time of a call.
    fn slot_owner(&self, _slot: u16) -> u16 {
        0
    }

    /// One slot of each server that holds keys, for scripts that look at all keys of a server.
    fn slot_of_each_server(&self) -> Vec<u16> {
        vec![0]
    }

    /// Runs a script without keys at the server that holds this slot.
    fn run_at(&self, _slot: u16, call: Call) -> RunFuture {
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

    /// The process of the one server behind it, where that is known by now: two addresses can be one server.
    fn process(&self) -> Option<String> {
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

    /// What is wrong with the servers at this moment: the part of [`diagnose`](Self::diagnose) that is cheap, changes nothing, and may
    /// change from one minute to the next.
    fn trouble(&self) -> DiagnoseFuture {
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

/// The answer of a store that has its scripts built in.
pub(super) fn no_functions(store: &str) -> LoadFuture {
    let error = Error::new(ErrorKind::InvalidOption, format!("{store} has no functions to load"));
    Box::pin(std::future::ready(Err(Fault::NotSent(error))))
}
