//! Loss at once: the store tells when another client changes the key of a hold, and then the hold is looked at.
//!
//! What is told is a hint, and only a look at the server decides. Keys are watched once, so they are watched anew after each
//! renewal, which ends the watching without a word, and after each change that has ended nothing. Only holds that the background
//! thread has taken in are watched: short ones cost nothing. Where a store does not tell, renewals find out, as they do anyway. Names that
//! are waited for are watched likewise: `watch_awaited_names.rs`.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, Either, join_all},
};

use smallvec::SmallVec;

use super::{
    Core,
    batch_status::{BatchStatus, HoldStatus, parts},
    lease::{HeldLease, keys_and_owners, left_ms},
};
use crate::{call::Call, keys::Keys, randomness::SeededSet, store::Change};

/// What is due within this time is watched together with what is due now.
pub(super) const WATCH_SOON_MS: u64 = 250;
/// The shortest time between two changes that ended nothing and after which a key is watched anew: read holds and permits have
/// keys that others change all the time. Also the pause before another try when watching failed.
const PAUSE_MS: u64 = 1_000;
/// How often a hold that is not renewed is looked at where the store does not tell: a third of Redisson's default lease, so that what a Java
/// client's renewal cuts down of it is raised in time.
const UNTOLD_MS: u64 = 10_000;
/// A hold that is renewed is looked at in that step only if no renewal has seen it for so long: those of Redisson's default lease never are.
const UNSEEN_RENEWED_MS: u64 = 15_000;
/// How often a hold that is told of is watched anew and looked at all the same, where no renewal does that sooner: what is told is a hint, and a hint
/// may be lost.
pub(super) const WATCH_REFRESH_MS: u64 = 20_000;
/// What is told within so short a time is one burst, and is gathered for so long.
const BURST_MS: u64 = 10;
const GATHER_TIME: Duration = Duration::from_millis(2);
/// How many batches are watched or looked at at once.
const BATCHES_UNDER_WAY_MAX: usize = 16;

/// What the store was asked to tell, and what it has told.
#[derive(Default)]
pub(super) struct Watched {
    told: Mutex<Told>,
    /// The store does not tell, as far as is known.
    is_silent: AtomicBool,
    /// Keys have been watched.
    is_used: AtomicBool,
}

/// What was told and not heeded yet.
#[derive(Default)]
struct Told {
    keys: SeededSet<Vec<u8>>,
    all: bool,
    /// A task is about to heed it.
    heeded: bool,
    /// When that began last.
    last_ms: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HeldLease {
    /// Whether the key is to be watched by then. The caller that is told so sees to it.
    pub(super) fn take_watch(&self, by_ms: u64) -> bool {
        let due = |at_ms| (at_ms <= by_ms).then_some(u64::MAX);
        self.schedule.watch_due_ms.fetch_update(AcqRel, Acquire, due).is_ok()
    }

    fn watched(&self) -> &Arc<[u8]> {
        self.recipe.watched(&self.keys)
    }
}

impl Core {
    /// Something was told. Called from the store's own thread.
    pub(super) fn told(self: &Arc<Self>, change: Change) {
        let mut told = lock(&self.watched.told);
        match change {
            Change::Key(key) => _ = told.keys.insert(key),
            Change::All => told.all = true,
        }
        if !std::mem::replace(&mut told.heeded, true) {
            let now_ms = self.now_ms();
            let is_burst = now_ms.saturating_sub(std::mem::replace(&mut told.last_ms, now_ms)) < BURST_MS;
            drop(told);
            let core = self.clone();
            self.keeper.handle().spawn(async move {
                // What arrives together is looked at together; the first of it is looked at at once.
                if is_burst {
                    tokio::time::sleep(GATHER_TIME).await;
                } else {
                    tokio::task::yield_now().await;
                }
                core.heed();
            });
        }
    }

    /// Looks at all holds that what was told may have ended, and has those watched anew that are still there.
    fn heed(self: &Arc<Self>) {
        let (keys, all) = {
            let mut told = lock(&self.watched.told);
            told.heeded = false;
            (std::mem::take(&mut told.keys), std::mem::take(&mut told.all))
        };
        let mut leases = Vec::new();
        if all {
            self.awaited.all_changed();
            // Those that the background thread has not taken in are watched later.
            let is_taken_in = |lease: &HeldLease| lease.schedule.in_agenda.load(Relaxed);
            self.lanes.each_lease(|lease| leases.extend(is_taken_in(lease).then(|| lease.clone())));
        } else {
            for key in &keys {
                self.awaited.key_changed(key);
                let behind = Keys::behind(key).into_iter().flat_map(|keys| self.lanes.find(&Arc::new(keys)));
                leases.extend(behind.filter(|lease| lease.watched()[..] == key[..]));
            }
        }
        leases.retain(|lease| lease.is_held());
        self.in_batches(leases, |core, batch| async move {
            core.clone().look_at(batch.clone()).await;
            core.watch_again(&batch);
        });
    }

