//! What is on its way for a hold when it is lost: its guard is still there, and can hand its owner out.

use std::future::IntoFuture;

use redlatch::{Lease, Wait, scripts};
use redlatch_testkit::proxy::{Action, Gate, Nth};

use super::{begun, rig, script, stranger};
use crate::fixture::{SOON, ms, soon};

/// After a first answer that was lost, a look follows the end of the hold. It ended the next hold of the owner: two valid holders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_look_after_the_loss_of_a_hold_does_not_end_the_next_hold_of_its_owner() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    rig.proxy.rule(script(&scripts::ACQUIRE).nth(1), Action::CloseAfterRequest);
    let lost = lock.acquire().lease(Lease::Fixed(ms(500))).wait(Wait::Forever).await.unwrap().unwrap();
    let gate = Gate::new();
    let look = Action::HoldReplyUntilReleased(gate.clone());
    let look = rig.proxy.rule(script(&scripts::RELEASE).which(Nth::First(1)), look);
    soon("the loss", lost.lost()).await;
    rig.proxy.wait_fired(look, 1, SOON).await.unwrap();
    let mut again = begun(lock.acquire().owner(lost.owner()).wait(Wait::Forever).into_future());
    assert!(tokio::time::timeout(ms(300), &mut again).await.is_err(), "the look is still on its way");
    gate.release();
    let again = soon("the next hold", again).await.unwrap().unwrap();
    assert!(again.is_valid() && !stranger(&rig, "plain").await, "two valid holders");
}

/// A guard that was given back while another one of its hold stayed: what counts it down took the hold of a process that had entered the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_counts_down_a_hold_that_is_lost_meanwhile_meets_no_next_hold_of_its_owner() {
    let rig = rig().await;
    let lock = rig.client.lock("x");
    let lost = lock.acquire().lease(Lease::Fixed(ms(700))).await.unwrap().unwrap();
    let entered = lost.reenter().await.unwrap();
    let gate = Gate::new();
    let leave = Action::HoldReplyUntilReleased(gate.clone());
    let leave = rig.proxy.rule(script(&scripts::RELEASE_ONE).which(Nth::First(1)), leave);
    drop(entered);
    rig.proxy.wait_fired(leave, 1, SOON).await.unwrap();
    soon("the loss", lost.lost()).await;
    let mut again = begun(lock.acquire().owner(lost.owner()).wait(Wait::Forever).into_future());
    assert!(tokio::time::timeout(ms(300), &mut again).await.is_err(), "it is still on its way");
    gate.release();
    let again = soon("the next hold", again).await.unwrap().unwrap();
    assert!(again.is_valid() && !stranger(&rig, "plain").await, "two valid holders");
}
