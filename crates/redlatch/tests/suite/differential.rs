//! Every script, called at random, on the local engine and on a real server: the same replies, the same keyspace.

use std::{collections::BTreeMap, sync::Arc};

use redlatch::{SystemClock, scripts, scripts::Script};
use redlatch_engine::{Engine, Publisher, Value};
use redlatch_testkit::{
    server::{KeyContent, RedisServer},
    stall::paused_lately,
};

/// How many calls one run makes.
const CALLS: usize = 40_000;
/// TTLs run down between the two sides, by at most this much.
const TTL_TOLERANCE_MS: i64 = 400;

struct Deaf;

impl Publisher for Deaf {
    fn publish(&self, _: &[u8], _: &[u8]) -> usize {
        0
    }
}

/// A reproducible source of choices.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.roll(from.len())]
    }
}

const OWNERS: [&str; 3] = [
    "1b671a64-40d5-491e-99b0-da01ff1f3341:1",
    "1b671a64-40d5-491e-99b0-da01ff1f3341:2",
    "aaaaaaaa-40d5-4ed1-a7c4-da01ff1f3341:1",
];
/// State that scripts of other kinds leave, with deadlines far away or long ago.
const BESIDE: [&[&str]; 9] = [
    &["RPUSH", "redisson_lock_queue:{b}", OWNERS[1], OWNERS[2], "x"],
    &["ZADD", "redisson_lock_timeout:{b}", "4102444800000", OWNERS[1], "5", OWNERS[2]],
    &["RPUSH", "redisson_lock_queue:{t}x", OWNERS[0]],
    &["SET", "{rw}:1b671a64-40d5-491e-99b0-da01ff1f3341:1:rwlock_timeout:1", "1", "PX", "60000"],
    &["SET", "seats", "4"],
    &["ZADD", "{seats}:timeout", "4102444800000", "p", "922337203685477", "q", "5", "r"],
    &["HSET", "api", "rate", "5", "interval", "1000", "type", "0", "keepAliveTime", "0"],
    &["SET", "{api}:value", "3"],
    &["SET", "{string}:timeout", "no zset"],
];
/// What only `show` looks at, besides the others.
const SHOWN: [&str; 8] = ["a", "b", "{t}x", "string", "rw", "seats", "api", "permits"];
const NAMES: [&str; 5] = ["a", "b", "{t}x", "string", "rw"];
/// Permits with leases, some under ids as old releases of Redisson write them.
const SEATS: [&str; 4] = ["seats", "seats", "free", "string"];
const IDS: [&str; 4] =
    ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc", "\u{1}\u{2}\0\r\n%%^$()[].*+"];
const LEASES: [&str; 4] = ["60000", "5000", "600000", "9007199254740991"];
const FORCED: &str = "redlatch_forced:{t}";
const CHANNEL: &str = "redisson_lock__channel:{x}";
/// Few, so that calls meet each other's holds; one is the name of a plain lock now and then.
const RW_NAMES: [&str; 3] = ["rw", "r2", "a"];

