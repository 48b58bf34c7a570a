//! A fork while a thread of the parent does something for the first time, or begins. It is a program of its own, because what any other test has
//! done is not done for the first time here, and its tests take turns, because a child inherits what threads of the other test do.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redlatch::{ErrorKind, blocking};
use redlatch_testkit::server::RedisServer;
use rustix::process::{Signal, getpid, kill_process};

/// From when on a child hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);
const FORKS: u64 = 300;
/// One of so many children is without threads, where its parent's begin and end all the time: about one of ten.
const FORKS_MAX: usize = 3_000;
/// The standard library frees the name of a thread that ends while it has the lock taken. A long name takes longer: with none it was one of a
/// thousand, and a run that met none of three thousand.
const NAME_BYTES: usize = 60_000;
/// How many threads begin and end others.
const STORMS: usize = 4;
/// The forks are spread over so much time from the thread's first step.
const STEPS_NS: u64 = 400_000;

const GOOD: i32 = 0;
const HANGS: i32 = 1;
const REFUSED: i32 = 2;
/// Of a child in which no thread runs. The standard library would take the lock in `exit`, too, so such a child ends itself by a signal.
const NO_THREAD: Signal = Signal::TERM;

fn alone() -> impl Drop {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    kill_process(pid, Signal::KILL).unwrap();
    fork::waitpid(pid.as_raw_nonzero().get()).unwrap();
    None
}

/// Has a thread take a lock, forks at some moment of that, and has the child take another one.
fn forks_meanwhile(url: &str, n: u64) -> i32 {
    let client = blocking::Client::connect(url).unwrap();
    let (of_thread, of_child) = (client.lock(format!("thread-{n}")), client.lock(format!("child-{n}")));
    // The thread neither begins nor ends while the process forks: that is the other test's.
    let (begun, forked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let thread = thread::spawn({
        let (begun, forked) = (begun.clone(), forked.clone());
        move || {
            begun.store(true, Ordering::SeqCst);
            drop(of_thread.try_lock());
            while !forked.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        }
    });
    while !begun.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    let (began, moment) = (Instant::now(), Duration::from_nanos(n * 7_919 % STEPS_NS));
    while began.elapsed() < moment {}
    match fork::fork().unwrap() {
        fork::Fork::Child => std::process::exit(if of_child.lock().is_ok() { GOOD } else { REFUSED }),
        fork::Fork::Parent(pid) => {
            forked.store(true, Ordering::SeqCst);
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
    let _alone = alone();
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

/// What a child does in which there may be no thread: its parent's begin and end all the time.
fn takes_a_lock(client: &blocking::Client, n: usize) -> i32 {
    let lock = client.lock(format!("child-{n}"));
    let is_told = |error: &redlatch::Error| {
        error.kind() == ErrorKind::Forked && error.to_string().contains("no thread runs in this process")
    };
    match (lock.lock(), lock.lock()) {
        (Ok(_), Ok(_)) => GOOD,
        (Err(error), Err(again)) if is_told(&error) && is_told(&again) => {
            kill_process(getpid(), NO_THREAD).unwrap();
            unreachable!("the signal ends it")
        }
        _ => REFUSED,
    }
}

/// The standard library has each thread take a lock when it begins and when it ends. A child that was forked off meanwhile has it taken for ever,
/// and waited for ever for a thread of its own.
#[test]
fn a_child_in_which_no_thread_runs_is_told_and_does_not_hang() {
    let _alone = alone();
    let server = RedisServer::start().unwrap();
    let client = blocking::Client::connect(&server.url()).unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let storms: Vec<_> = (0..STORMS)
        .map(|_| {
            let (ends, name) = (ends.clone(), "n".repeat(NAME_BYTES));
            thread::spawn(move || {
                while !ends.load(Ordering::SeqCst) {
                    thread::Builder::new().name(name.clone()).spawn(|| {}).unwrap().join().unwrap();
                }
            })
        })
        .collect();
    let mut good = 0;
    let end = loop {
        let end = match fork::fork().unwrap() {
            fork::Fork::Child => std::process::exit(takes_a_lock(&client, good)),
            fork::Fork::Parent(pid) => end_of(pid),
        };
        match end {
            Some(GOOD) if good < FORKS_MAX => good += 1,
            end => break end,
        }
    };
    ends.store(true, Ordering::SeqCst);
    storms.into_iter().for_each(|storm| storm.join().unwrap());
    // What is waited for has the signal in its lowest bits.
    assert_eq!(end, Some(NO_THREAD.as_raw()), "after {good} children in which threads ran");
}
