//! The closure form: acquire, work, release. Work whose lock is lost is dropped half-way.

use std::time::Duration;

use redlatch::{Client, Lease, Wait, WithError};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(&redlatch_examples::url()).await?;
    let lock = client.lock("monthly-total");

    // The result of the work comes back as it is; the lock is released by then.
    let total = lock.acquire().wait(Wait::Forever).with(async |_guard| (1..=10).sum::<u32>()).await?;
    assert_eq!(total, 55);
    assert!(!lock.is_locked().await?);

    // While another task holds it, an acquire that does not wait never begins the work.
    let guard = lock.lock().await?;
    let outcome = lock.acquire().with(async |_guard| unreachable!("the lock is busy")).await;
    assert!(matches!(outcome, Err(WithError::Busy)));
    guard.unlock().await?;

    // Work that outlives its lease is stopped at its next await point, before the lock can be another holder's.
    let short = Lease::Fixed(Duration::from_millis(200));
    let outcome = lock
        .acquire()
        .lease(short)
        .with(async |_guard| tokio::time::sleep(Duration::from_secs(60)).await)
        .await;
    match outcome {
        Err(WithError::Lost(error)) => println!("stopped: {error}"),
        other => panic!("{other:?}"),
    }
    Ok(())
}
