//! Latches: counted down from both languages, and open for both.

use std::time::{Instant, SystemTime};

use redlatch::{Client, CountDownLatch};
use redlatch_testkit::{
    redisson::{Connection, PendingReply, RedissonVersion},
    server::RedisServer,
};

use crate::{
    bed::{BLOCKED, Bed, JavaCounter, LIMIT, awake_between, ms, run, runtime},
    golden::{Step, Trace, differences, trace},
    waking::{SAMPLES, WAKE_LIMIT, judge},
};

fn channel(name: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{name}}}")
}

fn java(bed: &Bed, name: &str) -> JavaCounter {
    JavaCounter::new(bed, "latch", name)
}

/// A task of ours that waits; when it got through.
fn passer(latch: &CountDownLatch) -> tokio::task::JoinHandle<Result<Instant, redlatch::Error>> {
    let latch = latch.clone();
    runtime().spawn(async move { latch.wait().await.map(|()| Instant::now()) })
}

/// Three threads of Java that wait.
fn javas_waiting(bed: &Bed, name: &str) -> Vec<PendingReply> {
    (0..3).map(|_| java(bed, name).send("await", &[])).collect()
}

/// Lets that many threads of Java wait, until each has looked for the last time: before and after it subscribed. From then
/// on it relies on messages. Nobody else may look meanwhile.
fn asleep<T>(bed: &Bed, wait: impl FnOnce() -> T, threads: u64) -> T {
    let looks = || bed.server.command_count("get").unwrap();
    let before = looks();
    let waiting = wait();
    let deadline = Instant::now() + LIMIT;
    while looks() < before + 2 * threads {
        assert!(Instant::now() < deadline, "Java has not looked twice");
        std::thread::sleep(ms(5));
    }
    waiting
}

fn all_wait(waiting: &[PendingReply]) -> bool {
    waiting.iter().all(|one| one.is_still_waiting_after(BLOCKED))
}

pub(crate) fn both_languages_count_down_and_both_get_through(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("gate");
    let (ours, java) = (bed.ours.count_down_latch(name.as_str()), java(&bed, &name));
    assert_eq!(java.number("getCount"), 0);
    java.call("await", &[]);
    // The second round is a gate that was open before.
    for round in 0..2 {
        if round == 0 {
            assert!(java.bool("trySetCount", &[4]));
            assert!(!run(ours.set_if_absent(9)).unwrap(), "only the first sets");
        } else {
            assert!(run(ours.set_if_absent(4)).unwrap());
            assert!(!java.bool("trySetCount", &[9]));
        }
        assert_eq!(run(ours.count()).unwrap(), 4);
        assert!(!java.bool("awaitFor", &[100]));
        assert!(!run(ours.wait_for(ms(100))).unwrap());
        let (javas, passing) = (javas_waiting(&bed, &name), [passer(&ours), passer(&ours)]);
        bed.until_subscribed(&channel(&name), 2);
        assert_eq!(run(ours.count_down()).unwrap(), 3);
        java.call("countDown", &[]);
        assert_eq!(run(ours.count_down()).unwrap(), 1);
        assert_eq!(java.number("getCount"), 1);
        assert!(all_wait(&javas) && !passing.iter().any(|one| one.is_finished()), "one is left");
        if round == 0 {
            assert_eq!(run(ours.count_down()).unwrap(), 0);
        } else {
            java.call("countDown", &[]);
        }
        for one in javas {
            one.wait(LIMIT).unwrap();
        }
        for one in passing {
            run(one).unwrap().unwrap();
        }
        assert_eq!(bed.number(&["EXISTS", &name]), 0);
        // Further steps change nothing, and leave nothing behind.
        java.call("countDown", &[]);
        assert_eq!(run(ours.count_down()).unwrap(), 0);
        assert_eq!((java.number("getCount"), run(ours.count()).unwrap()), (0, 0));
        assert_eq!(bed.number(&["EXISTS", &name]), 0);
    }
}

