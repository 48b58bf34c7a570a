//! Locks that their owner cannot enter again, in both languages, which have them since Redisson 4.4.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use redlatch::{AnyGuard, Client, Error, ErrorKind, Guard, Lease, Owner, Unlocked, Wait};
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::{KeyDump, RedisServer},
};
use tokio::task::JoinHandle;

use crate::{
    bed::{BLOCKED, Bed, Java, LIMIT, ms, run, runtime},
    golden::{Step, differences, trace},
};

/// Both kinds, by Redisson's verbs.
const KINDS: [&str; 2] = ["nonreentrant", "nonreentrantfair"];
const FAIR: &str = "nonreentrantfair";

/// Our lock of that kind.
#[derive(Clone)]
struct Ours {
    client: Client,
    kind: &'static str,
    name: String,
}

/// Calls the same method of whichever kind it is.
macro_rules! ours {
    ($ours:expr, $lock:ident => $work:expr) => {
        match $ours.kind {
            "nonreentrant" => {
                let $lock = $ours.client.non_reentrant_lock($ours.name.as_str());
                $work
            }
            "nonreentrantfair" => {
                let $lock = $ours.client.non_reentrant_fair_lock($ours.name.as_str());
                $work
            }
            "lock" => {
                let $lock = $ours.client.lock($ours.name.as_str());
                $work
            }
            other => panic!("no kind {other}"),
        }
    };
}

impl Ours {
    fn new(client: &Client, kind: &'static str, name: &str) -> Self {
        Ours { client: client.clone(), kind, name: name.into() }
    }

    async fn acquire(&self, wait: Wait, lease: Lease, owner: Option<&Owner>) -> Result<Option<Guard>, Error> {
        ours!(self, lock => {
            let acquire = lock.acquire().wait(wait).lease(lease);
            let acquire = if let Some(owner) = owner { acquire.owner(owner) } else { acquire };
            acquire.await.map(|guard| guard.map(AnyGuard::into_guard))
        })
    }

    fn is_busy(&self) -> bool {
        run(self.acquire(Wait::No, Lease::Renewed, None)).unwrap().is_none()
    }

    fn waits(&self) -> JoinHandle<Guard> {
        let lock = self.clone();
        runtime().spawn(async move {
            lock.acquire(Wait::AtMost(LIMIT), Lease::Renewed, None).await.unwrap().expect("its turn")
        })
    }
}

/// Waits until so many stand in the queue of a fair lock.
fn until_queued(bed: &Bed, name: &str, waiters: i64) {
    let key = format!("redisson_lock_queue:{{{name}}}");
    let deadline = Instant::now() + LIMIT;
    while bed.number(&["LLEN", &key]) != waiters {
        assert!(Instant::now() < deadline, "{} instead of {waiters} in line", bed.number(&["LLEN", &key]));
        std::thread::sleep(ms(2));
    }
}

/// All keys of that name, without the time they have left.
fn stored(bed: &Bed, name: &str) -> Vec<(Vec<u8>, KeyDump)> {
    let dump = bed.server.keys_dump().unwrap().into_iter();
    let part = name.as_bytes();
    dump.filter(|(key, _)| key.windows(part.len()).any(|window| window == part))
        .filter(|(key, _)| !key.starts_with(b"redisson_unlock_latch:"))
        .map(|(key, dump)| (key, KeyDump { pttl_ms: None, ..dump }))
        .collect()
}

pub(crate) fn both_languages_keep_each_other_out(version: RedissonVersion) {
    let bed = Bed::of(version);
    // Each kind against itself, and against the plain lock, whose state it shares.
    let pairs =
        [("nonreentrant", "nonreentrant"), (FAIR, FAIR), ("nonreentrant", "lock"), ("lock", "nonreentrant")];
    for (kind, theirs) in pairs {
        let (name, java) = (bed.name(kind), bed.thread().with(theirs));
        let lock = Ours::new(&bed.ours, kind, &name);
        java.lock(&name);
        assert!(lock.is_busy(), "{kind} against {theirs}");
        let waiting = lock.waits();
        std::thread::sleep(BLOCKED);
        assert!(!waiting.is_finished(), "{kind} against {theirs}");
        java.unlock(&name);
        let guard = run(waiting).unwrap();
        assert!(!java.try_lock(&name), "{kind} against {theirs}");
        java.is_refused_to_unlock(&name);
        let waiting = java.wait_for(&name, 10_000, -1);
        assert!(waiting.is_still_waiting_after(BLOCKED), "{kind} against {theirs}");
        assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
        assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "{kind} against {theirs}");
        assert_eq!(java.holds(&name), 1);
        java.unlock(&name);
        assert!(stored(&bed, &name).is_empty(), "{:?}", stored(&bed, &name));
    }
}

