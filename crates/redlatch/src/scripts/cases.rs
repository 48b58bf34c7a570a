//! Every script run in a small world of its own: once, twice, and while holds may be missing from the journal.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use redlatch_engine::{
    DumpedKey, Engine, EngineError, ManualClock, Publisher, Value, only_takes_away, writes,
};

use super::{ALL, Script, header, *};

/// The clock of these worlds stands at 1,000,000,000 ms, so these times are over and to come.
const OVER: &str = "900000000";
const AHEAD: &str = "1000050000";
/// An id of a permit.
const ID: &str = "0123456789abcdef";

struct Deaf;

impl Publisher for Deaf {
    fn publish(&self, _: &[u8], _: &[u8]) -> usize {
        0
    }
}

struct Case {
    script: &'static Script,
    /// Commands that make the world, each ended by a semicolon.
    world: String,
    keys: &'static str,
    args: String,
}

/// Words are set apart by spaces, `_` is an empty one; ID, OVER and AHEAD stand for the constants of these names.
fn case(script: &'static Script, world: &str, keys: &'static str, args: &str) -> Case {
    let filled = |text: &str| text.replace("OVER", OVER).replace("AHEAD", AHEAD).replace("ID", ID);
    Case { script, world: filled(world), keys, args: filled(args) }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().map(|word| if word == "_" { "" } else { word }).collect()
}

impl Case {
    fn engine(&self) -> Engine {
        let clock = ManualClock::new(Duration::from_secs(1_000_000));
        let mut engine = Engine::new(Arc::new(clock), Arc::new(Deaf)).unwrap();
        for command in self.world.split(';').map(words).filter(|command| !command.is_empty()) {
            engine.call(&command).unwrap();
        }
        engine
    }

    fn run(&self, engine: &mut Engine) -> Result<Value, EngineError> {
        engine.eval(self.script.source().as_bytes(), &words(self.keys), &words(&self.args))
    }
}

const HELD: &str = "hset x me 1; pexpire x 9000;";
const HELD_TWICE: &str = "hset x me 2; pexpire x 9000;";
const READ: &str = "hset x mode read me 1; pexpire x 9000; set {x}:me:rwlock_timeout:1 1 px 9000;";
const READ_TWICE: &str = "hset x mode read me 2; pexpire x 9000; set {x}:me:rwlock_timeout:1 1 px 9000;
    set {x}:me:rwlock_timeout:2 1 px 9000;";
const WRITTEN: &str = "hset x mode write me:write 1; pexpire x 9000;";
const WRITTEN_TWICE: &str = "hset x mode write me:write 2; pexpire x 9000;";
const QUEUED: &str = "rpush q dead next; zadd t OVER dead; zadd t AHEAD next;";
const PERMITS: &str = "set x 5; zadd t AHEAD ID; zadd t OVER fedcba9876543210;";
const RATED: &str = "hset x rate 9 interval 60000 type 0 keepAliveTime 0; set v 7;";
const RATE_KEYS: &str = "x v vo p po";

