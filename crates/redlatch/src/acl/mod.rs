//! What an account needs, worked out from the scripts themselves, so that neither documents nor tests can fall behind them.

mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::{
    kind::{Description, key_pattern::KeyPattern},
    scripts::Script,
};

pub use crate::kind::{Kind, key_pattern::escaped};

/// The least rights of an account: commands, keys and channels, for some kinds and for all names that begin with a prefix.
///
/// Scripts run with the rights of the account that calls them, so commands that only scripts use are among them. Everybody
/// who may lock under a prefix may also end the locks of others there: accounts that must not need prefixes of their own.
///
/// # Example
///
/// ```
/// use redlatch::acl::{Kind, Rights};
///
/// let rights = Rights::of(&[Kind::Semaphore], "app:");
/// assert!(rights.rules().ends_with("resetkeys ~app:* resetchannels &redisson_sc:app:* &redisson_sc:{app:*"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Rights {
    kinds: Vec<Kind>,
    prefix: String,
    functions: bool,
    cluster: bool,
    sharded: bool,
    acknowledged: bool,
    redisson: bool,
}

impl Rights {
    /// What accounts need that use these kinds with names that begin with `prefix`; empty for all names. Characters that mean
    /// something in patterns stand for themselves.
    pub fn of(kinds: &[Kind], prefix: &str) -> Self {
        let mut kinds = kinds.to_vec();
        kinds.sort();
        kinds.dedup();
        let prefix = prefix.to_owned();
        Rights {
            kinds,
            prefix,
            functions: false,
            cluster: false,
            sharded: true,
            acknowledged: false,
            redisson: false,
        }
    }

    /// Scripts are called as functions that an operator has loaded ([`ScriptMode::Functions`](crate::ScriptMode::Functions)), so
    /// `fcall` takes the place of `eval` and `evalsha`.
    pub fn functions(self, yes: bool) -> Self {
        Rights { functions: yes, ..self }
    }

    /// The servers are a cluster: its layout is asked for, and messages may be sharded.
    pub fn cluster(self, yes: bool) -> Self {
        Rights { cluster: yes, ..self }
    }

    /// Whether a cluster's messages may be sharded, which they may unless told. Redis below 7.0 does not know these commands
    /// and takes no rules with them.
    pub fn sharded(self, yes: bool) -> Self {
        Rights { sharded: yes, ..self }
    }

    /// Grants wait for replicas (`WAIT`).
    pub fn acknowledged(self, yes: bool) -> Self {
        Rights { acknowledged: yes, ..self }
    }

    /// Java clients use the same account: adds what Redisson needs besides, its channels among the keys.
    pub fn redisson(self, yes: bool) -> Self {
        Rights { redisson: yes, ..self }
    }

    fn described(&self) -> impl Iterator<Item = &'static Description> {
        self.kinds.iter().map(|kind| kind.description())
    }

    /// The kinds, sorted and each once.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Commands, in lower case and sorted; a subcommand after a bar.
    pub fn commands(&self) -> Vec<&'static str> {
        // Each connection asks which process of the server it goes to.
        let mut commands = BTreeSet::from(["ping", "info"]);
        commands.extend(if self.functions { &["fcall"][..] } else { &["eval", "evalsha"] });
        for kind in self.described() {
            let draws = kind.draws_tokens;
            let of = |script: &'static Script| {
                if draws { script.commands() } else { script.commands_without_token() }
            };
            commands.extend(kind.scripts().flat_map(of));
        }
        if self.described().any(|kind| !kind.channels.is_empty()) {
            commands.extend(["publish", "subscribe", "unsubscribe"]);
            if self.cluster && self.sharded {
                // Without the last one nobody finds out that the servers know the others.
                commands.extend(["spublish", "ssubscribe", "sunsubscribe", "pubsub|shardnumsub"]);
            }
        }
        if self.described().any(|kind| kind.is_watched) {
            // How a holder learns at once that another client has ended its hold, and a waiter that the key is gone.
            commands.extend(["client|tracking", "client|caching", "exists"]);
        }
        if self.cluster {
            commands.extend(["asking", "cluster|nodes", "cluster|slots"]);
        }
        if self.acknowledged {
            commands.insert("wait");
        }
        if self.described().any(|kind| kind.counts_listeners) {
            commands.insert("pubsub|numsub");
            if self.cluster && self.sharded {
                commands.insert("pubsub|shardnumsub");
            }
        }
        if self.redisson {
            commands.extend(["eval", "evalsha", "script|load", "info", "wait"]);
            commands.extend(self.described().flat_map(|kind| kind.redisson.commands));
            if self.cluster {
                commands.insert("readonly");
            }
        }
        commands.into_iter().collect()
    }

    /// Patterns of keys, without `~`, sorted.
    pub fn keys(&self) -> Vec<String> {
        let patterns: BTreeSet<String> = self.sample_keys().into_iter().map(|(pattern, _)| pattern).collect();
        // An account that may use every key needs no other pattern.
        if patterns.contains("*") {
            return vec!["*".into()];
        }
        patterns.into_iter().collect()
    }

    /// Patterns of channels, without `&`, sorted.
    pub fn channels(&self) -> Vec<String> {
        let patterns: BTreeSet<String> =
            self.sample_channels().into_iter().map(|(pattern, _)| pattern).collect();
        patterns.into_iter().collect()
    }

    /// Each pattern of keys, and a key that needs it.
    pub(crate) fn sample_keys(&self) -> Vec<(String, Vec<u8>)> {
        self.key_places().into_iter().flat_map(|place| place.patterns(&self.prefix)).collect()
    }

    /// Each pattern of channels, and a channel that needs it.
    pub(crate) fn sample_channels(&self) -> Vec<(String, Vec<u8>)> {
        self.channel_places().into_iter().flat_map(|place| place.patterns(&self.prefix)).collect()
    }

    fn key_places(&self) -> Vec<KeyPattern> {
        let mut places = Vec::new();
        for kind in self.described() {
            places.extend(kind.keys);
            if self.redisson {
                places.extend(kind.redisson.keys.iter().chain(kind.channels));
            }
        }
        places
    }

    fn channel_places(&self) -> Vec<KeyPattern> {
        self.described().flat_map(|kind| kind.channels).copied().collect()
    }
}

/// Keys and channels of one name that a kind uses besides the name itself, here or in Redisson, one for each form. Channels are
/// the same whether their messages are sharded or not.
pub(crate) fn companions(kind: Kind, name: &[u8]) -> Vec<Vec<u8>> {
    let kind = kind.description();
    let places = kind.keys.iter().chain(kind.channels).chain(kind.redisson.keys);
    let of_name = |place: &&KeyPattern| !matches!(place, KeyPattern::Name | KeyPattern::OfClient(_));
    places.filter(of_name).map(|place| place.of(name)).collect()
}