/// Each of Java's ways to acquire is refused to the thread that holds the lock.
fn java_is_refused_again(java: &Java, kind: &str, name: &str) {
    let ways: [(&str, &[&str]); 5] = [
        ("lock", &[]),
        ("lockLease", &["90000"]),
        ("tryLock", &[]),
        ("tryLockWait", &["2000"]),
        ("tryLockWait", &["2000", "90000"]),
    ];
    for (way, args) in ways {
        let words: Vec<&str> = std::iter::once(name).chain(args.iter().copied()).collect();
        let reply = java.thread.call(&format!("{kind}.{way}"), &words);
        let error = reply.err().unwrap_or_else(|| panic!("{kind}.{way} {args:?} entered twice"));
        assert_eq!(error.exception(), Some("IllegalMonitorStateException"), "{kind}.{way}: {error}");
    }
}

/// Redisson's testSameThreadReacquireThrows and testCrossInstanceSameThreadReentryThrows, with a waiter of ours beside them.
pub(crate) fn a_second_acquire_of_java_is_refused_and_leaves_everything(version: RedissonVersion) {
    let bed = Bed::of(version);
    for kind in KINDS {
        let (name, java) = (bed.name(kind), bed.thread().with(kind));
        let lock = Ours::new(&bed.ours, kind, &name);
        java.lock_lease(&name, 60_000);
        let waiting = lock.waits();
        if kind == FAIR {
            until_queued(&bed, &name, 1);
        } else {
            bed.until_waiting(&name);
        }
        let before = stored(&bed, &name);
        java_is_refused_again(&java, kind, &name);
        // Another lock object of the same thread is no way in either.
        java.thread.call("forget", &[]).unwrap();
        java_is_refused_again(&java, kind, &name);
        assert_eq!(stored(&bed, &name), before, "{kind}: count, or our place in line");
        assert!(bed.pttl(&name) <= ms(60_000), "{kind}: prolonged by a refused acquire");
        assert_eq!(java.holds(&name), 1);
        assert!(!waiting.is_finished(), "{kind}: our waiter was let in");
        java.unlock(&name);
        let guard = run(waiting).unwrap();
        // While we hold, a Java thread that is refused has changed nothing of ours.
        assert!(!java.try_lock(&name));
        assert!(guard.is_valid());
        assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released, "{kind}: one unlock frees");
        assert!(stored(&bed, &name).is_empty(), "{:?}", stored(&bed, &name));
    }
}

pub(crate) fn a_second_acquire_of_ours_is_refused_and_leaves_javas_hold(version: RedissonVersion) {
    let bed = Bed::of(version);
    for kind in KINDS {
        let (name, java, waiter) = (bed.name(kind), bed.thread().with(kind), bed.thread().with(kind));
        let lock = Ours::new(&bed.ours, kind, &name);
        java.lock_lease(&name, 20_000);
        let waiting = waiter.wait_for(&name, 15_000, -1);
        if kind == FAIR {
            until_queued(&bed, &name, 1);
        } else {
            bed.until_waiting(&name);
        }
        let before = stored(&bed, &name);
        // Ours that goes by the name of the Java thread, with every way to acquire.
        let javas: Owner = java.field(&bed).parse().unwrap();
        for wait in [Wait::No, Wait::AtMost(ms(300)), Wait::Forever] {
            let lease = Lease::Fixed(Duration::from_secs(90));
            let error = run(lock.acquire(wait, lease, Some(&javas))).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{kind}: {error}");
        }
        assert_eq!(stored(&bed, &name), before, "{kind}: Java's count or its queue");
        assert!(bed.pttl(&name) <= ms(20_000), "{kind}: Java's lease was prolonged");
        assert!(waiting.is_still_waiting_after(ms(50)), "{kind}: let in by our error");
        java.unlock(&name);
        assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "{kind}");
        waiter.unlock(&name);

        // An owner of ours that holds is refused too, and Java goes on waiting for its one release.
        let me = bed.ours.owner();
        let guard = run(lock.acquire(Wait::AtMost(LIMIT), Lease::Renewed, Some(&me))).unwrap().expect("free");
        let waiting = waiter.wait_for(&name, 15_000, -1);
        if kind == FAIR {
            until_queued(&bed, &name, 1);
        } else {
            bed.until_waiting(&name);
        }
        let before = stored(&bed, &name);
        for error in [
            run(lock.acquire(Wait::No, Lease::Renewed, Some(&me))).map(drop).unwrap_err(),
            run(guard.reenter()).map(drop).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{kind}: {error}");
        }
        assert_eq!(stored(&bed, &name), before, "{kind}");
        assert!(waiting.is_still_waiting_after(ms(50)), "{kind}");
        assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released, "{kind}: one unlock frees");
        assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "{kind}");
        waiter.unlock(&name);
    }
}

