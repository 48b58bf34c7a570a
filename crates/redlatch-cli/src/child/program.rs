//! The program of a command, looked at before the lock is taken: whether it can run, and whether it gives itself the rights of another
//! user, so that we could not stop it.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, AtFlags, CWD, accessat},
    io::Errno,
};

use crate::exit::{self, Failure};

/// The bit of a file's mode that makes its owner the user of the process that runs it.
const SET_USER_ID: u32 = 0o4000;
/// Where the system looks without a PATH.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// Refuses a command that cannot run. Only what is certain counts: the system itself looks once more when it starts the command.
///
/// # Errors
///
/// Not found, or not executable.
pub(crate) fn check(command: &[OsString]) -> Result<(), Failure> {
    let program = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    match find(program) {
        Err(errno @ (Errno::NOENT | Errno::ACCESS)) => Err(cannot_run(program, &errno.into())),
        _ => Ok(()),
    }
}

/// Why `program` does not run.
pub(super) fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let program = crate::escape::bytes(program.as_encoded_bytes());
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    };
    Failure::new(code, format!("cannot run \"{program}\": {error}"))
}

/// The user that `program` makes itself, if that is another one than ours and we may not signal others' processes.
///
/// What a script starts later cannot be seen here.
pub(crate) fn owner_of(program: &OsStr) -> Option<u32> {
    let own = rustix::process::geteuid();
    let file = fs::metadata(find(program).ok()?).ok()?;
    let other = file.mode() & SET_USER_ID != 0 && file.uid() != own.as_raw();
    (other && !own.is_root()).then(|| file.uid())
}

/// Where the program is: as it stands if it has a slash, else the first one in PATH that may be run.
fn find(program: &OsStr) -> Result<PathBuf, Errno> {
    if program.is_empty() {
        return Err(Errno::NOENT);
    }
    if program.as_bytes().contains(&b'/') {
        return may_run(Path::new(program)).map(|()| program.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    let mut why_not = Errno::NOENT;
    for file in env::split_paths(&path).map(|dir| dir.join(program)) {
        match may_run(&file) {
            Ok(()) => return Ok(file),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            // It counts when nothing better is found.
            Err(errno) => why_not = errno,
        }
    }
    Err(why_not)
}

/// Whether it is a file that this user may run.
fn may_run(file: &Path) -> Result<(), Errno> {
    accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)?;
    // A directory may be "run" by all who may look for files in it.
    match fs::metadata(file) {
        Ok(found) if found.is_dir() => Err(Errno::ACCESS),
        _ => Ok(()),
    }
}
