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

/// A picture in which this server has the first half of the slots at one epoch and that one the second half at another.
fn halves(first: (u16, u64), second: (u16, u64)) -> Layout {
    let [one, two] = [first, second].map(|(port, epoch)| (at(port), port.to_string(), epoch));
    let entry = |(addr, id, _): &(Addr, String, u64), from, to| {
        let Addr::Tcp { host, port } = addr else { panic!("{addr}") };
        let node = Reply::Array(vec![
            Reply::Bytes(host.as_bytes().to_vec()),
            Reply::Int(i64::from(*port)),
            bytes(id),
        ]);
        Reply::Array(vec![Reply::Int(from), Reply::Int(to), node])
    };
    let runs = Reply::Array(vec![entry(&one, 0, 8_191), entry(&two, 8_192, 16_383)]);
    let line =
        |(_, id, epoch): &(Addr, String, u64)| format!("{id} 127.0.0.1:1@2 master - 0 0 {epoch} connected\n");
    let epochs = bytes(&(line(&one) + &line(&two)));
    let mut layout = Layout::read(&runs, &at(1)).unwrap().with_epochs(&epochs);
    layout.ids.insert("id".to_owned());
    layout
}

fn bytes(text: &str) -> Reply {
    Reply::Bytes(text.as_bytes().to_vec())
}

/// A master that was stopped tells the picture from before its failover when it goes on, and the client went back to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_from_before_a_failover_is_not_believed() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    let owner = |slot| topology.owner(slot).unwrap().addr.clone();
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Insistence), Judged::Believed);
    assert_eq!(topology.install(halves((3, 4), (2, 2)), By::Epochs), Judged::Believed);
    let incarnation = topology.incarnation(7);
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Epochs), Judged::OutOfDate);
    assert_eq!((owner(7), topology.incarnation(7)), (at(3), incarnation));
    // What is known of epochs stays when a node may not tell them, and when it tells earlier ones.
    let mut untold = halves((3, 4), (2, 2));
    untold.epochs.clear();
    assert_eq!(topology.install(untold, By::Epochs), Judged::Believed);
    assert_eq!(topology.install(halves((3, 3), (2, 2)), By::Epochs), Judged::Believed);
    assert_eq!(topology.install(halves((1, 3), (2, 2)), By::Epochs), Judged::OutOfDate);
    assert_eq!(topology.install(halves((1, 5), (2, 2)), By::Epochs), Judged::Believed);
    assert_eq!((owner(7), owner(9_000)), (at(1), at(2)));
    assert_eq!(topology.install(halves((3, 4), (2, 2)), By::Insistence), Judged::Believed);
    assert_eq!(owner(7), at(3));
}

/// A node that had just joined told of few masters. The others lost their slots and the epochs that were known of them, and a picture from
/// before a failover was believed then: a client that knew the new master was granted its locks at the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_that_lacks_a_master_takes_no_slot_and_no_epoch_from_it() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    let owner = |slot| topology.owner(slot).map(|owner| owner.addr.clone());
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Insistence), Judged::Believed);
    let mut after = halves((3, 4), (2, 2));
    after.replicas = vec![(at(5), Some(at(3))), (at(6), Some(at(2))), (at(7), Some(at(2)))];
    assert_eq!(topology.install(after, By::Epochs), Judged::Believed);
    let incarnation = topology.incarnation(7);
    let mut partial = halves((3, 4), (2, 2));
    partial.runs.remove(0);
    partial.epochs.remove(&at(3));
    // Nor does it know all replicas of the other: `ReplicaAck::all()` was content with those that it knows.
    partial.replicas = vec![(at(6), Some(at(2)))];
    assert_eq!(topology.install(partial.clone(), By::Epochs), Judged::Believed);
    assert_eq!((owner(7), owner(9_000)), (Some(at(3)), Some(at(2))));
    assert_eq!(topology.uncovered(), 0);
    assert_eq!((topology.replicas_of(&at(3)), topology.replicas_of(&at(2))), (1, 2));
    // A redirection named it by a host name, and none was counted.
    let Addr::Tcp { port, .. } = at(2) else { unreachable!() };
    assert_eq!(topology.replicas_of(&Addr::Tcp { host: "node.example".into(), port }), 2);
    assert_eq!(topology.incarnation(7), incarnation, "nothing has changed");
    assert_eq!(topology.install(halves((1, 1), (2, 2)), By::Epochs), Judged::OutOfDate);
    assert_eq!(owner(7), Some(at(3)));
    // What most masters insist on is taken as it is.
    assert_eq!(topology.install(partial, By::Insistence), Judged::Believed);
    assert_eq!(owner(7), None);
    topology.close();
}

