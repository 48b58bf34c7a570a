//! Requests that count, and arrive when their repeat and what came of it are over: the counts stay what they were.

use redlatch::{AnyGuard, ErrorKind, Unlocked, scripts};
use redlatch_testkit::proxy::Action;

use super::{rig, script};
use crate::fixture::soon;

/// A request of its own turned a write hold into a read hold. It came late, when the read hold of its repeat had gone or another write hold
/// had been entered, and turned that one, though no task had asked for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_late_of_a_downgrade_takes_no_write_hold() {
    for (asked, entered) in [
        (&scripts::READ_ACQUIRE, false),
        (&scripts::WRITE_RELEASE_ONE, false),
        (&scripts::WRITE_RELEASE_ONE, true),
    ] {
        let rig = rig().await;
        let both = rig.client.read_write_lock("x");
        let first = both.write().lock().await.unwrap();
        let second = first.reenter().await.unwrap();
        let lost = rig.proxy.rule(script(asked).nth(1), Action::CloseBeforeRequest);
        let reading = soon("the downgrade", first.downgrade()).await.unwrap();
        assert_eq!(rig.proxy.fired(lost), 1, "the first request is lost");
        let third = if entered { Some(second.reenter().await.unwrap()) } else { None };
        soon("the end of reading", reading.into_guard().unlock()).await.unwrap();
        let theirs = rig.other.read_write_lock("x");
        assert!(second.is_valid() && theirs.read().try_lock().await.unwrap().is_none());
        rig.arrives_late(asked);
        let reader = theirs.read().try_lock().await.unwrap();
        assert!(!(reader.is_some() && second.is_valid()), "a reader beside a writer");
        if let Some(third) = third {
            drop(soon("the next downgrade", third.downgrade()).await.unwrap());
        }
        assert!(
            second.is_valid() && theirs.read().try_lock().await.unwrap().is_none(),
            "{:?}",
            second.loss()
        );
        assert_eq!(soon("the end of writing", second.unlock()).await.unwrap(), Unlocked::Released);
    }
}

/// It came after another entry, and what it took away was missed when releases counted down for a shared owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_leave_takes_no_hold_that_was_entered_since() {
    let rig = rig().await;
    let one = rig.client.lock("x").lock().await.unwrap();
    let two = one.reenter().await.unwrap();
    let three = one.reenter().await.unwrap();
    let lost = rig.proxy.rule(script(&scripts::RELEASE_ONE).nth(1), Action::CloseBeforeRequest);
    assert_eq!(soon("the release", three.unlock()).await.unwrap(), Unlocked::StillHeld(2));
    assert_eq!(rig.proxy.fired(lost), 1, "the first request is lost");
    let four = soon("the next entry", one.reenter()).await;
    rig.arrives_late(&scripts::RELEASE_ONE);
    // From now on other processes may use the owner.
    let field = one.owner().to_text();
    let counted = match four {
        Ok(four) => soon("a release", four.unlock()).await.unwrap(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::OwnerInDoubt, "{error}");
            Unlocked::StillHeld(2)
        }
    };
    let counted = [counted, soon("a release", two.unlock()).await.unwrap()];
    let theirs = rig.other.lock("x").try_lock().await.unwrap();
    assert!(!(theirs.is_some() && one.is_valid()), "two valid holders after {counted:?}");
    assert!(one.is_valid(), "{:?}", one.loss());
    assert_eq!(counted, [Unlocked::StillHeld(2), Unlocked::StillHeld(1)]);
    // A hold that the server counts too many is left to its lease, because others may count there now.
    assert_ne!(rig.field("x", &field), redis::Value::Nil);
    let last = soon("the last release", one.unlock()).await.unwrap();
    assert!(matches!(last, Unlocked::Released | Unlocked::StillHeld(_)), "{last:?}");
}
