use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
};
use tokio::{runtime::Handle, time::timeout};

use super::{super::ClusterStore, *};
use crate::{
    client::Client,
    config::{ShardedPubSub, addr::Addr, url::StoreUrl},
    store::{Store as _, redis::slot_of},
};

/// A server that has all slots and answers the rest as it is told, and a store that uses it.
async fn cluster_of_one(
    answer: impl Fn(&[Vec<u8>]) -> FakeReply + Send + Sync + 'static,
) -> (FakeServer, ClusterStore) {
    cluster_that_publishes(ShardedPubSub::Off, answer).await
}

async fn cluster_that_publishes(
    sharded: ShardedPubSub,
    answer: impl Fn(&[Vec<u8>]) -> FakeReply + Send + Sync + 'static,
) -> (FakeServer, ClusterStore) {
    let port = Arc::new(OnceLock::<u16>::new());
    let its = port.clone();
    let server = FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
        b"CLUSTER" => {
            let port = its.get().copied().unwrap_or(1);
            let master = [resp::bulk("127.0.0.1"), resp::integer(port.into()), resp::bulk("id")];
            let run = [resp::integer(0), resp::integer(16_383), resp::array(&master)];
            FakeReply::Reply(resp::array(&[resp::array(&run)]))
        }
        b"INFO" => FakeReply::Reply(resp::bulk("run_id:r\r\n")),
        _ => answer(request),
    })
    .unwrap();
    let url = server.url();
    port.set(url.rsplit(':').next().unwrap().parse().unwrap()).unwrap();
    let url = url.replace("redis://", "redis-cluster://");
    let StoreUrl::Cluster(nodes) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
    let config = Client::builder().url(&url).sharded(sharded).config().clone();
    let store = ClusterStore::start(nodes, &config, &Handle::current()).await.unwrap();
    (server, store)
}

fn elsewhere() -> Addr {
    Addr::Tcp { host: "127.0.0.1".into(), port: 1 }
}

/// A cluster whose only address leads elsewhere than the connections of before, from when the flag is set: these are sent on to the address itself.
async fn cluster_led_astray(command: &'static str) -> (FakeServer, ClusterStore, Arc<AtomicBool>) {
    let (port, is_astray) = (Arc::new(OnceLock::<u16>::new()), Arc::new(AtomicBool::new(false)));
    let (its, astray) = (port.clone(), is_astray.clone());
    let (server, store) = cluster_that_publishes(ShardedPubSub::On, move |request| {
        let asked = request[0].to_ascii_uppercase();
        match &asked[..] {
            // A connection that is made now.
            b"HELLO" => astray.store(false, Ordering::SeqCst),
            asked if asked == command.as_bytes() && astray.load(Ordering::SeqCst) => {
                return FakeReply::Error(format!("MOVED 1 127.0.0.1:{}", its.get().unwrap()));
            }
            b"EVALSHA" => return FakeReply::Reply(resp::integer(7)),
            b"PUBSUB" => return FakeReply::Reply(resp::array::<Vec<u8>>(&[])),
            _ => {}
        }
        FakeReply::Default
    })
    .await;
    port.set(server.url().rsplit(':').next().unwrap().parse().unwrap()).unwrap();
    (server, store, is_astray)
}

const LIMIT: Duration = Duration::from_secs(20);

/// What stands before the nodes had an address lead to another node, and passed on over the connections of before what was sent there. Calls went round in a
/// circle until they gave up, and what listened went on hearing nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_sent_on_to_its_own_address_has_all_connections_to_it_made_anew() {
    let (server, store, is_astray) = cluster_led_astray("EVALSHA").await;
    let key: Arc<[u8]> = Arc::from(&b"x"[..]);
    let _listening = timeout(LIMIT, store.subscribe(key.clone(), Arc::new(|_| {}))).await.unwrap().unwrap();
    assert_eq!(server.count("SSUBSCRIBE"), 1);
    is_astray.store(true, Ordering::SeqCst);
    let call = Call::new(&COUNTER_GET).key(&key).int(0);
    timeout(LIMIT, store.run(call)).await.expect("it is led to the node").unwrap();
    let again = async {
        while server.count("SSUBSCRIBE") < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LIMIT, again).await.expect("it is listened to anew");
}

