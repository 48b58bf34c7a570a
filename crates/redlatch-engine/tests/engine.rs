//! The engine by itself: sandbox, limits, time, and what happens when the journal fails.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlatch_engine::{
    COMMANDS, Effect, Engine, EngineError, Journal, ManualClock, Publisher, SystemClock, Value,
};

#[derive(Default)]
struct Heard(Mutex<Vec<(Vec<u8>, Vec<u8>)>>);

impl Publisher for Heard {
    fn publish(&self, channel: &[u8], payload: &[u8]) -> usize {
        let mut heard = self.0.lock().expect("no panic");
        heard.push((channel.to_vec(), payload.to_vec()));
        heard.len()
    }
}

fn engine() -> Engine {
    Engine::new(Arc::new(SystemClock), Arc::new(Heard::default())).expect("an engine")
}

fn eval(engine: &mut Engine, script: &str) -> Result<Value, EngineError> {
    let none: [&str; 0] = [];
    engine.eval(script.as_bytes(), &none, &none)
}

#[test]
fn the_command_list_is_frozen() {
    assert_eq!(COMMANDS.len(), 57);
    let mut engine = engine();
    for name in COMMANDS {
        let reply = engine.call(&[name]);
        assert!(!matches!(&reply, Err(error) if error.message().contains("unknown command")), "{name}");
    }
    for absent in ["keys", "config", "eval", "append", "monitor", "debug", "getset", "hpexpire"] {
        let error = engine.call(&[absent]).expect_err(absent);
        assert!(error.message().starts_with("ERR unknown command"), "{error}");
    }
}

#[test]
fn some_fields_are_fields_of_the_hash_each_once() {
    let mut engine = engine();
    engine.call(&["hset", "h", "a", "1", "b", "2", "c", "3"]).unwrap();
    let mut pairs = |count: &str| {
        let reply = engine.call(&["hrandfield", "h", count, "withvalues"]).unwrap();
        let Value::Array(items) = reply else { panic!("{reply:?}") };
        let mut pairs: Vec<Vec<Value>> = items.chunks(2).map(<[Value]>::to_vec).collect();
        pairs.sort_by_key(|pair| format!("{pair:?}"));
        pairs
    };
    let all = pairs("9");
    assert_eq!(all.len(), 3);
    let two = pairs("2");
    assert!(two.len() == 2 && two[0] != two[1] && two.iter().all(|pair| all.contains(pair)), "{two:?}");
    assert_eq!(engine.call(&["hrandfield", "none", "2", "withvalues"]).unwrap(), Value::Array(Vec::new()));
    let one = engine.call(&["hrandfield", "h"]).unwrap();
    assert!(all.iter().any(|pair| pair[0] == one), "{one:?}");
    assert_eq!(engine.call(&["hrandfield", "none"]).unwrap(), Value::Nil);
    assert!(engine.call(&["hrandfield", "h", "2"]).is_err(), "without values it is not supported");
    for bad in
        [["h", "0", "withvalues"], ["h", "-2", "withvalues"], ["h", "2", "values"], ["h", "x", "withvalues"]]
    {
        assert!(engine.call(&["hrandfield", bad[0], bad[1], bad[2]]).is_err(), "{bad:?}");
    }
}

#[test]
fn the_sandbox_has_no_way_out_and_keeps_nothing() {
    let mut engine = engine();
    for name in [
        "os",
        "io",
        "require",
        "loadfile",
        "dofile",
        "print",
        "load",
        "loadstring",
        "package",
        "debug",
        "collectgarbage",
        "getfenv",
        "setfenv",
        "newproxy",
        "coroutine",
        "module",
        "string.dump",
        "undefined_name",
    ] {
        let reply = eval(&mut engine, &format!("return {name} == nil and 'absent' or type({name})"));
        let absent = reply.is_err() || reply == Ok(Value::Bytes(b"absent".to_vec()));
        assert!(absent, "{name} is there");
    }
    for attempt in [
        "leak = 1",
        "_G.leak = 1",
        "redis.call = nil",
        "string.upper = nil",
        "rawset(_G, 'leak', 1)",
        "rawset(redis, 'call', nil)",
        "setmetatable(_G, nil)",
        "getmetatable('').__index = nil",
        "KEYS = {}",
        "local s = 'x' s.y = 1",
    ] {
        let error = eval(&mut engine, attempt).expect_err(attempt);
        assert_eq!(error.code(), "ERR", "{attempt}");
    }
    assert_eq!(eval(&mut engine, "return ('x'):upper()"), Ok(Value::Bytes(b"X".to_vec())));
    let bytecode = b"\x1bLua\x51\x00\x01\x04\x08\x04\x08\x00";
    assert_eq!(engine.load(bytecode).expect_err("bytecode").code(), "ERR");
}

