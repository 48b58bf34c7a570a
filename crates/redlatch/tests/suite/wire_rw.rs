//! Wire facts of the read-write lock: the whole keyspace and all messages after each step of section 7 of the protocol, and
//! one test for each trap of it (`docs/protocol.md`, read-write lock).

use redlatch::{Client, ErrorKind, Lease, LossReason, Owner, Unlocked, scripts};
use redlatch_testkit::{
    assert_keyspace,
    server::{KeyContent, RedisServer},
};

use crate::{
    fixture::{RENEWED, awake, ms, renewed, soon},
    wire::{alone, heard},
};

const JAVA: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:64";

/// The hash in a mode, with holders and counts.
fn hash(mode: &str, holders: &[(&str, &str)]) -> KeyContent {
    KeyContent::hash([("mode", mode)].iter().chain(holders).copied())
}

fn writing(owner: &str) -> String {
    format!("{owner}:write")
}

fn timeout(owner: &str, i: u32) -> String {
    format!("{{x}}:{owner}:rwlock_timeout:{i}")
}

fn one() -> KeyContent {
    KeyContent::string("1")
}

fn told(payloads: &[&str]) -> Vec<(String, String)> {
    payloads.iter().map(|payload| ("redisson_rwlock:{x}".to_owned(), (*payload).to_owned())).collect()
}

/// The TTL of a key, in ms.
fn pttl(server: &RedisServer, key: &str) -> i64 {
    match server.cmd(&["PTTL", key]).unwrap() {
        redis::Value::Int(ttl) => ttl,
        other => panic!("{other:?}"),
    }
}

