//! Fencing tokens: one sequence that both languages draw from.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Instant, SystemTime},
};

use redlatch::{Client, FencedGuard, FencedLock, Lease, Unlocked, Wait};
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::RedisServer,
};

use crate::{
    bed::{BLOCKED, Bed, Java, LIMIT, awake, awake_between, ms, run, runtime},
    turns::{Language, Turns},
    waking::WAKE_LIMIT,
};

const ROUNDS: u64 = 25;
const OWNERS: u64 = 3;

/// The longest time between two looks of a waiter that nobody wakes, and as much for a busy machine.
const LOOK: std::time::Duration = ms(6_000);

fn counter(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}

/// What this machine's clock, which is the server's, says in the unit of the tokens.
fn clock() -> u64 {
    u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap()
}

/// A token operation of Java's fenced lock; `None` if it did not get the lock.
fn token(java: &Java, operation: &str, name: &str, args: &[&str]) -> Option<i64> {
    let words: Vec<&str> = std::iter::once(name).chain(args.iter().copied()).collect();
    let reply = java.thread.call(&format!("fenced.{operation}"), &words);
    let reply = reply.unwrap_or_else(|error| panic!("{operation} {words:?}: {error}"));
    (!reply.is_nil()).then(|| reply.as_i64().unwrap())
}

fn drawn(java: &Java, operation: &str, name: &str, args: &[&str]) -> u64 {
    token(java, operation, name, args).expect("a grant").try_into().expect("a token above 0")
}

fn hold(lock: &FencedLock) -> FencedGuard {
    run(lock.acquire().wait(Wait::AtMost(LIMIT)).into_future()).unwrap().expect("granted in time")
}

/// Redisson on a server that the test may empty.
fn apart(bed: &Bed, server: &RedisServer) -> (String, Client) {
    let name = bed.name("apart");
    bed.java.connect(&Connection::single(&server.url()).named(&name)).unwrap();
    (name, run(Client::connect(&server.url())).unwrap())
}

pub(crate) fn tokens_grow_over_a_mixed_schedule(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("mixed-tokens");
    // Tokens are noted while the lock is held, so their order here is the order of the grants.
    let notes = Arc::new(Mutex::new(Vec::<u64>::new()));
    let turns = Arc::new(Turns::until(20));
    let mut tasks = Vec::new();
    for client in [&bed.ours, &bed.ours_too] {
        for task in 0..OWNERS {
            let (lock, notes, turns) = (client.fenced_lock(name.as_str()), notes.clone(), turns.clone());
            tasks.push(runtime().spawn(async move {
                for round in turns.rounds(ROUNDS) {
                    // Renewed and fixed leases, waiting with and without a limit.
                    let guard = match (round + task) % 3 {
                        0 => lock.lock().await.unwrap(),
                        1 => lock.lock_with_lease(LIMIT).await.unwrap(),
                        _ => lock.lock_for(LIMIT).await.unwrap().expect("its turn"),
                    };
                    turns.note(Language::Rust);
                    notes.lock().unwrap().push(guard.token());
                    if round % 4 == 0 {
                        let inner = guard.reenter().await.unwrap();
                        assert_eq!(inner.token(), guard.token(), "a re-entry of ours draws nothing");
                        inner.unlock().await.unwrap();
                    }
                    guard.unlock().await.unwrap();
                    tokio::time::sleep(ms(round * 7 % 5)).await;
                }
            }));
        }
    }
    thread::scope(|scope| {
        for owner in 0..OWNERS {
            let (java, name, notes, turns) = (bed.thread().with("fenced"), &name, &notes, &turns);
            scope.spawn(move || {
                for round in turns.rounds(ROUNDS) {
                    let token = match (round + owner) % 3 {
                        0 => drawn(&java, "lockAndGetToken", name, &[]),
                        1 => drawn(&java, "tryLockAndGetToken", name, &["20000", "20000"]),
                        _ => {
                            java.lock(name);
                            drawn(&java, "getToken", name, &[])
                        }
                    };
                    turns.note(Language::Java);
                    notes.lock().unwrap().push(token);
                    if round % 4 == 0 {
                        // Java counts its own re-entries too.
                        let inner = drawn(&java, "lockAndGetToken", name, &[]);
                        notes.lock().unwrap().push(inner);
                        java.unlock(name);
                    }
                    java.unlock(name);
                    thread::sleep(ms(round * 7 % 5));
                }
            });
        }
    });
    for task in tasks {
        run(task).unwrap();
    }
    let notes = notes.lock().unwrap();
    let back = notes.windows(2).find(|pair| pair[0] >= pair[1]);
    assert!(back.is_none(), "a grant with a token that is not above the one before: {back:?}");
    println!("{} tokens, {} changes of language", notes.len(), turns.changes());
    turns.assert_enough();
    let last = *notes.last().unwrap();
    assert_eq!(u64::try_from(bed.number(&["GET", &counter(&name)])).unwrap(), last);
    assert_eq!(run(bed.ours.fenced_lock(name.as_str()).token()).unwrap(), Some(last));
    assert_eq!(bed.number(&["PTTL", &counter(&name)]), -1, "a counter with an end would start again");
    assert_eq!(bed.number(&["EXISTS", &name]), 0);
}

