//! Cases of Redisson's own tests of the plain lock that no other test here has in the same form; each has the name of its
//! case there. `docs/protocol.md` lists all cases, with these and with the tests that cover the others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{Client, Lease, Unlocked, blocking};

use super::blocking::aside;
use crate::fixture::{Fixture, LATE, RENEWED, awake, ms, renewed, soon};

/// Far more than all rounds of a test take together.
const ALL_ROUNDS: Duration = Duration::from_secs(120);

/// Each client enters the lock so many times, alone inside each time; how often all of them did.
async fn entered(on: &Fixture, clients: Vec<Client>, rounds: usize, stay: Duration) -> usize {
    let (inside, entered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|client| {
            let lock = on.lock(&client, on.name("x"));
            let (inside, entered) = (inside.clone(), entered.clone());
            tokio::spawn(async move {
                for _ in 0..rounds {
                    let guard = lock.lock().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                    tokio::time::sleep(stay).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    entered.fetch_add(1, Ordering::SeqCst);
                    guard.unlock().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(ALL_ROUNDS, task).await.expect("every client's turns").unwrap();
    }
    entered.load(Ordering::SeqCst)
}

async fn clients(on: &Fixture, count: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(on.client().await);
    }
    clients
}

pub(crate) async fn auto_expire(on: Fixture) {
    let (a, b) = (on.brisk(ms(900)).await, on.client().await);
    let name = on.name("x");
    let start = Instant::now();
    // A holder that is gone without having released: nobody renews it any more.
    drop(on.lock(&a, name.as_str()).lock().await.unwrap().detach());
    let guard = soon("the end of the lease", on.lock(&b, name.as_str()).lock()).await.unwrap();
    assert!(start.elapsed() >= ms(890), "taken from a lease that had not ended: {:?}", start.elapsed());
    // The lease, and at most one look more.
    assert!(awake(start) < ms(900) + ms(800) + LATE, "{:?}", start.elapsed());
    assert!(guard.is_valid());
}

pub(crate) async fn hold_count(on: Fixture) {
    let client = on.client().await;
    let (lock, owner) = (on.lock(&client, on.name("x")), client.owner());
    let holds = async || lock.hold_count(&owner).await.unwrap();
    assert_eq!(holds().await, 0);
    let outer = lock.acquire().owner(&owner).await.unwrap().expect("a free lock");
    assert_eq!(holds().await, 1);
    outer.unlock().await.unwrap();
    assert_eq!(holds().await, 0);
    let outer = lock.acquire().owner(&owner).await.unwrap().expect("a free lock");
    let inner = lock.acquire().owner(&owner).await.unwrap().expect("its own lock");
    assert_eq!(holds().await, 2);
    assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
    assert_eq!(holds().await, 1);
    assert_eq!(outer.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(holds().await, 0);
}

pub(crate) async fn is_held_by_current_thread(on: Fixture) {
    let (builder, name) = (on.builder(), on.name("x"));
    aside(move || {
        let client = blocking::Client::build(builder).unwrap();
        let lock = client.lock(name);
        let other_thread_holds = || {
            std::thread::scope(|scope| {
                scope.spawn(|| lock.is_held_by_current_thread().unwrap()).join().unwrap()
            })
        };
        assert!(!lock.is_held_by_current_thread().unwrap() && !other_thread_holds());
        let guard = lock.lock().unwrap();
        assert!(lock.is_held_by_current_thread().unwrap() && !other_thread_holds());
        guard.unlock().unwrap();
        assert!(!lock.is_held_by_current_thread().unwrap() && !other_thread_holds());
        client.shutdown(ms(1_000)).unwrap();
    })
    .await;
}

pub(crate) async fn is_locked(on: Fixture) {
    let (a, b) = (on.client().await, on.client().await);
    let (here, there) = (on.lock(&a, on.name("x")), on.lock(&b, on.name("x")));
    let locked = async || (here.is_locked().await.unwrap(), there.is_locked().await.unwrap());
    assert_eq!(locked().await, (false, false));
    let guard = here.lock().await.unwrap();
    assert_eq!(locked().await, (true, true));
    guard.unlock().await.unwrap();
    assert_eq!(locked().await, (false, false));
}

pub(crate) async fn lock_unlock(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    for _ in 0..2 {
        let guard = lock.lock().await.unwrap();
        assert!(lock.is_locked().await.unwrap());
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        assert!(!lock.is_locked().await.unwrap());
    }
}

pub(crate) async fn concurrency_single_instance(on: Fixture) {
    let client = on.client().await;
    assert_eq!(entered(&on, vec![client.clone(); 15], 1, ms(1)).await, 15);
    assert_eq!(client.stats().names, 0);
}

pub(crate) async fn concurrency_loop_multi_instance(on: Fixture) {
    // The stay there is 10 ms, which would be a run of 16 seconds and show no more.
    assert_eq!(entered(&on, clients(&on, 16).await, 100, ms(0)).await, 1_600);
}

pub(crate) async fn concurrency_multi_instance(on: Fixture) {
    assert_eq!(entered(&on, clients(&on, 100).await, 1, ms(0)).await, 100);
}

pub(crate) async fn remain_time_to_live(on: Fixture) {
    let client = on.client().await;
    let lock = on.lock(&client, on.name("x"));
    let left = async || lock.remaining_ttl().await.unwrap();
    assert_eq!(left().await, None);
    let hour = Duration::from_secs(3_600);
    let guard = lock.lock_with_lease(hour).await.unwrap();
    let remaining = left().await.expect("it is held");
    assert!(remaining <= hour && remaining > hour - Duration::from_secs(5), "{remaining:?}");
    guard.unlock().await.unwrap();
    assert_eq!(left().await, None);
    let guard = lock.lock().await.unwrap();
    let remaining = left().await.expect("it is held");
    assert!(remaining <= ms(30_000) && remaining > ms(25_000), "{remaining:?}");
    guard.unlock().await.unwrap();
    assert_eq!(left().await, None);
}

pub(crate) async fn remain_time_to_live_2(on: Fixture) {
    let client = on.client().await;
    let (lock, owner) = (on.lock(&client, on.name("x")), client.owner());
    let mut guards = Vec::new();
    for _ in 0..3 {
        let lease = Lease::Fixed(ms(10_000));
        guards.push(lock.acquire().owner(&owner).lease(lease).await.unwrap().expect("its own lock"));
    }
    for left in [2, 1] {
        assert_eq!(guards.pop().unwrap().unlock().await.unwrap(), Unlocked::StillHeld(left));
    }
    let remaining = lock.remaining_ttl().await.unwrap().expect("one hold is left");
    assert!(remaining <= ms(10_000) && remaining > ms(5_000), "{remaining:?}");
}

pub(crate) async fn concurrency_try_lock_unlock(on: Fixture) {
    let client = on.client().await;
    let granted = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (client, lock, granted) = (client.clone(), on.lock(&client, on.name("x")), granted.clone());
            tokio::spawn(async move {
                for _ in 0..200 {
                    let Some(guard) = lock.try_lock().await.unwrap() else { continue };
                    granted.fetch_add(1, Ordering::Relaxed);
                    assert!(client.stats().names > 0, "held, and not known to those who renew");
                    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(ALL_ROUNDS, task).await.expect("every task's rounds").unwrap();
    }
    assert!(granted.load(Ordering::Relaxed) >= 32, "refused too often to prove anything");
    assert_eq!(client.stats().names, 0);
    assert!(!on.lock(&client, on.name("x")).is_locked().await.unwrap());
}

pub(crate) async fn lock_reentrant_renew(on: Fixture) {
    let (a, b) = (on.brisk(RENEWED).await, on.client().await);
    let lock = on.lock(&a, on.name("x"));
    let outer = lock.lock().await.unwrap();
    let inner = outer.reenter().await.unwrap();
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    let guard = lock.lock().await.unwrap();
    let distant = on.lock(&b, on.name("x"));
    // The end of the first two holds must not have ended the renewal of this one.
    renewed(2, async || {
        assert!(guard.is_valid());
        assert!(distant.try_lock().await.unwrap().is_none());
        distant.remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

/// Locks, values and permits at once, by many tasks; `take` is how they lock.
async fn heavy(on: &Fixture, waits: bool) {
    const TASKS: usize = 8;
    const ROUNDS: usize = 60;
    let client = on.client().await;
    client.semaphore(on.name("s")).set_if_absent(1, None).await.unwrap();
    client.set_stock(on.name("value"), u32::try_from(TASKS * ROUNDS).unwrap()).await.unwrap();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (client, lock) = (client.clone(), client.lock(on.name("x")));
            let (semaphore, own) =
                (client.semaphore(on.name("s")), client.semaphore(on.name(&format!("s{task}"))));
            let value = on.name("value");
            tokio::spawn(async move {
                let mut rounds = 0;
                while rounds < ROUNDS {
                    let guard =
                        if waits { Some(lock.lock().await.unwrap()) } else { lock.try_lock().await.unwrap() };
                    let Some(guard) = guard else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    client.take_stock(value.as_str(), 1).await.unwrap().expect("one for each round");
                    guard.unlock().await.unwrap();
                    own.release(1).await.unwrap();
                    semaphore.acquire(1).await.unwrap();
                    semaphore.release(1).await.unwrap();
                    own.acquire(1).await.unwrap();
                    rounds += 1;
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(ALL_ROUNDS, task).await.expect("every task's rounds").unwrap();
    }
    assert_eq!(client.stock(on.name("value")).await.unwrap(), Some(0));
    assert_eq!(client.semaphore(on.name("s")).available().await.unwrap(), 1);
    assert!(!client.lock(on.name("x")).is_locked().await.unwrap());
    assert_eq!(client.stats().names, 0);
}

pub(crate) async fn lock_unlock_heavy(on: Fixture) {
    heavy(&on, true).await;
}

pub(crate) async fn try_lock_unlock_heavy(on: Fixture) {
    heavy(&on, false).await;
}
