//! What was set, before defaults: by the builder or by a file. The builder's word wins over a file's, a file's over
//! a default, in whatever order they were said.

use std::{path::PathBuf, sync::Arc, time::Duration};

use redlatch_engine::SystemClock;

use super::{
    AddressMap, CONNECT_TIMEOUT, Config, OUTAGE_TOLERANCE, POLL_INTERVAL_MAX, REDISSON_FAIR_WAIT,
    RENEWAL_BATCH_MAX, RESPONSE_TIMEOUT, ScriptMode, Secret, ShardedPubSub, TURN_TIME_MAX, TlsOptions,
    WATCHDOG_LEASE,
};
use crate::{call_hook::CallHook, dialer::Dialing, presence::Presence};

/// Settings that may also come from elsewhere than the builder. `None` means that nothing was said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) username: Option<String>,
    pub(crate) password: Secret,
    /// Where a password is read from; of the two at most one is said.
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) sentinel_username: Option<String>,
    pub(crate) sentinel_password: Secret,
    pub(crate) sentinel_password_file: Option<PathBuf>,
    pub(crate) address_map: Option<AddressMap>,
    pub(crate) client_name: Option<String>,
    pub(crate) sharded: Option<ShardedPubSub>,
    pub(crate) scripts: Option<ScriptMode>,
    pub(crate) tls: Option<TlsOptions>,
    pub(crate) watchdog_lease: Option<Duration>,
    pub(crate) renewal_batch: Option<usize>,
    pub(crate) redisson_fair_wait: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) response_timeout: Option<Duration>,
}

impl Settings {
    /// These, and where they say nothing, the others.
    pub(crate) fn or(self, other: Settings) -> Settings {
        // A password and a file of one are one setting.
        let either = |one: (Secret, Option<PathBuf>), other| {
            if one.0.0.is_some() || one.1.is_some() { one } else { other }
        };
        let (password, password_file) =
            either((self.password, self.password_file), (other.password, other.password_file));
        let (sentinel_password, sentinel_password_file) = either(
            (self.sentinel_password, self.sentinel_password_file),
            (other.sentinel_password, other.sentinel_password_file),
        );
        Settings {
            username: self.username.or(other.username),
            password,
            password_file,
            sentinel_username: self.sentinel_username.or(other.sentinel_username),
            sentinel_password,
            sentinel_password_file,
            address_map: self.address_map.or(other.address_map),
            client_name: self.client_name.or(other.client_name),
            sharded: self.sharded.or(other.sharded),
            scripts: self.scripts.or(other.scripts),
            tls: self.tls.or(other.tls),
            watchdog_lease: self.watchdog_lease.or(other.watchdog_lease),
            renewal_batch: self.renewal_batch.or(other.renewal_batch),
            redisson_fair_wait: self.redisson_fair_wait.or(other.redisson_fair_wait),
            connect_timeout: self.connect_timeout.or(other.connect_timeout),
            response_timeout: self.response_timeout.or(other.response_timeout),
        }
    }

    /// Writes what was said over the defaults.
    pub(crate) fn apply(self, config: &mut Config) {
        config.username = self.username;
        config.password = self.password;
        config.password_file = self.password_file;
        config.sentinel_username = self.sentinel_username;
        config.sentinel_password = self.sentinel_password;
        config.sentinel_password_file = self.sentinel_password_file;
        config.address_map = Arc::new(self.address_map.unwrap_or_default());
        config.client_name = self.client_name;
        config.sharded = self.sharded.unwrap_or_default();
        config.scripts = self.scripts.unwrap_or_default();
        config.tls = self.tls.unwrap_or_default();
        config.watchdog_lease = self.watchdog_lease.unwrap_or(WATCHDOG_LEASE);
        config.renewal_batch = self.renewal_batch.unwrap_or(RENEWAL_BATCH_MAX);
        config.redisson_fair_wait = self.redisson_fair_wait.unwrap_or(REDISSON_FAIR_WAIT);
        config.connect_timeout = self.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        config.response_timeout = self.response_timeout.unwrap_or(RESPONSE_TIMEOUT);
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            identity: None,
            calls: CallHook::default(),
            url: String::new(),
            username: None,
            password: Secret(None),
            password_file: None,
            sentinel_username: None,
            sentinel_password: Secret(None),
            sentinel_password_file: None,
            address_map: Arc::default(),
            client_name: None,
            sharded: ShardedPubSub::default(),
            scripts: ScriptMode::default(),
            tls: TlsOptions::default(),
            watchdog_lease: WATCHDOG_LEASE,
            renewal_batch: RENEWAL_BATCH_MAX,
            redisson_fair_wait: REDISSON_FAIR_WAIT,
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
            outage_tolerance: OUTAGE_TOLERANCE,
            turn_time_max: TURN_TIME_MAX,
            poll_interval_max: POLL_INTERVAL_MAX,
            engine_binary: None,
            engine_dir: None,
            clock: Arc::new(SystemClock),
            observer: None,
            presence: Presence::default(),
            dialing: Dialing::default(),
        }
    }
}
