//! Wire facts of locks over several members: keys, messages and calls of each step (`docs/protocol.md`, multi-lock).

use std::time::Instant;

use redlatch::{Client, ErrorKind, Lease, Member, MultiLock, Wait};
use redlatch_testkit::{
    assert_keyspace,
    proxy::Proxy,
    server::{KeyContent, RedisServer},
};

use crate::{
    fixture::{ms, soon},
    wire::{alone, heard},
};

fn multi(client: &Client, names: &[&str]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| client.lock(*name))).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_of_a_multi_lock_leaves_the_keys_and_messages_of_plain_locks() {
    let (server, client) = alone().await;
    let set = multi(&client, &["b", "a{t}", "c"]);
    let messages = heard(&server, async {
        let guard = set.lock_with_lease(ms(9_000)).await.unwrap();
        let owner = guard.members()[0].owner().to_text();
        let held = || KeyContent::hash([(owner.as_str(), "1")]);
        assert_keyspace!(
            server,
            tolerance_ms = 1_000,
            [("a{t}", held(), Some(9_000)), ("b", held(), Some(9_000)), ("c", held(), Some(9_000))]
        );
        guard.unlock().await.into_result().unwrap();
        assert_keyspace!(server, tolerance_ms = 1_000, []);
    })
    .await;
    let channels =
        ["redisson_lock__channel:{b}", "redisson_lock__channel:a{t}", "redisson_lock__channel:{c}"];
    let expected: Vec<_> = channels.iter().map(|channel| ((*channel).to_owned(), "0".to_owned())).collect();
    assert_eq!(messages, expected, "one message for each member");
    // A spin lock's release tells nobody, in a set as alone.
    let set = MultiLock::new([Member::from(client.spin_lock("s")), Member::from(client.lock("p"))]).unwrap();
    let messages = heard(&server, async { drop(set.lock().await.unwrap().unlock().await) }).await;
    assert_eq!(messages, [("redisson_lock__channel:{p}".to_owned(), "0".to_owned())]);
    // Tokens go on from where others left them.
    server.cmd(&["SET", "redisson_lock_token:{a}", "9000000000000000"]).unwrap();
    server.cmd(&["SET", "redisson_lock_token:{b}", "9000000000000007"]).unwrap();
    let guard = multi(&client, &["a", "b"]).acquire().fenced().await.unwrap().unwrap();
    assert_eq!(
        guard.tokens().collect::<Vec<_>>(),
        [Some(9_000_000_000_000_001), Some(9_000_000_000_000_008)]
    );
    guard.unlock().await.into_result().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_one_client_costs_two_calls_however_many_members_it_has() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::connect(&proxy.url()).await.unwrap();
    let names: Vec<String> = (0..8).map(|n| format!("n{n}")).collect();
    let set = MultiLock::new(names.iter().map(|name| client.lock(name.as_str()))).unwrap();
    set.lock().await.unwrap().unlock().await.into_result().unwrap();
    proxy.clear_log();
    set.lock().await.unwrap().unlock().await.into_result().unwrap();
    assert_eq!((proxy.count("EVALSHA"), proxy.count("EVAL")), (2, 0));
    proxy.clear_log();
    let guard = set.lock().await.unwrap();
    drop(guard);
    soon("the release", async {
        while client.stats().background_jobs > 0 {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    assert_eq!((proxy.count("EVALSHA"), proxy.count("EVAL")), (2, 0), "dropping costs the same");
    // A member that this process was granted less than 100 ms ago is busy without asking.
    soon("a look within that time", async {
        loop {
            let began = Instant::now();
            let held = client.lock("n3").lock().await.unwrap();
            proxy.clear_log();
            assert!(set.try_lock().await.unwrap().is_none());
            let (asked, took) = (proxy.count("EVALSHA"), began.elapsed());
            held.unlock().await.unwrap();
            if took < ms(100) {
                assert_eq!(asked, 0);
                return;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_another_kind_or_type_leaves_no_part_of_the_set() {
    let (server, client) = alone().await;
    for (make, kind) in [
        (["HSET", "b", "mode", "read"], ErrorKind::WrongLockKind),
        (["SET", "b", "text", "NX"], ErrorKind::WrongType),
    ] {
        server.cmd(&make).unwrap();
        let error = multi(&client, &["a", "b", "c"]).acquire().wait(Wait::Forever).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(server.cmd(&["DBSIZE"]).unwrap(), redis::Value::Int(1));
        server.flush_all().unwrap();
    }
    // A member that turned into something else while it was held does not keep the others from being released.
    let guard = multi(&client, &["a", "b", "c"]).lock().await.unwrap();
    server.cmd(&["SET", "b", "text"]).unwrap();
    let report = guard.unlock().await;
    assert!(!report.is_clean() && report.members[0].1.is_ok() && report.members[2].1.is_ok(), "{report:?}");
    assert_eq!(report.members[1].1.as_ref().unwrap_err().kind(), ErrorKind::WrongType);
    assert_eq!(server.cmd(&["DBSIZE"]).unwrap(), redis::Value::Int(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_for_the_whole_set_keeps_no_part_of_it() {
    let (server, client) = alone().await;
    let set = multi(&client, &["a", "b"]);
    set.lock().await.unwrap().unlock().await.into_result().unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let error = set.acquire().lease(Lease::Fixed(ms(5_000))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert_eq!(server.cmd(&["DBSIZE"]).unwrap(), redis::Value::Int(0));
}
