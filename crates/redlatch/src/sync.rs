//! What the threads of the core share with: from the standard library and tokio, or from `shuttle`, which runs the threads of a test in orders of
//! its own choice (`crates/redlatch-threads`).

#[cfg(not(redlatch_shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, OnceLock, atomic};
#[cfg(not(redlatch_shuttle))]
pub(crate) use tokio::sync::oneshot;

#[cfg(redlatch_shuttle)]
pub(crate) use self::shuttled::{OnceLock, oneshot};
#[cfg(redlatch_shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};

/// What `shuttle` does not have, with a point before each use at which another thread may run.
#[cfg(redlatch_shuttle)]
mod shuttled {
    use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};

    fn others_may_run() {
        _ = AtomicBool::new(false).load(SeqCst);
    }

    /// The standard library's.
    #[derive(Debug, Clone)]
    pub(crate) struct OnceLock<T>(std::sync::OnceLock<T>);

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            OnceLock::new()
        }
    }

    impl<T> OnceLock<T> {
        pub(crate) const fn new() -> Self {
            OnceLock(std::sync::OnceLock::new())
        }

        pub(crate) fn get(&self) -> Option<&T> {
            others_may_run();
            self.0.get()
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            others_may_run();
            self.0.set(value)
        }

        pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            others_may_run();
            self.0.get_or_init(make)
        }
    }

    /// A channel for one message: tokio's.
    pub(crate) mod oneshot {
        use std::{
            future::Future,
            pin::Pin,
            task::{Context, Poll},
        };

        use tokio::sync::oneshot::{self, error};

        use super::others_may_run;

        pub(crate) struct Sender<T>(oneshot::Sender<T>);

        pub(crate) struct Receiver<T>(oneshot::Receiver<T>);

        pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
            let (sender, receiver) = oneshot::channel();
            (Sender(sender), Receiver(receiver))
        }

        impl<T> Sender<T> {
            pub(crate) fn send(self, message: T) -> Result<(), T> {
                others_may_run();
                self.0.send(message)
            }

            pub(crate) fn is_closed(&self) -> bool {
                others_may_run();
                self.0.is_closed()
            }
        }

        impl<T> Receiver<T> {
            pub(crate) fn close(&mut self) {
                others_may_run();
                self.0.close();
            }

            pub(crate) fn try_recv(&mut self) -> Result<T, error::TryRecvError> {
                others_may_run();
                self.0.try_recv()
            }
        }

        impl<T> Future for Receiver<T> {
            type Output = Result<T, error::RecvError>;

            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
                others_may_run();
                Pin::new(&mut self.0).poll(context)
            }
        }
    }
}
