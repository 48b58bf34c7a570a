//! The same lock for code without async. Each thread is an owner of its own, as in Java.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use redlatch::{CancellationToken, Error, ErrorKind, Unlocked, Wait, blocking::Client};

fn main() -> Result<(), Error> {
    let client = Client::connect(&redlatch_examples::url())?;
    let counter = AtomicU32::new(0);

    // Reading and writing back would lose updates if two threads did it at the same time.
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..25 {
                    let guard = client.lock("counter").lock().expect("the store is reachable");
                    let seen = counter.load(Ordering::Relaxed);
                    thread::yield_now();
                    counter.store(seen + 1, Ordering::Relaxed);
                    guard.unlock().expect("the store is reachable");
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 100);

    // A thread that holds the lock enters it again.
    let lock = client.lock("counter");
    let (outer, inner) = (lock.lock()?, lock.lock()?);
    assert_eq!(lock.hold_count()?, 2);
    assert_eq!(inner.unlock()?, Unlocked::StillHeld(1));

    // A wait can be ended from outside.
    let stop = CancellationToken::new();
    thread::scope(|threads| {
        let waiter = threads.spawn(|| {
            client
                .lock("counter")
                .acquire()
                .wait(Wait::Forever)
                .cancel(&stop)
                .run()
                .map(|guard| guard.is_some())
        });
        thread::sleep(Duration::from_millis(50));
        stop.cancel();
        let error = waiter.join().expect("the waiter ends").expect_err("the wait was cancelled");
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
    outer.unlock()?;
    println!("100 updates, none lost");
    Ok(())
}
