//! Requests that end, undo or prolong something, and come late or are not answered: they end nothing else, and leave nothing.

use std::future::IntoFuture;

use redlatch::{
    AnyGuard, Client, ErrorKind, Guard, Lease, Owner, PermitGuard, Unlocked, Wait, WriteGuard, scripts,
};
use redlatch_testkit::{
    proxy::{Action, Gate},
    resp,
};

use super::{Rig, begun, rig, script, text};
use crate::fixture::{SOON, ms, soon};

impl Rig {
    async fn is_free_soon(&self, name: &str) {
        soon("the end of what nobody holds", async {
            while self.server.cmd(&["EXISTS", name]).unwrap() != redis::Value::Int(0) {
                tokio::time::sleep(ms(10)).await;
            }
        })
        .await;
    }

    fn has_sent(&self, script: &scripts::Script) -> bool {
        let hash = script.sha1().as_bytes();
        self.proxy.with_log(|log| log.requests().any(|request| request.args.iter().any(|arg| arg == hash)))
    }
}

enum Held {
    Plain(Guard),
    Write(WriteGuard),
}

impl Held {
    fn as_guard(&self) -> &Guard {
        match self {
            Held::Plain(guard) => guard,
            Held::Write(guard) => guard.as_guard(),
        }
    }
}

/// R2: what undoes an abandoned acquire reached the server after the lock had been transferred to the same owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_not_transferred_to_an_owner_whose_earlier_request_is_being_undone() {
    let rig = rig().await;
    let kinds = [
        ("plain", &scripts::ACQUIRE, &scripts::RELEASE),
        ("write", &scripts::WRITE_ACQUIRE, &scripts::WRITE_RELEASE),
    ];
    for (kind, ask, undo) in kinds {
        let plain = rig.client.lock(kind);
        let rw = rig.client.read_write_lock(kind);
        let (owner, other) = (rig.client.owner(), rig.client.owner());
        let acquire = async |owner: &Owner| match kind {
            "plain" => {
                let guard = plain.acquire().owner(owner).wait(Wait::Forever).await.unwrap();
                Held::Plain(guard.expect("it waits"))
            }
            _ => {
                let guard = rw.write().acquire().owner(owner).wait(Wait::Forever).await.unwrap();
                Held::Write(guard.expect("it waits"))
            }
        };
        // No request of the acquire arrives, and it is given up. Then the server refuses to undo it for as long as this rule is there.
        let lost = rig.proxy.rule(script(ask), Action::CloseBeforeRequest);
        let busy = Action::ReplaceReply(resp::error("BUSY Redis is busy running a script"));
        let refused = rig.proxy.rule(script(undo).arg_contains(text(&owner)), busy);
        let abandoned = begun(acquire(&owner));
        rig.proxy.wait_fired(lost, 1, SOON).await.unwrap();
        drop(abandoned);
        rig.proxy.wait_fired(refused, 1, SOON).await.unwrap();
        rig.proxy.remove_rule(lost);
        let first = soon("the first hold", acquire(&other)).await;
        let mut again = begun(acquire(&owner));
        let first = match first {
            Held::Plain(guard) => guard,
            Held::Write(guard) => guard.into_guard(),
        };
        assert_eq!(soon("the release", first.unlock()).await.unwrap(), Unlocked::Released);
        rig.proxy.remove_rule(refused);
        let held = soon("the owner's hold", &mut again).await;
        drop(again);
        rig.quiet().await;
        let field = if kind == "plain" { text(&owner) } else { format!("{}:write", text(&owner)) };
        assert_ne!(
            rig.field(kind, &field),
            redis::Value::Nil,
            "{kind}: what undoes an earlier request took it away"
        );
        assert!(held.as_guard().is_valid(), "{kind}: {:?}", held.as_guard().loss());
    }
}

enum Any {
    Lock(Guard),
    Permit(PermitGuard),
}

impl Any {
    fn is_valid(&self) -> bool {
        match self {
            Any::Lock(guard) => guard.is_valid(),
            Any::Permit(guard) => guard.is_valid(),
        }
    }
}

/// A grant that came in time, which is then held for long.
async fn second_grant(rig: &Rig, kind: &str, lease: Lease) -> Result<Any, redlatch::Error> {
    let (client, wait) = (&rig.client, Wait::Forever);
    let rw = client.read_write_lock("x");
    let held = |guard: Option<Guard>| guard.expect("it waits");
    let guard = match kind {
        "permit" => {
            let permits = client.permit_semaphore("x");
            let guard = permits.request().lease(lease).wait(wait).await?.expect("it waits");
            guard.extend(ms(3_600_000)).await?;
            return Ok(Any::Permit(guard));
        }
        "write" => held(rw.write().acquire().lease(lease).wait(wait).await?.map(AnyGuard::into_guard)),
        "read" => held(rw.read().acquire().lease(lease).wait(wait).await?.map(AnyGuard::into_guard)),
        "fair" => held(client.fair_lock("x").acquire().lease(lease).wait(wait).await?),
        "named" => held(client.lock("x").acquire().owner(&client.owner()).lease(lease).wait(wait).await?),
        _ => held(client.lock("x").acquire().lease(lease).wait(wait).await?),
    };
    guard.extend(ms(3_600_000)).await?;
    Ok(Any::Lock(guard))
}

