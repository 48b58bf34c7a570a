//! `redlatch latch`: a gate that opens when a count reaches zero.

use redlatch_testkit::server::RedisServer;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, both};

fn answer(place: &Place, arguments: &[&str]) -> Value {
    let output = place.output(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn life(place: &Place) {
    let open = json!({"schema": 1, "name": "l", "exists": false, "count": 0, "open": true, "listening": 0});
    assert_eq!(answer(place, &["latch", "show", "l", "-o", "json"]), open);
    assert_eq!(place.code(["latch", "wait", "l", "-n"]), 0, "nobody has closed it");
    assert_eq!(place.code(["latch", "delete", "l"]), 80);
    assert_eq!(answer(place, &["latch", "down", "l", "-o", "json"])["count"], 0);

    assert_eq!(answer(place, &["latch", "set", "l", "2", "-o", "json"])["set"], true);
    assert_eq!(place.code(["latch", "set", "l", "5"]), 75);
    assert_eq!(answer(place, &["latch", "set", "l", "5", "--if-absent", "-o", "json"])["set"], false);
    let closed = answer(place, &["latch", "show", "l", "-o", "json"]);
    assert_eq!((&closed["count"], &closed["open"]), (&2.into(), &false.into()));
    let late = place.output(["latch", "wait", "l", "-n"]);
    assert_eq!((late.status.code(), late.stdout.len()), (Some(75), 0), "{late:?}");
    assert!(both(&late).contains("\"l\" is still closed"), "{late:?}");
    assert_eq!(place.code(["latch", "wait", "l", "-w", "50ms"]), 75);
    assert_eq!(place.code(["latch", "wait", "l", "-n", "-E", "9"]), 9);
    assert_eq!(place.code(["latch", "wait", "l", "--if-busy", "skip"]), 0);

    let mut waiter = place.start(["latch", "wait", "l", "-v", "-o", "json"]);
    waiter.until_told("\"l\" — closed, 2 left");
    assert_eq!(answer(place, &["latch", "down", "l", "-o", "json"])["count"], 1);
    assert!(waiter.is_running(), "one step is left");
    assert_eq!(both(&place.output(["latch", "down", "l"])), "name       l\ncount      0\n");
    let output = waiter.finish();
    assert!(output.status.success(), "{output:?}");
    let passed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(passed, json!({"schema": 1, "name": "l", "open": true}));

    assert_eq!(place.code(["latch", "set", "l", "7"]), 0, "an open latch can be closed again");
    let mut waiter = place.start(["latch", "wait", "l", "-v"]);
    waiter.until_told("closed, 7 left");
    assert_eq!(answer(place, &["latch", "delete", "l", "-o", "json"])["deleted"], true);
    assert!(waiter.finish().status.success(), "deleting lets everybody through");

    assert_eq!(place.code(["latch", "set", "l", "1"]), 0);
    let mut waiter = place.start(["latch", "wait", "l", "-v"]);
    waiter.until_told("closed");
    waiter.signal(Signal::INT);
    assert_eq!(waiter.finish().status.code(), Some(130));
}

#[test]
fn a_latch_on_the_local_engine() {
    life(&Place::local());
}

#[test]
fn a_latch_on_redis() {
    let server = RedisServer::start().unwrap();
    life(&Place::on(&server));
}

#[test]
fn wrong_names_and_numbers_are_usage_errors() {
    let place = Place::local();
    assert_eq!(place.code(["lock", "job", "--lease", "10m"]), 0);
    for arguments in [
        &["latch", "set", "l", "0"][..],
        &["latch", "set", "l", "-1"],
        &["latch", "set", "a{b}c", "1"],
        &["latch", "wait", "l", "-w", "soon"],
        &["latch", "show", "job"],
        &["latch", "down", "job"],
        &["latch", "delete", "job"],
        &["latch", "wait", "job"],
        &["latch"],
    ] {
        let output = place.output(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {output:?}");
    }
    assert_eq!(place.show("job")["kind"], "lock", "it was left alone");
}
