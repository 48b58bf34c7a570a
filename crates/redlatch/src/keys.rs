//! The keys and channels that are derived from a lock's name, and which names they allow (`docs/protocol.md`, names).

use std::{hash::BuildHasher, sync::Arc};

use once_cell::race::OnceBox;

use crate::{
    error::{Error, ErrorKind},
    kind::key_pattern::{
        KeyPattern, LOCK_CHANNEL, PERMIT_TIMES, PERMITS_CHANNEL, QUEUE, QUEUE_TIMES, READ_TIMES, RW_CHANNEL,
        TOKEN,
    },
    name::LockName,
    randomness::Salted,
};

/// The longest name accepted, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 4096;

impl LockName {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidName`] for an empty name, one above 4,096 bytes, or one whose braces would split
    /// the lock's keys over cluster slots (`a}b`, `a{b`, `{}x`).
    pub fn new(name: impl AsRef<[u8]>) -> Result<Self, Error> {
        let name = LockName::unchecked(name.as_ref());
        name.check()?;
        Ok(name)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bytes = self.as_bytes();
        if bytes.is_empty() {
            return Err(
                Error::new(ErrorKind::InvalidName, "the lock name is empty").remedy("give the lock a name")
            );
        }
        if bytes.len() > NAME_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!("the lock name has {} bytes, more than {NAME_BYTES_MAX}", bytes.len()),
            )
            .remedy("use a shorter name, or a hash of the long one"));
        }
        let tag = hash_tag(bytes);
        let derived = KeyPattern::Before("x:").of(bytes);
        if hash_tag(&derived) != tag {
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!("the braces in the lock name \"{self}\" would put its helper keys into another cluster slot"),
            )
            .remedy("leave braces out, or use exactly one non-empty {tag}"));
        }
        Ok(())
    }
}

/// The bytes that decide a key's cluster slot.
pub(crate) fn hash_tag(key: &[u8]) -> &[u8] {
    let inside = key.iter().position(|b| *b == b'{').map(|open| &key[open + 1..]);
    let tag = inside.and_then(|rest| rest.iter().position(|b| *b == b'}').map(|len| &rest[..len]));
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// The names whose derived key is `key` with this word at its end: `a` and `{a}` both give `{a}word`.
fn names_before_suffix<'a>(word: &str, key: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let name = key.strip_suffix(word.as_bytes());
    let inside = name.and_then(|name| name.strip_prefix(b"{")?.strip_suffix(b"}"));
    name.into_iter().chain(inside)
}

/// What a name is used for. Tasks of one process meet only within one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum KeyKind {
    /// A lock with one holder: plain, fenced, spin, non-reentrant.
    Lock,
    /// A lock with a queue on the server.
    Fair,
    /// The read side of a read-write lock.
    Read,
    /// The write side of a read-write lock.
    Write,
    /// Permits with leases.
    Permits,
}

/// Everything on the wire that belongs to one name, worked out once.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) name: LockName,
    pub(crate) kind: KeyKind,
    pub(crate) key: Arc<[u8]>,
    /// Worked out when they are first asked for: many locks are held at once, and few of them are told of or fenced. A child that is forked off
    /// meanwhile waits for no thread that does so.
    channel: OnceBox<Arc<[u8]>>,
    token: OnceBox<Arc<[u8]>>,
    /// The list of those who wait for a fair lock.
    pub(crate) queue: Arc<[u8]>,
    /// The sorted set of times: until when a waiter of a fair lock counts, or when permits expire. For a read-write lock, what
    /// the timeout keys of read holds begin with.
    pub(crate) timeouts: Arc<[u8]>,
    /// The read side, for the write side of the same lock.
    pub(crate) readers: Option<Arc<Keys>>,
    /// The hash value of name and kind, by which this process finds the lane. The values of one name differ in their last bits only.
    pub(crate) lane_hash: u64,
    /// What is wrong with the name, found out once.
    fault: Option<Error>,
    /// What [`other_kind`](Self::other_kind) returns.
    other_kind: OnceBox<Arc<Keys>>,
}

fn lane_hash(name: &[u8], kind: KeyKind) -> u64 {
    static SALTED: OnceBox<Salted> = OnceBox::new();
    kind.mark(SALTED.get_or_init(Box::default).hash_one(name))
}

impl KeyKind {
    /// The kinds whose holds are fields of the Redis hash that has the name as its key.
    const OF_A_REDIS_HASH: [KeyKind; 4] = [KeyKind::Lock, KeyKind::Fair, KeyKind::Read, KeyKind::Write];

    /// The hash value of a name, made that of this kind.
    fn mark(self, lane_hash: u64) -> u64 {
        lane_hash & !0b111 | self as u64
    }

    /// Where a release is told; the list of those who wait, and the times, where it has these.
    fn places(self) -> (KeyPattern, Option<KeyPattern>, Option<KeyPattern>) {
        match self {
            KeyKind::Lock => (LOCK_CHANNEL, None, None),
            KeyKind::Fair => (LOCK_CHANNEL, Some(QUEUE), Some(QUEUE_TIMES)),
            KeyKind::Read | KeyKind::Write => (RW_CHANNEL, None, Some(READ_TIMES)),
            KeyKind::Permits => (PERMITS_CHANNEL, None, Some(PERMIT_TIMES)),
        }
    }

    /// One bit for each kind.
    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }

    /// The other kinds of a lock of that name: where one owner has a hold of one of them, no other owner has one of another.
    pub(crate) fn others(self) -> impl Iterator<Item = KeyKind> {
        KeyKind::OF_A_REDIS_HASH.into_iter().filter(move |other| self != KeyKind::Permits && *other != self)
    }
}

impl Keys {
    pub(crate) fn new(name: LockName, kind: KeyKind) -> Self {
        let key = name.bytes().clone();
        let (_, queue, times) = kind.places();
        // An empty key is no allocation of its own.
        let of = |place: Option<KeyPattern>| place.map(|place| place.of(&key).into()).unwrap_or_default();
        let (queue, timeouts) = (of(queue), of(times));
        Keys {
            lane_hash: lane_hash(&key, kind),
            channel: OnceBox::new(),
            token: OnceBox::new(),
            queue,
            timeouts,
            readers: None,
            fault: name.check().err(),
            other_kind: OnceBox::new(),
            kind,
            key,
            name,
        }
    }

    /// The channel on which a release is told.
    pub(crate) fn channel(&self) -> &Arc<[u8]> {
        let (channel, ..) = self.kind.places();
        self.channel.get_or_init(|| Box::new(channel.of(&self.key).into()))
    }

    /// The key of the last fencing token.
    pub(crate) fn token(&self) -> &Arc<[u8]> {
        self.token.get_or_init(|| Box::new(TOKEN.of(&self.key).into()))
    }

    /// The write side of the lock whose read side this is.
    pub(crate) fn writing_beside(readers: &Arc<Keys>) -> Self {
        Keys { readers: Some(readers.clone()), ..Keys::new(readers.name.clone(), KeyKind::Write) }
    }

    /// The keys of the name as a lock of the other kind whose holds are the same fields of the same Redis hash: plain and fair locks.
    pub(crate) fn other_kind(&self) -> Option<&Arc<Keys>> {
        let other = match self.kind {
            KeyKind::Lock => KeyKind::Fair,
            KeyKind::Fair => KeyKind::Lock,
            KeyKind::Read | KeyKind::Write | KeyKind::Permits => return None,
        };
        Some(self.other_kind.get_or_init(|| Box::new(Arc::new(Keys::new(self.name.clone(), other)))))
    }

    /// The hash value of the same name for another kind.
    pub(crate) fn lane_hash_as(&self, kind: KeyKind) -> u64 {
        kind.mark(self.lane_hash)
    }

    /// All names, each with its kind, that this key may belong to.
    pub(crate) fn behind(key: &[u8]) -> Vec<Keys> {
        let own = KeyKind::OF_A_REDIS_HASH.map(|kind| (key, kind));
        let times = names_before_suffix(PERMIT_TIMES.word(), key).map(|name| (name, KeyKind::Permits));
        own.into_iter().chain(times).map(|(name, kind)| Keys::new(LockName::unchecked(name), kind)).collect()
    }

    /// Whether the name may be used.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.fault {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_the_protocol() {
        let keys = Keys::new(LockName::new("plain").unwrap(), KeyKind::Lock);
        assert_eq!(&**keys.channel(), b"redisson_lock__channel:{plain}");
        assert_eq!(&**keys.token(), b"redisson_lock_token:{plain}");
        let keys = Keys::new(LockName::new("a{b}c").unwrap(), KeyKind::Lock);
        assert_eq!(&**keys.channel(), b"redisson_lock__channel:a{b}c");
    }

    #[test]
    fn names_that_would_split_over_slots_are_refused() {
        for bad in ["", "a}b", "a{b", "{}x", "x{}y"] {
            let error = LockName::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{bad}");
        }
        for good in ["plain", "a{b}c", "{t}:x", "a{b}{c}", "nul\0byte", "line\nbreak"] {
            LockName::new(good).unwrap();
        }
        LockName::new(vec![0xff, 0xfe]).unwrap();
        LockName::new(vec![b'x'; NAME_BYTES_MAX]).unwrap();
        assert!(LockName::new(vec![b'x'; NAME_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn display_escapes_what_could_rewrite_a_screen() {
        let name = LockName::new(b"a\x1b[2J\xff\n\"".as_slice()).unwrap();
        assert_eq!(name.to_string(), "a\\u{1b}[2J\\xff\\n\\\"");
        assert_eq!(LockName::new("\u{202e}x").unwrap().to_string(), "\\u{202e}x");
        assert_eq!(LockName::new("ä-中").unwrap().to_string(), "ä-中");
    }

    proptest::proptest! {
        #[test]
        fn every_name_is_refused_or_keeps_its_keys_in_one_slot(bytes: Vec<u8>) {
            if let Ok(name) = LockName::new(&bytes) {
                let keys = Keys::new(name, KeyKind::Lock);
                assert_eq!(hash_tag(keys.channel()), hash_tag(&bytes));
                assert_eq!(hash_tag(keys.token()), hash_tag(&bytes));
            }
        }

        #[test]
        fn a_name_is_found_behind_its_keys(bytes in proptest::collection::vec(proptest::sample::select(b"{}ab:".to_vec()), 1..8)) {
            if let Ok(name) = LockName::new(&bytes) {
                for kind in [KeyKind::Lock, KeyKind::Fair, KeyKind::Read, KeyKind::Write, KeyKind::Permits] {
                    let keys = Keys::new(name.clone(), kind);
                    let key = if kind == KeyKind::Permits { &keys.timeouts } else { &keys.key };
                    assert!(Keys::behind(key).iter().any(|found| found.name == name && found.kind == kind));
                }
            }
        }

        #[test]
        fn braces_are_no_exception(bytes in proptest::collection::vec(proptest::sample::select(b"{}ab".to_vec()), 0..8)) {
            if let Ok(name) = LockName::new(&bytes) {
                let keys = Keys::new(name, KeyKind::Lock);
                assert_eq!(hash_tag(keys.channel()), hash_tag(&bytes));
            }
        }
    }
}
