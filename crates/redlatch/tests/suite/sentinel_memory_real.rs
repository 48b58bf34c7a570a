//! The same with real sentinels and real masters, as far as these can be brought to it.

use redlatch::{Client, ErrorKind, LossReason, MultiLock, Unlocked};
use redlatch_testkit::{server::RedisServer, topology::SentinelSet};

use crate::{
    fixture::{ms, soon},
    sentinel_fakes::{FakeSentinel, exists, until, url},
};

fn uses(client: &Client, server: &RedisServer) -> bool {
    client.store().ends_with(&format!(":{}", server.port()))
}

/// The port of the master that a sentinel names.
fn named_by(sentinel: &RedisServer) -> u16 {
    let named = sentinel.cmd(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "redlatch"]).unwrap();
    let (_, port): (String, u16) = redis::from_redis_value(named).unwrap();
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_was_away_during_a_change_leads_nobody_back() {
    let set = SentinelSet::start().unwrap();
    // Neither renewals nor deadlines are due while the test lasts.
    let client = Client::builder().url(set.url()).watchdog_lease(ms(120_000)).connect().await.unwrap();
    let old = set.master().unwrap();
    // All masters stay what they are, as those do that a sentinel cannot reach.
    (0..set.nodes().len()).for_each(|index| set.keep_role(index).unwrap());
    let stale = set.sentinel(2);
    stale.kill9();
    let new = tokio::task::block_in_place(|| set.failover()).unwrap();
    until("the move", || uses(&client, set.node(new))).await;
    let held = client.lock("held").lock().await.unwrap();
    // The two who know end, and the third comes back as it was.
    set.sentinel(0).kill9();
    set.sentinel(1).kill9();
    stale.restart().unwrap();
    assert_eq!(named_by(stale), set.node(old).port());
    until("a question to the stale one", || {
        stale.clients().unwrap().iter().any(|client| client.last_command.starts_with("sentinel"))
    })
    .await;
    // Two looks and more: they come every second.
    tokio::time::sleep(ms(3_000)).await;
    assert_eq!(named_by(stale), set.node(old).port(), "it has not heard of the change");
    assert!(uses(&client, set.node(new)), "{}", client.store());
    assert!(held.is_valid(), "{:?}", held.loss());
    let granted = client.lock("granted").lock().await.unwrap();
    assert!(exists(set.node(new), "granted") && !exists(set.node(old), "granted"));
    for guard in [held, granted] {
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_of_every_kind_exclude_others_over_a_failover_and_the_way_back() {
    let set = SentinelSet::builder().replica_count(1).start().unwrap();
    let builder = || Client::builder().url(set.url()).watchdog_lease(ms(60_000));
    let (ours, theirs) = (builder().connect().await.unwrap(), builder().connect().await.unwrap());
    ours.permit_semaphore("permits").set_if_absent(1).await.unwrap();
    let several = |client: &Client| MultiLock::new(["m0", "m1"].map(|name| client.lock(name))).unwrap();
    let plain = ours.lock("plain").lock().await.unwrap();
    let fair = ours.fair_lock("fair").lock().await.unwrap();
    let write = ours.read_write_lock("rw").write().lock().await.unwrap();
    let permit = ours.permit_semaphore("permits").acquire().await.unwrap();
    let both = several(&ours).lock().await.unwrap();
    let first = set.master().unwrap();
    for _ in 0..2 {
        let before = set.master().unwrap();
        let after = tokio::task::block_in_place(|| {
            let (old, new) = (set.node(before), set.node(1 - before));
            while old.cmd(&["DBSIZE"]).unwrap() != new.cmd(&["DBSIZE"]).unwrap() {
                std::thread::sleep(ms(5));
            }
            let after = set.failover().unwrap();
            set.wait_until_ready().unwrap();
            after
        });
        assert_ne!(before, after);
        for client in [&ours, &theirs] {
            until("the move", || uses(client, set.node(after))).await;
        }
        assert!(soon("an answer", theirs.lock("plain").try_lock()).await.unwrap().is_none());
        assert!(soon("an answer", theirs.fair_lock("fair").try_lock()).await.unwrap().is_none());
        assert!(soon("an answer", theirs.read_write_lock("rw").read().try_lock()).await.unwrap().is_none());
        assert!(soon("an answer", theirs.permit_semaphore("permits").try_acquire()).await.unwrap().is_none());
        assert!(soon("an answer", several(&theirs).try_lock()).await.unwrap().is_none());
        assert!(
            plain.is_valid() && fair.is_valid() && write.is_valid() && permit.is_valid() && both.is_valid()
        );
    }
    assert_eq!(set.master().unwrap(), first, "there and back");
    for outcome in [plain.unlock().await, fair.unlock().await, write.unlock().await, permit.release().await] {
        assert_eq!(outcome.unwrap(), Unlocked::Released);
    }
    assert!(both.unlock().await.is_clean());
    soon("a grant", theirs.fair_lock("fair").lock()).await.unwrap().unlock().await.unwrap();
    soon("a grant", theirs.permit_semaphore("permits").acquire()).await.unwrap().release().await.unwrap();
    assert!(soon("a grant", several(&theirs).lock()).await.unwrap().unlock().await.is_clean());
}

/// A client that reaches no sentinel cannot hear that there is another master. The server can end its holds itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_without_replicas_grants_and_renews_nothing_where_some_have_to_be() {
    let lag = RedisServer::builder().arg("min-replicas-to-write", "1").arg("min-replicas-max-lag", "1");
    let master = lag.start().unwrap();
    let replica = RedisServer::builder().arg("replicaof", &format!("127.0.0.1 {}", master.port()));
    let replica = replica.start().unwrap();
    let good = |count: &str| {
        format!("{:?}", master.cmd(&["INFO", "replication"]).unwrap())
            .contains(&format!("min_slaves_good_slaves:{count}"))
    };
    until("a good replica", || good("1")).await;
    let sentinel = FakeSentinel::start(master.port());
    let builder = Client::builder().url(url(&[&sentinel])).watchdog_lease(ms(6_000));
    let client = builder.connect().await.unwrap();
    let held = client.lock("held").lock().await.unwrap();
    let findings = client.diagnose().await.unwrap();
    let isolation = findings.iter().find(|finding| finding.subject == "isolation").unwrap();
    assert_eq!(isolation.severity, redlatch::Severity::Good, "{isolation}");
    // It is cut off, together with this client.
    sentinel.say(|says| says.silent = true);
    replica.pause().unwrap();
    until("the end of the lag", || good("0")).await;
    assert_eq!(soon("the end of the hold", held.lost()).await, LossReason::Expired);
    let error = soon("a refusal", client.lock("free").try_lock()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ServerBusy, "{error}");
    assert!(!exists(&master, "free"));
    replica.resume().unwrap();
}

/// The old master and one sentinel on one side, everybody else on the other. The clients reach both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_are_cut_off_from_each_other_make_no_second_holder() {
    let wanting = |password: &str| RedisServer::builder().requirepass(password);
    let set = SentinelSet::builder().servers(wanting("data")).sentinels(wanting("watch")).start().unwrap();
    let connect = |url: String| {
        let builder = Client::builder().url(url).password("data").sentinel_password("watch");
        builder.watchdog_lease(ms(9_000)).connect()
    };
    let (ours, theirs) = (connect(set.url()).await.unwrap(), connect(set.url()).await.unwrap());
    let old = set.master().unwrap();
    assert_eq!(old, 0);
    let before = ours.lock("before").lock().await.unwrap();
    until("both copies", || set.nodes().iter().all(|node| exists(node, "before"))).await;
    set.part(&[0], &[old]).unwrap();
    // Granted by the old master while nobody has noticed: the new one never hears of it.
    let unheard = ours.lock("unheard").lock().await.unwrap();
    assert!(exists(set.node(old), "unheard"));
    let named = |sentinel: usize| named_by(set.sentinel(sentinel));
    until("a master of the others", || named(1) != set.node(old).port() && named(1) == named(2)).await;
    let new = (1..3).find(|index| set.node(*index).port() == named(1)).unwrap();
    // Who is promoted closes all connections, once.
    _ = set.node(new).cmd(&["PING"]);
    for client in [&ours, &theirs] {
        until("the move", || uses(client, set.node(new))).await;
    }
    assert_eq!(named(0), set.node(old).port(), "the cut off one has heard of nothing");
    // What the new master never heard of is lost at once, and free there.
    let told = soon("the loss", unheard.lost()).await;
    assert!(matches!(told, LossReason::Deleted | LossReason::TakenOver { .. }), "{told:?}");
    let other = soon("a grant", theirs.lock("unheard").lock()).await.unwrap();
    assert!(exists(set.node(new), "unheard") && !unheard.is_valid());
    // What it has goes on and is renewed there.
    assert!(soon("an answer", theirs.lock("before").try_lock()).await.unwrap().is_none());
    assert!(before.is_valid(), "{:?}", before.loss());
    // A client that knows only the sentinel that was cut off begins where that one leads, and hears of the others from it.
    let late = connect(format!("redis-sentinel://{}/redlatch", set.sentinel_addrs()[0])).await.unwrap();
    until("the move of who came late", || uses(&late, set.node(new))).await;
    assert!(late.lock("unheard").try_lock().await.unwrap().is_none());
    set.join(&[0], &[old]).unwrap();
    until("one master", || named(0) == set.node(new).port()).await;
    assert!(ours.lock("unheard").try_lock().await.unwrap().is_none());
    for guard in [before, other] {
        assert!(guard.is_valid(), "{:?}", guard.loss());
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    }
}
