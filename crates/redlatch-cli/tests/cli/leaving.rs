//! Processes that the command leaves behind: those that move away, those that nobody collects, and those of a killed run.

use std::{
    fs,
    io::Write,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, Stdio},
};

use redlatch_testkit::server::RedisServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Place, Running, eventually, is_alive, on_a_terminal};

/// Ends a process that a test has let go on purpose.
fn end(pid: i32) {
    _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

/// The children of this process, each with the letter of its state.
fn children_of(parent: i32) -> Vec<(i32, char)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let children = stats.filter_map(|stat| {
        let (named, rest) = stat.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let (state, of) = (fields.next()?.chars().next()?, fields.next()?);
        (of == parent.to_string()).then_some((named.split(' ').next()?.parse().ok()?, state))
    });
    children.collect()
}

/// How many children of this process have ended and wait to be collected.
fn zombies_of(parent: i32) -> usize {
    children_of(parent).iter().filter(|(_, state)| *state == 'Z').count()
}

#[test]
fn a_process_that_moves_to_another_session_is_not_waited_for() {
    let place = Place::local();
    // It leaves the group when the run waits for it already.
    let mover = format!(
        "echo $$ > {}; while [ ! -e {} ]; do sleep 0.02; done; exec setsid sleep 600",
        place.path("job.pid").display(),
        place.path("go").display()
    );
    let script = format!("sh -c '{mover}' > /dev/null 2>&1 & exit 4");
    let mut run = place.start(["run", "job", "--", "sh", "-c", &script]);
    let mover = place.pid("job");
    run.until_told("others of its process group");
    fs::write(place.path("go"), "").unwrap();
    let output = run.finish();
    assert!(is_alive(mover), "it was to go on");
    end(mover);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert_eq!(place.show("job")["kind"], "free");
}

