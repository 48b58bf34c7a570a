//! Where the local engine lives: one for a user, whatever the environment; one for several users if that is asked for.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::support::{Place, Running, both, eventually, finish};

/// An engine of a random name in this user's real place, removed with the value.
pub(crate) struct Engine {
    pub(crate) name: String,
}

impl Engine {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("test-").rand_bytes(12).tempdir().unwrap();
        Engine { name: dir.path().file_name().unwrap().to_string_lossy().into_owned() }
    }

    /// The command in an environment that has these variables only.
    fn command(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
        command.env_clear().envs(environment.iter().copied()).current_dir("/");
        command.args(["--url", &format!("local:{}", self.name)]).args(arguments).stdin(Stdio::null());
        command
    }

    fn output(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Output {
        finish(self.command(environment, arguments))
    }

    fn remove_files(&self, uid: u32) {
        for entry in fs::read_dir(format!("/var/tmp/redlatch-{uid}")).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&format!("{}.", self.name)) {
                _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        _ = self.command(&[], &["engine", "stop", "--force"]).stderr(Stdio::null()).status();
        self.remove_files(rustix::process::geteuid().as_raw());
    }
}

/// The user of that name in Debian.
const NOBODY: u32 = 65_534;

/// Does something at the end, also of a test that fails.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        self.0();
    }
}

/// What surrounds a process of one user, by what started it.
const ENVIRONMENTS: &[(&str, &[(&str, &str)])] = &[
    ("env -i", &[]),
    (
        "a login shell",
        &[
            ("HOME", "/home/ann"),
            ("USER", "ann"),
            ("LOGNAME", "ann"),
            ("SHELL", "/bin/bash"),
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("TERM", "xterm"),
            ("XDG_RUNTIME_DIR", "/run/user/1000"),
            ("XDG_SESSION_ID", "4"),
            ("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/1000/bus"),
        ],
    ),
    ("cron", &[("HOME", "/home/ann"), ("LOGNAME", "ann"), ("SHELL", "/bin/sh"), ("PATH", "/usr/bin:/bin")]),
    (
        "su without a login, which keeps what is another user's",
        &[
            ("HOME", "/home/bob"),
            ("USER", "bob"),
            ("XDG_RUNTIME_DIR", "/run/user/1001"),
            ("MAIL", "/var/mail/bob"),
        ],
    ),
    (
        "su with a login",
        &[
            ("HOME", "/home/ann"),
            ("USER", "ann"),
            ("LOGNAME", "ann"),
            ("SHELL", "/bin/bash"),
            ("PATH", "/usr/bin:/bin"),
        ],
    ),
    (
        "sudo -u",
        &[
            ("HOME", "/home/ann"),
            ("USER", "ann"),
            ("LOGNAME", "ann"),
            ("SUDO_USER", "bob"),
            ("SUDO_UID", "1001"),
            ("SUDO_GID", "1001"),
            ("SUDO_COMMAND", "/usr/bin/redlatch"),
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ],
    ),
    (
        "a unit of the user",
        &[
            ("HOME", "/home/ann"),
            ("USER", "ann"),
            ("XDG_RUNTIME_DIR", "/run/user/1000"),
            ("INVOCATION_ID", "0123456789abcdef"),
            ("MANAGERPID", "900"),
            ("JOURNAL_STREAM", "8:4711"),
            ("SYSTEMD_EXEC_PID", "901"),
        ],
    ),
    (
        "a unit of the system",
        &[
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"),
            ("INVOCATION_ID", "0123456789abcdef"),
            ("RUNTIME_DIRECTORY", "/run/job"),
            ("STATE_DIRECTORY", "/var/lib/job"),
            ("CACHE_DIRECTORY", "/var/cache/job"),
        ],
    ),
    ("a home that is missing", &[("HOME", "/nonexistent")]),
    ("a home of another user", &[("HOME", "/root"), ("XDG_STATE_HOME", "/root/.local/state")]),
    ("a home that machines share", &[("HOME", "/net/home/ann"), ("XDG_CACHE_HOME", "/net/home/ann/.cache")]),
    (
        "other temporary directories",
        &[("TMPDIR", "/nonexistent/tmp"), ("TMP", "/nonexistent"), ("TEMP", "x")],
    ),
    ("a relative runtime directory", &[("XDG_RUNTIME_DIR", "run")]),
    ("an empty runtime directory of our own", &[("REDLATCH_RUNTIME_DIR", "")]),
];

