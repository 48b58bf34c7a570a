//! Spin locks of both languages: one lock with the plain ones, and nothing is said about it.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use redlatch::{Backoff, Client, Error, Guard, Lock, Presence, SpinLock, Unlocked};
use redlatch_testkit::{
    redisson::{Connection, RedissonVersion},
    server::RedisServer,
};
use tokio::task::JoinHandle;

use crate::{
    bed::{BLOCKED, Bed, LIMIT, awake, ms, run, runtime},
    golden::{Step, differences, java_trace_of, trace},
};

/// Redisson's other backoff.
const CONSTANT: Duration = ms(64);
/// How long a waiter waits whose looks are counted.
const WAIT: Duration = ms(1_000);
/// What a release may take to be found: the longest pause of a spin lock, or of a waiter that nobody tells, and as much again
/// for a busy machine.
const FOUND: Duration = ms(1_600);

/// One of our locks that a spin lock of Java must get along with.
#[derive(Clone)]
enum Ours {
    Spin(SpinLock),
    Plain(Lock),
}

impl Ours {
    /// A spin lock with either backoff, and a plain one.
    fn all(client: &Client, name: &str) -> [(&'static str, Self); 3] {
        let constant = Backoff::constant(CONSTANT).unwrap();
        [
            ("spin", Ours::Spin(client.spin_lock(name))),
            ("constant", Ours::Spin(client.spin_lock(name).backoff(constant))),
            ("plain", Ours::Plain(client.lock(name))),
        ]
    }

    async fn lock_for(&self, wait: Duration) -> Result<Option<Guard>, Error> {
        match self {
            Ours::Spin(lock) => lock.lock_for(wait).await,
            Ours::Plain(lock) => lock.lock_for(wait).await,
        }
    }

    async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        match self {
            Ours::Spin(lock) => lock.try_lock().await,
            Ours::Plain(lock) => lock.try_lock().await,
        }
    }

    fn waits(&self) -> JoinHandle<Option<Guard>> {
        let lock = self.clone();
        runtime().spawn(async move { lock.lock_for(LIMIT).await.unwrap() })
    }
}

pub(crate) fn spin_locks_and_plain_locks_of_both_languages_exclude(version: RedissonVersion) {
    let bed = Bed::of(version);
    for theirs in ["spin", "spinconstant", "lock"] {
        let name = bed.name(theirs);
        for (kind, lock) in Ours::all(&bed.ours, &name) {
            let java = bed.thread().with(theirs);
            java.lock(&name);
            assert!(run(lock.try_lock()).unwrap().is_none(), "{kind} against {theirs}");
            assert!(run(lock.lock_for(BLOCKED)).unwrap().is_none(), "{kind} against {theirs}");
            let waiting = lock.waits();
            java.lock(&name);
            java.unlock(&name);
            std::thread::sleep(BLOCKED);
            assert!(!waiting.is_finished(), "{kind} against {theirs}: one hold is left");
            let released_at = Instant::now();
            java.unlock(&name);
            let guard = run(waiting).unwrap().expect("it is free");
            assert!(awake(released_at) < FOUND, "{kind}, {theirs}: {:?}", released_at.elapsed());
            assert!(!java.try_lock(&name), "{kind} against {theirs}");
            java.is_refused_to_unlock(&name);

            // A plain lock of Java is told of the release by our plain one only, and sleeps otherwise.
            let told = kind == "plain" || theirs != "lock";
            if told {
                let waiting = java.wait_for(&name, 10_000, -1);
                assert!(waiting.is_still_waiting_after(BLOCKED), "{kind} against {theirs}");
                assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
                assert!(waiting.wait(LIMIT).unwrap().as_bool().unwrap(), "{kind} against {theirs}");
                java.unlock(&name);
            } else {
                assert_eq!(run(guard.unlock()).unwrap(), Unlocked::Released);
            }
            assert_eq!(bed.number(&["EXISTS", &name]), 0);
        }
    }
}

