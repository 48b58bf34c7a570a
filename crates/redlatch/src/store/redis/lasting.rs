//! Tasks that last as long as their store: all of them begin here, and none ends because the program's log or a waker panics.

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tokio::{runtime::Handle, task::AbortHandle};

use crate::catch_panic::catch_panic;

/// The pause after a panic, so that one that comes each time is no busy loop.
const PAUSE: Duration = Duration::from_millis(250);

/// Begins a task, and begins it anew whenever it has panicked, until it returns. `begin` makes the work, the first time and each time after
/// that, from what is kept outside of it.
pub(super) fn spawn_lasting<F>(
    background: &Handle,
    what: &'static str,
    mut begin: impl FnMut() -> F + Send + 'static,
) -> AbortHandle
where
    F: Future<Output = ()> + Send + 'static,
{
    let task = background.spawn(async move {
        while AssertUnwindSafe(begin()).catch_unwind().await.is_err() {
            // It may have been the log that panicked.
            catch_panic(|| {
                tracing::error!(what, "a task of the background thread has panicked, and begins anew")
            });
            tokio::time::sleep(PAUSE).await;
        }
    });
    task.abort_handle()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_begins_anew_until_it_returns() {
        let (begun, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(tokio::sync::Notify::new()));
        let (count, end) = (begun.clone(), ended.clone());
        spawn_lasting(&Handle::current(), "a test", move || {
            let (count, end) = (count.clone(), end.clone());
            async move {
                assert!(count.fetch_add(1, Ordering::SeqCst) == 2, "on purpose");
                end.notify_one();
            }
        });
        ended.notified().await;
        assert_eq!(begun.load(Ordering::SeqCst), 3);
    }
}
