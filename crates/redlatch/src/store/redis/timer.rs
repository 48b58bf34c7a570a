//! Timers for work that a program's own runtime does.

use std::{future::Future, time::Duration};

use futures_util::FutureExt;
use tokio::{runtime::Handle, sync::oneshot};

/// A timer of a runtime, for work in another one. It is over when the runtime ends: the work cannot tell when that is, and a timer of tokio's
/// panics where it is polled then.
pub(super) fn sleep_on(timers: &Handle, time: Duration) -> impl Future<Output = ()> + Send + use<> {
    let (mut tell, is_over) = oneshot::channel::<()>();
    timers.spawn(async move {
        tokio::select! {
            biased;
            () = tokio::time::sleep(time) => {}
            () = tell.closed() => {}
        }
    });
    // However that ends, the other side is dropped with it.
    is_over.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client was shut down while a connection was being made, and its attempt panicked in the program's runtime.
    #[test]
    fn a_timer_whose_runtime_has_ended_is_over() {
        let build =
            || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (timers, program) = (build(), build());
        let timer = sleep_on(timers.handle(), Duration::from_secs(600));
        let work = program.spawn(timer);
        program.block_on(async { tokio::task::yield_now().await });
        timers.shutdown_background();
        program.block_on(work).expect("no panic");
        // And one that is begun later.
        let (timers, program) = (build(), build());
        let handle = timers.handle().clone();
        timers.shutdown_background();
        program.block_on(sleep_on(&handle, Duration::from_secs(600)));
    }
}
