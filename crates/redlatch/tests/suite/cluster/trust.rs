//! Answers that belong to another request.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use redlatch::Client;
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
    topology::slot_of,
};

use crate::fixture::soon;

/// Two masters, each with half of the slots, that grant and release whatever they are asked for.
struct Halves {
    nodes: [FakeServer; 2],
    /// The next script at the first of them is answered with another owner's number.
    shifts: Arc<AtomicBool>,
    /// The next script there is sent on to its own address.
    strays: Arc<AtomicBool>,
}

impl Halves {
    fn start() -> Halves {
        let ports: Arc<OnceLock<[i64; 2]>> = Arc::default();
        let (shifts, strays): (Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
        let node = |at: usize| {
            let (ports, shifts, strays) = (ports.clone(), shifts.clone(), strays.clone());
            FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
                b"CLUSTER" => FakeReply::Reply(layout(*ports.get().unwrap())),
                b"EVAL" | b"EVALSHA" if at == 0 && strays.swap(false, Ordering::SeqCst) => {
                    FakeReply::Error(format!("MOVED 1 127.0.0.1:{}", ports.get().unwrap()[0]))
                }
                b"EVAL" | b"EVALSHA" => {
                    let number =
                        |at: usize| std::str::from_utf8(&request[at]).unwrap().parse::<i64>().unwrap();
                    // The first argument after the keys is the number that the answer begins with.
                    let number = number(3 + number(2) as usize);
                    let shift = at == 0 && shifts.swap(false, Ordering::SeqCst);
                    let items = [number + i64::from(shift), 1, 0];
                    FakeReply::Reply(resp::array(&items.map(resp::integer)))
                }
                _ => FakeReply::Default,
            })
            .unwrap()
        };
        let nodes = [node(0), node(1)];
        ports.set([port(&nodes[0]), port(&nodes[1])]).unwrap();
        Halves { nodes, shifts, strays }
    }

    /// A name whose slot a master has.
    fn name(&self, at: usize) -> String {
        let names = (0..).map(|n| format!("half{n}"));
        names.into_iter().find(|name| usize::from(slot_of(name) / 8192) == at).unwrap()
    }

    fn connections(&self) -> [u64; 2] {
        [0, 1].map(|at| self.nodes[at].connections_accepted())
    }
}

fn port(node: &FakeServer) -> i64 {
    node.url().rsplit(':').next().unwrap().parse().unwrap()
}

fn layout(ports: [i64; 2]) -> Vec<u8> {
    let run = |at: usize| {
        let master = resp::array(&[resp::bulk("127.0.0.1"), resp::integer(ports[at])]);
        let first = 8192 * at as i64;
        resp::array(&[resp::integer(first), resp::integer(first + 8191), master])
    };
    resp::array(&[run(0), run(1)])
}

#[tokio::test]
async fn an_answer_to_another_request_ends_the_connections_of_its_node_only() {
    let cluster = Halves::start();
    let url = cluster.nodes[0].url().replace("redis://", "redis-cluster://");
    let client = Client::connect(&url).await.unwrap();
    let (doubted, trusted) = (client.lock(cluster.name(0)), client.lock(cluster.name(1)));
    for lock in [&doubted, &trusted] {
        soon("a grant", lock.lock()).await.unwrap().unlock().await.unwrap();
    }
    // The background thread has connections of its own, which it asks for the picture over when another one ends.
    let _ = client.diagnose().await;
    soon("its connections", async {
        while cluster.connections().iter().any(|count| *count < 2) {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    })
    .await;
    let before = cluster.connections();
    cluster.shifts.store(true, Ordering::SeqCst);
    // Asked again by its owner, on another connection.
    soon("a grant", doubted.lock()).await.unwrap().unlock().await.unwrap();
    assert!(!cluster.shifts.load(Ordering::SeqCst), "the answer was another request's");
    soon("a grant", trusted.lock()).await.unwrap().unlock().await.unwrap();
    let after = cluster.connections();
    assert!(after[0] > before[0], "{before:?} {after:?}");
    assert_eq!(after[1], before[1], "nobody doubts the other node");
}

/// What stands before the nodes led new connections elsewhere, and kept the old ones. The client went on with these, and was sent on to the address that it
/// had asked, for ever.
#[tokio::test]
async fn a_node_that_sends_on_to_its_own_address_is_connected_to_anew() {
    let cluster = Halves::start();
    let url = cluster.nodes[0].url().replace("redis://", "redis-cluster://");
    let client = Client::connect(&url).await.unwrap();
    let lock = client.lock(cluster.name(0));
    soon("a grant", lock.lock()).await.unwrap().unlock().await.unwrap();
    let before = cluster.connections()[0];
    cluster.strays.store(true, Ordering::SeqCst);
    soon("a grant", lock.lock()).await.unwrap().unlock().await.unwrap();
    assert!(cluster.connections()[0] > before, "over a connection of before");
}
