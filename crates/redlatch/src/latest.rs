//! The latest value of something, for any number of tasks that wait for another one.
//!
//! The tasks are told in the order in which they began to wait, and their wakers keep panics to themselves. The channel of that kind in the
//! runtime's library tells them in random order, and a run of the simulation could not be repeated.

use std::sync::{Arc, PoisonError};

use crate::{
    panic_safe::Signal,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

struct Shared<T> {
    value: Mutex<T>,
    /// How often it was set.
    version: AtomicU64,
    is_closed: AtomicBool,
    signal: Signal,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }
}

/// Sets the value. When this is dropped, no other value comes.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// Waits for values.
pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The version that was seen last.
    seen: u64,
}

/// The sender is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

pub(crate) fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    pub(crate) fn new(value: T) -> Self {
        Sender(Arc::new(Shared {
            value: Mutex::new(value),
            version: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            signal: Signal::default(),
        }))
    }

    /// Waits for values other than the present one.
    pub(crate) fn subscribe(&self) -> Receiver<T> {
        Receiver { seen: self.0.version(), shared: self.0.clone() }
    }

    pub(crate) fn set(&self, value: T) {
        self.change(|present| *present = value);
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.0.lock());
        self.0.version.fetch_add(1, Ordering::SeqCst);
        self.0.signal.tell();
    }

    pub(crate) fn get(&self) -> T
    where
        T: Clone,
    {
        self.0.lock().clone()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
        self.0.signal.tell();
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Receiver { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T: Clone> Receiver<T> {
    /// The first value that is as wanted, be it the present one.
    pub(crate) async fn wait_for(&self, is_wanted: impl Fn(&T) -> bool) -> Result<T, Closed> {
        let look = || {
            // Whether it is closed is read first: its last value counts.
            let is_closed = self.shared.is_closed.load(Ordering::SeqCst);
            let value = self.shared.lock();
            match is_wanted(&value) {
                true => Some(Ok(value.clone())),
                false => is_closed.then_some(Err(Closed)),
            }
        };
        self.shared.signal.until(look).await
    }

    /// The next value that was not seen yet, if it is set at all.
    pub(crate) async fn changed(&mut self) -> Result<(), Closed> {
        let look = || {
            let is_closed = self.shared.is_closed.load(Ordering::SeqCst);
            match self.shared.version() {
                version if version != self.seen => Some(Ok(version)),
                _ => is_closed.then_some(Err(Closed)),
            }
        };
        self.seen = self.shared.signal.until(look).await?;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn has_changed(&self) -> bool {
        self.shared.version() != self.seen
    }

    #[cfg(test)]
    pub(crate) fn mark_unchanged(&mut self) {
        self.seen = self.shared.version();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[tokio::test]
    async fn values_are_waited_for_and_the_last_one_counts_after_the_end() {
        let (sender, mut receiver) = channel(1);
        assert_eq!(receiver.wait_for(|value| *value == 1).await, Ok(1));
        let waits = receiver.clone();
        let waiting = tokio::spawn(async move { waits.wait_for(|value| *value == 3).await });
        tokio::task::yield_now().await;
        sender.set(2);
        assert_eq!(receiver.changed().await, Ok(()));
        sender.change(|value| *value += 1);
        assert_eq!(waiting.await.unwrap(), Ok(3));
        drop(sender);
        assert_eq!(receiver.wait_for(|value| *value == 3).await, Ok(3));
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!(receiver.changed().await, Err(Closed));
        assert_eq!(receiver.wait_for(|value| *value == 4).await, Err(Closed));
    }

    #[tokio::test]
    async fn a_change_while_nobody_waits_is_seen_by_the_next_wait() {
        let sender = Sender::new(0);
        let mut receiver = sender.subscribe();
        {
            let mut changed = pin!(receiver.changed());
            assert!(changed.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        sender.set(1);
        let mut changed = pin!(receiver.changed());
        assert_eq!(changed.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
    }
}
