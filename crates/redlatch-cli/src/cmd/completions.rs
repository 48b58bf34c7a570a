//! `redlatch completions`: a completion script for a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{args::Cli, exit, exit::Failure, output};

pub(super) fn completions(shell: Shell) -> Result<u8, Failure> {
    // Written into memory first, because the generator panics when a pipe is closed under it.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "redlatch", &mut script);
    output::emit(&String::from_utf8_lossy(&script))?;
    Ok(exit::OK)
}
