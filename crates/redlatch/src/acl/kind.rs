//! The words for what an account is to do.

use std::fmt;

/// What an account is to do.
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
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 11] = [
        Kind::Lock,
        Kind::Fenced,
        Kind::Fair,
        Kind::Spin,
        Kind::ReadWrite,
        Kind::Semaphore,
        Kind::Permits,
        Kind::Latch,
        Kind::RateLimiter,
        Kind::Stock,
        Kind::Look,
    ];

    /// Whether it has holds that last and may be lost.
    pub(super) fn has_holds(self) -> bool {
        use Kind::*;
        matches!(self, Lock | Fenced | Fair | Spin | ReadWrite | Permits)
    }

    /// The word for it, as the command line takes it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::Fenced => "fenced",
            Kind::Fair => "fair",
            Kind::Spin => "spin",
            Kind::ReadWrite => "read-write",
            Kind::Semaphore => "semaphore",
            Kind::Permits => "permits",
            Kind::Latch => "latch",
            Kind::RateLimiter => "rate-limiter",
            Kind::Stock => "stock",
            Kind::Look => "look",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
