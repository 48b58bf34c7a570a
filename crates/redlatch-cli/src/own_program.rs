//! This program, to be started once more, under any name.

use std::{
    env, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A path to it that holds while it runs, though an upgrade may replace it on disk meanwhile.
pub(crate) fn path() -> io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() { Ok(running.to_owned()) } else { env::current_exe() }
}

pub(crate) fn command() -> io::Result<Command> {
    let mut command = Command::new(path()?);
    command.arg0("redlatch");
    Ok(command)
}
