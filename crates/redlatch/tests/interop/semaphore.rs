//! Semaphores: permits go from one language to the other, and their waiters are woken.

use std::time::{Duration, Instant, SystemTime};

use redlatch::{Client, ErrorKind, Semaphore};
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::RedisServer,
};

use crate::{
    bed::{BLOCKED, Bed, JavaCounter, LIMIT, awake, awake_between, ms, run, runtime},
    golden::{Step, Trace, differences, trace},
    waking::{SAMPLES, WAKE_LIMIT, judge},
};

fn channel(name: &str) -> String {
    format!("redisson_sc:{{{name}}}")
}

pub(crate) fn java(bed: &Bed, name: &str) -> JavaCounter {
    JavaCounter::new(bed, "sem", name)
}

/// A task of ours that waits for permits; when it got them.
fn taker(semaphore: &Semaphore, n: u32) -> tokio::task::JoinHandle<Result<Instant, redlatch::Error>> {
    let semaphore = semaphore.clone();
    runtime().spawn(async move { semaphore.acquire(n).await.map(|()| Instant::now()) })
}

pub(crate) fn permits_go_from_one_language_to_the_other(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("shared-permits");
    let (ours, java) = (bed.ours.semaphore(name.as_str()), java(&bed, &name));
    // Set on either side, once.
    assert!(java.bool("trySetPermits", &[10]));
    assert!(!run(ours.set_if_absent(20, None)).unwrap(), "only the first sets");
    assert_eq!(run(ours.available()).unwrap(), 10);
    // Taken here, put back there, and the other way round.
    run(ours.acquire(4)).unwrap();
    assert_eq!(java.number("available"), 6);
    assert!(!java.bool("tryAcquire", &[7]), "six are free");
    java.call("release", &[4]);
    assert_eq!(run(ours.available()).unwrap(), 10);
    java.call("acquire", &[9]);
    assert!(!run(ours.try_acquire(2)).unwrap(), "one is free");
    run(ours.release(9)).unwrap();
    assert!(java.bool("tryAcquire", &[10]), "all are free");
    run(ours.release(10)).unwrap();
    // More and fewer, seen from the other side.
    assert_eq!(run(ours.add(5)).unwrap(), 15);
    assert_eq!(java.number("available"), 15);
    java.call("addPermits", &[-7]);
    assert_eq!(run(ours.available()).unwrap(), 8);
    assert_eq!(run(ours.drain()).unwrap(), 8);
    assert_eq!(java.number("available"), 0);
    assert_eq!(java.number("drain"), 0);
    run(ours.release(3)).unwrap();
    assert_eq!(java.number("drain"), 3);
    assert!(!run(ours.try_acquire(1)).unwrap());
    assert!(java.bool("delete", &[]));
    assert_eq!(run(ours.try_acquire(1)).unwrap_err().kind(), ErrorKind::NotInitialised);
    // Ours comes first now.
    assert!(run(ours.set_if_absent(2, None)).unwrap());
    assert!(!java.bool("trySetPermits", &[9]));
    assert_eq!(java.number("available"), 2);
    assert!(java.bool("delete", &[]));
    // A release creates it, on either side.
    java.call("release", &[1]);
    run(ours.release(1)).unwrap();
    run(ours.acquire(2)).unwrap();
    assert_eq!(java.number("available"), 0);
    assert_eq!(bed.number(&["GET", &name]), 0, "still there, with nothing free");
}