/// One call: a script with keys and arguments that make sense, or nearly.
fn call(dice: &mut Dice, n: usize) -> (&'static Script, Vec<String>, Vec<String>) {
    let script: &'static Script = scripts::ALL[dice.roll(scripts::ALL.len())];
    let name = dice.pick(&NAMES).to_owned();
    let token = format!("redisson_lock_token:{{{name}}}");
    let fair = vec![
        name.clone(),
        format!("redisson_lock_queue:{{{name}}}"),
        format!("redisson_lock_timeout:{{{name}}}"),
    ];
    let owner = dice.pick(&OWNERS).to_owned();
    let other = dice.pick(&OWNERS).to_owned();
    let lease = dice.pick(&LEASES).to_owned();
    let number = dice.roll(1000).to_string();
    let known = dice.pick(&["0", "1", "2", "3"]).to_owned();
    let fenced = dice.pick(&["0", "1"]).to_owned();
    let counter = dice.pick(&["permits", "count", "count", "string", "a"]).to_owned();
    let permits = dice.pick(&["1", "2", "5", "-3"]).to_owned();
    let seat = dice.pick(&SEATS);
    let seats = vec![seat.to_owned(), format!("{{{seat}}}:timeout")];
    let ids: String = (0..=dice.roll(2)).map(|_| dice.pick(&IDS)).collect();
    let texts = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
    let (keys, mut args) = match script.name() {
        "acquire" => (vec![name, token], vec![number, owner, lease, fenced]),
        "release" => (vec![name], expecting(dice, vec![number, owner, CHANNEL.into(), "publish".into()])),
        "acquire_all" => {
            // No key of two types at once, so that most calls are answered.
            let mut keys = vec![name];
            for _ in 0..dice.roll(4) {
                keys.push(dice.pick(&["a", "b", "{t}x", "c", "d", "rw"]).to_owned());
            }
            if fenced == "1" {
                let tokens: Vec<_> =
                    keys.iter().map(|key| format!("redisson_lock_token:{{{key}}}")).collect();
                keys.extend(tokens);
            }
            (keys, vec![number, owner, lease, fenced])
        }
        "release_all" => {
            let mut keys = vec![name];
            let mut args = vec![number, "publish".into()];
            for nth in 0..=dice.roll(4) {
                if nth > 0 {
                    keys.push(dice.pick(&["a", "b", "{t}x", "c", "d", "string"]).to_owned());
                }
                let (channel, expected) = (dice.pick(&["", CHANNEL]), dice.pick(&["", "", "1", "2"]));
                args.extend(texts(&[dice.pick(&OWNERS), channel, expected]));
            }
            (keys, args)
        }
        "enter" => (vec![name, token], vec![number, owner, lease, fenced]),
        "leave" => (vec![name], vec![number, owner, CHANNEL.into(), "publish".into(), known, lease]),
        "renew" => {
            let mut keys = vec![name];
            let mut args = vec![number, dice.pick(&["60000", "0", "700000"]).to_owned(), owner];
            for _ in 0..dice.roll(3) {
                keys.push(dice.pick(&NAMES).to_owned());
                args.push(dice.pick(&OWNERS).to_owned());
            }
            (keys, args)
        }
        "shorten" => (vec![name], shortening(dice, number, owner)),
        "transfer" => {
            (vec![name, token], vec![number, owner, other, lease, fenced, dice.pick(&["0", "1"]).to_owned()])
        }
        "force" => {
            let expected = if dice.roll(2) == 0 { String::new() } else { owner };
            let (mut keys, mut args) = (vec![name], vec![number, expected, CHANNEL.into(), "publish".into()]);
            if dice.roll(2) == 0 {
                keys.push(FORCED.into());
                args.push("somebody\nwhy".into());
            }
            (keys, args)
        }
        "lost" => {
            let each = dice.pick(&["1", "2"]).to_owned();
            let keys = if each == "2" { vec![name, FORCED.into()] } else { vec![name, fair[0].clone()] };
            (keys, vec![number, each, dice.pick(&["0", "16"]).to_owned(), owner, other])
        }
        "show" => {
            let (shown, some) = (dice.pick(&SHOWN), dice.pick(&["0", "1", "100"]));
            // Of permits whose ends are a millisecond apart either may be the first one.
            let some = if shown == "seats" && some == "1" { "100" } else { some };
            (vec![shown.to_owned(), token], texts(&[some]))
        }
        "list" => (vec![], {
            let types = ["hash", "hash", "list", "zset", "string"];
            texts(&["0", dice.pick(&["*", "?", "{t}*", "[ab]", "none"]), "1000", "100", dice.pick(&types)])
        }),
        "query" => (vec![name], vec![owner]),
        "sell" => (vec!["stock".to_owned()], texts(&[dice.pick(&["1", "5", "0"])])),
        "stock" => (vec!["stock".to_owned()], texts(&[dice.pick(&["", "15", "0", "none"])])),
        "fair_acquire" => {
            let wait = dice.pick(&["0", "30000", "30000"]).to_owned();
            let (channel, publish) = (CHANNEL.into(), "publish".into());
            let recount = dice.pick(&["0", "1"]).to_owned();
            let args = vec![number, owner, lease, fenced, wait, channel, publish, "300000".into(), recount];
            ([fair, vec![token]].concat(), args)
        }
        "fair_release" => {
            let heir = if dice.roll(3) == 0 { String::new() } else { other };
            let (channel, publish) = (CHANNEL.into(), "publish".into());
            let args = vec![number, owner, channel, publish, heir, lease, fenced];
            ([fair, vec![token]].concat(), expecting(dice, args))
        }
        "fair_leave" => (fair, vec![number, owner, CHANNEL.into(), "publish".into(), known, lease]),
        "fair_undo" => (fair, expecting(dice, vec![number, owner, CHANNEL.into(), "publish".into()])),
        "fair_force" => {
            let expected = if dice.roll(2) == 0 { String::new() } else { owner };
            let args = vec![number, expected, CHANNEL.into(), "publish".into(), "somebody\n".into()];
            ([fair, vec![FORCED.into()]].concat(), args)
        }
        "counter_get" => (vec![counter], vec![number]),
        "counter_set" => (
            vec![counter],
            vec![
                number,
                permits,
                dice.pick(&["0", "60000"]).to_owned(),
                CHANNEL.into(),
                "publish".into(),
                "1".into(),
            ],
        ),
        "semaphore_take" => (vec![counter], vec![number, permits]),
        "semaphore_give" => (
            vec![counter],
            vec![number, permits, CHANNEL.into(), "publish".into(), dice.pick(&["0", "1"]).to_owned()],
        ),
        "semaphore_drain" => (vec![counter], vec![number]),
        "latch_down" | "latch_delete" | "semaphore_delete" => {
            (vec![counter], vec![number, CHANNEL.into(), "publish".into()])
        }
        "rate_take" => {
            (rate_keys(dice), vec![number, dice.pick(&["1", "2", "5", "7"]).to_owned(), grant_id(n)])
        }
        "rate_release" => {
            let id =
                if dice.roll(2) == 0 { String::new() } else { grant_id(n.saturating_sub(dice.roll(20))) };
            (rate_keys(dice), vec![number, dice.pick(&["1", "2", "5", "50"]).to_owned(), id])
        }
        "rate_set" => (
            rate_keys(dice),
            vec![
                number,
                dice.pick(&["5", "9", "200"]).to_owned(),
                dice.pick(&["60000", "600000"]).to_owned(),
                dice.pick(&["0", "0", "1"]).to_owned(),
                dice.pick(&["0", "0", "900000"]).to_owned(),
                dice.pick(&["absent", "always", "present", "present"]).to_owned(),
            ],
        ),
        "rate_show" | "rate_delete" => (rate_keys(dice), vec![number]),
        "permit_take" => (seats, vec![number, ids, lease, CHANNEL.into(), "publish".into()]),
        "permit_give" => {
            let all = dice.pick(&["0", "1"]).to_owned();
            let (given, not) = if dice.roll(2) == 0 { ("1", "0") } else { ("0", "-1") };
            (seats, vec![number, ids, CHANNEL.into(), "publish".into(), all, given.into(), not.into()])
        }
        "permit_renew" => {
            let mut keys = vec![seats[1].clone()];
            let mut args = vec![number, dice.pick(&["60000", "0"]).to_owned(), ids];
            for _ in 0..dice.roll(3) {
                keys.push(format!("{{{}}}:timeout", dice.pick(&SEATS)));
                args.push(dice.pick(&IDS).to_owned());
            }
            (keys, args)
        }
        "permit_look" => {
            let id = dice.pick(&["", "aaaaaaaaaaaaaaaa", "cccccccccccccccc"]).to_owned();
            (seats, vec![number, id, CHANNEL.into(), "publish".into()])
        }
        "permit_set" => {
            let how = dice.pick(&["absent", "total", "add"]).to_owned();
            (seats, vec![number, permits, CHANNEL.into(), "publish".into(), how])
        }
        "permit_end" => {
            let ttl = dice.pick(&["0", "60000", "60000"]).to_owned();
            (seats, vec![number, ttl, CHANNEL.into(), "publish".into()])
        }
        script => {
            read_write(dice, script, number, owner, other, [lease, known, fenced]).unwrap_or_else(|| {
                panic!("the differential test has no arguments for {script}.lua");
            })
        }
    };
    // Now and then an argument is nonsense: both sides must refuse alike.
    if dice.roll(40) == 0 && !args.is_empty() {
        // A cursor is opaque, and servers differ in which nonsense they take for one.
        let first = usize::from(script.name() == "list");
        // The ids of grants decide the order of those of one millisecond, which must be the same on both sides.
        let last = if matches!(script.name(), "rate_take" | "rate_release") { 2 } else { args.len() };
        let at = first + dice.roll(last - first);
        args[at] = dice.pick(&["", "x", "-1", "1.5", "99999999999999999999"]).to_owned();
        // What ends within a few milliseconds would have ended on one side and not yet on the other: permits that last for 1.5 ms.
        if script.name().starts_with("permit_") && args[at] == "1.5" {
            args[at] = "x".to_owned();
        }
    }
    (script, keys, args)
}

