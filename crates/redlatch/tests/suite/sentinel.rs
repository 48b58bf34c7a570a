//! A master that sentinels watch over: finding it, following it, and what that means for those who hold and wait.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use redlatch::{Client, ErrorKind, LossReason, TlsOptions, Unlocked};
use redlatch_testkit::{
    net::ReservedPort,
    server::{RedisServer, TlsFiles},
    topology::SentinelSet,
};

use crate::fixture::{ms, quiet, soon};

/// How soon a notice has to come that does not wait for a renewal; the machine may be busy.
const AT_ONCE: Duration = ms(10_000);

fn fails_over(set: &SentinelSet) -> usize {
    set.failover().unwrap()
}

/// Waits until a server answers as a master that takes writes; the moment from which followers are measured.
async fn accepting_master(set: &SentinelSet, not: usize) -> (usize, Instant) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        for (index, node) in set.nodes().iter().enumerate() {
            if index != not && node.is_up() && node.cmd(&["SET", "accepting", "1"]).is_ok() {
                return (index, Instant::now());
            }
        }
        assert!(Instant::now() < end, "no replica was promoted");
        tokio::time::sleep(ms(2)).await;
    }
}

/// Waits until every replica has the key.
async fn replicated(set: &SentinelSet, key: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    for node in set.nodes() {
        while !matches!(node.cmd(&["EXISTS", key]), Ok(redis::Value::Int(1))) {
            assert!(Instant::now() < end, "{key} does not reach the replicas");
            tokio::time::sleep(ms(2)).await;
        }
    }
}

