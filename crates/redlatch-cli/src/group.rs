//! Numbers of process groups and sessions. One that was begun outside of our namespace of processes has the number 0 here.

use nix::unistd::{Pid, getpgid, getpgrp, getsid};

/// The group of this process.
pub(crate) fn own() -> i32 {
    getpgrp().as_raw()
}

/// The group of a process; nothing if there is no such process.
pub(crate) fn of(pid: rustix::process::Pid) -> Option<i32> {
    getpgid(Some(Pid::from_raw(pid.as_raw_nonzero().get()))).ok().map(Pid::as_raw)
}

/// The session of this process.
pub(crate) fn own_session() -> i32 {
    getsid(None).map_or(0, Pid::as_raw)
}

/// The session of a process; nothing if there is no such process.
pub(crate) fn session_of(pid: rustix::process::Pid) -> Option<i32> {
    getsid(Some(Pid::from_raw(pid.as_raw_nonzero().get()))).ok().map(Pid::as_raw)
}
