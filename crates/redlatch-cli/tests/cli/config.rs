//! Where settings come from, seen from outside.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

use redlatch_testkit::server::RedisServer;

use crate::support::{Place, both, finish};

#[test]
fn a_redisson_file_is_taken_as_it_is_and_shown_with_its_places() {
    let server = RedisServer::builder().acl("app on >hush-data ~* &* +@all").start().unwrap();
    let place = Place::local();
    let text = format!(
        "lockWatchdogTimeout: 20000\nusername: app\npassword: ${{PASS}}\nsingleServerConfig:\n  address: \"redis://127.0.0.1:{}\"\n  clientName: java-shop\n\
         \x20 retryAttempts: 9\nthreads: 16\ncodec: !<org.redisson.codec.Kryo5Codec> {{}}\n",
        server.port()
    );
    fs::write(place.path("redisson.yaml"), text).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = place.redlatch(arguments);
        command.env("PASS", "hush-data").env("REDLATCH_REDISSON_YAML", place.path("redisson.yaml"));
        finish(command)
    };
    let output = run(&["config", "show"]);
    let text = both(&output);
    assert!(output.status.success() && !text.contains("hush"), "{text}");
    let url = format!("url\tredis://127.0.0.1:{}\t", server.port());
    for line in [
        url.as_str(),
        "lease\t20000ms\t",
        "username\tapp\t",
        "password\t***\t",
        "client_name\tjava-shop\t",
        "redisson.yaml singleServerConfig.address",
        "redisson.yaml line 7, singleServerConfig.retryAttempts",
        "redisson.yaml lockWatchdogTimeout",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let output = run(&["run", "redisson-names-it", "--", "true"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!both(&run(&["run", "redisson-names-it", "--", "env"])).contains("REDLATCH_PASSWORD"));
    // The server refuses a client that does not know the password, so it was used.
    let mut command = place.redlatch(["run", "redisson-names-it", "--", "true"]);
    command.env("PASS", "wrong").env("REDLATCH_REDISSON_YAML", place.path("redisson.yaml"));
    assert_eq!(finish(command).status.code(), Some(77));
}

#[test]
fn a_mapper_is_refused_before_anything_is_locked() {
    let place = Place::local();
    fs::write(
        place.path("redisson.yaml"),
        "nameMapper: !<com.example.Tenants> {prefix: hush}\nsingleServerConfig: { address: 'redis://127.0.0.1:1' }\n",
    )
    .unwrap();
    let output = place.output(["run", "x", "--redisson-yaml", "redisson.yaml", "--", "true"]);
    let text = both(&output);
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(text.contains("nameMapper") && text.contains("line 1") && !text.contains("hush"), "{text}");
    let output = place.output(["ls", "--redisson-yaml", "redisson.yaml", "--url", "redis://h"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
}

#[test]
fn a_password_is_asked_for_on_a_terminal_only_and_not_echoed() {
    let server = RedisServer::builder().acl("app on >hush-typed ~* &* +@all").start().unwrap();
    let place = Place::on(&server);
    let output = place.output(["ls", "--username", "app", "--password-prompt"]);
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert!(both(&output).contains("needs a terminal"), "{output:?}");

    // `script` gives it a terminal and passes on what is typed.
    let mut command = Command::new("script");
    let words = format!(
        "{} run typed --username app --password-prompt -- echo worked",
        env!("CARGO_BIN_EXE_redlatch")
    );
    command.args(["--quiet", "--return", "--command", &words, "/dev/null"]);
    place.surround(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut typing = child.stdin.take().unwrap();
    let mut screen = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    // The question first: what is typed before it would be shown, as with any program.
    while !String::from_utf8_lossy(&seen).contains("Password:") {
        let mut byte = [0];
        std::io::Read::read_exact(&mut screen, &mut byte).unwrap();
        seen.push(byte[0]);
    }
    typing.write_all(b"hush-typed\n").unwrap();
    std::io::Read::read_to_end(&mut screen, &mut seen).unwrap();
    drop(typing);
    let status = child.wait().unwrap();
    let seen = String::from_utf8_lossy(&seen);
    assert!(status.success() && seen.contains("worked") && !seen.contains("hush-typed"), "{status} {seen}");
}
