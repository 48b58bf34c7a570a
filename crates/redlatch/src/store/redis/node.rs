//! One server: its connections, one for each runtime that calls.
//!
//! Each runtime that calls gets a connection whose driver lives on that runtime, so that an uncontended call makes no
//! thread hop; the background thread has its own, so that renewals go on while the user's runtime is busy.

use std::sync::{
    Arc, Mutex, PoisonError, RwLock, Weak,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::TryFutureExt;
use redis::Cmd;
use tokio::runtime::{Handle, Id};
use tokio_util::sync::CancellationToken;

use super::{
    Dial,
    acked::{AckPool, Ready},
    failure::Failure,
    link::Link,
    listed::Listing,
    run::{closed_error, first_try, run_on, without_functions},
    server_process::ServerProcesses,
};
use crate::{
    config::{Config, ScriptMode},
    error::{Error, ErrorKind},
    latest,
    panic_safe::panic_safe,
    replica_ack::ReplicaCount,
    scripts,
    store::{Call, Confirm, Fault, Reply, RunFuture, without_replicas},
};

type Hook = Arc<dyn Fn() + Send + Sync>;
type Dialling = latest::Receiver<Option<Result<Arc<Link>, Error>>>;

/// The listeners to connections that end on their own, and to servers that have become replicas; all servers of a store share one.
#[derive(Default)]
pub(super) struct InterruptionHooks {
    ends: Mutex<Option<Hook>>,
    demotions: Mutex<Option<Hook>>,
}

impl InterruptionHooks {
    pub(super) fn set(&self, hook: Hook) {
        *self.ends.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
    }

    pub(super) fn set_demotions(&self, hook: Hook) {
        *self.demotions.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
    }

    /// The client looks after the locks that it holds.
    pub(super) fn ring(&self) {
        Self::call(&self.ends);
    }

    fn call(hook: &Mutex<Option<Hook>>) {
        let hook = hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook();
        }
    }
}

/// Calls that are on their way to a server which has to be found first. No connection knows of them, and connections must go on
/// being watched until they have one.
#[derive(Default)]
pub(super) struct SearchCount(AtomicUsize);

impl SearchCount {
    /// Counts a call until the value is dropped.
    pub(super) fn begin(&self) -> impl Drop + Send {
        self.0.fetch_add(1, Ordering::Relaxed);
        SearchGuard(&self.0)
    }

    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

struct SearchGuard<'a>(&'a AtomicUsize);

impl Drop for SearchGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) struct Node {
    dial: Arc<Dial>,
    background: Handle,
    script_mode: ScriptMode,
    /// One connection a runtime. The list is short: a process has few runtimes that live at once.
    links: RwLock<Vec<(Id, LinkSlot)>>,
    /// All that are open, also those whose place another one has taken: calls may still be made on them.
    open: Mutex<Vec<Weak<Link>>>,
    interruption: Arc<InterruptionHooks>,
    /// Which process answers here.
    processes: Arc<ServerProcesses>,
    /// The connections on which replicas are waited for.
    ack_pool: Arc<AckPool>,
    closed: CancellationToken,
}

enum LinkSlot {
    Ready(Arc<Link>),
    Connecting(Dialling),
}

/// A runtime that connects. One that goes meanwhile leaves no slot behind.
struct Connecting {
    node: Arc<Node>,
    id: Id,
    has_set_slot: bool,
}

impl Drop for Connecting {
    fn drop(&mut self) {
        if !self.has_set_slot {
            self.node.set_slot(self.id, None);
        }
    }
}

/// Runtimes come and go (tests, blocking calls); slots of those that are gone are dropped above this number.
const LINKS_MAX: usize = 64;

impl Node {
    pub(super) fn new(
        dial: Arc<Dial>,
        config: &Config,
        background: &Handle,
        interruption: Arc<InterruptionHooks>,
    ) -> Arc<Node> {
        // The local engine runs its own scripts only, and has no functions.
        let script_mode = if dial.is_local() { ScriptMode::Eval } else { config.scripts };
        let closed = CancellationToken::new();
        Arc::new_cyclic(|this: &Weak<Node>| {
            let this = this.clone();
            let demoted = move || {
                if let Some(node) = this.upgrade() {
                    node.demoted();
                }
            };
            let processes = Arc::new(ServerProcesses::telling(Box::new(demoted)));
            Node {
                dial: dial.clone(),
                script_mode,
                background: background.clone(),
                links: RwLock::new(Vec::new()),
                open: Mutex::default(),
                interruption,
                ack_pool: AckPool::new(dial, processes.clone(), background, closed.clone()),
                processes,
                closed,
            }
        })
    }