fn cases() -> Vec<Case> {
    let with = |worlds: &[&str]| worlds.concat();
    vec![
        case(&ACQUIRE, "", "x k", "7 me 9000 0"),
        case(&ACQUIRE, "", "x k", "7 me 9000 1 1"),
        case(&ACQUIRE, HELD, "x k", "7 me 20000 1"),
        case(&RELEASE, HELD, "x", "7 me c publish"),
        case(&RELEASE, HELD, "x", "7 me c publish 1"),
        case(&ACQUIRE_ALL, "", "x y", "7 me 9000 0"),
        case(&ACQUIRE_ALL, HELD, "x y k l", "7 me 9000 1"),
        case(&RELEASE_ALL, HELD, "x", "7 publish me c _"),
        case(&RELEASE_ALL, HELD, "x", "7 publish me c 1"),
        case(&ENTER, HELD, "x", "7 me 9000"),
        case(&RELEASE_ONE, HELD_TWICE, "x", "7 me c publish 0 9000"),
        case(&RELEASE_ONE, HELD, "x", "7 me c publish 0 9000"),
        case(&RENEW, HELD, "x y", "7 20000 me me"),
        case(&SHORTEN, HELD, "x", "7 me 2000"),
        case(&SHORTEN, HELD, "x", "7 me 2000 9000000000000"),
        case(&ENTER, HELD, "x k", "7 me 20000 1"),
        case(&TRANSFER, HELD, "x k", "7 me you 9000 0"),
        case(&TRANSFER, HELD, "x k", "7 me you 9000 1 1"),
        case(&FORCE, HELD, "x f", "7 _ c publish why"),
        case(&LOST, HELD, "x f", "7 2 9 me"),
        case(&FAIR_ACQUIRE, QUEUED, "x q t k", "7 me 9000 0 9000 c publish 300000 1"),
        case(
            &FAIR_ACQUIRE,
            "rpush q dead; zadd t OVER dead;",
            "x q t k",
            "7 me 9000 1 9000 c publish 300000 1",
        ),
        case(&FAIR_RELEASE, &with(&[HELD, QUEUED]), "x q t k", "7 me c publish next 9000 0"),
        case(&FAIR_RELEASE, &with(&[HELD, QUEUED]), "x q t k", "7 me c publish next 9000 1"),
        case(&FAIR_RELEASE, &with(&[HELD, QUEUED]), "x q t k", "7 me c publish next 9000 1 1"),
        case(&FAIR_RELEASE_ONE, &with(&[HELD_TWICE, QUEUED]), "x q t", "7 me c publish 0 9000"),
        case(&FAIR_RELEASE_ONE, &with(&[HELD, QUEUED]), "x q t", "7 me c publish 0 9000"),
        case(&FAIR_UNDO, &with(&[HELD, QUEUED]), "x q t", "7 me c publish"),
        case(&FAIR_UNDO, &with(&[HELD, QUEUED]), "x q t", "7 me c publish 1"),
        case(&FAIR_FORCE, &with(&[HELD, QUEUED]), "x q t f", "7 _ c publish why"),
        case(&SHOW, HELD, "x k q t p", "9"),
        case(&LIST, HELD, "", "0 * 9 9 hash"),
        case(&QUERY, HELD, "x", "me"),
        case(&PRESENCE_SET, "", "r", "60000 host web-7"),
        case(&PRESENCE_SET, "hset r host web-7;", "r", "0"),
        case(&PRESENCE_GET, "hset r host web-7; pexpire r 9000;", "r", ""),
        case(&PRESENCE_LIST, "hset r host web-7;", "", "0 r* 9"),
        case(&SELL, "set x 5", "x", "2"),
        case(&STOCK, "set x 5", "x", "2"),
        case(&COUNTER_GET, "set x 5", "x", "7"),
        case(&COUNTER_SET, "", "x", "7 5 0 c publish 1"),
        case(&SEMAPHORE_TAKE, "set x 5", "x", "7 2"),
        case(&SEMAPHORE_GIVE, "set x 5", "x", "7 2 c publish 0"),
        case(&SEMAPHORE_DRAIN, "set x 5", "x", "7"),
        case(&SEMAPHORE_DELETE, "set x 5", "x", "7 c publish"),
        case(&LATCH_DOWN, "set x 5", "x", "7 c publish"),
        case(&LATCH_DOWN, "set x 1", "x", "7 c publish"),
        case(&LATCH_DELETE, "set x 5", "x", "7 c publish"),
        case(&RATE_TAKE, RATED, RATE_KEYS, "7 2 one"),
        case(&RATE_TAKE, &with(&[RATED, "zadd p OVER \u{1}a\u{1}\u{0}\u{0}\u{0}"]), RATE_KEYS, "7 2 one"),
        case(
            &RATE_RELEASE,
            &with(&[RATED, "zadd p 999999000 \u{1}a\u{2}\u{0}\u{0}\u{0}"]),
            RATE_KEYS,
            "7 1 _",
        ),
        case(&RATE_SET, "", RATE_KEYS, "7 5 1000 0 0 absent"),
        case(&RATE_SET, RATED, RATE_KEYS, "7 5 1000 0 0 always"),
        case(
            &RATE_SET,
            &with(&[RATED, "zadd p OVER \u{1}a\u{1}\u{0}\u{0}\u{0}"]),
            RATE_KEYS,
            "7 5 1000 0 0 present",
        ),
        case(&RATE_SHOW, RATED, RATE_KEYS, "7"),
        case(&RATE_DELETE, RATED, RATE_KEYS, "7"),
        case(&READ_ACQUIRE, "", "x {x}: k", "7 me 9000 0"),
        case(&READ_ACQUIRE, "hset x mode read you 1; pexpire x 9000", "x {x}: k", "7 me 9000 1"),
        case(&READ_ACQUIRE, READ_TWICE, "x {x}: k", "7 me 20000 1"),
        case(&READ_ENTER, READ, "x {x}: k", "7 me 9000"),
        case(&READ_RELEASE, READ, "x {x}:", "7 me c publish"),
        case(&READ_RELEASE_ONE, READ_TWICE, "x {x}:", "7 me c publish 0 9000"),
        case(&READ_RELEASE_ONE, READ, "x {x}:", "7 me c publish 0 9000"),
        case(&READ_TRANSFER, READ, "x {x}: k", "7 you 9000 me 0"),
        case(&READ_TRANSFER, READ, "x {x}: k", "7 you 9000 me 1"),
        case(&READ_TRANSFER, READ, "x {x}: k", "7 you 2000 me 0"),
        case(&READ_SHORTEN, READ, "x {x}:", "7 me 2000"),
        case(&READ_SHORTEN, READ, "x {x}:", "7 me 2000 9000000000000"),
        case(&READ_SHORTEN, READ_TWICE, "x {x}:", "7 me 2000"),
        case(&READ_RENEW, READ, "x {x}: y {y}:", "7 20000 me me"),
        case(&WRITE_ACQUIRE, "", "x {x}: k", "7 me 9000 0"),
        case(&WRITE_ACQUIRE, WRITTEN, "x {x}: k", "7 me 20000 1"),
        case(&WRITE_ENTER, WRITTEN, "x k", "7 me 9000"),
        case(&WRITE_ENTER, WRITTEN, "x k", "7 me 20000 1"),
        case(&READ_ENTER, READ_TWICE, "x {x}: k", "7 me 20000 1"),
        case(&WRITE_RELEASE, WRITTEN, "x {x}:", "7 me c publish"),
        case(
            &WRITE_RELEASE,
            "hset x mode write me:write 1 me 1; pexpire x 9000; set {x}:me:rwlock_timeout:1 1 px 9000",
            "x {x}:",
            "7 me c publish",
        ),
        case(&WRITE_RELEASE_ONE, WRITTEN_TWICE, "x {x}:", "7 me c publish 0 9000"),
        case(&WRITE_RELEASE_ONE, WRITTEN, "x {x}:", "7 me c publish 0 9000"),
        case(&WRITE_RENEW, WRITTEN, "x y", "7 20000 me me"),
        case(&WRITE_SHORTEN, WRITTEN, "x {x}:", "7 me 2000"),
        case(&WRITE_SHORTEN, WRITTEN, "x {x}:", "7 me 2000 9000000000000"),
        case(&WRITE_TRANSFER, WRITTEN, "x {x}: k", "7 me you 9000 0"),
        case(&WRITE_TRANSFER, WRITTEN, "x {x}: k", "7 me you 9000 1"),
        case(&RW_FORCE, READ, "x {x}: f", "7 _ read c publish 0 why"),
        case(&RW_QUERY, READ, "x {x}:", "me read"),
        case(&PERMIT_TAKE, "set x 5", "x t", "7 ID 9000 c publish"),
        case(&PERMIT_TAKE, "set x 5; zadd t OVER fedcba9876543210", "x t", "7 ID 9000 c publish"),
        case(&PERMIT_GIVE, PERMITS, "x t", "7 ID c publish 0 1 0"),
        case(&PERMIT_RENEW, PERMITS, "t", "7 90000 ID"),
        case(&PERMIT_LOOK, PERMITS, "x t", "7 ID c publish"),
        case(&PERMIT_SET, PERMITS, "x t", "7 2 c publish add"),
        case(&PERMIT_SET, "", "x t", "7 2 c publish absent"),
        case(&PERMIT_END, PERMITS, "x t", "7 0 c publish"),
    ]
}

