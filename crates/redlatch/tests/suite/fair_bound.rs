//! The scripts of the fair lock where more waiters have died than one call drops: 1,000. Run on the engine, with a clock that
//! stands still.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use redlatch::{ManualClock, scripts, scripts::Script};
use redlatch_engine::{Engine, Publisher, Value};

const KEY: &str = "x";
const QUEUE: &str = "redisson_lock_queue:{x}";
const TIMES: &str = "redisson_lock_timeout:{x}";
const TOKEN: &str = "redisson_lock_token:{x}";
const CHANNEL: &str = "redisson_lock__channel:{x}";
/// What one call drops at the most.
const DROPPED_MAX: usize = 1_000;
/// Numbers of dead heads around that bound.
const DEAD: [usize; 5] =
    [DROPPED_MAX - 1, DROPPED_MAX, DROPPED_MAX + 1, 2 * DROPPED_MAX, 3 * DROPPED_MAX + 7];
const HOLDER: &str = "1b671a64-40d5-4ed1-a7c4-da01ff1f3341:1";
const FIRST: &str = "1b671a64-40d5-4ed1-a7c4-da01ff1f3342:2";
const SECOND: &str = "1b671a64-40d5-4ed1-a7c4-da01ff1f3343:3";
const OTHER: &str = "1b671a64-40d5-4ed1-a7c4-da01ff1f3344:4";

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Publisher for Told {
    fn publish(&self, channel: &[u8], _: &[u8]) -> usize {
        self.0.lock().unwrap().push(String::from_utf8_lossy(channel).into_owned());
        1
    }
}

/// A fair lock in an engine.
struct Line {
    engine: Engine,
    told: Told,
    now_ms: u64,
}

impl Line {
    /// A held lock, dead waiters, and behind them those that live.
    fn new(dead: usize, live: &[&str]) -> Line {
        let told = Told::default();
        let clock = ManualClock::new(Duration::from_secs(1_000_000));
        let engine = Engine::new(Arc::new(clock), Arc::new(told.clone())).unwrap();
        let mut line = Line { engine, told, now_ms: 1_000_000_000 };
        line.call(&["hset", KEY, HOLDER, "1"]);
        line.call(&["pexpire", KEY, "30000"]);
        for n in 0..dead {
            line.wait(&dead_member(n), -1);
        }
        for member in live {
            line.wait(member, 30_000);
        }
        line
    }

    fn call(&mut self, command: &[&str]) -> Value {
        self.engine.call(command).unwrap()
    }

    fn wait(&mut self, member: &str, left_ms: i64) {
        let at = self.now_ms.checked_add_signed(left_ms).unwrap().to_string();
        self.call(&["rpush", QUEUE, member]);
        self.call(&["zadd", TIMES, &at, member]);
    }

    fn run(&mut self, script: &Script, args: &[&str]) -> Vec<i64> {
        let keys = [KEY, QUEUE, TIMES, TOKEN];
        let keys =
            if matches!(script.name(), "fair_acquire" | "fair_release") { &keys[..] } else { &keys[..3] };
        let args: Vec<&str> = std::iter::once("7").chain(args.iter().copied()).collect();
        let Value::Array(items) = self.engine.eval(script.source().as_bytes(), keys, &args).unwrap() else {
            panic!("no reply");
        };
        let number = |item: &Value| match item {
            Value::Int(number) => *number,
            other => panic!("{other:?}"),
        };
        items[1..].iter().map(number).collect()
    }

    fn acquire(&mut self, owner: &str, wait_ms: &str) -> Vec<i64> {
        self.run(&scripts::FAIR_ACQUIRE, &[owner, "30000", "1", wait_ms, CHANNEL, "publish", "300000", "1"])
    }

    fn release(&mut self, heir: &str) -> Vec<i64> {
        self.run(&scripts::FAIR_RELEASE, &[HOLDER, CHANNEL, "publish", heir, "30000", "1"])
    }

    fn texts(&mut self, command: &[&str]) -> Vec<String> {
        let Value::Array(items) = self.call(command) else { panic!("{command:?}") };
        let text = |item: Value| match item {
            Value::Bytes(text) => String::from_utf8(text).unwrap(),
            other => panic!("{other:?}"),
        };
        items.into_iter().map(text).collect()
    }

    fn queue(&mut self) -> Vec<String> {
        self.texts(&["lrange", QUEUE, "0", "-1"])
    }

    fn holders(&mut self) -> Vec<String> {
        self.texts(&["hkeys", KEY])
    }

    /// Who was told since this was last asked.
    fn told(&mut self) -> Vec<String> {
        let told = std::mem::take(&mut *self.told.0.lock().unwrap());
        let owner = |channel: &String| channel.strip_prefix(&format!("{CHANNEL}:")).unwrap().to_owned();
        told.iter().map(owner).collect()
    }

    /// Asserts that nobody who lives has lost a place, and that queue and times agree.
    #[track_caller]
    fn keeps(&mut self, live: &[&str]) {
        let queue = self.queue();
        let kept: Vec<_> = queue.iter().filter(|member| !member.starts_with("dead")).collect();
        assert_eq!(kept, live);
        let mut timed = self.texts(&["zrange", TIMES, "0", "-1"]);
        let mut queue = queue;
        timed.sort();
        queue.sort();
        assert_eq!(timed, queue, "times and queue");
    }

