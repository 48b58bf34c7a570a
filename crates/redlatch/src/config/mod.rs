//! Every setting, its default, and its limits.

mod address_map;
mod redisson;
pub(crate) mod settings;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use redlatch_engine::Clock;

pub use address_map::AddressMap;
pub(crate) use redisson::URL_SCHEME as REDISSON_URL_SCHEME;
pub use redisson::{Notice, RedissonValue, RedissonYaml};

use crate::{
    call_hook::CallHook,
    error::{Error, ErrorKind},
    owner::Identity,
};

/// The lease of holds that are renewed, unless set otherwise: 30 s, as Redisson's `lockWatchdogTimeout`.
pub const WATCHDOG_LEASE: Duration = Duration::from_secs(30);
/// The shortest lease of a renewed hold. Below it a renewal every third could not survive one slow reply.
pub const WATCHDOG_LEASE_MIN: Duration = Duration::from_millis(150);
/// The longest lease of any kind: one hundred years. Redis keeps expiry in 64-bit milliseconds, and sums must not wrap.
pub const LEASE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// How long a connection attempt may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take before the connection counts as dead.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a wait without limit rides out an unreachable server.
pub const OUTAGE_TOLERANCE: Duration = Duration::from_secs(30);
/// The longest a waiter sleeps without looking again: the safety net under lost messages.
pub const POLL_INTERVAL_MAX: Duration = Duration::from_millis(800);
/// The same for a waiter that has others before it in a queue on the server.
pub const QUEUE_POLL_INTERVAL_MAX: Duration = Duration::from_secs(3);
/// For how long a waiter for a fair lock counts, after the present lease, without being heard of again.
pub const FAIR_WAIT: Duration = Duration::from_secs(30);
/// The same for a waiter of Redisson, who adds it to its time and subtracts it from those behind it (its default).
pub const REDISSON_FAIR_WAIT: Duration = Duration::from_secs(300);
/// The longest of these times that may be set.
pub const FAIR_WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long one process may pass a lock on among its own tasks before others get their turn.
pub const TURN_TIME_MAX: Duration = Duration::from_millis(8);
/// How often one process may pass a lock on among its own tasks before others get their turn.
pub const TURN_PASSES_MAX: u32 = 10_000;
/// How many members a lock over several may have.
pub const MEMBERS_MAX: usize = 1_000;
/// The shortest time that a member of a quorum has for its answer, unless set otherwise.
pub const MEMBER_TIMEOUT_MIN: Duration = Duration::from_millis(50);
/// The longest time that a member of a quorum has for its answer, unless set otherwise.
pub const MEMBER_TIMEOUT_MAX: Duration = Duration::from_millis(500);
/// What is taken off the validity of a quorum, besides each member's own hundredth of the lease: servers keep time in whole
/// milliseconds, and two of them may round against us.
pub const QUORUM_DRIFT: Duration = Duration::from_millis(2);
/// How long to wait for replicas that are to confirm a grant, unless set otherwise: 1 s, as Redisson's `slavesSyncTimeout`.
pub const REPLICA_ACK_TIME: Duration = Duration::from_secs(1);
/// The longest time to wait for them.
pub const REPLICA_ACK_TIME_MAX: Duration = Duration::from_secs(3600);
/// How many replicas may be asked for.
pub const REPLICAS_MAX: u32 = 1_000;
/// How many names one renewal call refreshes. Larger batches would hold up the server for others.
pub const RENEWAL_BATCH_MAX: usize = 100;

/// A secret that never shows in debug output.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) Option<String>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "<redacted>" } else { "none" })
    }
}

/// How to check and authenticate an encrypted connection (`rediss://`).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TlsOptions {
    /// A PEM file of certificate authorities to trust instead of the public ones.
    pub ca_file: Option<PathBuf>,
    /// A PEM file with the client's certificate chain.
    pub cert_file: Option<PathBuf>,
    /// A PEM file with the client's private key.
    pub key_file: Option<PathBuf>,
    /// The name to expect in the server's certificate, when it is not the host of the URL.
    pub server_name: Option<String>,
    /// Accept a certificate of a trusted authority whatever name is in it, as Redisson's `sslVerificationMode: CA_ONLY` does.
    /// Whoever has any certificate of that authority can then pose as the server; a warning is logged on each connect.
    pub danger_accept_any_host_name: bool,
    /// Accept any certificate. Anybody on the path can then read and change everything; a warning is logged on each connect.
    pub danger_accept_any_certificate: bool,
}

/// Which kind of publish and subscribe a cluster's locks use. All clients of a lock must agree, Java's included, or waiters only
/// notice a release when they look by themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardedPubSub {
    /// As Redisson decides: sharded in a cluster whose servers know it (Redis 7.0, Valkey), plain otherwise.
    #[default]
    Auto,
    /// Always sharded.
    On,
    /// Always plain, as Redisson before 3.22.0 does.
    Off,
    /// Publish and listen both ways, for fleets with clients of either kind.
    Compat,
}

/// How scripts reach the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScriptMode {
    /// By hash, with the text when the server does not know it.
    #[default]
    Eval,
    /// As functions of a library that an operator has loaded before ([`Client::load_functions`](crate::Client::load_functions)),
    /// so that clients need no right to run scripts of their own. Redis 7.0 or later, or Valkey; `memory:` and `local:` have the
    /// scripts built in and ignore it.
    Functions,
}

