//! Every error a server can answer with, at every operation: a typed error in time, and nothing that hangs or panics.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use redlatch::{Client, ErrorKind, scripts};
use redlatch_testkit::{
    fake_server::{FakeReply, FakeServer},
    proxy::Proxy,
    resp,
    server::RedisServer,
};

use crate::fixture::{LATE, awake, ms, quiet, soon};

/// What the server answers to a script, by script name.
type Answers = Arc<Mutex<HashMap<&'static str, FakeReply>>>;

/// A server that grants, renews and releases everything, except where it is told to fail.
fn server(answers: &Answers) -> FakeServer {
    let answers = answers.clone();
    FakeServer::start(move |request| {
        let verb = request[0].to_ascii_uppercase();
        if verb != b"EVALSHA" && verb != b"EVAL" {
            return FakeReply::Default;
        }
        let script = scripts::ALL.iter().find(|script| {
            request[1] == script.sha1().as_bytes() || request[1] == script.source().as_bytes()
        });
        let name = script.expect("a script of ours").name();
        if let Some(answer) = answers.lock().unwrap().get(name) {
            return answer.clone();
        }
        let keys: usize = std::str::from_utf8(&request[2]).unwrap().parse().unwrap();
        let number: i64 = std::str::from_utf8(&request[3 + keys]).unwrap().parse().unwrap_or(0);
        let items: Vec<i64> = match name {
            "renew" | "write_renew" | "permit_renew" => {
                std::iter::once(number).chain(std::iter::repeat_n(1, keys)).collect()
            }
            "read_renew" => std::iter::once(number).chain(std::iter::repeat_n(1, keys / 2)).collect(),
            "enter" | "read_enter" | "write_enter" => vec![number, 2, 0],
            _ => vec![number, 1, 0],
        };
        FakeReply::Reply(resp::array(&items.into_iter().map(resp::integer).collect::<Vec<_>>()))
    })
    .unwrap()
}

