//! The driver of the real Redisson does what the interop tests rely on, with both releases.

use redlatch_testkit::redisson::{
    Connection, JavaErrorKind, PendingReply, Redisson, RedissonVersion, Reply, member,
};
use redlatch_testkit::server::RedisServer;
use std::time::{Duration, Instant};

/// Far more than anything here takes, so that only a real hang reaches it.
const LIMIT: Duration = Duration::from_secs(40);

/// How long a thread must stay silent to count as blocked.
const BLOCKED: Duration = Duration::from_millis(300);

/// The watchdog lease of clients whose holds are meant to end while the test looks on: renewed every 1.5 s, with 3 s left when
/// that is due, so that a machine that stands still for two seconds loses no hold.
const WATCHDOG: Duration = Duration::from_millis(4500);

fn server() -> RedisServer {
    RedisServer::start().expect("a redis-server")
}

fn client(version: RedissonVersion, server: &RedisServer) -> Redisson {
    let client = Redisson::start(version, &server.url(), Some(WATCHDOG)).expect("a Redisson client");
    println!("{version:?} started and connected in {:?}", client.start_took());
    client
}

fn woken(waiting: &PendingReply) -> Reply {
    waiting.wait(LIMIT).expect("the waiter gets the lock")
}

fn unlock_wakes_the_other_process(version: RedissonVersion) {
    let server = server();
    let (one, two) = (client(version, &server), client(version, &server));
    assert_ne!(one.client_id().unwrap(), two.client_id().unwrap());
    let (holder, waiter) = (one.thread(1), two.thread(1));

    holder.call("lock.lock", &["stock"]).unwrap();
    let field = format!("{}:{}", one.client_id().unwrap(), holder.java_thread_id().unwrap());
    let count = redis_value(&server, &["HGET", "stock", &field]);
    assert_eq!(count, "1", "the hold of {field}");
    assert!(!waiter.call("lock.tryLock", &["stock"]).unwrap().as_bool().unwrap());

    let waiting = waiter.send("lock.lock", &["stock"]).unwrap();
    assert!(waiting.is_still_waiting_after(BLOCKED));
    let released = holder.call("lock.unlock", &["stock"]).unwrap();
    let taken = woken(&waiting);
    let latency = taken.awake_after(released.finished_at());
    println!("{version:?} woken {latency:?} after the unlock returned");
    // Without the message the waiter would sleep for the rest of the lease.
    assert!(latency < WATCHDOG / 2, "woken only after {latency:?}");
    assert!(taken.elapsed() >= BLOCKED, "elapsed counts from the start of the command");
    assert!(waiter.call("lock.isHeldByMe", &["stock"]).unwrap().as_bool().unwrap());
    assert_eq!(holder.call("lock.holdCount", &["stock"]).unwrap().as_i64().unwrap(), 0);

    let refused = holder.call("lock.unlock", &["stock"]).unwrap_err();
    assert_eq!(refused.exception(), Some("IllegalMonitorStateException"), "{refused}");
}

fn force_unlock_wakes_and_takes_the_hold_away(version: RedissonVersion) {
    let server = server();
    let client = client(version, &server);
    let (holder, waiter, other) = (client.thread(1), client.thread(2), client.thread(3));
    holder.call("lock.lock", &["stock"]).unwrap();
    let waiting = waiter.send("lock.tryLockWait", &["stock", "15000", "-1"]).unwrap();
    assert!(waiting.is_still_waiting_after(BLOCKED));
    assert!(other.call("lock.forceUnlock", &["stock"]).unwrap().as_bool().unwrap());
    assert!(woken(&waiting).as_bool().unwrap());
    let refused = holder.call("lock.unlock", &["stock"]).unwrap_err();
    assert_eq!(refused.exception(), Some("IllegalMonitorStateException"), "{refused}");
}

fn a_killed_holder_loses_the_lock_when_its_lease_ends(version: RedissonVersion) {
    let server = server();
    let (one, two) = (client(version, &server), client(version, &server));
    let (holder, waiter) = (one.thread(1), two.thread(1));
    holder.call("lock.lock", &["stock"]).unwrap();

    // Longer than a lease: only renewals keep the key for so long.
    let waiting = waiter.send("lock.lock", &["stock"]).unwrap();
    assert!(waiting.is_still_waiting_after(WATCHDOG + Duration::from_millis(1500)));

    let blocked = one.thread(2).send("lock.lock", &["stock"]).unwrap();
    assert!(blocked.is_still_waiting_after(BLOCKED));
    let killed_at = Instant::now();
    one.kill9();
    assert_eq!(blocked.wait(LIMIT).unwrap_err().kind(), JavaErrorKind::Gone);
    assert_eq!(holder.call("ping", &[]).unwrap_err().kind(), JavaErrorKind::Gone);
    woken(&waiting);
    println!("{version:?} lock of the dead taken over after {:?}", killed_at.elapsed());
}

