//! Random schedules of three owners on one read-write lock, one of them a Java thread, against a small model. After each step
//! the reply, the whole keyspace and what was published are compared.

use std::time::{Duration, Instant};

use redlatch::{ErrorKind, Lease, ReadGuard, ReadWriteLock, Unlocked, Wait, WriteGuard};
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::{KeyContent, RedisServer},
};

use crate::{
    bed::{Bed, Java, LIMIT, run},
    read_write::{Sides, channel_of, timeout_key},
    read_write_model::Model,
};

const SCHEDULES: u64 = 20;
const STEPS: usize = 150;
/// How often each kind of step must have happened at least.
const FLOOR: usize = 3;
const SEED: u64 = 20_817;
/// By how much a TTL may be off, besides the time of the slowest step; leases are multiples of ten seconds.
const TOLERANCE_MS: i64 = 4_000;
/// A client of ours that is not told of changes looks at its holds ten seconds after it was first asked for one, and then finds on its own what the
/// schedule has ended. So a schedule ends before that.
const SCHEDULE_TIME_MAX: Duration = Duration::from_secs(8);
/// A schedule whose last step took longer than this would prove nothing.
const SHORTEST_LEASE: Duration = Duration::from_secs(30);
const NAME: &str = "scheduled";
const JAVA: usize = 0;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    /// Different for each owner, so that no two ends lie closer together than the tolerance of the scripts.
    fn lease_ms(&mut self, owner: usize) -> i64 {
        let tens = 3 + 3 * self.roll(3) + owner as u64;
        i64::try_from(tens * 10_000).unwrap()
    }
}

/// One owner of ours. What it takes while it holds something has the lease of its first hold.
struct Slot {
    client: redlatch::Client,
    lock: ReadWriteLock,
    reads: Vec<ReadGuard>,
    writes: Vec<WriteGuard>,
    lease_ms: i64,
    /// Set when the holds were ended from outside, which this side does not know yet.
    dead_reads: bool,
    dead_writes: bool,
}

impl Slot {
    fn owner(&self) -> Option<String> {
        let read = self.reads.first().map(|guard| guard.owner().to_text());
        read.or_else(|| self.writes.first().map(|guard| guard.owner().to_text()))
    }

    fn lease(&self) -> Lease {
        Lease::Fixed(Duration::from_millis(self.lease_ms.unsigned_abs()))
    }
}

/// What an owner of ours may do.
#[derive(Clone, Copy)]
enum Deed {
    Read,
    Write,
    LeaveRead,
    LeaveWrite,
    Downgrade,
}

struct Rig<'a> {
    server: RedisServer,
    ear: redis::PubSub<'a>,
    java: Sides,
    java_owner: String,
    slots: Vec<Slot>,
    /// Of a client that holds nothing, so that no client learns at once that its own hold is over.
    outsider: ReadWriteLock,
    model: Model,
    begin: Instant,
    /// What a step sets, it sets somewhere in its time.
    slowest_step_ms: i64,
}

