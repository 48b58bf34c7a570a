//! Who holds, for how long and why, as `show`, `ls`, `why` and a run that finds the name busy say it.

use redlatch_testkit::server::RedisServer;
use serde_json::Value;

use crate::support::{Place, both, eventually};

/// What `why` knows of a name, once it knows who holds it.
fn told(place: &Place, name: &str) -> Value {
    eventually("the holder tells who it is", || {
        let output = place.output(["why", name, "-o", "json"]);
        let why: Value = serde_json::from_slice(&output.stdout).unwrap();
        let is_told = why["names"][0]["blockers"][0]["held_ms"].is_number();
        is_told.then_some(why)
    })
}

fn is_said_everywhere(place: &Place) {
    let run = place.holder("orders", &["--why", "nightly \u{1b}[2Jimport"]);
    let why = told(place, "orders");
    let blocker = &why["names"][0]["blockers"][0];
    let client = &blocker["client"];
    assert_eq!((&client["program"], &client["why"]), (&"sh".into(), &"nightly \u{1b}[2Jimport".into()));
    assert_eq!(client["pid"], run.pid());
    assert!(client["host"].as_str().unwrap().len() > 1 && client["user"].is_string(), "{why}");
    assert!(blocker["held_ms"].as_u64().unwrap() >= 1_000 && why["cycles"].as_array().unwrap().is_empty());
    let shown = place.show("orders");
    assert_eq!(shown["holders"][0]["client"]["pid"], run.pid());
    // In words, and nothing of it acts on a terminal.
    let who = format!("sh@{}:{}", client["host"].as_str().unwrap(), run.pid());
    for words in [
        &["why", "orders"][..],
        &["show", "orders"],
        &["ls", "-o", "wide"],
        &["run", "-n", "orders", "--", "true"],
    ] {
        let text = both(&place.output(words));
        assert!(text.contains(&who) && text.contains("because nightly"), "{words:?}: {text}");
        assert!(text.contains(" for 1.") || text.contains("s by ") || text.contains("s, because"), "{text}");
        assert!(!text.contains('\u{1b}'), "{words:?}: {text:?}");
    }
    // A waiter is told of, too.
    let waiter = place.start(["run", "-w", "60s", "orders", "--", "true"]);
    let waiting = eventually("a waiter", || {
        let why = told(place, "orders");
        let waiting = why["names"][0]["waiting"].as_array().unwrap().clone();
        (!waiting.is_empty()).then_some(waiting)
    });
    assert_eq!((&waiting[0]["client"]["program"], &waiting[0]["kind"]), (&"true".into(), &"lock".into()));
    assert_eq!(waiting[0]["client"]["pid"], waiter.pid());
    let text = both(&place.output(["why", "orders"]));
    assert!(text.contains("1 wait for it: true@"), "{text}");
    place.end("orders");
    assert!(waiter.finish().status.success());
    drop(run);
}

#[test]
fn who_holds_is_said_everywhere_on_redis() {
    let server = RedisServer::start().unwrap();
    is_said_everywhere(&Place::on(&server));
}

#[test]
fn who_holds_is_said_everywhere_on_the_local_engine() {
    is_said_everywhere(&Place::local());
}

#[test]
fn circles_of_waits_are_named() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    // Each holds a name, and waits for the other one's inside of it once both are held.
    let go = place.word("go");
    let inner = |name: &str| {
        format!("while [ ! -e {go} ]; do sleep 0.01; done; \"$REDLATCH\" run -w 60s {name} -- true")
    };
    let mut runs = Vec::new();
    for (holds, waits) in [("a", "b"), ("b", "a")] {
        let command = inner(waits);
        let mut run = place.redlatch(["run", holds, "--", "sh", "-c", command.as_str()]);
        run.env("REDLATCH", env!("CARGO_BIN_EXE_redlatch"));
        runs.push(crate::support::Running::spawn(run));
    }
    eventually("both are held", || {
        ["a", "b"].iter().all(|name| place.show(name)["kind"] == "lock").then_some(())
    });
    std::fs::write(place.path("go"), "").unwrap();
    // The one who holds is a run, and the one who waits is another process that its command has started.
    let text = eventually("the circle", || {
        let text = both(&place.output(["why", "a"]));
        text.starts_with("deadlock: ").then_some(text)
    });
    assert!(
        text.contains("\"a\" waits for \"b\" waits for \"a\"")
            || text.contains("\"b\" waits for \"a\" waits for \"b\""),
        "{text}"
    );
    assert!(text.contains("which waits for \"b\""), "{text}");
}

/// Others may write what a client tells, and everything they like.
#[test]
fn who_holds_is_said_safely_and_by_the_lock_itself() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let id = "1b671a64-40d5-491e-99b0-da01ff1f3341";
    server.cmd(&["HSET", "taken", &format!("{id}:1"), "1"]).unwrap();
    server.cmd(&["PEXPIRE", "taken", "600000"]).unwrap();
    let record = format!("redlatch:client:{{{id}}}");
    let evil = "\u{1b}[2J\u{202e}evil";
    let lie = "lock 41000 - 1b671a64-40d5-491e-99b0-da01ff1f3341:1 taken";
    let other = "lock 41000 - - free";
    server
        .cmd(&[
            "HSET", &record, "host", evil, "program", evil, "user", evil, "why", evil, "hold:0", lie,
            "hold:1", other,
        ])
        .unwrap();
    for words in [
        &["why", "taken"][..],
        &["show", "taken"],
        &["ls", "-o", "wide"],
        &["run", "-n", "taken", "--", "true"],
    ] {
        let text = both(&place.output(words));
        assert!(text.contains("evil") && text.contains("41s"), "{words:?}: {text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{words:?}: {text:?}");
    }
    let text = both(&place.output(["why", "free"]));
    assert!(text.contains("is free") && !text.contains("evil"), "{text}");
}

#[test]
fn a_run_that_is_told_not_to_tells_nothing() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let mut run = place.redlatch(["run", "quiet", "--", "sleep", "2"]);
    run.env("REDLATCH_PRESENCE", "false");
    let run = crate::support::Running::spawn(run);
    eventually("the hold", || (place.show("quiet")["kind"] == "lock").then_some(()));
    let text = both(&run.finish());
    assert_eq!(text, "");
    // A record would outlast the run.
    assert_eq!(format!("{:?}", server.cmd(&["DBSIZE"]).unwrap()), "int(0)");
}

#[test]
fn an_account_that_may_not_tell_is_named_by_doctor_and_works() {
    let rules = "app on >hush resetkeys ~x ~redlatch_forced:* ~redlatch-doctor* &* +@all";
    let server = RedisServer::builder().acl(rules).start().unwrap();
    let mut place = Place::local();
    place.set_url(&format!("redis://app:hush@127.0.0.1:{}", server.port()));
    let text = both(&place.output(["doctor"]));
    assert!(text.contains("presence") && text.contains("--kind presence"), "{text}");
    let output = place.output(["run", "x", "--", "sleep", "1.5"]);
    assert!(output.status.success() && both(&output).is_empty(), "{output:?}");
    let text = both(&place.output(["acl", "--prefix", "app:", "--kind", "presence"]));
    assert!(text.contains("~redlatch:client:*"), "{text}");
}