/// The same steps of both languages, for a comparison byte by byte.
fn golden_steps<'a>(
    set: impl Fn(i64) -> bool + Copy + 'a,
    take: impl Fn(i64) -> bool + Copy + 'a,
    put: impl Fn(i64) + Copy + 'a,
    drain: impl Fn() -> i64 + Copy + 'a,
    add: impl Fn(i64) + Copy + 'a,
    adds: &[i64],
) -> Vec<Step<'a>> {
    let mut steps: Vec<Step<'a>> = vec![
        Box::new(move || put(2)),
        Box::new(move || assert!(!set(9))),
        Box::new(move || assert!(take(2))),
        Box::new(move || assert!(!take(1))),
        Box::new(move || put(1)),
        Box::new(move || put(3)),
        Box::new(move || assert!(take(1))),
        Box::new(move || assert_eq!(drain(), 3)),
        Box::new(move || assert_eq!(drain(), 0)),
    ];
    for &change in adds {
        steps.push(Box::new(move || add(change)));
    }
    steps
}

pub(crate) fn every_step_of_a_semaphore_leaves_and_says_the_same(version: RedissonVersion) {
    let bed = Bed::of(version);
    let server = RedisServer::start().unwrap();
    // Redisson tells of added permits since 3.16.2; negative totals, which ours does not tell, are another test.
    let adds: &[i64] = if version == RedissonVersion::Newest { &[4, -1] } else { &[] };
    for name in ["permits", "{shop}:permits", "a{b}c", "Lager für Ä 😀"] {
        let client = bed.name("golden-permits");
        bed.java.connect(&Connection::single(&server.url()).named(&client)).unwrap();
        let thread = bed.thread().thread;
        let call = |operation: &str, arg: Option<i64>| {
            let arg = arg.map(|number| number.to_string());
            let words: Vec<&str> = std::iter::once(name).chain(arg.as_deref()).collect();
            thread.call(&format!("{client}@sem.{operation}"), &words).unwrap()
        };
        let javas = trace(
            &server,
            golden_steps(
                |n| call("trySetPermits", Some(n)).as_bool().unwrap(),
                |n| call("tryAcquire", Some(n)).as_bool().unwrap(),
                |n| drop(call("release", Some(n))),
                || call("drain", None).as_i64().unwrap(),
                |n| drop(call("addPermits", Some(n))),
                adds,
            ),
        );
        thread.call(&format!("{client}@shutdown"), &[]).unwrap();
        let client = run(Client::connect(&server.url())).unwrap();
        let semaphore = client.semaphore(name);
        let unsigned = |n: i64| u32::try_from(n).unwrap();
        let ours = trace(
            &server,
            golden_steps(
                |n| run(semaphore.set_if_absent(unsigned(n), None)).unwrap(),
                |n| run(semaphore.try_acquire(unsigned(n))).unwrap(),
                |n| run(semaphore.release(unsigned(n))).unwrap(),
                || run(semaphore.drain()).unwrap(),
                |n| {
                    run(semaphore.add(i32::try_from(n).unwrap())).unwrap();
                },
                adds,
            ),
        );
        run(client.shutdown(ms(2_000)));
        let said: Vec<&[u8]> = javas.messages.iter().map(|(_, payload)| payload.as_slice()).collect();
        assert_eq!(said[..3], [b"2", b"1", b"4"], "{name:?}: totals, not what was put in");
        assert_eq!(said.len(), 3 + adds.len());
        agree(name, &javas, &ours);
    }
}

fn agree(name: &str, javas: &Trace, ours: &Trace) {
    let found = differences(javas, ours);
    assert!(found.is_empty(), "{name:?}: Java against ours:\n  {}", found.join("\n  "));
}

pub(crate) fn permits_put_in_by_us_wake_java_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let sample = || {
        let name = bed.name("wake-java-permits");
        let (ours, java) = (bed.ours.semaphore(name.as_str()), java(&bed, &name));
        run(ours.set_if_absent(1, None)).unwrap();
        let waiting = java.send("acquire", &[2]);
        bed.until_subscribed(&channel(&name), 1);
        let released_at = SystemTime::now();
        run(ours.release(1)).unwrap();
        let latency = waiting.wait(LIMIT).unwrap().awake_after(released_at);
        assert_eq!(run(ours.available()).unwrap(), 0);
        latency
    };
    // The first waits load Java's classes.
    for _ in 0..2 {
        sample();
    }
    judge("Java woken by our permits", version, (0..SAMPLES).map(|_| sample()).collect());
}

