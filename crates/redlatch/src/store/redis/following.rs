//! A store whose one master may be another server tomorrow.
//!
//! A [`Finder`] knows who the master is. One task on the background thread asks at short intervals, and at once
//! when there are news or a call has failed in a way that a new master would explain. When the master has changed, the
//! connections to the old one are cut, so that no answer of it is believed any more, whether the new one can be reached from here
//! or not; subscriptions move; waiters and holders look again at once. Who the master is, is decided in `succession.rs` only.

mod calls;
mod first;
mod replica;

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::AbortHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use first::First;

use super::{
    Dial,
    finder::{Finder, Look},
    hub::Hub,
    lasting::spawn_lasting,
    listed::Listed,
    mastership::Mastership,
    node::{InterruptionHooks, Node, SearchCount},
    replicated::Replicated,
    role::{self, Role},
    role_of::role_of,
    sentinel::SentinelSet,
    server_process,
    succession::{Claim, Said, Verdict},
    trial::Messages,
};
use crate::{
    acl::Kind,
    config::{
        Config,
        url::{Nodes, Sentinels, Server},
    },
    error::{Error, ErrorKind},
    jitter::jittered,
    latest,
    replica_ack::ReplicaCount,
    store::{
        AckedFuture, Call, ChangeHook, DiagnoseFuture, Fault, Listener, ListenersFuture, LoadFuture,
        RunFuture, Store, SubscribeFuture, WatchFuture,
    },
};

/// How often the master's address is asked for without any reason to: the safety net under lost news. As Redisson's
/// `scanInterval`.
const LOOK_INTERVAL: Duration = Duration::from_millis(1_000);
/// The pause after a look, however many calls fail meanwhile. It is doubled while failing calls ask for looks that find nothing
/// new: an outage must not become a flood for those who are asked. News end it.
const LOOK_PAUSE_MIN: Duration = Duration::from_millis(25);
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(250);
/// By how much the pause grows with each try to reach a new master that does not accept yet.
const LOOK_PAUSE_STEP: Duration = Duration::from_millis(5);
/// How long one look may take. It is shorter than connecting may take, which goes on behind it.
const LOOK_TIME_MAX: Duration = Duration::from_millis(1_000);
/// How long a master may take to tell the history of its data before the next look asks again: one that hangs must not delay looks.
const HISTORY_TIME_MAX: Duration = Duration::from_millis(250);
/// How long what was said of the replicas counts, so that a hundred grants a second do not ask a hundred times.
const LISTED_TIME: Duration = Duration::from_millis(1_000);
/// On how many masters one call is tried, as long as nothing of it has run.
const MASTERS_TRIED_MAX: usize = 3;

pub(crate) struct FollowingStore {
    shared: Arc<Shared>,
    follower: AbortHandle,
}

struct Shared {
    finder: Arc<dyn Finder>,
    /// How to log in to the master, wherever it is.
    dial: Dial,
    config: Config,
    background: Handle,
    master: Mastership,
    /// The master has been reached since it became that; and a try to reach it was in vain before.
    reached: AtomicBool,
    in_vain: AtomicBool,
    /// How often holders and waiters were told to look at a new master.
    takeovers: AtomicU64,
    place: String,
    hub: Arc<Hub>,
    /// What the master's connections tell when they end.
    ends: Arc<InterruptionHooks>,
    interruption: Arc<InterruptionHooks>,
    look: Arc<Look>,
    looked: latest::Receiver<u64>,
    searching: SearchCount,
    /// How many replicas a master had, and when that was said.
    listed: Mutex<Option<(u64, Instant, Listed)>>,
    /// The task that has this lock asks for that number; the others wait for what it is told.
    listing: tokio::sync::Mutex<()>,
    closed: AtomicBool,
}

impl FollowingStore {
    /// The master that sentinels watch over.
    pub(crate) async fn of_sentinels(
        sentinels: &Sentinels,
        config: &Config,
        background: &Handle,
    ) -> Result<Arc<dyn Store>, Error> {
        let finder = SentinelSet::new(sentinels, config, background)?;
        Self::open(Arc::new(finder), &sentinels.sentinels, &sentinels.access, config, background).await
    }

    /// The one of several servers that says that it is the master.
    pub(crate) async fn of_replicated(
        nodes: &Nodes,
        config: &Config,
        background: &Handle,
    ) -> Result<Arc<dyn Store>, Error> {
        let finder = Replicated::new(nodes, config, background)?;
        Self::open(Arc::new(finder), nodes, &nodes.access, config, background).await
    }

