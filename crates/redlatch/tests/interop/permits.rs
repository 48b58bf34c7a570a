//! Permits with leases: counts, ids, ends and wake-ups are shared. Redisson 3.15.1 writes an id as text and finds no other
//! form, so there ids cross in one direction only.

use std::time::{Duration, Instant, SystemTime};

use redlatch::{ErrorKind, Lease, LossReason, PermitGuard, PermitLease, PermitSemaphore, Unlocked, Wait};
use redlatch_testkit::redisson::{JavaThread, RedissonVersion, Reply};

use crate::{
    bed::{Bed, LIMIT, awake_between, ms, run, runtime},
    waking::WAKE_LIMIT,
};

/// How much later than the end of a lease a waiter may come: it looks at fixed times, on a machine that is busy.
const LATE: Duration = Duration::from_secs(5);
/// How far the clocks of both languages and the server's may differ.
const EARLY: Duration = Duration::from_millis(60);

/// One semaphore, in both languages.
struct Both {
    name: String,
    java: JavaThread,
    ours: PermitSemaphore,
    newest: bool,
}

impl Both {
    fn new(bed: &Bed, what: &str, version: RedissonVersion) -> Self {
        let name = bed.name(what);
        let ours = bed.ours.permit_semaphore(name.as_str());
        Both { java: bed.thread().thread, ours, name, newest: version == RedissonVersion::Newest }
    }

    fn ask(&self, operation: &str, args: &[&str]) -> Reply {
        let args = [&[self.name.as_str()], args].concat();
        let reply = self.java.call(&format!("permit.{operation}"), &args);
        reply.unwrap_or_else(|error| panic!("{operation} {args:?}: {error}"))
    }

    fn java_bool(&self, operation: &str, args: &[&str]) -> bool {
        self.ask(operation, args).as_bool().unwrap()
    }

    fn java_number(&self, operation: &str) -> i64 {
        self.ask(operation, &[]).as_i64().unwrap()
    }

    /// Permits taken by Java with a lease; their ids.
    fn java_takes(&self, n: usize, lease_ms: i64) -> Vec<String> {
        let lease = lease_ms.to_string();
        (0..n).map(|_| self.ask("acquire", &[&lease]).text().to_owned()).collect()
    }

    /// A permit taken by us with a lease of its own.
    fn we_take(&self, n: u32, lease: Duration) -> PermitGuard {
        run(self.ours.request().permits(n).lease(Lease::Fixed(lease)).into_future())
            .unwrap()
            .expect("enough are free")
    }

    /// What both languages count: free permits, and with the newest release taken ones and all.
    #[track_caller]
    fn counts(&self, free: i64, taken: i64) {
        assert_eq!(run(self.ours.available()).unwrap(), free, "free, by us");
        assert_eq!(run(self.ours.acquired()).unwrap(), taken, "taken, by us");
        assert_eq!(self.java_number("available"), free, "free, by Java");
        if self.newest {
            assert_eq!(self.java_number("acquired"), taken, "taken, by Java");
            assert_eq!(self.java_number("permits"), free + taken, "all, by Java");
        }
    }

    fn members(&self) -> String {
        format!("{{{}}}:timeout", self.name)
    }
}

pub(crate) fn permits_of_java_are_seen_prolonged_and_given_back_by_us(version: RedissonVersion) {
    let bed = Bed::of(version);
    let both = Both::new(&bed, "java-permits", version);
    assert!(both.java_bool("trySetPermits", &["3"]));
    assert!(!run(both.ours.set_if_absent(9)).unwrap(), "Java was first");
    let ids = both.java_takes(2, 60_000);
    both.counts(1, 2);
    let Some(PermitLease::Ends(left)) = run(both.ours.lease_of(&ids[0])).unwrap() else {
        panic!("it is taken")
    };
    assert!(left > ms(55_000) && left <= ms(60_000) + EARLY, "{left:?}");
    assert!(run(both.ours.update_lease(&ids[0], ms(90_000))).unwrap());
    let Some(PermitLease::Ends(left)) = run(both.ours.lease_of(&ids[0])).unwrap() else {
        panic!("it is taken")
    };
    assert!(left > ms(85_000), "{left:?}");
    both.counts(1, 2);
    let permanent = both.ask("acquire", &[]).text().to_owned();
    assert_eq!(run(both.ours.lease_of(&permanent)).unwrap(), Some(PermitLease::Permanent));
    assert!(run(both.ours.try_acquire()).unwrap().is_none(), "all are taken");
    both.counts(0, 3);
    run(both.ours.release(&permanent)).unwrap();
    run(both.ours.release_all(&ids)).unwrap();
    both.counts(3, 0);
    assert_eq!(run(both.ours.release(&ids[0])).unwrap_err().kind(), ErrorKind::NotOwner);
    assert!(!both.java_bool("tryRelease", &[&ids[0]]), "Java is told that it no longer has it");
    both.counts(3, 0);
}

