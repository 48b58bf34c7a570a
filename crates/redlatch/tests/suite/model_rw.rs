//! The scripts of the read-write lock against a small model: random schedules of three owners on the engine, with a clock that
//! moves only when the test says so. After each step the reply, the hash, its TTL and all timeout keys are compared.

mod model;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use redlatch::{ManualClock, scripts, scripts::Script};
use redlatch_engine::{Engine, Publisher, Value};

use self::model::Model;

const OWNERS: usize = 3;
const SCHEDULES: u64 = 400;
const STEPS: usize = 120;
/// Moments are multiples of this and ends lie half-way between, so that nothing depends on the tolerance of the release scripts
/// or on what exactly happens at an end.
const TICK_MS: i64 = 100;

struct Deaf;

impl Publisher for Deaf {
    fn publish(&self, _: &[u8], _: &[u8]) -> usize {
        0
    }
}

fn owner(o: usize) -> String {
    format!("1b671a64-40d5-491e-99b0-da01ff1f334{o}:{o}")
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

struct Rig {
    engine: Engine,
    clock: ManualClock,
    model: Model,
    /// Every key has to be declared.
    strict: bool,
}

impl Rig {
    fn eval(&mut self, script: &Script, args: &[&str]) -> Vec<i64> {
        let keys = match script.name() {
            "write_renew" => vec!["x"],
            _ => vec!["x", "{x}:", "redisson_lock_token:{x}"],
        };
        let keys = if script.name() == "read_renew" { &keys[..2] } else { &keys[..] };
        let args: Vec<&str> = std::iter::once("7").chain(args.iter().copied()).collect();
        let reply = if self.strict {
            self.declaring(script, keys, &args)
        } else {
            self.send(script.source(), keys, &args)
        };
        let Value::Array(items) = reply else { panic!("{reply:?}") };
        let numbers: Vec<i64> = items
            .iter()
            .map(|item| match item {
                Value::Int(number) => *number,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(numbers[0], 7, "the number comes back");
        numbers[1..].to_vec()
    }

    fn send(&mut self, source: &str, keys: &[&str], args: &[&str]) -> Value {
        self.engine.eval(source.as_bytes(), keys, args).unwrap()
    }

    /// As a client sends it where every key has to be declared: with none of these keys first, then with those it was told.
    fn declaring(&mut self, script: &Script, keys: &[&str], args: &[&str]) -> Value {
        let whose = match script.name() {
            "write_renew" | "write_enter" => return self.send(script.source(), &keys[..1], args),
            "read_renew" => "3",
            "read_release" | "read_release_one" | "read_transfer" | "read_shorten" | "rw_force" => "all",
            _ => "2",
        };
        let source = format!("{}{}", include_str!("../../src/scripts/declared.lua"), script.source());
        let takes = keys.len().to_string();
        let args: Vec<&str> = args.iter().copied().chain([takes.as_str(), whose]).collect();
        let told = match self.send(&source, keys, &args) {
            Value::Array(items) => match &items[1..] {
                [Value::Array(told)] => told.clone(),
                other => panic!("it touches keys that were not declared: {other:?}"),
            },
            other => panic!("{other:?}"),
        };
        let told = told.iter().map(|key| match key {
            Value::Bytes(key) => std::str::from_utf8(key).unwrap(),
            other => panic!("{other:?}"),
        });
        let keys: Vec<&str> = keys.iter().copied().chain(told).collect();
        self.send(&source, &keys, &args)
    }

    fn int(&mut self, command: &[&str]) -> i64 {
        match self.engine.call(command).unwrap() {
            Value::Int(number) => number,
            other => panic!("{other:?}"),
        }
    }

    /// The whole keyspace is what the model says.
    fn compare(&mut self, what: &str) {
        let model = self.model.clone();
        assert!(model.lasts_as_its_readers_need(), "the model after {what}: {model:?}");
        let mut expected = BTreeMap::new();
        if !model.is_free() {
            expected
                .insert("mode".to_owned(), if model.write.is_some() { "write" } else { "read" }.to_owned());
        }
        if let Some((o, count)) = model.write {
            expected.insert(format!("{}:write", owner(o)), count.to_string());
        }
        for (o, (count, _)) in &model.reads {
            expected.insert(owner(*o), count.to_string());
        }
        let Value::Array(items) = self.engine.call(&["hgetall", "x"]).unwrap() else { panic!() };
        let text = |value: &Value| match value {
            Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("{other:?}"),
        };
        let found: BTreeMap<_, _> = items.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
        assert_eq!(found, expected, "the hash after {what}");
        assert_eq!(self.int(&["pttl", "x"]), model.ttl(), "the TTL after {what}");
        for o in 0..OWNERS {
            let (count, until) = model.live(o).unwrap_or((0, 0));
            for i in 1..=count {
                let key = format!("{{x}}:{}:rwlock_timeout:{i}", owner(o));
                assert_eq!(self.int(&["pttl", &key]), until - model.now, "{key} after {what}");
            }
            let beyond = format!("{{x}}:{}:rwlock_timeout:{}", owner(o), count + 1);
            // An ended hold may leave a key only as long as its own lease lasted, and that is over.
            assert_eq!(self.int(&["pttl", &beyond]), -2, "{beyond} after {what}");
        }
        // What the model is there for: nobody writes beside anybody else.
        if let Some((o, _)) = model.write {
            assert!((0..OWNERS).all(|other| other == o || model.live(other).is_none()), "{model:?}");
        }
    }

    fn step(&mut self, dice: &mut Dice) -> String {
        let (o, other) = (dice.roll(OWNERS as u64) as usize, dice.roll(OWNERS as u64) as usize);
        let (me, you) = (owner(o), owner(other));
        let lease = dice.roll(12) as i64 * TICK_MS + TICK_MS / 2;
        let lease_text = lease.to_string();
        let known = dice.roll(4) as i64;
        let known_text = known.to_string();
        let (channel, publish) = ("redisson_rwlock:{x}", "publish");
        let release = [me.as_str(), channel, publish, &known_text];
        let release = if known > 0 { &release[..] } else { &release[..3] };
        let kind = dice.roll(18);
        let (what, expected, got): (String, Vec<i64>, Vec<i64>) = match kind {
            0 | 1 => {
                let (count, value) = self.model.read_acquire(o, lease);
                let got = self.eval(&scripts::READ_ACQUIRE, &[&me, &lease_text, "0"]);
                (format!("read_acquire {o} {lease}"), vec![count, value], got)
            }
            2 => {
                let (count, value) = self.model.read_enter(o, lease);
                let got = self.eval(&scripts::READ_ENTER, &[&me, &lease_text]);
                (format!("read_enter {o} {lease}"), vec![count, value], got)
            }
            3 => {
                let (released, counted) = self.model.read_release(o, known);
                let got = self.eval(&scripts::READ_RELEASE, release);
                (format!("read_release {o} {known}"), vec![released, counted], got)
            }
            4 => {
                let left = self.model.read_leave(o, known, lease);
                let args = [me.as_str(), channel, publish, &known_text, &lease_text];
                (
                    format!("read_leave {o} {known} {lease}"),
                    vec![left, 0],
                    self.eval(&scripts::READ_RELEASE_ONE, &args),
                )
            }
            5 => {
                let held = self.model.read_renew(o, lease);
                let got = self.eval(&scripts::READ_RENEW, &[&lease_text, &me]);
                (format!("read_renew {o} {lease}"), vec![held], got)
            }
            6 | 7 => {
                let (count, value) = self.model.write_acquire(o, lease);
                let got = self.eval(&scripts::WRITE_ACQUIRE, &[&me, &lease_text, "0"]);
                (format!("write_acquire {o} {lease}"), vec![count, value], got)
            }
            8 => {
                let (count, value) = self.model.write_enter(o, lease);
                let got = self.eval(&scripts::WRITE_ENTER, &[&me, &lease_text]);
                (format!("write_enter {o} {lease}"), vec![count, value], got)
            }
            9 => {
                let (released, counted) = self.model.write_release(o, known);
                let got = self.eval(&scripts::WRITE_RELEASE, release);
                (format!("write_release {o} {known}"), vec![released, counted], got)
            }
            10 => {
                let left = self.model.write_leave(o, known, lease);
                let args = [me.as_str(), channel, publish, &known_text, &lease_text];
                (
                    format!("write_leave {o} {known} {lease}"),
                    vec![left, 0],
                    self.eval(&scripts::WRITE_RELEASE_ONE, &args),
                )
            }
            11 => {
                let held = self.model.write_renew(o, lease);
                let got = self.eval(&scripts::WRITE_RENEW, &[&lease_text, &me]);
                (format!("write_renew {o} {lease}"), vec![held], got)
            }
            12 => {
                let moves = dice.roll(3);
                let (passed, value) = self.model.transfer(o, other, lease, moves);
                let moves_text = moves.to_string();
                let args = [me.as_str(), &you, &lease_text, "0", &moves_text];
                (
                    format!("write_transfer {o} {other} {lease} {moves}"),
                    vec![passed, value],
                    self.eval(&scripts::WRITE_TRANSFER, &args),
                )
            }
            14 => {
                let back = dice.roll(2) == 1 && o != other;
                let (passed, value) = self.model.read_transfer(o, other, lease, back);
                let args = [you.as_str(), &lease_text, &me, "0", if back { "2" } else { "1" }];
                (
                    format!("read_transfer {o} {other} {lease} {back}"),
                    vec![passed, value],
                    self.eval(&scripts::READ_TRANSFER, &args),
                )
            }
            15 => {
                let held = self.model.read_shorten(o, lease);
                let got = self.eval(&scripts::READ_SHORTEN, &[&me, &lease_text]);
                (format!("read_shorten {o} {lease}"), vec![held], got)
            }
            16 => {
                let held = self.model.write_shorten(o, lease);
                let got = self.eval(&scripts::WRITE_SHORTEN, &[&me, &lease_text]);
                (format!("write_shorten {o} {lease}"), vec![held], got)
            }
            13 if dice.roll(6) == 0 => {
                let write = dice.roll(2) == 0;
                let side = if write { "write" } else { "read" };
                let done = self.model.force(write);
                let got = self.eval(&scripts::RW_FORCE, &["", side, channel, publish, "0"]);
                (format!("rw_force {side}"), vec![done, 0], got)
            }
            _ => {
                let pause = (1 + dice.roll(8) as i64) * TICK_MS;
                self.clock.advance(Duration::from_millis(pause as u64));
                self.model.now += pause;
                self.model.settle();
                (format!("pause {pause}"), Vec::new(), Vec::new())
            }
        };
        assert_eq!(got, expected, "the reply of {what}");
        what
    }
}

#[test]
fn random_schedules_do_what_the_model_says() {
    schedules(SCHEDULES, false);
}

#[test]
fn random_schedules_do_the_same_where_every_key_has_to_be_declared() {
    schedules(SCHEDULES / 4, true);
}

fn schedules(schedules: u64, strict: bool) {
    let mut ran: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 1..=schedules {
        let clock = ManualClock::new(Duration::from_secs(1_700_000_000));
        let mut engine = Engine::new(Arc::new(clock.clone()), Arc::new(Deaf)).unwrap();
        engine.set_strict_keys(strict);
        let mut rig = Rig { engine, clock, model: Model::default(), strict };
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut history = Vec::new();
        for _ in 0..STEPS {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let what = rig.step(&mut dice);
                rig.compare(&what);
                what
            }));
            match outcome {
                Ok(what) => {
                    *ran.entry(what.split(' ').next().unwrap_or("").to_owned()).or_default() += 1;
                    history.push(what);
                }
                Err(panic) => {
                    println!("schedule {seed} after: {history:#?}\n{:?}", rig.model);
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
    assert!(ran.len() == 16 && ran.values().all(|times| *times > 100), "{ran:?}");
}

/// More holds than the scripts look at one by one are counted exactly all the same.
#[test]
fn a_thousand_and_more_holds_are_counted_exactly() {
    many_holds(false);
}

#[test]
fn a_thousand_and_more_holds_are_counted_exactly_where_every_key_has_to_be_declared() {
    many_holds(true);
}

fn many_holds(strict: bool) {
    let clock = ManualClock::new(Duration::from_secs(1_700_000_000));
    let mut engine = Engine::new(Arc::new(clock.clone()), Arc::new(Deaf)).unwrap();
    engine.set_strict_keys(strict);
    let mut rig = Rig { engine, clock, model: Model::default(), strict };
    let me = owner(0);
    rig.eval(&scripts::WRITE_ACQUIRE, &[&me, "60000", "0"]);
    rig.eval(&scripts::READ_ACQUIRE, &[&me, "60000", "0"]);
    for n in 2..=1_010 {
        assert_eq!(rig.eval(&scripts::READ_ENTER, &[&me, "60000"]), [n, 0]);
    }
    assert_eq!(rig.eval(&scripts::READ_ACQUIRE, &[&me, "60000", "0"]), [1_010, 0]);
    assert_eq!(rig.eval(&scripts::READ_ENTER, &[&me, "60000"]), [1_011, 0]);
    assert_eq!(rig.eval(&scripts::WRITE_RELEASE, &[&me, "redisson_rwlock:{x}", "publish", "1"]), [1, 0]);
    for n in (2..=1_011).rev() {
        let args = [me.as_str(), "redisson_rwlock:{x}", "publish", &n.to_string(), "60000"];
        assert_eq!(rig.eval(&scripts::READ_RELEASE_ONE, &args), [n - 1, 0]);
        if n == 1_005 {
            assert_eq!(rig.eval(&scripts::READ_RENEW, &["90000", &me]), [1]);
        }
    }
    assert_eq!(rig.int(&["pttl", &format!("{{x}}:{me}:rwlock_timeout:1")]), 90_000);
    assert_eq!(rig.eval(&scripts::READ_RELEASE, &[&me, "redisson_rwlock:{x}", "publish"]), [1, 0]);
    assert_eq!(rig.int(&["dbsize"]), 0);
}

/// An end this near is nearer than what counts as the same moment, and still nobody is found where there is nobody.
#[test]
fn a_reader_that_goes_at_the_very_end_of_its_time_leaves_nothing() {
    for left in [1, 5, 10, 11, 12] {
        for with_write in [false, true] {
            let clock = ManualClock::new(Duration::from_secs(1_700_000_000));
            let engine = Engine::new(Arc::new(clock.clone()), Arc::new(Deaf)).unwrap();
            let mut rig = Rig { engine, clock, model: Model::default(), strict: false };
            let (me, other) = (owner(0), owner(1));
            let release = |rig: &mut Rig, owner: &str| {
                rig.eval(&scripts::READ_RELEASE, &[owner, "redisson_rwlock:{x}", "publish"])
            };
            if with_write {
                rig.eval(&scripts::WRITE_ACQUIRE, &[&me, "1000", "0"]);
                rig.eval(&scripts::READ_ACQUIRE, &[&me, "1000", "0"]);
            } else {
                for owner in [&me, &other] {
                    assert_eq!(rig.eval(&scripts::READ_ACQUIRE, &[owner, "1000", "0"]), [1, 0]);
                }
            }
            rig.clock.advance(Duration::from_millis(1_000 - left));
            assert_eq!(release(&mut rig, &me), [1, 0]);
            assert_eq!(rig.int(&["pttl", "x"]), left as i64, "another owner has it for as long as that");
            if !with_write {
                assert_eq!(release(&mut rig, &other), [1, 0]);
                assert_eq!(rig.int(&["dbsize"]), 0, "{left} ms before the end");
            }
        }
    }
}
