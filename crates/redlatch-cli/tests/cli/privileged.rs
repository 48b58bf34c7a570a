//! Commands that make themselves another user, so that the run may not stop them.
//!
//! Only root can set up a program that does so. For other users these tests say so and check nothing.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::Path,
    process::Command,
};

use redlatch_testkit::server::RedisServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    guarded::guard_of,
    support::{Place, Running, both, eventually, finish, is_alive, on_a_terminal},
};

/// A user without rights, as every system has one.
const NOBODY: u32 = 65534;

/// A place that belongs to nobody, with a set-user-ID program `rights` in it that becomes root for good.
fn place(server: &RedisServer) -> Option<Place> {
    given_away(|| Place::on(server))
}

fn given_away(make: impl Fn() -> Place) -> Option<Place> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not checked: only root can set up a set-user-ID program");
        return None;
    }
    let place = make();
    chown(place.path("."), Some(NOBODY), Some(NOBODY)).unwrap();
    let paths = std::env::var_os("PATH").unwrap();
    let setpriv = std::env::split_paths(&paths).map(|dir| dir.join("setpriv")).find(|file| file.is_file());
    let rights = place.copy_program(setpriv.expect("setpriv of util-linux"), "rights");
    fs::set_permissions(rights, fs::Permissions::from_mode(0o4755)).unwrap();
    Some(place)
}

/// `redlatch` as nobody.
fn unprivileged(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new("setsid");
    command.args(["env", "--default-signal", env!("CARGO_BIN_EXE_redlatch")]).args(arguments);
    place.surround(&mut command);
    command.uid(NOBODY).gid(NOBODY);
    command
}

/// `redlatch run job` as nobody, with a command that becomes root.
fn run(place: &Place, options: &[&str]) -> Command {
    let mut command = unprivileged(place, &["run", "job"]);
    command.args(options).arg("--").arg(place.path("rights")).args([
        "--reuid=0",
        "--regid=0",
        "--clear-groups",
    ]);
    let script = format!("echo $$ > {}; exec sleep 600 > /dev/null 2>&1", place.word("job.pid"));
    command.args(["sh", "-c", &script]);
    command
}

fn end(command: i32) {
    _ = kill_process(Pid::from_raw(command).unwrap(), Signal::KILL);
}

#[test]
fn a_command_that_max_hold_cannot_stop_is_named_and_keeps_the_lock() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let limits = ["--max-hold", "500ms", "--kill-after", "100ms", "--report", "report", "-q"];
    let mut run = Running::spawn(run(&place, &limits));
    let command = place.pid("job");
    // It matters too much for -q.
    run.until_told("CANNOT STOP \"sleep\"");
    run.until_told("uid 0");
    run.until_told("the lock stays held until it ends");
    assert!(is_alive(command));
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "nobody works beside it");
    assert!(run.is_running());
    end(command);
    assert_eq!(run.finish().status.code(), Some(124));
    assert_eq!(place.report("report")["left_running"], serde_json::json!([]));
    assert_eq!(place.show("job")["kind"], "free");
}

#[test]
fn a_command_that_outlives_its_lock_is_named_and_reported() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let limits = ["--lease", "6s", "--grace", "300ms", "--report", "report"];
    let run = Running::spawn(run(&place, &limits));
    let command = place.pid("job");
    server.cmd(&["DEL", "job"]).unwrap();
    let output = run.finish();
    let lives = is_alive(command);
    end(command);
    let text = both(&output);
    assert!(lives, "nobody could have stopped it: {text}");
    assert_eq!(output.status.code(), Some(80), "{text}");
    assert!(text.contains("CANNOT STOP") && text.contains("WITHOUT THE LOCK"), "{text}");
    let report = place.report("report");
    assert_eq!(report["outcome"], "lost");
    let left = &report["left_running"][0];
    assert_eq!((&left["pid"], &left["uid"], &left["refused"]), (&command.into(), &0.into(), &true.into()));
}

#[test]
fn a_second_request_to_end_leaves_a_command_that_cannot_be_stopped_to_the_lease() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let mut run = Running::spawn(run(&place, &["--report", "report"]));
    let command = place.pid("job");
    run.signal(Signal::TERM);
    run.until_told("CANNOT STOP");
    assert!(run.is_running());
    run.signal(Signal::TERM);
    let output = run.finish();
    let lives = is_alive(command);
    assert_eq!(output.status.code(), Some(143), "{}", both(&output));
    let report = place.report("report");
    assert_eq!((&report["outcome"], &report["released"]), (&"left-running".into(), &false.into()));
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "its lease is not over");
    end(command);
    assert!(lives);
}

#[test]
fn a_program_of_another_user_is_told_of_before_it_starts() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let mut run = Running::spawn(run(&place, &[]));
    run.until_told("may be unable to stop it");
    let command = place.pid("job");
    end(command);
    assert_eq!(run.finish().status.code(), Some(128 + 9));
}

#[test]
fn a_command_without_new_rights_stays_one_that_can_be_stopped() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let output = finish(run(&place, &["--no-new-privs"]));
    let text = both(&output);
    assert!(!output.status.success() && text.contains("setresuid"), "it does not become root: {text}");
    assert!(!text.contains("may be unable") && !Path::new(&place.path("job.pid")).exists(), "{text}");
}

