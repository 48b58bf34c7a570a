//! Faults of the whole network.

use std::io;
use std::time::{Duration, Instant};

use redis::Value;
use redlatch_testkit::proxy::{ConnectionKind, Proxy, Scope};
use redlatch_testkit::server::RedisServer;

use crate::client::{Client, LIMIT};

fn set_up() -> (Proxy, Client) {
    let proxy = Proxy::start(&RedisServer::shared().url()).unwrap();
    let mut client = Client::tcp(&proxy.url()).unwrap();
    assert_eq!(client.call(&["PING"]), "+PONG");
    (proxy, client)
}

fn get(key: &str) -> Value {
    RedisServer::shared().cmd(&["GET", key]).unwrap()
}

fn text(value: &str) -> Value {
    Value::BulkString(value.as_bytes().to_vec())
}

#[test]
fn blackhole_of_both_and_of_one_direction() {
    for (scope, stored) in
        [(Scope::Both, Value::Nil), (Scope::Requests, Value::Nil), (Scope::Replies, text("x"))]
    {
        let (proxy, mut client) = set_up();
        let key = format!("blackhole:{scope:?}");
        proxy.blackhole(scope);
        client.send(&["SET", &key, "x"]);
        client.assert_silent();
        assert_eq!(get(&key), stored, "{scope:?}");
        // New connections can be made, and lead nowhere.
        let mut other = Client::tcp(&proxy.url()).unwrap();
        other.send(&["PING"]);
        other.assert_silent();
        proxy.heal().unwrap();
        client.assert_reset();
        other.assert_reset();
        assert_eq!(Client::tcp(&proxy.url()).unwrap().call(&["PING"]), "+PONG");
    }
}

#[test]
fn blackhole_of_pubsub_only() {
    let (proxy, mut commands) = set_up();
    let mut pubsub = Client::tcp(&proxy.url()).unwrap();
    pubsub.call(&["SUBSCRIBE", "blackhole:channel"]);
    proxy.blackhole(Scope::PubSub);
    assert_eq!(commands.call(&["PUBLISH", "blackhole:channel", "m"]), ":1");
    pubsub.assert_silent();
    assert_eq!(commands.call(&["PING"]), "+PONG");
    proxy.heal().unwrap();
    pubsub.assert_reset();
    assert_eq!(commands.call(&["PING"]), "+PONG");
}

#[test]
fn stall_delivers_later() {
    let (proxy, mut client) = set_up();
    proxy.stall(Scope::Requests);
    client.send(&["SET", "stalled", "x"]);
    client.assert_silent();
    assert_eq!(get("stalled"), Value::Nil);
    proxy.heal().unwrap();
    assert_eq!(client.read(), "+OK");
    assert_eq!(get("stalled"), text("x"));
}

#[test]
fn latency_delays_both_ways_but_not_one_behind_the_other() {
    let (proxy, mut client) = set_up();
    let least = Duration::from_millis(50);
    proxy.latency(least, Duration::from_millis(10), 7);
    let started = Instant::now();
    for _ in 0..50 {
        client.send(&["PING"]);
    }
    for _ in 0..50 {
        assert_eq!(client.read(), "+PONG");
    }
    let took = started.elapsed();
    assert!(took >= least * 2, "{took:?}");
    assert!(took < least * 50, "{took:?}: delays add up");
    proxy.heal().unwrap();
    assert_eq!(client.call(&["PING"]), "+PONG");
}

#[test]
fn slices_are_single_bytes() {
    let (proxy, mut client) = set_up();
    proxy.slice_replies();
    client.reads.clear();
    let long = "x".repeat(300);
    assert_eq!(client.call(&["ECHO", &long]), format!("$300 {long}"));
    // The kernel joins those that this thread is too slow for.
    assert!(client.reads.len() > 3, "{} reads", client.reads.len());
}

#[test]
fn reset_and_close() {
    let (proxy, mut commands) = set_up();
    let mut pubsub = Client::tcp(&proxy.url()).unwrap();
    pubsub.call(&["SUBSCRIBE", "reset:channel"]);
    proxy.reset(ConnectionKind::PubSub);
    pubsub.assert_reset();
    assert_eq!(commands.call(&["PING"]), "+PONG");
    proxy.reset_all();
    commands.assert_reset();
    let mut next = Client::tcp(&proxy.url()).unwrap();
    assert_eq!(next.call(&["PING"]), "+PONG");
    proxy.close_all();
    assert_eq!(next.try_read(LIMIT).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn refused_connections_and_the_same_port_again() {
    let (proxy, mut open) = set_up();
    for _ in 0..3 {
        proxy.refuse_new().unwrap();
        let refused = Client::tcp(&proxy.url()).err().map(|e| e.kind());
        assert_eq!(refused, Some(io::ErrorKind::ConnectionRefused));
        assert!(Client::unix(&proxy.unix_url()).is_err());
        assert_eq!(open.call(&["PING"]), "+PONG");
        proxy.heal().unwrap();
        assert_eq!(Client::tcp(&proxy.url()).unwrap().call(&["PING"]), "+PONG");
        assert_eq!(Client::unix(&proxy.unix_url()).unwrap().call(&["PING"]), "+PONG");
    }
}

#[test]
fn the_end_of_the_server_and_of_the_proxy_reach_the_client() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.unix_url()).unwrap();
    let mut client = Client::tcp(&proxy.url()).unwrap();
    assert_eq!(client.call(&["PING"]), "+PONG");
    server.kill9();
    client.assert_closed();
    server.restart().unwrap();
    let mut client = Client::tcp(&proxy.url()).unwrap();
    assert_eq!(client.call(&["PING"]), "+PONG");
    drop(proxy);
    client.assert_closed();
}
