//! Where an engine lives. The place follows from the user alone and from nothing in the environment: a login shell, a cron job and
//! a unit of one user must reach the same engine, or their locks do not exclude each other.

use std::path::{Path, PathBuf};

use crate::connect_error::{ConnectError, ConnectErrorKind};

/// Socket paths above this length do not fit into the address of a socket everywhere.
const SOCKET_PATH_BYTES_MAX: usize = 100;
const NAME_BYTES_MAX: usize = 64;
/// The directories that every process of a machine shares and may write to, best first: what lies in the first outlives a
/// restart of the machine. Directories of a login session end with it, and home directories may be missing, closed to a
/// unit, or shared with other machines.
const SHARED_PLACES: [&str; 2] = ["/var/tmp", "/tmp"];
/// What a mount of `PrivateTmp=` has in its root.
const PRIVATE_TMP: &str = "systemd-private-";

/// The user that this process acts for.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether this is the place of all engines of this user, on whichever disk.
pub(crate) fn is_own_place(dir: &Path) -> bool {
    let name = format!("redlatch-{}", own_uid());
    SHARED_PLACES.iter().any(|place| Path::new(place).join(&name) == dir)
}

/// Where the daemon of one name keeps its things.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalPaths {
    /// The directory, for the owner alone; the journal lies here too.
    pub dir: PathBuf,
    /// The socket.
    pub socket: PathBuf,
    /// Locked by the process that is starting a daemon.
    pub lock_file: PathBuf,
    /// Locked by the daemon itself from its start to its end, also while it has no socket.
    pub claim_file: PathBuf,
    /// Where a daemon that was started in the background writes.
    pub log_file: PathBuf,
}

impl LocalPaths {
    /// The paths for a name, or for the default daemon, in [`LocalPaths::usual_dir`].
    ///
    /// # Errors
    ///
    /// As [`LocalPaths::in_dir`].
    pub fn for_name(name: Option<&str>) -> Result<LocalPaths, ConnectError> {
        LocalPaths::in_dir(LocalPaths::usual_dir(), name)
    }

    /// The directory of this user's engines: `$REDLATCH_RUNTIME_DIR` if set, else `redlatch-<uid>` in `/var/tmp`, or in `/tmp` on
    /// a machine that has no `/var/tmp`.
    pub fn usual_dir() -> PathBuf {
        if let Some(dir) = std::env::var_os("REDLATCH_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
            return dir.into();
        }
        let shared = SHARED_PLACES.iter().map(Path::new);
        let place = shared.clone().find(|place| place.is_dir()).unwrap_or(Path::new(SHARED_PLACES[0]));
        place.join(format!("redlatch-{}", own_uid()))
    }

    /// The same in a given directory.
    ///
    /// # Errors
    ///
    /// When the name has other characters than `A-Z a-z 0-9 _ -` or more than 64 of them, the directory is relative, or the
    /// path of the socket is too long for the system.
    pub fn in_dir(dir: PathBuf, name: Option<&str>) -> Result<LocalPaths, ConnectError> {
        let name = name.unwrap_or("default");
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(valid) {
            return Err(ConnectError::new(
                ConnectErrorKind::Name,
                format_args!("{name:?} is no engine name: use 1 to 64 of A-Z a-z 0-9 _ -"),
            ));
        }
        if !dir.is_absolute() {
            return Err(ConnectError::new(
                ConnectErrorKind::Name,
                format_args!(
                    "the engine's directory {} is relative: processes with other working directories would have other \
                     engines, and their locks would not exclude each other; use an absolute path",
                    dir.display()
                ),
            ));
        }
        let socket = dir.join(format!("{name}.sock"));
        let length = socket.as_os_str().len();
        if length >= SOCKET_PATH_BYTES_MAX {
            return Err(ConnectError::new(
                ConnectErrorKind::Name,
                format_args!(
                    "the socket path {} has {length} bytes, the system allows fewer than \
                     {SOCKET_PATH_BYTES_MAX}: use a shorter directory",
                    socket.display()
                ),
            ));
        }
        Ok(LocalPaths {
            lock_file: dir.join(format!("{name}.lock")),
            claim_file: dir.join(format!("{name}.engine")),
            log_file: dir.join(format!("{name}.log")),
            socket,
            dir,
        })
    }
}

