//! Ways to reach a server: TLS with and without client certificates, unix sockets, users, database numbers.

use std::time::Instant;

use redlatch::{Client, ErrorKind, TlsOptions};
use redlatch_testkit::server::{RedisServer, TlsFiles};

use crate::fixture::{LATE, awake, ms, soon};

/// The core of what a lock does, over whatever connection the client has.
async fn works(client: &Client) {
    let lock = client.lock("works");
    let guard = lock.lock().await.unwrap();
    let waiting = lock.clone();
    let waiter = tokio::spawn(async move { waiting.lock_for(ms(5_000)).await.unwrap().is_some() });
    assert!(lock.try_lock().await.unwrap().is_none());
    guard.unlock().await.unwrap();
    assert!(soon("the waiter's turn", waiter).await.unwrap());
    let held = client.lock("contended").lock().await.unwrap();
    let other = client.lock("contended");
    drop(held);
    soon("the release", other.lock()).await.unwrap().unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_checked_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let files = TlsFiles::create(dir.path()).unwrap();
    let server = RedisServer::builder().tls(&files).start().unwrap();
    server.cmd(&["CONFIG", "SET", "tls-auth-clients", "yes"]).unwrap();
    let url = format!("rediss://127.0.0.1:{}", server.port());
    let mut tls = TlsOptions::default();
    tls.ca_file = Some(files.ca_cert.clone());
    tls.cert_file = Some(files.client_cert.clone());
    tls.key_file = Some(files.client_key.clone());
    let client = Client::builder().url(&url).tls(tls.clone()).connect().await.unwrap();
    works(&client).await;

    let refused = async |tls: TlsOptions, url: &str| {
        let start = Instant::now();
        let error = Client::builder()
            .url(url)
            .tls(tls)
            .connect_timeout(ms(60_000))
            .connect()
            .await
            .map(|_| ())
            .unwrap_err();
        assert!(awake(start) < LATE, "{:?}", start.elapsed());
        error
    };
    // A certificate of nobody we trust.
    let mut stranger = tls.clone();
    stranger.ca_file = None;
    let error = refused(stranger, &url).await;
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
    // A name that is not in the certificate.
    let mut misnamed = tls.clone();
    misnamed.server_name = Some("somebody-else.example".into());
    assert_eq!(refused(misnamed, &url).await.kind(), ErrorKind::Tls);
    // No certificate of our own, where the server wants one.
    let mut anonymous = tls.clone();
    (anonymous.cert_file, anonymous.key_file) = (None, None);
    let error = refused(anonymous, &url).await;
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unreachable), "{error}");
    // Half of one.
    let mut half = tls.clone();
    half.key_file = None;
    assert_eq!(refused(half, &url).await.kind(), ErrorKind::InvalidOption);
    let mut missing = tls.clone();
    missing.ca_file = Some(dir.path().join("no-such-file"));
    assert_eq!(refused(missing, &url).await.kind(), ErrorKind::InvalidOption);
    // Plain words to a TLS port, TLS to a plain port.
    let error = refused(tls.clone(), &url.replace("rediss", "redis")).await;
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unreachable), "{error}");
    let plain = RedisServer::start().unwrap();
    let url = format!("rediss://127.0.0.1:{}", plain.port());
    assert_eq!(refused(tls.clone(), &url).await.kind(), ErrorKind::Tls);
    // Unchecked on demand, under a name that says so.
    let url = format!("rediss://127.0.0.1:{}", server.port());
    tls.ca_file = None;
    tls.danger_accept_any_certificate = true;
    works(&Client::builder().url(url).tls(tls).connect().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_sockets_users_and_databases() {
    let server = RedisServer::builder().acl("alice on >secret ~* &* +@all").start().unwrap();
    works(&Client::connect(&server.unix_url()).await.unwrap()).await;
    let path = server.socket_path();
    let client =
        Client::connect(&format!("unix://{}?db=3&user=alice&pass=secret", path.display())).await.unwrap();
    works(&client).await;
    let guard = client.lock("in-three").lock().await.unwrap();
    let three =
        Client::connect(&format!("redis://alice:secret@127.0.0.1:{}/3", server.port())).await.unwrap();
    assert!(three.lock("in-three").try_lock().await.unwrap().is_none());
    let zero = Client::connect(&server.url()).await.unwrap();
    assert!(zero.lock("in-three").try_lock().await.unwrap().is_some(), "another database, another lock");
    guard.unlock().await.unwrap();
    // Messages know no database: the waiter of one hears the release of the other, looks, and waits on.
    let error =
        Client::connect(&format!("redis://127.0.0.1:{}/9999", server.port())).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
    let error = Client::connect("unix:///nonexistent/redis.sock").await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_near_its_memory_limit_is_named() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    // Empty, a server uses about a megabyte; nothing is refused before all of the limit is used.
    let info: String = redis::from_redis_value(server.cmd(&["INFO", "memory"]).unwrap()).unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let limit = used.trim().parse::<u64>().unwrap() * 100 / 95;
    server.cmd(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", &limit.to_string()]).unwrap();
    let findings = client.diagnose().await.unwrap();
    let memory = findings.iter().find(|finding| finding.subject == "memory");
    let memory = memory.unwrap_or_else(|| panic!("{findings:?}"));
    assert_eq!(memory.severity, redlatch::Severity::Problem);
    assert!(memory.text.contains(&limit.to_string()) && memory.remedy.is_some(), "{memory:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_names_what_is_wrong() {
    let server = RedisServer::builder()
        .arg("maxmemory", "100mb")
        .arg("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let findings = client.diagnose().await.unwrap();
    let of = |subject: &str| {
        findings.iter().find(|finding| finding.subject == subject).unwrap_or_else(|| panic!("{subject}"))
    };
    assert_eq!(of("eviction").severity, redlatch::Severity::Problem);
    assert!(of("eviction").remedy.unwrap().contains("noeviction"));
    assert!(findings.iter().all(|finding| finding.subject != "memory"), "{findings:?}");
    assert_eq!(of("version").severity, redlatch::Severity::Good);
    assert_eq!(of("messages").severity, redlatch::Severity::Good);
    assert_eq!(of("lock").severity, redlatch::Severity::Good);
    assert!(server.keys_dump().unwrap().is_empty(), "the doctor leaves nothing behind");
    server.cmd(&["ACL", "SETUSER", "poor", "on", ">pw", "~*", "+evalsha", "+eval"]).unwrap();
    let client = Client::connect(&server.url().replace("redis://", "redis://poor:pw@")).await.unwrap();
    let findings = client.diagnose().await.unwrap();
    let problems: Vec<_> =
        findings.iter().filter(|finding| finding.severity == redlatch::Severity::Problem).collect();
    assert!(problems.iter().any(|finding| finding.subject == "messages"), "{findings:?}");
    assert!(problems.iter().any(|finding| finding.subject == "lock"), "{findings:?}");
    let local = Client::connect("memory:").await.unwrap();
    assert!(
        local.diagnose().await.unwrap().iter().all(|finding| finding.severity == redlatch::Severity::Good)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_have_the_name_that_they_are_given() {
    let server = RedisServer::builder().acl("mute on >secret ~* &* +@all -client").start().unwrap();
    let client = Client::builder().url(server.url()).client_name("shop-7").connect().await.unwrap();
    works(&client).await;
    let list = format!("{:?}", server.cmd(&["CLIENT", "LIST"]).unwrap());
    assert!(list.contains("name=shop-7 "), "{list}");
    // A name is not worth a connection.
    let mute = Client::builder().url(server.url()).username("mute").password("secret").client_name("shop-8");
    works(&mute.connect().await.unwrap()).await;
    let error =
        Client::builder().url(server.url()).client_name("two words").connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
}
