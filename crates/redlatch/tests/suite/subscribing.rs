//! Servers that do not take a subscription at once, or end each connection for them.

use std::sync::OnceLock;

use redlatch::Client;
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    proxy::{Action, Match, Proxy},
    resp,
    server::RedisServer,
};

use crate::fixture::{ms, patient, told};

/// A script that runs too long, or data that are being loaded.
const TROUBLE: [&str; 3] = [
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
];

/// The refusal was taken for the server's last word, and the waiter looked by itself from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_is_refused_in_passing_is_asked_for_again() {
    let server = RedisServer::start().unwrap();
    for trouble in TROUBLE {
        let proxy = Proxy::start(&server.url()).unwrap();
        proxy.rule(Match::command("SUBSCRIBE").nth(1), Action::ReplaceReply(resp::error(trouble)));
        let other = Client::connect(&server.url()).await.unwrap();
        let held = other.lock("x").lock().await.unwrap();
        let client = patient(Client::builder().url(proxy.url())).connect().await.unwrap();
        let lock = client.lock("x");
        let waiter = tokio::spawn(async move { lock.lock().await });
        told("the second subscription", async {
            while proxy.count("SUBSCRIBE") < 2 {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        held.unlock().await.unwrap();
        told("the waiter", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_a_node_of_a_cluster_refuses_in_passing_is_asked_for_again() {
    for trouble in TROUBLE {
        let port: std::sync::Arc<OnceLock<i64>> = std::sync::Arc::default();
        let (own, asked) = (port.clone(), std::sync::atomic::AtomicU32::new(0));
        let node = FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
            b"CLUSTER" => {
                let master = resp::array(&[resp::bulk("127.0.0.1"), resp::integer(*own.get().unwrap())]);
                let run = resp::array(&[resp::integer(0), resp::integer(16_383), master]);
                FakeReply::Reply(resp::array(&[run]))
            }
            b"EVAL" | b"EVALSHA" => {
                let number = |at: usize| std::str::from_utf8(&request[at]).unwrap().parse::<i64>().unwrap();
                // The answer begins with the number that was sent. It is held for long by another owner.
                let number = number(3 + number(2) as usize);
                FakeReply::Reply(resp::array(&[number, 0, 600_000].map(resp::integer)))
            }
            b"SUBSCRIBE" if asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 => {
                FakeReply::Error(trouble.to_owned())
            }
            _ => FakeReply::Default,
        })
        .unwrap();
        port.set(node.url().rsplit(':').next().unwrap().parse().unwrap()).unwrap();
        let url = node.url().replace("redis://", "redis-cluster://");
        let client = patient(Client::builder().url(url)).connect().await.unwrap();
        let lock = client.lock("x");
        let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
        told("the second subscription", async {
            while node.count("SUBSCRIBE") < 2 {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        waiter.abort();
    }
}

/// Each new connection to a sentinel is news, and each was followed by a look at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_ends_each_subscription_is_not_asked_without_a_pause() {
    let master = RedisServer::start().unwrap();
    let port = master.port().to_string();
    let sentinel = FakeServer::start(move |request| {
        let words: Vec<String> =
            request.iter().map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["sentinel", "get-master-addr-by-name", _] => {
                FakeReply::Reply(resp::array(&[resp::bulk("127.0.0.1"), resp::bulk(&port)]))
            }
            ["sentinel", "master", _] => {
                FakeReply::Reply(resp::array(&["flags", "master", "config-epoch", "1"].map(resp::bulk)))
            }
            ["subscribe", channel] => FakeReply::Truncated(resp::array(&[
                resp::bulk("subscribe"),
                resp::bulk(channel),
                resp::integer(1),
            ])),
            _ => FakeReply::Default,
        }
    })
    .unwrap();
    let url = sentinel.url().replace("redis://", "redis-sentinel://") + "/any";
    let _client = Client::connect(&url).await.unwrap();
    let asked_before = sentinel.count("SUBSCRIBE");
    told("a subscription", async {
        while sentinel.count("SUBSCRIBE") <= asked_before {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    let (looks, connections) = (sentinel.count("SENTINEL"), sentinel.connections_accepted());
    tokio::time::sleep(ms(1_000)).await;
    // Four questions a look, of which there are eighty at most.
    let looks = (sentinel.count("SENTINEL") - looks) / 4;
    let connections = sentinel.connections_accepted() - connections;
    assert!(looks <= 85 && connections <= 20, "{looks} looks and {connections} connections in a second");
}

/// A waiter that was subscribed before was told nothing of the refusal, and nobody asked again: it slept for its poll interval.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_whose_right_was_taken_away_is_listened_to_again_when_it_is_back() {
    let server = RedisServer::builder().acl("u on >p ~* &* +@all").start().unwrap();
    let url = server.url().replace("redis://", "redis://u:p@");
    let client = patient(Client::builder().url(url)).connect().await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let held = other.lock("x").lock().await.unwrap();
    let lock = client.lock("x");
    server.reset_command_counts().unwrap();
    let waiter = tokio::spawn(async move { lock.lock().await });
    let channels = async |wanted: usize| {
        let heard = async {
            while server.subscriber_channels().unwrap().len() != wanted {
                tokio::time::sleep(ms(5)).await;
            }
        };
        told("the subscriptions", heard).await;
    };
    channels(1).await;
    // The waiter knows that it is subscribed when it has looked again. Without that it would be refused, and poll.
    told("the second look", async {
        while server.command_count("evalsha").unwrap() < 2 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    server.cmd(&["ACL", "SETUSER", "u", "resetchannels"]).unwrap();
    channels(0).await;
    // It connects anew at once, and is refused.
    tokio::time::sleep(ms(500)).await;
    server.cmd(&["ACL", "SETUSER", "u", "allchannels"]).unwrap();
    channels(1).await;
    held.unlock().await.unwrap();
    drop(told("the grant", waiter).await.unwrap().unwrap());
}