#[test]
fn one_user_has_one_engine_whatever_the_environment() {
    let engine = Engine::new();
    for (at, (holder, environment)) in ENVIRONMENTS.iter().enumerate() {
        let name = format!("n{at}");
        let took = engine.output(environment, &["lock", &name, "--lease", "1h"]);
        assert!(took.status.success(), "{holder}: {took:?}");
        for (other, environment) in ENVIRONMENTS {
            let refused = engine.output(environment, &["run", "-n", &name, "--", "true"]);
            assert_eq!(refused.status.code(), Some(75), "{holder} holds, {other} asks: {refused:?}");
        }
    }
    let uid = rustix::process::geteuid().as_raw();
    assert!(Path::new(&format!("/var/tmp/redlatch-{uid}/{}.sock", engine.name)).exists());
}

/// The programs that start a command as another user, as they come with the system. Only root may be another user without a password;
/// others look whether their own two ways agree.
#[test]
fn one_user_has_one_engine_whatever_program_starts_its_commands() {
    let place = Place::local();
    let engine = Engine::new();
    fs::set_permissions(place.path("x").parent().unwrap(), fs::Permissions::from_mode(0o711)).unwrap();
    let program = place.copy_program(env!("CARGO_BIN_EXE_redlatch"), "redlatch").display().to_string();
    let is_root = rustix::process::geteuid().is_root();
    let mut starts: Vec<(&str, Vec<&str>)> =
        vec![("env", vec!["-i"]), ("sh", vec!["-c", "exec \"$@\"", "sh"]), ("setsid", vec!["-w"])];
    if is_root {
        let sh = ["-s", "/bin/sh", "nobody", "-c", "exec \"$0\" \"$@\"", "--"];
        starts = vec![
            ("su", sh.to_vec()),
            ("su", [&["-"], &sh[..]].concat()),
            ("sudo", vec!["-n", "-u", "nobody", "--"]),
            ("sudo", vec!["-n", "-H", "-E", "-u", "nobody", "--"]),
            ("runuser", vec!["-u", "nobody", "--"]),
            ("runuser", [&["-"], &sh[..]].concat()),
            (
                "setpriv",
                vec!["--reset-env", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--"],
            ),
        ];
    }
    let url = format!("local:{}", engine.name);
    let asks = |(by, how): &(&str, Vec<&str>), arguments: &[&str]| {
        let mut command = Command::new(by);
        command.args(how).args([&program, "--url", &url]).args(arguments);
        // What root's session has is nothing to the other user.
        command.env("XDG_RUNTIME_DIR", "/run/user/0").env_remove("REDLATCH_RUNTIME_DIR");
        command.current_dir("/").stdin(Stdio::null());
        finish(command)
    };
    let _stops = Finally(|| {
        _ = asks(&starts[0], &["engine", "stop", "--force"]);
        engine.remove_files(if is_root { NOBODY } else { rustix::process::geteuid().as_raw() });
    });
    for (at, holder) in starts.iter().enumerate() {
        let name = format!("n{at}");
        let took = asks(holder, &["lock", &name, "--lease", "1h"]);
        assert!(took.status.success(), "{holder:?}: {took:?}");
        for other in &starts {
            let refused = asks(other, &["run", "-n", &name, "--", "true"]);
            assert_eq!(refused.status.code(), Some(75), "{holder:?} holds, {other:?} asks: {refused:?}");
        }
    }
    if is_root {
        // The configuration may name another store, so what cannot be read is not passed over.
        let home = place.path("home");
        let config = home.join(".config/redlatch/config.toml");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        fs::write(&config, "").unwrap();
        fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
        let how = ["--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "env"].to_vec();
        let home = format!("HOME={}", home.display());
        let foreign = ("setpriv", [&how[..], &["-u", "XDG_CONFIG_HOME", &home]].concat());
        let refused = asks(&foreign, &["run", "-n", "n0", "--", "true"]);
        assert!(refused.status.code() == Some(78) && both(&refused).contains("set HOME"), "{refused:?}");
    }
}

#[test]
fn the_working_directory_makes_no_engine() {
    let place = Place::local();
    for (variable, value) in [("REDLATCH_RUNTIME_DIR", "rel"), ("REDLATCH_RUNTIME_DIR", "./rel")] {
        let mut command = place.redlatch(["run", "x", "--", "true"]);
        let refused = finish({
            command.env(variable, value);
            command
        });
        assert_ne!(refused.status.code(), Some(0), "{refused:?}");
        assert!(both(&refused).contains("absolute"), "{refused:?}");
    }
    for arguments in [&["engine", "run", "--dir", "rel"][..], &["engine", "status", "--dir", "rel"]] {
        let refused = place.output(arguments);
        assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    }
    let socket = place.output(["engine", "run", "--socket", "rel.sock"]);
    assert!(!socket.status.success() && both(&socket).contains("absolute"), "{socket:?}");
    assert!(!place.path("rel").exists(), "nothing was made");
}

#[test]
fn doctor_says_whom_the_engine_keeps_apart() {
    let named = Place::local();
    let said = both(&named.output(["doctor"]));
    assert!(
        said.contains("REDLATCH_RUNTIME_DIR") && said.contains(named.path("run").to_str().unwrap()),
        "{said}"
    );
    let engine = Engine::new();
    let said = both(&engine.output(&[], &["doctor"]));
    assert!(said.contains("/var/tmp/redlatch-"), "{said}");
}

/// What `PrivateTmp=yes` makes, where the system lets us make it; the table of mounts is read in a test of its own
/// (`a_private_tmp_is_told_from_the_machines_own`).
#[test]
fn a_unit_with_a_private_tmp_is_told_so_and_gets_no_engine_of_its_own() {
    let allowed = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return;
    }
    let engine = Engine::new();
    assert!(engine.output(&[], &["lock", "x", "--lease", "1h"]).status.success());
    let private = tempfile::Builder::new().prefix("systemd-private-test-").tempdir().unwrap();
    let run = |arguments: &str| {
        let (program, dir) = (env!("CARGO_BIN_EXE_redlatch"), private.path().display());
        let url = format!("local:{}", engine.name);
        let script = format!("mount --bind '{dir}' /var/tmp && exec '{program}' --url {url} {arguments}");
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script]).current_dir("/").stdin(Stdio::null());
        finish(command)
    };
    for arguments in ["run -n x -- true", "engine run", "engine start", "doctor"] {
        let refused = run(arguments);
        assert!(
            !refused.status.success() && both(&refused).contains("PrivateTmp"),
            "{arguments}: {refused:?}"
        );
    }
}

