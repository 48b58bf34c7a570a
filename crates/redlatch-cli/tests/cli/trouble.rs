//! Bad input and bad servers: the right exit code, a message that helps, and no secret in it.

use std::{fs, net::TcpListener};

use redlatch_testkit::{server::RedisServer, topology::SentinelSet};

use crate::support::{Place, both, finish};

#[test]
fn mistakes_on_the_command_line_are_usage_errors() {
    let place = Place::local();
    let lines: &[&[&str]] = &[
        &["--no-such-flag"],
        &["no-such-verb"],
        &["run"],
        &["run", "job"],
        &["run", "job", "--"],
        &["run", "--", "true"],
        &["run", "a", "b", "a", "--", "true"],
        &["run", "a", "--shared", "--exclusive", "--", "true"],
        &["run", "a", "--permits", "0", "--", "true"],
        &["run", "a", "--permits", "many", "--", "true"],
        &["run", "a", "--wait", "soon", "--", "true"],
        &["run", "a", "--lease", "0s", "--", "true"],
        &["run", "a", "--lease", "999999999999d", "--", "true"],
        &["run", "a", "--lease", "1ms", "--", "true"],
        &["run", "a", "--lease", "3s", "--grace", "2s", "--", "true"],
        &["run", "a", "-n", "-w", "1s", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "a}b{", "--", "true"],
        &["run", "{}x", "--", "true"],
        &["lock", "a"],
        &["unlock", "a"],
        &["unlock", "a", "--owner", "nonsense"],
        &["force-unlock", "a", "--owner", "x:1", "--reason", "r"],
        &["force-unlock", "a", "--owner", "x:1", "--reason", " ", "--yes"],
        &["engine", "run", "--listen", "127.0.0.1:0"],
    ];
    for line in lines {
        let output = place.output(*line);
        assert_eq!(output.status.code(), Some(64), "{line:?}: {output:?}");
        assert!(!both(&output).contains("panic"), "{output:?}");
    }
    let long = "x".repeat(4097);
    assert_eq!(place.code(["run", &long, "--", "true"]), 64);
}

/// It would exclude no other command, and say that all is well.
#[test]
fn a_store_that_ends_with_the_command_is_refused() {
    let place = Place::local();
    for url in ["memory:", "memory:shared"] {
        for line in
            [&["run", "x", "--", "touch", "ran"][..], &["lock", "x", "--lease", "5m"][..], &["ls"][..]]
        {
            let output = place.output([&["--url", url], line].concat());
            let text = both(&output);
            assert!(!place.path("ran").exists(), "{text}");
            assert!(text.contains("use local:"), "{line:?}: {text}");
            assert_eq!(output.status.code(), Some(78), "{line:?}: {text}");
        }
    }
}

#[test]
fn a_value_that_is_refused_is_told_what_to_give() {
    let place = Place::local();
    let lines: &[(&[&str], &str)] = &[
        (&["sem", "set", "a", "many"], "give a whole number from 1 to 2147483647"),
        (&["sem", "set", "a", "0"], "give a whole number from 1 to 2147483647"),
        (&["sem", "add", "a", "1.5"], "give a whole number from -2147483648 to 2147483647"),
        (&["latch", "set", "a", "2147483648"], "give a whole number from 1 to 2147483647"),
        (&["rate", "acquire", "a", "x"], "give a whole number from 1 to 2147483647"),
        (&["rate", "set", "a", "1", "--per", "1"], "give a number with a unit"),
        (&["run", "a", "--permits", "x", "--", "true"], "give a whole number from 1 to 2147483647"),
        (&["run", "a", "-E", "256", "--", "true"], "give a whole number from 0 to 255"),
        (&["run", "a", "-w", "soon", "--", "true"], "give seconds, forever, or a number with a unit"),
        (&["run", "a", "-w", "1.2.3", "--", "true"], "give seconds, forever, or a number with a unit"),
        (&["run", "a", "--lease", "0s", "--", "true"], "give a time longer than zero"),
        (&["run", "a", "--replica-ack", "x", "--", "true"], "give a whole number from 1 to"),
        (&["ls", "--limit", "x"], "give a whole number from 1 to 100000"),
        (&["demo", "--workers", "1"], "give a whole number from 2 to 64"),
        (&["engine", "logs", "--lines", "all"], "give a whole number from 0 to"),
        (&["engine", "run", "--compat", "--listen", "6379"], "give an address and a port"),
        (&["engine", "run", "--compat", "--memory-max", "x"], "give a number of bytes, or a size"),
        (&["acl", "--prefix", "a", "--kind", "x"], "give one of lock, "),
    ];
    for (line, told) in lines {
        let output = place.output(*line);
        let text = both(&output);
        assert_eq!(output.status.code(), Some(64), "{line:?}: {text}");
        assert!(text.contains(told), "{line:?}: {text}");
    }
}

