//! Wire facts: what the server holds and hears after each step, compared whole (`docs/protocol.md`).

use std::collections::BTreeMap;

use redlatch::{Client, Lease, Presence, scripts};
use redlatch_testkit::{
    assert_keyspace,
    proxy::Proxy,
    server::{KeyContent, RedisServer},
};

use crate::fixture::{IN_VAIN, RENEWED, ms, renewed, soon};

/// A server of its own, because the whole keyspace is compared.
/// Requests are counted here, and the client says nothing of itself.
pub(crate) async fn alone() -> (RedisServer, Client) {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).presence(Presence::untold()).connect().await.unwrap();
    (server, client)
}

fn hash(owner: &str, count: &str) -> KeyContent {
    KeyContent::hash([(owner, count)])
}

/// Everything published while `work` runs, up to a mark that is published last.
pub(crate) async fn heard(server: &RedisServer, work: impl Future<Output = ()>) -> Vec<(String, String)> {
    let client = redis::Client::open(server.url()).unwrap();
    let mut ear = client.get_connection().unwrap();
    let mut ear = ear.as_pubsub();
    ear.psubscribe("*").unwrap();
    work.await;
    server.cmd(&["PUBLISH", "end", "end"]).unwrap();
    let mut messages = Vec::new();
    loop {
        let message = ear.get_message().unwrap();
        let heard = (message.get_channel_name().to_owned(), message.get_payload::<String>().unwrap());
        if heard.0 == "end" {
            return messages;
        }
        messages.push(heard);
    }
}

