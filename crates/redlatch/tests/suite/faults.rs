//! Faults on a single node, each named after its row of the fault table: what must hold when things break.

use std::{
    future::IntoFuture,
    time::{Duration, Instant},
};

use redlatch::{Client, Error, ErrorKind, LossReason, Unlocked, scripts};
use redlatch_testkit::{
    leftovers::LeftoverCheck,
    proxy::{Action, ConnectionKind, Match, Nth, Proxy, Scope},
    server::RedisServer,
};

use crate::fixture::{LATE, NEXT_RENEWAL, RENEWED, SOON, awake, ms, renewed, soon};

/// A server, a proxy before it, and a client that goes through the proxy.
pub(crate) struct Rig {
    pub(crate) server: RedisServer,
    pub(crate) proxy: Proxy,
    pub(crate) client: Client,
    pub(crate) direct: Client,
}

pub(crate) async fn rig(lease: Duration) -> Rig {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder()
        .url(proxy.url())
        .watchdog_lease(lease)
        .response_timeout(ms(600))
        .connect_timeout(ms(2_500))
        // Long turns, so that waiting tasks are handed the lock however long its holder took.
        .turn_time(ms(60_000))
        .connect()
        .await
        .unwrap();
    let direct = Client::connect(&server.url()).await.unwrap();
    // The first call teaches the server the scripts, so that later calls are one command each.
    client.lock("warm").lock().await.unwrap().unlock().await.unwrap();
    Rig { server, proxy, client, direct }
}

