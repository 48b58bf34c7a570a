//! The quorum lock: a majority of independent servers, whatever the others do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use redlatch::{Client, ErrorKind, Lease, LossReason, QuorumLock, Unlocked, Wait, blocking};
use redlatch_testkit::{
    leftovers::LeftoverCheck,
    proxy::{Proxy, Scope},
    server::RedisServer,
    stall::paused_since,
};

use crate::fixture::{Fixture, IN_VAIN, LATE, RENEWED, awake, ms, patient, renewed, soon, told};

/// Three servers, a proxy before each, and clients through the proxies.
struct Rig {
    servers: Vec<RedisServer>,
    proxies: Vec<Proxy>,
    clients: Vec<Client>,
}

async fn clients(urls: impl Iterator<Item = String>, lease: Duration) -> Vec<Client> {
    let mut clients = Vec::new();
    for url in urls {
        let client = Client::builder()
            .url(url)
            .watchdog_lease(lease)
            .response_timeout(ms(600))
            .connect_timeout(ms(2_500))
            .connect_lazy()
            .unwrap();
        // The first call teaches the server the scripts, so that later calls are one command each.
        client.lock("warm").lock().await.unwrap().unlock().await.unwrap();
        clients.push(client);
    }
    clients
}

async fn rig(lease: Duration) -> Rig {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    let proxies: Vec<_> = servers.iter().map(|server| Proxy::start(&server.url()).unwrap()).collect();
    let clients = clients(proxies.iter().map(Proxy::url), lease).await;
    Rig { servers, proxies, clients }
}

fn quorum(clients: &[Client], name: &str) -> QuorumLock {
    QuorumLock::new(clients.iter().map(|client| client.lock(name))).unwrap()
}

impl Rig {
    /// Clients of another process, as it were, that reach the servers directly.
    async fn others(&self) -> Vec<Client> {
        clients(self.servers.iter().map(RedisServer::url), ms(30_000)).await
    }

    async fn nothing_left(&self, name: &str) {
        for server in &self.servers {
            LeftoverCheck::new(server, name).assert_clean_async(Duration::from_secs(8)).await;
        }
    }

    fn has(&self, at: usize, name: &str) -> bool {
        self.servers[at].cmd(&["EXISTS", name]).unwrap() == redis::Value::Int(1)
    }
}

/// One member on each kind of store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_stores_make_a_quorum() {
    let stores = [Fixture::memory(), Fixture::local(), Fixture::redis()];
    let name = stores[0].name("q");
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    for store in &stores {
        ours.push(patient(store.builder()).connect_lazy().unwrap());
        others.push(patient(store.builder()).connect_lazy().unwrap());
    }
    let (set, other) = (quorum(&ours, &name), quorum(&others, &name));
    assert_eq!(set.quorum(), 2);
    let start = Instant::now();
    let guard = set.lock().await.unwrap();
    assert_eq!(guard.quorum(), 2);
    // A member that answers after a pause of the machine is left out.
    assert!(guard.members().len() == 3 || !paused_since(start).is_zero(), "{guard:?}");
    assert!(guard.is_valid() && guard.remaining() > ms(400_000) && guard.remaining() < ms(594_000));
    assert!(other.try_lock().await.unwrap().is_none());
    assert!(set.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn(async move { other.lock().await.unwrap() });
    tokio::time::sleep(ms(100)).await;
    assert!(!waiting.is_finished());
    assert!(guard.unlock().await.is_clean());
    // Told, because it does not look by itself.
    let guard = told("the other's turn", waiting).await.unwrap();
    drop(guard);
    let guard = soon("a release by dropping", set.lock()).await.unwrap();
    // Another owner has one member: two are enough.
    guard.unlock().await.into_result().unwrap();
    let held = others[1].lock(name.as_str()).lock().await.unwrap();
    let guard = set.try_lock().await.unwrap().expect("two of three are a quorum");
    assert_eq!(guard.members().len(), 2);
    drop(guard);
    held.unlock().await.unwrap();
}

