//! Distributed locks that share their keys with Redisson, on Redis, Valkey, or no server at all.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
//! let client = redlatch::Client::connect("memory:").await?; // or local:, redis://host, rediss://host, unix:///path
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
//! 1. **Valid holds exclude.** Two holders for whom [`Guard::is_valid`] is true never overlap. The deadline is counted from
//!    when the request was sent, on a clock that runs through suspend.
//! 2. **Loss is announced** no later than that deadline, without needing the network ([`Guard::lost`]).
//! 3. **A fenced resource accepts no stale write**: a grant can carry a token that grows ([`Acquire::fenced`]).
//!
//! # Which call
//!
//! [`Lock::try_lock`] looks once, [`Lock::lock`] waits, [`Lock::lock_for`] waits a limited time, [`Lock::acquire`] takes
//! options. [`blocking`] has the same for code without async.

#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout))]

pub mod acl;
pub mod blocking;
mod client;
pub mod config;
mod core;
mod counter;
mod doctor;
mod error;
mod fair;
mod fenced;
mod fork;
mod inspect;
mod latch;
mod lock;
mod members;
mod membership;
mod multi;
mod name;
mod non_reentrant;
mod owner;
mod permits;
mod quorum;
pub mod randomness;
mod rate;
mod read_write;
mod replica_ack;
pub mod scripts;
mod semaphore;
mod set_face;
mod spin;
mod stock;
pub mod store;

pub use crate::core::{Wait, backoff::Backoff, release::Unlocked};
pub use client::{Client, ClientBuilder, ShutdownReport, Stats};
pub use config::{ScriptMode, ShardedPubSub, TlsOptions};
pub use doctor::{Finding, Severity};
pub use error::{Error, ErrorKind, LossReason};
pub use fair::FairLock;
pub use fenced::{FencedGuard, FencedLock};
pub use inspect::{HoldMode, Holder, LockKind, LockState, PermitInUse, RateRule, Waiter};
pub use latch::CountDownLatch;
pub use lock::{Acquire, Force, Forced, Guard, Held, Hold, Lease, Lock, WithError};
pub use members::{LostMember, Member, UnlockReport};
pub use multi::{AcquireMulti, MultiGuard, MultiLock};
pub use name::LockName;
pub use non_reentrant::{NonReentrantFairLock, NonReentrantLock};
pub use owner::Owner;
pub use permits::{PermitGuard, PermitLease, PermitRequest, PermitSemaphore};
pub use quorum::{AcquireQuorum, QuorumGuard, QuorumLock};
pub use rate::{Rate, RateLimiter};
pub use read_write::{ReadGuard, ReadLock, ReadWriteLock, WriteGuard, WriteLock};
pub use redlatch_engine::{Clock, ManualClock, SystemClock};
pub use replica_ack::{ReplicaAck, Replicas};
pub use semaphore::Semaphore;
pub use spin::SpinLock;
pub use tokio_util::sync::CancellationToken;
