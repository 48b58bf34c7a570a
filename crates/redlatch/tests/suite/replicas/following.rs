//! Replica acknowledgement while the master is another server from one moment to the next: as long as nothing has run, the next
//! master is asked like for any other call; after that only the owner asks again.

use std::{
    ops::RangeInclusive,
    sync::{Arc, Mutex},
    time::Duration,
};

use redlatch::{AnyGuard, Client, Lease, ReplicaAck, Replicas, Unlocked};
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
    server::RedisServer,
};

use crate::{
    fixture::{ms, soon},
    sentinel_fakes::{FakeSentinel, Says, exists, until, url},
};

/// Longer than any test: only an event ends such a wait.
const LONG: Duration = Duration::from_secs(300);
/// Half of it is the most that replicas are waited for.
const LEASE: Lease = Lease::Fixed(Duration::from_secs(1_200));

/// A master without replicas that answers scripts and `WAIT` as told, and its port.
fn fake_master(
    script: impl Fn() -> FakeReply + Send + Sync + 'static,
    wait: impl Fn() -> FakeReply + Send + Sync + 'static,
) -> (FakeServer, u16) {
    let server = FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
        b"ROLE" => {
            let role = [resp::bulk("master"), resp::integer(0), resp::array::<Vec<u8>>(&[])];
            FakeReply::Reply(resp::array(&role))
        }
        b"EVALSHA" => script(),
        b"WAIT" => wait(),
        _ => FakeReply::Default,
    });
    let server = server.unwrap();
    let port = server.url().rsplit(':').next().unwrap().parse().unwrap();
    (server, port)
}

/// An old master that answers a script or `WAIT` in this way, and by that very answer has another one in its place.
async fn is_asked_of_the_next_one(
    script: Option<FakeReply>,
    wait: Option<FakeReply>,
    ran: RangeInclusive<u64>,
) {
    let what = format!("{script:?} {wait:?}");
    let new = RedisServer::start().unwrap();
    let (new_port, says) = (new.port(), Arc::new(Mutex::new(None::<Arc<Mutex<Says>>>)));
    let told = says.clone();
    let change = move || {
        let says = told.lock().unwrap().clone().expect("the sentinel runs");
        let mut says = says.lock().unwrap();
        (says.port, says.epoch) = (new_port, 2);
    };
    let changes = change.clone();
    let (old, port) = fake_master(
        move || {
            changes();
            script.clone().expect("no script is sent")
        },
        move || match &wait {
            Some(answer) => {
                change();
                answer.clone()
            }
            None => FakeReply::Reply(resp::integer(0)),
        },
    );
    let sentinel = FakeSentinel::start(port);
    *says.lock().unwrap() = Some(sentinel.says.clone());
    let client = Client::connect(&url(&[&sentinel])).await.unwrap();
    let lock = client.lock("free");
    let owner = client.owner();
    // Not even who does not wait is bothered with it.
    let asked = lock.acquire().owner(&owner).replica_ack(ReplicaAck::all());
    let guard = soon("the grant of the new master", async { asked.await }).await;
    let guard = guard.unwrap_or_else(|error| panic!("{what}: {error}")).expect("a free lock");
    assert!(exists(&new, "free"), "{what}");
    assert_eq!(guard.as_guard().replicas(), Some(Replicas::new(0, 0)), "{what}");
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1, "{what}");
    assert!(ran.contains(&old.count("EVALSHA")), "{what}");
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_a_demoted_master_refuses_is_asked_of_the_next_one() {
    for refusal in [
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "LOADING Redis is loading the dataset in memory",
        "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a read only replica.",
    ] {
        is_asked_of_the_next_one(Some(FakeReply::Error(refusal.to_owned())), None, 1..=1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_can_ask_no_replicas_any_more_is_left_before_the_script() {
    for refusal in [
        "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.",
        "LOADING Redis is loading the dataset in memory",
    ] {
        is_asked_of_the_next_one(None, Some(FakeReply::Error(refusal.to_owned())), 0..=0).await;
    }
    // A connection that ends there ends before the script, too.
    is_asked_of_the_next_one(None, Some(FakeReply::Close), 0..=0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_may_have_run_is_asked_again_by_its_owner() {
    // It may ask before the change of masters is known.
    is_asked_of_the_next_one(Some(FakeReply::Close), None, 1..=100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_counts_for_nothing_if_the_master_changes_while_replicas_are_asked() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let replica = RedisServer::builder().arg("replicaof", &format!("127.0.0.1 {}", old.port()));
    let replica = replica.start().unwrap();
    let online = || format!("{:?}", old.cmd(&["INFO", "replication"]).unwrap()).contains("state=online");
    until("a replica", online).await;
    let sentinel = FakeSentinel::start(old.port());
    // No answer would be missed before the test is over.
    let builder = Client::builder().url(url(&[&sentinel])).response_timeout(ms(60_000));
    let client = builder.connect().await.unwrap();
    replica.pause().unwrap();
    let (lock, owner) = (client.lock("n"), client.owner());
    let asked = tokio::spawn({
        let (lock, owner) = (lock.clone(), owner.clone());
        async move { lock.acquire().owner(&owner).lease(LEASE).replica_ack(ReplicaAck::all().within(LONG)).await }
    });
    until("the grant of the old master", || exists(&old, "n")).await;
    sentinel.say(|says| (says.port, says.epoch) = (new.port(), 2));
    let guard = soon("the grant of the new master", asked).await.unwrap().unwrap().expect("a free lock");
    assert!(exists(&new, "n"));
    assert_eq!(guard.replicas(), Some(Replicas::new(0, 0)), "the new master has none");
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    replica.resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_demoted_while_replicas_are_asked_has_the_next_one_asked() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let replica = RedisServer::builder().arg("replicaof", &format!("127.0.0.1 {}", old.port()));
    let replica = replica.start().unwrap();
    let online = || format!("{:?}", old.cmd(&["INFO", "replication"]).unwrap()).contains("state=online");
    until("a replica", online).await;
    let sentinel = FakeSentinel::start(old.port());
    let client =
        Client::builder().url(url(&[&sentinel])).response_timeout(ms(60_000)).connect().await.unwrap();
    replica.pause().unwrap();
    let (lock, owner) = (client.lock("n"), client.owner());
    let asked = tokio::spawn({
        let (lock, owner) = (lock.clone(), owner.clone());
        async move { lock.acquire().owner(&owner).lease(LEASE).replica_ack(ReplicaAck::all().within(LONG)).await }
    });
    until("the grant of the old master", || exists(&old, "n")).await;
    let blocked = || format!("{:?}", old.cmd(&["INFO", "clients"]).unwrap()).contains("blocked_clients:1");
    until("the question to its replicas", blocked).await;
    // It is demoted first, which ends the wait, and the sentinels tell later.
    old.cmd(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).unwrap();
    until("the end of the wait", || !blocked()).await;
    sentinel.say(|says| (says.port, says.epoch) = (new.port(), 2));
    let guard = soon("the grant of the new master", asked).await.unwrap();
    let guard = guard.unwrap_or_else(|error| panic!("{error}")).expect("a free lock");
    assert!(exists(&new, "n"));
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    replica.resume().unwrap();
}
