//! Take a lock, do the work, give it back.
//!
//! Every acquire has an owner of its own, so a second acquire of the same name is refused, also in the same process.

use redlatch::{Client, Error, Unlocked};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&redlatch_examples::url()).await?;
    let lock = client.lock("nightly-report");

    // Waits as long as it takes. The lease is renewed in the background until the guard goes.
    let guard = lock.lock().await?;
    println!("\"{}\" is ours for another {:?}", guard.name(), guard.remaining());

    // Busy is an answer, not an error.
    assert!(lock.try_lock().await?.is_none());

    // Dropping the guard would release too, in the background. Only `unlock` says what happened.
    assert_eq!(guard.unlock().await?, Unlocked::Released);
    let again = lock.try_lock().await?.expect("it is free");
    again.unlock().await?;
    println!("released, and taken again");
    Ok(())
}
