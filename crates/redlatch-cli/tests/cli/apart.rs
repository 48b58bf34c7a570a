//! An engine that starts by itself has nothing of the process that happened to start it.

use std::{fs, process::Stdio};

use crate::support::{Place, both, finish};

/// The process of the engine.
fn engine_pid(place: &Place) -> String {
    let output = place.output(["engine", "status", "-o", "json"]);
    let status: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", both(&output)));
    status["pid"].to_string()
}

#[test]
fn a_pipeline_ends_though_the_engine_goes_on() {
    let place = Place::local();
    // Until the mend the engine kept descriptor 3, and `cat` waited for its end.
    let mut shell = place.shell("(redlatch run x -- true 3>&1) | cat; echo over");
    shell.stdin(Stdio::null());
    let output = finish(shell);
    assert!(String::from_utf8_lossy(&output.stdout).contains("over"), "{}", both(&output));
}

#[test]
fn a_file_lock_of_the_starter_ends_with_the_starter() {
    let place = Place::local();
    let file = place.word("f");
    let script = format!("exec 9>{file}; flock 9; redlatch run x -- true; exec 9>&-; flock -n {file} true");
    let output = finish(place.shell(&script));
    assert!(output.status.success(), "{}", both(&output));
}

#[test]
fn it_keeps_neither_secrets_nor_limits_nor_the_mask() {
    let place = Place::local();
    let mut shell = place.shell("ulimit -S -f 64; ulimit -S -t 600; umask 000; redlatch run x -- true");
    shell.env("DATABASE_PASSWORD", "hunter2");
    let output = finish(shell);
    assert!(output.status.success(), "{}", both(&output));
    let pid = engine_pid(&place);
    let proc = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap();
    assert!(!String::from_utf8_lossy(&proc("environ")).contains("hunter2"));
    let status = String::from_utf8(proc("status")).unwrap();
    assert!(status.contains("Umask:\t0077"), "{status}");
    let limits = String::from_utf8(proc("limits")).unwrap();
    for name in ["Max cpu time", "Max file size"] {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(line.split_whitespace().nth(3), Some("unlimited"), "{line}");
    }
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));
}

#[test]
fn it_keeps_neither_ignored_nor_blocked_signals_nor_niceness() {
    let place = Place::local();
    // Without rights the system refuses to make a process more urgent; then the niceness of the starter stays.
    let blocks = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); os.execvp('redlatch', ['redlatch', 'run', 'x', '--', 'true'])";
    let script = format!(
        "trap '' HUP QUIT USR1 CHLD; renice -n 5 -p $$ >&2; python3 -c \"{blocks}\"; renice -n 0 -p $$ >&2 && echo may"
    );
    let output = finish(place.shell(&script));
    let niceness = if output.stdout == b"may\n" { "0" } else { "5" };
    let pid = engine_pid(&place);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
    assert_eq!(u64::from_str_radix(blocked, 16).unwrap(), 0, "{status}");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    // The standard signals; the C library has its own use for the first two real-time ones. Rust ignores PIPE.
    let ignored = u64::from_str_radix(ignored, 16).unwrap() & 0x7fff_ffff;
    assert_eq!(ignored, 1 << (rustix::process::Signal::PIPE.as_raw() - 1), "{status}");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // Fields are counted behind the name, which is in brackets and may contain blanks.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!(fields[16], niceness, "{}", both(&output));
    assert_eq!((fields[3], fields[4]), (pid.as_str(), "0"), "a session of its own, without a terminal");
}
