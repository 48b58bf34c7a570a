mod judged;

use std::sync::atomic::AtomicBool;

use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
};

use super::{
    super::slots::Layout,
    pictures::{By, Judged},
    *,
};
use crate::{
    client::Client,
    config::url::{Server, StoreUrl},
    store::Reply,
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
    open_at(&[server]).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn open_at(servers: &[&FakeServer]) -> Result<(Arc<Topology>, Arc<Member>), Error> {
    let addr = |server: &&FakeServer| match StoreUrl::parse(&server.url()).unwrap() {
        StoreUrl::Redis(Server { addr, .. }) => addr,
        url => panic!("{url}"),
    };
    let url = servers[0].url();
    let StoreUrl::Redis(Server { addr: first, access }) = StoreUrl::parse(&url).unwrap() else {
        panic!("{url}")
    };
    let config = Client::builder().url(&url).config().clone();
    let dial = Dial::new(Server { addr: first, access }, &config, &Handle::current()).unwrap();
    Topology::open(servers.iter().map(addr).collect(), dial, &config, &Handle::current()).await
}

/// A node that says that the node with this id, at this port, has all slots.
fn member_of(id: &'static str, port: u16) -> FakeServer {
    let server = FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
        b"CLUSTER" if request[1].eq_ignore_ascii_case(b"slots") => {
            let master = [resp::bulk("127.0.0.1"), resp::integer(port.into()), resp::bulk(id)];
            let run = [resp::integer(0), resp::integer(16_383), resp::array(&master)];
            FakeReply::Reply(resp::array(&[resp::array(&run)]))
        }
        b"CLUSTER" => {
            FakeReply::Reply(resp::bulk(format!("{id} 127.0.0.1:{port}@2 master - 0 0 1 connected\n")))
        }
        _ => FakeReply::Default,
    });
    server.unwrap()
}

/// A new client believed the first address of its URL that answered, which a node of another cluster had got, and was granted locks there that
/// others held in the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_at_the_first_address_of_the_url_is_not_the_cluster_of_a_new_client() {
    let (stranger, one, two) = (member_of("other", 1), member_of("ours", 2), member_of("ours", 2));
    let (topology, _first) = open_at(&[&stranger, &one, &two]).await.unwrap();
    assert_eq!(topology.owner(7).unwrap().addr, at(2));
    // The connection on which the stranger was asked is used for nothing else: a picture may name its address, too.
    let StoreUrl::Redis(Server { addr, .. }) = StoreUrl::parse(&stranger.url()).unwrap() else { panic!() };
    assert!(topology.member(&addr).node.link().await.is_err(), "it is not asked to grant anything");
    topology.close();
    // One that has met nobody yet has no say.
    let newcomer = FakeServer::start(|request| match &request[0].to_ascii_uppercase()[..] {
        b"CLUSTER" => FakeReply::Reply(resp::array::<Vec<u8>>(&[])),
        _ => FakeReply::Default,
    });
    let (topology, _first) = open_at(&[&newcomer.unwrap(), &one]).await.unwrap();
    assert_eq!(topology.owner(7).unwrap().addr, at(2));
    topology.close();
    let Err(error) = open_at(&[&stranger, &one]).await else { panic!("neither of two has more to say") };
    assert_eq!(error.kind(), crate::ErrorKind::InvalidUrl, "{error}");
    assert!(error.to_string().contains("different clusters"), "{error}");
}

/// A client that had found nobody but a node that has met nobody believed the first picture that it got afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_has_met_nobody_yet_asks_as_a_new_one_does() {
    let (alone, told) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    let node = |id: &'static str| {
        let (alone, told) = (alone.clone(), told.clone());
        FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
            b"CLUSTER" if alone.load(Ordering::SeqCst) => FakeReply::Reply(resp::array::<Vec<u8>>(&[])),
            b"CLUSTER" if request[1].eq_ignore_ascii_case(b"slots") => {
                let port = if id == "ours" { 2 } else { 1 };
                let master = [resp::bulk("127.0.0.1"), resp::integer(port), resp::bulk(id)];
                let run = [resp::integer(0), resp::integer(16_383), resp::array(&master)];
                FakeReply::Reply(resp::array(&[resp::array(&run)]))
            }
            b"CLUSTER" => {
                // The stranger is the first that has something to say.
                told.fetch_or(id == "other", Ordering::SeqCst);
                while !told.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(if id == "ours" { 100 } else { 0 }));
                FakeReply::Reply(resp::bulk(format!("{id} 127.0.0.1:2@2 master - 0 0 1 connected\n")))
            }
            _ => FakeReply::Default,
        })
        .unwrap()
    };
    let (stranger, one, two) = (node("other"), node("ours"), node("ours"));
    let (topology, _first) = open_at(&[&stranger, &one, &two]).await.unwrap();
    assert!(topology.owner(7).is_none());
    let StoreUrl::Redis(Server { addr, .. }) = StoreUrl::parse(&stranger.url()).unwrap() else { panic!() };
    let strangers = topology.member(&addr);
    strangers.node.link().await.unwrap();
    alone.store(false, Ordering::SeqCst);
    topology.looked().await;
    assert_eq!(topology.owner(7).unwrap().addr, at(2));
    assert!(strangers.node.link().await.is_err(), "it is not asked to grant anything");
    topology.close();
}

