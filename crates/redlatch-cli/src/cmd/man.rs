//! `redlatch man`: the manual pages, one for each verb.

use std::{io, path::Path};

use clap::Command;
use clap_mangen::Man;

use crate::{args, escape, exit, exit::Failure};

pub(super) fn man(dir: &Path) -> Result<u8, Failure> {
    // The options that all verbs share stand on the first page alone.
    let command = args::command(true);
    let first = page(dir, "redlatch", args::command(false));
    let mut verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    first.and_then(|()| verbs.try_for_each(|verb| pages(dir, "redlatch", verb))).map_err(
        |error: io::Error| {
            let dir = dir.to_string_lossy();
            Failure::internal(format!("cannot write the manual pages into {}: {error}", escape::text(&dir)))
        },
    )?;
    Ok(exit::OK)
}

/// The page of a verb and of those below it.
fn pages(dir: &Path, parent: &str, verb: &Command) -> io::Result<()> {
    let name = format!("{parent} {}", verb.get_name());
    page(dir, &name, verb.clone())?;
    verb.get_subcommands().try_for_each(|below| pages(dir, &name, below))
}

/// One page. The generator writes a synopsis of every single option, which nobody reads; this one says how the verb is called.
fn page(dir: &Path, name: &str, command: Command) -> io::Result<()> {
    // A page for each word of `help` would say nothing that the others do not.
    let mut command = command.name(name.replace(' ', "-")).bin_name(name).disable_help_subcommand(true);
    command.build();
    let usage = command.render_usage().to_string();
    let usage = usage.trim().trim_start_matches("Usage:").trim().replace(['<', '>'], "");
    let man = Man::new(command).title(name.replace(' ', "-"));
    let mut text = Vec::new();
    man.render(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let synopsis = ".SH SYNOPSIS\n";
    let text = match text.split_once(synopsis) {
        Some((before, rest)) => {
            let after = rest.find("\n.SH ").map_or("", |at| &rest[at..]);
            let usage: Vec<&str> = usage.lines().map(str::trim).collect();
            format!("{before}{synopsis}{}{after}", usage.join("\n.br\n").replace('-', "\\-"))
        }
        None => text,
    };
    std::fs::write(dir.join(format!("{}.1", name.replace(' ', "-"))), text)
}
