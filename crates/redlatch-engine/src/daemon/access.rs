//! Who may reach the daemon: the owner of its directory and, if that is asked for, the group of the directory.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use crate::place::{hidden, is_own_place, own_uid};

/// Who may reach an engine in a directory.
pub(crate) enum Standing {
    /// This user alone.
    Private,
    /// Others as well: it belongs to another user, or is open to others. Only its owner changes what is in it. The text says why
    /// no engine starts there by itself.
    Shared(String),
}

/// Creates the directory when it is missing, and refuses one that another user could use to get between the daemon and
/// its clients.
pub(crate) fn standing(dir: &Path) -> io::Result<Standing> {
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(dir)
        && !dir.is_dir()
    {
        return Err(error);
    }
    let refuse = |problem: String| {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {problem}", dir.display())))
    };
    let found = std::fs::symlink_metadata(dir)?;
    let (owner, mode) = (found.uid(), found.mode() & 0o777);
    if found.file_type().is_symlink() {
        refuse("is a symbolic link".to_owned())
    } else if !found.is_dir() {
        refuse("is not a directory".to_owned())
    } else if mode & 0o022 != 0 {
        refuse(format!(
            "can be written by others than its owner (mode {mode:o}); run: chmod go-w {}",
            dir.display()
        ))
    } else if owner != own_uid() && is_own_place(dir) {
        // Anybody may write beside it, and may have been first.
        refuse(format!(
            "is the place of user {}, and user {owner} has made it: an engine there would grant what that user likes; have it removed, \
             or set REDLATCH_RUNTIME_DIR",
            own_uid()
        ))
    } else if owner != own_uid() {
        Ok(Standing::Shared(format!(
            "{} belongs to user {owner}, not to user {}, and that user's shared engine does not run; it is started with \
             `redlatch engine run --shared --dir {}`",
            dir.display(),
            own_uid(),
            dir.display()
        )))
    } else if mode & 0o077 != 0 {
        Ok(Standing::Shared(format!(
            "{} is open to others (mode {mode:o}); run: chmod 700 {}, or start an engine for several users there with \
             `redlatch engine run --shared`",
            dir.display(),
            dir.display()
        )))
    } else {
        Ok(Standing::Private)
    }
}

/// The same for a daemon: the directory must be its own, and for itself alone unless it is to serve several users.
pub(crate) fn prepare_dir(dir: &Path, shared: bool) -> io::Result<()> {
    if let Some(why) = hidden(dir) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    match standing(dir)? {
        Standing::Private => Ok(()),
        Standing::Shared(_) if shared && std::fs::symlink_metadata(dir)?.uid() == own_uid() => Ok(()),
        Standing::Shared(problem) => Err(io::Error::new(io::ErrorKind::PermissionDenied, problem)),
    }
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

/// Lets the owner connect, and for a shared engine the group of its directory as well.
pub(crate) fn restrict_socket(socket: &Path, shared: bool) -> io::Result<()> {
    if shared && let Some(dir) = socket.parent() {
        std::os::unix::fs::chown(socket, None, Some(std::fs::symlink_metadata(dir)?.gid()))?;
    }
    std::fs::set_permissions(socket, Permissions::from_mode(if shared { 0o660 } else { 0o600 }))
}
