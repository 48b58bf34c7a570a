//! What `inspect` and `list` make of each kind of state on the wire, put there by hand (`docs/protocol.md`, looking).

use std::time::{Duration, SystemTime};

use redlatch::{Client, HoldMode, LockKind};
use redlatch_testkit::server::RedisServer;

use crate::{
    fixture::{LATE, ms, soon},
    wire::alone,
};

const A: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:1";
const B: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:2";
const C: &str = "aaaaaaaa-40d5-491e-99b0-da01ff1f3341:-7";

/// The server's clock in so many milliseconds; it is this machine's.
fn in_ms(ms: i64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as i64;
    (now + ms).to_string()
}

fn hash(server: &RedisServer, name: &str, fields: &[&str], ttl_ms: &str) {
    server.cmd(&[&["HSET", name], fields].concat()).unwrap();
    server.cmd(&["PEXPIRE", name, ttl_ms]).unwrap();
}

/// Puts waiters into the queue of a fair lock; those with a deadline have it so many milliseconds from now.
fn queue(server: &RedisServer, tagged: &str, waiters: &[(&str, Option<i64>)]) {
    for (owner, deadline) in waiters {
        server.cmd(&["RPUSH", &format!("redisson_lock_queue:{tagged}"), owner]).unwrap();
        if let Some(deadline) = deadline {
            let key = format!("redisson_lock_timeout:{tagged}");
            server.cmd(&["ZADD", &key, &in_ms(*deadline), owner]).unwrap();
        }
    }
}

fn near(found: Option<Duration>, expected_ms: u64) -> bool {
    found.is_some_and(|found| found <= ms(expected_ms) && found + LATE >= ms(expected_ms))
}

