//! A server that answers what a test tells it to: errors, half replies and silences that a real server does
//! not give on demand.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::error::{Error, Result};
use crate::net::{Listeners, OwnRuntime, ReservedPort, Stream};
use crate::resp;

/// How many messages of [`FakeServer::broadcast`] wait for a connection that does not read.
const BROADCASTS_MAX: usize = 1024;
/// How many requests are remembered.
const REQUESTS_MAX: usize = 100_000;

/// The answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FakeReply {
    /// These bytes, one whole reply; the functions of [`resp`] make them.
    Reply(Vec<u8>),
    /// An error, as in `NOSCRIPT no matching script`.
    Error(String),
    /// Nothing; the connection stays open. Answers come in order, so from then on the server does not answer anything by itself there.
    Silence,
    /// The connection is closed without an answer.
    Close,
    /// These bytes, and then the connection is closed in the middle of the reply.
    Truncated(Vec<u8>),
    /// Any bytes: no reply, several of them, pushes, or no RESP at all.
    Raw(Vec<u8>),
    /// What the server does by itself; see [`FakeServer::start`].
    Default,
}

type Handler = dyn Fn(&[Vec<u8>]) -> FakeReply + Send + Sync;

#[derive(Default)]
struct Seen {
    requests: Vec<Vec<Vec<u8>>>,
    counts: HashMap<String, u64>,
    /// What else each connection is to write; `None` ends it.
    broadcasts: HashMap<u64, mpsc::Sender<Option<Vec<u8>>>>,
    connections: u64,
    /// How often all connections were closed; what comes on one of before has no answer.
    closings: u64,
}

struct Shared {
    handler: Box<Handler>,
    seen: Mutex<Seen>,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running fake server on a loopback port and a unix socket. Dropping it closes everything.
pub struct FakeServer {
    shared: Arc<Shared>,
    port: u16,
    dir: TempDir,
    _runtime: OwnRuntime,
}

impl fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeServer").field("url", &self.url()).finish_non_exhaustive()
    }
}

impl FakeServer {
    /// Starts a server that asks `handler` for the answer to every request. The handler runs on the thread of
    /// the server, one call at a time.
    ///
    /// [`FakeReply::Default`] answers like a server without data: `HELLO` with a map (or an array for version
    /// 2), `PING` with `PONG`, subscribe commands with their confirmations, `CLIENT`, `SELECT`, `AUTH` and
    /// `QUIT` with `OK`, and others with an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) when it cannot listen.
    pub fn start(handler: impl Fn(&[Vec<u8>]) -> FakeReply + Send + Sync + 'static) -> Result<Self> {
        crate::stall::watch();
        let port = ReservedPort::new(0)?;
        let dir = crate::dir::for_sockets("redlatch-fake-");
        let dir = dir.map_err(|e| Error::io("cannot make a directory for the fake server", e))?;
        let shared = Arc::new(Shared { handler: Box::new(handler), seen: Mutex::default() });
        let runtime = OwnRuntime::new("redlatch-fake")?;
        let listeners = {
            let _inside = runtime.handle().enter();
            Listeners::open(&port, &dir.path().join("fake.sock"))
                .map_err(|e| Error::io("the fake server cannot listen", e))?
        };
        let number = port.port();
        runtime.handle().spawn(accept(Arc::clone(&shared), listeners));
        Ok(Self { shared, port: number, dir, _runtime: runtime })
    }

    /// `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// `unix:///path/to/socket`.
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.dir.path().join("fake.sock").display())
    }

    /// How often a command came, by its name in any case.
    pub fn count(&self, command: &str) -> u64 {
        self.shared.seen().counts.get(&command.to_ascii_uppercase()).copied().unwrap_or(0)
    }

    /// The first 100,000 requests, in the order in which they came.
    pub fn requests(&self) -> Vec<Vec<Vec<u8>>> {
        self.shared.seen().requests.clone()
    }

    /// How many connections were accepted since the start.
    pub fn connections_accepted(&self) -> u64 {
        self.shared.seen().connections
    }

    /// Writes bytes, such as a push, to every open connection, between two replies. A connection that has
    /// 1,024 of them waiting is left out.
    pub fn broadcast(&self, bytes: impl Into<Vec<u8>>) {
        let bytes = bytes.into();
        self.shared.seen().broadcasts.retain(|_, connection| {
            !matches!(connection.try_send(Some(bytes.clone())), Err(mpsc::error::TrySendError::Closed(_)))
        });
    }

    /// Closes every open connection. What comes on one of them after this call has no answer.
    pub fn disconnect_all(&self) {
        let mut seen = self.shared.seen();
        seen.closings += 1;
        for connection in seen.broadcasts.values() {
            let _ = connection.try_send(None);
        }
    }
}

