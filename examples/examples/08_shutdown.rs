//! Ending a client: waiters are told, holders are told, and what was held is released within a time limit.

use std::time::Duration;

use redlatch::{Client, Error, ErrorKind, LossReason};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = redlatch_examples::url();
    let (client, other) = (Client::connect(&url).await?, Client::connect(&url).await?);

    let red = client.lock("shutdown-red").lock().await?;
    let blue = client.lock("shutdown-blue").lock().await?;
    let lock = client.lock("shutdown-red");
    let waiter = tokio::spawn(async move { lock.lock().await });
    let holder = tokio::spawn(red.lost());
    tokio::time::sleep(Duration::from_millis(50)).await;

    // What could not be released in time would be listed with the reason; its lease ends it.
    let report = client.shutdown(Duration::from_secs(2)).await;
    println!("released {}, failed {:?}", report.released, report.failed);
    assert_eq!((report.released, report.failed.len()), (2, 0));

    let error = waiter.await.expect("the task ends").expect_err("the client is closed");
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(holder.await.expect("the task ends"), LossReason::Shutdown);
    assert_eq!(blue.loss(), Some(LossReason::Shutdown));

    // Others get the locks at once. The guards that are still here are harmless.
    let next = other.lock("shutdown-red").try_lock().await?.expect("it was released");
    drop((red, blue));
    assert!(next.is_valid());
    next.unlock().await?;
    Ok(())
}
