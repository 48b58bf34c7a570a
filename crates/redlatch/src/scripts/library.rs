//! The scripts as one library of server functions, which an operator loads once, so that clients need no right to run text
//! of their own.

use std::fmt::Write as _;

use super::{ALL, EPOCH, Fact, Script};

/// What the function that answers the number of the set is called, after the library's name and a line.
const CHECK: &str = "epoch";

/// Commands that a server without free memory refuses, as far as any script calls them.
const ENLARGING: [&str; 10] =
    ["hset", "hincrby", "set", "incrby", "decrby", "decr", "rpush", "zadd", "lpush", "hsetnx"];

/// The library's name: it carries the number of the script set, so that the sets of several versions stay side by side.
pub fn library_name() -> &'static str {
    static NAME: once_cell::race::OnceBox<String> = once_cell::race::OnceBox::new();
    NAME.get_or_init(|| Box::new(format!("redlatch_{EPOCH}")))
}

/// The name of a function without keys that answers the number of the set, by which a client sees that the library is there.
pub fn library_check() -> String {
    format!("{}_{CHECK}", library_name())
}

/// The text of the library, for `FUNCTION LOAD` on Redis 7.0 and later, or Valkey. Each script is a function around the very same
/// text.
///
/// # Example
///
/// ```
/// let text = redlatch::scripts::library();
/// assert!(text.starts_with("#!lua name=redlatch_"));
/// ```
pub fn library() -> String {
    let mut text = format!("#!lua name={}\n", library_name());
    register(&mut text, &library_check(), &format!("return {EPOCH}\n"), "'allow-oom'");
    for script in ALL {
        register(&mut text, script.function(), script.source(), &flags(script));
        for form in forms(script) {
            register(&mut text, form.function(), form.source(), &flags(script));
        }
    }
    text
}

/// The other forms of a script.
fn forms(script: &Script) -> impl Iterator<Item = &'static Script> {
    let declared_keys_variant =
        script.declared_keys_variant().map(|declared_keys_variant| &declared_keys_variant.script);
    [plain_and_sharded(script), declared_keys_variant, declared_keys_variant.and_then(plain_and_sharded)]
        .into_iter()
        .flatten()
}

/// The form of a script that publishes both ways, if it publishes at all.
fn plain_and_sharded(script: &Script) -> Option<&'static Script> {
    script.plain_and_sharded().filter(|_| script.source().contains("pcall(ARGV["))
}

fn flags(script: &Script) -> String {
    let mut flags = Vec::new();
    if runs_without_memory(script) {
        flags.push("'allow-oom'");
    }
    if script.is(Fact::CrossesSlots) {
        flags.push("'allow-cross-slot-keys'");
    }
    flags.join(", ")
}

/// A function is refused as a whole while memory is full, unless it says otherwise; a script only where it would use more.
fn runs_without_memory(script: &Script) -> bool {
    script.is(Fact::GivesBack) || !script.commands().iter().any(|command| ENLARGING.contains(command))
}

fn register(text: &mut String, name: &str, source: &str, flags: &str) {
    // Writing to a string cannot fail.
    _ = writeln!(
        text,
        "redis.register_function{{function_name='{name}', flags={{{flags}}}, callback=function(KEYS, ARGV)\n{source}end}}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_has_a_function_for_every_script() {
        let text = library();
        let both = ALL.iter().filter(|script| plain_and_sharded(script).is_some()).count();
        let forms: usize = ALL.iter().map(|script| forms(script).count()).sum();
        assert!(both > 20, "most scripts that give something back tell of it");
        assert_eq!(text.matches("redis.register_function").count(), ALL.len() + forms + 1);
        for script in ALL {
            assert!(text.contains(&format!("function_name='{}'", script.function())), "{}", script.name());
            assert!(text.contains(script.source()), "{}", script.name());
        }
    }

    #[test]
    fn what_a_full_server_refuses_is_known_of_every_command() {
        for script in ALL {
            for command in script.commands() {
                // It needs no memory to speak of.
                let enlarges = redlatch_engine::writes(command)
                    && !redlatch_engine::only_takes_away(command)
                    && command != "persist";
                assert_eq!(ENLARGING.contains(&command), enlarges, "{command} of {}", script.name());
            }
        }
    }

    #[test]
    fn a_full_server_takes_back_and_hands_nothing_out() {
        for script in ALL {
            let name = script.name();
            let takes = ["acquire", "take", "enter", "set", "sell", "stock", "transfer"];
            let giving = ["release", "undo", "force", "give", "delete", "down", "renew"];
            if takes.iter().any(|word| name.ends_with(word)) {
                assert!(!runs_without_memory(script), "{name}");
            }
            if giving.iter().any(|word| name.ends_with(word)) {
                assert!(runs_without_memory(script), "{name}");
            }
        }
    }
}
