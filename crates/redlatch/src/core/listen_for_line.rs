//! A hold of this process that other tasks of it wait for: if it is freed by force, they must learn of that as fast as other processes do.
//!
//! The tasks in line ask nobody, because the holder is one of their own. If the hold is forced free or deleted, its holder is told at once
//! only where the store reports changes of keys (`watch_holds.rs`), otherwise with the next renewal, and they would wait until then. So where a task waits behind a hold for longer than a moment, the
//! keeper listens in its place, and looks at the hold when a message says that something has changed.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use super::{Core, lease::HeldLease};
use crate::config::POLL_INTERVAL_MAX;

/// The keeper listens for the waiters of a hold that was last seen on the server so long ago. Locks that pass from task to task are seen
/// more often.
pub(super) const UNSEEN_MS_MIN: u64 = 200;
/// How often a hold is looked at whose channel tells everything. The rest is a matter of renewals.
const LOOK_TIME_MAX: Duration = Duration::from_secs(30);

impl Core {
    /// Begins to listen for the lines that are worth it.
    pub(super) fn listen_for_lines(self: &Arc<Self>, now_ms: u64) {
        for lease in self.lanes.waited_for(now_ms, UNSEEN_MS_MIN) {
            if !lease.schedule.listens_for_line.swap(true, Ordering::AcqRel) {
                let core = self.clone();
                self.keeper.handle().spawn(async move { core.listen_for(lease).await });
            }
        }
    }

    /// Looks at a hold when a message comes, for as long as it lasts and has a line.
    async fn listen_for(self: Arc<Self>, lease: Arc<HeldLease>) {
        let _listening = Listening { core: self.clone(), lease: lease.clone() };
        let notify = Arc::new(Notify::new());
        let channel = lease.recipe.channel(&lease.keys, &lease.owner);
        let heard = notify.clone();
        let subscription = match channel {
            Some(channel) => self.store.subscribe(channel, Arc::new(move |_| heard.notify_one())).await.ok(),
            None => None,
        };
        let pause = if subscription.is_some() { LOOK_TIME_MAX } else { POLL_INTERVAL_MAX };
        let ended = lease.clone().ended();
        let mut ended = std::pin::pin!(ended);
        while lease.is_held() && self.lanes.has_line(&lease.keys) {
            // The first look finds what happened before the subscription.
            self.recheck_now(lease.clone()).await;
            let closing = self.closing.until(|| self.is_closed().then_some(()));
            tokio::select! {
                biased;
                _ = &mut ended => return,
                () = closing => return,
                () = notify.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// A hold that is listened for, until dropped. If that ends with a panic, of the program's log or store for instance, its line is looked
/// at again.
struct Listening {
    core: Arc<Core>,
    lease: Arc<HeldLease>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.lease.schedule.listens_for_line.store(false, Ordering::Release);
        if std::thread::panicking() {
            self.core.lanes.look_at_lines();
            self.core.keeper.note_call();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tokio::runtime::Handle;

    use super::*;
    use crate::{
        Client,
        store::{Call, Listener, RunFuture, Store, SubscribeFuture, WatchFuture},
    };

    /// A store that tells of no changes, and whose first subscription panics.
    struct Panics {
        inner: Arc<dyn Store>,
        has_looked: AtomicBool,
        has_panicked: AtomicBool,
    }

    impl Store for Panics {
        fn run(&self, call: Call) -> RunFuture {
            self.inner.run(call)
        }

        fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
            assert!(self.has_panicked.swap(true, Ordering::SeqCst), "the first subscription panics");
            self.inner.subscribe(channel, listener)
        }

        fn watch(&self, _: Vec<Arc<[u8]>>) -> WatchFuture {
            self.has_looked.store(true, Ordering::SeqCst);
            Box::pin(std::future::ready(Ok(None)))
        }

        fn describe(&self) -> String {
            self.inner.describe()
        }
    }

    /// The hold counted as listened for from then on, so the task in line waited for its renewal.
    #[tokio::test]
    async fn a_panic_in_listening_for_a_hold_leaves_its_line_to_be_listened_for() {
        let other = Client::builder().url("memory:").connect().await.unwrap();
        let (has_looked, has_panicked) = Default::default();
        let store = Arc::new(Panics { inner: other.core.store.clone(), has_looked, has_panicked });
        let builder = Client::builder().custom_store(store.clone()).background_on(Handle::current());
        let client = builder.watchdog_lease(Duration::from_secs(6_000)).connect().await.unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        let lock = client.lock("x");
        let next = tokio::spawn(async move { lock.lock().await });
        let limit = Duration::from_secs(20);
        let panicked = async {
            // The hold is looked at once, when it has lasted for a moment.
            while [&store.has_panicked, &store.has_looked].iter().any(|done| !done.load(Ordering::SeqCst)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(limit, panicked).await.expect("the keeper listens");
        other.lock("x").force_unlock().await.unwrap();
        let next = tokio::time::timeout(limit, next).await.expect("the next task has its turn");
        assert!(next.unwrap().unwrap().is_valid() && !guard.is_valid());
    }
}
