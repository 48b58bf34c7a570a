//! What has been started is finished: a future that is dropped half-way is finished by the keeper, and work that other tasks wait
//! for is the keeper's from the start.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::{
    Core,
    keeper::{Job, received},
};
use crate::error::Error;

/// What is left of a flight.
pub(crate) type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What is done with the outcome of a flight that was abandoned.
pub(crate) enum AfterDrop<T> {
    /// Nothing: it was given up before it was sent.
    NotSent,
    /// This, however long it takes.
    Then(Box<dyn FnOnce(T) + Send>),
    /// This, and after so much time without an outcome with what is left of the work: the connection may be driven by a runtime
    /// that does not run any more.
    Within(Duration, Box<dyn FnOnce(Result<T, Work<T>>) + Send>),
}

/// The same; `None` if nothing is to be done.
pub(crate) type OnAbandon<T> = Option<AfterDrop<T>>;

/// A future that is driven by its caller, or by the keeper when the caller drops it after it was started.
///
/// The work must own what it needs and must not use timers of the caller's runtime. `abandon` is called at the moment of
/// the drop and answers what to do once the outcome is known; it only borrows, so that a flight that is not abandoned
/// costs nothing but the work itself.
pub(crate) struct Flight<'a, W, A>
where
    W: Future<Output: Send> + Send + Unpin + 'static,
    A: FnOnce() -> OnAbandon<W::Output>,
{
    core: &'a Arc<Core>,
    work: Option<W>,
    started: bool,
    abandon: Option<A>,
    /// Shutting down waits for it.
    _job: Job,
}

impl<'a, W, A> Flight<'a, W, A>
where
    W: Future<Output: Send> + Send + Unpin + 'static,
    A: FnOnce() -> OnAbandon<W::Output>,
{
    pub(crate) fn new(core: &'a Arc<Core>, work: W, abandon: A) -> Self {
        let _job = core.keeper.hold_off_shutdown();
        Flight { core, work: Some(work), started: false, abandon: Some(abandon), _job }
    }
}

// The closure is only ever called, never pinned.
impl<W, A> Unpin for Flight<'_, W, A>
where
    W: Future<Output: Send> + Send + Unpin + 'static,
    A: FnOnce() -> OnAbandon<W::Output>,
{
}

impl<W, A> Future for Flight<'_, W, A>
where
    W: Future<Output: Send> + Send + Unpin + 'static,
    A: FnOnce() -> OnAbandon<W::Output>,
{
    type Output = W::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<W::Output> {
        let this = &mut *self;
        this.started = true;
        let Some(work) = &mut this.work else { return Poll::Pending };
        let outcome = work.poll_unpin(cx);
        if outcome.is_ready() {
            this.work = None;
        }
        outcome
    }
}

impl<W, A> Drop for Flight<'_, W, A>
where
    W: Future<Output: Send> + Send + Unpin + 'static,
    A: FnOnce() -> OnAbandon<W::Output>,
{
    fn drop(&mut self) {
        // What has not begun has sent nothing.
        let Some(work) = self.work.take() else { return };
        if !self.started || self.core.is_forked() {
            return;
        }
        let after = self.abandon.take().and_then(|abandon| abandon());
        if matches!(after, Some(AfterDrop::NotSent)) {
            return;
        }
        let mut work: Work<W::Output> = Box::pin(work);
        self.core.keeper.spawn(async move {
            match after {
                None | Some(AfterDrop::NotSent) => drop(work.await),
                Some(AfterDrop::Then(then)) => then(work.await),
                Some(AfterDrop::Within(limit, then)) => match tokio::time::timeout(limit, &mut work).await {
                    Ok(outcome) => then(Ok(outcome)),
                    Err(_) => then(Err(work)),
                },
            }
        });
    }
}

/// The outcome of work that the keeper does.
pub(crate) struct Driven<T: Send + 'static> {
    outcome: oneshot::Receiver<T>,
    /// What is done with an outcome that nobody takes.
    abandoned: Arc<dyn Fn(T) + Send + Sync>,
}

impl Core {
    /// Has the keeper do work that other tasks of this process wait for. So it comes to its end though its own task drops the future,
    /// is not polled any more, or polls none of its branches in a `select!`.
    pub(crate) fn run_on_keeper<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = T> + Send + 'static,
        abandoned: impl Fn(T) + Send + Sync + 'static,
    ) -> Driven<T> {
        let (tell, outcome) = oneshot::channel();
        let abandoned: Arc<dyn Fn(T) + Send + Sync> = Arc::new(abandoned);
        let unheard = abandoned.clone();
        self.keeper.spawn(work.map(move |outcome| {
            if let Err(outcome) = tell.send(outcome) {
                unheard(outcome);
            }
        }));
        Driven { outcome, abandoned }
    }
}

impl<T: Send + 'static> Driven<T> {
    /// Waits for the outcome; an error if the client was shut down meanwhile.
    pub(crate) async fn outcome(mut self) -> Result<T, Error> {
        received(&mut self.outcome).await
    }
}

impl<T: Send + 'static> Drop for Driven<T> {
    fn drop(&mut self) {
        self.outcome.close();
        if let Ok(outcome) = self.outcome.try_recv() {
            (self.abandoned)(outcome);
        }
    }
}
