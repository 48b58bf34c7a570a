//! Replica acknowledgement of sets of locks: each member is confirmed, or the whole set is given back.

use std::{future::IntoFuture, time::Duration};

use redlatch::{
    Client, ErrorKind, Lease, Member, MultiLock, QuorumLock, ReplicaAck, Replicas, Unlocked, Wait,
};
use redlatch_testkit::proxy::{Action, Match};

use super::{LONG, Rig, all, at_least, in_sync, rig, waits};
use crate::fixture::{SOON, ms, soon};

/// Longer than twice what replicas are waited for.
const LEASE: Lease = Lease::Fixed(Duration::from_secs(1_200));
const NAMES: [&str; 3] = ["m0", "m1", "m2"];

fn plain(client: &Client) -> MultiLock {
    MultiLock::new(NAMES.map(|name| client.lock(name))).unwrap()
}

/// Members of which two go into one request.
fn mixed(client: &Client) -> MultiLock {
    let members: [Member; 4] = [
        client.lock("m0").into(),
        client.spin_lock("m1").into(),
        client.fair_lock("m2").into(),
        client.read_write_lock("m3").write().clone().into(),
    ];
    MultiLock::new(members).unwrap()
}

fn is_free(rig: &Rig) -> bool {
    !["m0", "m1", "m2", "m3"].iter().any(|name| rig.exists(name))
}