#[test]
fn a_runaway_script_is_stopped_even_when_it_catches_errors() {
    let mut engine = engine();
    engine.set_script_time_limit(Duration::from_millis(50));
    for script in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local t = {} while true do t[#t + 1] = 'x' end",
        "local function f() return f() end f()",
        "while true do redis.pcall('nosuch') end",
        // What the library does in one go has to be stopped as well.
        "return string.find(string.rep('a', 5000), string.rep('.-', 30) .. 'b')",
        "return (string.rep('a', 5000)):match(string.rep('a*', 40) .. 'b')",
        "return pcall(string.find, string.rep('a', 5000), string.rep('.-', 30) .. 'b')",
        "for _ in string.gmatch(string.rep('a', 5000), string.rep('.-', 30) .. 'b') do end",
        "return string.gsub(string.rep('a', 5000), string.rep('.-', 30) .. 'b', '')",
        "return string.find(string.rep('(', 200000), string.rep('%b()', 3))",
        "while true do local _ = string.rep('x', 100000000) end",
        "local t = {} for i = 1, 100000 do t[i] = i end while true do table.concat(t) end",
    ] {
        let begun = Instant::now();
        let error = eval(&mut engine, script).expect_err(script);
        assert_eq!(error.code(), "ERR");
        assert!(begun.elapsed() < Duration::from_secs(10), "{script}");
        assert_eq!(eval(&mut engine, "return 1"), Ok(Value::Int(1)));
    }
    for script in [
        "return string.find('a', string.rep('a?', 100000))",
        "return string.rep('x', 3000000000)",
        "return string.find(string.rep('a', 1000000), string.rep('a', 500000) .. 'b', 1, true)",
        "local t = {} for i = 1, 40 do t[i] = string.rep('x', 50000000) end return #t",
    ] {
        let begun = Instant::now();
        let _either = eval(&mut engine, script);
        assert!(begun.elapsed() < Duration::from_secs(10), "{script}");
        assert_eq!(eval(&mut engine, "return 1"), Ok(Value::Int(1)));
    }
    let deep = "local t = {} for i = 1, 1000 do t = {t} end return t";
    assert_eq!(eval(&mut engine, deep).expect_err("too deep").code(), "ERR");
    assert!(eval(&mut engine, "local function f() return 1 + f() end return f()").is_err());
}

#[test]
fn errors_keep_their_code_word() {
    let mut engine = engine();
    engine.call(&["set", "text", "x"]).expect("set works");
    for (script, code) in [
        ("return redis.call('hget', 'text', 'f')", "WRONGTYPE"),
        ("return redis.pcall('hget', 'text', 'f')", "WRONGTYPE"),
        ("redis.call('nosuch')", "ERR"),
        ("error('boom')", "ERR"),
        ("return {err = 'CODE words'}", "CODE"),
        ("return redis.error_reply('-CODE words')", "CODE"),
    ] {
        assert_eq!(eval(&mut engine, script).expect_err(script).code(), code, "{script}");
    }
    let none: [&str; 0] = [];
    assert_eq!(engine.eval_sha(&"0".repeat(40), &none, &none).expect_err("unknown").code(), "NOSCRIPT");
    let sha = engine.load(b"return 1").expect("it compiles");
    assert_eq!(engine.eval_sha(&sha.to_uppercase(), &none, &none), Ok(Value::Int(1)));
    engine.flush_scripts();
    assert_eq!(engine.eval_sha(&sha, &none, &none).expect_err("flushed").code(), "NOSCRIPT");
}

#[test]
fn expiry_follows_the_clock_that_was_handed_in() {
    let clock = ManualClock::new(Duration::from_secs(1_700_000_000));
    let mut engine = Engine::new(Arc::new(clock.clone()), Arc::new(Heard::default())).expect("an engine");
    engine.call(&["hset", "h", "f", "1"]).expect("hset works");
    assert_eq!(engine.call(&["pexpire", "h", "1000"]), Ok(Value::Int(1)));
    assert!(engine.has_expiring_keys());
    assert_eq!(engine.call(&["pexpiretime", "h"]), Ok(Value::Int(1_700_000_001_000)));
    clock.advance(Duration::from_millis(1000));
    assert_eq!(engine.call(&["pttl", "h"]), Ok(Value::Int(0)));
    clock.advance(Duration::from_millis(1));
    assert!(!engine.has_expiring_keys());
    assert_eq!(engine.key_count(), 0);
    assert_eq!(engine.call(&["pttl", "h"]), Ok(Value::Int(-2)));
    for i in 0..100 {
        engine.call(&["set", &format!("k{i}"), "v", "px", "10"]).expect("set works");
    }
    clock.advance(Duration::from_millis(11));
    // Every call expires a few keys by itself before it looks at as many as it was told to.
    assert!(engine.expire_some(1000) >= 90);
    assert_eq!(engine.key_count(), 0);
}

