//! Cancellation: every operation is dropped at every await point, with replies delayed by a random time, again and
//! again. Nothing may stay behind: no key, no place in line, no subscription, no renewal.

use std::{pin::Pin, time::Duration};

use redlatch::{Client, Member, MultiLock, QuorumLock, Wait};
use redlatch_testkit::{
    cancel::{DropMoment, poll_n_then_drop_at},
    leftovers::LeftoverCheck,
    proxy::Proxy,
    server::RedisServer,
};

use crate::{
    fixture::{ms, soon},
    kinds::{AnyLock, Face},
};

/// How often each operation is dropped.
const DROPS: usize = 1_000;
/// More polls than any of the operations needs.
const POLLS_MAX: usize = 9;
/// How many are under way at once.
const LANES: usize = 20;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Rig {
    server: RedisServer,
    _proxy: Proxy,
    client: Client,
    other: Client,
}

async fn rig(seed: u64) -> Rig {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    // As the members of a quorum have to.
    let client = Client::connect_lazy(&proxy.url()).unwrap();
    client.lock("warm").lock().await.unwrap().unlock().await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    proxy.latency(ms(0), ms(4), seed);
    Rig { server, _proxy: proxy, client, other }
}

impl Rig {
    /// Drops what `make` makes, at ever other moments, and then looks at what is left.
    async fn sweep(&self, part: &str, make: impl Fn(&Client, &Client, String) -> Work + Send + Sync) {
        let one_lane = async |lane: usize| {
            let (mut dropped, mut finished) = (0, 0);
            for n in 0..DROPS / LANES {
                let round = lane * DROPS / LANES + n;
                let polls = round % (POLLS_MAX + 1);
                let moment = if (round / (POLLS_MAX + 1)).is_multiple_of(2) {
                    DropMoment::AfterPoll
                } else {
                    DropMoment::AtWakeUp
                };
                let work = make(&self.client, &self.other, format!("{part}-{round}"));
                // A future that waits for another task is not woken again; then the time is the moment of the drop.
                match tokio::time::timeout(ms(60), poll_n_then_drop_at(work, polls, moment)).await {
                    Ok(Some(())) => finished += 1,
                    Ok(None) | Err(_) => dropped += 1,
                }
            }
            (dropped, finished)
        };
        let lanes = futures_util::future::join_all((0..LANES).map(one_lane)).await;
        let dropped: usize = lanes.iter().map(|(dropped, _)| dropped).sum();
        // Before the second poll no answer has been read, however few polls a busy machine makes of the rest.
        assert!(dropped >= DROPS * 2 / (POLLS_MAX + 1), "the sweep dropped only {dropped} of {DROPS}");
        soon("quiet", async {
            while [&self.client, &self.other]
                .iter()
                .any(|client| client.stats().names + client.stats().background_jobs > 0)
            {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        LeftoverCheck::new(&self.server, part).assert_clean_async(Duration::from_secs(8)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_acquires_leave_nothing() {
    acquires(Face::Plain, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_acquires_of_a_fair_lock_leave_nothing() {
    acquires(Face::Fair, 11).await;
}

async fn acquires(face: Face, seed: u64) {
    let rig = rig(seed).await;
    rig.sweep("acquire", |client, _, name| {
        let lock = AnyLock::new(face, client, name);
        Box::pin(async move {
            let guard = lock.try_lock().await.unwrap().unwrap();
            guard.unlock().await.unwrap();
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_waits_leave_nothing() {
    waits(Face::Plain, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_waits_for_a_fair_lock_leave_nothing() {
    waits(Face::Fair, 12).await;
}

async fn waits(face: Face, seed: u64) {
    let rig = rig(seed).await;
    // Every ten rounds share a name that another client holds for a moment, so that there is a line to wait in.
    rig.sweep("wait", |client, other, name| {
        let name = name[..name.len() - 1].to_owned();
        let (lock, held) =
            (AnyLock::new(face, client, name.as_str()), AnyLock::new(face, other, name.as_str()));
        Box::pin(async move {
            let blocker = held.acquire().lease(redlatch::Lease::Fixed(ms(20_000))).await.unwrap();
            let waiting = async {
                let guard = lock.acquire().wait(Wait::Forever).await.unwrap().unwrap();
                guard.unlock().await.unwrap();
            };
            let releasing = async {
                tokio::time::sleep(ms(15)).await;
                drop(blocker);
            };
            tokio::join!(waiting, releasing);
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_unlocks_leave_nothing() {
    unlocks(Face::Plain, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_unlocks_of_a_fair_lock_leave_nothing() {
    unlocks(Face::Fair, 13).await;
}

async fn unlocks(face: Face, seed: u64) {
    let rig = rig(seed).await;
    let held = std::sync::Mutex::new(std::collections::VecDeque::new());
    for n in 0..DROPS {
        let lock = AnyLock::new(face, &rig.client, format!("unlock-{n}"));
        let guard = lock.try_lock().await.unwrap().unwrap();
        held.lock().unwrap().push_back(guard);
    }
    rig.sweep("unlock", |_, _, _| {
        let guard = held.lock().unwrap().pop_front().unwrap();
        Box::pin(async move {
            guard.unlock().await.unwrap();
        })
    })
    .await;
}

/// A release of a fair lock whose next is of the same process grants to it; both sides of that are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_hand_overs_of_a_fair_lock_leave_nothing() {
    let rig = rig(14).await;
    rig.sweep("handover", |client, _, name| {
        let lock = client.fair_lock(name);
        Box::pin(async move {
            let guard = lock.try_lock().await.unwrap().unwrap();
            let waiting = async {
                let next = lock.lock().await.unwrap();
                next.unlock().await.unwrap();
            };
            tokio::join!(waiting, async {
                tokio::time::sleep(ms(8)).await;
                guard.unlock().await.unwrap();
            });
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_reentries_leave_nothing() {
    let rig = rig(4).await;
    rig.sweep("reenter", |client, _, name| {
        let lock = client.lock(name);
        Box::pin(async move {
            let outer = lock.try_lock().await.unwrap().unwrap();
            let inner = outer.reenter().await.unwrap();
            inner.unlock().await.unwrap();
            outer.unlock().await.unwrap();
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_transfers_leave_nothing() {
    let rig = rig(5).await;
    rig.sweep("transfer", |client, _, name| {
        let lock = client.lock(name);
        let owner = client.owner();
        Box::pin(async move {
            let guard = lock.try_lock().await.unwrap().unwrap();
            let waiting = async {
                let next = lock.acquire().wait(Wait::Forever).owner(&owner).await.unwrap().unwrap();
                next.unlock().await.unwrap();
            };
            tokio::join!(waiting, async {
                tokio::task::yield_now().await;
                guard.unlock().await.unwrap();
            });
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_waits_for_permits_and_latches_leave_nothing() {
    let rig = rig(6).await;
    let pool = rig.other.semaphore("pool");
    pool.set_if_absent(5, None).await.unwrap();
    // Twenty want what there are five of. A permit has no owner, so the task that got one sees to it that it is given back.
    rig.sweep("redisson_sc", |client, _, _| {
        let (wanted, back) = (client.semaphore("pool"), pool.clone());
        Box::pin(async move {
            wanted.acquire(2).await.unwrap();
            tokio::spawn(async move { back.release(2).await.unwrap() });
        })
    })
    .await;
    soon("the permits", async {
        while pool.available().await.unwrap() != 5 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    tokio::time::sleep(ms(100)).await;
    assert_eq!(pool.available().await.unwrap(), 5, "given back once each");
    rig.other.count_down_latch("gate").set_if_absent(1).await.unwrap();
    rig.sweep("redisson_countdownlatch", |client, _, _| {
        let gate = client.count_down_latch("gate");
        Box::pin(async move { gate.wait().await.unwrap() })
    })
    .await;
    assert_eq!(rig.other.count_down_latch("gate").count().await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_waits_for_a_rate_take_only_what_was_granted() {
    let rig = rig(7).await;
    let long = Duration::from_secs(3_600);
    let (quota, closed) = (rig.other.rate_limiter("quota"), rig.other.rate_limiter("closed"));
    quota.set(redlatch::Rate::per(1_000_000, long)).await.unwrap();
    closed.set(redlatch::Rate::per(1, long)).await.unwrap();
    closed.acquire(1).await.unwrap();
    let granted = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(0));
    rig.sweep("ratesweep", |client, _, _| {
        let (quota, closed) = (client.rate_limiter("quota"), client.rate_limiter("closed"));
        let granted = granted.clone();
        Box::pin(async move {
            quota.acquire(3).await.unwrap();
            granted.fetch_add(3, std::sync::atomic::Ordering::SeqCst);
            closed.acquire(1).await.unwrap();
        })
    })
    .await;
    let granted = granted.load(std::sync::atomic::Ordering::SeqCst);
    assert!(granted > 0, "some came through");
    assert_eq!(
        quota.available().await.unwrap(),
        1_000_000 - granted,
        "what was granted and not heard is back"
    );
    assert_eq!(closed.available().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_reads_writes_and_downgrades_leave_nothing() {
    let rig = rig(7).await;
    rig.sweep("rwread", |client, _, name| {
        let lock = client.read_write_lock(name);
        Box::pin(async move {
            let outer = lock.read().try_lock().await.unwrap().unwrap();
            let inner = outer.reenter().await.unwrap();
            outer.unlock().await.unwrap();
            inner.unlock().await.unwrap();
        })
    })
    .await;
    rig.sweep("rwdown", |client, _, name| {
        let lock = client.read_write_lock(name);
        Box::pin(async move {
            let write = lock.write().try_lock().await.unwrap().unwrap();
            let read = write.downgrade().await.unwrap();
            read.unlock().await.unwrap();
        })
    })
    .await;
    rig.sweep("rwnest", |client, _, name| {
        let lock = client.read_write_lock(name);
        Box::pin(async move {
            let write = lock.write().try_lock().await.unwrap().unwrap();
            let again = write.reenter().await.unwrap();
            let nested = write.read().await.unwrap();
            let read = again.downgrade().await.unwrap();
            write.unlock().await.unwrap();
            nested.unlock().await.unwrap();
            read.unlock().await.unwrap();
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_waits_for_readers_and_writers_leave_nothing() {
    let rig = rig(8).await;
    // Every ten rounds share a name: some wait to read and some to write while another client writes for a moment.
    rig.sweep("rwwait", |client, other, name| {
        let writes = name.ends_with(['0', '3', '6', '9']);
        let name = name[..name.len() - 1].to_owned();
        let (lock, held) =
            (client.read_write_lock(name.as_str()).prefer_writers(), other.read_write_lock(name.as_str()));
        Box::pin(async move {
            let lease = redlatch::Lease::Fixed(ms(20_000));
            let blocker = held.write().acquire().lease(lease).await.unwrap();
            let waiting = async {
                if writes {
                    let guard = lock.write().lock().await.unwrap();
                    guard.downgrade().await.unwrap().unlock().await.unwrap();
                } else {
                    lock.read().lock().await.unwrap().unlock().await.unwrap();
                }
            };
            let releasing = async {
                tokio::time::sleep(ms(15)).await;
                drop(blocker);
            };
            tokio::join!(waiting, releasing);
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_requests_for_leased_permits_leave_nothing() {
    let rig = rig(9).await;
    let pool = rig.other.permit_semaphore("leased");
    pool.set_if_absent(5).await.unwrap();
    rig.sweep("redisson_sc", |client, _, _| {
        let wanted = client.permit_semaphore("leased");
        Box::pin(async move {
            let guard = wanted.request().permits(2).wait(Wait::Forever).await.unwrap().unwrap();
            guard.release().await.unwrap();
        })
    })
    .await;
    // Every lease is 30 s long, so what is free now was given back and did not run out.
    let left = (pool.available().await.unwrap(), pool.acquired().await.unwrap());
    assert_eq!(left, (5, 0), "given back once each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_multi_locks_leave_nothing() {
    let rig = rig(17).await;
    rig.sweep("several", |client, _, name| {
        let set = MultiLock::new((0..3).map(|n| client.lock(format!("{name}-{n}")))).unwrap();
        Box::pin(async move {
            let guard = set.try_lock().await.unwrap().unwrap();
            guard.unlock().await.into_result().unwrap();
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_multi_locks_of_two_clients_leave_nothing() {
    let rig = rig(18).await;
    let second = Client::connect(&rig._proxy.url()).await.unwrap();
    // Every ten rounds share names, so that some wait, and give back what they had.
    rig.sweep("both", |client, other, name| {
        let name = &name[..name.len() - 1];
        let set = MultiLock::new([
            Member::from(client.lock(format!("{name}-x"))),
            Member::from(client.lock(format!("{name}-y"))),
            Member::from(second.fair_lock(format!("{name}-f"))),
            Member::from(other.lock(format!("{name}-o"))),
        ])
        .unwrap();
        Box::pin(async move {
            match set.acquire().wait(Wait::AtMost(ms(40))).await {
                Ok(Some(guard)) => guard.unlock().await.into_result().unwrap(),
                Ok(None) => {}
                // A machine that pauses over the end of the wait leaves the answer unread.
                Err(error) => assert_eq!(error.kind(), redlatch::ErrorKind::Timeout, "{error}"),
            }
        })
    })
    .await;
    assert_eq!(second.stats().names, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_quorum_locks_leave_nothing() {
    let (rig, third) = (rig(19).await, RedisServer::start().unwrap());
    let second = RedisServer::start().unwrap();
    let clients = [&second, &third].map(|server| server.url());
    let (second_client, third_client) =
        (Client::connect_lazy(&clients[0]).unwrap(), Client::connect_lazy(&clients[1]).unwrap());
    rig.sweep("quorum", |client, _, name| {
        let members = [client, &second_client, &third_client].map(|client| client.lock(name.as_str()));
        let set = QuorumLock::new(members).unwrap();
        Box::pin(async move {
            match set.try_lock().await {
                Ok(guard) => drop(guard.expect("nobody else wants it").unlock().await),
                // A machine that pauses is too slow for the time that a member has.
                Err(error) => assert_eq!(error.kind(), redlatch::ErrorKind::Timeout, "{error}"),
            }
        })
    })
    .await;
    for server in [&second, &third] {
        LeftoverCheck::new(server, "quorum").assert_clean_async(Duration::from_secs(8)).await;
    }
}
