//! The same random commands and scripts on the engine and on a real redis-server: replies and the whole keyspace
//! must agree. The seed of a failure is printed; `REDLATCH_SEED` runs it again.

mod support;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use redlatch_engine::{DumpedKey, Effect, Engine, EngineError, Journal, Publisher, SystemClock, Value};
use support::{Client, RedisServer, Rng, Wire};

/// Two clocks are read at slightly different moments.
const TTL_TOLERANCE_MS: u64 = 300;

struct Nobody;

impl Publisher for Nobody {
    fn publish(&self, _channel: &[u8], _payload: &[u8]) -> usize {
        0
    }
}

/// A journal that only remembers.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<Effect>>>);

impl Journal for Memory {
    fn append(&mut self, effects: &[Effect]) -> std::io::Result<()> {
        self.0.lock().expect("no panic").extend_from_slice(effects);
        Ok(())
    }
}

fn engine_with(journal: &Memory) -> Engine {
    Engine::with_journal(Arc::new(SystemClock), Arc::new(Nobody), Box::new(journal.clone()))
        .expect("an engine")
}

const KEYS: &[&str] = &["a", "b", "{c}:d", "key with blank", "e"];
const FIELDS: &[&str] =
    &["f", "g", "mode", "", "a field that is longer than the usual sixty-four bytes of a compact hash"];
const VALUES: &[&str] = &["1", "-5", "x", "", "007", "9223372036854775807", "3.5", "value"];
const MEMBERS: &[&str] = &["m", "n", "o", "p", "\u{1}\u{0}z"];
const INTEGERS: &[&str] =
    &["0", "1", "-1", "2", "5", "-3", "100", "9223372036854775807", "x", "1.5", "", "+1", "01"];
const SCORES: &[&str] =
    &["0", "1", "2.5", "-1", "1e10", "inf", "-inf", "0.1", "1763708595123", "nan", "abc", "3"];
const BOUNDS: &[&str] =
    &["0", "(1", "1", "2.5", "(2.5", "-inf", "+inf", "inf", "(inf", "1e10", "abc", "(", "3"];
const ODD_TTLS: &[&str] = &["-1", "0", "x", "9223372036854775807", ""];

type Words = Vec<String>;

fn words(parts: &[&str]) -> Words {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

fn some<'a>(rng: &mut Rng, from: &[&'a str], most: usize) -> Vec<&'a str> {
    (0..=rng.below(most)).map(|_| rng.pick(from)).collect()
}

