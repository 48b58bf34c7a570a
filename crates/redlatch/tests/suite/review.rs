//! Ways to two valid holders, to losses that nobody is told of and to untrue outcomes, as hostile readers of the code found them.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake},
    time::Duration,
};

use redlatch::{Client, Guard, MultiLock, WithError};
use redlatch_testkit::{
    proxy::{Action, Match, Proxy, Scope},
    server::RedisServer,
};

use crate::{
    fixture::{ms, soon},
    sentinel_fakes::{FakeSentinel, until, url},
};

const HOUR: Duration = Duration::from_secs(3_600);
const LEASE: Duration = ms(3_000);

fn ttl(server: &RedisServer, name: &str) -> i64 {
    let redis::Value::Int(left) = server.cmd(&["PTTL", name]).unwrap() else { panic!("a number") };
    left
}

/// Renewals, and looks at what is held.
fn renewal() -> Match {
    Match::script().arg_contains(redlatch::scripts::RENEW.sha1())
}

/// The server has the hold as it was granted, and has not heard of what was said since.
fn has_the_grant_alone(server: &RedisServer, guard: &Guard) {
    let field = format!("{:?}", guard.owner());
    let field = field.trim_start_matches("Owner(").trim_end_matches(')');
    let lease = LEASE.as_millis().to_string();
    server.cmd(&["HSET", guard.name().to_string().as_str(), field, "1"]).unwrap();
    server.cmd(&["PEXPIRE", guard.name().to_string().as_str(), &lease]).unwrap();
}

/// A renewal was under way when another master took over. It was asked for again as a renewal, which says no more than the lease, and the
/// master that had the grant alone was never told of the extension: it let the next holder in while the guard was valid for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_extension_said_is_told_to_a_new_master_though_a_renewal_was_under_way() {
    let (old, new) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let (to_old, to_new) = (Proxy::start(&old.url()).unwrap(), Proxy::start(&new.url()).unwrap());
    let sentinel = FakeSentinel::start(to_old.port());
    let client = Client::builder()
        .url(url(&[&sentinel]))
        .watchdog_lease(LEASE)
        .response_timeout(ms(60_000))
        .connect()
        .await
        .unwrap();
    let other = Client::connect(&new.url()).await.unwrap();
    let guard = client.lock("x").lock().await.unwrap();
    soon("the extension", guard.extend(HOUR)).await.unwrap();
    has_the_grant_alone(&new, &guard);
    // The old master freezes, and a renewal is on its way to it.
    let frozen = to_old.rule(renewal(), Action::DropRequest);
    // The first one may be a look.
    until("a renewal is under way", || to_old.fired(frozen) > 1).await;
    has_the_grant_alone(&new, &guard);
    sentinel.say(|says| (says.port, says.epoch) = (to_new.port(), 2));
    until("the new master is asked", || to_new.count("evalsha") + to_new.count("eval") > 0).await;
    // Whatever is told after a change of master has been told by then.
    tokio::time::sleep(LEASE).await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
    // The client is cut off, so nothing is renewed.
    let left = ttl(&new, "x");
    to_new.blackhole(Scope::Both);
    let second = soon("the second holder, or none", other.lock("x").lock_for(2 * LEASE)).await.unwrap();
    assert!(
        !(guard.is_valid() && second.is_some_and(|second| second.is_valid())),
        "two valid holders: the first one is valid for {:?}, and the server kept it for {left} ms",
        guard.remaining()
    );
}

/// The same at one server, which came back without its last second: the interruption found the renewal failing, and told nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_extension_said_is_told_after_an_interruption_though_a_renewal_failed() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder()
        .url(proxy.url())
        .watchdog_lease(LEASE)
        .response_timeout(ms(60_000))
        .connect()
        .await
        .unwrap();
    let guard = client.lock("x").lock().await.unwrap();
    soon("the extension", guard.extend(HOUR)).await.unwrap();
    let cut = proxy.rule(renewal().nth(2), Action::CloseBeforeRequest);
    has_the_grant_alone(&server, &guard);
    until("a renewal was cut off", || proxy.fired(cut) > 0).await;
    tokio::time::sleep(LEASE).await;
    assert!(guard.is_valid(), "{:?}", guard.loss());
    let left = ttl(&server, "x");
    assert!(
        left > 3_000_000,
        "the guard is valid for {:?}, the server keeps the hold for {left} ms",
        guard.remaining()
    );
}

