//! One owner with two clients of a process, or with two kinds of lock: what it holds there adds up, or the second is refused.

use std::sync::Arc;

use redlatch::{AnyGuard, Client, Error, ErrorKind, Guard, Lease, ManualClock, Owner, Unlocked, scripts};
use redlatch_testkit::proxy::{Action, Gate, Match, RequestRecord};

use super::{Rig, ms, rig, script, text};
use crate::{
    fixture::{SOON, quiet, soon},
    kinds::{AnyLock, Face},
};

/// A hold, or `None` where it was refused for a reason that tells the caller what to do.
fn held_or_refused(what: &str, answer: Result<Option<Guard>, Error>) -> Option<Guard> {
    use ErrorKind::{AlreadyHeld, NotOwner, OwnerInDoubt, WrongLockKind};
    match answer {
        Ok(guard) => Some(guard.unwrap_or_else(|| panic!("{what}: nobody else has it"))),
        Err(error) => {
            let is_refusal = matches!(error.kind(), AlreadyHeld | NotOwner | OwnerInDoubt | WrongLockKind);
            assert!(is_refusal, "{what}: {error}");
            None
        }
    }
}

async fn take(kind: &str, client: &Client, owner: &Owner) -> Result<Option<Guard>, Error> {
    let rw = client.read_write_lock(kind);
    match kind {
        "plain" => client.lock(kind).acquire().owner(owner).await,
        "fair" => client.fair_lock(kind).acquire().owner(owner).await,
        "spin" => client.spin_lock(kind).acquire().owner(owner).await,
        "read" => rw.read().acquire().owner(owner).await.map(|guard| guard.map(AnyGuard::into_guard)),
        _ => rw.write().acquire().owner(owner).await.map(|guard| guard.map(AnyGuard::into_guard)),
    }
}

/// Whether another owner gets it that needs it alone.
async fn is_had_by(client: &Client, kind: &str) -> bool {
    let face = match kind {
        "read" | "write" => Face::Write,
        "fair" => Face::Fair,
        _ => Face::Plain,
    };
    AnyLock::new(face, client, kind).try_lock().await.unwrap().is_some()
}

impl Rig {
    fn is_there(&self, name: &str) -> bool {
        self.server.cmd(&["EXISTS", name]).unwrap() == redis::Value::Int(1)
    }

    /// A client that knows nothing of the owners of the others.
    async fn outside(&self) -> Client {
        Client::connect(&self.server.url()).await.unwrap()
    }
}

/// The guard did not hear of it, and was valid beside the next holder until its hold was looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_client_of_the_process_releases_nothing_under_a_guard() {
    for kind in ["plain", "fair", "spin", "read", "write"] {
        let rig = rig().await;
        let guard = held_or_refused(kind, take(kind, &rig.client, &rig.client.owner()).await).unwrap();
        let (lock, both) = (rig.other.lock(kind), rig.other.read_write_lock(kind));
        let release = async |owner: &Owner| match kind {
            "plain" => lock.release(owner).await,
            "fair" => rig.other.fair_lock(kind).release(owner).await,
            "spin" => rig.other.spin_lock(kind).release(owner).await,
            "read" => both.read().release(owner).await,
            _ => both.write().release(owner).await,
        };
        let error = release(guard.owner()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyHeld, "{kind}: {error}");
        assert!(guard.is_valid() && !is_had_by(&rig.other, kind).await, "{kind}");
        // What goes on without a guard is given back by anybody.
        let left = guard.detach();
        assert_eq!(release(&left.owner).await.unwrap(), Unlocked::Released, "{kind}");
        assert!(is_had_by(&rig.other, kind).await, "{kind}");
    }
}