    async fn open(
        finder: Arc<dyn Finder>,
        asked: &Nodes,
        access: &crate::config::url::Access,
        config: &Config,
        background: &Handle,
    ) -> Result<Arc<dyn Store>, Error> {
        let Some(addr) = asked.addrs.first().cloned() else {
            return Err(Error::new(ErrorKind::InvalidUrl, "the store URL names no server to ask"));
        };
        let dial = Dial::new(Server { addr, access: access.clone() }, config, background)?
            .master_only()
            .telling_changes();
        let ends = Arc::new(InterruptionHooks::default());
        let first = First {
            finder: finder.clone(),
            dial: dial.clone(),
            config: config.clone(),
            background: background.clone(),
            ends: ends.clone(),
        };
        // On the background thread, which the connections to those who are asked belong to.
        let (memory, node) = match background.spawn(first.find()).await {
            Ok(outcome) => outcome.inspect_err(|_| finder.close())?,
            Err(_) => return Err(Error::new(ErrorKind::Engine, "the background thread has ended")),
        };
        node.check_functions().await.map_err(|failure| {
            finder.close();
            Fault::from(failure).into_error()
        })?;
        let look = Arc::new(Look::default());
        let interruption = Arc::new(InterruptionHooks::default());
        let (asked, told) = (look.clone(), interruption.clone());
        ends.set(Arc::new(move || {
            asked.ask();
            told.ring();
        }));
        let (done, looked) = latest::channel(0);
        let shared = Arc::new(Shared {
            dial,
            config: config.clone(),
            background: background.clone(),
            takeovers: AtomicU64::new(0),
            place: finder.place(),
            hub: Arc::new(Hub::start(node.dial().clone(), background)),
            master: Mastership::new(memory, node),
            reached: AtomicBool::new(true),
            in_vain: AtomicBool::new(false),
            ends,
            interruption,
            look,
            looked,
            searching: SearchCount::default(),
            listed: Mutex::default(),
            listing: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
            finder,
        });
        shared.finder.listen(&shared.look);
        let (store, look, done) = (Arc::downgrade(&shared), shared.look.clone(), Arc::new(done));
        let follower = spawn_lasting(background, "the look for the master", move || {
            follow(store.clone(), look.clone(), done.clone())
        });
        Ok(Arc::new(FollowingStore { shared, follower }))
    }
}

/// Looks who the master is, as long as there is a store.
async fn follow(store: Weak<Shared>, look: Arc<Look>, done: Arc<latest::Sender<u64>>) {
    let mut candidate = None;
    let mut failures = 0;
    let mut pause = LOOK_PAUSE_MIN;
    loop {
        let Some(shared) = store.upgrade() else { return };
        let number = look.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let ended = Ended { number, done: &done };
        let settled = shared.look(&mut candidate, &mut failures).await;
        drop(shared);
        drop(ended);
        // News, too, may come all the time: each new connection to a source that ends them at once is some.
        let earliest = Instant::now() + jittered(LOOK_PAUSE_MIN);
        if timeout(jittered(pause), look.news.notified()).await.is_ok() {
            pause = LOOK_PAUSE_MIN;
        } else if !settled {
            pause = (pause + LOOK_PAUSE_STEP).min(LOOK_PAUSE_MAX);
        } else {
            tokio::select! {
                biased;
                () = look.news.notified() => pause = LOOK_PAUSE_MIN,
                () = look.wanted.notified() => pause = (pause * 2).min(LOOK_PAUSE_MAX),
                () = sleep(LOOK_INTERVAL) => pause = LOOK_PAUSE_MIN,
            }
        }
        sleep_until(earliest).await;
    }
}

/// A look that has begun: it ends however it ends, and those who wait are told.
struct Ended<'a> {
    number: u64,
    done: &'a latest::Sender<u64>,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.done.set(self.number);
    }
}

impl Shared {
    fn master(&self) -> Arc<Node> {
        self.master.node()
    }

    /// Looks once. `false`: another server is the master, or about to be, and cannot be reached yet, so the next look should come
    /// soon.
    async fn look(&self, candidate: &mut Option<Arc<Node>>, failures: &mut u32) -> bool {
        let limit = LOOK_TIME_MAX.min(self.config.connect_timeout);
        let said = match self.finder.clone().find(self.master.memory(), limit).await {
            Ok(said) => said,
            Err(error) => {
                self.master.hear_nobody();
                *failures += 1;
                if *failures == 1 {
                    tracing::warn!(%error, "who is the master is not known at present");
                }
                return true;
            }
        };
        *failures = 0;
        match self.master.judge(&said) {
            Verdict::Stays => {
                *candidate = None;
                self.is_master_still(&said, limit).await;
                self.is_same_master().await;
                self.reach(limit).await
            }
            Verdict::Nobody => {
                *candidate = None;
                self.vacate();
                true
            }
            // What the old one still answers is not believed from here on, reachable or not.
            Verdict::Is(claim) => {
                let node = self.node_of(&claim, candidate.take());
                self.move_to(&claim, node);
                self.reach(limit).await
            }
            Verdict::Becomes(claim) => {
                let node = self.node_of(&claim, candidate.take());
                match timeout(limit, node.link()).await {
                    Ok(Ok(_)) => {
                        self.move_to(&claim, node);
                        self.reach(limit).await
                    }
                    outcome => {
                        *candidate = Some(node);
                        if let Ok(Err(fault)) = outcome {
                            tracing::debug!(error = %fault, "the next master does not accept yet");
                        }
                        false
                    }
                }
            }
        }
    }

