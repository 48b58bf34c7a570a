//! A process whose main thread has ended while another one works: the system shows it as one that has ended, and it has not.

use std::fs;

use redlatch_testkit::server::RedisServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{GRACE, LEASE, Place, Running, eventually, on_a_terminal};

/// Works in a thread until the file `worker.end` exists. Its process id is told once its main thread has ended.
const WORKER: &str = r#"
import ctypes, os, sys, threading, time

place = sys.argv[1]

def state():
    return open(f"/proc/{os.getpid()}/stat").read().rsplit(")", 1)[1].split()[0]

def work():
    while os.path.exists(place) and state() != "Z":
        time.sleep(0.01)
    with open(place + "/worker.pid", "w") as file:
        file.write(f"{os.getpid()}\n")
    while os.path.exists(place) and not os.path.exists(place + "/worker.end"):
        time.sleep(0.02)
    os._exit(0)

threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
"#;

/// Writes the worker, and answers the line of a shell that starts it aside; it ignores requests to end.
fn worker(place: &Place) -> String {
    fs::write(place.path("worker.py"), WORKER).unwrap();
    // An empty name is the place's own directory.
    let (program, dir) = (place.path("worker.py"), place.path(""));
    let (program, dir) = (program.display(), dir.display());
    format!("(trap '' TERM HUP; exec python3 {program} {dir} > /dev/null 2>&1) &")
}

/// Whether any thread of a process is there that has not ended.
fn works(pid: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats
        .any(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X'])))
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_process_whose_main_thread_has_ended_is_waited_for() {
    let place = Place::local();
    let script = format!("{} while [ ! -s worker.pid ]; do sleep 0.02; done; exit 4", worker(&place));
    let mut run = place.start(["run", "job", "--", "sh", "-c", &script]);
    let worker = place.pid("worker");
    run.until_told("others of its process group");
    assert!(works(worker));
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "it was granted beside the worker");
    place.end("worker");
    assert_eq!(run.finish().status.code(), Some(4));
    assert!(!works(worker));
    assert_eq!(place.show("job")["kind"], "free");
}

#[test]
fn a_process_whose_main_thread_has_ended_is_waited_for_on_a_terminal() {
    let place = Place::local();
    let script = format!("{} while [ ! -s worker.pid ]; do sleep 0.02; done; exit 4", worker(&place));
    fs::write(place.path("job.sh"), script).unwrap();
    let mut terminal = Running::spawn(on_a_terminal(&place, "redlatch run job -- sh job.sh"));
    let worker = place.pid("worker");
    terminal.until_printed("others of its process group");
    assert!(works(worker));
    assert_eq!(place.code(["run", "job", "-n", "--", "true"]), 75, "it was granted beside the worker");
    place.end("worker");
    assert_eq!(terminal.finish().status.code(), Some(4));
    assert!(!works(worker));
}

#[test]
fn a_loss_on_a_terminal_ends_a_process_whose_main_thread_has_ended() {
    let place = Place::local();
    fs::write(place.path("job.sh"), format!("{} wait", worker(&place))).unwrap();
    let run = format!("redlatch run job --lease {LEASE} --grace {GRACE} -- sh job.sh");
    let terminal = Running::spawn(on_a_terminal(&place, &run));
    let worker = place.pid("worker");
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    assert_eq!(place.code(["force-unlock", "job", "--owner", &owner, "--reason", "test", "--yes"]), 0);
    assert_eq!(terminal.finish().status.code(), Some(80));
    let left = works(worker);
    if left {
        kill(worker);
    }
    assert!(!left, "it works on without the lock");
}

#[test]
fn a_killed_run_on_a_terminal_takes_a_process_along_whose_main_thread_has_ended() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    fs::write(place.path("job.sh"), format!("echo $PPID > run.pid; {} wait", worker(&place))).unwrap();
    // The session goes on, or its end would tell the worker to end, too.
    let shell = "redlatch run job -- sh job.sh; while [ ! -e shell.end ]; do sleep 0.02; done";
    fs::write(place.path("shell.sh"), shell).unwrap();
    let terminal = Running::spawn(on_a_terminal(&place, "sh shell.sh"));
    let worker = place.pid("worker");
    kill(place.pid("run"));
    eventually("what the command started ends", || (!works(worker)).then_some(()));
    place.end("shell");
    assert_eq!(terminal.finish().status.code(), Some(0));
}

#[test]
fn a_process_whose_main_thread_has_ended_is_named_as_what_holds() {
    let place = Place::local();
    let script = format!("{} wait; while [ ! -e worker.end ]; do sleep 0.02; done", worker(&place));
    let run = place.start(["run", "job", "--", "sh", "-c", &script]);
    let worker = place.pid("worker");
    let state = place.show("job");
    let named = state["holders"][0]["workers"].as_array().unwrap();
    assert!(named.iter().any(|process| process["pid"] == worker), "{state}");
    place.end("worker");
    assert_eq!(run.finish().status.code(), Some(0));
}