/// It was counted once for both of them, and the unlock of one took the hold of the other along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_of_another_client_counts_its_holds_on_the_server() {
    let rig = rig().await;
    let outside = rig.outside().await;
    for kind in ["plain", "fair", "spin", "write", "read"] {
        let owner = rig.client.owner();
        let one = soon("the first hold", take(kind, &rig.client, &owner)).await.unwrap().unwrap();
        let two = soon("the second one", take(kind, &rig.other, &owner)).await;
        let mut last = one;
        if let Some(two) = held_or_refused(kind, two) {
            let left = soon("the unlock", last.unlock()).await.unwrap();
            let theirs = is_had_by(&outside, kind).await;
            assert!(!(theirs && two.is_valid()), "{kind}: two valid holders after the answer {left:?}");
            assert_eq!(left, Unlocked::StillHeld(1), "{kind}");
            let field = if kind == "write" { format!("{}:write", text(&owner)) } else { text(&owner) };
            assert_eq!(rig.field(kind, &field), redis::Value::BulkString(b"1".into()), "{kind}");
            last = two;
        }
        assert!(last.is_valid() && !is_had_by(&outside, kind).await, "{kind}: {:?}", last.loss());
        assert_eq!(soon("the last unlock", last.unlock()).await.unwrap(), Unlocked::Released, "{kind}");
        assert!(!rig.is_there(kind), "{kind}: nothing is left");
    }
}

/// The same for the owner that a guard hands out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_of_a_guard_counts_its_hold_with_another_client() {
    let rig = rig().await;
    let outside = rig.outside().await;
    let one = rig.client.lock("plain").lock().await.unwrap();
    let two = soon("the second hold", take("plain", &rig.other, one.owner())).await;
    let mut last = one;
    if let Some(two) = held_or_refused("a guard's owner", two) {
        let left = soon("the unlock", last.unlock()).await.unwrap();
        let theirs = is_had_by(&outside, "plain").await;
        assert!(!(theirs && two.is_valid()), "two valid holders after the answer {left:?}");
        assert_eq!(left, Unlocked::StillHeld(1));
        last = two;
    }
    assert!(last.is_valid() && !is_had_by(&outside, "plain").await, "{:?}", last.loss());
    assert_eq!(soon("the last unlock", last.unlock()).await.unwrap(), Unlocked::Released);
    assert!(!rig.is_there("plain"), "nothing is left");
}

/// The guard of the other client took the hold along that was adopted beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_adopted_beside_a_guard_of_another_client_excludes_others() {
    let rig = rig().await;
    let outside = rig.outside().await;
    let one = rig.client.lock("plain").lock().await.unwrap();
    let adopted = rig.other.lock("plain");
    let adopted = soon("the adoption", adopted.adopt(one.owner(), Lease::Renewed)).await;
    if let Some(two) = held_or_refused("adopting", adopted) {
        let left = soon("the unlock", one.unlock()).await;
        let theirs = is_had_by(&outside, "plain").await;
        assert!(!(theirs && two.is_valid()), "two valid holders after the answer {left:?}");
        drop(two);
    } else {
        assert!(one.is_valid() && !is_had_by(&outside, "plain").await, "{:?}", one.loss());
        assert_eq!(soon("the unlock", one.unlock()).await.unwrap(), Unlocked::Released);
    }
}

/// Each kind counted for itself, and the release of one removed the hold of the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_takes_one_name_with_two_kinds_of_lock_excludes_others() {
    let rig = rig().await;
    for (one, two) in [
        (Face::Plain, Face::Fair),
        (Face::Fair, Face::Plain),
        (Face::Fenced, Face::Fair),
        (Face::Fair, Face::Spin),
    ] {
        let name = format!("{one:?}-{two:?}");
        let owner = rig.client.owner();
        let [first, second] = [one, two].map(|face| AnyLock::new(face, &rig.client, name.as_str()));
        let mut last = first.acquire().owner(&owner).await.unwrap().unwrap();
        let answer = soon("an answer", async { second.acquire().owner(&owner).await }).await;
        if let Some(guard) = held_or_refused(&name, answer) {
            let left = soon("the unlock", last.unlock()).await.unwrap();
            let theirs = rig.other.lock(name.as_str()).try_lock().await.unwrap();
            assert!(!(theirs.is_some() && guard.is_valid()), "{name}: two valid holders after {left:?}");
            assert_eq!(left, Unlocked::StillHeld(1), "{name}");
            last = guard;
        }
        let theirs = rig.other.lock(name.as_str()).try_lock().await.unwrap();
        assert!(last.is_valid() && theirs.is_none(), "{name}: {:?}", last.loss());
        assert_eq!(soon("the last unlock", last.unlock()).await.unwrap(), Unlocked::Released, "{name}");
        assert!(!rig.is_there(&name), "{name}: nothing is left");
    }
}