#[test]
fn a_zombie_whose_parent_has_moved_away_is_not_waited_for() {
    let place = Place::local();
    // The child of the one who moved stays in the group, and its parent never collects it.
    let pid = place.path("job.pid");
    let mover = format!("echo $$ > {}; sleep 0.2 & exec setsid sleep 600", pid.display());
    let script = format!("sh -c '{mover}' > /dev/null 2>&1 & exit 4");
    let run = place.start(["run", "job", "--", "sh", "-c", &script]);
    let mover = place.pid("job");
    let output = run.finish();
    end(mover);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

/// Leaves 20 processes to the one who adopts them, and goes on until it is told to end.
fn with_orphans(place: &Place) -> String {
    format!(
        "for i in 1 2 3 4 5 6 7 8 9 10; do setsid -f true; (true &); done; echo $$ > {}; while [ ! -e {} ]; do sleep 0.02; done",
        place.word("job.pid"),
        place.word("job.end")
    )
}

#[test]
fn adopted_processes_are_collected_wherever_they_ended() {
    let place = Place::local();
    let run = place.start(["run", "job", "--", "sh", "-c", &with_orphans(&place)]);
    place.pid("job");
    eventually("all are collected", || (zombies_of(run.pid()) == 0).then_some(()));
    place.end("job");
    assert_eq!(run.finish().status.code(), Some(0));
}

/// As the first process of a container it adopts all that lose their parents there.
#[test]
fn adopted_processes_are_collected_by_the_first_process_of_a_container() {
    let is_allowed = |how: &&&str| {
        let asked =
            Command::new("unshare").args([how, "--mount-proc", "true"]).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    // Where a system lets nobody make containers there is none to try.
    let Some(how) = ["-pf", "-rpf"].iter().find(is_allowed) else { return };
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    fs::write(place.path("job.sh"), with_orphans(&place)).unwrap();
    let script = format!(
        "exec unshare {how} --mount-proc --kill-child redlatch run job -- sh {}",
        place.path("job.sh").display()
    );
    let container = Running::spawn(place.shell(&script));
    assert!(place.pid("job") < 40, "processes are counted anew there");
    let first = children_of(container.pid())[0].0;
    assert!(!children_of(first).is_empty());
    eventually("all are collected", || (zombies_of(first) == 0).then_some(()));
    place.end("job");
    assert_eq!(container.finish().status.code(), Some(0));
}

/// The command, and what it started, in the places that a killed run leaves behind.
fn killed(place: &Place, run: &Running, pid_of_run: i32) {
    let grandchild = place.pid("grandchild");
    let command = place.pid("job");
    assert!(is_alive(command) && is_alive(grandchild) && is_alive(run.pid()));
    kill_process(Pid::from_raw(pid_of_run).unwrap(), Signal::KILL).unwrap();
    eventually("the command ends", || (!is_alive(command)).then_some(()));
    eventually("what it started ends", || (!is_alive(grandchild)).then_some(()));
}

/// A command whose child ignores everything that can be ignored.
fn with_a_grandchild(place: &Place) -> String {
    format!(
        "echo $PPID > {run}; sh -c \"trap '' HUP TERM; echo \\$\\$ > {grandchild}; while :; do sleep 0.05; done\" & echo $$ > {job}; wait",
        run = place.path("run.pid").display(),
        grandchild = place.path("grandchild.pid").display(),
        job = place.path("job.pid").display()
    )
}

#[test]
fn a_killed_run_takes_its_grandchildren_along() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let run = place.start(["run", "job", "--", "sh", "-c", &with_a_grandchild(&place)]);
    killed(&place, &run, run.pid());
}

#[test]
fn a_killed_run_on_a_terminal_takes_its_grandchildren_along_and_nobody_else() {
    let place = Place::local();
    fs::write(place.path("job.sh"), with_a_grandchild(&place)).unwrap();
    // The shell shares the process group with the run, as in a pipeline or a script.
    let shell = format!(
        "redlatch run job -- sh job.sh; echo $? > {}; while [ ! -e {} ]; do sleep 0.02; done",
        place.path("code").display(),
        place.path("shell.end").display()
    );
    fs::write(place.path("shell.sh"), shell).unwrap();
    let terminal = Running::spawn(on_a_terminal(&place, "sh shell.sh"));
    place.pid("job");
    killed(&place, &terminal, place.pid("run"));
    eventually("the shell goes on", || place.read("code").ends_with('\n').then_some(()));
    place.end("shell");
    assert_eq!(terminal.finish().status.code(), Some(0));
}

/// What the command starts in its first moment may be there before the run has said which process the command is.
#[test]
fn a_guard_ends_what_a_run_left_that_was_killed_before_it_knew_its_command() {
    // All are of one session, as a run and what it starts.
    let marked = |mark: &str| {
        let mut command = Command::new("sleep");
        command.arg("600").env("REDLATCH_RUN", mark).process_group(0);
        Running::spawn(command)
    };
    let (mut others, left) = (marked("7-12"), marked("7-1"));
    let mut guard = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    guard.arg("__guard").process_group(0).stdin(Stdio::piped());
    let mut guard = Running::spawn(guard);
    guard.child().stdin.take().unwrap().write_all(b"own goes REDLATCH_RUN=7-1\n").unwrap();
    assert_eq!(guard.finish().status.code(), Some(0));
    assert_eq!(left.finish().status.signal(), Some(9));
    assert!(others.is_running());
}

#[test]
fn a_run_that_ends_leaves_what_has_moved_away() {
    let place = Place::local();
    let script = format!(
        "setsid sh -c 'echo $$ > {pid}; exec sleep 600' > /dev/null 2>&1 & while [ ! -s {pid} ]; do sleep 0.02; done",
        pid = place.path("job.pid").display()
    );
    assert_eq!(place.code(["run", "job", "--", "sh", "-c", &script]), 0);
    let moved = place.pid("job");
    let lives = is_alive(moved);
    end(moved);
    assert!(lives, "a daemon that was started on purpose");
}

/// A row of short processes, each begun by the one before it, which ends at once. A look at `/proc` may list none of them, and the run ended beside the others.
#[test]
fn a_run_waits_for_a_row_of_processes_that_begin_each_other() {
    const LENGTH: u32 = 150;
    let place = Place::local();
    let script = "[ $1 -gt 0 ] || { touch $2; exit; }; sh row.sh $(($1 - 1)) $2 &";
    fs::write(place.path("row.sh"), script).unwrap();
    // What the group is, and who belongs to the command in it: its own, the terminal's, and the terminal's beside another child.
    let own = |at: usize| format!("setsid redlatch run own{at} -- sh row.sh {LENGTH} own{at}.end");
    let shared = |at: usize| format!("redlatch run shared{at} -- sh row.sh {LENGTH} shared{at}.end");
    let beside =
        |at: usize| format!("sleep 60 & exec redlatch run beside{at} -- sh row.sh {LENGTH} beside{at}.end");
    let mut runs = Vec::new();
    for at in 0..4 {
        let mut command = place.shell(&own(at));
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        runs.push((format!("own{at}"), command.spawn().unwrap()));
        for (name, line) in [("shared", shared(at)), ("beside", beside(at))] {
            let file = format!("{name}{at}.sh");
            fs::write(place.path(&file), line).unwrap();
            let mut command = on_a_terminal(&place, &format!("sh {file}"));
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            runs.push((format!("{name}{at}"), command.spawn().unwrap()));
        }
    }
    for (name, run) in runs {
        let output = run.wait_with_output().unwrap();
        // The terminal's program ends with its run, and nobody has the name then.
        assert!(
            place.path(&format!("{name}.end")).exists(),
            "{name} ended before the last of its row: {output:?}"
        );
    }
}
