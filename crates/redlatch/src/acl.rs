//! What an account needs, worked out from the scripts themselves, so that neither documents nor tests can fall behind them.

use std::{collections::BTreeSet, fmt};

use crate::{
    name::{prefixed, suffixed},
    scripts::{self, Script},
};

/// What an account is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// Plain and non-reentrant locks, and sets of them, without fencing tokens.
    Lock,
    /// Fencing tokens, of fenced locks and of plain ones that are asked for a token. For tokens of fair and read-write locks
    /// this is added to their own kind.
    Fenced,
    /// Fair locks, also those that are not reentrant.
    Fair,
    /// Spin locks, which use no channel.
    Spin,
    /// Read-write locks, both sides.
    ReadWrite,
    /// Semaphores.
    Semaphore,
    /// Semaphores whose permits have leases.
    Permits,
    /// Count-down latches.
    Latch,
    /// Rate limiters.
    RateLimiter,
    /// The atomic stock.
    Stock,
    /// Looking at everything without changing anything, as somebody on call does: [`Client::inspect`](crate::Client::inspect)
    /// and [`Client::list`](crate::Client::list).
    Look,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 11] = [
        Kind::Lock,
        Kind::Fenced,
        Kind::Fair,
        Kind::Spin,
        Kind::ReadWrite,
        Kind::Semaphore,
        Kind::Permits,
        Kind::Latch,
        Kind::RateLimiter,
        Kind::Stock,
        Kind::Look,
    ];

    /// The word for it, as the command line takes it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Lock => "lock",
            Kind::Fenced => "fenced",
            Kind::Fair => "fair",
            Kind::Spin => "spin",
            Kind::ReadWrite => "read-write",
            Kind::Semaphore => "semaphore",
            Kind::Permits => "permits",
            Kind::Latch => "latch",
            Kind::RateLimiter => "rate-limiter",
            Kind::Stock => "stock",
            Kind::Look => "look",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How a key or channel comes from the name of a lock (`docs/protocol.md`, names).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The name itself.
    Name,
    /// A word, a colon, and the name, in braces unless it has some.
    Before(&'static str),
    /// The name, in braces unless it has some, a colon, and more.
    After,
    /// A word and the name, always in braces.
    InBraces(&'static str),
}

const LOCK_CHANNEL: Place = Place::Before("redisson_lock__channel");
const RW_CHANNEL: Place = Place::Before("redisson_rwlock");
const PERMITS_CHANNEL: Place = Place::Before("redisson_sc");
const LATCH_CHANNEL: Place = Place::InBraces("redisson_countdownlatch__channel__");
const TOKEN: Place = Place::Before("redisson_lock_token");
const QUEUE: Place = Place::Before("redisson_lock_queue");
const TIMES: Place = Place::Before("redisson_lock_timeout");
/// What Redisson remembers an unlock by.
const UNLOCK_LATCH: Place = Place::Before("redisson_unlock_latch");

impl Place {
    /// The patterns that all names with this prefix need, each with a key or channel that only it covers. A name that has braces
    /// is used without others, so most have two.
    fn patterns(self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let start = escaped(prefix);
        let own_braces = prefix.contains('{');
        // A brace that the prefix opens is closed by the name.
        let end = if own_braces && !prefix.contains('}') { "}" } else { "" };
        let name = format!("{prefix}{SAMPLE}{end}");
        let braced = format!("{prefix}{{{SAMPLE}}}");
        let of = |name: &str| match self {
            Place::Name => name.into(),
            Place::Before(word) => prefixed(word.as_bytes(), name.as_bytes()),
            Place::After => suffixed(name.as_bytes(), SAMPLE.as_bytes()),
            Place::InBraces(word) => format!("{word}{{{name}}}").into(),
        };
        let (before, inside) = match self {
            Place::Name => return vec![(format!("{start}*"), of(&name))],
            Place::InBraces(word) => return vec![(format!("{word}{{{start}*"), of(&name))],
            Place::Before(word) => (format!("{word}:"), "{"),
            Place::After => (String::new(), "{"),
        };
        if prefix.is_empty() || own_braces {
            return vec![(format!("{before}{start}*"), of(&name))];
        }
        vec![(format!("{before}{start}*"), of(&braced)), (format!("{before}{inside}{start}*"), of(&name))]
    }
}

/// The part of the names that rights are tried with; nobody else uses it.
const SAMPLE: &str = "redlatch-doctor-trial";

/// Text as part of a pattern, where it stands for itself. Blanks and quotes, which no rule can hold, match as any one byte.
pub fn escaped(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 4);
    for c in prefix.chars() {
        match c {
            '*' | '?' | '[' | ']' | '\\' => pattern.extend(['\\', c]),
            '"' | '\'' => pattern.push('?'),
            // A pattern counts bytes.
            c if c.is_whitespace() || c.is_control() => {
                pattern.extend(std::iter::repeat_n('?', c.len_utf8()))
            }
            c => pattern.push(c),
        }
    }
    pattern
}