fn classes() -> Vec<(&'static str, ErrorKind)> {
    use ErrorKind::*;
    vec![
        ("NOPERM User x has no permissions to run the 'evalsha' command", Permission),
        (
            "ERR The user executing the script can't run this command or subcommand script: abc, on @user_script:1.",
            Permission,
        ),
        ("ERR ACL failure in script: User x has no permissions to access the 'k' key", Permission),
        (
            "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: The user executing the script can't run this command or subcommand",
            Permission,
        ),
        (
            "ERR Error running script (call to f_1): @user_script:1: WRONGTYPE Operation against a key holding the wrong kind of value",
            WrongType,
        ),
        (
            "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -NOREPLICAS Not enough good replicas to write.",
            ServerBusy,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", OutOfMemory),
        ("READONLY You can't write against a read only replica.", ReadOnly),
        ("NOREPLICAS Not enough good replicas to write.", ServerBusy),
        ("MISCONF Redis is configured to save RDB snapshots", ServerBusy),
        ("LOADING Redis is loading the dataset in memory", ServerBusy),
        ("RECOVERING the local engine found its journal damaged", ServerBusy),
        ("BUSY Redis is busy running a script.", ServerBusy),
        ("TRYAGAIN Multiple keys request during rehashing of slot", ServerBusy),
        ("ASK 3999 127.0.0.1:1", InvalidUrl),
        ("MOVED 3999 127.0.0.1:1", InvalidUrl),
        ("CLUSTERDOWN The cluster is down", ServerBusy),
        (
            "ERR Script attempted to execute a write command while the cluster is down and readonly script: f, on @user_script:1.",
            ServerBusy,
        ),
        ("MASTERDOWN Link with MASTER is down", ServerBusy),
        ("UNKILLABLE Sorry the script already executed write commands", ServerBusy),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", WrongType),
        ("NOAUTH Authentication required.", Auth),
        ("WRONGPASS invalid username-password pair or user is disabled.", Auth),
        ("NOPROTO unsupported protocol version", Server),
        ("CROSSSLOT Keys in request don't hash to the same slot", Server),
        ("EXECABORT Transaction discarded because of previous errors.", Server),
        ("NOSCRIPT No matching script. Please use EVAL.", Server),
        ("ERR max number of clients reached", ServerBusy),
        ("ERR unknown command 'evalsha'", Server),
        ("ERR something nobody has seen before", Server),
    ]
}

/// What servers say that want every key of a script declared; read-write locks then declare theirs (`strict_keys.rs`).
fn strict() -> Vec<(&'static str, ErrorKind)> {
    STRICT.into_iter().map(|text| (text, ErrorKind::UndeclaredKey)).collect()
}

/// Dragonfly's words, and those of proxies that read a script before they pass it on.
pub(crate) const STRICT: [&str; 3] = [
    "ERR script tried accessing undeclared key 'x'",
    "ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array",
    "ERR 'EVAL' command error: all keys should be passed using the KEYS array",
];

/// What fails is waited for until it is over, and the machine may pause while something is held.
const LEASE: Duration = ms(3_000);

/// A wait that ends in vain, and is long enough for a busy machine to answer in it.
const SHORT: Duration = ms(400);

/// `patience`: how long an answer may take. It is short where there is none, and long where there is one on a busy machine.
async fn client(server: &FakeServer, patience: Duration) -> Client {
    quiet()
        .url(server.url())
        .watchdog_lease(LEASE)
        .response_timeout(patience)
        .outage_tolerance(ms(100))
        .connect()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_error_class_is_typed_at_every_operation() {
    // Most of the time goes by waiting for deadlines, so the classes wait side by side.
    let cases = classes().into_iter().chain(strict());
    let cases = cases.map(|(text, kind)| tokio::spawn(each_operation(text, kind)));
    for case in futures_util::future::join_all(cases).await {
        case.unwrap();
    }
}

/// How a hold ends whose renewals are refused. Something else at its key is a loss at once.
fn loss_of(refused: ErrorKind) -> redlatch::LossReason {
    match refused {
        ErrorKind::WrongType => redlatch::LossReason::Deleted,
        _ => redlatch::LossReason::Expired,
    }
}

async fn each_operation(text: &'static str, kind: ErrorKind) {
    let answers = Answers::default();
    let server = server(&answers);
    let client = client(&server, ms(2_000)).await;
    let set = |script: &'static str| {
        answers.lock().unwrap().clear();
        answers.lock().unwrap().insert(script, FakeReply::Error(text.to_owned()));
    };
    let lock = client.lock("x");
    set("acquire");
    let error = soon("an answer", lock.try_lock()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), kind, "try_lock with {text}: {error}");
    assert!(error.to_string().contains("\"x\""), "the lock is named: {error}");
    let start = Instant::now();
    let error = soon("an answer", lock.lock_for(SHORT)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), kind, "lock_for with {text}: {error}");
    assert!(awake(start) < SHORT + LATE, "{text}: {:?}", start.elapsed());
    set("release");
    let guard = lock.try_lock().await.unwrap().unwrap();
    let outcome = soon("an answer", guard.unlock()).await;
    assert!(outcome.is_err(), "unlock with {text}: {outcome:?}");
    set("renew");
    let guard = lock.try_lock().await.unwrap().unwrap();
    let start = Instant::now();
    assert_eq!(soon("the deadline", guard.lost()).await, loss_of(kind), "renewal with {text}");
    assert!(awake(start) <= LEASE + LATE, "{text}: {:?}", start.elapsed());
    set("enter");
    let guard = lock.try_lock().await.unwrap().unwrap();
    let outcome = soon("an answer", guard.reenter()).await.map(|_| ());
    assert!(outcome.is_err(), "reenter with {text}");
    answers.lock().unwrap().clear();
    guard.unlock().await.unwrap();
    fair_lock(&client, &set, text, kind).await;
    answers.lock().unwrap().clear();
    set("rate_take");
    let error = soon("an answer", client.rate_limiter("x").try_acquire(1)).await.unwrap_err();
    assert_eq!(error.kind(), kind, "a rate limiter with {text}: {error}");
    set("show");
    assert_eq!(client.inspect("x").await.unwrap_err().kind(), kind, "inspect with {text}");
    let permits = client.permit_semaphore("x");
    set("permit_take");
    let error = soon("an answer", permits.try_acquire()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), kind, "try_acquire with {text}: {error}");
    assert!(error.to_string().contains("\"x\""), "the semaphore is named: {error}");
    set("permit_give");
    let guard = permits.try_acquire().await.unwrap().unwrap();
    let id = guard.id().to_owned();
    // One that no guard here has: what a guard has it gives back itself.
    let error = permits.release("00112233445566778899aabbccddeeff").await.unwrap_err();
    assert_eq!(error.kind(), kind, "release by id with {text}: {error}");
    let outcome = soon("an answer", guard.release()).await;
    assert!(outcome.is_err(), "release with {text}: {outcome:?}");
    set("permit_renew");
    let guard = permits.try_acquire().await.unwrap().unwrap();
    let error = permits.update_lease(&id, ms(1_000)).await.unwrap_err();
    assert_eq!(error.kind(), kind, "update_lease with {text}: {error}");
    let lost = soon("the deadline", guard.lost()).await;
    assert_eq!(lost, loss_of(kind), "renewal of permits with {text}");
    set("permit_look");
    assert_eq!(permits.available().await.unwrap_err().kind(), kind, "available with {text}");
    assert_eq!(permits.lease_of(&id).await.unwrap_err().kind(), kind, "lease_of with {text}");
    set("permit_set");
    assert_eq!(permits.add(1).await.unwrap_err().kind(), kind, "add with {text}");
    set("permit_end");
    assert_eq!(permits.delete().await.unwrap_err().kind(), kind, "delete with {text}");
    // The waiter may run before the keeper has forgotten the hold that it lost.
    soon("quiet", async {
        while client.stats().names > 0 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

async fn fair_lock(client: &Client, set: &impl Fn(&'static str), text: &str, kind: ErrorKind) {
    let lock = client.fair_lock("x");
    set("fair_acquire");
    let error = soon("an answer", lock.try_lock()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), kind, "a fair try_lock with {text}: {error}");
    let start = Instant::now();
    let error = soon("an answer", lock.lock_for(SHORT)).await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), kind, "a fair lock_for with {text}: {error}");
    assert!(awake(start) < SHORT + ms(400), "{text}: {:?}", start.elapsed());
    set("fair_release");
    let guard = lock.try_lock().await.unwrap().unwrap();
    let outcome = soon("an answer", guard.unlock()).await;
    assert!(outcome.is_err(), "a fair unlock with {text}: {outcome:?}");
    set("fair_release_one");
    let guard = lock.try_lock().await.unwrap().unwrap();
    let inner = guard.reenter().await.unwrap();
    let outcome = soon("an answer", inner.unlock()).await;
    assert!(outcome.is_err(), "a partial fair unlock with {text}: {outcome:?}");
    set("fair_force");
    // Whether the inner hold is still there is unknown, and what this server says of it is not to be relied on.
    let _ = soon("an answer", guard.unlock()).await;
    let error = soon("an answer", lock.force_unlock()).await.unwrap_err();
    assert_eq!(error.kind(), kind, "a forced fair unlock with {text}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_error_class_is_typed_at_every_operation_of_a_read_write_lock() {
    let cases = classes().into_iter().map(|(text, kind)| tokio::spawn(each_read_write_operation(text, kind)));
    for case in futures_util::future::join_all(cases).await {
        case.unwrap();
    }
}

async fn each_read_write_operation(text: &'static str, kind: ErrorKind) {
    let answers = Answers::default();
    let server = server(&answers);
    let client = client(&server, ms(300)).await;
    let set = |script: &'static str| {
        answers.lock().unwrap().clear();
        answers.lock().unwrap().insert(script, FakeReply::Error(text.to_owned()));
    };
    let lock = client.read_write_lock("x");
    set("read_acquire");
    let error = soon("an answer", lock.read().try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), kind, "read with {text}: {error}");
    assert!(error.to_string().contains("\"x\""), "the lock is named: {error}");
    set("write_acquire");
    let error = soon("an answer", lock.write().try_lock()).await.unwrap_err();
    assert_eq!(error.kind(), kind, "write with {text}: {error}");
    set("rw_query");
    assert_eq!(lock.read().is_locked().await.unwrap_err().kind(), kind, "{text}");
    set("rw_force");
    assert_eq!(lock.write().force_unlock().await.unwrap_err().kind(), kind, "{text}");
    set("read_release");
    let guard = lock.read().try_lock().await.unwrap().unwrap();
    assert!(soon("an answer", guard.unlock()).await.is_err(), "read unlock with {text}");
    set("write_release");
    let guard = lock.write().try_lock().await.unwrap().unwrap();
    assert!(soon("an answer", guard.unlock()).await.is_err(), "write unlock with {text}");
    set("read_acquire");
    let guard = lock.write().try_lock().await.unwrap().unwrap();
    let start = Instant::now();
    let error = soon("an answer", guard.downgrade()).await.unwrap_err();
    assert_eq!(error.kind(), kind, "downgrade with {text}: {error}");
    assert!(awake(start) < LEASE + ms(700), "{text}: {:?}", start.elapsed());
    set("read_enter");
    let guard = lock.read().try_lock().await.unwrap().unwrap();
    assert!(soon("an answer", guard.reenter()).await.is_err(), "read again with {text}");
    guard.unlock().await.unwrap();
    set("read_renew");
    let guard = lock.read().try_lock().await.unwrap().unwrap();
    assert_eq!(soon("the deadline", guard.lost()).await, loss_of(kind), "{text}");
    set("write_renew");
    let guard = lock.write().try_lock().await.unwrap().unwrap();
    assert_eq!(soon("the deadline", guard.lost()).await, loss_of(kind), "{text}");
    soon("quiet", async {
        while client.stats().names > 0 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_garbled_and_missing_answers_are_survived() {
    let garbage: Vec<(&str, FakeReply)> = vec![
        ("truncated", FakeReply::Truncated(b"*3\r\n:1\r\n:".to_vec())),
        ("garbage", FakeReply::Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())),
        ("closed", FakeReply::Close),
        ("silence", FakeReply::Silence),
        ("nil", FakeReply::Reply(b"$-1\r\n".to_vec())),
        ("a bare number", FakeReply::Reply(b":7\r\n".to_vec())),
        ("a foreign number", FakeReply::Reply(b"*3\r\n:999999\r\n:1\r\n:0\r\n".to_vec())),
        ("too few items", FakeReply::Reply(b"*1\r\n:1\r\n".to_vec())),
        ("text", FakeReply::Reply(b"*2\r\n$1\r\nx\r\n$1\r\ny\r\n".to_vec())),
        ("an empty list", FakeReply::Reply(b"*0\r\n".to_vec())),
        ("a huge list", FakeReply::Raw(b"*999999999\r\n".to_vec())),
        ("a nested list", FakeReply::Reply(b"*2\r\n*1\r\n:1\r\n:1\r\n".to_vec())),
    ];
    let cases = garbage.into_iter().map(|(what, answer)| tokio::spawn(each_garbled_answer(what, answer)));
    for case in futures_util::future::join_all(cases).await {
        case.unwrap();
    }
}

async fn each_garbled_answer(what: &'static str, answer: FakeReply) {
    let answers = Answers::default();
    let server = server(&answers);
    let client = client(&server, ms(300)).await;
    let lock = client.lock("x");
    let permits = client.permit_semaphore("x");
    let (rates, leased) = (["rate_take", "rate_show"], ["permit_take", "permit_look", "permit_give"]);
    for script in ["acquire", "show", "query", "force", "list", "fair_acquire", "fair_force"]
        .into_iter()
        .chain(rates)
        .chain(leased)
    {
        answers.lock().unwrap().insert(script, answer.clone());
    }
    assert!(soon(&format!("{what}: lock.try_lock()"), lock.try_lock()).await.is_err(), "{what}");
    let start = Instant::now();
    assert!(
        soon(&format!("{what}: lock.lock_for(ms(100))"), lock.lock_for(ms(100))).await.is_err(),
        "{what}"
    );
    assert!(awake(start) < ms(100) + LATE, "{what}: {:?}", start.elapsed());
    assert!(soon(&format!("{what}: client.inspect(x)"), client.inspect("x")).await.is_err(), "{what}");
    assert!(soon(&format!("{what}: lock.is_locked()"), lock.is_locked()).await.is_err(), "{what}");
    assert!(soon(&format!("{what}: lock.force_unlock()"), lock.force_unlock()).await.is_err(), "{what}");
    assert!(soon(&format!("{what}: client.list(None, 10)"), client.list(None, 10)).await.is_err(), "{what}");
    let fair = client.fair_lock("x");
    assert!(soon(&format!("{what}: fair.try_lock()"), fair.try_lock()).await.is_err(), "{what}");
    assert!(soon(&format!("{what}: fair.lock_for()"), fair.lock_for(ms(100))).await.is_err(), "{what}");
    assert!(soon(&format!("{what}: fair.force_unlock()"), fair.force_unlock()).await.is_err(), "{what}");
    let limiter = client.rate_limiter("x");
    assert!(soon(&format!("{what}: limiter"), limiter.try_acquire(1)).await.is_err(), "{what}");
    assert!(soon(&format!("{what}: limiter"), limiter.available()).await.is_err(), "{what}");
    assert!(soon(&format!("{what}: try_acquire()"), permits.try_acquire()).await.is_err(), "{what}");
    assert!(soon(&format!("{what}: available()"), permits.available()).await.is_err(), "{what}");
    let id = "00112233445566778899aabbccddeeff";
    assert!(soon(&format!("{what}: release(id)"), permits.release(id)).await.is_err(), "{what}");
    answers.lock().unwrap().clear();
    let guard = soon(&format!("{what}: service after the fault"), lock.lock()).await.unwrap();
    answers.lock().unwrap().insert("renew", answer.clone());
    assert_eq!(
        soon(&format!("{what}: guard.lost()"), guard.lost()).await,
        redlatch::LossReason::Expired,
        "{what}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_up_on_every_greeting_is_unreachable() {
    let server = FakeServer::start(|_| FakeReply::Close).unwrap();
    let start = Instant::now();
    let error = quiet().url(server.url()).connect().await.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(awake(start) < LATE, "{:?}", start.elapsed());
}

/// Answers come in order, so callers that give up say nothing about a server; those who wait on must not wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_give_up_do_not_hide_a_server_that_is_silent() {
    let answers = Answers::default();
    let server = server(&answers);
    let client = client(&server, ms(300)).await;
    for script in ["acquire", "show"] {
        answers.lock().unwrap().insert(script, FakeReply::Silence);
    }
    let lock = client.lock("x");
    let waiter = tokio::spawn(async move { lock.try_lock().await.map(|guard| guard.is_some()) });
    let other = client.clone();
    let hasty = tokio::spawn(async move {
        loop {
            let _ = tokio::time::timeout(ms(20), other.inspect("y")).await;
        }
    });
    let outcome = soon("the end of the wait", waiter).await.unwrap();
    hasty.abort();
    assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::Unreachable | ErrorKind::Timeout));
}

