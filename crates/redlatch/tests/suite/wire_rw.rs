//! Wire facts of the read-write lock: the whole keyspace and all messages after each step of section 7 of the protocol
//! (`docs/protocol.md`, read-write lock). Its traps are in `wire_rw_traps.rs`.

use redlatch::{Client, Owner, Unlocked, scripts};
use redlatch_testkit::{
    assert_keyspace,
    server::{KeyContent, RedisServer},
};

use crate::{
    fixture::{RENEWED, ms, renewed, soon},
    forms::{Form, in_every_form},
    wire::{alone, heard, take_record},
};

const JAVA: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:64";

/// The hash in a mode, with holders and counts.
pub(crate) fn hash(mode: &str, holders: &[(&str, &str)]) -> KeyContent {
    KeyContent::hash([("mode", mode)].iter().chain(holders).copied())
}

pub(crate) fn writing(owner: &str) -> String {
    format!("{owner}:write")
}

pub(crate) fn timeout(owner: &str, i: u32) -> String {
    format!("{{x}}:{owner}:rwlock_timeout:{i}")
}

pub(crate) fn one() -> KeyContent {
    KeyContent::string("1")
}

fn told(payloads: &[&str]) -> Vec<(String, String)> {
    payloads.iter().map(|payload| ("redisson_rwlock:{x}".to_owned(), (*payload).to_owned())).collect()
}

