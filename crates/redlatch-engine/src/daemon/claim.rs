//! Which engine of a socket serves: the one that has locked a file beside it.
//!
//! The lock is on the file and not on its name. Where the file is deleted, another engine can lock one of the same name, so the name is
//! looked at again for as long as the engine serves.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::journal::is_same_file;

/// A daemon loses its socket a moment before its claim; its successor waits so long for that.
/// There is no form of `flock` that waits for a limited time, hence the retries.
const WAIT_MAX: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(2);

/// The locked file.
pub(super) struct Claim {
    file: File,
    path: PathBuf,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Locks a file now; `false` if another daemon has locked it.
fn lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl Claim {
    /// Locks the file; `None` if another daemon has it.
    pub(super) fn take(path: PathBuf) -> io::Result<Option<Claim>> {
        let file = open(&path)?;
        let deadline = Instant::now() + WAIT_MAX;
        while !lock(&file)? {
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(RETRY);
        }
        let mut claim = Claim { file, path };
        Ok(claim.is_held()?.then_some(claim))
    }

    /// Whether the file of this name is the one that is locked. If it was deleted it is made again, unless another daemon has locked
    /// one since: then this one must serve nobody any more.
    pub(super) fn is_held(&mut self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| is_same_file(&found, &own)) {
            return Ok(true);
        }
        let again = open(&self.path)?;
        let is_ours = lock(&again)?;
        if is_ours {
            tracing::warn!(file = %self.path.display(), "the lock file was deleted and has been made again");
            self.file = again;
        }
        Ok(is_ours)
    }
}
