//! `redlatch man`: the manual pages, one for each verb.

use std::path::Path;

use clap::CommandFactory;

use crate::{args::Cli, escape, exit, exit::Failure};

pub(super) fn man(dir: &Path) -> Result<u8, Failure> {
    // A page for each word of `help` would say nothing that the others do not.
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), dir).map_err(|error| {
        let dir = dir.to_string_lossy();
        Failure::internal(format!("cannot write the manual pages into {}: {error}", escape::text(&dir)))
    })?;
    Ok(exit::OK)
}
