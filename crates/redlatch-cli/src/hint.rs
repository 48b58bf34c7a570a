//! What to say about a command line that people bring along from other programs.

use std::ffi::OsString;

use crate::escape;

/// The options of `run` and of all verbs that take the next word.
const WITH_VALUE: [&str; 24] = [
    "-w",
    "--wait",
    "-E",
    "--conflict-exit-code",
    "--if-busy",
    "--permits",
    "--lease",
    "--at-least",
    "--max-hold",
    "--on-lost",
    "--grace",
    "--kill-after",
    "--reenter",
    "--replica-ack",
    "--ack-timeout",
    "--on-shortfall",
    "--why",
    "--report",
    "--url",
    "--context",
    "--config",
    "--username",
    "--password-file",
    "--address-map",
];

/// Where the next word is that is neither an option nor what an option takes.
fn next_word(words: &[impl AsRef<str>], mut at: usize) -> Option<usize> {
    while words.get(at)?.as_ref().starts_with('-') {
        at += if WITH_VALUE.contains(&words.get(at)?.as_ref()) { 2 } else { 1 };
    }
    Some(at)
}

/// Whether a command line names a verb.
pub(crate) fn names_a_verb(words: &[OsString]) -> bool {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    next_word(&words, 1).is_some()
}

/// `redlatch run x true` with the `--` where it belongs; nothing for any other line, and where there is nothing to guess.
pub(crate) fn with_dashes(words: &[OsString]) -> Option<String> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    if words.iter().any(|word| word == "--") {
        return None;
    }
    let verb = next_word(&words, 1).filter(|at| words[*at] == "run")?;
    // What comes after the name is the command.
    let name = next_word(&words, verb + 1)?;
    let at = next_word(&words, name + 1)?;
    let (before, command) = words[1..].split_at(at - 1);
    let quoted = |words: &[std::borrow::Cow<'_, str>]| {
        words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
    };
    Some(format!(
        "put -- between the name and the command: redlatch {} -- {}",
        quoted(before),
        quoted(command)
    ))
}

/// A word as a shell takes it, shown so that it acts on no terminal.
fn quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte);
    let word = escape::text(word).to_string();
    if !word.is_empty() && word.bytes().all(plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_that_lacks_its_dashes_is_completed() {
        let hint = |line: &str| with_dashes(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let told = |line: &str| hint(line).map(|hint| hint.split_once(": ").unwrap().1.to_owned());
        assert_eq!(told("redlatch run x true").as_deref(), Some("redlatch run x -- true"));
        assert_eq!(
            told("redlatch -q run -w 5 x -n ls -l").as_deref(),
            Some("redlatch -q run -w 5 x -n -- ls -l")
        );
        assert!(names_a_verb(&["redlatch", "-q", "--url", "u", "ls"].map(OsString::from)));
        assert!(!names_a_verb(&["redlatch", "--url", "u", "--help"].map(OsString::from)));
        for line in ["redlatch", "redlatch run", "redlatch run x", "redlatch run x -n", "redlatch run x -w 5"]
        {
            assert_eq!(hint(line), None, "{line}");
        }
        assert_eq!(hint("redlatch run x y -- true"), None);
        assert_eq!(hint("redlatch show x y"), None);
    }
}