/// One random command, mostly sensible.
fn command(rng: &mut Rng, step: usize) -> Words {
    let key = rng.pick(KEYS);
    // No two TTLs of a run are equal: GT and LT would otherwise depend on the millisecond of each command.
    let long = (100_000 + (step * 7919 % 2003) * 1000).to_string();
    let ttl = if rng.below(4) == 0 { rng.pick(ODD_TTLS) } else { long.as_str() };
    let mut out: Vec<&str> = Vec::new();
    match rng.below(40) {
        0 => {
            out.extend([rng.pick(&["exists", "del", "unlink"])]);
            out.extend(some(rng, KEYS, 3));
        }
        1 => out.extend([rng.pick(&["type", "get", "strlen", "persist", "ttl", "pttl", "pexpiretime"]), key]),
        2 | 3 => {
            out.extend(["set", key, rng.pick(VALUES)]);
            for _ in 0..rng.below(3) {
                match rng.below(5) {
                    0 => out.push("nx"),
                    1 => out.push("XX"),
                    2 => out.push("keepttl"),
                    3 => out.extend(["px", ttl]),
                    _ => out.extend(["ex", ttl]),
                }
            }
        }
        4 => out.extend([rng.pick(&["incr", "decr", "INCR"]), key]),
        5 => out.extend([rng.pick(&["incrby", "decrby"]), key, rng.pick(INTEGERS)]),
        6..=8 => {
            out.extend(["hset", key]);
            for _ in 0..=rng.below(3) {
                out.extend([rng.pick(FIELDS), rng.pick(VALUES)]);
            }
            if rng.below(12) == 0 {
                out.push("odd");
            }
        }
        9 => out.extend(["hsetnx", key, rng.pick(FIELDS), rng.pick(VALUES)]),
        10 => out.extend([rng.pick(&["hget", "hexists"]), key, rng.pick(FIELDS)]),
        11 => {
            out.extend([rng.pick(&["hmget", "hdel"]), key]);
            out.extend(some(rng, FIELDS, 3));
        }
        12 | 13 => out.extend(["hincrby", key, rng.pick(FIELDS), rng.pick(INTEGERS)]),
        14 => out.extend([rng.pick(&["hlen", "hkeys", "hgetall", "hvals", "llen", "zcard"]), key]),
        15..=17 => {
            out.extend([rng.pick(&["pexpire", "expire", "PEXPIRE"]), key, ttl]);
            for _ in 0..rng.below(3) {
                out.push(rng.pick(&["nx", "XX", "gt", "LT", "bad"]));
            }
        }
        18 | 19 => {
            out.extend([rng.pick(&["lpush", "rpush"]), key]);
            out.extend(some(rng, VALUES, 3));
        }
        20 => {
            out.extend([rng.pick(&["lpop", "rpop"]), key]);
            if rng.below(2) == 0 {
                out.push(rng.pick(INTEGERS));
            }
        }
        21 => out.extend(["lindex", key, rng.pick(INTEGERS)]),
        22 => out.extend(["lrange", key, rng.pick(INTEGERS), rng.pick(INTEGERS)]),
        23 => out.extend(["lrem", key, rng.pick(INTEGERS), rng.pick(VALUES)]),
        24..=27 => {
            out.extend(["zadd", key]);
            for _ in 0..rng.below(3) {
                out.push(rng.pick(&["nx", "XX", "gt", "LT", "ch"]));
            }
            for _ in 0..=rng.below(3) {
                out.extend([rng.pick(SCORES), rng.pick(MEMBERS)]);
            }
        }
        28 => {
            out.extend(["zrem", key]);
            out.extend(some(rng, MEMBERS, 3));
        }
        29 => out.extend([rng.pick(&["zscore", "zrank"]), key, rng.pick(MEMBERS)]),
        30 => {
            out.extend(["zrange", key, rng.pick(INTEGERS), rng.pick(INTEGERS)]);
            for _ in 0..rng.below(3) {
                out.push(rng.pick(&["withscores", "REV"]));
            }
        }
        31 => {
            out.extend(["zrange", key, rng.pick(BOUNDS), rng.pick(BOUNDS), "byscore"]);
            for _ in 0..rng.below(3) {
                out.push(rng.pick(&["withscores", "REV"]));
            }
            if rng.below(2) == 0 {
                out.extend(["limit", rng.pick(INTEGERS), rng.pick(INTEGERS)]);
            }
        }
        32 | 33 => {
            out.extend(["zrangebyscore", key, rng.pick(BOUNDS), rng.pick(BOUNDS)]);
            if rng.below(2) == 0 {
                out.push("WITHSCORES");
            }
            if rng.below(2) == 0 {
                out.extend(["limit", rng.pick(INTEGERS), rng.pick(INTEGERS)]);
            }
        }
        34 => out.extend(["zcount", key, rng.pick(BOUNDS), rng.pick(BOUNDS)]),
        35 => out.extend(["zincrby", key, rng.pick(SCORES), rng.pick(MEMBERS)]),
        36 => out.extend(["zremrangebyscore", key, rng.pick(BOUNDS), rng.pick(BOUNDS)]),
        37 => out.extend([rng.pick(&["publish", "spublish", "echo", "ping"]), "channel", "text"]),
        38 => {
            out.extend(["scan", "0", "count", "1000"]);
            if rng.below(2) == 0 {
                out.extend(["match", rng.pick(&["*", "a*", "[a-c]", "?", "{*", "*e*"])]);
            }
            if rng.below(2) == 0 {
                out.extend(["type", rng.pick(&["hash", "string", "zset", "list", "none"])]);
            }
        }
        _ => match rng.below(8) {
            0 => out.push("flushall"),
            1 => out.extend(["nosuchcommand", key]),
            2 => out.extend(["select", rng.pick(&["0", "99", "-1", "x"])]),
            3 => out.push("dbsize"),
            _ => out.extend([rng.pick(&["get", "hset", "zadd", "lpop", "pexpire", "echo"])]),
        },
    }
    words(&out)
}

