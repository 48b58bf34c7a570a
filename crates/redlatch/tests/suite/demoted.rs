//! A single server by an address that leads to another one after a failover, as a name, a virtual address or a balancer does.
//!
//! Who was demoted keeps the connections that it has, and refuses writes on them for as long as they last.

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering},
};

use redlatch::{Client, ErrorKind, ReplicaAck, Wait};
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    server::RedisServer,
    topology::MasterReplica,
};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{SOON, ms, patient, soon, told};

/// An address whose new connections go to the server of that port; those that there are stay where they are.
async fn leading_to(port: u16) -> (String, Arc<AtomicU16>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let upstream = Arc::new(AtomicU16::new(port));
    let now = upstream.clone();
    tokio::spawn(async move {
        loop {
            let Ok((mut client, _)) = listener.accept().await else { continue };
            let port = now.load(Ordering::SeqCst);
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
    (url, upstream)
}

/// An account that may not ask which process the server is.
const WITHOUT_INFO: &str = "default on nopass ~* &* +@all -info";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_demoted_is_left_for_the_server_that_the_address_leads_to() {
    for settings in [RedisServer::builder(), RedisServer::builder().acl(WITHOUT_INFO)] {
        let start = || MasterReplica::builder().servers(settings.clone()).replica_count(1).start().unwrap();
        let pair = tokio::task::block_in_place(start);
        let old = pair.master().unwrap();
        let new = 1 - old;
        let (url, upstream) = leading_to(pair.node(old).port()).await;
        let client = patient(Client::builder().url(&url)).connect().await.unwrap();
        // Each of these is a connection of its own: for calls, for renewals, and for what replicas confirm.
        let held = client.lock("held").lock().await.unwrap();
        let acked =
            client.lock("acked").acquire().replica_ack(ReplicaAck::at_least(1).within(SOON)).await.unwrap();
        acked.expect("it waits").unlock().await.unwrap();

        tokio::task::block_in_place(|| {
            let count = |node| pair.node(node).cmd(&["EXISTS", "held"]).unwrap();
            while count(new) != count(old) {
                std::thread::sleep(ms(2));
            }
            pair.promote(new).unwrap();
        });
        upstream.store(pair.node(new).port(), Ordering::SeqCst);

        let after = soon("a grant by the new master", async {
            loop {
                match client.lock("after").try_lock().await {
                    Ok(guard) => return guard.expect("it is free"),
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        })
        .await;
        let lock = client.lock("acked");
        let acquire =
            lock.acquire().replica_ack(ReplicaAck::at_least(1).within(SOON)).wait(Wait::AtMost(ms(20_000)));
        drop(soon("a confirmed grant", acquire.into_future()).await.unwrap().expect("it is free"));
        assert!(held.is_valid() && after.is_valid());
        client.shutdown(ms(10_000)).await;
    }
}

/// What is published at the new master was not heard over the connection to the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_listen_to_the_new_server_as_soon_as_a_call_has_met_the_demoted_one() {
    let start = || MasterReplica::builder().replica_count(1).start().unwrap();
    let pair = tokio::task::block_in_place(start);
    let old = pair.master().unwrap();
    let new = 1 - old;
    let (url, upstream) = leading_to(pair.node(old).port()).await;
    let client = patient(Client::builder().url(&url)).connect().await.unwrap();
    let other = Client::connect(&pair.node(old).url()).await.unwrap();
    let held = other.lock("x").lock().await.unwrap();
    soon("the hold at the replica", async {
        while pair.node(new).cmd(&["EXISTS", "x"]).unwrap() != redis::Value::Int(1) {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    let lock = client.lock("x");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    let listeners = |node: usize, at_least: bool| {
        let pair = &pair;
        async move {
            let channel = "redisson_lock__channel:{x}";
            let count = || match pair.node(node).cmd(&["PUBSUB", "NUMSUB", channel]).unwrap() {
                redis::Value::Array(items) => redis::from_redis_value::<i64>(items[1].clone()).unwrap(),
                other => panic!("{other:?}"),
            };
            while (count() > 0) != at_least {
                tokio::time::sleep(ms(5)).await;
            }
        }
    };
    soon("a listener", listeners(old, true)).await;
    // First, because the waiter itself may meet the demoted one and dial the address at once.
    upstream.store(pair.node(new).port(), Ordering::SeqCst);
    tokio::task::block_in_place(|| pair.promote(new).unwrap());
    let _ = client.lock("y").try_lock().await;
    told("the listener has moved", listeners(new, true)).await;
    drop(held);
    let taken = pair.node(new).cmd(&["DEL", "x"]).unwrap();
    assert_eq!(taken, redis::Value::Int(1), "the new master had the hold");
    pair.node(new).cmd(&["PUBLISH", "redisson_lock__channel:{x}", "0"]).unwrap();
    told("the waiter", waiter).await.unwrap().unwrap();
}

/// One that is a replica for good answers each call as before: what is under way when the first refusal comes is not cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_to_a_replica_is_told_that_it_is_one() {
    let server = FakeServer::start(|request| match &request[0].to_ascii_uppercase()[..] {
        b"EVALSHA" | b"EVAL" => {
            FakeReply::Error("READONLY You can't write against a read only replica.".into())
        }
        _ => FakeReply::Default,
    })
    .unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let calls = (0..100).map(|n| {
        let lock = client.lock(format!("n{n}"));
        async move { lock.try_lock().await.map(drop).unwrap_err() }
    });
    for error in soon("the refusals", futures_util::future::join_all(calls)).await {
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    }
}