fn a_paused_holder_stops_renewing_and_learns_of_its_loss(version: RedissonVersion) {
    let server = server();
    let (one, two) = (client(version, &server), client(version, &server));
    let (holder, waiter) = (one.thread(1), two.thread(1));
    holder.call("lock.lock", &["stock"]).unwrap();
    let waiting = waiter.send("lock.lock", &["stock"]).unwrap();
    assert!(waiting.is_still_waiting_after(BLOCKED));

    one.pause().unwrap();
    let silent = one.thread(2).send("ping", &[]).unwrap();
    woken(&waiting);
    assert!(silent.is_still_waiting_after(Duration::ZERO), "a stopped process answers");
    one.resume().unwrap();
    assert_eq!(silent.wait(LIMIT).unwrap().text(), "pong");
    let refused = holder.call("lock.unlock", &["stock"]).unwrap_err();
    assert_eq!(refused.exception(), Some("IllegalMonitorStateException"), "{refused}");
    assert!(waiter.call("lock.isHeldByMe", &["stock"]).unwrap().as_bool().unwrap());
}

fn an_interrupt_ends_an_interruptible_wait(version: RedissonVersion) {
    let server = server();
    let client = client(version, &server);
    let (holder, waiter) = (client.thread(1), client.thread(2));
    holder.call("lock.lock", &["stock"]).unwrap();
    assert!(!client.interrupt(&holder).unwrap(), "an idle thread has nothing to interrupt");

    let waiting = waiter.send("lock.lockInterruptibly", &["stock"]).unwrap();
    assert!(waiting.is_still_waiting_after(BLOCKED));
    assert!(client.interrupt(&waiter).unwrap());
    let error = waiting.wait(LIMIT).unwrap_err();
    // Where the interrupt meets the thread while it still subscribes, another one is around it.
    assert!(error.to_string().contains("InterruptedException"), "{error}");
    assert!(!waiter.call("lock.tryLock", &["stock"]).unwrap().as_bool().unwrap(), "the thread goes on");
}

fn every_kind_answers(version: RedissonVersion) {
    let server = server();
    let client = client(version, &server);
    let (one, two) = (client.thread(1), client.thread(2));
    let newest = version == RedissonVersion::Newest;
    let release = one.call("version", &[]).unwrap();
    assert_eq!(release.text() == "3.15.1", !newest, "{}", release.text());

    for name in ["plain", "with space", "", "ä{x}=😀,%", "-", "line\nend"] {
        // An empty name makes an empty key, which Redis accepts.
        one.call("lock.lockLease", &[name, "60000"]).unwrap();
        let held = redis_number(&server, &["EXISTS", name]);
        assert_eq!(held, 1, "the key of {name:?}");
        one.call("lock.unlock", &[name]).unwrap();
    }

    let members = [member("lock", "a,b"), member("fair", "c=d")].join(",");
    let kinds = ["lock", "fair", "spin", "spinconstant", "read", "write", "multi"];
    let newer_kinds = ["fenced", "nonreentrant", "nonreentrantfair"];
    for kind in kinds.into_iter().chain(newer_kinds) {
        let name = if kind == "multi" { members.clone() } else { format!("of kind {kind}") };
        let lock = one.call(&format!("{kind}.lock"), &[&name]);
        if newer_kinds.contains(&kind) && !newest {
            assert_eq!(lock.unwrap_err().exception(), Some("UnsupportedOperationException"));
            continue;
        }
        lock.unwrap_or_else(|error| panic!("{kind}: {error}"));
        // The old multi-lock cannot be asked who holds it.
        let can_be_asked = newest || kind != "multi";
        let is_held = || one.call(&format!("{kind}.isHeldByMe"), &[&name]).unwrap().as_bool().unwrap();
        assert!(!can_be_asked || is_held(), "{kind}");
        let second = two.call(&format!("{kind}.tryLock"), &[&name]).unwrap().as_bool().unwrap();
        assert_eq!(second, kind == "read", "{kind}");
        if second {
            two.call(&format!("{kind}.unlock"), &[&name]).unwrap();
        }
        one.call(&format!("{kind}.unlock"), &[&name]).unwrap();
        assert!(!can_be_asked || !is_held(), "{kind}");
    }
    if newest {
        let token = one.call("fenced.lockAndGetToken", &["of kind fenced"]).unwrap().as_i64().unwrap();
        assert_eq!(one.call("fenced.getToken", &["of kind fenced"]).unwrap().as_i64().unwrap(), token);
    }

    assert!(one.call("sem.trySetPermits", &["s", "1"]).unwrap().as_bool().unwrap());
    one.call("sem.acquire", &["s"]).unwrap();
    let waiting = two.send("sem.acquire", &["s"]).unwrap();
    assert!(waiting.is_still_waiting_after(BLOCKED));
    one.call("sem.release", &["s"]).unwrap();
    assert!(woken(&waiting).is_nil());

    assert!(one.call("permit.trySetPermits", &["p", "2"]).unwrap().as_bool().unwrap());
    let id = one.call("permit.acquire", &["p", "60000"]).unwrap();
    assert_eq!(id.text().len(), 32, "the hexadecimal form of a permit id");
    if newest {
        let ids = one.call("permit.tryAcquireMany", &["p", "1", "0", "60000"]).unwrap();
        assert_eq!(ids.list().len(), 1);
        assert_eq!(one.call("permit.tryReleaseMany", &["p", ids.text()]).unwrap().as_i64().unwrap(), 1);
    }
    assert!(two.call("permit.tryRelease", &["p", id.text()]).unwrap().as_bool().unwrap());

    assert!(one.call("latch.trySetCount", &["l", "1"]).unwrap().as_bool().unwrap());
    let waiting = two.send("latch.await", &["l"]).unwrap();
    assert!(waiting.is_still_waiting_after(BLOCKED));
    one.call("latch.countDown", &["l"]).unwrap();
    woken(&waiting);

    assert!(one.call("rate.trySetRate", &["r", "overall", "1", "60000"]).unwrap().as_bool().unwrap());
    assert_eq!(one.call("rate.config", &["r"]).unwrap().list(), ["overall", "1", "60000"]);
    assert!(one.call("rate.tryAcquire", &["r"]).unwrap().as_bool().unwrap());
    assert!(!two.call("rate.tryAcquire", &["r"]).unwrap().as_bool().unwrap());
}

