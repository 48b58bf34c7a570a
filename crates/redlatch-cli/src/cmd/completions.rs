//! `redlatch completions`: a completion script for a shell, and what such scripts ask for.
//!
//! The parser's generator knows verbs and options. Names, contexts and commands are asked for when Tab is pressed.

use clap::Command;
use clap_complete::Shell;
use redlatch::{Client, LockKind};

use super::Context;
use crate::{
    args::{self, Completed},
    config::{Settings, Surroundings},
    escape, exit,
    exit::Failure,
    output, store,
};

/// The most names that are offered.
const NAMES_MAX: usize = 200;
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
    let script = script.replace("The lock:_default'", "The lock:_redlatch_names'");
    let script = script.replace("or none:_default'", "or none:_redlatch_names'");
    match script.split_once('\n') {
        Some((first, rest)) => format!("{first}\n{ZSH}{rest}"),
        None => script,
    }
}

/// Prints what begins with `prefix`, one a line. A shell that asks wants no explanations: what goes wrong offers nothing.
pub(super) fn complete(what: Completed, prefix: &str, context: &Context) -> Result<u8, Failure> {
    let found = match what {
        Completed::Names => names(prefix, context).unwrap_or_default(),
        Completed::Contexts => {
            Settings::contexts(&context.global, &Surroundings::of_process()).unwrap_or_default()
        }
    };
    let mut found: Vec<String> = found.into_iter().filter(|word| word.starts_with(prefix)).collect();
    found.sort();
    found.dedup();
    output::emit(&found.iter().map(|word| format!("{word}\n")).collect::<String>())?;
    Ok(exit::OK)
}

fn names(prefix: &str, context: &Context) -> Result<Vec<String>, Failure> {
    let settings = context.settings()?;
    let mut names = Vec::new();
    let glob = format!("{}*", prefix.replace(['*', '?', '[', '\\'], "?"));
    let all = [
        LockKind::Lock,
        LockKind::Fair,
        LockKind::ReadWrite,
        LockKind::PermitSemaphore,
        LockKind::RateLimiter,
    ];
    store::with_client(&settings, async |client: &Client| {
        for state in client.list_kinds(&all, Some(&glob), NAMES_MAX).await? {
            // What acts on a terminal is not put into a command line.
            names.extend(
                state
                    .name
                    .as_str()
                    .filter(|name| !name.chars().any(escape::acts_on_terminal))
                    .map(str::to_owned),
            );
        }
        Ok(exit::OK)
    })?;
    Ok(names)
}