pub(crate) fn permits_of_ours_are_seen_by_java_and_given_back_by_the_newest(version: RedissonVersion) {
    let bed = Bed::of(version);
    let both = Both::new(&bed, "our-permits", version);
    assert!(run(both.ours.set_if_absent(4)).unwrap());
    assert!(!both.java_bool("trySetPermits", &["9"]), "we were first");
    let brisk = bed.brisk.permit_semaphore(both.name.as_str());
    let guard = run(brisk.acquire()).unwrap();
    let two = both.we_take(2, ms(60_000));
    both.counts(1, 3);
    let forever = run(both.ours.request().permanent().into_future()).unwrap().expect("one is left");
    assert!(both.ask("tryAcquire", &[]).is_nil(), "all are taken");
    // Three leases of the guard: our renewals are what Java goes by.
    std::thread::sleep(ms(4_600));
    both.counts(0, 4);
    assert!(guard.is_valid());
    if both.newest {
        let left = both.ask("getLeaseTime", &[two.id()]).as_i64().unwrap();
        assert!((50_000..=60_100).contains(&left), "{left}");
        assert_eq!(both.ask("getLeaseTime", &[forever.id()]).as_i64().unwrap(), -1);
        assert!(both.java_bool("updateLeaseTime", &[two.id(), "90000"]));
        both.ask("releaseMany", &[&two.ids().join(",")]);
        assert_eq!(run(two.release()).unwrap(), Unlocked::AlreadyLost(LossReason::Deleted));
        assert!(both.java_bool("tryRelease", &[forever.id()]));
        assert!(both.java_bool("tryRelease", &[guard.id()]));
        assert_eq!(run(guard.lost()), LossReason::Deleted, "our holder is told");
    } else {
        assert!(!both.java_bool("updateLeaseTime", &[two.id(), "1000"]), "text is not the form of our ids");
        assert!(!both.java_bool("tryRelease", &[two.id()]));
        both.counts(0, 4);
        assert_eq!(run(two.release()).unwrap(), Unlocked::Released);
        assert_eq!(run(guard.release()).unwrap(), Unlocked::Released);
        assert_eq!(run(forever.release()).unwrap(), Unlocked::Released);
    }
    both.counts(4, 0);
    both.ask("addPermits", &["-2"]);
    assert_eq!(run(both.ours.add(1)).unwrap(), 3);
    both.counts(3, 0);
    if both.newest {
        let ids = both.java_takes(2, 60_000);
        both.ask("setPermits", &["1"]);
        both.counts(-1, 2);
        assert_eq!(run(both.ours.set(5)).unwrap(), 3);
        both.counts(3, 2);
        assert!(both.java_bool("tryRelease", &[&ids[0]]));
        both.counts(4, 1);
    }
    assert!(run(both.ours.delete()).unwrap());
    assert!(!both.java_bool("exists", &[]));
    both.counts(0, 0);
}

/// How soon after the beginning of `release` a Java thread that waits for a permit has it.
fn java_woken(bed: &Bed, both: &Both, wait_ms: u64, release: impl FnOnce()) -> (Option<String>, Duration) {
    let (wait, lease) = (wait_ms.to_string(), "60000");
    let waiting = both.java.send("permit.tryAcquireWait", &[&both.name, &wait, lease]).unwrap();
    bed.until_subscribed(&format!("redisson_sc:{{{}}}", both.name), 1);
    let released_at = SystemTime::now();
    release();
    let reply = waiting.wait(LIMIT).unwrap();
    let id = (!reply.is_nil()).then(|| reply.text().to_owned());
    (id, reply.awake_after(released_at))
}

