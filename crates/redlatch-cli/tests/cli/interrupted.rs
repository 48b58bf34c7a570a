//! Requests to end before the wait has begun, and the terminal afterwards.

use std::{fs, io::Write};

use redlatch_testkit::server::RedisServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{LEASE, Place, Running, both, eventually, is_alive, on_a_terminal};

#[test]
fn a_report_that_nobody_reads_can_be_interrupted() {
    for signal in [Signal::TERM, Signal::INT] {
        let place = Place::local();
        let fifo = place.path("report");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let run = place.start(["run", "job", "--report", "report", "--", "touch", "ran"]);
        let opening = format!("/proc/{}/wchan", run.pid());
        eventually("it waits for a reader", || {
            fs::read_to_string(&opening).unwrap().contains("wait_for_partner").then_some(())
        });
        run.signal(signal);
        let output = run.finish();
        assert!(!output.status.success(), "{output:?}");
        assert!(!place.path("ran").exists());
    }
}

/// Asks for the password by `line` on a terminal, and answers how its modes are when `end` has ended the question.
fn after_the_question(line: &str, end: impl Fn(&mut Running, i32)) -> String {
    let place = Place::local();
    let (pid, modes) = (place.path("job.pid"), place.path("modes"));
    fs::write(place.path("ask.sh"), format!("echo $$ > {}; exec {line}", pid.display())).unwrap();
    let shell = format!("trap : INT; stty echo; sh ask.sh; stty -a > {}", modes.display());
    fs::write(place.path("shell.sh"), shell).unwrap();
    let mut terminal = Running::spawn(on_a_terminal(&place, "bash shell.sh"));
    terminal.until_printed("Password: ");
    end(&mut terminal, place.pid("job"));
    let output = terminal.finish();
    let modes = place.read("modes");
    assert!(modes.contains("icanon"), "{output:?}");
    modes
}

#[test]
fn a_question_that_is_ended_leaves_the_terminal_as_it_was() {
    for line in ["redlatch ls --password-prompt", "redlatch run job --password-prompt -- true"] {
        let by_key = after_the_question(line, |terminal, _| {
            terminal.child().stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
        });
        assert!(!by_key.contains("-echo "), "{line}: {by_key}");
        for signal in [Signal::TERM, Signal::HUP, Signal::QUIT] {
            let by_signal = after_the_question(line, |_, pid| {
                kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
            });
            assert!(!by_signal.contains("-echo "), "{line}, {signal:?}: {by_signal}");
        }
    }
}

#[test]
fn ctrl_c_still_ends_a_verb_after_the_question() {
    let server = RedisServer::builder().requirepass("hush").start().unwrap();
    let place = Place::on(&server);
    let mut command = place.redlatch(["latch", "set", "gate", "1"]);
    command.env("REDLATCH_PASSWORD", "hush");
    assert!(crate::support::finish(command).status.success());
    let pid = place.path("job.pid");
    let line = format!("echo $$ > {}; exec redlatch latch wait gate --password-prompt -v", pid.display());
    fs::write(place.path("ask.sh"), line).unwrap();
    let mut terminal = Running::spawn(on_a_terminal(&place, "sh ask.sh"));
    terminal.until_printed("Password: ");
    let keyboard = terminal.child().stdin.as_mut().unwrap();
    keyboard.write_all(b"hush\n").unwrap();
    terminal.until_printed("closed, 1 left");
    terminal.child().stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    assert_eq!(terminal.finish().status.code(), Some(130));
}

