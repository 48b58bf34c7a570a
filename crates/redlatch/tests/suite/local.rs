//! The local engine's own troubles: daemons that are killed, missing, unwanted or not ours.

use std::{os::unix::fs::PermissionsExt, process::Command, time::Duration};

use redlatch::{Client, ClientBuilder, ErrorKind};
use redlatch_testkit::dir::for_sockets;

use crate::fixture::{RENEWED, SOON, ms, redlatch_command, renewed, soon};

fn builder(dir: &tempfile::TempDir) -> ClientBuilder {
    Client::builder().url("local:").engine_binary(redlatch_command()).engine_dir(dir.path().join("engine"))
}

/// The process that serves a directory, as the daemon itself says.
fn daemon_pid(dir: &tempfile::TempDir) -> u32 {
    let socket = std::fs::read_dir(dir.path().join("engine"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|ending| ending == "sock"))
        .expect("a running daemon has a socket");
    let client = redis::Client::open(format!("unix://{}", socket.display())).unwrap();
    let mut connection = client.get_connection().unwrap();
    let hello: Vec<redis::Value> =
        redis::cmd("REDLATCH").arg("HELLO").arg(redlatch::scripts::EPOCH).query(&mut connection).unwrap();
    match hello[3] {
        redis::Value::Int(pid) => pid as u32,
        ref other => panic!("{other:?}"),
    }
}

fn kill9(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// Ends the daemon of a test when the test ends, however it ends.
struct Ended<'a>(&'a tempfile::TempDir);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            kill9(daemon_pid(self.0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_46_a_killed_daemon_comes_back_with_its_locks_and_tokens() {
    let dir = for_sockets("redlatch-local-").unwrap();
    let client = builder(&dir).watchdog_lease(RENEWED).connect().await.unwrap();
    let _ended = Ended(&dir);
    let other = builder(&dir).connect().await.unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let wait = redlatch::Wait::AtMost(SOON);
        let guard = client.lock("kept").acquire().wait(wait).fenced().await.unwrap().unwrap();
        assert!(guard.token().unwrap() > last, "tokens grow over a crash");
        last = guard.token().unwrap();
        let lock = other.lock("kept");
        let waiter = tokio::spawn(async move { lock.lock().await.map(drop) });
        tokio::time::sleep(ms(100)).await;
        let pid = daemon_pid(&dir);
        kill9(pid);
        renewed(2, async || guard.remaining()).await;
        assert!(guard.is_valid(), "renewed through the next daemon: {:?}", guard.loss());
        assert!(!waiter.is_finished(), "the journal kept the lock");
        assert_ne!(daemon_pid(&dir), pid);
        guard.unlock().await.unwrap();
        soon("the waiter's turn", waiter).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_at_once_start_one_daemon() {
    let dir = for_sockets("redlatch-local-").unwrap();
    let mut starts = Vec::new();
    for _ in 0..20 {
        let builder = builder(&dir);
        starts.push(tokio::spawn(async move { builder.connect().await.unwrap() }));
    }
    let mut clients = Vec::new();
    for start in starts {
        clients.push(soon("a connection", start).await.unwrap());
    }
    let _ended = Ended(&dir);
    let guard = clients[0].lock("one").try_lock().await.unwrap().unwrap();
    for client in &clients[1..] {
        assert!(client.lock("one").try_lock().await.unwrap().is_none(), "all see the same lock");
    }
    drop(guard);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_command_is_named_with_the_remedy() {
    let dir = for_sockets("redlatch-local-").unwrap();
    let missing = dir.path().join("no-such-command");
    let error = builder(&dir).engine_binary(missing).connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine, "{error}");
    assert!(error.to_string().contains("REDLATCH_ENGINE_BIN"), "{error}");
    // A command that is something else never becomes ready.
    let error =
        tokio::time::timeout(Duration::from_secs(20), builder(&dir).engine_binary("/bin/true").connect());
    let error = error.await.expect("bounded").map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_others_may_enter_is_refused() {
    let dir = for_sockets("redlatch-local-").unwrap();
    let engine = dir.path().join("engine");
    std::fs::create_dir(&engine).unwrap();
    std::fs::set_permissions(&engine, std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = builder(&dir).connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine, "{error}");
}
