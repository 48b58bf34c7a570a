//! What simulated servers have in common: connections that speak RESP, channels, and keys that connections want to hear of.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures_util::future::BoxFuture;
use redlatch_engine::Value;
use redlatch_testkit::resp;
use tokio::io::AsyncReadExt as _;

use super::net::{Machine, ServerEnd, Writer};

/// One request, in words.
pub(super) type Request = Vec<Vec<u8>>;

/// A server's way to answer.
pub(super) trait Service: Send + Sync + 'static {
    fn connections(&self) -> &Connections;
    /// Over when the server's process does not stand still.
    fn is_awake(self: Arc<Self>) -> BoxFuture<'static, ()>;
    /// The bytes of the answer; `None` ends the connection.
    fn answer(self: Arc<Self>, to: Arc<Connection>, request: Request) -> BoxFuture<'static, Option<Vec<u8>>>;
}

/// One connection, as its server sees it.
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) peer: Machine,
    out: Writer,
    resp3: AtomicBool,
    /// The next command's keys are to be told of (`CLIENT CACHING YES`).
    pub(super) caching: AtomicBool,
    pub(super) is_tracking: AtomicBool,
    /// What the server had written when this connection wrote last.
    pub(super) written: AtomicU64,
    subscribed: Mutex<BTreeSet<Vec<u8>>>,
    over: tokio::sync::Notify,
}

impl Connection {
    pub(super) fn is_resp3(&self) -> bool {
        self.resp3.load(Ordering::Relaxed)
    }

    pub(super) fn speak(&self, version: &[u8]) {
        self.resp3.store(version == b"3", Ordering::Relaxed);
    }

    /// Sends what was not asked for.
    fn push(&self, items: &[Item<'_>]) {
        let mut bytes = Vec::new();
        bytes.extend(format!("{}{}\r\n", if self.is_resp3() { '>' } else { '*' }, items.len()).bytes());
        items.iter().for_each(|item| item.write(&mut bytes));
        let _ended_before = self.out.send(&bytes);
    }

    fn end(&self) {
        self.out.end();
        self.over.notify_one();
    }
}

pub(super) enum Item<'a> {
    Text(&'a [u8]),
    Texts(&'a [&'a [u8]]),
    Nil,
}

impl Item<'_> {
    fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Item::Text(text) => bytes.extend(bulk(text)),
            Item::Texts(texts) => bytes.extend(array(texts.iter().map(bulk))),
            Item::Nil => bytes.extend(nil()),
        }
    }
}

pub(super) fn bulk(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

pub(super) fn int(number: i64) -> Vec<u8> {
    format!(":{number}\r\n").into_bytes()
}

pub(super) fn nil() -> Vec<u8> {
    b"*-1\r\n".to_vec()
}

pub(super) fn ok() -> Vec<u8> {
    b"+OK\r\n".to_vec()
}

pub(super) fn error(text: &str) -> Vec<u8> {
    format!("-{text}\r\n").into_bytes()
}

pub(super) fn array(items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let items: Vec<_> = items.into_iter().collect();
    let mut bytes = format!("*{}\r\n", items.len()).into_bytes();
    items.iter().for_each(|item| bytes.extend(item));
    bytes
}

/// A value of the engine.
pub(super) fn value(value: &Value) -> Vec<u8> {
    match value {
        Value::Nil => b"$-1\r\n".to_vec(),
        Value::Int(number) => int(*number),
        Value::Bytes(bytes) => bulk(bytes),
        Value::Status(text) => format!("+{text}\r\n").into_bytes(),
        Value::Array(items) => array(items.iter().map(self::value)),
    }
}

/// The connections of one server.
#[derive(Default)]
pub(super) struct Connections {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// Who is to hear of a key.
    tracked: Mutex<BTreeMap<Vec<u8>, BTreeSet<u64>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    fn all(&self) -> Vec<Arc<Connection>> {
        locked(&self.open).values().cloned().collect()
    }

    /// Ends all of them.
    pub(super) fn end(&self) {
        self.all().iter().for_each(|connection| connection.end());
        locked(&self.tracked).clear();
    }

    pub(super) fn subscribe(&self, connection: &Connection, channel: &[u8]) -> usize {
        let mut subscribed = locked(&connection.subscribed);
        subscribed.insert(channel.to_vec());
        subscribed.len()
    }

    pub(super) fn unsubscribe(&self, connection: &Connection, channel: &[u8]) -> usize {
        let mut subscribed = locked(&connection.subscribed);
        subscribed.remove(channel);
        subscribed.len()
    }

    pub(super) fn listeners(&self, channel: &[u8]) -> usize {
        self.all().iter().filter(|one| locked(&one.subscribed).contains(channel)).count()
    }

    /// Tells all that listen, and says how many these are.
    pub(super) fn publish(&self, word: &str, channel: &[u8], payload: &[u8]) -> usize {
        let open = self.all();
        let listening = open.iter().filter(|one| locked(&one.subscribed).contains(channel));
        let told = listening
            .map(|one| one.push(&[Item::Text(word.as_bytes()), Item::Text(channel), Item::Text(payload)]));
        told.count()
    }

    pub(super) fn track(&self, connection: &Connection, keys: &[Vec<u8>]) {
        let mut tracked = locked(&self.tracked);
        for key in keys {
            tracked.entry(key.clone()).or_default().insert(connection.id);
        }
    }

    /// A key has changed, by this connection if by any.
    pub(super) fn changed(&self, key: &[u8], by: Option<u64>) {
        let Some(hear) = locked(&self.tracked).remove(key) else { return };
        for connection in self.all().iter().filter(|one| hear.contains(&one.id) && Some(one.id) != by) {
            connection.push(&[Item::Text(b"invalidate"), Item::Texts(&[key])]);
        }
    }

    pub(super) fn cleared(&self) {
        let hear: BTreeSet<u64> =
            std::mem::take(&mut *locked(&self.tracked)).into_values().flatten().collect();
        for connection in self.all().iter().filter(|one| hear.contains(&one.id)) {
            connection.push(&[Item::Text(b"invalidate"), Item::Nil]);
        }
    }

    fn open(&self, write: Writer, peer: Machine) -> Arc<Connection> {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = Arc::new(Connection {
            id,
            peer,
            out: write,
            resp3: AtomicBool::new(false),
            caching: AtomicBool::new(false),
            is_tracking: AtomicBool::new(false),
            written: AtomicU64::new(0),
            subscribed: Mutex::default(),
            over: tokio::sync::Notify::new(),
        });
        locked(&self.open).insert(id, connection.clone());
        connection
    }

    fn forget(&self, id: u64) {
        locked(&self.open).remove(&id);
    }
}

/// Serves a connection until it ends.
pub(super) fn serve(service: Arc<dyn Service>, end: ServerEnd, peer: Machine) {
    let connection = service.connections().open(end.write, peer);
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = connection.over.notified() => {}
            () = answers(&service, &connection, end.read) => {}
        }
        service.connections().forget(connection.id);
        connection.out.end();
    });
}

