//! The kinds, each with its description. What belongs to one kind and is asked for from outside is said here and nowhere else.

use super::{
    Description, Redisson,
    found::LockKind,
    key_pattern::{
        CLIENT_RECORD, FORCED, KeyPattern, LATCH_CHANNEL, LOCK_CHANNEL, PERMIT_TIMES, PERMITS_CHANNEL, QUEUE,
        QUEUE_TIMES, RATE_VALUE, READ_TIME, RW_CHANNEL, TOKEN, UNLOCK_LATCH,
    },
};
use crate::scripts::{self, Script};

/// What an account can be given rights for: each kind of lock or permit, and looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// Plain and non-reentrant locks, and sets of them, without fencing tokens.
    Lock,
    /// Fencing tokens, of fenced locks and of plain ones that are asked for a token. For tokens of fair and read-write locks
    /// this is added to their own kind.
    Fenced,
    /// Fair locks, also those that are not reentrant.
    Fair,
    /// Spin locks, which use no channel.
    Spin,
    /// Read-write locks, both sides.
    ReadWrite,
    /// Semaphores.
    Semaphore,
    /// Semaphores whose permits have leases.
    Permits,
    /// Count-down latches.
    Latch,
    /// Rate limiters.
    RateLimiter,
    /// The atomic stock.
    Stock,
    /// Looking at everything without changing anything, as an engineer on call does: [`Client::inspect`](crate::Client::inspect)
    /// and [`Client::list`](crate::Client::list).
    Look,
    /// Telling others what this client holds and waits for ([`Presence`](crate::Presence)). Without it nothing is told, and everything else works.
    Presence,
}

/// The scripts of the plain lock, also for several at once.
static PLAIN: &[&Script] = &[
    &scripts::ACQUIRE,
    &scripts::RELEASE,
    &scripts::ACQUIRE_ALL,
    &scripts::RELEASE_ALL,
    &scripts::ENTER,
    &scripts::RELEASE_ONE,
    &scripts::RENEW,
    &scripts::SHORTEN,
    &scripts::TRANSFER,
    &scripts::FORCE,
    &scripts::QUERY,
];
/// How it ended is asked when a hold is lost.
static LOST: &[&Script] = &[&scripts::LOST];
/// A number under the name.
static COUNTER: &[&Script] = &[&scripts::COUNTER_GET, &scripts::COUNTER_SET];

