//! A proxy between client and server that understands their messages, to make faults on purpose.
//!
//! It listens on a loopback port and on a unix socket, runs on a thread of its own, and connects to the
//! server once for every connection that it accepts. [`Rule`]s aim at single requests and replies; the
//! methods of [`Proxy`] make faults of the whole network. TLS passes through, without rules.

mod connection;
mod log;
mod matching;
mod modes;
mod rule;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::watch;

use self::connection::Connection;
use self::log::SharedLog;
pub use self::log::{REQUESTS_MAX, RequestLog, RequestRecord};
use self::modes::Modes;
pub use self::modes::Scope;
use self::rule::Rules;
pub use self::rule::{Action, ConnectionKind, Gate, Match, Nth, Rule, RuleId};
use crate::error::{Error, ErrorKind, Result};
use crate::net::{Address, Listeners, OwnRuntime, ReservedPort};

/// How long opening or closing the listeners may take; they are local.
const LISTEN_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Shared {
    upstream: Address,
    rules: Mutex<Rules>,
    log: SharedLog,
    random: Mutex<u64>,
    accepted: AtomicU64,
    open: AtomicU64,
    listening: Mutex<bool>,
    listening_changed: Condvar,
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw_latency(&self, modes: &watch::Receiver<Modes>) -> Duration {
        let Some((least, jitter)) = modes.borrow().latency else { return Duration::ZERO };
        let mut state = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        // A xorshift generator: the same seed gives the same delays, message by message.
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        let fraction = (*state >> 11) as f64 / (1_u64 << 53) as f64;
        least + jitter.mul_f64(fraction)
    }

    fn set_listening(&self, listening: bool) {
        *self.listening.lock().unwrap_or_else(PoisonError::into_inner) = listening;
        self.listening_changed.notify_all();
    }
}

/// A running proxy. Dropping it closes its listeners and all its connections.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    modes: watch::Sender<Modes>,
    port: u16,
    dir: TempDir,
    _runtime: OwnRuntime,
}

impl Proxy {
    /// Starts a proxy in front of a server, given as `redis://host:port` or `unix:///path`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for an address of another form, [`ErrorKind::Io`] when it cannot listen.
    pub fn start(upstream: &str) -> Result<Self> {
        let upstream = Address::parse(upstream)?;
        let port = ReservedPort::new(0)?;
        let dir = crate::dir::for_sockets("redlatch-proxy-");
        let dir = dir.map_err(|e| Error::io("cannot make a directory for the proxy", e))?;
        let shared = Arc::new(Shared {
            upstream,
            rules: Mutex::default(),
            log: SharedLog::default(),
            random: Mutex::new(1),
            accepted: AtomicU64::new(0),
            open: AtomicU64::new(0),
            listening: Mutex::new(false),
            listening_changed: Condvar::new(),
        });
        let modes = watch::Sender::new(Modes::default());
        let runtime = OwnRuntime::new("redlatch-proxy")?;
        let number = port.port();
        let path = dir.path().join("proxy.sock");
        runtime.handle().spawn(accept(Arc::clone(&shared), modes.subscribe(), port, path));
        let proxy = Self { shared, modes, port: number, dir, _runtime: runtime };
        proxy.wait_listening(true)?;
        Ok(proxy)
    }

