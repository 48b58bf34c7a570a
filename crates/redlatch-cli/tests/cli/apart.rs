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
