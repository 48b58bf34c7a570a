//! One buyer of the flash sale, a process of its own.
//!
//! It says `ready`, waits for a line on stdin, buys until nothing is left, and says `sold` for each item it got.

use std::{
    io::{self, BufRead, Write, stdin, stdout},
    time::Duration,
};

use redlatch::Client;
use tokio::time::sleep;

use crate::{args::Way, exit::Failure};

/// What it says when it is connected.
pub(super) const READY: &str = "ready";
/// What it says for each item it bought.
pub(super) const SOLD: &str = "sold";

/// Between reading the stock and writing it back: the payment. It gives an unprotected sale the time to go wrong that
/// a busy shop has anyway.
const PAYMENT: Duration = Duration::from_millis(5);

/// Buys until the stock is empty.
///
/// # Errors
///
/// Those of the store, and of the pipes to the shop.
pub(crate) async fn buy_all(client: &Client, way: Way, stock: &str) -> Result<(), Failure> {
    say(READY)?;
    let mut line = String::new();
    // Everybody starts at the same moment: that is the flash in the sale. Nothing else runs here meanwhile.
    if stdin().lock().read_line(&mut line).map_err(pipe)? == 0 {
        return Ok(());
    }
    while match way {
        Way::Script => by_script(client, stock).await?,
        Way::Lock => by_lock(client, stock).await?,
        Way::Nothing => unprotected(client, stock).await?,
    } {
        say(SOLD)?;
    }
    Ok(())
}

/// Looking and taking are one step on the server.
async fn by_script(client: &Client, stock: &str) -> Result<bool, Failure> {
    Ok(client.take_stock(stock, 1).await?.is_some())
}

/// Looking and taking are two steps, and the lock lets one process do them at a time.
async fn by_lock(client: &Client, stock: &str) -> Result<bool, Failure> {
    let guard = client.lock(format!("{stock}:lock")).lock().await?;
    let bought = unprotected(client, stock).await;
    guard.unlock().await?;
    bought
}

/// Looking and taking are two steps, and others look in between.
async fn unprotected(client: &Client, stock: &str) -> Result<bool, Failure> {
    let left = client.stock(stock).await?.and_then(|left| u32::try_from(left).ok()).unwrap_or(0);
    let Some(rest) = left.checked_sub(1) else { return Ok(false) };
    sleep(PAYMENT).await;
    client.set_stock(stock, rest).await?;
    Ok(true)
}

fn say(word: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    writeln!(out, "{word}").and_then(|()| out.flush()).map_err(pipe)
}

fn pipe(error: io::Error) -> Failure {
    Failure::internal(format!("the demo's pipe: {error}"))
}