/// Kinds of lock that share a name exclude each other and do not wake each other (trap G14).
pub(crate) fn a_waiter_of_another_kind_is_not_told_and_finds_out(version: RedissonVersion) {
    let bed = Bed::alone(version);
    let (name, java) = (bed.name("untold"), bed.thread());
    let guard = run(bed.ours.spin_lock(name.as_str()).lock_with_lease(ms(1_200))).unwrap();
    let waiting = java.wait_for(&name, 10_000, -1);
    bed.until_waiting(&name);
    let released_at = Instant::now();
    run(guard.unlock()).unwrap();
    // Java sleeps for the time to live that it has seen.
    let reply = waiting.wait(LIMIT).unwrap();
    assert!(reply.as_bool().unwrap());
    assert!(released_at.elapsed() > ms(500), "told all the same: {:?}", released_at.elapsed());
    // A plain lock of ours looks at intervals; a forced release of a spin lock is as silent as any.
    for forced in [false, true] {
        if forced {
            java.with("spin").lock(&name);
        }
        let waiting = Ours::Plain(bed.ours.lock(name.as_str())).waits();
        bed.until_waiting(&name);
        let released_at = Instant::now();
        if forced {
            assert!(run(bed.ours_too.spin_lock(name.as_str()).force_unlock()).unwrap());
        } else {
            java.with("spin").unlock(&name);
        }
        let guard = run(waiting).unwrap().expect("it is free");
        assert!(awake(released_at) < FOUND, "{:?}", released_at.elapsed());
        run(guard.unlock()).unwrap();
    }
}

pub(crate) fn nothing_is_published_and_nothing_subscribed(version: RedissonVersion) {
    let (bed, server) = (Bed::of(version), RedisServer::start().unwrap());
    let java_client = bed.name("silent");
    bed.java.connect(&Connection::single(&server.url()).named(&java_client)).unwrap();
    let (java, name) = (bed.thread().with(&format!("{java_client}@spin")), "silent");
    let (ours, ours_too) =
        (run(Client::connect(&server.url())).unwrap(), run(Client::connect(&server.url())).unwrap());
    let (lock, other) = (ours.spin_lock(name), ours_too.spin_lock(name));
    let silent = |at: &str| {
        let channels = server.subscriber_channels().unwrap();
        assert!(channels.is_empty(), "{at}: a client listens to {channels:?}");
    };
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut ear = connection.as_pubsub();
    ear.psubscribe("*").unwrap();
    server.reset_command_counts().unwrap();
    // Waiting for Java, for another of our processes, and for a task of the same one; being entered again, lost and forced.
    java.lock(name);
    let waiting = Ours::Spin(lock.clone()).waits();
    let waiting_too = Ours::Spin(other.clone()).waits();
    for _ in 0..10 {
        std::thread::sleep(ms(25));
        silent("while we wait");
    }
    java.unlock(name);
    let guard = run(async {
        tokio::select! {
            guard = waiting => {
                guard.unwrap().unwrap().unlock().await.unwrap();
                None
            }
            guard = waiting_too => guard.unwrap(),
        }
    });
    silent("after a grant");
    drop(guard);
    let guard = run(lock.lock_for(LIMIT)).unwrap().expect("released by everybody");
    let inner = run(guard.reenter()).unwrap();
    run(inner.unlock()).unwrap();
    let javas = java.wait_for(name, 10_000, -1);
    let next = Ours::Spin(lock.clone()).waits();
    assert!(javas.is_still_waiting_after(BLOCKED));
    silent("while both wait");
    run(guard.unlock()).unwrap();
    // The second one waits for the first, in either order.
    let mut javas = Some(javas);
    let mut next = Some(next);
    while javas.is_some() || next.is_some() {
        if let Some(waiting) = javas.take_if(|waiting| !waiting.is_still_waiting_after(ms(10))) {
            drop(waiting);
            java.unlock(name);
        }
        if let Some(waiting) = next.take_if(|waiting| waiting.is_finished()) {
            run(run(waiting).unwrap().expect("its turn").unlock()).unwrap();
        }
    }
    let lost = run(lock.lock()).unwrap();
    assert!(run(other.force_unlock()).unwrap());
    assert!(matches!(run(lost.unlock()).unwrap(), Unlocked::AlreadyLost(_)));
    drop(run(lock.lock()).unwrap());
    let lease = run(other.lock_for(LIMIT)).unwrap().expect("dropped");
    run(lease.unlock()).unwrap();
    silent("at the end");
    for command in ["publish", "spublish", "subscribe", "ssubscribe"] {
        assert_eq!(server.command_count(command).unwrap(), 0, "{command}");
    }
    server.cmd(&["PUBLISH", "end", ""]).unwrap();
    let heard = ear.get_message().unwrap();
    assert_eq!(heard.get_channel_name(), "end", "a message: {heard:?}");
    java.thread.call(&format!("{java_client}@shutdown"), &[]).unwrap();
}

