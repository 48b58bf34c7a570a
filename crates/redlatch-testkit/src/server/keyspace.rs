//! The whole keyspace as a value, for golden comparisons.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use redis::Value;

use super::RedisServer;
use crate::error::Result;

type Bytes = Vec<u8>;

/// The content of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyContent {
    /// A string.
    String(Bytes),
    /// A hash.
    Hash(BTreeMap<Bytes, Bytes>),
    /// A list, from head to tail.
    List(Vec<Bytes>),
    /// A set.
    Set(BTreeSet<Bytes>),
    /// A sorted set in its order: members with the score as the server prints it.
    SortedSet(Vec<(Bytes, Bytes)>),
    /// Another type; only its name.
    Other(String),
}

impl KeyContent {
    /// A string value.
    pub fn string(value: impl AsRef<[u8]>) -> Self {
        Self::String(value.as_ref().to_vec())
    }

    /// A hash of fields and values.
    pub fn hash<F: AsRef<[u8]>, V: AsRef<[u8]>>(fields: impl IntoIterator<Item = (F, V)>) -> Self {
        Self::Hash(fields.into_iter().map(|(f, v)| (f.as_ref().to_vec(), v.as_ref().to_vec())).collect())
    }

    /// A list from head to tail.
    pub fn list<I: AsRef<[u8]>>(items: impl IntoIterator<Item = I>) -> Self {
        Self::List(items.into_iter().map(|i| i.as_ref().to_vec()).collect())
    }

    /// A set.
    pub fn set<I: AsRef<[u8]>>(items: impl IntoIterator<Item = I>) -> Self {
        Self::Set(items.into_iter().map(|i| i.as_ref().to_vec()).collect())
    }

    /// A sorted set in its order, with scores as the server prints them.
    pub fn sorted_set<M: AsRef<[u8]>, S: AsRef<[u8]>>(items: impl IntoIterator<Item = (M, S)>) -> Self {
        Self::SortedSet(items.into_iter().map(|(m, s)| (m.as_ref().to_vec(), s.as_ref().to_vec())).collect())
    }
}

/// One key: what it holds and how long it stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyDump {
    /// The type as `TYPE` names it: `string`, `hash`, `list`, `set`, `zset`.
    pub kind: String,
    /// The content.
    pub content: KeyContent,
    /// Time to live in milliseconds; `None` for a key that stays.
    pub pttl_ms: Option<u64>,
}

