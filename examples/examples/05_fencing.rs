//! Fencing: the resource refuses a write of a holder that has been overtaken.
//!
//! A holder that was paused (by a debugger, a suspended machine, a long stall) may write before it learns that its
//! lock is lost. No lock service can prevent that; a resource that compares tokens can.

use std::time::Duration;

use redlatch::{Client, Error, Lease};

/// A resource that remembers the highest token it has seen. In a database this is a column and a condition:
/// `UPDATE … SET value = ?, token = ? WHERE id = ? AND token <= ?`.
#[derive(Default)]
struct Shelf {
    token: u64,
    label: &'static str,
}

impl Shelf {
    fn write(&mut self, token: u64, label: &'static str) -> Result<(), String> {
        if token < self.token {
            return Err(format!("\"{label}\" is stale: token {token} comes after {}", self.token));
        }
        (self.token, self.label) = (token, label);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&redlatch_examples::url()).await?;
    let (lock, mut shelf) = (client.lock("shelf"), Shelf::default());

    let lease = Lease::Fixed(Duration::from_millis(200));
    let paused = lock.acquire().lease(lease).fenced().await?.expect("nobody else uses this name");
    let old = paused.token().expect("a token was asked for");
    shelf.write(old, "first").expect("the first token is always new enough");

    // The first holder stalls for longer than its lease; the second gets the lock and a higher token.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let second = lock.acquire().fenced().await?.expect("the first lease has ended");
    let new = second.token().expect("a token was asked for");
    assert!(new > old);
    shelf.write(new, "second").expect("a higher token is accepted");

    // The first holder wakes up and writes without looking at its guard.
    let refused = shelf.write(old, "late").expect_err("a lower token is refused");
    println!("{refused}");
    assert_eq!(shelf.label, "second");
    second.unlock().await?;
    Ok(())
}
