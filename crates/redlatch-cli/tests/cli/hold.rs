//! What ends a hold: a crash, a loss, a limit, and the last process of the group.

use std::time::{Duration, Instant};

use redlatch_testkit::{server::RedisServer, stall::awake_since};
use rustix::process::Signal;

use crate::support::{GRACE, LEASE, Place, both, eventually, is_alive};

/// A killed holder frees the lock within its lease, and its command does not outlive it.
fn crash(place: &Place) {
    let first = place.holder("job", &["--lease", LEASE, "--grace", GRACE]);
    let command = place.pid("job");
    assert!(is_alive(command));
    first.signal(Signal::KILL);
    let second = place.output(["run", "job", "-w", "28s", "--", "echo", "mine"]);
    assert_eq!(
        (second.status.code(), second.stdout.as_slice()),
        (Some(0), b"mine\n".as_slice()),
        "{second:?}"
    );
    eventually("the command of the killed run ends", || (!is_alive(command)).then_some(()));
}

#[test]
fn a_killed_run_lets_the_next_one_in_on_the_local_engine() {
    crash(&Place::local());
}

#[test]
fn a_killed_run_lets_the_next_one_in_on_redis() {
    let server = RedisServer::start().unwrap();
    crash(&Place::on(&server));
}

#[test]
fn a_forced_unlock_stops_the_command() {
    let place = Place::local();
    let holder = place.holder("job", &["--lease", LEASE, "--grace", GRACE, "--report", "report"]);
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let other = "1b671a64-40d5-491e-99b0-da01ff1f3341:7";
    let wrong = place.output(["force-unlock", "job", "--owner", other, "--reason", "test", "--yes"]);
    assert_eq!(wrong.status.code(), Some(80), "{wrong:?}");
    assert_eq!(
        place.show("job")["holders"][0]["owner"],
        owner.as_str(),
        "another owner's lock is left alone"
    );
    let forced =
        ["force-unlock", "job", "--owner", &owner, "--by", "anna", "--reason", "te\u{1b}st", "--yes"];
    let forced = place.output(forced);
    assert_eq!(forced.status.code(), Some(0), "{forced:?}");
    assert!(both(&forced).contains("te\\x1bst"), "{forced:?}");
    let output = holder.finish();
    assert_eq!(output.status.code(), Some(80), "{output:?}");
    assert!(both(&output).contains("lost"), "{output:?}");
    // Who did it and why, without what could rewrite a screen.
    assert!(both(&output).contains("forced free by anna") && both(&output).contains("st"), "{output:?}");
    assert!(!both(&output).contains('\u{1b}'), "{output:?}");
    assert_eq!(place.report("report")["outcome"], "lost");
    assert!(!is_alive(place.pid("job")));
}

#[test]
fn a_deleted_key_stops_the_command() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let holder = place.holder("job", &["--lease", LEASE, "--grace", GRACE]);
    server.cmd(&["DEL", "job"]).unwrap();
    assert_eq!(holder.finish().status.code(), Some(80));
    assert!(!is_alive(place.pid("job")));
}

#[test]
fn a_dead_server_stops_the_command_before_the_lease_ends() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let script = format!(
        "trap 'echo TERM >> {}' TERM; echo $$ > {}; while :; do sleep 0.02; done",
        place.word("log"),
        place.word("job.pid")
    );
    let holder = place.start(["run", "job", "--lease", "9s", "--grace", "3s", "--", "sh", "-c", &script]);
    let command = place.pid("job");
    server.kill9();
    let since = Instant::now();
    eventually("the command that ignores TERM is killed", || (!is_alive(command)).then_some(()));
    let (lasted, awake) = (since.elapsed(), awake_since(since));
    assert_eq!(place.read("log"), "TERM\n", "it was asked first, while the lease had time left");
    // The lease goes on while the machine pauses, so nobody can be killed before its end by a machine that does.
    assert!(awake < Duration::from_secs(9), "the lease of 9 s was over first: {awake:?}");
    assert!(
        lasted > Duration::from_secs(5),
        "renewals come every third, so most of the lease was left: {lasted:?}"
    );
    assert_eq!(holder.finish().status.code(), Some(80));
}

