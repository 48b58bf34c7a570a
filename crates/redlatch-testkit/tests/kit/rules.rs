//! Every action of the proxy against a real server.

use std::time::{Duration, Instant};

use redis::Value;
use redlatch_testkit::proxy::{Action, ConnectionKind, Gate, Match, Nth, Proxy};
use redlatch_testkit::resp;
use redlatch_testkit::server::RedisServer;

use crate::client::{Client, LIMIT};

fn set_up() -> (Proxy, Client) {
    let proxy = Proxy::start(&RedisServer::shared().url()).unwrap();
    let client = Client::tcp(&proxy.url()).unwrap();
    (proxy, client)
}

fn on_server(args: &[&str]) -> Value {
    RedisServer::shared().cmd(args).unwrap()
}

#[test]
fn passes_pipelines_and_pushes_over_both_sockets() {
    let (proxy, tcp) = set_up();
    for mut client in [tcp, Client::unix(&proxy.unix_url()).unwrap()] {
        assert!(client.call(&["HELLO", "3"]).starts_with('%'));
        assert!(client.call(&["SUBSCRIBE", "pass:channel"]).starts_with(">3 $9 subscribe"));
        let mut bytes = Vec::new();
        for n in 0..500 {
            bytes.extend(resp::encode_request(&["ECHO", &n.to_string()]));
            bytes.extend(resp::encode_request(&["PUBLISH", "pass:channel", &n.to_string()]));
        }
        client.write(&bytes);
        let (mut echoes, mut pushes) = (0, 0);
        for _ in 0..1500 {
            let frame = client.read();
            match frame.as_bytes()[0] {
                b'$' => {
                    assert!(frame.ends_with(&format!(" {echoes}")), "{frame}");
                    echoes += 1;
                }
                b'>' => pushes += 1,
                _ => {}
            }
        }
        assert_eq!((echoes, pushes), (500, 500));
    }
    assert_eq!(proxy.count("echo"), 1000);
    assert_eq!(proxy.connections_accepted(), 2);
}

#[test]
fn drop_reply_hits_the_named_one_and_silences_the_connection() {
    let (proxy, mut client) = set_up();
    let rule = proxy.rule(Match::command("incr").key_contains("drop:reply").nth(2), Action::DropReply);
    assert_eq!(client.call(&["INCR", "drop:reply"]), ":1");
    assert_eq!(client.call(&["INCR", "drop:other"]), ":1");
    client.send(&["INCR", "drop:reply"]);
    proxy.wait_for_blocking(LIMIT, |log| log.fired(rule) == 1).unwrap();
    client.send(&["PING"]);
    client.assert_silent();
    assert_eq!(on_server(&["GET", "drop:reply"]), Value::BulkString(b"2".to_vec()));
    proxy.heal().unwrap();
    client.assert_reset();
    assert_eq!(Client::tcp(&proxy.url()).unwrap().call(&["INCR", "drop:reply"]), ":3");
}

#[test]
fn skip_reply_shifts_the_ones_behind() {
    let (proxy, mut client) = set_up();
    proxy.rule(Match::command("ECHO").arg_contains("b"), Action::SkipReply);
    client.send(&["ECHO", "a"]);
    client.send(&["ECHO", "b"]);
    client.send(&["ECHO", "c"]);
    assert_eq!((client.read(), client.read()), ("$1 a".into(), "$1 c".into()));
    client.assert_silent();
}

#[test]
fn delays_keep_the_order() {
    let (proxy, mut client) = set_up();
    let delay = Duration::from_millis(150);
    proxy.rule(Match::command("ECHO").nth(1), Action::DelayReply(delay));
    proxy.rule(Match::command("SET"), Action::DelayRequest(delay));
    let started = Instant::now();
    client.send(&["ECHO", "slow"]);
    client.send(&["PING"]);
    assert_eq!((client.read(), client.read()), ("$4 slow".into(), "+PONG".into()));
    assert!(started.elapsed() >= delay);
    let started = Instant::now();
    client.send(&["SET", "delay:request", "x"]);
    proxy.wait_for_blocking(LIMIT, |log| log.count("SET") == 1).unwrap();
    assert_eq!(on_server(&["EXISTS", "delay:request"]), Value::Int(0));
    assert_eq!(client.read(), "+OK");
    assert!(started.elapsed() >= delay);
}