async fn is_had_by(client: &Client, kind: &str) -> bool {
    let rw = client.read_write_lock("x");
    match kind {
        "permit" => client.permit_semaphore("x").try_acquire().await.unwrap().is_some(),
        "write" => rw.read().try_lock().await.unwrap().is_some(),
        "read" => rw.write().try_lock().await.unwrap().is_some(),
        "fair" => client.fair_lock("x").try_lock().await.unwrap().is_some(),
        _ => client.lock("x").try_lock().await.unwrap().is_some(),
    }
}

async fn a_late_undo(kind: &str) {
    let rig = rig().await;
    let (ask, undo) = match kind {
        "permit" => (&scripts::PERMIT_TAKE, &scripts::PERMIT_GIVE),
        "write" => (&scripts::WRITE_ACQUIRE, &scripts::WRITE_RELEASE),
        "read" => (&scripts::READ_ACQUIRE, &scripts::READ_RELEASE),
        "fair" => (&scripts::FAIR_ACQUIRE, &scripts::FAIR_UNDO),
        _ => (&scripts::ACQUIRE, &scripts::RELEASE),
    };
    if kind == "permit" {
        rig.client.permit_semaphore("x").set_if_absent(1).await.unwrap();
    }
    rig.proxy.rule(script(ask).nth(1), Action::DelayReply(ms(2_050)));
    rig.proxy.rule(script(undo).nth(1), Action::CloseBeforeRequest);
    let guard = match soon("a grant in time", second_grant(&rig, kind, Lease::Fixed(ms(2_000)))).await {
        Ok(guard) => guard,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::OwnerInDoubt, "{kind}: {error}");
            return;
        }
    };
    rig.quiet().await;
    assert!(guard.is_valid(), "{kind}");
    if rig.has_sent(undo) {
        rig.arrives_late(undo);
    }
    let theirs = is_had_by(&rig.other, kind).await;
    assert!(!(theirs && guard.is_valid()), "{kind}: two valid holders");
    assert!(guard.is_valid(), "{kind}");
}

/// What was to undo a grant whose answer came too late was late as well, and undid the next one under a valid guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_that_is_late_takes_no_grant_of_the_same_acquire() {
    tokio::join!(a_late_undo("plain"), a_late_undo("fair"), a_late_undo("write"), a_late_undo("read"));
}

/// The same for a permit, of which there was one and then two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_that_is_late_takes_no_permit_of_the_same_request() {
    a_late_undo("permit").await;
}

/// The same for an owner that the caller chose.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_that_is_late_takes_no_grant_of_an_owner_that_is_used_again() {
    a_late_undo("named").await;
}

/// The owner came from a guard that was lost, and what removed the rest of its hold arrived in the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_of_a_lost_guard_keeps_its_next_hold() {
    let rig = rig().await;
    let both = rig.client.read_write_lock("x");
    let slow = rig.proxy.rule(script(&scripts::READ_RELEASE).nth(1), Action::DelayRequest(ms(1_000)));
    let lost = both.read().acquire().lease(Lease::Fixed(ms(500))).await.unwrap().unwrap().into_guard();
    soon("the loss", lost.lost()).await;
    rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
    let owner = lost.owner().clone();
    let answer =
        soon("an answer", both.read().acquire().owner(&owner).wait(Wait::Forever).into_future()).await;
    let again = match answer {
        Ok(guard) => guard.expect("it waits").into_guard(),
        Err(error) => return assert_eq!(error.kind(), ErrorKind::OwnerInDoubt, "{error}"),
    };
    rig.quiet().await;
    let writer = rig.other.read_write_lock("x").write().try_lock().await.unwrap();
    assert!(!(writer.is_some() && again.is_valid()), "a writer beside a reader");
    assert!(again.is_valid(), "{:?}", again.loss());
    assert_ne!(rig.field("x", &text(&owner)), redis::Value::Nil);
}

