//! A fork while another thread uses the library for the first time, and so registers what tells a child that it is one. It is a program of its own, and
//! this process never uses the library: each parent is a process that has not done so yet.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redlatch::Owner;
use rustix::process::{Pid, Signal, kill_process};

/// From when on a child hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);
const FORKS: u64 = 2_000;
/// The forks are spread over so much time from the thread's first step.
const STEPS_NS: u64 = 20_000;

const GOOD: i32 = 0;
const HANGS: i32 = 1;

/// How far thread and process are.
const WAITS: u32 = 1;
const GOES: u32 = 2;
const FORKED: u32 = 3;

/// An owner is one of the process that has it.
fn use_library() {
    let owner: Owner = "client:1".parse().unwrap();
    assert_eq!(owner.number(), 1);
}

/// Waits for a child; `None` if it hangs.
fn end_of(pid: i32) -> Option<i32> {
    let began = Instant::now();
    while began.elapsed() < HANGS_AFTER {
        if let Some(status) = fork::waitpid_nohang(pid).unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_micros(100));
    }
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    fork::waitpid(pid).unwrap();
    None
}

/// Has a thread use the library, forks at some moment of that, and has the child use it.
fn forks_meanwhile(n: u64) -> i32 {
    let state = Arc::new(AtomicU32::new(0));
    // The thread neither begins nor ends while the process forks.
    let thread = thread::spawn({
        let state = state.clone();
        move || {
            state.store(WAITS, Ordering::SeqCst);
            while state.load(Ordering::SeqCst) < GOES {
                std::hint::spin_loop();
            }
            use_library();
            while state.load(Ordering::SeqCst) < FORKED {
                thread::yield_now();
            }
        }
    });
    while state.load(Ordering::SeqCst) != WAITS {
        thread::yield_now();
    }
    let moment = Duration::from_nanos(n * 7_919 % STEPS_NS);
    state.store(GOES, Ordering::SeqCst);
    let began = Instant::now();
    while began.elapsed() < moment {}
    match fork::fork().unwrap() {
        fork::Fork::Child => {
            use_library();
            std::process::exit(GOOD)
        }
        fork::Fork::Parent(pid) => {
            state.store(FORKED, Ordering::SeqCst);
            let end = end_of(pid);
            thread.join().unwrap();
            end.unwrap_or(HANGS)
        }
    }
}

/// The child waited for a thread of the parent that registered the handler, and that it does not have.
#[test]
fn a_child_waits_for_no_thread_that_uses_the_library_for_the_first_time() {
    for n in 0..FORKS {
        match fork::fork().unwrap() {
            fork::Fork::Child => std::process::exit(forks_meanwhile(n)),
            fork::Fork::Parent(pid) => assert_eq!(fork::waitpid(pid).unwrap(), GOOD, "child {n}"),
        }
    }
}
