//! `redlatch run`: exclusion, exit codes, environment, report, nesting.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{net::UnixStream, process::ExitStatusExt},
    process::Stdio,
};

use redlatch_testkit::server::RedisServer;
use serde_json::json;

use crate::support::{Place, both, eventually, finish};

/// `mkdir` succeeds for one at a time, so a directory that is there already means that another process is inside.
fn exclusion(place: &Place) {
    let script = format!(
        "mkdir {inside} || echo clash >> {log}; echo turn >> {log}; sleep 0.02; rmdir {inside}",
        inside = place.word("inside"),
        log = place.word("log")
    );
    let runs: Vec<_> = (0..6).map(|_| place.start(["run", "job", "--", "sh", "-c", &script])).collect();
    for run in runs {
        let output = run.finish();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(place.read("log"), "turn\n".repeat(6));
}

#[test]
fn runs_of_one_name_exclude_each_other_on_the_local_engine() {
    exclusion(&Place::local());
}

#[test]
fn runs_of_one_name_exclude_each_other_on_redis() {
    let server = RedisServer::start().unwrap();
    exclusion(&Place::on(&server));
    let left = server.keys_dump().unwrap();
    assert!(left.is_empty(), "something was left behind: {left:?}");
}

#[test]
fn different_names_run_together() {
    let place = Place::local();
    let first = place.holder("a", &[]);
    assert_eq!(place.code(["run", "b", "-n", "--", "true"]), 0);
    place.end("a");
    assert!(first.finish().status.success());
}

#[test]
fn the_exit_code_is_the_commands_own() {
    let place = Place::local();
    let sh = |script: &str| place.output(["run", "job", "--", "sh", "-c", script]).status;
    assert_eq!(sh("exit 0").code(), Some(0));
    assert_eq!(sh("exit 7").code(), Some(7));
    assert_eq!(sh("kill -TERM $$").code(), Some(128 + 15));
    assert_eq!(sh("kill -KILL $$").code(), Some(128 + 9));
    assert_eq!(
        sh("kill -PIPE $$; exit 3").code(),
        Some(128 + 13),
        "the command must not inherit an ignored SIGPIPE"
    );
    assert_eq!(sh("exit 7").signal(), None);
    let missing = place.output(["run", "job", "--", "no-such-command-here"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(both(&missing).contains("no-such-command-here"), "{missing:?}");
    fs::write(place.path("plain"), "text").unwrap();
    assert_eq!(
        place.output(["run".into(), "job".into(), "--".into(), place.path("plain")]).status.code(),
        Some(126)
    );
}

#[test]
fn a_busy_lock_has_its_own_exit_codes() {
    let place = Place::local();
    let holder = place.holder("job", &[]);
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75);
    assert_eq!(place.code(["run", "job", "-w", "50ms", "--", "true"]), 75);
    assert_eq!(place.code(["run", "job", "--if-busy", "fail", "--", "true"]), 75);
    assert_eq!(place.code(["run", "job", "--if-busy", "skip", "--", "false"]), 0);
    assert_eq!(place.code(["run", "job", "-n", "-E", "9", "--", "true"]), 9);
    let output = place.output(["run", "job", "-n", "--", "true"]);
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let message = both(&output);
    assert!(message.contains("\"job\"") && message.contains(&owner), "{message}");
    assert_eq!(both(&place.output(["run", "-q", "job", "-n", "--", "true"])), "");
    place.end("job");
    assert!(holder.finish().status.success());
}

#[test]
fn the_command_gets_its_stdin_and_no_shell() {
    let place = Place::local();
    let output = finish(place.shell("printf 'a  b' | redlatch run job -- cat"));
    assert_eq!(output.stdout, b"a  b");
    let output = place.output(["run", "job", "--", "printf", "%s|", "$HOME", "a  b", "*"]);
    assert_eq!(output.stdout, b"$HOME|a  b|*|");
    let output = place.output(["run", "job", "--shell", "--", "printf '%s|' \"$1\" $((1 + 1))", "a  b"]);
    assert_eq!(output.stdout, b"a  b|2|");
}

#[test]
fn the_command_sees_its_hold_and_no_password() {
    let place = Place::local();
    let mut command =
        place.redlatch(["run", "job", "--fenced", "--lease", "20s", "--why", "a test", "--", "env"]);
    command.env("REDLATCH_PASSWORD", "hush-hush").env("REDLATCH_TOKEN", "stale").env("REDLATCH_WHY", "stale");
    let output = finish(command);
    let text = both(&output);
    let value = |name: &str| {
        let found: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(&format!("{name}="))).collect();
        assert_eq!(found.len(), 1, "{name}: {text}");
        found[0].to_owned()
    };
    assert_eq!(value("REDLATCH_NAME"), "job");
    assert_eq!(value("REDLATCH_HELD"), "1");
    assert_eq!(value("REDLATCH_KIND"), "lock");
    let token: u64 = value("REDLATCH_TOKEN").parse().unwrap();
    assert_eq!(value("REDLATCH_LEASE_MS"), "20000");
    assert_eq!(value("REDLATCH_WHY"), "a test");
    assert!(value("REDLATCH_OWNER").contains(':'));
    assert!(value("REDLATCH_ACQUIRED_AT").ends_with('Z'));
    assert!(!text.contains("hush-hush") && !text.contains("REDLATCH_PASSWORD"), "{text}");
    assert!(!text.contains("REDLATCH_URL="), "it was not there before");

    let output = place.output(["run", "job", "--", "env"]);
    assert!(!both(&output).contains("REDLATCH_TOKEN"), "{output:?}");
    let again = place.output(["run", "job", "--fenced", "--", "sh", "-c", "echo $REDLATCH_TOKEN"]);
    let next: u64 = String::from_utf8(again.stdout).unwrap().trim().parse().unwrap();
    assert!(next > token, "tokens grow: {token}, {next}");
}

#[test]
fn a_nested_run_of_the_same_name_enters_with_the_outer_one() {
    let place = Place::local();
    let nested = "redlatch run job -n -- sh -c 'redlatch show job -o json'";
    let output = place.output(["run", "job", "--", "sh", "-c", nested]);
    assert!(output.status.success(), "{output:?}");
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["holders"][0]["holds"], 2, "{shown}");
    assert_eq!(place.show("job")["kind"], "free", "both holds are given back");

    let through = "redlatch run other -n -- redlatch run job -n -- true";
    assert_eq!(place.code(["run", "job", "--", "sh", "-c", through]), 0);
    assert_eq!(
        place.code(["run", "job", "--", "sh", "-c", "redlatch run job -n --reenter never -- true"]),
        75
    );
}