/// Some are meant for a hold whose end has come, some for one that lasts, and some ask for the end.
fn shortening(dice: &mut Dice, number: String, owner: String) -> Vec<String> {
    let mut args = vec![number, owner, dice.pick(&["60000", "500000", "700000"]).to_owned()];
    match dice.pick(&["", "0", "1700000000000", "9000000000000"]) {
        "" => {}
        end => args.push(end.to_owned()),
    }
    args
}

/// Now and then a release expects a count.
fn expecting(dice: &mut Dice, mut args: Vec<String>) -> Vec<String> {
    match dice.pick(&["", "1", "2"]) {
        "" => {}
        count => args.push(count.to_owned()),
    }
    args
}

/// The keys of a rate limiter, mostly of one that is there.
fn rate_keys(dice: &mut Dice) -> Vec<String> {
    let name = *["rate", "rate", "rate", "rate", "rate", "rate", "string", "a"].get(dice.roll(8)).unwrap();
    let part = |part: &str| if name == "a" { part.to_owned() } else { format!("{{{name}}}:{part}") };
    vec![name.to_owned(), part("value"), part("value:me"), part("permits"), part("permits:me")]
}

/// Grows with the calls, as the time of the grants does.
fn grant_id(n: usize) -> String {
    format!("{n:016}")
}