impl LocalPaths {
    /// Whether a daemon lives here, also one that reads its journal still or has lost its socket.
    pub fn is_claimed(&self) -> bool {
        use rustix::fs::{FlockOperation, flock};

        let held = std::fs::File::open(&self.claim_file).map(|file| {
            let claimed =
                flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK);
            // A forked child may have a copy of the descriptor.
            _ = flock(&file, FlockOperation::Unlock);
            claimed
        });
        held.unwrap_or(false)
    }
}

impl LocalPaths {
    /// Whether the first process of this system sees another directory by this name: this process is in a chroot or in a mount
    /// namespace of its own. None where that cannot be told.
    pub fn is_apart(&self) -> Option<bool> {
        let there = self.dir.ancestors().find_map(|dir| dir.canonicalize().ok())?;
        let sees = |process: &str| {
            let mounts = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).ok()?;
            mount_of(&mounts, &there).map(|mount| (mount.device, mount.inside))
        };
        Some(sees("self")? != sees("1")?)
    }
}

/// Why a directory cannot be the place of an engine: only one unit of the machine sees it. None where that cannot be told.
pub(crate) fn hidden(dir: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let there = dir.ancestors().find_map(|dir| dir.canonicalize().ok())?;
    let mount = mount_of(&mounts, &there)?;
    mount.root.contains(PRIVATE_TMP).then(|| {
        format!(
            "{} is seen by one systemd unit only (PrivateTmp=), so locks there would exclude nobody else; set PrivateTmp=no, \
             or use a directory that all processes see, such as REDLATCH_URL=local:///run/redlatch",
            dir.display()
        )
    })
}

/// Where a path lies.
#[derive(Debug)]
struct Mount {
    /// The file system.
    device: String,
    /// What part of it is mounted there.
    root: String,
    /// The path inside of the file system.
    inside: PathBuf,
}

fn mount_of(mounts: &str, path: &Path) -> Option<Mount> {
    let mut best: Option<(usize, Mount)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(2);
        let (Some(device), Some(root), Some(point)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, point) = (unescape(root), PathBuf::from(unescape(point)));
        let depth = point.components().count();
        let Ok(below) = path.strip_prefix(&point) else { continue };
        // Of several mounts on one point the last one counts.
        if best.as_ref().is_none_or(|(deepest, _)| depth >= *deepest) {
            let inside = Path::new(&root).join(below);
            best = Some((depth, Mount { device: device.to_owned(), root, inside }));
        }
    }
    best.map(|(_, mount)| mount)
}

/// The table writes blanks, tabs, line ends and backslashes as a backslash and three octal digits.
fn unescape(field: &str) -> String {
    let known = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    known.iter().fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_directory_is_refused() {
        for dir in ["rel", "./rel", "", ".."] {
            let error = LocalPaths::in_dir(dir.into(), None).expect_err(dir);
            assert_eq!(error.kind(), ConnectErrorKind::Name);
            assert!(error.to_string().contains("absolute"), "{error}");
        }
    }

    #[test]
    fn a_private_tmp_is_told_from_the_machines_own() {
        let host = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                    30 22 0:26 / /tmp rw,nosuid shared:9 - tmpfs tmpfs rw\n\
                    31 22 0:40 /@/var /var rw - btrfs /dev/vdb rw\n";
        let unit = "400 399 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                    410 400 0:26 /systemd-private-5f1e-a.service-Xy/tmp /tmp rw,nosuid shared:9 - tmpfs tmpfs rw\n\
                    411 400 254:0 /var/tmp/systemd-private-5f1e-a.service-Zq/tmp /var/tmp rw - ext4 /dev/vda rw\n\
                    412 400 254:0 /srv/a\\040b /srv/a\\040b rw - ext4 /dev/vda rw\n";
        for dir in ["/tmp/redlatch-0", "/var/tmp/redlatch-0", "/run/redlatch", "/"] {
            let root = mount_of(host, Path::new(dir)).expect("it is mounted").root;
            assert!(!root.contains(PRIVATE_TMP), "{dir}: {root}");
        }
        for (dir, private) in
            [("/tmp/redlatch-0", true), ("/var/tmp/x", true), ("/run/redlatch", false), ("/srv/a b/c", false)]
        {
            let root = mount_of(unit, Path::new(dir)).expect("it is mounted").root;
            assert_eq!(root.contains(PRIVATE_TMP), private, "{dir}: {root}");
        }
        let blank = mount_of(unit, Path::new("/srv/a b/c")).expect("it is mounted");
        assert_eq!((&*blank.device, &*blank.root), ("254:0", "/srv/a b"));
        assert_eq!(blank.inside, Path::new("/srv/a b/c"));
    }
}
