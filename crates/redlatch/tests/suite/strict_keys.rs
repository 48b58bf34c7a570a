//! Servers that want every key of a script declared.

use redlatch::{Client, ReadGuard, Unlocked};
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    resp,
};

use crate::{
    errors::STRICT,
    fixture::{IN_VAIN, soon},
};

/// A store of its own that refuses keys that were not declared.
async fn strict(name: &str) -> Client {
    Client::connect(&format!("memory:{name}-{}?strict_keys", std::process::id())).await.unwrap()
}

/// Readers that hold beside each other, one of them twice.
async fn readers(client: &Client) -> [ReadGuard; 4] {
    let lock = client.read_write_lock("rw");
    let (one, two) = (lock.read().lock().await.unwrap(), lock.read().lock().await.unwrap());
    let again = one.reenter().await.unwrap();
    let third = again.reenter().await.unwrap();
    [one, two, again, third]
}

#[tokio::test]
async fn whatever_a_client_asks_first_is_answered_and_done_whole() {
    let holder = strict("first").await;
    let lock = holder.read_write_lock("rw");
    let guards = readers(&holder).await;
    let client = || strict("first");
    let state = client().await.inspect("rw").await.unwrap();
    assert_eq!(state.holders.iter().map(|holder| holder.holds).sum::<i64>(), 4);
    let fresh = client().await;
    assert!(fresh.read_write_lock("rw").read().is_locked().await.unwrap());
    let fresh = client().await;
    assert!(fresh.read_write_lock("rw").write().try_lock().await.unwrap().is_none());
    let fresh = client().await;
    assert!(fresh.read_write_lock("rw").read().force_unlock().await.unwrap());
    for guard in guards {
        let outcome = guard.unlock().await;
        assert!(
            !matches!(outcome, Ok(Unlocked::Released | Unlocked::StillHeld(_))),
            "it was lost: {outcome:?}"
        );
    }
    assert!(!lock.read().is_locked().await.unwrap());
    let held = lock.read().lock().await.unwrap().detach();
    let beside = lock.read().lock().await.unwrap();
    let fresh = client().await;
    let outcome = fresh.read_write_lock("rw").read().release(&held.owner).await.unwrap();
    assert_eq!(outcome, Unlocked::Released);
    assert_eq!(beside.unlock().await.unwrap(), Unlocked::Released);
    let fresh = client().await;
    let owner = fresh.owner();
    let write = fresh.read_write_lock("rw").write().acquire().owner(&owner).await.unwrap().unwrap();
    let read = write.downgrade().await.unwrap();
    assert!(lock.read().is_locked().await.unwrap());
    read.unlock().await.unwrap();
    assert!(!lock.read().is_locked().await.unwrap());
}

/// Clients whose readers come and go all the time: what one of them looked at is rarely what it finds.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn holders_that_change_all_the_time_are_all_released() {
    let clients = [strict("churn").await, strict("churn").await, strict("churn").await];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..12 {
        let lock = clients[n % clients.len()].read_write_lock("rw");
        tasks.spawn(async move {
            for round in 0..60 {
                let guard = lock.read().lock().await.unwrap();
                if (round + n) % 3 == 0 {
                    guard.reenter().await.unwrap().unlock().await.unwrap();
                }
                assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
                if round % 20 == 0 {
                    soon("the writer's turn", lock.write().lock()).await.unwrap().unlock().await.unwrap();
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(!clients[0].read_write_lock("rw").read().is_locked().await.unwrap());
    assert!(clients[0].list(None, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn everything_is_listed_and_shown() {
    let client = strict("listed").await;
    let _lock = client.lock("lock").lock().await.unwrap();
    let _fenced = client.fenced_lock("fenced").lock().await.unwrap();
    let _fair = client.fair_lock("fair").lock().await.unwrap();
    assert!(client.fair_lock("fair").lock_for(IN_VAIN).await.unwrap().is_none());
    client.semaphore("free").set_if_absent(2, None).await.unwrap();
    client.permit_semaphore("permits").set_if_absent(1).await.unwrap();
    let _permit = client.permit_semaphore("permits").acquire().await.unwrap();
    let states = client.list(None, 10).await.unwrap();
    let names: Vec<String> = states.iter().map(|state| state.name.to_string()).collect();
    assert_eq!(names, ["fair", "fenced", "lock", "permits"]);
    assert!(states.iter().all(|state| state.findings.is_empty()), "{states:?}");
    assert!(states[1].token.is_some());
    assert_eq!(states[3].permits_in_use, 1);
}

#[tokio::test]
async fn an_engine_without_the_suffix_is_another_one_and_not_strict() {
    let name = format!("loose-{}", std::process::id());
    let strict = Client::connect(&format!("memory:{name}?strict_keys")).await.unwrap();
    let loose = Client::connect(&format!("memory:{name}")).await.unwrap();
    let _guard = loose.read_write_lock("rw").read().lock().await.unwrap();
    assert!(!strict.lock("rw").is_locked().await.unwrap());
    assert!(Client::connect("memory:a?b").await.is_err());
}

/// Stands for a strict server in its own words: what declares all keys is granted, released and renewed, and nothing else is.
fn strict_words(words: &'static str) -> FakeServer {
    FakeServer::start(move |request| {
        let text = match &request[0].to_ascii_uppercase()[..] {
            b"EVALSHA" => return FakeReply::Error("NOSCRIPT No matching script. Please use EVAL.".into()),
            b"EVAL" => std::str::from_utf8(&request[1]).unwrap(),
            _ => return FakeReply::Default,
        };
        if !text.starts_with(include_str!("../../src/scripts/declared.lua")) {
            return FakeReply::Error(words.to_owned());
        }
        let keys: usize = std::str::from_utf8(&request[2]).unwrap().parse().unwrap();
        let number: i64 = std::str::from_utf8(&request[3 + keys]).unwrap().parse().unwrap();
        FakeReply::Reply(resp::array(&[number, 1, 0].map(resp::integer)))
    })
    .unwrap()
}

#[tokio::test]
async fn a_strict_server_is_known_by_its_words() {
    for words in STRICT {
        let server = strict_words(words);
        let client = Client::connect(&server.url()).await.unwrap();
        let lock = client.read_write_lock("rw");
        let guard = soon("a read hold", lock.read().try_lock()).await.expect(words).expect("free");
        assert_eq!(guard.unlock().await.expect(words), Unlocked::Released);
        let guard = soon("the write hold", lock.write().try_lock()).await.expect(words).expect("free");
        assert_eq!(guard.unlock().await.expect(words), Unlocked::Released);
    }
}