pub(crate) fn permits_put_in_by_java_wake_us_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let sample = || {
        let name = bed.name("wake-rust-permits");
        let (ours, java) = (bed.patient[0].semaphore(name.as_str()), java(&bed, &name));
        assert!(java.bool("trySetPermits", &[1]));
        let waiting = taker(&ours, 2);
        bed.until_subscribed(&channel(&name), 1);
        let released_at = Instant::now();
        java.call("release", &[1]);
        let latency = awake_between(released_at, run(waiting).unwrap().unwrap());
        assert_eq!(java.number("available"), 0);
        latency
    };
    sample();
    judge("we woken by Java's permits", version, (0..SAMPLES).map(|_| sample()).collect());
}

pub(crate) fn every_way_to_more_permits_wakes_java(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let woken = |what: &str, name: &str, wanted: i64, change: &dyn Fn(&Semaphore)| {
        let ours = bed.ours.semaphore(name);
        let waiting = java(&bed, name).send("acquire", &[wanted]);
        bed.until_subscribed(&channel(name), 1);
        assert!(waiting.is_still_waiting_after(BLOCKED), "{what}");
        let changed_at = SystemTime::now();
        change(&ours);
        let latency = waiting.wait(LIMIT).unwrap().awake_after(changed_at);
        assert!(latency < WAKE_LIMIT, "{what}: woken only after {latency:?}");
        assert_eq!(run(ours.available()).unwrap(), 0, "{what}");
    };
    // Java waits where nobody has set permits yet.
    woken("set", &bed.name("set-wakes"), 2, &|ours| {
        assert!(run(ours.set_if_absent(2, None)).unwrap());
    });
    woken("set with a time to live", &bed.name("set-wakes"), 2, &|ours| {
        assert!(run(ours.set_if_absent(2, Some(ms(60_000)))).unwrap());
    });
    woken("add", &bed.name("add-wakes"), 3, &|ours| assert_eq!(run(ours.add(3)).unwrap(), 3));
    let name = bed.name("release-wakes");
    run(bed.ours.semaphore(name.as_str()).set_if_absent(1, None)).unwrap();
    woken("release of what exists", &name, 2, &|ours| assert!(run(ours.release_if_exists(1)).unwrap()));
}

pub(crate) fn a_message_tells_the_total_so_that_the_right_waiter_wakes(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("total");
    let ours = bed.ours.semaphore(name.as_str());
    run(ours.set_if_absent(9, None)).unwrap();
    let wants = |permits: i64| java(&bed, &name).send("tryAcquireWait", &[permits, 10_000]);
    // S4: a message of 1, for the one that is put in, would wake only the first in Java's line, and that one wants more than
    // there is; the second would sleep on beside the ten that it wants. The others behind it make Java wake many: the
    // first, which tries again and again, must not use up what is meant for the second.
    // In 3.15.1 nobody passes a waiter who wants more, in either language; there the one who wants ten is first, and
    // sleeps on for a message of 1 all the same.
    let mut want_more = Vec::new();
    if version == RedissonVersion::Newest {
        want_more.push(wants(11));
        bed.until_subscribed(&channel(&name), 1);
        assert!(want_more[0].is_still_waiting_after(BLOCKED));
    }
    let wants_ten = wants(10);
    bed.until_subscribed(&channel(&name), 1);
    assert!(wants_ten.is_still_waiting_after(BLOCKED));
    want_more.extend((0..8).map(|_| wants(11)));
    assert!(want_more.iter().all(|one| one.is_still_waiting_after(BLOCKED)));
    run(ours.release(1)).unwrap();
    let reply = wants_ten.wait(LIMIT).unwrap();
    assert!(reply.as_bool().unwrap(), "asleep beside its permits");
    assert!(reply.elapsed() < ms(9_000), "found only when its time was up: {:?}", reply.elapsed());
    let rest = want_more.len() * 11;
    run(ours.release(u32::try_from(rest).unwrap())).unwrap();
    for one in want_more {
        assert!(one.wait(LIMIT).unwrap().as_bool().unwrap());
    }
    assert_eq!(java(&bed, &name).number("available"), 0);
}

