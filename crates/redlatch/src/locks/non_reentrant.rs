//! `NonReentrantLock` and `NonReentrantFairLock`: locks that their owner cannot enter twice; share their state with
//! Redisson's locks of these names (`docs/protocol.md`, non-reentrant lock).

use crate::{
    core::fork_safe::ForkSafeCore,
    keys::KeyKind,
    locks::shared::{
        Guard,
        lock::Lock,
        lock_handle::LockHandle,
        marker::{LockMarker, sealed::Named},
    },
    name::LockName,
    recipes::{FAIR, PLAIN},
};
/// Marks the kind of [`NonReentrantLock`].
#[derive(Debug)]
pub enum NonReentrant {}

impl Named for NonReentrant {
    const LOCK: &'static str = "NonReentrantLock";
    const GUARD: &'static str = "Guard";
}

impl LockMarker for NonReentrant {
    type Guard = Guard;
}

/// A lock that its owner cannot enter again: acquiring it a second time is
/// [`ErrorKind::AlreadyHeld`](crate::ErrorKind::AlreadyHeld), and the hold stays as it was.
///
/// Every acquire has a fresh owner unless one is passed, so this matters to those who pass one, and to blocking code,
/// where each thread is an owner. [`Guard::reenter`] is refused too.
///
/// It has the methods of every [`Lock`]; holding it is a [`Guard`].
///
/// # Example
///
/// ```
/// # use redlatch::ErrorKind;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), redlatch::Error> {
/// let client = redlatch::Client::connect("memory:").await?;
/// let (lock, me) = (client.non_reentrant_lock("once"), client.owner());
/// let held = lock.acquire().owner(&me).await?.expect("it is free");
/// assert_eq!(lock.acquire().owner(&me).await.unwrap_err().kind(), ErrorKind::AlreadyHeld);
/// held.unlock().await?;
/// # Ok(()) }
/// ```
pub type NonReentrantLock = Lock<NonReentrant>;

impl Lock<NonReentrant> {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        Lock::of(LockHandle { reentrant: false, ..LockHandle::new(core, name, KeyKind::Lock, &PLAIN) })
    }
}
/// Marks the kind of [`NonReentrantFairLock`].
#[derive(Debug)]
pub enum NonReentrantFair {}

impl Named for NonReentrantFair {
    const LOCK: &'static str = "NonReentrantFairLock";
    const GUARD: &'static str = "Guard";
}

impl LockMarker for NonReentrantFair {
    type Guard = Guard;
}

/// A [`FairLock`](crate::FairLock) that its owner cannot enter again; see [`NonReentrantLock`].
///
/// It has the methods of every [`Lock`]; holding it is a [`Guard`].
pub type NonReentrantFairLock = Lock<NonReentrantFair>;

impl Lock<NonReentrantFair> {
    pub(crate) fn new(core: &ForkSafeCore, name: LockName) -> Self {
        Lock::of(LockHandle { reentrant: false, ..LockHandle::new(core, name, KeyKind::Fair, &FAIR) })
    }
}