/// It lined its owner up again, which had been there, and the waiters behind waited out the time of a waiter that never came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_lines_nobody_up_who_has_gone() {
    let rig = rig().await;
    let theirs = rig.other.fair_lock("x");
    let held = theirs.lock().await.unwrap();
    let lost = rig.proxy.rule(script(&scripts::FAIR_ACQUIRE).nth(1), Action::CloseBeforeRequest);
    let waiting = tokio::spawn({
        let lock = rig.client.fair_lock("x");
        async move { lock.lock().await.unwrap() }
    });
    soon("one in the queue", async {
        while rig.server.cmd(&["LLEN", "redisson_lock_queue:{x}"]).unwrap() != redis::Value::Int(1) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert_eq!(rig.proxy.fired(lost), 1, "the first request is lost");
    held.unlock().await.unwrap();
    let guard = soon("its turn", waiting).await.unwrap();
    assert_eq!(soon("the release", guard.unlock()).await.unwrap(), Unlocked::Released);
    let held = soon("the lock", theirs.lock()).await.unwrap();
    rig.arrives_late(&scripts::FAIR_ACQUIRE);
    held.unlock().await.unwrap();
    drop(soon("the free lock", theirs.lock()).await.unwrap());
}

/// An owner of the program's own was looked after once, at the end of its acquire, and its place then stood in the way of all behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_of_an_owner_that_is_used_again_leaves_no_place_in_the_queue() {
    let rig = rig().await;
    let held = rig.other.fair_lock("x").lock().await.unwrap();
    let lost = rig.proxy.rule(script(&scripts::FAIR_ACQUIRE), Action::CloseBeforeRequest);
    let (lock, owner) = (rig.client.fair_lock("x"), rig.client.owner());
    let waiting = lock.acquire().owner(&owner).wait(Wait::AtMost(ms(300)));
    assert!(!matches!(soon("the end of its wait", waiting.into_future()).await, Ok(Some(_))));
    assert!(rig.proxy.fired(lost) > 0, "its request is lost");
    rig.proxy.remove_rule(lost);
    rig.quiet().await;
    rig.arrives_late(&scripts::FAIR_ACQUIRE);
    soon("an empty queue", async {
        while rig.server.cmd(&["LLEN", "redisson_lock_queue:{x}"]).unwrap() != redis::Value::Int(0) {
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await;
    assert!(held.is_valid());
    // The owner takes its turn as ever.
    held.unlock().await.unwrap();
    let again =
        soon("its turn", lock.acquire().owner(&owner).wait(Wait::Forever).into_future()).await.unwrap();
    assert_eq!(soon("the release", again.unwrap().unlock()).await.unwrap(), Unlocked::Released);
}

/// It was forgotten that the request had been sent twice, because the hold had become another one in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_acquire_leaves_no_hold_of_one_who_has_downgraded_and_gone() {
    let rig = rig().await;
    let lost = rig.proxy.rule(script(&scripts::WRITE_ACQUIRE).nth(1), Action::CloseBeforeRequest);
    let writing = soon("the hold", rig.client.read_write_lock("x").write().lock()).await.unwrap();
    assert_eq!(rig.proxy.fired(lost), 1, "the first request is lost");
    let reading = soon("the downgrade", writing.downgrade()).await.unwrap();
    assert_eq!(soon("the release", reading.into_guard().unlock()).await.unwrap(), Unlocked::Released);
    rig.arrives_late(&scripts::WRITE_ACQUIRE);
    rig.is_free_soon("x").await;
}

/// The owner was written out between a release and its answer, which was then read as that of another request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_a_release_is_read_as_what_it_is() {
    let rig = rig().await;
    for deleted in [false, true] {
        let guard = rig.client.lock("x").lock().await.unwrap();
        let owner = guard.owner().clone();
        let gate = Gate::new();
        let slow = rig.proxy.rule(script(&scripts::RELEASE), Action::HoldReplyUntilReleased(gate.clone()));
        if deleted {
            rig.server.cmd(&["DEL", "x"]).unwrap();
        }
        let mut unlock = begun(guard.unlock());
        rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
        let _ = owner.to_text();
        rig.proxy.remove_rule(slow);
        gate.release();
        let said = soon("the answer", &mut unlock).await.unwrap();
        match deleted {
            false => assert_eq!(said, Unlocked::Released),
            true => assert!(matches!(said, Unlocked::AlreadyLost(_)), "{said:?}"),
        }
    }
}

async fn ends_with_its_guard(rig: &Rig, guard: Guard) {
    soon("its deadline, or a later one", async {
        while guard.is_valid() && guard.remaining() < ms(600_000) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    let was_valid = guard.is_valid();
    let said = soon("the unlock", guard.unlock()).await.unwrap();
    assert!(!was_valid || said == Unlocked::Released, "{said:?}");
    rig.is_free_soon("x").await;
}

/// Its guard ended at the deadline that it knew of, and the lock stayed for the time of an extension that nobody waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_extension_was_dropped_does_not_outlive_its_guard() {
    let rig = rig().await;
    let guard = rig.client.lock("x").lock_with_lease(ms(1_000)).await.unwrap();
    let gate = Gate::new();
    let slow = rig.proxy.rule(script(&scripts::RENEW).nth(1), Action::HoldReplyUntilReleased(gate.clone()));
    let extending = begun(guard.extend(ms(3_600_000)));
    rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
    drop(extending);
    gate.release();
    ends_with_its_guard(&rig, guard).await;
}

/// The same where the answer was lost: the error said so, and the lock stayed for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_extension_was_not_answered_does_not_outlive_its_guard() {
    let rig = rig().await;
    let guard = rig.client.lock("x").lock_with_lease(ms(1_000)).await.unwrap();
    let lost = rig.proxy.rule(script(&scripts::RENEW).nth(1), Action::CloseAfterRequest);
    // Whether it is asked for again or answered with an error.
    let _ = soon("an answer", guard.extend(ms(3_600_000))).await;
    assert_eq!(rig.proxy.fired(lost), 1, "its answer is lost");
    ends_with_its_guard(&rig, guard).await;
}

/// The lock had been freed by force and granted to another task, whose hold was called taken over; the late guard was valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_answered_after_a_forced_unlock_displaces_no_newer_one() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    let gate = Gate::new();
    let slow = rig.proxy.rule(script(&scripts::ACQUIRE).nth(1), Action::HoldReplyUntilReleased(gate.clone()));
    // On a runtime of its own, which has connections of its own.
    let (tell, late) = tokio::sync::oneshot::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let elsewhere = std::thread::spawn({
        let lock = lock.clone();
        move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let _ = tell.send(runtime.block_on(lock.try_lock()));
            let _ = ended.recv();
        }
    });
    rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
    assert!(rig.other.lock("x").force_unlock().await.unwrap());
    let newer = soon("a grant", lock.try_lock()).await.unwrap().expect("it is free");
    gate.release();
    // A refusal, busy, or a guard that says that it is lost.
    let late = soon("the late answer", late).await.unwrap().ok().flatten();
    rig.quiet().await;
    let theirs = rig.other.lock("x").try_lock().await.unwrap();
    let late = late.is_some_and(|guard| guard.is_valid());
    let valid = [newer.is_valid(), late, theirs.is_some()];
    assert!(valid.iter().filter(|valid| **valid).count() <= 1, "two of newer, late and theirs: {valid:?}");
    assert!(newer.is_valid(), "{:?}", newer.loss());
    assert_eq!(soon("the unlock", newer.unlock()).await.unwrap(), Unlocked::Released);
    drop(end);
    elsewhere.join().unwrap();
}

