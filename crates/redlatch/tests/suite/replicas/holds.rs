//! Holds that were confirmed: passed on, entered again, turned into read holds; and how long replicas are waited for.

use std::future::IntoFuture;

use redlatch::{Client, ErrorKind, Lease, LossReason, Wait};
use redlatch_testkit::topology::MasterReplica;

use super::{all, at_least, numbers, rig};
use crate::{
    fixture::{IN_VAIN, ms, soon},
    kinds::{AnyLock, Face},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_passed_on_is_only_taken_as_confirmed_if_it_was() {
    let rig = rig(1).await;
    let client = rig.client().await;
    let ack = all().within(ms(100));
    for (name, face) in [("p", Face::Plain), ("f", Face::Fair), ("w", Face::Write)] {
        let lock = AnyLock::new(face, &client, name);
        rig.replicas[0].pause().unwrap();
        // Held by a client that asks no replica, and then wanted by one that does.
        let held = lock.try_lock().await.unwrap().unwrap();
        let next = lock.acquire().wait(Wait::Forever).replica_ack(ack);
        let (outcome, _) = tokio::join!(next.into_future(), async {
            soon("a place in line", async {
                while client.stats().in_line == 0 {
                    tokio::time::sleep(ms(5)).await;
                }
            })
            .await;
            held.unlock().await.unwrap()
        });
        assert_eq!(outcome.map(|_| ()).unwrap_err().kind(), ErrorKind::NotReplicated, "{face:?}");
        assert!(!rig.exists(name), "{face:?}");
        rig.replicas[0].resume().unwrap();
        // From a client that has asked already.
        let held = lock.acquire().replica_ack(all()).await.unwrap().unwrap();
        let next = lock.acquire().wait(Wait::Forever).replica_ack(all());
        let (outcome, _) = tokio::join!(next.into_future(), async {
            soon("a place in line", async {
                while client.stats().in_line == 0 {
                    tokio::time::sleep(ms(5)).await;
                }
            })
            .await;
            held.unlock().await.unwrap()
        });
        let guard = outcome.unwrap().unwrap();
        assert_eq!(numbers(&guard), (1, 1), "{face:?}");
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_entered_again_for_what_it_was_confirmed_with() {
    let rig = rig(1).await;
    let client = rig.client().await;
    let (lock, me) = (client.lock("n"), client.owner());
    let enter = |ack| lock.acquire().owner(&me).replica_ack(ack);
    let outer = lock.acquire().owner(&me).await.unwrap().unwrap();
    let error = enter(all()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1);
    outer.unlock().await.unwrap();
    let outer = enter(all()).await.unwrap().unwrap();
    let inner = enter(at_least(1)).await.unwrap().unwrap();
    assert_eq!((numbers(&inner), lock.hold_count(&me).await.unwrap()), ((1, 1), 2));
    // Another process that knows the owner enters by a request of its own, which replicas confirm or which is taken back.
    let other = rig.client().await;
    let theirs = me.to_text().parse().unwrap();
    let entered = other.lock("n").acquire().owner(&theirs).replica_ack(all()).await.unwrap().unwrap();
    assert_eq!((numbers(&entered), lock.hold_count(&me).await.unwrap()), ((1, 1), 3));
    entered.unlock().await.unwrap();
    rig.replicas[0].pause().unwrap();
    let short = other.lock("n").acquire().owner(&theirs).replica_ack(all().within(ms(60))).await;
    assert_eq!(short.map(|_| ()).unwrap_err().kind(), ErrorKind::NotReplicated);
    assert_eq!(lock.hold_count(&me).await.unwrap(), 2);
    rig.replicas[0].resume().unwrap();
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_replicas_is_part_of_the_wait_and_of_the_lease() {
    let rig = rig(1).await;
    let client = rig.client().await;
    rig.replicas[0].pause().unwrap();
    let ack = all();
    let (one, two) = (client.lock("n"), client.lock("m"));
    let short = one.acquire().wait(Wait::AtMost(ms(2_000))).replica_ack(ack);
    let error = soon("the end of the wait", short.into_future()).await.map(|_| ()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotReplicated | ErrorKind::Timeout), "{error}");
    let brief = two.acquire().lease(Lease::Fixed(ms(2_000))).replica_ack(ack.keep_on_shortfall());
    let kept = soon("half the lease", brief.into_future()).await;
    // A machine that stopped for a second may find the lease over.
    assert!(kept.is_ok() || kept.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout), "{kept:?}");
    rig.replicas[0].resume().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_keeps_what_the_write_hold_was_confirmed_with() {
    let rig = rig(2).await;
    let client = rig.client().await;
    let lock = client.read_write_lock("n");
    let writing = lock.write().acquire().replica_ack(all()).await.unwrap().unwrap();
    let owner = writing.owner().clone();
    let asked = rig.proxy.count("WAIT");
    let reading = writing.downgrade().await.unwrap();
    assert_eq!(numbers(&reading), (2, 2));
    let again = lock.read().acquire().owner(&owner).replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(numbers(&again), (2, 2));
    assert_eq!(rig.proxy.count("WAIT"), asked, "nobody is asked again");
    again.unlock().await.unwrap();
    reading.unlock().await.unwrap();
    let unconfirmed = lock.write().lock().await.unwrap().downgrade().await.unwrap();
    assert_eq!(unconfirmed.replicas(), None);
    unconfirmed.unlock().await.unwrap();
    // A writer that reads besides asks nobody, unless it acquires the read side with its owner.
    let writing = lock.write().acquire().replica_ack(all()).await.unwrap().unwrap();
    let besides = writing.read().await.unwrap();
    assert_eq!(besides.replicas(), None);
    besides.unlock().await.unwrap();
    let besides = lock.read().acquire().owner(writing.owner()).replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(numbers(&besides), (2, 2));
}

/// Why a downgrade need not be confirmed: where it is missing there is still the write hold, which keeps everybody out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_that_a_promoted_replica_has_missed_lets_nobody_in() {
    let set = MasterReplica::builder().replica_count(1).start().unwrap();
    let client = Client::builder().url(set.url()).watchdog_lease(ms(120_000)).connect().await.unwrap();
    let other = Client::connect(&set.url()).await.unwrap();
    let lock = client.read_write_lock("n");
    let writing = lock.write().acquire().replica_ack(all()).await.unwrap().unwrap();
    assert_eq!(numbers(&writing), (1, 1));
    let old = set.master().unwrap();
    tokio::task::block_in_place(|| set.stall_replication(1 - old).unwrap());
    let reading = writing.downgrade().await.unwrap();
    assert!(other.read_write_lock("n").read().try_lock().await.unwrap().is_some(), "others may read");
    tokio::task::block_in_place(|| {
        set.node(old).kill9();
        set.promote_alone(1 - old).unwrap();
    });
    // What it finds there is its own owner's write hold, which is nobody who took over.
    assert_eq!(soon("the notice", reading.lost()).await, LossReason::Deleted);
    let theirs = other.read_write_lock("n");
    assert!(soon("a look", theirs.read().lock_for(IN_VAIN)).await.unwrap().is_none());
    assert!(soon("a look", theirs.write().lock_for(IN_VAIN)).await.unwrap().is_none());
}
