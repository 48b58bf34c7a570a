//! Owners that are used again: an earlier request of an owner never takes its next hold away, and one owner that acquires twice at
//! once holds twice. The server itself is the witness.

use std::future::{Future, IntoFuture};

use redlatch::{AnyGuard, Client, ErrorKind, Guard, Owner, Unlocked, Wait, scripts};
use redlatch_testkit::{
    proxy::{Action, Gate, Match, Proxy},
    server::RedisServer,
};

use crate::fixture::{SOON, ms, soon};

/// Runs something for a lock of a kind that is given by name.
macro_rules! of_kind {
    ($client:expr, $kind:expr, $lock:ident => $what:expr) => {{
        let both = $client.read_write_lock("x");
        match $kind {
            "fair" => {
                let $lock = $client.fair_lock("x");
                $what
            }
            "write" => {
                let $lock = both.write();
                $what
            }
            "read" => {
                let $lock = both.read();
                $what
            }
            _ => {
                let $lock = $client.lock("x");
                $what
            }
        }
    }};
}

mod adopting;
mod after_a_loss;
mod beside_guards;
mod clients;
mod counts;
mod given_up;
mod late;
mod late_releases;
mod on_the_way;
mod reads_before;
mod repeats;
mod shut_down;
mod undone;

const KINDS: [&str; 4] = ["plain", "fair", "write", "read"];

struct Rig {
    server: RedisServer,
    proxy: Proxy,
    client: Client,
    other: Client,
}

async fn rig() -> Rig {
    let server = RedisServer::start().unwrap();
    for script in scripts::ALL {
        server.cmd(&["SCRIPT", "LOAD", script.source()]).unwrap();
    }
    let proxy = Proxy::start(&server.url()).unwrap();
    let client = Client::builder()
        .url(proxy.url())
        .watchdog_lease(ms(60_000))
        .turn_time(ms(60_000))
        .response_timeout(ms(60_000))
        .connect()
        .await
        .unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    Rig { server, proxy, client, other }
}

async fn take(client: &Client, kind: &str) -> Guard {
    of_kind!(client, kind, lock => lock.lock_with_lease(ms(20_000)).await.unwrap().into_guard())
}

/// Who would be a second holder.
async fn stranger(rig: &Rig, kind: &str) -> bool {
    let third = Client::connect(&rig.server.url()).await.unwrap();
    let kind = if kind == "read" { "write" } else { kind };
    of_kind!(third, kind, lock => lock.try_lock().await.unwrap().is_some())
}

fn script(script: &scripts::Script) -> Match {
    Match::script().arg_contains(script.sha1())
}

/// The text of an owner, without writing it out as far as the library knows: that would make it one of several processes.
fn text(owner: &Owner) -> String {
    let debug = format!("{owner:?}");
    debug.trim_start_matches("Owner(").trim_end_matches(')').to_owned()
}

impl Rig {
    fn field(&self, name: &str, field: &str) -> redis::Value {
        self.server.cmd(&["HGET", name, field]).unwrap()
    }

    /// Sends the first request of a script once more, as a network may that had only delayed it.
    fn arrives_late(&self, script: &scripts::Script) {
        let args = self.proxy.with_log(|log| {
            let first =
                log.requests().find(|request| request.args.iter().any(|arg| arg == script.sha1().as_bytes()));
            first.expect("it was sent").args.clone()
        });
        self.server.cmd(&args).unwrap();
    }