/// In the order of [`Kind`].
pub(super) static TABLE: [Description; 12] = [
    Description {
        word: "lock",
        note: "also non-reentrant locks and sets of locks",
        faces: &[("Lock", "RLock"), ("MultiLock", "RedissonMultiLock"), ("QuorumLock", "RedissonRedLock")],
        scripts: &[PLAIN, LOST],
        is_watched: true,
        keys: &[KeyPattern::Name, FORCED],
        channels: &[LOCK_CHANNEL],
        found: Some(LockKind::Lock),
        redisson: Redisson {
            commands: &["exists", "hexists", "hincrby", "get", "set"],
            keys: &[UNLOCK_LATCH],
        },
        ..Description::of(Kind::Lock)
    },
    Description {
        word: "fenced",
        note: "tokens, also those of other kinds: fair,fenced",
        faces: &[("FencedLock", "RFencedLock")],
        scripts: &[PLAIN, LOST, &[&scripts::COUNTER_GET]],
        draws_tokens: true,
        is_watched: true,
        keys: &[KeyPattern::Name, TOKEN, FORCED],
        channels: &[LOCK_CHANNEL],
        found: Some(LockKind::Lock),
        redisson: Redisson { commands: &["exists", "hexists", "hincrby", "incr"], keys: &[UNLOCK_LATCH] },
        ..Description::of(Kind::Fenced)
    },
    Description {
        word: "fair",
        faces: &[("FairLock", "RFairLock")],
        scripts: &[
            &[
                &scripts::FAIR_ACQUIRE,
                &scripts::FAIR_RELEASE,
                &scripts::FAIR_RELEASE_ONE,
                &scripts::FAIR_UNDO,
                &scripts::FAIR_FORCE,
                &scripts::ENTER,
                &scripts::TRANSFER,
                &scripts::RENEW,
                &scripts::SHORTEN,
                &scripts::QUERY,
            ],
            LOST,
        ],
        is_watched: true,
        keys: &[KeyPattern::Name, QUEUE, QUEUE_TIMES, FORCED],
        channels: &[LOCK_CHANNEL],
        channel_per_waiter: true,
        found: Some(LockKind::Fair),
        redisson: Redisson {
            commands: &["exists", "hexists", "hincrby", "get", "set", "zrange", "zincrby"],
            keys: &[UNLOCK_LATCH],
        },
        ..Description::of(Kind::Fair)
    },
    // Its scripts are given no command to publish with.
    Description {
        word: "spin",
        faces: &[("SpinLock", "RSpinLock")],
        scripts: &[PLAIN, LOST],
        is_watched: true,
        keys: &[KeyPattern::Name, FORCED],
        found: Some(LockKind::Lock),
        redisson: Redisson {
            commands: &["exists", "hexists", "hincrby", "get", "set"],
            keys: &[UNLOCK_LATCH],
        },
        ..Description::of(Kind::Spin)
    },
    Description {
        word: "read-write",
        faces: &[("ReadWriteLock", "RReadWriteLock")],
        scripts: &[
            &[
                &scripts::READ_ACQUIRE,
                &scripts::READ_ENTER,
                &scripts::READ_RELEASE,
                &scripts::READ_RELEASE_ONE,
                &scripts::READ_TRANSFER,
                &scripts::READ_RENEW,
                &scripts::READ_SHORTEN,
                &scripts::WRITE_ACQUIRE,
                &scripts::WRITE_ENTER,
                &scripts::WRITE_RELEASE,
                &scripts::WRITE_RELEASE_ONE,
                &scripts::WRITE_TRANSFER,
                &scripts::WRITE_RENEW,
                &scripts::WRITE_SHORTEN,
                &scripts::RW_FORCE,
                &scripts::RW_QUERY,
            ],
            LOST,
        ],
        is_watched: true,
        keys: &[KeyPattern::Name, READ_TIME, FORCED],
        channels: &[RW_CHANNEL],
        found: Some(LockKind::ReadWrite),
        redisson: Redisson { commands: &["hkeys", "get"], keys: &[UNLOCK_LATCH] },
        ..Description::of(Kind::ReadWrite)
    },
    Description {
        word: "semaphore",
        faces: &[("Semaphore", "RSemaphore")],
        scripts: &[
            &[
                &scripts::SEMAPHORE_TAKE,
                &scripts::SEMAPHORE_GIVE,
                &scripts::SEMAPHORE_DRAIN,
                &scripts::SEMAPHORE_DELETE,
            ],
            COUNTER,
        ],
        channels: &[PERMITS_CHANNEL],
        found: Some(LockKind::Counter),
        ..Description::of(Kind::Semaphore)
    },
    Description {
        word: "permits",
        faces: &[("PermitSemaphore", "RPermitExpirableSemaphore")],
        scripts: &[
            &[
                &scripts::PERMIT_TAKE,
                &scripts::PERMIT_GIVE,
                &scripts::PERMIT_RENEW,
                &scripts::PERMIT_LOOK,
                &scripts::PERMIT_SET,
                &scripts::PERMIT_END,
            ],
            LOST,
        ],
        is_watched: true,
        keys: &[KeyPattern::Name, PERMIT_TIMES],
        channels: &[PERMITS_CHANNEL],
        found: Some(LockKind::PermitSemaphore),
        redisson: Redisson { commands: &["exists", "zrangebyscore"], keys: &[] },
        ..Description::of(Kind::Permits)
    },
    Description {
        word: "latch",
        faces: &[("CountDownLatch", "RCountDownLatch")],
        scripts: &[&[&scripts::LATCH_DOWN, &scripts::LATCH_DELETE], COUNTER],
        is_watched: true,
        channels: &[LATCH_CHANNEL],
        found: Some(LockKind::Counter),
        redisson: Redisson { commands: &["exists"], keys: &[] },
        ..Description::of(Kind::Latch)
    },
    Description {
        word: "rate-limiter",
        faces: &[("RateLimiter", "RRateLimiter")],
        scripts: &[&[
            &scripts::RATE_TAKE,
            &scripts::RATE_RELEASE,
            &scripts::RATE_SET,
            &scripts::RATE_SHOW,
            &scripts::RATE_DELETE,
        ]],
        keys: &[KeyPattern::Name, RATE_VALUE],
        found: Some(LockKind::RateLimiter),
        redisson: Redisson { commands: &["hgetall", "hsetnx"], keys: &[] },
        ..Description::of(Kind::RateLimiter)
    },
    Description {
        word: "stock",
        faces: &[("take_stock", "")],
        scripts: &[&[&scripts::SELL, &scripts::STOCK]],
        found: Some(LockKind::Counter),
        ..Description::of(Kind::Stock)
    },
    // Of what comes after a name, one key stands for all.
    Description {
        word: "look",
        note: "ls, show and why, and nothing else",
        scripts: &[&[&scripts::SHOW, &scripts::LIST, &scripts::PRESENCE_GET, &scripts::PRESENCE_LIST]],
        keys: &[KeyPattern::Name, TOKEN, QUEUE, QUEUE_TIMES, RATE_VALUE, CLIENT_RECORD],
        counts_listeners: true,
        ..Description::of(Kind::Look)
    },
    Description {
        word: "presence",
        note: "tells others who holds and who waits",
        scripts: &[&[&scripts::PRESENCE_SET]],
        keys: &[CLIENT_RECORD],
        ..Description::of(Kind::Presence)
    },
];
