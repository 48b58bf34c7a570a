//! What a command prints, kept until it is known whether anybody is to see it.

use std::{
    fs::File,
    io::{self, Seek, Write, stderr},
};

use crate::exit::Failure;

/// A file without a name, for both outputs of the command in the order in which they were written.
#[derive(Debug)]
pub(crate) struct Kept(File);

impl Kept {
    /// Makes one among the temporary files, under a name that nobody can have taken before.
    ///
    /// # Errors
    ///
    /// Internal, when it cannot be made.
    pub(crate) fn new() -> Result<Self, Failure> {
        tempfile::tempfile().map(Kept).map_err(|error| failed(&error))
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