fn lazy(url: &str) -> Client {
    Client::builder().url(url).connect_timeout(ms(500)).connect_lazy().unwrap()
}

fn refusal(lock: Result<QuorumLock, redlatch::Error>) -> String {
    let error = lock.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_with_a_member_that_is_down_is_built_and_held_and_the_member_joins_later() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    servers[2].kill9();
    let clients = |_| servers.iter().map(|server| lazy(&server.url())).collect::<Vec<_>>();
    let (ours, others) = (clients(0), clients(1));
    let (set, other) = (quorum(&ours, "down"), quorum(&others, "down"));
    assert_eq!(set.quorum(), 2, "of three, the one that is down included");
    let guard = soon("a majority", set.lock()).await.unwrap();
    assert_eq!(guard.members().len(), 2);
    assert!(soon("a look", other.try_lock()).await.unwrap().is_none());
    guard.unlock().await.into_result().unwrap();
    // Another one goes, and two of three are too many.
    servers[0].kill9();
    let error = soon("no majority", set.try_lock()).await.map(|_| ()).unwrap_err();
    assert!(error.is_retryable(), "{error}");
    // It may be on its way back when the error comes.
    drop(soon("what was taken is given back", ours[1].lock("down").lock()).await.unwrap());
    servers[2].restart_empty().unwrap();
    let guard = soon("a majority of others", set.lock()).await.unwrap();
    assert_eq!(guard.members().len(), 2);
    assert!(soon("a look", other.try_lock()).await.map_or(true, |guard| guard.is_none()));
    guard.unlock().await.into_result().unwrap();
}

/// Two processes whose servers have answered differently would each have a majority of what is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_of_those_that_happened_to_answer_cannot_be_put_together() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    servers[0].kill9();
    let mut answered = Vec::new();
    for server in &servers {
        answered.extend(Client::connect(&server.url()).await.ok());
    }
    assert_eq!(answered.len(), 2);
    let told = refusal(QuorumLock::new(answered.iter().map(|client| client.lock("some"))));
    assert!(told.contains("connect_lazy"), "{told}");
    let mixed = [lazy(&servers[0].url()).lock("some"), answered[0].lock("some"), answered[1].lock("some")];
    refusal(QuorumLock::new(mixed));
    let blocking = blocking::Client::of(answered.remove(0));
    assert!(blocking::QuorumLock::new([blocking.lock("some")]).is_err());
}

/// One server that loses its data would end a majority of its two names at once, and grant the next one.
#[tokio::test]
async fn two_names_of_one_server_are_refused_as_soon_as_they_are_reached() {
    let servers: Vec<_> = (0..2).map(|_| RedisServer::start().unwrap()).collect();
    let proxy = Proxy::start(&servers[0].url()).unwrap();
    let (url, other) = (servers[0].url(), servers[1].url());
    for again in [url.replace("127.0.0.1", "localhost"), format!("{url}/1"), proxy.url()] {
        assert_ne!(again, url);
        let clients = [lazy(&url), lazy(&again), lazy(&other)];
        let quorum = QuorumLock::new(clients.iter().map(|client| client.lock("aliased"))).unwrap();
        // The majority may be complete before the third member was reached at all.
        let refused = async {
            loop {
                match quorum.try_lock().await {
                    // A busy machine takes longer than a member may.
                    Err(error) if error.is_retryable() => {}
                    Err(error) => return error,
                    Ok(held) => drop(held),
                }
                tokio::time::sleep(ms(10)).await;
            }
        };
        let error = soon("the refusal", refused).await;
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{again}: {error}");
        for server in &servers {
            soon("the release", async {
                while server.keys_dump().unwrap().keys().any(|key| key == b"aliased") {
                    tokio::time::sleep(ms(10)).await;
                }
            })
            .await;
        }
    }
}

