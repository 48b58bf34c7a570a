//! What keeps a hold on the server, or takes it off, beside the one whose guard is looked at.

use std::time::Duration;

use redlatch::{Client, Lease, LossReason, Unlocked, Wait};
use redlatch_testkit::server::RedisServer;

use crate::{
    fixture::{RENEWED, ms, soon},
    watched::until_watched,
};

const LONG: Duration = Duration::from_secs(600);

fn number(server: &RedisServer, words: &[&str]) -> i64 {
    redis::from_redis_value(server.cmd(words).unwrap()).unwrap()
}

/// A Java reader's watchdog sets the TTL of the hash to its own lease, and 3.15.1 that of every reader's timeout key. A writer got in
/// when that was over, beside a reader whose lease was longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_clients_renewal_cut_down_of_a_read_lease_is_raised_again() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(LONG).connect().await.unwrap();
    let lock = client.read_write_lock("cut");
    let fixed = lock.read().acquire().lease(Lease::Fixed(LONG / 2)).await.unwrap().unwrap();
    let renewed = lock.read().lock().await.unwrap();
    let owners = [fixed.owner().to_text(), renewed.owner().to_text()];
    let timeouts = owners.map(|owner| format!("{{cut}}:{owner}:rwlock_timeout:1"));
    until_watched(&[&server], 1).await;
    for key in [&timeouts[0], &timeouts[1], &"cut".to_owned()] {
        server.cmd(&["PEXPIRE", key, "60000"]).unwrap();
    }
    let left = |key: &str| number(&server, &["PTTL", key]);
    soon("the leases", async {
        while left("cut") < 590_000 || left(&timeouts[1]) < 590_000 || left(&timeouts[0]) < 290_000 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert!(left(&timeouts[0]) <= 300_000, "a fixed lease gets no longer");
    assert!(fixed.is_valid() && renewed.is_valid());
}

/// A look that raises a lease changes the key over the connection that watches it, which ended the watching without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_lease_a_look_has_raised_is_watched_on() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(LONG).connect().await.unwrap();
    let sides = client.read_write_lock("r");
    let fixed = Lease::Fixed(LONG);
    let plain = client.lock("p").acquire().lease(fixed).await.unwrap().unwrap();
    let read = sides.read().acquire().lease(fixed).await.unwrap().unwrap();
    let write = client.read_write_lock("w").write().acquire().lease(fixed).await.unwrap().unwrap();
    let timeout = format!("{{r}}:{}:rwlock_timeout:1", read.owner().to_text());
    for _ in 0..2 {
        // The first time before they are watched at all.
        for key in ["p", "r", &timeout, "w"] {
            server.cmd(&["PEXPIRE", key, "60000"]).unwrap();
        }
        soon("the leases", async {
            while ["p", "r", &timeout, "w"].iter().any(|key| number(&server, &["PTTL", key]) < 500_000) {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        until_watched(&[&server], 3).await;
    }
    for key in ["p", "r", "w"] {
        server.cmd(&["DEL", key]).unwrap();
    }
    soon("the losses", async { tokio::join!(plain.lost(), read.lost(), write.lost()) }).await;
}

/// A Java client's multi-lock sets the TTL of a member without looking whose it is by then. The hold was valid for the rest of its lease, and
/// the next one was granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_client_cuts_down_of_a_lease_is_raised_again_told_or_not() {
    let told = RedisServer::start().unwrap();
    let untold =
        RedisServer::builder().acl("default on nopass ~* &* +@all -client|tracking").start().unwrap();
    for (server, cut_ms) in [(&told, "60000"), (&untold, "30000")] {
        let client = Client::connect(&server.url()).await.unwrap();
        let fixed = Lease::Fixed(LONG);
        let plain = client.lock("plain").acquire().lease(fixed).await.unwrap().unwrap();
        let fair = client.fair_lock("fair").acquire().lease(fixed).await.unwrap().unwrap();
        let sides = client.read_write_lock("sides");
        let write = sides.write().acquire().lease(fixed).await.unwrap().unwrap();
        if std::ptr::eq(server, &raw const told) {
            until_watched(&[server], 3).await;
        }
        for name in ["plain", "fair", "sides"] {
            server.cmd(&["PEXPIRE", name, cut_ms]).unwrap();
            soon("the lease", async {
                while number(server, &["PTTL", name]) < 500_000 {
                    tokio::time::sleep(ms(20)).await;
                }
            })
            .await;
        }
        assert!(plain.is_valid() && fair.is_valid() && write.is_valid());
    }
}

/// A read hold that was taken beside a write hold raises the TTL of what they share. When it had gone, nothing removed the write hold that
/// was over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_hold_that_is_over_goes_though_a_read_hold_was_beside_it() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let lock = client.read_write_lock("beside");
    let writing = lock.write().acquire().lease(Lease::Fixed(ms(700))).await.unwrap().unwrap();
    let reading =
        lock.read().acquire().owner(writing.owner()).lease(Lease::Fixed(LONG)).await.unwrap().unwrap();
    assert_eq!(reading.unlock().await.unwrap(), Unlocked::Released);
    assert!(number(&server, &["PTTL", "beside"]) > 60_000);
    assert_eq!(soon("the end", writing.lost()).await, LossReason::Expired);
    let lock = other.read_write_lock("beside");
    drop(soon("the lock", lock.write().lock()).await.unwrap());
}

/// Nothing was renewed any more, so nothing asked again, and the server had come back without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_renewed_guard_went_while_its_renewal_failed_is_looked_at_all_the_same() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let lock = client.lock("dark");
    let fixed = lock.acquire().lease(Lease::Fixed(LONG)).await.unwrap().unwrap();
    let entered = lock.acquire().owner(fixed.owner()).await.unwrap().unwrap();
    server.kill9();
    // The renewal fails.
    tokio::time::sleep(RENEWED).await;
    // It is given up after a while.
    entered.unlock().await.unwrap_err();
    server.restart().unwrap();
    assert_eq!(soon("the loss", fixed.lost()).await, LossReason::Deleted);
    let other = Client::connect(&server.url()).await.unwrap();
    assert!(other.lock("dark").acquire().wait(Wait::No).await.unwrap().is_some());
}

/// Permits were taken out with the set that a counter with a TTL had had, which was deleted and set anew since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_live_as_long_as_a_counter_that_was_set_anew() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    for again in ["set", "take"] {
        let permits = client.permit_semaphore(again);
        permits.set(3).await.unwrap();
        server.cmd(&["PEXPIRE", again, "60000"]).unwrap();
        let held = permits.acquire().await.unwrap();
        let taken = format!("{{{again}}}:timeout");
        assert!(number(&server, &["PTTL", &taken]) > 0);
        server.cmd(&["DEL", again]).unwrap();
        match again {
            "set" => drop(permits.set(3).await.unwrap()),
            // As a Java client sets it.
            _ => {
                server.cmd(&["SET", again, "2"]).unwrap();
                drop(permits.acquire().await.unwrap().release().await.unwrap());
            }
        };
        assert_eq!(number(&server, &["PTTL", &taken]), -1, "{again}");
        held.release().await.unwrap();
    }
}
