//! Whether a task that others of its process wait behind is still polled.
//!
//! A task can be alive and not be polled: its future lies in a collection that nobody drives, or beside a branch of a `select!` that
//! blocks. What it leads, or is handed, would stay with it for as long. So a task notes each poll of its work; the keeper wakes such a
//! task, and lets others go first when it has not been polled by the next time. A task that was merely slow loses its place and
//! nothing else: the server decides who holds, however many ask.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Context,
};

use futures_util::task::AtomicWaker;

use crate::{
    catch_panic::catch_panic,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// For how long a task may go without being polled before others go first. It is found after twice that time at the latest.
pub(super) const TASK_POLL_DUE_MS: u64 = 500;

/// How many of those in line are looked for together.
pub(super) const LOOKED_FOR_MAX: usize = 1_000;
/// How long a task that is looked for may take to be polled.
const UNPOLLED_MS: u64 = TASK_POLL_DUE_MS / 2;

/// A task that others may wait behind.
#[derive(Default)]
pub(crate) struct TaskLiveness {
    waker: AtomicWaker,
    /// It was woken to see whether it is polled, and has not been since.
    asked: AtomicBool,
    /// Since when it is looked for; 0 if it has been polled since.
    looked_for_ms: AtomicU64,
}

impl Clone for TaskLiveness {
    /// That of another task.
    fn clone(&self) -> Self {
        TaskLiveness::default()
    }
}

impl TaskLiveness {
    /// Wakes the task to see whether it is polled. `true` if it was polled since it was last asked, or was never asked; waking may run anything.
    pub(super) fn ask(&self) -> bool {
        let is_polled = !self.asked.swap(true, Ordering::AcqRel);
        self.wake();
        is_polled
    }

    /// Begins to look for it, if it is not looked for already. Wakes it, which may run anything.
    pub(super) fn look_for(&self, now_ms: u64) {
        let begins = |since_ms| (since_ms == 0).then(|| now_ms.max(1));
        if self.looked_for_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, begins).is_ok() {
            self.wake();
        }
    }

    /// Whether it was looked for [`UNPOLLED_MS`] ago or more, and has not been polled since: long enough for others to go first.
    pub(super) fn is_looked_for_in_vain(&self, now_ms: u64) -> bool {
        let since_ms = self.looked_for_ms.load(Ordering::Acquire);
        since_ms != 0 && now_ms.saturating_sub(since_ms) >= UNPOLLED_MS
    }

    /// The task is polled.
    pub(super) fn note(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
        if self.asked.load(Ordering::Relaxed) {
            self.asked.store(false, Ordering::Release);
        }
        if self.looked_for_ms.load(Ordering::Relaxed) != 0 {
            self.looked_for_ms.store(0, Ordering::Release);
        }
    }

    /// Has the task look at what it waits for.
    pub(super) fn wake(&self) {
        catch_panic(|| self.waker.wake());
    }

    /// Does some work, and notes each poll of it. The work stays where its caller has it: taken by value it would
    /// double the size of the future.
    pub(super) async fn run_noting_polls<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        /// Drops the waker, which may keep the task alive, while this entry stays in a queue.
        struct Forgets<'a>(&'a AtomicWaker);

        impl Drop for Forgets<'_> {
            fn drop(&mut self) {
                drop(self.0.take());
            }
        }

        let _forgets = Forgets(&self.waker);
        poll_fn(|context| {
            self.note(context);
            work.as_mut().poll(context)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, pin::pin};

    use super::*;

    #[tokio::test]
    async fn a_task_that_is_polled_is_told_from_one_that_is_not() {
        let liveness = TaskLiveness::default();
        let never = pin!(pending::<()>());
        let mut work = pin!(liveness.run_noting_polls(never));
        assert!(liveness.ask() && !liveness.ask(), "it was never polled");
        assert!(futures_util::poll!(&mut work).is_pending());
        assert!(liveness.ask(), "it was polled");
        assert!(!liveness.ask(), "and not since");
    }

    #[tokio::test]
    async fn a_task_that_is_looked_for_and_not_polled_is_unpolled() {
        let liveness = TaskLiveness::default();
        assert!(!liveness.is_looked_for_in_vain(UNPOLLED_MS), "nobody looks for it");
        liveness.look_for(10);
        liveness.look_for(20);
        assert!(
            !liveness.is_looked_for_in_vain(9 + UNPOLLED_MS)
                && liveness.is_looked_for_in_vain(10 + UNPOLLED_MS)
        );
        let never = pin!(pending::<()>());
        let mut work = pin!(liveness.run_noting_polls(never));
        assert!(futures_util::poll!(&mut work).is_pending());
        assert!(!liveness.is_looked_for_in_vain(10 + UNPOLLED_MS));
    }

    /// The waker of a task that had given up was dropped with its place in line, under the mutex of the lane, and the task with it.
    #[test]
    fn it_keeps_no_task_beyond_its_work() {
        struct Task;

        impl futures_util::task::ArcWake for Task {
            fn wake_by_ref(_: &std::sync::Arc<Self>) {}
        }

        let (liveness, task) = (TaskLiveness::default(), std::sync::Arc::new(Task));
        let waker = futures_util::task::waker(task.clone());
        {
            let never = pin!(pending::<()>());
            let mut work = pin!(liveness.run_noting_polls(never));
            assert!(work.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(std::sync::Arc::strong_count(&task), 3);
        }
        assert_eq!(std::sync::Arc::strong_count(&task), 2);
    }
}
