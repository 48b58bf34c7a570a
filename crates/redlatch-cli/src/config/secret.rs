//! Passwords: from a file, from a variable, or typed in. They are never shown, and no flag takes one.

use std::{
    fmt,
    io::{self, BufRead, IsTerminal, Read, Write},
    path::Path,
};

use rustix::termios::{LocalModes, tcgetattr};

use super::read_bounded;
use crate::{escape, exit::Failure, signals::Silence};

/// The longest password that is read from a terminal, in bytes.
const TYPED_BYTES_MAX: u64 = 64 * 1024;

/// A password. It is never printed.
#[derive(Clone)]
pub(crate) struct Secret(pub(super) String);

impl Secret {
    /// One that was made here.
    pub(crate) fn of(text: String) -> Self {
        Secret(text)
    }

    /// The token in a file.
    ///
    /// # Errors
    ///
    /// Configuration, for a file that cannot be read or is empty.
    pub(crate) fn token_file(path: &Path) -> Result<Self, Failure> {
        read_file(path, "token")
    }

    /// The password itself, for the connection only.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

/// A password that cannot be read, for those who only look at the settings.
pub(super) fn unread() -> Secret {
    Secret(String::new())
}

pub(super) fn from_file(path: &str) -> Result<Secret, Failure> {
    read_file(Path::new(path), "password")
}

/// Reads what a file of this sort has in its only line.
fn read_file(path: &Path, what: &str) -> Result<Secret, Failure> {
    let shown = escape::bytes(path.as_os_str().as_encoded_bytes());
    let text = read_bounded(path)
        .map_err(|error| Failure::config(format!("cannot read the {what} file {shown}: {error}")))?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(Failure::config(format!("the {what} file {shown} is empty"))),
        secret => Ok(Secret(secret.to_owned())),
    }
}

/// Asks on the terminal, without showing what is typed. Without a terminal nobody could answer, and what stands on stdin is
/// meant for another program.
pub(super) fn typed() -> Result<Secret, Failure> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(Failure::usage(
            "--password-prompt needs a terminal on stdin; use --password-file or REDLATCH_PASSWORD",
        ));
    }
    let failed = |error: io::Error| Failure::internal(format!("cannot ask for the password: {error}"));
    let before = tcgetattr(&stdin).map_err(|error| failed(error.into()))?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    silent.local_modes.insert(LocalModes::ECHONL);
    let mut line = String::new();
    {
        let _silence = Silence::begin(before, silent).map_err(failed)?;
        let mut stderr = io::stderr();
        // A user who cannot see the question can still answer it.
        let _ = stderr.write_all(b"Password: ").and_then(|()| stderr.flush());
        stdin.lock().take(TYPED_BYTES_MAX).read_line(&mut line).map_err(failed)?;
    }
    match line.trim_end_matches(['\r', '\n']) {
        "" => Err(Failure::config("no password was typed")),
        password => Ok(Secret(password.to_owned())),
    }
}