/// A wait without time is a look, and a look may take as long as an answer may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_of_no_time_gets_a_slow_answer() {
    let slow = RedisServer::start().unwrap();
    let proxy = Proxy::start(&slow.url()).unwrap();
    let client = quiet().url(proxy.url()).connect().await.unwrap();
    proxy.latency(ms(150), ms(150), 1);
    for limit in [Duration::ZERO, Duration::from_micros(900)] {
        let free = client.lock("x").lock_for(limit).await.unwrap().expect("it is free");
        assert!(client.fair_lock("y").lock_for(limit).await.unwrap().is_some());
        let other = quiet().url(slow.url()).connect().await.unwrap();
        let held = other.fair_lock("z").lock().await.unwrap();
        assert!(client.fair_lock("z").lock_for(limit).await.unwrap().is_none());
        held.unlock().await.unwrap();
        let semaphore = client.semaphore("s");
        semaphore.set_if_absent(1, None).await.unwrap();
        assert!(semaphore.acquire_for(1, limit).await.unwrap());
        assert!(!semaphore.acquire_for(1, limit).await.unwrap());
        semaphore.release(1).await.unwrap();
        let latch = client.count_down_latch("l");
        assert!(latch.wait_for(limit).await.unwrap());
        free.unlock().await.unwrap();
    }
}

