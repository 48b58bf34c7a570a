//! What a run leaves that is killed, on the local engine: nothing once its last process is gone, and the hold before.

use std::process::Command;

use redlatch_testkit::server::RedisServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Place, eventually, is_alive};

/// A lease that no test outlives: what is free before it ends was freed.
const LONG: &str = "10m";

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// A run of `job` whose command has started a process in a session of its own, which goes on without it.
fn run_with_a_leaver(place: &Place) -> (crate::support::Running, i32) {
    let script = format!(
        "setsid sh -c 'echo $$ > {}; exec sleep 300' > /dev/null 2>&1 & echo $$ > {}; wait",
        place.word("leaver.pid"),
        place.word("job.pid")
    );
    let run = place.start(["run", "job", "--lease", LONG, "--", "sh", "-c", &script]);
    (run, place.pid("leaver"))
}

#[test]
fn a_killed_run_frees_its_lock_when_its_command_is_gone() {
    let place = Place::local();
    for kind in [&["job"][..], &["job", "--fair"], &["job", "--shared"], &["job", "-x"], &["job", "--fenced"]]
    {
        let script = format!("echo $$ > {}; exec sleep 300", place.word("command.pid"));
        _ = std::fs::remove_file(place.path("command.pid"));
        let words = [&["run"], kind, &["--lease", LONG, "--", "sh", "-c", &script]].concat();
        let run = place.start(words);
        let command = place.pid("command");
        run.signal(Signal::KILL);
        // A reader would not have to wait for a reader.
        let kind = if kind.contains(&"--shared") { &["job", "-x"] } else { kind };
        let next = [&["run"], kind, &["-w", "28s", "--", "true"]].concat();
        assert_eq!(place.code(next), 0, "{kind:?}");
        assert!(!is_alive(command), "the command of {kind:?} was alive beside the next holder");
        drop(run);
    }
}

#[test]
fn a_process_that_outlives_a_killed_run_keeps_the_lock_and_is_named() {
    let place = Place::local();
    let (run, leaver) = run_with_a_leaver(&place);
    let command = place.pid("job");
    run.signal(Signal::KILL);
    eventually("the command ends with its run", || (!is_alive(command)).then_some(()));
    let named = eventually("show says that the run is gone", || {
        let state = place.show("job");
        let left = state["holders"][0]["workers"].as_array()?.clone();
        (left.len() == 1 && left[0]["run_is_gone"] == true).then_some((left[0].clone(), state))
    });
    assert_eq!(named.0["pid"], leaver, "{named:?}");
    assert!(named.1["findings"].to_string().contains(&format!("sleep (pid {leaver})")), "{named:?}");
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "it is held");
    assert!(is_alive(leaver));
    let next = place.start(["run", "job", "-w", "28s", "--", "true"]);
    kill(leaver);
    assert_eq!(next.finish().status.code(), Some(0));
}

#[test]
fn what_outlives_a_killed_run_keeps_the_lock_beyond_its_lease() {
    keeps_beyond_its_lease(&[]);
}

#[test]
fn what_outlives_a_killed_run_keeps_the_permit_beyond_its_lease() {
    keeps_beyond_its_lease(&["--permits", "1"]);
}

fn keeps_beyond_its_lease(kind: &[&str]) {
    let place = Place::local();
    let script = format!(
        "setsid sh -c 'echo $$ > {}; exec sleep 300' > /dev/null 2>&1 & wait",
        place.word("leaver.pid")
    );
    let run = |options: &[&str], command: &[&str]| {
        [&["run", "job"], kind, options, &["--"], command].concat().join("\n")
    };
    let start = run(&["--lease", "600ms", "--grace", "100ms"], &["sh", "-c", &script]);
    let first = place.start(start.split('\n'));
    let leaver = place.pid("leaver");
    first.signal(Signal::KILL);
    drop(first);
    let code = |wait| place.code(run(&["-w", wait], &["true"]).split('\n'));
    // Twice as long as the lease: a wait that finds it held all the time.
    assert_eq!(code("1200ms"), 75, "it is held");
    assert!(is_alive(leaver));
    kill(leaver);
    assert_eq!(code("28s"), 0);
}

#[test]
fn what_outlives_a_killed_run_keeps_the_lock_while_the_engine_stands_still() {
    keeps_while_the_engine_stands_still(&[]);
}

#[test]
fn what_outlives_a_killed_run_keeps_the_permit_while_the_engine_stands_still() {
    keeps_while_the_engine_stands_still(&["--permits", "1"]);
}

