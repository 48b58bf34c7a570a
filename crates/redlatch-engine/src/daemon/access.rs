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
    let parents = || if found.is_dir() { parents_problem(dir, owner) } else { Ok(None) };
    if let Some(problem) = parents()? {
        refuse(problem)
    } else if found.file_type().is_symlink() {
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

/// What is wrong with the directories above one that belongs to this user: others could put another one in its place. Each of them belongs
/// to that user, to this process' user or to root, and nobody else may write to it, unless it keeps what users own for these (the sticky bit).
fn parents_problem(dir: &Path, owner: u32) -> io::Result<Option<String>> {
    let is_trusted = |uid: u32| uid == 0 || uid == own_uid() || uid == owner || is_unknown_here(uid);
    // The path as it is written, whose links count as well, and as it is without them.
    let resolved = dir.canonicalize()?;
    for parent in dir.ancestors().skip(1).chain(resolved.ancestors().skip(1)) {
        let found = std::fs::symlink_metadata(parent)?;
        let (uid, mode) = (found.uid(), found.mode() & 0o7777);
        if !is_trusted(uid) {
            return Ok(Some(format!(
                "lies below {}, which belongs to user {uid}, who could put another directory in its place; use a directory below one of your own \
                 or of root",
                parent.display()
            )));
        }
        if !found.file_type().is_symlink() && mode & 0o022 != 0 && mode & 0o1000 == 0 {
            return Ok(Some(format!(
                "lies below {}, which can be written by others than its owner (mode {mode:o}), who could put another directory in its place; \
                 run: chmod go-w {}",
                parent.display(),
                parent.display()
            )));
        }
    }
    Ok(None)
}

/// Whether this is how a user namespace shows all users that it does not have, root of the machine among them.
fn is_unknown_here(uid: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let has_all = || read("/proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    read("/proc/sys/kernel/overflowuid").trim().parse() == Ok(uid) && !has_all()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(dir: &Path) -> Option<String> {
        standing(dir).err().map(|error| error.to_string())
    }

    #[test]
    fn a_directory_below_one_that_others_may_write_to_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (above, link) = (root.path().join("above"), root.path().join("link"));
        let dir = above.join("between/run");
        assert_eq!(refusal(&dir), None);
        std::os::unix::fs::symlink(&above, &link).unwrap();
        let by_link = link.join("between/run");
        for (mode, is_refused) in
            [(0o777, true), (0o1777, false), (0o770, true), (0o755, false), (0o711, false)]
        {
            std::fs::set_permissions(&above, Permissions::from_mode(mode)).unwrap();
            for dir in [&dir, &by_link] {
                let refused = refusal(dir);
                assert_eq!(refused.is_some(), is_refused, "{mode:o}: {refused:?}");
                let names_it = |text: &String| text.contains("above") && text.contains("chmod go-w");
                assert!(refused.as_ref().is_none_or(names_it), "{refused:?}");
                assert_eq!(prepare_dir(dir, true).is_err(), is_refused);
            }
        }
        // Only root can give a directory to another user.
        if own_uid() == 0 {
            std::os::unix::fs::chown(&above, Some(12_345), None).unwrap();
            assert!(refusal(&dir).is_some_and(|text| text.contains("belongs to user 12345")));
            // Its own parents are the business of the user that a shared engine belongs to.
            std::os::unix::fs::chown(&dir, Some(12_345), None).unwrap();
            assert_eq!(refusal(&dir), None);
        }
    }
}
