//! The cancellation sweep: drop a future after its first poll, after its second, and so on to its end.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Runs a future to its end and counts how often it was polled, the last poll included.
pub async fn count_polls<F: Future>(future: F) -> (usize, F::Output) {
    let mut future = pin!(future);
    let mut polls = 0;
    let output = poll_fn(|cx| {
        polls += 1;
        future.as_mut().poll(cx)
    })
    .await;
    (polls, output)
}

/// The moment at which a future is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropMoment {
    /// Right behind the last poll, while what it asked for is under way.
    AfterPoll,
    /// When the wake-up for the next poll arrives: what it waited for is there, but it never sees it.
    AtWakeUp,
}

/// Polls a future at most `polls` times, each time only when it was woken, and drops it right behind the
/// last. `None` means that it was dropped before its end; 0 polls drops it untouched.
pub async fn poll_n_then_drop<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    poll_n_then_drop_at(future, polls, DropMoment::AfterPoll).await
}

/// As [`poll_n_then_drop`], with the choice of the moment.
///
/// With [`DropMoment::AtWakeUp`], a future that is never woken again makes this wait for ever: bound it.
pub async fn poll_n_then_drop_at<F: Future>(
    future: F,
    polls: usize,
    moment: DropMoment,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut done = 0;
    poll_fn(|cx| {
        if done == polls {
            return Poll::Ready(None);
        }
        done += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if done == polls && moment == DropMoment::AfterPoll => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// What a [`sweep`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sweep {
    /// How many futures were dropped before their end.
    pub drops: usize,
    /// The first number of polls at which the future came to its end; `None` when the limit was too low.
    pub completed_at: Option<usize>,
}

/// Makes a future for each k from 0 up, drops it after k polls, and calls `check` with k and the output;
/// stops at the first k with which the future comes to its end, or at `max_polls`.
///
/// `check` is where a test asserts that nothing was left behind.
pub async fn sweep<M, F, C>(make_future: M, max_polls: usize, check: C) -> Sweep
where
    M: FnMut(usize) -> F,
    F: Future,
    C: AsyncFnMut(usize, Option<F::Output>),
{
    sweep_at(make_future, max_polls, DropMoment::AfterPoll, check).await
}

/// As [`sweep`], with the choice of the moment.
pub async fn sweep_at<M, F, C>(
    mut make_future: M,
    max_polls: usize,
    moment: DropMoment,
    mut check: C,
) -> Sweep
where
    M: FnMut(usize) -> F,
    F: Future,
    C: AsyncFnMut(usize, Option<F::Output>),
{
    for polls in 0..=max_polls {
        let output = poll_n_then_drop_at(make_future(polls), polls, moment).await;
        let completed = output.is_some();
        check(polls, output).await;
        if completed {
            return Sweep { drops: polls, completed_at: Some(polls) };
        }
    }
    Sweep { drops: max_polls + 1, completed_at: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn three_polls() -> u8 {
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        7
    }

    #[tokio::test]
    async fn counts_and_drops() {
        assert_eq!(count_polls(three_polls()).await, (3, 7));
        assert_eq!(poll_n_then_drop(three_polls(), 2).await, None);
        assert_eq!(poll_n_then_drop(three_polls(), 3).await, Some(7));
        let mut seen = Vec::new();
        let sweep = sweep(|_| three_polls(), 10, async |k, output| seen.push((k, output))).await;
        assert_eq!(sweep, Sweep { drops: 3, completed_at: Some(3) });
        assert_eq!(seen, [(0, None), (1, None), (2, None), (3, Some(7))]);
    }

    #[tokio::test]
    async fn at_wake_up_lets_the_awaited_thing_happen() {
        let (send, receive) = tokio::sync::oneshot::channel::<u8>();
        let sender = tokio::spawn(async move {
            tokio::task::yield_now().await;
            send.send(1)
        });
        assert_eq!(poll_n_then_drop_at(receive, 1, DropMoment::AtWakeUp).await, None);
        // The value was sent while the receiver still lived: sending worked.
        assert_eq!(sender.await.unwrap(), Ok(()));
    }
}
