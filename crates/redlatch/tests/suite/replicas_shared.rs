//! Replica acknowledgement under an owner that several processes use, when another master takes over that lacks what is to be confirmed.

use std::future::IntoFuture;

use redlatch::{Client, Guard, Owner, ReplicaAck, Unlocked, Wait};
use redlatch_testkit::{
    server::RedisServer,
    topology::{MasterReplica, RedisCluster},
};

use crate::{
    fixture::{SOON, ms, soon},
    kinds::{AnyLock, Face},
};

const FACES: [Face; 4] = [Face::Plain, Face::Fair, Face::Fenced, Face::Write];

fn count(server: &RedisServer, field: &str) -> i64 {
    let count = server.cmd(&["HGET", "n", field]).unwrap();
    redis::from_redis_value::<Option<i64>>(count).unwrap().unwrap_or(0)
}

/// Two processes that use one owner, whose first hold is confirmed, and a third one that wants the lock.
struct Rig {
    one: Client,
    two: Client,
    stranger: Client,
    face: Face,
    owner: Owner,
    field: String,
    ack: ReplicaAck,
}

impl Rig {
    async fn of(url: &str, face: Face) -> Rig {
        let connect = async || Client::connect(url).await.unwrap();
        let (one, two, stranger) = (connect().await, connect().await, connect().await);
        let owner = one.owner();
        let field = if face == Face::Write { format!("{}:write", owner.to_text()) } else { owner.to_text() };
        Rig { one, two, stranger, face, owner, field, ack: ReplicaAck::at_least(1).within(SOON) }
    }

    async fn hold(&self) -> Guard {
        let lock = AnyLock::new(self.face, &self.one, "n");
        lock.acquire().owner(&self.owner).replica_ack(self.ack).await.unwrap().unwrap()
    }

    /// The second process enters. The server has counted it when this returns, and replicas are asked.
    async fn enter(&self, master: &RedisServer) -> impl Future<Output = bool> + use<> {
        let lock = AnyLock::new(self.face, &self.two, "n");
        let (text, ack): (Owner, _) = (self.owner.to_text().parse().unwrap(), self.ack);
        let entering = tokio::spawn(async move {
            let asked = lock.acquire().owner(&text).wait(Wait::No).replica_ack(ack).into_future();
            asked.await.is_ok_and(|guard| guard.is_some())
        });
        soon("the entry", async {
            while count(master, &self.field) != 2 {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
        async move { soon("the end of the entry", entering).await.unwrap() }
    }

    /// What the second process was not confirmed is undone, and the first one's hold is there alone.
    async fn first_holds(self, held: Guard, master: &RedisServer, counted: i64) {
        let Rig { two, stranger, face, field, .. } = self;
        two.shutdown(SOON).await;
        assert_eq!(count(master, &field), counted, "{face:?}");
        let taken = AnyLock::new(face, &stranger, "n").try_lock().await.unwrap();
        assert!(taken.is_none() && held.is_valid(), "{face:?}: two valid holders");
    }
}

/// The entry was taken back at the new master, which lacked it, and the hold of the first process went instead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_was_not_confirmed_is_not_taken_back_at_another_master() {
    for face in FACES {
        let set = tokio::task::block_in_place(|| MasterReplica::builder().replica_count(1).start().unwrap());
        let rig = Rig::of(&set.url(), face).await;
        let held = rig.hold().await;
        tokio::task::block_in_place(|| set.stall_replication(1).unwrap());
        let entered = rig.enter(set.node(0)).await;
        let port = set.node(1).port().to_string();
        tokio::task::block_in_place(|| {
            set.promote_alone(1).unwrap();
            set.node(0).cmd(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
        });
        assert_eq!(count(set.node(1), &rig.field), 1, "{face:?}: the new master has the first hold");
        assert!(!entered.await, "{face:?}");
        rig.first_holds(held, set.node(1), 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_was_not_confirmed_is_not_taken_back_at_another_node_of_a_cluster() {
    let cluster =
        tokio::task::block_in_place(|| RedisCluster::builder().node_timeout(4 * SOON).start().unwrap());
    let master = cluster.owner_of(cluster.slot_of("n")).unwrap();
    let replica = cluster.replicas_of(master).unwrap()[0];
    let rig = Rig::of(&cluster.url(), Face::Plain).await;
    let held = rig.hold().await;
    // It stands still until it takes over.
    tokio::task::block_in_place(|| cluster.block_replication(replica).unwrap());
    let entered = rig.enter(cluster.node(master)).await;
    tokio::task::block_in_place(|| cluster.take_over(replica).unwrap());
    // The old master may follow the new one so soon that a repeat there is confirmed. Then the second process has given it back.
    let _was_confirmed_there = entered.await;
    rig.first_holds(held, cluster.node(replica), 1).await;
    tokio::task::block_in_place(|| cluster.unblock_replication(replica).unwrap());
}

/// As above, where no replicas were asked for the entry. Its release would count down what the first process holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_of_an_entry_that_a_failover_lost_takes_no_other_hold() {
    for face in FACES {
        let set = tokio::task::block_in_place(|| MasterReplica::builder().replica_count(1).start().unwrap());
        let rig = Rig::of(&set.url(), face).await;
        let held = rig.hold().await;
        tokio::task::block_in_place(|| set.stall_replication(1).unwrap());
        let text: Owner = rig.owner.to_text().parse().unwrap();
        let guest =
            AnyLock::new(face, &rig.two, "n").acquire().owner(&text).wait(Wait::No).await.unwrap().unwrap();
        let twice = guest.reenter().await.unwrap();
        let again = held.reenter().await.unwrap();
        assert_eq!(count(set.node(0), &rig.field), 4, "{face:?}");
        let port = set.node(1).port().to_string();
        tokio::task::block_in_place(|| {
            set.promote_alone(1).unwrap();
            set.node(0).cmd(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
        });
        // Behind what was lost, more is entered that the new master counts; the second time with the change known.
        let mut entered = vec![again, twice];
        for _ in 0..2 {
            entered.push(soon("an entry", guest.reenter()).await.unwrap());
            entered.push(soon("an entry", held.reenter()).await.unwrap());
        }
        assert_eq!(count(set.node(1), &rig.field), 5, "{face:?}");
        entered.push(guest);
        for gone in entered {
            let unlocked = soon("a release", gone.unlock()).await.unwrap();
            assert!(matches!(unlocked, Unlocked::StillHeld(_)), "{face:?}: {unlocked:?}");
        }
        // What is counted too often ends with its lease.
        rig.first_holds(held, set.node(1), 5).await;
    }
}
