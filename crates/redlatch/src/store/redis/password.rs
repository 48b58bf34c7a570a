//! A password that comes from a file, and is read again when the server does not take it any more.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    config::Secret,
    error::{Error, ErrorKind},
};

/// The largest password file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A password file and what was last read from it, shared by all connections of a store.
#[derive(Clone)]
pub(super) struct PasswordFile(Arc<Inner>);

struct Inner {
    path: PathBuf,
    last: Mutex<String>,
}

impl PasswordFile {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let last = Mutex::new(read(path)?);
        Ok(PasswordFile(Arc::new(Inner { path: path.to_owned(), last })))
    }

    pub(super) fn last(&self) -> Secret {
        Secret(Some(self.0.last.lock().unwrap_or_else(PoisonError::into_inner).clone()))
    }

    /// Whether there is another password by now than the one that was refused. Another connection may have read it already.
    pub(super) async fn has_other_than(&self, refused: &Secret) -> bool {
        if self.last() != *refused {
            return true;
        }
        let (inner, refused) = (self.0.clone(), refused.clone());
        let outcome = tokio::task::spawn_blocking(move || {
            let password = read(&inner.path)?;
            // Not with what was read last: another connection may have read the new one meanwhile.
            let is_other = refused.0.as_ref() != Some(&password);
            *inner.last.lock().unwrap_or_else(PoisonError::into_inner) = password;
            Ok::<_, Error>(is_other)
        });
        match outcome.await {
            Ok(Ok(changed)) => changed,
            Ok(Err(error)) => {
                tracing::warn!(%error, "the server refuses the password, and its file cannot be read again");
                false
            }
            Err(_) => false,
        }
    }
}

/// The content of the file without the ends of its lines.
fn read(path: &Path) -> Result<String, Error> {
    let bad = |why: &dyn std::fmt::Display| {
        Error::new(ErrorKind::InvalidOption, format!("the password file {}: {why}", path.display()))
            .remedy("put the password into the file, and nothing else")
    };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| bad(&error))?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| bad(&error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(bad(&"it is over 64 KiB"));
    }
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(bad(&"it is empty")),
        password => Ok(password.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All but one of several connections that were refused at once were told that the file had nothing else.
    #[tokio::test]
    async fn connections_that_are_refused_at_once_all_find_the_new_password() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        for _ in 0..50 {
            std::fs::write(&path, "first").unwrap();
            let file = PasswordFile::open(&path).unwrap();
            let refused = file.last();
            std::fs::write(&path, "second").unwrap();
            let found = futures_util::future::join_all((0..4).map(|_| file.has_other_than(&refused))).await;
            assert_eq!(found, [true; 4]);
            assert!(!file.has_other_than(&file.last()).await, "there is no third");
        }
    }
}