#[test]
fn other_members_than_a_quorum_in_use_has_are_refused() {
    let client = |n: u16| lazy(&format!("redis://127.0.0.1:{n}"));
    let of = |ports: &[u16], name: &str| QuorumLock::new(ports.iter().map(|port| client(*port).lock(name)));
    let set = of(&[1, 2, 3], "m").unwrap();
    // Fewer, more, others; whatever the order.
    for other in [&[2, 3][..], &[3], &[1, 2, 3, 4, 5], &[1, 2, 4]] {
        let told = refusal(of(other, "m"));
        assert!(told.contains("a quorum of 3 other members"), "{told}");
    }
    let same = of(&[3, 1, 2], "m").unwrap();
    // Another name, or servers that have nothing to do with these, are another lock.
    let _others = (of(&[2, 3], "n").unwrap(), of(&[7, 8, 9], "m").unwrap());
    drop(set);
    refusal(of(&[2, 3], "m"));
    drop(same);
    assert!(of(&[2, 3], "m").is_ok(), "nobody uses the former ones any more");
}

#[tokio::test]
async fn a_held_quorum_keeps_its_members() {
    let urls = ["memory:keeps-a", "memory:keeps-b", "memory:keeps-c"];
    let clients: Vec<_> = urls.iter().map(|url| Client::connect_lazy(url).unwrap()).collect();
    let guard = quorum(&clients, "m").lock().await.unwrap();
    refusal(QuorumLock::new([clients[0].lock("m")]));
    guard.unlock().await.into_result().unwrap();
    assert!(QuorumLock::new([clients[0].lock("m")]).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_turn_out_to_be_on_one_server_are_no_quorum() {
    let set = redlatch_testkit::topology::SentinelSet::start().unwrap();
    let addrs = set.sentinel_addrs();
    let url = |at: usize| format!("redis-sentinel://{}/redlatch", addrs[at]);
    let third = RedisServer::start().unwrap();
    let clients: Vec<_> =
        [url(0), url(1), third.url()].iter().map(|url| Client::connect_lazy(url).unwrap()).collect();
    // The first two only know other sentinels, as far as that shows before they have been asked.
    let lock = quorum(&clients, "one").member_timeout(ms(2_000));
    let mut told = String::new();
    soon("both to be known", async {
        while !told.contains("on one server") {
            if let Err(error) = lock.try_lock().await {
                told = error.to_string();
            }
        }
    })
    .await;
    for client in &clients {
        LeftoverCheck::new(
            if client.store().contains("sentinel") { set.node(set.master().unwrap()) } else { &third },
            "one",
        )
        .assert_clean_async(Duration::from_secs(20))
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_on_one_server_and_odd_limits_are_refused() {
    let server = RedisServer::start().unwrap();
    let urls = [server.url(), server.url()];
    let twice = clients(urls.into_iter(), ms(30_000)).await;
    let kind = |lock: Result<QuorumLock, redlatch::Error>| lock.unwrap_err().kind();
    assert_eq!(kind(QuorumLock::new(Vec::<redlatch::Member>::new())), ErrorKind::InvalidOption);
    assert_eq!(kind(QuorumLock::new([twice[0].lock("x"), twice[1].lock("y")])), ErrorKind::InvalidOption);
    assert_eq!(kind(QuorumLock::new([twice[0].lock("x"), twice[0].lock("y")])), ErrorKind::InvalidOption);
    let one = QuorumLock::new([twice[0].lock("x")]).unwrap();
    assert_eq!(one.quorum(), 1);
    for limit in [Duration::ZERO, ms(15_001)] {
        let error = one.clone().member_timeout(limit).try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
    }
    let guard = one.clone().member_timeout(ms(15_000)).try_lock().await.unwrap().expect("it is free");
    assert!(guard.unlock().await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_of_three_may_be_down() {
    let rig = rig(RENEWED).await;
    let others = rig.others().await;
    rig.servers[1].kill9();
    let (set, other) = (quorum(&rig.clients, "down1"), quorum(&others, "down1"));
    let start = Instant::now();
    let guard = other.clone().member_timeout(ms(15_000)).lock().await.unwrap();
    // Less than a member may take to answer, so the one that is down is not waited for.
    assert!(awake(start) < LATE, "{:?}", start.elapsed());
    assert!(guard.unlock().await.is_clean());
    let guard = set.lock().await.unwrap();
    assert_eq!(guard.members().len(), 2);
    assert!(other.try_lock().await.unwrap().is_none());
    // Renewed by the keepers of the members that stand.
    renewed(4, async || guard.remaining()).await;
    assert!(guard.is_valid() && guard.loss().is_none());
    assert!(other.try_lock().await.unwrap().is_none());
    // Now one of the two goes as well: fewer than a quorum are left.
    rig.servers[2].kill9();
    let lost = soon("the notice", guard.lost()).await;
    assert_eq!(lost.reason, LossReason::Expired);
    assert!(!guard.is_valid());
    let report = guard.unlock().await;
    assert!(!report.is_clean());
    rig.servers[1].restart().unwrap();
    rig.servers[2].restart().unwrap();
    let guard = soon("a new quorum", other.lock()).await.unwrap();
    drop(guard);
    rig.nothing_left("down1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_of_three_down_are_no_quorum() {
    let rig = rig(ms(30_000)).await;
    rig.servers[0].kill9();
    rig.servers[2].kill9();
    let set = quorum(&rig.clients, "down2");
    let start = Instant::now();
    let error = set.try_lock().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(awake(start) < ms(600) + LATE, "{:?}", start.elapsed());
    let start = Instant::now();
    let error = set.lock_for(ms(700)).await.unwrap_err();
    assert!(error.is_retryable(), "trouble is not reported as busy: {error}");
    assert!(start.elapsed() >= ms(595) && awake(start) < ms(700 + 600) + LATE, "{:?}", start.elapsed());
    soon("the release of the one that granted", async {
        while rig.has(1, "down2") {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    let waiting = {
        let set = set.clone();
        tokio::spawn(async move { set.lock().await.unwrap() })
    };
    tokio::time::sleep(ms(300)).await;
    rig.servers[0].restart().unwrap();
    let guard = soon("the grant once there is a quorum again", waiting).await.unwrap();
    assert_eq!(guard.members().len(), 2);
    let _ = guard.unlock().await;
    rig.servers[2].restart().unwrap();
    rig.nothing_left("down2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_costs_no_more_than_the_time_of_a_member() {
    let rig = rig(ms(30_000)).await;
    let set = quorum(&rig.clients, "frozen").member_timeout(ms(200));
    let patient = quorum(&rig.clients, "frozen").member_timeout(ms(10_000));
    set.lock().await.unwrap().unlock().await.into_result().unwrap();
    rig.proxies[1].stall(Scope::Both);
    for _ in 0..5 {
        let start = Instant::now();
        let guard = patient.lock().await.unwrap();
        assert!(awake(start) < LATE, "two answers are enough: {:?}", start.elapsed());
        assert_eq!(guard.members().len(), 2);
        let start = Instant::now();
        assert!(guard.unlock().await.is_clean());
        assert!(awake(start) < LATE, "{:?}", start.elapsed());
    }
    // With two frozen there is no quorum, and the time of a member bounds the answer.
    rig.proxies[2].stall(Scope::Both);
    let start = Instant::now();
    let error = set.try_lock().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(awake(start) < 2 * ms(200) + LATE, "{:?}", start.elapsed());
    // A server that freezes while the lock is held does not hold up the release for longer, either.
    rig.proxies[1].heal().unwrap();
    rig.proxies[2].heal().unwrap();
    let guard = soon("a quorum again", set.lock()).await.unwrap();
    rig.proxies.iter().for_each(|proxy| proxy.stall(Scope::Both));
    let start = Instant::now();
    let report = guard.unlock().await;
    assert!(awake(start) < ms(200) + LATE, "{:?}", start.elapsed());
    assert!(!report.is_clean() && report.into_result().unwrap_err().kind() == ErrorKind::Timeout);
    for proxy in &rig.proxies {
        proxy.heal().unwrap();
    }
    rig.nothing_left("frozen").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_comes_too_late_is_no_grant() {
    let rig = rig(ms(30_000)).await;
    // Answers take longer than the lease is valid.
    for proxy in &rig.proxies {
        proxy.latency(ms(70), ms(0), 1);
    }
    let set = quorum(&rig.clients, "late").member_timeout(ms(50));
    let lease = Lease::Fixed(ms(100));
    let error = set.acquire().lease(lease).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let error = set.acquire().lease(lease).wait(Wait::AtMost(ms(500))).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    for proxy in &rig.proxies {
        proxy.heal().unwrap();
    }
    rig.nothing_left("late").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_stands_until_fewer_than_a_quorum_of_members_do() {
    let rig = rig(RENEWED).await;
    let others = rig.others().await;
    // The longest that there is, because the machine may pause.
    let set = quorum(&rig.clients, "stands").member_timeout(RENEWED / 2);
    let guard = soon("a grant of all three", async {
        loop {
            // A member that answers long after the others is left out.
            let guard = set.lock().await.unwrap();
            if guard.members().len() == 3 {
                break guard;
            }
            assert!(guard.unlock().await.is_clean());
        }
    })
    .await;
    assert!(others[0].lock("stands").force_unlock().await.unwrap());
    soon("the loss of the member", async {
        while guard.members()[0].is_valid() {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    renewed(2, async || guard.remaining()).await;
    assert!(guard.is_valid() && guard.loss().is_none());
    assert!(quorum(&others, "stands").try_lock().await.unwrap().is_none());
    assert!(others[2].lock("stands").force_unlock().await.unwrap());
    let lost = soon("the notice", guard.lost()).await;
    assert!(matches!(lost.reason, LossReason::Forced { .. }), "{:?}", lost.reason);
    assert!(!guard.is_valid() && guard.loss().is_some());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    let report = guard.unlock().await;
    assert!(matches!(report.members[1].1, Ok(Unlocked::Released)), "{report:?}");
    // The notes of who forced it free go by themselves.
    for server in &rig.servers {
        server.cmd(&["DEL", "redlatch_forced:{stands}"]).unwrap();
    }
    rig.nothing_left("stands").await;
}

/// Many want one lock whose members they may split between them; nobody may get in beside anybody, and all must get in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contenders_that_split_the_members_all_get_their_turn() {
    let rig = rig(ms(30_000)).await;
    let others = rig.others().await;
    let (inside, turns) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks = (0..6).map(|task| {
        let set = quorum(if task % 2 == 0 { &rig.clients } else { &others }, "split");
        let (inside, turns) = (inside.clone(), turns.clone());
        tokio::spawn(async move {
            for _ in 0..8 {
                let guard = set.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                tokio::time::sleep(ms(1)).await;
                assert!(guard.is_valid());
                inside.fetch_sub(1, Ordering::SeqCst);
                turns.fetch_add(1, Ordering::SeqCst);
                let _ = guard.unlock().await;
            }
        })
    });
    let all = tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(tasks)).await;
    let all = all.unwrap_or_else(|_| panic!("stuck after {} turns", turns.load(Ordering::SeqCst)));
    all.into_iter().for_each(|task| task.unwrap());
    rig.nothing_left("split").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_take_a_quorum() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    tokio::task::spawn_blocking(move || {
        std::thread::spawn(move || {
            let clients: Vec<_> =
                urls.iter().map(|url| blocking::Client::connect_lazy(url).unwrap()).collect();
            let set = blocking::QuorumLock::new(clients.iter().map(|client| client.lock("t"))).unwrap();
            let guard = set.lock().unwrap();
            assert!(guard.is_valid());
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(set.lock_for(IN_VAIN).unwrap().is_none()));
            });
            assert!(guard.unlock().unwrap().is_clean());
            assert!(set.try_lock().unwrap().unwrap().unlock().unwrap().is_clean());
        })
        .join()
        .unwrap();
    })
    .await
    .unwrap();
}

/// Each member was silent for longer than an answer may take. What the thread had asked for was never answered, and its next rounds asked as
/// the same owner, which is granted nothing for an hour then: the wait ended with `OwnerInDoubt` within two seconds, and none of its 30.
#[test]
fn a_thread_that_waits_for_a_quorum_goes_on_when_silent_members_answer_again() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start().unwrap()).collect();
    let proxies: Vec<_> = servers.iter().map(|server| Proxy::start(&server.url()).unwrap()).collect();
    let clients: Vec<_> = proxies
        .iter()
        .map(|proxy| {
            let builder = Client::builder().url(proxy.url()).response_timeout(ms(600));
            blocking::Client::of(builder.connect_timeout(ms(300)).connect_lazy().unwrap())
        })
        .collect();
    let set = blocking::QuorumLock::new(clients.iter().map(|client| client.lock("silent"))).unwrap();
    set.lock().unwrap().unlock().unwrap().into_result().unwrap();
    let before: Vec<_> = proxies.iter().map(Proxy::connections_accepted).collect();
    proxies.iter().for_each(|proxy| proxy.stall(Scope::Both));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| set.lock().map(|guard| guard.is_valid() && guard.unlock().is_ok()));
        // Silent connections are given up, and so are those that are made in their place.
        let given_up = |(proxy, before): (&Proxy, &u64)| proxy.connections_accepted() >= before + 5;
        while !waiting.is_finished() && !proxies.iter().zip(&before).all(given_up) {
            std::thread::sleep(ms(10));
        }
        proxies.iter().for_each(|proxy| proxy.heal().unwrap());
        assert!(waiting.join().unwrap().unwrap());
    });
    for server in &servers {
        LeftoverCheck::new(server, "silent").assert_clean(Duration::from_secs(8));
    }
}

/// RedissonMultiLockTest.test: members on three servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_multi_lock_with_members_on_three_servers() {
    let rig = rig(ms(30_000)).await;
    let others = rig.others().await;
    let set = |clients: &[Client]| {
        let locks = clients.iter().enumerate().map(|(n, client)| client.lock(format!("lock{}", n + 1)));
        redlatch::MultiLock::new(locks).unwrap()
    };
    let (ours, other) = (set(&rig.clients), set(&others));
    let guard = ours.lock().await.unwrap();
    for _ in 0..2 {
        assert!(other.try_lock().await.unwrap().is_none());
    }
    guard.unlock().await.into_result().unwrap();
    let guard = other.try_lock().await.unwrap().expect("it is free");
    // Reliability row 41: a member that fails late leaves no part of the set.
    guard.unlock().await.into_result().unwrap();
    rig.proxies[2].stall(Scope::Both);
    let error = ours.lock_for(ms(300)).await.map(|_| ()).unwrap_err();
    assert!(error.is_retryable(), "{error}");
    rig.proxies[2].heal().unwrap();
    rig.nothing_left("lock").await;
}

/// A task that has done much without a pause is made to give way, at any point that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_dropped_while_its_task_has_to_give_way_is_done() {
    let mut clients = Vec::new();
    for n in 0..3 {
        clients.push(Client::connect(&format!("memory:gives-way-{n}")).await.unwrap());
    }
    let set = QuorumLock::new(clients.iter().map(|client| client.lock("x"))).unwrap();
    let guard = set.try_lock().await.unwrap().expect("nobody else wants it");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    (0..1_000).for_each(|n| tell.send(n).unwrap());
    while futures_util::poll!(std::pin::pin!(told.recv())).is_ready() {}
    assert!(!told.is_empty(), "the task has to give way");
    let mut release = Box::pin(guard.unlock());
    assert!(futures_util::poll!(release.as_mut()).is_pending());
    drop(release);
    soon("the release of all members", async {
        for client in &clients {
            while client.lock("x").is_locked().await.unwrap() {
                tokio::time::sleep(ms(10)).await;
            }
        }
    })
    .await;
}
