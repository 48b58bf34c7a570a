//! The engine behind all primitives: acquiring, waiting, renewing, releasing, and finishing what was interrupted.
//!
//! What is held for a lease is a face and a [`Recipe`] (`recipes/`). What has no holds (a latch, a semaphore, a rate limiter) is a face that contends
//! by itself ([`contest::Contender`]). Neither has waiting or renewing code of its own.

pub(crate) mod acquire;
mod acquire_reusable;
mod acquirer;
pub(crate) mod adopt;
pub(crate) mod ask_gate;
pub(crate) mod batch;
mod batch_status;
pub(crate) mod contest;
mod declare;
mod downgrade;
pub(crate) mod flight;
pub(crate) mod fork_safe;
pub(crate) mod keeper;
mod keeper_alarm;
pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod lease;
mod listen_for_line;
mod loss;
pub(crate) mod loss_reason;
mod move_hold;
pub(crate) mod multi_process;
pub(crate) mod multi_subscription;
pub(crate) mod observing;
mod outage;
pub(crate) mod owner_claims;
pub(crate) mod presence;
pub(crate) mod reenter;
pub(crate) mod release;
mod release_one;
mod renewal;
mod replica_confirm;
mod request;
mod request_ids;
mod send;
pub(crate) mod send_once;
mod shutdown;
mod start_thread;
mod task_liveness;
#[cfg(redlatch_shuttle)]
pub(crate) mod threads;
mod undo;
mod upgrade;
pub(crate) mod wait;
mod watch_awaited_names;
mod watch_holds;

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

pub use self::request::Wait;
use self::{
    ask_gate::Gates,
    keeper::Keeper,
    lanes::{Lanes, TurnLimits},
    lease::{HeldLease, LastInterruption, SentAt},
    owner_claims::Owners,
};
pub(crate) use self::{
    request::{Grant, Request},
    send::Numbers,
};
use crate::{
    config::{Config, TURN_PASSES_MAX},
    error::{Error, ErrorKind},
    fork::{self, OfProcess, Successor, Successors},
    keys::Keys,
    owner::{Identity, Owner},
    panic_safe::Signal,
    store::{self, Store},
};

/// What all handles and guards of one client share.
pub(crate) struct Core {
    me: Weak<Core>,
    pub(crate) id: Arc<str>,
    identity: Identity,
    /// The numbers of its requests.
    request_ids: request_ids::RequestIds,
    pub(crate) config: Config,
    pub(crate) origin: Origin,
    pub(crate) store: OfProcess<Arc<dyn Store>>,
    /// Whether the server wants every key of a script declared.
    strictness: Arc<declare::Strictness>,
    outages: outage::Outages,
    presence: presence::PresenceState,
    pub(crate) lanes: OfProcess<Lanes>,
    /// Who may act for owners that can be used again.
    pub(crate) owners: OfProcess<Arc<Owners>>,
    gates: OfProcess<Gates>,
    pub(crate) keeper: OfProcess<Keeper>,
    watched: OfProcess<watch_holds::Watched>,
    awaited: OfProcess<watch_awaited_names::AwaitedNames>,
    /// Holds that were last seen before this moment have to be looked at, because a connection ended or another server took over.
    interrupted_ms: AtomicU64,
    closed: AtomicBool,
    /// Its time for shutting down is over, and its connections were closed: nothing is repeated any more.
    disconnected: AtomicBool,
    /// When trouble with the server was last logged for those who wait; 0 for never.
    trouble_told_ms: AtomicU64,
    /// Nobody has had an answer since then, as far as is known.
    in_trouble: AtomicBool,
    pub(crate) closing: Signal,
    /// How many blocking clients and guards there are.
    pub(crate) blocking_handles: AtomicUsize,
    /// The process that the client belongs to.
    pid: AtomicU64,
    /// Its successors in forked children.
    successors: Successors<Arc<Core>>,
    /// The ids of those that this one succeeds.
    ancestor_ids: Vec<Arc<str>>,
}

/// How a client came to its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The server was reached before the client was there.
    Connected,
    /// The server need not be there before the first call.
    Lazy,
    /// The store was given, and can be made by nobody else.
    Given,
}

