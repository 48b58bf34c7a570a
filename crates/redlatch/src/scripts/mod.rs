//! The lock logic: one `.lua` file per operation, embedded and hashed here.
//!
//! Every server-side effect of this library is one of these scripts, so the local engine and a Redis server run the
//! same logic. The contract that the scripts keep is `docs/protocol.md`.

#[cfg(test)]
mod cases;
mod commands;
mod facts;
mod header;
mod library;

use std::collections::BTreeSet;

use once_cell::race::{OnceBool, OnceBox};

use Fact::*;

pub(crate) use facts::Fact;
pub use library::{library, library_check, library_name};

/// The number of the script set. The local daemon and its clients must agree on it, because the daemon runs only the
/// scripts that it was built with. Each change of a script raises it.
pub const EPOCH: u32 = 29;

/// One script: its name, its text, and the SHA-1 by which servers know it.
pub struct Script {
    name: &'static str,
    source: &'static str,
    // A child that is forked off while a thread works one of them out would wait for that thread for ever, so each works it out for itself.
    sha1: OnceBox<String>,
    function: OnceBox<String>,
    sent_once: OnceBool,
    /// The same with a beginning that can publish both ways.
    plain_and_sharded: Option<&'static Script>,
    /// The same with a beginning that sees to it that all keys are declared.
    declared_keys_variant: Option<&'static DeclaredKeysVariant>,
    /// The same with a beginning that takes its keys from the arguments.
    keys_in_args: Option<&'static Script>,
    facts: &'static [Fact],
}

/// A script that touches timeout keys of read holds, for servers where every key has to be declared.
#[derive(Debug)]
pub(crate) struct DeclaredKeysVariant {
    /// The script with that beginning.
    pub(crate) script: Script,
    /// Whose timeout keys it touches, as the beginning is told.
    pub(crate) whose: &'static str,
}

/// The publish command of those who publish plain and sharded messages.
pub(crate) const BOTH: &str = "both";

impl Script {
    const fn new(
        name: &'static str,
        source: &'static str,
        plain_and_sharded: Option<&'static Script>,
        declared_keys_variant: Option<&'static DeclaredKeysVariant>,
        keys_in_args: Option<&'static Script>,
        facts: &'static [Fact],
    ) -> Self {
        Script {
            name,
            source,
            sha1: OnceBox::new(),
            function: OnceBox::new(),
            sent_once: OnceBool::new(),
            plain_and_sharded,
            declared_keys_variant,
            keys_in_args,
            facts,
        }
    }

    /// Whether this is true of it.
    pub(crate) fn is(&self, fact: Fact) -> bool {
        self.facts.contains(&fact)
    }

    /// The same script for a node that has all of its keys that exist, and to which only the first is declared; `None` if the
    /// script touches others besides its keys, or several of them at once.
    pub(crate) fn keys_in_args(&self) -> Option<&'static Script> {
        let may = self.declared_keys_variant.is_none() && !self.is(Fact::NeedsDeclaredKeys);
        self.keys_in_args.filter(|_| may)
    }

    /// Whether those who run it want to know at once that its keys are in two places, because they can go on in another way.
    pub(crate) fn is_done_otherwise(&self) -> bool {
        self.declared_keys_variant.is_some() || self.is(Fact::HasMigrationFallback)
    }

    /// Whether it may be tried, with its first key declared, where others of its keys may be absent: if it needs one of these it
    /// is refused before it changes anything.
    pub(crate) fn looks_first(&self) -> bool {
        self.is(Fact::LooksFirst)
    }

    /// Whether those who run it can neither ask again nor take back what it did, because what it counts has no owner, or one that
    /// another process may use, too; or because its answer is all that says whether it did it. The script says so itself.
    pub(crate) fn is_sent_once(&self) -> bool {
        self.sent_once.get_or_init(|| header::repeat(self.source).contains("sent once"))
    }

    /// The same script for servers where every key has to be declared; `None` if it declares every key anyway.
    pub(crate) fn declared_keys_variant(&self) -> Option<&'static DeclaredKeysVariant> {
        self.declared_keys_variant
    }

    /// The same script for calls whose publish command is [`BOTH`].
    pub(crate) fn plain_and_sharded(&self) -> Option<&'static Script> {
        self.plain_and_sharded
    }

    /// The file name without its ending.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The Lua text.
    pub fn source(&self) -> &'static str {
        self.source
    }

    /// The SHA-1 of the text, as 40 lower-case hexadecimal digits.
    pub fn sha1(&self) -> &str {
        self.sha1.get_or_init(|| Box::new(sha1_smol::Sha1::from(self.source).hexdigest()))
    }

    /// The name of the function that runs the text, once an operator has loaded the [`library`]. Names of functions are
    /// shared by all libraries of a server, so the number of the set is part of it.
    pub fn function(&self) -> &str {
        self.function.get_or_init(|| Box::new(format!("{}_{}", library_name(), self.name)))
    }

    /// The commands that the text calls, in lower case; not the one that it publishes with, which is an argument.
    pub fn commands(&self) -> BTreeSet<&'static str> {
        commands::named_in(self.source)
    }

    /// The same without those that only the drawing of a token comes to.
    pub(crate) fn commands_without_token(&self) -> BTreeSet<&'static str> {
        let mut commands = self.commands();
        for fact in self.facts {
            if let Fact::ForTokens(drawing) = fact {
                commands.retain(|command| !drawing.contains(command));
            }
        }
        commands
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Script({})", self.name)
    }
}

