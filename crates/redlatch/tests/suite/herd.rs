//! Many waiters of one process must not ask all at once when something comes free.

use redlatch::ErrorKind;
use redlatch_testkit::server::RedisServer;

use crate::fixture::{ms, quiet, soon};

const WAITERS: usize = 50;

/// How many scripts the server has run since its counts were reset.
fn scripts_run(server: &RedisServer) -> u64 {
    let counts = server.command_counts().unwrap();
    counts.iter().filter(|(command, _)| command.starts_with("eval")).map(|(_, count)| count).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_waiter_of_a_semaphore_asks_for_all() {
    let server = RedisServer::start().unwrap();
    let (client, other) = (
        quiet().url(server.url()).connect().await.unwrap(),
        quiet().url(server.url()).connect().await.unwrap(),
    );
    let permits = client.semaphore("permits");
    permits.set_if_absent(1, None).await.unwrap();
    permits.acquire(1).await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        let permits = permits.clone();
        waiters.spawn(async move { permits.acquire(1).await.unwrap() });
    }
    // Until all of them have asked once and stand behind the one that asks.
    tokio::time::sleep(ms(400)).await;
    server.reset_command_counts().unwrap();
    for _ in 0..5 {
        other.semaphore("permits").release(1).await.unwrap();
        soon("a grant", waiters.join_next()).await.unwrap().unwrap();
    }
    let run = scripts_run(&server);
    assert!(run <= 5 * 4 + 4, "{run} scripts for five grants to {WAITERS} waiters");
    // Several at once reach as many, without a message for each.
    other.semaphore("permits").release(WAITERS as u32 - 5).await.unwrap();
    while let Some(granted) = soon("the other grants", waiters.join_next()).await {
        granted.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_learns_of_an_outage_in_its_own_time() {
    let server = RedisServer::start().unwrap();
    let builder = quiet().url(server.url()).outage_tolerance(ms(1_000));
    let client = builder.connect().await.unwrap();
    let permits = client.semaphore("permits");
    permits.set_if_absent(1, None).await.unwrap();
    permits.acquire(1).await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let permits = permits.clone();
        waiters.spawn(async move { permits.acquire(1).await.unwrap_err().kind() });
    }
    tokio::time::sleep(ms(300)).await;
    // All hear messages by now. What the one that asks is answered next, the others take for theirs.
    server.reset_command_counts().unwrap();
    let asked = async {
        while scripts_run(&server) == 0 {
            tokio::time::sleep(ms(10)).await;
        }
    };
    soon("another look", asked).await;
    server.stop();
    // One after the other they would take 100 s and more.
    let kinds = soon("the end of all waits", waiters.join_all()).await;
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::Unreachable), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_waiter_of_leased_permits_asks_for_all() {
    let server = RedisServer::start().unwrap();
    let (client, other) = (
        quiet().url(server.url()).connect().await.unwrap(),
        quiet().url(server.url()).connect().await.unwrap(),
    );
    let permits = client.permit_semaphore("permits");
    permits.set_if_absent(5).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(other.permit_semaphore("permits").acquire().await.unwrap());
    }
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        let permits = permits.clone();
        waiters.spawn(async move { permits.acquire().await.unwrap() });
    }
    tokio::time::sleep(ms(400)).await;
    server.reset_command_counts().unwrap();
    let mut granted = Vec::new();
    for guard in held {
        guard.release().await.unwrap();
        granted.push(soon("a grant", waiters.join_next()).await.unwrap().unwrap());
    }
    let run = scripts_run(&server);
    assert!(run <= 5 * 4 + 4, "{run} scripts for five grants to {WAITERS} waiters");
    // Each that goes lets the next one in.
    drop(granted);
    while let Some(granted) = soon("the other grants", waiters.join_next()).await {
        drop(granted.unwrap());
    }
}
