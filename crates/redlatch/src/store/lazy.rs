//! A store that its first call opens.
//!
//! Opening is a job of the background thread, so a caller that goes away ends nothing, and callers that come meanwhile share the
//! attempt. One that fails is told to those who waited for it as *nothing was sent*; the next call makes another.

use std::{
    os::fd::OwnedFd,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use futures_util::FutureExt;
use tokio::runtime::Handle;

use super::{
    AckedFuture, Arg, Call, ChangeHook, DiagnoseFuture, Fault, Listener, ListenersFuture, LoadFuture,
    PUBLISH_LATER, RunFuture, Store, SubscribeFuture, WatchFuture, open, slot_of,
};
use crate::{
    acl::Kind,
    config::{Config, url::StoreUrl},
    error::{Error, ErrorKind},
    latest,
    replica_ack::ReplicaCount,
};

type Hook = Arc<dyn Fn() + Send + Sync>;
type Opening = latest::Receiver<Option<Result<Arc<dyn Store>, Error>>>;

pub(crate) struct LazyStore(Arc<Shared>);

struct Shared {
    url: StoreUrl,
    config: Config,
    background: Handle,
    opened: OnceLock<Arc<dyn Store>>,
    state: Mutex<State>,
    /// Held once more by each call that waits for the store: connections must go on being watched until it has its answer.
    calls: Arc<()>,
}

#[derive(Default)]
struct State {
    opening: Option<Opening>,
    hook: Option<Hook>,
    change_hook: Option<ChangeHook>,
    closed: bool,
}

impl LazyStore {
    /// Nothing is connected, read or started yet.
    pub(crate) fn new(url: StoreUrl, config: &Config, background: &Handle) -> Self {
        LazyStore(Arc::new(Shared {
            url,
            config: config.clone(),
            background: background.clone(),
            opened: OnceLock::new(),
            state: Mutex::default(),
            calls: Arc::default(),
        }))
    }

    /// Does something with the store, at once if it is open.
    fn with<T>(&self, work: impl FnOnce(Arc<dyn Store>) -> Pending<T> + Send + 'static) -> Pending<T>
    where
        T: Send + 'static,
    {
        if let Some(store) = self.0.opened.get() {
            return work(store.clone());
        }
        let shared = self.0.clone();
        let under_way = self.0.calls.clone();
        Box::pin(async move {
            let outcome = work(shared.open().await?).await;
            drop(under_way);
            outcome
        })
    }
}

type Pending<T> = std::pin::Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'static>>;

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(self: Arc<Self>) -> Result<Arc<dyn Store>, Fault> {
        let opening = match self.opening() {
            Ok(opening) => opening,
            Err(store) => return Ok(store),
        };
        let outcome = opening.wait_for(Option::is_some).await;
        match outcome {
            Ok(Some(outcome)) => outcome.map_err(Fault::NotSent),
            _ => Err(Fault::NotSent(closed())),
        }
    }

    /// The attempt that is under way, or the store if one has succeeded.
    fn opening(self: &Arc<Self>) -> Result<Opening, Arc<dyn Store>> {
        let mut state = self.state();
        if let Some(store) = self.opened.get() {
            return Err(store.clone());
        }
        if let Some(opening) = &state.opening {
            return Ok(opening.clone());
        }
        let (tell, opening) = latest::channel(None);
        if state.closed {
            tell.set(Some(Err(closed())));
            return Ok(opening);
        }
        let shared = self.clone();
        self.background.spawn(async move {
            // The next call makes another attempt, also after one that ended with a panic, of the program's log for instance.
            let opening = AssertUnwindSafe(open(&shared.config, &shared.background)).catch_unwind().await;
            let outcome = opening.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Engine, "a panic ended the attempt to open the store"))
            });
            tell.set(Some(shared.settle(outcome)));
        });
        state.opening = Some(opening.clone());
        Ok(opening)
    }

    fn settle(&self, outcome: Result<Arc<dyn Store>, Error>) -> Result<Arc<dyn Store>, Error> {
        let mut state = self.state();
        state.opening = None;
        let store = outcome?;
        if state.closed {
            store.close();
            return Err(closed());
        }
        if let Some(hook) = state.hook.take() {
            store.on_interruption(hook);
        }
        if let Some(hook) = state.change_hook.take() {
            store.on_change(hook);
        }
        Ok(self.opened.get_or_init(|| store).clone())
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client was shut down")
}

/// A call that was put together before the store was open, with the command that is used there.
fn prepared(mut call: Call, store: &dyn Store) -> Call {
    for arg in &mut call.args {
        if matches!(arg, Arg::Static(PUBLISH_LATER)) {
            *arg = Arg::Static(store.publish_command());
        }
    }
    call
}

impl Store for LazyStore {
    fn run(&self, call: Call) -> RunFuture {
        call.waits_for_connection();
        self.with(move |store| {
            if !call.goes_on() {
                return Box::pin(std::future::ready(Err(Fault::NotSent(Call::given_up()))));
            }
            store.run(prepared(call, &*store))
        })
    }

    fn run_as_keeper(&self, call: Call) -> RunFuture {
        self.with(move |store| store.run_as_keeper(prepared(call, &*store)))
    }

