use redlatch::{ErrorKind, LockKind};

use crate::fixture::{Fixture, ms, soon};

pub(crate) async fn state_shows_holder_and_ttl(on: Fixture) {
    let client = on.client().await;
    let name = on.name("x");
    assert_eq!(client.inspect(name.as_str()).await.unwrap().kind, LockKind::Free);
    let guard = client.lock(name.as_str()).lock_with_lease(ms(30_000)).await.unwrap();
    let inner = guard.reenter().await.unwrap();
    let state = client.inspect(name.as_str()).await.unwrap();
    assert_eq!(state.kind, LockKind::Lock);
    assert_eq!(state.holders.len(), 1);
    assert_eq!((state.holders[0].owner.as_str(), state.holders[0].holds), (&*guard.owner().to_text(), 2));
    assert!(state.ttl.unwrap() > ms(20_000) && !state.ttl_missing && state.findings.is_empty());
    drop((guard, inner));
}

pub(crate) async fn a_listing_finds_locks_by_pattern(on: Fixture) {
    let client = on.client().await;
    let mut guards = Vec::new();
    for n in 0..30 {
        guards.push(client.lock(on.name(&format!("list-{n}"))).lock().await.unwrap());
    }
    client.set_stock(on.name("list-stock"), 3).await.unwrap();
    let all = client.list(Some(&on.name("list-*")), 100).await.unwrap();
    assert_eq!(all.len(), 30, "locks and nothing but locks");
    assert!(all.windows(2).all(|pair| pair[0].name < pair[1].name), "sorted by name");
    assert_eq!(client.list(Some(&on.name("list-1?")), 100).await.unwrap().len(), 10);
    assert_eq!(client.list(Some(&on.name("list-*")), 7).await.unwrap().len(), 7);
    assert_eq!(client.list(Some(&on.name("none-*")), 7).await.unwrap().len(), 0);
    assert_eq!(client.list(Some(&"x".repeat(300)), 7).await.unwrap_err().kind(), ErrorKind::InvalidOption);
}

pub(crate) async fn numbers_are_listed_only_when_they_are_asked_for(on: Fixture) {
    let client = on.client().await;
    let (semaphore, latch) = (on.name("n-semaphore"), on.name("n-latch"));
    client.semaphore(semaphore.as_str()).set_if_absent(3, Some(ms(60_000))).await.unwrap();
    client.semaphore(semaphore.as_str()).add(-5).await.unwrap();
    client.count_down_latch(latch.as_str()).set_if_absent(2).await.unwrap();
    let guard = client.lock(on.name("n-lock")).acquire().fenced().await.unwrap().unwrap();
    let pattern = on.name("n-*");
    let usual = client.list(Some(&pattern), 10).await.unwrap();
    assert_eq!(usual.len(), 1, "{usual:?}");
    assert_eq!((usual[0].kind, usual[0].token), (LockKind::Lock, guard.token()));
    let counters = client.list_kinds(&[LockKind::Counter], Some(&pattern), 10).await.unwrap();
    let values: Vec<_> = counters.iter().map(|state| (state.name.to_string(), state.value)).collect();
    assert_eq!(values, [(latch, Some(2)), (semaphore.clone(), Some(-2))]);
    let state = client.inspect(semaphore).await.unwrap();
    assert!(state.kind == LockKind::Counter && state.ttl.unwrap() > ms(30_000), "{state:?}");
}

pub(crate) async fn listening_clients_are_counted(on: Fixture) {
    let (holder, one, two) = (on.client().await, on.client().await, on.client().await);
    let name = on.name("x");
    let guard = holder.lock(name.as_str()).lock().await.unwrap();
    assert_eq!(holder.inspect(name.as_str()).await.unwrap().listening, Some(0));
    let waits: Vec<_> = [&one, &one, &two]
        .map(|client| {
            let lock = client.lock(name.as_str());
            tokio::spawn(async move { lock.lock().await.map(drop) })
        })
        .into_iter()
        .collect();
    soon("two clients that listen, with three waiters", async {
        while holder.inspect(name.as_str()).await.unwrap().listening != Some(2) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert_eq!(holder.list(Some(&name), 1).await.unwrap()[0].listening, Some(2));
    guard.unlock().await.unwrap();
    for wait in waits {
        soon("each waiter's turn", wait).await.unwrap().unwrap();
    }
}

pub(crate) async fn a_fair_queue_is_shown(on: Fixture) {
    let (holder, other) = (on.client().await, on.client().await);
    let name = on.name("fair");
    let guard = holder.fair_lock(name.as_str()).lock().await.unwrap();
    assert_eq!(holder.inspect(name.as_str()).await.unwrap().kind, LockKind::Lock, "nobody queues yet");
    let queued = async |count: usize| {
        soon("a place in the queue", async {
            loop {
                let state = holder.inspect(name.as_str()).await.unwrap();
                if state.waiters.len() == count {
                    return state;
                }
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await
    };
    let mut waits = Vec::new();
    let mut first = None;
    for count in 1..=2 {
        let lock = other.fair_lock(name.as_str());
        waits.push(tokio::spawn(async move { lock.lock().await.unwrap().unlock().await }));
        let state = queued(count).await;
        assert_eq!((state.kind, state.waiting), (LockKind::Fair, count as u64));
        assert_eq!(state.holders[0].owner, guard.owner().to_text());
        let waiter = state.waiters.last().unwrap();
        assert!(waiter.owner.starts_with(other.id()) && waiter.position == count, "{state:?}");
        assert!(waiter.stale_in.unwrap() > ms(1_000) && state.findings.is_empty(), "{state:?}");
        let first = first.get_or_insert_with(|| state.waiters[0].owner.clone());
        assert_eq!(&state.waiters[0].owner, first, "the first to come is first");
    }
    assert_eq!(holder.list(Some(&name), 10).await.unwrap()[0].kind, LockKind::Fair);
    guard.unlock().await.unwrap();
    for wait in waits {
        soon("each waiter's turn", wait).await.unwrap().unwrap();
    }
    assert_eq!(holder.inspect(name.as_str()).await.unwrap().kind, LockKind::Free);
}

pub(crate) async fn a_stock_is_never_oversold(on: Fixture) {
    let client = on.client().await;
    let key = on.name("stock");
    assert_eq!(client.take_stock(key.as_str(), 1).await.unwrap_err().kind(), ErrorKind::InvalidOption);
    assert_eq!(client.stock(key.as_str()).await.unwrap(), None);
    client.set_stock(key.as_str(), 15).await.unwrap();
    let mut buyers = Vec::new();
    for _ in 0..40 {
        let (client, key) = (client.clone(), key.clone());
        buyers.push(tokio::spawn(async move { client.take_stock(key, 1).await.unwrap() }));
    }
    let mut sold = 0;
    for buyer in buyers {
        sold += usize::from(buyer.await.unwrap().is_some());
    }
    assert_eq!(sold, 15);
    assert_eq!(client.stock(key.as_str()).await.unwrap(), Some(0));
    client.set_stock(key.as_str(), 5).await.unwrap();
    assert_eq!(client.take_stock(key.as_str(), 6).await.unwrap(), None, "all or none");
    assert_eq!(client.take_stock(key.as_str(), 5).await.unwrap(), Some(0));
    client.remove_stock(key.as_str()).await.unwrap();
    assert_eq!(client.stock(key.as_str()).await.unwrap(), None);
}