#[test]
fn ctrl_z_stops_a_wait_and_fg_goes_on() {
    let place = Place::local();
    let holder = place.holder("job", &[]);
    fs::write(place.path("shell.sh"), "set -m; redlatch run job -- true; echo $? > shell; fg; exit $?")
        .unwrap();
    let mut terminal = Running::spawn(on_a_terminal(&place, "bash shell.sh"));
    terminal.until_printed("held by");
    terminal.child().stdin.as_mut().unwrap().write_all(b"\x1a").unwrap();
    eventually("the shell has the terminal", || place.read("shell").ends_with('\n').then_some(()));
    assert_eq!(place.read("shell"), "147\n");
    place.end("job");
    assert!(holder.finish().status.success());
    let output = terminal.finish();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// `ssh -t host redlatch run …`: the run leads the session of its terminal, and the terminal goes away.
#[test]
fn a_terminal_that_hangs_up_ends_the_command_of_a_run_that_leads_the_session() {
    let place = Place::local();
    let script = format!("echo $$ > {}; exec sleep 600", place.path("job.pid").display());
    fs::write(place.path("job.sh"), script).unwrap();
    let line = format!("redlatch run job --lease {LEASE} -- sh job.sh");
    let mut terminal = Running::spawn(on_a_terminal(&place, &line));
    let command = place.pid("job");
    terminal.child().kill().unwrap();
    eventually("the command ends", || (!is_alive(command)).then_some(()));
    eventually("the lock is free", || (place.show("job")["kind"] == "free").then_some(()));
    drop(terminal);
}

/// A reader of its messages that stops reading must not keep the run from its duty.
#[test]
fn a_run_whose_messages_nobody_reads_still_stops_the_command() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    // What the command writes fills the pipe that its run writes to as well.
    let writer = "echo $$ > writer.pid; exec dd if=/dev/zero bs=65536 count=64 >&2";
    let script = format!("sh -c '{writer}' & echo $$ > {}; wait", place.word("job.pid"));
    let line = ["run", "job", "--lease", LEASE, "--grace", "300ms", "-v", "--", "sh", "-c", &script];
    let mut run = place.start(line);
    let command = place.pid("job");
    let writing = format!("/proc/{}/wchan", place.pid("writer"));
    eventually("the pipe is full", || {
        fs::read_to_string(&writing).unwrap().contains("pipe_write").then_some(())
    });
    server.cmd(&["DEL", "job"]).unwrap();
    eventually("the command is stopped", || (!is_alive(command)).then_some(()));
    eventually("the run ends", || (!run.is_running()).then_some(()));
    let output = run.finish();
    assert_eq!(output.status.code(), Some(80), "{}", both(&output).len());
}

/// The end of the runtime waited for the thread that blocks, and every further signal was swallowed.
#[test]
fn a_run_that_waits_for_an_engine_to_get_ready_ends_by_a_signal() {
    let place = Place::local();
    let run = place.path("run");
    std::fs::create_dir(&run).unwrap();
    std::fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    // As one has it that reads its journal.
    let claim = std::fs::File::create(run.join("default.engine")).unwrap();
    claim.lock().unwrap();
    let mut waiting = place.start(["run", "x", "--", "true"]);
    let tasks = format!("/proc/{}/task", waiting.pid());
    eventually("the look for the engine, on a thread of its own", || {
        let tasks = std::fs::read_dir(&tasks).into_iter().flatten().flatten();
        let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.any(|name| name.starts_with("tokio")).then_some(())
    });
    waiting.signal(Signal::TERM);
    eventually("its end", || (!waiting.is_running()).then_some(()));
    assert_eq!(waiting.finish().status.code(), Some(143));
}

/// Kept output is printed by a write that blocks.
#[test]
fn a_run_whose_kept_output_nobody_reads_ends_by_a_signal_and_has_written_its_report() {
    let place = Place::local();
    let fails = "head -c 1000000 /dev/zero | tr '\\0' x; exit 3";
    let mut run = place.start(["run", "x", "--quiet-unless-failed", "--report", "report", "-c", fails]);
    eventually("the report", || {
        let report = std::fs::read_to_string(place.path("report")).unwrap_or_default();
        report.contains("\"exit_code\"").then_some(())
    });
    run.signal(Signal::TERM);
    eventually("its end", || (!run.is_running()).then_some(()));
}