pub(crate) fn one_message_wakes_as_many_java_threads_as_there_are_permits(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("many-permits");
    let ours = bed.ours.semaphore(name.as_str());
    run(ours.set_if_absent(1, None)).unwrap();
    run(ours.acquire(1)).unwrap();
    let waiting: Vec<_> = (0..4).map(|_| java(&bed, &name).send("acquire", &[1])).collect();
    bed.until_subscribed(&channel(&name), 1);
    assert!(waiting.iter().all(|one| one.is_still_waiting_after(BLOCKED)));
    run(ours.release(3)).unwrap();
    let deadline = Instant::now() + LIMIT;
    let mut blocked: Vec<_> = waiting.iter().collect();
    while blocked.len() > 1 && Instant::now() < deadline {
        blocked.retain(|one| one.is_still_waiting_after(ms(20)));
    }
    assert_eq!(blocked.len(), 1, "three permits let three in");
    assert!(blocked[0].is_still_waiting_after(BLOCKED));
    assert_eq!(run(ours.available()).unwrap(), 0);
    run(ours.release(1)).unwrap();
    blocked[0].wait(LIMIT).unwrap();
    assert_eq!(run(ours.available()).unwrap(), 0);
}

pub(crate) fn permits_that_are_owed_do_not_break_a_java_waiter(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("owed");
    let (ours, java_side) = (bed.ours.semaphore(name.as_str()), java(&bed, &name));
    assert!(java_side.bool("trySetPermits", &[1]));
    let waiting = java_side.send("acquire", &[3]);
    bed.until_subscribed(&channel(&name), 1);
    let ours_waits = taker(&ours, 2);
    let mut ear = redis::Client::open(bed.server.url()).unwrap().get_connection().unwrap();
    ear.set_read_timeout(Some(BLOCKED)).unwrap();
    let mut ear = ear.as_pubsub();
    ear.subscribe(channel(&name)).unwrap();
    // S2: below zero, step by step; nothing may be told, because a negative number breaks Java's listener.
    assert_eq!(run(ours.add(-4)).unwrap(), -3);
    assert_eq!(run(ours.add(-1)).unwrap(), -4);
    run(ours.release(2)).unwrap();
    assert_eq!(java(&bed, &name).number("available"), -2);
    assert!(waiting.is_still_waiting_after(BLOCKED));
    let told = ear.get_message();
    assert!(told.is_err(), "told of permits that nobody can take: {told:?}");
    // The waiter has survived, and the debt is paid first.
    java(&bed, &name).call("release", &[2]);
    assert!(waiting.is_still_waiting_after(BLOCKED) && !ours_waits.is_finished());
    run(ours.release(5)).unwrap();
    waiting.wait(LIMIT).unwrap();
    run(ours_waits).unwrap().unwrap();
    assert_eq!(java(&bed, &name).number("available"), 0);
}

pub(crate) fn java_takes_permits_below_zero_and_we_wait_them_out(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("javas-debt");
    let (ours, java) = (bed.ours.semaphore(name.as_str()), java(&bed, &name));
    assert!(java.bool("trySetPermits", &[2]));
    let waiting = taker(&ours, 3);
    bed.until_subscribed(&channel(&name), 1);
    // The newest tells everybody of the -5; ours takes that for a reason to look.
    java.call("addPermits", &[-7]);
    assert_eq!(run(ours.available()).unwrap(), -5);
    assert!(!run(ours.acquire_for(1, BLOCKED)).unwrap());
    assert!(!waiting.is_finished());
    java.call("addPermits", &[8]);
    run(waiting).unwrap().unwrap();
    assert_eq!(java.number("available"), 0);
}

