use super::*;
use crate::{client::Client, config::url::StoreUrl};

#[tokio::test]
async fn a_password_in_the_open_is_noticed() {
    for (url, shown) in [
        ("redis://:pw@db.example:6379", true),
        ("redis://:pw@10.0.0.1", true),
        ("redis://:pw@[2001:db8::1]", true),
        ("redis://:pw@127.0.0.2", false),
        ("redis://:pw@localhost", false),
        ("redis://:pw@[::1]", false),
        ("redis://db.example", false),
        ("rediss://:pw@db.example", false),
    ] {
        let StoreUrl::Redis(server) = StoreUrl::parse(url).unwrap() else { panic!("{url}") };
        let config = Client::builder().url(url).config().clone();
        assert_eq!(Dial::new(server, &config, &Handle::current()).unwrap().shows_password(), shown, "{url}");
    }
}

/// A machine that had refused a connection, and then answered nothing, counted as one without a server.
#[tokio::test]
async fn an_attempt_that_hangs_has_not_been_refused() {
    let port = redlatch_testkit::net::ReservedPort::new(0).unwrap();
    let url = format!("redis://127.0.0.1:{}", port.port());
    let StoreUrl::Redis(server) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
    let config = Client::builder().url(&url).config().clone();
    let dial = Dial::new(server, &config, &Handle::current()).unwrap();
    assert!(dial.stream().await.is_err() && dial.is_refused());
    // The kernel answers nobody when as many wait to be accepted as may.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], port.port()).into()).unwrap();
    let _listener = socket.listen(1).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = tokio::time::timeout(Duration::from_millis(100), dial.stream()).await {
        waiting.push(stream.unwrap());
        assert!(waiting.len() < 64, "the queue is never full");
    }
    assert!(!dial.is_refused());
    // With one that was refused before.
    dial.refused.0.store(true, Ordering::Relaxed);
    assert!(tokio::time::timeout(Duration::from_millis(100), dial.stream()).await.is_err());
    assert!(!dial.is_refused());
}
