//! A cluster that stands still.

use std::{collections::BTreeMap, time::Duration};

use redlatch::{Client, ErrorKind, MultiLock, Rate, Unlocked};
use redlatch_testkit::server::RedisServer;

use super::{EVERY_FACE, client, masters, names_at};
use crate::{fixture::soon, kinds::AnyLock};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_pair_is_two_commands_on_one_node() {
    let cluster = masters();
    let client = client(&cluster).await;
    // Connections, and scripts at every node.
    for master in 0..3 {
        for name in names_at(&cluster, master, "warm", 1) {
            client.lock(name).lock().await.unwrap().unlock().await.unwrap();
        }
    }
    cluster.nodes().iter().for_each(|node| node.reset_command_counts().unwrap());
    for n in 0..60 {
        client.lock(format!("pair{n}")).lock().await.unwrap().unlock().await.unwrap();
    }
    let mut total: BTreeMap<String, u64> = BTreeMap::new();
    for node in cluster.nodes() {
        for (command, count) in node.command_counts().unwrap() {
            *total.entry(command).or_default() += count;
        }
    }
    assert_eq!(total.get("evalsha"), Some(&120), "{total:?}");
    assert_eq!(total.get("eval"), None, "{total:?}");
    assert_eq!(total.get("asking"), None, "{total:?}");
    // Releases publish inside their script, sharded as the servers can.
    assert_eq!(total.get("spublish"), Some(&60), "{total:?}");
    assert_eq!(total.get("publish"), None, "{total:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_is_taken_and_given_back_by_names_with_and_without_tags() {
    let cluster = masters();
    let client = client(&cluster).await;
    for name in ["plain", "{tag}:name", "pre{tag}post", "a}b{c}"] {
        for face in EVERY_FACE {
            let lock = AnyLock::new(face, &client, format!("{face:?}{name}"));
            let guard = soon("a lock", lock.lock()).await.unwrap();
            assert!(lock.is_locked().await.unwrap(), "{face:?} {name}");
            assert!(lock.try_lock().await.unwrap().is_none(), "{face:?} {name}");
            let waiter = {
                let lock = lock.clone();
                tokio::spawn(async move { lock.lock().await })
            };
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{face:?} {name}");
            let guard = soon("the waiter's turn", waiter).await.unwrap().unwrap();
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{face:?} {name}");
            assert!(!lock.is_locked().await.unwrap(), "{face:?} {name}");
        }
        let both = client.read_write_lock(format!("rw{name}"));
        let (one, other) = (both.read().lock().await.unwrap(), both.read().lock().await.unwrap());
        one.unlock().await.unwrap();
        other.unlock().await.unwrap();
        both.write().lock().await.unwrap().downgrade().await.unwrap().unlock().await.unwrap();

        let semaphore = client.semaphore(format!("semaphore{name}"));
        assert!(semaphore.set_if_absent(1, None).await.unwrap());
        semaphore.acquire(1).await.unwrap();
        assert!(!semaphore.try_acquire(1).await.unwrap());
        semaphore.release(1).await.unwrap();
        let permits = client.permit_semaphore(format!("permits{name}"));
        permits.set_if_absent(1).await.unwrap();
        let permit = permits.acquire().await.unwrap();
        assert!(permits.try_acquire().await.unwrap().is_none());
        permit.release().await.unwrap();
        assert_eq!(permits.available().await.unwrap(), 1);
        // The names of latches have no braces at all.
        if !name.contains('{') {
            let latch = client.count_down_latch(format!("latch{name}"));
            latch.set_if_absent(1).await.unwrap();
            let waiter = {
                let latch = latch.clone();
                tokio::spawn(async move { latch.wait().await })
            };
            latch.count_down().await.unwrap();
            soon("the latch", waiter).await.unwrap().unwrap();
        }
        let limiter = client.rate_limiter(format!("rate{name}"));
        limiter.set(Rate::per(5, Duration::from_secs(60))).await.unwrap();
        assert!(limiter.try_acquire(5).await.unwrap() && !limiter.try_acquire(1).await.unwrap());
    }
    let many = (0..20).map(|n| client.lock(format!("many{n}")));
    let all = MultiLock::new(many.chain([client.lock("{one}a"), client.lock("{one}b")])).unwrap();
    let guard = soon("all of them", all.lock()).await.unwrap();
    assert!(
        client.lock("many7").is_locked().await.unwrap() && client.lock("{one}b").is_locked().await.unwrap()
    );
    drop(guard.unlock().await);
    assert!(
        !client.lock("many7").is_locked().await.unwrap() && !client.lock("{one}b").is_locked().await.unwrap()
    );
    for name in ["a}b", "a{b", "{}x", "x{}y"] {
        let error = client.lock(name).try_lock().await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidName, "{name}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_and_a_diagnosis_cover_every_master() {
    let cluster = masters();
    let client = client(&cluster).await;
    let mut names: Vec<String> = (0..3).flat_map(|master| names_at(&cluster, master, "listed", 4)).collect();
    names.sort();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(client.lock(name.as_str()).lock().await.unwrap());
    }
    let found = client.list(Some("listed*"), 100).await.unwrap();
    assert_eq!(found.iter().map(|state| state.name.to_string()).collect::<Vec<_>>(), names);
    let findings = client.diagnose().await.unwrap();
    let text = findings.iter().map(|finding| format!("{finding}\n")).collect::<String>();
    for seed in cluster.seeds() {
        assert!(text.contains(&format!("version: {seed}: Redis")), "{seed}: {text}");
    }
    assert!(text.contains("slots: all 16384 are served, by 3 masters"), "{text}");
    assert!(text.contains("sharded messages are used (decided as Redisson does)"), "{text}");
    assert!(client.store().starts_with("redis-cluster://127.0.0.1:"), "{}", client.store());
}

#[tokio::test]
async fn a_single_server_is_no_cluster() {
    let server = RedisServer::start().unwrap();
    let url = server.url().replace("redis://", "redis-cluster://");
    let error = Client::connect(&url).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
    assert!(error.to_string().contains("is not a member of a cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_that_is_named_and_answers_will_do() {
    let cluster = masters();
    let gone = RedisServer::start().unwrap();
    let url = format!("redis-cluster://127.0.0.1:{},{}", gone.port(), cluster.seeds()[2]);
    gone.kill9();
    let client = Client::connect(&url).await.unwrap();
    for master in 0..3 {
        let name = &names_at(&cluster, master, "seed", 1)[0];
        client.lock(name.as_str()).lock().await.unwrap().unlock().await.unwrap();
    }
}