    /// The connections to one that claims, kept between looks so that a slow one need not begin anew with each.
    fn node_of(&self, claim: &Claim, candidate: Option<Arc<Node>>) -> Arc<Node> {
        candidate.filter(|node| *node.dial().addr() == claim.addr).unwrap_or_else(|| {
            let dial = Arc::new(self.dial.at(claim.addr.clone()));
            Node::new(dial, &self.config, &self.background, self.ends.clone())
        })
    }

    /// A master that was promised, of which nobody that is heard has told, or beside which another one is named by the same right, is asked itself whether it is one: others
    /// may have made it a replica again. Then the server that it copies is the master, if a source says so, too.
    async fn is_master_still(&self, said: &Said, limit: Duration) {
        if !self.master.is_promised() && !self.master.is_abandoned(said) && !self.master.has_rival(said) {
            return;
        }
        let node = self.master();
        let (answers, is_replica) = match timeout(limit, role_of(&node)).await {
            Ok(Ok(role)) => (true, role == Role::Replica),
            // A new connection is refused by the first look at it.
            Ok(Err(error)) => {
                let is_replica = error.kind() == ErrorKind::ReadOnly;
                (is_replica, is_replica)
            }
            Err(_) => (false, false),
        };
        if let Some(claim) = self.master.hear_promised(answers, said) {
            let node = self.node_of(&claim, None);
            self.move_to(&claim, node);
        }
        if !is_replica {
            return;
        }
        let of = node.dial().addr();
        let master = replica::master_of(of, &self.dial, &self.config, &self.background, limit).await;
        if let Some(claim) = master.and_then(|master| self.master.follow(of, &master, said)) {
            let node = self.node_of(&claim, None);
            self.move_to(&claim, node);
        }
    }

    /// Where sentinels do not tell epochs, a master that lost its place between two looks and has got it back is the same to them. Its
    /// data are not, so it is asked for their history.
    async fn is_same_master(&self) {
        if !self.master.is_uncounted() {
            return;
        }
        let node = self.master();
        let asked = timeout(HISTORY_TIME_MAX, node.send(&role::question(role::QUESTIONS[1]))).await;
        let Ok(Ok(answer)) = asked else { return };
        if role::of(&answer) == Some(Role::Replica) {
            return;
        }
        if let Some(history) = role::history(&answer)
            && let Verdict::Is(claim) = self.master.hear_of(node.dial().addr(), &history)
        {
            let node = self.node_of(&claim, None);
            self.move_to(&claim, node);
        }
    }

    /// Whether the master can be reached. Holders and waiters, who were told when it became the master, are told again if it could
    /// not be reached then.
    async fn reach(&self, limit: Duration) -> bool {
        if self.reached.load(Ordering::SeqCst) {
            return true;
        }
        let node = self.master();
        match timeout(limit, node.link()).await {
            Ok(Ok(_)) => {
                self.reached.store(true, Ordering::SeqCst);
                if self.in_vain.swap(false, Ordering::SeqCst) {
                    self.takeovers.fetch_add(1, Ordering::SeqCst);
                    self.interruption.ring();
                }
                true
            }
            outcome => {
                self.in_vain.store(true, Ordering::SeqCst);
                if let Ok(Err(fault)) = outcome {
                    tracing::debug!(error = %fault, "the new master does not accept yet");
                }
                false
            }
        }
    }

    fn move_to(&self, claim: &Claim, node: Arc<Node>) {
        let dial = node.dial().clone();
        let reached = node.ready_link().is_some();
        let Some(old) = self.master.install(claim, node) else { return };
        self.reached.store(reached, Ordering::SeqCst);
        let (from, to) = (old.dial().addr().clone(), dial.addr().clone());
        self.succeed(dial, &old);
        // Last, because a program's log may panic.
        tracing::info!(%from, %to, "the master has changed");
    }

    /// No server counts. Each call is told why, by a node that connects to nobody.
    fn vacate(&self) {
        let masters = self.master.claimants();
        let reason = first::undecided(&self.finder.describe(), &masters);
        let dial = Arc::new(self.dial.clone().refusing(reason));
        let node = Node::new(dial.clone(), &self.config, &self.background, self.ends.clone());
        let Some(old) = self.master.vacate(node) else { return };
        // Looks come in their usual time until one server counts again.
        self.reached.store(true, Ordering::SeqCst);
        self.succeed(dial, &old);
        let masters = masters.join(", ");
        tracing::error!(%masters, "it cannot be told which server is the master, so none is used until it can");
    }