/// The arguments of the scripts of the read-write lock.
fn read_write(
    dice: &mut Dice,
    script: &str,
    number: String,
    owner: String,
    other: String,
    [lease, known, fenced]: [String; 3],
) -> Option<(Vec<String>, Vec<String>)> {
    let name = dice.pick(&RW_NAMES).to_owned();
    let base = format!("{{{name}}}:");
    let token = format!("redisson_lock_token:{{{name}}}");
    let (channel, publish) = ("redisson_rwlock:{x}".to_owned(), "publish".to_owned());
    let side = dice.pick(&["read", "write"]).to_owned();
    let keys = vec![name.clone(), base.clone()];
    Some(match script {
        "read_acquire" | "write_acquire" => (vec![name, base, token], vec![number, owner, lease, fenced]),
        "read_enter" => (vec![name, base, token], vec![number, owner, lease, fenced]),
        "write_enter" => (vec![name, token], vec![number, owner, lease, fenced]),
        "read_transfer" => (
            vec![name, base, token],
            vec![number, other, lease, owner, fenced, dice.pick(&["1", "2"]).to_owned()],
        ),
        "read_shorten" | "write_shorten" => (keys, shortening(dice, number, owner)),
        "read_release" | "write_release" => (keys, expecting(dice, vec![number, owner, channel, publish])),
        "read_leave" | "write_leave" => (keys, vec![number, owner, channel, publish, known, lease]),
        "read_renew" | "write_renew" => {
            let (mut keys, mut args) =
                (Vec::new(), vec![number, dice.pick(&["60000", "0", "700000"]).to_owned()]);
            for _ in 0..=dice.roll(3) {
                let name = dice.pick(&RW_NAMES);
                keys.push(name.to_owned());
                if script == "read_renew" {
                    keys.push(format!("{{{name}}}:"));
                }
                args.push(dice.pick(&OWNERS).to_owned());
            }
            (keys, args)
        }
        "write_transfer" => {
            let moves = dice.pick(&["0", "1", "2"]).to_owned();
            (vec![name, base, token], vec![number, owner, other, lease, fenced, moves])
        }
        "rw_force" => {
            let expected = ["", &owner, &format!("{owner}:write")][dice.roll(3)].to_owned();
            let args = vec![number, expected, side, channel, publish, "1".to_owned(), "somebody\nwhy".into()];
            (vec![name, base, FORCED.into()], args)
        }
        "rw_query" => (keys, vec![owner, side]),
        _ => return None,
    })
}