/// The text of a script, after the functions that it has in common with others.
macro_rules! text {
    ($file:literal $($common:literal)?) => {
        concat!($(include_str!($common),)? include_str!(concat!($file, ".lua")))
    };
}

/// The script with a beginning before its text.
macro_rules! begun {
    (($file:literal $($common:literal)?) $ending:literal, $($beginning:literal),+; $both:expr, $keys_in_args:expr, $facts:expr) => {
        Script::new(
            concat!($file, $ending),
            concat!($(include_str!($beginning),)+ text!($file $($common)?)),
            $both,
            None,
            $keys_in_args,
            $facts,
        )
    };
}

macro_rules! declared_keys_variant {
    ($text:tt) => {
        None
    };
    ($text:tt $whose:literal $facts:expr) => {{
        const FACTS: &[Fact] = $facts;
        static GATHERING: Script =
            begun!($text "_declared_gathered", "gathered.lua", "declared.lua"; None, None, &[]);
        static GATHERING_BOTH: Script =
            begun!($text "_declared_both_gathered", "gathered.lua", "declared.lua", "both.lua"; None, None, &[]);
        static BOTH: Script =
            begun!($text "_declared_both", "declared.lua", "both.lua"; None, Some(&GATHERING_BOTH), FACTS);
        static DECLARED: DeclaredKeysVariant = DeclaredKeysVariant {
            script: begun!($text "_declared", "declared.lua"; Some(&BOTH), Some(&GATHERING), FACTS),
            whose: $whose,
        };
        Some(&DECLARED)
    }};
}

