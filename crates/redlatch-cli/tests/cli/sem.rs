//! `redlatch sem`: permits that scripts take and put back.

use std::os::unix::process::ExitStatusExt;

use redlatch_testkit::server::RedisServer;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Place, both, eventually, finish};

fn answer(place: &Place, arguments: &[&str]) -> Value {
    let output = place.output(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn available(place: &Place, name: &str) -> i64 {
    answer(place, &["sem", "show", name, "-o", "json"])["available"].as_i64().unwrap()
}

/// Taking, busy, putting back, and the numbers in between.
fn life(place: &Place) {
    let nothing = json!({"schema": 1, "name": "s", "exists": false, "available": 0, "listening": 0});
    assert_eq!(answer(place, &["sem", "show", "s", "-o", "json"]), nothing);
    assert_eq!(place.code(["sem", "acquire", "s", "-n"]), 80, "nobody has set permits");
    assert_eq!(place.code(["sem", "release", "s"]), 80, "a mistyped name creates nothing");
    assert_eq!(place.code(["sem", "delete", "s"]), 80);
    assert_eq!(answer(place, &["sem", "set", "s", "3", "-o", "json"])["set"], true);
    assert_eq!(place.code(["sem", "set", "s", "9"]), 75);
    assert_eq!(answer(place, &["sem", "set", "s", "9", "--if-absent", "-o", "json"])["set"], false);

    let quiet = place.output(["sem", "acquire", "s"]);
    assert!(quiet.status.success() && both(&quiet).is_empty(), "the exit code says it all: {quiet:?}");
    let taken = json!({"schema": 1, "name": "s", "acquired": 2});
    assert_eq!(answer(place, &["sem", "acquire", "s", "2", "-o", "json"]), taken);
    assert_eq!(available(place, "s"), 0);
    let busy = place.output(["sem", "acquire", "s", "-n"]);
    assert_eq!((busy.status.code(), busy.stdout.len()), (Some(75), 0), "{busy:?}");
    assert!(both(&busy).contains("\"s\" has no free permit"), "{busy:?}");
    assert_eq!(place.code(["sem", "acquire", "s", "-w", "50ms"]), 75);
    assert_eq!(place.code(["sem", "acquire", "s", "-n", "-E", "9"]), 9);
    assert_eq!(place.code(["sem", "acquire", "s", "--if-busy", "skip"]), 0);
    assert_eq!(available(place, "s"), 0, "skipping takes nothing");

    assert_eq!(answer(place, &["sem", "release", "s", "2", "-o", "json"])["released"], 2);
    assert_eq!(answer(place, &["sem", "add", "s", "-5", "-o", "json"])["available"], -3);
    assert_eq!(answer(place, &["sem", "add", "s", "7", "-o", "json"])["available"], 4);
    assert_eq!(both(&place.output(["sem", "show", "s"])).lines().nth(2), Some("available  4"));
    assert_eq!(answer(place, &["sem", "drain", "s", "-o", "json"])["acquired"], 4);
    assert_eq!(answer(place, &["sem", "delete", "s", "-o", "json"])["deleted"], true);
    assert_eq!(answer(place, &["sem", "show", "s", "-o", "json"])["exists"], false);

    assert_eq!(place.code(["sem", "set", "short", "1", "--ttl", "1m"]), 0);
    assert!(answer(place, &["sem", "show", "short", "-o", "json"])["ttl_ms"].as_u64().unwrap() > 30_000);
}

/// A waiter of another process gets what is put back.
fn waiting(place: &Place) {
    assert_eq!(place.code(["sem", "set", "w", "1"]), 0);
    assert_eq!(place.code(["sem", "acquire", "w"]), 0);
    let mut waiter = place.start(["sem", "acquire", "w", "2", "-v", "-o", "json"]);
    waiter.until_told("\"w\" — 0 free, 2 wanted");
    assert_eq!(place.code(["sem", "release", "w", "1"]), 0);
    assert!(waiter.is_running(), "one is not enough");
    assert_eq!(place.code(["sem", "add", "w", "1"]), 0);
    let output = waiter.finish();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(available(place, "w"), 0);
}

/// A waiter that is interrupted leaves nothing taken.
fn interrupted(place: &Place) {
    assert_eq!(place.code(["sem", "set", "i", "1"]), 0);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut waiter = place.start(["sem", "acquire", "i", "2", "-v"]);
        waiter.until_told("wanted");
        waiter.signal(signal);
        assert_eq!(waiter.finish().status.code(), Some(code));
    }
    assert_eq!(available(place, "i"), 1);
    assert_eq!(place.code(["sem", "add", "i", "1"]), 0);
    // Nobody is left who would take them.
    assert_eq!(available(place, "i"), 2);
}

#[test]
fn permits_on_the_local_engine() {
    let place = Place::local();
    life(&place);
    waiting(&place);
    interrupted(&place);
}

#[test]
fn permits_on_redis() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    life(&place);
    waiting(&place);
    interrupted(&place);
}

#[test]
fn permits_that_nobody_can_learn_of_are_given_back() {
    let place = Place::local();
    assert_eq!(place.code(["sem", "set", "s", "5"]), 0);
    for verb in ["sem acquire s 2 -o json", "sem drain s"] {
        let output = finish(place.shell(&format!("redlatch {verb} > /dev/full; echo $?")));
        assert_eq!(output.stdout, b"125\n", "{verb}: {output:?}");
        assert_eq!(available(&place, "s"), 5, "{verb}");
    }
}

#[test]
fn a_deleted_semaphore_ends_the_wait() {
    let place = Place::local();
    assert_eq!(place.code(["sem", "set", "s", "1"]), 0);
    let mut waiter = place.start(["sem", "acquire", "s", "2", "-v"]);
    waiter.until_told("wanted");
    assert_eq!(place.code(["sem", "delete", "s"]), 0);
    let output = waiter.finish();
    assert_eq!(output.status.code(), Some(80), "{output:?}");
}

#[test]
fn a_killed_holder_keeps_its_permits() {
    let place = Place::local();
    assert_eq!(place.code(["sem", "set", "s", "1"]), 0);
    let script = format!("redlatch sem acquire s && touch {} && exec sleep 60", place.word("taken"));
    let mut holder = crate::support::Running::spawn(place.shell(&script));
    eventually("the permit is taken", || place.path("taken").exists().then_some(()));
    holder.signal(Signal::KILL);
    assert_eq!(eventually("it ends", || holder.child().try_wait().unwrap()).signal(), Some(9));
    assert_eq!(place.code(["sem", "acquire", "s", "-n"]), 75, "as the help says");
}

#[test]
fn wrong_names_and_numbers_are_usage_errors() {
    let place = Place::local();
    assert_eq!(place.code(["lock", "job", "--lease", "10m"]), 0);
    for arguments in [
        &["sem", "set", "s", "0"][..],
        &["sem", "set", "s", "2147483648"],
        &["sem", "set", "s"],
        &["sem", "set", "s", "1", "--ttl", "0s"],
        &["sem", "acquire", "s", "-1"],
        &["sem", "acquire", "s", "-n", "-w", "1s"],
        &["sem", "add", "s", "0"],
        &["sem", "add", "s", "1.5"],
        &["sem", "show", ""],
        &["sem", "show", "job"],
        &["sem", "delete", "job"],
        &["sem", "acquire", "job", "-n"],
        &["sem", "release", "job"],
        &["sem"],
    ] {
        let output = place.output(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {output:?}");
    }
    assert_eq!(place.show("job")["kind"], "lock", "it was left alone");
    assert!(both(&place.output(["sem", "show", "job"])).contains("redlatch show"));
}
