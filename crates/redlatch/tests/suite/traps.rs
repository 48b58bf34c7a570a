//! The traps of the protocol that no other test is about, each named after its number in `docs/protocol.md`.

use std::time::Duration;

use redlatch::{Client, ErrorKind, Guard, Lease, LossReason, Unlocked, scripts};
use redlatch_testkit::{
    proxy::{Action, Match, Proxy},
    resp,
    server::RedisServer,
};

use crate::{
    fixture::{IN_VAIN, LATE, RENEWED, awake, ms, renewed, soon},
    wire::alone,
};

const JAVA: &str = "1b671a64-40d5-491e-99b0-da01ff1f3341:64";

async fn brisk(url: &str, lease: Duration) -> Client {
    Client::builder().url(url).watchdog_lease(lease).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g2_a_name_that_could_be_locked_and_not_unlocked_touches_nothing() {
    let (server, client) = alone().await;
    server.reset_command_counts().unwrap();
    for name in ["a}b", "a{b", "{}x", "x{}y"] {
        for error in [
            client.lock(name).lock().await.map(|_| ()).unwrap_err(),
            client.semaphore(name).release(1).await.unwrap_err(),
            client.count_down_latch(name).count_down().await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{name}: {error}");
        }
    }
    assert_eq!(server.command_count("evalsha").unwrap() + server.command_count("eval").unwrap(), 0);
    // Braces that keep everything in one slot are no fault.
    for name in ["plain", "a{b}c", "{t}:x"] {
        client.lock(name).lock().await.unwrap().unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g3_a_lease_below_a_millisecond_is_no_grant() {
    let (server, client) = alone().await;
    let lock = client.lock("short");
    for micros in [0, 1, 999] {
        let lease = Lease::Fixed(Duration::from_micros(micros));
        let error = lock.acquire().lease(lease).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
    let guard = lock.lock_with_lease(ms(60_000)).await.unwrap();
    let error = guard.extend(Duration::from_micros(999)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    let redis::Value::Int(left) = server.cmd(&["PTTL", "short"]).unwrap() else { panic!("no number") };
    assert!(left > 50_000, "deleted by a lease of nothing: {left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g4_neither_a_shorter_re_entry_nor_its_end_shortens_the_outer_hold() {
    let (server, client) = alone().await;
    let lock = client.lock("outer");
    let owner = client.owner();
    let left = || match server.cmd(&["PTTL", "outer"]).unwrap() {
        redis::Value::Int(left) => left,
        other => panic!("{other:?}"),
    };
    let outer = lock.acquire().owner(&owner).lease(Lease::Fixed(ms(60_000))).await.unwrap().unwrap();
    let inner = lock.acquire().owner(&owner).lease(Lease::Fixed(ms(1_000))).await.unwrap().unwrap();
    assert!(left() > 50_000, "cut by a re-entry: {}", left());
    assert_eq!(inner.unlock().await.unwrap(), Unlocked::StillHeld(1));
    assert!(left() > 50_000, "cut by a partial unlock: {}", left());
    assert!(outer.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g6_the_end_of_a_fixed_hold_does_not_stop_the_renewal_of_the_outer_one() {
    let (server, other) = alone().await;
    let client = brisk(&server.url(), RENEWED).await;
    let owner = client.owner();
    let lock = client.lock("mixed");
    let outer = lock.acquire().owner(&owner).await.unwrap().unwrap();
    let fixed = lock.acquire().owner(&owner).lease(Lease::Fixed(RENEWED + ms(100))).await.unwrap().unwrap();
    assert_eq!(fixed.unlock().await.unwrap(), Unlocked::StillHeld(1));
    renewed(4, async || {
        assert!(outer.is_valid(), "{:?}", outer.loss());
        assert!(other.lock("mixed").try_lock().await.unwrap().is_none(), "not renewed any more");
        other.lock("mixed").remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    assert_eq!(outer.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g7_a_renewed_hold_begins_with_the_lease_of_renewed_holds() {
    let (server, client) = alone().await;
    let lock = client.lock("begins");
    let owner = client.owner();
    // The last lease that this handle has seen is a short one, of a hold that is over and of one that is inside.
    lock.lock_with_lease(ms(800)).await.unwrap().unlock().await.unwrap();
    let outer = lock.acquire().owner(&owner).lease(Lease::Fixed(ms(900))).await.unwrap().unwrap();
    let inner = lock.acquire().owner(&owner).lease(Lease::Renewed).await.unwrap().unwrap();
    let redis::Value::Int(left) = server.cmd(&["PTTL", "begins"]).unwrap() else { panic!("no number") };
    assert!(left > 25_000, "begun with an earlier lease: {left}");
    drop((inner, outer));
    soon("the release", async { while lock.is_locked().await.unwrap() {} }).await;
    let _guard = lock.lock().await.unwrap();
    let redis::Value::Int(left) = server.cmd(&["PTTL", "begins"]).unwrap() else { panic!("no number") };
    assert!(left > 25_000, "begun with an earlier lease: {left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g8_a_batch_that_always_fails_costs_other_batches_nothing() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::connect(&proxy.url()).await.unwrap();
    // Holds of one lease are renewed together; those with the shorter one come first in every round.
    let hold = async |name: &str, lease: u64| {
        client.lock(name).acquire().lease(Lease::RenewedEvery(ms(lease))).await.unwrap().unwrap()
    };
    let broken = hold("broken", 4_000).await;
    let mut fine = Vec::new();
    for n in 0..5 {
        fine.push(hold(&format!("fine-{n}"), 4_500).await);
    }
    let renewals = Match::script().arg_contains(scripts::RENEW.sha1()).key_contains("broken");
    let rule = proxy.rule(renewals, Action::ReplaceReply(resp::error("ERR this shard is broken")));
    // What the server did all the same must not keep the hold.
    assert_eq!(soon("the announcement", broken.lost()).await, LossReason::Expired);
    assert!(proxy.fired(rule) >= 2, "tried again until the deadline");
    renewed(2, async || {
        for guard in &fine {
            assert!(guard.is_valid(), "{:?}", guard.loss());
        }
        fine.iter().map(Guard::remaining).min().expect("there are five")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_a_stale_owner_does_not_delay_the_renewal_of_the_next_one() {
    let server = RedisServer::start().unwrap();
    // Renewed every 3 s, so that none is renewed before all are there.
    let lease = 2 * RENEWED;
    let (client, other) = (brisk(&server.url(), lease).await, brisk(&server.url(), lease).await);
    let (lock, elsewhere) = (client.lock("twice"), other.lock("twice"));
    // Holds that a user deletes by hand, while their client still takes itself for the holder; and then one that is there,
    // taken over from another process, so that all of them are due for renewal under one name at the same time.
    let mut stale = vec![lock.lock().await.unwrap()];
    server.cmd(&["DEL", "twice"]).unwrap();
    for _ in 0..8 {
        let held = elsewhere.lock().await.unwrap().detach();
        stale.push(lock.adopt(&held.owner, Lease::Renewed).await.unwrap().expect("it is held"));
        server.cmd(&["DEL", "twice"]).unwrap();
    }
    let held = elsewhere.lock().await.unwrap().detach();
    let holder = lock.adopt(&held.owner, Lease::Renewed).await.unwrap().expect("it is held");
    // One by one they learned of it from the next one, which cannot have been granted beside them.
    assert!(stale.iter().all(|guard| matches!(guard.loss(), Some(LossReason::TakenOver { .. }))));
    renewed(2, async || {
        assert!(holder.is_valid(), "{:?}", holder.loss());
        let redis::Value::Int(left) = server.cmd(&["PTTL", "twice"]).unwrap() else { panic!("no number") };
        ms(left.try_into().expect("it is held"))
    })
    .await;
    for guard in &stale {
        let reason = soon("the notice of each", guard.lost()).await;
        assert_ne!(reason, LossReason::Expired, "told by its first renewal, not by its deadline");
    }
    assert_eq!(holder.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g11_a_key_without_end_is_no_fenced_grant_and_nobody_sleeps_for_ever() {
    let (server, client) = alone().await;
    server.cmd(&["HSET", "endless", JAVA, "1"]).unwrap();
    let lock = client.lock("endless");
    assert!(lock.acquire().fenced().await.unwrap().is_none(), "a missing time to live looked like a grant");
    assert!(lock.acquire().fenced().wait(redlatch::Wait::AtMost(IN_VAIN)).await.unwrap().is_none());
    let redis::Value::Int(token) = server.cmd(&["EXISTS", "redisson_lock_token:{endless}"]).unwrap() else {
        panic!("no number")
    };
    assert_eq!(token, 0, "no token without a grant");
    let waiting = lock.clone();
    let waiter = tokio::spawn(async move { waiting.acquire().fenced().wait(redlatch::Wait::Forever).await });
    tokio::time::sleep(ms(100)).await;
    server.cmd(&["DEL", "endless"]).unwrap();
    let guard = soon("the look", waiter).await.unwrap().unwrap().expect("it is free");
    assert!(guard.token().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g13_a_stranger_who_unlocks_does_not_stop_the_renewal_of_the_holder() {
    let (server, other) = alone().await;
    let client = brisk(&server.url(), RENEWED).await;
    let lock = client.lock("held");
    let guard = lock.lock().await.unwrap();
    // A stranger in the same process, whose failed unlock is what stops the renewal in Redisson, and one elsewhere.
    for stranger in [&client, &other] {
        let error = stranger.lock("held").release(&stranger.owner()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotOwner, "{error}");
    }
    renewed(4, async || {
        assert!(guard.is_valid(), "{:?}", guard.loss());
        assert!(other.lock("held").try_lock().await.unwrap().is_none());
        other.lock("held").remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g14_a_kind_that_releases_in_silence_is_found_and_our_forced_release_never_is_silent() {
    let (server, client) = alone().await;
    // As a spin lock does it.
    server.cmd(&["HSET", "silent", JAVA, "1"]).unwrap();
    server.cmd(&["PEXPIRE", "silent", "3600000"]).unwrap();
    let lock = client.lock("silent");
    let waiter = tokio::spawn(async move { lock.lock().await });
    tokio::time::sleep(ms(100)).await;
    let freed = std::time::Instant::now();
    server.cmd(&["DEL", "silent"]).unwrap();
    let guard = soon("the look", waiter).await.unwrap().unwrap();
    assert!(awake(freed) < ms(800) + LATE, "slept on: {:?}", freed.elapsed());
    let messages = crate::wire::heard(&server, async {
        assert!(client.lock("silent").force_unlock().await.unwrap());
    })
    .await;
    assert_eq!(messages, [("redisson_lock__channel:{silent}".to_owned(), "0".to_owned())]);
    drop(guard);
}