impl std::str::FromStr for ShardedPubSub {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "auto" => ShardedPubSub::Auto,
            "on" => ShardedPubSub::On,
            "off" => ShardedPubSub::Off,
            "compat" => ShardedPubSub::Compat,
            _ => return Err(Error::new(ErrorKind::InvalidOption, "sharded is not auto, on, off or compat")),
        })
    }
}

impl std::str::FromStr for ScriptMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "eval" => ScriptMode::Eval,
            "functions" => ScriptMode::Functions,
            _ => return Err(Error::new(ErrorKind::InvalidOption, "scripts is not eval or functions")),
        })
    }
}

#[derive(Clone)]
pub(crate) struct Config {
    /// Whose connections these are; none before the client is made.
    pub(crate) identity: Option<Identity>,
    /// Has the background thread of that client watch what they send.
    pub(crate) calls: CallHook,
    pub(crate) url: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Secret,
    /// Instead of a password.
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) sentinel_username: Option<String>,
    pub(crate) sentinel_password: Secret,
    pub(crate) sentinel_password_file: Option<PathBuf>,
    pub(crate) address_map: Arc<AddressMap>,
    pub(crate) client_name: Option<String>,
    pub(crate) sharded: ShardedPubSub,
    pub(crate) scripts: ScriptMode,
    pub(crate) tls: TlsOptions,
    pub(crate) watchdog_lease: Duration,
    pub(crate) renewal_batch: usize,
    pub(crate) redisson_fair_wait: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) outage_tolerance: Duration,
    pub(crate) turn_time_max: Duration,
    pub(crate) engine_binary: Option<PathBuf>,
    pub(crate) engine_dir: Option<PathBuf>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may carry a password, so it is left out.
        let Config {
            identity: _,
            calls: _,
            url: _,
            username,
            password,
            password_file,
            sentinel_username,
            sentinel_password,
            sentinel_password_file,
            address_map,
            client_name,
            sharded,
            scripts,
            tls,
            watchdog_lease,
            renewal_batch,
            redisson_fair_wait,
            connect_timeout,
            response_timeout,
            outage_tolerance,
            turn_time_max,
            engine_binary,
            engine_dir,
            clock: _,
        } = self;
        f.debug_struct("Config")
            .field("username", username)
            .field("password", password)
            .field("password_file", password_file)
            .field("sentinel_username", sentinel_username)
            .field("sentinel_password", sentinel_password)
            .field("sentinel_password_file", sentinel_password_file)
            .field("address_map", address_map)
            .field("client_name", client_name)
            .field("sharded", sharded)
            .field("scripts", scripts)
            .field("tls", tls)
            .field("watchdog_lease", watchdog_lease)
            .field("renewal_batch", renewal_batch)
            .field("redisson_fair_wait", redisson_fair_wait)
            .field("connect_timeout", connect_timeout)
            .field("response_timeout", response_timeout)
            .field("outage_tolerance", outage_tolerance)
            .field("turn_time_max", turn_time_max)
            .field("engine_binary", engine_binary)
            .field("engine_dir", engine_dir)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// From here on it is the configuration of one client, which has this identity and a background thread that watches its calls.
    pub(crate) fn of_client(self, calls: CallHook) -> Self {
        Config { identity: Some(Identity::default()), calls, ..self }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.watchdog_lease < WATCHDOG_LEASE_MIN || self.watchdog_lease > LEASE_MAX {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                format!(
                    "a renewed lease of {:?} is outside {WATCHDOG_LEASE_MIN:?} to {LEASE_MAX:?}",
                    self.watchdog_lease
                ),
            )
            .remedy("the default of 30 s suits most; shorter frees a crashed holder's lock sooner and tolerates less delay"));
        }
        for (name, value) in
            [("connect timeout", self.connect_timeout), ("response timeout", self.response_timeout)]
        {
            if value < Duration::from_millis(1) || value > Duration::from_secs(3600) {
                return Err(Error::new(
                    ErrorKind::InvalidOption,
                    format!("a {name} of {value:?} is outside 1 ms to 1 h"),
                ));
            }
        }
        if self.redisson_fair_wait > FAIR_WAIT_MAX {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                format!("a time of Redisson's fair waiters of {:?} is over a day", self.redisson_fair_wait),
            ));
        }
        if !(1..=RENEWAL_BATCH_MAX).contains(&self.renewal_batch) {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                format!("{} names a renewal are not 1 to {RENEWAL_BATCH_MAX}", self.renewal_batch),
            ));
        }
        if self.client_name.as_deref().is_some_and(|name| name.bytes().any(|b| !(0x21..=0x7e).contains(&b))) {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                "a client's name has no blanks, and only ASCII letters and signs",
            ));
        }
        Ok(())
    }
}

/// A lease in whole milliseconds, checked.
pub(crate) fn lease_ms(lease: Duration) -> Result<i64, Error> {
    if lease < Duration::from_millis(1) {
        return Err(Error::new(ErrorKind::InvalidOption, format!("a lease of {lease:?} is under 1 ms"))
            .remedy("give a lease of at least 1 ms, or none to have it renewed"));
    }
    if lease > LEASE_MAX {
        return Err(Error::new(ErrorKind::InvalidOption, "the lease is over one hundred years")
            .remedy("use a renewed lease, which lasts as long as its holder"));
    }
    Ok(lease.as_millis() as i64)
}