pub(crate) fn a_time_to_live_outlasts_our_changes_and_ends_for_both(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("short-lived");
    let (ours, java) = (bed.ours.semaphore(name.as_str()), java(&bed, &name));
    if version == RedissonVersion::Newest {
        assert!(java.bool("trySetPermitsTtl", &[4, 2_000]));
        assert!(!run(ours.set_if_absent(9, Some(ms(60_000)))).unwrap());
    } else {
        assert!(run(ours.set_if_absent(4, Some(ms(2_000)))).unwrap());
        assert!(!java.bool("trySetPermits", &[9]));
    }
    let begin = Instant::now();
    // S1: none of our changes makes it live for ever.
    assert_eq!(run(ours.add(3)).unwrap(), 7);
    assert_eq!(run(ours.drain()).unwrap(), 7);
    run(ours.release(2)).unwrap();
    assert!(run(ours.try_acquire(1)).unwrap());
    assert!(java.bool("tryAcquire", &[1]), "as Java sees it");
    java.call("release", &[1]);
    let left = bed.pttl(&name);
    assert!(left > Duration::ZERO && left <= ms(2_000), "{left:?}");
    let error = run(ours.acquire(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotInitialised, "{error}");
    assert!(awake(begin) < ms(2_000) + WAKE_LIMIT, "noticed only after {:?}", begin.elapsed());
    assert!(begin.elapsed() + ms(300) > left, "noticed too early");
    assert_eq!(java.number("available"), 0);
    assert!(!java.bool("exists", &[]));
}

pub(crate) fn a_release_only_if_it_exists_creates_nothing(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("maybe");
    let (ours, java) = (bed.ours.semaphore(name.as_str()), java(&bed, &name));
    if version == RedissonVersion::Old3_15_1 {
        let error = java.send("releaseIfExists", &[1]).wait(LIMIT).unwrap_err();
        assert_eq!(error.exception(), Some("UnsupportedOperationException"), "{error}");
    } else {
        assert!(!java.bool("releaseIfExists", &[1]));
    }
    assert!(!run(ours.release_if_exists(1)).unwrap());
    assert!(!java.bool("exists", &[]));
    assert!(java.bool("trySetPermits", &[1]));
    let waiting = taker(&ours, 3);
    bed.until_subscribed(&channel(&name), 1);
    assert!(run(ours.release_if_exists(1)).unwrap());
    if version == RedissonVersion::Newest {
        assert!(java.bool("releaseIfExists", &[1]));
    } else {
        java.call("release", &[1]);
    }
    run(waiting).unwrap().unwrap();
    assert_eq!(java.number("available"), 0);
}

pub(crate) fn a_deleted_semaphore_ends_our_waits_and_javas_go_on(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("deleted-permits");
    let (ours, java_side) = (bed.ours.semaphore(name.as_str()), java(&bed, &name));
    for javas_turn in [false, true] {
        assert!(java_side.bool("trySetPermits", &[1]));
        let (waiting, ours_waits) = (java(&bed, &name).send("acquire", &[2]), taker(&ours, 2));
        bed.until_subscribed(&channel(&name), 2);
        if javas_turn {
            assert!(java_side.bool("delete", &[]));
        } else {
            assert!(run(ours.delete()).unwrap());
        }
        assert_eq!(run(ours_waits).unwrap().unwrap_err().kind(), ErrorKind::NotInitialised);
        assert!(waiting.is_still_waiting_after(BLOCKED));
        // To Java a missing semaphore has no permits yet.
        assert!(run(ours.set_if_absent(2, None)).unwrap());
        waiting.wait(LIMIT).unwrap();
        assert_eq!(java_side.number("available"), 0);
        assert!(run(ours.delete()).unwrap() && !java_side.bool("delete", &[]));
    }
}
