//! Who may reach the daemon: the owner of its directory, nobody else.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

/// The user that this process acts for.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Creates the directory when it is missing, and refuses one that others could use to get between the daemon and
/// its clients.
pub(crate) fn prepare_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let found = std::fs::symlink_metadata(dir)?;
    let problem = if found.file_type().is_symlink() {
        "is a symbolic link".to_owned()
    } else if !found.is_dir() {
        "is not a directory".to_owned()
    } else if found.uid() != own_uid() {
        format!("belongs to user {}, not to user {}", found.uid(), own_uid())
    } else if found.mode() & 0o077 != 0 {
        format!("is open to others (mode {:o}); run: chmod 700 {}", found.mode() & 0o777, dir.display())
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {problem}", dir.display())))
}

/// Takes away a socket file that a dead daemon left. Anything but a socket stays and is an error.
pub(crate) fn remove_stale_socket(socket: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(socket),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} exists and is not a socket", socket.display()),
        )),
    }
}

pub(crate) fn restrict_socket(socket: &Path) -> io::Result<()> {
    std::fs::set_permissions(socket, Permissions::from_mode(0o600))
}
