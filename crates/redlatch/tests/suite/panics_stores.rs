//! What lasts as long as a store goes on when the program's log or a waker panics in it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Wake, Waker},
};

use redlatch::{Client, ClientBuilder};
use redlatch_testkit::{
    server::RedisServer,
    topology::{MasterReplica, RedisCluster},
};
use tokio::runtime::Handle;

use crate::fixture::{ms, patient, soon, told};

/// A log that cannot be written when something of this part is to go into it.
struct BrokenAt(&'static str, Arc<AtomicU32>);

impl BrokenAt {
    /// The log of this thread, on which all work is done; and how often it has panicked.
    fn set(part: &'static str) -> (tracing::subscriber::DefaultGuard, Arc<AtomicU32>) {
        let count = Arc::new(AtomicU32::new(0));
        (tracing::subscriber::set_default(BrokenAt(part, count.clone())), count)
    }
}

impl tracing::Subscriber for BrokenAt {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == self.0
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        panic!("the log cannot be written");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

async fn here(builder: ClientBuilder) -> Client {
    patient(builder).background_on(Handle::current()).connect().await.unwrap()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// How many listen at a server to the messages of a lock.
fn listening(server: &RedisServer, question: &str, name: &str) -> i64 {
    match server.cmd(&["PUBSUB", question, &channel(name)]).unwrap() {
        redis::Value::Array(items) => redis::from_redis_value(items[1].clone()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Publishes what is no number, of which the log is told, and frees the lock as a foreign client does.
async fn is_heard_behind_nonsense(server: &RedisServer, client: &Client, part: &'static str, sharded: bool) {
    let (question, publish) = if sharded { ("SHARDNUMSUB", "SPUBLISH") } else { ("NUMSUB", "PUBLISH") };
    server.cmd(&["HSET", "x", "1b671a64-40d5-491e-99b0-da01ff1f3341:1", "1"]).unwrap();
    server.cmd(&["PEXPIRE", "x", "600000"]).unwrap();
    let lock = client.lock("x");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    until("a listener", || listening(server, question, "x") > 0).await;
    let (log, panics) = BrokenAt::set(part);
    server.cmd(&[publish, &channel("x"), "nonsense"]).unwrap();
    until("the panic", || panics.load(Ordering::SeqCst) > 0).await;
    drop(log);
    until("a listener again", || listening(server, question, "x") > 0).await;
    server.cmd(&["DEL", "x"]).unwrap();
    server.cmd(&[publish, &channel("x"), "0"]).unwrap();
    told("the waiter", waiter).await.unwrap().unwrap();
}

#[tokio::test]
async fn waiters_are_told_after_the_log_has_panicked_in_a_subscription() {
    let server = RedisServer::start().unwrap();
    let client = here(Client::builder().url(server.url())).await;
    is_heard_behind_nonsense(&server, &client, "redlatch::store::redis::hub", false).await;
}

#[tokio::test]
async fn waiters_at_a_cluster_are_told_after_the_log_has_panicked_in_a_subscription() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let client = here(Client::builder().url(cluster.url())).await;
    let home = cluster.node(cluster.owner_of(cluster.slot_of("x")).unwrap());
    is_heard_behind_nonsense(home, &client, "redlatch::store::redis::sharded_link", true).await;
}

/// Who waited for the next look waited for ever.
#[tokio::test]
async fn a_log_that_panics_at_a_look_at_a_cluster_leaves_no_call_without_an_answer() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let client = here(Client::builder().url(cluster.url()).response_timeout(ms(1_000))).await;
    client.lock("x").try_lock().await.unwrap().unwrap().unlock().await.unwrap();
    let home = cluster.node(cluster.owner_of(cluster.slot_of("x")).unwrap());
    let (log, panics) = BrokenAt::set("redlatch::store::redis::topology::pictures");
    home.kill9();
    until("the panic", || panics.load(Ordering::SeqCst) > 0).await;
    drop(log);
    let error = soon("an answer", client.lock("x").try_lock()).await.map(drop).unwrap_err();
    assert!(error.is_retryable(), "{error}");
    home.restart().unwrap();
    soon("a grant", async { while client.lock("x").try_lock().await.is_err() {} }).await;
}

#[tokio::test]
async fn the_next_master_is_followed_after_the_log_has_panicked_at_a_look() {
    let pair = MasterReplica::builder().replica_count(1).start().unwrap();
    let old = pair.master().unwrap();
    let client = here(Client::builder().url(pair.url())).await;
    client.lock("x").try_lock().await.unwrap().unwrap().unlock().await.unwrap();
    let (log, panics) = BrokenAt::set("redlatch::store::redis::following");
    pair.nodes().iter().for_each(RedisServer::kill9);
    until("the panic", || panics.load(Ordering::SeqCst) > 0).await;
    drop(log);
    pair.node(1 - old).restart().unwrap();
    pair.promote_alone(1 - old).unwrap();
    soon("a grant by the next master", async {
        while client.lock("x").try_lock().await.is_err() {
            tokio::time::sleep(ms(50)).await;
        }
    })
    .await;
}

/// It ended all subscriptions of the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_panics_keeps_no_other_waiter_from_being_told() {
    struct Bad(AtomicU32);
    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("a waker");
        }
    }
    let server = RedisServer::start().unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let (a, b) = (other.lock("a").lock().await.unwrap(), other.lock("b").lock().await.unwrap());
    let client = patient(Client::builder().url(server.url())).connect().await.unwrap();
    let bad = Arc::new(Bad(AtomicU32::new(0)));
    let waker = Waker::from(bad.clone());
    let (lock, beside) = (client.lock("a"), client.lock("b"));
    let mut first = Box::pin(lock.lock());
    let beside = tokio::spawn(async move { beside.lock().await.map(drop) });
    until("the other listener", || listening(&server, "NUMSUB", "b") > 0).await;
    // Polled until it is told by the subscription, which is the only thing that it waits for by then.
    until("a panic", || {
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        bad.0.load(Ordering::SeqCst) > 0 && listening(&server, "NUMSUB", "a") > 0
    })
    .await;
    a.unlock().await.unwrap();
    b.unlock().await.unwrap();
    told("the other waiter", beside).await.unwrap().unwrap();
    drop(first);
}
