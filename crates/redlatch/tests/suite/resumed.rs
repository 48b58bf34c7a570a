//! A subscription that was interrupted and is back wakes who waits: what was said meanwhile was said to nobody.
//!
//! The lock is let go in silence, so that only the return of the subscription can tell of it. The waiter stands in the queue of a
//! fair lock behind another one, from where it looks by itself after 5 s at the earliest.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redlatch::{ClientBuilder, ShardedPubSub};
use redlatch_testkit::{
    server::RedisServer,
    topology::{MasterReplica, RedisCluster, SentinelSet},
};

use crate::fixture::{ms, patient, quiet, soon};

const NAME: &str = "resumed";
const OTHERS: [&str; 2] =
    ["1b671a64-40d5-491e-99b0-da01ff1f3341:1", "1b671a64-40d5-491e-99b0-da01ff1f3341:2"];
/// How often each is tried: a machine that pauses spoils one of them.
const TRIES: u32 = 3;
/// When a waiter behind another one looks by itself at the earliest.
const ALONE: Duration = ms(5_000);

/// The keys of the lock: the hold, who waits, and their times.
fn keys() -> [String; 3] {
    [NAME.to_owned(), format!("redisson_lock_queue:{{{NAME}}}"), format!("redisson_lock_timeout:{{{NAME}}}")]
}

/// One client holds the lock, and another one comes next.
fn held_by_others(server: &RedisServer) {
    let [hold, queue, times] = keys();
    let late = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(600);
    server.cmd(&["HSET", &hold, OTHERS[0], "1"]).unwrap();
    server.cmd(&["PEXPIRE", &hold, "600000"]).unwrap();
    server.cmd(&["RPUSH", &queue, OTHERS[1]]).unwrap();
    server.cmd(&["ZADD", &times, &late.as_millis().to_string(), OTHERS[1]]).unwrap();
}

/// All of them are gone, and nobody is told.
fn let_go(server: &RedisServer) {
    let keys = keys();
    server.cmd(&["DEL", &keys[0], &keys[1], &keys[2]]).unwrap();
}

/// How often a client has looked at a lock.
fn looks(server: &RedisServer) -> u64 {
    let counts = server.command_counts().unwrap();
    ["eval", "evalsha"].iter().filter_map(|name| counts.get(*name)).sum()
}

/// Some waits come to their end: the lock is at one server when the wait begins, and `interrupted` lets it go and cuts the
/// subscription. It says where the next one is to wait.
async fn waits_end<'a>(
    settings: ClientBuilder,
    mut home: &'a RedisServer,
    mut interrupted: impl FnMut() -> &'a RedisServer,
) {
    let client = patient(settings).connect().await.unwrap();
    // The first call of a script also loads it.
    client.fair_lock(NAME).lock().await.unwrap().unlock().await.unwrap();
    let mut fastest = Duration::MAX;
    for _ in 0..TRIES {
        held_by_others(home);
        let (before, start, lock) = (looks(home), Instant::now(), client.fair_lock(NAME));
        let waiter = tokio::spawn(async move { lock.lock().await });
        // The second look follows the confirmation of the subscription. Then the waiter sleeps.
        soon("two looks", async {
            while looks(home) < before + 2 {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
        home = interrupted();
        let guard = soon("the waiter's turn", waiter).await.unwrap().unwrap();
        fastest = fastest.min(start.elapsed());
        guard.unlock().await.unwrap();
    }
    assert!(fastest < ALONE, "{fastest:?}: it looked by itself");
}

/// The same where the subscription is killed at the server that has the lock.
async fn killed(settings: ClientBuilder, home: &RedisServer) {
    let interrupted = || {
        let_go(home);
        let killed = home.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
        assert_ne!(killed, redis::Value::Int(0), "nobody listened");
        home
    };
    waits_end(settings, home, interrupted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_one_server() {
    let server = RedisServer::start().unwrap();
    killed(quiet().url(server.url()), &server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_sentinels() {
    let set = SentinelSet::start().unwrap();
    killed(quiet().url(set.url()), set.node(set.master().unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_replicated_master() {
    let set = MasterReplica::start().unwrap();
    killed(quiet().url(set.url()), set.node(set.master().unwrap())).await;
}

/// Both ways to listen, and both at once.
const WAYS: [ShardedPubSub; 3] = [ShardedPubSub::Off, ShardedPubSub::On, ShardedPubSub::Compat];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let home = cluster.node(cluster.owner_of(cluster.slot_of(NAME)).unwrap());
    for way in WAYS {
        killed(quiet().url(cluster.url()).sharded(way), home).await;
    }
}

/// Sharded messages are heard where the slot is, and the server ends the subscription when it goes. Plain ones go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_whose_slot_goes_elsewhere() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let slot = cluster.slot_of(NAME);
    for way in [ShardedPubSub::On, ShardedPubSub::Compat] {
        let from = cluster.owner_of(slot).unwrap();
        let mut at = from;
        let moved = || {
            let_go(cluster.node(at));
            at = (at + 1) % 3;
            cluster.move_slot(slot, at).unwrap();
            cluster.node(at)
        };
        let settings = quiet().url(cluster.url()).sharded(way);
        waits_end(settings, cluster.node(from), moved).await;
    }
}

/// A message that is sent both ways comes twice to who listens both ways, and is worth one look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_comes_both_ways_is_worth_one_look() {
    const MESSAGES: u64 = 20;
    const SAY: &str = "redis.call('publish', KEYS[1], '0') redis.call('spublish', KEYS[1], '0')";
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let home = cluster.node(cluster.owner_of(cluster.slot_of(NAME)).unwrap());
    let settings = quiet().url(cluster.url()).sharded(ShardedPubSub::Compat);
    let client = settings.connect().await.unwrap();
    client.fair_lock(NAME).lock().await.unwrap().unlock().await.unwrap();
    held_by_others(home);
    let (before, lock) = (looks(home), client.fair_lock(NAME));
    let waiter = tokio::spawn(async move { lock.lock().await });
    let looked = async |times: u64| {
        soon("a look", async {
            while looks(home) < times {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
    };
    looked(before + 2).await;
    let state = client.inspect(NAME).await.unwrap();
    let owner = &state.waiters.last().unwrap().owner;
    let channel = format!("redisson_lock__channel:{{{NAME}}}:{owner}");
    let mut looks_in_all = 0;
    for _ in 0..MESSAGES {
        // Saying it is a script itself.
        let before = looks(home) + 1;
        home.cmd(&["EVAL", SAY, "1", &channel]).unwrap();
        looked(before + 1).await;
        // Time for a second look that should not be.
        tokio::time::sleep(ms(20)).await;
        looks_in_all += looks(home) - before;
    }
    // Some come of themselves, and halves that arrive apart count both.
    assert!(looks_in_all < MESSAGES * 3 / 2, "{looks_in_all} looks for {MESSAGES} messages");
    waiter.abort();
}
