//! What a local engine writes into its log: a few lines about its own life, however much is locked.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    support::{Place, both, eventually, finish, is_alive},
    tidied::engine,
};

const LOCKS: usize = 15;

fn lines(place: &Place) -> Vec<String> {
    place.read("run/default.log").lines().map(str::to_owned).collect()
}

/// Every sort of thing that a client does: locks of each kind, a busy one, a wait in vain, a client that is killed.
fn much_is_locked(place: &Place) {
    for at in 0..LOCKS {
        let name = format!("secret-{at}");
        let kind = [&["--fair"][..], &["--shared"], &["-x"], &["--permits", "2"], &["--fenced"]][at % 5];
        let line = [&["run", &name], kind, &["--", "true"]].concat();
        assert_eq!(place.code(line), 0);
    }
    let taken = place.output(["lock", "secret-held", "--lease", "1h"]);
    assert!(taken.status.success(), "{taken:?}");
    assert_eq!(place.code(["run", "-n", "secret-held", "--", "true"]), 75);
    assert_eq!(place.code(["run", "-w", "100ms", "secret-held", "--", "true"]), 75);
    let killed = place.holder("secret-killed", &[]);
    killed.signal(Signal::KILL);
    assert_eq!(place.code(["run", "-w", "28s", "secret-killed", "--", "true"]), 0);
}

fn is_told(lines: &[String], told: &[&str]) {
    assert_eq!(lines.len(), told.len(), "{lines:#?}");
    for (line, told) in lines.iter().zip(told) {
        assert!(line.contains(told) && line.len() < 200 && !line.contains("secret"), "{told}: {line}");
    }
}

#[test]
fn the_log_of_an_engine_has_a_line_for_each_start_end_and_recovery_and_none_for_a_lock() {
    let place = Place::local();
    much_is_locked(&place);
    let mut told = vec!["the engine serves"];
    is_told(&lines(&place), &told);
    assert_eq!(place.code(["engine", "stop", "--force"]), 0);
    told.push("the engine has ended reason=Shutdown");
    is_told(&lines(&place), &told);
    // A clean end is nothing to recover from.
    assert_eq!(place.code(["run", "-n", "secret-held", "--", "true"]), 75);
    told.push("the engine serves");
    is_told(&lines(&place), &told);
    let pid = engine(&place);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("it ends", || (!is_alive(pid)).then_some(()));
    assert_eq!(place.code(["run", "-n", "secret-held", "--", "true"]), 75);
    told.extend(["the last engine did not come to its end; its journal has been read", "the engine serves"]);
    is_told(&lines(&place), &told);
    kill_process(Pid::from_raw(engine(&place)).unwrap(), Signal::TERM).unwrap();
    told.push("the engine has ended reason=Signal");
    eventually("it says that it ends", || (lines(&place).len() == told.len()).then_some(()));
    is_told(&lines(&place), &told);
    let shown = place.output(["engine", "logs"]);
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), place.read("run/default.log"));
}

#[test]
fn a_long_log_is_set_aside_by_the_next_start() {
    let place = Place::local();
    assert_eq!(place.code(["engine", "start"]), 0);
    assert_eq!(place.code(["engine", "stop"]), 0);
    for mark in ["a\n", "b\n"] {
        fs::write(place.path("run/default.log"), mark.repeat(600_000)).unwrap();
        assert_eq!(place.code(["engine", "start"]), 0);
        is_told(&lines(&place), &["the engine serves"]);
        assert!(place.read("run/default.log.old").starts_with(mark));
        assert_eq!(place.code(["engine", "stop"]), 0);
    }
}

#[test]
fn an_engine_that_dies_without_a_word_is_not_told_with_the_words_of_another() {
    let place = Place::local();
    assert_eq!(place.code(["engine", "start"]), 0);
    assert_eq!(place.code(["engine", "stop"]), 0);
    let mut run = place.redlatch(["run", "job", "-n", "--", "true"]);
    run.env("REDLATCH_ENGINE_BIN", "/bin/false");
    let output = finish(run);
    assert!(both(&output).contains("default.log ends with: nothing"), "{output:?}");
}