fn so_many(acknowledged: u32, wanted: u32, members: usize) -> Vec<Option<Replicas>> {
    vec![Some(Replicas::new(acknowledged, wanted)); members]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_one_request_takes_are_confirmed_by_one_answer() {
    let rig = rig(2).await;
    let client = rig.client().await;
    for (set, members, answers) in [(plain(&client), 3, 1), (mixed(&client), 4, 3)] {
        for ack in [all(), at_least(2)] {
            rig.proxy.clear_log();
            let guard = set.acquire().replica_ack(ack).await.unwrap().unwrap();
            assert_eq!(guard.replicas().collect::<Vec<_>>(), so_many(2, 2, members));
            assert_eq!(rig.proxy.with_log(|log| log.requests().filter(|wait| waits(wait)).count()), answers);
            for replica in &rig.replicas {
                let keys = replica.keys_dump().unwrap();
                assert!(set.names().all(|name| keys.contains_key(name.as_bytes())));
            }
            guard.unlock().await.into_result().unwrap();
        }
    }
    let guard = plain(&client).acquire().fenced().replica_ack(all()).await.unwrap().unwrap();
    assert!(guard.tokens().all(|token| token.is_some()));
    let unasked = mixed(&client);
    assert!(unasked.try_lock().await.unwrap().is_none());
    guard.unlock().await.into_result().unwrap();
    let guard = unasked.try_lock().await.unwrap().unwrap();
    assert!(guard.replicas().all(|replicas| replicas.is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shortfall_of_one_member_gives_the_whole_set_back() {
    let rig = rig(2).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    for set in [plain(&client), mixed(&client)] {
        for ack in [all(), at_least(2), at_least(3)] {
            // It is an answer, and no reason to go on for ever.
            let asked = set.acquire().wait(Wait::Forever).replica_ack(ack.within(ms(60)));
            let error = soon("the shortfall", asked.into_future()).await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
            assert!(error.lock().is_some() && error.to_string().contains("given back"), "{error}");
            assert!(is_free(&rig), "{error}");
        }
        let kept = set.acquire().replica_ack(all().within(ms(60)).keep_on_shortfall());
        let kept = kept.await.unwrap().unwrap();
        assert!(kept.is_valid());
        let short = |replicas: &Replicas| replicas.wanted == 2 && !replicas.is_complete();
        assert!(kept.replicas().all(|replicas| replicas.as_ref().is_some_and(short)), "{kept:?}");
        kept.unlock().await.into_result().unwrap();
        assert!(is_free(&rig));
    }
    let error = plain(&client).acquire().replica_ack(at_least(0)).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    rig.replicas[0].resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_has_waited_for_a_member_asks_for_that_one_too() {
    let rig = rig(1).await;
    let (client, other) = (rig.client().await, rig.client().await);
    for set in [plain(&client), mixed(&client)] {
        let busy = other.lock("m1").lock().await.unwrap();
        rig.proxy.clear_log();
        let asked = set.acquire().wait(Wait::Forever).lease(LEASE).replica_ack(all());
        let (guard, ()) = tokio::join!(soon("the set", asked.into_future()), async {
            rig.proxy
                .wait_for(SOON, |log| log.count("SUBSCRIBE") > 0 || log.count("EVALSHA") > 4)
                .await
                .unwrap();
            assert!(!rig.proxy.with_log(|log| log.requests().any(waits)), "who is refused asks no replicas");
            busy.unlock().await.unwrap();
        });
        let guard = guard.unwrap().unwrap();
        let replicas: Vec<_> = guard.replicas().collect();
        assert_eq!(replicas, so_many(1, 1, replicas.len()));
        guard.unlock().await.into_result().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_for_several_locks_is_asked_for_again_by_the_same_owner() {
    let rig = rig(1).await;
    let client = rig.client().await;
    let set = plain(&client);
    set.acquire().replica_ack(all()).await.unwrap().unwrap().unlock().await.into_result().unwrap();
    for action in [Action::CloseAfterRequest, Action::CloseBeforeRequest] {
        rig.proxy.clear_rules();
        let rule = rig.proxy.rule(Match::command("WAIT").nth(1), action);
        let owner = client.owner();
        let asked = set.acquire().owner(&owner).replica_ack(all());
        let guard = soon("the second answer", asked.into_future()).await.unwrap().unwrap();
        assert_eq!(rig.proxy.fired(rule), 1);
        assert_eq!(guard.replicas().collect::<Vec<_>>(), so_many(1, 1, 3));
        for name in NAMES {
            assert_eq!(client.lock(name).hold_count(&owner).await.unwrap(), 1);
        }
        guard.unlock().await.into_result().unwrap();
        assert!(is_free(&rig));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_set_is_undone_before_the_replicas_have_answered() {
    let rig = rig(1).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    let set = plain(&client);
    let task = tokio::spawn(async move { set.acquire().lease(LEASE).replica_ack(all()).await.map(drop) });
    rig.proxy.wait_for(SOON, |log| log.requests().any(waits)).await.unwrap();
    assert!(NAMES.iter().all(|name| rig.exists(name)));
    task.abort();
    soon("the undoing", async {
        while !is_free(&rig) || client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    rig.replicas[0].resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_entered_again_stands_for_what_it_was_confirmed_with() {
    let rig = rig(1).await;
    let client = rig.client().await;
    let (set, owner) = (plain(&client), client.owner());
    let held = client.lock("m1").acquire().owner(&owner).await.unwrap().unwrap();
    let error = set.acquire().owner(&owner).replica_ack(all()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert_eq!(client.lock("m1").hold_count(&owner).await.unwrap(), 1);
    held.unlock().await.unwrap();
    assert!(is_free(&rig));
    let held = client.lock("m1").acquire().owner(&owner).replica_ack(all()).await.unwrap().unwrap();
    let guard = set.acquire().owner(&owner).replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(guard.replicas().collect::<Vec<_>>(), so_many(1, 1, 3));
    assert_eq!(client.lock("m1").hold_count(&owner).await.unwrap(), 2);
    guard.unlock().await.into_result().unwrap();
    assert_eq!(held.unlock().await.unwrap(), Unlocked::Released);
    assert!(is_free(&rig));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocking_twin_of_a_set_asks_too() {
    let rig = rig(1).await;
    let url = rig.proxy.url();
    let thread = std::thread::spawn(move || {
        let client = redlatch::blocking::Client::connect(&url).unwrap();
        let set = redlatch::blocking::MultiLock::new(NAMES.map(|name| client.lock(name))).unwrap();
        let guard = set.acquire().replica_ack(all()).run().unwrap().unwrap();
        assert_eq!(guard.as_async().replicas().collect::<Vec<_>>(), so_many(1, 1, 3));
        guard.unlock().unwrap().into_result().unwrap();
        let short = set.acquire().replica_ack(at_least(2).within(ms(50))).run();
        assert_eq!(short.map(drop).unwrap_err().kind(), ErrorKind::NotReplicated);
    });
    thread.join().unwrap();
    assert!(is_free(&rig));
}

/// A quorum of servers with a replica each.
async fn quorum() -> (Vec<Rig>, QuorumLock) {
    let (mut rigs, mut members) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let rig = rig(1).await;
        members.push(Client::connect_lazy(&rig.proxy.url()).unwrap().lock("m0"));
        rigs.push(rig);
    }
    (rigs, QuorumLock::new(members).unwrap().member_timeout(LONG))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_quorum_count_when_their_replicas_have_confirmed() {
    let (rigs, set) = quorum().await;
    let acquire = |ack: ReplicaAck| set.acquire().lease(LEASE).replica_ack(ack).into_future();
    let guard = acquire(all()).await.unwrap().unwrap();
    let confirmed: Vec<_> = guard.replicas().collect();
    assert!(confirmed.len() >= 2);
    assert_eq!(confirmed, so_many(1, 1, confirmed.len()));
    assert!(guard.unlock().await.is_clean());
    rigs[0].replicas[0].pause().unwrap();
    let guard = soon("a quorum", acquire(ReplicaAck::all().within(ms(3_000)))).await.unwrap().unwrap();
    assert_eq!(guard.replicas().collect::<Vec<_>>(), so_many(1, 1, 2));
    soon("the undoing of the third", async {
        while rigs[0].exists("m0") {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    assert!(guard.is_valid());
    assert!(guard.unlock().await.is_clean());
    // Two that fall short leave no quorum, however long a caller would wait for it.
    rigs[1].replicas[0].pause().unwrap();
    let short = set.acquire().wait(Wait::Forever).lease(LEASE).replica_ack(ReplicaAck::all().within(ms(60)));
    let error = soon("the shortfall", short.into_future()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotReplicated, "{error}");
    soon("the undoing", async {
        while rigs.iter().any(|rig| rig.exists("m0")) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    let kept = acquire(ReplicaAck::all().within(ms(60)).keep_on_shortfall());
    let kept = soon("a quorum", kept).await.unwrap().unwrap();
    assert!(kept.replicas().any(|replicas| replicas == Some(Replicas::new(0, 1))));
    assert!(kept.unlock().await.is_clean());
    for rig in &rigs[..2] {
        rig.replicas[0].resume().unwrap();
        in_sync(&rig.master, 1).await;
    }
}