/// Scripts that forward a command, mix several, or stress the conversions between Lua and replies.
const SCRIPTS: &[&str] = &[
    "return redis.call(unpack(ARGV))",
    "return redis.pcall(unpack(ARGV))",
    "local r = redis.pcall(unpack(ARGV)) if type(r) == 'table' and r.err then return r.err:match('%S+') end return {type(r), r}",
    "local ok, e = pcall(redis.call, unpack(ARGV)) return {tostring(ok), type(e)}",
    "local r = redis.call(unpack(ARGV)) if r then return 1 else return 0 end",
    "redis.call('hset', KEYS[1], 'count', 1.0) redis.call('pexpire', KEYS[1], 3600000) return redis.call(unpack(ARGV))",
    "redis.call('zadd', KEYS[1], 0.1 + 1, 'x', 1e17, 'y') return redis.call('zrange', KEYS[1], 0, -1, 'withscores')",
    "redis.call('set', KEYS[1], 1763708595123456) return redis.call('incrby', KEYS[1], 3)",
    "redis.call('set', KEYS[1], 1.5) return redis.call('get', KEYS[1])",
    "return {1, 2.9, 'x', true, false, {1, {2}}, nil, 4}",
    "return {ok = 'fine'}",
    "return {err = 'BAD thing'}",
    "return redis.error_reply('BAD thing')",
    "return redis.status_reply('FINE')",
    "return -3.99",
    "return {KEYS[1], ARGV[1], #KEYS, #ARGV}",
    "error('boom')",
    "error({err = 'FOO boom'})",
    "x = 1",
    "return undefinedname",
    "return redis.call('get', {})",
    "return redis.call('get', nil)",
    "return redis.call()",
    "return redis.sha1hex(ARGV[1])",
    "return syntax(",
    "return struct.pack('Bc0I', 3, 'abc', 77)",
    "return {struct.unpack('Bc0I', struct.pack('Bc0I', 3, 'abc', 4000000000))}",
    "return {struct.unpack('<i>hb!8lL', struct.pack('<i>hb!8lL', -7, -2, 5, 123456789012, 9))}",
    "return tostring(struct.unpack('d', struct.pack('d', 2.5)))",
    "return struct.pack('sc3Hx!4bi', 'hey', 'abcd', 65535, 1, 2)",
    "return tostring(tonumber('0x10')) .. tostring(1e15) .. tostring(2^53)",
    "local t = redis.call('hgetall', KEYS[1]) return #t",
    "local t = redis.call('type', KEYS[1]) return t.ok",
    "for i = 1, 40 do redis.call('hset', KEYS[1], 'n' .. i, i) end for i = 1, 39, 2 do redis.call('hdel', KEYS[1], 'n' .. i) end return redis.call('hlen', KEYS[1])",
    "for i = 1, 20 do redis.call('zadd', KEYS[1], i % 5, 'n' .. i) end return redis.call('zrange', KEYS[1], 3, 12, 'rev', 'withscores')",
    "local a = redis.call('hincrby', KEYS[1], 'f', 1) if a > 2 then redis.call('del', KEYS[1]) end return a",
    "local l = redis.call('lrange', KEYS[1], 0, -1) for i = 1, #l do redis.call('lrem', KEYS[1], 1, l[i]) end return redis.call('exists', KEYS[1])",
    "redis.call('set', KEYS[1], '5', 'px', 100000) return {redis.call('decr', KEYS[1]), redis.call('pttl', KEYS[1]) > 90000}",
    "redis.call('set', KEYS[1], 'x') redis.call('hget', KEYS[1], 'f')",
    "local r = redis.pcall('hget', KEYS[1], 'f') if type(r) == 'table' and r.err then return r.err end return 'fine'",
    "return string.format('%.0f', 1763708595123457)",
    "return table.concat({1, 2, 3}, ',') .. ('x'):rep(3) .. math.floor(2.7)",
];

fn to_wire(reply: Result<Value, EngineError>) -> Wire {
    fn convert(value: Value) -> Wire {
        match value {
            Value::Nil => Wire::Nil,
            Value::Int(number) => Wire::Int(number),
            Value::Bytes(bytes) => Wire::Bulk(bytes),
            Value::Array(values) => Wire::Array(values.into_iter().map(convert).collect()),
            Value::Status(text) => Wire::Simple(text),
        }
    }
    match reply {
        Ok(value) => convert(value),
        Err(error) => Wire::Error(error.message().to_owned()),
    }
}

