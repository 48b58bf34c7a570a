//! What people and programs that tidy up do to a running engine: its socket file is deleted.

use std::{fs, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{GRACE, LEASE, Place, both, eventually, is_alive};

/// The process id of the place's engine.
pub(crate) fn engine(place: &Place) -> i32 {
    let output = place.output(["engine", "status", "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    i32::try_from(status["pid"].as_i64().unwrap()).unwrap()
}

#[test]
fn an_engine_whose_socket_is_deleted_serves_later_commands_and_its_holders_and_is_found_by_stop() {
    let place = Place::local();
    let holder = place.holder("job", &["--lease", LEASE, "--grace", GRACE, "--report", "report"]);
    let (pid, socket) = (engine(&place), place.path("run/default.sock"));
    fs::remove_file(&socket).unwrap();
    assert_eq!(place.code(["run", "other", "--", "true"]), 0);
    fs::remove_file(&socket).unwrap();
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "the lock is held by the one engine");
    assert_eq!(engine(&place), pid, "no second engine was started");
    place.renewed("job", 1);
    fs::remove_file(&socket).unwrap();
    place.end("job");
    let output = holder.finish();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(place.report("report")["released"], true);
    assert_eq!(place.show("job")["kind"], "free");
    fs::remove_file(&socket).unwrap();
    let output = place.output(["engine", "stop"]);
    assert!(output.status.success() && both(&output).contains("stopped"), "{output:?}");
    eventually("the engine ends", || (!is_alive(pid)).then_some(()));
}

#[test]
fn an_engine_whose_place_another_one_has_taken_ends_with_a_code_and_says_so() {
    let place = Place::local();
    assert_eq!(place.code(["run", "job", "--", "true"]), 0);
    assert_eq!(place.code(["engine", "stop"]), 0);
    let dir = place.path("run");
    let dir = dir.to_str().unwrap();
    let first = place.redlatch(["engine", "run", "--dir", dir]).stderr(Stdio::piped()).spawn().unwrap();
    let pid = eventually("the engine serves", || {
        let output = place.output(["engine", "status", "-o", "json"]);
        output.status.success().then(|| engine(&place))
    });
    let first_pid = Pid::from_raw(pid).unwrap();
    // While it stands still it does not make its files again.
    kill_process(first_pid, Signal::STOP).unwrap();
    eventually("it is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next()?.starts_with(" T").then_some(())
    });
    for file in ["default.engine", "default.sock"] {
        fs::remove_file(place.path("run").join(file)).unwrap();
    }
    assert_eq!(place.code(["engine", "start"]), 0);
    kill_process(first_pid, Signal::CONT).unwrap();
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{output:?}");
    assert!(both(&output).contains("another engine serves its socket"), "{output:?}");
    assert_eq!(place.code(["engine", "stop"]), 0);
}
