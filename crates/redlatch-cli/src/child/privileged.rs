//! Programs that give themselves the rights of another user, which can then not be stopped by us.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::PathBuf,
};

/// The bit of a file's mode that makes its owner the user of the process that runs it.
const SET_USER_ID: u32 = 0o4000;

/// The user that `program` makes itself, if that is another one than ours and we may not signal others' processes.
///
/// What a script starts later cannot be seen here.
pub(crate) fn owner_of(program: &OsStr) -> Option<u32> {
    let own = rustix::process::geteuid();
    let file = fs::metadata(find(program)?).ok()?;
    let other = file.mode() & SET_USER_ID != 0 && file.uid() != own.as_raw();
    (other && !own.is_root()).then(|| file.uid())
}

/// Where the program is: as it stands if it has a slash, else the first one in PATH.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
