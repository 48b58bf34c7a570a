//! Addresses of a cluster that servers of another one have got: what they say is not believed, and what they would grant is not
//! asked for.

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use redlatch::{Client, ErrorKind, LossReason};
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
    server::RedisServer,
    topology::{RedisCluster, slot_of},
};

use crate::fixture::{ms, soon};

/// Whose node a server is at present.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Theirs,
    /// A server that is in no cluster.
    Alone,
}

/// A server that grants whatever it is asked for, and changes sides.
struct Node {
    server: FakeServer,
    side: Arc<Mutex<Side>>,
    /// It cannot say at present who has which slot.
    mute: Arc<AtomicBool>,
    granted_by_strangers: Arc<AtomicBool>,
}

/// The pictures of both clusters.
type Pictures = Arc<OnceLock<[Vec<u8>; 2]>>;

impl Node {
    fn start(pictures: &Pictures) -> Node {
        let (side, mute, granted) = (Arc::new(Mutex::new(Side::Ours)), Arc::default(), Arc::default());
        let (its, pictures) = (Arc::clone(&side), pictures.clone());
        let (is_mute, grants): (Arc<AtomicBool>, Arc<AtomicBool>) = (Arc::clone(&mute), Arc::clone(&granted));
        let server = FakeServer::start(move |request| {
            let side = *its.lock().unwrap();
            match &request[0].to_ascii_uppercase()[..] {
                b"CLUSTER" if is_mute.load(Ordering::SeqCst) => FakeReply::Error("LOADING wait".into()),
                b"CLUSTER" => match side {
                    Side::Ours => FakeReply::Reply(pictures.get().unwrap()[0].clone()),
                    Side::Theirs => FakeReply::Reply(pictures.get().unwrap()[1].clone()),
                    Side::Alone => FakeReply::Error("ERR This instance has cluster support disabled".into()),
                },
                b"EVAL" | b"EVALSHA" => {
                    grants.fetch_or(side != Side::Ours, Ordering::SeqCst);
                    let number = |at: usize| std::str::from_utf8(request.get(at)?).ok()?.parse::<i64>().ok();
                    // The first argument after the keys is the number that the answer begins with.
                    let number = number(2).and_then(|keys| number(3 + keys as usize)).unwrap_or(0);
                    FakeReply::Reply(resp::array(&[number, 1, 0].map(resp::integer)))
                }
                b"CLOSE" => FakeReply::Close,
                _ => FakeReply::Default,
            }
        });
        Node { server: server.unwrap(), side, mute, granted_by_strangers: granted }
    }

    fn is_now(&self, side: Side) {
        *self.side.lock().unwrap() = side;
    }

    fn port(&self) -> i64 {
        self.server.url().rsplit(':').next().unwrap().parse().unwrap()
    }
}

/// Two masters with half of the slots each, and a replica of the first.
fn picture(nodes: [&Node; 3], ids: [&str; 3]) -> Vec<u8> {
    let node = |at: usize| {
        resp::array(&[resp::bulk("127.0.0.1"), resp::integer(nodes[at].port()), resp::bulk(ids[at])])
    };
    let run = |first: i64, nodes: &[Vec<u8>]| {
        resp::array(&[&[resp::integer(first), resp::integer(first + 8191)], nodes].concat())
    };
    resp::array(&[run(0, &[node(0), node(2)]), run(8192, &[node(1)])])
}

/// A cluster of three, and another one that has the same third address.
struct Both {
    ours: [Node; 3],
    theirs: [Node; 2],
}

impl Both {
    fn start() -> Both {
        let pictures = Pictures::default();
        let ours = [0; 3].map(|_| Node::start(&pictures));
        let theirs = [0; 2].map(|_| Node::start(&pictures));
        theirs.iter().for_each(|node| node.is_now(Side::Theirs));
        let [first, second, third] = &ours;
        let of_theirs = picture([&theirs[0], &theirs[1], third], ["x", "y", "z"]);
        pictures.set([picture([first, second, third], ["a", "b", "c"]), of_theirs]).ok().unwrap();
        Both { ours, theirs }
    }

    async fn client(&self) -> Client {
        let url = self.ours[0].server.url().replace("redis://", "redis-cluster://");
        Client::connect(&url).await.unwrap()
    }

    fn granted_by_strangers(&self) -> bool {
        let mut all = self.ours.iter().chain(&self.theirs);
        all.any(|node| node.granted_by_strangers.load(Ordering::SeqCst))
    }
}

/// A name in a half of the slots.
fn name(half: u16) -> String {
    (0..).map(|n| format!("half{n}")).find(|name| slot_of(name) / 8192 == half).unwrap()
}

#[tokio::test]
async fn the_picture_of_another_cluster_is_not_believed() {
    let both = Both::start();
    let client = both.client().await;
    let held = client.lock(name(0)).lock().await.unwrap();
    // New connections begin with the picture, too.
    client.lock(name(1)).lock().await.unwrap().unlock().await.unwrap();
    // Only the one that has changed sides says who has what.
    both.ours[..2].iter().for_each(|node| node.mute.store(true, Ordering::SeqCst));
    both.ours[2].is_now(Side::Theirs);
    let asked = both.ours[2].server.count("CLUSTER");
    for _ in 0..3 {
        // Asks for the picture first; that these servers answer little else does not matter.
        let _ = client.diagnose().await;
    }
    assert!(both.ours[2].server.count("CLUSTER") >= asked + 3, "it was asked");
    for half in [0, 1] {
        let lock = client.lock(format!("{{{}}}", name(half)));
        soon("a grant of our own", lock.lock()).await.unwrap().unlock().await.unwrap();
    }
    assert!(held.is_valid() && !both.granted_by_strangers());
}