#[test]
fn every_script_has_a_case_that_it_does_something_in() {
    let cases = cases();
    for script in ALL {
        let own: Vec<_> = cases.iter().filter(|case| case.script.name() == script.name()).collect();
        assert!(!own.is_empty(), "{} has no case here", script.name());
        let done = own.iter().any(|case| {
            let mut engine = case.engine();
            let before = engine.dump();
            case.run(&mut engine).unwrap_or_else(|error| panic!("{}: {error}", script.name()));
            engine.dump() != before
        });
        let changes = script.commands().iter().any(|command| writes(command));
        assert_eq!(done, changes, "{} does nothing in its cases", script.name());
    }
}

/// What a second run of the same request does, from the most harmless to the least.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Again {
    Harmless,
    AnswersOtherwise,
    Counts,
}

#[test]
fn every_script_says_what_a_repeat_does_and_does_it() {
    let mut found: BTreeMap<&str, Again> = BTreeMap::new();
    for case in cases() {
        let mut engine = case.engine();
        let first = case.run(&mut engine).unwrap();
        let between = engine.dump();
        let second = case.run(&mut engine).unwrap();
        let again = if fenceless(engine.dump()) != fenceless(between) {
            Again::Counts
        } else if first != second && !tokens(&case) {
            Again::AnswersOtherwise
        } else {
            Again::Harmless
        };
        let worst = found.entry(case.script.name()).or_insert(Again::Harmless);
        if again > *worst {
            *worst = again;
        }
    }
    for script in ALL {
        let says = header::repeat(script.source());
        let said = match says {
            "harmless." => Again::Harmless,
            _ if says.starts_with("answers otherwise") => Again::AnswersOtherwise,
            _ if says.starts_with("counts again") => Again::Counts,
            _ => panic!("{} says nothing of a repeat: {says:?}", script.name()),
        };
        assert_eq!(found[script.name()], said, "{}: {says}", script.name());
        let makes_up = says.contains("sent once") || says.contains("undone by its id");
        assert!(said != Again::Counts || makes_up, "{}: {says}", script.name());
        assert_eq!(script.is_sent_once(), says.contains("sent once"));
        let both = script.plain_and_sharded().unwrap();
        assert_eq!(both.is_sent_once(), script.is_sent_once());
        if let Some(declared_keys_variant) = script.declared_keys_variant() {
            assert_eq!(declared_keys_variant.script.is_sent_once(), script.is_sent_once());
        }
    }
}

