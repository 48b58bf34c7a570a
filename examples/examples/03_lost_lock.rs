//! A lock with a lease can be lost. The holder is told, and the work stops.
//!
//! Here the lease is fixed and shorter than the work. A renewed lease is lost in the same way: when the server is
//! unreachable for a whole lease, when its data are gone, or when a user forces the lock free.

use std::time::Duration;

use redlatch::{Client, Error, LossReason, Unlocked};

async fn one_step(step: u32) {
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("step {step} is done");
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&redlatch_examples::url()).await?;
    let guard = client.lock("long-work").lock_with_lease(Duration::from_millis(300)).await?;

    // The announcement comes by the local clock, so it needs no network and is never later than the lease's end.
    let lost = guard.lost();
    tokio::pin!(lost);
    let mut done = 0;
    let reason = loop {
        tokio::select! {
            reason = &mut lost => break reason,
            () = one_step(done + 1) => done += 1,
        }
    };
    println!("stopped after {done} steps: {reason}");
    assert_eq!(reason, LossReason::Expired);
    assert!(done < 20 && !guard.is_valid());

    // For code that cannot be interrupted there is `check`, to be asked before each step that matters: no round trip.
    assert!(guard.check().is_err());
    // Giving back what is lost is no error. It says so, and touches nothing that belongs to the next holder.
    assert_eq!(guard.unlock().await?, Unlocked::AlreadyLost(LossReason::Expired));
    Ok(())
}
