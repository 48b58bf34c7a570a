//! What is offered for the last word of a command line that is still being typed.
//!
//! The parser's own tree says what that word is, so a new verb or option needs nothing here. Names and contexts are looked up where the
//! line says, by its `--url`, `--context` and `--config`.

use std::{path::PathBuf, time::Duration};

use clap::{Arg, Command};
use redlatch::{Client, acl::Kind};

use super::Context;
use crate::{
    args::{self, Global},
    config::{Settings, Surroundings},
    escape, exit,
    exit::Failure,
    store,
};

/// The most names that are offered.
const NAMES_MAX: usize = 200;
/// How long a server may keep the person waiting who has pressed Tab.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the last word of a line is.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    /// The name of a lock or of something else, below this verb.
    Name(String),
    /// A context of the configuration.
    Context,
    /// Something that the generated script knows, or that nothing is known of.
    Other,
}

/// What begins as the last of these words does; `None` if only the generated script knows what comes there.
pub(super) fn offered(words: &[String], context: &Context) -> Option<Vec<String>> {
    let mut global = context.global.clone();
    let prefix = words.last()?;
    let found = match expected(words, &mut global) {
        Word::Other => return None,
        Word::Context => Settings::contexts(&global, &Surroundings::of_process()),
        Word::Name(verb) => names(&verb, prefix, &global),
    };
    // Who presses Tab wants no explanations: what goes wrong offers nothing.
    let mut found = found.unwrap_or_default();
    // What acts on a terminal is not put into a command line.
    found.retain(|word| word.starts_with(prefix.as_str()) && !word.chars().any(escape::acts_on_terminal));
    found.sort();
    found.dedup();
    Some(found)
}

/// What the last word is, with the shared options before it noted in `global`.
fn expected(words: &[String], global: &mut Global) -> Word {
    let mut root = args::command(false);
    root.build();
    let Some((last, before)) = words.split_last() else { return Word::Other };
    let (mut verb, mut path, mut at) = (&root, String::new(), 0);
    let mut open: Option<&Arg> = None;
    for word in before.iter().skip(1) {
        if let Some(option) = open.take() {
            note(global, option, word);
        } else if word == "--" {
            return Word::Other;
        } else if let Some((name, value)) = word.strip_prefix("--").and_then(|word| word.split_once('=')) {
            if let Some(option) = long(&root, verb, name) {
                note(global, option, value);
            }
        } else if let Some(name) = word.strip_prefix("--") {
            open = long(&root, verb, name).filter(|option| takes_a_word(option));
        } else if let Some(letters) = word.strip_prefix('-') {
            open = letters
                .chars()
                .last()
                .and_then(|letter| short(&root, verb, letter))
                .filter(|o| takes_a_word(o));
        } else if let Some(below) = verb.find_subcommand(word) {
            verb = below;
            path = if path.is_empty() { word.clone() } else { path };
        } else {
            at += 1;
        }
    }
    match open {
        Some(option) if option.get_id() == "context" => return Word::Context,
        Some(_) => return Word::Other,
        None if last.starts_with('-') => return Word::Other,
        None => {}
    }
    let places: Vec<&Arg> = verb.get_positionals().filter(|place| !place.is_last_set()).collect();
    let last_place = places.last().filter(|place| takes_many(place));
    match places.get(at).or(last_place) {
        Some(place) if place.get_id() == "name" || place.get_id() == "names" => Word::Name(path),
        _ => Word::Other,
    }
}

fn options<'a>(root: &'a Command, verb: &'a Command) -> impl Iterator<Item = &'a Arg> {
    verb.get_arguments().chain(root.get_arguments().filter(|arg| arg.is_global_set()))
}

fn long<'a>(root: &'a Command, verb: &'a Command, name: &str) -> Option<&'a Arg> {
    options(root, verb).find(|option| option.get_long() == Some(name))
}

fn short<'a>(root: &'a Command, verb: &'a Command, letter: char) -> Option<&'a Arg> {
    options(root, verb).find(|option| option.get_short() == Some(letter))
}

/// Whether the next word is the option's value. One that may go without takes it behind a `=`.
fn takes_a_word(option: &Arg) -> bool {
    let optional = option.get_num_args().is_some_and(|count| count.min_values() == 0);
    option.get_action().takes_values() && !optional
}

fn takes_many(place: &Arg) -> bool {
    place.get_num_args().is_some_and(|count| count.max_values() > 1)
        || matches!(place.get_action(), clap::ArgAction::Append)
}

/// Notes a shared option that says where names are.
fn note(global: &mut Global, option: &Arg, value: &str) {
    let path = || Some(PathBuf::from(value));
    match option.get_id().as_str() {
        "url" => global.url = Some(value.to_owned()),
        "context" => global.context = Some(value.to_owned()),
        "username" => global.username = Some(value.to_owned()),
        "address_map" => global.address_map = Some(value.to_owned()),
        "config" => global.config = path(),
        "password_file" => global.password_file = path(),
        "redisson_yaml" => global.redisson_yaml = path(),
        _ => {}
    }
}

/// The names in use that begin so, of the kinds that the verb is about.
fn names(verb: &str, prefix: &str, global: &Global) -> Result<Vec<String>, Failure> {
    let kind = match verb {
        "sem" => Some(Kind::Semaphore),
        "latch" => Some(Kind::Latch),
        "rate" => Some(Kind::RateLimiter),
        _ => None,
    };
    let mut settings = Settings::load(global, &Surroundings::of_process())?;
    settings.connect_timeout = settings.connect_timeout.min(PATIENCE);
    settings.response_timeout = settings.response_timeout.min(PATIENCE);
    let glob = format!("{}*", prefix.replace(['*', '?', '[', '\\'], "?"));
    let mut names = Vec::new();
    store::with_client(&settings, async |client: &Client| {
        let states = match kind.and_then(Kind::found_as) {
            Some(found) => client.list_kinds(&[found], Some(&glob), NAMES_MAX).await?,
            None => client.list(Some(&glob), NAMES_MAX).await?,
        };
        names.extend(states.iter().filter_map(|state| state.name.as_str().map(str::to_owned)));
        Ok(exit::OK)
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_what_its_place_on_the_line_makes_it() {
        let word = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let mut global = Global::default();
            (expected(&words, &mut global), global)
        };
        let name = |verb: &str| Word::Name(verb.to_owned());
        for (line, expected) in [
            ("redlatch show ", name("show")),
            ("redlatch --url local: -q show o", name("show")),
            ("redlatch run a b", name("run")),
            ("redlatch run -w 5 ", name("run")),
            ("redlatch run -nw ", Word::Other),
            ("redlatch run x -c ", Word::Other),
            ("redlatch run x -- ", Word::Other),
            ("redlatch run x --report ", Word::Other),
            ("redlatch run -", Word::Other),
            ("redlatch sem show ", name("sem")),
            ("redlatch rate set ", name("rate")),
            ("redlatch rate set x ", Word::Other),
            ("redlatch latch wait -E 3 ", name("latch")),
            ("redlatch doctor x ", name("doctor")),
            ("redlatch engine ", Word::Other),
            ("redlatch ls --watch ", Word::Other),
            ("redlatch --context ", Word::Context),
            ("redlatch show x --context p", Word::Context),
            ("redlatch ", Word::Other),
        ] {
            assert_eq!(word(line).0, expected, "{line}");
        }
        let (_, global) = word("redlatch --context=prod show --url local:a --config f ");
        assert_eq!(global.context.as_deref(), Some("prod"));
        assert_eq!((global.url.as_deref(), global.config), (Some("local:a"), Some("f".into())));
    }
}