pub(crate) fn the_last_step_of_ours_wakes_java_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let sample = || {
        let name = bed.name("wake-java-latch");
        let (ours, java) = (bed.ours.count_down_latch(name.as_str()), java(&bed, &name));
        run(ours.set_if_absent(1)).unwrap();
        let waiting = java.send("await", &[]);
        bed.until_subscribed(&channel(&name), 1);
        let opened_at = SystemTime::now();
        run(ours.count_down()).unwrap();
        waiting.wait(LIMIT).unwrap().awake_after(opened_at)
    };
    // The first waits load Java's classes.
    for _ in 0..2 {
        sample();
    }
    judge("Java woken by our last step", version, (0..SAMPLES).map(|_| sample()).collect());
}

pub(crate) fn the_last_step_of_java_wakes_us_at_once(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let sample = || {
        let name = bed.name("wake-rust-latch");
        let (ours, java) = (bed.patient[0].count_down_latch(name.as_str()), java(&bed, &name));
        assert!(java.bool("trySetCount", &[1]));
        let waiting = passer(&ours);
        bed.until_subscribed(&channel(&name), 1);
        let opened_at = Instant::now();
        java.call("countDown", &[]);
        awake_between(opened_at, run(waiting).unwrap().unwrap())
    };
    sample();
    judge("we woken by Java's last step", version, (0..SAMPLES).map(|_| sample()).collect());
}

pub(crate) fn our_delete_lets_java_through_and_javas_lets_us_through(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let name = bed.name("deleted-gate");
    let (ours, java_side) = (bed.ours.count_down_latch(name.as_str()), java(&bed, &name));
    assert!(java_side.bool("trySetCount", &[5]));
    let javas = asleep(&bed, || javas_waiting(&bed, &name), 3);
    let passing = passer(&bed.patient[0].count_down_latch(name.as_str()));
    bed.until_subscribed(&channel(&name), 2);
    assert!(all_wait(&javas));
    // C1: Redisson's own message for this closes its gates; ours opens them.
    let at = Instant::now();
    assert!(run(ours.delete()).unwrap());
    for one in javas {
        // It does not look again by itself, so that it comes at all shows that it was told.
        one.wait(LIMIT).expect("asleep before an open gate");
    }
    let latency = awake_between(at, run(passing).unwrap().unwrap());
    assert!(latency < WAKE_LIMIT, "woken only after {latency:?}");
    assert!(!run(ours.delete()).unwrap() && !java_side.bool("delete", &[]));

    let name = bed.name("deleted-by-java");
    let (ours, java_side) = (bed.ours.count_down_latch(name.as_str()), java(&bed, &name));
    assert!(run(ours.set_if_absent(5)).unwrap());
    let javas = asleep(&bed, || java(&bed, &name).send("awaitFor", &[6_000]), 1);
    let passing = passer(&bed.patient[0].count_down_latch(name.as_str()));
    bed.until_subscribed(&channel(&name), 2);
    let at = Instant::now();
    assert!(java_side.bool("delete", &[]));
    let latency = awake_between(at, run(passing).unwrap().unwrap());
    assert!(latency < WAKE_LIMIT, "woken only after {latency:?}");
    // What C1 is about: Java's own waiter sleeps on until its time is up.
    assert!(
        javas.wait(LIMIT).unwrap().elapsed() >= ms(5_900),
        "C1 is mended there: say so in docs/protocol.md"
    );
}

pub(crate) fn a_count_of_zero_set_by_java_is_an_open_latch(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("zero");
    let (ours, java) = (bed.ours.count_down_latch(name.as_str()), java(&bed, &name));
    // C2: Java stores the 0, and the name counts as taken until a client counts down.
    assert!(java.bool("trySetCount", &[0]));
    assert_eq!(bed.number(&["GET", &name]), 0);
    run(ours.wait()).unwrap();
    java.call("await", &[]);
    assert_eq!(run(ours.count()).unwrap(), 0);
    assert!(!run(ours.set_if_absent(2)).unwrap());
    assert!(!java.bool("trySetCount", &[2]));
    assert_eq!(run(ours.count_down()).unwrap(), 0);
    assert_eq!(bed.number(&["EXISTS", &name]), 0, "a step takes it away");
    assert!(run(ours.set_if_absent(2)).unwrap());
    assert_eq!(java.number("getCount"), 2);
    // Deleting does too.
    assert!(run(ours.delete()).unwrap());
    assert!(java.bool("trySetCount", &[0]));
    assert!(run(ours.delete()).unwrap());
    assert!(java.bool("trySetCount", &[1]));
    java.call("countDown", &[]);
}

