//! What is told to the user at the terminal, and what is not.

use std::fs;

use redlatch_testkit::server::RedisServer;

use crate::support::{Place, both, finish};

/// An address where nothing listens.
const NOBODY: &str = "redis://127.0.0.1:1";

#[test]
fn a_command_gets_the_url_without_its_credentials() {
    let server = RedisServer::builder().acl("app on >hush-url ~* &* +@all").start().unwrap();
    let mut place = Place::local();
    place.set_url(&format!("redis://app:hush-url@127.0.0.1:{}", server.port()));
    let output = place.output(["run", "x", "--", "env"]);
    let text = both(&output);
    assert!(output.status.success() && !text.contains("hush"), "{text}");
    let bare = format!("REDLATCH_URL=redis://127.0.0.1:{}\n", server.port());
    assert!(text.contains(&bare), "{text}");
}

#[test]
fn config_show_says_what_the_url_gives() {
    let place = Place::local();
    let url = "redis-sentinel://app:hush@h/m?sentinel_password=hush&scripts=functions";
    let output = place.output(["config", "show", "--url", url]);
    let text = both(&output);
    assert!(output.status.success() && !text.contains("hush"), "{text}");
    for line in [
        "username\tapp\turl of --url\n",
        "password\t***\turl of --url\n",
        "sentinel_password\t***\turl of --url\n",
        "scripts\tfunctions\turl of --url\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // What is said elsewhere comes before the URL's own.
    let output = place.output(["config", "show", "--url", url, "--username", "other"]);
    assert!(both(&output).contains("username\tother\t--username\n"), "{output:?}");
}

#[test]
fn config_show_says_what_is_wrong() {
    let place = Place::local();
    fs::write(
        place.path("redisson.yaml"),
        "singleServerConfig:\n  address: rediss://127.0.0.1:1\n  sslTruststore: file:/etc/trust.jks\n  sslTruststorePassword: hush\n",
    )
    .unwrap();
    for (arguments, words) in [
        (["config", "show", "--url", "reddis://u:hush@h"], "scheme is not known"),
        (["config", "show", "--redisson-yaml", "redisson.yaml"], "Java key store"),
    ] {
        let output = place.output(arguments);
        let text = both(&output);
        assert_eq!(output.status.code(), Some(78), "{text}");
        assert!(text.contains("problem\t") && text.contains(words) && !text.contains("hush"), "{text}");
        assert!(text.contains("lease\t30s\tdefault\n"), "all the rest is there: {text}");
    }
}

#[test]
fn an_error_of_the_connection_names_the_server_once() {
    let place = Place::local();
    let output = place.output(["ls", "--url", NOBODY]);
    let text = both(&output);
    assert_eq!(output.status.code(), Some(69), "{text}");
    assert_eq!(text.matches(NOBODY).count(), 1, "{text}");
}

#[test]
fn a_tls_file_that_is_missing_is_named_and_a_matter_of_configuration() {
    let place = Place::local();
    let mut command = place.redlatch(["ls", "--url", "rediss://127.0.0.1:1"]);
    command.env("REDLATCH_TLS_CA_FILE", place.path("no-such-ca.pem"));
    let output = finish(command);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(both(&output).contains("no-such-ca.pem"), "{output:?}");
}

#[test]
fn an_engine_that_does_not_start_is_told_with_what_helps() {
    let place = Place::local();
    fs::write(place.path("engine.text"), "#!/bin/sh\necho 'no space left' >&2\nexit 1\n").unwrap();
    let engine = place.copy_program(place.path("engine.text"), "engine.sh");
    let told = |engine: &std::path::Path| {
        let mut command = place.redlatch(["ls"]);
        command.env("REDLATCH_ENGINE_BIN", engine);
        let output = finish(command);
        assert_eq!(output.status.code(), Some(69), "{output:?}");
        both(&output)
    };
    let ended = told(&engine);
    assert!(ended.starts_with("redlatch: the local engine could not be started: "), "{ended}");
    assert!(ended.contains("no space left") && ended.contains("`redlatch engine run`"), "{ended}");
    assert!(!ended.contains("PATH"), "it is installed: {ended}");
    let absent = told(&place.path("absent"));
    assert!(absent.contains("PATH") && absent.contains("REDLATCH_ENGINE_BIN"), "{absent}");
}

/// `REDLATCH_URL=$SERVER redlatch run …` in a script that lacks SERVER must not lock this machine only.
#[test]
fn an_empty_variable_that_says_where_locks_are_is_an_error() {
    let place = Place::local();
    fs::write(place.path("c.toml"), "[contexts.here]\nurl = \"local:\"\n").unwrap();
    for name in ["REDLATCH_URL", "REDLATCH_CONTEXT", "REDLATCH_CONFIG", "REDLATCH_REDISSON_YAML"] {
        let with = |line: &[&str]| {
            let mut command = place.redlatch(line);
            command.env(name, "");
            finish(command)
        };
        let output = with(&["run", "x", "--", "touch", "ran"]);
        assert_eq!(output.status.code(), Some(78), "{output:?}");
        assert!(both(&output).contains(&format!("{name} is set and empty")), "{output:?}");
        assert!(!place.path("ran").exists());
    }
    // A flag decides by itself.
    let flags = ["run", "x", "--config", "c.toml", "--context", "here", "--", "true"];
    for name in ["REDLATCH_URL", "REDLATCH_CONTEXT", "REDLATCH_CONFIG"] {
        let mut command = place.redlatch(flags);
        command.env(name, "");
        assert_eq!(finish(command).status.code(), Some(0), "{name}");
    }
    // What does not say where counts as unset.
    let mut command = place.redlatch(["run", "x", "--", "true"]);
    command.env("REDLATCH_LEASE", "").env("REDLATCH_PASSWORD", "");
    assert_eq!(finish(command).status.code(), Some(0));
}

#[test]
fn help_is_a_verb_too() {
    let place = Place::local();
    let output = place.output(["help", "run"]);
    assert!(output.status.success() && both(&output).contains("--max-hold"), "{output:?}");
    fs::create_dir(place.path("man")).unwrap();
    assert_eq!(place.code(["man", "man"]), 0);
    let pages = fs::read_dir(place.path("man")).unwrap();
    let names: Vec<_> = pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().any(|name| name == "redlatch-run.1"), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("help")), "{names:?}");
}

