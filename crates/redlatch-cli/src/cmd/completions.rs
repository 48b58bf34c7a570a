//! `redlatch completions`: a completion script for a shell, and what such scripts ask for.
//!
//! The parser's generator knows verbs and options. Names, contexts and commands are asked for when Tab is pressed.

use std::ffi::OsString;

use clap::Command;
use clap_complete::Shell;

use super::{Context, offered::offered};
use crate::{args, exit, exit::Failure, output};

/// What is added to the generated scripts.
const BASH: &str = include_str!("completions/redlatch.bash");
const ZSH: &str = include_str!("completions/redlatch.zsh");
const FISH: &str = include_str!("completions/redlatch.fish");

pub(super) fn completions(shell: Shell) -> Result<u8, Failure> {
    // Written into memory first, because the generator panics when a pipe is closed under it.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(&args::command(false)), "redlatch", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    output::emit(&match shell {
        Shell::Bash => script + BASH,
        Shell::Zsh => zsh(&script),
        Shell::Fish => script + FISH,
        _ => script,
    })?;
    Ok(exit::OK)
}

/// The command without what is hidden, which the generators would offer.
fn shown(command: &Command) -> Command {
    let subcommands: Vec<Command> =
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).map(shown).collect();
    let bare = Command::new(command.get_name().to_owned());
    let mut bare = bare.args(command.get_arguments().cloned()).groups(command.get_groups().cloned());
    for (text, set) in [
        (command.get_about(), Command::about as fn(Command, _) -> Command),
        (command.get_long_about(), Command::long_about),
        (command.get_after_help(), Command::after_help),
    ] {
        if let Some(text) = text {
            bare = set(bare, text.clone());
        }
    }
    let version = command.get_version().map(str::to_owned);
    let bare = if let Some(version) = version { bare.version(version) } else { bare };
    bare.subcommands(subcommands)
}

/// The words that stand for a name call our function instead of offering files.
fn zsh(script: &str) -> String {
    let lines = script.lines().map(|line| {
        let named = ["':name -- ", "'::name -- ", "'*::name -- ", "'*::names -- "];
        let context = line.starts_with("'--context=").then_some("_redlatch_contexts");
        let name = named.iter().any(|start| line.starts_with(start)).then_some("_redlatch_names");
        match context.or(name) {
            // With two colons a name would be the end of the options.
            Some(function) => {
                line.replacen("'*::", "'*:", 1).replace(":_default'", &format!(":{function}'")) + "\n"
            }
            None => format!("{line}\n"),
        }
    });
    let script: String = lines.collect();
    match script.split_once('\n') {
        Some((first, rest)) => format!("{first}\n{ZSH}{rest}"),
        None => script,
    }
}

/// Prints what the last word may be, one a line; fails where the generated script knows more.
pub(super) fn complete(words: &[OsString], context: &Context) -> Result<u8, Failure> {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let Some(found) = offered(&words, context) else { return Ok(exit::BUSY) };
    output::emit(&found.iter().map(|word| format!("{word}\n")).collect::<String>())?;
    Ok(exit::OK)
}
