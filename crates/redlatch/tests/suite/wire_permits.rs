//! Wire facts of leased permits: keys, members, times and messages after each step (`docs/protocol.md`, leased permits).

use std::time::{Duration, SystemTime};

use redlatch::{Client, ErrorKind, Lease, PermitLease, PermitSemaphore, Unlocked, Wait};
use redlatch_testkit::server::{KeyContent, RedisServer};

use crate::{
    fixture::{RENEWED, ms, renewed, soon},
    wire::{alone, heard},
};

const NEVER: i64 = 922_337_203_685_477;

fn told(payloads: &[&str]) -> Vec<(String, String)> {
    payloads.iter().map(|payload| ("redisson_sc:{p}".to_owned(), (*payload).to_owned())).collect()
}

fn now_ms() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64
}

/// The bytes of ids.
fn raw(ids: &[String]) -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    ids.iter().map(|id| id.as_bytes().chunks(2).map(byte).collect()).collect()
}

/// The whole keyspace is the counter and the sorted set of this semaphore: free permits, and each member with its score.
#[track_caller]
fn keys(server: &RedisServer) -> (Option<String>, Vec<(Vec<u8>, i64)>) {
    let mut dump = server.keys_dump().unwrap();
    let free = dump.remove(b"p".as_slice()).map(|key| match key.content {
        KeyContent::String(text) => String::from_utf8(text).unwrap(),
        other => panic!("the counter is {other:?}"),
    });
    let taken = dump.remove(b"{p}:timeout".as_slice()).map_or(Vec::new(), |key| match key.content {
        KeyContent::SortedSet(items) => items
            .into_iter()
            .map(|(id, score)| {
                let score = String::from_utf8(score).unwrap();
                (id, score.parse().unwrap_or_else(|_| panic!("the score {score} is no plain integer")))
            })
            .collect(),
        other => panic!("the taken permits are {other:?}"),
    });
    assert!(dump.is_empty(), "nothing else: {dump:?}");
    (free, taken)
}

/// Asserts the counter and the members, and that each ends about then.
#[track_caller]
fn assert_keys(server: &RedisServer, free: &str, ids: &[String], lease_ms: i64) {
    let (found, taken) = keys(server);
    assert_eq!(found.as_deref(), Some(free));
    let (mut members, mut expected) = (taken.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), raw(ids));
    members.sort();
    expected.sort();
    assert_eq!(members, expected, "the raw bytes of the ids");
    for (_, score) in taken {
        let off = (score - now_ms() - lease_ms).abs();
        assert!(off < 1_000 || score == lease_ms, "the score {score} is {off} ms off");
    }
}