/// A line has the name and the file; `after` what comes before its text; `is` the facts. A script that is `touching` timeout keys says whose,
/// and which facts are true of the form that declares them.
macro_rules! scripts {
    ($(
        $(#[$doc:meta])*
        $ident:ident = $file:literal $(after $common:literal)? $(is [$($fact:expr),*])?
            $(touching $whose:literal $(is [$($declared:expr),*])?)?
    ),* $(,)?) => {
        $($(#[$doc])* pub static $ident: Script = Script::new(
            $file,
            text!($file $($common)?),
            Some(&plain_and_sharded::$ident),
            declared_keys_variant!(($file $($common)?) $($whose &[$($($declared),*)?])?),
            Some(&keys_in_args::$ident),
            &[$($($fact),*)?],
        );)*

        mod plain_and_sharded {
            use super::{Fact::*, Script};

            $(pub(super) static $ident: Script = begun!(
                ($file $($common)?) "_both", "both.lua";
                None, Some(&super::gathering_both::$ident), &[$($($fact),*)?]
            );)*
        }

        mod keys_in_args {
            use super::Script;

            $(pub(super) static $ident: Script =
                begun!(($file $($common)?) "_gathered", "gathered.lua"; None, None, &[]);)*
        }

        mod gathering_both {
            use super::Script;

            $(pub(super) static $ident: Script =
                begun!(($file $($common)?) "_both_gathered", "gathered.lua", "both.lua"; None, None, &[]);)*
        }

        /// Every script, for servers that load them beforehand or allow nothing else.
        pub static ALL: &[&Script] = &[$(&$ident),*];
    };
}

scripts! {
    /// Take a free lock.
    ACQUIRE = "acquire" is [HasMigrationFallback, ForTokens(&["get", "set", "time"])],
    /// Release a hold that has its owner field for itself.
    RELEASE = "release",
    /// Take several free locks or none.
    ACQUIRE_ALL = "acquire_all" is [NeedsDeclaredKeys, ForTokens(&["get", "set", "time"])],
    /// Release several locks.
    RELEASE_ALL = "release_all",
    /// Enter once more.
    ENTER = "enter" is [ForTokens(&["get", "set", "time"])],
    /// Give back one hold of several.
    RELEASE_ONE = "release_one" is [GivesBack],
    /// Refresh many leases.
    RENEW = "renew" is [HasMigrationFallback],
    /// Leave a hold for a shorter time.
    SHORTEN = "shorten",
    /// Pass a lock to the next owner.
    TRANSFER = "transfer" is [ForTokens(&["get", "set", "time"])],
    /// Delete a lock.
    FORCE = "force" is [GivesBack],
    /// Say how holds ended that are no longer there.
    LOST = "lost",
    /// Take a fair lock or line up for it.
    FAIR_ACQUIRE = "fair_acquire" is [HasMigrationFallback, ForTokens(&["get", "set"])],
    /// Release a fair lock.
    FAIR_RELEASE = "fair_release" is [HasMigrationFallback, GivesBack, ForTokens(&["get", "set"])],
    /// Give back one hold of a fair lock.
    FAIR_RELEASE_ONE = "fair_release_one" is [GivesBack],
    /// Take an owner out of a fair lock.
    FAIR_UNDO = "fair_undo" is [GivesBack],
    /// Delete a fair lock.
    FAIR_FORCE = "fair_force" is [GivesBack],
    /// Read one name whole, whatever kind of lock it is.
    SHOW = "show" is [NeedsDeclaredKeys],
    /// Read a page of names that look like locks.
    LIST = "list" is [NeedsDeclaredKeys, CrossesSlots],
    /// Read TTL and hold count.
    QUERY = "query",
    /// Write what a client tells of itself.
    PRESENCE_SET = "presence_set",
    /// Read what a client tells of itself.
    PRESENCE_GET = "presence_get",
    /// Read a page of the clients that tell of themselves.
    PRESENCE_LIST = "presence_list" is [NeedsDeclaredKeys, CrossesSlots],
    /// Take items from a stock.
    SELL = "sell",
    /// Read or set a stock.
    STOCK = "stock",
    /// Read a counter.
    COUNTER_GET = "counter_get",
    /// Set a counter that does not exist.
    COUNTER_SET = "counter_set",
    /// Take permits.
    SEMAPHORE_TAKE = "semaphore_take",
    /// Put permits in or take them out.
    SEMAPHORE_GIVE = "semaphore_give" is [GivesBack],
    /// Take all permits.
    SEMAPHORE_DRAIN = "semaphore_drain",
    /// Delete a semaphore.
    SEMAPHORE_DELETE = "semaphore_delete",
    /// Count a latch down.
    LATCH_DOWN = "latch_down" is [GivesBack],
    /// Delete a latch.
    LATCH_DELETE = "latch_delete",
    /// Take permits of a rate limiter.
    RATE_TAKE = "rate_take",
    /// Give permits of a rate limiter back.
    RATE_RELEASE = "rate_release" is [GivesBack],
    /// Set or change a rate.
    RATE_SET = "rate_set" is [NeedsDeclaredKeys],
    /// Read a rate limiter.
    RATE_SHOW = "rate_show",
    /// Delete a rate limiter.
    RATE_DELETE = "rate_delete" is [NeedsDeclaredKeys],
    /// Take a read hold.
    READ_ACQUIRE = "read_acquire" is [TouchesTimeouts, ForTokens(&["get", "time"])] touching "2" is [LooksFirst],
    /// Take a read hold once more.
    READ_ENTER = "read_enter" is [TouchesTimeouts, ForTokens(&["get", "time"])] touching "2",
    /// Release the read holds of one owner.
    READ_RELEASE = "read_release" after "readers.lua" is [ChangesFirst] touching "all",
    /// Give back one read hold of several.
    READ_RELEASE_ONE = "read_release_one" after "readers.lua" is [GivesBack] touching "all",
    /// Pass a read hold to another owner.
    READ_TRANSFER = "read_transfer" after "readers.lua" is [ForTokens(&["get", "time"])] touching "all",
    /// Leave a read hold for a shorter time.
    READ_SHORTEN = "read_shorten" after "readers.lua" touching "all",
    /// Refresh many read holds.
    READ_RENEW = "read_renew" is [TouchesTimeouts] touching "3" is [LooksFirst, HasMigrationFallback],
    /// Take the write hold.
    WRITE_ACQUIRE = "write_acquire" is [ForTokens(&["get", "set", "time"])] touching "2" is [LooksFirst],
    /// Take the write hold once more.
    WRITE_ENTER = "write_enter" is [ForTokens(&["get", "set", "time"])],
    /// Release the write hold.
    WRITE_RELEASE = "write_release" is [GivesBack] touching "2" is [LooksFirst],
    /// Give back one write hold of several.
    WRITE_RELEASE_ONE = "write_release_one" is [GivesBack] touching "2",
    /// Refresh many write holds.
    WRITE_RENEW = "write_renew" is [HasMigrationFallback],
    /// Leave a write hold for a shorter time.
    WRITE_SHORTEN = "write_shorten" touching "2",
    /// Pass the write hold to the next owner.
    WRITE_TRANSFER = "write_transfer" is [ForTokens(&["get", "set", "time"])] touching "2",
    /// End all holds of one side of a read-write lock.
    RW_FORCE = "rw_force" is [GivesBack] touching "all",
    /// Read TTL and hold count of one side of a read-write lock.
    RW_QUERY = "rw_query" touching "1" is [LooksFirst],
    /// Take leased permits.
    PERMIT_TAKE = "permit_take",
    /// Give leased permits back.
    PERMIT_GIVE = "permit_give" is [GivesBack],
    /// Set the leases of permits anew.
    PERMIT_RENEW = "permit_renew" is [HasMigrationFallback, GivesBack],
    /// Count leased permits.
    PERMIT_LOOK = "permit_look",
    /// Set how many leased permits there are.
    PERMIT_SET = "permit_set",
    /// Delete leased permits.
    PERMIT_END = "permit_end" is [NeedsDeclaredKeys, GivesBack],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands that take several keys.
    const OF_SEVERAL: [&str; 6] = ["'del'", "'unlink'", "'exists'", "'touch'", "'mget'", "'mset'"];

    #[test]
    fn what_is_gathered_touches_one_key_with_each_command() {
        for script in ALL {
            let calls = OF_SEVERAL.iter().flat_map(|command| script.source().split(command).skip(1));
            let several = calls
                .map(|rest| rest.split(')').next().unwrap_or_default())
                .any(|keys| keys.contains("unpack") || keys.matches(',').count() > 1);
            if several {
                assert!(script.keys_in_args().is_none(), "{}", script.name());
            }
        }
        assert!(FAIR_ACQUIRE.keys_in_args().is_some() && PERMIT_TAKE.keys_in_args().is_some());
        assert!(FAIR_RELEASE.plain_and_sharded().unwrap().keys_in_args().is_some());
        // Only in the form that names the timeout keys.
        assert!(READ_ACQUIRE.keys_in_args().is_none());
        let declared_keys_variant = &READ_ACQUIRE.declared_keys_variant().unwrap().script;
        assert!(declared_keys_variant.keys_in_args().is_some() && declared_keys_variant.looks_first());
        assert!(declared_keys_variant.plain_and_sharded().unwrap().keys_in_args().is_some());
    }

    #[test]
    fn what_draws_tokens_calls_what_it_says() {
        for script in ALL {
            let spared = script.commands().len() - script.commands_without_token().len();
            let named = script.facts.iter().map(|fact| match fact {
                Fact::ForTokens(commands) => commands.len(),
                _ => 0,
            });
            assert_eq!(spared, named.sum::<usize>(), "{}", script.name());
        }
    }
}
