//! A server that is slow to renew, and answers everything, keeps every lock.

use std::{future::IntoFuture, time::Duration};

use redlatch::{Client, Guard, Lease, Lock};
use redlatch_testkit::{
    proxy::{Proxy, Scope},
    server::RedisServer,
};

use crate::{
    fixture::{ms, renewed, soon},
    sentinel_fakes::until,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// The lease of these tests. It is renewed when 9 s are left, and a machine that stands still for some seconds loses none.
const LEASE: Duration = ms(13_500);
/// More than a third of it, when the next try is due.
const ANSWER: Duration = ms(4_800);
/// No connection is given up in these tests.
const PATIENCE: Duration = ms(60_000);

async fn connect(url: &str) -> Client {
    let builder = Client::builder().url(url).watchdog_lease(LEASE).response_timeout(PATIENCE);
    builder.connect_timeout(PATIENCE).connect().await.unwrap()
}

fn held(guards: &[Guard]) {
    let lost: Vec<_> =
        guards.iter().filter_map(|guard| Some((guard.name().to_string(), guard.loss()?))).collect();
    assert!(lost.is_empty(), "{} of {}: {:?}", lost.len(), guards.len(), lost.first());
    assert!(guards.iter().all(Guard::is_valid));
}

/// What is left of the hold on the server.
fn ttl(server: &RedisServer, name: &str) -> Duration {
    match server.cmd(&["PTTL", name]).unwrap() {
        redis::Value::Int(left) => ms(u64::try_from(left).expect("the server has the hold")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_takes_longer_than_a_third_of_the_lease_counts() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = connect(&proxy.url()).await;
    let guard = client.lock("slow").lock().await.unwrap();
    // The connection that renews is there by then, which takes several answers.
    renewed(1, async || ttl(&server, "slow")).await;
    proxy.latency(ANSWER / 2, Duration::ZERO, 1);
    // Two leases: without a renewal that counts it would have been over by then.
    tokio::select! {
        why = guard.lost() => panic!("lost as {why:?} with {:?} left on the server", ttl(&server, "slow")),
        () = tokio::time::sleep(2 * LEASE) => {}
    }
    held(&[guard]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_of_the_server_that_are_longer_than_a_third_of_the_lease_cost_no_lock() {
    // As many as have their renewal under way at once.
    const LOCKS: usize = 800;
    // The first renewals are given up after 4.5 s, and tried again half a second after that at the earliest, in the second pause.
    const PAUSES: [Duration; 2] = [ms(4_600), ms(5_000)];
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = connect(&proxy.url()).await;
    let mut guards = Vec::new();
    for part in 0..8 {
        let locks = (0..LOCKS / 8).map(|n| client.lock(format!("many{part}:{n}")));
        let grants = locks.map(|lock| async move { lock.lock().await.unwrap() });
        guards.extend(futures_util::future::join_all(grants).await);
    }
    // Of all locks the one that ends first on the server.
    let least = || match server.cmd(&["EVAL", LEAST_TTL, "0"]).unwrap() {
        redis::Value::Int(least_ms) => ms(u64::try_from(least_ms).unwrap()),
        other => panic!("{other:?}"),
    };
    let all_are_renewed = async || {
        soon("a renewal of all", async {
            while least() < LEASE * 3 / 4 {
                tokio::time::sleep(ms(1)).await;
            }
        })
        .await;
    };
    // The connection that renews is there by then.
    renewed(1, async || ttl(&server, "many0:0")).await;
    all_are_renewed().await;
    server.pause().unwrap();
    proxy.clear_log();
    let lease_ms = LEASE.as_millis().to_string().into_bytes();
    soon("renewals, which wait", async {
        while !proxy.with_log(|log| log.requests().any(|request| request.args.contains(&lease_ms))) {
            tokio::time::sleep(ms(1)).await;
        }
    })
    .await;
    tokio::time::sleep(PAUSES[0]).await;
    server.resume().unwrap();
    // The server has renewed all of them. The next pause lasts until after those that were sent first would have ended without that.
    all_are_renewed().await;
    // What it answers in one turn goes out one connection after the other, so this answer shows that the renewals' are out, too.
    server.cmd(&["PING"]).unwrap();
    server.pause().unwrap();
    tokio::time::sleep(PAUSES[1]).await;
    server.resume().unwrap();
    held(&guards);
    tokio::time::sleep(LEASE / 2).await;
    held(&guards);
}

const LEAST_TTL: &str = "local least = 1e9 \
    for _, key in ipairs(redis.call('keys', 'many*')) do least = math.min(least, redis.call('pttl', key)) end \
    return least";

/// Every lease of the batch was credited with the length that the first one had when the late answer came: it had been entered for an hour meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_renewal_counts_for_the_length_that_was_said() {
    const SLOW: Duration = ms(9_000);
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder()
        .url(proxy.url())
        .watchdog_lease(SLOW)
        .response_timeout(ms(60_000))
        .connect_timeout(ms(60_000))
        .connect()
        .await
        .unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    // One of them is the first of the batch, whatever its order.
    let (names, b) = (["a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"], client.lock("b"));
    let locks = names.map(|name| client.lock(name));
    let b = b.lock().await.unwrap();
    let holds = futures_util::future::join_all(locks.iter().map(Lock::lock)).await;
    let holds: Vec<Guard> = holds.into_iter().map(Result::unwrap).collect();
    // The connection that renews is there by then, and half of the time to the next renewal has passed.
    tokio::time::sleep(SLOW / 3 + SLOW / 6).await;
    proxy.latency(ms(1_800), Duration::ZERO, 1);
    let entries = locks.iter().zip(&holds).map(|(lock, hold)| {
        let entry = lock.acquire().owner(hold.owner());
        entry.lease(Lease::RenewedEvery(HOUR)).into_future()
    });
    let long = soon("re-entries", futures_util::future::join_all(entries)).await;
    assert!(long.iter().all(|entry| matches!(entry, Ok(Some(_)))), "{long:?}");
    let begin = std::time::Instant::now();
    while b.remaining() < 2 * SLOW && b.is_valid() && begin.elapsed() < ms(20_000) {
        tokio::time::sleep(ms(5)).await;
    }
    proxy.blackhole(Scope::Both);
    println!(
        "{:?} later: a {:?}, b {:?}; the server keeps b for {:?}",
        begin.elapsed(),
        holds[0].remaining(),
        b.remaining(),
        server.cmd(&["PTTL", "b"])
    );
    let second = soon("the second holder", other.lock("b").lock_for(2 * SLOW)).await.unwrap();
    let both = b.is_valid() && second.as_ref().is_some_and(|second| second.is_valid());
    println!("b valid {} loss {:?}; second {:?}", b.is_valid(), b.loss(), second);
    assert!(!both, "TWO VALID HOLDERS of b; the first for {:?}", b.remaining());
    drop(long);
}

/// The hold that was renewed went while the renewal waited for its place. So the server was told what was left of the other one, and that one was
/// credited with the whole lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_says_what_is_left_counts_for_no_more() {
    const OTHERS: u64 = 300;
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder()
        .url(proxy.url())
        .response_timeout(ms(60_000))
        .connect_timeout(ms(60_000))
        .connect()
        .await
        .unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let mut others = Vec::new();
    // Each is renewed by a call of its own, because no two leases are of one length.
    let asked = (0..OTHERS).map(|n| {
        let lock = client.lock(format!("l{n}"));
        async move { lock.acquire().lease(Lease::RenewedEvery(ms(9_000 + n))).await.unwrap().unwrap() }
    });
    // The connection that renews is there by then.
    others.extend(futures_util::future::join_all(asked).await);
    tokio::time::sleep(ms(3_600)).await;
    let owner = client.owner();
    let lock = client.lock("v");
    let outer = lock.acquire().owner(&owner).lease(Lease::Fixed(ms(10_500))).await.unwrap().unwrap();
    let inner = lock.acquire().owner(&owner).lease(Lease::RenewedEvery(ms(10_500))).await.unwrap().unwrap();
    proxy.latency(ms(1_200), Duration::ZERO, 1);
    proxy.clear_log();
    until("the renewals begin", || proxy.count("evalsha") > 200).await;
    // The hold that was renewed goes without a request; the fixed one stays.
    drop(inner.detach());
    tokio::time::sleep(ms(5_500)).await;
    proxy.blackhole(Scope::Both);
    let second = soon("the second holder", other.lock("v").lock_for(ms(25_000))).await.unwrap();
    let both = outer.is_valid() && second.as_ref().is_some_and(|second| second.is_valid());
    assert!(!both, "TWO VALID HOLDERS of v; the first for {:?} more", outer.remaining());
}