/// A single lock tells that it turned out to be lost when it was released; a set said that all was well.
#[tokio::test]
async fn work_under_a_set_that_was_lost_is_told_so() {
    let name = format!("memory:with-{}", std::process::id());
    let (client, other) = (Client::connect(&name).await.unwrap(), Client::connect(&name).await.unwrap());
    let theirs = other.lock("a");
    let lose = async || {
        assert!(theirs.force_unlock().await.unwrap());
        std::mem::forget(theirs.try_lock().await.unwrap().expect("it is free"));
    };
    let single = client.lock("a").acquire().with(async |_| lose().await).await;
    assert!(matches!(single, Err(WithError::Lost(_))), "{single:?}");
    theirs.force_unlock().await.unwrap();
    let both = MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
    let set = both.acquire().with(async |_| lose().await).await;
    assert!(matches!(set, Err(WithError::Lost(_))), "{set:?}");
}

/// A task that is polled wherever it is woken.
struct Inline {
    work: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    woken: AtomicBool,
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        while let Ok(mut work) = self.work.try_lock() {
            if !self.woken.swap(false, Ordering::SeqCst) {
                return;
            }
            let waker = self.clone().into();
            let done = match work.as_mut() {
                Some(work) => work.as_mut().poll(&mut Context::from_waker(&waker)).is_ready(),
                None => return,
            };
            if done {
                *work = None;
            }
        }
    }
}

/// The message of a release was told under the mutex of the engine, and a waiter that was woken there asked the engine: nobody went on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_another_client_that_is_polled_where_it_is_woken_goes_on() {
    let name = format!("memory:inline-{}", std::process::id());
    let (client, other) = (Client::connect(&name).await.unwrap(), Client::connect(&name).await.unwrap());
    let guard = client.lock("x").lock().await.unwrap();
    let waits = other.lock("x");
    let inline = Arc::new(Inline {
        work: Mutex::new(Some(Box::pin(async move { drop(waits.lock().await.unwrap()) }))),
        woken: AtomicBool::new(false),
    });
    inline.clone().wake();
    tokio::time::sleep(ms(100)).await;
    // On a thread of its own, because it may never return.
    let (tell, told) = tokio::sync::oneshot::channel();
    let handle = tokio::runtime::Handle::current();
    std::thread::spawn(move || {
        let outcome = handle.block_on(guard.unlock());
        let _ = tell.send(outcome);
    });
    let outcome = tokio::time::timeout(ms(10_000), told).await;
    assert!(outcome.is_ok(), "the release never ends");
}

/// Looks at what is valid, and then whether a stranger gets the plain lock.
async fn alone(guard: &Guard, server: &RedisServer, after: &str) {
    let third = Client::connect(&server.url()).await.unwrap();
    let second = third.lock("x").try_lock().await.unwrap();
    assert!(!(guard.is_valid() && second.is_some()), "two valid holders after {after}");
    assert!(guard.is_valid(), "{after}: {:?}", guard.loss());
}

/// The hold of a plain lock and a read hold have the same field. What gives a read hold back removed the hold of the plain lock, and
/// said that the owner holds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_gives_a_read_hold_back_takes_no_plain_lock_of_its_owner() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("x").lock().await.unwrap();
    let readers = client.read_write_lock("x");
    let error = readers.read().acquire().owner(guard.owner()).await.unwrap_err();
    assert_eq!(error.kind(), redlatch::ErrorKind::WrongLockKind);
    let outcome = readers.read().release(guard.owner()).await;
    alone(&guard, &server, &format!("{outcome:?}")).await;
}

/// The same by an acquire whose answers did not come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_undoes_an_unanswered_acquire_of_a_read_hold_takes_no_plain_lock_of_its_owner() {
    let server = RedisServer::start().unwrap();
    for script in redlatch::scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::connect(&proxy.url()).await.unwrap();
    let guard = client.lock("x").lock().await.unwrap();
    let asked = Match::script().arg_contains(redlatch::scripts::READ_ACQUIRE.sha1());
    proxy.rule(asked, Action::CloseBeforeRequest);
    let readers = client.read_write_lock("x");
    let outcome = readers.read().acquire().owner(guard.owner()).wait(redlatch::Wait::AtMost(ms(50))).await;
    assert!(outcome.is_err(), "nothing arrives");
    until("quiet", || client.stats().background_jobs == 0).await;
    alone(&guard, &server, "an acquire that was never answered").await;
}

