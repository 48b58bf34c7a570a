//! What a wait of minutes says, with a clock that runs faster than the machine's.

use std::{fs, path::PathBuf, process::Command};

use redlatch_testkit::server::RedisServer;
use rustix::process::Signal;

use crate::support::{Place, Running, eventually};

/// Twenty times as fast: the clock that the program's timers read, and the wait until the next of them.
const FAST: &str = r#"
#define _GNU_SOURCE
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define SPEED 20
#define SECOND 1000000000LL
static struct timespec began;
__attribute__((constructor)) static void begin(void) { syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &began); }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (failed || clock != CLOCK_MONOTONIC) return failed;
    long long passed = (now->tv_sec - began.tv_sec) * SECOND + now->tv_nsec - began.tv_nsec;
    long long shown = began.tv_sec * SECOND + began.tv_nsec + passed * SPEED;
    now->tv_sec = shown / SECOND;
    now->tv_nsec = shown % SECOND;
    return 0;
}
int epoll_wait(int epoll, struct epoll_event *events, int most, int ms) {
    int wait = ms > 0 ? (ms + SPEED - 1) / SPEED : ms;
    return syscall(SYS_epoll_pwait, epoll, events, most, wait, NULL, 8);
}
"#;

/// A library that the loader puts into the program.
fn fast(place: &Place) -> PathBuf {
    let (source, library) = (place.path("fast.c"), place.path("fast.so"));
    fs::write(&source, FAST).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success(), "the tests need a C compiler");
    library
}

/// The seconds at the end of a line, such as `waited 2m05s`.
fn waited_s(line: &str) -> u64 {
    let (_, text) =
        line.rsplit_once("; waited ").unwrap_or_else(|| panic!("it does not say how long: {line}"));
    if text.ends_with("ms") {
        return 0;
    }
    let (minutes, seconds) = text.split_once('m').unwrap_or(("0", text));
    let whole = seconds.trim_end_matches('s').split('.').next().unwrap();
    minutes.parse::<u64>().unwrap() * 60 + whole.parse::<u64>().unwrap()
}

#[test]
fn a_wait_says_once_a_minute_how_long_it_lasts_and_who_holds() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    assert_eq!(place.code(["lock", "job", "--lease", "1h"]), 0);
    let owner = place.show("job")["holders"][0]["owner"].as_str().unwrap().to_owned();
    let mut waiter = place.shell("exec redlatch run job -w 1h -- true 2> told");
    waiter.env("LD_PRELOAD", fast(&place)).env("REDLATCH_RESPONSE_TIMEOUT", "2m");
    let waiter = Running::spawn(waiter);
    let lines = || {
        let text = place.read("told");
        text.lines().filter(|line| line.contains("waiting for")).map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("four minutes", || (lines().len() >= 5).then_some(()));
    waiter.signal(Signal::TERM);
    let output = waiter.finish();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let lines = lines();
    assert!(lines.iter().all(|line| line.contains(&format!("held by {owner}"))), "{lines:#?}");
    let waited: Vec<u64> = lines.iter().map(|line| waited_s(line)).collect();
    // The one who waits may be a second early, and the machine as late as it likes.
    assert!(waited.windows(2).all(|two| two[1] - two[0] >= 58), "{lines:#?}");
}
