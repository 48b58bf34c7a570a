//! A hold that is passed on inside a process while it is looked for at a new master.

use redlatch::{Client, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy},
    topology::MasterReplica,
};

use super::{eventually, until};
use crate::fixture::{SOON, ms, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_a_failover_lost_is_not_passed_on_while_it_is_looked_for() {
    let set = MasterReplica::builder().replica_count(1).start().unwrap();
    let proxies: Vec<Proxy> = set.nodes().iter().map(|node| Proxy::start(&node.url()).unwrap()).collect();
    let addrs: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    let url = format!("redis-replicated://{}", addrs.join(","));
    // A renewal comes after ten seconds, so nobody is told by one.
    let client = Client::builder().url(url).turn_time(ms(60_000)).connect().await.unwrap();
    for node in set.nodes() {
        for script in scripts::ALL {
            let _ = node.cmd(&["SCRIPT", "LOAD", script.source()]);
        }
    }
    set.stall_replication(1).unwrap();
    let lock = client.lock("passed-on");
    let first = lock.lock().await.unwrap();
    let second = tokio::spawn(async move { lock.lock().await.unwrap() });
    until("a waiter is in line", || client.stats().in_line == 1).await;
    let gate = Gate::new();
    let looks = Match::script().arg_contains(scripts::RENEW.sha1());
    let looked = proxies[1].rule(looks, Action::HoldReplyUntilReleased(gate.clone()));
    tokio::task::block_in_place(|| set.promote(1).unwrap());
    proxies[1].wait_fired(looked, 1, SOON).await.unwrap();
    // The new master has not heard of the hold, so it grants the lock to others.
    let other = Client::connect(&set.node(1).url()).await.unwrap();
    let theirs = other.lock("passed-on").try_lock().await.unwrap().expect("it is free there");

    drop(first);
    tokio::time::sleep(ms(100)).await;
    gate.release();
    proxies[1].clear_rules();
    let mut second = second;
    match tokio::time::timeout(ms(1_000), &mut second).await {
        Err(_) => {
            // It waits, as it should.
            assert!(theirs.is_valid());
            theirs.unlock().await.unwrap();
            let guard = eventually("a grant of the new master", second).await.unwrap();
            assert!(guard.is_valid());
        }
        Ok(guard) => {
            let guard = guard.unwrap();
            soon("the notice", tokio::time::timeout(ms(3_000), guard.lost()))
                .await
                .expect("a hold that the new master does not have counted as valid beside another");
        }
    }
}