    /// Until everything that goes on in the background is done.
    async fn quiet(&self) {
        soon("quiet", async {
            while self.client.stats().background_jobs > 0 {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    }
}

/// Polls once, so that the request is under way or the task stands in line.
fn begun<F: Future>(work: F) -> std::pin::Pin<Box<F>> {
    let mut work = Box::pin(work);
    let waker = std::task::Waker::noop();
    assert!(work.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    work
}

/// R3: the first request of a release was delayed, its repeat succeeded, and the first one arrived in the next hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_does_not_end_the_next_hold_of_its_owner() {
    let rig = rig().await;
    let (lock, owner) = (rig.client.lock("x"), rig.client.owner());
    let guard = lock.acquire().owner(&owner).await.unwrap().unwrap();
    rig.proxy.rule(script(&scripts::RELEASE).nth(1), Action::CloseBeforeRequest);
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    // Nothing tells whether the first request is lost or late, so this owner is granted nothing more.
    for wait in [Wait::No, Wait::Forever, Wait::AtMost(ms(100))] {
        let error =
            soon("an answer", lock.acquire().owner(&owner).wait(wait).into_future()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OwnerInDoubt, "{error}");
        assert!(error.to_string().contains("fresh owner") && error.to_string().contains("\"x\""), "{error}");
    }
    // Others are, and what arrives late does nothing to them. The owner is free to hold other names.
    let next = lock.lock().await.unwrap();
    drop(rig.client.lock("y").acquire().owner(&owner).await.unwrap().unwrap());
    rig.arrives_late(&scripts::RELEASE);
    assert!(next.is_valid() && rig.other.lock("x").try_lock().await.unwrap().is_none());
}

/// R3 with the blocking face and nothing but defaults: a thread is one owner after the other.
#[test]
fn a_late_release_of_a_thread_does_not_end_its_next_hold() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let rig = runtime.block_on(rig());
    let client = redlatch::blocking::Client::connect(&rig.proxy.url()).unwrap();
    for wait in [false, true] {
        rig.proxy.clear_log();
        let guard = client.lock("x").lock().unwrap();
        rig.proxy.rule(script(&scripts::RELEASE).nth(1), Action::CloseBeforeRequest);
        if wait {
            assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        } else {
            drop(guard);
        }
        let next = client.lock("x").lock().unwrap();
        let again = client.lock("x").try_lock().unwrap().expect("a thread enters its own hold");
        rig.arrives_late(&scripts::RELEASE);
        assert!(next.is_valid());
        assert!(runtime.block_on(rig.other.lock("x").try_lock()).unwrap().is_none(), "a valid hold excludes");
        again.unlock().unwrap();
        next.unlock().unwrap();
    }
}

/// A release that counts down must not be sent twice: the second one would take away what another process holds under the owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_may_have_run_does_not_take_away_what_another_process_holds_under_its_owner() {
    let rig = rig().await;
    let guard = rig.client.lock("x").lock_with_lease(ms(2_000)).await.unwrap();
    let owner: Owner = guard.owner().to_text().parse().unwrap();
    let entered = rig.other.lock("x").acquire().owner(&owner).await.unwrap().expect("its owner holds it");
    rig.proxy.rule(script(&scripts::RELEASE_ONE).nth(1), Action::CloseAfterRequest);
    let outcome = soon("the release", guard.unlock()).await;
    assert!(entered.is_valid());
    assert_eq!(rig.field("x", &owner.to_text()), redis::Value::BulkString(b"1".into()), "{outcome:?}");
}

/// R4: giving back what came of a dropped downgrade ended the owner's next read hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_that_was_dropped_does_not_end_the_next_read_hold_of_its_owner() {
    let rig = rig().await;
    let lock = rig.client.read_write_lock("x");
    for round in 0..20 {
        let owner = rig.client.owner();
        let writing = lock.write().acquire().owner(&owner).wait(Wait::Forever).await.unwrap().unwrap();
        let gate = Gate::new();
        let asked = [&scripts::READ_ACQUIRE, &scripts::WRITE_RELEASE][round % 2];
        let held = rig.proxy.rule(script(asked), Action::HoldReplyUntilReleased(gate.clone()));
        drop(begun(writing.downgrade()));
        rig.proxy.wait_for(SOON, |log| log.fired(held) > 0).await.unwrap();
        let mut reading = begun(lock.read().acquire().owner(&owner).wait(Wait::Forever).into_future());
        gate.release();
        rig.proxy.remove_rule(held);
        let reading = soon("the read hold", &mut reading).await.unwrap().unwrap();
        rig.quiet().await;
        let writer = rig.other.read_write_lock("x").write().try_lock().await.unwrap();
        assert!(
            !(writer.is_some() && redlatch::AnyGuard::as_guard(&reading).is_valid()),
            "round {round}: a writer beside a reader"
        );
        assert!(
            redlatch::AnyGuard::as_guard(&reading).is_valid(),
            "round {round}: the read hold was taken away"
        );
        redlatch::AnyGuard::into_guard(reading).unlock().await.unwrap();
    }
}