/// A script that a kind runs, and commands in it that this kind never comes to, or can do without.
struct Part {
    script: &'static Script,
    without: &'static [&'static str],
}

/// What one kind needs.
struct Needs {
    parts: Vec<Part>,
    keys: &'static [Place],
    channels: &'static [Place],
    /// What Redisson's own scripts of the kind call, as far as ours do not.
    redisson: &'static [&'static str],
    /// Keys that only Redisson uses; it passes channels as keys besides.
    redisson_keys: &'static [Place],
}

impl Kind {
    fn needs(self) -> Needs {
        use scripts::*;
        // Commands that only the drawing of a token comes to.
        const TOKEN_ONLY: &[&str] = &["get", "set", "time"];
        // What lies beside a lost lock is looked at with `pcall`, and can be done without.
        const BESIDE: &[&str] = &["get", "strlen", "llen", "lrange", "zscore", "zcount", "zrangebyscore"];
        let whole = |script| Part { script, without: &[] };
        let parts = |scripts: &[&'static Script]| scripts.iter().copied().map(whole).collect::<Vec<_>>();
        let tokenless = |script| Part { script, without: TOKEN_ONLY };
        // Who has taken over is asked when a hold is lost.
        let taken_over = || Part { script: &SHOW, without: BESIDE };
        let plain = || {
            let mut all = parts(&[&RELEASE, &RELEASE_ALL, &ENTER, &LEAVE, &RENEW, &FORCE, &QUERY]);
            all.extend([tokenless(&ACQUIRE), tokenless(&ACQUIRE_ALL), tokenless(&TRANSFER), taken_over()]);
            all
        };
        let needs = Needs {
            parts: Vec::new(),
            keys: &[Place::Name],
            channels: &[],
            redisson: &[],
            redisson_keys: &[],
        };
        match self {
            Kind::Lock => Needs {
                parts: plain(),
                channels: &[LOCK_CHANNEL],
                redisson: &["exists", "hincrby", "get", "set"],
                redisson_keys: &[UNLOCK_LATCH],
                ..needs
            },
            Kind::Fenced => {
                let mut all = plain();
                all.extend(parts(&[&ACQUIRE, &ACQUIRE_ALL, &TRANSFER, &COUNTER_GET]));
                Needs {
                    parts: all,
                    keys: &[Place::Name, TOKEN],
                    channels: &[LOCK_CHANNEL],
                    redisson: &["exists", "hincrby", "incr"],
                    redisson_keys: &[UNLOCK_LATCH],
                }
            }
            Kind::Fair => {
                let mut all = parts(&[&FAIR_LEAVE, &FAIR_UNDO, &FAIR_FORCE, &ENTER, &RENEW, &QUERY]);
                let granting = [&FAIR_ACQUIRE, &FAIR_RELEASE];
                all.extend(granting.map(|script| Part { script, without: &["get", "set"] }));
                all.push(taken_over());
                Needs {
                    parts: all,
                    keys: &[Place::Name, QUEUE, TIMES],
                    channels: &[LOCK_CHANNEL],
                    redisson: &["exists", "hincrby", "get", "set", "zrange", "zincrby"],
                    redisson_keys: &[UNLOCK_LATCH],
                }
            }
            // Its scripts are given no command to publish with.
            Kind::Spin => Needs {
                parts: plain(),
                redisson: &["exists", "hincrby", "get", "set", "publish"],
                redisson_keys: &[LOCK_CHANNEL, UNLOCK_LATCH],
                ..needs
            },
            Kind::ReadWrite => {
                let mut all = parts(&[
                    &READ_ENTER,
                    &READ_RELEASE,
                    &READ_LEAVE,
                    &READ_RENEW,
                    &WRITE_ENTER,
                    &WRITE_RELEASE,
                    &WRITE_LEAVE,
                    &WRITE_RENEW,
                    &DOWNGRADE,
                    &RW_FORCE,
                    &RW_QUERY,
                ]);
                all.push(Part { script: &READ_ACQUIRE, without: &["get", "time"] });
                all.extend([tokenless(&WRITE_ACQUIRE), tokenless(&WRITE_TRANSFER), taken_over()]);
                Needs {
                    parts: all,
                    keys: &[Place::Name, Place::After],
                    channels: &[RW_CHANNEL],
                    redisson: &["hkeys", "get"],
                    redisson_keys: &[UNLOCK_LATCH],
                }
            }
            Kind::Semaphore => Needs {
                parts: parts(&[
                    &SEMAPHORE_TAKE,
                    &SEMAPHORE_GIVE,
                    &SEMAPHORE_DRAIN,
                    &SEMAPHORE_DELETE,
                    &COUNTER_GET,
                    &COUNTER_SET,
                ]),
                channels: &[PERMITS_CHANNEL],
                ..needs
            },
            Kind::Permits => {
                let mut all = parts(&[
                    &PERMIT_TAKE,
                    &PERMIT_GIVE,
                    &PERMIT_RENEW,
                    &PERMIT_LOOK,
                    &PERMIT_SET,
                    &PERMIT_END,
                ]);
                all.push(taken_over());
                Needs {
                    parts: all,
                    keys: &[Place::Name, Place::After],
                    channels: &[PERMITS_CHANNEL],
                    redisson: &["exists", "zrangebyscore"],
                    ..needs
                }
            }
            Kind::Latch => Needs {
                parts: parts(&[&LATCH_DOWN, &LATCH_DELETE, &COUNTER_GET, &COUNTER_SET]),
                channels: &[LATCH_CHANNEL],
                ..needs
            },
            Kind::RateLimiter => Needs {
                parts: parts(&[&RATE_TAKE, &RATE_RELEASE, &RATE_SET, &RATE_SHOW, &RATE_DELETE]),
                keys: &[Place::Name, Place::After],
                redisson: &["hgetall", "hsetnx", "hexists"],
                ..needs
            },
            Kind::Stock => Needs { parts: parts(&[&SELL, &STOCK]), ..needs },
            Kind::Look => Needs {
                parts: parts(&[&SHOW, &LIST]),
                keys: &[Place::Name, TOKEN, QUEUE, TIMES, Place::After],
                ..needs
            },
        }
    }
}

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
        Rights { kinds, prefix, functions: false, cluster: false, acknowledged: false, redisson: false }
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

