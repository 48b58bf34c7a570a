//! Requests to end while a run waits for a server: before it has the lock, between two tries, and when it gives the lock back.

use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    proxy::{Action, Gate, Match, Proxy},
    server::RedisServer,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    support::{LIMIT, Place, Running, both, eventually},
    tidied::engine,
};

/// The requests to end that scripts and supervisors send, and the code of each.
const REQUESTS: [(Signal, i32); 2] = [(Signal::TERM, 143), (Signal::INT, 130)];

/// A run that would wait for an hour, of a command that leaves a file behind.
fn patient(place: &Place, options: &[&str]) -> std::process::Command {
    let line = [&["run", "job", "--report", "report"], options, &["--", "touch", "ran"]].concat();
    let mut command = place.redlatch(line);
    command.env("REDLATCH_CONNECT_TIMEOUT", "1h");
    command
}

/// It ends by that code, and its command has not run.
fn ends(place: &Place, run: Running, code: i32) {
    let output = run.finish();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert_eq!(place.report("report")["outcome"], "interrupted");
    assert!(!place.path("ran").exists(), "{output:?}");
}

#[test]
fn a_run_that_connects_to_a_server_that_never_answers_ends_by_a_signal() {
    for (signal, code) in REQUESTS {
        let server = FakeServer::start(|_| FakeReply::Silence).unwrap();
        let mut place = Place::local();
        place.set_url(&server.url());
        let run = Running::spawn(patient(&place, &["-w", "1h"]));
        eventually("it asks", || (!server.requests().is_empty()).then_some(()));
        run.signal(signal);
        ends(&place, run, code);
        let scripts = server.count("EVALSHA") + server.count("EVAL");
        assert_eq!(scripts, 0, "it asked for the lock: {:?}", server.requests());
    }
}

#[test]
fn a_run_that_connects_to_an_engine_that_stands_still_ends_by_a_signal() {
    for (signal, code) in REQUESTS {
        let place = Place::local();
        assert_eq!(place.code(["engine", "start"]), 0);
        let engine = Pid::from_raw(engine(&place)).unwrap();
        let path = place.path("run/default.sock").display().to_string();
        // The listener has the name, and so has each connection to it, also one that was not accepted yet.
        let sockets = || {
            let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
            sockets.lines().filter(|line| line.ends_with(&path)).count()
        };
        eventually("earlier commands are disconnected", || (sockets() == 1).then_some(()));
        kill_process(engine, Signal::STOP).unwrap();
        let run = Running::spawn(patient(&place, &["-w", "1h"]));
        eventually("it is connected", || (sockets() > 1).then_some(()));
        run.signal(signal);
        ends(&place, run, code);
        kill_process(engine, Signal::CONT).unwrap();
        assert_eq!(place.show("job")["kind"], "free");
    }
}

#[test]
fn a_run_that_waits_between_two_tries_ends_by_a_signal() {
    for (signal, code) in REQUESTS {
        let server = RedisServer::start().unwrap();
        let place = Place::on(&server);
        server.kill9();
        let mut run = Running::spawn(patient(&place, &["-w", "1h"]));
        run.until_told("waiting for the server");
        run.signal(signal);
        ends(&place, run, code);
        server.restart().unwrap();
        assert!(server.keys_dump().unwrap().is_empty());
    }
}

#[test]
fn a_run_that_waits_between_two_starts_of_an_engine_ends_by_a_signal() {
    for (signal, code) in REQUESTS {
        let place = Place::local();
        let mut command = patient(&place, &["-w", "1h"]);
        command.env("REDLATCH_ENGINE_BIN", "/bin/false");
        let mut run = Running::spawn(command);
        run.until_told("waiting for the server");
        run.signal(signal);
        ends(&place, run, code);
        assert_eq!(place.show("job")["kind"], "free");
    }
}

#[test]
fn a_run_whose_server_ends_during_the_wait_ends_by_a_signal() {
    for (signal, code) in REQUESTS {
        let server = RedisServer::start().unwrap();
        let place = Place::on(&server);
        let taken = place.output(["lock", "job", "--lease", "1h"]);
        assert!(taken.status.success(), "{taken:?}");
        let mut run = Running::spawn(patient(&place, &["-w", "1h"]));
        run.until_told("held by");
        server.kill9();
        run.signal(signal);
        ends(&place, run, code);
        server.restart_empty().unwrap();
        assert!(server.keys_dump().unwrap().is_empty());
    }
}

/// The server has granted it, and the run has not heard so.
#[test]
fn a_run_that_was_granted_the_lock_unheard_ends_by_a_signal_and_gives_it_back() {
    for (signal, code) in REQUESTS {
        let server = RedisServer::start().unwrap();
        let proxy = Proxy::start(&server.url()).unwrap();
        let mut place = Place::local();
        place.set_url(&proxy.url());
        // The server has the scripts from here on.
        assert_eq!(place.code(["run", "other", "--", "true"]), 0);
        // Only what asks for the lock says for how long.
        let held = Match::script().key_contains("job").arg_is("30000");
        let held = proxy.rule(held, Action::HoldReplyUntilReleased(Gate::new()));
        let run = Running::spawn(patient(&place, &["-w", "1h"]));
        proxy.wait_for_blocking(LIMIT, |log| log.fired(held) > 0).unwrap();
        eventually("the grant", || server.keys_dump().unwrap().contains_key(&b"job"[..]).then_some(()));
        run.signal(signal);
        ends(&place, run, code);
        assert!(server.keys_dump().unwrap().is_empty(), "{:?}", server.keys_dump());
    }
}

/// A run whose command has ended with 4 and whose last request to the server is not answered.
fn giving_back(place: &Place, proxy: &Proxy, options: &[&str]) -> Running {
    let script =
        format!("echo $$ > {}; while [ ! -e job.end ]; do sleep 0.02; done; exit 4", place.word("job.pid"));
    let line =
        [&["run", "job", "--lease", "1h", "--report", "report"], options, &["--", "sh", "-c", &script]]
            .concat();
    let run = place.start(line);
    place.pid("job");
    let script = Match::script().key_contains("job");
    let last = proxy.rule(script, Action::DropRequest);
    place.end("job");
    proxy.wait_for_blocking(LIMIT, |log| log.fired(last) > 0).unwrap();
    run
}

/// What the command has done counts, whatever comes after its end.
#[test]
fn a_run_that_gives_the_lock_back_to_a_silent_server_ends_by_a_signal_with_the_code_of_its_command() {
    for (signal, _) in REQUESTS {
        for options in [&[][..], &["--at-least", "2h"]] {
            let server = RedisServer::start().unwrap();
            let proxy = Proxy::start(&server.url()).unwrap();
            let mut place = Place::local();
            place.set_url(&proxy.url());
            let run = giving_back(&place, &proxy, options);
            run.signal(signal);
            let output = run.finish();
            assert_eq!(output.status.code(), Some(4), "{output:?}");
            // Without the signal it waits longer, and says nothing of an end.
            assert!(both(&output).contains("before this run had to end"), "{output:?}");
            let report = place.report("report");
            assert_eq!((&report["outcome"], &report["released"]), (&"completed".into(), &false.into()));
        }
    }
}