/// Makes two replies to the same words comparable.
fn normal(words: &[String], reply: Wire) -> Wire {
    // A script only forwards a command when it ends in one.
    let scripted = words[0] == "eval";
    let forwarded = words.iter().map(|word| word.to_ascii_lowercase()).find(|word| {
        ["scan", "ttl", "pttl", "pexpiretime", "hkeys", "hvals", "hgetall"].contains(&word.as_str())
    });
    match (reply, forwarded.as_deref()) {
        // A Lua number beyond 64 bits becomes what the processor makes of it.
        (Wire::Int(i64::MIN | 9_223_372_036_854_775_000..), _) if scripted => Wire::Int(i64::MAX),
        (Wire::Error(text), _) => Wire::Error(text.split(' ').next().unwrap_or_default().to_owned()),
        (Wire::Array(mut items), Some("scan")) => {
            if scripted && items.len() == 2 && matches!(items[0], Wire::Bulk(ref kind) if kind == b"table") {
                items[1] = normal(words, items[1].clone());
            } else if let Some(Wire::Array(found)) = items.get_mut(1) {
                found.sort_by_key(|item| format!("{item:?}"));
            }
            Wire::Array(items)
        }
        // Redis keeps no order in large hashes.
        (Wire::Array(mut items), Some("hkeys" | "hvals" | "hgetall")) => {
            items = items.into_iter().map(|item| normal(words, item)).collect();
            items.sort_by_key(|item| format!("{item:?}"));
            Wire::Array(items)
        }
        (Wire::Array(items), None) if scripted => {
            Wire::Array(items.into_iter().map(|item| normal(words, item)).collect())
        }
        // The least TTL in use is far above the rounding.
        (Wire::Int(left), Some("ttl" | "pttl" | "pexpiretime")) if left > 0 => Wire::Int(left / 5000 * 5000),
        (Wire::Array(items), Some("ttl" | "pttl" | "pexpiretime")) => {
            Wire::Array(items.into_iter().map(|item| normal(words, item)).collect())
        }
        (other, _) => other,
    }
}