#[test]
fn a_scan_sees_all_that_stays_while_keys_come_and_go() {
    let mut engine = engine();
    for i in 0..500 {
        engine.call(&["set", &format!("stay{i}"), "v"]).expect("set works");
        engine.call(&["set", &format!("go{i}"), "v"]).expect("set works");
    }
    let mut cursor = b"0".to_vec();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0.. {
        let words: [&[u8]; 6] = [b"scan", &cursor, b"match", b"stay*", b"count", b"7"];
        let Ok(Value::Array(page)) = engine.call(&words) else { panic!("no page") };
        let [Value::Bytes(next), Value::Array(keys)] = &page[..] else { panic!("no page") };
        for key in keys {
            let Value::Bytes(key) = key else { panic!("no key") };
            seen.insert(key.clone());
        }
        engine.call(&["del", &format!("go{}", round * 3)]).expect("del works");
        engine.call(&["set", &format!("new{round}"), "v"]).expect("set works");
        cursor = next.clone();
        if cursor == b"0" {
            break;
        }
    }
    assert_eq!(seen.len(), 500);
}

/// A disk that can be full.
#[derive(Clone, Default)]
struct Disk {
    full: Arc<AtomicBool>,
    records: Arc<Mutex<Vec<Vec<Effect>>>>,
}

impl Journal for Disk {
    fn append(&mut self, effects: &[Effect]) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.records.lock().expect("no panic").push(effects.to_vec());
        Ok(())
    }
}

/// A disk that has room for changes and none for a second journal.
#[derive(Clone, Default)]
struct Narrow(Arc<Mutex<Vec<Effect>>>);

impl Journal for Narrow {
    fn append(&mut self, effects: &[Effect]) -> io::Result<()> {
        self.0.lock().expect("no panic").extend_from_slice(effects);
        Ok(())
    }

    fn wants_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&mut self, _snapshot: &[Effect]) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

impl Narrow {
    /// An engine that has read what is there, as the daemon does it.
    fn engine(&self, clock: &Arc<ManualClock>) -> Engine {
        let found = self.0.lock().expect("no panic").clone();
        let mut engine =
            Engine::with_journal(clock.clone(), Arc::new(Heard::default()), Box::new(self.clone()))
                .expect("an engine");
        engine.restore(found, false);
        engine.rewrite_journal().expect_err("there is no room");
        engine
    }
}

fn hold(engine: &mut Engine, owner: &str) {
    for n in 0..10 {
        let key = format!("lock-{n}");
        engine.call(&["hset", &key, owner, "1"]).expect("room");
        engine.call(&["pexpire", &key, "1000"]).expect("room");
    }
}

fn holders(engine: &mut Engine) -> Vec<Value> {
    (0..10).map(|n| engine.call(&["hkeys", &format!("lock-{n}")]).expect("a hash")).collect()
}

/// Their fields were in the next holders' hashes after a start, and their owners entered beside those.
#[test]
fn holds_that_ended_do_not_come_back_where_the_journal_could_not_be_rewritten() {
    let only = |owner: &str| vec![Value::Array(vec![Value::Bytes(owner.as_bytes().to_vec())]); 10];
    let (clock, disk) = (Arc::new(ManualClock::new(Duration::from_secs(1))), Narrow::default());
    let mut engine = disk.engine(&clock);
    hold(&mut engine, "first");
    clock.advance(Duration::from_secs(2));
    // The rewrite that this is followed by finds that they have ended.
    engine.call(&["set", "other", "1"]).expect("room");
    hold(&mut engine, "second");
    assert_eq!(holders(&mut disk.engine(&clock)), only("second"), "while it ran");
    clock.advance(Duration::from_secs(2));
    let mut engine = disk.engine(&clock);
    hold(&mut engine, "third");
    assert_eq!(holders(&mut disk.engine(&clock)), only("third"), "when it started");
}