/// The TTL of a key, in ms.
pub(crate) fn pttl(server: &RedisServer, key: &str) -> i64 {
    match server.cmd(&["PTTL", key]).unwrap() {
        redis::Value::Int(ttl) => ttl,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn near(ttl: i64, expected: i64) -> bool {
    let paused_ms = i64::try_from(redlatch_testkit::stall::paused_lately().as_millis()).unwrap();
    ttl <= expected && ttl > expected - 1_000 - paused_ms
}

in_every_form! {
    read_once_and_twice_and_each_unlock,
    two_readers_need_the_longer_lease_and_leave_what_the_other_needs,
    write_once_and_twice_and_each_unlock,
    write_then_read_and_both_orders_of_unlocking,
    a_downgrade_reads_before_it_writes_no_more_and_tells_everybody,
    renewal_sets_the_timeout_keys_of_its_own_owner_and_raises_the_rest,
    forced_ends_leave_nothing_and_keep_to_their_side,
    names_with_braces_keep_their_own_hash_tag,
    states_left_by_java_are_waited_for_and_read_beside,
}

async fn read_once_and_twice_and_each_unlock(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        let guard = lock.read().lock().await.unwrap();
        let owner = guard.owner().to_text();
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

async fn two_readers_need_the_longer_lease_and_leave_what_the_other_needs(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        let long = lock.read().lock_with_lease(ms(60_000)).await.unwrap();
        let short = lock.read().lock_with_lease(ms(10_000)).await.unwrap();
        let (a, b) = (long.owner().clone(), short.owner().clone());
        assert_ne!(a, b, "two tasks of one process are two owners");
        let (a, b) = (a.to_text(), b.to_text());
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
        let a = long.owner().to_text();
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

async fn write_once_and_twice_and_each_unlock(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        let guard = lock.write().lock().await.unwrap();
        let owner = writing(&guard.owner().to_text());
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

async fn write_then_read_and_both_orders_of_unlocking(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        let write = lock.write().lock().await.unwrap();
        let read = write.read().await.unwrap();
        let owner = write.owner().to_text();
        assert_eq!(read.owner().to_text(), owner);
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

async fn a_downgrade_reads_before_it_writes_no_more_and_tells_everybody(on: Form) {
    let (server, client) = on.alone().await;
    // The first call of a script also loads it.
    let warm = client.read_write_lock("warm").write().lock().await.unwrap();
    drop(warm.reenter().await.unwrap().downgrade().await.unwrap());
    drop(warm);
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
        let owner = write.owner().to_text();
        server.reset_command_counts().unwrap();
        let first = inner.downgrade().await.unwrap();
        assert_eq!(server.command_count("evalsha").unwrap() + server.command_count("eval").unwrap(), 2);
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

async fn renewal_sets_the_timeout_keys_of_its_own_owner_and_raises_the_rest(on: Form) {
    let (server, client) = on.with(|builder| builder.watchdog_lease(RENEWED)).await;
    let lock = client.read_write_lock("x");
    let read = lock.read().lock().await.unwrap();
    let inner = read.reenter().await.unwrap();
    let owner = read.owner().to_text();
    // Another owner's reader needs the lock for longer; its key is nobody's to renew but its own (R11).
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
    let field = writing(&write.owner().to_text());
    renewed(4, async || ms(pttl(&server, "x").try_into().expect("it is held"))).await;
    assert!(write.is_valid());
    let left = pttl(&server, "x");
    assert!((1..=4_500).contains(&left), "{left}");
    assert!(server.cmd(&["HGET", "x", &field]).unwrap() == redis::Value::BulkString(b"1".to_vec()));
}

async fn forced_ends_leave_nothing_and_keep_to_their_side(on: Form) {
    let (server, client) = on.alone().await;
    let lock = client.read_write_lock("x");
    let messages = heard(&server, async {
        assert!(!lock.read().force_unlock().await.unwrap(), "nobody reads");
        assert!(!lock.write().force_unlock().await.unwrap(), "nobody writes");
        let (one, two) = (lock.read().lock().await.unwrap(), lock.read().lock().await.unwrap());
        let twice = two.reenter().await.unwrap();
        assert!(!lock.write().force_unlock().await.unwrap(), "the other side is left alone");
        assert!(one.is_valid() && two.is_valid());
        let owners = [one.owner().to_text(), two.owner().to_text()];
        assert!(lock.read().force_unlock().await.unwrap());
        take_record(&server, "x", &client, &[&owners[0], &owners[1]]);
        // R7: the timeout keys go with the hash.
        assert_keyspace!(server, tolerance_ms = 1_000, []);
        assert!(!one.is_valid() && !two.is_valid() && !twice.is_valid(), "known at once where it was done");
        let write = lock.write().lock().await.unwrap();
        let nested = write.read().await.unwrap();
        assert!(!lock.read().force_unlock().await.unwrap(), "a writer's read holds end with the write hold");
        let other = Owner::to_text(&client.owner());
        assert_eq!(lock.write().force_unlock_if(&other).await.unwrap(), redlatch::Forced::OtherOwner);
        let owner = write.owner().to_text();
        assert_eq!(lock.write().force_unlock_if(&owner).await.unwrap(), redlatch::Forced::Released);
        take_record(&server, "x", &client, &[&owner, &writing(&owner)]);
        assert_keyspace!(server, tolerance_ms = 1_000, []);
        assert!(!write.is_valid() && !nested.is_valid());
    })
    .await;
    assert_eq!(messages, told(&["0", "1"]));
}

async fn names_with_braces_keep_their_own_hash_tag(on: Form) {
    let (server, client) = on.alone().await;
    let messages = heard(&server, async {
        let read = client.read_write_lock("{t}:abc").read().lock().await.unwrap();
        let owner = read.owner().to_text();
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
async fn a_reader_of_many_goes_without_looking_at_the_others() {
    let (server, client) = alone().await;
    let lock = client.read_write_lock("x");
    let mut readers = Vec::new();
    for _ in 0..200 {
        // Left by their client, which would look after each of them when the machine stands still.
        readers.push(lock.read().lock_with_lease(ms(60_000)).await.unwrap().detach());
    }
    let short = lock.read().lock_with_lease(ms(5_000)).await.unwrap();
    server.reset_command_counts().unwrap();
    short.unlock().await.unwrap();
    let looks = server.command_count("pttl").unwrap();
    assert!(
        (2..=3).contains(&looks),
        "the hash, another owner, and its own hold unless that was a reader: {looks}"
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

async fn states_left_by_java_are_waited_for_and_read_beside(on: Form) {
    let (server, client) = on.alone().await;
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

/// A field of a reader whose time was over hid one that still had some milliseconds, and the hash was deleted under it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_time_is_over_hides_none_that_reads_for_some_milliseconds() {
    const STATE: &str = "
        redis.call('del', KEYS[1])
        redis.call('hset', KEYS[1], 'mode', 'read', 'over', '1', 'goes', '1', 'stays', '1')
        redis.call('set', KEYS[2] .. 'goes:rwlock_timeout:1', '1', 'px', '9')
        redis.call('set', KEYS[2] .. 'stays:rwlock_timeout:1', '1', 'px', '9')
        redis.call('pexpire', KEYS[1], '9')";
    let server = RedisServer::start().unwrap();
    for (name, script, last) in [
        ("read_release", &scripts::READ_RELEASE, None),
        ("read_release_one", &scripts::READ_RELEASE_ONE, Some(["0", "9"])),
    ] {
        let source = script.source();
        let text = format!(
            "{STATE}\nlocal function run()\n{source}\nend\nrun()\n
            return {{redis.call('exists', KEYS[1]), redis.call('pttl', KEYS[2] .. 'stays:rwlock_timeout:1')}}"
        );
        // Which reader a look finds first is chance.
        for _ in 0..100 {
            let mut call = vec!["EVAL", &text, "2", "x", "{x}:", "7", "goes", "channel", "publish"];
            call.extend(last.iter().flatten());
            let (there, left): (i64, i64) = redis::from_redis_value(server.cmd(&call).unwrap()).unwrap();
            assert!(there == 1 || left <= 1, "{name}: no hash, and a reader has {left} ms");
        }
    }
}
