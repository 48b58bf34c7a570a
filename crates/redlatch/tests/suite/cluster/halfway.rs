//! A slot that stays on its way: its old master makes no new key any more, and its new one has not got the old keys yet.

use std::time::Duration;

use redlatch::{Client, ErrorKind, Guard, Owner, Rate, Unlocked};
use redlatch_testkit::topology::{RedisCluster, SlotMove};

use super::{EVERY_FACE, builder, client, keys, masters, told_to_wait, until};
use crate::{
    fixture::{ms, soon},
    kinds::AnyLock,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_new_is_made_where_its_slot_goes() {
    let cluster = masters();
    let (client, other) = (client(&cluster).await, client(&cluster).await);
    let limiter = client.rate_limiter("{way}rate");
    limiter.set(Rate::per(2, Duration::from_secs(600))).await.unwrap();
    let slot = cluster.slot_of("{way}");
    let to = (cluster.owner_of(slot).unwrap() + 1) % 3;
    let step = cluster.begin_move(slot, to).unwrap();
    step.move_keys(10).unwrap();
    for face in EVERY_FACE {
        let name = format!("{{way}}{face:?}");
        let (lock, busy) =
            (AnyLock::new(face, &client, name.as_str()), AnyLock::new(face, &other, name.as_str()));
        let guard = lock.try_lock().await.unwrap().expect("free");
        assert!(keys(cluster.node(to)).contains(&name), "{face:?}");
        assert!(busy.try_lock().await.unwrap().is_none(), "{face:?}");
        let waiter = tokio::spawn(async move { busy.lock().await });
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{face:?}");
        let guard = soon("the waiter's turn", waiter).await.unwrap().unwrap();
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{face:?}");
    }
    let both = client.read_write_lock("{way}both");
    let one = both.read().try_lock().await.unwrap().expect("free");
    let two = other.read_write_lock("{way}both").read().try_lock().await.unwrap().expect("free to read");
    assert!(both.write().try_lock().await.unwrap().is_none());
    assert_eq!(one.unlock().await.unwrap(), Unlocked::Released);
    assert!(both.write().try_lock().await.unwrap().is_none());
    assert_eq!(two.unlock().await.unwrap(), Unlocked::Released);
    let write = both.write().try_lock().await.unwrap().expect("free");
    write.downgrade().await.unwrap().unlock().await.unwrap();
    let permits = client.permit_semaphore("{way}permits");
    assert!(permits.set_if_absent(1).await.unwrap());
    let permit = permits.try_acquire().await.unwrap().expect("free");
    assert!(permits.try_acquire().await.unwrap().is_none());
    permit.release().await.unwrap();
    assert!(limiter.try_acquire(2).await.unwrap() && !limiter.try_acquire(1).await.unwrap());
    step.finish().unwrap();
}

/// Waits until the lease of a name has been raised so often.
async fn renewed(client: &Client, name: &str, times: u32) {
    let lock = client.lock(name);
    let (mut before, mut raised) = (Duration::ZERO, 0);
    soon(name, async {
        while raised < times {
            let left = lock.remaining_ttl().await.unwrap().expect("it is held");
            raised += u32::from(left > before + ms(500) && !before.is_zero());
            before = left;
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_outlast_a_slot_that_stays_on_its_way_and_are_given_back() {
    let cluster = masters();
    let lease = ms(9_000);
    let client = builder(&cluster).watchdog_lease(lease).connect().await.unwrap();
    let other = super::client(&cluster).await;
    let names = ["{way}one", "{way}gone", "{way}fair", "{way}read", "{way}write"];
    let slot = cluster.slot_of("{way}");
    let from = cluster.owner_of(slot).unwrap();
    let (one, gone) =
        (client.lock(names[0]).lock().await.unwrap(), client.lock(names[1]).lock().await.unwrap());
    let fair = client.fair_lock(names[2]).lock().await.unwrap();
    let read = client.read_write_lock(names[3]).read().lock().await.unwrap();
    let write = client.read_write_lock(names[4]).write().lock().await.unwrap();
    let permits = client.permit_semaphore("{way}permits");
    permits.set_if_absent(2).await.unwrap();
    let permit = permits.acquire().await.unwrap();
    let step = cluster.begin_move(slot, (from + 1) % 3).unwrap();
    step.move_key(names[1]).unwrap();
    // For longer than a lease.
    futures_util::future::join_all(names.map(|name| renewed(&other, name, 4))).await;
    for (name, loss) in names.iter().zip([one.loss(), gone.loss(), fair.loss(), read.loss(), write.loss()]) {
        assert!(loss.is_none(), "{name}: {loss:?}");
    }
    assert!(permit.is_valid(), "{:?}", permit.loss());
    // Who does not wait is told that it is held; who waits goes on waiting.
    assert!(other.fair_lock(names[2]).try_lock().await.unwrap().is_none());
    assert!(other.read_write_lock(names[3]).write().try_lock().await.unwrap().is_none());
    assert!(other.read_write_lock(names[4]).read().try_lock().await.unwrap().is_none());
    assert!(other.read_write_lock(names[4]).write().try_lock().await.unwrap().is_none());
    let waiter = {
        let lock = other.fair_lock(names[2]);
        tokio::spawn(async move { lock.lock().await })
    };
    let waiting = told_to_wait(&cluster);
    until("it waits", || told_to_wait(&cluster) > waiting).await;
    // What one key decides is given back at once.
    assert_eq!(fair.unlock().await.unwrap(), Unlocked::Released);
    let next = soon("the waiter's turn", waiter).await.unwrap().unwrap();
    assert_eq!(next.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(write.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(one.unlock().await.unwrap(), Unlocked::Released);
    assert_eq!(gone.unlock().await.unwrap(), Unlocked::Released);
    permit.release().await.unwrap();
    // A reader's release looks after the other readers, which cannot be seen now; it goes on until it can.
    let before = told_to_wait(&cluster);
    let release = tokio::spawn(read.unlock());
    until("it is told to wait", || told_to_wait(&cluster) > before).await;
    while step.move_keys(10).unwrap() > 0 {}
    step.finish().unwrap();
    assert_eq!(soon("the release", release).await.unwrap().unwrap(), Unlocked::Released);
    permits.delete().await.unwrap();
    assert!(cluster.nodes().iter().all(|node| keys(node).is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_taken_yet_names_the_slot_and_the_way_out() {
    let cluster = masters();
    let client = builder(&cluster).response_timeout(ms(400)).connect().await.unwrap();
    let lock = client.fenced_lock("{way}fenced");
    let first = lock.lock().await.unwrap();
    let token = first.token();
    first.unlock().await.unwrap();
    // The counter of the tokens stays, the lock is free: neither node may make the one beside the other.
    let slot = cluster.slot_of("{way}");
    let step = cluster.begin_move(slot, (cluster.owner_of(slot).unwrap() + 1) % 3).unwrap();
    let error = soon("an answer", lock.try_lock()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ServerBusy, "{error}");
    assert!(error.is_retryable());
    let text = error.to_string();
    assert!(text.contains(&format!("slot {slot} is moving")), "{text}");
    assert!(text.contains("{way}fenced") && text.contains("redis-cli --cluster fix"), "{text}");
    let waiter = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.lock().await })
    };
    while step.move_keys(10).unwrap() > 0 {}
    let guard = soon("the waiter's turn", waiter).await.unwrap().unwrap();
    assert!(guard.token() > token, "{:?} after {token:?}", guard.token());
    guard.unlock().await.unwrap();
    step.finish().unwrap();
}

/// A slot whose old master has given all keys away and still has the slot.
fn all_keys_gone(cluster: &RedisCluster) -> SlotMove<'_> {
    let slot = cluster.slot_of("{way}");
    let step = cluster.begin_move(slot, (cluster.owner_of(slot).unwrap() + 1) % 3).unwrap();
    while step.move_keys(10).unwrap() > 0 {}
    step
}

/// The owner of a guard as another process is given it.
fn written(guard: &Guard) -> Owner {
    guard.owner().to_text().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_re_entry_that_the_old_master_counted_is_left_to_its_lease_when_it_is_given_back() {
    let cluster = masters();
    let lock = client(&cluster).await.lock("{way}entered again");
    let outer = lock.lock().await.unwrap();
    let owner = written(&outer);
    let inner = outer.reenter().await.unwrap();
    let step = all_keys_gone(&cluster);
    let outcome = soon("the inner release", inner.unlock()).await;
    assert!(matches!(outcome, Ok(Unlocked::StillHeld(_))), "{outcome:?}");
    assert!(outer.is_valid(), "{:?}", outer.loss());
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 2);
    assert_eq!(soon("the outer release", outer.unlock()).await.unwrap(), Unlocked::StillHeld(1));
    step.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_the_old_master_counted_is_left_to_its_lease_when_it_is_given_back() {
    let cluster = masters();
    let (client, other) = (client(&cluster).await, client(&cluster).await);
    let first = client.lock("{way}entered").lock().await.unwrap();
    let owner = written(&first);
    let lock = other.lock("{way}entered");
    let entry = lock.acquire().owner(&owner).await.unwrap().expect("it is entered");
    let step = all_keys_gone(&cluster);
    let outcome = soon("the release of the entry", entry.unlock()).await;
    assert!(matches!(outcome, Ok(Unlocked::StillHeld(_))), "{outcome:?}");
    assert!(first.is_valid(), "{:?}", first.loss());
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 2);
    assert_eq!(soon("the first one's release", first.unlock()).await.unwrap(), Unlocked::StillHeld(1));
    step.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_end_the_old_master_knew_is_left_to_its_lease_when_it_is_detached_for_less() {
    let cluster = masters();
    let lock = client(&cluster).await.lock("{way}detached");
    let guard = lock.lock().await.unwrap();
    let owner = written(&guard);
    let step = all_keys_gone(&cluster);
    assert!(soon("detaching", guard.detach_for(Duration::from_secs(2))).await.unwrap());
    assert_eq!(lock.hold_count(&owner).await.unwrap(), 1);
    step.finish().unwrap();
}
