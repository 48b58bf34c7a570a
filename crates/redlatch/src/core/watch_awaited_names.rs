//! Names that tasks of this process wait for at the server: the server tells when one has vanished without a message.
//!
//! A release publishes a message. A `DEL`, a flush or an expiry publishes none, and a waiter would find out with its next look. So the key of
//! a name that is waited for longer than a moment is watched over the keeper's connection (`CLIENT TRACKING`), as the keys of holds are. What is told is a hint:
//! waiters are woken if the key is not there, and ask for themselves. Renewals change the key, too, and wake nobody.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, PoisonError, Weak},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::Notify;

use super::{Core, watch_holds::WATCH_REFRESH_MS};
use crate::{
    catch_panic::catch_panic,
    randomness::SeededMap,
    sync::{Mutex, MutexGuard},
};

/// A waiter that waits no longer than this costs nothing here.
pub(super) const WATCH_KEY_AFTER: Duration = Duration::from_millis(200);
/// The shortest time between two looks at a name.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// Which changes concern a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// The name can be its own as soon as the key is gone.
    KeyGone,
    /// Others come first in a queue that is a key of its own, so it has to ask anew only when the whole keyspace was emptied, or may have been. The first of
    /// them here asks also when the key is gone: those before it may have been granted meanwhile, and nobody is told that a grant has ended without a release.
    KeyspaceEmptied,
}

/// The names that are waited for, by their keys.
#[derive(Default)]
pub(super) struct AwaitedNames(Mutex<Names>);

type Names = SeededMap<Arc<[u8]>, AwaitedName>;

#[derive(Default)]
struct AwaitedName {
    /// In the order in which they came.
    waiters: Vec<(Arc<Notify>, WaitsFor)>,
    /// Changes may have been missed since the key was last watched, the end of all keys among them.
    has_gap: bool,
    /// Wakes the task that looks at the key.
    look_now: Arc<Notify>,
}

/// The registration of one waiter for one key. Dropping it ends it.
pub(super) struct KeyWatch {
    core: Weak<Core>,
    key: Arc<[u8]>,
    notify: Arc<Notify>,
    waits_for: WaitsFor,
}

impl KeyWatch {
    pub(super) fn waits_for(&self) -> WaitsFor {
        self.waits_for
    }
}

impl Drop for KeyWatch {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade()
            && !core.is_forked()
        {
            core.awaited.remove(&self.key, &self.notify, self.waits_for);
        }
    }
}

impl AwaitedNames {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the first waiter of a key: what will wake the task that looks at it, which the caller has to start.
    fn add(&self, key: &Arc<[u8]>, notify: &Arc<Notify>, waits_for: WaitsFor) -> Option<Arc<Notify>> {
        let mut names = self.lock();
        let name = names.entry(key.clone()).or_default();
        let is_first = name.waiters.is_empty();
        name.waiters.push((notify.clone(), waits_for));
        is_first.then(|| name.look_now.clone())
    }

    fn remove(&self, key: &[u8], notify: &Arc<Notify>, waits_for: WaitsFor) {
        let mut names = self.lock();
        let Some(name) = names.get_mut(key) else { return };
        // A waiter that comes to wait for something else is here twice for a moment.
        let is_it =
            |(waiter, change): &(Arc<Notify>, WaitsFor)| Arc::ptr_eq(waiter, notify) && *change == waits_for;
        if let Some(at) = name.waiters.iter().position(is_it) {
            name.waiters.remove(at);
        }
        if name.waiters.is_empty() {
            let look_now = names.remove(key).map(|name| name.look_now);
            drop(names);
            look_now.inspect(|look_now| look_now.notify_one());
        }
    }

    /// Whether the task that this wakes is still the one that looks at the key.
    fn is_current_looker(&self, key: &[u8], look_now: &Arc<Notify>) -> bool {
        self.lock().get(key).is_some_and(|name| Arc::ptr_eq(&name.look_now, look_now))
    }

    /// A key has changed.
    pub(super) fn key_changed(&self, key: &[u8]) {
        let look_now = self.lock().get(key).map(|name| name.look_now.clone());
        look_now.inspect(|look_now| look_now.notify_one());
    }

    /// The connection that told of changes has ended, or another server has taken over: each key is looked at, and watched anew by that.
    pub(super) fn look_at_all(&self) {
        let look_now: Vec<_> = self
            .lock()
            .values_mut()
            .map(|name| {
                name.has_gap = true;
                name.look_now.clone()
            })
            .collect();
        look_now.iter().for_each(|look_now| look_now.notify_one());
    }

