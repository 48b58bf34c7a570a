//! A command that starts a daemon as daemons start: fork, a session of its own, fork again, and the parents end.

use std::fs;

use redlatch_testkit::server::RedisServer;
use rustix::process::{Pid, Signal, getsid, kill_process};

use crate::{
    guarded::guard_of,
    support::{Place, Running, both, eventually, finish, is_alive, on_a_terminal},
};

/// The command: it ends with 4 when the daemon is there, or goes on if it is to stay. The daemon ends with the place.
const DAEMON: &str = r#"
import os, signal, sys, time

place, descriptors, command = sys.argv[1:]

def tell(who):
    with open(f"{place}/{who}.new", "w") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(f"{place}/{who}.new", f"{place}/{who}.pid")

if os.fork() == 0:
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    null = os.open("/dev/null", os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    if descriptors == "closes":
        os.closerange(3, 65536)
    tell("daemon")
    while os.path.exists(place):
        time.sleep(0.02)
    os._exit(0)
os.wait()
while not os.path.exists(f"{place}/daemon.pid"):
    time.sleep(0.01)
tell("job")
if command == "stays":
    signal.pause()
os._exit(4)
"#;

/// A daemon that ends with the test.
struct Daemon(i32);

impl Daemon {
    /// The one that the command of this place has started.
    fn of(place: &Place) -> Self {
        Daemon(place.pid("daemon"))
    }

    fn is_alive(&self) -> bool {
        is_alive(self.0)
    }

    fn end(&self) {
        // It may have ended already.
        _ = kill_process(Pid::from_raw(self.0).unwrap(), Signal::KILL);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

/// The words of the command. The daemon `keeps` or `closes` what it has inherited, and the command `ends` or `stays`.
fn command(place: &Place, descriptors: &str, command: &str) -> [String; 5] {
    fs::write(place.path("daemon.py"), DAEMON).unwrap();
    let path = |name| place.path(name).display().to_string();
    ["python3".into(), path("daemon.py"), path(""), descriptors.into(), command.into()]
}

fn start(place: &Place, descriptors: &str, stays: &str) -> Running {
    let words = command(place, descriptors, stays);
    let line = ["run", "job", "--lease", "10m", "--"].map(str::to_owned).into_iter().chain(words);
    place.start(line)
}

/// Kills a run, and waits until its guard has ended all that it ends.
fn kill_to_the_end(place: &Place, run: &Running) {
    let (command, guard) = (place.pid("job"), guard_of(run.pid()));
    run.signal(Signal::KILL);
    eventually("the command ends with its run", || (!is_alive(command)).then_some(()));
    eventually("the guard ends", || (!is_alive(guard)).then_some(()));
}

#[test]
fn a_daemon_that_the_command_starts_is_not_waited_for_and_works_on_without_the_lock() {
    for descriptors in ["keeps", "closes"] {
        let place = Place::local();
        let run = start(&place, descriptors, "ends");
        let daemon = Daemon::of(&place);
        assert_ne!(getsid(Pid::from_raw(daemon.0)), getsid(Pid::from_raw(run.pid())));
        let output = run.finish();
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        assert!(daemon.is_alive());
        assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 0, "{descriptors}");
        assert!(daemon.is_alive());
    }
}

#[test]
fn a_daemon_that_the_command_starts_on_a_terminal_is_not_waited_for_and_survives_the_terminal() {
    let place = Place::local();
    let words = command(&place, "keeps", "ends").join("' '");
    let output = finish(on_a_terminal(&place, &format!("redlatch run job -- '{words}'")));
    let daemon = Daemon::of(&place);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(!both(&output).contains("others of its process group"), "{output:?}");
    assert!(daemon.is_alive());
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 0);
}

#[test]
fn a_daemon_that_outlives_a_killed_run_keeps_the_lock_until_it_ends() {
    let place = Place::local();
    let run = start(&place, "keeps", "stays");
    let daemon = Daemon::of(&place);
    kill_to_the_end(&place, &run);
    let named = eventually("show says that the run is gone", || {
        let state = place.show("job");
        let left = state["holders"][0]["workers"].as_array()?.clone();
        left.iter().all(|process| process["run_is_gone"] == true).then_some(left)
    });
    assert_eq!(named.iter().map(|process| process["pid"].clone()).collect::<Vec<_>>(), [daemon.0]);
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75);
    assert!(daemon.is_alive());
    daemon.end();
    assert_eq!(place.code(["run", "job", "-w", "28s", "--", "true"]), 0);
}

/// As `docs/dangers.md` says of what closes all its descriptors.
#[test]
fn a_daemon_that_closed_its_descriptors_has_let_go_of_the_lock_of_a_killed_run() {
    let place = Place::local();
    let run = start(&place, "closes", "stays");
    let daemon = Daemon::of(&place);
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "the run holds it");
    kill_to_the_end(&place, &run);
    assert_eq!(place.code(["run", "job", "-w", "28s", "--", "true"]), 0, "long before the lease is over");
    assert!(daemon.is_alive());
}

#[test]
fn a_daemon_that_outlives_a_killed_run_on_redis_goes_on_and_the_lease_decides() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let run = start(&place, "keeps", "stays");
    let daemon = Daemon::of(&place);
    kill_to_the_end(&place, &run);
    assert!(daemon.is_alive());
    daemon.end();
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75);
    let ttl_ms = place.show("job")["ttl_ms"].as_u64().unwrap();
    assert!(ttl_ms <= 600_000, "{ttl_ms}");
}