pub(crate) fn waiters_of_both_languages_are_served_in_the_order_of_asking(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (name, holder) = (bed.name("ordered"), bed.thread().with(FAIR));
    holder.lock(&name);
    let order = Arc::new(Mutex::new(Vec::new()));
    let clients = [&bed.ours, &bed.ours_too];
    let mut tasks = Vec::new();
    std::thread::scope(|scope| {
        for place in 0..8_usize {
            // Java, one client of ours, Java, the other one, and so on.
            if place % 2 == 0 {
                let (java, name, order) = (bed.thread().with(FAIR), &name, order.clone());
                scope.spawn(move || {
                    assert!(java.wait_for(name, 20_000, -1).wait(LIMIT).unwrap().as_bool().unwrap());
                    order.lock().unwrap().push(place);
                    java.unlock(name);
                });
            } else {
                let (lock, order) = (Ours::new(clients[place / 2 % 2], FAIR, &name), order.clone());
                let waiting = lock.waits();
                tasks.push(runtime().spawn(async move {
                    let guard = waiting.await.unwrap();
                    order.lock().unwrap().push(place);
                    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
                }));
            }
            until_queued(&bed, &name, i64::try_from(place).unwrap() + 1);
        }
        // A caller that does not wait overtakes nobody, in either language.
        assert!(!bed.thread().with(FAIR).try_lock(&name));
        assert!(Ours::new(&bed.ours, FAIR, &name).is_busy());
        holder.unlock(&name);
    });
    for task in tasks {
        run(task).unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
    assert!(stored(&bed, &name).is_empty(), "{:?}", stored(&bed, &name));
}

/// Lock, refused twice in two ways, unlock; a fixed lease; a forced unlock.
pub(crate) fn a_non_reentrant_lock_leaves_what_javas_leaves(version: RedissonVersion) {
    let (bed, server) = (Bed::of(version), RedisServer::start().unwrap());
    for name in ["stock", "{shop}:stock", "a{b}c"] {
        let client = bed.name("golden");
        bed.java.connect(&Connection::single(&server.url()).named(&client)).unwrap();
        let kind = format!("{client}@nonreentrant");
        let (java, other) = (bed.thread().with(&kind), bed.thread().with(&kind));
        let steps: Vec<Step<'_>> = vec![
            Box::new(|| java.lock(name)),
            Box::new(|| java_is_refused_again(&java, &kind, name)),
            Box::new(|| assert!(!other.try_lock(name))),
            Box::new(|| java.unlock(name)),
            Box::new(|| java.lock_lease(name, 7_000)),
            Box::new(|| assert!(other.force_unlock(name))),
            Box::new(|| java.is_refused_to_unlock(name)),
        ];
        let theirs = trace(&server, steps);
        java.thread.call(&format!("{client}@shutdown"), &[]).unwrap();

        let ours = run(Client::connect(&server.url())).unwrap();
        let (lock, me) = (ours.non_reentrant_lock(name), ours.owner());
        let guards = RefCell::new(Vec::<Guard>::new());
        let pop = || drop(run(guards.borrow_mut().pop().unwrap().unlock()).unwrap());
        let steps: Vec<Step<'_>> = vec![
            Box::new(|| {
                let guard = run(async { lock.acquire().owner(&me).await }).unwrap().unwrap();
                guards.borrow_mut().push(guard);
            }),
            Box::new(|| {
                run(async { lock.acquire().owner(&me).await }).map(drop).unwrap_err();
                run(guards.borrow()[0].reenter()).map(drop).unwrap_err();
            }),
            Box::new(|| assert!(run(lock.try_lock()).unwrap().is_none())),
            Box::new(pop),
            Box::new(|| guards.borrow_mut().push(run(lock.lock_with_lease(ms(7_000))).unwrap())),
            Box::new(|| assert!(run(lock.force_unlock()).unwrap())),
            Box::new(pop),
        ];
        let found = differences(&theirs, &trace(&server, steps));
        assert!(found.is_empty(), "{name:?}: Java against ours:\n  {}", found.join("\n  "));
        run(ours.shutdown(ms(2_000)));
    }
}
