//! Fifteen items and forty buyers: once with an atomic script, once with a lock around reading and writing.
//!
//! What fits into one script needs no lock. A lock is for work that does not: several systems, or several steps.
//! `redlatch demo` acts out the same with many processes, beside a sale without any protection, which oversells.

use redlatch::{Client, Error};

const ITEMS: u32 = 15;
const BUYERS: usize = 40;
const STOCK: &str = "flash-sale:stock";

/// All or nothing, decided in the store.
async fn buy_by_script(client: Client) -> Result<bool, Error> {
    Ok(client.take_stock(STOCK, 1).await?.is_some())
}

/// Read, decide, write back: wrong if two buyers do it at the same time, hence the lock.
async fn buy_by_lock(client: Client) -> Result<bool, Error> {
    let guard = client.lock("flash-sale").lock().await?;
    let left = client.stock(STOCK).await?.unwrap_or(0) as u32;
    if left > 0 {
        tokio::task::yield_now().await; // a payment, perhaps
        client.set_stock(STOCK, left - 1).await?;
    }
    guard.unlock().await?;
    Ok(left > 0)
}

async fn sale<F>(client: &Client, buy: impl Fn(Client) -> F) -> Result<usize, Error>
where
    F: Future<Output = Result<bool, Error>> + Send + 'static,
{
    client.set_stock(STOCK, ITEMS).await?;
    let buyers: Vec<_> = (0..BUYERS).map(|_| tokio::spawn(buy(client.clone()))).collect();
    let mut sold = 0;
    for buyer in buyers {
        sold += usize::from(buyer.await.expect("no buyer panics")?);
    }
    Ok(sold)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::connect(&redlatch_examples::url()).await?;
    for (way, sold) in
        [("script", sale(&client, buy_by_script).await?), ("lock", sale(&client, buy_by_lock).await?)]
    {
        println!("with a {way}: {sold} of {ITEMS} sold to {BUYERS} buyers");
        assert_eq!(sold, ITEMS as usize);
    }
    assert_eq!(client.stock(STOCK).await?, Some(0));
    Ok(())
}