    /// `redis://127.0.0.1:port`, without credentials.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `unix:///path/to/socket`.
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.dir.path().join("proxy.sock").display())
    }

    /// The loopback port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Adds a rule. The first rule that fits a request, in the order of adding, acts on it.
    pub fn rule(&self, when: Match, then: Action) -> RuleId {
        self.add_rule(Rule { when, then })
    }

    /// As [`rule`](Self::rule).
    pub fn add_rule(&self, rule: Rule) -> RuleId {
        self.shared.rules().add(rule)
    }

    /// Removes a rule; requests that it has caught already stay caught.
    pub fn remove_rule(&self, id: RuleId) {
        self.shared.rules().remove(id);
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        self.shared.rules().clear();
    }

    /// Reads and forgets what is covered; connections stay open and can still be made. A connection that has
    /// lost something is reset by [`heal`](Self::heal), since its two ends can never be in step again.
    pub fn blackhole(&self, scope: Scope) {
        self.modes.send_modify(|modes| modes.blackhole = Some(scope));
    }

    /// Holds back what is covered until [`heal`](Self::heal), which delivers it: a network that was away
    /// for a while, with peers that have sent everything again.
    pub fn stall(&self, scope: Scope) {
        self.modes.send_modify(|modes| modes.stall = Some(scope));
    }

    /// Delays every message in each direction by `least` plus up to `jitter`, drawn from `seed`. The order
    /// on one connection is kept.
    pub fn latency(&self, least: Duration, jitter: Duration, seed: u64) {
        // The generator stands still at zero.
        *self.shared.random.lock().unwrap_or_else(PoisonError::into_inner) = seed.max(1);
        self.modes.send_modify(|modes| modes.latency = Some((least, jitter)));
    }

    /// Writes replies byte by byte, the first 32 of each 1 ms apart, so that clients read them one by one.
    pub fn slice_replies(&self) {
        self.modes.send_modify(|modes| modes.slices = true);
    }

    /// Refuses new connections from when this returns until [`heal`](Self::heal), as a port without a server
    /// does. Open connections stay.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] when the listeners do not close.
    pub fn refuse_new(&self) -> Result<()> {
        self.modes.send_modify(|modes| modes.refuses = true);
        self.wait_listening(false)
    }

    /// Resets all connections (both ends get `ECONNRESET`; over unix sockets an end of file).
    pub fn reset_all(&self) {
        self.close([true, true], true);
    }

    /// Resets the connections of one kind.
    pub fn reset(&self, kind: ConnectionKind) {
        self.close([kind == ConnectionKind::Commands, kind == ConnectionKind::PubSub], true);
    }

    /// Closes all connections in order.
    pub fn close_all(&self) {
        self.close([true, true], false);
    }

    fn close(&self, kinds: [bool; 2], hard: bool) {
        self.modes.send_modify(|modes| {
            modes.closes_hard = hard;
            for (count, ordered) in modes.closings.iter_mut().zip(kinds) {
                *count += u64::from(ordered);
            }
        });
    }

    /// Ends all faults of the network: what was stalled is delivered, connections that have lost something
    /// are reset, new ones are accepted when this returns. Rules stay.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] when the listeners do not open.
    pub fn heal(&self) -> Result<()> {
        self.modes.send_modify(|modes| *modes = modes.healed());
        self.wait_listening(true)
    }

    fn wait_listening(&self, wanted: bool) -> Result<()> {
        let listening = self.shared.listening.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = &self.shared.listening_changed;
        let waited = changed.wait_timeout_while(listening, LISTEN_LIMIT, |listening| *listening != wanted);
        let (guard, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(guard);
        if outcome.timed_out() {
            let text = if wanted { "the proxy cannot listen" } else { "the proxy did not stop listening" };
            return Err(Error::new(ErrorKind::Timeout, text));
        }
        Ok(())
    }

    /// How often clients sent a command, by its name in any case.
    pub fn count(&self, command: &str) -> u64 {
        self.shared.log.lock().count(command)
    }

    /// How often a rule has acted.
    pub fn fired(&self, rule: RuleId) -> u64 {
        self.shared.log.lock().fired(rule)
    }

    /// A look at all requests so far. New ones wait meanwhile, so be brief.
    pub fn with_log<T>(&self, look: impl FnOnce(&RequestLog) -> T) -> T {
        look(&self.shared.log.lock())
    }

    /// Forgets requests and counts so far.
    pub fn clear_log(&self) {
        self.shared.log.clear();
    }

    /// How many connections were accepted since the start.
    pub fn connections_accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many connections are open.
    pub fn connections_open(&self) -> u64 {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Waits until the log meets a condition, which is looked at after every request and every rule that
    /// acts. Needs a runtime with time enabled.
    ///
    /// # Cancel safety
    ///
    /// Dropping it has no effect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after `limit`, with the last requests.
    pub async fn wait_for(&self, limit: Duration, is_met: impl FnMut(&RequestLog) -> bool) -> Result<()> {
        self.shared.log.wait_for(limit, is_met).await
    }

    /// As [`wait_for`](Self::wait_for), for code that is not asynchronous.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after `limit`, with the last requests.
    pub fn wait_for_blocking(&self, limit: Duration, is_met: impl FnMut(&RequestLog) -> bool) -> Result<()> {
        self.shared.log.wait_for_blocking(limit, is_met)
    }

    /// Waits until a rule has acted `times` times.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] after `limit`, with the last requests.
    pub async fn wait_fired(&self, rule: RuleId, times: u64, limit: Duration) -> Result<()> {
        self.wait_for(limit, |log| log.fired(rule) >= times).await
    }
}

async fn accept(shared: Arc<Shared>, mut modes: watch::Receiver<Modes>, port: ReservedPort, path: PathBuf) {
    let mut listeners: Option<Listeners> = None;
    loop {
        if modes.borrow_and_update().refuses {
            listeners = None;
            shared.set_listening(false);
            if modes.changed().await.is_err() {
                return;
            }
            continue;
        }
        let open = match listeners.take().map_or_else(|| Listeners::open(&port, &path), Ok) {
            Ok(open) => listeners.insert(open),
            // The starter waits for the listeners and reports that they are missing.
            Err(_) => return,
        };
        shared.set_listening(true);
        let client = tokio::select! {
            client = open.accept() => client,
            changed = modes.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        // A client that is gone before it was accepted is no reason to end.
        let Ok(client) = client else { continue };
        let number = shared.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        shared.open.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::new(number, Arc::clone(&shared), modes.clone());
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            connection.run(client).await;
            shared.open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}