/// Of three holds one was being given back and one waited for that when the lease ended. The late extension kept all that the server
/// counted, and one too few was counted down: nobody had the lock, and it was kept for an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_extension_keeps_no_hold_that_was_about_to_be_given_back() {
    let rig = rig().await;
    let guard = rig.client.lock("x").lock_with_lease(ms(2_000)).await.unwrap();
    let (first, second) = (guard.reenter().await.unwrap(), guard.reenter().await.unwrap());
    // The other process gives back what it enters, so the owner counts.
    let owner = guard.owner().clone();
    let _ = owner.to_text();
    let (extended, left) = (Gate::new(), Gate::new());
    let slow =
        rig.proxy.rule(script(&scripts::RENEW).nth(1), Action::HoldReplyUntilReleased(extended.clone()));
    let leaves = script(&scripts::RELEASE_ONE).nth(1);
    let leaves = rig.proxy.rule(leaves, Action::HoldReplyUntilReleased(left.clone()));
    // On runtimes of their own, as connections answer in order.
    let elsewhere = |work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        std::thread::spawn(move || tokio::runtime::Runtime::new().unwrap().block_on(work))
    };
    let one = elsewhere(Box::pin(async move { drop(first.unlock().await) }));
    rig.proxy.wait_for(SOON, |log| log.fired(leaves) > 0).await.unwrap();
    let two = elsewhere(Box::pin(async move { drop(second.unlock().await) }));
    let three = elsewhere(Box::pin(async move { drop(guard.extend(ms(3_600_000)).await) }));
    rig.proxy.wait_for(SOON, |log| log.fired(slow) > 0).await.unwrap();
    tokio::time::sleep(ms(2_500)).await;
    extended.release();
    tokio::task::spawn_blocking(move || three.join()).await.unwrap().unwrap();
    left.release();
    tokio::task::spawn_blocking(move || (one.join(), two.join())).await.unwrap().0.unwrap();
    rig.quiet().await;
    assert_eq!(rig.server.cmd(&["EXISTS", "x"]).unwrap(), redis::Value::Int(0), "nobody has it");
}
