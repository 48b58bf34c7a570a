//! What a re-entry that was given up leaves when the hold that it was to enter ends meanwhile.

use redlatch::{AnyGuard, Guard, Lease, Unlocked, scripts};
use redlatch_testkit::proxy::{Action, Gate};

use super::{KINDS, Rig, begun, rig, script, stranger};
use crate::fixture::{SOON, ms, soon};

const LONG: Lease = Lease::Fixed(ms(600_000));

fn entering(kind: &str) -> &'static scripts::Script {
    match kind {
        "write" => &scripts::WRITE_ENTER,
        "read" => &scripts::READ_ENTER,
        _ => &scripts::ENTER,
    }
}

/// Keeps back the first answer to a re-entry. The server has counted it by then.
async fn enters(rig: &Rig, kind: &str, work: impl Future) -> Gate {
    let gate = Gate::new();
    let counted = rig.proxy.rule(script(entering(kind)).nth(1), Action::HoldReplyUntilReleased(gate.clone()));
    let given_up = begun(work);
    rig.proxy.wait_fired(counted, 1, SOON).await.unwrap();
    drop(given_up);
    gate
}

/// Beside a write hold one hold was counted down, and the other one stayed for the whole lease, though every release had succeeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_re_entry_that_is_given_up_beside_a_write_hold_leaves_nothing() {
    for (by_writer, dropped) in [(false, false), (false, true), (true, false), (true, true)] {
        let rig = rig().await;
        let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
        let reading = writing.read().await.unwrap();
        let gate = match by_writer {
            true => enters(&rig, "read", writing.read()).await,
            false => enters(&rig, "read", reading.as_guard().reenter()).await,
        };
        if dropped {
            drop(reading);
            gate.release();
        } else {
            let ending = begun(reading.into_guard().unlock());
            gate.release();
            assert_eq!(soon("the end of reading", ending).await.unwrap(), Unlocked::Released);
        }
        assert_eq!(soon("the end of writing", writing.unlock()).await.unwrap(), Unlocked::Released);
        rig.quiet().await;
        assert!(
            stranger(&rig, "read").await,
            "by the writer: {by_writer}, dropped: {dropped}: a hold is left"
        );
    }
}

/// The task that enters and the guard that goes are two here: nothing waits for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_hold_that_ends_while_its_writer_enters_it_is_taken_anew() {
    for shared in [false, true] {
        let rig = rig().await;
        let writing = rig.client.read_write_lock("x").write().lock().await.unwrap();
        if shared {
            let _text = writing.owner().to_text();
        }
        let reading = writing.read().await.unwrap();
        let gate = Gate::new();
        let counted = script(entering("read")).nth(1);
        let counted = rig.proxy.rule(counted, Action::HoldReplyUntilReleased(gate.clone()));
        let again = begun(writing.read());
        rig.proxy.wait_fired(counted, 1, SOON).await.unwrap();
        drop(reading);
        gate.release();
        let again = soon("the read hold", again).await.unwrap();
        assert!(again.is_valid());
        soon("the end of reading", again.into_guard().unlock()).await.unwrap();
        assert_eq!(soon("the end of writing", writing.unlock()).await.unwrap(), Unlocked::Released);
        rig.quiet().await;
        assert!(stranger(&rig, "read").await, "shared: {shared}: a hold is left");
    }
}

/// The server still counted two when it was told of the shorter time, so nothing was shortened, though the answer said so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_detach_for_beside_a_re_entry_that_is_given_up_leaves_the_hold_for_that_time_alone() {
    for kind in KINDS {
        for (twice, shown) in [(false, false), (true, false), (false, true), (true, true)] {
            let rig = rig().await;
            let guard = of_kind!(rig.client, kind, lock => lock.acquire().lease(LONG).await.unwrap().map(AnyGuard::into_guard));
            let guard: Guard = guard.expect("it is free");
            if shown {
                let _text = guard.owner().to_text();
            }
            let second = if twice { Some(guard.reenter().await.unwrap()) } else { None };
            let gate = enters(&rig, kind, guard.reenter()).await;
            // Its release waits for the re-entry.
            drop(second);
            let leaving = guard.detach_for(ms(500));
            gate.release();
            let what = format!("{kind}, entered twice: {twice}, owner shown: {shown}");
            assert!(soon("the shorter time", leaving).await.unwrap(), "{what}");
            let left = of_kind!(rig.other, kind, lock => lock.remaining_ttl().await.unwrap());
            assert!(left.is_none_or(|left| left < ms(300_000)), "{what}: {left:?}");
            rig.quiet().await;
            let left = of_kind!(rig.other, kind, lock => lock.remaining_ttl().await.unwrap());
            assert!(left.is_none_or(|left| left < ms(300_000)), "{what}, later: {left:?}");
        }
    }
}
