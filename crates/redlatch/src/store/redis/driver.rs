//! What drives one connection: it reads answers and hands them to those who wait, on the runtime that opened the connection.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU8, Ordering, fence},
    },
    task::{Context, Poll},
};

use redis::RedisError;

use crate::{catch_panic::catch_panic, panic_safe::Signal};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What drives a connection. A runtime that no longer runs never drops the tasks that it was told to abort, and with them the
/// calls that wait; so this can be dropped from outside.
///
/// What is queued while it ends may stay in the queue, which lives as long as those who wait do: the queue is emptied once, and a task
/// may be about to put something into it. So those who wait look at the phase once they have queued
/// ([`heard`](Self::heard)).
pub(super) struct DriverWork {
    work: Mutex<Option<Work>>,
    phase: AtomicU8,
    /// Wakes those who queued while it was at work, which may have been its end.
    ended: Signal,
}

/// What is in the queue by now is served or dropped later.
const RESTS: u8 = 0;
/// It is being polled, and may come to its end by that.
const WORKS: u8 = 1;
const OVER: u8 = 2;

impl DriverWork {
    pub(super) fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        let work = Mutex::new(Some(Box::pin(work) as Work));
        DriverWork { work, phase: AtomicU8::new(RESTS), ended: Signal::default() }
    }

    /// It has come to its end, or was dropped with the runtime that drove it.
    pub(super) fn is_over(&self) -> bool {
        self.phase.load(Ordering::SeqCst) == OVER
    }

    /// What is in the queue after this may be missed by what follows, and finds the phase; what was there before is seen.
    fn enters(&self, phase: u8) {
        self.phase.store(phase, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Nothing is missed at rest: what follows begins with a phase of its own. So this costs no fence, of which there would be one for each
    /// read from the server.
    fn idles(&self) {
        self.phase.store(RESTS, Ordering::Release);
    }

    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(driver) = work.as_mut() else { return Poll::Ready(()) };
        self.enters(WORKS);
        // It wakes tasks of the program. A waker that panics ends the connection, and dropping that wakes the others: a second panic
        // while the first one unwinds would end the process.
        if catch_panic(|| driver.as_mut().poll(cx)).is_some_and(|polled| polled.is_pending()) {
            self.idles();
            return Poll::Pending;
        }
        self.ends(work);
        Poll::Ready(())
    }

    /// Drops it, unless it is being polled this very moment: then its runtime runs, and aborts it.
    pub(super) fn end(&self) {
        let work = match self.work.try_lock() {
            Ok(work) => work,
            Err(TryLockError::Poisoned(work)) => work.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.ends(work);
    }

    fn ends(&self, mut work: MutexGuard<'_, Option<Work>>) {
        let driver = work.take();
        self.enters(OVER);
        // Without the mutex, because this wakes those who wait for answers.
        drop(work);
        catch_panic(|| drop(driver));
        self.ended.tell();
    }

    /// Waits for the answer to what is put into the driver's queue, or for the driver's end. The answer stays where its caller has it: a
    /// future that is moved in is in each of them twice, and thousands of calls then no longer fit into the processor's cache.
    pub(super) async fn heard<T, F>(&self, mut answer: Pin<&mut F>) -> Result<T, RedisError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let mut ended = pin!(self.ended.next());
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            // It has been queued, unless the queue is full, and then it comes by here again.
            fence(Ordering::SeqCst);
            if self.phase.load(Ordering::SeqCst) == RESTS {
                return Poll::Pending;
            }
            let is_over = ended.as_mut().poll(cx).is_ready() || self.phase.load(Ordering::SeqCst) == OVER;
            if is_over {
                Poll::Ready(Err(io::Error::from(io::ErrorKind::BrokenPipe).into()))
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

/// The part of the task that drives a connection: when a running runtime drops the aborted task, the work ends with it.
pub(super) struct Driven(pub(super) Arc<DriverWork>);

impl Drop for Driven {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A task's waker panicked when it was told of its answer, and that of the next one when the connection was dropped for it: two panics at
    /// once, which end the process.
    #[tokio::test]
    async fn wakers_that_panic_end_a_connection_and_not_the_process() {
        struct Bad;

        impl Drop for Bad {
            fn drop(&mut self) {
                panic!("a waker, when the connection is dropped");
            }
        }

        let bad = Bad;
        // What it holds is dropped after the panic, and not by it.
        let driver = Arc::new(DriverWork::new(std::future::poll_fn(move |_| {
            let _ = &bad;
            panic!("a waker, when it is told")
        })));
        let driven = Driven(driver.clone());
        let driving = tokio::spawn(std::future::poll_fn(move |cx| driven.0.poll(cx)));
        assert!(driving.await.is_ok() && driver.is_over());
        let never = pin!(std::future::pending::<Result<(), RedisError>>());
        assert!(driver.heard(never).await.is_err(), "those who wait are told");
    }
}