/// The answer to the one release of an owner that was handed out is lost. What is there afterwards is the other process's, and `unlock` looked at
/// it until the lease was over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_answer_is_lost_does_not_wait_for_the_end_of_another_hold_of_its_owner() {
    for (kind, leaving) in [
        ("lock", &scripts::RELEASE_ONE),
        ("fair", &scripts::FAIR_RELEASE_ONE),
        ("write", &scripts::WRITE_RELEASE_ONE),
        ("read", &scripts::READ_RELEASE_ONE),
    ] {
        let rig = rig().await;
        let impatient =
            Client::builder().url(rig.proxy.url()).response_timeout(ms(2_000)).connect().await.unwrap();
        let long = Lease::Fixed(ms(3_600_000));
        let outer = of_kind!(rig.other, kind, lock => lock.acquire().lease(long).await.unwrap().map(AnyGuard::into_guard));
        let outer = outer.unwrap();
        let handed: Owner = outer.owner().to_text().parse().unwrap();
        let inner = of_kind!(impatient, kind, lock =>
            lock.acquire().owner(&handed).lease(long).await.unwrap().map(AnyGuard::into_guard));
        let lost = rig.proxy.rule(script(leaving).nth(1), Action::CloseAfterRequest);
        let error = soon("the end of the release", inner.unwrap().unlock()).await.unwrap_err();
        assert_eq!((rig.proxy.fired(lost), error.kind()), (1, ErrorKind::Timeout), "{kind}: {error}");
        assert!(error.to_string().contains("another process's"), "{kind}: {error}");
        assert_eq!(outer.unlock().await.unwrap(), Unlocked::Released, "{kind}: it took one hold, once");
    }
}

/// What lies between forgets a connection on which nothing goes, and answers the next request with a reset. A run holds for long, and its one
/// release went over the connection that had been idle since the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_renewed_is_counted_down_over_the_connection_that_renewed_it() {
    let rig = rig().await;
    let client = Client::builder().url(rig.proxy.url()).watchdog_lease(ms(900)).connect().await.unwrap();
    let guard = client.lock("x").lock().await.unwrap();
    let _handed_out = guard.owner().to_text();
    let is_of = |request: &RequestRecord, of: &scripts::Script| {
        request.args.iter().any(|arg| arg == of.sha1().as_bytes())
    };
    let connection_of = |of| {
        let last = rig.proxy.with_log(|log| log.requests().rfind(|request| is_of(request, of)).cloned());
        last.expect("a request").connection
    };
    // The second one is sent when the first has been answered.
    let renewed = rig
        .proxy
        .wait_for(SOON, |log| log.requests().filter(|request| is_of(request, &scripts::RENEW)).count() >= 2);
    renewed.await.unwrap();
    let forgotten = connection_of(&scripts::ACQUIRE);
    assert_eq!(soon("the release", guard.unlock_polled()).await.unwrap(), Unlocked::Released);
    let released = connection_of(&scripts::RELEASE_ONE);
    assert_eq!(released, connection_of(&scripts::RENEW), "and not {forgotten}");
}

/// The same before its first renewal, or for a lease that is not renewed: all connections may be forgotten by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_once_goes_over_a_connection_that_answers() {
    for entered in [false, true] {
        let rig = rig().await;
        let clock = ManualClock::new(ms(1_000_000));
        let builder = quiet().url(rig.proxy.url()).clock(Arc::new(clock.clone()));
        let client = builder.connect().await.unwrap();
        let long = Lease::Fixed(ms(3_600_000));
        // Both connections are there, the keeper's as well.
        for name in ["x", "y"] {
            let used = client.lock(name).acquire().lease(long).await.unwrap().unwrap();
            let _handed_out = used.owner().to_text();
            assert_eq!(soon("a release", used.unlock()).await.unwrap(), Unlocked::Released);
        }
        let guard = client.lock("x").acquire().lease(long).await.unwrap().unwrap();
        let handed: Owner = guard.owner().to_text().parse().unwrap();
        let second = if entered { Some(guard.reenter().await.unwrap()) } else { None };
        clock.advance(ms(20_000));
        let last = rig.proxy.with_log(|log| log.requests().map(|request| request.connection).max().unwrap());
        let forgotten = rig.proxy.rule(Match::any().connection_up_to(last), Action::CloseBeforeRequest);
        if let Some(second) = second {
            assert_eq!(soon("a count-down", second.unlock()).await.unwrap(), Unlocked::StillHeld(1));
        }
        let third = soon("a late entry", guard.reenter()).await.unwrap();
        clock.advance(ms(20_000));
        assert_eq!(soon("its end", third.unlock()).await.unwrap(), Unlocked::StillHeld(1));
        assert_eq!(soon("the release", guard.unlock_polled()).await.unwrap(), Unlocked::Released);
        assert!(rig.proxy.fired(forgotten) > 0, "a connection was forgotten");
        assert!(rig.other.lock("x").try_lock().await.unwrap().is_some(), "{handed:?} holds nothing");
    }
}

