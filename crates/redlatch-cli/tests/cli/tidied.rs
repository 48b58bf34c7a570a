//! What people and programs that tidy up do to a running engine: its socket file is deleted.

use std::fs;

use serde_json::Value;

use crate::support::{GRACE, LEASE, Place, both, eventually, is_alive};

fn engine(place: &Place) -> i32 {
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