/// The other way round: a read hold was removed as one of a plain lock, which said so, and a writer came in beside the reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_gives_a_plain_lock_back_takes_no_read_hold_of_its_owner() {
    let server = RedisServer::start().unwrap();
    let client = Client::connect(&server.url()).await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let (ours, theirs) = (client.read_write_lock("x"), other.read_write_lock("x"));
    let reading = ours.read().lock().await.unwrap();
    let beside = theirs.read().lock().await.unwrap();
    let mut outcomes = Vec::new();
    outcomes.push(format!("{:?}", client.lock("x").release(reading.owner()).await));
    beside.unlock().await.unwrap();
    let writing = theirs.write().try_lock().await.unwrap();
    assert!(!(reading.is_valid() && writing.is_some()), "a writer beside a reader after {outcomes:?}");
    assert!(reading.is_valid(), "{:?} after {outcomes:?}", reading.loss());
}

/// An extension was answered after the deadline. Where the owner had been written out, what the server kept of the hold was not removed:
/// nobody had the lock, and nobody got it, for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_after_the_deadline_prolongs_nothing_though_the_owner_was_written_out() {
    let server = RedisServer::start().unwrap();
    for script in redlatch::scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder().url(proxy.url()).response_timeout(ms(60_000)).connect().await.unwrap();
    let guard = client.lock("x").lock_with_lease(ms(2_000)).await.unwrap();
    let _ = guard.owner().to_text();
    proxy.rule(Match::script().arg_contains(HOUR.as_millis().to_string()), Action::DelayReply(ms(2_500)));
    soon("the extension", guard.extend(HOUR)).await.unwrap_err();
    assert!(!guard.is_valid());
    let outcome = guard.unlock().await;
    until("quiet", || client.stats().background_jobs == 0).await;
    tokio::time::sleep(ms(1_000)).await;
    let left = ttl(&server, "x");
    assert!(left < 60_000, "nobody has the lock after {outcome:?}, and it is kept for {left} ms");
}

/// A lock that had been forced free before counted as released.
#[tokio::test]
async fn a_shutdown_tells_a_lock_that_was_lost_from_one_that_it_released() {
    let name = format!("memory:shutdown-{}", std::process::id());
    let (client, other) = (Client::connect(&name).await.unwrap(), Client::connect(&name).await.unwrap());
    let guard = client.lock("x").lock().await.unwrap();
    assert!(other.lock("x").force_unlock().await.unwrap());
    let theirs = other.lock("x").lock().await.unwrap();
    let report = client.shutdown(ms(10_000)).await;
    assert_eq!(report.released, 0, "{:?} {:?}", guard.loss(), theirs.is_valid());
}

/// The release of one of two holds was on its way when the other guard handed the owner out and went, too. It was never answered, and the
/// owner was not in doubt: it was granted the lock again, and what came late counted down there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partial_release_that_is_on_its_way_when_the_owner_is_handed_out_leaves_it_in_doubt() {
    use redlatch::scripts::RELEASE_ONE;
    let server = RedisServer::start().unwrap();
    for script in redlatch::scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder().url(proxy.url()).response_timeout(ms(60_000)).connect().await.unwrap();
    let lock = client.lock("x");
    let one = lock.lock().await.unwrap();
    let two = one.reenter().await.unwrap();
    let silent = proxy.rule(Match::script().arg_contains(RELEASE_ONE.sha1()).nth(1), Action::DropRequest);
    let leaving = tokio::spawn(two.unlock());
    until("the partial release is under way", || proxy.fired(silent) > 0).await;
    let owner = one.owner().clone();
    let going = tokio::spawn(one.unlock());
    tokio::time::sleep(ms(200)).await;
    proxy.reset_all();
    let gone = (soon("the one", leaving).await.unwrap(), soon("the other", going).await.unwrap());
    until("quiet", || client.stats().background_jobs == 0).await;
    let next = match lock.acquire().owner(&owner).await {
        Err(error) if error.kind() == redlatch::ErrorKind::OwnerInDoubt => return,
        next => next.unwrap().expect("it is free"),
    };
    let more = next.reenter().await.unwrap();
    // What was on its way arrives after all.
    let late = proxy.with_log(|log| {
        let first = log
            .requests()
            .find(|request| request.args.iter().any(|arg| arg == RELEASE_ONE.sha1().as_bytes()));
        first.expect("it was sent").args.clone()
    });
    server.cmd(&late).unwrap();
    // From here on other processes may use the owner.
    let _ = owner.to_text();
    let left = more.unlock().await;
    alone(&next, &server, &format!("{gone:?} and then {left:?}")).await;
}

