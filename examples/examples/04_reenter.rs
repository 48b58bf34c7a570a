//! Enter a lock once more: from the guard, or with an owner that is passed along.
//!
//! Re-entry is always asked for. Nothing is entered twice by accident because two tasks happen to run on one thread.

use redlatch::{Client, Error, Lock, Owner, Unlocked};

/// A function that needs the lock whether or not its caller has it already.
async fn update_index(lock: &Lock, owner: &Owner) -> Result<u32, Error> {
    let guard = lock.acquire().owner(owner).await?.expect("the same owner is never kept out");
    let holds = guard.hold_count();
    guard.unlock().await?;
    Ok(holds)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&redlatch_examples::url()).await?;
    let lock = client.lock("index");

    // An owner made beforehand can be handed down through calls.
    let owner = client.owner();
    assert_eq!(update_index(&lock, &owner).await?, 1, "called on its own, it takes the lock");

    let outer = lock.acquire().owner(&owner).await?.expect("nobody else uses this name");
    assert_eq!(update_index(&lock, &owner).await?, 2, "called inside, it enters once more");

    // A guard can be entered again directly. Holds are given back in any order; the last one frees the lock.
    let inner = outer.reenter().await?;
    assert_eq!(lock.hold_count(&owner).await?, 2);
    assert_eq!(outer.unlock().await?, Unlocked::StillHeld(1));
    assert!(lock.try_lock().await?.is_none(), "another owner is kept out");
    assert_eq!(inner.unlock().await?, Unlocked::Released);
    println!("entered by {owner:?} and left again");
    Ok(())
}
