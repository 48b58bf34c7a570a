//! Many runs that start at once while their engine is killed over and over.

use std::{
    fs,
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Over, Place, Running, both, eventually};

const RUNS: usize = 12;

/// The command: it notes its beginning and its end, and whether another one is at work, which the kernel knows even of one that was killed.
/// It goes on until another engine than that of its beginning has served.
const COMMAND: &str = r#"
exec 9> at_work
flock -n 9 || echo "overlap $0" >> log
seen=$(wc -l < engines)
echo "begin $0" >> log
while [ "$(wc -l < engines)" -lt $((seen + 2)) ]; do sleep 0.01; done
echo "end $0" >> log
"#;

/// The process id of the engine that answers now.
fn serving(place: &Place) -> Option<i32> {
    let output = place.output(["engine", "status", "-o", "json"]);
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    i32::try_from(status["pid"].as_i64()?).ok()
}

fn kill(engine: i32) {
    // It may have ended by itself.
    _ = kill_process(Pid::from_raw(engine).unwrap(), Signal::KILL);
}

/// Every engine of this place.
fn engines(place: &Place) -> Vec<String> {
    let dir = place.path("run").display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| {
        let path = process.path();
        let environment = fs::read_to_string(path.join("environ")).ok()?;
        let line = fs::read_to_string(path.join("cmdline")).ok()?.replace('\0', " ");
        let runs = line.contains(" engine run") && (line.contains(&dir) || environment.contains(&dir));
        runs.then(|| format!("{} {line}", process.file_name().display()))
    });
    lines.collect()
}

/// Kills each engine as soon as it is seen to serve. Every second one lives until a command is at work, so that all come to their turn.
fn kill_engines(place: &Place, over: &AtomicBool) -> usize {
    let works = || place.read("log").lines().last().is_some_and(|line| line.starts_with("begin"));
    let mut engines = fs::OpenOptions::new().append(true).open(place.path("engines")).unwrap();
    let mut kills = 0;
    while !over.load(Ordering::Relaxed) {
        if kills % 2 == 1 && !works() {
            thread::sleep(Duration::from_millis(1));
            continue;
        }
        let Some(engine) = serving(place) else { continue };
        writeln!(engines, "{engine}").unwrap();
        kill(engine);
        kills += 1;
    }
    kills
}

#[test]
fn runs_that_start_at_once_while_the_engine_is_killed_over_and_over_exclude_each_other_and_end() {
    let place = Place::local();
    fs::write(place.path("engines"), "").unwrap();
    let over = AtomicBool::new(false);
    let ids: Vec<String> = (0..RUNS).map(|id| id.to_string()).collect();
    let run = |id: &String| {
        let line =
            ["run", "job", "-w", "10m", "--lease", "6s", "--grace", "300ms", "--", "sh", "-c", COMMAND, id];
        place.start(line)
    };
    let (kills, outputs) = thread::scope(|scope| {
        let killer = scope.spawn(|| kill_engines(&place, &over));
        let ends = Over(&over);
        let running: Vec<Running> = ids.iter().map(run).collect();
        let outputs: Vec<_> = running.into_iter().map(Running::finish).collect();
        drop(ends);
        (killer.join().unwrap(), outputs)
    });
    let log = place.read("log");
    let completed = outputs.iter().filter(|output| output.status.success()).count();
    assert!(kills >= completed, "{kills} kills during {completed} commands");
    assert!(!log.contains("overlap"), "{log}");
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        let id = line.strip_prefix("begin ").unwrap_or_else(|| panic!("{line} stands alone: {log}"));
        let ends = lines.next_if_eq(&&*format!("end {id}")).is_some();
        let output = &outputs[id.parse::<usize>().unwrap()];
        assert!(ends || output.status.code() == Some(80), "{id} had no end: {output:?}\n{log}");
    }
    for (id, output) in ids.iter().zip(&outputs) {
        // Its lock may be lost with the engine. It never gets another one's, and waits as long as it was told to.
        assert!(matches!(output.status.code(), Some(0 | 80)), "{id}: {}", both(output));
        let begun = log.matches(&format!("begin {id}\n")).count();
        assert!(begun == 1 || (begun == 0 && !output.status.success()), "{id}: {log}");
    }
    // The last one leaves nothing in the way of the next.
    serving(&place).into_iter().for_each(kill);
    assert_eq!(place.code(["run", "job", "-w", "28s", "--", "true"]), 0);
    eventually("one engine is left", || (engines(&place).len() == 1).then_some(()));
    assert_eq!(place.code(["engine", "stop"]), 0);
    eventually("none is left", || engines(&place).is_empty().then_some(()));
    let left: Vec<_> =
        fs::read_dir(place.path("run")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|file| file == "default.sock"), "{left:?}");
}