/// R5: it was counted once, and the second guard was left with nothing after the first one had gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_owner_that_acquires_twice_at_once_holds_twice() {
    let rig = rig().await;
    for kind in ["plain", "fair", "read", "write", "fenced"] {
        for wait in [Wait::No, Wait::Forever, Wait::AtMost(SOON)] {
            let owner = rig.client.owner();
            let acquire = async || {
                let (client, owner) = (&rig.client, &owner);
                let (name, rw) = (kind, client.read_write_lock(kind));
                let guard = match kind {
                    "plain" => client.lock(name).acquire().owner(owner).wait(wait).await,
                    "fair" => client.fair_lock(name).acquire().owner(owner).wait(wait).await,
                    "fenced" => {
                        let guard = client.fenced_lock(name).acquire().owner(owner).wait(wait).await;
                        guard.map(|guard| guard.map(redlatch::AnyGuard::into_guard))
                    }
                    "read" => {
                        let guard = rw.read().acquire().owner(owner).wait(wait).await;
                        guard.map(|guard| guard.map(redlatch::AnyGuard::into_guard))
                    }
                    _ => {
                        let guard = rw.write().acquire().owner(owner).wait(wait).await;
                        guard.map(|guard| guard.map(redlatch::AnyGuard::into_guard))
                    }
                };
                guard.unwrap().expect("nobody else wants it")
            };
            let (one, two) = soon("both holds", async { tokio::join!(acquire(), acquire()) }).await;
            let field = if kind == "write" { format!("{}:write", owner.to_text()) } else { owner.to_text() };
            assert_eq!(rig.field(kind, &field), redis::Value::BulkString(b"2".into()), "{kind} {wait:?}");
            one.unlock().await.unwrap();
            assert!(two.is_valid());
            assert_eq!(rig.field(kind, &field), redis::Value::BulkString(b"1".into()), "{kind} {wait:?}");
            two.unlock().await.unwrap();
        }
    }
}

/// R6: the request that was to undo it failed, and that was that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_abandoned_acquire_left_is_undone_however_often_that_fails() {
    let rig = rig().await;
    let (lock, owner) = (rig.client.lock("x"), rig.client.owner());
    let gate = Gate::new();
    let held = rig.proxy.rule(script(&scripts::ACQUIRE).nth(1), Action::HoldReplyUntilReleased(gate.clone()));
    let cut = rig.proxy.rule(
        script(&scripts::RELEASE).which(redlatch_testkit::proxy::Nth::First(3)),
        Action::CloseBeforeRequest,
    );
    let abandoned = begun(lock.acquire().owner(&owner).wait(Wait::Forever).into_future());
    rig.proxy.wait_for(SOON, |log| log.fired(held) > 0).await.unwrap();
    drop(abandoned);
    gate.release();
    drop(soon("the end of what nobody took", rig.other.lock("x").lock()).await.unwrap());
    assert_eq!(rig.proxy.fired(cut), 3);
}

/// R8: the request stayed with a runtime that nobody drove any more.
#[test]
fn an_unlock_that_is_dropped_with_an_idle_runtime_is_done_all_the_same() {
    let outside = tokio::runtime::Runtime::new().unwrap();
    let rig = outside.block_on(rig());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for _ in 0..5 {
        let guard = runtime.block_on(rig.client.lock("x").lock()).unwrap();
        runtime.block_on(async { drop(begun(guard.unlock())) });
        drop(outside.block_on(soon("the release", rig.other.lock("x").lock())).unwrap());
    }
    // So is what an acquire left that was dropped there.
    runtime.block_on(async { drop(begun(rig.client.lock("y").lock())) });
    drop(outside.block_on(soon("the end of it", rig.other.lock("y").lock())).unwrap());
}

/// A read hold of the owner was on its way when its write hold was downgraded: the server counted two, and this process one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_waits_for_a_read_hold_of_its_owner_that_is_on_its_way() {
    let rig = rig().await;
    let (lock, owner) = (rig.client.read_write_lock("x"), rig.client.owner());
    let writing = lock.write().acquire().owner(&owner).await.unwrap().unwrap();
    let gate = Gate::new();
    let held = rig.proxy.rule(script(&scripts::READ_ACQUIRE), Action::HoldReplyUntilReleased(gate.clone()));
    let mut reading = begun(lock.read().acquire().owner(&owner).into_future());
    rig.proxy.wait_for(SOON, |log| log.fired(held) > 0).await.unwrap();
    drop(begun(writing.downgrade()));
    gate.release();
    let reading = soon("the read hold", &mut reading).await.unwrap().unwrap();
    rig.quiet().await;
    assert_eq!(rig.field("x", &text(&owner)), redis::Value::BulkString(b"1".into()));
    assert!(redlatch::AnyGuard::as_guard(&reading).is_valid());
    assert!(rig.other.read_write_lock("x").write().try_lock().await.unwrap().is_none());
    redlatch::AnyGuard::into_guard(reading).unlock().await.unwrap();
}