/// The same with a task of ours.
fn rust_woken(
    bed: &Bed,
    both: &Both,
    wait_ms: u64,
    release: impl FnOnce(),
) -> (Option<PermitGuard>, Duration) {
    let ours = both.ours.clone();
    let waiting = runtime().spawn(async move {
        let guard = ours.request().wait(Wait::AtMost(ms(wait_ms))).await.unwrap();
        (guard, Instant::now())
    });
    bed.until_subscribed(&format!("redisson_sc:{{{}}}", both.name), 1);
    let released_at = Instant::now();
    release();
    let (guard, at) = run(waiting).unwrap();
    (guard, awake_between(released_at, at))
}

pub(crate) fn a_permit_given_back_wakes_the_other_language_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (mut java, mut rust) = (Vec::new(), Vec::new());
    // The first two waits load Java's classes.
    for round in 0..7 {
        // A name of its own, so that the end of an earlier subscription is not taken for the waiter's.
        let both = Both::new(&bed, "wake-permits", version);
        run(both.ours.set_if_absent(1)).unwrap();
        let guard = both.we_take(1, ms(60_000));
        let (id, after) = java_woken(&bed, &both, 10_000, || {
            assert_eq!(run(guard.release()).unwrap(), Unlocked::Released);
        });
        let id = id.expect("it was given back");
        both.counts(0, 1);
        let mut other = Both::new(&bed, "wake-permits", version);
        other.ours = bed.patient[0].permit_semaphore(other.name.as_str());
        run(other.ours.set_if_absent(1)).unwrap();
        let held = other.java_takes(1, 60_000).remove(0);
        let (guard, ours_after) = rust_woken(&bed, &other, 10_000, || drop(other.ask("release", &[&held])));
        guard.expect("it was given back").detach();
        if round > 1 {
            java.push(after);
            rust.push(ours_after);
        }
        assert!(both.java_bool("tryRelease", &[&id]));
        // More permits wake as a release does.
        let (guard, _) = rust_woken(&bed, &other, 10_000, || drop(other.ask("addPermits", &["1"])));
        assert!(guard.is_some());
    }
    println!("{version:?}: Java woken after {java:?}, we after {rust:?}");
    assert!(java.iter().chain(&rust).all(|after| *after < WAKE_LIMIT), "{java:?}, {rust:?}");
}

pub(crate) fn a_permit_that_runs_out_goes_to_the_other_language(version: RedissonVersion) {
    let bed = Bed::of(version);
    let in_time = |taken: Instant, after: Duration| {
        assert!(taken.elapsed() + EARLY >= ms(1_000), "followed {:?} after it was taken", taken.elapsed());
        assert!(after <= ms(1_000) + LATE, "followed after {after:?}");
    };
    let both = Both::new(&bed, "ends", version);
    run(both.ours.set_if_absent(1)).unwrap();
    let taken = Instant::now();
    let lost = both.we_take(1, ms(1_000));
    let (id, after) = java_woken(&bed, &both, 10_000, || ());
    in_time(taken, after);
    assert!(!lost.is_valid());
    assert_eq!(run(lost.release()).unwrap(), Unlocked::AlreadyLost(LossReason::Expired));
    both.counts(0, 1);
    assert!(both.java_bool("tryRelease", &[&id.expect("its lease ended")]));
    let taken = Instant::now();
    let id = both.java_takes(1, 1_000).remove(0);
    let (guard, after) = rust_woken(&bed, &both, 10_000, || ());
    in_time(taken, after);
    assert!(!both.java_bool("tryRelease", &[&id]), "it frees nobody else's");
    both.counts(0, 1);
    assert_eq!(run(guard.expect("its lease ended").release()).unwrap(), Unlocked::Released);
    both.counts(1, 0);
}

pub(crate) fn eight_thousand_and_one_permits_of_the_other_language_run_out(version: RedissonVersion) {
    let bed = Bed::of(version);
    let both = Both::new(&bed, "many", version);
    run(both.ours.set_if_absent(8_001)).unwrap();
    if both.newest {
        let ids = both.ask("acquireMany", &["8001", "1500"]).list().len();
        assert_eq!(ids, 8_001);
    } else {
        // As 8,001 of its clients would leave them.
        let ends = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() + 1_500;
        for part in (0..8_001).collect::<Vec<_>>().chunks(1_000) {
            let mut command = vec!["ZADD".to_owned(), both.members()];
            command.extend(part.iter().flat_map(|at| [ends.to_string(), format!("{at:032x}")]));
            bed.server.cmd(&command).unwrap();
        }
        bed.server.cmd(&["SET", &both.name, "0"]).unwrap();
    }
    assert!(run(both.ours.try_acquire()).unwrap().is_none(), "all are taken");
    let (guard, _) = rust_woken(&bed, &both, 10_000, || ());
    assert_eq!(run(guard.expect("they ran out").release()).unwrap(), Unlocked::Released);
    both.counts(8_001, 0);
    // Ours: Java gives back at most as many as it asks for in a call, and all when it counts.
    for _ in 0..9 {
        both.we_take(if run(both.ours.available()).unwrap() > 1_000 { 1_000 } else { 1 }, ms(400)).detach();
    }
    std::thread::sleep(ms(450));
    let id = both.java_takes(1, 60_000).remove(0);
    assert!(both.java_bool("tryRelease", &[&id]));
    assert_eq!(run(both.ours.available()).unwrap(), 8_001);
    both.counts(8_001, 0);
}

