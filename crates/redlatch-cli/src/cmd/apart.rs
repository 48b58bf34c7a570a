//! An engine that starts by itself keeps nothing of the process that started it.
//!
//! Descriptors are closed by beginning anew (`exec`), because only what is marked can be closed safely, and the environment of a
//! running process cannot be taken from where others read it. Signals that the starter ignores get their defaults back by the same step,
//! because `exec` keeps what is ignored and resets what is caught. What it has blocked is unblocked. What needs rights that are missing stays: niceness, hard limits, the
//! control group.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    sync::Arc,
};

use nix::sys::signal::SigSet;
use rustix::{
    fs::Mode,
    process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit, umask},
};
use signal_hook::consts::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
    SIGWINCH,
};

/// Says that this process has begun anew.
const APART_ENV: &str = "REDLATCH_ENGINE_APART";
/// The first descriptor beyond input, output and errors.
const FIRST_FOREIGN_FD: i32 = 3;
/// What an engine reads of its environment. All else may be a secret of the process that happened to start it.
const KEPT: [&str; 9] =
    ["HOME", "PATH", "TZ", "LANG", "LC_ALL", "LC_CTYPE", "NO_COLOR", "RUST_LOG", "RUST_BACKTRACE"];
const KEPT_OURS: [&str; 2] = ["REDLATCH_RUNTIME_DIR", "REDLATCH_LOG"];
/// Limits that end a process which runs for long or writes much.
const LIMITS: [Resource; 4] = [Resource::Fsize, Resource::Cpu, Resource::As, Resource::Data];

/// Signals that a starter may ignore: `nohup` does, and shells for what runs in the background.
const SIGNALS: [i32; 13] = [
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2,
    SIGWINCH,
];
/// The niceness that a process has by default.
const NICENESS: i32 = 0;

/// Leaves what belongs to the starter: descriptors, environment, directory, masks of files and signals, soft limits, ignored signals, and
/// niceness if the system lets us. Returns in the process that has.
pub(super) fn leave_the_starter() {
    umask(Mode::RWXG | Mode::RWXO);
    // `exec` keeps what is blocked, and an engine that TERM does not reach could not be stopped.
    _ = SigSet::empty().thread_set_mask();
    // Others wait for the engine, so it must not run as slowly as the batch job that happened to start it.
    _ = setpriority_process(None, NICENESS);
    for resource in LIMITS {
        let limit = getrlimit(resource);
        _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
    }
    // A directory that a daemon stands in cannot be unmounted. Staying is no reason to fail.
    _ = env::set_current_dir("/");
    if env::var_os(APART_ENV).is_some() {
        return;
    }
    close_fds::set_fds_cloexec(FIRST_FOREIGN_FD, &[]);
    let error = match env::current_exe() {
        Ok(own) => begin_anew(if own.exists() { own.as_os_str() } else { OsStr::new("/proc/self/exe") }),
        Err(error) => error,
    };
    tracing::warn!(%error, "the engine keeps descriptors and environment of the process that started it");
}

fn begin_anew(program: &OsStr) -> std::io::Error {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let kept = KEPT.iter().chain(&KEPT_OURS).filter_map(|name| Some((*name, env::var_os(name)?)));
    let kept: Vec<_> = kept.collect();
    let mut command = Command::new(Path::new(program));
    for signal in SIGNALS {
        // A signal that is caught here has its default after `exec`. One that cannot be caught stays as it is.
        _ = signal_hook::flag::register(signal, Arc::default());
    }
    command.arg0("redlatch").args(arguments).env_clear().envs(kept).env(APART_ENV, "1");
    command.exec()
}
