//! Commands that make themselves another user, so that the run may not stop them.
//!
//! Only root can set up a program that does so. For other users these tests say so and check nothing.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::Command,
};

use redlatch_testkit::server::RedisServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Place, Running, both, finish, is_alive};

/// A user without rights, as every system has one.
const NOBODY: u32 = 65534;

/// A place that belongs to nobody, with a set-user-ID program `rights` in it that becomes root for good.
fn place(server: &RedisServer) -> Option<Place> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not checked: only root can set up a set-user-ID program");
        return None;
    }
    let place = Place::on(server);
    chown(place.path("."), Some(NOBODY), Some(NOBODY)).unwrap();
    let paths = std::env::var_os("PATH").unwrap();
    let setpriv = std::env::split_paths(&paths).map(|dir| dir.join("setpriv")).find(|file| file.is_file());
    let rights = place.copy_program(setpriv.expect("setpriv of util-linux"), "rights");
    fs::set_permissions(rights, fs::Permissions::from_mode(0o4755)).unwrap();
    Some(place)
}

/// `redlatch run job` as nobody, with a command that becomes root.
fn run(place: &Place, options: &[&str]) -> Command {
    let mut command = Command::new("setsid");
    command.args(["env", "--default-signal", env!("CARGO_BIN_EXE_redlatch"), "run", "job"]).args(options);
    command.arg("--").arg(place.path("rights")).args(["--reuid=0", "--regid=0", "--clear-groups"]);
    let script = format!("echo $$ > {}; exec sleep 600 > /dev/null 2>&1", place.word("job.pid"));
    command.args(["sh", "-c", &script]);
    place.surround(&mut command);
    command.uid(NOBODY).gid(NOBODY);
    command
}

fn end(command: i32) {
    _ = kill_process(Pid::from_raw(command).unwrap(), Signal::KILL);
}

#[test]
fn a_command_that_max_hold_cannot_stop_is_named_and_keeps_the_lock() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let limits = ["--max-hold", "500ms", "--kill-after", "100ms", "--report", "report", "-q"];
    let mut run = Running::spawn(run(&place, &limits));
    let command = place.pid("job");
    // It matters too much for -q.
    run.until_told("CANNOT STOP \"sleep\"");
    run.until_told("uid 0");
    run.until_told("the lock stays held until it ends");
    assert!(is_alive(command));
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "nobody works beside it");
    assert!(run.is_running());
    end(command);
    assert_eq!(run.finish().status.code(), Some(124));
    assert_eq!(place.report("report")["left_running"], serde_json::json!([]));
    assert_eq!(place.show("job")["kind"], "free");
}

#[test]
fn a_command_that_outlives_its_lock_is_named_and_reported() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let limits = ["--lease", "6s", "--grace", "300ms", "--report", "report"];
    let run = Running::spawn(run(&place, &limits));
    let command = place.pid("job");
    server.cmd(&["DEL", "job"]).unwrap();
    let output = run.finish();
    let lives = is_alive(command);
    end(command);
    let text = both(&output);
    assert!(lives, "nobody could have stopped it: {text}");
    assert_eq!(output.status.code(), Some(80), "{text}");
    assert!(text.contains("CANNOT STOP") && text.contains("WITHOUT THE LOCK"), "{text}");
    let report = place.report("report");
    assert_eq!(report["outcome"], "lost");
    let left = &report["left_running"][0];
    assert_eq!((&left["pid"], &left["uid"], &left["refused"]), (&command.into(), &0.into(), &true.into()));
}

#[test]
fn a_second_request_to_end_leaves_a_command_that_cannot_be_stopped_to_the_lease() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let mut run = Running::spawn(run(&place, &["--report", "report"]));
    let command = place.pid("job");
    run.signal(Signal::TERM);
    run.until_told("CANNOT STOP");
    assert!(run.is_running());
    run.signal(Signal::TERM);
    let output = run.finish();
    let lives = is_alive(command);
    assert_eq!(output.status.code(), Some(143), "{}", both(&output));
    let report = place.report("report");
    assert_eq!((&report["outcome"], &report["released"]), (&"left-running".into(), &false.into()));
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "its lease is not over");
    end(command);
    assert!(lives);
}

#[test]
fn a_program_of_another_user_is_told_of_before_it_starts() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let mut run = Running::spawn(run(&place, &[]));
    run.until_told("may be unable to stop it");
    let command = place.pid("job");
    end(command);
    assert_eq!(run.finish().status.code(), Some(128 + 9));
}

#[test]
fn a_command_without_new_rights_stays_one_that_can_be_stopped() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let output = finish(run(&place, &["--no-new-privs"]));
    let text = both(&output);
    assert!(!output.status.success() && text.contains("setresuid"), "it does not become root: {text}");
    assert!(!text.contains("may be unable") && !Path::new(&place.path("job.pid")).exists(), "{text}");
}

#[test]
fn what_max_hold_could_not_stop_is_told_of_once_more_when_the_lock_is_lost() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let limits = ["--max-hold", "500ms", "--kill-after", "100ms", "--lease", "6s", "--grace", "300ms", "-q"];
    let mut run = Running::spawn(run(&place, &limits));
    let command = place.pid("job");
    run.until_told("the lock stays held until it ends");
    server.cmd(&["DEL", "job"]).unwrap();
    let output = run.finish();
    let lives = is_alive(command);
    end(command);
    assert!(lives, "nobody could have stopped it");
    assert_eq!(output.status.code(), Some(80), "{output:?}");
    assert!(both(&output).contains("WITHOUT THE LOCK"), "{output:?}");
}
