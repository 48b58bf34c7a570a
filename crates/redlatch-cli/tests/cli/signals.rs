//! Signals: each reaches the command exactly once, and a wait ends cleanly.

use std::{fs, io::Write, process::Stdio};

use rustix::process::Signal;

use crate::support::{GRACE, LEASE, Place, Running, both, eventually, finish, is_alive, on_a_terminal};

/// A command that notes every signal it gets and ends on TERM with 5.
fn noting(place: &Place) -> String {
    let note = |signal: &str| format!("trap 'echo {signal} >> {}' {signal}; ", place.word("log"));
    let notes: String =
        ["HUP", "INT", "QUIT", "USR1", "USR2", "WINCH"].iter().map(|signal| note(signal)).collect();
    let term = format!("trap 'echo TERM >> {}; exit 5' TERM; ", place.word("log"));
    let pid = place.word("job.pid");
    format!("{notes}{term}echo $$ > {pid}; while :; do sleep 0.02; done")
}

/// A script for bash that notes USR1 and ends on TERM, for stops: a shell that starts a program at the moment of a stop cannot
/// stop before that program runs, so this one starts none. A signal that comes right before a read begins has its trap run only after it, so
/// no read is without end.
fn stoppable(place: &Place) -> String {
    let (hold, log, pid) = (place.word("hold"), place.word("log"), place.word("job.pid"));
    let traps = format!("trap 'echo USR1 >> {log}' USR1; trap 'exit 5' TERM");
    format!("mkfifo {hold}; exec 3<>{hold}; {traps}; echo $$ > {pid}; while :; do read -t 0.1 line <&3; done")
}

#[test]
fn every_signal_is_forwarded_once() {
    let place = Place::local();
    let run = place.start(["run", "job", "--", "sh", "-c", &noting(&place)]);
    place.pid("job");
    let signals = [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
    ];
    for (signal, name) in signals {
        run.signal(signal);
        eventually(name, || place.read("log").contains(name).then_some(()));
    }
    run.signal(Signal::TERM);
    let output = run.finish();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert_eq!(place.read("log"), "HUP\nINT\nQUIT\nUSR1\nUSR2\nWINCH\nTERM\n");
    assert_eq!(place.show("job")["kind"], "free");
}

#[test]
fn the_whole_group_gets_the_signal() {
    let place = Place::local();
    let script = format!(
        "sh -c 'echo $$ > {}; exec sleep 60 > /dev/null 2>&1' & wait",
        place.word("job.pid").replace('\'', "")
    );
    let run = place.start(["run", "job", "--", "sh", "-c", &script]);
    let grandchild = place.pid("job");
    run.signal(Signal::TERM);
    assert_eq!(run.finish().status.code(), Some(128 + 15));
    assert!(!is_alive(grandchild), "the lock is free, so nobody may still be at work");
}

#[test]
fn stop_and_continue_reach_the_command_and_the_lock_stays() {
    let place = Place::local();
    let script = stoppable(&place);
    let holder = place.start(["run", "job", "--lease", LEASE, "--grace", GRACE, "--", "bash", "-c", &script]);
    let command = place.pid("job");
    let state = || {
        let stat = fs::read_to_string(format!("/proc/{command}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.trim_start().chars().next()
    };
    holder.signal(Signal::TSTP);
    eventually("the command stops", || (state() == Some('T')).then_some(()));
    // Renewal goes on while the command is stopped.
    place.renewed("job", 2);
    assert_eq!(state(), Some('T'));
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75);
    holder.signal(Signal::CONT);
    eventually("the command goes on", || (state() != Some('T')).then_some(()));
    holder.signal(Signal::TERM);
    assert_eq!(holder.finish().status.code(), Some(5));
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing() {
    let place = Place::local();
    let holder = place.holder("job", &[]);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut command = place.redlatch(["run", "job", "-v", "--report", "report", "--", "touch", "ran"]);
        command.stdout(Stdio::null());
        let mut waiter = Running::spawn(command);
        // With -v the wait says who holds the lock, which shows that it has begun.
        waiter.until_told("held by");
        waiter.signal(signal);
        assert_eq!(waiter.finish().status.code(), Some(code));
        assert_eq!(place.report("report")["outcome"], "interrupted");
    }
    place.end("job");
    assert!(holder.finish().status.success());
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 0, "no waiter took the lock with it");
    assert!(!place.path("ran").exists());
}

#[test]
fn what_the_parent_ignores_stays_ignored() {
    let place = Place::local();
    let script = "trap '' HUP; exec redlatch run job -- sh -c 'kill -HUP $$; kill -HUP $PPID; echo alive'";
    let output = finish(place.shell(script));
    assert_eq!(output.stdout, b"alive\n", "{output:?}");
}

#[test]
fn ctrl_c_on_a_terminal_reaches_the_command_once() {
    let place = Place::local();
    fs::write(place.path("job.sh"), noting(&place)).unwrap();
    let mut terminal = Running::spawn(on_a_terminal(&place, "redlatch run job -- sh job.sh"));
    place.pid("job");
    let keyboard = terminal.child().stdin.as_mut().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    eventually("Ctrl-C arrives", || place.read("log").contains("INT").then_some(()));
    // A second copy would have been noted before the answer to this one.
    let command = rustix::process::Pid::from_raw(place.pid("job")).unwrap();
    rustix::process::kill_process(command, Signal::USR1).unwrap();
    eventually("the next signal arrives", || place.read("log").contains("USR1").then_some(()));
    rustix::process::kill_process(command, Signal::TERM).unwrap();
    let output = terminal.finish();
    assert_eq!(place.read("log"), "INT\nUSR1\nTERM\n", "{output:?}");
    assert_eq!(output.status.code(), Some(5), "{output:?}");
}