#[test]
fn a_stale_owner_in_the_environment_opens_nothing() {
    let place = Place::local();
    let holder = place.holder("job", &[]);
    let mut command = place.redlatch(["run", "job", "-n", "--", "true"]);
    command.env("REDLATCH_NAME", "job").env("REDLATCH_OWNER", "1b671a64-40d5-491e-99b0-da01ff1f3341:7");
    assert_eq!(finish(command).status.code(), Some(75));
    place.end("job");
    assert!(holder.finish().status.success());

    let mut command = place.redlatch(["run", "job", "-n", "--", "sh", "-c", "echo $REDLATCH_OWNER"]);
    command.env("REDLATCH_NAME", "job").env("REDLATCH_OWNER", "1b671a64-40d5-491e-99b0-da01ff1f3341:7");
    let output = finish(command);
    assert!(output.status.success() && !both(&output).contains("1b671a64"), "a fresh owner: {output:?}");
}

#[test]
fn the_report_tells_every_outcome_apart() {
    let place = Place::local();
    let report = |arguments: &[&str]| {
        let file = place.path("report");
        let line = [&["run", "job", "--report", file.to_str().unwrap()][..], arguments].concat();
        let code = place.code(&line);
        let report = place.report("report");
        assert_eq!(report["exit_code"], code);
        assert_eq!((&report["schema"], &report["name"]), (&json!(1), &json!("job")));
        report
    };
    let done = report(&["--fenced", "--why", "nightly", "--", "sh", "-c", "exit 75"]);
    assert_eq!(done["outcome"], "completed");
    assert_eq!(done["child"], json!({ "code": 75 }));
    assert_eq!((&done["why"], &done["released"]), (&json!("nightly"), &json!(true)));
    assert!(done["token"].is_u64() && done["owner"].is_string(), "{done}");
    assert!(done["waited_ms"].is_u64() && done["held_ms"].is_u64(), "{done}");
    assert_eq!(report(&["--", "sh", "-c", "kill -9 $$"])["child"], json!({ "signal": 9 }));
    assert_eq!(report(&["--", "sh", "-c", "exit 127"])["outcome"], "completed");
    let missing = report(&["--", "no-such-command-here"]);
    assert_eq!((&missing["outcome"], &missing["child"]), (&json!("not-started"), &json!(null)));
    assert_eq!(report(&["--max-hold", "50ms", "--", "sleep", "20"])["outcome"], "max-hold");

    let holder = place.holder("job", &[]);
    assert_eq!(report(&["-n", "--", "true"])["outcome"], "busy");
    assert_eq!(report(&["--if-busy", "skip", "--", "true"])["outcome"], "skipped");
    place.end("job");
    assert!(holder.finish().status.success());
    let mut command =
        place.redlatch(["run", "job", "--report", "report", "--url", "nonsense:", "--", "true"]);
    command.stderr(Stdio::null());
    assert_eq!(finish(command).status.code(), Some(78));
    assert_eq!(place.report("report")["outcome"], "failed");
}

