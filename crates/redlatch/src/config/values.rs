//! The settings of one client, all of them.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use redlatch_engine::Clock;

use super::{
    address_map::AddressMap,
    defaults::{FAIR_WAIT_MAX, LEASE_MAX, POLL_INTERVALS, RENEWAL_BATCH_MAX, WATCHDOG_LEASE_MIN},
    options::{ScriptMode, Secret, ShardedPubSub, TlsOptions},
};
use crate::{
    call_hook::CallHook,
    dialer::Dialing,
    error::{Error, ErrorKind},
    observe::Observer,
    owner::Identity,
    presence::Presence,
};

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
    pub(crate) poll_interval_max: Duration,
    pub(crate) engine_binary: Option<PathBuf>,
    pub(crate) engine_dir: Option<PathBuf>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) presence: Presence,
    pub(crate) dialing: Dialing,
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
            poll_interval_max,
            engine_binary,
            engine_dir,
            clock: _,
            observer: _,
            presence,
            dialing,
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
            .field("poll_interval_max", poll_interval_max)
            .field("engine_binary", engine_binary)
            .field("engine_dir", engine_dir)
            .field("presence", presence)
            .field("dialing", dialing)
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
        if !POLL_INTERVALS.contains(&self.poll_interval_max) {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                format!("a poll interval of {:?} is outside 10 ms to 30 s", self.poll_interval_max),
            )
            .remedy("the default of 800 ms suits most; longer asks the server less often and finds a lost message later"));
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
