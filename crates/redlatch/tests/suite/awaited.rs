//! A name that vanishes without a message wakes its waiters: their looks are so far apart here that none could have found out.

use std::time::Duration;

use redlatch::{Client, Presence, blocking};
use redlatch_testkit::server::{RedisServer, ServerProgram};
use tokio::task::JoinHandle;

use crate::{
    fixture::{ms, soon},
    watched::until_watched,
};

/// The longest that can be set. A waiter looks again after half of that at the earliest, and what the server tells comes sooner.
const POLL: Duration = Duration::from_secs(30);
const TOLD_WITHIN: Duration = Duration::from_secs(10);

async fn client(server: &RedisServer) -> Client {
    // What it tells of itself would be counted among its looks.
    let builder = Client::builder().url(server.url()).presence(Presence::untold());
    builder.poll_interval_max(POLL).connect().await.unwrap()
}

/// A hold of no client: nobody renews it, and nobody tells of its end.
fn held_by_hand(server: &RedisServer, name: &str) {
    server.cmd(&["HSET", name, "other:1", "1"]).unwrap();
    server.cmd(&["PEXPIRE", name, "600000"]).unwrap();
}

/// A waiter of each kind that waits at the server: its name, and the task that ends when it has what it waits for.
fn waiters(client: &Client, server: &RedisServer) -> Vec<(&'static str, JoinHandle<()>)> {
    for name in ["plain", "fair", "fenced"] {
        held_by_hand(server, name);
    }
    for name in ["write", "read"] {
        held_by_hand(server, name);
        server.cmd(&["HSET", name, "mode", "write", "other:1:write", "1"]).unwrap();
        server.cmd(&["HDEL", name, "other:1"]).unwrap();
    }
    server.cmd(&["SET", "latch", "1"]).unwrap();
    let (plain, fair, fenced) =
        (client.lock("plain"), client.fair_lock("fair"), client.fenced_lock("fenced"));
    let (write, read) = (client.read_write_lock("write"), client.read_write_lock("read"));
    let latch = client.count_down_latch("latch");
    vec![
        ("plain", tokio::spawn(async move { drop(plain.lock().await.unwrap()) })),
        ("fair", tokio::spawn(async move { drop(fair.lock().await.unwrap()) })),
        ("fenced", tokio::spawn(async move { drop(fenced.lock().await.unwrap()) })),
        ("write", tokio::spawn(async move { drop(write.write().lock().await.unwrap()) })),
        ("read", tokio::spawn(async move { drop(read.read().lock().await.unwrap()) })),
        ("latch", tokio::spawn(async move { latch.wait().await.unwrap() })),
    ]
}

async fn told(name: &str, waiter: JoinHandle<()>) {
    let waited = tokio::time::timeout(TOLD_WITHIN, waiter).await;
    waited.unwrap_or_else(|_| panic!("the waiter for {name} is not told")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_any_kind_learns_of_a_foreign_delete_long_before_its_next_look() {
    for program in ServerProgram::ALL {
        let server = RedisServer::builder().program(program).start().unwrap();
        let client = client(&server).await;
        let waiters = waiters(&client, &server);
        until_watched(&[&server], waiters.len() as u64).await;
        for (name, waiter) in waiters {
            server.cmd(&["DEL", name]).unwrap();
            told(name, waiter).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_learns_of_a_flush_long_before_its_next_look() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    let waiters = waiters(&client, &server);
    until_watched(&[&server], waiters.len() as u64).await;
    server.flush_all().unwrap();
    for (name, waiter) in waiters {
        told(name, waiter).await;
    }
}

/// Its lease was cut down by another client, so the time that the waiter was told is too long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_learns_of_an_early_expiry_long_before_its_next_look() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    held_by_hand(&server, "early");
    let lock = client.lock("early");
    let waiter = tokio::spawn(async move { drop(lock.lock().await.unwrap()) });
    until_watched(&[&server], 1).await;
    server.cmd(&["PEXPIRE", "early", "50"]).unwrap();
    told("early", waiter).await;
}

#[test]
fn a_waiting_thread_learns_of_a_foreign_delete_long_before_its_next_look() {
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(client(&server));
    let lock = blocking::Client::of(client).lock("thread");
    held_by_hand(&server, "thread");
    let waiter = runtime.spawn_blocking(move || drop(lock.lock().unwrap()));
    runtime.block_on(async {
        until_watched(&[&server], 1).await;
        server.cmd(&["DEL", "thread"]).unwrap();
        told("thread", waiter).await;
    });
}

/// The holder's renewals change the key, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_sleeps_on_while_the_name_is_only_renewed() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    held_by_hand(&server, "renewed");
    let lock = client.lock("renewed");
    let waiter = tokio::spawn(async move { drop(lock.lock().await.unwrap()) });
    until_watched(&[&server], 1).await;
    server.reset_command_counts().unwrap();
    let of = |name: &str| server.command_counts().unwrap().get(name).copied().unwrap_or(0);
    for looks in 1..=3 {
        server.cmd(&["PEXPIRE", "renewed", "600000"]).unwrap();
        soon("a look at the name", async {
            while of("exists") < looks {
                tokio::time::sleep(ms(20)).await;
            }
        })
        .await;
        until_watched(&[&server], 1).await;
    }
    assert_eq!(of("evalsha"), 0, "the waiter has not asked");
    server.cmd(&["DEL", "renewed"]).unwrap();
    told("renewed", waiter).await;
}

/// What was watched over a connection that ends is watched no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_connection_for_news_has_ended_learns_of_a_delete_as_soon() {
    let server = RedisServer::start().unwrap();
    let client = client(&server).await;
    held_by_hand(&server, "cut");
    let lock = client.lock("cut");
    let waiter = tokio::spawn(async move { drop(lock.lock().await.unwrap()) });
    until_watched(&[&server], 1).await;
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    server.cmd(&["DEL", "cut"]).unwrap();
    told("cut", waiter).await;
}