/// How often the server was asked while a waiter waited for a held lock, and for how long it waited.
fn looks(server: &RedisServer, wait: impl FnOnce() -> bool) -> (u64, Duration) {
    server.reset_command_counts().unwrap();
    let begin = Instant::now();
    assert!(!wait(), "it is held all the time");
    let took = begin.elapsed();
    let count = |command| server.command_count(command).unwrap();
    (count("evalsha") + count("eval"), took)
}

pub(crate) fn looks_are_as_rare_as_the_backoff_says(version: RedissonVersion) {
    let (bed, server) = (Bed::alone(version), RedisServer::start().unwrap());
    let java_client = bed.name("looks");
    bed.java.connect(&Connection::single(&server.url()).named(&java_client)).unwrap();
    let holder = bed.thread().with(&format!("{java_client}@lock"));
    // A lease that nobody renews while the looks are counted.
    holder.lock_lease("held", 600_000);
    // Every script that runs on the server counts, so no client tells that it waits.
    let ours = Client::builder().url(server.url()).presence(Presence::untold());
    let ours = run(ours.connect()).unwrap();
    let waiter = bed.thread();
    let wait_ms = u64::try_from(WAIT.as_millis()).unwrap();
    let lazy = Backoff::exponential(ms(100), ms(400), 2).unwrap();
    // 1, 2, 4, … 64 and then 128 ms each make 14 looks in a second and one at its end; 64 ms each make 17; 100, 200, 400, 400
    // make 5. The random part makes fewer, and so does a busy machine, but nothing makes more.
    for (kind, lock, most, javas) in [
        ("spin", ours.spin_lock("held"), 16, Some("spin")),
        (
            "constant",
            ours.spin_lock("held").backoff(Backoff::constant(CONSTANT).unwrap()),
            18,
            Some("spinconstant"),
        ),
        ("lazy", ours.spin_lock("held").backoff(lazy), 6, None),
    ] {
        // The first call of a connection loads the script.
        assert!(run(lock.try_lock()).unwrap().is_none());
        let (asked, took) = looks(&server, || run(lock.lock_for(WAIT)).unwrap().is_some());
        assert!((WAIT - ms(5)..WAIT * 2).contains(&took), "{kind}: waited {took:?}");
        assert!((most / 3..=most).contains(&asked), "{kind}: {asked} looks in {took:?}");
        let Some(javas) = javas else { continue };
        let waiter = waiter.with(&format!("{java_client}@{javas}"));
        let (theirs, _) =
            looks(&server, || waiter.wait_for("held", wait_ms, -1).wait(LIMIT).unwrap().as_bool().unwrap());
        println!("{version:?} {kind}: {asked} looks of ours, {theirs} of Java");
    }
    java_shutdown(&bed, &java_client);
}

fn java_shutdown(bed: &Bed, client: &str) {
    bed.thread().thread.call(&format!("{client}@shutdown"), &[]).unwrap();
}

pub(crate) fn a_spin_lock_leaves_what_javas_leaves(version: RedissonVersion) {
    let (bed, server) = (Bed::of(version), RedisServer::start().unwrap());
    for name in ["stock", "{shop}:stock", "a{b}c"] {
        let java = java_trace_of(&bed, &server, "spin", name);
        assert!(java.messages.is_empty(), "{:?}", java.messages);
        let client = run(Client::connect(&server.url())).unwrap();
        let (lock, other) = (client.spin_lock(name), client.owner());
        let guards = RefCell::new(Vec::<Guard>::new());
        let pop = || drop(run(guards.borrow_mut().pop().unwrap().unlock()).unwrap());
        let steps: Vec<Step<'_>> = vec![
            Box::new(|| guards.borrow_mut().push(run(lock.lock()).unwrap())),
            Box::new(|| {
                let inner = run(guards.borrow()[0].reenter()).unwrap();
                guards.borrow_mut().push(inner);
            }),
            Box::new(|| assert!(run(lock.try_lock()).unwrap().is_none())),
            Box::new(|| assert!(run(lock.release(&other)).is_err())),
            Box::new(pop),
            Box::new(pop),
            Box::new(|| guards.borrow_mut().push(run(lock.lock_with_lease(ms(7_000))).unwrap())),
            Box::new(|| assert!(run(lock.force_unlock()).unwrap())),
            Box::new(pop),
        ];
        let found = differences(&java, &trace(&server, steps));
        assert!(found.is_empty(), "{name:?}: Java against ours:\n  {}", found.join("\n  "));
        run(client.shutdown(ms(2_000)));
    }
}
