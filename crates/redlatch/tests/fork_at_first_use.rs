//! A fork while a thread of the parent does something for the first time. It is a program of its own, because what any other test has done is not
//! done for the first time here.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redlatch::blocking;
use redlatch_testkit::server::RedisServer;

/// From when on a child hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);
const FORKS: u64 = 300;
/// The forks are spread over so much time from the thread's first step.
const STEPS_NS: u64 = 400_000;

const GOOD: i32 = 0;
const HANGS: i32 = 1;
const REFUSED: i32 = 2;

/// Waits for a child; `None` if it hangs.
fn end_of(pid: i32) -> Option<i32> {
    let began = Instant::now();
    while began.elapsed() < HANGS_AFTER {
        if let Some(status) = fork::waitpid_nohang(pid).unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(1));
    }
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    fork::waitpid(pid.as_raw_nonzero().get()).unwrap();
    None
}

/// Has a thread take a lock, forks at some moment of that, and has the child take another one.
fn forks_meanwhile(url: &str, n: u64) -> i32 {
    let client = blocking::Client::connect(url).unwrap();
    let (of_thread, of_child) = (client.lock(format!("thread-{n}")), client.lock(format!("child-{n}")));
    let begins = Arc::new(AtomicBool::new(false));
    let begun = begins.clone();
    let thread = thread::spawn(move || {
        while !begun.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        drop(of_thread.try_lock());
    });
    begins.store(true, Ordering::SeqCst);
    let (began, moment) = (Instant::now(), Duration::from_nanos(n * 7_919 % STEPS_NS));
    while began.elapsed() < moment {}
    match fork::fork().unwrap() {
        fork::Fork::Child => std::process::exit(if of_child.lock().is_ok() { GOOD } else { REFUSED }),
        fork::Fork::Parent(pid) => {
            let end = end_of(pid);
            thread.join().unwrap();
            match end {
                None => HANGS,
                Some(status) if status == GOOD => GOOD,
                Some(_) => REFUSED,
            }
        }
    }
}

/// The child waited for a thread of the parent that was working out the hash of a script, and that it does not have: 10 of 300 did.
#[test]
fn a_child_waits_for_no_thread_that_uses_a_script_for_the_first_time() {
    let server = RedisServer::start().unwrap();
    let url = server.url();
    for n in 0..FORKS {
        // Each parent is a process that has done nothing yet.
        match fork::fork().unwrap() {
            fork::Fork::Child => std::process::exit(forks_meanwhile(&url, n)),
            fork::Fork::Parent(pid) => assert_eq!(fork::waitpid(pid).unwrap(), GOOD, "child {n}"),
        }
    }
}
