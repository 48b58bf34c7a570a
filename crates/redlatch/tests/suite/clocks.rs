//! Servers whose wall clock is not the machine's: `docs/dangers.md`, *Clock steps*, and the margin of a deadline.

use std::{ops::AsyncFn, time::Duration};

use redlatch::{Client, Guard, Lease, LossReason, QuorumGuard, QuorumLock, ReplicaAck, Unlocked, Wait};
use redlatch_testkit::{leftovers::LeftoverCheck, server::RedisServer, topology::MasterReplica};

use crate::{
    fixture::{RENEWED, SOON, ms, renewed, soon},
    kinds::{AnyAcquire, AnyLock, Face},
};

const HOUR_MS: i64 = 3_600_000;
/// A fixed lease, with a margin of 10 ms.
const LEASE: Duration = ms(1_000);
/// Half of what the margin covers, and five times it.
const WITHIN_PPM: i64 = 5_000;
const BEYOND_PPM: i64 = 50_000;

fn server(gain_ppm: i64) -> RedisServer {
    let server = RedisServer::builder().own_clock().start().unwrap();
    server.set_clock(0, Some(gain_ppm)).unwrap();
    server
}

async fn client(server: &RedisServer) -> Client {
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect_lazy().unwrap();
    // The first call teaches the server the scripts, so that later calls are one command each.
    client.lock("warm").lock().await.unwrap().unlock().await.unwrap();
    client
}

/// Two take turns by letting their leases run out; how often the last one was valid beside the next one.
async fn overlaps<G>(
    rounds: u32,
    take: impl AsyncFn(u32) -> Option<G>,
    is_valid: impl Fn(&G) -> bool,
) -> u32 {
    let mut overlaps = 0;
    let mut last: Option<G> = None;
    for round in 0..=rounds {
        let next = soon("the next turn", async {
            loop {
                match take(round % 2).await {
                    Some(guard) => break guard,
                    // No message tells that a lease ran out.
                    None => tokio::time::sleep(ms(1)).await,
                }
            }
        })
        .await;
        overlaps += u32::from(last.as_ref().is_some_and(&is_valid) && is_valid(&next));
        last = Some(next);
    }
    overlaps
}

async fn lock_overlaps(gain_ppm: i64, rounds: u32) -> u32 {
    let server = server(gain_ppm);
    let locks = [client(&server).await.lock("job"), client(&server).await.lock("job")];
    let take = async |who: u32| {
        let lock = &locks[who as usize];
        lock.acquire().wait(Wait::No).lease(Lease::Fixed(LEASE)).await.unwrap()
    };
    overlaps(rounds, take, Guard::is_valid).await
}

async fn quorum_overlaps(gains_ppm: [i64; 3], rounds: u32) -> u32 {
    let servers = gains_ppm.map(server);
    let mut sets = Vec::new();
    for _ in 0..2 {
        let mut members = Vec::new();
        for server in &servers {
            members.push(client(server).await.lock("job"));
        }
        sets.push(QuorumLock::new(members).unwrap());
    }
    let take = async |who: u32| {
        let set = &sets[who as usize];
        match set.acquire().wait(Wait::No).lease(Lease::Fixed(LEASE)).await {
            // A member is given 50 ms for its answer, which a busy machine may miss.
            Err(error) if error.kind() == redlatch::ErrorKind::Timeout => None,
            taken => taken.unwrap(),
        }
    };
    overlaps(rounds, take, QuorumGuard::is_valid).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_drift_within_the_margin_make_no_second_holder() {
    let (fast, slow, quorum) = tokio::join!(
        lock_overlaps(WITHIN_PPM, 6),
        lock_overlaps(-WITHIN_PPM, 6),
        quorum_overlaps([WITHIN_PPM, -WITHIN_PPM, WITHIN_PPM], 6)
    );
    assert_eq!((fast, slow, quorum), (0, 0, 0));
}

/// What the test above would see if the margin did not cover it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_drift_beyond_the_margin_are_outside_the_promise() {
    // A machine that stands still for 40 ms hides it once.
    soon("an overlap of a lock", async { while lock_overlaps(BEYOND_PPM, 3).await == 0 {} }).await;
    let gains_ppm = [BEYOND_PPM, 0, BEYOND_PPM];
    soon("an overlap of a quorum", async { while quorum_overlaps(gains_ppm, 3).await == 0 {} }).await;
}

