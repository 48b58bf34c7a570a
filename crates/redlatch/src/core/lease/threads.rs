//! A hold that ends on several threads at once.

use std::sync::Arc;

use shuttle::{future::block_on, thread};

use super::{HeldLease, OFFER_MS, SentAt};
use crate::{
    error::LossReason,
    keys::{KeyKind, Keys},
    name::LockName,
    owner::Owner,
    recipes::{LeaseTerm, PLAIN},
};

const TERM: LeaseTerm = LeaseTerm { lease_ms: 30_000, renewed: true };

fn lease() -> Arc<HeldLease> {
    let keys = Arc::new(Keys::new(LockName::from("x"), KeyKind::Lock));
    let sent_at = SentAt { at_ms: 0, incarnation: 0 };
    Arc::new(HeldLease::new(keys, Owner::new("c", 1), &PLAIN, None, TERM, sent_at))
}

fn spawn<T: Send + 'static>(
    lease: &Arc<HeldLease>,
    work: impl FnOnce(Arc<HeldLease>) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let lease = lease.clone();
    thread::spawn(move || work(lease))
}

/// Its holder gives it back while two threads find it lost; a task waits for its end, and another one looks at it.
pub fn a_hold_ends_once() {
    let lease = lease();
    let waiter = spawn(&lease, |lease| block_on(lease.ended()));
    let finds_it_lost = |reason| spawn(&lease, move |lease| lease.lose(reason));
    let losers = [finds_it_lost(LossReason::Expired), finds_it_lost(LossReason::Deleted)];
    let holder = spawn(&lease, |lease| lease.mark_given_back());
    spawn(&lease, |lease| {
        for _ in 0..3 {
            assert!(
                lease.is_held() || lease.loss().is_some() || lease.is_given_back(),
                "an end has its reason"
            );
        }
    })
    .join()
    .unwrap();
    let losers = losers.map(|loser| loser.join().unwrap());
    let given_back = holder.join().unwrap();
    let ends = losers.iter().chain([&given_back]).filter(|ended| **ended).count();
    // Of two threads that find it lost the first may write its reason and come too late all the same.
    assert_eq!(ends, 1, "it ends once: lost {losers:?}, given back {given_back}");
    assert_eq!(waiter.join().unwrap().is_none(), given_back);
    assert!(!lease.owner.is_holding());
}

/// One guard gives its hold back while two others come in: the last one that leaves knows that it is the last.
pub fn a_lease_has_one_last_guard() {
    let lease = lease();
    let leave = |lease: &HeldLease| lease.guard_gives_back(TERM) == 1;
    let first = spawn(&lease, move |lease| leave(&lease));
    let others = [(), ()].map(|()| {
        spawn(&lease, move |lease| {
            if !lease.enter(true) {
                assert_eq!(lease.holds().count, 0, "only a lease without guards lets none in");
                return false;
            }
            thread::yield_now();
            leave(&lease)
        })
    });
    let lasts = others.into_iter().chain([first]).map(|guard| guard.join().unwrap());
    assert_eq!(lasts.filter(|last| *last).count(), 1, "one of them releases it");
    assert_eq!(lease.holds().count, 0);
}

/// The task that was offered it takes it while the keeper takes it back.
pub fn an_offer_is_taken_or_taken_back() {
    let lease = lease();
    lease.offer(1);
    let task = spawn(&lease, |lease| lease.take());
    let keeper = spawn(&lease, |lease| lease.take_back(1 + OFFER_MS));
    assert_ne!(task.join().unwrap(), keeper.join().unwrap(), "one of them has it");
}