/// Only calls found out: the subscription was asked for again over the same connection, for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_is_sent_on_to_its_own_address_is_made_anew() {
    let (server, store, is_astray) = cluster_led_astray("SSUBSCRIBE").await;
    let key: Arc<[u8]> = Arc::from(&b"x"[..]);
    let first = timeout(LIMIT, store.subscribe(key.clone(), Arc::new(|_| {}))).await.unwrap().unwrap();
    is_astray.store(true, Ordering::SeqCst);
    let other: Arc<[u8]> = Arc::from(&b"y"[..]);
    let _listening =
        timeout(LIMIT, store.subscribe(other, Arc::new(|_| {}))).await.expect("it is listened to").unwrap();
    let again = async {
        while server.count("SSUBSCRIBE") < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LIMIT, again).await.expect("so is what was listened to over the old connection");
    drop(first);
}

/// The master may have had a successor without the grant, and its replicas have copied that one since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_lost_its_slot_and_has_it_again_confirms_nothing_that_it_granted_before() {
    let (_server, store) = cluster_of_one(|request| match &request[0].to_ascii_uppercase()[..] {
        b"EVALSHA" | b"EVAL" => FakeReply::Reply(resp::integer(7)),
        b"WAIT" => FakeReply::Reply(resp::integer(1)),
        _ => FakeReply::Default,
    })
    .await;
    let (topology, key) = (store.inner.topology.clone(), Arc::from(&b"x"[..]));
    let slot = slot_of(&key);
    let owner = topology.owner(slot).unwrap();
    for is_lost in [false, true] {
        let call = Call::new(&COUNTER_GET).key(&key).int(0);
        let (_, confirm) = store.run_acked(call, ReplicaCount::AtLeast(1), true).await.unwrap();
        if is_lost {
            topology.moved(slot, &owner.addr, &elsewhere());
            topology.moved(slot, &elsewhere(), &owner.addr);
        }
        let confirmed = confirm(Duration::from_secs(5)).await;
        assert_eq!(confirmed.is_err(), is_lost, "{confirmed:?}");
    }
}

/// The slot went away and came back while the call waited for its connection, so nobody saw it away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_right_for_one_reign_is_not_sent_in_the_next_though_it_was_connecting_meanwhile() {
    let [is_held, is_reached] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (held, reached) = (is_held.clone(), is_reached.clone());
    let (server, store) = cluster_of_one(move |request| match &request[0].to_ascii_uppercase()[..] {
        b"PING" => {
            while held.load(Ordering::SeqCst) {
                reached.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            FakeReply::Default
        }
        _ => FakeReply::Default,
    })
    .await;
    let (topology, key) = (store.inner.topology.clone(), Arc::from(&b"x"[..]));
    let slot = slot_of(&key);
    let owner = topology.owner(slot).unwrap();
    let call = Call::new(&COUNTER_GET).key(&key).int(0).in_incarnation(store.incarnation(&key));
    is_held.store(true, Ordering::SeqCst);
    owner.node.drop_connections();
    let answer = tokio::spawn(store.run(call));
    while !is_reached.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    topology.moved(slot, &owner.addr, &elsewhere());
    topology.moved(slot, &elsewhere(), &owner.addr);
    is_held.store(false, Ordering::SeqCst);
    let answer = tokio::time::timeout(Duration::from_secs(20), answer).await.expect("it ends").unwrap();
    assert!(matches!(answer, Err(Fault::NotSent(_))), "{answer:?}");
    assert_eq!(server.count("EVALSHA"), 0);
}