#[test]
fn drop_request_never_arrives() {
    let (proxy, mut client) = set_up();
    let rule = proxy.rule(Match::command("SET"), Action::DropRequest);
    client.send(&["SET", "drop:request", "x"]);
    client.send(&["PING"]);
    client.assert_silent();
    assert_eq!(proxy.fired(rule), 1);
    assert_eq!(on_server(&["EXISTS", "drop:request"]), Value::Int(0));
}

#[test]
fn close_before_and_after_the_request() {
    let (proxy, mut client) = set_up();
    proxy.rule(Match::command("SET").key_contains("close:before"), Action::CloseBeforeRequest);
    proxy.rule(Match::command("SET").key_contains("close:after"), Action::CloseAfterRequest);
    client.send(&["SET", "close:before", "x"]);
    client.assert_closed();
    assert_eq!(on_server(&["EXISTS", "close:before"]), Value::Int(0));
    let mut client = Client::tcp(&proxy.url()).unwrap();
    client.send(&["SET", "close:after", "x"]);
    client.assert_closed();
    assert_eq!(on_server(&["EXISTS", "close:after"]), Value::Int(1));
}

#[test]
fn replace_reply_of_a_script_by_its_key() {
    let (proxy, mut client) = set_up();
    let noscript = resp::error("NOSCRIPT no matching script");
    let rule = proxy
        .rule(Match::script().key_contains("replace").which(Nth::First(1)), Action::ReplaceReply(noscript));
    let script = "return redis.call('incr', KEYS[1])";
    // The name occurs as an argument only, which is no key.
    assert_eq!(client.call(&["EVAL", script, "1", "other:key", "replace"]), ":1");
    assert_eq!(client.call(&["EVAL", script, "1", "replace:key"]), "-NOSCRIPT no matching script");
    assert_eq!(client.call(&["EVAL", script, "1", "replace:key"]), ":2");
    assert_eq!(proxy.fired(rule), 1);
}

#[tokio::test]
async fn held_reply_comes_with_the_release() {
    let (proxy, mut client) = set_up();
    let gate = Gate::new();
    let rule = proxy.rule(Match::command("INCR"), Action::HoldReplyUntilReleased(gate.clone()));
    client.send(&["INCR", "held"]);
    proxy.wait_fired(rule, 1, LIMIT).await.unwrap();
    assert_eq!(on_server(&["GET", "held"]), Value::BulkString(b"1".to_vec()));
    client.assert_silent();
    gate.release();
    assert_eq!(client.read(), ":1");
    let late = proxy.wait_fired(rule, 2, Duration::from_millis(20)).await.unwrap_err();
    assert!(late.to_string().contains("INCR held"), "{late}");
}

#[test]
fn rules_for_one_kind_of_connection_count_subscriptions_right() {
    let (proxy, mut client) = set_up();
    let rule = proxy
        .rule(Match::command("PING").kind(ConnectionKind::PubSub), Action::ReplaceReply(resp::simple("X")));
    assert_eq!(client.call(&["PING"]), "+PONG");
    client.send(&["SUBSCRIBE", "kind:a", "kind:b"]);
    client.read();
    client.read();
    on_server(&["PUBLISH", "kind:a", "m"]);
    assert!(client.read().contains("message"));
    client.send(&["UNSUBSCRIBE"]);
    client.send(&["PING"]);
    client.read();
    client.read();
    assert_eq!((client.read(), proxy.fired(rule)), ("+X".into(), 1));
}

#[test]
fn a_request_is_delivered_though_its_client_is_gone() {
    let (proxy, mut client) = set_up();
    proxy.rule(Match::command("SET"), Action::DelayRequest(Duration::from_millis(50)));
    client.send(&["SET", "client:gone", "x"]);
    drop(client);
    proxy.wait_for_blocking(LIMIT, |log| log.count("SET") == 1).unwrap();
    let deadline = Instant::now() + LIMIT;
    while proxy.connections_open() > 0 {
        assert!(Instant::now() < deadline, "the connection stays open");
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(on_server(&["EXISTS", "client:gone"]), Value::Int(1));
}

#[test]
fn secrets_are_not_logged() {
    let (proxy, mut client) = set_up();
    client.call(&["AUTH", "alice", "s3cret"]);
    client.call(&["HELLO", "3", "AUTH", "alice", "s3cret"]);
    assert!(!proxy.with_log(|log| format!("{log:?}")).contains("s3cret"));
    assert_eq!(proxy.with_log(|log| log.total()), 2);
}
