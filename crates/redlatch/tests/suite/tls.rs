//! Encryption that does not come about: each cause has its kind, its remedy, and its time.

use std::time::Instant;

use redlatch::{Client, ClientBuilder, Error, ErrorKind, TlsOptions};
use redlatch_testkit::server::{RedisServer, TlsFiles};

use crate::fixture::ms;

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
