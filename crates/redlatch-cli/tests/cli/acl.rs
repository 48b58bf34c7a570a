//! `acl`, `functions` and what `doctor` says of rights.

use std::process::Output;

use redlatch_testkit::server::RedisServer;
use serde_json::Value;

use crate::support::{Place, both};

fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", both(output));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// What `doctor` says of the rights of each kind that is asked for.
fn rights(place: &Place, kinds: &str) -> Vec<(String, String)> {
    let output = place.output(["doctor", "--prefix", "app:", "--kind", kinds, "-o", "json"]);
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", both(&output)));
    let rows = document["items"].as_array().unwrap().iter().filter(|row| row["check"] == "rights");
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    rows.map(|row| (text(row, "result"), text(row, "detail"))).collect()
}

#[test]
fn the_printed_line_makes_an_account_that_works_and_is_complete() {
    let place = Place::local();
    let line = &lines(&place.output(["acl", "--prefix", "app:", "--kind", "lock,fair", "--user", "app"]))[0];
    assert!(line.starts_with("user app on -@all +") && !line.contains('>'), "{line}");
    for rule in ["~app:*", "~redisson_lock_queue:{app:*", "&redisson_lock__channel:{app:*", "+lindex"] {
        assert!(line.split(' ').any(|word| word == rule), "{rule} in {line}");
    }
    let server =
        RedisServer::builder().acl(&format!("{} >pw", line.strip_prefix("user ").unwrap())).start().unwrap();
    let mut place = Place::on(&server);
    place.set_url(&server.url().replace("://", "://app:pw@"));
    assert_eq!(place.code(["run", "app:job", "--", "true"]), 0);
    assert_eq!(place.code(["run", "--fair", "app:job", "--", "true"]), 0);
    assert_eq!(place.code(["run", "other:job", "--", "true"]), 77);
    for (result, detail) in rights(&place, "lock,fair,spin") {
        assert_eq!(result, "good", "{detail}");
    }
    assert!(server.keys_dump().unwrap().is_empty(), "the trial leaves nothing");
}

#[test]
fn each_kind_has_its_line_and_json_has_the_parts() {
    let place = Place::local();
    let all = lines(&place.output(["acl", "--prefix", "app:"]));
    assert_eq!(all.len(), 12, "{all:?}");
    assert!(all.iter().any(|line| line.starts_with("latch\t-@all ")), "{all:?}");
    let output = place.output(["acl", "--prefix", "a*", "--kind", "spin", "-o", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &document["items"][0];
    assert_eq!(row["keys"][0], "a\\**");
    assert_eq!(row["channels"].as_array().unwrap().len(), 0);
    let functions =
        lines(&place.output(["acl", "--prefix", "", "--kind", "lock", "--functions", "-o", "name"]));
    assert!(functions[0].contains("+fcall") && !functions[0].contains("+eval"), "{functions:?}");
    assert_eq!(place.code(["acl", "--prefix", "", "--kind", "locks"]), 64);
    assert_eq!(place.code(["acl", "--kind", "lock"]), 64);
}

#[test]
fn doctor_names_the_rule_that_is_missing() {
    let place = Place::local();
    let line =
        &lines(&place.output(["acl", "--prefix", "app:", "--kind", "fair,latch,lock", "--user", "app"]))[0];
    let rules = line.strip_prefix("user ").unwrap();
    for (without, kind, named) in [
        ("-hset", "lock", "lock: the account lacks +hset"),
        ("-rpush", "fair", "fair: the account lacks +rpush"),
        ("-decr", "latch", "latch: the account lacks +decr"),
        ("-subscribe", "lock", "lock: the account lacks +subscribe"),
        ("-unsubscribe", "lock", "lock: the account lacks +unsubscribe"),
        ("-publish", "lock", "lock: the account lacks +publish"),
        ("-evalsha", "lock", "lock: the account lacks +evalsha"),
        (
            "resetchannels &redisson_lock__channel:app:*",
            "lock",
            "lock: the account lacks &redisson_lock__channel:{app:*",
        ),
        (
            "resetkeys ~app:* ~redisson_lock_queue:* ~redlatch_forced:*",
            "fair",
            "fair: the account lacks ~redisson_lock_timeout:app:* ~redisson_lock_timeout:{app:*",
        ),
    ] {
        // By effect, and by asking the server.
        for asking in ["", " +acl|whoami +acl|dryrun"] {
            let server =
                RedisServer::builder().acl(&format!("{rules} >pw {without}{asking}")).start().unwrap();
            let mut place = Place::on(&server);
            place.set_url(&server.url().replace("://", "://app:pw@"));
            assert_eq!(rights(&place, kind), [("problem".to_owned(), named.to_owned())], "{without}{asking}");
            let left = server.keys_dump().unwrap();
            assert!(left.keys().all(|key| !key.ends_with(b"redlatch-doctor-trial")), "{without}: {left:?}");
        }
    }
}

#[test]
fn an_operator_loads_the_library_and_others_use_it() {
    let place = Place::local();
    let rules =
        &lines(&place.output(["acl", "--prefix", "app:", "--kind", "lock", "--functions", "--user", "app"]))
            [0];
    let server =
        RedisServer::builder().acl(&format!("{} >pw", rules.strip_prefix("user ").unwrap())).start().unwrap();
    let mut place = Place::on(&server);
    let shown = lines(&place.output(["functions", "show"]));
    assert!(shown[0].starts_with("#!lua name=redlatch_"), "{}", shown[0]);
    place.set_url(&server.url().replace("://", "://app:pw@"));
    let run = |place: &Place| {
        let mut command = place.redlatch(["run", "app:job", "--", "true"]);
        command.env("REDLATCH_SCRIPTS", "functions").output().unwrap()
    };
    let early = run(&place);
    assert_eq!(early.status.code(), Some(78), "{}", both(&early));
    assert!(both(&early).contains("redlatch functions load"), "{}", both(&early));
    assert_eq!(place.code(["functions", "load"]), 77, "the account may not");
    place.set_url(&server.url());
    for _ in 0..2 {
        assert_eq!(place.code(["functions", "load"]), 0);
    }
    place.set_url(&server.url().replace("://", "://app:pw@"));
    let late = run(&place);
    assert_eq!(late.status.code(), Some(0), "{}", both(&late));
    assert_eq!(server.command_count("eval").unwrap() + server.command_count("evalsha").unwrap(), 0);
    assert_eq!(Place::local().code(["functions", "load"]), 64, "the local engine has none");
}