/// A reply in one form for both sides; errors by their first word.
#[derive(Debug, Clone, PartialEq)]
enum Plain {
    Nil,
    Int(i64),
    Text(String),
    List(Vec<Plain>),
    Error(String),
}

fn first_word(text: &str) -> String {
    text.split(' ').next().unwrap_or("").to_owned()
}

fn from_engine(outcome: Result<Value, redlatch_engine::EngineError>) -> Plain {
    fn plain(value: Value) -> Plain {
        match value {
            Value::Nil => Plain::Nil,
            Value::Int(value) => Plain::Int(value),
            Value::Bytes(bytes) => Plain::Text(String::from_utf8_lossy(&bytes).into_owned()),
            Value::Status(text) => Plain::Text(text),
            Value::Array(items) => Plain::List(items.into_iter().map(plain).collect()),
        }
    }
    outcome.map_or_else(|error| Plain::Error(first_word(&error.to_string())), plain)
}

fn from_redis(outcome: redis::RedisResult<redis::Value>) -> Plain {
    fn plain(value: redis::Value) -> Plain {
        match value {
            redis::Value::Nil => Plain::Nil,
            redis::Value::Int(value) => Plain::Int(value),
            redis::Value::BulkString(bytes) => Plain::Text(String::from_utf8_lossy(&bytes).into_owned()),
            redis::Value::SimpleString(text) => Plain::Text(text),
            redis::Value::Okay => Plain::Text("OK".into()),
            redis::Value::Array(items) => Plain::List(items.into_iter().map(plain).collect()),
            other => panic!("an unexpected kind of reply: {other:?}"),
        }
    }
    outcome.map_or_else(|error| Plain::Error(error.code().unwrap_or("none").to_owned()), plain)
}

/// Permits are shown in the order of their ends, which may be a millisecond apart: two numbers, and an id and a time for each.
fn permits_by_id(mut items: Vec<Plain>) -> Vec<Plain> {
    if let [Plain::Int(_), Plain::Int(_), Plain::Text(_), Plain::Int(_), ..] = items[..] {
        let mut pairs: Vec<_> = items[2..].chunks(2).map(<[_]>::to_vec).collect();
        pairs.sort_by_key(|pair| format!("{:?}", pair[0]));
        items.truncate(2);
        items.extend(pairs.concat());
    }
    items
}

/// Whether two replies are the same, but for time that passed and for orders that are nobody's promise.
fn same(script: &str, ours: &Plain, theirs: &Plain) -> bool {
    match (ours, theirs) {
        (Plain::Int(a), Plain::Int(b)) => {
            // How old a note is counts from 0.
            let least = if script == "lost" { 0 } else { 1_001 };
            a == b || (*a >= least && *b >= least && (a - b).abs() <= TTL_TOLERANCE_MS)
        }
        (Plain::List(a), Plain::List(b)) => {
            let (mut a, mut b) = (a.clone(), b.clone());
            if script == "list" && a.len() > 1 && b.len() > 1 {
                a[1..].sort_by_key(|item| format!("{item:?}"));
                b[1..].sort_by_key(|item| format!("{item:?}"));
            }
            if script == "show" {
                (a, b) = (permits_by_id(a), permits_by_id(b));
            }
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| same(script, a, b))
        }
        _ => ours == theirs,
    }
}

