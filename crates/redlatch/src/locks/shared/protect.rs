//! Work that is done only while a hold is good.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use crate::error::{Error, ErrorKind};

/// Does the work, and polls it no more when the hold is not good any more: then it is pending until its caller is told of the loss, and why. After
/// a process stood still its timers and its work come at the same time, so the hold is looked at before each step of the work; and after the last
/// one, which may have lasted for longer than the hold.
pub(super) async fn protected<T>(
    work: impl Future<Output = T>,
    check: impl Fn() -> Result<(), Error>,
) -> Result<T, Error> {
    let mut work = pin!(work);
    let outcome = poll_fn(|context| match check() {
        Ok(()) => work.as_mut().poll(context).map(Ok),
        // In a forked child nobody tells of a loss.
        Err(error) if error.kind() == ErrorKind::Forked => Poll::Ready(Err(error)),
        Err(_) => Poll::Pending,
    })
    .await?;
    check().map(|()| outcome)
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        task::{Context, Waker},
    };

    use super::*;

    /// A process that stood still over the end of its lease took one more step of its work when it went on.
    #[test]
    fn no_step_of_the_work_is_taken_after_the_hold_has_ended() {
        let (good, steps) = (Cell::new(true), Cell::new(0));
        let check = || if good.get() { Ok(()) } else { Err(Error::new(ErrorKind::Lost, "it ended")) };
        let work = poll_fn(|_| {
            steps.set(steps.get() + 1);
            Poll::<()>::Pending
        });
        let mut done = pin!(protected(work, check));
        let mut context = Context::from_waker(Waker::noop());
        assert!(done.as_mut().poll(&mut context).is_pending());
        good.set(false);
        assert!(done.as_mut().poll(&mut context).is_pending());
        assert_eq!(steps.get(), 1, "the caller is told by what has seen the end");
        // Nor does the last step count when the hold ended under it.
        good.set(true);
        let mut done = pin!(protected(async { good.set(false) }, check));
        assert!(matches!(done.as_mut().poll(&mut context), Poll::Ready(Err(_))));
    }
}
