//! An observer is told what a client does, on every store alike: its counts are compared with what the tasks of the test saw.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use redlatch::{
    Client, ClientBuilder,
    observe::{CallOutcome, Event, Observer, Outcome},
};
use redlatch_testkit::{
    proxy::{Action, Match, Proxy},
    server::RedisServer,
};

use crate::fixture::{RENEWED, ms, soon};

/// Counts what it is told, in words.
#[derive(Default)]
struct Counts(Mutex<HashMap<String, i64>>);

impl Counts {
    fn add(&self, word: impl Into<String>, count: i64) {
        *self.0.lock().unwrap().entry(word.into()).or_default() += count;
    }

    fn of(&self, word: &str) -> i64 {
        self.0.lock().unwrap().get(word).copied().unwrap_or(0)
    }

    /// Waits until a word has been told so often.
    async fn until(&self, word: &str, count: i64) {
        soon(word, async {
            while self.of(word) < count {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
    }
}

impl Observer for Counts {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::AcquireBegan { subject } => self.add(format!("waits {}", subject.kind), 1),
            Event::AcquireEnded { subject, outcome, .. } => {
                self.add(format!("waits {}", subject.kind), -1);
                self.add(format!("{} {}", outcome.word(), subject.kind), 1);
            }
            Event::HoldBegan { subject } => {
                self.add(format!("held {}", subject.kind), 1);
                self.add(format!("began {}", subject.kind), 1);
            }
            Event::HoldEnded { subject, end, .. } => {
                self.add(format!("held {}", subject.kind), -1);
                self.add(format!("{} {}", end.word(), subject.kind), 1);
            }
            Event::Renewed { subject, left } => {
                assert!(*left <= RENEWED, "{left:?}");
                self.add(format!("renewed {}", subject.kind), 1);
            }
            Event::RenewalFailed { holds } => self.add("renewal failed", *holds as i64),
            Event::CallEnded { script, outcome, .. } => self.add(format!("{script} {}", outcome.word()), 1),
            Event::Interrupted => self.add("interrupted", 1),
            _ => {}
        }
    }
}

async fn observed(builder: ClientBuilder) -> (Client, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    (builder.observer(counts.clone()).connect().await.unwrap(), counts)
}

#[tokio::test]
async fn each_kind_tells_of_its_acquires_and_holds() {
    let (client, counts) = observed(Client::builder().url("memory:")).await;
    let (lock, fair, sides) = (client.lock("a"), client.fair_lock("b"), client.read_write_lock("c"));
    let permits = client.permit_semaphore("d");
    permits.set_if_absent(2).await.unwrap();
    let held = (
        lock.lock().await.unwrap(),
        fair.lock().await.unwrap(),
        sides.write().lock().await.unwrap(),
        permits.acquire().await.unwrap(),
    );
    for kind in ["lock", "fair", "write", "permits"] {
        assert_eq!(
            [counts.of(&format!("granted {kind}")), counts.of(&format!("held {kind}"))],
            [1, 1],
            "{kind}"
        );
    }
    let reading = held.2.downgrade().await.unwrap();
    assert_eq!([counts.of("held write"), counts.of("held read"), counts.of("given_back write")], [0, 1, 1]);
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(counts.of("busy lock"), 1);
    let again = held.0.reenter().await.unwrap();
    assert_eq!([counts.of("held lock"), counts.of("began lock")], [1, 1], "one hold, two guards");
    again.unlock().await.unwrap();
    assert_eq!(counts.of("held lock"), 1);
    held.0.unlock().await.unwrap();
    held.1.unlock().await.unwrap();
    held.3.release().await.unwrap();
    drop(reading);
    for kind in ["lock", "fair", "read", "write", "permits"] {
        assert_eq!(
            [counts.of(&format!("held {kind}")), counts.of(&format!("waits {kind}"))],
            [0, 0],
            "{kind}"
        );
    }
    let semaphore = client.semaphore("e");
    semaphore.set_if_absent(1, None).await.unwrap();
    semaphore.acquire(1).await.unwrap();
    assert!(!semaphore.try_acquire(1).await.unwrap());
    assert_eq!([counts.of("granted semaphore"), counts.of("busy semaphore")], [1, 1]);
    client.lock("f").lock().await.unwrap().detach();
    assert_eq!([counts.of("held lock"), counts.of("detached lock")], [0, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_passed_on_in_the_process_is_one_hold_after_the_other() {
    let server = RedisServer::start().unwrap();
    for store in ["memory:".to_owned(), server.url()] {
        let (client, counts) = observed(Client::builder().url(store)).await;
        let tasks = (0..20).map(|_| {
            let lock = client.lock("passed");
            tokio::spawn(async move {
                for _ in 0..20 {
                    lock.lock().await.unwrap().unlock().await.unwrap();
                }
            })
        });
        for ended in join_all(tasks).await {
            ended.unwrap();
        }
        let (granted, passed) = (counts.of("granted lock"), counts.of("passed lock"));
        assert_eq!(granted + passed, 400, "{granted} + {passed}");
        assert!(passed > 0);
        let ends = [counts.of("held lock"), counts.of("waits lock"), counts.of("given_back lock")];
        assert_eq!(ends, [0, 0, 400]);
    }
}

#[tokio::test]
async fn a_dropped_acquire_is_told_as_cancelled_and_waits_no_more() {
    let (client, counts) = observed(Client::builder().url("memory:")).await;
    let guard = client.lock("x").lock().await.unwrap();
    let lock = client.lock("x");
    let waiting = tokio::spawn(async move { drop(lock.lock().await) });
    counts.until("waits lock", 1).await;
    waiting.abort();
    counts.until("cancelled lock", 1).await;
    assert_eq!(counts.of("waits lock"), 0);
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_losses_and_lost_answers_are_told() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let (client, counts) = observed(Client::builder().url(proxy.url()).watchdog_lease(RENEWED)).await;
    let guard = client.lock("kept").lock().await.unwrap();
    counts.until("renewed lock", 2).await;
    assert!(counts.of("renew answered") >= 2);
    server.cmd(&["DEL", "kept"]).unwrap();
    soon("the loss", guard.lost()).await;
    counts.until("deleted lock", 1).await;
    assert_eq!(counts.of("held lock"), 0);
    proxy.rule(
        Match::script().arg_contains(redlatch::scripts::ACQUIRE.sha1()).nth(1),
        Action::CloseAfterRequest,
    );
    let fixed = client.lock("unknown").lock_with_lease(Duration::from_secs(60)).await;
    fixed.unwrap().unlock().await.unwrap();
    assert!(counts.of("acquire unknown") >= 1);
    counts.until("interrupted", 1).await;
}

/// It may call the client that tells it, and may panic.
struct Meddles(Mutex<Option<Client>>);

impl Observer for Meddles {
    fn observe(&self, event: &Event<'_>) {
        let client = self.0.lock().unwrap().clone();
        if let (Some(client), Event::HoldEnded { .. } | Event::HoldBegan { .. }) = (client, event) {
            client.stats();
            drop(tokio::spawn(async move { drop(client.lock("other").try_lock().await) }));
        }
        if let Event::AcquireEnded { outcome: Outcome::Granted, .. }
        | Event::CallEnded { outcome: CallOutcome::Answered, .. } = event
        {
            panic!("an observer that panics");
        }
    }
}

#[tokio::test]
async fn an_observer_that_calls_the_client_or_panics_harms_no_lock() {
    let observer = Arc::new(Meddles(Mutex::default()));
    let client = Client::builder().url("memory:").observer(observer.clone()).connect().await.unwrap();
    *observer.0.lock().unwrap() = Some(client.clone());
    let guard = client.lock("x").lock().await.unwrap();
    let (lock, next) = (client.lock("x"), client.lock("x"));
    let waits = tokio::spawn(async move { drop(next.lock().await.unwrap()) });
    assert!(lock.try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
    soon("the next task", waits).await.unwrap();
    *observer.0.lock().unwrap() = None;
}