/// The members that one request takes have one owner. A guard that had entered one of them handed it out while the release of another one
/// was on its way, which nothing covered: the owner took that one again, and the release removed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_of_a_set_that_is_on_its_way_takes_nothing_of_its_owner_that_a_member_handed_out() {
    use redlatch::scripts::RELEASE_ALL;
    let server = RedisServer::start().unwrap();
    for script in redlatch::scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder().url(proxy.url()).response_timeout(ms(60_000)).connect().await.unwrap();
    let set = MultiLock::new([client.lock("w"), client.lock("x"), client.lock("y")]).unwrap();
    let held = soon("the set", set.lock()).await.unwrap();
    let stays = held.members()[0].reenter().await.unwrap();
    let slow =
        proxy.rule(Match::script().arg_contains(RELEASE_ALL.sha1()).nth(1), Action::DelayRequest(ms(1_500)));
    let going = tokio::spawn(held.unlock());
    until("the release is under way", || proxy.fired(slow) > 0).await;
    let next = client.lock("x").acquire().owner(stays.owner()).await.unwrap();
    let gone = soon("the release", going).await.unwrap();
    let Some(next) = next else { return };
    until("quiet", || client.stats().background_jobs == 0).await;
    alone(&next, &server, &format!("{gone:?}")).await;
}

/// The leases of a set have one owner, and were passed on to the tasks that waited for its members. Each of them had the owner of the
/// other one's hold, and entered that: two tasks had one lock, and nothing had gone wrong on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_passed_a_member_of_a_set_does_not_enter_the_hold_of_who_was_passed_another_one() {
    // The default is 8 ms, which a test cannot keep.
    let client = Client::builder().url("memory:").turn_time(ms(60_000)).connect().await.unwrap();
    let set = MultiLock::new([client.lock("x"), client.lock("y")]).unwrap();
    let held = set.lock().await.unwrap();
    let waits = |name: &str| {
        let lock = client.lock(name);
        tokio::spawn(async move { lock.lock().await.unwrap() })
    };
    let (first, second) = (waits("x"), waits("y"));
    until("both stand in line", || client.stats().in_line == 2).await;
    held.unlock().await.into_result().unwrap();
    let (first, second) = (soon("x", first).await.unwrap(), soon("y", second).await.unwrap());
    assert!(first.is_valid() && second.is_valid());
    // The task that has `x` takes `y` as who it is.
    let third = client.lock("y").acquire().owner(first.owner()).await.unwrap();
    assert!(
        !(second.is_valid() && third.is_some_and(|third| third.is_valid())),
        "two tasks have the lock, and neither has handed it to the other"
    );
}

/// The same where the last guard was detached: the release of the other one had not been answered, and nothing was in doubt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_left_with_a_partial_release_on_its_way_is_in_doubt() {
    use redlatch::scripts::RELEASE_ONE;
    let server = RedisServer::start().unwrap();
    for script in redlatch::scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder().url(proxy.url()).response_timeout(ms(60_000)).connect().await.unwrap();
    let lock = client.lock("x");
    let one = lock.lock().await.unwrap();
    let two = one.reenter().await.unwrap();
    let lost =
        proxy.rule(Match::script().arg_contains(RELEASE_ONE.sha1()).nth(1), Action::CloseBeforeRequest);
    let first = soon("a partial release", two.unlock()).await;
    assert_eq!(proxy.fired(lost), 1);
    let owner = one.detach().owner;
    // The hold that was left, and the one of which the server was not told.
    let mut given_back = Vec::new();
    while let Ok(outcome) = soon("a release by owner", lock.release(&owner)).await {
        given_back.push(outcome);
    }
    let next = match lock.acquire().owner(&owner).await {
        Err(error) if error.kind() == redlatch::ErrorKind::OwnerInDoubt => return,
        next => next.unwrap().expect("it is free"),
    };
    let more = next.reenter().await.unwrap();
    let late = proxy.with_log(|log| {
        let first = log
            .requests()
            .find(|request| request.args.iter().any(|arg| arg == RELEASE_ONE.sha1().as_bytes()));
        first.expect("it was sent").args.clone()
    });
    server.cmd(&late).unwrap();
    let left = more.unlock().await;
    alone(&next, &server, &format!("{first:?}, {given_back:?} and then {left:?}")).await;
}
