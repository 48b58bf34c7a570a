//! What an error says: which server, and what helps. It is read by an engineer who was woken up for it.

use std::{io::Write, net::TcpListener, thread};

use redlatch::{Client, ErrorKind, Lease, Severity};
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    server::RedisServer,
    topology::RedisCluster,
};

use crate::fixture::{ms, soon};

/// A server that says this to everybody who comes and hangs up.
fn hangs_up(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(words));
        }
    });
    url
}

async fn connect_error(url: &str) -> redlatch::Error {
    soon("a refusal", Client::connect(url)).await.map(drop).unwrap_err()
}

#[tokio::test]
async fn a_server_in_protected_mode_is_told_as_such() {
    let url = hangs_up(b"-DENIED Redis is running in protected mode because protected mode is enabled\r\n");
    let error = connect_error(&url).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("protected mode"), "{error}");
    assert!(error.to_string().contains("give the server a password"), "{error}");
}

#[tokio::test]
async fn a_port_of_another_service_is_told_as_such() {
    for words in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"SSH-2.0-OpenSSH_9.2\r\n", b"220 mail ESMTP\r\n"]
    {
        let url = hangs_up(words);
        let error = connect_error(&url).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("no Redis or Valkey server"), "{error}");
        assert!(error.to_string().contains(&url), "{error}");
    }
}

#[tokio::test]
async fn a_server_with_too_many_clients_is_told_as_such() {
    let error = connect_error(&hangs_up(b"-ERR max number of clients reached\r\n")).await;
    assert_eq!(error.kind(), ErrorKind::ServerBusy, "{error}");
    assert!(error.to_string().contains("maxclients"), "{error}");
}

/// A server that lets everybody in and refuses every script.
fn refusing(text: &'static str) -> FakeServer {
    FakeServer::start(move |request| match &request[0].to_ascii_uppercase()[..] {
        b"EVALSHA" | b"EVAL" => FakeReply::Error(text.to_owned()),
        _ => FakeReply::Default,
    })
    .unwrap()
}

#[tokio::test]
async fn a_refusal_names_the_server_and_what_helps() {
    for text in [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script.",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOREPLICAS Not enough good replicas to write.",
        "CLUSTERDOWN The cluster is down",
        "MASTERDOWN Link with MASTER is down",
        "UNKILLABLE Sorry the script already executed write commands",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "NOPERM User x has no permissions to run the 'evalsha' command",
    ] {
        let server = refusing(text);
        let client = Client::connect(&server.url()).await.unwrap();
        let error = soon("a refusal", client.lock("x").try_lock()).await.map(drop).unwrap_err().to_string();
        // The remedy follows behind a semicolon, in place of the full stop.
        let text = text.trim_end_matches('.');
        assert!(error.contains("\"x\"") && error.contains(text), "{error}");
        assert!(error.contains(&format!("{} answered", server.url())), "the server: {error}");
        let words = error.split_once(text).unwrap().1;
        assert!(words.starts_with("; ") && words.len() > 10, "what helps: {error}");
    }
}

#[tokio::test]
async fn a_long_refusal_is_cut_visibly() {
    let text: &'static str = format!("ERR {}", "x".repeat(400)).leak();
    let server = refusing(text);
    let client = Client::connect(&server.url()).await.unwrap();
    let error = soon("a refusal", client.lock("x").try_lock()).await.map(drop).unwrap_err().to_string();
    assert!(error.contains("xx…") && error.len() < 450, "{error}");
}

/// A user who writes `redis://` for a cluster has some names work and others not.
#[tokio::test]
async fn a_member_of_a_cluster_is_no_server_on_its_own() {
    let cluster = RedisCluster::builder().replicas_per_master(0).start().unwrap();
    let client = Client::connect(&cluster.node(0).url()).await.unwrap();
    let mut refused = 0;
    for number in 0..40 {
        // Without a limit for the wait: waiting would be in vain, so nobody is kept.
        match soon("an answer", client.lock(format!("n{number}")).lock()).await {
            Ok(guard) => drop(guard.unlock().await.unwrap()),
            Err(error) => {
                refused += 1;
                assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
                assert!(error.to_string().contains("redis-cluster://"), "{error}");
            }
        }
    }
    assert!(refused > 0, "three masters share the slots");
    let findings = client.diagnose().await.unwrap();
    let found = findings.iter().find(|finding| finding.subject == "cluster").expect("a finding");
    assert!(found.severity == Severity::Note && found.to_string().contains("redis-cluster://"), "{found}");
}