#[test]
fn a_loss_can_be_a_mere_warning() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let mut holder = place.holder("job", &["--lease", "600ms", "--on-lost", "warn", "--report", "report"]);
    server.cmd(&["DEL", "job"]).unwrap();
    // Another run gets the lock, and ours still goes on.
    assert_eq!(place.code(["run", "job", "-w", "28s", "--", "sleep", "0.7"]), 0);
    assert!(holder.is_running());
    place.end("job");
    let output = holder.finish();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(both(&output).contains("--on-lost warn"), "{output:?}");
    assert_eq!(place.report("report")["outcome"], "lost");
}

#[test]
fn max_hold_ends_even_a_command_that_ignores_term() {
    let place = Place::local();
    let script = "trap '' TERM; while :; do sleep 0.02; done";
    let arguments = ["run", "job", "--max-hold", "100ms", "--kill-after", "100ms", "--", "sh", "-c", script];
    assert_eq!(place.code(arguments), 124);
    assert_eq!(place.show("job")["kind"], "free");
}

#[test]
fn renewal_keeps_others_out_for_many_leases() {
    let place = Place::local();
    let holder = place.holder("job", &["--lease", LEASE, "--grace", GRACE]);
    // The fourth comes when the first lease is over.
    place.renewed("job", 4);
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75);
    place.end("job");
    assert!(holder.finish().status.success());
}

#[test]
fn at_least_keeps_the_lock_after_a_short_command() {
    let place = Place::local();
    assert_eq!(place.code(["run", "job", "--at-least", "60s", "--", "true"]), 0);
    let ttl_ms = place.show("job")["ttl_ms"].as_u64().unwrap();
    assert!((30_001..=60_000).contains(&ttl_ms), "the rest of the 60 s, not a lease of 30 s: {ttl_ms}");
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75);
}

#[test]
fn at_least_keeps_the_lock_no_longer_than_it_says() {
    let place = Place::local();
    for (name, options) in [
        ("plain", &[][..]),
        ("fair", &["--fair"][..]),
        ("read", &["--shared"][..]),
        ("write", &["--exclusive"][..]),
        ("permit", &["--permits", "1"][..]),
        ("fenced", &["--fenced"][..]),
    ] {
        let line = [&["run", name, "--at-least", "9s"], options, &["--", "true"]].concat();
        assert_eq!(place.code(&line), 0, "{name}");
        let state = place.show(name);
        let permit = state["permits"][0]["ttl_ms"].as_u64();
        let ttl_ms = permit.or(state["ttl_ms"].as_u64()).unwrap_or_else(|| panic!("{state}"));
        assert!(ttl_ms <= 9_000, "the rest of the 9 s, not of a lease of 30 s: {state}");
        let line = [&["run", name, "-n"], options, &["--", "true"]].concat();
        assert_eq!(place.code(&line), if name == "read" { 0 } else { 75 }, "{name}");
    }
    assert_eq!(place.code(["run", "a", "b", "--at-least", "9s", "--", "true"]), 0);
    for name in ["a", "b"] {
        assert!(place.show(name)["ttl_ms"].as_u64().unwrap() <= 9_000, "{name}");
    }
}

#[test]
fn the_lock_stays_until_the_last_of_the_group_is_gone() {
    let place = Place::local();
    let script = format!(
        "(echo $$ > {pid}; while [ ! -e {end} ]; do sleep 0.02; done; echo late >> {log}) & exit 4",
        pid = place.word("job.pid"),
        end = place.word("job.end"),
        log = place.word("log")
    );
    let mut run = place.start(["run", "job", "--", "sh", "-c", &script]);
    place.pid("job");
    assert_eq!(
        place.code(["run", "job", "-w", "300ms", "--", "true"]),
        75,
        "the background process works under the lock"
    );
    assert!(run.is_running());
    place.end("job");
    assert_eq!(run.finish().status.code(), Some(4));
    assert_eq!(place.read("log"), "late\n");
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 0);
}