async fn answers(service: &Arc<dyn Service>, connection: &Arc<Connection>, mut read: super::net::Reader) {
    let (mut buffer, mut chunk) = (Vec::new(), vec![0; 16 * 1024]);
    loop {
        let Ok(count @ 1..) = read.read(&mut chunk).await else { return };
        buffer.extend_from_slice(&chunk[..count]);
        while let Ok(Some((length, request))) = resp::request(&buffer) {
            buffer.drain(..length);
            service.clone().is_awake().await;
            let Some(bytes) = service.clone().answer(connection.clone(), request).await else { return };
            if !bytes.is_empty() && connection.out.send(&bytes).is_err() {
                return;
            }
        }
    }
}

/// What subscribing and its end have for an answer, channel by channel.
pub(super) fn confirmed(
    connections: &Connections,
    connection: &Connection,
    word: &str,
    channels: &[Vec<u8>],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for channel in channels {
        let count = if word.ends_with("unsubscribe") {
            connections.unsubscribe(connection, channel)
        } else {
            connections.subscribe(connection, channel)
        };
        bytes.extend(format!("{}3\r\n", if connection.is_resp3() { '>' } else { '*' }).bytes());
        bytes.extend(bulk(word));
        bytes.extend(bulk(channel));
        bytes.extend(int(count as i64));
    }
    bytes
}

/// The verb of a request in capitals.
pub(super) fn verb(request: &Request) -> String {
    request.first().map(|word| String::from_utf8_lossy(word).to_ascii_uppercase()).unwrap_or_default()
}

/// What every server answers in the same way; `None` for the rest.
pub(super) fn common(
    connections: &Connections,
    to: &Connection,
    request: &Request,
    name: &str,
) -> Option<Vec<u8>> {
    let is_resp3 = to.is_resp3();
    let word = |at: usize| {
        request.get(at).map(|word| String::from_utf8_lossy(word).to_ascii_uppercase()).unwrap_or_default()
    };
    Some(match verb(request).as_str() {
        "HELLO" => {
            if let Some(version) = request.get(1) {
                to.speak(version);
            }
            let fields = [("server", bulk("redis")), ("version", bulk("7.2.4")), ("mode", bulk(name))];
            let pairs = fields.into_iter().flat_map(|(field, value)| [bulk(field), value]);
            let mut bytes = array(pairs);
            if to.is_resp3() {
                bytes.splice(..2, *b"%3");
            }
            bytes
        }
        "CLIENT" => match word(1).as_str() {
            "TRACKING" => {
                to.is_tracking.store(word(2) == "ON", Ordering::Relaxed);
                ok()
            }
            "CACHING" => {
                to.caching.store(word(2) == "YES", Ordering::Relaxed);
                ok()
            }
            _ => ok(),
        },
        "AUTH" | "SELECT" => ok(),
        "PING" if is_resp3 || locked(&to.subscribed).is_empty() => b"+PONG\r\n".to_vec(),
        "PING" => array([bulk("pong"), bulk("")]),
        "SUBSCRIBE" => confirmed(connections, to, "subscribe", &request[1..]),
        "UNSUBSCRIBE" => confirmed(connections, to, "unsubscribe", &request[1..]),
        "SSUBSCRIBE" => confirmed(connections, to, "ssubscribe", &request[1..]),
        "SUNSUBSCRIBE" => confirmed(connections, to, "sunsubscribe", &request[1..]),
        "PUBSUB" => {
            let counts = request[2..]
                .iter()
                .flat_map(|channel| [bulk(channel), int(connections.listeners(channel) as i64)]);
            array(counts)
        }
        _ => return None,
    })
}