async fn take(semaphore: &PermitSemaphore, n: u32, lease: Duration) -> Vec<String> {
    let guard = semaphore.request().permits(n).lease(Lease::Fixed(lease)).await.unwrap();
    guard.expect("enough are free").detach()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_step_of_leased_permits_leaves_the_documented_keys_and_messages() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("p");
    let messages = heard(&server, async {
        assert!(semaphore.set_if_absent(5).await.unwrap());
        assert_keys(&server, "5", &[], 0);
        assert!(!semaphore.set_if_absent(9).await.unwrap());
    })
    .await;
    assert_eq!(messages, told(&["5"]), "set once, told once");
    let mut ids = Vec::new();
    let messages = heard(&server, async {
        let guard = semaphore.acquire().await.unwrap();
        assert_keys(&server, "4", &guard.ids(), 30_000);
        ids = take(&semaphore, 3, ms(60_000)).await;
        assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
        assert_keys(&server, "2", &ids, 60_000);
        assert!(semaphore.request().permits(3).await.unwrap().is_none());
        assert_keys(&server, "2", &ids, 60_000);
    })
    .await;
    assert_eq!(messages, told(&["2"]), "only giving back is told: the total");
    let messages = heard(&server, async {
        assert!(semaphore.update_lease(&ids[0], ms(10_000)).await.unwrap());
        assert!(semaphore.update_lease(&ids[1], ms(10_000)).await.unwrap());
        assert!(semaphore.update_lease(&ids[2], ms(10_000)).await.unwrap());
        assert_keys(&server, "2", &ids, 10_000);
        semaphore.release(&ids[0]).await.unwrap();
        assert_keys(&server, "3", &ids[1..], 10_000);
        semaphore.release_all(&ids[1..]).await.unwrap();
        assert_keys(&server, "5", &[], 0);
    })
    .await;
    assert_eq!(messages, told(&["3", "5"]), "S4: the total, also for several");
    let messages = heard(&server, async {
        let forever = semaphore.request().permanent().await.unwrap().unwrap();
        assert_keys(&server, "4", &forever.ids(), NEVER);
        assert_eq!(forever.remaining(), Duration::MAX);
        assert_eq!(semaphore.lease_of(forever.id()).await.unwrap(), Some(PermitLease::Permanent));
        assert_eq!(semaphore.set(3).await.unwrap(), 2);
        assert_eq!(semaphore.add(-3).await.unwrap(), -1);
        assert_eq!(semaphore.set(0).await.unwrap(), -1, "that is the total already");
        assert_eq!(semaphore.add(4).await.unwrap(), 3);
        assert_keys(&server, "3", &forever.ids(), NEVER);
        assert_eq!(forever.release().await.unwrap(), Unlocked::Released);
    })
    .await;
    assert_eq!(messages, told(&["2", "3", "4"]), "S2: what nobody can take from is not told");
    let messages = heard(&server, async {
        take(&semaphore, 1, ms(60_000)).await;
        assert!(semaphore.delete().await.unwrap());
        assert_eq!(keys(&server), (None, Vec::new()));
        assert!(!semaphore.delete().await.unwrap());
        let error = semaphore.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
        assert_eq!(keys(&server), (None, Vec::new()));
    })
    .await;
    assert_eq!(messages, told(&["1"]), "who waits for what was deleted learns of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_with_braces_has_its_members_under_them() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("a{b}c");
    semaphore.set_if_absent(1).await.unwrap();
    let _guard = semaphore.acquire().await.unwrap();
    let names: Vec<_> = server.keys_dump().unwrap().into_keys().collect();
    assert_eq!(names, [b"a{b}c".to_vec(), b"a{b}c:timeout".to_vec()]);
}

/// Taken permits whose time is up, as if their holders had gone.
fn run_out(server: &RedisServer, n: usize) {
    for part in (0..n).collect::<Vec<_>>().chunks(1_000) {
        let mut command: Vec<Vec<u8>> = vec![b"ZADD".to_vec(), b"{p}:timeout".to_vec()];
        for at in part {
            command.push((now_ms() - 1 - *at as i64).to_string().into_bytes());
            command.push(format!("{at:016}").into_bytes());
        }
        server.cmd(&command).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_thousand_and_one_permits_that_ran_out_come_back_in_every_operation() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("p");
    let number = 8_001;
    let total = number.to_string();
    for operation in ["take", "busy", "release", "release_all", "look", "lease_of", "set", "add"] {
        server.flush_all().unwrap();
        server.cmd(&["SET", "p", "0"]).unwrap();
        run_out(&server, number);
        let messages = heard(&server, async {
            match operation {
                "take" => drop(semaphore.try_acquire().await.unwrap().expect("8,001 came back")),
                "busy" => {
                    server.cmd(&["SET", "p", "-8001"]).unwrap();
                    assert!(semaphore.try_acquire().await.unwrap().is_none());
                    server.cmd(&["INCRBY", "p", "8001"]).unwrap();
                }
                "release" => {
                    let live = "00112233445566778899aabbccddeeff";
                    let member = raw(&[live.to_owned()]).remove(0);
                    let score = (now_ms() + 60_000).to_string();
                    server.cmd(&[b"ZADD", b"{p}:timeout".as_slice(), score.as_bytes(), &member]).unwrap();
                    server.cmd(&["SET", "p", "-1"]).unwrap();
                    semaphore.release(live).await.unwrap();
                }
                "release_all" => {
                    let absent = ["00112233445566778899aabbccddeeff"; 3];
                    let error = semaphore.release_all(&absent).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::NotOwner, "{error}");
                }
                "look" => assert_eq!(semaphore.available().await.unwrap(), 8_001),
                "lease_of" => {
                    assert!(semaphore.lease_of("30303030303030303030303030303030").await.unwrap().is_none());
                }
                "set" => assert_eq!(semaphore.set(8_001).await.unwrap(), 8_001),
                _ => {
                    server.cmd(&["SET", "p", "5"]).unwrap();
                    assert_eq!(semaphore.add(-5).await.unwrap(), 8_001);
                }
            }
        })
        .await;
        // The guard of `take` goes in the background.
        soon("its release", async {
            while client.stats().background_jobs > 0 {
                tokio::time::sleep(ms(2)).await;
            }
        })
        .await;
        assert_eq!(keys(&server), (Some(total.clone()), Vec::new()), "{operation}");
        let expected: &[&str] = match operation {
            "take" if messages.len() == 2 => &["8001", "8001"],
            "busy" => &[],
            _ => &["8001"],
        };
        assert_eq!(messages, told(expected), "{operation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_again_with_the_same_ids_counts_once() {
    let (server, client) = alone().await;
    client.permit_semaphore("p").set_if_absent(5).await.unwrap();
    let script = &redlatch::scripts::PERMIT_TAKE;
    let take = |ids: &str, lease: &str| {
        let args =
            ["EVAL", script.source(), "2", "p", "{p}:timeout", "7", ids, lease, "redisson_sc:{p}", "publish"];
        match server.cmd(&args).unwrap() {
            redis::Value::Array(items) => items,
            other => panic!("{other:?}"),
        }
    };
    // So many are granted, and three of the five are left.
    let granted = |n| vec![redis::Value::Int(7), redis::Value::Int(n), redis::Value::Int(3)];
    let ids = "aaaaaaaaaaaaaaaabbbbbbbbbbbbbbbb";
    assert_eq!(take(ids, "60000"), granted(2));
    assert_eq!(take(ids, "90000"), granted(2), "granted again");
    let (free, taken) = keys(&server);
    assert_eq!((free.as_deref(), taken.len()), (Some("3"), 2), "and counted once");
    assert!(taken.iter().all(|(_, score)| *score > now_ms() + 80_000), "from the later asking on");
    // Another client gave one of the two back by its id: what is missing is taken anew.
    server.cmd(&["ZREM", "{p}:timeout", "aaaaaaaaaaaaaaaa"]).unwrap();
    server.cmd(&["INCR", "p"]).unwrap();
    assert_eq!(take(ids, "60000"), granted(2));
    assert_eq!(keys(&server).0.as_deref(), Some("3"));
    // Their time is up: they come back, and asking again is a fresh request.
    for id in ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"] {
        server.cmd(&["ZADD", "{p}:timeout", "1", id]).unwrap();
    }
    assert_eq!(take(ids, "60000"), granted(2));
    assert_eq!((keys(&server).0.as_deref(), keys(&server).1.len()), (Some("3"), 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_a_time_to_live_outlasts_every_change_and_covers_the_members() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("p");
    semaphore.set_if_absent(5).await.unwrap();
    assert!(semaphore.expire(ms(60_000)).await.unwrap());
    let id = take(&semaphore, 1, ms(5_000)).await.remove(0);
    let lives = |what: &str| {
        for key in ["p", "{p}:timeout"] {
            let Ok(redis::Value::Int(ttl)) = server.cmd(&["PTTL", key]) else {
                panic!("PTTL answers a number")
            };
            assert!((58_000..=60_000).contains(&ttl), "{key} after {what}: {ttl}");
        }
    };
    lives("taking");
    semaphore.add(3).await.unwrap();
    lives("adding");
    semaphore.set(3).await.unwrap();
    lives("setting");
    assert!(semaphore.update_lease(&id, ms(9_000)).await.unwrap());
    lives("a new lease");
    let other = take(&semaphore, 1, ms(5_000)).await.remove(0);
    semaphore.release(&id).await.unwrap();
    lives("giving back");
    assert!(semaphore.expire(ms(30)).await.unwrap());
    tokio::time::sleep(ms(40)).await;
    assert_eq!(keys(&server), (None, Vec::new()));
    assert!(!semaphore.expire(ms(30)).await.unwrap());
    semaphore.release(&other).await.unwrap_err();
    assert_eq!(keys(&server), (None, Vec::new()), "what is gone does not come back with one permit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_written_as_text_by_old_releases_are_found() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("p");
    semaphore.set_if_absent(3).await.unwrap();
    let ids = ["00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"];
    let hold = || {
        for id in ids {
            server.cmd(&["ZADD", "{p}:timeout", &(now_ms() + 60_000).to_string(), id]).unwrap();
        }
        server.cmd(&["SET", "p", "1"]).unwrap();
    };
    hold();
    let Some(PermitLease::Ends(left)) = semaphore.lease_of(ids[0]).await.unwrap() else {
        panic!("it is taken")
    };
    assert!(left > ms(58_000) && left <= ms(60_000), "{left:?}");
    assert!(semaphore.update_lease(&ids[0].to_uppercase(), ms(5_000)).await.unwrap());
    let (_, taken) = keys(&server);
    assert_eq!(taken.len(), 2, "no member beside the one that is there: {taken:?}");
    assert!(taken[0].0 == ids[0].as_bytes() && taken[0].1 < now_ms() + 6_000, "{taken:?}");
    semaphore.release(ids[0]).await.unwrap();
    semaphore.release(ids[0]).await.unwrap_err();
    assert_eq!((keys(&server).0.as_deref(), keys(&server).1.len()), (Some("2"), 1));
    hold();
    semaphore.release_all(&ids).await.unwrap();
    assert_eq!(keys(&server), (Some("3".to_owned()), Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_permit_semaphore_is_reported_and_kept() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("p");
    let id = "00112233445566778899aabbccddeeff";
    let refused = async || {
        let before = server.keys_dump().unwrap();
        for error in [
            semaphore.try_acquire().await.map(drop).unwrap_err(),
            semaphore.release(id).await.unwrap_err(),
            semaphore.available().await.map(drop).unwrap_err(),
            semaphore.set(3).await.map(drop).unwrap_err(),
            semaphore.add(3).await.map(drop).unwrap_err(),
            semaphore.delete().await.map(drop).unwrap_err(),
            semaphore.expire(ms(50)).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
        }
        assert_eq!(server.keys_dump().unwrap(), before);
    };
    server.cmd(&["SET", "p", "text"]).unwrap();
    refused().await;
    server.cmd(&["DEL", "p"]).unwrap();
    server.cmd(&["HSET", "p", "a", "1"]).unwrap();
    refused().await;
    server.cmd(&["DEL", "p"]).unwrap();
    server.cmd(&["SET", "p", "1"]).unwrap();
    server.cmd(&["SET", "{p}:timeout", "text"]).unwrap();
    refused().await;
    let error = semaphore.update_lease(id, ms(1_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_memory_stops_taking_and_nothing_else() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let semaphore = client.permit_semaphore("p");
    semaphore.set_if_absent(3).await.unwrap();
    let guard = semaphore.acquire().await.unwrap();
    let id = take(&semaphore, 1, ms(60_000)).await.remove(0);
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let error = semaphore.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert_eq!(keys(&server).0.as_deref(), Some("1"), "nothing was counted");
    renewed(2, async || guard.remaining()).await;
    assert!(guard.is_valid());
    assert!(semaphore.update_lease(&id, ms(90_000)).await.unwrap());
    semaphore.release(&id).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
    assert_eq!(keys(&server), (Some("3".to_owned()), Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_became_a_replica_is_an_error_and_no_loss() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(ms(3_000)).connect().await.unwrap();
    let semaphore = client.permit_semaphore("p");
    semaphore.set_if_absent(1).await.unwrap();
    let guard = semaphore.acquire().await.unwrap();
    server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    let error = semaphore.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "busy would mean waiting here: {error}");
    let other = client.permit_semaphore("q");
    let error = other.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "not set up would be a guess: {error}");
    let error = semaphore.update_lease("00112233445566778899aabbccddeeff", ms(1_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "absent would be a guess: {error}");
    assert!(guard.is_valid());
    server.cmd(&["REPLICAOF", "NO", "ONE"]).unwrap();
    assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_a_waiter_finds_permits_that_no_message_told_of() {
    let (server, client) = alone().await;
    server.cmd(&["SET", "p", "0"]).unwrap();
    let semaphore = client.permit_semaphore("p");
    let waiter = tokio::spawn(async move { semaphore.request().wait(Wait::Forever).await.unwrap().unwrap() });
    tokio::time::sleep(ms(50)).await;
    server.cmd(&["SET", "p", "1"]).unwrap();
    let guard = soon("the poll", waiter).await.unwrap();
    assert_keys(&server, "0", &guard.ids(), 30_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_whose_ids_an_error_has_shown_are_given_back_as_ever() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("p");
    semaphore.set_if_absent(100).await.unwrap();
    for gone in [false, true] {
        let guard = semaphore.request().permits(40).await.unwrap().unwrap();
        server.cmd(&["RENAME", "{p}:timeout", "{p}:aside"]).unwrap();
        server.cmd(&["SET", "{p}:timeout", "text"]).unwrap();
        let error = guard.extend(ms(60_000)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongType);
        let text = error.to_string();
        assert!(
            text.contains(guard.id()) && text.len() < 600,
            "the owner is named, at bearable length: {text}"
        );
        server.cmd(&["RENAME", "{p}:aside", "{p}:timeout"]).unwrap();
        let expected = if gone {
            let other = Client::connect(&server.url()).await.unwrap();
            other.permit_semaphore("p").release_all(&guard.ids()).await.unwrap();
            Unlocked::AlreadyLost(redlatch::LossReason::Deleted)
        } else {
            Unlocked::Released
        };
        assert_eq!(guard.release().await.unwrap(), expected);
        assert_eq!(keys(&server), (Some("100".to_owned()), Vec::new()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_when_the_next_permit_ends() {
    let (server, _client) = alone().await;
    let refused = || {
        let script = &redlatch::scripts::PERMIT_TAKE;
        let (id, channel) = ("aaaaaaaaaaaaaaaa", "redisson_sc:{p}");
        let args = ["EVAL", script.source(), "2", "p", "{p}:timeout", "7", id, "60000", channel, "publish"];
        match server.cmd(&args).unwrap() {
            redis::Value::Array(items) => match items[..] {
                [redis::Value::Int(7), redis::Value::Int(0), redis::Value::Int(hint)] => hint,
                _ => panic!("{items:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    server.cmd(&["SET", "p", "0"]).unwrap();
    assert_eq!(refused(), -1, "none is taken");
    server.cmd(&["ZADD", "{p}:timeout", &NEVER.to_string(), "forever"]).unwrap();
    assert_eq!(refused(), -1, "none ever ends");
    for ahead in [70_000, 20_000] {
        server.cmd(&["ZADD", "{p}:timeout", &(now_ms() + ahead).to_string(), &ahead.to_string()]).unwrap();
        let hint = refused();
        assert!(hint > ahead - 2_000 && hint <= ahead, "{hint} for {ahead}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_of_a_counter_that_is_gone_do_not_bring_it_back() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("p");
    semaphore.set_if_absent(3).await.unwrap();
    let guard = semaphore.acquire().await.unwrap();
    let ids = take(&semaphore, 1, ms(60_000)).await;
    server.cmd(&["ZADD", "{p}:timeout", "1", "over"]).unwrap();
    server.cmd(&["DEL", "p"]).unwrap();
    let error = semaphore.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
    assert_eq!(semaphore.available().await.unwrap(), 0);
    semaphore.release_all(&ids).await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
    assert_eq!(keys(&server), (None, Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_is_not_prolonged() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("p");
    semaphore.set_if_absent(2).await.unwrap();
    let guard = semaphore.acquire().await.unwrap();
    let member = raw(&guard.ids()).remove(0);
    // As if the server's clock were further than ours; nobody has taken notice yet.
    server
        .cmd(&[b"ZADD".as_slice(), b"{p}:timeout", (now_ms() - 1).to_string().as_bytes(), &member])
        .unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    assert!(!other.permit_semaphore("p").update_lease(guard.id(), ms(60_000)).await.unwrap());
    let error = guard.extend(ms(60_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(semaphore.available().await.unwrap(), 2);
}

/// Its holders go on, so there are not as many permits more. What had ended before is nobody's, and is not given back into the new counter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_was_deleted_is_set_to_what_is_not_taken() {
    let (server, client) = alone().await;
    let semaphore = client.permit_semaphore("p");
    semaphore.set(3).await.unwrap();
    let held = semaphore.acquire().await.unwrap();
    take(&semaphore, 1, ms(100)).await;
    tokio::time::sleep(ms(150)).await;
    server.cmd(&["DEL", "p"]).unwrap();
    assert!(semaphore.set_if_absent(2).await.unwrap());
    assert_eq!((semaphore.available().await.unwrap(), semaphore.total().await.unwrap()), (1, 2));
    let other = semaphore.try_acquire().await.unwrap().expect("one is free");
    assert!(semaphore.try_acquire().await.unwrap().is_none() && held.is_valid());
    server.cmd(&["DEL", "p"]).unwrap();
    semaphore.set(5).await.unwrap();
    assert_eq!((semaphore.available().await.unwrap(), semaphore.total().await.unwrap()), (3, 5));
    // More of them are so many more.
    server.cmd(&["DEL", "p"]).unwrap();
    semaphore.add(2).await.unwrap();
    assert_eq!((semaphore.available().await.unwrap(), semaphore.total().await.unwrap()), (2, 4));
    for guard in [held, other] {
        assert_eq!(guard.release().await.unwrap(), Unlocked::Released);
    }
    assert_eq!((semaphore.available().await.unwrap(), semaphore.total().await.unwrap()), (4, 4));
}
