//! What all sections share: the server, the local engine's directory, connections, and how long to measure.

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc, time::Duration};

use redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use redlatch::{Client, ClientBuilder, Lock, observe::Observer};
use redlatch_testkit::{process::ChildProcess, server::RedisServer};
use tempfile::TempDir;

use crate::{engine, options::Options, outcome::Outcome};

/// The time limit that an ordinary user of the client library sets.
const RESPONSE_LIMIT: Duration = Duration::from_secs(3);
/// As large as in our own connections, so that the difference is not in there.
const REQUESTS_QUEUED_MAX: usize = 4096;
const WRITE_BUFFER_BYTES: usize = 256 * 1024;
/// How long a child process may take to say something.
pub(crate) const CHILD_LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Bed {
    pub(crate) server: RedisServer,
    pub(crate) quick: bool,
    /// How long one contender runs before the next has its go.
    pub(crate) slice: Duration,
    /// How many goes each contender has in a round.
    pub(crate) slices: usize,
    own_program: PathBuf,
    engine_program: PathBuf,
    engine_dir: TempDir,
}

impl Bed {
    pub(crate) async fn make(options: &Options) -> Outcome<Bed> {
        let own_program = std::env::current_exe()?;
        Ok(Bed {
            server: RedisServer::start()?,
            quick: options.quick,
            // Many short goes: what disturbs the machine then falls on all contenders alike, or on few goes of one.
            slice: Duration::from_millis(100),
            slices: if options.quick { 3 } else { 11 },
            engine_program: options.engine.clone().unwrap_or_else(|| own_program.clone()),
            own_program,
            // The engine refuses a directory that others can enter.
            engine_dir: tempfile::Builder::new()
                .prefix("redlatch-bench-")
                .permissions(Permissions::from_mode(0o700))
                .tempdir()?,
        })
    }

    /// A client of ours; `local:` leads to this benchmark's own daemon.
    pub(crate) async fn client(&self, url: &str) -> Outcome<Client> {
        Ok(self.builder(url).connect().await?)
    }

    /// The same with another lease for what is renewed.
    pub(crate) async fn leased_client(&self, url: &str, lease: Duration) -> Outcome<Client> {
        Ok(self.builder(url).watchdog_lease(lease).connect().await?)
    }

    /// The same with an observer, if there is one.
    pub(crate) async fn observed_client(
        &self,
        url: &str,
        observer: Option<Arc<dyn Observer>>,
    ) -> Outcome<Client> {
        let builder = self.builder(url);
        Ok(match observer {
            Some(observer) => builder.observer(observer).connect().await?,
            None => builder.connect().await?,
        })
    }

    fn builder(&self, url: &str) -> ClientBuilder {
        Client::builder().url(url).engine_binary(&self.engine_program).engine_dir(self.engine_dir.path())
    }

    /// What leads other processes to the same engine, once it runs.
    pub(crate) fn local_url(&self) -> String {
        format!("local://{}", self.engine_dir.path().display())
    }

    /// The process of the local engine, once a client has had it started.
    pub(crate) fn engine_pid(&self) -> Outcome<u32> {
        engine::pid(self.engine_dir.path())
    }

    /// A connection of the client library itself, without ours.
    pub(crate) async fn raw(&self, limit: Option<Duration>) -> Outcome<MultiplexedConnection> {
        self.raw_to(&self.server.url(), limit).await
    }

    /// The same to another server.
    pub(crate) async fn raw_to(&self, url: &str, limit: Option<Duration>) -> Outcome<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(limit)
            .set_pipeline_buffer_size(REQUESTS_QUEUED_MAX)
            .set_write_backpressure_boundary(WRITE_BUFFER_BYTES);
        let client = redis::Client::open(url)?;
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// The same with the time limit that an ordinary user sets.
    pub(crate) async fn raw_limited(&self) -> Outcome<MultiplexedConnection> {
        self.raw(Some(RESPONSE_LIMIT)).await
    }

    /// Another process of this benchmark, which has said that it is ready.
    pub(crate) fn child(&self, job: &[&str]) -> Outcome<ChildProcess> {
        let args = ["child"].iter().chain(job);
        let child = ChildProcess::start(&self.own_program, args, [])?;
        child.read_until("ready", CHILD_LIMIT)?;
        Ok(child)
    }

    /// How many commands clients sent, by the server's count, without what scripts call inside the server and without
    /// the asking itself.
    pub(crate) fn commands(&self) -> Outcome<u64> {
        let sent = ["evalsha", "eval", "subscribe", "unsubscribe", "ping"];
        let counts = self.server.command_counts()?;
        Ok(sent.iter().filter_map(|name| counts.get(*name)).sum())
    }

    /// For how many microseconds the server has run scripts so far.
    pub(crate) fn script_us(&self) -> Outcome<f64> {
        let info = self.server.cmd(&["INFO", "commandstats"])?;
        let info: String = redis::from_redis_value(info)?;
        let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
        let time = line.and_then(|line| line.split(',').find_map(|field| field.strip_prefix("usec=")));
        Ok(time.map_or(Ok(0.0), str::parse)?)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Err(error) = engine::stop(self.engine_dir.path()) {
            eprintln!("the local engine did not end: {error}");
        }
    }
}

/// Locks of one client, one for each task.
pub(crate) fn locks(client: &Client, prefix: &str, count: usize) -> Vec<Lock> {
    (0..count).map(|index| client.lock(name(prefix, index))).collect()
}

pub(crate) fn name(prefix: &str, index: usize) -> String {
    format!("bench:{prefix}:{index}")
}