#[tokio::test]
async fn a_server_at_the_address_of_a_master_grants_nothing_unless_it_knows_the_cluster() {
    for side in [Side::Theirs, Side::Alone] {
        let both = Both::start();
        let client = both.client().await;
        let lock = client.lock(name(0));
        lock.lock().await.unwrap().unlock().await.unwrap();
        // It ends, and another server has its address before the cluster has noticed.
        both.ours[0].server.disconnect_all();
        both.ours[0].is_now(side);
        let error = soon("a refusal", lock.try_lock()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("another cluster"), "{error}");
        soon("a grant of our own", client.lock(name(1)).lock()).await.unwrap().unlock().await.unwrap();
        assert!(!both.granted_by_strangers());
        both.ours[0].is_now(Side::Ours);
        soon("a grant of our own", lock.lock()).await.unwrap().unlock().await.unwrap();
    }
}

/// As when it was reset and put into another cluster while it ran.
#[tokio::test]
async fn a_node_that_changes_sides_over_open_connections_is_cut_off_by_its_own_picture() {
    let both = Both::start();
    let client = both.client().await;
    let lock = client.lock(name(0));
    lock.lock().await.unwrap().unlock().await.unwrap();
    client.lock(name(1)).lock().await.unwrap().unlock().await.unwrap();
    // Only it says who has what.
    both.ours[1..].iter().for_each(|node| node.mute.store(true, Ordering::SeqCst));
    both.ours[0].is_now(Side::Theirs);
    let asked = both.ours[0].server.count("CLUSTER");
    let _ = client.diagnose().await;
    assert!(both.ours[0].server.count("CLUSTER") > asked, "it was asked");
    let error = soon("a refusal", lock.try_lock()).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("another cluster"), "{error}");
    assert!(!both.granted_by_strangers());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_has_got_the_address_of_a_replica_gets_no_locks() {
    // Its own nodes do not hold it for failed while the test lasts.
    let ours = RedisCluster::builder().node_timeout(ms(60_000)).start().unwrap();
    let theirs = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let replica = ours.replicas_of(0).unwrap()[0];
    let client = Client::connect(&ours.url()).await.unwrap();
    let names: Vec<String> = (0..30).map(|n| format!("held{n}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(client.lock(name.as_str()).lock().await.unwrap());
    }
    // Its port is taken by a relay to a node of the other cluster, as an address is by another pod.
    let port = ours.node(replica).port();
    ours.node(replica).kill9();
    let _pod = tokio::spawn(relay(port, theirs.node(0).port()));
    let other = Client::connect(&ours.url()).await.unwrap();
    // For a while only the stranger answers who has which slot.
    let own: Vec<&RedisServer> = ours.nodes().iter().filter(|node| node.is_up()).collect();
    own.iter().for_each(|node| node.pause().unwrap());
    let looks = [&client, &other].map(|client| {
        let client = client.clone();
        // It begins with the picture.
        tokio::spawn(async move { drop(client.diagnose().await) })
    });
    tokio::time::sleep(ms(1_500)).await;
    own.iter().for_each(|node| node.resume().unwrap());
    for look in looks {
        soon("a look", look).await.unwrap();
    }
    for name in &names {
        assert!(soon("an answer", other.lock(name.as_str()).try_lock()).await.unwrap().is_none(), "{name}");
    }
    let taken: Vec<String> = crate::topology_faults::keys(theirs.nodes()).into_iter().collect();
    assert_eq!(taken, Vec::<String>::new(), "nobody has asked the other cluster for anything");
    for guard in held {
        assert!(guard.is_valid(), "{:?}", guard.loss());
        guard.unlock().await.unwrap();
    }
}

/// Takes over a port whose server has ended.
async fn relay(port: u16, to: u16) {
    let listener = loop {
        match tokio::net::TcpListener::bind(("127.0.0.1", port)).await {
            Ok(listener) => break listener,
            Err(_) => tokio::time::sleep(ms(5)).await,
        }
    };
    loop {
        let Ok((mut client, _)) = listener.accept().await else { continue };
        tokio::spawn(async move {
            let Ok(mut server) = tokio::net::TcpStream::connect(("127.0.0.1", to)).await else { return };
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
    }
}

/// A single server gives no proof of who it is that would outlast a restart. One that comes back as another is like one that comes
/// back without its data, and holders are told as soon as they are connected again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_at_a_single_server_that_comes_back_as_another_one_are_told_at_once() {
    let (first, other) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let port = first.port();
    // Neither renewals nor deadlines are due while the test lasts.
    let client = Client::builder().url(first.url()).watchdog_lease(ms(120_000)).connect().await.unwrap();
    let held = client.lock("held").lock().await.unwrap();
    first.kill9();
    let _pod = tokio::spawn(relay(port, other.port()));
    assert_eq!(soon("the notice", held.lost()).await, LossReason::Deleted);
}