/// `ReplicaAck::all()` was content with no replica at a master that had just taken over, because the others had not turned to it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replicas_of_a_master_count_at_the_one_that_takes_over() {
    let server = node();
    for is_redirected in [false, true] {
        let (topology, _first) = open(&server).await;
        topology.closed.cancel();
        let mut before = halves((1, 1), (2, 2));
        before.replicas = vec![(at(6), Some(at(2))), (at(7), Some(at(2))), (at(5), Some(at(1)))];
        assert_eq!(topology.install(before, By::Insistence), Judged::Believed);
        let count = || [1, 2, 6].map(|port| topology.replicas_of(&at(port)));
        if is_redirected {
            topology.moved(9_000, &at(2), &at(6));
            assert_eq!(count(), [1, 2, 1]);
        }
        assert_eq!(topology.install(halves((1, 1), (6, 3)), By::Epochs), Judged::Believed);
        assert_eq!(count(), [0, 0, 1], "the master that stays has lost its replica");
        assert_eq!(topology.install(halves((1, 1), (6, 3)), By::Epochs), Judged::Believed);
        assert_eq!(count(), [0, 0, 1]);
        topology.close();
    }
}

/// Only what the master of a slot says gives it away at once: a node that was away sends calls to the masters that it knew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_master_of_a_slot_gives_it_away() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    let owner = |slot| topology.owner(slot).unwrap().addr.clone();
    topology.install(halves((1, 1), (2, 2)), By::Insistence);
    topology.moved(7, &at(2), &at(3));
    assert_eq!(owner(7), at(1));
    topology.moved(7, &at(1), &at(3));
    assert_eq!(owner(7), at(3));
    // Others have not heard of it yet, and the rest of what they say counts.
    assert_eq!(topology.install(halves((1, 1), (4, 3)), By::Epochs), Judged::Believed);
    assert_eq!((owner(7), owner(9_000)), (at(3), at(4)));
    if let Some(told) = topology.table.write().unwrap().told.get_mut(&7) {
        told.at -= pictures::TOLD_TIME;
    }
    assert_eq!(topology.install(halves((1, 1), (4, 3)), By::Epochs), Judged::OutOfDate);
    assert_eq!(owner(7), at(3));
}

/// Epochs that a person has reset contradict what is known for ever.
#[tokio::test]
async fn what_most_masters_insist_on_is_believed_after_a_while() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    topology.install(halves((1, 1), (2, 5)), By::Insistence);
    let against = |said: &[u16]| said.iter().map(|port| (at(*port), halves((2, 3), (1, 1)))).collect();
    let begin = Instant::now();
    let after = |times| begin + times * pictures::INSISTED_TIME;
    assert_eq!(topology.insisted(against(&[1]), &[], after(0)), None, "half of them");
    assert_eq!(topology.insisted(against(&[1, 2]), &[], after(1)), None, "since now");
    assert_eq!(topology.scan_interval(), pictures::CONTRADICTION_INTERVAL);
    // A slot that moves elsewhere begins nothing anew.
    let moved = |said: &[u16]| {
        let mut moved = halves((2, 3), (1, 1));
        moved.runs.push((16_000..=16_000, at(3)));
        moved.epochs.insert(at(3), 9);
        said.iter().map(|port| (at(*port), moved.clone())).collect()
    };
    assert!(topology.insisted(moved(&[1, 2]), &[], after(2)).is_some());
    // Of two that agree in the rest the one that has heard of it is taken over, whichever comes first.
    for first in [1, 2] {
        let mut both: Vec<(Addr, Layout)> = against(&[first]);
        both.extend(moved(&[3 - first]));
        for flip in [false, true] {
            if flip {
                both.reverse();
            }
            assert_eq!(topology.insisted(both.clone(), &[], after(1)), None, "since now");
            let taken = topology.insisted(both.clone(), &[], after(2)).unwrap();
            assert_eq!(taken.epochs.get(&at(3)), Some(&9));
        }
    }
    assert_eq!(topology.insisted(against(&[1, 2]), &[], after(1)), None, "since now");
    assert_eq!(topology.insisted(against(&[1]), &[], after(2)), None, "not in each look");
    assert_eq!(topology.insisted(against(&[1, 2]), &[], after(2)), None);
    let taken = topology.insisted(against(&[1, 2]), &[], after(3)).unwrap();
    // A master that loses its slots to a later epoch is refused nothing.
    assert_eq!(topology.install(taken, By::Insistence), Judged::Believed);
    assert_eq!(topology.table().refused, SeededMap::from_iter([(at(2), 5)]));
    topology.close();
}

