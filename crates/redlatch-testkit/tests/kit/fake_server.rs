//! The scripted server.

use redlatch_testkit::fake_server::{FakeReply, FakeServer};
use redlatch_testkit::resp;

use crate::client::Client;

fn server() -> FakeServer {
    FakeServer::start(|args| match args[0].as_slice() {
        b"GET" => FakeReply::Reply(resp::bulk("v")),
        b"EVAL" => FakeReply::Error("LOADING Redis is loading".into()),
        b"WAIT" => FakeReply::Silence,
        b"GO" => FakeReply::Close,
        b"HALF" => FakeReply::Truncated(b"$10\r\nabc".to_vec()),
        b"TWO" => FakeReply::Raw(b"+1\r\n+2\r\n".to_vec()),
        _ => FakeReply::Default,
    })
    .unwrap()
}

#[test]
fn answers_as_scripted() {
    let server = server();
    for mut client in [Client::tcp(&server.url()).unwrap(), Client::unix(&server.unix_url()).unwrap()] {
        assert_eq!(client.call(&["GET", "k"]), "$1 v");
        assert_eq!(client.call(&["EVAL", "x", "0"]), "-LOADING Redis is loading");
        assert_eq!((client.call(&["TWO"]), client.read()), ("+1".into(), "+2".into()));
        client.send(&["WAIT"]);
        client.assert_silent();
        client.send(&["HALF"]);
        client.assert_closed();
    }
    let mut client = Client::tcp(&server.url()).unwrap();
    client.send(&["GO"]);
    client.assert_closed();
    assert_eq!((server.count("get"), server.count("HALF"), server.connections_accepted()), (2, 2, 3));
    assert_eq!(server.requests()[0], [b"GET".to_vec(), b"k".to_vec()]);
}

#[test]
fn defaults_satisfy_a_real_client() {
    let server = server();
    for protocol in ["resp2", "resp3"] {
        let client = redis::Client::open(format!("{}/?protocol={protocol}", server.url())).unwrap();
        let mut connection = client.get_connection().unwrap();
        assert_eq!(redis::cmd("GET").arg("k").query::<String>(&mut connection).unwrap(), "v");
        assert_eq!(redis::cmd("PING").query::<String>(&mut connection).unwrap(), "PONG");
    }
}

#[test]
fn broadcasts_reach_subscribers() {
    let server = server();
    let mut client = Client::tcp(&server.url()).unwrap();
    assert!(client.call(&["HELLO", "3"]).starts_with("%7 "));
    assert_eq!(client.call(&["SUBSCRIBE", "c"]), ">3 $9 subscribe $1 c :1");
    server.broadcast(resp::push(&[resp::bulk("message"), resp::bulk("c"), resp::bulk("m")]));
    assert_eq!(client.read(), ">3 $7 message $1 c $1 m");
}
