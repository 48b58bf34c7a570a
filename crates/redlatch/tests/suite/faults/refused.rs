//! Servers that are there and refuse: connections, writes, rights, credentials.

use std::time::Instant;

use redlatch::{Client, ErrorKind, LossReason, Unlocked};
use redlatch_testkit::server::RedisServer;

use super::nothing_left;
use crate::fixture::{LATE, RENEWED, SOON, awake, ms, renewed, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_19_killed_clients_and_full_servers_are_survived() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let guard = client.lock("kill").lock().await.unwrap();
    for _ in 0..10 {
        server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        tokio::time::sleep(ms(100)).await;
        client.lock("other").lock_for(SOON).await.unwrap().unwrap().unlock().await.unwrap();
    }
    assert!(guard.is_valid());
    server.cmd(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    let error = Client::connect(&server.url()).await.map(|_| ()).unwrap_err();
    // The server says why and hangs up at once; whether the reason can still be read is a matter of luck.
    assert!(matches!(error.kind(), ErrorKind::ServerBusy | ErrorKind::Unreachable), "{error}");
    assert!(guard.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_a_server_that_became_a_replica_is_an_error_and_no_loss() {
    let (server, master) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let guard = client.lock("mine").lock().await.unwrap();
    let busy = Client::connect(&server.url()).await.unwrap().lock("busy").lock().await.unwrap();
    server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    for name in ["busy", "new"] {
        let error = client.lock(name).try_lock().await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{name}: {error}");
    }
    assert!(guard.is_valid(), "a refused renewal is not a loss");
    let error = client.lock("new").lock_for(ms(100)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert_eq!(soon("the deadline", guard.lost()).await, LossReason::Expired);
    drop((busy, master));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_26_a_full_memory_refuses_locks_and_nothing_else() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let guard = client.lock("before").lock().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let error = client.lock("after").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(error.to_string().contains("after") && error.to_string().contains("maxmemory"), "{error}");
    // Renewals go on.
    renewed(2, async || guard.remaining()).await;
    assert!(guard.is_valid());
    drop(inner);
    let outcome = soon("the release", guard.unlock()).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    nothing_left(&server, "before").await;
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    client.lock("after").try_lock().await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_28_a_missing_right_is_named_and_nothing_is_left_half_done() {
    let full = "on >pw ~app:* ~{app:* &redisson_lock__channel:* +@all -@admin";
    for (without, operation) in [
        ("-hset", "lock"),
        ("-pexpire", "lock"),
        ("-evalsha", "lock"),
        ("-publish", "unlock"),
        ("-subscribe", "wait"),
    ] {
        let server = RedisServer::builder().acl(&format!("limited {full} {without}")).start().unwrap();
        let url = server.url().replace("redis://", "redis://limited:pw@");
        let client = Client::connect(&url).await.unwrap();
        let lock = client.lock("app:x");
        match operation {
            "lock" => {
                let error = lock.try_lock().await.map(|_| ()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Permission, "{without}: {error}");
                nothing_left(&server, "app:x").await;
            }
            "unlock" => {
                let guard = lock.lock().await.unwrap();
                assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "a mute release is a release");
                assert!(!lock.is_locked().await.unwrap());
            }
            _ => {
                let owner =
                    Client::connect(&server.url().replace("redis://", "redis://limited:pw@")).await.unwrap();
                let guard = owner.lock("app:x").lock().await.unwrap();
                let waiting = client.lock("app:x");
                let waiter = tokio::spawn(async move { waiting.lock().await.map(drop) });
                tokio::time::sleep(ms(200)).await;
                guard.unlock().await.unwrap();
                soon("the poll", waiter).await.unwrap().unwrap();
            }
        }
    }
    let server = RedisServer::builder().acl(&format!("limited {full}")).start().unwrap();
    let client = Client::connect(&server.url().replace("redis://", "redis://limited:pw@")).await.unwrap();
    let error = client.lock("other:x").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_29_refused_credentials_are_reported_without_being_shown() {
    let server = RedisServer::builder().requirepass("right-horse").start().unwrap();
    for (url, kind) in [
        (server.url(), ErrorKind::Auth),
        (server.url().replace("redis://", "redis://:wrong-horse@"), ErrorKind::Auth),
        (server.url().replace("redis://", "redis://nobody:wrong-horse@"), ErrorKind::Auth),
    ] {
        let start = Instant::now();
        let connect = Client::builder().url(&url).connect_timeout(ms(60_000)).connect();
        let error = connect.await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!format!("{error} {error:?}").contains("horse"), "{error}");
        assert!(awake(start) < LATE, "{:?}", start.elapsed());
    }
    let client = Client::builder().url(server.url()).password("right-horse").connect().await.unwrap();
    assert!(!format!("{client:?}").contains("horse"));
    client.lock("in").lock().await.unwrap().unlock().await.unwrap();
    // A password that changes under a living client: old connections go on, new ones are refused, and that is said.
    server.cmd(&["CONFIG", "SET", "requirepass", "new-horse"]).unwrap();
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    tokio::time::sleep(ms(50)).await;
    let error = client.lock("in").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_30_refused_and_black_holed_ports_answer_in_time() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = Instant::now();
    let builder = Client::builder().url(format!("redis://127.0.0.1:{port}"));
    let error = builder.connect_timeout(ms(60_000)).connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
    assert!(awake(start) < LATE, "{:?}", start.elapsed());
    // Accepts and never says a word.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://127.0.0.1:{}", mute.local_addr().unwrap().port());
    let start = Instant::now();
    let error = Client::builder().url(url).connect_timeout(ms(300)).connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(start.elapsed() >= ms(300) && awake(start) < LATE, "{:?}", start.elapsed());
}
