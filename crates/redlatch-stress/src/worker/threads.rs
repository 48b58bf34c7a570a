//! Threads with the blocking face, each of which is one owner for all that it takes.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use redlatch::{AnyGuard, Error, Lease, Unlocked, Wait, blocking};

use super::{
    Worker,
    kind::{Kind, word},
};
use crate::{
    clock::boot_ns,
    record::{Granted, Seen},
    rng::Rng,
};

const KINDS: [Kind; 6] = [Kind::Plain, Kind::Plain, Kind::Fair, Kind::Read, Kind::Write, Kind::Spin];
/// How long a loss may stay untold; the time that this thread has slept, so that a stopped process is no excuse it needs.
const UNTOLD_LOOKS: u32 = 150;

struct Thread<'a> {
    worker: &'a Worker,
    label: &'a str,
    owner: String,
    rng: Rng,
}

/// Works until the process is told to stop.
pub(super) fn work(worker: &Worker, label: &str, rng: Rng) {
    let client = &worker.blocking;
    let mut thread = Thread { worker, label, owner: format!("{}.{label}", worker.process), rng };
    while !worker.is_over() {
        let kind = *thread.rng.of(&KINDS);
        let name = kind.name(&mut thread.rng, worker.numbers.names);
        let times = 1 + thread.rng.below(4);
        for _ in 0..times {
            let name = name.as_str();
            match kind {
                Kind::Fair => thread.turn(kind, name, client.fair_lock(name).acquire()),
                Kind::Spin => thread.turn(kind, name, client.spin_lock(name).acquire()),
                Kind::Read => thread.turn(kind, name, client.read_write_lock(name).read().acquire()),
                Kind::Write => thread.turn(kind, name, client.read_write_lock(name).write().acquire()),
                _ => thread.turn(kind, name, client.lock(name).acquire()),
            }
        }
        let (least, most) = worker.numbers.pause_ms;
        sleep(thread.rng.ms(least, most));
    }
}

impl Thread<'_> {
    fn says(&self, text: &str) {
        self.worker.log.does(self.label, text);
    }

    fn turn<G: AnyGuard>(&mut self, kind: Kind, name: &str, acquire: blocking::Acquire<'_, G>) {
        let wait = Wait::AtMost(self.rng.ms(300, 3_000));
        let lease =
            if self.rng.percent(80) { Lease::Renewed } else { Lease::RenewedEvery(self.rng.ms(600, 2_000)) };
        self.says(&format!("asks {kind:?} {name} as {} wait {wait:?}", self.owner));
        let outcome: Result<Option<blocking::Guard<G>>, Error> = acquire.wait(wait).lease(lease).run();
        let guard = match outcome {
            Ok(Some(guard)) => guard,
            Ok(None) => return self.says(&format!("found {name} busy")),
            Err(error) => return self.says(&format!("got an error for {name} : {error}")),
        };
        if !guard.is_valid() {
            return self.says(&format!("holds {name} no longer"));
        }
        let granted = Granted {
            task: self.label,
            name,
            mode: kind.mode(),
            weight: 1,
            owner: &self.owner,
            token: guard.token(),
            term: "renewed",
        };
        let worker = self.worker;
        let mut seen = worker.log.granted(&granted, boot_ns());
        let (least, most) = worker.numbers.hold_ms;
        let time = if self.rng.percent(50) { self.rng.ms(0, 3) } else { self.rng.ms(least, most) };
        if !self.keep(&guard, &mut seen, time) {
            return;
        }
        seen.end("unlocked");
        if self.rng.percent(worker.numbers.cut) {
            self.says(&format!("drops the guard of {name}"));
            return drop(guard);
        }
        self.says(&format!("unlocks {name}"));
        let outcome = guard.unlock();
        self.says(&format!("unlock of {name} : {outcome:?}"));
        if let Ok(Unlocked::AlreadyLost(reason)) = outcome {
            let reason = word(&reason);
            if reason != "expired" {
                seen.vanished(&reason);
            }
        }
    }

    fn keep<G: AnyGuard>(&self, guard: &blocking::Guard<G>, seen: &mut Seen<'_>, time: Duration) -> bool {
        let end = Instant::now() + time;
        let step = (time / 4).clamp(Duration::from_micros(500), Duration::from_millis(5));
        let mut looks = 0;
        loop {
            let before_ns = boot_ns();
            if guard.is_valid() {
                seen.valid(before_ns);
                if Instant::now() >= end {
                    return true;
                }
                sleep(step);
                continue;
            }
            seen.invalid();
            if let Ok(Some(reason)) = guard.lost_within(Duration::from_millis(10)) {
                let how = format!("lost:{}", word(&reason));
                seen.end(&how);
                self.says(&format!("was told {how}"));
                return false;
            }
            looks += 1;
            if looks > UNTOLD_LOOKS {
                seen.untold();
                seen.end("lost:untold");
                return false;
            }
        }
    }
}