    /// Another one has the place of this one.
    fn succeed(&self, dial: Arc<Dial>, old: &Node) {
        self.in_vain.store(false, Ordering::SeqCst);
        self.takeovers.fetch_add(1, Ordering::SeqCst);
        self.hub.redirect(dial);
        // What is under way gets an unknown outcome, and is asked again of the new master.
        old.close();
        if self.closed.load(Ordering::SeqCst) {
            self.master().close();
            return;
        }
        self.interruption.ring();
    }
}

impl Store for FollowingStore {
    fn run(&self, call: Call) -> RunFuture {
        let shared = self.shared.clone();
        let (mastership, node) = shared.master.present();
        let first = Box::pin(node.run(call.clone()));
        if let Some(incarnation) = call.in_incarnation {
            return Box::pin(async move { shared.ask_in(incarnation, mastership, first).await });
        }
        Box::pin(
            async move { shared.follow(mastership, first, |node, _| Box::pin(node.run(call.clone()))).await },
        )
    }

    fn run_acked(&self, call: Call, count: ReplicaCount, must: bool) -> AckedFuture {
        let shared = self.shared.clone();
        let (mastership, node) = shared.master.present();
        let first = Box::pin(shared.run_acked_at(&node, mastership, call.clone(), count, must));
        Box::pin(async move {
            let again = |node: &Arc<Node>, mastership| {
                Box::pin(shared.run_acked_at(node, mastership, call.clone(), count, must))
            };
            shared.follow(mastership, first, again).await
        })
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        self.shared.hub.subscribe(channel, listener)
    }

    fn is_waiting(&self) -> bool {
        self.shared.searching.any() || self.shared.master().is_waiting()
    }

    fn own_receivers(&self, channel: &[u8]) -> i64 {
        self.shared.hub.is_subscribed(channel).into()
    }

    fn listeners(&self, channels: Vec<Arc<[u8]>>) -> ListenersFuture {
        let node = self.shared.master();
        Box::pin(async move { node.listeners(&channels).await })
    }

    fn load_functions(&self) -> LoadFuture {
        let node = self.shared.master();
        Box::pin(async move { Ok(node.load_functions().await?) })
    }

    fn try_rights(&self, kinds: &[Kind], prefix: &str) -> DiagnoseFuture {
        let (node, hub) = (self.shared.master(), self.shared.hub.clone());
        Box::pin(node.try_rights(Messages::of_one_server(hub), kinds.to_vec(), prefix.to_owned()))
    }

    fn takeovers(&self) -> u64 {
        self.shared.takeovers.load(Ordering::SeqCst)
    }

    fn incarnation(&self, _key: &[u8]) -> u64 {
        let (mastership, node) = self.shared.master.present();
        server_process::incarnation(mastership, node.process_number())
    }

    fn drop_connections(&self, _key: &[u8]) {
        self.shared.master().drop_connections();
    }

    fn on_interruption(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        self.shared.interruption.set(hook);
    }

    fn on_change(&self, hook: ChangeHook) {
        self.shared.dial.changes(hook);
    }

    fn watch(&self, keys: Vec<Arc<[u8]>>) -> WatchFuture {
        let node = self.shared.master();
        Box::pin(async move { Ok(node.watch(&keys).await?) })
    }

    fn diagnose(&self) -> DiagnoseFuture {
        let shared = self.shared.clone();
        Box::pin(async move {
            let node = shared.master();
            let asked = shared.finder.clone().diagnose(node.dial().addr().clone());
            // On the background thread, which has the connections to those who are asked.
            let mut findings = shared.background.spawn(asked).await.unwrap_or_default();
            // Why none is used is among what the servers say.
            if node.dial().refusal().is_none() {
                findings.extend(node.diagnose(true).await?);
            }
            Ok(findings)
        })
    }

    fn trouble(&self) -> DiagnoseFuture {
        Box::pin(self.shared.master().trouble())
    }

    fn place(&self) -> Option<String> {
        Some(self.shared.place.clone())
    }

    fn process(&self) -> Option<String> {
        self.shared.master().process()
    }

    fn describe(&self) -> String {
        let (finder, master) = (self.shared.finder.describe(), self.shared.master());
        match master.dial().refusal() {
            Some(_) => format!("{finder}, no master"),
            None => format!("{finder}, master {}", master.dial().addr()),
        }
    }

    fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.follower.abort();
        self.shared.hub.close();
        self.shared.finder.close();
        self.shared.master().close();
    }
}

impl Drop for FollowingStore {
    fn drop(&mut self) {
        self.close();
    }
}