/// A directory that others may look into, with an engine for its group.
fn shared(place: &Place, group: u32) -> (PathBuf, Running) {
    let dir = place.path("sh");
    fs::create_dir(&dir).unwrap();
    chown(&dir, None, Some(group)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
    let unshared = place.output(["engine", "run", "--dir", dir.to_str().unwrap()]);
    assert_eq!(unshared.status.code(), Some(78), "an open directory has to be meant: {unshared:?}");
    let mut engine = place.redlatch(["engine", "run", "--shared", "--dir", dir.to_str().unwrap()]);
    engine.stdout(Stdio::piped());
    let mut engine = Running::spawn(engine);
    let mut ready = [0; 6];
    std::io::Read::read_exact(engine.child().stdout.as_mut().unwrap(), &mut ready).unwrap();
    assert_eq!(&ready, b"READY\n");
    (dir, engine)
}

/// Anybody may make it before its user does, and its engine decided over that user's locks.
#[test]
fn the_place_of_a_user_that_another_user_has_made_is_refused() {
    // Only root can be two users.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    const USER: u32 = 64_777;
    struct Made(PathBuf);
    impl Drop for Made {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }
    let place = Place::local();
    let made = Made(PathBuf::from(format!("/var/tmp/redlatch-{USER}")));
    fs::create_dir(&made.0).unwrap();
    fs::set_permissions(&made.0, fs::Permissions::from_mode(0o755)).unwrap();
    let dir = made.0.to_str().unwrap();
    let mut engine = place.redlatch(["engine", "run", "--shared", "--dir", dir]);
    engine.stdout(Stdio::piped());
    let mut engine = Running::spawn(engine);
    let mut ready = [0; 6];
    std::io::Read::read_exact(engine.child().stdout.as_mut().unwrap(), &mut ready).unwrap();
    fs::set_permissions(made.0.join("default.sock"), fs::Permissions::from_mode(0o666)).unwrap();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o711)).unwrap();
    let program = place.copy_program(env!("CARGO_BIN_EXE_redlatch"), "redlatch");
    let mut command = Command::new(&program);
    command.env_clear().current_dir("/").stdin(Stdio::null()).args(["run", "-n", "x", "--", "true"]);
    command.uid(USER).gid(USER);
    let refused = finish(command);
    assert!(!refused.status.success() && both(&refused).contains("user 0 has made it"), "{refused:?}");
    engine.signal(rustix::process::Signal::TERM);
    engine.finish();
}