/// Whether a run of it draws a token. A repeat draws another one, which does no harm.
fn tokens(case: &Case) -> bool {
    let mut engine = case.engine();
    case.run(&mut engine).unwrap();
    engine.dump().iter().any(|key| TOKENS.contains(&&*key.key))
}

const TOKENS: [&[u8]; 2] = [b"k", b"l"];

fn fenceless(dump: Vec<DumpedKey>) -> Vec<DumpedKey> {
    dump.into_iter().filter(|key| !TOKENS.contains(&&*key.key)).collect()
}

/// Who is in: fields of hashes, and members of sets. What is left of a rate has a member of its own, and lets nobody in; nor does what a client tells.
fn who_is_in(dump: &[DumpedKey]) -> BTreeSet<(Vec<u8>, Vec<u8>)> {
    let mut all = BTreeSet::new();
    for key in dump.iter().filter(|key| key.key != b"p" && key.key != b"r") {
        let Value::Array(items) = &key.content else { continue };
        for item in items.iter().step_by(2) {
            if let (Value::Bytes(field), "hash" | "zset") = (item, key.kind) {
                all.insert((key.key.clone(), field.clone()));
            }
        }
    }
    all
}

#[test]
fn no_script_is_refused_in_its_middle_or_lets_anybody_in_while_holds_may_be_missing() {
    for case in cases() {
        let name = case.script.name();
        let mut engine = case.engine();
        let before = engine.dump();
        engine.wait_until(u64::MAX);
        let outcome = case.run(&mut engine);
        let after = engine.dump();
        let says = header::recovering(case.script.source());
        match &outcome {
            Err(error) => {
                assert_eq!(error.code(), "RECOVERING", "{name}: {error}");
                assert_eq!(after, before, "{name} was refused in its middle");
            }
            Ok(_) if says.starts_with("waits") => assert_eq!(after, before, "{name}"),
            Ok(_) => {}
        }
        assert!(!says.starts_with("whole") || outcome.is_ok(), "{name}: {outcome:?}");
        assert!(
            who_is_in(&after).is_subset(&who_is_in(&before)),
            "{name} lets another owner in: {outcome:?}"
        );
    }
}