    /// The key is about to be watched. Returns whether there is a gap before that.
    fn take_gap(&self, key: &[u8]) -> bool {
        self.lock().get_mut(key).is_some_and(|name| std::mem::take(&mut name.has_gap))
    }

    /// A key was looked at, and is watched by that, if there was an answer.
    fn looked(&self, key: &[u8], is_there: Option<bool>, after_gap: bool) {
        let waiters: Vec<_> = {
            let mut names = self.lock();
            let Some(name) = names.get_mut(key) else { return };
            match is_there {
                None => {
                    name.has_gap |= after_gap;
                    return;
                }
                Some(is_there) => {
                    let mut first = !is_there;
                    name.those_who_wait_for(|waits_for| match waits_for {
                        WaitsFor::KeyGone => !is_there,
                        WaitsFor::KeyspaceEmptied => std::mem::take(&mut first) || after_gap,
                    })
                }
            }
        };
        for notify in &waiters {
            catch_panic(|| notify.notify_one());
        }
    }

    /// All keys are gone.
    pub(super) fn all_changed(&self) {
        let (look_now, behind): (Vec<_>, Vec<_>) = {
            let names = self.lock();
            names
                .values()
                .map(|name| {
                    let behind = name.those_who_wait_for(|waits_for| waits_for == WaitsFor::KeyspaceEmptied);
                    (name.look_now.clone(), behind)
                })
                .unzip()
        };
        for notify in look_now.iter().chain(behind.iter().flatten()) {
            catch_panic(|| notify.notify_one());
        }
    }
}

impl AwaitedName {
    fn those_who_wait_for(&self, mut is_it: impl FnMut(WaitsFor) -> bool) -> Vec<Arc<Notify>> {
        let for_that = self.waiters.iter().filter(|(_, waits_for)| is_it(*waits_for));
        for_that.map(|(notify, _)| notify.clone()).collect()
    }
}

impl Core {
    /// Has a waiter woken when what it [waits for](WaitsFor) has come about, until what is returned is dropped.
    pub(super) fn watch_awaited_key(
        &self,
        key: Arc<[u8]>,
        notify: Arc<Notify>,
        waits_for: WaitsFor,
    ) -> KeyWatch {
        if let Some(look_now) = self.awaited.add(&key, &notify, waits_for) {
            self.keeper.handle().spawn(look_for_waiters(self.me.clone(), key.clone(), look_now));
        }
        KeyWatch { core: self.me.clone(), key, notify, waits_for }
    }
}

