//! Looking at locks from outside: who holds what, and for how long.

use std::{sync::Arc, time::Duration};

use crate::{
    client::Client,
    error::{Error, ErrorKind},
    name::{Keys, Kind, LockName},
    scripts,
    store::{Call, Reply, protocol_error},
};

/// The most holders of one lock that are read.
const FIELDS_MAX: i64 = 1_000;
/// How many keys one step of a listing looks at; small enough to hold nobody up.
const KEYS_PER_STEP: i64 = 1_000;
/// The longest pattern for a listing, in bytes.
const PATTERN_BYTES_MAX: usize = 256;

/// What is found under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockKind {
    /// Nothing: the lock is free.
    Free,
    /// A lock with one holder.
    Lock,
    /// A read-write lock.
    ReadWrite,
    /// Something that is no lock.
    Other,
}

/// One holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner field, as it is in the lock's hash.
    pub owner: String,
    /// How many holds the owner has.
    pub holds: i64,
}

/// The state of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// The name.
    pub name: LockName,
    /// What it is.
    pub kind: LockKind,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// How long the hold lasts if it is not renewed.
    pub ttl: Option<Duration>,
    /// The key has no TTL, so a crashed holder's lock would never end: something other than a lock client made it so.
    pub ttl_missing: bool,
    /// The last fencing token drawn for the name.
    pub token: Option<u64>,
    /// What is odd about the state, in words; empty for a healthy lock.
    pub findings: Vec<String>,
}

impl Client {
    /// Reads the state of one name.
    ///
    /// # Errors
    ///
    /// A name that is not valid; a server that is unreachable or refuses.
    pub async fn inspect(&self, name: impl Into<LockName>) -> Result<LockState, Error> {
        let name = name.into();
        self.core.check_open()?;
        name.check()?;
        let keys = Keys::new(name.clone(), Kind::Lock);
        self.core.keeper.touch();
        let call = Call::new(&scripts::SHOW).key(&keys.key).key(&keys.token).int(FIELDS_MAX);
        let reply = self.core.store.run(call).await.map_err(|fault| fault.into_error().on(&name))?;
        let state = match reply.array() {
            Some([kind, ttl, token, size, fields]) => {
                kind.bytes().zip(ttl.int()).zip(size.int()).map(|((kind, ttl), size)| {
                    let token = token.bytes().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
                    state(name.clone(), kind, ttl, token, size, fields)
                })
            }
            _ => None,
        };
        state.ok_or_else(|| protocol_error("show", &reply).on(&name))
    }

    /// Lists locks whose names match a glob pattern (`*`, `?`, `[…]`; everything unless given), at most `limit` of them.
    ///
    /// The store is walked in small steps, so a listing of a large keyspace takes its time and holds nobody up. Hashes
    /// that do not look like locks are left out.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    ///
    /// # Errors
    ///
    /// A pattern over 256 bytes; a server that is unreachable or refuses.
    pub async fn list(&self, pattern: Option<&str>, limit: usize) -> Result<Vec<LockState>, Error> {
        self.core.check_open()?;
        let pattern = pattern.unwrap_or("*");
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::InvalidOption,
                format!("a pattern of over {PATTERN_BYTES_MAX} bytes"),
            ));
        }
        let pattern: Arc<str> = pattern.into();
        let mut cursor: Arc<str> = "0".into();
        let mut found: Vec<LockState> = Vec::new();
        loop {
            self.core.keeper.touch();
            let call =
                Call::new(&scripts::LIST).text(&cursor).text(&pattern).int(KEYS_PER_STEP).int(FIELDS_MAX);
            let reply = self.core.store.run(call).await.map_err(crate::store::Fault::into_error)?;
            let Some([next, locks @ ..]) = reply.array() else { return Err(protocol_error("list", &reply)) };
            for lock in locks {
                let fields = match lock.array() {
                    Some([key, ttl, size, fields]) => {
                        key.bytes().zip(ttl.int()).zip(size.int()).map(|known| (known, fields))
                    }
                    _ => None,
                };
                let Some((((key, ttl), size), fields)) = fields else {
                    return Err(protocol_error("list", &reply));
                };
                let state = state(LockName::unchecked(key), b"hash", ttl, None, size, fields);
                if state.kind != LockKind::Other && state.kind != LockKind::Free {
                    found.push(state);
                }
            }
            cursor = match next.bytes().and_then(|text| std::str::from_utf8(text).ok()) {
                Some("0") => break,
                Some(next) => next.into(),
                None => return Err(protocol_error("list", &reply)),
            };
            if found.len() >= limit {
                break;
            }
        }
        // A walk may meet a key twice while the keyspace grows.
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
        found.truncate(limit);
        Ok(found)
    }
}