fn content_of(engine: &mut Engine, key: &str, kind: &str) -> KeyContent {
    let ask = |engine: &mut Engine, command: &[&str]| -> Vec<Vec<u8>> {
        match engine.call(command).expect("a read of a key of that type") {
            Value::Array(items) => items
                .into_iter()
                .map(|item| match item {
                    Value::Bytes(bytes) => bytes,
                    other => panic!("{other:?}"),
                })
                .collect(),
            Value::Bytes(bytes) => vec![bytes],
            other => panic!("{other:?}"),
        }
    };
    match kind {
        "string" => KeyContent::string(&ask(engine, &["GET", key])[0]),
        "hash" => KeyContent::hash(
            ask(engine, &["HGETALL", key]).chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())),
        ),
        "list" => KeyContent::list(ask(engine, &["LRANGE", key, "0", "-1"])),
        "zset" => {
            let items = ask(engine, &["ZRANGE", key, "0", "-1", "WITHSCORES"]);
            KeyContent::sorted_set(items.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())))
        }
        other => panic!("no script of ours makes a {other}"),
    }
}

fn keyspace_of(engine: &mut Engine) -> BTreeMap<Vec<u8>, (KeyContent, i64)> {
    let keys: Vec<String> =
        engine.dump().into_iter().map(|dumped| String::from_utf8(dumped.key).unwrap()).collect();
    let mut out = BTreeMap::new();
    for key in keys {
        let Ok(Value::Status(kind)) = engine.call(&["TYPE", key.as_str()]) else {
            panic!("TYPE answers a status")
        };
        let Ok(Value::Int(ttl)) = engine.call(&["PTTL", key.as_str()]) else {
            panic!("PTTL answers a number")
        };
        out.insert(key.clone().into_bytes(), (content_of(engine, &key, &kind), ttl));
    }
    out
}

/// A note of a forced release without its time, which is the second line.
fn without_time(note: &[u8]) -> Vec<u8> {
    match note.strip_prefix(b"\n") {
        Some(rest) => rest.iter().copied().skip_while(u8::is_ascii_digit).collect(),
        None => note.to_vec(),
    }
}

/// Whether two values are the same, but for scores and lines that are moments.
fn alike(ours: &KeyContent, theirs: &KeyContent) -> bool {
    if let (KeyContent::Hash(ours), KeyContent::Hash(theirs)) = (ours, theirs) {
        let timeless = |fields: &BTreeMap<Vec<u8>, Vec<u8>>| -> BTreeMap<Vec<u8>, Vec<u8>> {
            fields.iter().map(|(field, value)| (field.clone(), without_time(value))).collect()
        };
        return timeless(ours) == timeless(theirs);
    }
    let (KeyContent::SortedSet(ours), KeyContent::SortedSet(theirs)) = (ours, theirs) else {
        return ours == theirs;
    };
    let scores = |items: &[(Vec<u8>, Vec<u8>)]| -> BTreeMap<Vec<u8>, f64> {
        let score = |text: &[u8]| String::from_utf8_lossy(text).parse().unwrap();
        items.iter().map(|(member, text)| (member.clone(), score(text))).collect()
    };
    let (ours, theirs) = (scores(ours), scores(theirs));
    ours.len() == theirs.len()
        && ours
            .iter()
            .zip(&theirs)
            .all(|((a, ours), (b, theirs))| a == b && (ours - theirs).abs() <= TTL_TOLERANCE_MS as f64)
}

