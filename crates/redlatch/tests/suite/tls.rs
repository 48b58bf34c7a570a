//! Encryption that does not come about: each cause has its kind, its remedy, and its time.

use std::time::{Duration, Instant};

use redlatch::{Client, ClientBuilder, Error, ErrorKind, TlsOptions, Unlocked};
use redlatch_testkit::server::{RedisServer, TlsFiles};

use crate::{
    address_map::listened_to,
    fixture::{ms, soon},
};

struct Bed {
    dir: tempfile::TempDir,
    files: TlsFiles,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = TlsFiles::create(dir.path()).unwrap();
        Bed { dir, files }
    }

    /// Trusts the authority and shows no certificate.
    fn options(&self) -> TlsOptions {
        let mut tls = TlsOptions::default();
        tls.ca_file = Some(self.files.ca_cert.clone());
        tls
    }
}

fn builder(server: &RedisServer, scheme: &str, tls: TlsOptions) -> ClientBuilder {
    Client::builder().url(format!("{scheme}://127.0.0.1:{}", server.port())).tls(tls)
}

async fn works(builder: ClientBuilder) {
    let client = builder.connect().await.unwrap();
    client.lock("encrypted").lock().await.unwrap().unlock().await.unwrap();
}

/// The refusal, which does not take as long as a connection may.
async fn refused(builder: ClientBuilder) -> Error {
    let start = Instant::now();
    let error = builder.connect_timeout(ms(60_000)).connect().await.map(|_| ()).unwrap_err();
    assert!(start.elapsed() < ms(30_000), "{:?} for: {error}", start.elapsed());
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_are_not_valid_are_named() {
    let bed = Bed::new();
    let server = RedisServer::builder().tls(&bed.files).start().unwrap();
    works(builder(&server, "rediss", bed.options())).await;

    let other = Bed::new();
    for (tls, what, remedy) in [
        (other.options(), "authority that is not trusted", "ca_file"),
        (TlsOptions::default(), "authority that is not trusted", "ca_file"),
        (
            {
                let mut tls = bed.options();
                tls.server_name = Some("elsewhere.example".into());
                tls
            },
            "for another name",
            "server_name",
        ),
    ] {
        let error = refused(builder(&server, "rediss", tls)).await;
        assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
        assert!(error.to_string().contains(what) && error.to_string().contains(remedy), "{error}");
        assert!(!error.is_retryable());
    }

    let expired = bed.files.with_expired_server(bed.dir.path()).unwrap();
    let server = RedisServer::builder().tls(&expired).start().unwrap();
    let error = refused(builder(&server, "rediss", bed.options())).await;
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
    assert!(error.to_string().contains("has expired") && error.to_string().contains("renew"), "{error}");
}

/// What `openssl req -x509` makes when nothing else is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_shows_its_authority_is_told_what_to_issue() {
    let bed = Bed::new();
    let mut own = bed.files.clone();
    (own.server_cert, own.server_key) = (own.ca_cert.clone(), bed.dir.path().join("ca.key"));
    let server = RedisServer::builder().tls(&own).start().unwrap();
    let error = refused(builder(&server, "rediss", bed.options())).await;
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
    assert!(error.to_string().contains("one of an authority"), "{error}");
    assert!(error.to_string().contains("CA:FALSE") && error.to_string().contains("ca_file"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_host_name_is_not_any_certificate() {
    let bed = Bed::new();
    let renamed = bed.files.with_server_name(bed.dir.path(), "DNS:elsewhere.example").unwrap();
    let server = RedisServer::builder().tls(&renamed).start().unwrap();
    let error = refused(builder(&server, "rediss", bed.options())).await;
    assert!(error.to_string().contains("for another name"), "{error}");
    let mut tls = bed.options();
    tls.server_name = Some("elsewhere.example".into());
    works(builder(&server, "rediss", tls)).await;

    let mut tls = bed.options();
    tls.danger_accept_any_host_name = true;
    works(builder(&server, "rediss", tls)).await;
    let other = Bed::new();
    let mut tls = other.options();
    tls.danger_accept_any_host_name = true;
    let error = refused(builder(&server, "rediss", tls)).await;
    assert!(error.to_string().contains("authority that is not trusted"), "{error}");
    let expired = bed.files.with_expired_server(bed.dir.path()).unwrap();
    let server = RedisServer::builder().tls(&expired).start().unwrap();
    let mut tls = bed.options();
    tls.danger_accept_any_host_name = true;
    let error = refused(builder(&server, "rediss", tls)).await;
    assert!(error.to_string().contains("has expired"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_client_certificate_is_asked_for() {
    let bed = Bed::new();
    let server = RedisServer::builder().mutual_tls(&bed.files).start().unwrap();
    let mut tls = bed.options();
    (tls.cert_file, tls.key_file) = (Some(bed.files.client_cert.clone()), Some(bed.files.client_key.clone()));
    works(builder(&server, "rediss", tls)).await;
    let error = refused(builder(&server, "rediss", bed.options())).await;
    // The server's word for it may be overtaken by the end of the connection, which says nothing.
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unreachable), "{error}");
    assert!(error.to_string().contains("cert_file"), "{error}");
    let stranger = Bed::new();
    let mut tls = bed.options();
    (tls.cert_file, tls.key_file) =
        (Some(stranger.files.client_cert.clone()), Some(stranger.files.client_key.clone()));
    let error = refused(builder(&server, "rediss", tls)).await;
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unreachable), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_sided_encryption_is_recognised() {
    let bed = Bed::new();
    let plain = RedisServer::start().unwrap();
    let error = refused(builder(&plain, "rediss", bed.options())).await;
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
    assert!(error.to_string().contains("is not encrypted; use redis://"), "{error}");

    let encrypted = RedisServer::builder().tls(&bed.files).start().unwrap();
    let error = refused(builder(&encrypted, "redis", TlsOptions::default())).await;
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unreachable), "{error}");
    assert!(error.to_string().contains("use rediss://"), "{error}");
}

/// A server whose certificate expires in a moment, and a client that came before: on a slow machine the moment is longer.
async fn before_it_expires(bed: &Bed) -> (RedisServer, Client) {
    let tls = || bed.options();
    for seconds in [4, 8, 16, 32, 64] {
        let files =
            bed.files.with_server_that_expires_in(bed.dir.path(), Duration::from_secs(seconds)).unwrap();
        let server = RedisServer::builder().tls(&files).start().unwrap();
        let patient =
            builder(&server, "rediss", tls()).outage_tolerance(Duration::from_secs(60)).client_name("living");
        let Ok(client) = patient.watchdog_lease(Duration::from_secs(120)).connect().await else { continue };
        // Every connection that it will need: this task's, the background's, and that of subscriptions.
        let (lock, other) = (client.lock("waited for"), builder(&server, "rediss", tls()).connect().await);
        let Ok(other) = other else { continue };
        let guard = other.lock("waited for").lock().await.unwrap();
        let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
        listened_to(&server).await;
        guard.unlock().await.unwrap();
        soon("its turn", waiter).await.unwrap().unlock().await.unwrap();
        other.shutdown(ms(10_000)).await;
        if builder(&server, "rediss", tls()).connect().await.is_ok() {
            return (server, client);
        }
    }
    panic!("a minute was not enough to connect");
}

/// Connections that are there stay, and a living client is refused a new one as any other is.
#[tokio::test]
async fn a_certificate_that_expires_while_a_client_lives_is_named_by_its_next_connection_and_renewed() {
    let bed = Bed::new();
    let (server, client) = before_it_expires(&bed).await;
    let lock = client.lock("held");
    let held = lock.lock().await.unwrap();
    let error = soon("its end", async {
        loop {
            match builder(&server, "rediss", bed.options()).connect().await {
                Ok(_) => tokio::time::sleep(ms(100)).await,
                Err(error) => return error,
            }
        }
    });
    let named = |error: &Error| {
        assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
        assert!(error.to_string().contains("has expired") && error.to_string().contains("renew"), "{error}");
    };
    named(&error.await);

    let connections = || -> Vec<u64> {
        let all = server.clients().unwrap();
        all.iter().filter(|client| client.name.starts_with("living")).map(|client| client.id).collect()
    };
    let before = connections();
    assert!(!before.is_empty());
    works_on(&client).await;
    assert!(held.extend(Duration::from_secs(120)).await.is_ok() && held.is_valid());
    assert_eq!(connections(), before, "by the connections that were there");

    for kind in ["normal", "pubsub"] {
        server.cmd(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).unwrap();
    }
    named(&client.lock("other").try_lock().await.map(drop).unwrap_err());
    assert!(held.is_valid(), "for as long as its lease lasts");
    let renewed = bed.files.with_server_that_expires_in(bed.dir.path(), Duration::from_secs(86_400)).unwrap();
    server.cmd(&["CONFIG", "SET", "tls-cert-file", renewed.server_cert.to_str().unwrap()]).unwrap();
    soon("a connection", async {
        while let Err(error) = client.lock("other").try_lock().await {
            named(&error);
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    works_on(&client).await;
    assert_eq!(held.unlock().await.unwrap(), Unlocked::Released);
    works(builder(&server, "rediss", bed.options())).await;
}

async fn works_on(client: &Client) {
    client.lock("encrypted").lock().await.unwrap().unlock().await.unwrap();
}