#[test]
fn a_wait_on_a_terminal_names_the_holder_in_one_line() {
    let place = Place::local();
    let holder = place.holder("job", &[]);
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let output = finish(on_a_terminal(&place, "redlatch run job -w 3s -- true"));
    let text = both(&output);
    assert!(text.contains("\r\x1b[2K\"job\"") && text.contains(&owner[..20]), "{text:?}");
    assert_eq!(output.status.code(), Some(75));
    place.end("job");
    assert!(holder.finish().status.success());
}

#[test]
fn a_loss_on_a_terminal_stops_what_the_command_started_too() {
    let place = Place::local();
    let script = format!(
        "sh -c 'echo $$ > {}; exec sleep 60 > /dev/null 2>&1' & wait",
        place.path("job.pid").display()
    );
    fs::write(place.path("job.sh"), script).unwrap();
    let terminal = Running::spawn(on_a_terminal(
        &place,
        &format!("redlatch run job --lease {LEASE} --grace {GRACE} -- sh job.sh"),
    ));
    let grandchild = place.pid("job");
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    assert_eq!(place.code(["force-unlock", "job", "--owner", &owner, "--reason", "test", "--yes"]), 0);
    assert_eq!(terminal.finish().status.code(), Some(80));
    assert!(!is_alive(grandchild));
}

#[test]
fn a_command_that_leaves_the_group_is_still_waited_for() {
    let place = Place::local();
    fs::write(place.path("job.sh"), "redlatch show job -o json > shown; exit 6").unwrap();
    let output = finish(on_a_terminal(&place, "redlatch run job -- setsid sh job.sh"));
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert!(place.read("shown").contains("\"kind\":\"lock\""), "{}", place.read("shown"));
}

#[test]
fn ctrl_z_in_a_session_without_a_shell_stops_nobody() {
    let place = Place::local();
    fs::write(place.path("job.sh"), noting(&place)).unwrap();
    let mut terminal = Running::spawn(on_a_terminal(
        &place,
        &format!("redlatch run job --lease {LEASE} --grace {GRACE} -- sh job.sh"),
    ));
    let command = place.pid("job");
    terminal.child().stdin.as_mut().unwrap().write_all(b"\x1a").unwrap();
    // Were we stopped, nobody would renew.
    place.renewed("job", 2);
    assert!(is_alive(command));
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75);
    rustix::process::kill_process(rustix::process::Pid::from_raw(command).unwrap(), Signal::TERM).unwrap();
    assert_eq!(terminal.finish().status.code(), Some(5));
}

#[test]
fn ctrl_z_gives_the_terminal_back_to_the_shell_and_fg_goes_on() {
    let place = Place::local();
    fs::write(place.path("job.sh"), stoppable(&place)).unwrap();
    fs::write(
        place.path("shell.sh"),
        "set -m; redlatch run job -- bash job.sh; echo $? > shell; fg; exit $?",
    )
    .unwrap();
    let mut terminal = Running::spawn(on_a_terminal(&place, "bash shell.sh"));
    let command = place.pid("job");
    terminal.child().stdin.as_mut().unwrap().write_all(b"\x1a").unwrap();
    // The shell goes on to `fg` only when the whole job has stopped, and the trap runs only when the command goes on.
    eventually("the shell has the terminal", || place.read("shell").ends_with('\n').then_some(()));
    assert_eq!(place.read("shell"), "147\n");
    let command = rustix::process::Pid::from_raw(command).unwrap();
    rustix::process::kill_process(command, Signal::USR1).unwrap();
    eventually("the command goes on", || place.read("log").contains("USR1").then_some(()));
    rustix::process::kill_process(command, Signal::TERM).unwrap();
    let output = terminal.finish();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
}

#[test]
fn ctrl_z_does_not_stop_the_renewals_of_a_command_that_ignores_it() {
    let place = Place::local();
    fs::write(place.path("job.sh"), format!("trap '' TSTP; {}", noting(&place))).unwrap();
    let shell = format!("set -m; redlatch run job --lease {LEASE} --grace {GRACE} -- sh job.sh; exit $?");
    fs::write(place.path("shell.sh"), shell).unwrap();
    let mut terminal = Running::spawn(on_a_terminal(&place, "bash shell.sh"));
    let command = place.pid("job");
    terminal.child().stdin.as_mut().unwrap().write_all(b"\x1a").unwrap();
    place.renewed("job", 2);
    rustix::process::kill_process(rustix::process::Pid::from_raw(command).unwrap(), Signal::TERM).unwrap();
    assert_eq!(terminal.finish().status.code(), Some(5));
}

#[test]
fn a_second_request_to_end_ends_what_the_command_left_behind() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::local();
        // A shell without job control starts background processes with INT ignored.
        let script =
            format!("(echo $$ > {}; exec sleep 60 > /dev/null 2>&1) & exit 4", place.word("job.pid"));
        let mut run = place.start(["run", "job", "--report", "report", "--", "sh", "-c", &script]);
        place.pid("job");
        run.until_told("others of its process group");
        run.signal(signal);
        assert_eq!(run.finish().status.code(), Some(4), "{signal:?}");
        assert_eq!(place.report("report")["outcome"], "completed");
    }
}

/// Started by a program that ignores the ends of its children, each run ended with 125.
#[test]
fn a_program_that_ignores_its_children_learns_how_the_command_ended() {
    let place = Place::local();
    for code in [0, 3] {
        let run = format!("trap '' CHLD; exec redlatch run job -- sh -c 'exit {code}'");
        let output = finish(place.shell(&run));
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
}
