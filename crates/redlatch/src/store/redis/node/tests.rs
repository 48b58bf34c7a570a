use std::sync::atomic::AtomicBool;

use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
};

use super::{super::known_nodes::KnownNodes, *};
use crate::{client::Client, store::StoreUrl};

fn node(server: &FakeServer) -> Arc<Node> {
    node_with(server, |builder| builder)
}

fn node_with(
    server: &FakeServer,
    change: impl FnOnce(crate::ClientBuilder) -> crate::ClientBuilder,
) -> Arc<Node> {
    node_among(server, change, None)
}

fn node_among(
    server: &FakeServer,
    change: impl FnOnce(crate::ClientBuilder) -> crate::ClientBuilder,
    known_nodes: Option<Arc<KnownNodes>>,
) -> Arc<Node> {
    let url = server.url();
    let StoreUrl::Redis(addr) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
    let config = change(Client::builder().url(&url)).config().clone();
    let mut dial = Dial::new(addr, &config, &Handle::current()).unwrap();
    if let Some(known_nodes) = known_nodes {
        dial = dial.among(known_nodes);
    }
    Node::new(Arc::new(dial), &config, &Handle::current(), Arc::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_runtimes_that_are_gone_are_forgotten() {
    let server = FakeServer::start(|_| FakeReply::Default).unwrap();
    let node = node(&server);
    for _ in 0..200 {
        let node = node.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { node.send(&redis::cmd("PING")).await.unwrap() });
        })
        .join()
        .unwrap();
    }
    let (links, open) = (node.links.read().unwrap().len(), node.open_links().len());
    let dead = node.open_links().iter().filter(|link| link.is_dead()).count();
    assert!(links <= LINKS_MAX + 1, "{links} slots, {open} links, {dead} of them known to be dead");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_has_left_its_runtime_waits_for_no_connection_that_is_made_there() {
    let server = FakeServer::start(|_| FakeReply::Default).unwrap();
    let node = node_with(&server, |builder| builder.connect_timeout(std::time::Duration::from_millis(200)));
    let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut call = Box::pin(async move { node.send(&redis::cmd("PING")).await });
    let call = std::thread::spawn(move || {
        // Polled once, so that the connection is begun on this runtime, which does not run after that.
        idle.block_on(async { assert!(futures_util::poll!(&mut call).is_pending()) });
        (call, idle)
    });
    let (call, idle) = call.join().unwrap();
    tokio::time::timeout(std::time::Duration::from_secs(30), call).await.unwrap().unwrap();
    idle.shutdown_background();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_goes_while_it_connects_leaves_nothing() {
    let server = FakeServer::start(|_| FakeReply::Silence).unwrap();
    let node = node(&server);
    let other = node.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ping = redis::cmd("PING");
            let call = other.send(&ping);
            let _ = tokio::time::timeout(std::time::Duration::from_millis(50), call).await;
        });
    })
    .join()
    .unwrap();
    assert!(!node.is_waiting(), "{} slots", node.links.read().unwrap().len());
}

/// A server of another cluster, as the picture shows that it has.
fn stranger(held: &Arc<AtomicBool>) -> FakeServer {
    let held = held.clone();
    FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
        b"INFO" => {
            while held.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            FakeReply::Default
        }
        b"CLUSTER" => {
            let master = [resp::bulk("127.0.0.1"), resp::integer(1), resp::bulk("other")];
            let run = [resp::integer(0), resp::integer(16_383), resp::array(&master)];
            FakeReply::Reply(resp::array(&[resp::array(&run)]))
        }
        _ => FakeReply::Default,
    })
    .unwrap()
}

/// Connections that were made, or begun, before it was known whose cluster it is were used afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_from_before_it_was_known_whose_cluster_it_is_is_used_for_nothing_else() {
    let ids = ["ours".to_owned()].into();
    let held = Arc::new(AtomicBool::new(false));
    let server = stranger(&held);
    // Made before, and then believed or not.
    for is_believed in [false, true] {
        let known_nodes = Arc::new(KnownNodes::default());
        let node = node_among(&server, |builder| builder, Some(known_nodes.clone()));
        node.link().await.unwrap();
        if is_believed {
            node.trust();
        }
        assert!(
            known_nodes.admit(&ids) && node.link().await.is_ok() == is_believed,
            "believed: {is_believed}"
        );
    }
    // Begun before, and made afterwards.
    let known_nodes = Arc::new(KnownNodes::default());
    let node = node_among(&server, |builder| builder, Some(known_nodes.clone()));
    held.store(true, Ordering::SeqCst);
    let before = server.count("INFO");
    let link = tokio::spawn({
        let node = node.clone();
        async move { node.link().await.is_ok() }
    });
    while server.count("INFO") == before {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    known_nodes.admit(&ids);
    held.store(false, Ordering::SeqCst);
    assert!(!link.await.unwrap(), "it is not asked to grant anything");
}
