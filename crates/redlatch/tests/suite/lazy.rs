//! Clients that connect when they are first used.

use std::{io, net::TcpListener, sync::Arc, time::Duration};

use redlatch::{Client, ErrorKind, TlsOptions, Unlocked, Wait};
use redlatch_testkit::{net::ReservedPort, server::RedisServer, topology::SentinelSet};

use crate::fixture::{ms, soon};

/// Every kind of store that has something to connect to, there.
fn urls(port: u16) -> Vec<String> {
    [
        "redis://127.0.0.1:PORT",
        "rediss://127.0.0.1:PORT",
        "redis-sentinel://127.0.0.1:PORT/mymaster",
        "redis-cluster://127.0.0.1:PORT",
        "redis-replicated://127.0.0.1:PORT",
    ]
    .map(|url| url.replace("PORT", &port.to_string()))
    .into()
}

#[tokio::test]
async fn nobody_is_asked_for_anything_before_the_first_call() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let mut clients = Vec::new();
    for url in urls(port) {
        let client = Client::builder().url(&url).connect_timeout(ms(200)).connect_lazy().unwrap();
        // Handles are made, and what can be known without the server is answered.
        let lock = client.lock("x");
        assert!(client.store().contains("127.0.0.1"), "{}", client.store());
        assert_eq!(client.stats().names, 0);
        clients.push((url, client, lock));
    }
    let engine = dir.path().join("engine");
    let local = Client::builder()
        .url("local:")
        .engine_dir(&engine)
        .engine_binary("/nonexistent/redlatch")
        .connect_lazy()
        .unwrap();
    // A moment for whatever might have been begun in the background.
    tokio::time::sleep(ms(100)).await;
    assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(!engine.exists());
    // Nobody answers there, and that is an error of the call.
    for (url, _, lock) in &clients {
        let error = soon(url, lock.try_lock()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{url}: {error}");
        assert!(listener.accept().is_ok(), "{url}");
        while listener.accept().is_ok() {}
    }
    let error = soon("an engine that cannot be started", local.lock("x").try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine, "{error}");
}

#[tokio::test]
async fn what_can_never_work_is_an_error_at_once_and_what_may_work_later_is_not() {
    for url in ["reddis://host", "redis://", "redis-sentinel://host"] {
        let error = Client::connect_lazy(url).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}: {error}");
    }
    let error =
        Client::builder().url("redis://h").watchdog_lease(ms(1)).connect_lazy().map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    for poll in [ms(9), ms(30_001)] {
        let error = Client::builder().url("redis://h").poll_interval_max(poll).connect_lazy().map(|_| ());
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidOption, "{poll:?}");
    }
    // The file may be there by the time of the next call.
    let mut tls = TlsOptions::default();
    tls.ca_file = Some("/nonexistent/ca.pem".into());
    let client = Client::builder().url("rediss://127.0.0.1:1").tls(tls).connect_lazy().unwrap();
    let error = client.lock("x").try_lock().await.unwrap_err();
    assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
}

#[tokio::test]
async fn a_server_that_comes_up_later_is_found_by_the_same_client() {
    let port = ReservedPort::new(0).unwrap();
    let number = port.port();
    let client = Client::connect_lazy(&format!("redis://127.0.0.1:{number}")).unwrap();
    let (lock, other) = (client.lock("x"), client.lock("y"));
    let error = soon("a refusal", lock.try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    // A waiter rides out that it is not there.
    let waiter = tokio::spawn(async move { lock.lock().await });
    let server = RedisServer::builder().port(number).start().unwrap();
    let guard = soon("the server is found", waiter).await.unwrap().unwrap();
    assert!(server.keys_dump().unwrap().contains_key(b"x".as_slice()));
    let beside = other.try_lock().await.unwrap().expect("it is free");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(beside.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_first_calls_at_once_share_one_beginning() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect_lazy(&server.url()).unwrap();
    let before = server.clients().unwrap().len();
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let lock = client.lock(format!("{n}"));
            tokio::spawn(async move { lock.try_lock().await.unwrap().expect("it is free") })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(soon("a grant", task).await.unwrap());
    }
    // The background thread's, and one of this runtime.
    let more = server.clients().unwrap().len() - before;
    assert!(more <= 2, "{more} connections");
    for guard in guards {
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lazy_client_does_all_that_others_do() {
    let server = RedisServer::start().unwrap();
    let set = SentinelSet::start().unwrap();
    for url in [server.url(), set.url()] {
        let (one, other) = (Client::connect_lazy(&url).unwrap(), Client::connect_lazy(&url).unwrap());
        // Waiting is the first thing that the second one does.
        let guard = one.lock("x").lock().await.unwrap();
        let lock = other.lock("x");
        let waiter = tokio::spawn(async move { lock.acquire().wait(Wait::Forever).await });
        soon("a waiter waits", async {
            while other.stats().names == 0 {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
        guard.unlock().await.unwrap();
        let guard = soon("the waiter's turn", waiter).await.unwrap().unwrap().expect("it waits for ever");
        assert!(guard.is_valid());
        drop(guard);
        let looking = Client::connect_lazy(&url).unwrap();
        assert!(!looking.diagnose().await.unwrap().is_empty());
        assert_eq!(other.shutdown(Duration::from_secs(20)).await.failed.len(), 0);
    }
}

#[tokio::test]
async fn a_client_that_is_shut_down_stops_looking_for_its_server() {
    // Connections are taken, and nobody ever answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::connect_lazy(&format!("redis://{}", listener.local_addr().unwrap())).unwrap();
    let lock = client.lock("x");
    let call = tokio::spawn(async move { lock.lock().await });
    let listener = Arc::new(listener);
    let accepting = listener.clone();
    tokio::task::spawn_blocking(move || accepting.accept().unwrap()).await.unwrap();
    let again = client.clone();
    soon("the end", client.shutdown(ms(100))).await;
    let error = soon("the call's end", call).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert_eq!(again.lock("y").try_lock().await.unwrap_err().kind(), ErrorKind::Closed);
}