#[test]
fn too_few_replicas_stop_the_command_or_are_told_of() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let asked = ["run", "job", "--replica-ack", "1", "--ack-timeout", "50ms"];
    let run = |more: &[&str]| place.output([&asked, more, &["--", "touch", "ran"]].concat());
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(both(&output).contains("0 of 1") && !place.path("ran").exists(), "{output:?}");
    assert!(server.keys_dump().unwrap().is_empty());
    let output = run(&["--on-shortfall", "keep"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(both(&output).contains("0 of 1") && place.path("ran").exists(), "{output:?}");
    let several = ["run", "a", "b", "--replica-ack", "1", "--ack-timeout", "50ms"];
    let run = |more: &[&str]| place.output([&several, more, &["--", "touch", "both"]].concat());
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(both(&output).contains("0 of 1") && !place.path("both").exists(), "{output:?}");
    assert!(server.keys_dump().unwrap().is_empty());
    let output = run(&["--on-shortfall", "keep"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = both(&output);
    assert!(["confirmed \"a\"", "confirmed \"b\""].iter().all(|name| told.contains(name)), "{output:?}");
    assert!(place.path("both").exists());
    assert_eq!(place.code(["run", "a", "--replica-ack", "0", "--", "true"]), 64);
}

#[test]
fn an_unreachable_server_is_named() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let place = Place::local();
    let url = format!("redis://app:hush-hush@127.0.0.1:{port}");
    let output = place.output(["run", "job", "-n", "--url", &url, "--", "true"]);
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let message = both(&output);
    assert!(message.contains(&format!("127.0.0.1:{port}")) && !message.contains("hush"), "{message}");
    assert_eq!(place.code(["ls", "--url", "unix:///no/such/socket"]), 69);
}

#[test]
fn a_refused_password_is_never_printed() {
    let server = RedisServer::builder().requirepass("right-hush").start().unwrap();
    let place = Place::on(&server);
    let attempt = |password: Option<&str>, arguments: &[&str]| {
        let mut command = place.redlatch(arguments);
        if let Some(password) = password {
            command.env("REDLATCH_PASSWORD", password);
        }
        let output = finish(command);
        let text = both(&output);
        assert!(!text.contains("hush"), "{text}");
        output.status.code()
    };
    assert_eq!(attempt(Some("wrong-hush"), &["run", "job", "-n", "-vv", "--", "true"]), Some(77));
    assert_eq!(attempt(None, &["run", "job", "-n", "--", "true"]), Some(77));
    assert_eq!(attempt(Some("right-hush"), &["run", "job", "-n", "-vv", "--", "true"]), Some(0));
    fs::write(place.path("password"), "right-hush\n").unwrap();
    assert_eq!(attempt(None, &["run", "job", "-n", "--password-file", "password", "--", "true"]), Some(0));
    let wrong = format!("redis://:wrong-hush@127.0.0.1:{}", server.port());
    assert_eq!(attempt(None, &["ls", "--url", &wrong]), Some(77));
}

/// In no line at the level at which everything is told, by whatever way it is given.
#[test]
fn no_secret_is_in_a_log_at_trace_level() {
    let servers = RedisServer::builder().requirepass("server-hush");
    let sentinels = RedisServer::builder().requirepass("sentinel-hush");
    let set = SentinelSet::builder().servers(servers).sentinels(sentinels).start().unwrap();
    let place = Place::local();
    let addresses = set.sentinel_addrs().join(",");
    let single = format!("redis://:server-hush@127.0.0.1:{}", set.node(0).port());
    let behind =
        format!("redis-sentinel://:server-hush@{addresses}/redlatch?sentinel_password=sentinel-hush");
    let wrong = format!("redis-sentinel://:wrong-hush@{addresses}/redlatch?sentinel_password=wrong-hush");
    for url in [single, behind, wrong] {
        for line in ["run job -n -- redlatch show job", "ls", "doctor", "config show", "acl"] {
            let arguments = ["--url", &url].into_iter().chain(line.split(' '));
            let mut command = place.redlatch(arguments);
            command.env("REDLATCH_LOG", "trace").env("REDLATCH_URL", &url);
            let text = both(&finish(command));
            assert!(!text.contains("hush"), "{line}: {text}");
            let is_told = text.contains("DEBUG") || text.contains("refused the user name or password");
            assert!(is_told || !line.starts_with("run"), "a run tells what it does: {text}");
        }
    }
}

#[test]
fn a_missing_right_is_a_refusal() {
    let server = RedisServer::builder().acl("limited on >pw ~other:* &* +@all").start().unwrap();
    let place = Place::on(&server);
    let mut command = place.redlatch(["run", "job", "-n", "--username", "limited", "--", "true"]);
    command.env("REDLATCH_PASSWORD", "pw");
    let output = finish(command);
    assert_eq!(output.status.code(), Some(77), "{output:?}");
}

#[test]
fn a_key_of_another_type_is_left_alone() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    server.cmd(&["SET", "job", "precious"]).unwrap();
    let output = place.output(["run", "job", "-n", "--", "true"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(both(&output).contains("\"job\""), "{output:?}");
    assert_eq!(place.show("job")["kind"], "other");
    let kept = server.keys_dump().unwrap();
    assert_eq!(kept.len(), 1, "{kept:?}");
}

#[test]
fn a_bad_configuration_is_named_by_file() {
    let place = Place::local();
    fs::write(place.path("c.toml"), "urll = \"redis://u:hush@h\"\n").unwrap();
    let output = place.output(["ls", "--config", "c.toml"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(both(&output).contains("c.toml") && !both(&output).contains("hush"), "{output:?}");
    assert_eq!(place.code(["ls", "--context", "nowhere"]), 78);
    assert_eq!(place.code(["ls", "--url", "gopher://u:hush@h"]), 78);
    assert_eq!(place.code(["ls", "--password-file", "absent"]), 78);
    assert_eq!(place.code(["run", "job", "--report", "/no/such/dir/file", "--", "true"]), 125);
}
