//! Commands of the kit to its server.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{ConnectionLike as _, FromRedisValue, Value};

use super::{ADMIN_USER, RedisServer, lock};
use crate::error::{Error, ErrorKind, Result};

/// How long the server may take to answer the kit.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// One line of `CLIENT LIST`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The number that the server gave to the connection.
    pub id: u64,
    /// The name set with `CLIENT SETNAME`, or nothing.
    pub name: String,
    /// The last command.
    pub last_command: String,
    /// Channels, patterns and shard channels that it is subscribed to.
    pub subscriptions: u64,
}

impl RedisServer {
    /// Runs one command over the kit's own connection and returns the answer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Server`] when the server answers with an error, [`ErrorKind::Io`] when it is down or does
    /// not answer within 10 seconds.
    pub fn cmd<A: AsRef<[u8]>>(&self, args: &[A]) -> Result<Value> {
        let name = args.first().map(|a| a.as_ref().escape_ascii().to_string()).unwrap_or_default();
        let fail = |e: redis::RedisError| {
            let kind = if e.is_io_error() || e.is_timeout() { ErrorKind::Io } else { ErrorKind::Server };
            Error::because(kind, format!("{name} on the test server"), e)
        };
        let mut command = redis::Cmd::new();
        for arg in args {
            command.arg(arg.as_ref());
        }
        let mut slot = lock(&self.admin);
        let mut connection = match slot.take() {
            Some(connection) if connection.is_open() => connection,
            _ => self.connect_admin().map_err(fail)?,
        };
        let answer = command.query::<Value>(&mut connection);
        // After a failed read the connection may still owe an answer, so it is not used again.
        if !matches!(&answer, Err(e) if e.is_io_error() || e.is_timeout() || e.is_connection_dropped()) {
            *slot = Some(connection);
        }
        answer.map_err(fail)
    }

    fn connect_admin(&self) -> redis::RedisResult<redis::Connection> {
        let url = format!("{}?user={ADMIN_USER}&pass={}", self.unix_url(), self.admin_password);
        let connection = redis::Client::open(url)?.get_connection_with_timeout(ANSWER_LIMIT)?;
        connection.set_read_timeout(Some(ANSWER_LIMIT))?;
        connection.set_write_timeout(Some(ANSWER_LIMIT))?;
        Ok(connection)
    }

    pub(crate) fn query<T: FromRedisValue>(&self, args: &[&[u8]]) -> Result<T> {
        let value = self.cmd(args)?;
        T::from_redis_value(value)
            .map_err(|e| Error::because(ErrorKind::Server, "an answer of an unexpected type", e))
    }

    /// Forgets all cached scripts (`SCRIPT FLUSH`).
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn flush_scripts(&self) -> Result<()> {
        self.cmd(&["SCRIPT", "FLUSH"]).map(drop)
    }

    /// Removes all keys (`FLUSHALL`).
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn flush_all(&self) -> Result<()> {
        self.cmd(&["FLUSHALL"]).map(drop)
    }

    /// How often the server ran a command, such as `evalsha`, since it started or its statistics were reset.
    /// Calls out of scripts count too. A subcommand is named as in `script|load`.
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn command_count(&self, command: &str) -> Result<u64> {
        Ok(self.command_counts()?.get(&command.to_ascii_lowercase()).copied().unwrap_or(0))
    }

    /// How often the server ran each command (`INFO commandstats`).
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn command_counts(&self) -> Result<BTreeMap<String, u64>> {
        let info: String = self.query(&[b"INFO", b"commandstats"])?;
        let lines = info.lines().filter_map(|line| {
            let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let calls = fields.split(',').find_map(|field| field.strip_prefix("calls="))?;
            Some((name.to_owned(), calls.parse().ok()?))
        });
        Ok(lines.collect())
    }

    /// Sets the counters of [`command_count`](Self::command_count) to zero.
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn reset_command_counts(&self) -> Result<()> {
        self.cmd(&["CONFIG", "RESETSTAT"]).map(drop)
    }

    /// All channels with at least one subscriber, sorted; shard channels included where the server has them.
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn subscriber_channels(&self) -> Result<Vec<Vec<u8>>> {
        let mut channels: Vec<Vec<u8>> = self.query(&[b"PUBSUB", b"CHANNELS"])?;
        // Servers before 7.0 know no shard channels and answer with an error.
        channels.extend(self.query::<Vec<Vec<u8>>>(&[b"PUBSUB", b"SHARDCHANNELS"]).unwrap_or_default());
        channels.sort();
        channels.dedup();
        Ok(channels)
    }

    /// The connections to the server, without the kit's own and those of replicas and sentinels.
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn clients(&self) -> Result<Vec<ClientInfo>> {
        let list: String = self.query(&[b"CLIENT", b"LIST"])?;
        Ok(list.lines().filter_map(client_info).collect())
    }
}

fn client_info(line: &str) -> Option<ClientInfo> {
    let fields: BTreeMap<&str, &str> = line.split(' ').filter_map(|field| field.split_once('=')).collect();
    // The users of replicas and sentinels have names that begin like that.
    if fields.get("user").is_some_and(|user| user.starts_with(ADMIN_USER)) {
        return None;
    }
    let text = |key: &str| fields.get(key).copied().unwrap_or_default().to_owned();
    let count = |key: &str| fields.get(key).and_then(|v| v.parse::<u64>().ok()).unwrap_or(0);
    Some(ClientInfo {
        id: count("id"),
        name: text("name"),
        last_command: text("cmd"),
        subscriptions: count("sub") + count("psub") + count("ssub"),
    })
}
