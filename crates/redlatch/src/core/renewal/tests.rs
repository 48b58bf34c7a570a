use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64},
};

use tokio::{runtime::Handle, sync::Notify};

use crate::{
    Client, Guard, Lease, LossReason,
    store::{Call, Listener, RunFuture, Store, SubscribeFuture, WatchFuture},
};

use super::*;

/// A store whose master hangs, and is replaced by one that has not got all.
struct Hangs {
    inner: Arc<dyn Store>,
    hangs: AtomicBool,
    asked: Arc<Notify>,
    takeovers: AtomicU64,
    hook: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl Hangs {
    fn before(other: &Client) -> Self {
        Hangs {
            inner: other.core.store.clone(),
            hangs: AtomicBool::new(false),
            asked: Arc::default(),
            takeovers: AtomicU64::new(0),
            hook: Mutex::default(),
        }
    }

    fn interrupts(&self) {
        let hook = self.hook.lock().unwrap().clone().expect("a core");
        hook();
    }
}

impl Store for Hangs {
    fn run(&self, call: Call) -> RunFuture {
        if !self.hangs.load(Ordering::SeqCst) || call.script.name() != "renew" {
            return self.inner.run(call);
        }
        self.asked.notify_one();
        Box::pin(std::future::pending())
    }

    fn run_as_keeper(&self, call: Call) -> RunFuture {
        self.run(call)
    }

    fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
        self.inner.subscribe(channel, listener)
    }

    /// It says that it tells of changes, so nothing is looked at for want of that.
    fn watch(&self, keys: Vec<Arc<[u8]>>) -> WatchFuture {
        Box::pin(std::future::ready(Ok(Some(keys.len() as u64))))
    }

    fn on_interruption(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        *self.hook.lock().unwrap() = Some(hook);
    }

    fn takeovers(&self) -> u64 {
        self.takeovers.load(Ordering::SeqCst)
    }

    fn incarnation(&self, _key: &[u8]) -> u64 {
        self.takeovers()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

/// The question that an interruption had sent to the old master waited for its answer, and the look after the change passed the hold by
/// as long as it was asked about: it was valid beside the next holder for a whole response timeout.
#[tokio::test]
async fn a_hold_that_is_asked_about_when_another_server_takes_over_is_asked_about_there_at_once() {
    const LONG: Duration = Duration::from_secs(6_000);
    for lease in [Lease::Fixed(LONG), Lease::RenewedEvery(LONG)] {
        let other = Client::builder().url("memory:").connect().await.unwrap();
        let store = Arc::new(Hangs::before(&other));
        let builder = Client::builder().custom_store(store.clone()).background_on(Handle::current());
        let client = builder.response_timeout(Duration::from_secs(600)).connect().await.unwrap();
        let guard: Guard = client.lock("x").acquire().lease(lease).await.unwrap().unwrap();
        store.hangs.store(true, Ordering::SeqCst);
        store.interrupts();
        tokio::time::timeout(Duration::from_secs(20), store.asked.notified()).await.expect("a question");
        other.lock("x").force_unlock().await.unwrap();
        store.hangs.store(false, Ordering::SeqCst);
        store.takeovers.fetch_add(1, Ordering::SeqCst);
        store.interrupts();
        let reason = tokio::time::timeout(Duration::from_secs(20), guard.lost()).await.expect("the loss");
        assert!(matches!(reason, LossReason::Forced { .. }), "{reason:?}");
    }
}

/// The holders of a cluster are told to look after their locks once a second at most. Until then a hold went from task to task though its slot
/// had another master, which lacked it and granted it anew.
#[tokio::test]
async fn a_hold_is_not_passed_on_unseen_when_another_server_reigns() {
    let other = Client::builder().url("memory:").connect().await.unwrap();
    let store = Arc::new(Hangs::before(&other));
    let builder = Client::builder().custom_store(store.clone()).background_on(Handle::current());
    let client = builder.turn_time(Duration::from_secs(10)).connect().await.unwrap();
    let lock = client.lock("x");
    let first = lock.lock().await.unwrap();
    let queued = lock.clone();
    let mut waiter = tokio::spawn(async move { queued.lock().await.unwrap() });
    // It stands in line behind the first.
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waiter).await.is_err());
    other.lock("x").force_unlock().await.unwrap();
    let foreign = other.lock("x").try_lock().await.unwrap().expect("it is free there");
    store.takeovers.fetch_add(1, Ordering::SeqCst);
    first.unlock().await.unwrap();
    let second = tokio::time::timeout(Duration::from_millis(200), &mut waiter).await;
    assert!(second.is_err() && foreign.is_valid(), "two hold it");
    foreign.unlock().await.unwrap();
    let second = tokio::time::timeout(Duration::from_secs(20), waiter).await.expect("it is free").unwrap();
    second.unlock().await.unwrap();
}
