//! Which engine of a socket serves: the one that has locked a file beside it, and another one beside its journal where that is elsewhere.
//!
//! The lock is on the file and not on its name. Where the file is deleted, another engine can lock one of the same name, so the name is
//! looked at again for as long as the engine serves.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::journal::is_same_file;

/// A daemon loses its socket a moment before its claim; its successor waits so long for that.
/// There is no form of `flock` that waits for a limited time, hence the retries.
const WAIT_MAX: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(2);

/// The locked files.
pub(super) struct Claim(Vec<Locked>);

struct Locked {
    file: File,
    path: PathBuf,
    /// What is to stand in it.
    text: Vec<u8>,
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
    /// Locks all of the files; `None` if another daemon has one of them.
    pub(super) fn take(paths: &[PathBuf]) -> io::Result<Option<Claim>> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut all = Vec::new();
        for path in paths {
            let file = open(path)?;
            while !lock(&file)? {
                if Instant::now() >= deadline {
                    return Ok(None);
                }
                std::thread::sleep(RETRY);
            }
            all.push(Locked { file, path: path.clone(), text: Vec::new() });
        }
        let mut claim = Claim(all);
        Ok(claim.is_held()?.then_some(claim))
    }

    /// Notes beside the socket where the journal is, if that is elsewhere: an engine that is started for this socket without it would grant
    /// what is held. The error is the place of the journal that was noted, if it is another one.
    pub(super) fn keeps_journal_in(&mut self, dir: &Path) -> io::Result<Result<(), PathBuf>> {
        let is_elsewhere = self.0.len() > 1;
        let Some(beside) = self.0.first_mut() else { return Ok(Ok(())) };
        let noted = std::fs::read(&beside.path)?;
        let own = if is_elsewhere { dir.as_os_str().as_bytes() } else { b"" };
        if !noted.is_empty() && noted != own {
            return Ok(Err(PathBuf::from(OsString::from_vec(noted))));
        }
        beside.text = own.to_vec();
        beside.note()?;
        Ok(Ok(()))
    }

    /// Whether the files of these names are those that are locked.
    pub(super) fn is_held(&mut self) -> io::Result<bool> {
        for locked in &mut self.0 {
            if !locked.is_held()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Locked {
    fn note(&self) -> io::Result<()> {
        if self.text.is_empty() { Ok(()) } else { self.file.write_all_at(&self.text, 0) }
    }

    /// Whether the file of this name is the one that is locked. If it was deleted it is made again, unless another daemon has locked
    /// one since: then this one must serve nobody any more.
    fn is_held(&mut self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| is_same_file(&found, &own)) {
            return Ok(true);
        }
        let again = open(&self.path)?;
        let is_ours = lock(&again)?;
        if is_ours {
            tracing::warn!(file = %self.path.display(), "the lock file was deleted and has been made again");
            self.file = again;
            self.note()?;
        }
        Ok(is_ours)
    }
}
