use redlatch::{ErrorKind, Wait};

use crate::fixture::{Fixture, ms, soon};

/// Redisson's testSameThreadReacquireThrows and testCrossInstanceSameThreadReentryThrows.
pub(crate) async fn test_same_thread_reacquire_throws(on: Fixture) {
    let (client, other) = (on.client().await, on.client().await);
    let (lock, again) = (on.lock(&client, on.name("x")), on.lock(&client, on.name("x")));
    let me = client.owner();
    let guard = lock.acquire().owner(&me).await.unwrap().unwrap();
    for wait in [Wait::No, Wait::Forever, Wait::AtMost(ms(100))] {
        for lock in [&lock, &again] {
            let error = lock.acquire().owner(&me).wait(wait).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{error}");
        }
    }
    let error = guard.reenter().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{error}");
    // The same owner in another process is no more reentrant than here, and what it gives up is no hold.
    let written = me.to_text().parse().unwrap();
    for wait in [Wait::No, Wait::AtMost(ms(100)), Wait::Forever, Wait::No] {
        let again = on.lock(&other, on.name("x"));
        let outcome = soon("the refusal", async { again.acquire().owner(&written).wait(wait).await }).await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::AlreadyHeld, "{wait:?}");
    }
    assert_eq!(lock.hold_count(&me).await.unwrap(), 1, "the count is untouched");
    guard.unlock().await.unwrap();
    assert!(!lock.is_locked().await.unwrap(), "one unlock frees");
    lock.acquire().owner(&me).await.unwrap().unwrap().unlock().await.unwrap();
}

pub(crate) async fn test_contending_thread_blocks_and_acquires_on_release(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let guard = lock.lock().await.unwrap();
    let waiting = lock.clone();
    let waiter = tokio::spawn(async move { waiting.lock().await.unwrap() });
    tokio::time::sleep(ms(150)).await;
    assert!(!waiter.is_finished());
    guard.unlock().await.unwrap();
    assert!(soon("the waiter's grant", waiter).await.unwrap().is_valid());
}
