//! How a thread waits for async work, and where it may.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use tokio::{runtime::Handle, task::coop};

use crate::error::{Error, ErrorKind};

/// More than a runtime lets a future do before it has to give way.
const BUDGET_MAX: usize = 1_024;

/// Refuses where a thread must not block: in a future that a runtime polls. `spawn_blocking` and `block_in_place` are the right places.
pub(super) fn outside() -> Result<(), Error> {
    match Handle::try_current() {
        Ok(_) if is_polled() => Err(Error::new(
            ErrorKind::InsideRuntime,
            "a blocking call inside async code would hold up the other tasks",
        )),
        Err(error) if error.is_thread_local_destroyed() => Err(Error::new(
            ErrorKind::Unsupported,
            "the thread is ending, and what it would wait with is gone",
        )
        .remedy("lock and unlock before the values of the thread are dropped; a guard that is dropped there is released")),
        _ => Ok(()),
    }
}

/// Whether a thread must not block here. One that is ending may, though it cannot wait for async work any more.
pub(super) fn is_inside() -> bool {
    outside().is_err_and(|error| error.kind() == ErrorKind::InsideRuntime)
}

/// Whether this runs inside of a future that a runtime polls. Such code has a budget; code that may block has none.
fn is_polled() -> bool {
    let mut context = Context::from_waker(Waker::noop());
    let mut taken = Vec::new();
    while coop::has_budget_remaining() && taken.len() < BUDGET_MAX {
        match coop::poll_proceed(&mut context) {
            Poll::Ready(restore) => taken.push(restore),
            Poll::Pending => break,
        }
    }
    let is_polled = !coop::has_budget_remaining();
    // Each puts back what it found, so the first one comes last.
    while taken.pop().is_some() {}
    is_polled
}

struct Sleeper {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}

/// Does the work on this thread; timers and connections are those of the runtime behind the handle.
pub(super) fn block_on<T>(handle: &Handle, work: impl Future<Output = T>) -> T {
    let _inside = handle.enter();
    let sleeper = Arc::new(Sleeper { thread: std::thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(sleeper.clone());
    let mut context = Context::from_waker(&waker);
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(outcome) = work.as_mut().poll(&mut context) {
            return outcome;
        }
        while !sleeper.woken.swap(false, Ordering::AcqRel) {
            std::thread::park();
        }
    }
}