/// A master was lost for good, and its slots were given to another one by hand, with an earlier epoch. The lost one says nothing any more, so that
/// of two masters, and of three of which two were lost, most never insisted.
#[tokio::test]
async fn what_all_insist_on_who_are_left_is_believed_after_a_while() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    topology.install(halves((1, 5), (2, 2)), By::Insistence);
    let mut mended = halves((2, 2), (2, 2));
    mended.epochs = SeededMap::from_iter([(at(2), 2)]);
    assert_eq!(topology.install(mended.clone(), By::Epochs), Judged::OutOfDate);
    let begin = Instant::now();
    let late = begin + pictures::INSISTED_TIME;
    assert_eq!(topology.insisted(vec![(at(2), mended.clone())], &[], begin), None, "since now");
    assert_eq!(topology.insisted(vec![(at(2), mended.clone())], &[], late), Some(mended.clone()));
    // One that was cut off names the others as well, who do not say so.
    let before = halves((1, 1), (2, 2));
    for now in [begin, late] {
        assert_eq!(topology.insisted(vec![(at(1), before.clone())], &[], now), None);
    }
    // Nor if another node says something else.
    for now in [begin, late] {
        let against = vec![(at(2), mended.clone()), (at(7), before.clone())];
        assert_eq!(topology.insisted(against, &[], now), None);
    }
}

/// A master that had been frozen and forgotten came back when its slots had been given away by hand, with an earlier epoch. It showed clients from before what they knew, and took its
/// slots again from those that had moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_master_that_comes_back_takes_nothing_from_what_most_insist_on() {
    let server = node();
    let (topology, _first) = open(&server).await;
    topology.closed.cancel();
    topology.install(halves((1, 5), (2, 2)), By::Insistence);
    let owner = |slot| topology.owner(slot).unwrap().addr.clone();
    let mended = halves((2, 2), (4, 2));
    assert_eq!(topology.install(mended.clone(), By::Epochs), Judged::OutOfDate);
    // It is heard itself in each look.
    let begin = Instant::now();
    let late = begin + pictures::INSISTED_TIME;
    let against = |by: &[u16]| by.iter().map(|port| (at(*port), mended.clone())).collect::<Vec<_>>();
    let own = [at(1)];
    for now in [begin, late] {
        assert_eq!(topology.insisted(against(&[2]), &own, now), None, "half of those that are known");
    }
    topology.install(halves((1, 5), (4, 2)), By::Epochs);
    // One that has taken over, and that the others have not heard of yet, looks like that: they are given the time to hear.
    assert_eq!(topology.insisted(against(&[1, 4]), &own, begin), None, "since now");
    assert_eq!(topology.insisted(against(&[1, 4]), &[], late), None, "it was heard in an earlier look");
    let much_later = begin + pictures::INSISTED_BESIDE_TIME;
    assert_eq!(topology.insisted(against(&[1, 4]), &own, much_later), Some(mended.clone()));
    // Another node that still names it is no such one.
    assert_eq!(topology.insisted(against(&[1, 4]), &[at(7)], begin), None);
    assert_eq!(topology.insisted(against(&[1, 4]), &[at(7)], late), Some(mended.clone()));
    assert_eq!(topology.install(mended.clone(), By::Insistence), Judged::Believed);
    assert_eq!((owner(7), owner(9_000)), (at(2), at(4)));
    // What it says now takes nothing back, unless it has got a later epoch.
    assert_eq!(topology.install(mended, By::Epochs), Judged::Believed);
    assert_eq!(topology.install(halves((1, 5), (4, 2)), By::Epochs), Judged::OutOfDate);
    // Nor when another one has been lost since.
    topology.install(halves((2, 2), (6, 9)), By::Epochs);
    topology.install(halves((2, 2), (4, 3)), By::Insistence);
    assert_eq!(topology.install(halves((1, 5), (4, 3)), By::Epochs), Judged::OutOfDate);
    assert_eq!(topology.install(halves((2, 2), (6, 9)), By::Epochs), Judged::OutOfDate);
    assert_eq!(topology.install(halves((1, 6), (4, 3)), By::Epochs), Judged::Believed);
    assert_eq!(owner(7), at(1));
    topology.close();
}

