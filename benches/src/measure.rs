//! Running many tasks for a while, and counting what they did.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Barrier;

use crate::outcome::Outcome;

/// Tells tasks that their time is up. Looking costs nothing next to what is measured.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How much was done in how much time.
#[derive(Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) count: u64,
    pub(crate) time: Duration,
}

impl Rate {
    pub(crate) fn per_second(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }
}

/// Runs the tasks that `make` makes, all from the same moment on, and tells them to stop after `time`. Each answers how
/// much it did. The clock runs until the last has stopped, so that nothing is counted outside of it.
pub(crate) async fn run<F, Fut>(tasks: usize, time: Duration, make: F) -> Outcome<Rate>
where
    F: Fn(usize, Stop) -> Fut,
    Fut: Future<Output = Outcome<u64>> + Send + 'static,
{
    let (stop, gate) = (Stop::default(), Arc::new(Barrier::new(tasks + 1)));
    let mut running = Vec::with_capacity(tasks);
    for index in 0..tasks {
        let (work, gate) = (make(index, stop.clone()), gate.clone());
        running.push(tokio::spawn(async move {
            gate.wait().await;
            work.await
        }));
    }
    gate.wait().await;
    let begun = Instant::now();
    tokio::time::sleep(time).await;
    stop.set();
    let mut count = 0;
    for task in running {
        count += task.await??;
    }
    Ok(Rate { count, time: begun.elapsed() })
}
