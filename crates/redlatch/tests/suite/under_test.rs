//! What the contracts of Redis run on: one server, or what `REDLATCH_TEST_STORE` says instead.
//!
//! The same tests run on every topology and kind of access, each in a run of its own (`scripts/test-store`); another
//! server program is named by `REDLATCH_REDIS_SERVER`, as everywhere.

use std::sync::OnceLock;

use redlatch::{
    Client, ClientBuilder, ScriptMode, TlsOptions,
    acl::{self, Rights},
};
use redlatch_testkit::{
    server::{RedisServer, TlsFiles},
    topology::{RedisCluster, SentinelSet},
};
use tempfile::TempDir;

/// The variable that names it.
const VARIABLE: &str = "REDLATCH_TEST_STORE";
/// What the names of all tests begin with.
pub(crate) const NAME_PREFIX: &str = "t";
/// The account with the least rights.
const LIMITED: (&str, &str) = ("limited", "a-password-of-tests");

/// A started store that all tests of this process share.
enum UnderTest {
    Single,
    Unix,
    Tls(RedisServer, TlsFiles, #[expect(dead_code, reason = "the files live as long as it does")] TempDir),
    /// A server on which the client may do what `redlatch acl` says and nothing else.
    Acl(RedisServer),
    /// The same with functions in place of scripts, and without the right to run any script.
    Functions(RedisServer),
    Sentinel(SentinelSet),
    Cluster(RedisCluster),
}

fn under_test() -> &'static UnderTest {
    // A static is never dropped; the watcher processes of the servers end them with the test process.
    static STARTED: OnceLock<UnderTest> = OnceLock::new();
    STARTED.get_or_init(|| {
        let named = std::env::var(VARIABLE).unwrap_or_default();
        match named.as_str() {
            "" | "single" => UnderTest::Single,
            "unix" => UnderTest::Unix,
            "tls" => {
                let dir = TempDir::new().expect("a directory for keys");
                let files = TlsFiles::create(dir.path()).expect("keys and certificates are made");
                let server =
                    RedisServer::builder().mutual_tls(&files).start().expect("the server with TLS starts");
                UnderTest::Tls(server, files, dir)
            }
            "acl" => UnderTest::Acl(limited_server(false)),
            "functions" => UnderTest::Functions(limited_server(true)),
            "sentinel" => UnderTest::Sentinel(SentinelSet::start().expect("the sentinels start")),
            "cluster" => UnderTest::Cluster(RedisCluster::start().expect("the cluster starts")),
            other => panic!(
                "{VARIABLE}={other}: there are single, unix, tls, acl, functions, sentinel and cluster"
            ),
        }
    })
}

/// A server whose default user is off, and whose other user has the documented rights, worked out by the library.
fn limited_server(functions: bool) -> RedisServer {
    let (user, password) = LIMITED;
    let rights = Rights::of(&acl::Kind::ALL, NAME_PREFIX).functions(functions);
    let server = RedisServer::builder().acl("default off").acl(&format!("{user} on >{password} {rights}"));
    let server = server.start().expect("the server with accounts starts");
    if functions {
        // The kit's own account is the operator.
        server
            .cmd(&["FUNCTION", "LOAD", "REPLACE", &redlatch::scripts::library()])
            .expect("the library loads");
    }
    server
}

/// A client of it that has not connected yet.
pub(crate) fn builder() -> ClientBuilder {
    let (user, password) = LIMITED;
    let client = |url: String| Client::builder().url(url);
    match under_test() {
        UnderTest::Single => client(RedisServer::shared().url()),
        UnderTest::Unix => client(RedisServer::shared().unix_url()),
        UnderTest::Tls(server, files, _) => {
            let mut tls = TlsOptions::default();
            tls.ca_file = Some(files.ca_cert.clone());
            tls.cert_file = Some(files.client_cert.clone());
            tls.key_file = Some(files.client_key.clone());
            client(server.url()).tls(tls)
        }
        UnderTest::Acl(server) => client(server.url()).username(user).password(password),
        UnderTest::Functions(server) => {
            client(server.url()).username(user).password(password).scripts(ScriptMode::Functions)
        }
        UnderTest::Sentinel(set) => client(set.url()),
        UnderTest::Cluster(cluster) => client(cluster.url()),
    }
}
