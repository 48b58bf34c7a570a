//! Every script, called at random, on the local engine and on a real server: the same replies, the same keyspace.

use std::{collections::BTreeMap, sync::Arc};

use redlatch::{SystemClock, scripts};
use redlatch_engine::{Engine, Publisher, Value};
use redlatch_testkit::{
    server::{KeyContent, RedisServer},
    stall::paused_lately,
};

use calls::{BESIDE, Dice, NAMES, OWNERS, RW_NAMES, call};

mod calls;

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
            // Whether a look has raised a time to live depends on how far that had run down.
            let raised = script.ends_with("renew") && (1..=2).contains(a) && (1..=2).contains(b);
            a == b || raised || (*a >= least && *b >= least && (a - b).abs() <= TTL_TOLERANCE_MS)
        }
        (Plain::List(a), Plain::List(b)) => {
            let (mut a, mut b) = (a.clone(), b.clone());
            let is_page = ["list", "presence_list", "presence_get"].contains(&script);
            if is_page && a.len() > 1 && b.len() > 1 {
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
    let theirs = server.whole_dump().unwrap();
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
