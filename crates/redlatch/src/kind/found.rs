//! What is found under a name: how each of it is told from the others, and where a listing comes across it.

use super::key_pattern::{KeyPattern, PERMIT_TIMES, QUEUE};

/// What is found under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// Nothing: the lock is free and nobody queues for it.
    Free,
    /// A lock with one holder. A fair lock for which nobody queues looks the same.
    Lock,
    /// A fair lock with waiters in its queue. It may be free at the moment, while the first of the queue is on its way.
    Fair,
    /// A read-write lock.
    ReadWrite,
    /// Permits with leases, some of which are in use or have run out. Without any it is a bare number, a
    /// [`Counter`](Self::Counter).
    PermitSemaphore,
    /// A bare number: a semaphore, a latch, permits with leases that nobody has taken, a stock, or a counter of another
    /// program. Nothing on the server tells them apart.
    Counter,
    /// A rate limiter.
    RateLimiter,
    /// Something that is none of these.
    Other,
}

/// What a look at a name has seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    /// The type of the key, as the server calls it; `none` if there is no key.
    pub(crate) key_type: &'a [u8],
    /// A hash with the field that read-write locks have.
    pub(crate) mode: bool,
    /// A hash with the fields of a rate.
    pub(crate) rate: bool,
    /// A hash with a field that looks like an owner.
    pub(crate) owner: bool,
    /// A waiter is in the queue beside it.
    pub(crate) queue: bool,
    /// A string that is a number.
    pub(crate) number: bool,
    /// Permits are in the set beside it.
    pub(crate) permits: bool,
}

impl Seen<'_> {
    /// A hash, and neither that of a read-write lock nor that of a rate limiter.
    fn is_plain_hash(&self) -> bool {
        self.key_type == b"hash" && !self.mode && !self.rate
    }

    fn is_number(&self) -> bool {
        self.key_type == b"string" && self.number
    }
}

/// A walk over the keyspace, in the order in which a listing makes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Walk {
    Hashes,
    Queues,
    Permits,
    Numbers,
}

impl Walk {
    /// The type of the keys, and where they are helper keys, which.
    pub(crate) fn keys(self) -> (&'static str, Option<KeyPattern>) {
        match self {
            Walk::Hashes => ("hash", None),
            Walk::Queues => ("list", Some(QUEUE)),
            Walk::Permits => ("zset", Some(PERMIT_TIMES)),
            Walk::Numbers => ("string", None),
        }
    }
}

/// What is to be said of one thing that may be found.
pub(super) struct Looks {
    pub(super) found: LockKind,
    /// The word for it, as the command line takes and prints it.
    pub(super) word: &'static str,
    /// Other words that the command line takes for it.
    aliases: &'static [&'static str],
    /// What the help of the command says of it.
    about: &'static str,
    /// Whether it is there. No two of them are at once.
    pub(super) is: fn(&Seen<'_>) -> bool,
    /// Where a listing finds it.
    walks: &'static [Walk],
    /// Whether a listing without a choice shows it.
    is_usual: bool,
    /// Whether it has owners in its hash, which then must have a TTL.
    has_owners: bool,
    /// What is on the server (`docs/looking.md`).
    #[cfg_attr(not(test), expect(dead_code, reason = "the documents are compared with it"))]
    pub(super) on_server: &'static str,
}