async fn names(client: &Client, kinds: &[LockKind], pattern: Option<&str>) -> Vec<String> {
    let found = client.list_kinds(kinds, pattern, 1_000).await.unwrap();
    found.iter().map(|state| state.name.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fair_lock_shows_its_holder_and_its_queue() {
    let (server, client) = alone().await;
    hash(&server, "held", &[A, "2"], "30000");
    queue(&server, "{held}", &[(B, Some(300_000)), (C, Some(-5_000)), ("odd", None)]);
    // The name has braces of its own, and nobody holds it at the moment.
    queue(&server, "{t}:free", &[(C, Some(60_000))]);

    let state = client.inspect("held").await.unwrap();
    assert_eq!((state.kind, state.holders.len(), state.waiting), (LockKind::Fair, 1, 3));
    assert_eq!((&*state.holders[0].owner, state.holders[0].holds), (A, 2));
    assert_eq!(state.holders[0].mode, HoldMode::Exclusive);
    let queue: Vec<_> = state.waiters.iter().map(|waiter| (&*waiter.owner, waiter.position)).collect();
    assert_eq!(queue, [(B, 1), (C, 2), ("odd", 3)]);
    assert!(near(state.waiters[0].stale_in, 300_000), "{state:?}");
    assert_eq!(state.waiters[1].stale_in, Some(Duration::ZERO), "overdue");
    assert_eq!(state.waiters[2].stale_in, None);
    assert_eq!(state.findings, ["odd queues without a deadline"]);

    let free = client.inspect("{t}:free").await.unwrap();
    assert_eq!((free.kind, free.holders.len(), free.waiting, free.ttl), (LockKind::Fair, 0, 1, None));
    assert!(free.findings.is_empty() && !free.ttl_missing, "{free:?}");

    let listed = client.list(None, 10).await.unwrap();
    let found: Vec<_> = listed.iter().map(|state| (state.name.to_string(), state.waiting)).collect();
    assert_eq!(found, [("held".to_owned(), 3), ("{t}:free".to_owned(), 1)], "each once");
    assert_eq!(names(&client, &[LockKind::Fair], Some("{t}*")).await, ["{t}:free"]);
    assert!(names(&client, &[LockKind::Lock], None).await.is_empty(), "it is no plain lock");
    server.cmd(&["DEL", "redisson_lock_queue:{held}"]).unwrap();
    assert_eq!(client.inspect("held").await.unwrap().kind, LockKind::Lock, "nothing tells them apart then");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_write_lock_shows_modes_and_how_long_each_read_lasts() {
    let (server, client) = alone().await;
    hash(&server, "readers", &["mode", "read", A, "2", B, "1"], "50000");
    for (key, ttl_ms) in
        [(format!("{A}:rwlock_timeout:1"), "50000"), (format!("{A}:rwlock_timeout:2"), "9000")]
    {
        server.cmd(&["SET", &format!("{{readers}}:{key}"), "1", "PX", ttl_ms]).unwrap();
    }
    let writer = format!("{C}:write");
    hash(&server, "x{y}", &["mode", "write", &writer, "3", C, "1"], "50000");
    server.cmd(&["SET", &format!("x{{y}}:{C}:rwlock_timeout:1"), "1", "PX", "7000"]).unwrap();

    let state = client.inspect("readers").await.unwrap();
    assert_eq!(state.kind, LockKind::ReadWrite);
    let [a, b] = &state.holders[..] else { panic!("{state:?}") };
    assert_eq!((&*a.owner, a.holds, a.mode), (A, 2, HoldMode::Read));
    assert!(near(a.lasting[0], 50_000) && near(a.lasting[1], 9_000) && a.lasting.len() == 2, "{state:?}");
    assert_eq!((&*b.owner, b.holds, &b.lasting[..]), (B, 1, &[None][..]));
    assert_eq!(state.findings, [format!("the read holds of {B} have run out, but still keep writers away")]);

    let state = client.inspect("x{y}").await.unwrap();
    let [write, read] = &state.holders[..] else { panic!("{state:?}") };
    assert_eq!((&*write.owner, write.holds, write.mode), (&*writer, 3, HoldMode::Write));
    assert!(write.lasting.is_empty(), "a write hold lasts as long as the key");
    assert_eq!((&*read.owner, read.mode), (C, HoldMode::Read));
    assert!(near(read.lasting[0], 7_000) && state.findings.is_empty(), "{state:?}");
    assert_eq!(names(&client, &[LockKind::ReadWrite], None).await, ["readers", "x{y}"]);
    let everything = [LockKind::Counter, LockKind::ReadWrite];
    assert_eq!(names(&client, &everything, None).await, ["readers", "x{y}"], "no helper key is a counter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_show_their_ids_and_what_is_free() {
    let (server, client) = alone().await;
    server.cmd(&["SET", "seats", "4"]).unwrap();
    let raw: Vec<u8> = (0..16).map(|n| n * 17).collect();
    for (score, id) in [
        (in_ms(20_000).as_bytes(), &raw[..]),
        (in_ms(-1).as_bytes(), b"0123456789abcdef"),
        (b"922337203685477", b"00112233445566778899aabbccddeeff"),
    ] {
        server.cmd(&[&b"ZADD"[..], b"{seats}:timeout", score, id]).unwrap();
    }
    server.cmd(&["SET", "idle", "9"]).unwrap();
    // A zset that merely has such a name.
    server.cmd(&["ZADD", "{other}:timeout", "1", "x"]).unwrap();
    server.cmd(&["RPUSH", "redisson_lock_queue:", "x"]).unwrap();

    let state = client.inspect("seats").await.unwrap();
    assert_eq!(state.kind, LockKind::PermitSemaphore);
    assert_eq!((state.value, state.permits_in_use), (Some(5), 2), "one permit has run out: {state:?}");
    assert_eq!(state.permits[0].id, "00112233445566778899aabbccddeeff");
    assert!(near(state.permits[0].ttl, 20_000), "{state:?}");
    assert_eq!(state.permits[1].id, "00112233445566778899aabbccddeeff", "ids of before 3.17 are text");
    assert_eq!((state.permits[1].ttl, state.ttl_missing), (None, false));
    assert!(state.findings.is_empty(), "{state:?}");
    assert_eq!(client.inspect("idle").await.unwrap().kind, LockKind::Counter, "a bare number");
    let usual = client.list(None, 10).await.unwrap();
    assert_eq!(usual.len(), 1, "{usual:?}");
    assert_eq!((usual[0].value, usual[0].permits_in_use), (Some(5), 2));
    assert_eq!(names(&client, &[LockKind::Counter], None).await, ["idle"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_limiter_shows_its_rule() {
    let (server, client) = alone().await;
    let rule = ["rate", "20", "interval", "60000", "type", "1", "keepAliveTime", "0"];
    server.cmd(&[&["HSET", "api"], &rule[..]].concat()).unwrap();
    server.cmd(&["SET", "{api}:value", "7"]).unwrap();
    server.cmd(&["SET", "{api}:value:1b671a64-40d5-491e-99b0-da01ff1f3341", "7"]).unwrap();
    server.cmd(&["SET", "price:value", "7"]).unwrap();
    let state = client.inspect("api").await.unwrap();
    let rate = state.rate.unwrap();
    assert_eq!((state.kind, rate.rate, rate.interval), (LockKind::RateLimiter, 20, ms(60_000)));
    assert_eq!((rate.per_client, rate.keep_alive, state.ttl_missing), (true, None, false));
    server.cmd(&["HSET", "api", "type", "0", "keepAliveTime", "1500"]).unwrap();
    let rate = client.inspect("api").await.unwrap().rate.unwrap();
    assert_eq!((rate.per_client, rate.keep_alive), (false, Some(ms(1_500))));
    assert_eq!(names(&client, &[LockKind::RateLimiter], None).await, ["api"]);
    let counters = names(&client, &[LockKind::Counter], None).await;
    assert_eq!(counters, ["price:value"], "what a limiter counts with is no counter of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_changes_nothing_and_is_bounded() {
    let (server, client) = alone().await;
    let many: Vec<String> =
        (0..1_500).flat_map(|n| [format!("1b671a64-40d5-491e-99b0-da01ff1f3341:{n}"), "1".into()]).collect();
    let many: Vec<&str> =
        ["HSET", "crowd", "mode", "read"].into_iter().chain(many.iter().map(|s| &**s)).collect();
    server.cmd(&many).unwrap();
    server.cmd(&["PEXPIRE", "crowd", "60000"]).unwrap();
    hash(&server, "hoarder", &["mode", "read", A, "1000000000"], "60000");
    hash(&server, "held", &[A, "1"], "60000");
    let waiters: Vec<String> = (0..1_500).map(|n| format!("waiter-{n}")).collect();
    let waiters: Vec<(&str, Option<i64>)> = waiters.iter().map(|owner| (&**owner, None)).collect();
    queue(&server, "{held}", &waiters);
    for name in ["redisson_lock_token:{held}", "redisson_unlock_latch:{held}:0", "count"] {
        server.cmd(&["SET", name, "5"]).unwrap();
    }
    server.cmd(&["SET", "text", "12x"]).unwrap();
    server.cmd(&["SET", "long", &"9".repeat(21)]).unwrap();
    server.cmd(&["HSET", "app", "rate", "5", "color", "red"]).unwrap();
    // Keys of other types where helper keys would be.
    server.cmd(&["SET", "redisson_lock_queue:{odd}", "x"]).unwrap();
    hash(&server, "odd", &[B, "1"], "60000");
    let before = server.keys_dump().unwrap();

    let state = client.inspect("crowd").await.unwrap();
    assert_eq!((state.kind, state.holders.len()), (LockKind::ReadWrite, 0));
    assert_eq!(state.findings, ["1500 holders are too many to be shown"]);
    let state = soon("a look at a huge count", client.inspect("hoarder")).await.unwrap();
    assert_eq!((state.holders[0].holds, state.holders[0].lasting.len()), (1_000_000_000, 1_000));
    let state = client.inspect("held").await.unwrap();
    assert_eq!((state.waiting, state.waiters.len(), state.token), (1_500, 1_000, Some(5)));
    let state = client.inspect("odd").await.unwrap();
    assert!(state.kind == LockKind::Lock && state.findings[0].contains("could not be read"), "{state:?}");
    assert_eq!(client.inspect("long").await.unwrap().kind, LockKind::Other);

    let usual = client.list(None, 10).await.unwrap();
    let found: Vec<_> = usual.iter().map(|state| state.name.to_string()).collect();
    assert_eq!(found, ["crowd", "held", "hoarder", "odd"]);
    assert_eq!(names(&client, &[LockKind::Counter, LockKind::Other, LockKind::Free], None).await, ["count"]);
    assert_eq!(client.list(None, 2).await.unwrap().len(), 2);
    assert!(client.list(None, 0).await.unwrap().is_empty());
    let after = server.keys_dump().unwrap();
    assert_eq!(before.len(), after.len());
    for (key, was) in &before {
        assert_eq!(was.content, after[key].content, "{}", String::from_utf8_lossy(key));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_without_rights_to_helper_keys_still_sees_the_lock() {
    let server =
        RedisServer::builder().acl("narrow on >pw ~lock ~redisson_lock_token:* &* +@all").start().unwrap();
    hash(&server, "lock", &[A, "1"], "60000");
    queue(&server, "{lock}", &[(B, Some(60_000))]);
    let builder = Client::builder().url(server.url()).username("narrow").password("pw");
    let client = builder.connect().await.unwrap();
    let state = client.inspect("lock").await.unwrap();
    assert_eq!((state.kind, &*state.holders[0].owner), (LockKind::Lock, A));
    assert!(state.findings[0].contains("could not be read"), "{state:?}");
}