/// Numbers that are about a TTL may fall on two sides of a rounding border.
fn same(a: &Wire, b: &Wire) -> bool {
    match (a, b) {
        (Wire::Int(a), Wire::Int(b)) => a == b || (a % 5000 == 0 && b % 5000 == 0 && (a - b).abs() == 5000),
        (Wire::Array(a), Wire::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => a == b,
    }
}

fn server_dump(server: &mut Client) -> Vec<DumpedKey> {
    let Wire::Array(page) = server.ask(&["scan", "0", "count", "100000"]) else { panic!("no page") };
    let Wire::Array(keys) = &page[1] else { panic!("no keys") };
    let mut out = Vec::new();
    for key in keys {
        let Wire::Bulk(key) = key else { panic!("no key") };
        let Wire::Simple(kind) = server.ask(&[b"type".as_slice(), key]) else { panic!("no type") };
        let (kind, reply) = match kind.as_str() {
            "string" => ("string", server.ask(&[b"get".as_slice(), key])),
            "hash" => ("hash", server.ask(&[b"hgetall".as_slice(), key])),
            "list" => ("list", server.ask(&[b"lrange".as_slice(), key, b"0", b"-1"])),
            "zset" => ("zset", server.ask(&[b"zrange".as_slice(), key, b"0", b"-1", b"withscores"])),
            other => panic!("unexpected type {other}"),
        };
        let ttl_ms = match server.ask(&[b"pttl".as_slice(), key]) {
            Wire::Int(-1) => None,
            Wire::Int(left) => Some(u64::try_from(left).expect("a live key")),
            other => panic!("no TTL but {other:?}"),
        };
        out.push(DumpedKey { key: key.clone(), kind, ttl_ms, content: content(kind, reply) });
    }
    out.sort_by(|a, b| a.key.cmp(&b.key));
    out
}

fn content(kind: &str, reply: Wire) -> Value {
    match reply {
        Wire::Bulk(bytes) => Value::Bytes(bytes),
        Wire::Array(items) => {
            let mut items: Vec<Value> = items.into_iter().map(|item| content("", item)).collect();
            if kind == "hash" {
                let mut pairs: Vec<[Value; 2]> =
                    items.chunks_exact(2).map(|pair| [pair[0].clone(), pair[1].clone()]).collect();
                pairs.sort_by(|a, b| match (&a[0], &b[0]) {
                    (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
                    other => panic!("fields are strings: {other:?}"),
                });
                items = pairs.into_iter().flatten().collect();
            }
            Value::Array(items)
        }
        other => panic!("unexpected content {other:?}"),
    }
}

fn assert_same_keyspace(engine: &mut Engine, server: &mut Client, apart: Duration, history: &[String]) {
    let begin = Instant::now();
    let ours = engine.dump();
    let theirs = server_dump(server);
    let apart_ms = u64::try_from((apart + begin.elapsed()).as_millis()).expect("a short time");
    let without_ttl = |keys: &[DumpedKey]| -> Vec<DumpedKey> {
        keys.iter().map(|key| DumpedKey { ttl_ms: key.ttl_ms.map(|_| 0), ..key.clone() }).collect()
    };
    assert_eq!(without_ttl(&ours), without_ttl(&theirs), "after\n{}", history.join("\n"));
    for (a, b) in ours.iter().zip(&theirs) {
        if let (Some(ours), Some(theirs)) = (a.ttl_ms, b.ttl_ms) {
            assert!(
                ours.abs_diff(theirs) <= TTL_TOLERANCE_MS + apart_ms,
                "TTL {ours} here, {theirs} there\n{}",
                history.join("\n")
            );
        }
    }
}

fn run_seed(server: &mut Client, seed: u64, steps: usize) {
    let mut rng = Rng::new(seed);
    let journal = Memory::default();
    let mut engine = engine_with(&journal);
    server.ask(&["flushall"]);
    let mut history: Vec<String> = vec![format!("seed {seed}")];
    // By how much one of the two may have been asked later than the other.
    let mut apart = Duration::ZERO;
    for step in 0..steps {
        let mut line = command(&mut rng, step);
        let begin = Instant::now();
        let ours = if rng.below(3) == 0 {
            let script = rng.pick(SCRIPTS);
            let key = rng.pick(KEYS);
            let args = std::mem::take(&mut line);
            line = words(&["eval", script, "1", key]);
            let reply = engine.eval(script.as_bytes(), &[key], &args);
            line.extend(args);
            reply
        } else {
            engine.call(&line)
        };
        history.push(format!("{line:?}"));
        let theirs = normal(&line, server.ask(&line));
        apart = apart.max(begin.elapsed());
        let ours = normal(&line, to_wire(ours));
        assert!(
            same(&ours, &theirs),
            "{line:?}\nengine: {ours:?}\nserver: {theirs:?}\nafter\n{}",
            history[history.len().saturating_sub(60)..].join("\n")
        );
        if step % 50 == 49 {
            assert_same_keyspace(&mut engine, server, apart, &history);
            // The changes that were recorded, and the snapshot, lead to the same keyspace.
            let recorded = journal.0.lock().expect("no panic").clone();
            for effects in [recorded, engine.snapshot()] {
                let mut again = engine_with(&Memory::default());
                again.restore(effects, false);
                assert_same_keyspace(&mut again, server, apart, &history);
            }
            history.truncate(1);
        }
    }
}

#[test]
fn random_commands_and_scripts_agree_with_redis() {
    let redis = RedisServer::start();
    let mut server = redis.client();
    if let Some(seed) = std::env::var("REDLATCH_SEED").ok().and_then(|text| text.parse().ok()) {
        run_seed(&mut server, seed, 2000);
        return;
    }
    for seed in 1..=40 {
        run_seed(&mut server, seed, 1000);
    }
}

#[test]
fn keys_expire_at_the_same_time() {
    let redis = RedisServer::start();
    let mut server = redis.client();
    let mut engine = Engine::new(Arc::new(SystemClock), Arc::new(Nobody)).expect("an engine");
    let script = "redis.call('set', 's', 1, 'px', 400) redis.call('hset', 'h', 'f', 1) redis.call('pexpire', 'h', 400) \
                  redis.call('rpush', 'l', 1) redis.call('pexpire', 'l', 600000)";
    let none: [&str; 0] = [];
    engine.eval(script.as_bytes(), &none, &none).expect("the script runs");
    server.ask(&["eval", script, "0"]);
    assert_eq!(engine.call(&["exists", "s", "h", "l"]), Ok(Value::Int(3)));
    // Time itself is what is tested here: there is nothing else to wait for.
    std::thread::sleep(std::time::Duration::from_millis(900));
    assert_eq!(server.ask(&["exists", "s", "h", "l"]), Wire::Int(1));
    assert_eq!(engine.call(&["exists", "s", "h", "l"]), Ok(Value::Int(1)));
    assert_eq!(engine.call(&["hset", "h", "g", "2"]), Ok(Value::Int(1)));
    assert_eq!(engine.call(&["pttl", "h"]), Ok(Value::Int(-1)));
}