    /// Grants wait for replicas (`WAIT`).
    pub fn acknowledged(self, yes: bool) -> Self {
        Rights { acknowledged: yes, ..self }
    }

    /// Java clients use the same account: adds what Redisson needs besides, its channels among the keys.
    pub fn redisson(self, yes: bool) -> Self {
        Rights { redisson: yes, ..self }
    }

    /// The kinds, sorted and each once.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Commands, in lower case and sorted; a subcommand after a bar.
    pub fn commands(&self) -> Vec<&'static str> {
        let mut commands = BTreeSet::from(["ping"]);
        commands.extend(if self.functions { &["fcall"][..] } else { &["eval", "evalsha"] });
        let needs: Vec<Needs> = self.kinds.iter().map(|kind| kind.needs()).collect();
        for part in needs.iter().flat_map(|needs| &needs.parts) {
            commands
                .extend(part.script.commands().into_iter().filter(|command| !part.without.contains(command)));
        }
        if needs.iter().any(|needs| !needs.channels.is_empty()) {
            commands.extend(["publish", "subscribe", "unsubscribe"]);
            if self.cluster {
                // Without the last one nobody finds out that the servers know the others.
                commands.extend(["spublish", "ssubscribe", "sunsubscribe", "pubsub|shardnumsub"]);
            }
        }
        if self.cluster {
            commands.extend(["asking", "cluster|slots"]);
        }
        if self.acknowledged {
            commands.insert("wait");
        }
        if self.kinds.contains(&Kind::Look) {
            commands.insert("pubsub|numsub");
            if self.cluster {
                commands.insert("pubsub|shardnumsub");
            }
        }
        if self.redisson {
            commands.extend(["eval", "evalsha", "script|load", "info", "wait"]);
            commands.extend(needs.iter().flat_map(|needs| needs.redisson));
            if self.cluster {
                commands.extend(["cluster|nodes", "readonly"]);
            }
        }
        commands.into_iter().collect()
    }

    /// Patterns of keys, without `~`, sorted.
    pub fn keys(&self) -> Vec<String> {
        let patterns: BTreeSet<String> = self.sample_keys().into_iter().map(|(pattern, _)| pattern).collect();
        // Whoever may use every key needs no other pattern.
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

    fn key_places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for needs in self.kinds.iter().map(|kind| kind.needs()) {
            places.extend(needs.keys);
            if self.redisson {
                places.extend(needs.redisson_keys.iter().chain(needs.channels));
            }
        }
        places
    }

    fn channel_places(&self) -> Vec<Place> {
        self.kinds.iter().flat_map(|kind| kind.needs().channels).copied().collect()
    }

    /// The rules, as they follow the name in `ACL SETUSER name …` and in a line `user name …` of a users file. They take away every
    /// other command, key and channel, and leave alone whether the account is on and its passwords.
    pub fn rules(&self) -> String {
        let mut rules = String::from("-@all");
        for command in self.commands() {
            rules += " +";
            rules += command;
        }
        rules += " resetkeys";
        for pattern in self.keys() {
            rules += " ~";
            rules += &pattern;
        }
        rules += " resetchannels";
        for pattern in self.channels() {
            rules += " &";
            rules += &pattern;
        }
        rules
    }
}