/// Asserts what is recorded of a lock that was forced free, and takes the record away.
#[track_caller]
pub(crate) fn take_record(server: &RedisServer, name: &str, by: &Client, fields: &[&str]) {
    let key = format!("redlatch_forced:{{{name}}}");
    let record = server.keys_dump().unwrap().remove(key.as_bytes()).expect("a record");
    let KeyContent::Hash(mut notes) = record.content else { panic!("{:?}", record.content) };
    for field in fields {
        let note = String::from_utf8(notes.remove(field.as_bytes()).expect("the holder is noted")).unwrap();
        let [nothing, time, who, why] = note.split('\n').collect::<Vec<_>>()[..] else { panic!("{note:?}") };
        assert_eq!((nothing, who, why), ("", by.id(), ""));
        assert!(
            time.len() == 13 && time.bytes().all(|digit| digit.is_ascii_digit()),
            "ms since 1970: {time}"
        );
    }
    assert!(notes.is_empty(), "{notes:?}");
    let left = record.pttl_ms.expect("it ends");
    assert!((50_000..=60_000).contains(&left), "{left}");
    server.cmd(&["DEL", &key]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_leaves_the_documented_keys() {
    let (server, client) = alone().await;
    let lock = client.lock("stock:1");
    let guard = lock.lock().await.unwrap();
    let owner = guard.owner().to_text();
    assert!(owner.starts_with(client.id()), "the field is client:number: {owner}");
    assert_keyspace!(server, tolerance_ms = 1_000, [("stock:1", hash(&owner, "1"), Some(30_000))]);
    let inner = guard.reenter().await.unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, [("stock:1", hash(&owner, "2"), Some(30_000))]);
    inner.unlock().await.unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, [("stock:1", hash(&owner, "1"), Some(30_000))]);
    guard.unlock().await.unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, []);
    let guard = lock.lock_with_lease(ms(5_000)).await.unwrap();
    let owner = guard.owner().to_text();
    assert_keyspace!(server, tolerance_ms = 1_000, [("stock:1", hash(&owner, "1"), Some(5_000))]);
    lock.force_unlock().await.unwrap();
    take_record(&server, "stock:1", &client, &[&owner]);
    assert_keyspace!(server, tolerance_ms = 1_000, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_counter_is_the_shared_one_and_never_expires() {
    let (server, client) = alone().await;
    server.cmd(&["SET", "redisson_lock_token:{f}", "9000000000000000"]).unwrap();
    let guard = client.lock("f").acquire().fenced().await.unwrap().unwrap();
    assert_eq!(guard.token(), Some(9_000_000_000_000_001), "goes on from where others left it");
    let owner = guard.owner().to_text();
    assert_keyspace!(
        server,
        tolerance_ms = 1_000,
        [
            ("f", hash(&owner, "1"), Some(30_000)),
            ("redisson_lock_token:{f}", KeyContent::string("9000000000000001"), None),
        ]
    );
    guard.unlock().await.unwrap();
    server.flush_all().unwrap();
    let before = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64 - 1_000_000;
    let guard = client.lock("f").acquire().fenced().await.unwrap().unwrap();
    assert!(guard.token().unwrap() > before, "a lost counter starts at the clock, not at 1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_cannot_be_drawn_leaves_no_lock() {
    let (server, client) = alone().await;
    server.cmd(&["SET", "redisson_lock_token:{t}", "no number"]).unwrap();
    assert!(client.lock("t").acquire().fenced().await.is_err());
    assert_keyspace!(
        server,
        tolerance_ms = 1_000,
        [("redisson_lock_token:{t}", KeyContent::string("no number"), None)]
    );
    server.cmd(&["DEL", "redisson_lock_token:{t}"]).unwrap();
    server.cmd(&["LPUSH", "redisson_lock_token:{t}", "x"]).unwrap();
    let error = client.lock("t").acquire().fenced().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), redlatch::ErrorKind::WrongType, "{error}");
    assert!(!client.lock("t").is_locked().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_release_sends_one_message_and_nothing_else_does() {
    let (server, client) = alone().await;
    let other = Client::connect(&server.url()).await.unwrap();
    for (name, channel) in [("m", "redisson_lock__channel:{m}"), ("a{b}c", "redisson_lock__channel:a{b}c")] {
        let lock = client.lock(name);
        let messages = heard(&server, async {
            let guard = lock.lock().await.unwrap();
            let inner = guard.reenter().await.unwrap();
            assert!(other.lock(name).try_lock().await.unwrap().is_none());
            inner.unlock().await.unwrap();
        })
        .await;
        // The guard of the block above was dropped at its end, and its release is in the background.
        soon("the release", async { while lock.is_locked().await.unwrap() {} }).await;
        assert!(
            messages.iter().all(|message| *message == (channel.to_owned(), "0".to_owned())),
            "{messages:?}"
        );
        let messages = heard(&server, async {
            lock.lock().await.unwrap().unlock().await.unwrap();
            let _held = lock.lock().await.unwrap();
            lock.force_unlock().await.unwrap();
        })
        .await;
        assert_eq!(messages, vec![(channel.to_owned(), "0".to_owned()); 2]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_pair_is_two_commands() {
    let (server, client) = alone().await;
    let lock = client.lock("pair");
    lock.lock().await.unwrap().unlock().await.unwrap();
    server.reset_command_counts().unwrap();
    for _ in 0..10 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    let mut counts = server.command_counts().unwrap();
    // A server that is slow for a moment is asked whether it is there.
    let others = ["config|resetstat", "info", "auth", "hello", "ping"];
    counts.retain(|command, _| !others.contains(&command.as_str()));
    let sent: BTreeMap<&str, u64> =
        counts.iter().map(|(command, count)| (command.as_str(), *count)).collect();
    assert_eq!(sent.get("evalsha"), Some(&20), "{sent:?}");
    // Inside the scripts: look, write, lease; and remove, tell. Nothing for idempotence.
    for (command, calls) in [("pttl", 10), ("hset", 10), ("pexpire", 10), ("hdel", 10), ("publish", 10)] {
        assert_eq!(sent.get(command), Some(&calls), "{sent:?}");
    }
    assert_eq!(sent.len(), 6, "{sent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_come_in_batches_of_a_hundred() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let mut guards = Vec::new();
    for n in 0..250 {
        guards.push(client.lock(format!("batch-{n}")).lock().await.unwrap());
    }
    // Two periods bring every lock into step; then the calls of two periods are counted.
    let first = &guards[0];
    renewed(2, async || first.remaining()).await;
    server.reset_command_counts().unwrap();
    renewed(2, async || first.remaining()).await;
    let calls = server.command_count("evalsha").unwrap();
    assert!(
        (4..=8).contains(&calls),
        "250 names are three calls a period, of which two may fall outside at either end: {calls}"
    );
    assert!(guards.iter().all(redlatch::Guard::is_valid));
    assert!(server.command_count("pexpire").unwrap() >= 250);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_one_process_share_one_subscription_which_ends_with_them() {
    let (server, client) = alone().await;
    let other = Client::connect(&server.url()).await.unwrap();
    let guard = other.lock("sub").lock().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..50 {
        let lock = client.lock("sub");
        waiters.push(tokio::spawn(async move { lock.lock_for(ms(5_000)).await.unwrap().map(|_| ()) }));
    }
    soon("the subscription", async {
        while server.subscriber_channels().unwrap() != [b"redisson_lock__channel:{sub}".to_vec()] {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    let redis::Value::Array(counts) =
        server.cmd(&["PUBSUB", "NUMSUB", "redisson_lock__channel:{sub}"]).unwrap()
    else {
        panic!()
    };
    assert_eq!(counts[1], redis::Value::Int(1), "one for the process, however many wait");
    guard.unlock().await.unwrap();
    for waiter in waiters {
        assert!(soon("each waiter's turn", waiter).await.unwrap().is_some());
    }
    soon("the end of the subscription", async {
        while !server.subscriber_channels().unwrap().is_empty() {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_states_left_by_others_are_waited_for_and_reported() {
    let (server, client) = alone().await;
    let java = "1b671a64-40d5-491e-99b0-da01ff1f3341:64";
    let cases: [(&str, Vec<&str>, i64); 5] = [
        ("no-ttl", vec![java, "1"], 0),
        ("negative", vec![java, "-3"], 60_000),
        ("huge", vec![java, "9223372036854775807"], 60_000),
        ("two-owners", vec![java, "1", "1b671a64-40d5-491e-99b0-da01ff1f3341:65", "1"], 60_000),
        ("junk", vec![java, "1", "color", "red"], 60_000),
    ];
    for (name, fields, ttl_ms) in &cases {
        server.cmd(&[vec!["HSET", name], fields.clone()].concat()).unwrap();
        if *ttl_ms > 0 {
            server.cmd(&["PEXPIRE", name, &ttl_ms.to_string()]).unwrap();
        }
        assert!(client.lock(*name).try_lock().await.unwrap().is_none(), "{name}");
        assert!(client.lock(*name).lock_for(IN_VAIN).await.unwrap().is_none(), "{name}");
        let state = client.inspect(*name).await.unwrap();
        assert_eq!(state.findings.is_empty(), *name == "huge", "{name}: {state:?}");
        assert_eq!(state.ttl_missing, *name == "no-ttl");
        assert!(client.lock(*name).force_unlock().await.unwrap(), "{name}");
        assert!(client.lock(*name).try_lock().await.unwrap().is_some(), "{name}");
    }
    // A read-write lock under the same name belongs to another kind, and is not overrun.
    server.cmd(&["HSET", "rw", "mode", "read", java, "1"]).unwrap();
    server.cmd(&["PEXPIRE", "rw", "60000"]).unwrap();
    let error = client.lock("rw").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), redlatch::ErrorKind::WrongLockKind, "{error}");
    assert_eq!(
        client.lock("rw").force_unlock().await.unwrap_err().kind(),
        redlatch::ErrorKind::WrongLockKind
    );
    // A waiter without limit is not held up by a key without end once a user frees it by hand, without a message.
    server.cmd(&["HSET", "stuck", java, "1"]).unwrap();
    let lock = client.lock("stuck");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    tokio::time::sleep(ms(100)).await;
    server.cmd(&["DEL", "stuck"]).unwrap();
    soon("the poll", waiter).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_of_java_is_entered_by_nobody_else() {
    let (server, client) = alone().await;
    // The same number as one of ours, under another client's identity.
    server.cmd(&["HSET", "j", "1b671a64-40d5-491e-99b0-da01ff1f3341:1", "2"]).unwrap();
    server.cmd(&["PEXPIRE", "j", "300"]).unwrap();
    assert!(client.lock("j").try_lock().await.unwrap().is_none());
    let guard = soon("the end of the lease", client.lock("j").lock()).await.unwrap();
    assert_keyspace!(
        server,
        tolerance_ms = 1_000,
        [("j", hash(&guard.owner().to_text(), "1"), Some(30_000))]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nested_process_enters_by_the_owner_it_was_given() {
    let (server, client) = alone().await;
    let nested = Client::connect(&server.url()).await.unwrap();
    let outer = client.lock("n").lock().await.unwrap();
    let owner: redlatch::Owner = outer.owner().to_text().parse().unwrap();
    let inner =
        nested.lock("n").acquire().owner(&owner).lease(Lease::Fixed(ms(60_000))).await.unwrap().unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, [("n", hash(&owner.to_text(), "2"), Some(60_000))]);
    // The outer process ends first: the nested one still holds.
    outer.unlock().await.unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, [("n", hash(&owner.to_text(), "1"), Some(60_000))]);
    inner.unlock().await.unwrap();
    assert_keyspace!(server, tolerance_ms = 1_000, []);
}

/// An owner that another process may use asks for its first hold, and enters if it has one: one request for a free lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_was_written_out_asks_for_its_first_hold_and_enters_another() {
    let server = RedisServer::start().unwrap();
    for script in scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::connect(&proxy.url()).await.unwrap();
    let nested = Client::connect(&proxy.url()).await.unwrap();
    let owner = client.owner();
    let text = owner.to_text();
    let mut numbers = std::collections::HashSet::new();
    let mut sent = || {
        let sent = proxy.with_log(|log| {
            let scripts = log.requests().filter(|request| request.args[0].eq_ignore_ascii_case(b"EVALSHA"));
            let texts = |request: &redlatch_testkit::proxy::RequestRecord| {
                request.args[1..]
                    .iter()
                    .map(|arg| String::from_utf8(arg.clone()).unwrap())
                    .collect::<Vec<_>>()
            };
            scripts.map(texts).collect::<Vec<_>>()
        });
        proxy.clear_log();
        let apart = |mut args: Vec<String>| {
            let number = args.remove(3);
            assert!(numbers.insert(number), "each request has a number of its own");
            args
        };
        sent.into_iter().map(apart).collect::<Vec<_>>()
    };
    sent();
    let (acquire, enter) = (scripts::ACQUIRE.sha1(), scripts::ENTER.sha1());
    let first = client.lock("n").acquire().owner(&owner).await.unwrap().unwrap();
    assert_eq!(sent(), [vec![acquire, "1", "n", &text, "30000", "0", "1"]]);
    let told = text.parse().unwrap();
    let second = nested.lock("n").acquire().owner(&told).await.unwrap().unwrap();
    assert_eq!(
        sent(),
        [vec![acquire, "1", "n", &text, "30000", "0", "1"], vec![enter, "1", "n", &text, "30000"]]
    );
    first.unlock().await.unwrap();
    second.unlock().await.unwrap();
    sent();
    // One that only its process knows asks as ever.
    let fresh = client.owner();
    let _guard = client.lock("n").acquire().owner(&fresh).await.unwrap().unwrap();
    assert_eq!(sent()[0][..3], [acquire, "1", "n"]);
    assert_eq!(proxy.count("EVALSHA"), 0);
}

/// What says that the owner holds already changes nothing, and no replica says it.
#[test]
fn an_owner_that_asks_for_its_first_hold_and_has_one_changes_nothing() {
    let (server, replica) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let (java, owner) = ("1b671a64-40d5-491e-99b0-da01ff1f3341:1", "1b671a64-40d5-491e-99b0-da01ff1f3341:7");
    let writes = format!("{owner}:write");
    let timeout = format!("{{x}}:{owner}:rwlock_timeout:1");
    let plain = ["HSET", "x", owner, "2"];
    let reads = ["HSET", "x", "mode", "read", owner, "2", java, "1"];
    let both = ["HSET", "x", "mode", "write", &writes, "1", owner, "1"];
    let keys = ["x", "{x}:", "t"];
    let fair = [
        &["x", "q", "times", "t"][..],
        &["7", owner, "5000", "1", "30000", "c", "publish", "5000", "1", "1"],
    ];
    let rw = [&keys[..], &["7", owner, "5000", "1", "1"]];
    for (script, hash, call) in [
        (&scripts::ACQUIRE, &plain[..], [&["x", "t"][..], &["7", owner, "5000", "1", "1"]]),
        (&scripts::FAIR_ACQUIRE, &plain, fair),
        (&scripts::READ_ACQUIRE, &reads, rw),
        (&scripts::READ_ACQUIRE, &both, rw),
        (&scripts::WRITE_ACQUIRE, &both, rw),
    ] {
        let count = call[0].len().to_string();
        let call = [&["EVAL", script.source(), &count], call[0], call[1]].concat();
        for server in [&server, &replica] {
            server.cmd(&["FLUSHALL"]).unwrap();
            server.cmd(hash).unwrap();
            server.cmd(&["PEXPIRE", "x", "90000"]).unwrap();
            server.cmd(&["SET", &timeout, "1", "PX", "80000"]).unwrap();
        }
        let found = server.keys_dump().unwrap();
        let answer = redis::Value::Array([7, 0, -5].map(redis::Value::Int).into());
        assert_eq!(server.cmd(&call).unwrap(), answer, "{}", script.name());
        let left = server.keys_dump().unwrap();
        assert_eq!(left.len(), found.len(), "{}", script.name());
        for (key, before) in &found {
            assert_eq!(left[key].content, before.content, "{}", script.name());
            assert!((70_000..=90_000).contains(&left[key].pttl_ms.unwrap()), "{}", script.name());
        }
        // A replica whose master is elsewhere keeps what it has, and grants nothing.
        replica.cmd(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
        let refused = replica.cmd(&call);
        replica.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
        let refused = format!("{refused:?}");
        assert!(refused.to_lowercase().contains("readonly"), "{}: {refused}", script.name());
    }
}

/// The daemon runs only the scripts it was built with, so a changed script needs a new epoch. When this fails: raise
/// `scripts::EPOCH`, and put the new sum here.
#[test]
fn the_epoch_goes_with_the_scripts() {
    let mut all: Vec<String> =
        scripts::ALL.iter().map(|script| format!("{}={}", script.name(), script.sha1())).collect();
    all.sort();
    // The beginnings that some calls put before a script are part of the library only.
    all.push(scripts::library());
    let sum = sha1_smol::Sha1::from(all.join("\n")).hexdigest();
    assert_eq!((scripts::EPOCH, &sum[..12]), (29, "8064c7fb1597"), "a script has changed");
}
