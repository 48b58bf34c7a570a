//! What a client is built from: the store's URL, settings in words, and a store that is given.

use std::{fmt, mem, sync::Arc, time::Duration};

use redlatch_engine::Clock;

use super::{Client, DEFAULT_URL};
use crate::{
    config::{
        AddressMap, Config, Notice, REDISSON_URL_SCHEME, RedissonYaml, ScriptMode, Secret, ShardedPubSub,
        TlsOptions, settings::Settings,
    },
    core::{Core, Origin, fork_safe::ForkSafeCore, keeper::Keeper},
    dialer::{Dialer, Dialing},
    error::{Error, ErrorKind},
    observe::Observer,
    presence::Presence,
    store::{self, Store},
};

/// Options of a [`Client`].
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until it is connected"]
pub struct ClientBuilder {
    config: Config,
    given: Settings,
    redisson: Option<RedissonYaml>,
    store: Option<Arc<dyn Store>>,
    /// A URL was given, be it an empty one.
    names_store: bool,
    background: Option<tokio::runtime::Handle>,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("given", &self.given)
            .field("redisson", &self.redisson)
            .field("outage_tolerance", &self.config.outage_tolerance)
            .field("turn_time", &self.config.turn_time_max)
            .field("poll_interval_max", &self.config.poll_interval_max)
            .finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// The store's URL, as for [`Client::connect`]; `local:` unless set. An empty one is an error. `memory:` is a store of this client's own.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.config.url = url.into();
        self.names_store = true;
        self
    }

    /// The user name; wins over the one in the URL.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.given.username = Some(username.into());
        self
    }

    /// The password; wins over the one in the URL. Never printed.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.given.password = Secret(Some(password.into()));
        self.given.password_file = None;
        self
    }

    /// A file with the password and nothing else, at most 64 KiB, in place of [`password`](Self::password): what is said last
    /// counts. It is read when the client connects, and again when a server refuses the password, so that a client outlives a
    /// change of passwords.
    pub fn password_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.given.password_file = Some(path.into());
        self.given.password = Secret(None);
        self
    }

    /// The user name for the sentinels themselves, who often have credentials of their own; wins over the one in the URL.
    pub fn sentinel_username(mut self, username: impl Into<String>) -> Self {
        self.given.sentinel_username = Some(username.into());
        self
    }

    /// The password for the sentinels themselves; wins over the one in the URL. Never printed.
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.given.sentinel_password = Secret(Some(password.into()));
        self.given.sentinel_password_file = None;
        self
    }

    /// The same for the password of the sentinels themselves, as [`password_file`](Self::password_file).
    pub fn sentinel_password_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.given.sentinel_password_file = Some(path.into());
        self.given.sentinel_password = Secret(None);
        self
    }

    /// Where servers are reached that announce other addresses; wins over the URL. Addresses of the URL itself are used as they
    /// are.
    pub fn address_map(mut self, map: AddressMap) -> Self {
        self.given.address_map = Some(map);
        self
    }

    /// Which kind of publish and subscribe a cluster's locks use; as Redisson decides unless set;
    /// wins over the URL. Elsewhere it changes nothing.
    pub fn sharded(mut self, sharded: ShardedPubSub) -> Self {
        self.given.sharded = Some(sharded);
        self
    }

    /// How scripts reach the server; by hash and text unless set. Wins over the URL.
    pub fn scripts(mut self, mode: ScriptMode) -> Self {
        self.given.scripts = Some(mode);
        self
    }

    /// The name that connections for commands give themselves (`CLIENT SETNAME`): ASCII letters and signs without blanks; none
    /// unless set. A server that forbids it is used without.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.given.client_name = Some(name.into());
        self
    }

    /// How long a waiter of Redisson for a fair lock counts (its `fairLockWaitTimeout`, up to one day): 300 s unless set. All
    /// clients of a fair lock, Java's included, should say the same.
    pub fn redisson_fair_wait(mut self, wait: Duration) -> Self {
        self.given.redisson_fair_wait = Some(wait);
        self
    }

    /// How many names one renewal call refreshes: 1 to 100, 100 unless set.
    pub fn renewal_batch(mut self, names: usize) -> Self {
        self.given.renewal_batch = Some(names);
        self
    }

    /// How encrypted connections are checked. The files are looked at for each new connection and read again when they have
    /// changed; if the new ones cannot be used, that is logged, and the last good ones stay in use.
    pub fn tls(mut self, tls: TlsOptions) -> Self {
        self.given.tls = Some(tls);
        self
    }

    /// The lease of holds that are renewed: 150 ms to 100 years, 30 s unless set. Renewal comes every third of it.
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.given.watchdog_lease = Some(lease);
        self
    }

    /// How long a connection attempt may take: 1 ms to 1 h, 5 s unless set.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.given.connect_timeout = Some(limit);
        self
    }

    /// How long an answer may take before the connection counts as dead: 1 ms to 1 h, 3 s unless set.
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.given.response_timeout = Some(limit);
        self
    }

    /// How long a wait without limit rides out an unreachable server: 30 s unless set.
    pub fn outage_tolerance(mut self, limit: Duration) -> Self {
        self.config.outage_tolerance = limit;
        self
    }

    /// How long this process may pass a lock on among its own tasks while others wait: 8 ms unless set, zero for never.
    pub fn turn_time(mut self, limit: Duration) -> Self {
        self.config.turn_time_max = limit;
        self
    }

    /// How long a waiter that hears the server's messages sleeps at most before it looks again: 10 ms to 30 s, 800 ms unless set.
    ///
    /// A release wakes waiters by a message, and the end of a lease is known. A key that is deleted or expires early is told to those that have
    /// waited for longer than a moment, where the server tells of changes. This is the net under all that, for what is lost of it. With many waiters a longer one spares the server requests.
    /// A waiter sleeps for a random time from the half of it to the whole. It looks every 800 ms if messages were never heard, and
    /// every 3 s while others are before it in the queue of a fair lock, or as often as this says up to 10 s.
    pub fn poll_interval_max(mut self, limit: Duration) -> Self {
        self.config.poll_interval_max = limit;
        self
    }

    /// The `redlatch` command that is to be started for `local:`; looked up in `REDLATCH_ENGINE_BIN` and on `PATH` unless set.
    pub fn engine_binary(mut self, command: impl Into<std::path::PathBuf>) -> Self {
        self.config.engine_binary = Some(command.into());
        self
    }

    /// Where the daemon behind `local:` lives, an absolute path; `$REDLATCH_RUNTIME_DIR` or `/var/tmp/redlatch-<uid>` unless set. Only
    /// its owner may have access to it.
    pub fn engine_dir(mut self, dir: impl Into<std::path::PathBuf>) -> Self {
        self.config.engine_dir = Some(dir.into());
        self
    }

    /// Is told what the client does, for metrics of the program's own: none unless set.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.config.observer = Some(observer);
        self
    }

    /// Whether and how the client tells others what it holds and waits for: told unless set.
    pub fn presence(mut self, presence: Presence) -> Self {
        self.config.presence = presence;
        self
    }

    /// The clock that deadlines are counted on, for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.config.clock = clock;
        self
    }

    /// Renews and watches on this runtime instead of a thread of the client's own.
    ///
    /// It is for tests in which one thread does everything, as with a paused clock. A runtime that is busy or stands still for longer
    /// than a lease loses every lock, which the thread of one's own is there to prevent; and the client is of no use when the
    /// runtime has ended.
    pub fn background_on(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.background = Some(runtime);
        self
    }

    /// Opens the connections to servers over this in place of TCP: a tunnel, a proxy, or the simulated network of a test.
    pub fn dialer(mut self, dialer: Arc<dyn Dialer>) -> Self {
        self.config.dialing = Dialing(Some(dialer));
        self
    }

    pub(crate) fn keeper(&self) -> Result<Keeper, Error> {
        self.background.clone().map_or_else(Keeper::start, |runtime| Ok(Keeper::on(runtime)))
    }

    /// A store of one's own instead of a URL's: for tests, and for backends that are not built in.
    pub fn custom_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Takes the store and other settings from a Redisson configuration file, as it is. What this builder is told besides wins
    /// over the file, whatever comes first; only the store's URL must not be given twice. Read [`notices`](Self::notices) for
    /// what the file says and is not followed; they are logged as well.
    ///
    /// # Errors
    ///
    /// As [`RedissonYaml::read`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), redlatch::Error> {
    /// let client = redlatch::Client::builder().redisson_yaml("/etc/app/redisson.yaml")?.connect().await?;
    /// # Ok(()) }
    /// ```
    pub fn redisson_yaml(self, path: impl AsRef<std::path::Path>) -> Result<Self, Error> {
        Ok(self.redisson(RedissonYaml::read(path)?))
    }

    /// The same for the text of such a file.
    ///
    /// # Errors
    ///
    /// As [`RedissonYaml::parse`], with the variables of this process.
    pub fn redisson_yaml_str(self, text: &str) -> Result<Self, Error> {
        Ok(self.redisson(RedissonYaml::parse_here(text)?))
    }

    /// The same for such a file that was read before.
    pub fn redisson(mut self, file: RedissonYaml) -> Self {
        self.redisson = Some(file);
        self
    }

    /// What the Redisson file says and is not followed, or not as it stands.
    pub fn notices(&self) -> &[Notice] {
        self.redisson.as_ref().map_or(&[], RedissonYaml::notices)
    }

    #[cfg(test)]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Says whether this can be connected with, as far as that shows without a connection: the URL, the ranges of options, what a
    /// Redisson file needs besides.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`](crate::ErrorKind::InvalidUrl) and [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption),
    /// as [`connect`](Self::connect) would answer.
    ///
    /// # Example
    ///
    /// ```
    /// use redlatch::Client;
    /// assert!(Client::builder().url("redis://host:6379").check().is_ok());
    /// assert!(Client::builder().url("reddis://host:6379").check().is_err());
    /// ```
    pub fn check(&self) -> Result<(), Error> {
        let mut settled = self.clone();
        settled.settle()?;
        settled.config.check()
    }

    /// Connects.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`], and [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption) for options out of range.
    pub async fn connect(self) -> Result<Client, Error> {
        let keeper = self.keeper()?;
        self.connect_with(keeper).await
    }

    /// Puts together what builder, Redisson's file and URL say, in this order, and answers what is not followed.
    fn settle(&mut self) -> Result<Vec<Notice>, Error> {
        if self.names_store {
            // An empty one is an error, and not the store that is used where none is named.
            if self.config.url.trim().is_empty() {
                store::StoreUrl::parse(&self.config.url)?;
            }
        } else {
            self.config.url.clear();
        }
        if let Some(path) = self.config.url.trim().strip_prefix(REDISSON_URL_SCHEME) {
            if self.redisson.is_some() {
                return Err(two_stores());
            }
            self.redisson = Some(RedissonYaml::read(path)?);
            self.config.url.clear();
        }
        let mut settings = mem::take(&mut self.given);
        let mut notices = Vec::new();
        if let Some(file) = self.redisson.take() {
            if !self.config.url.trim().is_empty() {
                return Err(two_stores());
            }
            file.check_stores(settings.tls.as_ref())?;
            notices = file.notices().to_vec();
            self.config.url = file.url;
            settings = settings.or(file.settings);
        }
        if self.config.url.is_empty() {
            self.config.url = DEFAULT_URL.into();
        }
        let (_, from_url) = store::StoreUrl::parse_with_options(&self.config.url)?;
        settings.sharded = settings.sharded.or(from_url.sharded);
        settings.scripts = settings.scripts.or(from_url.scripts);
        settings.address_map = settings.address_map.or(from_url.address_map);
        settings.apply(&mut self.config);
        Ok(notices)
    }

    /// A client that connects when it is first used; see [`Client::connect_lazy`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn connect_lazy(mut self) -> Result<Client, Error> {
        self.settle_aloud()?;
        let keeper = self.keeper()?;
        self.config = self.config.of_client(keeper.call_hook());
        let (origin, store) = match self.store {
            Some(store) => (Origin::Given, store),
            None => (Origin::Lazy, store::open_lazily(&self.config, keeper.handle())?),
        };
        Ok(Client { core: ForkSafeCore::new(Core::new(self.config, origin, store, keeper)) })
    }

    /// Settles what is to be used, and logs what is not followed.
    fn settle_aloud(&mut self) -> Result<(), Error> {
        for notice in self.settle()? {
            tracing::warn!(%notice, "Redisson's file says something that is not followed");
        }
        self.config.check()
    }

    pub(crate) async fn connect_with(mut self, keeper: Keeper) -> Result<Client, Error> {
        self.settle_aloud()?;
        self.config = self.config.of_client(keeper.call_hook());
        let (origin, store) = match self.store {
            Some(store) => (Origin::Given, store),
            None if store::is_at_hand(&self.config) => {
                (Origin::Lazy, store::open_lazily(&self.config, keeper.handle())?)
            }
            None => (Origin::Connected, store::open(&self.config, keeper.handle()).await?),
        };
        Ok(Client { core: ForkSafeCore::new(Core::new(self.config, origin, store, keeper)) })
    }
}

/// Credentials of one store must not go to another one, so none of the two wins.
fn two_stores() -> Error {
    Error::new(ErrorKind::InvalidOption, "both a URL and a Redisson file say where the locks live")
        .remedy("give one of them")
}

#[cfg(test)]
mod tests;