impl fmt::Display for Rights {
    /// The rules.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rules())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `call('…')` of a text, found without knowing what is around it.
    fn named(source: &str) -> BTreeSet<&str> {
        let calls = source.split("call('").skip(1).chain(source.split("read('").skip(1));
        calls.map(|rest| &rest[..rest.find('\'').unwrap()]).collect()
    }

    #[test]
    fn no_script_calls_what_its_list_does_not_name() {
        for script in scripts::ALL {
            assert_eq!(script.commands(), named(script.source()), "{}", script.name());
            // Each call is one of three forms: by name, of the publish command, or the body of a wrapper.
            let text: String = script
                .source()
                .lines()
                .map(|line| line.split("--").next().unwrap())
                .collect::<Vec<_>>()
                .join("\n");
            let count = |end: &str| {
                ["redis.call(", "redis.pcall("].map(|call| text.matches(&format!("{call}{end}")).count())
            };
            let of = |end| count(end).iter().sum::<usize>();
            assert_eq!(of(""), of("'") + of("ARGV[") + of("...)"), "{}", script.name());
        }
    }

    #[test]
    fn every_script_belongs_to_a_kind() {
        let named: BTreeSet<&str> =
            Kind::ALL.iter().flat_map(|kind| kind.needs().parts).map(|part| part.script.name()).collect();
        for script in scripts::ALL {
            assert!(named.contains(script.name()), "{}", script.name());
        }
    }

    #[test]
    fn who_only_looks_may_change_nothing() {
        let commands = Rights::of(&[Kind::Look], "app:").commands();
        let reading = [
            "eval",
            "evalsha",
            "get",
            "hget",
            "hgetall",
            "hkeys",
            "hlen",
            "hmget",
            "llen",
            "lrange",
            "ping",
            "pttl",
            "pubsub|numsub",
            "scan",
            "strlen",
            "time",
            "type",
            "zcount",
            "zrangebyscore",
            "zscore",
        ];
        assert_eq!(commands, reading);
    }