/// A guard that came in beside the last unlock was valid for a moment, and then nothing, without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_re_entry_beside_the_last_unlock_is_a_hold_of_its_own_or_waits_for_one() {
    let rig = rig().await;
    for round in 0..300 {
        let (lock, owner) = (rig.client.lock("x"), rig.client.owner());
        let last = lock.acquire().owner(&owner).wait(Wait::Forever).await.unwrap().unwrap();
        let entering = lock.clone();
        let entry = tokio::spawn(async move { entering.acquire().owner(&owner).wait(Wait::Forever).await });
        if round % 2 == 0 {
            tokio::task::yield_now().await;
        }
        last.unlock().await.unwrap();
        let guard = soon("the entry", entry).await.unwrap().unwrap().unwrap();
        assert!(guard.is_valid(), "round {round}");
        assert_eq!(rig.server.cmd(&["HLEN", "x"]).unwrap(), redis::Value::Int(1), "round {round}");
        guard.unlock().await.unwrap();
    }
}

/// The last of the owner's other read holds took the new one along: its release ends all that the owner has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_goes_during_a_downgrade_does_not_take_the_new_one_along() {
    let rig = rig().await;
    let lock = rig.client.read_write_lock("x");
    let moments = [&scripts::READ_ENTER, &scripts::WRITE_RELEASE];
    for (asked, answered_first) in moments.into_iter().flat_map(|asked| [(asked, false), (asked, true)]) {
        let writing = lock.write().lock().await.unwrap();
        let owner = redlatch::AnyGuard::as_guard(&writing).owner().clone();
        let besides = writing.read().await.unwrap();
        let gate = Gate::new();
        let held = rig.proxy.rule(script(asked), Action::HoldReplyUntilReleased(gate.clone()));
        let mut reading = begun(writing.downgrade());
        rig.proxy.wait_for(SOON, |log| log.fired(held) > 0).await.unwrap();
        let mut leaving = begun(redlatch::AnyGuard::into_guard(besides).unlock());
        rig.proxy.remove_rule(held);
        gate.release();
        let reading = if answered_first {
            let reading = soon("the read hold", &mut reading).await.unwrap();
            soon("the unlock", &mut leaving).await.unwrap();
            reading
        } else {
            let (_, reading) = soon("both", async { tokio::join!(&mut leaving, &mut reading) }).await;
            reading.unwrap()
        };
        rig.quiet().await;
        assert_eq!(rig.field("x", &text(&owner)), redis::Value::BulkString(b"1".into()));
        assert!(redlatch::AnyGuard::as_guard(&reading).is_valid());
        assert!(rig.other.read_write_lock("x").write().try_lock().await.unwrap().is_none());
        redlatch::AnyGuard::into_guard(reading).unlock().await.unwrap();
    }
}

/// Its request had not been sent yet, so the read hold that went was the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_goes_right_after_a_downgrade_does_not_take_the_new_one_along() {
    let rig = rig().await;
    let lock = rig.client.read_write_lock("x");
    for round in 0..50 {
        let writing = lock.write().lock().await.unwrap();
        let owner = redlatch::AnyGuard::as_guard(&writing).owner().clone();
        let besides = writing.read().await.unwrap();
        let turning = begun(writing.downgrade());
        let leaving = begun(redlatch::AnyGuard::into_guard(besides).unlock());
        let (reading, left) = soon("both", async { tokio::join!(turning, leaving) }).await;
        let reading = reading.unwrap();
        // The last one goes as a whole, and the new one is asked for when that is through.
        assert!(matches!(left.unwrap(), Unlocked::StillHeld(1) | Unlocked::Released), "round {round}");
        rig.quiet().await;
        assert_eq!(rig.field("x", &text(&owner)), redis::Value::BulkString(b"1".into()), "round {round}");
        assert!(redlatch::AnyGuard::as_guard(&reading).is_valid());
        assert!(rig.other.read_write_lock("x").write().try_lock().await.unwrap().is_none());
        assert_eq!(redlatch::AnyGuard::into_guard(reading).unlock().await.unwrap(), Unlocked::Released);
    }
}

