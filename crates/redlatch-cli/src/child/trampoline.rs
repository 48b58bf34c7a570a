//! The step between us and the command, which ties the command's life to ours.
//!
//! If we are killed, nobody renews the lock and nobody could stop the command when the lease ends. Linux can send a signal
//! to a process when its parent dies, but a process can only ask for that itself. So we start ourselves once more; that
//! copy asks, makes sure that we still live, and becomes the command.
//!
//! It is also the last that looks at the lease. Between the grant and the command's first instruction this process or the step may
//! stand still for longer than the lease, and then another holder has the lock.

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    process::Command,
    str::FromStr,
    time::Duration,
};

use redlatch_engine::{Clock, SystemClock};

use super::program::cannot_run;
use crate::{exit, own_program};

/// The hidden verb of the step.
pub(crate) const VERB: &str = "__exec";

/// The name of the process while it is not the command yet; it stays if it never gets there.
pub(super) const PROCESS_NAME: &str = "redlatch:exec";

/// Until when the lock is held for certain, on the clock that goes on while the machine sleeps: all processes read the same there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    boot_us: u64,
}

impl Deadline {
    /// The end of what `remaining` answers.
    pub(crate) fn after(remaining: impl FnOnce() -> Duration) -> Self {
        // The clock comes first: what passes in between shortens the time.
        let now = SystemClock.boot_us();
        let remaining = u64::try_from(remaining().as_micros()).unwrap_or(u64::MAX);
        Deadline { boot_us: now.saturating_add(remaining) }
    }

    fn has_passed(self) -> bool {
        SystemClock.boot_us() >= self.boot_us
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.boot_us.fmt(f)
    }
}

impl FromStr for Deadline {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Deadline { boot_us: text.parse()? })
    }
}

/// Whether programs may give the command rights that we do not have.
#[cfg(target_os = "linux")]
const MAY_GAIN: &str = "+";
const GAINS_NONE: &str = "-";

/// The command that starts `words` by way of the step, before `deadline` or not at all. Unless it `gains_rights`, programs that would give it those of another
/// user do not.
#[cfg(target_os = "linux")]
pub(super) fn command(words: &[OsString], deadline: Deadline, gains_rights: bool) -> io::Result<Command> {
    let mut command = own_program::command()?;
    let rights = if gains_rights { MAY_GAIN } else { GAINS_NONE };
    command.arg(VERB).arg(std::process::id().to_string()).arg(rights).arg(deadline.to_string()).args(words);
    Ok(command)
}

/// Elsewhere there is no such signal, and the command is started as it is.
#[cfg(not(target_os = "linux"))]
pub(super) fn command(words: &[OsString], deadline: Deadline, gains_rights: bool) -> io::Result<Command> {
    if deadline.has_passed() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    if gains_rights { Ok(super::direct(words)) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// The step itself: becomes the command, or returns the exit code that says why not.
pub(crate) fn exec(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    use std::os::unix::process::CommandExt;

    let parent = arguments.next().and_then(|pid| pid.to_str()?.parse().ok());
    let gains_none = arguments.next().is_some_and(|word| word == GAINS_NONE);
    let deadline = arguments.next().and_then(|time| time.to_str()?.parse::<Deadline>().ok());
    let Some(deadline) = deadline else { return exit::INTERNAL };
    if tie_to_parent(parent).is_err() || (gains_none && gain_none().is_err()) {
        return exit::INTERNAL;
    }
    let words: Vec<OsString> = arguments.collect();
    let command = super::direct(&words);
    if deadline.has_passed() {
        return exit::LOST;
    }
    // Resets the signal mask and SIGPIPE, then never returns if it works.
    let error = { command }.exec();
    let failure = cannot_run(words.first().map_or(OsStr::new(""), OsString::as_os_str), &error);
    crate::talk::error(&failure);
    failure.code()
}

#[cfg(target_os = "linux")]
fn tie_to_parent(parent: Option<i32>) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};

    let name = std::ffi::CString::new(PROCESS_NAME)?;
    rustix::thread::set_name(&name)?;
    // KILL, because the run that would follow a TERM with a KILL is gone.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the parent died before the line above, the signal never comes.
    match (parent, getppid()) {
        (Some(expected), Some(actual)) if actual.as_raw_nonzero().get() == expected => Ok(()),
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn tie_to_parent(_parent: Option<i32>) -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn gain_none() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

#[cfg(not(target_os = "linux"))]
fn gain_none() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
