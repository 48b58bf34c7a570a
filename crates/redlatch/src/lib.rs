//! Distributed locks that share their keys with Redisson, on Redis, Valkey, or no server at all.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
//! let client = redlatch::Client::connect("memory:").await?; // for this client only; or local:, redis://host, …
//! let lock = client.lock("nightly-report");
//! if let Some(guard) = lock.try_lock().await? {
//!     // The lease is renewed in the background; `guard.lost()` resolves if that ever fails.
//!     guard.unlock().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # What a lock like this can promise
//!
//! A lock with a lease cannot by itself keep two holders apart for ever: a paused holder does not know that its lease ran out.
//! What is promised, and tested, is this:
//!
//! 1. **Valid holds exclude.** Two holders whose [`Guard::is_valid`] is true never overlap. The deadline is counted from
//!    when the request was sent, on a clock that runs through suspend.
//! 2. **Loss is announced** no later than that deadline, without needing the network ([`Guard::lost`]).
//! 3. **A fenced resource accepts no stale write**: a grant can carry a token that grows ([`Acquire::fenced`]).
//!
//! # Which call
//!
//! [`Lock::try_lock`] looks once, [`Lock::lock`] waits, [`Lock::lock_for`] waits a limited time, [`Lock::acquire`] takes
//! options. [`blocking`] has the same for code without async.

// The tests of the modules are for the threads of the standard library.
#![cfg(not(all(test, redlatch_shuttle)))]
#![cfg_attr(
    not(any(test, redlatch_shuttle)),
    warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)
)]

// The floors; each imports only from those below it (`tests/layers`, which has their order).
pub mod acl;
pub mod blocking;
mod client;
pub mod config;
mod core;
mod kind;
mod locks;
mod operate;
mod permits;
mod recipes;
pub mod scripts;
pub mod store;

// Words that all floors use.
mod backoff;
mod call;
mod call_hook;
mod catch_panic;
mod dialer;
mod error;
mod finding;
mod fork;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod jitter;
mod keys;
mod latest;
mod name;
mod name_classes;
pub mod observe;
mod owner;
mod panic_safe;
mod presence;
pub mod randomness;
mod replica_ack;
mod sync;

pub use crate::core::{Wait, release::Unlocked};
pub use backoff::Backoff;
pub use client::{Client, ClientBuilder, ShutdownReport, Stats};
pub use config::{ScriptMode, ShardedPubSub, TlsOptions};
pub use dialer::{DialFuture, Dialer, Socket};
pub use error::{Error, ErrorKind, LossReason};
pub use finding::{Finding, Severity};
pub use kind::LockKind;
pub use locks::{
    fair::FairLock,
    fenced::{FencedGuard, FencedLock},
    multi::{AcquireMulti, MultiGuard, MultiLock},
    non_reentrant::{NonReentrantFairLock, NonReentrantLock},
    quorum::{AcquireQuorum, QuorumGuard, QuorumLock},
    read_write::{ReadGuard, ReadLock, ReadWriteLock, WriteGuard, WriteLock},
    shared::{
        Acquire, AnyGuard, DetachedHold, Force, Forced, Guard, Lease, WithError,
        lock::Lock,
        members::{LostMember, Member, UnlockReport},
    },
    spin::SpinLock,
};
pub use name::LockName;
pub use operate::inspect::{HoldMode, Holder, LockState, PermitInUse, RateRule, Waiter};
pub use operate::why::{BlockedName, BlockedWaiter, Blocker, WaitCycle, WaitsFor, Why};
pub use owner::Owner;
pub use permits::{
    latch::CountDownLatch,
    permit_semaphore::{PermitGuard, PermitLease, PermitRequest, PermitSemaphore},
    rate::{Rate, RateLimiter},
    semaphore::Semaphore,
};
pub use presence::{ClientRecord, HoldOrWait, LostHold, Presence};
pub use redlatch_engine::{Clock, ManualClock, SystemClock};
pub use replica_ack::{ReplicaAck, Replicas};
pub use tokio_util::sync::CancellationToken;

/// What several threads do at once, for a program that runs them in every order (`crates/redlatch-threads`).
#[cfg(redlatch_shuttle)]
pub mod threads {
    pub use crate::core::threads::*;
}

/// The kinds of locks and of sets, as they stand in the types of handles and guards: a [`FairLock`] is a [`Lock<Fair>`](kinds::Fair), and a
/// [`MultiLock`] a [`LockSet<Multi>`](kinds::LockSet). They are for code that is generic over the kind; other code uses the names of the
/// locks.
pub mod kinds {
    pub use crate::locks::{
        fair::Fair,
        fenced::Fenced,
        multi::Multi,
        non_reentrant::{NonReentrant, NonReentrantFair},
        quorum::Quorum,
        read_write::{Read, Write},
        shared::{
            acquire_set::AcquireSet,
            guard_of::GuardOf,
            lock::Plain,
            lock_set::{LockSet, SetMarker},
            marker::LockMarker,
            set_guard::SetGuard,
        },
        spin::Spin,
    };
}
