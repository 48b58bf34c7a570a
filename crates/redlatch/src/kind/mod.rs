//! One description of each kind of lock and permit, for the rights of accounts, `inspect`, `doctor`, the command and the documents. Locking
//! itself uses [`key_pattern`] alone, for the words in keys and channels: how a kind does its work is in its recipe and its scripts.

pub(crate) mod found;
pub(crate) mod key_pattern;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;

pub use {found::LockKind, table::Kind};

use crate::scripts::Script;
use key_pattern::KeyPattern;

/// What is to be said of one kind.
pub(crate) struct Description {
    pub(crate) kind: Kind,
    /// The word for it, as the command line takes it.
    pub(crate) word: &'static str,
    /// What the word does not say.
    pub(crate) note: &'static str,
    /// Its types here, each with that of Redisson (`README.md`).
    #[cfg_attr(not(test), expect(dead_code, reason = "the documents are compared with it"))]
    pub(crate) faces: &'static [(&'static str, &'static str)],
    /// The scripts that it runs.
    pub(crate) scripts: &'static [&'static [&'static Script]],
    /// Whether its scripts also draw tokens.
    pub(crate) draws_tokens: bool,
    /// Whether the server reports changes of its key: of a hold, which may be lost, or of what is waited for until it is gone.
    pub(crate) is_watched: bool,
    /// Its keys, the first of them the name if it has names.
    pub(crate) keys: &'static [KeyPattern],
    /// The channels on which a release is told.
    pub(crate) channels: &'static [KeyPattern],
    /// Whether each of its waiters listens on a channel of its own, below those.
    pub(crate) channel_per_waiter: bool,
    /// Whether it asks how many listen to channels.
    pub(crate) counts_listeners: bool,
    /// What a look finds it as.
    pub(crate) found: Option<LockKind>,
    pub(crate) redisson: Redisson,
}

/// What Redisson needs for a kind besides; it passes channels as keys in any case.
pub(crate) struct Redisson {
    /// What its own scripts of the kind call, as far as ours do not.
    pub(crate) commands: &'static [&'static str],
    /// Keys that only it uses.
    pub(crate) keys: &'static [KeyPattern],
}

impl Description {
    /// A kind of which nothing is said yet.
    const fn of(kind: Kind) -> Self {
        Description {
            kind,
            word: "",
            note: "",
            faces: &[],
            scripts: &[],
            draws_tokens: false,
            is_watched: false,
            keys: &[KeyPattern::Name],
            channels: &[],
            channel_per_waiter: false,
            counts_listeners: false,
            found: None,
            redisson: Redisson { commands: &[], keys: &[] },
        }
    }

    pub(crate) fn scripts(&self) -> impl Iterator<Item = &'static Script> {
        self.scripts.iter().copied().flatten().copied()
    }
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; table::TABLE.len()] = {
        let mut all = [Kind::Look; table::TABLE.len()];
        let mut at = 0;
        while at < all.len() {
            all[at] = table::TABLE[at].kind;
            assert!(all[at] as usize == at, "the table is in the order of the kinds");
            at += 1;
        }
        all
    };

    pub(crate) fn description(self) -> &'static Description {
        &table::TABLE[self as usize]
    }

    /// The word for it, as the command line takes it.
    pub fn word(self) -> &'static str {
        self.description().word
    }

    /// What the word does not say, in a few words; empty where it says all.
    pub fn note(self) -> &'static str {
        self.description().note
    }

    /// What [`Client::inspect`](crate::Client::inspect) finds it as; `None` for one that leaves nothing.
    pub fn found_as(self) -> Option<LockKind> {
        self.description().found
    }

    /// The first kind that is found so; a name at which nothing of ours is found may be that of a lock.
    pub(crate) fn behind(found: LockKind) -> Self {
        Kind::ALL.into_iter().find(|kind| kind.found_as() == Some(found)).unwrap_or(Kind::Lock)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl LockKind {
    /// The channels on which a release of what is found so is told to all who wait; several where nothing tells which kind it is.
    pub(crate) fn channels(self) -> Vec<KeyPattern> {
        // Those who wait for a lock listen also in the moment in which it is free.
        let found = if self == LockKind::Free { LockKind::Lock } else { self };
        let kinds = table::TABLE.iter().filter(|kind| kind.found == Some(found) && !kind.channel_per_waiter);
        let mut channels: Vec<KeyPattern> = kinds.flat_map(|kind| kind.channels).copied().collect();
        channels.dedup();
        channels
    }
}