    #[test]
    fn helper_keys_have_the_word_before_the_name() {
        let keys = |kind, prefix| Rights::of(&[kind], prefix).keys();
        assert_eq!(
            keys(Kind::Fair, "app:"),
            [
                "app:*",
                "redisson_lock_queue:app:*",
                "redisson_lock_queue:{app:*",
                "redisson_lock_timeout:app:*",
                "redisson_lock_timeout:{app:*"
            ]
        );
        assert_eq!(keys(Kind::ReadWrite, "app:"), ["app:*", "{app:*"]);
        assert_eq!(keys(Kind::ReadWrite, "{app}:"), ["{app}:*"]);
        assert_eq!(keys(Kind::Fair, ""), ["*"]);
        let channels = |kind, prefix| Rights::of(&[kind], prefix).channels();
        assert_eq!(channels(Kind::Latch, "app:"), ["redisson_countdownlatch__channel__{app:*"]);
        assert_eq!(channels(Kind::Lock, ""), ["redisson_lock__channel:*"]);
        assert!(channels(Kind::Spin, "app:").is_empty());
    }

    #[test]
    fn a_prefix_stands_for_itself() {
        let keys = Rights::of(&[Kind::Lock], "a*b?[c]\\ 'd\u{2003}").keys();
        assert_eq!(keys, ["a\\*b\\?\\[c\\]\\\\??d???*"]);
    }

    #[test]
    fn each_sample_is_covered_and_needs_its_own_pattern() {
        let covers = |pattern: &str, key: &[u8]| redlatch_engine::glob_matches(pattern.as_bytes(), key);
        for prefix in ["app:", "{app}:", "{app", ""] {
            for kind in Kind::ALL {
                let rights = Rights::of(&[kind], prefix);
                for (samples, patterns) in
                    [(rights.sample_keys(), rights.keys()), (rights.sample_channels(), rights.channels())]
                {
                    for (own, sample) in samples {
                        let text = String::from_utf8_lossy(&sample);
                        assert!(covers(&own, &sample), "{kind} {own} {text}");
                        let others = patterns.iter().filter(|pattern| **pattern != own);
                        if prefix == "app:" {
                            assert!(
                                others.clone().all(|other| !covers(other, &sample)),
                                "{kind} {own} {text}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn patterns_cover_what_names_are_turned_into() {
        use crate::name::{Keys, Kind as Use, LockName};
        for name in ["app:x", "app:{tag}", "app:a{b}c"] {
            let rights = Rights::of(&Kind::ALL, "app:");
            let covered = |patterns: &[String], key: &[u8]| {
                patterns.iter().any(|pattern| redlatch_engine::glob_matches(pattern.as_bytes(), key))
            };
            for usage in [Use::Lock, Use::Fair, Use::Read, Use::Write, Use::Permits] {
                let keys = Keys::new(LockName::new(name).unwrap(), usage);
                for key in [&keys.key, &keys.token, &keys.queue, &keys.timeouts] {
                    assert!(key.is_empty() || covered(&rights.keys(), key), "{name} {usage:?}");
                }
                assert!(covered(&rights.channels(), &keys.channel), "{name} {usage:?}");
            }
        }
    }

    #[test]
    fn the_documented_table_is_this_one() {
        let document = include_str!("../../../docs/protocol.md");
        let every_kind = ["eval", "evalsha", "ping", "publish", "subscribe", "unsubscribe"];
        let rows = Kind::ALL.map(|kind| {
            let rights = Rights::of(&[kind], "app:");
            let mut commands = rights.commands();
            commands.retain(|command| !every_kind.contains(command));
            let listed = |sign: &str, patterns: Vec<String>| {
                let quoted: Vec<String> =
                    patterns.iter().map(|pattern| format!("`{sign}{pattern}`")).collect();
                if quoted.is_empty() { "–".into() } else { quoted.join(" ") }
            };
            let (keys, channels) = (listed("~", rights.keys()), listed("&", rights.channels()));
            format!("| {kind} | `{}` | {keys} | {channels} |", commands.join(" ").replace('|', "\\|"))
        });
        for row in &rows {
            assert!(document.contains(row), "docs/protocol.md wants these rows:\n{}", rows.join("\n"));
        }
    }

    #[test]
    fn functions_take_the_place_of_scripts() {
        let rights = Rights::of(&Kind::ALL, "").functions(true).acknowledged(true).cluster(true);
        let commands = rights.commands();
        assert!(commands.contains(&"fcall") && !commands.iter().any(|command| command.starts_with("eval")));
        for command in ["wait", "asking", "cluster|slots", "ssubscribe", "spublish"] {
            assert!(commands.contains(&command), "{command}");
        }
    }
}
