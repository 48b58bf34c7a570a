//! Redis or Valkey, one node: scripts over multiplexed connections, subscriptions over one of their own.
//!
//! Commands and subscriptions never share a connection (DESIGN D16). Each runtime that calls gets a connection whose
//! driver lives on that runtime, so that an uncontended call makes no thread hop; the background thread has its own,
//! so that renewals go on while the user's runtime is busy.

mod connect;
mod diagnose;
mod hub;
mod link;

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub(crate) use connect::{Dial, Greeter};
use redis::Cmd;
use tokio::{
    runtime::{Handle, Id},
    sync::watch,
};

use self::{hub::Hub, link::Link};
use super::{
    Arg, Call, DiagnoseFuture, Fault, Listener, ListenersFuture, Reply, RunFuture, Store, SubscribeFuture,
    url::Server,
};
use crate::{
    config::Config,
    error::{Error, ErrorKind},
};

type Hook = Arc<dyn Fn() + Send + Sync>;
type Pending = watch::Receiver<Option<Result<Arc<Link>, Error>>>;

pub(crate) struct RedisStore {
    shared: Arc<Shared>,
    hub: Hub,
}

struct Shared {
    dial: Arc<Dial>,
    background: Handle,
    response_timeout: Duration,
    /// One connection a runtime. The list is short: a process has few runtimes that live at once.
    links: RwLock<Vec<(Id, Slot)>>,
    hook: Mutex<Option<Hook>>,
    closed: AtomicBool,
}

enum Slot {
    Ready(Arc<Link>),
    Connecting(Pending),
}

/// Runtimes come and go (tests, blocking calls); slots of those that are gone are dropped above this number.
const LINKS_MAX: usize = 64;

impl RedisStore {
    /// Connects once, so that a wrong address or password is reported here and not by the first lock.
    pub(crate) async fn open(
        server: Server,
        config: &Config,
        background: &Handle,
    ) -> Result<Arc<dyn super::Store>, Error> {
        let dial = Dial::new(server, config)?;
        Self::open_with(dial, config, background).await
    }

    pub(crate) async fn open_with(
        dial: Dial,
        config: &Config,
        background: &Handle,
    ) -> Result<Arc<dyn super::Store>, Error> {
        let dial = Arc::new(dial);
        let shared = Arc::new(Shared {
            dial: dial.clone(),
            background: background.clone(),
            response_timeout: config.response_timeout,
            links: RwLock::new(Vec::new()),
            hook: Mutex::new(None),
            closed: AtomicBool::new(false),
        });
        let hub = Hub::start(dial, background);
        shared.link().await.map_err(Fault::into_error)?;
        Ok(Arc::new(RedisStore { shared, hub }))
    }
}

impl Shared {
    /// The connection of the calling runtime, if there is one.
    fn ready_link(&self) -> Option<Arc<Link>> {
        let id = Handle::try_current().as_ref().unwrap_or(&self.background).id();
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        match links.iter().find(|(other, _)| *other == id) {
            Some((_, Slot::Ready(link))) if !link.is_dead() => Some(link.clone()),
            _ => None,
        }
    }

    async fn link(self: &Arc<Self>) -> Result<Arc<Link>, Fault> {
        if let Some(link) = self.ready_link() {
            return Ok(link);
        }
        let home = Handle::try_current().unwrap_or_else(|_| self.background.clone());
        let id = home.id();
        self.connect(home, id).await
    }

    /// Connects on the runtime that will drive the connection; callers that come meanwhile share the attempt.
    async fn connect(self: &Arc<Self>, home: Handle, id: Id) -> Result<Arc<Link>, Fault> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Fault::NotSent(Error::new(ErrorKind::Closed, "the client was shut down")));
        }
        let mut pending = {
            let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
            let slot = links.iter().position(|(other, _)| *other == id);
            match slot.map(|at| &links[at].1) {
                Some(Slot::Ready(link)) if !link.is_dead() => return Ok(link.clone()),
                Some(Slot::Connecting(pending)) => pending.clone(),
                _ => {
                    let (tell, pending) = watch::channel(None);
                    let shared = self.clone();
                    home.spawn(async move {
                        let outcome = shared.dial_link().await;
                        shared.settle(id, outcome.as_ref().ok());
                        tell.send_replace(Some(outcome));
                    });
                    if let Some(at) = slot {
                        links.swap_remove(at);
                    }
                    if links.len() >= LINKS_MAX {
                        links.retain(|(_, slot)| !matches!(slot, Slot::Ready(link) if link.is_dead()));
                    }
                    links.push((id, Slot::Connecting(pending.clone())));
                    pending
                }
            }
        };
        let outcome = pending.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        match outcome {
            Ok(Some(Ok(link))) => Ok(link),
            Ok(Some(Err(error))) => Err(Fault::NotSent(error)),
            // The runtime that was connecting has shut down; its slot must not be found again.
            _ => {
                self.settle(id, None);
                Err(Fault::NotSent(Error::new(
                    ErrorKind::Unreachable,
                    "the runtime that was connecting has shut down",
                )))
            }
        }
    }

    async fn dial_link(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
        let weak = Arc::downgrade(self);
        let on_end = Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.interrupted();
            }
        });
        Link::open(&self.dial, on_end).await
    }

    fn settle(&self, id: Id, link: Option<&Arc<Link>>) {
        let mut links = self.links.write().unwrap_or_else(PoisonError::into_inner);
        links.retain(|(other, _)| *other != id);
        if let Some(link) = link {
            links.push((id, Slot::Ready(link.clone())));
        }
    }

    /// A connection ended on its own: whoever holds locks will want to look after them.
    fn interrupted(&self) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook();
        }
    }
}