impl RedisServer {
    /// The names of all keys of database 0 but the records in which clients tell of themselves: these hold nothing and end by themselves, some time after
    /// what they tell of.
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn keys(&self) -> Result<Vec<String>> {
        let mut keys: Vec<Bytes> = self.query(&[b"KEYS", b"*"])?;
        keys.retain(|key| !key.starts_with(CLIENT_RECORDS));
        Ok(keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
    }

    /// All keys of database 0, without those records.
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn keys_dump(&self) -> Result<BTreeMap<Vec<u8>, KeyDump>> {
        let mut dump = self.whole_dump()?;
        dump.retain(|key, _| !key.starts_with(CLIENT_RECORDS));
        Ok(dump)
    }

    /// All keys of database 0. Not a snapshot: a key that changes meanwhile is seen in one of its states.
    ///
    /// # Errors
    ///
    /// As for [`cmd`](Self::cmd).
    pub fn whole_dump(&self) -> Result<BTreeMap<Vec<u8>, KeyDump>> {
        let mut dump = BTreeMap::new();
        let mut cursor = b"0".to_vec();
        loop {
            let (next, keys): (Bytes, Vec<Bytes>) = self.query(&[b"SCAN", &cursor, b"COUNT", b"1000"])?;
            for key in keys {
                if let Some(entry) = self.dump_key(&key)? {
                    dump.insert(key, entry);
                }
            }
            cursor = next;
            if cursor == b"0" {
                return Ok(dump);
            }
        }
    }

    fn dump_key(&self, key: &[u8]) -> Result<Option<KeyDump>> {
        let kind: String = self.query(&[b"TYPE", key])?;
        let content = match kind.as_str() {
            "none" => return Ok(None),
            "string" => KeyContent::String(self.query(&[b"GET", key])?),
            "hash" => KeyContent::Hash(self.query(&[b"HGETALL", key])?),
            "list" => KeyContent::List(self.query(&[b"LRANGE", key, b"0", b"-1"])?),
            "set" => KeyContent::Set(self.query(&[b"SMEMBERS", key])?),
            "zset" => KeyContent::SortedSet(self.query(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"])?),
            other => KeyContent::Other(other.to_owned()),
        };
        let pttl: i64 = match self.cmd(&[b"PTTL".as_slice(), key])? {
            Value::Int(pttl) => pttl,
            _ => -2,
        };
        // -2: it expired between the two commands.
        Ok((pttl != -2).then(|| KeyDump { kind, content, pttl_ms: u64::try_from(pttl).ok() }))
    }
}

/// What the records begin with in which clients tell of themselves.
const CLIENT_RECORDS: &[u8] = b"redlatch:client:";

/// How `actual` differs from `expected`, one line per difference; nothing when they agree.
///
/// A time to live may be up to `tolerance_ms` below the expected one, since it runs down, and not above.
pub fn keyspace_diff(
    actual: &BTreeMap<Vec<u8>, KeyDump>,
    expected: &[(&[u8], KeyContent, Option<u64>)],
    tolerance_ms: u64,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (key, content, pttl_ms) in expected {
        let name = key.escape_ascii();
        let Some(found) = actual.get(*key) else {
            lines.push(format!("missing key {name}"));
            continue;
        };
        if found.content != *content {
            lines.push(format!("key {name}: expected {}, found {}", show(content), show(&found.content)));
        }
        let fits = match (pttl_ms, found.pttl_ms) {
            (None, None) => true,
            (Some(want), Some(have)) => have <= *want && have.saturating_add(tolerance_ms) >= *want,
            _ => false,
        };
        if !fits {
            let have = found.pttl_ms;
            lines.push(format!("key {name}: expected pttl_ms {pttl_ms:?} (-{tolerance_ms}), found {have:?}"));
        }
    }
    for (key, found) in actual {
        if !expected.iter().any(|(wanted, ..)| wanted == key) {
            lines.push(format!("unexpected key {}: {}", key.escape_ascii(), show(&found.content)));
        }
    }
    lines
}

/// Panics with all differences unless the server holds exactly the expected keys; see [`keyspace_diff`] and
/// the macro [`assert_keyspace!`](crate::assert_keyspace).
///
/// # Panics
///
/// When the keys differ or the server does not answer.
#[track_caller]
pub fn check_keyspace(
    server: &RedisServer,
    expected: &[(&[u8], KeyContent, Option<u64>)],
    tolerance_ms: u64,
) {
    let actual = match server.keys_dump() {
        Ok(actual) => actual,
        Err(e) => panic!("cannot read the keyspace: {e}"),
    };
    // What the machine did not do in time ran down all the same.
    let paused_ms = u64::try_from(crate::stall::paused_lately().as_millis()).unwrap_or(u64::MAX);
    let diff = keyspace_diff(&actual, expected, tolerance_ms.saturating_add(paused_ms));
    assert!(diff.is_empty(), "the keyspace differs:\n  {}", diff.join("\n  "));
}

/// Asserts that a server holds exactly these keys: name, content, time to live in milliseconds.
///
/// ```no_run
/// # use redlatch_testkit::server::{KeyContent, RedisServer};
/// # let server = RedisServer::start().unwrap();
/// redlatch_testkit::assert_keyspace!(server, tolerance_ms = 500, [
///     ("jobs", KeyContent::hash([("owner:1", "1")]), Some(30_000)),
/// ]);
/// ```
#[macro_export]
macro_rules! assert_keyspace {
    ($server:expr, tolerance_ms = $tolerance:expr, [$(($key:expr, $content:expr, $ttl:expr)),* $(,)?]) => {
        $crate::server::check_keyspace(
            &$server,
            &[$((::core::convert::AsRef::<[u8]>::as_ref(&$key), $content, $ttl)),*],
            $tolerance,
        )
    };
}

fn show(content: &KeyContent) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = match content {
        KeyContent::String(v) => write!(out, "string {:?}", text(v)),
        KeyContent::Hash(map) => {
            write!(out, "hash {:?}", map.iter().map(|(k, v)| (text(k), text(v))).collect::<Vec<_>>())
        }
        KeyContent::List(items) => write!(out, "list {:?}", items.iter().map(text).collect::<Vec<_>>()),
        KeyContent::Set(items) => write!(out, "set {:?}", items.iter().map(text).collect::<Vec<_>>()),
        KeyContent::SortedSet(items) => {
            write!(out, "zset {:?}", items.iter().map(|(m, s)| (text(m), text(s))).collect::<Vec<_>>())
        }
        KeyContent::Other(kind) => write!(out, "a {kind}"),
    };
    out
}

fn text(bytes: &Bytes) -> String {
    bytes.escape_ascii().to_string()
}