pub(crate) fn a_count_that_expires_opens_the_latch_for_us(version: RedissonVersion) {
    let bed = Bed::of(version);
    let name = bed.name("expiring-gate");
    let (ours, java) = (bed.ours.count_down_latch(name.as_str()), java(&bed, &name));
    assert!(java.bool("trySetCount", &[3]));
    let (waiting, passing) = (java.send("awaitFor", &[4_000]), passer(&ours));
    bed.until_subscribed(&channel(&name), 2);
    assert_eq!(bed.number(&["PEXPIRE", &name, "400"]), 1);
    // Steps keep the time to live that a client gave it.
    assert_eq!(run(ours.count_down()).unwrap(), 2);
    let begin = Instant::now();
    let through = awake_between(begin, run(passing).unwrap().unwrap());
    assert!(through < ms(400) + WAKE_LIMIT, "found open only after {through:?}");
    assert!(through > ms(200), "open before the count was gone");
    assert_eq!(run(ours.count()).unwrap(), 0);
    // Nobody is told of an expiry, and Java does not look by itself: it comes back when its time is up.
    let reply = waiting.wait(LIMIT).unwrap();
    assert!(reply.elapsed() >= ms(3_900), "{:?}", reply.elapsed());
}

/// Set, set again, count down, once more, and once too often; then a new count.
fn golden_steps<'a>(
    set: impl Fn(i64) -> bool + Copy + 'a,
    down: impl Fn() + Copy + 'a,
    delete: impl Fn() -> bool + Copy + 'a,
) -> Vec<Step<'a>> {
    vec![
        Box::new(move || assert!(set(2))),
        Box::new(move || assert!(!set(5))),
        Box::new(down),
        Box::new(down),
        Box::new(down),
        Box::new(move || assert!(!delete())),
        Box::new(move || assert!(set(3))),
        Box::new(move || assert!(delete())),
    ]
}

pub(crate) fn every_step_of_a_latch_leaves_and_says_the_same(version: RedissonVersion) {
    let bed = Bed::of(version);
    let server = RedisServer::start().unwrap();
    for name in ["gate", "Lager für Ä 😀", "line\nend"] {
        let client = bed.name("golden-latch");
        bed.java.connect(&Connection::single(&server.url()).named(&client)).unwrap();
        let thread = bed.thread().thread;
        let call = |operation: &str, arg: Option<i64>| {
            let arg = arg.map(|number| number.to_string());
            let words: Vec<&str> = std::iter::once(name).chain(arg.as_deref()).collect();
            thread.call(&format!("{client}@latch.{operation}"), &words).unwrap()
        };
        let mut javas = trace(
            &server,
            golden_steps(
                |n| call("trySetCount", Some(n)).as_bool().unwrap(),
                || drop(call("countDown", None)),
                || call("delete", None).as_bool().unwrap(),
            ),
        );
        thread.call(&format!("{client}@shutdown"), &[]).unwrap();
        let client = run(Client::connect(&server.url())).unwrap();
        let latch = client.count_down_latch(name);
        let ours = trace(
            &server,
            golden_steps(
                |n| run(latch.set_if_absent(u32::try_from(n).unwrap())).unwrap(),
                || {
                    run(latch.count_down()).unwrap();
                },
                || run(latch.delete()).unwrap(),
            ),
        );
        run(client.shutdown(ms(2_000)));
        assert_eq!(payloads(&javas), ["1", "0", "1", "1"], "{name:?}");
        // C1: where Java's message closes the gates, ours opens them.
        *javas.messages.last_mut().unwrap() = (channel(name).into_bytes(), b"0".to_vec());
        let found = differences(&javas, &ours);
        assert!(found.is_empty(), "{name:?}: Java against ours:\n  {}", found.join("\n  "));
    }
}

fn payloads(trace: &Trace) -> Vec<String> {
    trace.messages.iter().map(|(_, payload)| String::from_utf8(payload.clone()).unwrap()).collect()
}