const FACES: [Face; 7] = [
    Face::Plain,
    Face::Fair,
    Face::Fenced,
    Face::Spin,
    Face::NonReentrant,
    Face::NonReentrantFair,
    Face::Write,
];

fn is_counter(left: &str) -> bool {
    left.starts_with("key redisson_lock_token:")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_back_ends_no_hold_and_holds_up_no_waiter() {
    let server = server(0);
    let (ours, others) = (client(&server).await, client(&server).await);
    let mut held = Vec::new();
    for face in FACES {
        let name = format!("{face:?}");
        let other = AnyLock::new(face, &others, name.as_str());
        held.push((AnyLock::new(face, &ours, name).lock().await.unwrap(), other));
    }
    let reader = ours.read_write_lock("shared").read().lock().await.unwrap();
    let write = others.read_write_lock("shared").write().clone();
    let token = ours.lock("fenced").acquire().fenced().await.unwrap().unwrap().token().unwrap();
    let waiting: Vec<_> = held
        .iter()
        .map(|(_, other)| {
            let other = other.clone();
            tokio::spawn(async move { other.lock().await.unwrap() })
        })
        .collect();
    let writer = tokio::spawn(async move { write.lock().await.unwrap() });
    server.set_clock(-HOUR_MS, None).unwrap();

    renewed(2, async || held[0].0.remaining()).await;
    for ((guard, other), waiter) in held.iter().zip(&waiting) {
        assert!(guard.is_valid() && !waiter.is_finished(), "{guard:?}");
        assert!(other.try_lock().await.unwrap().is_none(), "{guard:?}");
    }
    assert!(reader.is_valid() && !writer.is_finished());

    for ((guard, _), waiter) in held.into_iter().zip(waiting) {
        let name = guard.name().to_string();
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{name}");
        let guard = soon(&name, waiter).await.unwrap();
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{name}");
    }
    reader.unlock().await.unwrap();
    soon("the writer", writer).await.unwrap().unlock().await.unwrap();
    let later = ours.lock("fenced").acquire().fenced().await.unwrap().unwrap().token().unwrap();
    assert!(later > token, "{later} after {token}");
    // Nothing stays for the hour but the counters of tokens, which always stay.
    soon("an empty server", async {
        while LeftoverCheck::new(&server, "").look().unwrap().iter().any(|left| !is_counter(left)) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_forward_ends_holds_and_every_holder_is_told() {
    let server = server(0);
    let (ours, others) = (client(&server).await, client(&server).await);
    let mut held = Vec::new();
    for face in FACES {
        let name = format!("{face:?}");
        let other = AnyLock::new(face, &others, name.as_str());
        held.push((AnyLock::new(face, &ours, name).lock().await.unwrap(), other));
    }
    let reader = ours.read_write_lock("shared").read().lock().await.unwrap();
    let set = tokio::time::Instant::now();
    server.set_clock(HOUR_MS, None).unwrap();
    for (guard, other) in &held {
        let (reason, next) =
            tokio::join!(soon("the loss", guard.lost()), soon("the next turn", other.lock()));
        let next = next.unwrap();
        assert!(!guard.is_valid() && next.is_valid(), "{guard:?}");
        assert!(
            matches!(reason, LossReason::Deleted | LossReason::TakenOver { .. }),
            "{guard:?}: {reason:?} after {:?}",
            set.elapsed()
        );
        next.unlock().await.unwrap();
    }
    let reason = soon("the reader's loss", reader.lost()).await;
    assert!(matches!(reason, LossReason::Deleted | LossReason::TakenOver { .. }), "{reason:?}");
}

/// A master and a replica whose clock is off by this much.
async fn with_replica_off_by(step_ms: i64) -> (MasterReplica, [Client; 2]) {
    let servers = MasterReplica::builder().servers(RedisServer::builder().own_clock()).replica_count(1);
    let servers = tokio::task::block_in_place(|| servers.start().unwrap());
    servers.node(1).set_clock(step_ms, None).unwrap();
    let connect =
        async || Client::builder().url(servers.url()).watchdog_lease(ms(120_000)).connect().await.unwrap();
    let clients = [connect().await, connect().await];
    (servers, clients)
}

/// The replica takes over with all that the master had, and both clients have moved there.
async fn takes_over(servers: &MasterReplica, clients: &[Client]) {
    tokio::task::block_in_place(|| servers.promote(1).unwrap());
    let port = format!(":{}", servers.node(1).port());
    soon("the move", async {
        while !clients.iter().all(|client| client.store().ends_with(&port)) {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
}

fn confirmed(lock: &AnyLock, lease: Lease) -> AnyAcquire<'_> {
    lock.acquire().wait(Wait::No).lease(lease).replica_ack(ReplicaAck::all().within(SOON))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_over_with_another_clock_keeps_what_lasts_longer_than_that() {
    let hour = ms(HOUR_MS.unsigned_abs());
    for step_ms in [5_000, -5_000, -HOUR_MS] {
        let (servers, clients) = with_replica_off_by(step_ms).await;
        let [ours, others] = &clients;
        let mut held = Vec::new();
        for face in FACES {
            let name = format!("{face:?}");
            let lock = AnyLock::new(face, ours, name.as_str());
            let guard = confirmed(&lock, Lease::Renewed).await.unwrap().expect("it is free");
            held.push((guard, AnyLock::new(face, others, name)));
        }
        let left =
            confirmed(&AnyLock::new(Face::Plain, ours, "left"), Lease::Fixed(hour)).await.unwrap().unwrap();
        left.detach();
        let token = held.iter().find_map(|(guard, _)| guard.token()).expect("one is fenced");
        takes_over(&servers, &clients).await;
        for (guard, other) in held {
            assert!(other.try_lock().await.unwrap().is_none() && guard.is_valid(), "{step_ms} ms: {guard:?}");
            let name = guard.name().to_string();
            assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "{step_ms} ms: {name}");
            let next = other.try_lock().await.unwrap().expect("it was given back");
            assert!(next.token().is_none_or(|next| next > token), "{step_ms} ms: {next:?} after {token}");
        }
        // What nobody gives back lasts longer by as much as the clock is behind.
        let rest = servers.node(1).cmd(&["PTTL", "left"]).unwrap();
        let rest = Duration::from_millis(redis::from_redis_value(rest).unwrap());
        if step_ms == -HOUR_MS {
            assert!(rest > hour, "{rest:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_over_with_a_clock_ahead_ends_what_is_shorter_and_tells_its_holders() {
    let (servers, clients) = with_replica_off_by(HOUR_MS).await;
    let [ours, others] = &clients;
    let take = async |name: &str, lease: Lease| {
        let guard = confirmed(&AnyLock::new(Face::Plain, ours, name), lease).await.unwrap();
        guard.expect("it is free")
    };
    let (renewed, fixed) =
        (take("renewed", Lease::Renewed).await, take("fixed", Lease::Fixed(ms(600_000))).await);
    let long = take("long", Lease::Fixed(ms(2 * HOUR_MS.unsigned_abs()))).await;
    takes_over(&servers, &clients).await;
    for ended in [&renewed, &fixed] {
        let reason = soon("the loss", ended.lost()).await;
        assert_eq!(reason, LossReason::Deleted, "{ended:?}");
        let next = others.lock(ended.name().to_string()).try_lock().await.unwrap().expect("it has ended");
        assert!(!ended.is_valid() && next.is_valid());
    }
    assert!(others.lock("long").try_lock().await.unwrap().is_none() && long.is_valid());
    assert_eq!(long.unlock().await.unwrap(), Unlocked::Released);
}
