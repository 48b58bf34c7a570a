//! Ctrl-Z while a process of the command works on: the lock stays renewed.

use std::{fs, io::Write};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{GRACE, LEASE, Place, Running, eventually, on_a_terminal};

fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Ctrl-Z, which the command follows and a process that it has started does not.
fn half_stopped(place: &Place) -> (Running, i32) {
    // A shell that starts a program at the moment of a stop cannot stop before that program runs, so the command starts none then.
    let worker = "(trap '' TSTP; exec sh -c 'echo $$ > worker.pid; while [ -e worker.pid -a ! -e worker.end ]; do sleep 0.02; done') &";
    let script = format!(
        "{worker} mkfifo hold; exec 3<>hold; trap 'echo USR1 >> log' USR1; trap 'exit 5' TERM; \
         while [ ! -s worker.pid ]; do sleep 0.02; done; echo $$ > job.pid; while :; do read -t 0.1 line <&3; done"
    );
    fs::write(place.path("job.sh"), script).unwrap();
    let run = format!("redlatch run job --lease {LEASE} --grace {GRACE} -- bash job.sh");
    let shell =
        format!("set -m; {run}; echo $? > shell; while [ ! -e shell.end ]; do sleep 0.02; done; fg; exit $?");
    fs::write(place.path("shell.sh"), shell).unwrap();
    let mut terminal = Running::spawn(on_a_terminal(place, "bash shell.sh"));
    let command = place.pid("job");
    terminal.child().stdin.as_mut().unwrap().write_all(b"\x1a").unwrap();
    eventually("the command stops", || is_stopped(command).then_some(()));
    (terminal, command)
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[test]
fn ctrl_z_does_not_stop_the_renewals_while_a_process_of_the_command_works_on() {
    let place = Place::local();
    let (mut terminal, command) = half_stopped(&place);
    place.renewed("job", 2);
    terminal.until_printed("works on");
    assert!(is_stopped(command));
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75);
    assert_eq!(place.read("shell"), "");
    // The one that worked on has ended: now the whole job has stopped, and the shell has the terminal.
    place.end("worker");
    terminal.until_printed("stopped; unless continued, the lock is lost in");
    eventually("the shell has the terminal", || place.read("shell").ends_with('\n').then_some(()));
    assert_eq!(place.read("shell"), "147\n");
    place.end("shell");
    signal(command, Signal::USR1);
    eventually("the command goes on", || place.read("log").contains("USR1").then_some(()));
    signal(command, Signal::TERM);
    assert_eq!(terminal.finish().status.code(), Some(5));
}

#[test]
fn a_process_that_stops_later_than_its_command_stops_the_run_then() {
    let place = Place::local();
    let (terminal, command) = half_stopped(&place);
    let worker = place.pid("worker");
    place.renewed("job", 1);
    signal(worker, Signal::STOP);
    eventually("the shell has the terminal", || place.read("shell").ends_with('\n').then_some(()));
    assert_eq!(place.read("shell"), "147\n");
    place.end("shell");
    eventually("the command goes on", || (!is_stopped(command)).then_some(()));
    place.end("worker");
    signal(worker, Signal::CONT);
    signal(command, Signal::TERM);
    assert_eq!(terminal.finish().status.code(), Some(5));
}