#[test]
fn nested_runs_side_by_side_share_the_hold_of_the_outer_run() {
    let place = Place::local();
    // Each waits for the other one, which it could not do if they excluded each other.
    let step = |own: &str, other: &str| {
        format!("redlatch run job -c 'touch {own}; until [ -e {other} ]; do sleep 0.02; done; echo {own}'")
    };
    let script = format!("{} & {}; wait", step("one", "two"), step("two", "one"));
    let output = place.output(["run", "job", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let mut done: Vec<_> = output.stdout.split(|byte| *byte == b'\n').collect();
    done.sort();
    assert_eq!(done, [b"".as_slice(), b"one", b"two"], "{output:?}");
}

#[test]
fn a_process_that_has_the_owner_of_a_run_may_end_its_hold() {
    let place = Place::local();
    let mut run = place.holder("job", &[]);
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let mut nested = place.redlatch(["run", "job", "-n", "--", "true"]);
    nested.env("REDLATCH_OWNER", &owner).env("REDLATCH_NAME", "job");
    assert_eq!(finish(nested).status.code(), Some(0));
    assert_eq!(place.code(["unlock", "job", "--owner", &owner]), 0);
    eventually("the run stops its command", || (!run.is_running()).then_some(()));
    assert_eq!(run.finish().status.code(), Some(80));
}

#[test]
fn a_report_goes_through_a_link() {
    let place = Place::local();
    std::fs::write(place.path("target"), "what was there").unwrap();
    std::os::unix::fs::symlink(place.path("target"), place.path("report")).unwrap();
    assert_eq!(place.code(["run", "job", "--report", "report", "--", "true"]), 0);
    let report: serde_json::Value = serde_json::from_str(&place.read("target")).unwrap();
    assert_eq!(report["outcome"], "completed");
    assert!(place.path("report").is_symlink());
}

#[test]
fn a_report_on_a_full_disk_is_told_of_and_changes_nothing_else() {
    let place = Place::local();
    for (script, code) in [("exit 0", 0), ("exit 7", 7)] {
        let output = place.output(["run", "job", "--report", "/dev/full", "-c", script]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(both(&output).contains("cannot write the report: No space left on device"), "{output:?}");
        assert_eq!(place.show("job")["kind"], "free");
    }
}

#[test]
fn a_report_that_the_disk_takes_half_of_is_no_report() {
    let place = Place::local();
    assert_eq!(place.code(["engine", "start"]), 0);
    // A file may have 512 bytes.
    let run = format!("trap '' XFSZ; ulimit -f 1; redlatch run {} --report report -- true", "n".repeat(300));
    let output = finish(place.shell(&run));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(both(&output).contains("cannot write the report: File too large"), "{output:?}");
    assert_eq!(place.read("report"), "");
}

/// The number that the local engine gives its next connection.
fn next_connection(place: &Place) -> u64 {
    let mut stream = UnixStream::connect(place.path("run/default.sock")).unwrap();
    stream.write_all(b"*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.strip_prefix(':').unwrap_or_else(|| panic!("{line}")).trim().parse().unwrap()
}

/// The connection that shows that an engine is there is used: one for all requests, and the lifelines of the run and of its command.
#[test]
fn a_run_comes_to_a_local_engine_three_times() {
    let place = Place::local();
    assert_eq!(place.code(["run", "job", "--", "true"]), 0);
    let before = next_connection(&place);
    assert_eq!(place.code(["run", "job", "--", "true"]), 0);
    assert_eq!(next_connection(&place) - before - 1, 3);
}