#[test]
fn an_engine_for_several_users_serves_its_group_and_nobody_else() {
    let place = Place::local();
    // Only root can be another user as well; others see that they reach the engine and what its files allow.
    let is_root = rustix::process::geteuid().is_root();
    let (user, group) = if is_root { (64_321, 64_322) } else { (0, rustix::process::getegid().as_raw()) };
    let (dir, engine) = shared(&place, group);
    let found = fs::metadata(dir.join("default.sock")).unwrap();
    assert_eq!((found.mode() & 0o777, found.gid()), (0o660, group));
    for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
        let mode = entry.metadata().unwrap().mode() & 0o777;
        assert!(entry.file_name() == "default.sock" || mode == 0o600, "{entry:?} {mode:o}");
    }
    let url = format!("local://{}", dir.display());
    let took = place.output(["--url", &url, "lock", "x", "--lease", "1h"]);
    assert!(took.status.success(), "{took:?}");
    if is_root {
        fs::set_permissions(dir.parent().unwrap(), fs::Permissions::from_mode(0o711)).unwrap();
        let program = place.copy_program(env!("CARGO_BIN_EXE_redlatch"), "redlatch");
        let ask = |group: u32, arguments: &[&str]| {
            let mut command = Command::new(&program);
            command.env_clear().current_dir("/").stdin(Stdio::null()).args(["--url", &url]).args(arguments);
            finish({
                command.uid(user).gid(group);
                command
            })
        };
        assert_eq!(ask(group, &["run", "-n", "x", "--", "true"]).status.code(), Some(75));
        assert_eq!(ask(group, &["run", "-n", "y", "--", "true"]).status.code(), Some(0));
        let stop = ask(group, &["engine", "stop", "--force"]);
        assert!(!stop.status.success() && both(&stop).contains("belongs to"), "{stop:?}");
        let stranger = ask(user, &["run", "-n", "y", "--", "true"]);
        assert_eq!(stranger.status.code(), Some(69), "{stranger:?}");
        // A member starts no engine of its own when this one is gone: that would be a second one.
        let stopped = place.output(["--url", &url, "engine", "stop", "--force"]);
        assert!(stopped.status.success(), "{stopped:?}");
        let gone = ask(group, &["run", "-n", "x", "--", "true"]);
        assert_eq!(gone.status.code(), Some(69), "{gone:?}");
        assert!(both(&gone).contains("engine run --shared"), "{gone:?}");
    } else {
        let stopped = place.output(["--url", &url, "engine", "stop", "--force"]);
        assert!(stopped.status.success(), "{stopped:?}");
    }
    assert!(engine.finish().status.success());
}

