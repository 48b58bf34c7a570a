//! Plain and sharded messages, and subscriptions that go where their slot goes.

use std::time::{Duration, Instant};

use redlatch::{Client, ErrorKind, ShardedPubSub};
use redlatch_testkit::{server::RedisServer, topology::RedisCluster};

use super::{EVERY_FACE, allow, builder, channel, client, home, listening, masters, until};
use crate::{
    fixture::{ms, soon},
    kinds::AnyLock,
};

/// Holds a lock as a foreign client does; only its message will say that it lets go.
fn hold_by_hand(server: &RedisServer, name: &str) {
    server.cmd(&["HSET", name, "1b671a64-40d5-491e-99b0-da01ff1f3341:1", "1"]).unwrap();
    server.cmd(&["PEXPIRE", name, "60000"]).unwrap();
}

/// How long a waiter needs at best to see that a foreign holder has let go and told so by `publish`. A waiter that has just
/// subscribed looks by itself after 400 ms and more.
async fn fastest_wake_up(
    cluster: &RedisCluster,
    client: &Client,
    name: &str,
    question: &str,
    publish: &str,
) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..6 {
        hold_by_hand(home(cluster, name), name);
        let waiter = {
            let lock = client.lock(name);
            tokio::spawn(async move { lock.lock().await })
        };
        until("the waiter listens", || listening(home(cluster, name), question, &channel(name)) > 0).await;
        // Its second look follows the confirmation.
        tokio::time::sleep(ms(60)).await;
        home(cluster, name).cmd(&["DEL", name]).unwrap();
        let start = Instant::now();
        home(cluster, name).cmd(&[publish, &channel(name), "0"]).unwrap();
        soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
        fastest = fastest.min(start.elapsed());
        until("the channel is left", || listening(home(cluster, name), question, &channel(name)) == 0).await;
    }
    fastest
}

const BY_MESSAGE: Duration = ms(250);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_heard_the_way_that_was_chosen() {
    let cluster = masters();
    for (mode, questions, heard) in [
        (ShardedPubSub::Auto, &["SHARDNUMSUB"][..], &["SPUBLISH"][..]),
        (ShardedPubSub::On, &["SHARDNUMSUB"], &["SPUBLISH"]),
        (ShardedPubSub::Off, &["NUMSUB"], &["PUBLISH"]),
        (ShardedPubSub::Compat, &["NUMSUB", "SHARDNUMSUB"], &["PUBLISH", "SPUBLISH"]),
    ] {
        let client = builder(&cluster).sharded(mode).connect().await.unwrap();
        for question in questions {
            for publish in heard {
                let time = fastest_wake_up(&cluster, &client, "chosen", question, publish).await;
                assert!(time < BY_MESSAGE, "{mode:?} {question} {publish}: {time:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_talks_both_ways_serves_both_sorts_of_others() {
    let cluster = masters();
    let name = "both";
    let compat = builder(&cluster).sharded(ShardedPubSub::Compat).connect().await.unwrap();
    for (mode, question) in [(ShardedPubSub::On, "SHARDNUMSUB"), (ShardedPubSub::Off, "NUMSUB")] {
        let other = builder(&cluster).sharded(mode).connect().await.unwrap();
        let mut fastest = Duration::MAX;
        for _ in 0..6 {
            let guard = compat.lock(name).lock().await.unwrap();
            let waiter = {
                let lock = other.lock(name);
                tokio::spawn(async move { lock.lock().await })
            };
            until("the waiter listens", || listening(home(&cluster, name), question, &channel(name)) > 0)
                .await;
            tokio::time::sleep(ms(60)).await;
            let start = Instant::now();
            guard.unlock().await.unwrap();
            let guard = soon("the waiter's turn", waiter).await.unwrap().unwrap();
            fastest = fastest.min(start.elapsed());
            guard.unlock().await.unwrap();
            until("the channel is left", || listening(home(&cluster, name), question, &channel(name)) == 0)
                .await;
        }
        assert!(fastest < BY_MESSAGE, "{mode:?}: {fastest:?}");
    }
    // Every script that publishes can do it both ways.
    for face in EVERY_FACE {
        let lock = AnyLock::new(face, &compat, format!("{face:?}both"));
        let guard = soon("a lock", lock.lock()).await.unwrap();
        let waiter = {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await })
        };
        guard.unlock().await.unwrap();
        soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
    }
    let permits = compat.permit_semaphore("permits both");
    permits.set_if_absent(1).await.unwrap();
    permits.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_go_where_their_slot_goes() {
    let cluster = masters();
    for (mode, question, publish) in
        [(ShardedPubSub::On, "SHARDNUMSUB", "SPUBLISH"), (ShardedPubSub::Off, "NUMSUB", "PUBLISH")]
    {
        let client = builder(&cluster).sharded(mode).connect().await.unwrap();
        let name = "goes";
        let slot = cluster.slot_of(name);
        let mut fastest = Duration::MAX;
        for _ in 0..6 {
            let from = cluster.owner_of(slot).unwrap();
            hold_by_hand(cluster.node(from), name);
            let waiter = {
                let lock = client.lock(name);
                tokio::spawn(async move { lock.lock().await })
            };
            until("the waiter listens", || listening(cluster.node(from), question, &channel(name)) > 0).await;
            let to = (from + 1) % 3;
            cluster.move_slot(slot, to).unwrap();
            until("it listens where the slot is", || {
                listening(cluster.node(to), question, &channel(name)) > 0
            })
            .await;
            until("and no longer where it was", || {
                listening(cluster.node(from), question, &channel(name)) == 0
            })
            .await;
            tokio::time::sleep(ms(60)).await;
            cluster.node(to).cmd(&["DEL", name]).unwrap();
            let start = Instant::now();
            cluster.node(to).cmd(&[publish, &channel(name), "0"]).unwrap();
            soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
            fastest = fastest.min(start.elapsed());
            until("the channel is left", || listening(cluster.node(to), question, &channel(name)) == 0).await;
        }
        assert!(fastest < BY_MESSAGE, "{mode:?}: {fastest:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_that_are_cut_come_back() {
    let cluster = masters();
    let client = client(&cluster).await;
    let name = "cut";
    hold_by_hand(home(&cluster, name), name);
    let waiter = {
        let lock = client.lock(name);
        tokio::spawn(async move { lock.lock().await })
    };
    for _ in 0..5 {
        until("the waiter listens", || listening(home(&cluster, name), "SHARDNUMSUB", &channel(name)) > 0)
            .await;
        home(&cluster, name).cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
    }
    until("the waiter listens", || listening(home(&cluster, name), "SHARDNUMSUB", &channel(name)) > 0).await;
    home(&cluster, name).cmd(&["DEL", name]).unwrap();
    home(&cluster, name).cmd(&["SPUBLISH", &channel(name), "0"]).unwrap();
    soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_do_not_know_sharded_messages_get_plain_ones_or_a_clear_error() {
    let cluster = masters();
    allow(&cluster, "-pubsub|shardnumsub");
    let on = builder(&cluster).sharded(ShardedPubSub::On).connect().await.map(drop).unwrap_err();
    assert_eq!(on.kind(), ErrorKind::InvalidOption, "{on}");
    assert!(on.to_string().contains("sharded publish and subscribe is wanted"), "{on}");
    let client = client(&cluster).await;
    let time = fastest_wake_up(&cluster, &client, "plain", "NUMSUB", "PUBLISH").await;
    assert!(time < BY_MESSAGE, "{time:?}");
}