#[test]
fn a_shorter_renewal_leaves_the_longer_lease() {
    let place = Place::local();
    let output = place.output(["lock", "x", "--lease", "10m", "-o", "json"]);
    let taken: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let owner = taken["owner"].as_str().unwrap();
    assert_eq!(place.code(["renew", "x", "--owner", owner, "--lease", "1m"]), 0);
    assert!(place.show("x")["ttl_ms"].as_u64().unwrap() > 300_000);
    assert_eq!(place.code(["renew", "x", "--owner", owner, "--lease", "20m"]), 0);
    assert!(place.show("x")["ttl_ms"].as_u64().unwrap() > 900_000);
}

#[test]
fn what_nobody_has_set_says_how_to_set_it() {
    let place = Place::local();
    for verb in ["sem", "rate"] {
        let output = place.output([verb, "acquire", "x"]);
        assert_eq!(output.status.code(), Some(80), "{output:?}");
        assert!(both(&output).contains(&format!("`redlatch {verb} set`")), "{output:?}");
    }
}

/// A user waits, the server dies, and nothing would be said until the time is up.
#[test]
fn a_waiter_is_told_that_the_server_is_gone() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    assert_eq!(place.code(["lock", "x", "--lease", "5m"]), 0);
    let waiter = place.start(["run", "x", "-v", "-w", "6s", "--", "true"]);
    crate::support::eventually("the waiter to wait", || {
        (place.show("x")["listening"].as_u64()? > 0).then_some(())
    });
    server.kill9();
    let output = waiter.finish();
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let text = both(&output);
    assert_eq!(text.matches("waiters go on trying").count(), 1, "{text}");
}
