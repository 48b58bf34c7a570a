//! Tasks that note leases while the keeper goes to sleep.

use std::{pin::pin, sync::Arc};

use shuttle::{
    future::block_on,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use super::KeeperAlarm;

/// When the lease needs attention.
const DUE_MS: u64 = 5;
/// When the keeper first means to get up.
const FIRST_MS: u64 = 3;

/// A lease that needs attention is seen by a keeper that looks only when it is woken, or when a look is due. Before, it sleeps until a moment
/// for which nothing has to wake it.
pub fn no_lease_is_slept_through() {
    let (alarm, has_come) = (Arc::new(KeeperAlarm::default()), Arc::new(AtomicBool::new(false)));
    let note = |at_ms, comes: bool| {
        let (alarm, has_come) = (alarm.clone(), has_come.clone());
        thread::spawn(move || {
            has_come.fetch_or(comes, SeqCst);
            alarm.look_at_lanes_by(at_ms);
        })
    };
    // One that is due later is noted at the same moment, and so is one that is due sooner.
    let tasks = [note(DUE_MS + 10, false), note(DUE_MS, true), note(DUE_MS - 1, false)];
    block_on(async {
        let (mut now_ms, mut until_ms) = (0, FIRST_MS);
        loop {
            let mut woken = pin!(alarm.woken());
            woken.as_mut().enable();
            if alarm.look_ms() <= now_ms {
                alarm.begin_look();
                if has_come.load(SeqCst) {
                    break;
                }
            }
            match alarm.sleeps_until(std::mem::replace(&mut until_ms, u64::MAX)) {
                u64::MAX => woken.await,
                // The timer is over.
                due_ms => now_ms = now_ms.max(due_ms),
            }
        }
    });
    tasks.into_iter().for_each(|task| task.join().unwrap());
}
