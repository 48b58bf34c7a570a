//! What several threads do at once, in every order (`crates/redlatch-threads`): the cases of the core, and of what its tasks are woken with.

use std::sync::Arc;

use shuttle::{
    future::block_on,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
};

pub use super::{
    ask_gate::threads::*, keeper::threads::*, keeper_alarm::threads::*, lanes::threads::*, lease::threads::*,
    owner_claims::threads::*,
};
use crate::panic_safe::Signal;

/// Two tasks wait for the second of two changes, each of which is told.
pub fn no_change_is_slept_through() {
    let (signal, changes) = (Arc::new(Signal::default()), Arc::new(AtomicUsize::new(0)));
    let waiters = [(); 2].map(|()| {
        let (signal, changes) = (signal.clone(), changes.clone());
        thread::spawn(move || {
            block_on(signal.until(|| {
                let is_over = changes.load(SeqCst) == 2;
                // Others may run between this look and what follows it.
                thread::yield_now();
                is_over.then_some(())
            }));
        })
    });
    let next = signal.clone().next_owned();
    let tellers = [(); 2].map(|()| {
        let (signal, changes) = (signal.clone(), changes.clone());
        thread::spawn(move || {
            changes.fetch_add(1, SeqCst);
            signal.tell();
        })
    });
    block_on(next.comes());
    waiters.into_iter().chain(tellers).for_each(|thread| thread.join().unwrap());
}