impl Rig<'_> {
    fn now_ms(&self) -> i64 {
        i64::try_from(self.begin.elapsed().as_millis()).unwrap()
    }

    fn compare(&mut self, what: &str) {
        let now_ms = self.now_ms();
        self.slowest_step_ms = self.slowest_step_ms.max(now_ms - self.model.now);
        let dump = self.server.keys_dump().unwrap();
        let looking_ms = self.now_ms() - now_ms;
        let (earliest, latest) = (-TOLERANCE_MS - looking_ms, TOLERANCE_MS + self.slowest_step_ms);
        let expected = self.model.keyspace(NAME);
        let (mut left, mut found) = (Vec::new(), Vec::new());
        for (key, dump) in dump {
            // A note of ours on who was forced out, which Java neither reads nor writes.
            if key.starts_with(b"redisson_unlock_latch:") || key.starts_with(b"redlatch_forced:") {
                continue;
            }
            let key = String::from_utf8(key).unwrap();
            // It was set later than the model thinks, and ends later.
            let ends_soon = dump.pttl_ms.is_some_and(|left| i64::try_from(left).unwrap() <= latest);
            if ends_soon && expected.iter().all(|(known, ..)| *known != key) {
                continue;
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let content = match dump.content {
                KeyContent::Hash(fields) => {
                    fields.iter().map(|(field, value)| format!("{}={}", text(field), text(value))).collect()
                }
                KeyContent::String(value) => vec![text(&value)],
                other => panic!("{other:?} in {key} after {what}"),
            };
            left.push((key.clone(), i64::try_from(dump.pttl_ms.expect("every key ends")).unwrap()));
            found.push((key, content));
        }
        let contents: Vec<_> =
            expected.iter().map(|(key, content, _)| (key.clone(), content.clone())).collect();
        assert_eq!(found, contents, "the keyspace after {what}, then the model's");
        for ((key, left_ms), (_, _, end_ms)) in left.iter().zip(&expected) {
            let off = left_ms - (end_ms - now_ms);
            assert!(
                (earliest..=latest).contains(&off),
                "{key} has {left_ms} ms, {off} too many, after {what}"
            );
        }
        self.server.cmd(&["PUBLISH", "end", ""]).unwrap();
        let mut heard = Vec::new();
        loop {
            let message = self.ear.get_message().unwrap();
            if message.get_channel_name() == "end" {
                break;
            }
            assert_eq!(message.get_channel_name(), channel_of(NAME));
            heard.push(String::from_utf8(message.get_payload_bytes().to_vec()).unwrap());
        }
        assert_eq!(heard, std::mem::take(&mut self.model.messages), "what was published by {what}");
        self.model.nobody_is_beside_a_writer();
    }

    fn java_step(&mut self, dice: &mut Dice) -> String {
        let lease = dice.lease_ms(JAVA);
        let me = self.java_owner.clone();
        let take = |side: &Java| {
            let reply = side.wait_for(NAME, 0, lease).wait(LIMIT);
            reply.and_then(|reply| reply.as_bool()).unwrap_or_else(|error| panic!("{error}"))
        };
        let leave = |side: &Java| match side.try_unlock(NAME) {
            Ok(()) => true,
            Err(error) if error.exception() == Some("IllegalMonitorStateException") => false,
            Err(error) => panic!("{error}"),
        };
        let (what, found, expected) = match dice.roll(9) {
            0 | 1 => ("read", take(&self.java.read), self.model.java_read(&me, lease)),
            2 | 3 => ("write", take(&self.java.write), self.model.java_write(&me, lease)),
            4..=6 => ("leave read", leave(&self.java.read), self.model.java_leave_read(&me)),
            _ => ("leave write", leave(&self.java.write), self.model.java_leave_write(&me)),
        };
        assert_eq!(found, expected, "the answer to Java's {what} {lease}");
        format!("Java: {what} {lease} -> {found}")
    }

    fn our_step(&mut self, o: usize, dice: &mut Dice) -> String {
        let (slot, model) = (&mut self.slots[o - 1], &mut self.model);
        if slot.reads.is_empty() && slot.writes.is_empty() {
            slot.lease_ms = dice.lease_ms(o);
        }
        let lease = slot.lease_ms;
        if slot.dead_reads || slot.dead_writes {
            return Self::leave_dead(o, slot, model);
        }
        let choices: &[Deed] = match (slot.reads.is_empty(), slot.writes.is_empty()) {
            (true, true) => &[Deed::Read, Deed::Write],
            (false, true) => &[Deed::Read, Deed::Write, Deed::LeaveRead, Deed::LeaveRead, Deed::LeaveRead],
            (true, false) => &[Deed::Read, Deed::Write, Deed::Downgrade, Deed::LeaveWrite, Deed::LeaveWrite],
            (false, false) => &[Deed::Read, Deed::Write, Deed::Downgrade, Deed::LeaveRead, Deed::LeaveWrite],
        };
        let deed = choices[usize::try_from(dice.roll(choices.len() as u64)).unwrap()];
        let what = match deed {
            Deed::Read => {
                let guard = match (slot.reads.last(), slot.writes.last()) {
                    // A writer reads besides; a reader enters again. Both can do both.
                    (Some(guard), None) => Some(run(guard.reenter()).unwrap()),
                    (_, Some(guard)) => Some(run(guard.read()).unwrap()),
                    (None, None) => {
                        let request = slot.lock.read().acquire().lease(slot.lease()).wait(Wait::No);
                        run(async { request.await }).unwrap()
                    }
                };
                let granted = guard.is_some();
                slot.reads.extend(guard);
                let owner = slot.owner().unwrap_or_else(|| "nobody".into());
                assert_eq!(granted, model.our_read(&owner, lease), "whether {o} reads");
                format!("read {lease} -> {granted}")
            }
            Deed::Write => match (slot.reads.last(), slot.writes.last()) {
                (Some(reading), None) => {
                    let request = slot.lock.write().acquire().owner(reading.owner()).wait(Wait::No);
                    let error = run(async { request.await }).expect_err("a reader who asks to write");
                    assert_eq!(error.kind(), ErrorKind::UpgradeRefused, "{error}");
                    "upgrade -> refused".to_owned()
                }
                (_, held) => {
                    let guard = match held {
                        Some(guard) => Some(run(guard.reenter()).unwrap()),
                        None => {
                            let request = slot.lock.write().acquire().lease(slot.lease()).wait(Wait::No);
                            run(async { request.await }).unwrap()
                        }
                    };
                    let granted = guard.is_some();
                    slot.writes.extend(guard);
                    let owner = slot.owner().unwrap_or_else(|| "nobody".into());
                    assert_eq!(granted, model.our_write(&owner, lease), "whether {o} writes");
                    format!("write {lease} -> {granted}")
                }
            },
            Deed::LeaveRead => {
                let owner = slot.owner().unwrap();
                let unlocked = run(slot.reads.pop().unwrap().unlock()).unwrap();
                let expected = model.our_leave_read(&owner, lease);
                assert_eq!(left(&unlocked), expected, "what {o} reads still: {unlocked:?}");
                format!("leave read -> {expected:?}")
            }
            Deed::Downgrade => {
                let owner = slot.owner().unwrap();
                slot.reads.push(run(slot.writes.pop().unwrap().downgrade()).unwrap());
                model.our_downgrade(&owner, lease);
                "downgrade".to_owned()
            }
            Deed::LeaveWrite => {
                let owner = slot.owner().unwrap();
                let unlocked = run(slot.writes.pop().unwrap().unlock()).unwrap();
                let expected = model.our_leave_write(&owner, lease);
                assert_eq!(left(&unlocked), expected, "what {o} writes still: {unlocked:?}");
                format!("leave write -> {expected:?}")
            }
        };
        format!("{o}: {what}")
    }

    /// Holds that ended unnoticed: the first late unlock of a side learns it from the server, the others know it then.
    fn leave_dead(o: usize, slot: &mut Slot, model: &mut Model) -> String {
        let owner = slot.owner().unwrap();
        let mut what = Vec::new();
        if std::mem::take(&mut slot.dead_reads) {
            assert_eq!(model.our_leave_read(&owner, slot.lease_ms), None, "the model's readers are dead");
            for guard in slot.reads.drain(..) {
                let unlocked = run(guard.unlock()).unwrap();
                assert!(matches!(unlocked, Unlocked::AlreadyLost(_)), "{unlocked:?}");
            }
            what.push("reads");
        }
        if std::mem::take(&mut slot.dead_writes) {
            assert_eq!(model.our_leave_write(&owner, slot.lease_ms), None, "the model's writer is dead");
            for guard in slot.writes.drain(..) {
                let unlocked = run(guard.unlock()).unwrap();
                assert!(matches!(unlocked, Unlocked::AlreadyLost(_)), "{unlocked:?}");
            }
            what.push("writes");
        }
        // One that was found in the background before has what is left removed there.
        let begin = Instant::now();
        while slot.client.stats().background_jobs > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "what is left of it is removed");
            std::thread::sleep(Duration::from_millis(1));
        }
        format!("{o}: finds its {} lost", what.join(" and "))
    }

    fn all_are_dead(&mut self) {
        for slot in &mut self.slots {
            slot.dead_reads = !slot.reads.is_empty();
            slot.dead_writes = !slot.writes.is_empty();
        }
    }

    /// What no owner does: time runs out, or a user frees the lock by force.
    fn event(&mut self, dice: &mut Dice) -> String {
        match dice.roll(8) {
            0 => {
                for (key, ..) in self.model.keyspace(NAME) {
                    self.server.cmd(&["DEL", &key]).unwrap();
                }
                self.model.all_ends();
                self.all_are_dead();
                "everything ends".to_owned()
            }
            // All holds of one of our readers have one deadline.
            1 | 2 => {
                let o = usize::try_from(dice.roll(2)).unwrap();
                let Some(owner) = self.slots[o].owner().filter(|_| !self.slots[o].reads.is_empty()) else {
                    return "nobody's time is over".to_owned();
                };
                for i in self.model.reader_ends(&owner, None) {
                    self.server.cmd(&["DEL", &timeout_key(NAME, &owner, i)]).unwrap();
                }
                self.slots[o].dead_reads = true;
                format!("{}: its reads end", o + 1)
            }
            // Java's have a deadline each.
            3 | 4 => {
                let owner = self.java_owner.clone();
                let only = (dice.roll(2) == 0).then(|| 1 + dice.roll(2));
                for i in self.model.reader_ends(&owner, only) {
                    self.server.cmd(&["DEL", &timeout_key(NAME, &owner, i)]).unwrap();
                }
                format!("Java: its reads end, {only:?}")
            }
            kind => {
                let (write, by_java) = (dice.roll(2) == 0, kind == 5);
                let found = match (by_java, write) {
                    (true, true) => self.java.write.force_unlock(NAME),
                    (true, false) => self.java.read.force_unlock(NAME),
                    (false, true) => run(self.outsider.write().force_unlock()).unwrap(),
                    (false, false) => run(self.outsider.read().force_unlock()).unwrap(),
                };
                let expected = self.model.force(write, by_java);
                assert_eq!(found, expected, "whether a holder was forced out; write {write}, Java {by_java}");
                if expected {
                    self.all_are_dead();
                }
                format!("forced, write {write}, by Java {by_java} -> {expected}")
            }
        }
    }

    /// Both languages see the same holds, but that Java takes readers whose time is over for holders (R5).
    fn look(&self) {
        let (reads, writes) = self.model.counted(&self.java_owner);
        assert_eq!(
            (self.java.read.holds(NAME), self.java.write.holds(NAME)),
            (reads, writes),
            "Java's holds"
        );
        let lock = &self.outsider;
        let mut owners = vec![self.java_owner.clone()];
        owners.extend(self.slots.iter().filter_map(Slot::owner));
        for owner in owners {
            let parsed = owner.parse().unwrap();
            let found = (
                run(lock.read().hold_count(&parsed)).unwrap(),
                run(lock.write().hold_count(&parsed)).unwrap(),
            );
            let (_, writes) = self.model.counted(&owner);
            let reads = self.model.living(&owner);
            assert_eq!((i64::from(found.0), i64::from(found.1)), (reads, writes), "the holds of {owner}");
        }
        let locked = (run(lock.read().is_locked()).unwrap(), run(lock.write().is_locked()).unwrap());
        assert_eq!(locked, self.model.is_locked(), "which side is locked");
        assert_eq!(self.java.write.is_locked(NAME), locked.1, "as Java sees it");
    }

    fn step(&mut self, dice: &mut Dice) -> String {
        self.model.now = self.now_ms();
        match dice.roll(40) {
            0..=2 => self.event(dice),
            3..=5 => {
                self.look();
                "look".to_owned()
            }
            kind => match usize::try_from(kind % 3).unwrap() {
                JAVA => self.java_step(dice),
                o => self.our_step(o, dice),
            },
        }
    }
}

