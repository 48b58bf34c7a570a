//! Work and calls that come to the keeper's notice from other threads.

use std::pin::pin;

use shuttle::{future::block_on, thread};

use super::{Keeper, Ordering};

/// A keeper whose runtime does nothing, and the runtime.
fn keeper() -> (Keeper, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    (Keeper::on(runtime.handle().clone()), runtime)
}

/// Shutting down waits for work that ends on other threads.
pub fn shutting_down_waits_for_all_work() {
    let (keeper, _runtime) = keeper();
    let jobs = [(); 2].map(|()| {
        let job = keeper.hold_off_shutdown();
        thread::spawn(move || drop(job))
    });
    block_on(keeper.drained());
    assert_eq!(keeper.jobs(), 0);
    jobs.into_iter().for_each(|job| job.join().unwrap());
}

/// A call that is made while the keeper stops ticking makes it tick again.
pub fn no_call_goes_unseen_by_a_keeper_that_stops_ticking() {
    let (keeper, _runtime) = keeper();
    let shared = keeper.shared.clone();
    // Ticking since some call long ago.
    shared.ticking.store(true, Ordering::SeqCst);
    let callers = [(); 2].map(|()| {
        let shared = keeper.shared.clone();
        thread::spawn(move || shared.note_call())
    });
    let mut seen = false;
    block_on(async {
        while !seen {
            let mut woken = pin!(shared.keeper_alarm.woken());
            woken.as_mut().enable();
            if shared.ticking.load(Ordering::Acquire) {
                seen = shared.touched.swap(false, Ordering::SeqCst);
                if !seen && !shared.stop_ticking() {
                    continue;
                }
            }
            if !seen {
                woken.await;
            }
        }
    });
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}