/// Each server is one member, also while servers without slots are let go of: a second one would count the processes of the same server anew.
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
        topology.moved(7, &topology.owner(7).unwrap().addr, &at(port));
        let owner = topology.owner(7).unwrap();
        assert!(Arc::ptr_eq(&owner, &topology.member(&at(port))), "after {port} servers");
    }
    over.store(true, Ordering::SeqCst);
    lets_go.join().unwrap();
    topology.close();
}

/// ServerProcesses are counted by the member, so a member that comes anew is another master, whatever its address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reign_comes_twice_though_a_server_is_let_go_of_and_met_again() {
    let server = node();
    let (topology, first) = open(&server).await;
    let mut incarnations = std::collections::HashSet::from([topology.incarnation(7)]);
    for _ in 0..3 {
        topology.members.lock().unwrap().remove(&first.addr);
        topology.install(
            topology.member(&first.addr).ask().await.unwrap_or_else(|_| panic!("a picture")),
            By::Epochs,
        );
        assert!(incarnations.insert(topology.incarnation(7)), "{incarnations:?}");
        // Nothing has changed this time.
        topology.install(
            topology.member(&first.addr).ask().await.unwrap_or_else(|_| panic!("a picture")),
            By::Epochs,
        );
        assert!(incarnations.contains(&topology.incarnation(7)));
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
    let (incarnation, mut changes) = (topology.incarnation(7), topology.changes());
    three_more().await;
    assert_eq!(topology.incarnation(7), incarnation);
    *history.lock().unwrap() = "b".to_owned();
    three_more().await;
    assert_ne!(topology.incarnation(7), incarnation);
    assert!(changes.has_changed(), "holders are told");
    changes.mark_unchanged();
    let incarnation = topology.incarnation(7);
    three_more().await;
    assert_eq!(topology.incarnation(7), incarnation);
    assert!(!changes.has_changed());
    topology.close();
}

/// What the first look found counted as what had always been, so that a change between connecting and that look was never noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_lost_its_slots_and_got_them_back_before_the_first_look_begins_a_new_reign() {
    let history = Arc::new(Mutex::new("a".to_owned()));
    let server = node_of(history.clone());
    let (topology, first) = open(&server).await;
    first.node.link().await.unwrap();
    let incarnation = topology.incarnation(7);
    *history.lock().unwrap() = "b".to_owned();
    topology.looked().await;
    until("another incarnation", || topology.incarnation(7) != incarnation).await;
    topology.close();
}

/// The node that is asked first was away, and there was nothing to judge its picture by until the next look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_picture_of_a_node_that_was_away_counts_for_no_new_client() {
    type Masters = Arc<std::sync::OnceLock<[(u16, u64); 2]>>;
    let node = |says: &Masters| {
        let says = says.clone();
        FakeServer::start(move |request| match (&request[0].to_ascii_uppercase()[..], says.get()) {
            (b"CLUSTER", Some(masters)) if request[1].eq_ignore_ascii_case(b"slots") => {
                let run = |at: usize, from, to| {
                    let (port, _) = masters[at];
                    let id = resp::bulk(port.to_string());
                    let master = resp::array(&[resp::bulk("127.0.0.1"), resp::integer(port.into()), id]);
                    resp::array(&[resp::integer(from), resp::integer(to), master])
                };
                FakeReply::Reply(resp::array(&[run(0, 0, 8_191), run(1, 8_192, 16_383)]))
            }
            (b"CLUSTER", Some(masters)) if masters.iter().any(|(_, epoch)| *epoch == 0) => {
                FakeReply::Reply(resp::error("NOPERM this account may not ask"))
            }
            (b"CLUSTER", Some(masters)) => {
                let line = |(port, epoch)| format!("{port} 127.0.0.1:1@2 master - 0 0 {epoch} connected\n");
                FakeReply::Reply(resp::bulk(masters.map(line).concat()))
            }
            _ => FakeReply::Default,
        })
        .unwrap()
    };
    let port = |server: &FakeServer| server.url().rsplit(':').next().unwrap().parse::<u16>().unwrap();
    // Where epochs may not be asked for, nothing says which of them was away.
    for (epoch, is_told) in [(4, true), (0, false)] {
        let (away, knows) = (Masters::default(), Masters::default());
        let (first, second) = (node(&away), node(&knows));
        away.set([(port(&first), epoch.min(1)), (port(&second), 2)]).unwrap();
        knows.set([(3, epoch), (port(&second), 2)]).unwrap();
        let (topology, _first) = open(&first).await;
        let known = if is_told { at(3) } else { at(port(&first)) };
        assert_eq!(topology.owner(7).unwrap().addr, known, "before the first lock");
        topology.close();
    }
}