#[test]
fn what_max_hold_could_not_stop_is_told_of_once_more_when_the_lock_is_lost() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let limits = ["--max-hold", "500ms", "--kill-after", "100ms", "--lease", "6s", "--grace", "300ms", "-q"];
    let mut run = Running::spawn(run(&place, &limits));
    let command = place.pid("job");
    run.until_told("the lock stays held until it ends");
    server.cmd(&["DEL", "job"]).unwrap();
    let output = run.finish();
    let lives = is_alive(command);
    end(command);
    assert!(lives, "nobody could have stopped it");
    assert_eq!(output.status.code(), Some(80), "{output:?}");
    assert!(both(&output).contains("WITHOUT THE LOCK"), "{output:?}");
}

/// A command that is root's by now, and ends with the test.
struct Privileged(i32);

impl Privileged {
    fn of(place: &Place) -> Self {
        let command = Privileged(place.pid("job"));
        let name = format!("/proc/{}/comm", command.0);
        eventually("it is what it becomes", || (fs::read_to_string(&name).ok()? == "sleep\n").then_some(()));
        command
    }
}

impl Drop for Privileged {
    fn drop(&mut self) {
        end(self.0);
    }
}

/// Nobody but the guard is left to say so.
fn kill_and_hear(mut run: Running, command: &Privileged, meanwhile: &str) {
    let messages = format!("/proc/{}/fd/2", guard_of(run.pid()));
    run.signal(Signal::KILL);
    run.until_told(&format!("CANNOT STOP \"sleep\" (pid {}, uid 0)", command.0));
    run.until_told(meanwhile);
    eventually("it lets go of what its messages are read from", || {
        fs::read_link(&messages).map_or(true, |file| file == Path::new("/dev/null")).then_some(())
    });
    let output = run.finish();
    assert!(is_alive(command.0), "{output:?}");
}

/// A place that belongs to nobody, whose engine is nobody's.
struct Local(Place);

impl Local {
    fn new() -> Option<Self> {
        given_away(Place::local).map(Local)
    }

    /// How a run as nobody ends that waits so long.
    fn code(&self, wait: &str) -> Option<i32> {
        finish(unprivileged(&self.0, &["run", "job", "-w", wait, "--", "true"])).status.code()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // The place would stop an engine of root's.
        _ = unprivileged(&self.0, &["engine", "stop", "--force"]).output();
    }
}

#[test]
fn a_command_that_outlives_its_killed_run_on_redis_is_named_and_works_on_beside_the_next_holder() {
    let server = RedisServer::start().unwrap();
    let Some(place) = place(&server) else { return };
    let run = Running::spawn(run(&place, &["--lease", "6s", "--grace", "300ms"]));
    let command = Privileged::of(&place);
    kill_and_hear(run, &command, "WITHOUT THE LOCK once the lease is over");
    assert_eq!(place.code(["run", "job", "-w", "28s", "--", "true"]), 0, "its lease is over");
    assert!(is_alive(command.0));
}

#[test]
fn a_command_that_outlives_its_killed_run_on_the_local_engine_is_named_and_keeps_the_lock() {
    let Some(local) = Local::new() else { return };
    let place = &local.0;
    let run = Running::spawn(run(place, &["--lease", "600ms", "--grace", "100ms"]));
    let command = Privileged::of(place);
    kill_and_hear(run, &command, "the lock stays held until it ends");
    // Twice as long as the lease.
    assert_eq!(local.code("1200ms"), Some(75));
    assert!(is_alive(command.0));
    end(command.0);
    assert_eq!(local.code("28s"), Some(0));
}

/// On a terminal the guard cannot see by its environment whose it is.
#[test]
fn a_command_on_a_terminal_that_outlives_its_killed_run_is_named_and_keeps_the_lock() {
    let Some(local) = Local::new() else { return };
    let place = &local.0;
    // As `sudo` does, it closes what it has inherited, and with it what the engine knows it by.
    let closes = "import os; os.closerange(3, 65536); os.execvp('sh', ['sh', 'job.sh'])";
    fs::write(place.path("closes.py"), closes).unwrap();
    let script = "echo $PPID > run.pid; echo $$ > job.pid; exec sleep 600 > /dev/null 2>&1";
    fs::write(place.path("job.sh"), script).unwrap();
    let run = "redlatch run job --lease 6s --grace 300ms -- ./rights --reuid=0 --regid=0 --clear-groups python3 closes.py";
    let shell = format!("{run}; while [ ! -e shell.end ]; do sleep 0.02; done");
    fs::write(place.path("shell.sh"), shell).unwrap();
    let mut terminal = on_a_terminal(place, "sh shell.sh");
    terminal.uid(NOBODY).gid(NOBODY);
    let mut terminal = Running::spawn(terminal);
    let command = Privileged::of(place);
    kill_process(Pid::from_raw(place.pid("run")).unwrap(), Signal::KILL).unwrap();
    terminal.until_printed(&format!("CANNOT STOP \"sleep\" (pid {}, uid 0)", command.0));
    assert!(is_alive(command.0));
    assert_eq!(local.code("300ms"), Some(75));
    end(command.0);
    assert_eq!(local.code("28s"), Some(0));
    place.end("shell");
    assert_eq!(terminal.finish().status.code(), Some(0));
}
