//! What a script may do while holds may be missing from the journal.
//!
//! A script that is refused in its middle leaves half of its change behind. So scripts say what they are in a line of their comment:
//! one that grants nothing runs whole, and one that takes away before it may grant changes nothing. One whose grant may be refused
//! without harm runs in parts: its commands are judged one by one, as those of a script that says nothing.

/// The lines that scripts say it in. A third one, `in parts`, is for those who read it.
const RUNS_WHOLE: &[u8] = b"\n-- Recovering: whole";
const WAITS: &[u8] = b"\n-- Recovering: waits";

/// What scripts say that change nothing.
const LOOKS: &[u8] = b"\n-- Check and change: nothing; only reads";

fn says(source: &[u8], line: &[u8]) -> bool {
    source.windows(line.len()).any(|part| part == line)
}

/// Whether a script says that it changes nothing. Looking at what an owner holds is no use of it.
pub(crate) fn only_looks(source: &[u8]) -> bool {
    says(source, LOOKS)
}

/// What the running script has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Recovering {
    /// Nothing, or it is a command of its own: what lets nobody in is admitted.
    #[default]
    Unsaid,
    Whole,
    Waits,
}

impl Recovering {
    pub(crate) fn of(source: &[u8]) -> Recovering {
        if says(source, RUNS_WHOLE) {
            Recovering::Whole
        } else if says(source, WAITS) {
            Recovering::Waits
        } else {
            Recovering::Unsaid
        }
    }

    /// Whether a command that writes is let through.
    pub(crate) fn admits(self, name: &str, args: &[&[u8]]) -> bool {
        match self {
            Recovering::Whole => true,
            Recovering::Unsaid => only_takes_away(name),
            // Taking away what is never there tells a read-only server from others, and changes nothing.
            Recovering::Waits => only_takes_away(name) && args.len() == 3 && args[2].is_empty(),
        }
    }
}

/// Whether a command lets nobody in who was not in before: it runs also while holds may be missing from the journal.
pub fn only_takes_away(name: &str) -> bool {
    matches!(
        name,
        "del"
            | "expire"
            | "flushall"
            | "hdel"
            | "lpop"
            | "lrem"
            | "pexpire"
            | "pexpireat"
            | "rpop"
            | "unlink"
            | "zrem"
            | "zremrangebyscore"
    )
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use crate::{Engine, ManualClock, Publisher, Value};

    struct Nobody;

    impl Publisher for Nobody {
        fn publish(&self, _channel: &[u8], _payload: &[u8]) -> usize {
            0
        }
    }

    const MOVES: &str = "redis.call('zrem', KEYS[1], 'a') redis.call('incr', KEYS[2]) return 1";

    #[test]
    fn a_release_hands_nothing_on_while_holds_may_be_missing() {
        const RELEASE: &str = include_str!("../../redlatch/src/scripts/fair_release.lua");
        for fenced in ["0", "1"] {
            let clock = Arc::new(ManualClock::new(Duration::from_secs(1)));
            let mut engine = Engine::new(clock, Arc::new(Nobody)).expect("an engine");
            engine.call(&["hset", "x", "me", "1"]).expect("a hold that was given back, which is missing");
            engine.call(&["rpush", "queue", "heir"]).expect("a place");
            engine.call(&["zadd", "times", "99999999999", "heir"]).expect("a time");
            engine.wait_until(u64::MAX);
            let keys = ["x", "queue", "times", "token"];
            let args = ["7", "me", "channel", "publish", "heir", "30000", fenced];
            let released = Value::Array(vec![Value::Int(7), Value::Int(1), Value::Int(0)]);
            assert_eq!(engine.eval(RELEASE.as_bytes(), &keys, &args), Ok(released));
            assert_eq!(engine.call(&["exists", "x"]), Ok(Value::Int(0)), "another may hold it");
            assert_eq!(engine.call(&["llen", "queue"]), Ok(Value::Int(1)), "the heir keeps its place");
            assert_eq!(engine.call(&["zcard", "times"]), Ok(Value::Int(1)));
        }
    }

    #[test]
    fn no_script_is_refused_in_its_middle() {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1)));
        let mut engine = Engine::new(clock, Arc::new(Nobody)).expect("an engine");
        engine.call(&["zadd", "z", "1", "a"]).expect("a member");
        engine.wait_until(u64::MAX);
        let script = |says: &str| format!("-- A script.\n-- Recovering: {says}\n{MOVES}");
        let keys = ["z", "n"];
        let none: [&str; 0] = [];
        let refused = engine.eval(script("waits.").as_bytes(), &keys, &none).expect_err("it may grant");
        assert_eq!(refused.code(), "RECOVERING");
        assert_eq!(engine.call(&["zcard", "z"]), Ok(Value::Int(1)), "nothing has changed");
        assert_eq!(engine.eval(script("whole.").as_bytes(), &keys, &none), Ok(Value::Int(1)));
        assert_eq!(engine.call(&["zcard", "z"]), Ok(Value::Int(0)));
        assert_eq!(engine.call(&["get", "n"]), Ok(Value::Bytes(b"1".to_vec())));
        // Commands and other scripts after it are judged one by one.
        assert_eq!(engine.call(&["incr", "n"]).expect_err("it makes more").code(), "RECOVERING");
        assert_eq!(
            engine.eval(MOVES.as_bytes(), &keys, &none).expect_err("it makes more").code(),
            "RECOVERING"
        );
        let looks = b"-- Recovering is told.\n-- Recovering: waits\nreturn redis.call('zrem', KEYS[1], '')";
        assert_eq!(
            engine.eval(looks, &["z"], &none),
            Ok(Value::Int(0)),
            "what changes nothing is let through"
        );
    }
}
