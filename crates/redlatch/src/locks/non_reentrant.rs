//! `NonReentrantLock` and `NonReentrantFairLock`: locks that their owner cannot enter twice; share their state with
//! Redisson's locks of these names (`docs/protocol.md`, non-reentrant lock).

use crate::{
    core::home::Home,
    keys::Kind,
    locks::shared::{Guard, face::lock_face, locker::Locker},
    name::LockName,
    recipes::{FAIR, PLAIN},
};

/// A lock that its owner cannot enter again: acquiring it a second time is
/// [`ErrorKind::AlreadyHeld`](crate::ErrorKind::AlreadyHeld), and the hold stays as it was.
///
/// Every acquire has a fresh owner unless one is passed, so this matters to those who pass one, and to blocking code,
/// where each thread is an owner. [`Guard::reenter`] is refused too.
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
#[derive(Clone)]
pub struct NonReentrantLock(pub(crate) Locker);

impl NonReentrantLock {
    pub(crate) fn new(core: &Home, name: LockName) -> Self {
        NonReentrantLock(Locker { reentrant: false, ..Locker::new(core, name, Kind::Lock, &PLAIN) })
    }
}

lock_face!(NonReentrantLock, Guard);

/// A [`FairLock`](crate::FairLock) that its owner cannot enter again; see [`NonReentrantLock`].
#[derive(Clone)]
pub struct NonReentrantFairLock(pub(crate) Locker);

impl NonReentrantFairLock {
    pub(crate) fn new(core: &Home, name: LockName) -> Self {
        NonReentrantFairLock(Locker { reentrant: false, ..Locker::new(core, name, Kind::Fair, &FAIR) })
    }
}

lock_face!(NonReentrantFairLock, Guard);