fn near(ttl: i64, expected: i64) -> bool {
    let paused_ms = i64::try_from(redlatch_testkit::stall::paused_lately().as_millis()).unwrap();
    ttl <= expected && ttl > expected - 1_000 - paused_ms
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_once_and_twice_and_each_unlock() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        let guard = lock.read().lock().await.unwrap();
        let owner = guard.owner().to_string();
        assert!(owner.starts_with(client.id()), "the field is client:number: {owner}");
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [
                ("x", hash("read", &[(&owner, "1")]), Some(30_000)),
                (timeout(&owner, 1).as_str(), one(), Some(30_000)),
            ]
        );
        let inner = guard.reenter().await.unwrap();
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [
                ("x", hash("read", &[(&owner, "2")]), Some(30_000)),
                (timeout(&owner, 1).as_str(), one(), Some(30_000)),
                (timeout(&owner, 2).as_str(), one(), Some(30_000)),
            ]
        );
        assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [
                ("x", hash("read", &[(&owner, "1")]), Some(30_000)),
                (timeout(&owner, 1).as_str(), one(), Some(30_000)),
            ]
        );
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
        assert_keyspace!(server, tolerance_ms = 1_000, []);
    })
    .await;
    assert_eq!(messages, told(&["0"]), "the last read hold wakes one, and nothing else is said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_readers_need_the_longer_lease_and_leave_what_the_other_needs() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        let long = lock.read().lock_with_lease(ms(60_000)).await.unwrap();
        let short = lock.read().lock_with_lease(ms(10_000)).await.unwrap();
        let (a, b) = (long.owner().clone(), short.owner().clone());
        assert_ne!(a, b, "two tasks of one process are two owners");
        let (a, b) = (a.to_string(), b.to_string());
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [
                ("x", hash("read", &[(&a, "1"), (&b, "1")]), Some(60_000)),
                (timeout(&a, 1).as_str(), one(), Some(60_000)),
                (timeout(&b, 1).as_str(), one(), Some(10_000)),
            ]
        );
        long.unlock().await.unwrap();
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [("x", hash("read", &[(&b, "1")]), Some(10_000)), (timeout(&b, 1).as_str(), one(), Some(10_000)),]
        );
        let long = lock.read().lock_with_lease(ms(60_000)).await.unwrap();
        let a = long.owner().to_string();
        short.unlock().await.unwrap();
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [("x", hash("read", &[(&a, "1")]), Some(60_000)), (timeout(&a, 1).as_str(), one(), Some(60_000)),]
        );
        long.unlock().await.unwrap();
        assert_keyspace!(server, tolerance_ms = 1_000, []);
    })
    .await;
    assert_eq!(messages, told(&["0"]), "only the last reader is worth a message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_once_and_twice_and_each_unlock() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        let guard = lock.write().lock().await.unwrap();
        let owner = writing(&guard.owner().to_string());
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [("x", hash("write", &[(&owner, "1")]), Some(30_000))]
        );
        let inner = guard.reenter().await.unwrap();
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [("x", hash("write", &[(&owner, "2")]), Some(30_000))]
        );
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::StillHeld(1));
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [("x", hash("write", &[(&owner, "1")]), Some(30_000))]
        );
        assert_eq!(inner.unlock().await.unwrap(), Unlocked::Released);
        assert_keyspace!(server, tolerance_ms = 1_000, []);
    })
    .await;
    assert_eq!(messages, told(&["1"]), "a writer that goes wakes everybody, and nothing else is said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_then_read_and_both_orders_of_unlocking() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        let write = lock.write().lock().await.unwrap();
        let read = write.read().await.unwrap();
        let owner = write.owner().to_string();
        assert_eq!(read.owner().to_string(), owner);
        let both = || {
            [
                (b"x".to_vec(), hash("write", &[(&owner, "1"), (&writing(&owner), "1")]), Some(30_000)),
                (timeout(&owner, 1).into_bytes(), one(), Some(30_000)),
            ]
        };
        let [(x, hash_of_both, ttl), (key, content, left)] = both();
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [(x.as_slice(), hash_of_both, ttl), (key.as_slice(), content, left)]
        );
        read.unlock().await.unwrap();
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [("x", hash("write", &[(&writing(&owner), "1")]), Some(30_000))]
        );
        let read = write.read().await.unwrap();
        assert_eq!(write.unlock().await.unwrap(), Unlocked::Released);
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [
                ("x", hash("read", &[(&owner, "1")]), Some(30_000)),
                (timeout(&owner, 1).as_str(), one(), Some(30_000)),
            ]
        );
        read.unlock().await.unwrap();
        assert_keyspace!(server, tolerance_ms = 1_000, []);
    })
    .await;
    assert_eq!(messages, told(&["1", "0"]), "the end of writing, then the end of reading");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_is_one_step_and_tells_everybody() {
    let (server, client) = alone().await;
    // The first call of a script also loads it.
    drop(client.read_write_lock("warm").write().lock().await.unwrap().downgrade().await.unwrap());
    let lock = client.read_write_lock("x");
    soon("quiet", async {
        while client.stats().background_jobs > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let messages = heard(&server, async {
        let write = lock.write().lock().await.unwrap();
        let inner = write.reenter().await.unwrap();
        let owner = write.owner().to_string();
        server.reset_command_counts().unwrap();
        let first = inner.downgrade().await.unwrap();
        assert_eq!(server.command_count("evalsha").unwrap() + server.command_count("eval").unwrap(), 1);
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [
                ("x", hash("write", &[(&owner, "1"), (&writing(&owner), "1")]), Some(30_000)),
                (timeout(&owner, 1).as_str(), one(), Some(30_000)),
            ]
        );
        let second = write.downgrade().await.unwrap();
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [
                ("x", hash("read", &[(&owner, "2")]), Some(30_000)),
                (timeout(&owner, 1).as_str(), one(), Some(30_000)),
                (timeout(&owner, 2).as_str(), one(), Some(30_000)),
            ]
        );
        assert_eq!(first.unlock().await.unwrap(), Unlocked::StillHeld(1));
        assert_eq!(second.unlock().await.unwrap(), Unlocked::Released);
        assert_keyspace!(server, tolerance_ms = 1_000, []);
    })
    .await;
    assert_eq!(messages, told(&["1", "0"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_sets_the_timeout_keys_of_its_own_owner_and_raises_the_rest() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let lock = client.read_write_lock("x");
    let read = lock.read().lock().await.unwrap();
    let inner = read.reenter().await.unwrap();
    let owner = read.owner().to_string();
    // Somebody else's reader needs the lock for longer; its key is nobody's to renew but its own (R11).
    let java = timeout(JAVA, 1);
    server.cmd(&["HSET", "x", JAVA, "1"]).unwrap();
    server.cmd(&["SET", &java, "1", "PX", "20000"]).unwrap();
    server.cmd(&["PEXPIRE", "x", "20000"]).unwrap();
    let first = timeout(&owner, 1);
    renewed(4, async || ms(pttl(&server, &first).try_into().expect("it is held"))).await;
    assert!(read.is_valid() && inner.is_valid(), "renewed beyond the first lease");
    for i in [1, 2] {
        let left = pttl(&server, &timeout(&owner, i));
        assert!((1..=4_500).contains(&left), "hold {i}: {left}");
    }
    let (hash_ttl, java_ttl) = (pttl(&server, "x"), pttl(&server, &java));
    assert!(java_ttl <= 16_000, "the other reader runs out: {java_ttl}");
    assert!((hash_ttl - java_ttl).abs() <= 20, "and what it needs is not shortened: {hash_ttl}, {java_ttl}");
    drop((read, inner));
    let write = soon("the lock", async {
        server.cmd(&["DEL", "x"]).unwrap();
        client.read_write_lock("x").write().lock().await
    })
    .await
    .unwrap();
    let field = writing(&write.owner().to_string());
    renewed(4, async || ms(pttl(&server, "x").try_into().expect("it is held"))).await;
    assert!(write.is_valid());
    let left = pttl(&server, "x");
    assert!((1..=4_500).contains(&left), "{left}");
    assert!(server.cmd(&["HGET", "x", &field]).unwrap() == redis::Value::BulkString(b"1".to_vec()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_ends_leave_nothing_and_keep_to_their_side() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        assert!(!lock.read().force_unlock().await.unwrap(), "nobody reads");
        assert!(!lock.write().force_unlock().await.unwrap(), "nobody writes");
        let (one, two) = (lock.read().lock().await.unwrap(), lock.read().lock().await.unwrap());
        let twice = two.reenter().await.unwrap();
        assert!(!lock.write().force_unlock().await.unwrap(), "the other side is left alone");
        assert!(one.is_valid() && two.is_valid());
        assert!(lock.read().force_unlock().await.unwrap());
        // R7: the timeout keys go with the hash.
        assert_keyspace!(server, tolerance_ms = 1_000, []);
        assert!(!one.is_valid() && !two.is_valid() && !twice.is_valid(), "known at once where it was done");
        let write = lock.write().lock().await.unwrap();
        let nested = write.read().await.unwrap();
        assert!(!lock.read().force_unlock().await.unwrap(), "a writer's read holds end with the write hold");
        let other = Owner::to_string(&client.owner());
        assert_eq!(lock.write().force_unlock_if(&other).await.unwrap(), redlatch::Forced::OtherOwner);
        let owner = write.owner().to_string();
        assert_eq!(lock.write().force_unlock_if(&owner).await.unwrap(), redlatch::Forced::Released);
        assert_keyspace!(server, tolerance_ms = 1_000, []);
        assert!(!write.is_valid() && !nested.is_valid());
    })
    .await;
    assert_eq!(messages, told(&["0", "1"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_with_braces_keep_their_own_hash_tag() {
    let (server, client) = alone().await;
    let messages = heard(&server, async {
        let read = client.read_write_lock("{t}:abc").read().lock().await.unwrap();
        let owner = read.owner().to_string();
        let key = format!("{{t}}:abc:{owner}:rwlock_timeout:1");
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [("{t}:abc", hash("read", &[(&owner, "1")]), Some(30_000)), (key.as_str(), one(), Some(30_000))]
        );
        read.unlock().await.unwrap();
    })
    .await;
    assert_eq!(messages, [("redisson_rwlock:{t}:abc".to_owned(), "0".to_owned())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_g1_a_lock_of_another_kind_is_never_entered() {
    let (server, client) = alone().await;
    let guard = client.lock("x").lock().await.unwrap();
    let owner = guard.owner().to_string();
    let lock = client.read_write_lock("x");
    assert_eq!(lock.read().try_lock().await.unwrap_err().kind(), ErrorKind::WrongLockKind);
    assert_eq!(lock.write().try_lock().await.unwrap_err().kind(), ErrorKind::WrongLockKind);
    assert_eq!(
        lock.read().lock().await.unwrap_err().kind(),
        ErrorKind::WrongLockKind,
        "waiting would not help"
    );
    for side in [lock.read().force_unlock().await, lock.write().force_unlock().await] {
        assert_eq!(side.unwrap_err().kind(), ErrorKind::WrongLockKind);
    }
    assert_keyspace!(server, tolerance_ms = 1_000, [("x", KeyContent::hash([(owner, "1")]), Some(30_000))]);
    guard.unlock().await.unwrap();
    let read = lock.read().lock().await.unwrap();
    assert_eq!(client.lock("x").try_lock().await.unwrap_err().kind(), ErrorKind::WrongLockKind);
    assert!(read.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_r1_entering_a_write_lock_again_does_not_add_leases_up() {
    let (server, client) = alone().await;
    let write = client.read_write_lock("x").write().lock_with_lease(ms(30_000)).await.unwrap();
    let _twice = write.reenter().await.unwrap();
    let _thrice = write.reenter().await.unwrap();
    let ttl = pttl(&server, "x");
    assert!(near(ttl, 30_000), "three times 30 s are 30 s: {ttl}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_r2_a_read_unlock_keeps_the_lease_of_the_write_hold() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let owner = client.owner();
    let long = Lease::Fixed(ms(60_000));
    let write = lock.write().acquire().owner(&owner).lease(long).await.unwrap().unwrap();
    let short = || lock.read().acquire().owner(&owner).lease(Lease::Fixed(ms(5_000)));
    let (one, two) = (short().await.unwrap().unwrap(), short().await.unwrap().unwrap());
    one.unlock().await.unwrap();
    assert!(near(pttl(&server, "x"), 60_000), "{}", pttl(&server, "x"));
    two.unlock().await.unwrap();
    assert!(near(pttl(&server, "x"), 60_000), "{}", pttl(&server, "x"));
    let alike = write.read().await.unwrap();
    assert_eq!(alike.reenter().await.unwrap().unlock().await.unwrap(), Unlocked::StillHeld(1));
    alike.unlock().await.unwrap();
    assert!(near(pttl(&server, "x"), 60_000), "{}", pttl(&server, "x"));
    assert!(write.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_r3_a_nested_read_lasts_as_long_as_its_writer() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let write = lock.write().lock_with_lease(ms(7_000)).await.unwrap();
    let read = write.read().await.unwrap();
    assert!(near(pttl(&server, "x"), 7_000), "the lock is not prolonged: {}", pttl(&server, "x"));
    assert!(near(pttl(&server, &timeout(&write.owner().to_string(), 1)), 7_000));
    // A longer read hold by the owner's own wish outlives the write hold, for reading only.
    let owner = write.owner().clone();
    let long = Lease::Fixed(ms(60_000));
    let longer = lock.read().acquire().owner(&owner).lease(long).await.unwrap().unwrap();
    write.unlock().await.unwrap();
    read.unlock().await.unwrap();
    assert!(near(pttl(&server, "x"), 60_000));
    assert!(longer.is_valid() && lock.read().try_lock().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_r3_a_write_hold_whose_time_is_over_does_not_live_on_under_a_longer_read_hold() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let owner = client.owner();
    let hold = |lease| Lease::Fixed(ms(lease));
    let write = lock.write().acquire().owner(&owner).lease(hold(400)).await.unwrap().unwrap();
    let read = lock.read().acquire().owner(&owner).lease(hold(20_000)).await.unwrap().unwrap();
    assert_eq!(soon("the end", write.lost()).await, LossReason::Expired);
    soon("another reader", lock.read().lock()).await.unwrap().unlock().await.unwrap();
    assert!(read.is_valid());
    let field = owner.to_string();
    assert_keyspace!(
        server,
        tolerance_ms = 1_500,
        [
            ("x", hash("read", &[(&field, "1")]), Some(20_000)),
            (timeout(&field, 1).as_str(), one(), Some(20_000)),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_whose_time_is_over_leave_no_fields_behind() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let stays = lock.read().lock().await.unwrap();
    for _ in 0..20 {
        let short = lock.read().lock_with_lease(ms(60)).await.unwrap();
        assert_eq!(soon("the end", short.lost()).await, LossReason::Expired);
        drop(short);
    }
    soon("the end of the fields", async { while client.inspect("x").await.unwrap().holders.len() > 1 {} })
        .await;
    let owner = stays.owner().to_string();
    assert_keyspace!(
        server,
        tolerance_ms = 10_000,
        [
            ("x", hash("read", &[(&owner, "1")]), Some(30_000)),
            (timeout(&owner, 1).as_str(), one(), Some(30_000)),
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_r4_the_holds_of_one_reader_last_alike_and_go_in_any_order() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let owner = client.owner();
    let hold = |lease| lock.read().acquire().owner(&owner).lease(Lease::Fixed(ms(lease)));
    let short = hold(3_000).await.unwrap().unwrap();
    let long = hold(20_000).await.unwrap().unwrap();
    let field = owner.to_string();
    for i in [1, 2] {
        assert!(near(pttl(&server, &timeout(&field, i)), 20_000), "hold {i}");
    }
    long.unlock().await.unwrap();
    // In Redisson the newest key goes, the older one ends, and the lock is deleted under a count of 1.
    tokio::time::sleep(ms(3_200)).await;
    assert!(lock.write().try_lock().await.unwrap().is_none(), "the first hold still reads");
    assert!(short.is_valid() && lock.read().hold_count(&owner).await.unwrap() == 1);
    short.unlock().await.unwrap();
    assert!(lock.write().try_lock().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_r5_a_reader_whose_time_is_over_is_told_though_others_keep_the_hash() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let lock = client.read_write_lock("x");
    let stays = other.read_write_lock("x").read().lock().await.unwrap();
    // A hold whose owner nobody knows is released by another script, so its field is looked up on the server.
    let unnamed = lock.read().lock().await.unwrap();
    let state = other.inspect("x").await.unwrap();
    let field = state.holders.iter().find(|holder| holder.owner.starts_with(client.id())).unwrap();
    server.cmd(&["DEL", &timeout(&field.owner, 1)]).unwrap();
    assert_eq!(unnamed.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Deleted));
    assert_eq!(other.inspect("x").await.unwrap().holders.len(), 1, "and its field is gone");
    let (late, told) = (lock.read().lock().await.unwrap(), lock.read().lock().await.unwrap());
    let (late_owner, told_owner) = (late.owner().clone(), told.owner().clone());
    for owner in [&late_owner, &told_owner] {
        server.cmd(&["DEL", &timeout(&owner.to_string(), 1)]).unwrap();
    }
    assert_eq!(lock.read().hold_count(&late_owner).await.unwrap(), 0, "the field alone is no hold");
    assert_eq!(late.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Deleted));
    assert_eq!(soon("the renewal", told.lost()).await, LossReason::Deleted);
    assert!(stays.is_valid());
    soon("the end of the dead fields", async {
        let only = hash("read", &[(&stays.owner().to_string(), "1")]);
        while server.keys_dump().unwrap()[b"x".as_slice()].content != only {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    // The same owner may read again, and counts from one.
    let again = lock.read().acquire().owner(&late_owner).await.unwrap().unwrap();
    assert_eq!(lock.read().hold_count(&late_owner).await.unwrap(), 1);
    again.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_r6_a_downgrade_lets_waiting_readers_in_at_once() {
    let (server, client) = alone().await;
    let other = Client::connect(&server.url()).await.unwrap();
    let write = client.read_write_lock("x").write().lock().await.unwrap();
    let waiting = other.read_write_lock("x");
    let reader = tokio::spawn(async move { waiting.read().lock().await.unwrap() });
    soon("the subscription", async {
        while server.subscriber_channels().unwrap() != [b"redisson_rwlock:{x}".to_vec()] {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    // Past the second look, from which the reader sleeps until a message or its next poll.
    tokio::time::sleep(ms(50)).await;
    let start = std::time::Instant::now();
    let read = write.downgrade().await.unwrap();
    let beside = soon("the reader", reader).await.unwrap();
    assert!(awake(start) < ms(250), "woken, not by chance of a poll: {:?}", start.elapsed());
    assert!(read.is_valid() && beside.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_r8_read_and_write_holds_of_one_owner_are_renewed_apart() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let lock = client.read_write_lock("x");
    let write = lock.write().lock().await.unwrap();
    write.read().await.unwrap().unlock().await.unwrap();
    renewed(4, async || write.remaining()).await;
    assert!(write.is_valid(), "giving the read hold back has not stopped the renewal of the write hold");
    assert!(other.read_write_lock("x").read().try_lock().await.unwrap().is_none());
    let read = write.read().await.unwrap();
    write.unlock().await.unwrap();
    renewed(4, async || read.remaining()).await;
    assert!(read.is_valid(), "nor the other way round");
    assert!(other.read_write_lock("x").write().try_lock().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_r9_asking_to_write_while_reading_is_refused_at_once() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let owner = client.owner();
    let read = lock.read().acquire().owner(&owner).await.unwrap().unwrap();
    let start = std::time::Instant::now();
    let upgrade = lock.write().acquire().owner(&owner).wait(redlatch::Wait::Forever);
    let error = soon("the refusal", std::future::IntoFuture::into_future(upgrade)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UpgradeRefused, "{error}");
    assert!(error.to_string().contains("\"x\""), "{error}");
    assert!(awake(start) < ms(1_000), "{:?}", start.elapsed());
    assert!(read.is_valid());
    let other = client.owner();
    assert!(lock.write().acquire().owner(&other).await.unwrap().is_none(), "others are merely busy");
    // A read hold that is just being given back is none.
    for _ in 0..50 {
        drop(lock.read().acquire().owner(&other).wait(redlatch::Wait::Forever).await.unwrap().unwrap());
        let wait = redlatch::Wait::AtMost(ms(0));
        let outcome = lock.write().acquire().owner(&other).wait(wait).await;
        assert!(matches!(outcome, Ok(None)), "{outcome:?}");
    }
    read.unlock().await.unwrap();
    for _ in 0..50 {
        drop(lock.read().acquire().owner(&owner).wait(redlatch::Wait::Forever).await.unwrap().unwrap());
        let write = lock.write().acquire().owner(&owner).wait(redlatch::Wait::Forever).await;
        write.unwrap().unwrap().unlock().await.unwrap();
    }
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_many_goes_without_looking_at_the_others() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let mut readers = Vec::new();
    for _ in 0..200 {
        readers.push(lock.read().lock_with_lease(ms(60_000)).await.unwrap());
    }
    let short = lock.read().lock_with_lease(ms(5_000)).await.unwrap();
    server.reset_command_counts().unwrap();
    short.unlock().await.unwrap();
    let looks = server.command_count("pttl").unwrap();
    assert!(
        (2..=3).contains(&looks),
        "the hash, somebody else, and its own hold unless that was a reader: {looks}"
    );
    // The one that set the TTL looks until it finds another that needs all of it.
    let last = lock.read().lock_with_lease(ms(60_000)).await.unwrap();
    let beside = lock.read().lock_with_lease(ms(60_000)).await.unwrap();
    server.reset_command_counts().unwrap();
    beside.unlock().await.unwrap();
    assert!(server.command_count("pttl").unwrap() <= 207);
    assert!(near(pttl(&server, "x"), 60_000));
    drop(last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_left_by_java_are_waited_for_and_read_beside() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    // A Java reader, twice; a dead one whose time is over; the hash lives on.
    server
        .cmd(&["HSET", "x", "mode", "read", JAVA, "2", "1b671a64-40d5-491e-99b0-da01ff1f3341:65", "1"])
        .unwrap();
    server.cmd(&["SET", &timeout(JAVA, 2), "1", "PX", "20000"]).unwrap();
    server.cmd(&["PEXPIRE", "x", "20000"]).unwrap();
    assert!(lock.write().try_lock().await.unwrap().is_none());
    let read = lock.read().lock_with_lease(ms(60_000)).await.unwrap();
    assert!(near(pttl(&server, "x"), 60_000));
    read.unlock().await.unwrap();
    let left = pttl(&server, "x");
    assert!((18_000..=20_000).contains(&left), "what the second hold of the other reader needs: {left}");
    // When that one has ended, too, the next of ours to go finds nobody alive and takes the hash with it.
    let read = lock.read().lock().await.unwrap();
    server.cmd(&["DEL", &timeout(JAVA, 2)]).unwrap();
    read.unlock().await.unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, []);
    // A Java writer with a nested read.
    server.cmd(&["HSET", "x", "mode", "write", &writing(JAVA), "1", JAVA, "1"]).unwrap();
    server.cmd(&["PEXPIRE", "x", "700"]).unwrap();
    assert!(lock.read().try_lock().await.unwrap().is_none());
    assert!(lock.write().try_lock().await.unwrap().is_none());
    assert!(lock.read().is_locked().await.unwrap() && lock.write().is_locked().await.unwrap());
    soon("the end of its lease", lock.write().lock()).await.unwrap().unlock().await.unwrap();
    // A count that nobody could have: looked at with a limit.
    server.cmd(&["HSET", "x", "mode", "read", JAVA, "9223372036854775807"]).unwrap();
    server.cmd(&["PEXPIRE", "x", "20000"]).unwrap();
    let read = lock.read().lock_with_lease(ms(60_000)).await.unwrap();
    soon("the release", read.unlock()).await.unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_two_requests_and_draws_tokens_when_asked() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    lock.read().lock().await.unwrap().unlock().await.unwrap();
    lock.write().lock().await.unwrap().unlock().await.unwrap();
    server.reset_command_counts().unwrap();
    lock.read().lock().await.unwrap().unlock().await.unwrap();
    lock.write().lock().await.unwrap().unlock().await.unwrap();
    assert_eq!(server.command_count("evalsha").unwrap(), 4);
    let read = lock.read().acquire().fenced().await.unwrap().unwrap();
    let first = read.token().unwrap();
    read.unlock().await.unwrap();
    let write = lock.write().acquire().fenced().await.unwrap().unwrap();
    assert!(write.token().unwrap() > first, "both sides draw from one counter");
    let script = scripts::ALL.iter().find(|script| script.name() == "write_acquire").unwrap();
    assert!(script.source().contains("KEYS[3]"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_are_enough() {
    let commands = "evalsha eval ping publish subscribe unsubscribe pttl pexpire hset hget hmget hdel hexists hincrby \
                    hlen hgetall hrandfield set del exists";
    let allowed: String = commands.split_whitespace().map(|command| format!(" +{command}")).collect();
    let rights = format!("reader on >pw ~x ~{{x}}:* resetchannels &redisson_rwlock:* -@all{allowed}");
    let server = RedisServer::builder().acl(&rights).start().unwrap();
    let builder = Client::builder().url(server.url()).username("reader").password("pw");
    let client = builder.watchdog_lease(RENEWED).connect().await.unwrap();
    let lock = client.read_write_lock("x");
    let write = lock.write().lock().await.unwrap();
    let again = write.reenter().await.unwrap();
    let nested = write.read().await.unwrap();
    let waiting = lock.clone();
    let reader = tokio::spawn(async move { waiting.read().lock().await.unwrap() });
    renewed(1, async || write.remaining()).await;
    again.unlock().await.unwrap();
    let read = write.downgrade().await.unwrap();
    let beside = soon("the reader", reader).await.unwrap();
    assert_eq!(lock.read().hold_count(read.owner()).await.unwrap(), 2);
    assert_eq!(nested.unlock().await.unwrap(), Unlocked::StillHeld(1));
    read.unlock().await.unwrap();
    renewed(1, async || beside.remaining()).await;
    assert!(beside.is_valid());
    assert!(lock.read().force_unlock().await.unwrap());
    let (write, owner) = (lock.write().lock().await.unwrap(), client.owner());
    let next = lock.write();
    let wait = redlatch::Wait::Forever;
    let next = async { next.acquire().owner(&owner).wait(wait).await.unwrap().unwrap() };
    let (next, unlocked) = tokio::join!(next, write.unlock());
    assert_eq!(unlocked.unwrap(), Unlocked::Released);
    next.unlock().await.unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, []);
}
