//! What is wrong with locks is named with the one who is responsible, by `doctor` and on the page of `top`.

use redlatch_testkit::server::RedisServer;
use serde_json::Value;

use crate::{
    support::{LEASE, Place, Running, eventually, finish},
    top::Top,
};

/// A lease of which ten, a long wait, are as long as a client waits before it says so.
const SHORT: &str = "150ms";

/// What `doctor` says of the locks, each as one line, with the lease that makes waits long.
fn told(place: &Place) -> Vec<String> {
    let mut command = place.redlatch(["doctor", "-o", "json"]);
    command.env("REDLATCH_LEASE", SHORT);
    let output = finish(command);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let line = |item: &Value| {
        let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
        format!("{} {}: {} [{}]", text("result"), text("check"), text("detail"), text("remedy"))
    };
    document["items"].as_array().unwrap().iter().map(line).collect()
}

/// Waits until one line of `doctor` has all of these words in it.
#[track_caller]
fn until_told(place: &Place, words: &[&str]) -> String {
    eventually(&format!("{words:?}"), || {
        let mut lines = told(place).into_iter();
        lines.find(|line| words.iter().all(|word| line.contains(word)))
    })
}

/// A run that waits for as long as the test lasts.
fn waiter(place: &Place, arguments: &[&str]) -> Running {
    place.start([&["run"], arguments, &["-w", "1h", "--", "true"]].concat())
}

#[test]
fn each_incident_is_named_with_the_one_who_is_responsible() {
    let server = RedisServer::builder().appendonly(true).start().unwrap();
    let place = Place::on(&server);
    let quiet = told(&place);
    assert!(quiet.iter().any(|line| line.starts_with("good lock state: 0 locks")), "{quiet:?}");

    // A holder that is stuck, and those who wait for it.
    let _stuck = place.holder("import", &["--lease", LEASE, "--why", "nightly import"]);
    let _waits = waiter(&place, &["import"]);
    until_told(
        &place,
        &["note long wait", "\"import\": true@", "has waited for", "by sh@", "because nightly import"],
    );

    // A writer behind readers.
    let _reader = place.holder("table", &["--shared", "--lease", LEASE]);
    let _writer = waiter(&place, &["table", "--exclusive"]);
    until_told(
        &place,
        &["note starving writer", "\"table\": true@", "readers that come later pass", "shorter time"],
    );

    // A circle over two services.
    let outer = |name: &str, other: &str| {
        let script = format!(
            "touch {name}.held; while [ ! -e a.held ] || [ ! -e b.held ]; do sleep 0.02; done; exec redlatch run {other} -w 1h -- true"
        );
        place.start(["run", name, "--lease", LEASE, "--", "sh", "-c", &script])
    };
    let _circle = [outer("a", "b"), outer("b", "a")];
    until_told(&place, &["problem deadlock", "waits for \"b\"", "waits for \"a\"", "force-unlock"]);

    // An entry that was never given back: the inner run of the same name works on under the outer one's owner.
    let script = "exec redlatch run entered -- sh -c 'while [ ! -e entered.end ]; do sleep 0.02; done'";
    let _entered = place.start(["run", "entered", "--lease", LEASE, "--", "sh", "-c", script]);
    until_told(&place, &["note re-entry", "\"entered\": entered 2 times", "by sh@"]);

    // A key without TTL, which only another program writes.
    server.cmd(&["HSET", "never", "1b671a64-40d5-491e-99b0-da01ff1f3341:7", "1"]).unwrap();
    until_told(&place, &["problem lock state", "\"never\"", "no TTL", "force-unlock frees it"]);

    // A waiter of a fair lock that died long ago.
    let lock = place.output(["lock", "queue", "--fair", "--lease", "10m"]);
    assert!(lock.status.success(), "{lock:?}");
    let dead = "1b671a64-40d5-491e-99b0-da01ff1f3341:9";
    server.cmd(&["RPUSH", "redisson_lock_queue:{queue}", dead]).unwrap();
    server.cmd(&["ZADD", "redisson_lock_timeout:{queue}", "1", dead]).unwrap();
    until_told(&place, &["note queue", "\"queue\"", dead, "first in the queue and overdue"]);

    // The page says the same, problems first and above every other page.
    let mut top = Top::start(&place, &format!("env REDLATCH_LEASE={SHORT}"));
    let screen = top.until(&["2 problems", "deadlock: ", "lock state: \"never\""]);
    assert!(!screen.contains("starving"), "{screen}");
    top.press("4");
    top.until(&[
        "long wait: \"import\"",
        "starving writer: \"table\"",
        "re-entry: \"entered\"",
        "queue: \"queue\"",
    ]);
    top.press("q");
    assert_eq!(top.end().0.code(), Some(0));
    for name in ["import", "table", "entered"] {
        place.end(name);
    }
}