/// Redis refuses even PING then. Who is on call wants to look, and the doctor most of all.
#[tokio::test]
async fn a_server_that_cannot_save_is_still_looked_at() {
    let server = RedisServer::builder().arg("dbfilename", "full.rdb").start().unwrap();
    let before = Client::connect(&server.url()).await.unwrap();
    let held = before.lock("held").acquire().lease(Lease::Fixed(ms(60_000))).await.unwrap().unwrap();
    std::fs::create_dir_all(server.dir().join("data/full.rdb/in-the-way")).unwrap();
    server.cmd(&["CONFIG", "SET", "save", "3600 1"]).unwrap();
    server.cmd(&["BGSAVE"]).unwrap();
    soon("the save to fail", async {
        while !format!("{:?}", server.cmd(&["INFO", "persistence"]).unwrap())
            .contains("rdb_last_bgsave_status:err")
        {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    let client = soon("a connection", Client::connect(&server.url())).await.unwrap();
    let shown = client.inspect("held").await.unwrap();
    assert_eq!(shown.holders.len(), 1);
    let error = client.lock("other").try_lock().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ServerBusy, "{error}");
    assert!(error.to_string().contains("saving to disk"), "{error}");
    let findings = client.diagnose().await.unwrap();
    assert!(
        findings.iter().any(|f| f.severity == Severity::Problem && f.text.contains("MISCONF")),
        "{findings:?}"
    );
    server.cmd(&["CONFIG", "SET", "save", ""]).unwrap();
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn a_password_that_is_missing_is_told_as_such_for_every_database() {
    let server = RedisServer::builder().requirepass("hush").start().unwrap();
    for database in ["", "/0", "/5"] {
        let url = format!("redis://127.0.0.1:{}{database}", server.port());
        let error = connect_error(&url).await;
        assert_eq!(error.kind(), ErrorKind::Auth, "{url}: {error}");
        assert!(error.to_string().ends_with(" wants a password; check user name and password"), "{error}");
    }
}

/// An empty URL is that of a variable that is not set, and must not lock this machine only.
#[tokio::test]
async fn an_empty_url_is_an_error_and_no_url_is_the_local_engine() {
    for url in ["", " "] {
        let error = connect_error(url).await;
        assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{error}");
        assert!(error.to_string().contains("not set"), "{error}");
        assert_eq!(Client::connect_lazy(url).map(drop).unwrap_err().kind(), ErrorKind::InvalidUrl);
        assert_eq!(Client::builder().url(url).check().unwrap_err().kind(), ErrorKind::InvalidUrl);
    }
    assert_eq!(Client::builder().connect_lazy().unwrap().store(), "local:");
}

#[tokio::test]
async fn what_is_missing_is_named_with_the_call_that_makes_it() {
    let client = Client::connect("memory:").await.unwrap();
    let errors = [
        client.semaphore("a").try_acquire(1).await.map(drop).unwrap_err(),
        client.permit_semaphore("b").try_acquire().await.map(drop).unwrap_err(),
        client.rate_limiter("c").try_acquire(1).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
        assert!(error.to_string().contains("set_if_absent"), "{error}");
    }
}

/// Reporters print an error and then its sources.
#[tokio::test]
async fn each_cause_is_printed_once() {
    let client = Client::connect_lazy("redis://127.0.0.1:1").unwrap();
    let error = client.lock("x").acquire().with(async |_| ()).await.unwrap_err();
    let cause = std::error::Error::source(&error).expect("there is a cause").to_string();
    assert!(cause.contains("127.0.0.1:1"), "{cause}");
    assert!(!error.to_string().contains(&cause), "{error}");
    assert!(error.to_string().contains("not begun"), "{error}");
}

#[test]
fn an_error_of_a_foreign_store_is_one_line() {
    let error = redlatch::Error::new(ErrorKind::Unreachable, "no\nway\u{1b}[31m").remedy("ask again");
    assert_eq!(error.to_string(), "no way [31m; ask again");
    assert!(error.is_retryable());
    let fault = redlatch::store::Fault::server("OOM", "command not allowed");
    assert_eq!(fault.into_error().kind(), ErrorKind::OutOfMemory);
}
