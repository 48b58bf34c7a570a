//! Tasks that want the same thing of the server.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use shuttle::{
    future::block_on,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

use super::Gates;

/// Three tasks ask one after the other, and a fourth one gives up in line.
pub fn one_task_asks_at_a_time_and_none_sleeps_on() {
    let (gates, asks) = (Arc::new(Gates::default()), Arc::new(AtomicBool::new(false)));
    let tasks = (0..4).map(|task| {
        let (gates, asks) = (gates.clone(), asks.clone());
        thread::spawn(move || {
            block_on(async {
                let mut pass = pin!(gates.pass((Arc::from(&b"x"[..]), 1), Arc::default()));
                if task == 3 {
                    // Polled once, and dropped.
                    poll_fn(|context| {
                        drop(pass.as_mut().poll(context));
                        Poll::Ready(())
                    })
                    .await;
                    return;
                }
                let pass = pass.await;
                assert!(!asks.swap(true, SeqCst), "two tasks ask at once");
                thread::yield_now();
                asks.store(false, SeqCst);
                drop(pass);
            });
        })
    });
    tasks.collect::<Vec<_>>().into_iter().for_each(|task| task.join().unwrap());
    assert!(!gates.is_taken(&(Arc::from(&b"x"[..]), 1)), "the line is empty");
}