/// Redisson's testTokenIncrease: each way of taking the lock draws the next token, and we see each of them.
pub(crate) fn test_token_increase(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("increase"), bed.thread().with("fenced"));
    let lock = bed.ours.fenced_lock(name.as_str());
    assert_eq!(run(lock.token()).unwrap(), None);
    assert_eq!(token(&java, "getToken", &name, &[]), Some(0));
    let ways: [&dyn Fn() -> Option<u64>; 5] = [
        &|| Some(drawn(&java, "lockAndGetToken", &name, &[])),
        &|| {
            java.lock(&name);
            None
        },
        &|| {
            java.lock_lease(&name, 10_000);
            None
        },
        &|| Some(drawn(&java, "tryLockAndGetToken", &name, &["1000", "10000"])),
        &|| {
            assert!(java.try_lock(&name));
            None
        },
    ];
    let mut last = 0;
    for reentered in [false, true] {
        for way in &ways {
            let told = way();
            last += 1;
            assert_eq!(told.unwrap_or(last), last);
            assert_eq!(run(lock.token()).unwrap(), Some(last));
            if !reentered {
                java.unlock(&name);
            }
        }
    }
    assert_eq!(java.holds(&name), 5, "five holds of one owner, with a token each");
    for _ in 0..5 {
        java.unlock(&name);
    }
    assert_eq!(run(lock.token()).unwrap(), Some(10), "an unlock draws nothing");
    let ours = hold(&lock);
    assert!(ours.token() > 10);
    assert_eq!(token(&java, "getToken", &name, &[]), Some(i64::try_from(ours.token()).unwrap()));
    run(ours.unlock()).unwrap();
}

pub(crate) fn each_language_goes_on_from_the_others_token(version: RedissonVersion) {
    let bed = Bed::of(version);
    let (name, java) = (bed.name("onwards"), bed.thread().with("fenced"));
    let lock = bed.ours.fenced_lock(name.as_str());
    // Java counts from 1; ours jumps to the clock, and Java counts on from there.
    for expected in [1, 2] {
        assert_eq!(drawn(&java, "lockAndGetToken", &name, &[]), expected);
        java.unlock(&name);
    }
    let before = clock();
    let guard = hold(&lock);
    let ours = guard.token();
    assert!((before..=clock()).contains(&ours), "{ours} is not the server's clock");
    run(guard.unlock()).unwrap();
    for more in [1, 2] {
        assert_eq!(drawn(&java, "lockAndGetToken", &name, &[]), ours + more);
        java.unlock(&name);
    }
    let again = hold(&lock);
    assert!(again.token() > ours + 2);
    run(again.unlock()).unwrap();
    // A counter that is ahead of the clock, as after a clock that was wrong: both count on by one.
    let ahead = clock() + 3_600_000_000;
    bed.server.cmd(&["SET", &counter(&name), &ahead.to_string()]).unwrap();
    let guard = hold(&lock);
    assert_eq!(guard.token(), ahead + 1);
    run(guard.unlock()).unwrap();
    assert_eq!(drawn(&java, "lockAndGetToken", &name, &[]), ahead + 2);
    java.unlock(&name);
    let guard = hold(&lock);
    assert_eq!(guard.token(), ahead + 3);
    run(guard.unlock()).unwrap();
}

pub(crate) fn our_tokens_grow_over_a_flush_and_javas_start_again(version: RedissonVersion) {
    let (bed, server) = (Bed::of(version), RedisServer::start().unwrap());
    let (client, ours) = apart(&bed, &server);
    let (java, lock) = (bed.thread().with(&format!("{client}@fenced")), ours.fenced_lock("flushed"));
    let javas = || {
        let verb = format!("{client}@fenced.lockAndGetToken");
        let token = java.thread.call(&verb, &["flushed"]).unwrap().as_i64().unwrap();
        java.unlock("flushed");
        u64::try_from(token).unwrap()
    };
    let guard = hold(&lock);
    let first = guard.token();
    run(guard.unlock()).unwrap();
    assert_eq!(javas(), first + 1);
    // The first of ours after the loss lifts the counter above all that was drawn, for Java too.
    server.flush_all().unwrap();
    let guard = hold(&lock);
    let second = guard.token();
    assert!(second > first + 1, "{second} after {first} and one of Java");
    run(guard.unlock()).unwrap();
    assert_eq!(javas(), second + 1);
    // Java alone starts again at 1, which a resource that has seen more refuses.
    server.flush_all().unwrap();
    assert_eq!(javas(), 1);
    let guard = hold(&lock);
    assert!(guard.token() > second + 1);
    // A holder whose lock was flushed away is overtaken with a higher token.
    server.flush_all().unwrap();
    let heir = hold(&run(Client::connect(&server.url())).unwrap().fenced_lock("flushed"));
    assert!(heir.token() > guard.token());
    assert!(matches!(run(guard.unlock()).unwrap(), Unlocked::AlreadyLost(_)));
    run(heir.unlock()).unwrap();
    java.thread.call(&format!("{client}@shutdown"), &[]).unwrap();
}

