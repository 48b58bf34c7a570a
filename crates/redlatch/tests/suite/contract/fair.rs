use std::sync::{Arc, Mutex};

use redlatch::{Client, Guard, Wait};

use crate::fixture::{Fixture, IN_VAIN, ms, soon};

/// Waits until so many wait in the queue on the server.
pub(crate) async fn queued(client: &Client, name: &str, waiters: usize) {
    soon("a queue of that length", async {
        while client.inspect(name).await.unwrap().waiters.len() != waiters {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

type Order = Arc<Mutex<Vec<usize>>>;

/// A task that waits for the lock, notes its number, and releases.
fn taking_turn(
    on: &Fixture,
    client: &Client,
    name: &str,
    n: usize,
    order: &Order,
) -> tokio::task::JoinHandle<()> {
    let (lock, order) = (on.lock(client, name), order.clone());
    tokio::spawn(async move {
        let guard = lock.lock().await.unwrap();
        order.lock().unwrap().push(n);
        guard.unlock().await.unwrap();
    })
}

pub(crate) async fn grants_come_in_the_order_of_asking(on: Fixture) {
    let clients = [on.client().await, on.client().await, on.client().await];
    let name = on.name("x");
    let guard = on.lock(&clients[0], name.as_str()).lock().await.unwrap();
    let order = Order::default();
    let mut tasks = Vec::new();
    for n in 0..12 {
        tasks.push(taking_turn(&on, &clients[n * 7 % 3], &name, n, &order));
        queued(&clients[0], &name, n + 1).await;
    }
    guard.unlock().await.unwrap();
    for task in tasks {
        soon("each waiter's turn", task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..12).collect::<Vec<_>>());
    for client in &clients {
        assert_eq!(client.stats().names, 0);
    }
    assert!(clients[0].inspect(name.as_str()).await.unwrap().waiters.is_empty());
}

pub(crate) async fn try_lock_never_overtakes(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    let waiting = on.lock(&a, name.as_str());
    // A waiter that nobody drives: it stands in the queue and does not come when it is told.
    let mut waiter = Box::pin(async move { waiting.lock().await });
    soon("the waiter in the queue", async {
        while b.inspect(name.as_str()).await.unwrap().waiters.is_empty() {
            tokio::select! {
                biased;
                _ = &mut waiter => panic!("the lock is held"),
                () = tokio::time::sleep(ms(5)) => {}
            }
        }
    })
    .await;
    on.lock(&b, name.as_str()).force_unlock().await.unwrap();
    assert!(!on.lock(&b, name.as_str()).is_locked().await.unwrap());
    for client in [&a, &b] {
        assert!(
            on.lock(client, name.as_str()).try_lock().await.unwrap().is_none(),
            "the lock is free, but not ours"
        );
        assert!(on.lock(client, name.as_str()).lock_for(IN_VAIN).await.unwrap().is_none());
    }
    // Who gave up is not in the queue, or leaves it in the background where the answer was late.
    queued(&b, name.as_str(), 1).await;
    let next = soon("the waiter's grant", waiter).await.unwrap();
    assert!(next.is_valid());
    drop(guard);
}

pub(crate) async fn a_waiter_that_gives_up_leaves_the_queue(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    let order = Order::default();
    let mut tasks: Vec<_> = Vec::new();
    for n in 0..4 {
        tasks.push(taking_turn(&on, [&a, &b][n % 2], &name, n, &order));
        queued(&a, &name, n + 1).await;
    }
    // The head, and one in the middle.
    for n in [0, 2] {
        tasks[n].abort();
    }
    queued(&a, &name, 2).await;
    // Time that is up has left the queue by the time that the caller knows.
    assert!(on.lock(&b, name.as_str()).lock_for(IN_VAIN).await.unwrap().is_none());
    assert_eq!(a.inspect(name.as_str()).await.unwrap().waiters.len(), 2);
    guard.unlock().await.unwrap();
    for n in [1, 3] {
        soon("each waiter's turn", &mut tasks[n]).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [1, 3]);
    soon("empty lanes", async {
        while a.stats().names + b.stats().names > 0 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

/// A head that is gone when the lock comes free is passed over in favour of the next.
pub(crate) async fn a_head_that_is_cancelled_after_the_release_passes_the_lock_on(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let name = on.name("x");
    let guard = on.lock(&a, name.as_str()).lock().await.unwrap();
    let waiting = on.lock(&a, name.as_str());
    let mut head = Box::pin(async move { waiting.lock().await });
    soon("the head in the queue", async {
        while b.inspect(name.as_str()).await.unwrap().waiters.is_empty() {
            tokio::select! {
                biased;
                _ = &mut head => panic!("the lock is held"),
                () = tokio::time::sleep(ms(5)) => {}
            }
        }
    })
    .await;
    let order = Order::default();
    let next = taking_turn(&on, &b, &name, 1, &order);
    queued(&a, &name, 2).await;
    // Granted to the head inside the process, or told to it; it does not look any more either way.
    guard.unlock().await.unwrap();
    drop(head);
    soon("the turn of the next", next).await.unwrap();
}

pub(crate) async fn a_release_hands_over_within_the_process(on: Fixture) {
    let client = on.client().await;
    let name = on.name("x");
    let mut guard: Guard = on.lock(&client, name.as_str()).lock().await.unwrap();
    for fenced in [false, true] {
        let lock = on.lock(&client, name.as_str());
        let next = tokio::spawn(async move {
            let acquire = lock.acquire().wait(Wait::Forever);
            let acquire = if fenced { acquire.fenced() } else { acquire };
            acquire.await.unwrap().unwrap()
        });
        // The release hands over to a task of whose place in the queue this process knows.
        soon("the waiter in line", async {
            while client.stats().in_line == 0 {
                tokio::time::sleep(ms(5)).await;
            }
        })
        .await;
        guard.unlock().await.unwrap();
        assert!(
            client.inspect(name.as_str()).await.unwrap().holders.len() == 1,
            "never free between the two"
        );
        guard = soon("the next guard", next).await.unwrap();
        assert_eq!(guard.token().is_some(), fenced);
        assert!(guard.is_valid());
        assert!(on.lock(&client, name.as_str()).is_held_by(guard.owner()).await.unwrap());
    }
    guard.unlock().await.unwrap();
    assert!(!on.lock(&client, name.as_str()).is_locked().await.unwrap());
    assert_eq!(client.stats().names, 0);
}

pub(crate) async fn tasks_of_two_processes_take_turns(on: Fixture) {
    let clients = [on.client().await, on.client().await];
    let name = on.name("x");
    let (mut tasks, grants) = (Vec::new(), Order::default());
    let guard = on.lock(&clients[0], name.as_str()).lock().await.unwrap();
    for (who, client) in clients.iter().enumerate() {
        let (client, name_of) = (client.clone(), name.clone());
        let (lock, grants) = (on.lock(&client, name.as_str()), grants.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..10 {
                let guard = lock.lock().await.unwrap();
                grants.lock().unwrap().push(who);
                // Nobody gives way before the other stands in line again.
                if (who, round) != (1, 9) {
                    queued(&client, &name_of, 1).await;
                }
                guard.unlock().await.unwrap();
            }
        }));
        queued(&clients[0], &name, who + 1).await;
    }
    guard.unlock().await.unwrap();
    for task in tasks {
        soon("every turn", task).await.unwrap();
    }
    assert_eq!(*grants.lock().unwrap(), [0, 1].repeat(10));
}
