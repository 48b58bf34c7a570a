//! How long to wait for the lock, and how long to hold it, are two different things and have two different words.

use std::time::Duration;

use redlatch::{Client, Error, Lease, Wait};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&redlatch_examples::url()).await?;
    let lock = client.lock("wait-and-lease");

    // Held for 400 ms at most, never renewed: for work that must not go on for longer.
    let first = lock.acquire().lease(Lease::Fixed(Duration::from_millis(400))).await?;
    let first = first.expect("nobody else uses this name");
    println!("taken for {:?}", first.remaining());

    // Waits 100 ms, connecting and retrying included. The lock is held for longer than that.
    let waited = lock.lock_for(Duration::from_millis(100)).await?;
    assert!(waited.is_none(), "still busy");

    // Waits long enough for the first lease to end, and then holds with a lease of its own that is renewed.
    let second = lock
        .acquire()
        .wait(Wait::AtMost(Duration::from_secs(2)))
        .lease(Lease::RenewedEvery(Duration::from_secs(10)))
        .await?;
    let second = second.expect("the first lease has ended by now");
    assert!(!first.is_valid(), "no two holds are valid at the same time");
    println!("taken again for {:?}, renewed from now on", second.remaining());
    second.unlock().await?;
    Ok(())
}
