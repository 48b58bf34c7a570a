//! What is kept while the daemon stands still, and what is not.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::super::Shared;
use super::super::lifelines::{Line, Step};
use super::super::process::Process;
use super::super::pubsub::Hub;
use super::*;
use crate::trace::{TracePlace, permit_mark};
use crate::{Effect, Engine, Journal, ManualClock, Value};

const ID: &str = "1b671a64-40d5-4ed1-a7c4-da01ff1f3341";

struct Keeper;

impl Undertaker for Keeper {
    fn queues_begin_with(&self) -> &'static [u8] {
        b"queue:"
    }

    fn permits_end_with(&self) -> &'static [u8] {
        b":timeout"
    }

    fn release(&self, _: &Trace, _: &mut dyn FnMut(&[u8]) -> bool) -> Vec<Step> {
        Vec::new()
    }

    fn give_back(&self, _: &[u8], _: &[Vec<u8>], _: &mut dyn FnMut(&[u8]) -> bool) -> Vec<Step> {
        Vec::new()
    }

    fn keep(&self, trace: &Trace, ms: u64) -> Vec<Step> {
        let (source, of) = match trace.place {
            TracePlace::Permit => (
                include_str!("../../../../redlatch/src/scripts/permit_renew.lua"),
                u128::from_str_radix(&trace.field, 16).unwrap().to_be_bytes().to_vec(),
            ),
            _ => {
                (include_str!("../../../../redlatch/src/scripts/renew.lua"), trace.field.clone().into_bytes())
            }
        };
        let args = vec![b"0".to_vec(), ms.to_string().into_bytes(), of];
        vec![Step::Script { source, keys: vec![trace.key.clone()], args }]
    }
}

/// A disk that is full for so many writes.
#[derive(Clone, Default)]
struct Disk(Arc<AtomicU32>);

const FULL: u32 = u32::MAX;

impl Journal for Disk {
    fn append(&mut self, _: &[Effect]) -> io::Result<()> {
        let is_full = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if is_full.is_ok() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

/// A run with a lock and a permit for 3 s, whose command has a lifeline.
struct Bed {
    shared: Shared,
    clock: ManualClock,
    disk: Disk,
    run_has_ended: std::rc::Rc<Cell<bool>>,
}

impl Bed {
    fn new() -> Bed {
        let clock = ManualClock::new(Duration::from_secs(1_000_000_000));
        let (hub, disk): (Arc<Hub>, Disk) = Default::default();
        let engine =
            Engine::with_journal(Arc::new(clock.clone()), Arc::clone(&hub) as _, Box::new(disk.clone()));
        let mut shared = Shared::new(engine.unwrap(), hub, HashSet::new(), 1, true);
        shared.gate.set_undertaker(Some(Box::new(Keeper)));
        let (process, run_has_ended) = Process::fake(7);
        let lifelines = &shared.lifelines;
        lifelines.attend();
        let own = lifelines.begin(ID.as_bytes(), 0, Some(0), process).unwrap();
        lifelines.expect_command(&own);
        lifelines.begin_command(ID.as_bytes(), 7).unwrap();
        let bed = Bed { shared, clock, disk, run_has_ended };
        bed.ask(&["hset", "lock", &format!("{ID}:1"), "1"]);
        bed.ask(&["pexpire", "lock", "3000"]);
        let permit = [permit_mark(ID.as_bytes()).unwrap(), 2i64.to_be_bytes()].concat();
        let ends = b"1000000003000".to_vec();
        let add = [b"zadd".to_vec(), b"{few}:timeout".to_vec(), ends, permit];
        bed.shared.engine().call(&add).unwrap();
        bed
    }

    fn ask(&self, words: &[&str]) -> Value {
        self.shared.engine().call(words).unwrap()
    }

    fn stand_still(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    /// Whether the lock and the permit are still held, by the times that scripts see.
    fn are_held(&self) -> [bool; 2] {
        let script = "local time = redis.call('time') \
            local now = time[1] * 1000 + math.floor(time[2] / 1000) \
            return {redis.call('exists', 'lock'), redis.call('zcount', '{few}:timeout', now, '+inf')}";
        let none: [&str; 0] = [];
        let found = self.shared.engine().eval(script.as_bytes(), &none, &none).unwrap();
        let Value::Array(found) = found else { panic!("{found:?}") };
        [0, 1].map(|at| found[at] == Value::Int(1))
    }

    /// The run has died, and that has been seen to.
    fn bereave(&self) {
        self.run_has_ended.set(true);
        let lifelines = &self.shared.lifelines;
        lifelines.end(&Line::Own(ID.as_bytes().to_vec()), true, 10);
        let traces = search(&self.shared.engine(), &Keeper, ID.as_bytes());
        assert_eq!(traces.len(), 2);
        lifelines.go_on_with(ID.as_bytes(), traces);
        self.shared.gate.keep_soon();
        drop(self.shared.engine());
    }
}

#[test]
fn a_kept_hold_outlasts_any_time_that_the_engine_stands_still() {
    let bed = Bed::new();
    bed.bereave();
    for seconds in [12, 8 * 3600, 1, 10] {
        bed.stand_still(seconds);
        assert_eq!(bed.are_held(), [true, true], "after {seconds} s more");
        let Value::Int(left) = bed.ask(&["pttl", "lock"]) else { panic!("no time") };
        assert!((1..=10_001).contains(&left), "{left} ms are left, as if it had not stood still");
    }
    bed.shared.lifelines.end(&Line::Command(ID.as_bytes().to_vec()), true, 12);
    bed.stand_still(11);
    assert_eq!(bed.are_held(), [false, false], "nobody goes on with it");
}

#[test]
fn what_a_run_held_that_died_while_the_engine_stood_still_is_kept() {
    let bed = Bed::new();
    bed.run_has_ended.set(true);
    for _ in 0..2 {
        bed.stand_still(12);
        assert_eq!(bed.are_held(), [true, true]);
    }
    bed.bereave();
    bed.stand_still(12);
    assert_eq!(bed.are_held(), [true, true]);
    // One that lives keeps to its lease.
    let bed = Bed::new();
    bed.stand_still(12);
    assert_eq!(bed.are_held(), [false, false]);
}

#[test]
fn time_stands_still_while_what_is_kept_cannot_be_renewed() {
    let bed = Bed::new();
    bed.bereave();
    bed.disk.0.store(FULL, Ordering::SeqCst);
    for _ in 0..4 {
        bed.stand_still(5);
        assert!(bed.shared.engine().call(&["set", "other", "1"]).is_err(), "nothing is granted");
        assert_eq!(bed.are_held(), [true, true]);
    }
    // There is room again right behind the look: what were granted now would be granted for a time that has passed.
    bed.disk.0.store(1, Ordering::SeqCst);
    assert!(bed.shared.engine().call(&["set", "other", "1", "px", "1000"]).is_err());
    assert_eq!(bed.are_held(), [true, true]);
    bed.ask(&["set", "other", "1", "px", "1000"]);
    let (seen_us, now_us) = bed.shared.engine().look();
    assert_eq!(seen_us, now_us, "time has gone on");
    // It holds nobody else up.
    let bed = Bed::new();
    bed.disk.0.store(FULL, Ordering::SeqCst);
    bed.stand_still(12);
    assert!(bed.shared.engine().call(&["exists", "lock"]).is_err(), "its end cannot be written");
    assert_eq!(bed.are_held(), [false, false]);
}
