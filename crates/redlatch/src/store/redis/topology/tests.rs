use std::sync::atomic::AtomicBool;

use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
};

use super::*;
use crate::{
    client::Client,
    config::url::{Server, StoreUrl},
};

/// A node that has all slots, and whose data have this history.
fn node_of(history: Arc<Mutex<String>>) -> FakeServer {
    let port: Arc<std::sync::OnceLock<u16>> = Arc::default();
    let its = port.clone();
    let server = FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
        b"CLUSTER" => {
            let master = [
                resp::bulk("127.0.0.1"),
                resp::integer(its.get().copied().unwrap_or(1).into()),
                resp::bulk("id"),
            ];
            let run = [resp::integer(0), resp::integer(16_383), resp::array(&master)];
            FakeReply::Reply(resp::array(&[resp::array(&run)]))
        }
        b"INFO" if request[1] == b"replication" => FakeReply::Reply(resp::bulk(format!(
            "role:master\r\nmaster_replid:{}\r\n",
            history.lock().unwrap()
        ))),
        _ => FakeReply::Default,
    });
    let server = server.unwrap();
    let number = server.url().rsplit(':').next().unwrap().parse().unwrap();
    port.set(number).unwrap();
    server
}

fn node() -> FakeServer {
    node_of(Arc::new(Mutex::new("a".to_owned())))
}

fn at(port: u16) -> Addr {
    Addr::Tcp { host: "127.0.0.1".into(), port }
}

async fn open(server: &FakeServer) -> (Arc<Topology>, Arc<Member>) {
    let url = server.url();
    let StoreUrl::Redis(Server { addr, access }) = StoreUrl::parse(&url).unwrap() else { panic!("{url}") };
    let config = Client::builder().url(&url).config().clone();
    let dial = Dial::new(Server { addr: addr.clone(), access }, &config, &Handle::current()).unwrap();
    let opened = Topology::open(vec![addr], dial, &config, &Handle::current()).await;
    opened.unwrap_or_else(|error| panic!("{error}"))
}

/// Each server is one member, also while servers without slots are let go of: a second one would count the lives of the same server anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_gets_a_slot_while_servers_are_let_go_of_is_one_member() {
    let server = node();
    let (topology, _first) = open(&server).await;
    let over = Arc::new(AtomicBool::new(false));
    let (its, ends) = (topology.clone(), over.clone());
    let lets_go = std::thread::spawn(move || {
        while !ends.load(Ordering::SeqCst) {
            its.forget();
            // A mutex that is taken again at once may keep the other thread out for minutes.
            std::thread::sleep(Duration::from_micros(20));
        }
    });
    // Nobody connects to them.
    for port in 1..2_000 {
        topology.moved(7, &at(port));
        let owner = topology.owner(7).unwrap();
        assert!(Arc::ptr_eq(&owner, &topology.member(&at(port))), "after {port} servers");
    }
    over.store(true, Ordering::SeqCst);
    lets_go.join().unwrap();
    topology.close();
}

/// Lives are counted by the member, so a member that comes anew is another master, whatever its address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reign_comes_twice_though_a_server_is_let_go_of_and_met_again() {
    let server = node();
    let (topology, first) = open(&server).await;
    let mut reigns = HashSet::from([topology.reign(7)]);
    for _ in 0..3 {
        topology.members.lock().unwrap().remove(&first.addr);
        topology.install(topology.member(&first.addr).ask().await.unwrap_or_else(|_| panic!("a picture")));
        assert!(reigns.insert(topology.reign(7)), "{reigns:?}");
        // Nothing has changed this time.
        topology.install(topology.member(&first.addr).ask().await.unwrap_or_else(|_| panic!("a picture")));
        assert!(reigns.contains(&topology.reign(7)));
    }
    topology.close();
}

async fn until(what: &str, happened: impl Fn() -> bool) {
    let happens = async {
        while !happened() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), happens).await.expect(what);
}

/// It was a replica between two pictures, which name it as the master both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_lost_its_slots_and_got_them_back_between_two_looks_begins_a_new_reign() {
    let history = Arc::new(Mutex::new("a".to_owned()));
    let server = node_of(history.clone());
    let (topology, _first) = open(&server).await;
    let histories =
        || server.requests().iter().filter(|request| request.last().unwrap() == b"replication").count();
    // Each is asked for when what came of the one before has been seen to.
    let three_more = async || {
        for _ in 0..3 {
            let before = histories();
            topology.looked().await;
            until("the history", || histories() > before).await;
        }
    };
    three_more().await;
    let (reign, mut changes) = (topology.reign(7), topology.changes());
    three_more().await;
    assert_eq!(topology.reign(7), reign);
    *history.lock().unwrap() = "b".to_owned();
    three_more().await;
    assert_ne!(topology.reign(7), reign);
    assert!(changes.has_changed().unwrap(), "holders are told");
    changes.mark_unchanged();
    let reign = topology.reign(7);
    three_more().await;
    assert_eq!(topology.reign(7), reign);
    assert!(!changes.has_changed().unwrap());
    topology.close();
}
