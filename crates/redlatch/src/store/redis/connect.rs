//! Opening one connection: TCP, TLS or unix socket, log-in, and time limits.

use std::{
    future::Future,
    io,
    os::fd::OwnedFd,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{RedisConnectionInfo, RedisError, Value};
use rustls::pki_types::ServerName;
use tokio::{net::UnixStream, runtime::Handle};

pub(super) use self::stream::Stream;
use super::{
    certificates::Certificates,
    changes::Changes,
    known_nodes::KnownNodes,
    password::PasswordFile,
    timer,
    tls::{self, Trouble},
};
use crate::{
    call_hook::CallHook,
    config::{AddressMap, Config, Secret, addr::Addr, url::Server},
    dialer::Dialing,
    error::{Error, ErrorKind},
    finding::{Finding, Severity},
    store::{ChangeHook, Fault},
};

/// A hook that looks at each new connection to the local engine: starts the daemon before, checks its version after.
pub(crate) trait LocalEngineHooks: Send + Sync {
    /// A connection to an engine that is there and has answered on it. Nothing where that fails: then `prepare` sees to it, or says why
    /// not.
    fn reach(&self) -> Pin<Box<dyn Future<Output = Option<UnixStream>> + Send + '_>>;
    /// Called before connecting; may start what is to be connected to. Blocking work is done off the runtime by the caller.
    fn prepare(&self) -> Result<(), Error>;
    /// What there is to know about the engine, for those who look at its health.
    fn findings(&self) -> Vec<Finding>;
    /// The request that introduces us, and the check of its answer.
    fn hello(&self) -> Vec<Vec<u8>>;
    /// Whether the answer is acceptable.
    fn check(&self, answer: &Value) -> Result<(), Error>;
    /// The holds of this owner are to outlive this process.
    fn outlives(&self, owner: &str);
    /// What keeps this client's holds while another process has it open.
    fn lifeline(&self) -> Option<OwnedFd>;
    /// No connection follows.
    fn close(&self);
}

/// How to reach one server.
#[derive(Clone)]
pub(crate) struct Dial {
    server: Server,
    /// Where the password comes from, if that is a file.
    password: Option<PasswordFile>,
    tls: Option<Certificates>,
    tls_name: Option<String>,
    insecure: bool,
    addresses: Arc<AddressMap>,
    trouble: Trouble,
    refused: Refused,
    client_name: Option<String>,
    connect_timeout: Duration,
    /// Whose timers count: those of the caller's runtime may stand still, or not be there.
    timers: Handle,
    local_engine: Option<Arc<dyn LocalEngineHooks>>,
    master_only: bool,
    /// Why there is no server to connect to.
    refusal: Option<Box<Error>>,
    /// The listener that servers tell of changes, if they are to. Copies of the dial for other addresses share it.
    changes: Option<Arc<Changes>>,
    known_nodes: Option<Arc<KnownNodes>>,
    baseline: Baseline,
    calls: CallHook,
    dialing: Dialing,
}

/// What the first connection to a master has said of its data: what is counted there afterwards is lost when they get another history.
#[derive(Default)]
pub(super) struct Baseline(OnceLock<String>);

impl Clone for Baseline {
    /// That of another server.
    fn clone(&self) -> Self {
        Baseline::default()
    }
}

/// Whether the last attempt at one server was refused.
#[derive(Default)]
struct Refused(AtomicBool);

impl Clone for Refused {
    /// That of maybe another server, at which there was no attempt.
    fn clone(&self) -> Self {
        Refused::default()
    }
}

impl Dial {
    pub(crate) fn new(mut server: Server, config: &Config, background: &Handle) -> Result<Self, Error> {
        if config.username.is_some() {
            server.access.username = config.username.clone();
        }
        if config.password.0.is_some() {
            server.access.password = config.password.clone();
        }
        let tls = if server.access.tls { Some(Certificates::read(&config.tls)?) } else { None };
        let password = config.password_file.as_deref().map(PasswordFile::open).transpose()?;
        let dial = Dial {
            server,
            password,
            tls,
            tls_name: config.tls.server_name.clone(),
            insecure: config.tls.danger_accept_any_certificate || config.tls.danger_accept_any_host_name,
            addresses: config.address_map.clone(),
            trouble: Trouble::default(),
            refused: Refused::default(),
            client_name: config.client_name.clone(),
            connect_timeout: config.connect_timeout,
            timers: background.clone(),
            local_engine: None,
            master_only: false,
            refusal: None,
            changes: None,
            known_nodes: None,
            baseline: Baseline::default(),
            calls: config.calls.clone(),
            dialing: config.dialing.clone(),
        };
        if dial.shows_password() {
            static WARNED: AtomicBool = AtomicBool::new(false);
            // Once: a user with many servers and a network of their own has decided this long ago.
            if !WARNED.swap(true, Ordering::Relaxed) {
                tracing::warn!(server = %dial.server, "the password goes over the network unencrypted; rediss:// encrypts it");
            }
        }
        Ok(dial)
    }

    /// What its connections call with each request that they send.
    pub(super) fn call_hook(&self) -> &CallHook {
        &self.calls
    }

    /// The same way to log in, at another address.
    pub(super) fn at(&self, addr: Addr) -> Self {
        let mut dial = self.clone();
        dial.server.addr = addr;
        dial
    }

    /// Where the server is reached that announces this address.
    pub(super) fn reachable(&self, announced: Addr) -> Addr {
        self.addresses.reachable(announced)
    }

    /// Refuses each connection to a server that says it is no master: one that was demoted must not be asked, because
    /// scripts that only read would be answered from its old data.
    pub(super) fn master_only(mut self) -> Self {
        self.master_only = true;
        self
    }

    /// The same server, whatever it is; nobody is told of changes there.
    pub(super) fn for_any_role(mut self) -> Self {
        (self.master_only, self.changes) = (false, None);
        self
    }

    /// Connects to nobody, and says why.
    pub(super) fn refusing(mut self, reason: Error) -> Self {
        self.refusal = Some(Box::new(reason));
        self
    }

    pub(super) fn refusal(&self) -> Option<&Error> {
        self.refusal.as_deref()
    }

    /// Has servers tell of changes over the connection of the background thread, where they can.
    pub(super) fn telling_changes(mut self) -> Self {
        self.changes = Some(Arc::default());
        self
    }

    /// Sets the listener that they tell.
    pub(super) fn changes(&self, hook: ChangeHook) {
        if let Some(changes) = &self.changes {
            changes.set(hook);
        }
    }

    pub(super) fn changes_heard(&self) -> Option<&Arc<Changes>> {
        self.changes.as_ref()
    }

    /// Refuses each connection to a server that is in no cluster with these: it would serve their slots without their locks.
    pub(super) fn among(mut self, known_nodes: Arc<KnownNodes>) -> Self {
        self.known_nodes = Some(known_nodes);
        self
    }

    pub(super) fn addr(&self) -> &Addr {
        &self.server.addr
    }

    pub(crate) fn with_local_engine(mut self, local_engine: Arc<dyn LocalEngineHooks>) -> Self {
        self.local_engine = Some(local_engine);
        self
    }

    /// What the local engine's local_engine has to say; none for servers.
    pub(super) fn local_findings(&self) -> Option<Vec<Finding>> {
        self.local_engine.as_ref().map(|local_engine| local_engine.findings())
    }

    /// What looks at connections to the local engine, where it is one.
    pub(super) fn local_engine(&self) -> Option<&dyn LocalEngineHooks> {
        self.local_engine.as_deref()
    }

    pub(super) fn is_local(&self) -> bool {
        self.local_engine.is_some()
    }

    /// Whether a password leaves this machine unencrypted. That is told and not refused, because most fleets run in networks of
    /// their own (`docs/dangers.md`).
    pub(super) fn shows_password(&self) -> bool {
        let Addr::Tcp { host, .. } = &self.server.addr else { return false };
        let ip: Result<std::net::IpAddr, _> = host.trim_start_matches('[').trim_end_matches(']').parse();
        let stays = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
        self.password().0.is_some() && self.tls.is_none() && !stays
    }

    pub(crate) fn describe(&self) -> String {
        self.server.to_string()
    }

    fn password(&self) -> Secret {
        self.password.as_ref().map_or_else(|| self.server.access.password.clone(), PasswordFile::last)
    }

    pub(super) fn login(&self) -> RedisConnectionInfo {
        let mut login = RedisConnectionInfo::default()
            .set_db(self.server.access.database)
            .set_lib_name("redlatch", env!("CARGO_PKG_VERSION"));
        if let Some(username) = &self.server.access.username {
            login = login.set_username(username);
        }
        if let Some(password) = self.password().0 {
            login = login.set_password(password);
        }
        login
    }

    /// User name and password, for connections that speak for themselves.
    pub(super) fn credentials(&self) -> (Option<&str>, Secret) {
        (self.server.access.username.as_deref(), self.password())
    }

    /// A timer that works in any runtime, and is over when the one that has the timers ends: a timer of tokio's panics then.
    pub(super) fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        timer::sleep_on(&self.timers, time)
    }

    /// Bounds everything from the first packet to the last word of the log-in. When the password is refused and its file has
    /// another one by now, it is tried once more with that.
    pub(super) async fn bounded<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let logged_in = async {
            let used = self.password();
            match (attempt().await, &self.password) {
                (Err(error), Some(file)) if error.kind() == ErrorKind::Auth => {
                    if file.has_other_than(&used).await { attempt().await } else { Err(error) }
                }
                (outcome, _) => outcome,
            }
        };
        tokio::select! {
            biased;
            outcome = logged_in => outcome,
            error = self.late() => Err(error),
        }
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Ends, with what there is to say then, when a connection has had the time that it may take.
    pub(super) async fn late(&self) -> Error {
        self.sleep(self.connect_timeout).await;
        self.unreachable(format!("no answer within {:?}", self.connect_timeout))
    }

    pub(super) fn unreachable(&self, why: impl std::fmt::Display) -> Error {
        if let Some(error) = self.trouble.take(&self.server) {
            return error;
        }
        Error::new(ErrorKind::Unreachable, format!("cannot connect to {}: {why}", self.server))
    }

    /// Whether the machine refused the last attempt: no process listens there.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.0.load(Ordering::Relaxed)
    }

    fn connected<T>(&self, outcome: io::Result<T>) -> Result<T, Error> {
        let kind = outcome.as_ref().err().map(io::Error::kind);
        let refused = matches!(kind, Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound));
        self.refused.0.store(refused, Ordering::Relaxed);
        outcome.map_err(|error| self.unreachable(error))
    }

    pub(super) async fn stream(&self) -> Result<Stream, Error> {
        if let Some(reason) = self.refusal() {
            return Err(reason.clone());
        }
        if let Some(local_engine) = self.local_engine.clone() {
            if let Some(stream) = local_engine.reach().await {
                self.trouble.clear();
                return Ok(Stream::unix(stream));
            }
            // Starting a daemon waits for another process, which must not hold up this runtime's other tasks.
            tokio::task::spawn_blocking(move || local_engine.prepare())
                .await
                .map_err(|error| self.unreachable(error))??;
        }
        self.trouble.clear();
        // One that hangs is not refused.
        self.refused.0.store(false, Ordering::Relaxed);
        match &self.server.addr {
            Addr::Unix(path) => Ok(Stream::unix(self.connected(UnixStream::connect(path).await)?)),
            Addr::Tcp { host, port } => {
                let plain = self.connected(self.dialing.dial(host, *port).await)?;
                let Some(tls) = &self.tls else {
                    return Ok(Stream::plain(plain, self.trouble.shared()));
                };
                if self.insecure {
                    tracing::warn!(server = %self.server, "the server's certificate is not fully checked (danger_accept_any_…)");
                }
                let name = self.tls_name.clone().unwrap_or_else(|| host.clone());
                let name = ServerName::try_from(name).map_err(|_| {
                    Error::new(ErrorKind::InvalidOption, "the TLS server name is not a host name or address")
                })?;
                let tls = tls.connector().await;
                let again = self.dialing.dial(host, *port);
                let stream =
                    tls::handshake(&tls, name, plain, again, &self.trouble).await.map_err(|error| {
                        self.trouble.note(&error);
                        self.unreachable(format!("TLS: {error}"))
                    })?;
                Ok(Stream::tls(stream, self.trouble.shared()))
            }
        }
    }

    /// Turns a failed log-in into the error that it means.
    pub(super) fn refused(&self, error: &RedisError) -> Error {
        let detail = error.detail().unwrap_or("");
        if error.kind() == redis::ErrorKind::AuthenticationFailed {
            return Error::new(ErrorKind::Auth, format!("{} refused the user name or password", self.server));
        }
        let database = self.server.access.database;
        // Inside of the log-in the word that it begins with is lost.
        if error.code() == Some("NOAUTH") || detail.to_ascii_lowercase().contains("authentication required") {
            return Error::new(ErrorKind::Auth, format!("{} wants a password", self.server));
        }
        if database != 0 && error.to_string().contains("switch database") {
            let out_of_range = detail.contains("out of range");
            let kind = if out_of_range { ErrorKind::InvalidUrl } else { ErrorKind::Permission };
            let text = format!("{} refused database {database}: {detail}", self.server);
            return Error::new(kind, text).remedy("use database 0, or have SELECT allowed");
        }
        match error.code() {
            Some(code) => {
                let error = Fault::server_at(Some(&self.describe()), code, detail).into_error();
                if error.kind() == ErrorKind::Server { self.unreachable(error) } else { error }
            }
            None => self.ended(error.category()),
        }
    }

    /// The connection ended before the first answer. Servers end it without a word when they want a certificate or encryption.
    fn ended(&self, why: &str) -> Error {
        if let Some(error) = self.trouble.take(&self.server) {
            return error;
        }
        let error = self.unreachable(why);
        match (&self.tls, &self.server.addr) {
            (Some(tls), _) if !tls.identify() => error.remedy(
                "check that the server runs; if it wants client certificates, give one as tls cert_file and key_file",
            ),
            (None, Addr::Tcp { .. }) => error.remedy(
                "check that the server runs and that the URL names it; if its port is encrypted, use rediss://",
            ),
            _ => error,
        }
    }

    /// What is to be said about encryption, where there is some.
    pub(super) fn finding(&self) -> Option<Finding> {
        self.tls.as_ref()?;
        if !self.insecure {
            return Some(Finding::new(
                Severity::Good,
                "connection",
                "encrypted, with the server's certificate checked",
            ));
        }
        let text = "encrypted, but the server's certificate is not fully checked, so that another machine may answer for it";
        Some(Finding::new(Severity::Problem, "connection", text).remedy(
            "trust the authority with tls ca_file, name the server with tls server_name, and check everything",
        ))
    }
}

mod greeting;
mod limit;
mod stream;
#[cfg(test)]
mod tests;