/// The downgrade counted the write hold that went as gone, took it along, and its unlock said `Deleted`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_hold_that_goes_right_after_a_downgrade_of_another_one_is_released() {
    let rig = rig().await;
    let both = rig.client.read_write_lock("x");
    let lock = both.write();
    for round in 0..50 {
        let owner = rig.client.owner();
        let enter = async || lock.acquire().owner(&owner).await.unwrap().unwrap();
        let (first, second) = (enter().await, enter().await);
        let turning = begun(first.downgrade());
        let leaving = begun(redlatch::AnyGuard::into_guard(second).unlock());
        let (reading, left) = soon("both", async { tokio::join!(turning, leaving) }).await;
        // The one or the other is the last.
        assert!(matches!(left.unwrap(), Unlocked::StillHeld(1) | Unlocked::Released), "round {round}");
        let reading = reading.unwrap();
        rig.quiet().await;
        assert_eq!(rig.field("x", &text(&owner)), redis::Value::BulkString(b"1".into()), "round {round}");
        assert_eq!(rig.field("x", &format!("{}:write", text(&owner))), redis::Value::Nil, "round {round}");
        assert_eq!(redlatch::AnyGuard::into_guard(reading).unlock().await.unwrap(), Unlocked::Released);
    }
}

/// The detach took the count of the entry along: its guard was neither valid nor lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_re_entry_beside_a_detach_is_a_hold_of_its_own() {
    let rig = rig().await;
    let (lock, owner) = (rig.client.lock("x"), rig.client.owner());
    for (round, rule) in [Action::DelayReply(ms(300)), Action::DelayRequest(ms(300))].into_iter().enumerate()
    {
        let first = lock.acquire().owner(&owner).await.unwrap().unwrap();
        let slow = rig.proxy.rule(script(&scripts::ENTER), rule);
        let mut again = begun(lock.acquire().owner(&owner).wait(Wait::Forever).into_future());
        rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
        let left = first.detach();
        let guard = soon("the entry", &mut again).await.unwrap().unwrap();
        rig.proxy.remove_rule(slow);
        assert!(guard.is_valid() && guard.loss().is_none(), "round {round}: {guard:?}");
        rig.quiet().await;
        assert_eq!(rig.field("x", &text(&owner)), redis::Value::BulkString(b"2".into()), "round {round}");
        assert_eq!(guard.unlock().await.unwrap(), Unlocked::StillHeld(1), "round {round}");
        assert!(rig.other.lock("x").try_lock().await.unwrap().is_none());
        assert_eq!(rig.other.lock("x").release(&left.owner).await.unwrap(), Unlocked::Released);
    }
}

/// It was let in, and the hold was passed on to a task that was valid beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_was_read_off_the_server_enters_no_hold_of_a_guard() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    let guard = lock.lock().await.unwrap();
    let fields: Vec<String> = redis::from_redis_value(rig.server.cmd(&["HKEYS", "x"]).unwrap()).unwrap();
    let read: Owner = fields[0].parse().unwrap();
    let refused = async || {
        let error = lock.acquire().owner(&read).await.map(|guard| guard.is_some()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotOwner, "{error}");
        assert!(error.to_string().contains("guard.owner()"), "names the remedy: {error}");
    };
    refused().await;
    // The next task has it under the same owner, by passing on.
    let mut next = begun(lock.lock());
    assert_eq!(guard.unlock().await.unwrap(), Unlocked::Released);
    let next = soon("the turn", &mut next).await.unwrap();
    refused().await;
    assert_eq!(rig.field("x", &fields[0]), redis::Value::BulkString(b"1".into()));
    // What a guard hands out lets in, though it comes back as text.
    let told: Owner = next.owner().to_text().parse().unwrap();
    let beside = lock.acquire().owner(&told).await.unwrap().expect("the same owner");
    assert_eq!(next.unlock().await.unwrap(), Unlocked::StillHeld(1));
    assert!(rig.other.lock("x").try_lock().await.unwrap().is_none());
    assert_eq!(beside.unlock().await.unwrap(), Unlocked::Released);
}