fn state(name: LockName, kind: &[u8], ttl: i64, token: Option<u64>, size: i64, fields: &Reply) -> LockState {
    let pairs: Vec<(String, i64)> = fields
        .array()
        .unwrap_or_default()
        .chunks_exact(2)
        .filter_map(|pair| {
            Some((String::from_utf8_lossy(pair[0].bytes()?).into_owned(), pair[1].int().unwrap_or(0)))
        })
        .collect();
    let read_write = pairs.iter().any(|(field, _)| field == "mode");
    let holders: Vec<Holder> = pairs
        .into_iter()
        .filter(|(field, _)| field != "mode" && is_owner(field))
        .map(|(owner, holds)| Holder { owner, holds })
        .collect();
    let kind = match kind {
        b"none" => LockKind::Free,
        b"hash" if read_write => LockKind::ReadWrite,
        b"hash" if !holders.is_empty() => LockKind::Lock,
        _ => LockKind::Other,
    };
    let mut findings = Vec::new();
    let ttl_missing = kind != LockKind::Free && ttl == -1;
    if ttl_missing && kind != LockKind::Other {
        findings.push("the key has no TTL: if its holder is gone, only a forced unlock frees it".to_owned());
    }
    if kind == LockKind::Lock {
        if size > 1 {
            findings.push(format!("the hash has {size} fields, but an exclusive lock has exactly one"));
        }
        for holder in holders.iter().filter(|holder| holder.holds < 1) {
            findings.push(format!("the hold count of {} is {}", holder.owner, holder.holds));
        }
    }
    LockState {
        name,
        kind,
        holders,
        ttl: u64::try_from(ttl).ok().map(Duration::from_millis),
        ttl_missing,
        token,
        findings,
    }
}

/// Whether a hash field looks like an owner: `client:number`, perhaps with a further part for write holds.
fn is_owner(field: &str) -> bool {
    let mut parts = field.splitn(3, ':');
    let client = parts.next().unwrap_or("");
    let number = parts.next().unwrap_or("");
    client.len() == 36 && client.bytes().filter(|b| *b == b'-').count() == 4 && number.parse::<i64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(fields: &[(&str, &str)]) -> Reply {
        let bytes = |text: &str| Reply::Bytes(text.as_bytes().to_vec());
        Reply::Array(fields.iter().flat_map(|(field, value)| [bytes(field), bytes(value)]).collect())
    }

    const OWNER: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:7";

    #[test]
    fn healthy_and_odd_states_are_told_apart() {
        let look = |ttl, fields: &[(&str, &str)]| {
            state("x".into(), b"hash", ttl, None, fields.len() as i64, &hash(fields))
        };
        let healthy = look(1000, &[(OWNER, "2")]);
        assert_eq!((healthy.kind, healthy.holders[0].holds, healthy.findings.len()), (LockKind::Lock, 2, 0));
        assert!(look(-1, &[(OWNER, "1")]).ttl_missing);
        assert_eq!(look(-1, &[(OWNER, "1")]).findings.len(), 1);
        assert_eq!(look(1000, &[(OWNER, "-3")]).findings.len(), 1);
        assert_eq!(look(1000, &[(OWNER, "1"), ("junk", "1")]).findings.len(), 1);
        assert_eq!(look(1000, &[("mode", "read"), (OWNER, "1")]).kind, LockKind::ReadWrite);
        assert_eq!(look(1000, &[("color", "red")]).kind, LockKind::Other);
        assert_eq!(state("x".into(), b"none", -2, None, 0, &Reply::Nil).kind, LockKind::Free);
        assert_eq!(state("x".into(), b"string", -1, None, 0, &Reply::Nil).kind, LockKind::Other);
    }
}