/// All that can be listed.
pub(super) static LOOKS: [Looks; 6] = [
    Looks {
        found: LockKind::Lock,
        word: "lock",
        aliases: &[],
        about: "Locks with one holder",
        is: |seen| seen.is_plain_hash() && seen.owner && !seen.queue,
        walks: &[Walk::Hashes],
        is_usual: true,
        has_owners: true,
        on_server: "a hash with one owner field: plain and fenced locks, and fair locks that nobody queues for, which look the same",
    },
    Looks {
        found: LockKind::Fair,
        word: "fair",
        aliases: &[],
        about: "Fair locks with a queue",
        is: |seen| seen.queue && (seen.is_plain_hash() || seen.key_type == b"none"),
        // One that is free at the moment has a queue and no hash.
        walks: &[Walk::Hashes, Walk::Queues],
        is_usual: true,
        has_owners: true,
        on_server: "the list `redisson_lock_queue:{N}` is not empty; the lock may be free at that moment",
    },
    Looks {
        found: LockKind::ReadWrite,
        word: "read-write",
        aliases: &[],
        about: "Read-write locks",
        is: |seen| seen.key_type == b"hash" && seen.mode,
        walks: &[Walk::Hashes],
        is_usual: true,
        has_owners: true,
        on_server: "a hash with `mode`",
    },
    Looks {
        found: LockKind::PermitSemaphore,
        word: "permits",
        aliases: &[],
        about: "Permits with leases, while some are in use",
        is: |seen| seen.is_number() && seen.permits,
        walks: &[Walk::Permits],
        is_usual: true,
        has_owners: false,
        on_server: "a number, and a sorted set `{N}:timeout` that is not empty",
    },
    Looks {
        found: LockKind::Counter,
        word: "counter",
        aliases: &["semaphore", "latch"],
        about: "Bare numbers: semaphores, latches, stocks, counters of other programs",
        is: |seen| seen.is_number() && !seen.permits,
        walks: &[Walk::Numbers],
        // Any number in the store looks like one.
        is_usual: false,
        has_owners: false,
        on_server: "a bare number: a semaphore, a latch, permits that nobody has taken, a stock, or a number of another program",
    },
    Looks {
        found: LockKind::RateLimiter,
        word: "rate-limiter",
        aliases: &[],
        about: "Rate limiters",
        is: |seen| seen.key_type == b"hash" && seen.rate && !seen.mode,
        walks: &[Walk::Hashes],
        is_usual: true,
        has_owners: false,
        on_server: "a hash with `rate`, `interval` and `type`",
    },
];

impl LockKind {
    /// The kinds that [`Client::list_kinds`](crate::Client::list_kinds) lists: all but [`Free`](Self::Free) and [`Other`](Self::Other).
    pub const LISTED: [LockKind; LOOKS.len()] = {
        let mut listed = [LockKind::Free; LOOKS.len()];
        let mut at = 0;
        while at < LOOKS.len() {
            listed[at] = LOOKS[at].found;
            at += 1;
        }
        listed
    };

    /// What it is where this was seen.
    pub(crate) fn of(seen: &Seen<'_>) -> Self {
        let otherwise = if seen.key_type == b"none" { LockKind::Free } else { LockKind::Other };
        LOOKS.iter().find(|looks| (looks.is)(seen)).map_or(otherwise, |looks| looks.found)
    }

    /// What is to be said of it, if it can be listed.
    fn looks(self) -> Option<&'static Looks> {
        LOOKS.iter().find(|looks| looks.found == self)
    }

    /// Whether [`Client::list`](crate::Client::list) shows it.
    pub fn is_usual(self) -> bool {
        self.looks().is_some_and(|looks| looks.is_usual)
    }

    /// Where a listing finds it.
    pub(crate) fn walks(self) -> &'static [Walk] {
        self.looks().map_or(&[], |looks| looks.walks)
    }

    /// Whether it has owners in its hash, which then must have a TTL.
    pub(crate) fn has_owners(self) -> bool {
        self.looks().is_some_and(|looks| looks.has_owners)
    }

    /// The word for it, as the command line takes and prints it.
    pub fn word(self) -> &'static str {
        match (self, self.looks()) {
            (_, Some(looks)) => looks.word,
            (LockKind::Free, None) => "free",
            _ => "other",
        }
    }

    /// Other words that the command line takes for it.
    pub fn aliases(self) -> &'static [&'static str] {
        self.looks().map_or(&[], |looks| looks.aliases)
    }

    /// What it is, in a few words; empty for those that are not [`LISTED`](Self::LISTED).
    pub fn about(self) -> &'static str {
        self.looks().map_or("", |looks| looks.about)
    }
}