/// The look at the end of a wait may get no answer in time. What is known then is that the lock was busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_busy_all_the_time_is_busy() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = quiet().url(proxy.url()).connect().await.unwrap();
    let other = quiet().url(server.url()).connect().await.unwrap();
    let held = other.lock("x").lock().await.unwrap();
    let lock = client.lock("x");
    let looks = || server.command_count("evalsha").unwrap() + server.command_count("eval").unwrap();
    let before = looks();
    // Shorter than the shortest poll interval, so that the third look is the one when time is up.
    let waiter = tokio::spawn(async move { lock.lock_for(ms(380)).await.map(|guard| guard.is_some()) });
    soon("a look after the subscription", async {
        while looks() < before + 2 {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    // Its answer passes the proxy.
    tokio::time::sleep(ms(50)).await;
    proxy.latency(ms(400), ms(400), 1);
    let waited = soon("the end of the wait", waiter).await.unwrap();
    assert!(!waited.unwrap(), "busy, and no trouble");
    held.unlock().await.unwrap();
}

/// What `try_lock` promises: a server that refuses the connection is reported at once. The response timeout is longer here than any test
/// may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_is_reported_by_a_try_at_once() {
    let server = RedisServer::start().unwrap();
    let timeout = Duration::from_secs(600);
    let client = quiet().url(server.url()).response_timeout(timeout).connect_lazy().unwrap();
    server.kill9();
    for _ in 0..3 {
        let error = soon("the refusal", client.lock("x").try_lock()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
}

/// The first request after the death of a server may still be sent. Whether it has run is not known, so it is asked again for the
/// response timeout, and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_try_after_the_death_of_a_server_ends_with_the_response_timeout() {
    let server = RedisServer::start().unwrap();
    for _ in 0..5 {
        let client = quiet().url(server.url()).response_timeout(ms(200)).connect().await.unwrap();
        client.lock("x").try_lock().await.unwrap().expect("it is free").unlock().await.unwrap();
        server.kill9();
        let error = soon("the refusal", client.lock("x").try_lock()).await.map(drop).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Timeout), "{error}");
        server.restart().unwrap();
    }
}
