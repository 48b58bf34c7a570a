//! Asserting that a test left nothing behind on the server.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::server::RedisServer;
use crate::stall::awake_since;

/// How often the server is asked; it offers no event for "all of this is gone".
const POLL: Duration = Duration::from_millis(10);

/// What to look for. Keys and channels count when their name contains the given part, so that names derived
/// from it with a prefix of their own (queues, channels) are found as well.
#[derive(Debug, Clone)]
pub struct LeftoverCheck<'a> {
    server: &'a RedisServer,
    name_part: Vec<u8>,
    clients_max: Option<usize>,
}

impl<'a> LeftoverCheck<'a> {
    /// Looks for keys and channels whose name contains `name_part`; an empty part means all of them.
    pub fn new(server: &'a RedisServer, name_part: impl AsRef<[u8]>) -> Self {
        Self { server, name_part: name_part.as_ref().to_vec(), clients_max: None }
    }

    /// Also reports connections when more than `count` are open (the kit's own do not count).
    pub fn clients_max(mut self, count: usize) -> Self {
        self.clients_max = Some(count);
        self
    }

    /// What is there now, one line each; nothing when all is clean.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`].
    pub fn look(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for (key, dump) in self.server.keys_dump()? {
            if self.matches(&key) {
                let ttl = dump.pttl_ms.map_or("no expiry".to_owned(), |ms| format!("{ms} ms left"));
                found.push(format!("key {} ({}, {ttl})", key.escape_ascii(), dump.kind));
            }
        }
        for channel in self.server.subscriber_channels()? {
            if self.matches(&channel) {
                found.push(format!("channel {}", channel.escape_ascii()));
            }
        }
        if let Some(max) = self.clients_max {
            let clients = self.server.clients()?;
            if clients.len() > max {
                found.extend(clients.iter().map(|client| {
                    format!("client {} {:?}, last command {}", client.id, client.name, client.last_command)
                }));
            }
        }
        Ok(found)
    }

    /// Waits until nothing is left, for at most `limit` in which the machine runs, and returns what remained then.
    ///
    /// # Errors
    ///
    /// As for [`RedisServer::cmd`].
    pub fn wait(&self, limit: Duration) -> Result<Vec<String>> {
        let begin = Instant::now();
        loop {
            let found = self.look()?;
            if found.is_empty() || awake_since(begin) >= limit {
                return Ok(found);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Asserts that nothing is left within `limit`. Blocks its thread: in an asynchronous test, call it where
    /// nothing that has to clean up shares the thread, or use [`assert_clean_async`](Self::assert_clean_async).
    ///
    /// # Panics
    ///
    /// When something remains, with the list of it, or when the server does not answer.
    #[track_caller]
    pub fn assert_clean(&self, limit: Duration) {
        match self.wait(limit) {
            Ok(found) => self.judge(&found, limit),
            Err(e) => panic!("cannot look for leftovers: {e}"),
        }
    }

    /// As [`assert_clean`](Self::assert_clean), and lets other tasks of the runtime run between two looks.
    ///
    /// # Panics
    ///
    /// When something remains, with the list of it, or when the server does not answer.
    pub async fn assert_clean_async(&self, limit: Duration) {
        let begin = Instant::now();
        loop {
            let found = match self.look() {
                Ok(found) => found,
                Err(e) => panic!("cannot look for leftovers: {e}"),
            };
            if found.is_empty() || awake_since(begin) >= limit {
                return self.judge(&found, limit);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    #[track_caller]
    fn judge(&self, found: &[String], limit: Duration) {
        let part = self.name_part.escape_ascii();
        assert!(found.is_empty(), "left behind for {part:?} after {limit:?}:\n  {}", found.join("\n  "));
    }

    fn matches(&self, name: &[u8]) -> bool {
        self.name_part.is_empty() || name.windows(self.name_part.len()).any(|w| w == self.name_part)
    }
}