pub(crate) fn each_step_with_permits_leaves_the_same(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (java, rust) = (Both::new(&bed, "step-java", version), Both::new(&bed, "step-rust", version));
    let mut ids = Vec::new();
    let mut ear = redis::Client::open(bed.server.url()).unwrap().get_connection().unwrap();
    let mut ear = ear.as_pubsub();
    for both in [&java, &rust] {
        ear.subscribe(format!("redisson_sc:{{{}}}", both.name)).unwrap();
    }
    let mut heard = || {
        for both in [&java, &rust] {
            bed.server.cmd(&["PUBLISH", &format!("redisson_sc:{{{}}}", both.name), "end"]).unwrap();
        }
        let mut payloads = [Vec::new(), Vec::new()];
        let mut ends = 0;
        while ends < 2 {
            let message = ear.get_message().unwrap();
            let payload = message.get_payload::<String>().unwrap();
            let at = usize::from(message.get_channel_name().contains("rust"));
            if payload == "end" {
                ends += 1;
            } else {
                payloads[at].push(payload);
            }
        }
        payloads
    };
    for step in ["set", "set again", "take", "refuse", "give", "add", "out"] {
        match step {
            "set" | "set again" => {
                let first = step == "set";
                assert_eq!(java.java_bool("trySetPermits", &["1"]), first);
                assert_eq!(run(rust.ours.set_if_absent(1)).unwrap(), first);
            }
            "take" => {
                ids = java.java_takes(1, 60_000);
                ids.append(&mut rust.we_take(1, ms(60_000)).detach());
            }
            "refuse" => {
                assert!(java.ask("tryAcquire", &[]).is_nil());
                assert!(run(rust.ours.try_acquire()).unwrap().is_none());
            }
            "give" => {
                java.ask("release", &[&ids[0]]);
                run(rust.ours.release(&ids[1])).unwrap();
            }
            "add" => {
                java.ask("addPermits", &["1"]);
                run(rust.ours.add(1)).unwrap();
            }
            _ => {
                java.java_takes(1, 300);
                rust.we_take(1, ms(300)).detach();
                std::thread::sleep(ms(350));
                assert_eq!((java.java_number("available"), run(rust.ours.available()).unwrap()), (2, 2));
            }
        }
        let dump = bed.server.keys_dump().unwrap();
        let states = [&java, &rust].map(|both| {
            let free = dump.get(both.name.as_bytes()).map(|key| (key.content.clone(), key.pttl_ms));
            let taken = dump.get(both.members().as_bytes()).map(|key| {
                let redlatch_testkit::server::KeyContent::SortedSet(items) = &key.content else {
                    panic!("{key:?}")
                };
                let ends = items.iter().map(|(_, score)| {
                    let score: f64 = String::from_utf8_lossy(score).parse().unwrap();
                    // In steps of ten seconds, with the five in the middle: both were taken within one.
                    ((score - SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as f64 + 5_000.0)
                        / 10_000.0) as i64
                });
                let bytes = if both.newest || both.name == rust.name { 16 } else { 32 };
                assert!(items.iter().all(|(id, _)| id.len() == bytes), "{items:?}");
                (ends.collect::<Vec<_>>(), key.pttl_ms)
            });
            (free, taken)
        });
        assert_eq!(states[0], states[1], "after {step}");
        let [javas, ours] = heard();
        match step {
            // What was added there, the total here; 3.15.1 says nothing.
            "add" => {
                assert!(javas.is_empty() || javas == ["1"], "{javas:?}");
                assert_eq!(ours, ["2"]);
            }
            _ => assert_eq!(javas, ours, "said by {step}"),
        }
    }
}