/// Looks whether a key is there when it has changed, for as long as it has waiters. Does not keep the client alive while it sleeps.
async fn look_for_waiters(core: Weak<Core>, key: Arc<[u8]>, look_now: Arc<Notify>) {
    let of_waiters = || core.upgrade().filter(|core| core.awaited.is_current_looker(&key, &look_now));
    while let Some(core) = of_waiters() {
        let next_look = tokio::time::sleep(LOOK_PAUSE);
        // A panic, of the program's log for instance, is no answer.
        let after_gap = core.awaited.take_gap(&key);
        let seen = AssertUnwindSafe(core.watch_key(&key)).catch_unwind().await.unwrap_or(None);
        core.awaited.looked(&key, seen, after_gap);
        drop(core);
        if seen.is_some() {
            _ = tokio::time::timeout(Duration::from_millis(WATCH_REFRESH_MS), look_now.notified()).await;
        }
        if of_waiters().is_none() {
            return;
        }
        next_look.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn was_woken(notify: &Notify) -> bool {
        notify.notified().now_or_never().is_some()
    }

    #[test]
    fn all_those_behind_in_a_queue_are_woken_only_when_all_keys_are_gone() {
        let names = AwaitedNames::default();
        let (key, other): (Arc<[u8]>, Arc<[u8]>) = (Arc::from(&b"x"[..]), Arc::from(&b"y"[..]));
        let (first, behind, last) = <(Arc<Notify>, Arc<Notify>, Arc<Notify>)>::default();
        let look_now = names.add(&key, &first, WaitsFor::KeyGone).expect("the first waiter begins the looks");
        assert!(names.add(&key, &behind, WaitsFor::KeyspaceEmptied).is_none(), "and one task is enough");
        names.add(&key, &last, WaitsFor::KeyspaceEmptied);
        names.key_changed(&other);
        names.looked(&other, Some(false), false);
        assert!(!was_woken(&look_now) && !was_woken(&first));
        names.key_changed(&key);
        assert!(was_woken(&look_now) && !was_woken(&first), "only the look decides");
        names.looked(&key, Some(false), false);
        assert!(
            was_woken(&first) && was_woken(&behind) && !was_woken(&last),
            "one of those behind finds out for all"
        );
        names.all_changed();
        assert!(was_woken(&look_now) && was_woken(&behind) && was_woken(&last) && !was_woken(&first));
    }

    /// Only the one before it was told to be next, and was granted: nobody told this one, and the lock was free for 3 s when the grant had ended by itself.
    #[test]
    fn the_first_of_those_behind_in_a_queue_is_woken_when_the_key_is_gone() {
        let names = AwaitedNames::default();
        let key: Arc<[u8]> = Arc::from(&b"x"[..]);
        let (granted, next, last) = <(Arc<Notify>, Arc<Notify>, Arc<Notify>)>::default();
        for behind in [&granted, &next, &last] {
            names.add(&key, behind, WaitsFor::KeyspaceEmptied);
        }
        names.remove(&key, &granted, WaitsFor::KeyspaceEmptied);
        names.looked(&key, Some(true), false);
        assert!(!was_woken(&next) && !was_woken(&last), "it is held");
        names.looked(&key, Some(false), false);
        assert!(was_woken(&next) && !was_woken(&last), "one finds out for all");
    }

    #[test]
    fn those_behind_in_a_queue_are_woken_when_the_key_is_watched_again_after_a_gap() {
        let names = AwaitedNames::default();
        let key: Arc<[u8]> = Arc::from(&b"x"[..]);
        let (first, behind) = <(Arc<Notify>, Arc<Notify>)>::default();
        let look_now = names.add(&key, &first, WaitsFor::KeyGone).expect("the first waiter begins the looks");
        names.add(&key, &behind, WaitsFor::KeyspaceEmptied);
        names.look_at_all();
        assert!(was_woken(&look_now) && !was_woken(&behind), "not before it is watched");
        assert!(names.take_gap(&key) && !names.take_gap(&key));
        names.looked(&key, None, true);
        assert!(!was_woken(&behind), "there was no answer");
        let after_gap = names.take_gap(&key);
        names.look_at_all();
        names.looked(&key, Some(true), after_gap);
        assert!(
            after_gap && was_woken(&behind) && !was_woken(&first),
            "all keys may have gone and come again"
        );
        assert!(names.take_gap(&key), "the connection has ended once more during the look");
    }

    #[test]
    fn a_waiter_that_becomes_the_first_of_its_queue_is_woken_as_the_first() {
        let names = AwaitedNames::default();
        let key: Arc<[u8]> = Arc::from(&b"x"[..]);
        let (first, next) = <(Arc<Notify>, Arc<Notify>)>::default();
        names.add(&key, &first, WaitsFor::KeyGone);
        names.add(&key, &next, WaitsFor::KeyspaceEmptied);
        names.add(&key, &next, WaitsFor::KeyGone);
        names.remove(&key, &first, WaitsFor::KeyGone);
        names.remove(&key, &next, WaitsFor::KeyspaceEmptied);
        names.looked(&key, Some(false), false);
        assert!(was_woken(&next));
    }

    #[test]
    fn a_name_is_looked_at_until_its_last_waiter_has_gone() {
        let names = AwaitedNames::default();
        let key: Arc<[u8]> = Arc::from(&b"x"[..]);
        let (one, two) = <(Arc<Notify>, Arc<Notify>)>::default();
        let look_now = names.add(&key, &one, WaitsFor::KeyGone).unwrap();
        names.add(&key, &two, WaitsFor::KeyGone);
        names.remove(&key, &one, WaitsFor::KeyGone);
        assert!(names.is_current_looker(&key, &look_now) && !was_woken(&look_now));
        names.remove(&key, &two, WaitsFor::KeyGone);
        assert!(!names.is_current_looker(&key, &look_now) && was_woken(&look_now));
        let next = names.add(&key, &one, WaitsFor::KeyGone).expect("looks begin anew");
        assert!(names.is_current_looker(&key, &next) && !names.is_current_looker(&key, &look_now));
    }
}