fn mistakes_are_errors(version: RedissonVersion) {
    let server = server();
    let client = client(version, &server);
    let thread = client.thread(1);
    for (verb, args) in [
        ("nonsense", &[][..]),
        ("lock.nonsense", &["x"][..]),
        ("nonsense.lock", &["x"][..]),
        ("lock.lock", &[][..]),
        ("lock.lock", &["x", "too many"][..]),
        ("lock.lockLease", &["x", "soon"][..]),
        ("other@lock.lock", &["x"][..]),
    ] {
        let error = thread.call(verb, args).unwrap_err();
        assert_eq!(error.kind(), JavaErrorKind::Exception, "{verb} {args:?}: {error}");
    }
    assert_eq!(redis_number(&server, &["EXISTS", "x"]), 0, "a refused command has no effect");

    let url = server.url();
    let again = client.connect(&Connection::single(&url)).unwrap_err();
    assert_eq!(again.exception(), Some("IllegalStateException"), "{again}");
    let other = client.connect(&Connection::single(&url).named("other")).unwrap();
    assert_ne!(other, client.client_id().unwrap());
    thread.call("other@lock.lockLease", &["x", "60000"]).unwrap();
    assert!(!thread.call("lock.tryLock", &["x"]).unwrap().as_bool().unwrap(), "the clients are two owners");

    client.shutdown_client().unwrap();
    assert_eq!(client.client_id().unwrap_err().exception(), Some("IllegalStateException"));
    let unhappy = Redisson::start(version, "redis://127.0.0.1:1", None).unwrap_err();
    assert_eq!(unhappy.kind(), JavaErrorKind::Exception, "{unhappy}");
    let secret = Connection::single("redis://:hunter2@127.0.0.1:1").option("password", "hunter3");
    assert!(!format!("{secret:?}").contains("hunter"));
}

fn redis_number(server: &RedisServer, command: &[&str]) -> i64 {
    match server.cmd(command).unwrap() {
        redis::Value::Int(number) => number,
        other => panic!("{command:?} answered {other:?}"),
    }
}

fn redis_value(server: &RedisServer, command: &[&str]) -> String {
    match server.cmd(command).unwrap() {
        redis::Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
        other => panic!("{command:?} answered {other:?}"),
    }
}

/// One module of tests per release, so that a failure names the release.
macro_rules! with_release {
    ($module:ident, $version:expr, $($test:ident),* $(,)?) => {
        mod $module {
            use redlatch_testkit::redisson::RedissonVersion;
            $(#[test] fn $test() { super::$test($version); })*
        }
    };
}

macro_rules! with_both_releases {
    ($($test:ident),* $(,)?) => {
        with_release!(redisson_3_15_1, RedissonVersion::Old3_15_1, $($test),*);
        with_release!(redisson_newest, RedissonVersion::Newest, $($test),*);
    };
}

with_both_releases!(
    unlock_wakes_the_other_process,
    force_unlock_wakes_and_takes_the_hold_away,
    a_killed_holder_loses_the_lock_when_its_lease_ends,
    a_paused_holder_stops_renewing_and_learns_of_its_loss,
    an_interrupt_ends_an_interruptible_wait,
    every_kind_answers,
    mistakes_are_errors,
);