    /// The server has become a replica. What is under way on its connections is answered yet, and nothing else is sent on them: its address
    /// may lead to another server by now, which only a new connection finds.
    fn demoted(&self) {
        let retired: Vec<_> = {
            let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
            links
                .extract_if(.., |(_, slot)| matches!(slot, LinkSlot::Ready(link) if !link.is_usable()))
                .collect()
        };
        // Dropped without the mutex.
        drop(retired);
        InterruptionHooks::call(&self.interruption.demotions);
    }

    pub(super) fn dial(&self) -> &Arc<Dial> {
        &self.dial
    }

    pub(super) fn script_mode(&self) -> ScriptMode {
        self.script_mode
    }

    /// The server's process, where it may be asked for it.
    pub(super) fn process(&self) -> Option<String> {
        self.processes.process()
    }

    /// The number of the process that answers here.
    pub(super) fn process_number(&self) -> u32 {
        self.processes.number()
    }

    /// The connection of the calling runtime, if there is one.
    pub(super) fn ready_link(&self) -> Option<Arc<Link>> {
        let id = Handle::try_current().as_ref().unwrap_or(&self.background).id();
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        match links.iter().find(|(other, _)| *other == id) {
            Some((_, LinkSlot::Ready(link))) if link.is_usable() => Some(link.clone()),
            _ => None,
        }
    }

    pub(super) async fn link(self: &Arc<Self>) -> Result<Arc<Link>, Fault> {
        if let Some(link) = self.ready_link() {
            return Ok(link);
        }
        let home = Handle::try_current().unwrap_or_else(|_| self.background.clone());
        match self.connect(home).await? {
            Some(link) => Ok(link),
            // A release is to go out though the runtime of its caller has shut down.
            None => self.background_link().await,
        }
    }

    /// The connection of the background thread, also for other threads.
    pub(super) async fn background_link(self: &Arc<Self>) -> Result<Arc<Link>, Fault> {
        let gone =
            || Fault::NotSent(Error::new(ErrorKind::Unreachable, "the background runtime has shut down"));
        self.connect(self.background.clone()).await?.ok_or_else(gone)
    }

    /// Has the next change of these keys told, and answers how many exist; `None` where changes are not told.
    pub(super) async fn watch(self: &Arc<Self>, keys: &[Arc<[u8]>]) -> Result<Option<u64>, Failure> {
        self.background_link().await?.watch(keys).await
    }

    /// Connects on the runtime that will drive the connection. `None`: that runtime has shut down, or does not run, though what was begun
    /// there is waited for elsewhere.
    async fn connect(self: &Arc<Self>, home: Handle) -> Result<Option<Arc<Link>>, Fault> {
        loop {
            let outcome = self.attempt(&home).await?;
            // A connection that was begun before it was known whose side servers are on is dropped, and the next one asks its server.
            if outcome.as_ref().is_none_or(|link| link.is_trusted()) {
                return Ok(outcome);
            }
        }
    }

