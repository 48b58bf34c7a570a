//! What is looked at before a command starts: that it exists, and that its lock is still held.

use std::{fs, path::PathBuf, process::Command};

use redlatch_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::support::{Place, Running, both, eventually, finish, is_alive};

/// Holds up the step before the command, until the file `HOLD_GO` exists. `HOLD_AT` gets its process id.
const HOLD_UP: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void hold_up(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "__exec") != 0) return;
    FILE *at = fopen(getenv("HOLD_AT"), "w");
    fprintf(at, "%d\n", getpid());
    fclose(at);
    while (access(getenv("HOLD_GO"), F_OK) != 0) usleep(5000);
}
"#;

/// A library that the loader puts into the step.
fn hold_up(place: &Place) -> Option<PathBuf> {
    let (source, library) = (place.path("hold_up.c"), place.path("hold_up.so"));
    fs::write(&source, HOLD_UP).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("not checked: nothing here builds a library in C");
        return None;
    }
    Some(library)
}

#[test]
fn a_command_does_not_start_when_its_run_stood_still_until_the_lease_was_over() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let Some(library) = hold_up(&place) else { return };
    let ran = place.path("ran");
    let mut run = place.redlatch(["run", "job", "--lease", "600ms", "--report", "report", "--"]);
    run.arg("touch").arg(&ran).env("LD_PRELOAD", library);
    run.env("HOLD_AT", place.path("step.pid")).env("HOLD_GO", place.path("step.go"));
    let run = Running::spawn(run);
    let step = place.pid("step");
    run.signal(Signal::STOP);
    assert_eq!(place.code(["run", "job", "-w", "28s", "--", "true"]), 0, "the next holder has it");
    fs::write(place.path("step.go"), "").unwrap();
    eventually("the step ends", || (!is_alive(step)).then_some(()));
    assert!(!ran.exists(), "the command ran without the lock");
    run.signal(Signal::CONT);
    let output = run.finish();
    assert_eq!(output.status.code(), Some(80), "{output:?}");
    assert!(both(&output).contains("the lock is lost"), "{output:?}");
    assert_eq!(place.report("report")["outcome"], "lost");
}

#[test]
fn a_step_whose_lease_is_over_says_so_by_its_code_and_starts_nothing() {
    let place = Place::local();
    let ran = place.path("ran");
    let step = |deadline_us: &str| {
        // The step goes on only under the process that it is told of.
        let mut step = Command::new(env!("CARGO_BIN_EXE_redlatch"));
        step.args(["__exec", &std::process::id().to_string(), "+", deadline_us, "touch"]).arg(&ran);
        finish(step).status.code()
    };
    assert_eq!((step("1"), ran.exists()), (Some(80), false));
    assert_eq!((step("none"), ran.exists()), (Some(125), false), "no deadline is no leave to start");
    assert_eq!((step(&u64::MAX.to_string()), ran.exists()), (Some(0), true));
}

#[test]
fn a_command_that_cannot_run_waits_for_no_lock_and_takes_none() {
    let place = Place::local();
    let holder = place.holder("job", &[]);
    let plain = place.path("plain");
    fs::write(&plain, "text").unwrap();
    let plain = plain.to_str().unwrap();
    for (command, code) in
        [("no-such-command-here", 127), ("/no/such/command", 127), (plain, 126), ("/", 126)]
    {
        let refused = place.output(["run", "job", "--report", "report", "--", command]);
        assert_eq!(refused.status.code(), Some(code), "{refused:?}");
        assert!(both(&refused).contains(&format!("cannot run \"{command}\"")), "{refused:?}");
        let report = place.report("report");
        assert_eq!((&report["outcome"], &report["owner"]), (&"not-started".into(), &().into()));
    }
    place.end("job");
    assert!(holder.finish().status.success());
}

#[test]
fn a_program_is_looked_for_as_the_system_does_it() {
    let place = Place::local();
    let (first, second) = (place.path("first"), place.path("second"));
    fs::create_dir(&first).unwrap();
    fs::create_dir(&second).unwrap();
    // What may not be run does not hide what may, and neither does a directory.
    fs::write(first.join("job"), "text").unwrap();
    fs::create_dir(first.join("other")).unwrap();
    place.copy_program("/bin/true", "second/job");
    place.copy_program("/bin/true", "second/other");
    for command in ["job", "other", "./second/job"] {
        let mut run = place.redlatch(["run", "x", "--", command]);
        let path = std::env::var("PATH").unwrap();
        run.env("PATH", format!("{}:{}:{path}", first.display(), second.display()));
        let output = finish(run);
        assert_eq!(output.status.code(), Some(0), "{command}: {output:?}");
    }
    let mut shell = place.shell("unset PATH; exec \"$PROGRAM\" run x -- true");
    shell.env("PROGRAM", env!("CARGO_BIN_EXE_redlatch"));
    assert_eq!(finish(shell).status.code(), Some(0), "the system's own path counts");
}
