use redlatch::Lease;

use crate::fixture::{Fixture, SOON, ms, soon};

pub(crate) async fn every_grant_draws_a_token_and_a_reentry_keeps_it(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let mut last = 0;
    for client in [&a, &b, &a] {
        let guard = client.fenced_lock(name.as_str()).lock().await.unwrap();
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
        let inner = guard.reenter().await.unwrap();
        assert_eq!(inner.token(), last, "a re-entry is the same grant");
        let me = guard.owner().clone();
        let lock = client.fenced_lock(name.as_str());
        let again = lock.acquire().owner(&me).await.unwrap().unwrap();
        assert_eq!(again.token(), last);
        for guard in [again, inner, guard] {
            guard.unlock().await.unwrap();
        }
        assert_eq!(lock.token().await.unwrap(), Some(last));
    }
    // A hold that drew no token cannot become one that has one.
    let me = a.owner();
    let _plain = a.lock(name.as_str()).acquire().owner(&me).await.unwrap().unwrap();
    let error = a.fenced_lock(name.as_str()).acquire().owner(&me).await.unwrap_err();
    assert_eq!(error.kind(), redlatch::ErrorKind::InvalidOption, "{error}");
}

pub(crate) async fn who_adopts_a_hold_draws_its_token(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = a.fenced_lock(name.as_str()).lock().await.unwrap();
    let token = guard.token();
    let held = guard.detach();
    assert_eq!(held.token, Some(token));
    let owner = held.owner.to_text().parse().unwrap();
    let lock = b.fenced_lock(name.as_str());
    let adopted = lock.adopt(&owner, Lease::Fixed(ms(20_000))).await.unwrap().unwrap();
    assert!(adopted.token() > token, "the last one drawn may be another holder's");
    let entered = lock.acquire().owner(adopted.owner()).await.unwrap().unwrap();
    assert_eq!(entered.token(), adopted.token(), "entering what is held here keeps its token");
    entered.unlock().await.unwrap();
    adopted.unlock().await.unwrap();
    assert!(!lock.is_locked().await.unwrap());
}

pub(crate) async fn tokens_grow_after_the_counter_is_lost(on: Fixture) {
    let client = on.client().await;
    let lock = client.fenced_lock(on.name("x"));
    let before = lock.lock().await.unwrap().token();
    // As after an empty restart: nothing is left of the counter.
    let counter = format!("redisson_lock_token:{{{}}}", on.name("x"));
    client.remove_stock(counter).await.unwrap();
    assert_eq!(lock.token().await.unwrap(), None);
    let after = lock.lock().await.unwrap().token();
    assert!(after > before, "{after} after {before}");
}

/// A lock that is passed on inside a process is never free, and its token is drawn from the counter all the same.
pub(crate) async fn a_lock_that_is_passed_on_draws_its_token_from_the_counter(on: Fixture) {
    // A long turn, so that the lock is passed on whatever the time between the steps.
    let client = on.builder().turn_time(ms(60_000)).connect().await.unwrap();
    let lock = client.fenced_lock(on.name("x"));
    let mut guard = lock.lock().await.unwrap();
    for _ in 0..5 {
        let next = lock.clone();
        let waiter = tokio::spawn(async move { next.lock().await.unwrap() });
        tokio::time::sleep(ms(30)).await;
        assert!(!waiter.is_finished());
        let token = guard.token();
        guard.unlock().await.unwrap();
        guard = soon("the next one's turn", waiter).await.unwrap();
        assert!(guard.token() > token, "{} after {token}", guard.token());
        assert_eq!(
            lock.token().await.unwrap(),
            Some(guard.token()),
            "others would count on from a lower one"
        );
    }
}

/// Redisson's testTokenIncrease: each way of taking the lock draws a token above the last one. Theirs count 1 to 5, ours start
/// at the clock.
pub(crate) async fn test_token_increase(on: Fixture) {
    let client = on.client().await;
    let lock = client.fenced_lock(on.name("x"));
    assert_eq!(lock.token().await.unwrap(), None);
    let mut tokens = Vec::new();
    for way in 0..5 {
        let guard = match way {
            0 => lock.lock().await.unwrap(),
            1 => lock.lock_with_lease(ms(20_000)).await.unwrap(),
            2 => lock.try_lock().await.unwrap().expect("a free lock"),
            3 => lock.lock_for(SOON).await.unwrap().expect("a free lock"),
            _ => lock.acquire().lease(Lease::Fixed(ms(20_000))).await.unwrap().expect("a free lock"),
        };
        assert_eq!(lock.token().await.unwrap(), Some(guard.token()));
        tokens.push(guard.token());
        guard.unlock().await.unwrap();
        assert_eq!(lock.token().await.unwrap(), tokens.last().copied(), "an unlock draws nothing");
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}