    /// One attempt; callers that come meanwhile share it.
    async fn attempt(self: &Arc<Self>, home: &Handle) -> Result<Option<Arc<Link>>, Fault> {
        let id = home.id();
        if self.closed.is_cancelled() {
            return Err(closed_error());
        }
        let mut begins = None;
        let pending = {
            let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
            let slot = links.iter().position(|(other, _)| *other == id);
            match slot.map(|at| &links[at].1) {
                Some(LinkSlot::Ready(link)) if link.is_usable() => return Ok(Some(link.clone())),
                Some(LinkSlot::Connecting(pending)) => pending.clone(),
                _ => {
                    let (tell, pending) = latest::channel(None);
                    begins = Some(tell);
                    if let Some(at) = slot {
                        links.swap_remove(at);
                    }
                    if links.len() >= LINKS_MAX {
                        links.retain(|(_, slot)| !matches!(slot, LinkSlot::Ready(link) if !link.is_usable()));
                    }
                    links.push((id, LinkSlot::Connecting(pending.clone())));
                    pending
                }
            }
        };
        if let Some(tell) = begins {
            // Not under the mutex: a runtime that has shut down drops the task at once, and the task then gives its slot back.
            let mut connecting = Connecting { node: self.clone(), id, has_set_slot: false };
            home.spawn(async move {
                let closed = connecting.node.closed.clone();
                let outcome = tokio::select! {
                    biased;
                    // The program may go on for long, and the timers of the attempt are over.
                    () = closed.cancelled() => Err(closed_error().into_error()),
                    outcome = connecting.node.dial_link(id) => outcome,
                };
                connecting.has_set_slot = true;
                connecting.node.set_slot(id, outcome.as_ref().ok());
                tell.set(Some(outcome));
            });
        }
        let outcome = panic_safe(async || {
            tokio::select! {
                biased;
                outcome = pending.wait_for(Option::is_some) => Ok(outcome),
                // A waiter may have another server to ask by now.
                () = self.closed.cancelled() => Err(Err(closed_error())),
                // The attempt has a limit, which it keeps where its runtime runs.
                () = self.dial.sleep(2 * self.dial.connect_timeout()), if id != self.background.id() => Err(Ok(None)),
            }
        });
        match outcome.await {
            Err(without) => without,
            Ok(Ok(Some(Ok(link)))) => Ok(Some(link)),
            Ok(Ok(Some(Err(error)))) => Err(Fault::NotSent(error)),
            // Its slot must not be found again.
            _ => {
                self.set_slot(id, None);
                Ok(None)
            }
        }
    }