/// A client that waits for a server of a busy machine.
fn patient(url: &str) -> redlatch::Client {
    run(redlatch::Client::builder().url(url).response_timeout(LIMIT).connect()).unwrap()
}

/// Ends when the client has looked at a hold of its own for the first time, which it does at once when it learns that the server tells nothing.
fn has_looked(client: &redlatch::Client, server: &RedisServer) {
    let lease = Lease::Fixed(Duration::from_secs(600));
    let guard =
        run(async { client.lock("before").acquire().lease(lease).await }).unwrap().expect("it is free");
    server.cmd(&["DEL", "before"]).unwrap();
    run(guard.lost());
}

/// How many holds are left; `None` if it was lost before.
fn left(unlocked: &Unlocked) -> Option<i64> {
    match unlocked {
        Unlocked::Released => Some(0),
        Unlocked::StillHeld(holds) => Some(i64::from(*holds)),
        _ => None,
    }
}

pub(crate) fn random_schedules_of_both_languages_do_what_the_model_says(version: RedissonVersion) {
    let bed = Bed::of(version);
    let seed = std::env::var("REDLATCH_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(SEED);
    println!("REDLATCH_SEED={seed}");
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    for schedule in 1..=SCHEDULES {
        // The server tells no client of ours what others change, so that a holder learns from its own requests alone that its hold is over.
        let server =
            RedisServer::builder().acl("default on nopass ~* &* +@all -client|tracking").start().unwrap();
        let client = bed.name("rw-schedule");
        bed.java.connect(&Connection::single(&server.url()).named(&client)).unwrap();
        let java = Sides::new(&bed).of(&client);
        let id = java.read.thread.call(&format!("{client}@id"), &[]).unwrap();
        let java_owner = format!("{}:{}", id.text(), java.read.thread.java_thread_id().unwrap());
        let ours: Vec<_> = (0..3).map(|_| patient(&server.url())).collect();
        ours[..2].iter().for_each(|client| has_looked(client, &server));
        let slot = |client: &redlatch::Client| Slot {
            client: client.clone(),
            lock: client.read_write_lock(NAME),
            reads: Vec::new(),
            writes: Vec::new(),
            lease_ms: 0,
            dead_reads: false,
            dead_writes: false,
        };
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        let mut ear = connection.as_pubsub();
        ear.psubscribe("*").unwrap();
        let slots = ours[..2].iter().map(slot).collect();
        let outsider = ours[2].read_write_lock(NAME);
        let model = Model::new(version);
        let mut rig = Rig {
            server,
            ear,
            java,
            java_owner,
            slots,
            outsider,
            model,
            begin: Instant::now(),
            slowest_step_ms: 0,
        };
        let mut dice = Dice((seed + schedule).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut history = Vec::new();
        for _ in 0..STEPS {
            if rig.begin.elapsed() > SCHEDULE_TIME_MAX {
                break;
            }
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let what = rig.step(&mut dice);
                history.push(what.clone());
                rig.compare(&what);
                what
            }));
            match outcome {
                Ok(what) => {
                    let kind: String = what.chars().filter(|c| !c.is_ascii_digit()).collect();
                    *seen.entry(kind.trim_start_matches([':', ' ']).to_owned()).or_default() += 1;
                }
                Err(panic) => {
                    println!("REDLATCH_SEED={seed}, schedule {schedule}: {history:#?}\n{:#?}", rig.model);
                    std::panic::resume_unwind(panic);
                }
            }
        }
        assert!(rig.begin.elapsed() < SHORTEST_LEASE, "too slow to mean anything: {:?}", rig.begin.elapsed());
        rig.java.read.thread.call(&format!("{client}@shutdown"), &[]).unwrap();
        drop(rig.slots);
        ours.into_iter().for_each(|client| drop(run(client.shutdown(Duration::from_secs(2)))));
    }
    println!("{version:?}: {seen:#?}");
    // A schedule in which something never happened would prove less than it seems to.
    let times = |what: &str| -> usize {
        seen.iter().filter(|(kind, _)| kind.contains(what)).map(|(_, times)| times).sum()
    };
    for what in [
        "Java: read  -> true",
        "Java: read  -> false",
        "Java: write  -> true",
        "Java: write  -> false",
        "Java: leave read  -> true",
        "Java: leave write  -> true",
        "read  -> true",
        "read  -> false",
        "write  -> true",
        "write  -> false",
        "upgrade -> refused",
        "leave read -> Some",
        "leave write -> Some",
        "downgrade",
        "reads lost",
        "writes lost",
        "its reads end",
        "everything ends",
        "by Java true -> true",
        "by Java false -> true",
        "look",
    ] {
        assert!(times(what) >= FLOOR, "{what:?} happened only {} times", times(what));
    }
}
