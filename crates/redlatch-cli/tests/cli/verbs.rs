//! The verbs other than `run`: detached holds, looking, the engine, configuration, help.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::{net::UnixStream, process::ExitStatusExt},
};

use redlatch_testkit::server::RedisServer;
use serde_json::Value;

use crate::support::{Place, both, finish};

fn detached(place: &Place) {
    let taken = place.output(["lock", "job", "--lease", "1m", "--fenced", "-o", "json"]);
    assert!(taken.status.success(), "{taken:?}");
    let taken: Value = serde_json::from_slice(&taken.stdout).unwrap();
    let owner = taken["owner"].as_str().unwrap();
    assert_eq!((&taken["schema"], &taken["lease_ms"]), (&1.into(), &60_000.into()));
    assert_eq!(place.show("job")["token"], taken["token"]);
    assert_eq!(place.show("job")["holders"][0]["owner"], owner);
    assert_eq!(place.code(["lock", "job", "-n", "--lease", "1m"]), 75);

    assert_eq!(place.code(["renew", "job", "--owner", owner, "--lease", "10m"]), 0);
    assert!(place.show("job")["ttl_ms"].as_u64().unwrap() > 60_000);

    let stranger = "1b671a64-40d5-491e-99b0-da01ff1f3341:7";
    for verb in
        [&["unlock", "job", "--owner", stranger][..], &["renew", "job", "--owner", stranger, "--lease", "1m"]]
    {
        let refused = place.output(verb);
        assert_eq!(refused.status.code(), Some(80), "{refused:?}");
        let message = both(&refused);
        assert!(message.contains("job") && message.contains(stranger), "{message}");
    }
    assert_eq!(place.code(["unlock", "job", "--owner", owner]), 0);
    assert_eq!(place.show("job")["kind"], "free");
    assert_eq!(place.code(["unlock", "job", "--owner", owner]), 80, "it cannot be given back twice");
}

#[test]
fn detached_holds_on_the_local_engine() {
    detached(&Place::local());
}

#[test]
fn detached_holds_on_redis() {
    let server = RedisServer::start().unwrap();
    detached(&Place::on(&server));
}

#[test]
fn exported_holds_work_in_shells_and_let_runs_enter() {
    let place = Place::local();
    let script = "set -e
        eval \"$(redlatch lock \"it's a name\" --lease 1m --fenced --export)\"
        redlatch run \"it's a name\" -n -- true
        echo $REDLATCH_TOKEN
        redlatch unlock \"it's a name\"";
    let output = finish(place.shell(script));
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().is_ok());
    assert_eq!(place.show("it's a name")["kind"], "free");
}

#[test]
fn a_hold_that_nobody_can_learn_of_is_given_back() {
    let place = Place::local();
    let output = finish(place.shell("redlatch lock job --lease 10m > /dev/full; echo $?"));
    assert_eq!(output.stdout, b"125\n", "{output:?}");
    assert_eq!(place.show("job")["kind"], "free");
}

#[test]
fn listings_name_the_locks() {
    let place = Place::local();
    for name in ["order:1", "order:2", "report"] {
        assert_eq!(place.code(["lock", name, "--lease", "10m"]), 0);
    }
    let names = |arguments: &[&str]| String::from_utf8(place.output(arguments).stdout).unwrap();
    assert_eq!(names(&["ls", "-o", "name"]), "order:1\norder:2\nreport\n");
    assert_eq!(names(&["ls", "order:*", "-o", "name"]), "order:1\norder:2\n");
    let plain = names(&["ls", "report"]);
    let fields: Vec<_> = plain.trim_end().split('\t').collect();
    assert_eq!((fields[0], fields[1], fields[3]), ("report", "lock", "1"), "{plain:?}");
    let all: Value = serde_json::from_str(&names(&["ls", "-o", "json"])).unwrap();
    assert_eq!((&all["schema"], all["items"].as_array().unwrap().len()), (&1.into(), 3));
    assert_eq!(names(&["ls", "-o", "ndjson"]).lines().count(), 3);
    let limited = place.output(["ls", "--limit", "2", "-o", "name"]);
    assert_eq!(limited.stdout, b"order:1\norder:2\n");
    assert!(both(&limited).contains("--limit"));
    assert_eq!(names(&["show", "nothing-here", "-o", "name"]), "nothing-here\n");
}

