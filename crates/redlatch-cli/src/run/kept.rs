//! What a command prints, kept until it is known whether anybody is to see it.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{self, Seek, Write, stderr},
    os::unix::fs::OpenOptionsExt,
};

use crate::exit::Failure;

/// How many names are tried for the file.
const ATTEMPTS_MAX: u32 = 16;

/// A file without a name, for both outputs of the command in the order in which they were written.
#[derive(Debug)]
pub(crate) struct Kept(File);

impl Kept {
    /// Makes one among the temporary files.
    ///
    /// # Errors
    ///
    /// Internal, when it cannot be made.
    pub(crate) fn new() -> Result<Self, Failure> {
        let mut attempt = 0;
        loop {
            let path = env::temp_dir().join(format!("redlatch-{}-{attempt}", std::process::id()));
            let file = OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(&path);
            match file {
                Ok(file) => {
                    // Nobody else needs its name, and so it goes with the run however that ends.
                    fs::remove_file(&path).map_err(|error| failed(&error))?;
                    return Ok(Kept(file));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < ATTEMPTS_MAX => {
                    attempt += 1;
                }
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// One more way to write into it.
    ///
    /// # Errors
    ///
    /// Internal, when the system has no more descriptors.
    pub(crate) fn handle(&self) -> Result<File, Failure> {
        self.0.try_clone().map_err(|error| failed(&error))
    }

    /// Prints all of it to stderr, and returns whether there was anything.
    pub(crate) fn print(mut self) -> bool {
        let copied = self.0.rewind().and_then(|()| io::copy(&mut self.0, &mut stderr()));
        // A closed stderr is nobody's fault.
        _ = stderr().flush();
        !matches!(copied, Ok(0))
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::internal(format!("cannot keep the command's output: {error}"))
}