async fn accept(shared: Arc<Shared>, listeners: Listeners) {
    loop {
        // A client that is gone before it was accepted is no reason to end.
        let Ok(stream) = listeners.accept().await else { continue };
        let (send, broadcasts) = mpsc::channel(BROADCASTS_MAX);
        let (number, closings) = {
            let mut seen = shared.seen();
            seen.connections += 1;
            let number = seen.connections;
            seen.broadcasts.insert(number, send);
            (number, seen.closings)
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // A broken connection is the client's affair; the test sees it there.
            let _ = serve(&shared, stream, broadcasts, closings).await;
            shared.seen().broadcasts.remove(&number);
        });
    }
}

async fn serve(
    shared: &Shared,
    mut stream: Stream,
    mut broadcasts: mpsc::Receiver<Option<Vec<u8>>>,
    closings: u64,
) -> std::io::Result<()> {
    let mut buf = Vec::new();
    let (mut resp3, mut owes) = (false, false);
    loop {
        tokio::select! {
            read = stream.read_buf(&mut buf) => if read? == 0 { return Ok(()) },
            Some(order) = broadcasts.recv() => match order {
                Some(bytes) => stream.write_all(&bytes).await?,
                None => return Ok(()),
            },
        }
        while let Ok(Some((len, args))) = resp::request(&buf) {
            buf.drain(..len);
            if args.is_empty() {
                continue;
            }
            let command = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
            {
                let mut seen = shared.seen();
                if seen.closings != closings {
                    return Ok(());
                }
                *seen.counts.entry(command.clone()).or_default() += 1;
                if seen.requests.len() < REQUESTS_MAX {
                    seen.requests.push(args.clone());
                }
            }
            if command == "HELLO" && args.len() > 1 {
                resp3 = args[1] == b"3";
            }
            let bytes = match (shared.handler)(&args) {
                FakeReply::Reply(bytes) | FakeReply::Raw(bytes) => bytes,
                FakeReply::Error(text) => resp::error(&text),
                FakeReply::Silence => {
                    owes = true;
                    continue;
                }
                FakeReply::Close => return Ok(()),
                FakeReply::Truncated(bytes) => return stream.write_all(&bytes).await,
                FakeReply::Default if owes => continue,
                FakeReply::Default => default_reply(&command, &args, resp3),
            };
            stream.write_all(&bytes).await?;
        }
    }
}

fn default_reply(command: &str, args: &[Vec<u8>], resp3: bool) -> Vec<u8> {
    match command {
        "HELLO" => hello(resp3),
        "PING" => args.get(1).map_or_else(|| resp::simple("PONG"), resp::bulk),
        "CLIENT" if args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"ID")) => resp::integer(1),
        "CLIENT" | "SELECT" | "AUTH" | "QUIT" => resp::simple("OK"),
        "SUBSCRIBE" | "PSUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE" | "SUNSUBSCRIBE" => {
            let make = if resp3 { resp::push::<Vec<u8>> } else { resp::array };
            let word = resp::bulk(command.to_ascii_lowercase());
            let left = |n: usize| if command.contains("UNSUB") { 0 } else { n };
            if args.len() == 1 {
                return make(&[word, resp::null(), resp::integer(0)]);
            }
            let confirm = |(n, channel): (usize, &Vec<u8>)| {
                let count = i64::try_from(left(n + 1)).unwrap_or(i64::MAX);
                make(&[word.clone(), resp::bulk(channel), resp::integer(count)])
            };
            args[1..].iter().enumerate().flat_map(confirm).collect()
        }
        _ => resp::error(&format!("ERR the fake server has no answer to '{command}'")),
    }
}

fn hello(resp3: bool) -> Vec<u8> {
    let texts = [("server", "redis"), ("version", "7.4.0"), ("mode", "standalone"), ("role", "master")];
    let proto = if resp3 { 3 } else { 2 };
    let mut fields: Vec<Vec<u8>> = vec![resp::bulk("proto"), resp::integer(proto)];
    fields.extend([resp::bulk("id"), resp::integer(1)]);
    fields.extend(texts.iter().flat_map(|(key, value)| [resp::bulk(key), resp::bulk(value)]));
    fields.extend([resp::bulk("modules"), resp::array::<Vec<u8>>(&[])]);
    let array = resp::array(&fields);
    if !resp3 {
        return array;
    }
    // A map counts pairs; its items are the same.
    let start = array.iter().position(|&b| b == b'\n').map_or(0, |at| at + 1);
    [format!("%{}\r\n", fields.len() / 2).as_bytes(), &array[start..]].concat()
}