impl Core {
    pub(crate) fn new(config: Config, origin: Origin, store: Arc<dyn Store>, keeper: Keeper) -> Arc<Core> {
        Self::of(config, origin, store, keeper, Vec::new())
    }

    fn of(
        config: Config,
        origin: Origin,
        store: Arc<dyn Store>,
        keeper: Keeper,
        ancestor_ids: Vec<Arc<str>>,
    ) -> Arc<Core> {
        let turn_limits =
            TurnLimits { turn_ms_max: config.turn_time_max.as_millis() as u64, passes_max: TURN_PASSES_MAX };
        let strictness = declare::Strictness::of(&config.url);
        let clock = config.clock.clone();
        let owners = Owners::new(move || clock.boot_ms());
        let outages = outage::Outages::new(config.clock.clone());
        let identity = config.identity.clone().unwrap_or_default();
        let now_ms = config.clock.boot_ms();
        let core = Arc::new_cyclic(|me| Core {
            me: me.clone(),
            id: identity.id.clone(),
            identity,
            request_ids: request_ids::RequestIds::default(),
            config,
            origin,
            store: OfProcess::new(store),
            strictness: Arc::new(strictness),
            outages,
            presence: presence::PresenceState::new(now_ms),
            lanes: OfProcess::new(Lanes::new(turn_limits, keeper.keeper_alarm().clone(), owners.clone())),
            owners: OfProcess::new(owners),
            gates: OfProcess::new(Gates::default()),
            keeper: OfProcess::new(keeper),
            watched: OfProcess::new(watch_holds::Watched::default()),
            awaited: OfProcess::new(watch_awaited_names::AwaitedNames::default()),
            interrupted_ms: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            disconnected: AtomicBool::new(false),
            trouble_told_ms: AtomicU64::new(0),
            in_trouble: AtomicBool::new(false),
            closing: Signal::default(),
            blocking_handles: AtomicUsize::new(0),
            pid: AtomicU64::new(fork::here()),
            successors: Successors::new(),
            ancestor_ids,
        });
        let weak = Arc::downgrade(&core);
        core.store.on_interruption(Arc::new(move || {
            if let Some(core) = weak.upgrade()
                && !core.is_forked()
            {
                // What was sent in this very millisecond may have been sent before.
                core.interrupted_ms.fetch_max(core.now_ms() + 1, Ordering::SeqCst);
                core.observe(|| crate::observe::Event::Interrupted);
                core.awaited.look_at_all();
                core.keeper.recheck();
            }
        }));
        let weak = Arc::downgrade(&core);
        core.store.on_change(Arc::new(move |change| {
            if let Some(core) = weak.upgrade()
                && !core.is_forked()
            {
                core.told(change);
            }
        }));
        core.keeper.serve(&core);
        core
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.config.clock.boot_ms()
    }

    /// A hold of that name may be passed on without asking only if it was seen since this moment, in this incarnation.
    pub(crate) fn last_interruption(&self, keys: &Keys) -> LastInterruption {
        LastInterruption {
            since_ms: self.interrupted_ms.load(Ordering::SeqCst),
            incarnation: self.store.incarnation(&keys.key),
        }
    }

    /// A request about that name is given to the store next. If the store has to connect first, the time that takes counts against the lease.
    pub(crate) fn sent_at(&self, keys: &Keys) -> SentAt {
        SentAt { at_ms: self.now_ms(), incarnation: self.store.incarnation(&keys.key) }
    }

    /// Has a hold looked at whose last sight is older than the last interruption: it may have come to the lanes when their
    /// leases had just been looked through.
    pub(crate) fn recheck_if_unseen_since_interruption(&self, lease: &HeldLease) {
        if !lease.is_seen_since(self.last_interruption(&lease.keys)) {
            self.keeper.recheck();
        }
    }

    pub(crate) fn fresh_owner(&self) -> Owner {
        Owner::new(&self.id, self.fresh_number())
    }

    pub(crate) fn fresh_number(&self) -> i64 {
        self.identity.fresh_number()
    }

    /// Whether this process inherited the client over `fork()`: its threads and sockets belong to the parent, and its locks may
    /// be held by threads of the parent for ever.
    pub(crate) fn is_forked(&self) -> bool {
        fork::here() != self.pid()
    }