#[test]
fn a_full_disk_refuses_writes_until_it_has_room() {
    let disk = Disk::default();
    let mut engine =
        Engine::with_journal(Arc::new(SystemClock), Arc::new(Heard::default()), Box::new(disk.clone()))
            .expect("an engine");
    let both = "redis.call('set', 'a', 1) redis.call('hset', 'b', 'f', 2) return redis.call('get', 'a')";
    assert_eq!(eval(&mut engine, both), Ok(Value::Bytes(b"1".to_vec())));
    assert_eq!(disk.records.lock().expect("no panic").len(), 1, "one script, one record");
    disk.full.store(true, Ordering::SeqCst);
    assert_eq!(engine.call(&["set", "a", "2"]).expect_err("it cannot be kept").code(), "UNSAVED");
    assert_eq!(engine.call(&["set", "a", "3"]).expect_err("refused").code(), "MISCONF");
    assert_eq!(eval(&mut engine, both).expect_err("refused").code(), "MISCONF");
    assert_eq!(engine.call(&["get", "a"]), Ok(Value::Bytes(b"2".to_vec())));
    disk.full.store(false, Ordering::SeqCst);
    assert_eq!(engine.call(&["incr", "a"]), Ok(Value::Int(3)));
    let mut again = Engine::new(Arc::new(SystemClock), Arc::new(Heard::default())).expect("an engine");
    again.restore(disk.records.lock().expect("no panic").concat(), false);
    assert_eq!(again.dump(), engine.dump());
}

#[test]
fn publishing_reports_the_receivers() {
    let heard = Arc::new(Heard::default());
    let mut engine = Engine::new(Arc::new(SystemClock), Arc::clone(&heard) as _).expect("an engine");
    assert_eq!(eval(&mut engine, "return redis.call('publish', 'c', 0)"), Ok(Value::Int(1)));
    assert_eq!(engine.call(&["spublish", "s", "x"]), Ok(Value::Int(2)));
    let heard = heard.0.lock().expect("no panic");
    assert_eq!(heard[0], (b"c".to_vec(), b"0".to_vec()));
}

#[test]
fn a_full_memory_refuses_what_would_keep_more_and_nothing_else() {
    let used = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (clock, nobody) = (Arc::new(SystemClock), Arc::new(Heard::default()));
    let mut engine =
        Engine::with_journal(clock, nobody, Box::new(redlatch_engine::NoJournal)).expect("an engine");
    let measured = Arc::clone(&used);
    engine.set_memory_limit(64 << 20, move || Some(measured.load(Ordering::SeqCst)));
    engine.call(&["hset", "lock", "owner", "1"]).expect("there is room");
    // One script that would fill whatever there is: what it keeps counts as used.
    let kept = Arc::clone(&used);
    let counter = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let looks = Arc::clone(&counter);
    engine.set_memory_limit(64 << 20, move || {
        looks.fetch_add(1, Ordering::SeqCst);
        Some(kept.fetch_add(1 << 20, Ordering::SeqCst))
    });
    let fill = "for i = 1, 1000000 do redis.call('set', 'k' .. i, string.rep('x', 1024)) end";
    let error = eval(&mut engine, fill).expect_err("it does not fit");
    assert!(error.message().starts_with("OOM command not allowed"), "{error}");
    let keys = engine.key_count();
    assert!((60_000..90_000).contains(&keys), "an eighth more than the limit at most: {keys}");
    assert!(counter.load(Ordering::SeqCst) < 100, "it is not measured for each command");
    for refused in
        [&["set", "a", "1"][..], &["incr", "n"], &["lpush", "l", "1"], &["hset", "lock", "other", "1"]]
    {
        let error = engine.call(refused).expect_err("no room");
        assert!(error.message().starts_with("OOM "), "{refused:?}: {error}");
    }
    for allowed in
        [&["get", "k1"][..], &["pexpire", "lock", "60000"], &["hdel", "lock", "owner"], &["del", "k1"]]
    {
        assert_eq!(engine.call(allowed).map(|_| ()), Ok(()), "{allowed:?}");
    }
    used.store(0, Ordering::SeqCst);
    assert!(engine.call(&["set", "a", "1"]).is_ok(), "there is room again");
}

/// The time of a script was that of the clock: one in whose middle the process was stopped, or had no processor, ended half-way.
#[test]
fn a_script_whose_process_stands_still_for_longer_than_its_limit_runs_to_its_end() {
    struct StandsStill;

    impl Publisher for StandsStill {
        fn publish(&self, _: &[u8], _: &[u8]) -> usize {
            std::thread::sleep(Duration::from_millis(300));
            0
        }
    }

    let mut engine = Engine::new(Arc::new(SystemClock), Arc::new(StandsStill)).expect("an engine");
    engine.set_script_time_limit(Duration::from_millis(200));
    let script = "local n = 0 for i = 1, 2000 do n = n + 1 end redis.call('set', 'half', '1') \
                  redis.call('publish', 'c', 'm') for i = 1, 2000 do n = n + 1 end redis.call('del', 'half') return n";
    assert_eq!(eval(&mut engine, script), Ok(Value::Int(4_000)));
}