fn keeps_while_the_engine_stands_still(kind: &[&str]) {
    const LEASE_MS: u64 = 600;
    let place = Place::local();
    let run = |options: &[&str], command: &[&str]| {
        [&["run", "job"], kind, options, &["--"], command]
            .concat()
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    let script = format!(
        "setsid sh -c 'echo $$ > {}; exec sleep 300' > /dev/null 2>&1 & wait",
        place.word("leaver.pid")
    );
    let lease = format!("{LEASE_MS}ms");
    let first = place.start(run(&["--lease", &lease, "--grace", "100ms"], &["sh", "-c", &script]));
    let leaver = place.pid("leaver");
    let status = place.output(["engine", "status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let engine = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
    let tell = |signal| kill_process(Pid::from_raw(engine).unwrap(), signal).unwrap();
    tell(Signal::STOP);
    eventually("the engine stands still", || {
        let stat = std::fs::read_to_string(format!("/proc/{engine}/stat")).ok()?;
        stat.rsplit_once(')')?.1.trim_start().starts_with('T').then_some(())
    });
    first.signal(Signal::KILL);
    drop(first);
    // It is the time that passes: the lease ends while nobody can see that the run has died.
    std::thread::sleep(std::time::Duration::from_millis(2 * LEASE_MS));
    let next = place.start(run(&["-n"], &["true"]));
    tell(Signal::CONT);
    assert_eq!(next.finish().status.code(), Some(75), "it was granted beside the process that was left");
    assert!(is_alive(leaver));
    kill(leaver);
    assert_eq!(place.code(run(&["-w", "28s"], &["true"])), 0);
}

#[test]
fn a_run_that_ends_in_order_leaves_its_lock_to_the_next_even_if_something_goes_on() {
    let place = Place::local();
    let script = format!(
        "setsid sh -c 'echo $$ > {}; exec sleep 300' > /dev/null 2>&1 & while [ ! -s {} ]; do sleep 0.02; done",
        place.word("leaver.pid"),
        place.word("leaver.pid")
    );
    assert_eq!(place.code(["run", "job", "--", "sh", "-c", &script]), 0);
    let leaver = place.pid("leaver");
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 0);
    // The next holder's lock has nothing to do with the end of what the first one left.
    let holder = place.holder("job", &["--lease", LONG]);
    kill(leaver);
    eventually("it ends", || (!is_alive(leaver)).then_some(()));
    assert_eq!(place.code(["run", "job", "-w", "100ms", "--", "true"]), 75);
    place.end("job");
    assert_eq!(holder.finish().status.code(), Some(0));
}

#[test]
fn a_lock_that_a_verb_took_stays_when_the_verb_has_ended() {
    let place = Place::local();
    let taken = place.output(["lock", "job", "--lease", LONG, "-o", "json"]);
    assert!(taken.status.success(), "{taken:?}");
    let owner: serde_json::Value = serde_json::from_slice(&taken.stdout).unwrap();
    let owner = owner["owner"].as_str().unwrap();
    assert_eq!(place.code(["run", "job", "-w", "100ms", "--", "true"]), 75);
    assert_eq!(place.code(["unlock", "job", "--owner", owner]), 0);
    // And so does one that a run was to keep for a while.
    assert_eq!(place.code(["run", "job", "--at-least", "10m", "--", "true"]), 0);
    assert_eq!(place.code(["run", "job", "-w", "100ms", "--", "true"]), 75);
}

#[test]
fn an_engine_that_is_killed_in_between_frees_nothing_of_the_living() {
    let place = Place::local();
    let holder = place.holder("job", &["--lease", "6s", "--grace", "300ms"]);
    let status = place.output(["engine", "status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    kill(i32::try_from(status["pid"].as_i64().unwrap()).unwrap());
    assert_eq!(place.code(["run", "job", "-w", "100ms", "--", "true"]), 75, "the next engine has it");
    // The command's end of the first engine's lifeline means nothing to the second.
    place.renewed("job", 1);
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    holder.signal(Signal::KILL);
    let next = place.output(["run", "job", "-w", "28s", "--", "echo", "mine"]);
    assert_eq!(next.stdout, b"mine\n", "the lease of {owner} ends it: {next:?}");
}

#[test]
fn on_redis_the_lease_decides_and_the_command_dies_with_its_run() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let (run, leaver) = run_with_a_leaver(&place);
    let command = place.pid("job");
    run.signal(Signal::KILL);
    eventually("the command ends with its run", || (!is_alive(command)).then_some(()));
    assert_eq!(place.code(["run", "job", "-w", "300ms", "--", "true"]), 75);
    kill(leaver);
    eventually("what had left the group ends", || (!is_alive(leaver)).then_some(()));
    assert_eq!(place.code(["run", "job", "-w", "300ms", "--", "true"]), 75);
    let state = place.show("job");
    assert!(state["holders"][0]["workers"].is_null(), "it might be on another machine: {state}");
}

#[test]
fn nothing_but_the_command_inherits_the_end_of_a_run() {
    let place = Place::local();
    // The engine is started by this very run, and would keep the lock for ever if it had it open.
    let run = place.start(["run", "job", "--lease", LONG, "--", "sleep", "300"]);
    eventually("it holds", || (place.show("job")["holders"].as_array()?.len() == 1).then_some(()));
    run.signal(Signal::KILL);
    assert_eq!(place.code(["run", "job", "-w", "28s", "--", "true"]), 0);
    let left = Command::new("true").status().unwrap();
    assert!(left.success());
}
