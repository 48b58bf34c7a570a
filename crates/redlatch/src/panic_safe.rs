//! Wakers of the program before which one of ours stands.
//!
//! What wakes several tasks, as a timer does or the end of a hold, drops the tasks that are left when one of their wakers panics, and those
//! sleep on for ever. So such a thing is given a waker that keeps the panic to itself.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, Sleep},
};

use crate::{
    catch_panic::catch_panic,
    sync::atomic::{AtomicU64, Ordering},
};

/// The waker of a task, until this is dropped.
struct PanicSafe(Option<Waker>);

impl PanicSafe {
    fn stands_before(&self, waker: &Waker) -> bool {
        self.0.as_ref().is_some_and(|own| own.will_wake(waker))
    }
}

impl Drop for PanicSafe {
    fn drop(&mut self) {
        let waker = self.0.take();
        catch_panic(|| drop(waker));
    }
}

impl Wake for PanicSafe {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        catch_panic(|| self.0.as_ref().map(Waker::wake_by_ref));
    }
}

/// The waker that stands before that of a task, made when the task is first polled.
#[derive(Default)]
pub(crate) struct PanicSafeWaker(Option<(Arc<PanicSafe>, Waker)>);

impl PanicSafeWaker {
    pub(crate) fn poll<T>(
        &mut self,
        context: &Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let (_, waker) = match self.0.take() {
            Some(known) if known.0.stands_before(context.waker()) => self.0.insert(known),
            _ => {
                let quiet = Arc::new(PanicSafe(Some(context.waker().clone())));
                self.0.insert((quiet.clone(), Waker::from(quiet)))
            }
        };
        poll(&mut Context::from_waker(waker))
    }
}

/// Does work that is woken together with that of other tasks. It is made in here: taken by value it would be in this future twice.
pub(crate) async fn panic_safe<F: Future>(work: impl FnOnce() -> F) -> F::Output {
    let (mut work, mut waker) = (pin!(work()), PanicSafeWaker::default());
    poll_fn(|context| waker.poll(context, |context| work.as_mut().poll(context))).await
}

/// A timer of a runtime that another thread drives. Once it is over it stays so, however often it is polled.
pub(crate) struct Timer {
    runtime: Handle,
    /// `None`: longer than there are moments.
    until: Option<Instant>,
    /// Made when it is first polled: most timers are for what does not happen.
    sleep: Option<Pin<Box<Sleep>>>,
    waker: PanicSafeWaker,
}

impl Timer {
    pub(crate) fn new(runtime: &Handle, time: Duration) -> Self {
        let inside = runtime.enter();
        let until = Instant::now().checked_add(time);
        drop(inside);
        Timer { runtime: runtime.clone(), until, sleep: None, waker: PanicSafeWaker::default() }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Timer { runtime, until, sleep, waker } = &mut *self;
        let Some(until) = *until else { return Poll::Pending };
        let sleep = sleep.get_or_insert_with(|| {
            let _inside = runtime.enter();
            Box::pin(tokio::time::sleep_until(until))
        });
        waker.poll(context, |context| sleep.as_mut().poll(context))
    }
}

/// Something of which any number of tasks are told when it changes.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    notify: Notify,
    changes: AtomicU64,
}

impl Signal {
    /// Wakes all that wait. Each of them looks for itself at what has changed.
    #[expect(clippy::disallowed_methods, reason = "here the wakers keep their panics to themselves")]
    pub(crate) fn tell(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_waiters();
    }

    /// Looks now and after each change, until there is something.
    pub(crate) async fn until<T>(&self, look: impl Fn() -> Option<T>) -> T {
        let mut waker = PanicSafeWaker::default();
        loop {
            let mut told = pin!(self.notify.notified());
            told.as_mut().enable();
            if let Some(seen) = look() {
                return seen;
            }
            poll_fn(|context| waker.poll(context, |context| told.as_mut().poll(context))).await;
        }
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Resolves with the next change from now on, whenever it is polled.
    pub(crate) fn next(&self) -> impl Future<Output = ()> + Send + use<'_> {
        let before = self.changes();
        self.until(move || (self.changes() != before).then_some(()))
    }

    /// The same, for a task to keep.
    pub(crate) fn next_owned(self: &Arc<Self>) -> NextChange {
        NextChange { signal: self.clone(), before: self.changes() }
    }
}

/// The next change from the moment on in which this was made.
pub(crate) struct NextChange {
    signal: Arc<Signal>,
    before: u64,
}

impl NextChange {
    pub(crate) async fn comes(self) {
        self.signal.until(|| (self.signal.changes() != self.before).then_some(())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::panic_any(PanicsAgain);
        }
    }

    /// What a panic carries is dropped by the one that catches it.
    struct PanicsAgain;

    impl Drop for PanicsAgain {
        fn drop(&mut self) {
            panic!("so does this");
        }
    }

    #[derive(Default)]
    struct Counts(AtomicU32);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_task_from_being_told() {
        let (signal, counts) = (Signal::default(), Arc::new(Counts::default()));
        let mut tasks: Vec<_> = (0..4).map(|_| Box::pin(signal.next())).collect();
        for (at, task) in tasks.iter_mut().enumerate() {
            let waker = if at % 2 == 0 { Waker::from(Arc::new(Panics)) } else { Waker::from(counts.clone()) };
            assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        signal.tell();
        assert_eq!(counts.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_task_that_moves_to_another_waker_is_woken_there() {
        let (signal, counts) =
            (Signal::default(), [Arc::new(Counts::default()), Arc::new(Counts::default())]);
        let mut told = Box::pin(signal.until(|| None::<()>));
        for counts in [&counts[0], &counts[1], &counts[1]] {
            let waker = Waker::from(counts.clone());
            assert!(told.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        signal.tell();
        assert_eq!(counts.map(|counts| counts.0.load(Ordering::SeqCst)), [0, 1]);
    }
}
