//! Processes that see another machine than the engine does: other clocks, other directories.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use redlatch_testkit::server::RedisServer;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    place::Engine,
    support::{Place, Running, both, eventually, finish, is_alive},
    tidied::engine,
};

/// The words that begin a command in namespaces of its own: root may make them, and others where each user may have a machine of its own.
fn unshared(place: &Place, kinds: &[&'static str]) -> Command {
    let is_allowed = |options: &Vec<&str>| {
        let tried = Command::new("unshare").args(options).arg("true").output().unwrap();
        tried.status.success()
    };
    let as_root = [&["--map-root-user"], kinds].concat();
    let options = [kinds.to_vec(), as_root].into_iter().find(is_allowed);
    let mut command = Command::new("unshare");
    command.args(options.unwrap_or_else(|| panic!("this system allows nobody {kinds:?}")));
    place.surround(&mut command);
    command
}

/// Kills the engine of a place.
fn kill_engine(place: &Place) {
    let pid = engine(place);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    eventually("it ends", || (!is_alive(pid)).then_some(()));
}

fn uptime_s() -> u64 {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    text.split('.').next().unwrap().parse().unwrap()
}

/// Runs a shell's line where the machine seems to have been started so many seconds earlier or later, perhaps with another boot's id.
fn at_another_time(place: &Place, shift_s: i64, boot_id: Option<&Path>, line: &str) -> Output {
    let shift = format!("--boottime={shift_s}");
    let mut kinds = vec!["--time"];
    let mut script = format!("exec redlatch {line}");
    if let Some(id) = boot_id {
        kinds.push("--mount");
        script = format!("mount --bind '{}' /proc/sys/kernel/random/boot_id && {script}", id.display());
    }
    let mut command = unshared(place, &kinds);
    command.args([&shift, "--", "sh", "-c", &script]);
    finish(command)
}

/// What the engine writes has to mean the same to one that starts where the clock since the start of the machine is shifted.
#[test]
fn an_engine_in_a_time_namespace_keeps_what_was_held_before_it_and_so_does_the_next_one_outside() {
    const LEASE_MS: u64 = 3_600_000;
    let place = Place::local();
    let other_boot = place.path("boot_id");
    fs::write(&other_boot, "5e1c6a4e-0000-4000-8000-000000000001\n").unwrap();
    let back = -i64::try_from(uptime_s() / 2).unwrap();
    for (at, (shift_s, boot_id)) in [
        (864_000, None),
        (back, None),
        // As in a container that has an id of its own: the same run of the machine all the same.
        (864_000, Some(&*other_boot)),
        (back, Some(&*other_boot)),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("n{at}");
        let story = format!("{shift_s} s, {boot_id:?}");
        let left_ms = || place.show(&name)["ttl_ms"].as_u64();
        assert_eq!(place.code(["lock", &name, "--lease", "1h"]), 0);
        for _ in 0..2 {
            kill_engine(&place);
            let refused = at_another_time(&place, shift_s, boot_id, &format!("run -n {name} -- true"));
            assert_eq!(refused.status.code(), Some(75), "{story}: {refused:?}");
            kill_engine(&place);
            let refused = place.output(["run", "-n", &name, "--", "true"]);
            assert_eq!(refused.status.code(), Some(75), "{story}, outside again: {refused:?}");
            let left_ms = left_ms();
            assert!(left_ms.is_some_and(|left| left <= LEASE_MS), "{story}: {left_ms:?}");
        }
    }
}

/// What a directory that only this process sees makes of the place of all engines of a user.
fn with_another_place(place: &Place, engine: &Engine, mounts: &str) -> Output {
    let mut command = unshared(place, &["--mount"]);
    // The engine that doctor starts there is seen from nowhere else, so it is stopped there, too.
    let script = format!("set -e; {mounts}; redlatch doctor; redlatch engine stop");
    command.args(["sh", "-c", &script]).env_remove("REDLATCH_RUNTIME_DIR");
    command.env("REDLATCH_URL", format!("local:{}", engine.name));
    finish(command)
}

#[test]
fn doctor_names_a_mount_namespace_and_a_container_whose_engine_others_do_not_share() {
    const APART: &str = "the first process of this system sees another directory at /var/tmp/redlatch-";
    let (place, engine) = (Place::local(), Engine::new());
    let doctor = |mounts: &str| with_another_place(&place, &engine, mounts);
    let private = place.path("private");
    fs::create_dir(&private).unwrap();
    let bound = format!("mount --bind '{}' /var/tmp", private.display());
    // The second one is what PrivateTmp=disconnected makes.
    for mounts in [&bound, "mount -t tmpfs none /var/tmp"] {
        let output = doctor(mounts);
        let text = both(&output);
        assert!(output.status.success(), "{mounts}: {text}");
        let told =
            text.lines().find(|line| line.contains(APART)).unwrap_or_else(|| panic!("{mounts}: {text}"));
        assert!(told.starts_with("note") && told.contains("local:///directory"), "{told}");
    }
    // What all of them see they share.
    let shared = doctor("mount --bind /var/tmp /var/tmp");
    assert!(shared.status.success() && !both(&shared).contains(APART), "{shared:?}");
    let marked = doctor("mount -t tmpfs none /run; touch /run/.containerenv");
    assert!(both(&marked).contains("of this container"), "{marked:?}");
}

/// The command of a run where `/proc` is another namespace's works on when its run is killed, and a run never saw its end there: it says so instead of starting.
#[test]
fn a_run_does_not_start_a_command_that_it_could_not_find() {
    let place = Place::local();
    for (sight, script) in [
        ("another namespace's", "exec redlatch run job -- touch ran"),
        ("none", "mount -t tmpfs none /proc; exec redlatch run job -- touch ran"),
    ] {
        let mut command = unshared(&place, &["--mount", "--pid", "--fork"]);
        command.args(["setsid", "sh", "-c", script]);
        let output = finish(command);
        assert_eq!(output.status.code(), Some(78), "{sight}: {output:?}");
        assert!(both(&output).contains("unshare --mount-proc"), "{sight}: {output:?}");
        assert!(!place.path("ran").exists(), "{sight}");
    }
    assert_eq!(place.show("job")["kind"], "free");
}

/// Its session and its group were begun outside, so they have no number inside.
#[test]
fn a_killed_run_whose_session_was_begun_outside_of_its_namespace_takes_its_command_with_it() {
    let server = RedisServer::start().unwrap();
    let place = Place::on(&server);
    let script = format!(
        "echo $$ > {job}; sh -c 'while :; do date +%s.%N > {beat}; sleep 0.02; done' & while :; do sleep 0.05; done",
        job = place.word("job.pid"),
        beat = place.word("beat"),
    );
    let mut command = unshared(&place, &["--pid", "--fork", "--mount-proc"]);
    command.args([
        "sh",
        "-c",
        "redlatch run job --lease 6s -- sh -c \"$1\" & echo $! > run.pid; wait",
        "sh",
        &script,
    ]);
    let outside = Running::spawn(command);
    place.pid("job");
    let beat = || fs::read_to_string(place.path("beat")).unwrap_or_default();
    eventually("it works", || (!beat().is_empty()).then_some(()));
    // By its number outside.
    let run = descendants(outside.pid()).into_iter().find(|pid| comm(*pid) == "redlatch").expect("the run");
    kill_process(Pid::from_raw(run).unwrap(), Signal::KILL).unwrap();
    eventually("what it started has ended", || {
        let before = beat();
        std::thread::sleep(std::time::Duration::from_millis(300));
        (beat() == before).then_some(())
    });
    assert_eq!(place.show("job")["kind"], "lock", "well before its lease");
}

fn comm(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The processes below one, as they are numbered here.
fn descendants(of: i32) -> Vec<i32> {
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children =
            fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        found.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        next += 1;
    }
    found
}