#[test]
fn what_takes_away_and_adds_says_what_it_does_while_holds_may_be_missing() {
    // They make nothing less.
    let extend = ["expire", "pexpire", "pexpireat"];
    let mut silent = Vec::new();
    for script in ALL {
        let commands = script.commands();
        let takes = commands.iter().any(|name| only_takes_away(name) && !extend.contains(name));
        let adds = commands.iter().any(|name| writes(name) && !only_takes_away(name));
        let says = header::recovering(script.source());
        let known = ["whole; ", "waits; ", "in parts; "].iter().any(|word| says.starts_with(word));
        if !known && (!says.is_empty() || (takes && adds)) {
            silent.push(script.name());
        }
    }
    assert!(silent.is_empty(), "they take away and add, and do not say how: {silent:?}");
}

/// One owner may hold a lock and read under one name, and both have the same field. What is done about the one must leave the other as it is: two
/// holders were valid where it did not.
#[test]
fn no_script_changes_a_hold_that_the_same_owner_has_of_another_kind_of_lock() {
    let swap = [(HELD, READ), (HELD_TWICE, READ_TWICE), (READ, HELD), (READ_TWICE, HELD_TWICE)];
    let mut changed = BTreeSet::new();
    for case in cases() {
        for (own, other) in swap.iter().filter(|(own, _)| case.world.contains(own)) {
            let case = Case { world: case.world.replace(own, other), args: case.args.clone(), ..case };
            let mut engine = case.engine();
            let held = |engine: &mut Engine| {
                let mut dump = engine.dump();
                dump.retain(|key| key.key == b"x" || key.key.ends_with(b":rwlock_timeout:1"));
                dump
            };
            let before = held(&mut engine);
            _ = case.run(&mut engine);
            if held(&mut engine) != before {
                changed.insert(format!("{} {}", case.script.name(), case.args));
            }
        }
    }
    // These name no count, as is done for an owner that nobody can use again: it has one hold and no other.
    let fresh = [
        "fair_release 7 me c publish next 9000 0",
        "fair_release 7 me c publish next 9000 1",
        "fair_undo 7 me c publish",
        "release 7 me c publish",
        "release_all 7 publish me c _",
    ];
    assert_eq!(changed.into_iter().collect::<Vec<_>>(), fresh);
}