/// Trap M4: deleting Java's fenced lock deletes the counter, and tells nobody.
pub(crate) fn a_counter_that_java_deletes_does_not_lower_our_tokens(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (name, java) = (bed.name("deleted"), bed.thread().with("fenced"));
    let lock = bed.ours.fenced_lock(name.as_str());
    let guard = hold(&lock);
    let before = guard.token();
    run(guard.unlock()).unwrap();
    java.lock(&name);
    let waiting = runtime().spawn(async move { lock.lock_for(LIMIT).await });
    bed.until_waiting(&name);
    let deleted_at = Instant::now();
    assert!(java.thread.call("fenced.delete", &[&name]).unwrap().as_bool().unwrap());
    let guard = run(waiting).unwrap().unwrap().expect("the lock is gone");
    assert!(awake(deleted_at) < LOOK, "found only after {:?}", deleted_at.elapsed());
    assert!(guard.token() > before + 1, "started again below {before}");
    java.is_refused_to_unlock(&name);
    run(guard.unlock()).unwrap();
}

/// Trap G11: a missing time to live and a granted lock look the same in Java's answer.
pub(crate) fn a_key_without_end_is_a_grant_to_java_and_none_to_us(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (name, java) = (bed.name("endless"), bed.thread().with("fenced"));
    let holder = "1b671a64-40d5-491e-99b0-da01ff1f3341:64";
    bed.server.cmd(&["HSET", &name, holder, "1"]).unwrap();
    // Java's false success: a token of -1, and nothing is held.
    assert_eq!(token(&java, "tryLockAndGetToken", &name, &["100", "10000"]), Some(-1));
    assert_eq!(java.holds(&name), 0);
    java.is_refused_to_unlock(&name);

    let lock = bed.ours.fenced_lock(name.as_str());
    assert!(run(lock.try_lock()).unwrap().is_none());
    let begin = Instant::now();
    assert!(run(lock.lock_for(ms(1_000))).unwrap().is_none());
    assert!(begin.elapsed() >= ms(995) && awake(begin) < LOOK, "{:?}", begin.elapsed());
    assert_eq!(bed.number(&["EXISTS", &counter(&name)]), 0, "no token is drawn without a grant");
    let state = run(bed.ours.inspect(name.as_str())).unwrap();
    assert_eq!((state.holders.len(), state.holders[0].owner.as_str()), (1, holder));
    assert!(!state.findings.is_empty(), "nothing says that this lock never ends");
    // A waiter looks again by itself, because nothing will tell.
    let waiting = runtime().spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    bed.until_waiting(&name);
    bed.server.cmd(&["DEL", &name]).unwrap();
    let deleted_at = Instant::now();
    let guard = run(waiting).unwrap().unwrap();
    assert!(awake(deleted_at) < LOOK, "found only after {:?}", deleted_at.elapsed());
    assert_eq!(
        token(&java, "tryLockAndGetToken", &name, &["100", "10000"]),
        None,
        "a lease that ends is no grant"
    );
    run(guard.unlock()).unwrap();
}

pub(crate) fn a_release_wakes_the_other_language_with_a_higher_token(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let java = bed.thread().with("fenced");
    for round in 0..6 {
        // The first wait loads Java's classes.
        let limit = if round == 0 { LIMIT } else { WAKE_LIMIT };
        let name = bed.name("handed");
        let lock = bed.ours.fenced_lock(name.as_str());
        let guard = hold(&lock);
        let asked = ["fenced.tryLockAndGetToken", &name, "20000", "20000"];
        let waiting = java.thread.send(asked[0], &asked[1..]).unwrap();
        bed.until_waiting(&name);
        assert!(waiting.is_still_waiting_after(if round == 0 { BLOCKED } else { ms(20) }));
        let released_at = SystemTime::now();
        let ours = guard.token();
        run(guard.unlock()).unwrap();
        let reply = waiting.wait(LIMIT).unwrap();
        assert_eq!(u64::try_from(reply.as_i64().unwrap()).unwrap(), ours + 1);
        assert!(reply.awake_after(released_at) < limit, "{:?}", reply.finished_after(released_at));

        let waiting = runtime().spawn(async move {
            let lease = Lease::Fixed(LIMIT);
            let guard = lock.acquire().wait(Wait::AtMost(LIMIT)).lease(lease).await.unwrap().unwrap();
            (guard, Instant::now())
        });
        bed.until_waiting(&name);
        let released_at = Instant::now();
        java.unlock(&name);
        let (guard, at) = run(waiting).unwrap();
        assert!(guard.token() > ours + 1);
        assert!(awake_between(released_at, at) < limit, "{:?}", at - released_at);
        run(guard.unlock()).unwrap();
    }
}
