//! One lock and several tasks of one client, in every order of their steps.

use std::sync::Arc;

use shuttle::{
    future::block_on,
    sync::{Condvar, Mutex, atomic::AtomicBool},
    thread,
};

use super::{JoinStep, Lanes, TurnLimits, pass_on::LaneChoice};
use crate::{
    core::{
        Request, Wait,
        lane::WaiterMessage,
        lease::{HeldLease, LastInterruption, SentAt},
        owner_claims::Owners,
    },
    keys::{KeyKind, Keys},
    name::LockName,
    owner::Owner,
    recipes::{LeaseTerm, PLAIN},
    sync::atomic::Ordering::SeqCst,
};

const TERM: LeaseTerm = LeaseTerm { lease_ms: 30_000, renewed: true };
const NOW_MS: u64 = 1;
const SURE: LastInterruption = LastInterruption { since_ms: 0, incarnation: 0 };
/// When an offer that nobody has taken is taken back.
const LATE_MS: u64 = 10_000;

/// A lock of one client, and the server that has it.
struct Lock {
    lanes: Lanes,
    keys: Arc<Keys>,
    is_held_on_server: Mutex<bool>,
    freed: Condvar,
    contends: AtomicBool,
    is_inside: AtomicBool,
}

impl Lock {
    fn new() -> Arc<Lock> {
        // A lease is passed on once, and the next time it is released.
        let turn_limits = TurnLimits { turn_ms_max: 10_000, passes_max: 1 };
        Arc::new(Lock {
            lanes: Lanes::new(turn_limits, Arc::default(), Owners::new(|| NOW_MS)),
            keys: Arc::new(Keys::new(LockName::from("x"), KeyKind::Lock)),
            is_held_on_server: Mutex::default(),
            freed: Condvar::new(),
            contends: AtomicBool::new(false),
            is_inside: AtomicBool::new(false),
        })
    }

    /// Comes in and gets the lock, unless it gives up in line.
    fn acquire(&self, number: i64, gives_up: bool) -> Option<Arc<HeldLease>> {
        loop {
            let request = Arc::new(Request::new(&self.keys, &PLAIN, TERM, Wait::Forever));
            let mut handle = match self.lanes.join(&request, None, NOW_MS) {
                Ok(JoinStep::Lead) => return Some(self.contend(&request, number)),
                Ok(JoinStep::Queue(handle)) => handle,
                _ => panic!("a task that waits leads or stands in line"),
            };
            if gives_up {
                thread::yield_now();
                if let Some(handed) = self.lanes.leave_line(handle.close()) {
                    self.release(&handed);
                }
                return None;
            }
            match block_on(handle.inbox()) {
                Ok(WaiterMessage::Lease(lease)) if lease.take() => return Some(lease),
                Ok(WaiterMessage::Lease(_)) => {}
                Ok(WaiterMessage::Lead { .. }) => return Some(self.contend(&request, number)),
                Err(_) => panic!("the lane is not closed"),
            }
        }
    }

    fn contend(&self, request: &Arc<Request>, number: i64) -> Arc<HeldLease> {
        assert!(!self.contends.swap(true, SeqCst), "two tasks of one client contend at once");
        let mut is_held = self.is_held_on_server.lock().unwrap();
        while *is_held {
            is_held = self.freed.wait(is_held).unwrap();
        }
        *is_held = true;
        drop(is_held);
        let sent_at = SentAt { at_ms: NOW_MS, incarnation: 0 };
        let owner = Owner::new("c", number);
        let lease = Arc::new(HeldLease::new(self.keys.clone(), owner, &PLAIN, None, TERM, sent_at));
        // From then on another task may lead.
        self.contends.store(false, SeqCst);
        let lost = self.lanes.install_grant(&lease, Some(request), NOW_MS);
        assert!(lost.is_ok_and(|lost| lost.is_empty()), "the server grants it to one at a time");
        lease
    }

    fn hold(&self) {
        assert!(!self.is_inside.swap(true, SeqCst), "two tasks are inside at once");
        thread::yield_now();
        self.is_inside.store(false, SeqCst);
    }

    fn release(&self, lease: &Arc<HeldLease>) {
        assert_eq!(lease.guard_gives_back(TERM), 1, "one guard has it");
        let choice = self.lanes.pass_on(lease, NOW_MS, SURE);
        assert!(lease.mark_given_back(), "nothing else ends it");
        match choice {
            LaneChoice::Passed => {}
            LaneChoice::Release { lane_waits } => {
                let was_held = std::mem::take(&mut *self.is_held_on_server.lock().unwrap());
                assert!(was_held, "a hold is released once");
                self.freed.notify_one();
                if lane_waits {
                    self.lanes.release_finished(&self.keys, false);
                }
            }
            _ => panic!("all want the same, so nothing is transferred"),
        }
    }

    /// What the keeper does about a task that was handed the lock and does not take it.
    fn take_back_late_offers(&self) {
        let mut late = Vec::new();
        self.lanes.each_lease(|lease| late.push(lease.clone()));
        for lease in late {
            if lease.take_back(LATE_MS) {
                self.release(&lease);
            }
        }
    }

    fn check_that_nothing_is_left(&self) {
        assert_eq!(self.lanes.count(), (0, 0), "a lane goes with the last of its tasks");
        assert!(!*self.is_held_on_server.lock().unwrap(), "the server has it back");
    }
}

/// Some tasks hold a lock one after the other, others give up in line, and the keeper looks now and then.
fn go_through(holders: i64, leavers: i64, keeper_rounds: usize) {
    let lock = Lock::new();
    let tasks = (0..holders + leavers).map(|number| {
        let lock = lock.clone();
        thread::spawn(move || {
            if let Some(lease) = lock.acquire(number, number >= holders) {
                lock.hold();
                lock.release(&lease);
            }
        })
    });
    let mut threads: Vec<_> = tasks.collect();
    let keeper = lock.clone();
    threads.push(thread::spawn(move || {
        for _ in 0..keeper_rounds {
            keeper.take_back_late_offers();
            thread::yield_now();
        }
    }));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    lock.check_that_nothing_is_left();
}

/// The keeper takes back what is not taken in time.
pub fn a_lock_goes_from_task_to_task() {
    go_through(3, 1, 4);
}

/// There is no keeper that would find what they leave behind.
pub fn a_lock_goes_past_tasks_that_give_up() {
    go_through(2, 3, 0);
}