#[test]
fn a_directory_that_others_may_write_is_refused() {
    let place = Place::local();
    let dir = place.path("open");
    fs::create_dir(&dir).unwrap();
    for mode in [0o770, 0o702, 0o777] {
        fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
        for arguments in [
            vec!["engine", "run", "--shared", "--dir", dir.to_str().unwrap()],
            vec!["--url", "DIR", "run", "x", "--", "true"],
        ] {
            let url = format!("local://{}", dir.display());
            let arguments: Vec<&str> =
                arguments.iter().map(|word| if *word == "DIR" { url.as_str() } else { *word }).collect();
            let refused = place.output(&arguments);
            assert!(
                !refused.status.success() && both(&refused).contains("chmod go-w"),
                "{mode:o}: {refused:?}"
            );
            assert!(!both(&refused).contains("waiting"), "nothing comes by waiting: {refused:?}");
        }
    }
}

#[test]
fn an_upgrade_of_the_program_does_not_end_what_it_runs_when_the_engine_crashes() {
    let place = Place::local();
    let program = place.copy_program(env!("CARGO_BIN_EXE_redlatch"), "redlatch");
    let (end, started) = (place.word("end"), place.word("started"));
    let script = format!(": > {started}; while [ ! -e {end} ]; do sleep 0.02; done");
    let mut command = Command::new("setsid");
    command.arg(&program).args(["run", "job", "--lease", "9s", "--", "sh", "-c", &script]);
    place.surround(&mut command);
    command.env("PATH", "/usr/bin:/bin");
    let mut job = Running::spawn(command);
    eventually("the command starts", || place.path("started").exists().then_some(()));
    fs::remove_file(&program).unwrap();
    let status = place.output(["engine", "status", "-o", "json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let pid =
        rustix::process::Pid::from_raw(i32::try_from(status["pid"].as_i64().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    // Renewed by way of the next engine, which only the job itself can have started.
    let next = eventually("the next engine", || {
        let output = place.output(["engine", "status", "-o", "json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        status["pid"].as_i64().filter(|next| *next != i64::from(pid.as_raw_nonzero().get()))
    });
    assert!(next > 0 && job.is_running());
    place.renewed("job", 2);
    fs::write(place.path("end"), "").unwrap();
    assert!(job.finish().status.success());
}

/// It looked for a program of its own name, and waited for an engine that it could not start.
#[test]
fn a_program_of_another_name_starts_its_engine_also_after_an_upgrade() {
    let place = Place::local();
    let program = place.copy_program(env!("CARGO_BIN_EXE_redlatch"), "rl");
    let started = place.path("started");
    let output = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words);
        place.surround(&mut command);
        command.env("PATH", "/usr/bin:/bin");
        finish(command)
    };
    let run = output(&["run", "job", "--", "touch", started.to_str().unwrap()]);
    assert!(run.status.success() && started.exists(), "{run:?}");
    assert!(output(&["engine", "stop"]).status.success());
    let start = output(&["engine", "start"]);
    assert!(start.status.success(), "{start:?}");
    // A command that is replaced on disk while it runs.
    let words = format!(
        "rm {rl} && exec {rl_open} engine start",
        rl = program.display(),
        rl_open = "/proc/self/fd/9"
    );
    assert!(output(&["engine", "stop"]).status.success());
    let mut replaced = Command::new("sh");
    replaced.arg("-c").arg(format!("exec 9<{}; {words}", program.display()));
    place.surround(&mut replaced);
    replaced.env("PATH", "/usr/bin:/bin");
    let replaced = finish(replaced);
    assert!(replaced.status.success(), "{replaced:?}");
}

#[test]
fn an_engine_that_takes_long_to_start_is_told_of() {
    let place = Place::local();
    let slow = place.path("redlatch");
    let script = format!("#!/bin/sh\nsleep 1.5\nexec '{}' \"$@\"\n", env!("CARGO_BIN_EXE_redlatch"));
    std::fs::write(place.path("slow"), script).unwrap();
    place.copy_program(place.path("slow"), "redlatch");
    let mut command = place.redlatch(["run", "job", "--", "true"]);
    command.env("REDLATCH_ENGINE_BIN", &slow);
    let output = finish(command);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = both(&output);
    assert!(told.contains("waiting for the local engine") && told.contains("seconds=1"), "{told}");
}