/// Waits until a waiter listens to the releases of a lock.
async fn listened_to(server: &RedisServer, name: &str) {
    let channel = format!("redisson_lock__channel:{{{name}}}").into_bytes();
    soon("a subscription on the master", async {
        while !server.subscriber_channels().unwrap().contains(&channel) {
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
}

async fn connect(url: &str) -> Client {
    quiet().url(url).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_is_found_past_sentinels_that_are_down_or_hang() {
    let set = SentinelSet::start().unwrap();
    let down = ReservedPort::new(0).unwrap();
    // Its backlog takes connections in, and nobody ever answers.
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs = hangs.local_addr().map(|addr| (hangs, addr)).unwrap();
    let url = format!(
        "redis-sentinel://127.0.0.1:{},{},{}/redlatch",
        down.port(),
        hangs.1,
        set.sentinel_addrs()[2]
    );
    let client = soon("finding the master", connect(&url)).await;
    let master = set.node(set.master().unwrap());
    assert!(client.store().ends_with(&format!("master 127.0.0.1:{}", master.port())), "{}", client.store());
    let guard = client.lock("found").lock().await.unwrap();
    assert_eq!(master.cmd(&["EXISTS", "found"]).unwrap(), redis::Value::Int(1));
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}

/// Each sentinel seemed to be of a set of its own, so none was believed, and what was said of that led astray.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_not_ask_for_the_other_sentinels_connects() {
    let set = SentinelSet::builder().replica_count(1).start().unwrap();
    for sentinel in set.sentinels() {
        let rights = ["+@all", "-sentinel|sentinels", "allchannels", "allkeys"];
        let account = ["ACL", "SETUSER", "of-the-sentinels", "on", ">secret"];
        sentinel.cmd(&[&account[..], &rights[..]].concat()).unwrap();
    }
    let builder = quiet().url(set.url());
    let builder = builder.sentinel_username("of-the-sentinels").sentinel_password("secret");
    let client = soon("a connection", builder.connect()).await.unwrap();
    client.lock("n").lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_in_time_and_without_secrets() {
    let set = SentinelSet::builder()
        .servers(RedisServer::builder().requirepass("of-the-master"))
        .sentinels(RedisServer::builder().requirepass("of-the-sentinels"))
        .start()
        .unwrap();
    let sentinels = set.sentinel_addrs().join(",");
    let down = ReservedPort::new(0).unwrap();
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs_at = hangs.local_addr().unwrap().to_string();
    let down_at = format!("127.0.0.1:{}", down.port());
    let plain = RedisServer::start().unwrap();
    let plain_at = format!("127.0.0.1:{}", plain.port());
    let cases = [
        ("redlatch", &sentinels, "of-the-sentinels", "hunter2", ErrorKind::Auth, "master's user name"),
        ("redlatch", &sentinels, "hunter2", "of-the-master", ErrorKind::Auth, "sentinel_password"),
        ("wrong", &sentinels, "of-the-sentinels", "of-the-master", ErrorKind::InvalidUrl, "\"wrong\""),
        ("redlatch", &down_at, "hunter2", "hunter2", ErrorKind::Unreachable, "check that the sentinels run"),
        ("redlatch", &hangs_at, "hunter2", "hunter2", ErrorKind::Unreachable, "check that the sentinels run"),
        ("redlatch", &plain_at, "", "hunter2", ErrorKind::InvalidUrl, "is no sentinel"),
    ];
    for (name, addrs, of_sentinels, of_master, kind, says) in cases {
        let mut builder = quiet()
            .url(format!("redis-sentinel://{addrs}/{name}"))
            .password(of_master)
            .connect_timeout(ms(1_500));
        if !of_sentinels.is_empty() {
            builder = builder.sentinel_password(of_sentinels);
        }
        let start = Instant::now();
        let error = soon("the refusal", builder.connect()).await.map(|_| ()).unwrap_err();
        assert!(start.elapsed() < ms(1_500) + AT_ONCE, "{error}: {:?}", start.elapsed());
        let text = format!("{error} {error:?}");
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains(says), "{text}");
        for addr in addrs.split(',') {
            assert!(text.contains(addr), "names those who were asked: {text}");
        }
        assert!(!text.contains("hunter2") && !text.contains("of-the-"), "{text}");
    }
    let client = quiet()
        .url(set.url())
        .password("of-the-master")
        .sentinel_password("of-the-sentinels")
        .connect()
        .await
        .unwrap();
    client.lock("allowed").lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pair_is_two_commands_and_clients_of_one_set_know_each_other() {
    let set = SentinelSet::start().unwrap();
    let addrs = set.sentinel_addrs();
    let client = connect(&format!("redis-sentinel://{}/redlatch", addrs[0])).await;
    let lock = client.lock("pair");
    lock.lock().await.unwrap().unlock().await.unwrap();
    let master = set.node(set.master().unwrap());
    let scripts = |counts: std::collections::BTreeMap<String, u64>| {
        counts.iter().filter(|(name, _)| name.starts_with("eval")).map(|(_, count)| count).sum::<u64>()
    };
    let before = scripts(master.command_counts().unwrap());
    for _ in 0..50 {
        lock.lock().await.unwrap().unlock().await.unwrap();
    }
    assert_eq!(scripts(master.command_counts().unwrap()) - before, 100);
    // A majority of servers of which two are one would be none.
    let plain = Client::connect_lazy(&RedisServer::shared().url()).unwrap();
    let lazy = |url: String| Client::connect_lazy(&url).unwrap();
    let one = lazy(format!("redis-sentinel://{}/redlatch", addrs[0]));
    let two = lazy(format!("redis-sentinel://{},{}/redlatch", addrs[2], addrs[1]));
    for client in [&one, &two] {
        client.lock("known").lock().await.unwrap().unlock().await.unwrap();
    }
    let members = [one.lock("q"), two.lock("q"), plain.lock("q")];
    let error = redlatch::QuorumLock::new(members).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("listed twice"), "{error}");
    let findings = client.diagnose().await.unwrap();
    let of_sentinels: Vec<_> = findings.iter().filter(|finding| finding.subject == "sentinel").collect();
    assert_eq!(of_sentinels.len(), 3, "also those that the URL does not name: {findings:?}");
    assert!(of_sentinels.iter().all(|finding| finding.severity == redlatch::Severity::Good), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wanted_failover_keeps_holds_and_wakes_waiters() {
    let set = SentinelSet::start().unwrap();
    // The URL names one sentinel; it dies, and the others have been learned.
    let url = format!("redis-sentinel://{}/redlatch", set.sentinel_addrs()[0]);
    let client = quiet().url(&url).watchdog_lease(ms(6_000)).connect().await.unwrap();
    let other = connect(&url).await;
    let guard = client.lock("kept").lock().await.unwrap();
    let waiting = other.lock("kept");
    let waiter = tokio::spawn(async move { waiting.lock().await });
    let old = set.master().unwrap();
    listened_to(set.node(old), "kept").await;
    replicated(&set, "kept").await;
    set.sentinel(0).kill9();
    let new = fails_over(&set);
    listened_to(set.node(new), "kept").await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
    assert!(client.lock("kept").try_lock().await.unwrap().is_none());
    assert!(!waiter.is_finished());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let taken = soon("the waiter's turn", waiter).await.unwrap().unwrap();
    assert_eq!(set.node(new).cmd(&["EXISTS", "kept"]).unwrap(), redis::Value::Int(1));
    taken.unlock().await.unwrap();
    // The demoted master is left alone.
    set.node(old).reset_command_counts().unwrap();
    for _ in 0..20 {
        client.lock("kept").lock().await.unwrap().unlock().await.unwrap();
    }
    let counts = set.node(old).command_counts().unwrap();
    assert!(!counts.keys().any(|name| name.starts_with("eval")), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_costs_no_hold_that_its_replica_has() {
    let set = SentinelSet::start().unwrap();
    let lease = ms(9_000);
    let client = quiet().url(set.url()).watchdog_lease(lease).connect().await.unwrap();
    let other = connect(&set.url()).await;
    let guard = client.lock("kept").lock().await.unwrap();
    let waiting = other.lock("kept");
    let waiter = tokio::spawn(async move { waiting.lock().await });
    replicated(&set, "kept").await;
    let old = set.master().unwrap();
    listened_to(set.node(old), "kept").await;
    set.node(old).kill9();
    let asking = client.lock("free");
    let asked = tokio::spawn(async move {
        let guard = asking.lock().await.unwrap();
        (guard, Instant::now())
    });
    let (new, accepting) = accepting_master(&set, old).await;
    let (free, granted) = soon("a grant on the new master", asked).await.unwrap();
    let late = granted.saturating_duration_since(accepting);

    assert!(late < AT_ONCE, "{late:?}");
    free.unlock().await.unwrap();
    listened_to(set.node(new), "kept").await;
    assert!(client.lock("kept").try_lock().await.unwrap().is_none());
    // The new master goes on to be told: the hold outlasts the lease that it was copied with.
    assert!(tokio::time::timeout(lease, guard.lost()).await.is_err(), "{:?}", guard.loss());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    soon("the waiter's turn", waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_whose_lock_no_replica_has_are_told_at_once() {
    let set = SentinelSet::start().unwrap();
    let old = set.master().unwrap();
    for replica in set.replicas().unwrap() {
        set.block_replication(replica).unwrap();
    }
    // Leases so long that neither renewals nor deadlines could be what tells.
    let client = quiet().url(set.url()).watchdog_lease(ms(120_000)).connect().await.unwrap();
    let renewed = client.lock("renewed").lock().await.unwrap();
    let fixed = client.lock("fixed").lock_with_lease(ms(120_000)).await.unwrap();
    set.node(old).kill9();
    let (_, accepting) = accepting_master(&set, old).await;
    for guard in [&renewed, &fixed] {
        let reason = soon("the notice", guard.lost()).await;
        assert_eq!(reason, LossReason::Deleted);
    }

    assert!(accepting.elapsed() < AT_ONCE, "{:?}", accepting.elapsed());
    drop(soon("a new grant", client.lock("renewed").lock()).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_may_not_ask_for_roles_follows_too() {
    let settings = RedisServer::builder().acl("app on >pw ~* &* +@all -role -info");
    let set = SentinelSet::builder().servers(settings).start().unwrap();
    let builder = || quiet().url(set.url()).username("app").password("pw");
    let client = builder().connect().await.unwrap();
    let guard = client.lock("kept").lock().await.unwrap();
    replicated(&set, "kept").await;
    let old = set.master().unwrap();
    let new = fails_over(&set);
    assert_ne!(old, new);
    soon("the free lock", client.lock("free").lock()).await.unwrap().unlock().await.unwrap();
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    assert!(client.store().ends_with(&format!("master 127.0.0.1:{}", set.node(new).port())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_is_reached_over_tls_with_a_client_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles::create(dir.path()).unwrap();
    let set = SentinelSet::builder().mutual_tls(&files).start().unwrap();
    let mut tls = TlsOptions::default();
    tls.ca_file = Some(files.ca_cert.clone());
    let refused = quiet().url(set.url()).tls(tls.clone()).connect_timeout(ms(2_000)).connect();
    let error = refused.await.map(|_| ()).unwrap_err();
    // Whether the server says why before it hangs up is a race of its own.
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unreachable), "{error:?}");
    tls.cert_file = Some(files.client_cert.clone());
    tls.key_file = Some(files.client_key.clone());
    let client = quiet().url(set.url()).tls(tls).connect().await.unwrap();
    let guard = client.lock("kept").lock().await.unwrap();
    replicated(&set, "kept").await;
    fails_over(&set);
    soon("the free lock", client.lock("free").lock()).await.unwrap().unlock().await.unwrap();
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
}