    fn run_acked(&self, call: Call, count: ReplicaCount, must: bool) -> AckedFuture {
        self.with(move |store| store.run_acked(prepared(call, &*store), count, must))
    }

    fn run_at(&self, slot: u16, call: Call) -> RunFuture {
        self.with(move |store| store.run_at(slot, prepared(call, &*store)))
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        self.with(move |store| store.subscribe(channel, listener))
    }

    fn ready(&self) -> LoadFuture {
        self.with(|store| store.ready())
    }

    fn tick(&self, now_ms: u64) {
        if let Some(store) = self.0.opened.get() {
            store.tick(now_ms);
        }
    }

    fn on_interruption(&self, hook: Hook) {
        let mut state = self.0.state();
        match self.0.opened.get() {
            Some(store) => store.on_interruption(hook),
            None => state.hook = Some(hook),
        }
    }

    fn on_change(&self, hook: ChangeHook) {
        let mut state = self.0.state();
        match self.0.opened.get() {
            Some(store) => store.on_change(hook),
            None => state.change_hook = Some(hook),
        }
    }

    fn watch(&self, keys: Vec<Arc<[u8]>>) -> WatchFuture {
        self.with(move |store| store.watch(keys))
    }

    fn takeovers(&self) -> u64 {
        self.0.opened.get().map_or(0, |store| store.takeovers())
    }

    fn incarnation(&self, key: &[u8]) -> u64 {
        self.0.opened.get().map_or(0, |store| store.incarnation(key))
    }

    fn drop_connections(&self, key: &[u8]) {
        if let Some(store) = self.0.opened.get() {
            store.drop_connections(key);
        }
    }

    fn is_waiting(&self) -> bool {
        Arc::strong_count(&self.0.calls) > 1 || self.0.opened.get().is_some_and(|store| store.is_waiting())
    }

    fn own_receivers(&self, channel: &[u8]) -> i64 {
        self.0.opened.get().map_or(0, |store| store.own_receivers(channel))
    }

    fn listeners(&self, channels: Vec<Arc<[u8]>>) -> ListenersFuture {
        self.with(move |store| store.listeners(channels))
    }

    fn load_functions(&self) -> LoadFuture {
        self.with(|store| store.load_functions())
    }

    fn slot(&self, key: &[u8]) -> u16 {
        match (self.0.opened.get(), &self.0.url) {
            (Some(store), _) => store.slot(key),
            (None, StoreUrl::Cluster(_)) => slot_of(key),
            (None, _) => 0,
        }
    }

    fn slot_owner(&self, slot: u16) -> u16 {
        self.0.opened.get().map_or(0, |store| store.slot_owner(slot))
    }

    fn slot_of_each_server(&self) -> Vec<u16> {
        self.0.opened.get().map_or_else(|| vec![0], |store| store.slot_of_each_server())
    }

    fn outlives(&self, owner: &str) {
        if let Some(store) = self.0.opened.get() {
            store.outlives(owner);
        }
    }

    fn lifeline(&self) -> Option<OwnedFd> {
        self.0.opened.get().and_then(|store| store.lifeline())
    }

    fn place(&self) -> Option<String> {
        self.0.opened.get().map_or_else(|| Some(self.0.url.to_string()), |store| store.place())
    }

    fn process(&self) -> Option<String> {
        self.0.opened.get().and_then(|store| store.process())
    }

    fn publish_command(&self) -> &'static str {
        self.0.opened.get().map_or(PUBLISH_LATER, |store| store.publish_command())
    }

    fn describe(&self) -> String {
        self.0.opened.get().map_or_else(|| self.0.url.to_string(), |store| store.describe())
    }

    fn diagnose(&self) -> DiagnoseFuture {
        self.with(|store| store.diagnose())
    }

    fn trouble(&self) -> DiagnoseFuture {
        self.with(|store| store.trouble())
    }

    fn try_rights(&self, kinds: &[Kind], prefix: &str) -> DiagnoseFuture {
        let (kinds, prefix) = (kinds.to_vec(), prefix.to_owned());
        self.with(move |store| store.try_rights(&kinds, &prefix))
    }

    fn close(&self) {
        let mut state = self.0.state();
        state.closed = true;
        // Those who wait for the attempt are told when it has ended; what it opens is closed.
        (state.hook, state.change_hook) = (None, None);
        drop(state);
        if let Some(store) = self.0.opened.get() {
            store.close();
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_part_of_the_trait_is_passed_on() {
        // What is left to its default would answer for a store that is there.
        let of = |text: &str, from: &str| -> Vec<String> {
            let text = text.split_once(from).unwrap().1.split_once("\n}\n").unwrap().0;
            let name = |line: &str| Some(line.strip_prefix("    fn ")?.split_once('(')?.0.to_owned());
            text.lines().filter_map(name).collect()
        };
        let wanted = of(include_str!("backend.rs"), "pub trait Store");
        let passed = of(include_str!("lazy.rs"), "impl Store for LazyStore");
        assert!(wanted.len() > 20, "{wanted:?}");
        let missing: Vec<_> = wanted.iter().filter(|name| !passed.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