/// So did the undo of a grant for which nobody waited any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_undo_of_a_grant_under_a_shared_owner_goes_over_a_connection_that_answers() {
    let rig = rig().await;
    let clock = ManualClock::new(ms(1_000_000));
    let builder = quiet().url(rig.proxy.url()).clock(Arc::new(clock.clone()));
    let client = builder.response_timeout(ms(60_000)).connect().await.unwrap();
    let long = Lease::Fixed(ms(3_600_000));
    let used = client.lock("x").acquire().lease(long).await.unwrap().unwrap();
    let handed: Owner = used.owner().to_text().parse().unwrap();
    assert_eq!(soon("a release", used.unlock()).await.unwrap(), Unlocked::Released);
    let answer = Gate::new();
    let asked = rig.proxy.rule(script(&scripts::ACQUIRE), Action::HoldReplyUntilReleased(answer.clone()));
    let (lock, owner) = (client.lock("x"), handed.clone());
    let acquire = tokio::spawn(async move { lock.acquire().owner(&owner).lease(long).await });
    rig.proxy.wait_fired(asked, 1, SOON).await.unwrap();
    clock.advance(ms(20_000));
    let last = rig.proxy.with_log(|log| log.requests().map(|request| request.connection).max().unwrap());
    let forgotten = rig.proxy.rule(Match::any().connection_up_to(last), Action::CloseBeforeRequest);
    acquire.abort();
    assert!(acquire.await.unwrap_err().is_cancelled());
    answer.release();
    drop(soon("x is free", rig.other.lock("x").lock()).await.unwrap());
    assert!(rig.proxy.fired(forgotten) > 0, "a connection was forgotten");
}

/// The look before took longer than the lease, and what was sent after it counted a hold of another process down that had come meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_once_is_not_sent_when_the_lease_has_ended_during_the_look_before() {
    for sent_once in ["the last hold", "one of two", "an entry"] {
        let rig = rig().await;
        let clock = ManualClock::new(ms(1_000_000));
        let builder = Client::builder().url(rig.proxy.url()).clock(Arc::new(clock.clone()));
        let client = builder.response_timeout(ms(60_000)).connect().await.unwrap();
        let lease = Lease::Fixed(ms(600_000));
        let guard = client.lock("x").acquire().lease(lease).await.unwrap().unwrap();
        let handed: Owner = guard.owner().to_text().parse().unwrap();
        let second = if sent_once == "one of two" { Some(guard.reenter().await.unwrap()) } else { None };
        clock.advance(ms(20_000));
        let answer = Gate::new();
        let look =
            rig.proxy.rule(script(&scripts::RENEW).nth(1), Action::HoldReplyUntilReleased(answer.clone()));
        let sending = tokio::spawn(async move {
            match second {
                Some(second) => (second.unlock().await, Some(guard)),
                None if sent_once == "an entry" => {
                    (guard.reenter().await.map(|_| Unlocked::StillHeld(2)), Some(guard))
                }
                None => (guard.unlock().await, None),
            }
        });
        rig.proxy.wait_fired(look, 1, SOON).await.unwrap();
        // The lease is over, on the server as well, and another process comes to hold under the owner.
        clock.advance(ms(700_000));
        rig.server.cmd(&["DEL", "x"]).unwrap();
        let theirs = rig.other.lock("x").acquire().owner(&handed).lease(lease).await.unwrap().unwrap();
        answer.release();
        let (outcome, _kept) = soon("its end", sending).await.unwrap();
        match outcome {
            Ok(outcome) => assert!(matches!(outcome, Unlocked::AlreadyLost(_)), "{sent_once}: {outcome:?}"),
            Err(error) => assert_eq!((sent_once, error.kind()), ("an entry", ErrorKind::Lost)),
        }
        assert_eq!(theirs.unlock().await.unwrap(), Unlocked::Released, "{sent_once} has counted nothing");
    }
}
