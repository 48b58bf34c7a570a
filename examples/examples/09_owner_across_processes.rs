//! Hand a hold to another process: one takes the lock and leaves it held, the other takes the hold up by its owner.
//!
//! Both sides are clients of one program here; between real processes the owner travels as text, in an environment
//! variable or a message. `redlatch lock`, `renew` and `unlock` do the same from a shell.

use std::time::Duration;

use redlatch::{Client, Error, ErrorKind, Lease, Owner, Unlocked};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = redlatch_examples::url();
    let (parent, child) = (Client::connect(&url).await?, Client::connect(&url).await?);

    // Without a guard nobody renews, so the lease must be long enough to reach the other side.
    let guard = parent.lock("hand-over").lock_with_lease(Duration::from_secs(20)).await?;
    let held = guard.detach();
    let message = held.owner.to_text();
    println!("left held by {message} for {:?}", held.remaining);
    assert!(parent.lock("hand-over").is_locked().await?);

    // The other side takes the hold up under an owner of its own, and from now on renews it.
    let lock = child.lock("hand-over");
    let owner: Owner = message.parse()?;
    let guard = lock.adopt(&owner, Lease::Renewed).await?.expect("the hold is still there");
    assert!(guard.is_valid() && lock.is_held_by(guard.owner()).await? && !lock.is_held_by(&owner).await?);
    assert_eq!(guard.unlock().await?, Unlocked::Released);

    // An owner that no longer holds opens nothing.
    assert!(lock.adopt(&owner, Lease::Renewed).await?.is_none());
    assert_eq!(lock.release(&owner).await.expect_err("nothing is held").kind(), ErrorKind::NotOwner);
    Ok(())
}
