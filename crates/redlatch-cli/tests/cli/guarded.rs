//! The guard of a run, which has to outlive what is sent to it.

use std::{fs, process::Command};

use redlatch_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::support::{Place, eventually, is_alive};

/// What ends a program that does nothing about it, but for KILL and what a fault of the program raises.
const ENDING: [&str; 14] = [
    "HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "PIPE", "IO", "XCPU", "RTMIN",
    "RTMAX",
];
/// What stops one.
const STOPPING: [&str; 3] = ["TSTP", "TTIN", "TTOU"];

/// The guard that a run has started.
pub(crate) fn guard_of(run: i32) -> i32 {
    eventually("the guard starts", || {
        let stats = fs::read_dir("/proc").unwrap().flatten();
        let mut stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        stats.find_map(|stat| {
            let (name, rest) = stat.rsplit_once(')')?;
            let parent = rest.split_ascii_whitespace().nth(1)?;
            let (pid, name) = name.split_once(" (")?;
            (name == "redlatch:guard" && parent == run.to_string()).then(|| pid.parse().ok())?
        })
    })
}

/// The number of a signal, as the shell knows it.
fn number(signal: &str) -> u32 {
    let told = Command::new("bash").args(["-c", &format!("kill -l {signal}")]).output().unwrap();
    String::from_utf8(told.stdout).unwrap().trim().parse().unwrap()
}

/// The signals that a process catches or ignores, a bit each.
fn heeded(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let sets = status.lines().filter_map(|line| {
        let (name, set) = line.split_once(':')?;
        matches!(name, "SigCgt" | "SigIgn").then(|| u64::from_str_radix(set.trim(), 16).ok())?
    });
    sets.fold(0, |all, set| all | set)
}

#[test]
fn a_guard_outlives_every_signal_that_a_program_can_catch() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let script = format!(
        "sh -c \"trap '' HUP TERM; echo \\$\\$ > {file}; while [ -e {file} ]; do sleep 0.05; done\" & wait",
        file = place.path("grandchild.pid").display()
    );
    let run = place.start(["run", "job", "--", "sh", "-c", &script]);
    let grandchild = place.pid("grandchild");
    let guard = guard_of(run.pid());
    for signal in ENDING.iter().chain(&STOPPING) {
        let number = number(signal);
        eventually(&format!("the guard is ready for {signal}"), || {
            (heeded(guard) >> (number - 1) & 1 == 1).then_some(())
        });
        let sent = Command::new("bash").args(["-c", &format!("kill -{number} {guard}")]).status().unwrap();
        assert!(sent.success(), "{signal}");
    }
    assert!(is_alive(guard));
    run.signal(Signal::KILL);
    eventually("what the command started ends", || (!is_alive(grandchild)).then_some(()));
}