fn compare_keyspaces(engine: &mut Engine, server: &RedisServer, after: usize) {
    // A pause between the two makes what one of them sets end later.
    let paused_ms = i64::try_from(paused_lately().as_millis()).unwrap();
    let ours = keyspace_of(engine);
    let theirs = server.keys_dump().unwrap();
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    let more: Vec<_> = ours.iter().filter(|(key, _)| !theirs.contains_key(*key)).collect();
    let more: Vec<_> = more.into_iter().map(|(key, (content, ttl))| (text(key), content, ttl)).collect();
    let less: Vec<_> = theirs.iter().filter(|(key, _)| !ours.contains_key(*key)).collect();
    let less: Vec<_> = less.into_iter().map(|(key, dumped)| (text(key), dumped.pttl_ms)).collect();
    assert!(
        more.is_empty() && less.is_empty(),
        "after call {after} the engine alone has {more:?}, the server {less:?}"
    );
    for (key, (content, ttl)) in &ours {
        let other = &theirs[key];
        let name = String::from_utf8_lossy(key);
        assert!(
            alike(content, &other.content),
            "{name} after call {after}: {content:?}, {:?}",
            other.content
        );
        let other_ttl = other.pttl_ms.map_or(-1, |ttl| ttl as i64);
        assert!(
            (ttl - other_ttl).abs() <= TTL_TOLERANCE_MS + paused_ms,
            "the TTL of {name} differs after call {after}: {ttl}, {other_ttl}"
        );
    }
}

#[test]
fn every_script_does_the_same_on_the_engine_and_on_the_server() {
    let server = RedisServer::start().unwrap();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut engine = Engine::new(Arc::new(SystemClock), Arc::new(Deaf)).unwrap();
    let seed =
        std::env::var("REDLATCH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_1234_u64);
    println!("REDLATCH_SEED={seed}");
    let mut dice = Dice(seed);
    let both = |engine: &mut Engine, connection: &mut redis::Connection, command: &[&str]| {
        engine.call(command).unwrap();
        redis::cmd(command[0]).arg(&command[1..]).query::<redis::Value>(connection).unwrap();
    };
    let mut outcomes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for n in 0..CALLS {
        if n % 60 == 0 {
            both(&mut engine, &mut connection, &["FLUSHALL"]);
            both(&mut engine, &mut connection, &["SET", "string", "text"]);
            both(&mut engine, &mut connection, &["HSET", "rw", "mode", "read", OWNERS[0], "1"]);
            // What only looking reads: a queue, read holds, permits and the rule of a limiter.
            for command in BESIDE {
                both(&mut engine, &mut connection, command);
            }
            // A rate limiter that a client has used: long ago, a while ago, and just now.
            both(
                &mut engine,
                &mut connection,
                &["HSET", "rate", "rate", "9", "interval", "60000", "type", "0"],
            );
            let now_ms = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis();
            for (id, age_ms) in [("A", 700_000), ("B", 120_000), ("C", 1_000)] {
                let at = (now_ms - age_ms).to_string();
                let grant = format!("\u{1}{id}\u{2}\0\0\0");
                both(&mut engine, &mut connection, &["ZADD", "{rate}:permits", &at, &grant]);
            }
            if n % 120 == 0 {
                both(&mut engine, &mut connection, &["SET", "{rate}:value", "3"]);
            }
            // Counters far above any clock, so that the tokens of both sides are the same.
            for name in NAMES.iter().chain(&RW_NAMES).chain(&["c", "d"]) {
                both(
                    &mut engine,
                    &mut connection,
                    &["SET", &format!("redisson_lock_token:{{{name}}}"), "8000000000000000"],
                );
            }
        }
        let (script, keys, args) = call(&mut dice, n);
        let ours = from_engine(engine.eval(script.source().as_bytes(), &keys, &args));
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.source()).arg(keys.len()).arg(&keys).arg(&args);
        let theirs = from_redis(eval.query(&mut connection));
        assert!(
            same(script.name(), &ours, &theirs),
            "call {n}: {} {keys:?} {args:?}\n  engine {ours:?}\n  server {theirs:?}",
            script.name()
        );
        let kind = if matches!(ours, Plain::Error(_)) { "refused" } else { "answered" };
        *outcomes.entry((script.name(), kind)).or_default() += 1;
        if n % 20 == 19 {
            compare_keyspaces(&mut engine, &server, n);
        }
    }
    // A run that refuses everything would agree about nothing of interest.
    for script in scripts::ALL {
        assert!(
            outcomes.get(&(script.name(), "answered")).is_some_and(|count| *count > 100),
            "{}: {outcomes:?}",
            script.name()
        );
    }
}
