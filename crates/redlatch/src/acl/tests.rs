use super::*;
use crate::scripts;

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
        Kind::ALL.iter().flat_map(|kind| kind.description().scripts()).map(|script| script.name()).collect();
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
        "info",
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
            "redisson_lock_timeout:{app:*",
            "redlatch_forced:app:*",
            "redlatch_forced:{app:*",
        ]
    );
    assert_eq!(keys(Kind::Permits, "app:"), ["app:*", "{app:*"]);
    assert_eq!(keys(Kind::Permits, "{app}:"), ["{app}:*"]);
    assert_eq!(keys(Kind::Fair, ""), ["*"]);
    let channels = |kind, prefix| Rights::of(&[kind], prefix).channels();
    assert_eq!(channels(Kind::Latch, "app:"), ["redisson_countdownlatch__channel__{app:*"]);
    assert_eq!(channels(Kind::Lock, ""), ["redisson_lock__channel:*"]);
    assert!(channels(Kind::Spin, "app:").is_empty());
}

#[test]
fn a_prefix_stands_for_itself() {
    let keys = Rights::of(&[Kind::Stock], "a*b?[c]\\ 'd\u{2003}").keys();
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
                        assert!(others.clone().all(|other| !covers(other, &sample)), "{kind} {own} {text}");
                    }
                }
            }
        }
    }
}

#[test]
fn patterns_cover_what_names_are_turned_into() {
    use crate::{
        keys::{KeyKind, Keys},
        name::LockName,
    };
    for name in ["app:x", "app:{tag}", "app:a{b}c"] {
        let rights = Rights::of(&Kind::ALL, "app:");
        let covered = |patterns: &[String], key: &[u8]| {
            patterns.iter().any(|pattern| redlatch_engine::glob_matches(pattern.as_bytes(), key))
        };
        for usage in [KeyKind::Lock, KeyKind::Fair, KeyKind::Read, KeyKind::Write, KeyKind::Permits] {
            let keys = Keys::new(LockName::new(name).unwrap(), usage);
            for key in [&keys.key, keys.token(), &keys.queue, &keys.timeouts] {
                assert!(key.is_empty() || covered(&rights.keys(), key), "{name} {usage:?}");
            }
            assert!(covered(&rights.channels(), keys.channel()), "{name} {usage:?}");
        }
    }
}

#[test]
fn the_documented_table_is_this_one() {
    let document = include_str!("../../../../docs/protocol.md");
    let every_kind = ["eval", "evalsha", "info", "ping", "publish", "subscribe", "unsubscribe"];
    let rows = Kind::ALL.map(|kind| {
        let rights = Rights::of(&[kind], "app:");
        let mut commands = rights.commands();
        commands.retain(|command| !every_kind.contains(command));
        let listed = |sign: &str, patterns: Vec<String>| {
            let quoted: Vec<String> = patterns.iter().map(|pattern| format!("`{sign}{pattern}`")).collect();
            if quoted.is_empty() { "–".into() } else { quoted.join(" ") }
        };
        let (keys, channels) = (listed("~", rights.keys()), listed("&", rights.channels()));
        format!("| {kind} | `{}` | {keys} | {channels} |", commands.join(" ").replace('|', "\\|"))
    });
    let missing: Vec<String> = rows.into_iter().filter(|row| !document.contains(row)).collect();
    assert!(missing.is_empty(), "docs/protocol.md lacks these rows:\n{}", missing.join("\n"));
}

#[test]
fn functions_take_the_place_of_scripts() {
    let rights = Rights::of(&Kind::ALL, "").functions(true).acknowledged(true).cluster(true);
    let commands = rights.commands();
    assert!(commands.contains(&"fcall") && !commands.iter().any(|command| command.starts_with("eval")));
    for command in ["wait", "asking", "cluster|nodes", "cluster|slots", "ssubscribe", "spublish"] {
        assert!(commands.contains(&command), "{command}");
    }
    let plain = rights.sharded(false).commands();
    let left_out: Vec<&&str> = commands.iter().filter(|command| !plain.contains(command)).collect();
    assert_eq!(left_out, [&"pubsub|shardnumsub", &"spublish", &"ssubscribe", &"sunsubscribe"]);
}
