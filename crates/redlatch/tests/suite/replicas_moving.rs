//! Replica acknowledgement where masters change: in a cluster, whose slots move, and behind sentinels; and the rights for it.

use std::{future::IntoFuture, time::Duration};

use redlatch::{
    AnyGuard, Client, ErrorKind, Lease, ReplicaAck, Severity, Unlocked, Wait,
    acl::{Kind, Rights},
};
use redlatch_testkit::{
    server::RedisServer,
    topology::{RedisCluster, SentinelSet},
};

use crate::{
    fixture::{ms, soon},
    kinds::{AnyLock, Face},
};

/// Longer than any test: only an event ends such a wait.
const LONG: Duration = Duration::from_secs(300);
const FACES: [Face; 4] = [Face::Plain, Face::Fair, Face::Fenced, Face::Write];

fn all() -> ReplicaAck {
    ReplicaAck::all().within(LONG)
}

fn numbers(guard: &impl AnyGuard) -> (u32, u32) {
    let replicas = guard.as_guard().replicas().expect("replicas were asked");
    (replicas.acknowledged, replicas.wanted)
}

fn has(server: &RedisServer, name: &str) -> bool {
    let keys: Vec<String> = server.keys().unwrap();
    keys.iter().any(|key| key == name)
}

/// A cluster, a client, a name, and the places of its master and of that one's replica.
struct Rig {
    cluster: RedisCluster,
    client: Client,
    master: usize,
    replica: usize,
}

const NAME: &str = "{acked}lock";

async fn rig() -> Rig {
    // A paused replica is to be waited for, and not to be given up by the cluster.
    let cluster = RedisCluster::builder().node_timeout(LONG).start().unwrap();
    let client = Client::connect(&cluster.url()).await.unwrap();
    let master = cluster.owner_of(cluster.slot_of(NAME)).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    Rig { cluster, client, master, replica }
}

impl Rig {
    /// Another master than that of the name.
    fn another(&self) -> usize {
        self.cluster.masters().unwrap().into_iter().find(|other| *other != self.master).unwrap()
    }