    async fn dial_link(self: &Arc<Self>, home: Id) -> Result<Arc<Link>, Error> {
        let weak = Arc::downgrade(self);
        let on_end = Box::new(move || {
            if let Some(node) = weak.upgrade()
                && !node.closed.is_cancelled()
            {
                node.interruption.ring();
            }
        });
        let opened = match home == self.background.id() {
            true => Link::open_telling(&self.dial, &self.processes, on_end).await,
            false => Link::open(&self.dial, &self.processes, on_end).await,
        };
        if opened.is_err() && self.dial.is_stranger() {
            // It has changed sides, and older connections are to the same server.
            self.drop_connections();
        }
        if let Ok(link) = &opened {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|link| link.strong_count() > 0);
            open.push(Arc::downgrade(link));
            drop(open);
            // It was not among those that were cut.
            if self.closed.is_cancelled() {
                link.cut();
            }
        }
        opened
    }

    /// Puts a connection into the slot of its runtime, or takes the slot away.
    fn set_slot(&self, id: Id, link: Option<&Arc<Link>>) {
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        links.retain(|(other, _)| *other != id);
        if let Some(link) = link {
            links.push((id, LinkSlot::Ready(link.clone())));
        }
    }

    /// Runs a script once; the future does not depend on timers of the caller's runtime.
    pub(super) fn run(
        self: &Arc<Self>,
        call: Call,
    ) -> impl Future<Output = Result<Reply, Failure>> + Send + use<> {
        let (node, ready, mode) = (self.clone(), self.ready_link(), self.script_mode);
        let first = first_try(mode, &call);
        async move {
            let link = match ready {
                Some(link) => link,
                None => {
                    call.waits_for_connection();
                    node.link().await?
                }
            };
            run_on(&link, mode, first, &call, false).await
        }
    }

    /// Finds out whether the functions are there, where they are to be used.
    pub(super) async fn check_functions(self: &Arc<Self>) -> Result<(), Failure> {
        if self.script_mode == ScriptMode::Functions {
            let mut cmd = Cmd::new();
            cmd.arg("FCALL").arg(scripts::library_check()).arg(0);
            self.send_in_time(&cmd).await.map_err(without_functions)?;
        }
        Ok(())
    }

    /// Loads the functions, in place of a library of the same name.
    pub(super) async fn load_functions(self: &Arc<Self>) -> Result<(), Failure> {
        let mut cmd = Cmd::new();
        cmd.arg("FUNCTION").arg("LOAD").arg("REPLACE").arg(scripts::library());
        self.send(&cmd).await.map(drop).map_err(without_functions)
    }

    /// Runs a script once, on a connection on which replicas may then be asked to confirm what it changed.
    pub(super) fn run_acked(
        self: &Arc<Self>,
        call: Call,
        count: ReplicaCount,
        must: bool,
        listing: Option<Arc<dyn Listing>>,
    ) -> impl Future<Output = Result<(Reply, Confirm), Failure>> + Send + use<> {
        let node = self.clone();
        async move {
            if node.dial.is_local() {
                let run = move || node.run_boxed(call);
                return Ok(without_replicas(count, must, run).await?);
            }
            node.ready_for_replicas(count).await?.run(node.script_mode, &call, false, listing).await
        }
    }

    /// Makes sure that replicas can be asked here, and gives a connection for that. Nothing has been changed by then.
    pub(super) async fn ready_for_replicas(&self, count: ReplicaCount) -> Result<Ready, Failure> {
        if self.closed.is_cancelled() {
            return Err(closed_error().into());
        }
        self.ack_pool.clone().ready(count).await
    }

    fn run_boxed(self: &Arc<Self>, call: Call) -> RunFuture {
        Box::pin(self.run(call).map_err(Fault::from))
    }

    /// As [`run`](Self::run), for those who may have to ask elsewhere. `with_asking_command`: another node has named this one for this once.
    pub(super) async fn run_here(
        self: &Arc<Self>,
        call: &Call,
        with_asking_command: bool,
    ) -> Result<Reply, Failure> {
        call.waits_for_connection();
        let link = self.link().await?;
        let first = first_try(self.script_mode, call);
        run_on(&link, self.script_mode, first, call, with_asking_command).await
    }

    /// Sends one command.
    pub(super) async fn send(self: &Arc<Self>, cmd: &Cmd) -> Result<Reply, Failure> {
        self.link().await?.ask(cmd).await
    }

    /// As [`send`](Self::send), for what is asked before anything looks whether connections still answer: a server that accepts connections
    /// and answers nothing has as long as a connection may take.
    pub(super) async fn send_in_time(self: &Arc<Self>, cmd: &Cmd) -> Result<Reply, Failure> {
        tokio::select! {
            biased;
            outcome = self.send(cmd) => outcome,
            error = self.dial.late() => Err(Failure::Fault(Fault::Unknown(error))),
        }
    }

    /// How many connections listen to each of these channels here.
    pub(super) async fn listeners(
        self: &Arc<Self>,
        channels: &[Arc<[u8]>],
    ) -> Result<Option<Vec<u64>>, Fault> {
        let mut cmd = Cmd::new();
        cmd.arg("PUBSUB").arg("NUMSUB");
        for channel in channels {
            cmd.arg(&channel[..]);
        }
        let reply = self.send(&cmd).await?;
        let pairs = reply.array().unwrap_or_default().chunks_exact(2);
        let counts: Vec<u64> = pairs.filter_map(|pair| u64::try_from(pair[1].int()?).ok()).collect();
        Ok((counts.len() == channels.len()).then_some(counts))
    }

    fn open_links(&self) -> Vec<Arc<Link>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.open_links().iter().any(|link| !link.is_dead())
    }

    pub(super) fn is_waiting(&self) -> bool {
        if self.ack_pool.is_waiting() {
            return true;
        }
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        // Calls wait behind it that have not been counted yet.
        let connecting = links.iter().any(|(_, slot)| matches!(slot, LinkSlot::Connecting(_)));
        drop(links);
        connecting || self.open_links().iter().any(|link| link.is_waiting())
    }

    /// What this server has said so far is believed.
    pub(super) fn trust(&self) {
        self.open_links().iter().for_each(|link| link.trust());
    }

    /// Ends every connection; the next call makes a new one.
    pub(super) fn drop_connections(&self) {
        self.ack_pool.cut();
        // Dropped without the mutex.
        let _links = std::mem::take(&mut *self.links.write().unwrap_or_else(PoisonError::into_inner));
        for link in self.open_links() {
            link.cut();
        }
    }

    /// Ends every connection for good.
    pub(super) fn close(&self) {
        self.closed.cancel();
        self.drop_connections();
    }
}

#[cfg(test)]
mod tests;