async fn run_on(link: &Link, first: Cmd, call: &Call) -> Result<Reply, Fault> {
    match link.send(&first).await {
        // Nothing ran, so sending the whole text is no second try.
        Err(Fault::Server(error))
            if error.kind() == ErrorKind::Server && error.to_string().contains("NOSCRIPT") =>
        {
            link.send(&command("EVAL", call.script.source(), call)).await
        }
        outcome => outcome,
    }
}

fn command(verb: &str, script: &str, call: &Call) -> Cmd {
    let mut cmd = Cmd::with_capacity(3 + call.keys.len() + call.args.len(), 256);
    cmd.arg(verb).arg(script).arg(call.keys.len());
    for key in &call.keys {
        cmd.arg(&key[..]);
    }
    for arg in &call.args {
        match arg {
            Arg::Int(value) => cmd.arg(*value),
            Arg::Text(text) => cmd.arg(text.as_bytes()),
            Arg::Bytes(bytes) => cmd.arg(&bytes[..]),
            Arg::Static(text) => cmd.arg(text.as_bytes()),
        };
    }
    cmd
}

impl Store for RedisStore {
    fn run(&self, call: Call) -> RunFuture {
        let first = command("EVALSHA", call.script.sha1(), &call);
        match self.shared.ready_link() {
            Some(link) => Box::pin(async move { run_on(&link, first, &call).await }),
            None => {
                let shared = self.shared.clone();
                Box::pin(async move { run_on(&*shared.link().await?, first, &call).await })
            }
        }
    }

    fn run_apart(&self, call: Call) -> RunFuture {
        // Called on the background thread, whose runtime has a connection of its own.
        self.run(call)
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        self.hub.subscribe(channel, listener)
    }

    fn tick(&self, now_ms: u64) {
        let timeout_ms = self.shared.response_timeout.as_millis() as u64;
        let links = self.shared.links.read().unwrap_or_else(PoisonError::into_inner);
        for (_, slot) in links.iter() {
            if let Slot::Ready(link) = slot {
                link.check_stall(now_ms, timeout_ms);
            }
        }
    }

    fn is_waiting(&self) -> bool {
        let links = self.shared.links.read().unwrap_or_else(PoisonError::into_inner);
        links.iter().any(|(_, slot)| match slot {
            Slot::Ready(link) => link.is_waiting(),
            // Calls wait behind it that have not been counted yet.
            Slot::Connecting(_) => true,
        })
    }

    fn own_receivers(&self, channel: &[u8]) -> i64 {
        self.hub.is_subscribed(channel).into()
    }

    fn listeners(&self, channels: Vec<Arc<[u8]>>) -> ListenersFuture {
        let shared = self.shared.clone();
        Box::pin(async move {
            let mut cmd = Cmd::new();
            cmd.arg("PUBSUB").arg("NUMSUB");
            for channel in &channels {
                cmd.arg(&channel[..]);
            }
            let reply = shared.link().await?.send(&cmd).await?;
            let pairs = reply.array().unwrap_or_default().chunks_exact(2);
            let counts: Vec<u64> = pairs.filter_map(|pair| u64::try_from(pair[1].int()?).ok()).collect();
            Ok((counts.len() == channels.len()).then_some(counts))
        })
    }

    fn distrust(&self) {
        let links = std::mem::take(&mut *self.shared.links.write().unwrap_or_else(PoisonError::into_inner));
        for (_, slot) in links {
            if let Slot::Ready(link) = slot {
                link.cut();
            }
        }
    }

    fn on_interruption(&self, hook: Hook) {
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
    }

    fn diagnose(&self) -> DiagnoseFuture {
        // The local engine answers for itself; Redis's settings do not apply to it.
        if self.shared.dial.is_local() {
            return Box::pin(std::future::ready(Ok(Vec::new())));
        }
        Box::pin(self.shared.clone().diagnose())
    }

    fn place(&self) -> Option<String> {
        Some(self.describe())
    }

    fn describe(&self) -> String {
        self.shared.dial.describe()
    }

    fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.hub.close();
        self.distrust();
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.close();
    }
}
