//! The step between us and the command, which ties the command's life to ours.
//!
//! If we are killed, nobody renews the lock and nobody could stop the command when the lease ends. Linux can send a signal
//! to a process when its parent dies, but a process can only ask for that itself. So we start ourselves once more; that
//! copy asks, makes sure that we still live, and becomes the command.

use std::{ffi::OsString, io, process::Command};

/// The hidden verb of the step.
pub(crate) const VERB: &str = "__exec";

/// The name of the process while it is not the command yet; it stays if it never gets there.
pub(super) const PROCESS_NAME: &str = "redlatch:exec";

/// This program, to be started once more.
pub(super) fn own() -> io::Result<Command> {
    use std::os::unix::process::CommandExt;

    // This path still works when the program was replaced on disk while it waited for the lock.
    let own = std::path::Path::new("/proc/self/exe");
    let own = if own.exists() { own.to_owned() } else { std::env::current_exe()? };
    let mut command = Command::new(own);
    command.arg0("redlatch");
    Ok(command)
}

/// Whether programs may give the command rights that we do not have.
#[cfg(target_os = "linux")]
const MAY_GAIN: &str = "+";
const GAINS_NONE: &str = "-";

/// The command that starts `words` by way of the step. Unless it `gains_rights`, programs that would give it those of another
/// user do not.
#[cfg(target_os = "linux")]
pub(super) fn command(words: &[OsString], gains_rights: bool) -> io::Result<Command> {
    let mut command = own()?;
    let rights = if gains_rights { MAY_GAIN } else { GAINS_NONE };
    command.arg(VERB).arg(std::process::id().to_string()).arg(rights).args(words);
    Ok(command)
}

/// Elsewhere there is no such signal, and the command is started as it is.
#[cfg(not(target_os = "linux"))]
pub(super) fn command(words: &[OsString], gains_rights: bool) -> io::Result<Command> {
    if gains_rights { Ok(super::direct(words)) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// The step itself: becomes the command, or returns the exit code that says why not.
pub(crate) fn exec(mut arguments: impl Iterator<Item = OsString>) -> u8 {
    use std::os::unix::process::CommandExt;

    let parent = arguments.next().and_then(|pid| pid.to_str()?.parse().ok());
    let gains_none = arguments.next().is_some_and(|word| word == GAINS_NONE);
    if tie_to_parent(parent).is_err() || (gains_none && gain_none().is_err()) {
        return crate::exit::INTERNAL;
    }
    let words: Vec<OsString> = arguments.collect();
    // Resets the signal mask and SIGPIPE, then never returns if it works.
    let error = super::direct(&words).exec();
    let program = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    crate::talk::error(format_args!("cannot run \"{}\": {error}", crate::escape::text(&program)));
    if error.kind() == io::ErrorKind::NotFound { crate::exit::NOT_FOUND } else { crate::exit::NOT_EXECUTABLE }
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