    /// The keys of a call that ends the watching of what it changes without a word, because it goes over the connection that watches.
    pub(super) fn watch_ended_by(&self, call: &Call, is_there: bool) -> Option<SmallVec<[Arc<[u8]>; 2]>> {
        (is_there && self.watched.is_used.load(Relaxed)).then(|| call.keys.clone())
    }

    /// Has holds with these keys watched on when such a call has run, or may have.
    pub(super) fn watched_again_after<R: Future<Output: Send> + Send + Unpin + 'static>(
        &self,
        keys: Option<SmallVec<[Arc<[u8]>; 2]>>,
        run: R,
    ) -> Either<R, BoxFuture<'static, R::Output>> {
        let Some(keys) = keys else { return Either::Left(run) };
        let core = self.me.clone();
        let run = run.map(move |outcome| {
            if let Some(core) = core.upgrade() {
                core.watch_behind(&keys);
            }
            outcome
        });
        Either::Right(run.boxed())
    }

    /// A script of our own may have ended the watching of these keys.
    pub(super) fn watch_behind(self: &Arc<Self>, keys: &[Arc<[u8]>]) {
        for key in keys {
            self.awaited.key_changed(key);
        }
        let leases: Vec<_> = keys.iter().flat_map(|key| self.leases_behind(key)).collect();
        self.watch_again(&leases);
    }

    /// The holds that the background thread has taken in and that end with this key.
    fn leases_behind(&self, key: &[u8]) -> Vec<Arc<HeldLease>> {
        let behind = Keys::behind(key).into_iter().flat_map(|keys| self.lanes.find(&Arc::new(keys)));
        let ends_with = |lease: &Arc<HeldLease>| lease.watched()[..] == *key && lease.is_held();
        behind.filter(|lease| ends_with(lease) && lease.schedule.in_agenda.load(Relaxed)).collect()
    }

    /// Watches the keys of those that a change has not ended: at once, unless that was so a moment ago.
    fn watch_again(self: &Arc<Self>, leases: &[Arc<HeldLease>]) {
        let now_ms = self.now_ms();
        let leases = leases.iter().filter_map(|lease| self.lanes.present(lease));
        let (calm, noisy): (Vec<_>, Vec<_>) = leases.partition(|lease| {
            // A moment of 0 is never.
            let last_ms = lease.schedule.alarmed_ms.swap(now_ms.max(1), Relaxed);
            last_ms == 0 || now_ms.saturating_sub(last_ms) >= PAUSE_MS
        });
        for lease in &noisy {
            // What is due sooner stays so: otherwise a change each second would put it off for ever.
            if lease.schedule.watch_due_ms.fetch_min(now_ms + PAUSE_MS, Relaxed) > now_ms + PAUSE_MS {
                self.schedule(lease);
            }
        }
        self.watch(calm);
    }

    /// Watches the keys of holds, and looks at the holds: what happened before is not told.
    pub(super) fn watch(self: &Arc<Self>, leases: Vec<Arc<HeldLease>>) {
        self.in_batches(leases, |core, batch| async move {
            let was_silent = core.watched.is_silent.load(Relaxed);
            // One after the other: the store may have to ask its server first whether it tells at all, and what is sent meanwhile is
            // answered before the watching takes effect.
            let told = core.watch_batch(&batch).await.is_some() || !was_silent;
            let now_ms = core.now_ms();
            let unseen = |lease: &Arc<HeldLease>| {
                let for_ms = if lease.wants_renewal() { UNSEEN_RENEWED_MS } else { UNTOLD_MS / 2 };
                lease.last_proof_sent_ms() + for_ms <= now_ms
            };
            core.look_at(batch.into_iter().filter(|lease| told || unseen(lease)).collect()).await;
        });
    }

    /// Watches the keys of holds anew that have just been renewed, all in one call.
    pub(super) fn watch_renewed(self: &Arc<Self>, batch: Vec<Arc<HeldLease>>) {
        if batch.is_empty() {
            return;
        }
        let core = self.clone();
        self.keeper.handle().spawn(self.clone().survives(batch.clone(), async move {
            if core.watch_batch(&batch).await == Some(false) {
                core.look_at(batch).await;
            }
        }));
    }

    fn in_batches<F>(
        self: &Arc<Self>,
        mut leases: Vec<Arc<HeldLease>>,
        each: impl Fn(Arc<Core>, Vec<Arc<HeldLease>>) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        if leases.is_empty() {
            return;
        }
        let slot = |lease: &HeldLease| self.store.slot(&lease.keys.key);
        leases.sort_by_cached_key(|lease| (slot(lease), lease.keys.kind));
        let alike = leases.chunk_by(|a, b| a.keys.kind == b.keys.kind && slot(a) == slot(b));
        let batches: Vec<Vec<_>> =
            alike.flat_map(|alike| alike.chunks(self.config.renewal_batch)).map(<[_]>::to_vec).collect();
        let core = self.clone();
        self.keeper.handle().spawn(async move {
            futures_util::stream::iter(batches)
                .for_each_concurrent(BATCHES_UNDER_WAY_MAX, |batch| {
                    core.clone().survives(batch.clone(), each(core.clone(), batch))
                })
                .await;
        });
    }

    /// Does something about a batch. If that ends with a panic, of the program's log for instance, other batches go on, and those holds of
    /// this one that are still there are watched and looked at anew in a moment.
    async fn survives(self: Arc<Self>, batch: Vec<Arc<HeldLease>>, work: impl Future<Output = ()>) {
        if AssertUnwindSafe(work).catch_unwind().await.is_err() {
            self.watch_later(&batch);
        }
    }

    /// Has changes of the keys of one slot told. Answers whether all of them exist, where that is known.
    async fn watch_batch(self: &Arc<Self>, batch: &[Arc<HeldLease>]) -> Option<bool> {
        let mut keys: Vec<Arc<[u8]>> = batch.iter().map(|lease| lease.watched().clone()).collect();
        keys.sort_unstable();
        keys.dedup();
        let count = keys.len() as u64;
        match self.have_told(keys).await {
            Some(found) => {
                let again_ms = self.now_ms() + WATCH_REFRESH_MS;
                for lease in batch.iter().filter_map(|lease| self.lanes.present(lease)) {
                    lease.schedule.watch_due_ms.store(again_ms, Relaxed);
                    // A renewal that comes sooner counts it in.
                    if lease.schedule.agenda_due_ms.load(Relaxed) > again_ms {
                        self.schedule(&lease);
                    }
                }
                if found.is_none() {
                    // Nothing asks for them but this.
                    self.watch_by(batch, UNTOLD_MS);
                }
                found.map(|found| found == count)
            }
            None => {
                self.watch_later(batch);
                None
            }
        }
    }

    /// Has changes of a key told. Answers whether it may be there; `None` where there is no answer.
    pub(super) async fn watch_key(&self, key: &Arc<[u8]>) -> Option<bool> {
        Some(self.have_told(vec![key.clone()]).await?.is_none_or(|found| found > 0))
    }

    /// Has the next change of each of these keys told. Answers how many of them exist, where that is known; `None` where there is no answer.
    async fn have_told(&self, keys: Vec<Arc<[u8]>>) -> Option<Option<u64>> {
        self.keeper.note_call();
        self.watched.is_used.store(true, Relaxed);
        let outcome = tokio::time::timeout(self.config.response_timeout, self.store.watch(keys)).await;
        let found = outcome.ok()?.ok()?;
        self.watched.is_silent.store(found.is_none(), Relaxed);
        Some(found)
    }

    fn watch_later(self: &Arc<Self>, batch: &[Arc<HeldLease>]) {
        self.watch_by(batch, PAUSE_MS);
    }

    fn watch_by(self: &Arc<Self>, batch: &[Arc<HeldLease>], in_ms: u64) {
        let again_ms = self.now_ms() + in_ms;
        for lease in batch.iter().filter_map(|lease| self.lanes.present(lease)) {
            lease.schedule.watch_due_ms.store(again_ms, Relaxed);
            self.schedule(&lease);
        }
    }

    /// Looks once whether holds of one kind and slot are still there, and tells the holders of those that are not. If there is no
    /// answer, the next renewal or the next try finds out.
    async fn look_at(self: Arc<Self>, batch: Vec<Arc<HeldLease>>) {
        // What has ended meanwhile is not to be raised, and may be another process's by now.
        let now_ms = self.now_ms();
        let batch: Vec<_> = batch.into_iter().filter(|lease| lease.is_valid(now_ms)).collect();
        let Some(first) = batch.first() else { return };
        let (number, sent_at) = (self.fresh_number(), self.sent_at(&first.keys));
        let call = first.recipe.look(number, &keys_and_owners(&batch), &left_ms(&batch, sent_at.at_ms));
        let limit = self.config.response_timeout;
        let outcome = tokio::time::timeout(limit, self.run_unwatched(call, number)).await;
        match outcome.map(|outcome| BatchStatus::of(&batch, outcome)) {
            Ok(BatchStatus::Known(held)) => {
                let (mut gone, mut keys) = (Vec::new(), Vec::new());
                for (lease, held) in batch.iter().zip(held) {
                    if held.is_held() {
                        lease.note_seen(sent_at);
                    } else {
                        gone.push(lease.clone());
                    }
                    if held != HoldStatus::Held {
                        keys.push(lease.watched().clone());
                    }
                }
                self.all_gone(&gone).await;
                // The look may have taken what was left of them out of a hash that others have, or raised its time to live, which ends the
                // watching of it.
                keys.sort_unstable();
                keys.dedup();
                self.watch_behind(&keys);
            }
            Ok(BatchStatus::InParts) => self.look_in_parts(batch).await,
            Ok(BatchStatus::Unknown(_)) | Err(_) => self.watch_later(&batch),
        }
    }

    fn look_in_parts(self: Arc<Self>, batch: Vec<Arc<HeldLease>>) -> BoxFuture<'static, ()> {
        join_all(parts(&batch).map(|part| self.clone().look_at(part))).map(drop).boxed()
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;
    use crate::{
        Client, LossReason,
        store::{ChangeHook, Listener, RunFuture, Store, SubscribeFuture, WatchFuture},
    };

    /// A store that is a moment from telling of changes when it is asked to for the first time, as a server that `CLIENT TRACKING` has
    /// just been sent to. Another client takes the lock in that moment.
    struct TellsLate {
        inner: Arc<dyn Store>,
        other: Client,
        was_asked: AtomicBool,
    }

    impl Store for TellsLate {
        fn run(&self, call: Call) -> RunFuture {
            self.inner.run(call)
        }

        fn run_as_keeper(&self, call: Call) -> RunFuture {
            self.inner.run_as_keeper(call)
        }

        fn subscribe(&self, channel: Arc<[u8]>, listener: Listener) -> SubscribeFuture {
            self.inner.subscribe(channel, listener)
        }

        fn on_change(&self, hook: ChangeHook) {
            self.inner.on_change(hook);
        }

        fn watch(&self, keys: Vec<Arc<[u8]>>) -> WatchFuture {
            if self.was_asked.swap(true, Relaxed) {
                return self.inner.watch(keys);
            }
            let (inner, lock) = (self.inner.clone(), self.other.lock("x"));
            Box::pin(async move {
                // What is sent together with the question is answered before it takes effect.
                tokio::task::yield_now().await;
                lock.force_unlock().await.unwrap();
                lock.lock_with_lease(Duration::from_secs(6_000)).await.unwrap().detach();
                inner.watch(keys).await
            })
        }

        fn describe(&self) -> String {
            self.inner.describe()
        }
    }

    /// The look went out with the question, and nothing tells of what came between its answer and the watching but a renewal, which is
    /// half an hour away here.
    #[tokio::test]
    async fn a_hold_that_ends_before_its_first_watching_takes_effect_is_told_at_once() {
        let other = Client::builder().url("memory:").connect().await.unwrap();
        let inner = other.core.store.clone();
        let store = Arc::new(TellsLate { inner, other, was_asked: AtomicBool::new(false) });
        let builder = Client::builder().custom_store(store).background_on(Handle::current());
        let client = builder.watchdog_lease(Duration::from_secs(6_000)).connect().await.unwrap();
        let guard = client.lock("x").lock().await.unwrap();
        let reason = tokio::time::timeout(Duration::from_secs(20), guard.lost()).await.expect("the loss");
        assert!(matches!(reason, LossReason::Forced { .. }), "{reason:?}");
    }
}