#[test]
fn names_cannot_rewrite_the_screen() {
    let place = Place::local();
    let evil = "a\u{1b}[2J\u{202e}\nb";
    let holder = place.output(["lock", evil, "--lease", "10m"]);
    assert!(holder.status.success(), "{holder:?}");
    let looks = [
        &["ls"][..],
        &["ls", "-o", "wide"],
        &["ls", "-o", "json"],
        &["ls", "-o", "ndjson"],
        &["ls", "-o", "name"],
        &["show", evil],
        &["run", evil, "-n", "--", "true"],
        &["unlock", evil, "--owner", "1b671a64-40d5-491e-99b0-da01ff1f3341:7"],
    ];
    for look in looks {
        let text = both(&place.output(look));
        assert!(text.contains("[2J"), "{look:?}: {text:?}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{look:?}: {text:?}");
    }
    let found: Value = serde_json::from_slice(&place.output(["ls", "-o", "json"]).stdout).unwrap();
    assert_eq!(found["items"][0]["name"], evil, "JSON gives the name back unchanged");
}

#[test]
fn a_closed_pipe_ends_a_listing_quietly() {
    let place = Place::local();
    assert_eq!(place.code(["lock", "job", "--lease", "10m"]), 0);
    for arguments in [&["ls"][..], &["config", "show"], &["completions", "bash"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = place.redlatch(arguments).stdout(writer).output().unwrap();
        assert_eq!(
            output.status.signal(),
            Some(13),
            "{arguments:?}: ended by SIGPIPE, as other programs are: {output:?}"
        );
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn the_engine_can_be_started_looked_at_and_stopped() {
    let place = Place::local();
    let status = place.output(["engine", "status", "-o", "json"]);
    assert_eq!(status.status.code(), Some(69), "{status:?}");
    assert_eq!(place.code(["engine", "start"]), 0);
    assert_eq!(place.code(["engine", "start"]), 0, "a running engine is what was asked for");
    let status = place.output(["engine", "status", "-o", "json"]);
    assert!(status.status.success(), "{status:?}");
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert!(status["pid"].as_i64().is_some_and(|pid| pid > 1), "{status}");

    assert_eq!(place.code(["lock", "job", "--lease", "10m"]), 0);
    let status: Value =
        serde_json::from_slice(&place.output(["engine", "status", "-o", "json"]).stdout).unwrap();
    assert_eq!(status["locks"], 1, "{status}");
    let refused = place.output(["engine", "stop"]);
    assert_eq!(refused.status.code(), Some(75), "locks are held: {refused:?}");
    assert_eq!(place.code(["engine", "logs"]), 0);
    assert_eq!(place.code(["engine", "stop", "--force"]), 0);
    assert_eq!(place.code(["engine", "status"]), 69);
    // The journal keeps the hold.
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75);
}

#[test]
fn an_engine_is_not_stopped_while_a_permit_is_held() {
    let place = Place::local();
    let taken = place.output(["lock", "gate", "--permits", "2", "--lease", "10m", "-o", "json"]);
    assert!(taken.status.success(), "{taken:?}");
    let taken: Value = serde_json::from_slice(&taken.stdout).unwrap();
    let refused = place.output(["engine", "stop"]);
    assert_eq!(refused.status.code(), Some(75), "a permit is held: {refused:?}");
    let status = place.output(["engine", "status", "-o", "json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["locks"], 1, "{status}");
    let permit = taken["owner"].as_str().unwrap_or_else(|| panic!("{taken}"));
    assert_eq!(place.code(["unlock", "gate", "--owner", permit]), 0);
    assert_eq!(place.code(["engine", "stop"]), 0);
}

/// Runs an engine by hand, sends it one script, and waits until it ends for want of clients.
fn script_by_hand(place: &Place, options: &[&str]) -> String {
    let (dir, socket) = (place.path("hand"), place.path("hand/s.sock"));
    let paths = [&dir, &socket].map(|path| path.to_str().unwrap());
    let fixed = ["engine", "run", "--dir", paths[0], "--socket", paths[1], "--idle-exit", "300ms"];
    let mut engine = place.start([&fixed[..], options].concat());
    let mut ready = [0; 6];
    engine.child().stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"READY\n");
    let mut client = UnixStream::connect(socket).unwrap();
    client.write_all(b"*3\r\n$4\r\nEVAL\r\n$9\r\nreturn 41\r\n$1\r\n0\r\n").unwrap();
    let mut answer = String::new();
    BufReader::new(client).read_line(&mut answer).unwrap();
    let output = engine.finish();
    assert!(output.status.success(), "{output:?}");
    answer
}

#[test]
fn only_the_compat_door_runs_scripts_of_others() {
    let place = Place::local();
    assert!(script_by_hand(&place, &[]).starts_with("-NOPERM"));
    assert_eq!(script_by_hand(&place, &["--compat"]), ":41\r\n");
    assert_eq!(place.code(["engine", "run", "--dir", "hand", "--compat", "--listen", "0.0.0.0:0"]), 64);
}

#[test]
fn doctor_tells_healthy_stores_from_others() {
    let server = RedisServer::builder()
        .acl("deaf on >pw ~* &nothing +@all")
        .acl("mute on >pw ~nothing &* +@all")
        .start()
        .unwrap();
    let place = Place::on(&server);
    let healthy = place.output(["doctor"]);
    assert_eq!(healthy.status.code(), Some(0), "{healthy:?}");
    assert!(both(&healthy).contains("good\twake-up\t"), "{healthy:?}");

    // Without the right to the channel a release wakes nobody.
    let mut command = place.redlatch(["doctor", "-o", "json", "--username", "deaf"]);
    command.env("REDLATCH_PASSWORD", "pw");
    let deaf = finish(command);
    let findings: Value = serde_json::from_slice(&deaf.stdout).unwrap();
    let wake_up =
        findings["items"].as_array().unwrap().iter().find(|item| item["check"] == "wake-up").unwrap();
    assert!(wake_up["result"] == "note" && wake_up["remedy"].is_string(), "{findings}");

    let mut command = place.redlatch(["doctor", "--username", "mute"]);
    command.env("REDLATCH_PASSWORD", "pw");
    let mute = finish(command);
    assert_eq!(mute.status.code(), Some(78), "no right to the keys: {mute:?}");

    server.cmd(&["HSET", "stuck", "1b671a64-40d5-491e-99b0-da01ff1f3341:7", "1"]).unwrap();
    let odd = both(&place.output(["doctor"]));
    assert!(odd.contains("problem\tlock state\t\"stuck\""), "{odd}");
}

#[test]
fn doctor_warns_of_a_server_that_evicts_locks() {
    let server = RedisServer::builder()
        .arg("maxmemory", "10mb")
        .arg("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let output = Place::on(&server).output(["doctor", "-o", "json"]);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    assert!(both(&output).contains("allkeys-lru"), "{output:?}");
}

#[test]
fn config_show_names_origins_and_hides_secrets() {
    let place = Place::local();
    fs::create_dir_all(place.path("config/redlatch")).unwrap();
    let text = "lease = \"10s\"\n[contexts.prod]\nurl = \"redis://app:hush-url@db:6379\"\n";
    fs::write(place.path("config/redlatch/config.toml"), text).unwrap();
    let mut command = place.redlatch(["config", "show", "--context", "prod"]);
    command.env("REDLATCH_PASSWORD", "hush-variable");
    let output = finish(command);
    let text = both(&output);
    assert!(output.status.success() && !text.contains("hush"), "{text}");
    assert!(text.contains("url\tredis://***@db:6379\t") && text.contains("config.toml [prod]"), "{text}");
    assert!(text.contains("lease\t10s\t") && text.contains("password\t***\tREDLATCH_PASSWORD"), "{text}");
}

#[test]
fn help_is_written_for_shells_and_man() {
    let place = Place::local();
    for shell in ["bash", "zsh", "fish"] {
        let output = place.output(["completions", shell]);
        assert!(output.status.success() && both(&output).contains("force-unlock"), "{output:?}");
        assert!(!both(&output).contains("__exec"));
    }
    fs::create_dir(place.path("man")).unwrap();
    assert_eq!(place.code(["man".into(), place.path("man")]), 0);
    let page = fs::read_to_string(place.path("man/redlatch-run.1")).unwrap();
    assert!(page.contains("max\\-hold"), "{page}");
    assert!(!place.path("man/redlatch-__demo-worker.1").exists());
    assert_eq!(place.code(["--help"]), 0);
    assert_eq!(place.code(["--version"]), 0);
}