    /// Lets each who is told ask, until this one is told with nobody dead before it.
    #[track_caller]
    fn asked_until_told(&mut self, next: &str) {
        for _ in 0..20 {
            let told = self.told();
            assert!(!told.is_empty(), "nobody was told though some live");
            let dead = told.iter().find(|owner| owner.starts_with("dead"));
            assert_eq!(dead, None, "a dead one was told");
            if self.queue().first().is_some_and(|head| head == next) && told.contains(&next.to_owned()) {
                return;
            }
            for owner in told {
                assert_eq!(self.acquire(&owner, "30000")[0], 0, "{owner} comes before {next}");
            }
        }
        panic!("{next} is never told");
    }
}

fn dead_member(n: usize) -> String {
    format!("dead{n:04}-40d5-4ed1-a7c4-da01ff1f3341:1")
}

#[test]
fn a_release_behind_more_dead_waiters_than_it_drops_grants_to_none_of_them() {
    for dead in DEAD {
        let mut line = Line::new(dead, &[FIRST, SECOND]);
        // The last of those that the release drops, as the heir: it has not asked for too long.
        let heir = dead_member(dead.min(DROPPED_MAX) - 1);
        let reply = line.release(&heir);
        assert_eq!(reply[0], 1, "{dead}: {reply:?}");
        assert_eq!(line.holders(), Vec::<String>::new(), "{dead}: the lock is free");
        line.keeps(&[FIRST, SECOND]);
        assert!(line.queue().len() >= dead - dead.min(DROPPED_MAX) + 2);
    }
}

#[test]
fn a_release_behind_more_dead_waiters_than_it_drops_has_one_who_lives_ask_until_all_are_dropped() {
    for dead in DEAD {
        let mut line = Line::new(dead, &[FIRST, SECOND]);
        assert_eq!(line.release("")[0], 1);
        line.keeps(&[FIRST, SECOND]);
        // A waiter that is told asks, and by that the way becomes free for the one who is next.
        line.asked_until_told(FIRST);
        assert_eq!(line.acquire(FIRST, "30000")[0], 1, "{dead}: the one who waited longest");
        line.keeps(&[SECOND]);
    }
}

#[test]
fn an_heir_that_is_next_has_the_lock_though_as_many_were_dropped_as_may_be() {
    for dead in [DROPPED_MAX - 1, DROPPED_MAX] {
        let mut line = Line::new(dead, &[FIRST, SECOND]);
        assert_eq!(line.release(FIRST)[0], 2, "{dead}");
        assert_eq!(line.holders(), [FIRST]);
        line.keeps(&[SECOND]);
    }
    let mut line = Line::new(DROPPED_MAX + 1, &[FIRST, SECOND]);
    assert_eq!(line.release(FIRST)[0], 1);
    assert_eq!(line.told(), [FIRST], "it waits, so it drops on");
    line.keeps(&[FIRST, SECOND]);
}

#[test]
fn where_all_who_waited_are_dead_nobody_is_told_and_who_comes_has_the_lock() {
    for dead in DEAD {
        for script in
            [&scripts::FAIR_RELEASE, &scripts::FAIR_UNDO, &scripts::FAIR_RELEASE_ONE, &scripts::FAIR_FORCE]
        {
            let mut line = Line::new(dead, &[]);
            match script.name() {
                "fair_release" => line.run(script, &[HOLDER, CHANNEL, "publish", "", "30000", "0"]),
                "fair_release_one" => line.run(script, &[HOLDER, CHANNEL, "publish", "1", "30000"]),
                _ => line.run(script, &[HOLDER, CHANNEL, "publish"]),
            };
            assert_eq!(line.told(), Vec::<String>::new(), "{} behind {dead}", script.name());
            let mut asked = 0;
            while line.acquire(OTHER, "30000")[0] != 1 {
                assert_eq!(line.told(), [OTHER], "it drops on");
                asked += 1;
                assert!(asked <= dead / DROPPED_MAX, "{} behind {dead}", script.name());
            }
            line.keeps(&[]);
        }
    }
}

#[test]
fn whatever_drops_the_dead_tells_only_those_who_live() {
    for dead in DEAD {
        for script in [&scripts::FAIR_UNDO, &scripts::FAIR_RELEASE_ONE, &scripts::FAIR_FORCE] {
            let mut line = Line::new(dead, &[FIRST, SECOND]);
            match script.name() {
                "fair_release_one" => line.run(script, &[HOLDER, CHANNEL, "publish", "1", "30000"]),
                _ => line.run(script, &[HOLDER, CHANNEL, "publish"]),
            };
            line.keeps(&[FIRST, SECOND]);
            line.asked_until_told(FIRST);
            assert_eq!(line.acquire(FIRST, "30000")[0], 1, "{} behind {dead}", script.name());
            line.keeps(&[SECOND]);
        }
        let mut line = Line::new(dead, &[FIRST, SECOND]);
        assert_eq!(line.acquire(OTHER, "30000")[0], 0);
        line.keeps(&[FIRST, SECOND, OTHER]);
        line.asked_until_told(FIRST);
        // A try lines nobody up.
        let mut line = Line::new(dead, &[FIRST, SECOND]);
        line.call(&["del", KEY]);
        assert_eq!(line.acquire(OTHER, "0")[0], 0);
        line.keeps(&[FIRST, SECOND]);
        line.asked_until_told(FIRST);
    }
}

#[test]
fn a_try_of_a_held_lock_that_drops_all_who_waited_finds_it_busy() {
    for dead in [1, DROPPED_MAX] {
        let mut line = Line::new(dead, &[]);
        assert_eq!(line.acquire(OTHER, "0"), [0, 30_000], "{dead}");
        assert_eq!(line.told(), Vec::<String>::new());
        line.keeps(&[]);
    }
}