pub(crate) async fn nothing_left(server: &RedisServer, part: &str) {
    LeftoverCheck::new(server, part).assert_clean_async(Duration::from_secs(8)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_01_a_restarted_server_that_kept_its_data_loses_no_lock() {
    let server = RedisServer::builder().appendonly(true).arg("appendfsync", "always").start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(ms(4_000)).connect().await.unwrap();
    let guard = client.lock("kept").lock().await.unwrap();
    let lock = client.lock("kept");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    let other = Client::connect(&server.url()).await.unwrap();
    let distant = other.lock("kept");
    let distant = tokio::spawn(async move { distant.lock().await.map(drop) });
    tokio::time::sleep(ms(200)).await;
    server.kill9();
    server.restart().unwrap();
    tokio::time::sleep(ms(4_500)).await;
    assert!(guard.is_valid(), "renewed after the restart: {:?}", guard.loss());
    assert!(other.lock("kept").try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
    soon("the waiter's turn", waiter).await.unwrap().unwrap();
    soon("the distant waiter's turn", distant).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_02_a_server_that_comes_back_empty_is_noticed_by_every_holder() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(ms(9_000)).connect().await.unwrap();
    let renewed = client.lock("renewed").lock().await.unwrap();
    let fixed = client.lock("fixed").lock_with_lease(ms(60_000)).await.unwrap();
    server.kill9();
    server.restart_empty().unwrap();
    let start = Instant::now();
    assert_eq!(soon("the renewed holder's notice", renewed.lost()).await, LossReason::Deleted);
    assert_eq!(soon("the fixed holder's notice", fixed.lost()).await, LossReason::Deleted);
    assert!(awake(start) < ms(3_500), "told on reconnecting, not by the deadline: {:?}", start.elapsed());
    drop(soon("a new grant", client.lock("renewed").lock()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_02_flushed_data_is_noticed_at_the_next_renewal() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let guard = client.lock("flushed").lock().await.unwrap();
    server.flush_all().unwrap();
    let start = Instant::now();
    assert_eq!(soon("the notice", guard.lost()).await, LossReason::Deleted);
    assert!(awake(start) < NEXT_RENEWAL, "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_03_a_server_gone_for_longer_than_the_lease_means_loss_by_the_deadline() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(ms(900)).connect().await.unwrap();
    let guard = client.lock("gone").lock().await.unwrap();
    server.kill9();
    let start = Instant::now();
    assert_eq!(soon("the notice", guard.lost()).await, LossReason::Expired);
    assert!(awake(start) <= ms(900) + LATE, "{:?}", start.elapsed());
    server.restart().unwrap();
    tokio::time::sleep(ms(300)).await;
    assert!(!guard.is_valid(), "what is lost stays lost");
    assert!(matches!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Expired)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_09_a_reset_connection_costs_nobody_anything() {
    let rig = rig(RENEWED).await;
    let guard = rig.client.lock("reset").lock().await.unwrap();
    for _ in 0..20 {
        rig.proxy.reset_all();
        tokio::time::sleep(ms(60)).await;
        assert!(rig.client.lock("reset").lock_for(ms(500)).await.unwrap().is_none());
        rig.client.lock("free").lock_for(SOON).await.unwrap().unwrap().unlock().await.unwrap();
    }
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    nothing_left(&rig.server, "free").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_10_a_lost_acquire_reply_never_counts_twice_and_never_leaks() {
    let rig = rig(ms(30_000)).await;
    for (n, action) in
        [Action::CloseAfterRequest, Action::DropReply, Action::CloseBeforeRequest].into_iter().enumerate()
    {
        let name = format!("lost-{n}");
        for wait in ["lock", "try", "short"] {
            rig.proxy.clear_rules();
            let rule = rig.proxy.rule(Match::script().key_contains(&name).nth(1), action.clone());
            let lock = rig.client.lock(name.as_str());
            match wait {
                "lock" => {
                    let guard = soon("the grant", lock.lock()).await.unwrap();
                    assert_eq!(rig.direct.lock(name.as_str()).hold_count(guard.owner()).await.unwrap(), 1);
                    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
                }
                "try" => {
                    // Resolved by asking again under the same owner: granted once, or an error with nothing left.
                    if let Ok(Some(guard)) = soon("an answer", lock.try_lock()).await {
                        assert_eq!(
                            rig.direct.lock(name.as_str()).hold_count(guard.owner()).await.unwrap(),
                            1
                        );
                        guard.unlock().await.unwrap();
                    }
                }
                _ => {
                    let start = Instant::now();
                    if let Ok(Some(guard)) = lock.lock_for(ms(200)).await {
                        guard.unlock().await.unwrap();
                    }
                    assert!(awake(start) < ms(200 + 400), "{:?}", start.elapsed());
                }
            }
            assert_eq!(rig.proxy.fired(rule), 1, "the fault was there");
            rig.proxy.heal().unwrap();
            nothing_left(&rig.server, &name).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_11_a_lost_unlock_reply_frees_nobody_else_and_is_no_false_alarm() {
    let rig = rig(ms(30_000)).await;
    for (n, action) in [Action::CloseAfterRequest, Action::DropReply].into_iter().enumerate() {
        let name = format!("unlock-{n}");
        let guard = rig.client.lock(name.as_str()).lock().await.unwrap();
        let rule = rig.proxy.rule(Match::script().arg_contains(scripts::RELEASE.sha1()).nth(1), action);
        let unlocking = tokio::spawn(guard.unlock());
        // Somebody else takes the lock while the first reply is lost; the repeat must not free it.
        let next = soon("the next grant", rig.direct.lock(name.as_str()).lock()).await.unwrap();
        assert_eq!(soon("the outcome", unlocking).await.unwrap().unwrap(), Unlocked::Released);
        assert_eq!(rig.proxy.fired(rule), 1);
        assert!(rig.direct.lock(name.as_str()).is_held_by(next.owner()).await.unwrap());
        next.unlock().await.unwrap();
        rig.proxy.clear_rules();
        rig.proxy.heal().unwrap();
        nothing_left(&rig.server, &name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_11_lost_replies_of_reentry_keep_the_count_exact() {
    let rig = rig(ms(30_000)).await;
    let guard = rig.client.lock("count").lock().await.unwrap();
    for script in [&scripts::ENTER, &scripts::LEAVE] {
        rig.proxy.rule(
            Match::script().arg_contains(script.sha1()).which(Nth::First(1)),
            Action::CloseAfterRequest,
        );
    }
    let plain = rig.client.lock("count");
    // `owner()` would mark the owner as shared; the hold count is read by what the server shows.
    let count = async || rig.direct.inspect("count").await.unwrap().holders[0].holds;
    let inner = soon("the re-entry", guard.reenter()).await.unwrap();
    assert_eq!(count().await, 2);
    assert_eq!(soon("the partial release", inner.unlock()).await.unwrap(), Unlocked::StillHeld(1));
    assert_eq!(count().await, 1);
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    assert!(!plain.is_locked().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_12_every_second_renewal_may_fail_and_the_lock_holds() {
    let rig = rig(RENEWED).await;
    let guard = rig.client.lock("flaky").lock().await.unwrap();
    for nth in (1..40).step_by(2) {
        rig.proxy
            .rule(Match::script().arg_contains(scripts::RENEW.sha1()).nth(nth), Action::CloseAfterRequest);
    }
    renewed(4, async || {
        assert!(guard.is_valid(), "{:?}", guard.loss());
        rig.direct.lock("flaky").remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    assert!(rig.direct.lock("flaky").try_lock().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_a_silent_network_means_loss_by_the_deadline_and_an_answer_in_time() {
    for scope in [Scope::Both, Scope::Requests, Scope::Replies, Scope::Commands] {
        let rig = rig(ms(900)).await;
        let guard = rig.client.lock("dark").lock().await.unwrap();
        rig.proxy.blackhole(scope);
        let start = Instant::now();
        let waiting = rig.client.lock("other");
        let waiter = tokio::spawn(async move {
            let start = Instant::now();
            (waiting.lock_for(ms(400)).await.map(|_| ()), awake(start))
        });
        assert_eq!(soon("the notice", guard.lost()).await, LossReason::Expired);
        assert!(awake(start) <= ms(900) + LATE, "{scope:?}: {:?}", start.elapsed());
        let (outcome, took) = soon("the waiter's end", waiter).await.unwrap();
        assert!(outcome.is_err(), "trouble is not 'busy'");
        assert!(took < ms(400) + LATE, "{scope:?}: {took:?}");
        let start = Instant::now();
        let error = rig.client.lock("try").try_lock().await.map(|_| ()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Timeout), "{error}");
        assert!(awake(start) < ms(3_500), "{scope:?}: {:?}", start.elapsed());
        rig.proxy.heal().unwrap();
        drop(soon("service after the fault", rig.client.lock("after").lock()).await.unwrap());
        for name in ["dark", "other", "try"] {
            nothing_left(&rig.server, name).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_without_messages_waiters_look_for_themselves() {
    let rig = rig(ms(30_000)).await;
    let guard = rig.direct.lock("mute").lock().await.unwrap();
    let lock = rig.client.lock("mute");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    tokio::time::sleep(ms(300)).await;
    rig.proxy.blackhole(Scope::PubSub);
    let start = Instant::now();
    guard.unlock().await.unwrap();
    soon("the poll", waiter).await.unwrap().unwrap();
    assert!(awake(start) < ms(1_200), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_14_a_grant_that_comes_too_late_is_given_back() {
    let rig = rig(ms(30_000)).await;
    rig.proxy.rule(Match::script().key_contains("late").nth(1), Action::DelayReply(ms(350)));
    let error = rig
        .client
        .lock("late")
        .acquire()
        .lease(redlatch::Lease::Fixed(ms(200)))
        .await
        .map(|_| ())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    nothing_left(&rig.server, "late").await;
    // With latency and jitter on every message the deadline still counts from the sending.
    rig.proxy.clear_rules();
    rig.proxy.latency(ms(50), ms(50), 7);
    let guard = rig.client.lock("slow").lock_with_lease(ms(2_000)).await.unwrap();
    assert!(guard.remaining() <= ms(2_000 - 100), "{:?}", guard.remaining());
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_15_replies_in_single_bytes_are_understood() {
    let rig = rig(ms(30_000)).await;
    rig.proxy.slice_replies();
    for _ in 0..5 {
        let guard = rig.client.lock("sliced").acquire().fenced().await.unwrap().unwrap();
        assert!(guard.token().is_some());
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_16_a_shifted_reply_is_never_a_grant() {
    let rig = rig(ms(30_000)).await;
    let rule = rig.proxy.rule(Match::script().key_contains("shift").nth(3), Action::SkipReply);
    let mut tasks = Vec::new();
    for n in 0..40 {
        let client = rig.client.clone();
        tasks.push(tokio::spawn(async move {
            // Each name is held by somebody else or free, so a shifted reply would grant what is held.
            let lock = client.lock(format!("shift-{n}"));
            lock.lock_for(ms(4_000)).await.map(|guard| guard.map(|guard| (n, guard)))
        }));
    }
    let mut held = Vec::new();
    for task in tasks {
        if let Some((n, guard)) = soon("an answer", task).await.unwrap().unwrap() {
            let holds = rig.direct.lock(format!("shift-{n}")).hold_count(guard.owner()).await.unwrap();
            assert_eq!(holds, 1, "a guard without a hold: shift-{n}");
            held.push(guard);
        }
    }
    assert_eq!(rig.proxy.fired(rule), 1);
    assert_eq!(held.len(), 40);
    drop(held);
    nothing_left(&rig.server, "shift").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_17_flushed_scripts_are_sent_again() {
    let rig = rig(RENEWED).await;
    let guard = rig.client.lock("scripts").lock().await.unwrap();
    renewed(4, async || {
        rig.server.flush_scripts().unwrap();
        rig.client.lock("other").lock().await.unwrap().unlock().await.unwrap();
        rig.direct.lock("scripts").remaining_ttl().await.unwrap().expect("it is held")
    })
    .await;
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_18_killed_subscriptions_leave_no_waiter_asleep() {
    let rig = rig(ms(30_000)).await;
    let other = Client::connect(&rig.proxy.url()).await.unwrap();
    let killer = {
        let proxy = &rig.proxy;
        async move {
            loop {
                proxy.reset(ConnectionKind::PubSub);
                tokio::time::sleep(ms(100)).await;
            }
        }
    };
    let work = async {
        let mut longest = Duration::ZERO;
        for _ in 0..25 {
            let guard = rig.client.lock("killed").lock().await.unwrap();
            let lock = other.lock("killed");
            let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
            tokio::time::sleep(ms(60)).await;
            guard.unlock().await.unwrap();
            let start = Instant::now();
            soon("the waiter's turn", waiter).await.unwrap().unwrap();
            longest = longest.max(awake(start));
        }
        longest
    };
    tokio::select! {
        longest = work => assert!(longest < ms(1_300), "a hand-off took {longest:?}"),
        () = killer => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_19_killed_clients_and_full_servers_are_survived() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let guard = client.lock("kill").lock().await.unwrap();
    for _ in 0..10 {
        server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        tokio::time::sleep(ms(100)).await;
        client.lock("other").lock_for(SOON).await.unwrap().unwrap().unlock().await.unwrap();
    }
    assert!(guard.is_valid());
    server.cmd(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    let error = Client::connect(&server.url()).await.map(|_| ()).unwrap_err();
    // The server says why and hangs up at once; whether the reason can still be read is a matter of luck.
    assert!(matches!(error.kind(), ErrorKind::ServerBusy | ErrorKind::Unreachable), "{error}");
    assert!(guard.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_a_server_that_became_a_replica_is_an_error_and_no_loss() {
    let (server, master) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let guard = client.lock("mine").lock().await.unwrap();
    let busy = Client::connect(&server.url()).await.unwrap().lock("busy").lock().await.unwrap();
    server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    for name in ["busy", "new"] {
        let error = client.lock(name).try_lock().await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{name}: {error}");
    }
    assert!(guard.is_valid(), "a refused renewal is not a loss");
    let error = client.lock("new").lock_for(ms(100)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert_eq!(soon("the deadline", guard.lost()).await, LossReason::Expired);
    drop((busy, master));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_26_a_full_memory_refuses_locks_and_nothing_else() {
    let server = RedisServer::start().unwrap();
    let client = Client::builder().url(server.url()).watchdog_lease(RENEWED).connect().await.unwrap();
    let guard = client.lock("before").lock().await.unwrap();
    let inner = guard.reenter().await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let error = client.lock("after").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(error.to_string().contains("after") && error.to_string().contains("maxmemory"), "{error}");
    // Renewals go on.
    renewed(2, async || guard.remaining()).await;
    assert!(guard.is_valid());
    drop(inner);
    let outcome = soon("the release", guard.unlock()).await;
    assert!(outcome.is_ok(), "{outcome:?}");
    nothing_left(&server, "before").await;
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    client.lock("after").try_lock().await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_28_a_missing_right_is_named_and_nothing_is_left_half_done() {
    let full = "on >pw ~app:* ~{app:* &redisson_lock__channel:* +@all -@admin";
    for (without, operation) in [
        ("-hset", "lock"),
        ("-pexpire", "lock"),
        ("-evalsha", "lock"),
        ("-publish", "unlock"),
        ("-subscribe", "wait"),
    ] {
        let server = RedisServer::builder().acl(&format!("limited {full} {without}")).start().unwrap();
        let url = server.url().replace("redis://", "redis://limited:pw@");
        let client = Client::connect(&url).await.unwrap();
        let lock = client.lock("app:x");
        match operation {
            "lock" => {
                let error = lock.try_lock().await.map(|_| ()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Permission, "{without}: {error}");
                nothing_left(&server, "app:x").await;
            }
            "unlock" => {
                let guard = lock.lock().await.unwrap();
                assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released, "a mute release is a release");
                assert!(!lock.is_locked().await.unwrap());
            }
            _ => {
                let owner =
                    Client::connect(&server.url().replace("redis://", "redis://limited:pw@")).await.unwrap();
                let guard = owner.lock("app:x").lock().await.unwrap();
                let waiting = client.lock("app:x");
                let waiter = tokio::spawn(async move { waiting.lock().await.map(drop) });
                tokio::time::sleep(ms(200)).await;
                guard.unlock().await.unwrap();
                soon("the poll", waiter).await.unwrap().unwrap();
            }
        }
    }
    let server = RedisServer::builder().acl(&format!("limited {full}")).start().unwrap();
    let client = Client::connect(&server.url().replace("redis://", "redis://limited:pw@")).await.unwrap();
    let error = client.lock("other:x").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_29_refused_credentials_are_reported_without_being_shown() {
    let server = RedisServer::builder().requirepass("right-horse").start().unwrap();
    for (url, kind) in [
        (server.url(), ErrorKind::Auth),
        (server.url().replace("redis://", "redis://:wrong-horse@"), ErrorKind::Auth),
        (server.url().replace("redis://", "redis://nobody:wrong-horse@"), ErrorKind::Auth),
    ] {
        let start = Instant::now();
        let error = Client::connect(&url).await.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!format!("{error} {error:?}").contains("horse"), "{error}");
        assert!(awake(start) < ms(2_000));
    }
    let client = Client::builder().url(server.url()).password("right-horse").connect().await.unwrap();
    assert!(!format!("{client:?}").contains("horse"));
    client.lock("in").lock().await.unwrap().unlock().await.unwrap();
    // A password that changes under a living client: old connections go on, new ones are refused, and that is said.
    server.cmd(&["CONFIG", "SET", "requirepass", "new-horse"]).unwrap();
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    tokio::time::sleep(ms(50)).await;
    let error = client.lock("in").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_30_refused_and_black_holed_ports_answer_in_time() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = Instant::now();
    let error = Client::connect(&format!("redis://127.0.0.1:{port}")).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
    assert!(awake(start) < ms(1_000));
    // Accepts and never says a word.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://127.0.0.1:{}", mute.local_addr().unwrap().port());
    let start = Instant::now();
    let error = Client::builder().url(url).connect_timeout(ms(300)).connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!((ms(300)..ms(300 + 200)).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_and_returns_serves_waiters_without_limit() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let strict = Client::builder().url(server.url()).outage_tolerance(ms(500)).connect().await.unwrap();
    server.stop();
    let error = client.lock("w").try_lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let start = Instant::now();
    let error: Error = strict.lock("w").lock().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(awake(start) < ms(2_000), "{:?}", start.elapsed());
    let lock = client.lock("w");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    tokio::time::sleep(ms(300)).await;
    assert!(!waiter.is_finished());
    server.restart().unwrap();
    soon("service", waiter).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_starved_runtime_loses_no_lock() {
    let server = RedisServer::start().unwrap();
    let url = server.url();
    // A runtime with one thread that is blocked for longer than a lease: renewal goes on beside it.
    let valid = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::builder().url(url).watchdog_lease(RENEWED).connect().await.unwrap();
            let guard = client.lock("starved").lock().await.unwrap();
            std::thread::sleep(RENEWED + ms(1_500));
            (guard.is_valid(), guard.unlock().await.unwrap())
        })
    })
    .join()
    .unwrap();
    assert_eq!(valid, (true, Unlocked::Released));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_whose_reply_is_lost_hands_the_lock_on_all_the_same() {
    let rig = rig(ms(30_000)).await;
    for action in [Action::CloseAfterRequest, Action::CloseBeforeRequest] {
        rig.proxy.clear_rules();
        let rule = rig.proxy.rule(Match::script().arg_contains(scripts::TRANSFER.sha1()).nth(1), action);
        let guard = rig.client.lock("pass").lock().await.unwrap();
        let lock = rig.client.lock("pass");
        let waiter = tokio::spawn(async move {
            lock.acquire().wait(redlatch::Wait::Forever).fenced().await.unwrap().unwrap()
        });
        tokio::time::sleep(ms(100)).await;
        assert_eq!(soon("the outcome", guard.unlock()).await.unwrap(), Unlocked::Released);
        let next = soon("the waiter's turn", waiter).await.unwrap();
        assert!(next.token().is_some());
        let state = rig.direct.inspect("pass").await.unwrap();
        assert_eq!(state.holders.len(), 1, "{next:?} {state:?}");
        assert_eq!(
            (state.holders[0].owner.as_str(), state.holders[0].holds),
            (&*next.owner().to_string(), 1)
        );
        next.unlock().await.unwrap();
        assert_eq!(rig.proxy.fired(rule), 1);
        soon("quiet", async {
            while rig.client.stats().names + rig.client.stats().background_jobs > 0 {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
        let state = rig.direct.inspect("pass").await.unwrap();
        assert!(state.holders.is_empty(), "{state:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_06_after_a_suspended_machine_returns_the_holder_knows() {
    // A clock that runs through suspend, as the boot-time clock does, seen from a process whose timers stood still.
    let clock = redlatch::ManualClock::new(Duration::from_secs(1_000));
    let client = Client::builder()
        .url("memory:")
        .clock(std::sync::Arc::new(clock.clone()))
        .watchdog_lease(Duration::from_secs(3_600))
        .connect()
        .await
        .unwrap();
    let guard = client.lock("suspended").lock().await.unwrap();
    assert!(guard.is_valid());
    // Long enough for the background thread to have gone to sleep.
    tokio::time::sleep(ms(2_500)).await;
    clock.advance(Duration::from_secs(2 * 3_600));
    assert!(!guard.is_valid(), "the first look after the return says so");
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(soon("the notice", guard.lost()).await, LossReason::Expired);
    let next = client.lock("suspended").lock().await.unwrap();
    assert!(matches!(guard.unlock().await.unwrap(), Unlocked::AlreadyLost(LossReason::Expired)));
    assert!(next.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_38_ten_thousand_waiters_of_one_process_cost_the_server_next_to_nothing() {
    const WAITERS: usize = 10_000;
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let guard = other.lock("crowd").lock().await.unwrap();
    let mut waiters = Vec::with_capacity(WAITERS);
    for _ in 0..WAITERS {
        let lock = client.lock("crowd");
        waiters.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            guard.unlock().await.unwrap();
        }));
    }
    tokio::time::sleep(ms(300)).await;
    assert_eq!(server.subscriber_channels().unwrap().len(), 1);
    server.reset_command_counts().unwrap();
    guard.unlock().await.unwrap();
    let start = Instant::now();
    for waiter in waiters {
        soon("each waiter's turn", waiter).await.unwrap();
    }
    assert!(awake(start) < Duration::from_secs(10), "{:?}", start.elapsed());
    let calls = server.command_count("evalsha").unwrap();
    assert!(calls < WAITERS as u64 / 5, "{calls} calls for {WAITERS} hand-overs");
    assert_eq!(client.stats().names, 0);
    nothing_left(&server, "crowd").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_44_a_server_that_is_busy_for_a_while_is_waited_for() {
    let server = RedisServer::builder().arg("enable-debug-command", "yes").start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("slow").lock().await.unwrap();
    let sleeping = std::thread::spawn(move || {
        server.cmd(&["DEBUG", "SLEEP", "1"]).unwrap();
        server
    });
    tokio::time::sleep(ms(100)).await;
    let start = Instant::now();
    assert_eq!(soon("the release", guard.unlock()).await.unwrap(), Unlocked::Released);
    assert!(start.elapsed() > ms(500), "the server was not busy");
    let server = sleeping.join().unwrap();
    client.lock("slow").lock().await.unwrap().unlock().await.unwrap();
    nothing_left(&server, "slow").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_between_the_refusal_and_the_subscription_is_not_missed() {
    let rig = rig(ms(30_000)).await;
    let guard = rig.direct.lock("gap").lock().await.unwrap();
    let rule = rig.proxy.rule(Match::command("SUBSCRIBE"), Action::DelayRequest(ms(100)));
    let lock = rig.client.lock("gap");
    let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
    rig.proxy.wait_for(Duration::from_secs(5), |log| log.count("SUBSCRIBE") == 1).await.unwrap();
    // The message goes out while nobody has subscribed yet.
    guard.unlock().await.unwrap();
    let start = Instant::now();
    soon("the waiter's turn", waiter).await.unwrap().unwrap();
    assert!(awake(start) < ms(380), "found by the poll, not by looking again: {:?}", start.elapsed());
    assert_eq!(rig.proxy.fired(rule), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_used_again_is_not_taken_for_its_predecessor() {
    let rig = rig(ms(30_000)).await;
    let owner = rig.client.owner();
    let lock = rig.client.lock("again");
    rig.proxy.latency(ms(0), ms(10), 3);
    for round in 0..60 {
        let guard =
            soon("a grant", lock.acquire().wait(redlatch::Wait::Forever).owner(&owner).into_future()).await;
        // The release of this hold is on its way, by another connection, when the owner asks again.
        drop(guard.unwrap());
        if round % 3 == 0 {
            let _ = tokio::time::timeout(ms(round % 7), lock.acquire().owner(&owner).into_future()).await;
        }
        if let Some(next) = lock.acquire().owner(&owner).await.unwrap() {
            tokio::time::sleep(ms(25)).await;
            assert!(next.is_valid());
            let state = rig.direct.inspect("again").await.unwrap();
            assert_eq!(
                rig.direct.lock("again").hold_count(&owner).await.unwrap(),
                1,
                "round {round}: {next:?} {state:?}"
            );
        }
    }
    rig.proxy.heal().unwrap();
    nothing_left(&rig.server, "again").await;
}