/// A look asked twelve nodes at most, so that of more than 24 masters most never insisted, and who knew the epochs of before was granted nothing for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_masters_of_a_large_cluster_are_heard() {
    const MASTERS: u16 = 30;
    let ports: Arc<std::sync::OnceLock<Vec<u16>>> = Arc::default();
    let are_reset = Arc::new(AtomicBool::new(false));
    let nodes = std::array::from_fn::<_, { MASTERS as usize }, _>(|at| {
        let (ports, are_reset) = (ports.clone(), are_reset.clone());
        let server = FakeServer::start(move |request| {
            let Some(ports) = ports.get().filter(|_| request[0].eq_ignore_ascii_case(b"cluster")) else {
                return FakeReply::Default;
            };
            // After the reset the first one has lost its slots to the second, and does not know it.
            let is_reset = are_reset.load(Ordering::SeqCst) && at > 0;
            if !request[1].eq_ignore_ascii_case(b"slots") {
                let epoch = if is_reset { 1 } else { 10 };
                let line = |port| format!("{port} 127.0.0.1:{port}@2 master - 0 0 {epoch} connected\n");
                return FakeReply::Reply(resp::bulk(ports.iter().map(line).collect::<String>()));
            }
            let runs: Vec<_> = (0..MASTERS)
                .map(|run| {
                    let port = ports[usize::from(if is_reset { run.max(1) } else { run })];
                    let node =
                        [resp::bulk("127.0.0.1"), resp::integer(port.into()), resp::bulk(port.to_string())];
                    let slots = [run * 500, if run + 1 == MASTERS { 16_383 } else { run * 500 + 499 }];
                    let [from, to] = slots.map(|slot| resp::integer(slot.into()));
                    resp::array(&[from, to, resp::array(&node)])
                })
                .collect();
            FakeReply::Reply(resp::array(&runs))
        });
        server.unwrap()
    });
    let port = |server: &FakeServer| server.url().rsplit(':').next().unwrap().parse().unwrap();
    ports.set(nodes.iter().map(port).collect()).unwrap();
    let (topology, _first) = open(&nodes[0]).await;
    let asked = nodes.iter().filter(|node| node.count("CLUSTER") > 0).count();
    assert!(asked * 2 > nodes.len(), "before the first lock: {asked}");
    topology.closed.cancel();
    topology.scan().await;
    assert_eq!(topology.scan_interval(), Duration::from_secs(5), "nothing is contradicted");
    are_reset.store(true, Ordering::SeqCst);
    // Each look, whether the first one is asked in it or not.
    for _ in 0..8 {
        topology.scan().await;
        assert_eq!(topology.scan_interval(), pictures::CONTRADICTION_INTERVAL, "most insist");
    }
    topology.close();
}