    fn is_nowhere(&self) -> bool {
        let mut nodes = self.cluster.masters().unwrap().into_iter().map(|at| self.cluster.node(at));
        nodes.all(|node| !has(node, NAME))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_asks_the_replicas_of_the_slot_and_undoes_a_shortfall() {
    let rig = rig().await;
    for face in FACES {
        let lock = AnyLock::new(face, &rig.client, NAME);
        let guard = soon("a grant", lock.acquire().replica_ack(all()).into_future()).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1), "{face:?}");
        assert!(has(rig.cluster.node(rig.replica), NAME), "{face:?}");
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        rig.cluster.node(rig.replica).pause().unwrap();
        for ack in [ReplicaAck::all(), ReplicaAck::at_least(1)] {
            let asked = lock.acquire().wait(Wait::Forever).replica_ack(ack.within(ms(60)));
            let error = soon("the shortfall", asked.into_future()).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotReplicated, "{face:?}: {error}");
            assert!(error.to_string().contains("given back"), "{error}");
            assert!(rig.is_nowhere(), "{face:?}");
        }
        // Masters of other slots have replicas of their own.
        let other = rig.cluster.slot_of("other");
        assert_ne!(rig.cluster.owner_of(other).unwrap(), rig.master);
        let guard = rig.client.lock("other").acquire().replica_ack(all()).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1));
        guard.unlock().await.unwrap();
        rig.cluster.node(rig.replica).resume().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgement_follows_a_slot_that_moves() {
    let rig = rig().await;
    let lock = rig.client.lock(NAME);
    lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
    let (slot, to) = (rig.cluster.slot_of(NAME), rig.another());
    let its_replica = rig.cluster.node(rig.cluster.replicas_of(to).unwrap()[0]);
    // Scripts that the other node does not know yet have to be sent on in full.
    let step = rig.cluster.begin_move(slot, to).unwrap();
    for _ in 0..2 {
        let guard = soon("a grant", lock.acquire().replica_ack(all()).into_future()).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1), "where the slot is going");
        assert!(has(rig.cluster.node(to), NAME) && has(its_replica, NAME));
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
    step.finish().unwrap();
    for _ in 0..2 {
        let guard = soon("a grant", lock.acquire().replica_ack(all()).into_future()).await.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1), "where the slot has gone");
        assert!(has(its_replica, NAME));
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
    assert!(rig.is_nowhere());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_while_replicas_are_asked_has_its_new_ones_asked() {
    let rig = rig().await;
    let lock = rig.client.lock(NAME);
    rig.cluster.node(rig.replica).pause().unwrap();
    let owner = rig.client.owner();
    let asked = {
        let (lock, owner) = (lock.clone(), owner.clone());
        tokio::spawn(async move {
            lock.acquire().owner(&owner).lease(Lease::Fixed(4 * LONG)).replica_ack(all()).await
        })
    };
    soon("the first grant", async {
        while !has(rig.cluster.node(rig.master), NAME) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    let (slot, to) = (rig.cluster.slot_of(NAME), rig.another());
    tokio::task::block_in_place(|| rig.cluster.move_slot(slot, to)).unwrap();
    // A client that asks for the slot is told where it is.
    assert!(lock.is_locked().await.unwrap());
    let guard = soon("the second answer", asked).await.unwrap().unwrap().unwrap();
    assert_eq!(numbers(&guard), (1, 1));
    assert!(has(rig.cluster.node(rig.cluster.replicas_of(to).unwrap()[0]), NAME));
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    assert!(rig.is_nowhere());
    rig.cluster.node(rig.replica).resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgement_goes_on_at_a_node_that_was_promoted() {
    let cluster = RedisCluster::start().unwrap();
    let client = Client::connect(&cluster.url()).await.unwrap();
    let lock = client.lock(NAME);
    lock.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.unwrap();
    let master = cluster.owner_of(cluster.slot_of(NAME)).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    tokio::task::block_in_place(|| {
        cluster.failover(replica).unwrap();
        cluster.wait_until_ready().unwrap();
    });
    let ack = ReplicaAck::at_least(1).within(LONG);
    let guard = soon("a grant", lock.acquire().wait(Wait::Forever).replica_ack(ack).into_future()).await;
    let guard = guard.unwrap().unwrap();
    assert_eq!(numbers(&guard), (1, 1));
    assert!(has(cluster.node(replica), NAME) && has(cluster.node(master), NAME));
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgement_behind_sentinels_goes_on_after_a_failover() {
    let set = SentinelSet::start().unwrap();
    let client = Client::connect(&set.url()).await.unwrap();
    let lock = client.lock(NAME);
    let grant = async |ack: ReplicaAck| {
        let asked = lock.acquire().wait(Wait::Forever).replica_ack(ack.within(LONG));
        let guard = soon("a grant", asked.into_future()).await.unwrap().unwrap();
        assert!(set.nodes().iter().all(|node| has(node, NAME)));
        assert_eq!(numbers(&guard), (2, 2));
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    };
    grant(ReplicaAck::all()).await;
    let before = set.master().unwrap();
    tokio::task::block_in_place(|| {
        assert_ne!(set.failover().unwrap(), before);
        set.wait_until_ready().unwrap();
    });
    grant(ReplicaAck::at_least(2)).await;
    grant(ReplicaAck::all()).await;
    let master = set.master().unwrap();
    let replica = (0..3).find(|at| *at != master).unwrap();
    set.node(replica).pause().unwrap();
    let short = lock.acquire().replica_ack(ReplicaAck::all().within(ms(60)));
    let error = soon("the shortfall", short.into_future()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    assert!(!has(set.node(master), NAME));
    set.node(replica).resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_of_an_account_are_tried_at_each_master_of_a_cluster() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let set = |node: &RedisServer, rules: &str| {
        let rules = rules.split_whitespace();
        let call: Vec<&str> = ["ACL", "SETUSER", "app"].into_iter().chain(rules).collect();
        node.cmd(&call).unwrap();
    };
    let kinds = [Kind::Lock, Kind::Fair];
    let rules = Rights::of(&kinds, "app:").cluster(true).rules();
    cluster.nodes().iter().for_each(|node| set(node, &format!("on >pw {rules}")));
    let connect = async || {
        let client = Client::builder().url(cluster.url()).username("app").password("pw").connect();
        client.await.unwrap()
    };
    // With what the server says about the account, where it may ask for that, and by trying.
    for asks in ["-acl", "+acl|whoami +acl|dryrun"] {
        cluster.nodes().iter().for_each(|node| set(node, asks));
        let problems = async |client: &Client| {
            let findings = client.diagnose_rights(&kinds, "app:").await.unwrap();
            assert_eq!(findings.len(), 3 * kinds.len(), "{findings:?}");
            let bad = findings.into_iter().filter(|finding| finding.severity == Severity::Problem);
            bad.map(|finding| finding.text).collect::<Vec<_>>()
        };
        assert_eq!(problems(&connect().await).await, Vec::<String>::new(), "{asks}");
        let node = cluster.node(1);
        for lacks in ["lindex", "spublish", "asking", "pubsub|shardnumsub"] {
            set(node, &format!("-{lacks}"));
            let found = problems(&connect().await).await;
            let place = format!("127.0.0.1:{}: ", node.port());
            assert!(
                !found.is_empty() && found.iter().all(|text| text.starts_with(&place)),
                "{lacks} {found:?}"
            );
            assert!(found.iter().all(|text| text.ends_with(&format!("lacks +{lacks}"))), "{found:?}");
            set(node, &format!("+{lacks}"));
        }
        cluster.nodes().iter().for_each(|node| set(node, "-ssubscribe"));
        let found = problems(&connect().await).await;
        assert!(
            found.len() == 6 && found.iter().all(|text| text.ends_with("lacks +ssubscribe")),
            "{found:?}"
        );
        cluster.nodes().iter().for_each(|node| set(node, "+ssubscribe"));
        for node in cluster.nodes() {
            let keys: Vec<String> = node.keys().unwrap();
            assert_eq!(keys, Vec::<String>::new(), "a trial leaves nothing");
        }
    }
}