    /// The process that it belongs to.
    pub(crate) fn pid(&self) -> u64 {
        self.pid.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Whether there is no sense in asking once more.
    fn is_disconnected(&self) -> bool {
        self.disconnected.load(Ordering::SeqCst)
    }

    /// The core that this process works with: itself, or in a forked child its successor there. Where none can be made it is
    /// itself, which [refuses](Self::check_open).
    pub(crate) fn for_this_process(self: &Arc<Self>) -> &Arc<Core> {
        let mut core = self;
        while core.is_forked() {
            match core.successors.find(|| core.anew()) {
                Ok(Some(Successor::Own(own))) => return own,
                Ok(Some(Successor::Ancestor(nearer))) => core = nearer,
                Ok(None) => return self,
                Err(error) => {
                    tracing::warn!(%error, "a client that was inherited over fork() could not be made anew");
                    return self;
                }
            }
        }
        core
    }

    /// The same client for this process: a background thread, connections and an identity of its own.
    fn anew(&self) -> Result<Arc<Core>, Error> {
        if self.is_closed() {
            return Err(self.closed_error());
        }
        if self.origin == Origin::Given {
            return Err(forked().remedy("connect a new client in the child process"));
        }
        let keeper = Keeper::start()?;
        let config = self.config.clone().of_client(keeper.call_hook());
        let store = store::open_lazily(&config, keeper.handle())?;
        let ancestor_ids = self.ancestor_ids.iter().chain([&self.id]).cloned().collect();
        Ok(Self::of(config, self.origin, store, keeper, ancestor_ids))
    }

    /// An error for what belongs to another process.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.is_forked() { Err(forked()) } else { Ok(()) }
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            return Err(self.closed_error());
        }
        self.check_process().map_err(|error| start_thread::no_thread().unwrap_or(error))
    }

    /// Whether an owner is this client's own.
    pub(crate) fn has_made(&self, owner: &Owner) -> bool {
        owner.field().strip_prefix(&*self.id).is_some_and(|rest| rest.starts_with(':'))
    }

    /// Refuses an owner that this process has inherited: the parent holds under it, and would seem to enter again. One that another
    /// client made is shared from here on.
    pub(crate) fn check_owner(&self, owner: &Owner) -> Result<(), Error> {
        let of = |id: &Arc<str>| owner.field().strip_prefix(&**id).is_some_and(|rest| rest.starts_with(':'));
        if self.has_made(owner) {
            return Ok(());
        }
        // Also as text: the parent does not know that a child has written its owner out. A client that was made in the child knows no ids of ancestors,
        // and text tells it nothing.
        if !self.ancestor_ids.iter().any(of) && !owner.is_inherited() {
            if owner.is_foreign() {
                return Ok(());
            }
            // Another client's of this process, which does not know how often this one holds, nor this one of the other.
            owner.mark_reusable().becomes_multi_process();
            return Ok(());
        }
        Err(Error::new(ErrorKind::Forked, "the owner was made before fork() and is the parent process's")
            .remedy("make an owner in the child process"))
    }

    pub(crate) fn closed_error(&self) -> Error {
        Error::new(ErrorKind::Closed, "the client was shut down")
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.is_forked() {
            self.store.close();
        }
    }
}

fn forked() -> Error {
    Error::new(ErrorKind::Forked, "it was made before fork() and belongs to the parent process")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::{Client, ErrorKind};

    // With real processes: tests/fork.rs.
    #[tokio::test]
    async fn row_36_what_is_inherited_is_not_touched() {
        let (parent, other) =
            (Client::connect("memory:fork").await.unwrap(), Client::connect("memory:fork").await.unwrap());
        let guard = parent.lock("inherited").lock().await.unwrap();
        // A child sees the same memory under another process number.
        let own = guard.core().pid.swap(0, Ordering::Relaxed);
        assert!(!guard.is_valid());
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Forked);
        let core = guard.core().clone();
        drop(guard);
        assert_eq!(core.keeper.jobs(), 0, "a guard that the child drops releases nothing");
        assert!(other.lock("inherited").is_locked().await.unwrap());
        core.pid.store(own, Ordering::Relaxed);
    }
}
