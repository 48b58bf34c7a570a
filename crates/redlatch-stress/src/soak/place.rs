//! Where the locks of a soak live, and what the servers say of it.

use std::{
    thread,
    time::{Duration, Instant},
};

use redlatch::{Client, ClientBuilder};
use redlatch_testkit::server::RedisServer;

use super::{LEASE, engine::Engine, figures::Figures};
use crate::bed::Outcome;

/// How many keys of `memory:` are counted at most; more than one is too many.
const KEYS_MAX: usize = 10_000;
const LEAK_BYTES: usize = 6 << 20;
/// How many keys the server tells of when they change.
const TRACKED: &str = "tracking_total_keys";
/// How long that may take to begin, and how often it is looked whether it has.
const WATCH_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Store {
    /// One Redis server.
    Redis,
    /// The local engine, in a process of its own.
    Local,
    /// The engine in this process.
    Memory,
}

/// A store in use.
pub(super) enum Place {
    Redis(Box<RedisServer>),
    Local(Box<Engine>),
    Memory,
}

impl Place {
    pub(super) fn start(store: Store) -> Outcome<Self> {
        Ok(match store {
            Store::Redis => Place::Redis(Box::new(RedisServer::start()?)),
            Store::Local => Place::Local(Box::new(Engine::start()?)),
            Store::Memory => Place::Memory,
        })
    }

    /// A client of this store. What it leaves behind stays until long after the soak has looked.
    pub(super) fn builder(&self) -> ClientBuilder {
        let builder = Client::builder().watchdog_lease(LEASE);
        match self {
            Place::Redis(server) => builder.url(server.url()),
            Place::Local(engine) => builder.url("local:").engine_dir(engine.dir()),
            Place::Memory => builder.url("memory:soak"),
        }
    }

    /// The same for one of many, which has an engine of its own where one can.
    pub(super) fn builder_apart(&self) -> ClientBuilder {
        match self {
            Place::Memory => self.builder().url("memory:"),
            _ => self.builder(),
        }
    }

    /// Keeps something on purpose where the locks live.
    pub(super) fn leak(&mut self, number: u64) -> Outcome<()> {
        match self {
            Place::Redis(server) => {
                let value = vec![b'x'; LEAK_BYTES];
                server.cmd(&[b"SET".as_slice(), format!("leak:{number}").as_bytes(), &value]).map(drop)?;
            }
            Place::Local(engine) => engine.leak()?,
            Place::Memory => {}
        }
        Ok(())
    }

    /// Waits until the server watches more keys than so many, where that can be asked; answers how many it does.
    pub(super) fn watches_more_than(&self, count: Option<u64>) -> Outcome<u64> {
        let Place::Redis(server) = self else { return Ok(0) };
        let began = Instant::now();
        loop {
            let watched = info(server, "stats", TRACKED)?;
            if count.is_none_or(|count| watched > count) {
                return Ok(watched);
            }
            if began.elapsed() > WATCH_LIMIT {
                return Err("the server does not watch what is held".into());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    pub(super) async fn look(&mut self, client: &Client, figures: &mut Figures) -> Outcome<()> {
        match self {
            Place::Redis(server) => look_at(server, figures),
            Place::Local(engine) => engine.look(figures),
            Place::Memory => {
                let keys = client.list(None, KEYS_MAX).await?;
                figures.count("engine: locks", keys.len() as u64)
            }
        }
    }
}

fn info(server: &RedisServer, section: &str, field: &str) -> Outcome<u64> {
    let text: String = redis::from_redis_value(server.cmd(&["INFO", section])?)?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    Ok(value.ok_or_else(|| format!("the server does not tell {field}"))?.trim().parse()?)
}

fn look_at(server: &RedisServer, figures: &mut Figures) -> Outcome<()> {
    let number = |words: &[&str]| -> Outcome<u64> { Ok(redis::from_redis_value(server.cmd(words)?)?) };
    let info = |section, field| info(server, section, field);
    let clients = server.clients()?;
    figures.bytes("server: memory", info("memory", "used_memory")?)?;
    figures.count("server: connections", clients.len() as u64)?;
    figures.count("server: subscriptions", clients.iter().map(|client| client.subscriptions).sum())?;
    figures.count("server: channels", server.subscriber_channels()?.len() as u64)?;
    figures.count("server: patterns", number(&["PUBSUB", "NUMPAT"])?)?;
    figures.count("server: tracking clients", info("clients", "tracking_clients")?)?;
    figures.count("server: tracked keys", info("stats", TRACKED)?)?;
    figures.count("server: tracked prefixes", info("stats", "tracking_total_prefixes")?)?;
    figures.count("server: keys", number(&["DBSIZE"])?)
}
