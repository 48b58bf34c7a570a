//! Child processes, and that nothing outlives the test process.

use std::process::Command;
use std::time::{Duration, Instant};

use redlatch_testkit::ErrorKind;
use redlatch_testkit::process::ChildProcess;
use redlatch_testkit::server::{RedisServer, ServerProgram};
use redlatch_testkit::topology::RedisCluster;

use crate::client::LIMIT;

/// Set for a copy of this test binary that only starts a server and waits to be killed.
const ROLE: &str = "REDLATCH_TESTKIT_ROLE";

fn sh(script: &str) -> ChildProcess {
    ChildProcess::start("/bin/sh", ["-c", script], []).unwrap()
}

fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn wait_until_gone(what: &str, is_there: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while is_there() {
        assert!(Instant::now() < deadline, "{what} is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn lines_signals_and_exit() {
    let mut child = sh("echo ready; read line; echo got $line; exit 3");
    assert_eq!(child.read_line(LIMIT).unwrap(), "ready");
    child.pause().unwrap();
    child.write_line("x").unwrap();
    assert_eq!(child.read_line(Duration::from_millis(50)).unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(child.wait(Duration::from_millis(20)).unwrap_err().kind(), ErrorKind::Timeout);
    child.resume().unwrap();
    assert_eq!(child.read_until("got", LIMIT).unwrap(), "got x");
    assert_eq!(child.wait(LIMIT).unwrap().code(), Some(3));
}

#[test]
fn dropped_child_is_killed() {
    let child = sh("echo ready; exec sleep 600");
    child.read_line(LIMIT).unwrap();
    let pid = child.pid();
    assert!(is_running(pid));
    drop(child);
    assert!(!is_running(pid));
}

/// Not a test by itself: the body of the process that `a_killed_test_process_leaves_no_server` kills.
#[test]
fn role_server_holder() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let server = RedisServer::shared();
    println!("\npid {} {}", server.pid(), server.dir().display());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_test_process_leaves_no_server() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "process::role_server_holder"]).env(ROLE, "1");
    let mut holder = ChildProcess::spawn(command).unwrap();
    let line = holder.read_until("pid ", LIMIT).unwrap();
    let mut words = line.split(' ').skip(1);
    let pid: u32 = words.next().unwrap().parse().unwrap();
    let dir = std::path::PathBuf::from(words.next().unwrap());
    assert!(is_running(pid) && dir.exists());
    holder.kill9();
    wait_until_gone("the server", || is_running(pid));
    wait_until_gone("its directory", || dir.exists());
}

/// Not a test by itself: the body of the process that `a_killed_test_process_leaves_no_cluster` kills.
#[test]
fn role_cluster_holder() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let builder = RedisCluster::builder().program(ServerProgram::Valkey8);
    let cluster = builder.master_count(2).replicas_per_master(0).start().unwrap();
    cluster.node(1).pause().unwrap();
    println!("\npids {} {}", cluster.node(0).pid(), cluster.node(1).pid());
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_test_process_leaves_no_cluster() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", "process::role_cluster_holder"]).env(ROLE, "1");
    let mut holder = ChildProcess::spawn(command).unwrap();
    let line = holder.read_until("pids ", 6 * LIMIT).unwrap();
    let pids: Vec<u32> = line.split(' ').skip(1).map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 2 && pids.iter().all(|&pid| is_running(pid)));
    holder.kill9();
    for pid in pids {
        wait_until_gone("a node", || is_running(pid));
    }
}
