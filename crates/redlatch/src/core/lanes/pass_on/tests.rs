//! Moments between two steps of a lane, in which a stalled thread leaves time to others.

use super::*;
use crate::core::lease::SentAt;
use crate::{
    core::{
        Request, Wait,
        lane::WaiterHandle,
        lanes::{JoinStep, TurnLimits},
        owner_claims::Owners,
    },
    error::LossReason,
    keys::{KeyKind, Keys},
    name::LockName,
    owner::Owner,
    recipes::PLAIN,
};

const TERM: LeaseTerm = LeaseTerm { lease_ms: 30_000, renewed: true };

struct Rig {
    lanes: Lanes,
    keys: Arc<Keys>,
    lease: Arc<HeldLease>,
}

/// A lock that is held in a lane.
fn rig() -> Rig {
    let owners = Owners::new(|| 0);
    let turn_limits = TurnLimits { turn_ms_max: 10_000, passes_max: 10_000 };
    let lanes = Lanes::new(turn_limits, Arc::default(), owners);
    let keys = Arc::new(Keys::new(LockName::from("x"), KeyKind::Lock));
    let lease = held(&keys);
    assert!(lanes.install_grant(&lease, None, 0).is_ok_and(|lost| lost.is_empty()));
    Rig { lanes, keys, lease }
}

fn held(keys: &Arc<Keys>) -> Arc<HeldLease> {
    Arc::new(HeldLease::new(
        keys.clone(),
        Owner::new("c", 1),
        &PLAIN,
        None,
        TERM,
        SentAt { at_ms: 0, incarnation: 0 },
    ))
}

impl Rig {
    fn stands_in_line(&self) -> WaiterHandle {
        let request = Arc::new(Request::new(&self.keys, &PLAIN, TERM, Wait::Forever));
        let Ok(JoinStep::Queue(handle)) = self.lanes.join(&request, None, 0) else {
            panic!("the lock is held")
        };
        handle
    }

    /// The holder gives the lease back, and stands still before it tells the next task, which gives up.
    fn stalls_before_it_tells(&self, handle: WaiterHandle, at: ReleaseTime) -> Offer {
        let Next::Offer(offer) = self.lanes.take_out(&self.lease, at) else { panic!("a task waits") };
        drop(handle);
        offer
    }
}

const SURE: LastInterruption = LastInterruption { since_ms: 0, incarnation: 0 };
const AT: ReleaseTime = ReleaseTime { now_ms: 1, interruption: SURE };

/// The holder released it on the server, though the keeper had taken it back, and passed it on again.
#[test]
fn a_lease_that_was_taken_back_before_its_task_was_told_is_not_released_as_well() {
    let rig = rig();
    let (handle, behind) = (rig.stands_in_line(), rig.stands_in_line());
    let offer = rig.stalls_before_it_tells(handle, AT);
    let recipient = offer.successor.clone();
    let late_ms = recipient.offer_due_ms();
    assert!(recipient.take_back(late_ms));
    recipient.note_seen(SentAt { at_ms: late_ms, incarnation: 0 });
    assert!(matches!(rig.lanes.pass_on(&recipient, late_ms, SURE), LaneChoice::Passed), "to the one behind");
    assert!(matches!(rig.lanes.offer(&rig.lease, offer, AT), Next::Choice(LaneChoice::Passed)));
    drop(behind);
}

#[test]
fn a_lease_that_was_lost_before_its_task_was_told_is_not_released() {
    let rig = rig();
    let handle = rig.stands_in_line();
    let offer = rig.stalls_before_it_tells(handle, AT);
    assert!(offer.successor.lose(LossReason::Expired));
    rig.lanes.forget(&offer.successor);
    assert!(matches!(rig.lanes.offer(&rig.lease, offer, AT), Next::Choice(LaneChoice::Passed)));
    assert_eq!(rig.lanes.count(), (0, 0));
}

#[test]
fn a_lease_that_nobody_took_goes_to_the_next_task() {
    let rig = rig();
    let (handle, behind) = (rig.stands_in_line(), rig.stands_in_line());
    let offer = rig.stalls_before_it_tells(handle, AT);
    let recipient = offer.successor.clone();
    let Next::Offer(offer) = rig.lanes.offer(&rig.lease, offer, AT) else { panic!("a task waits") };
    assert!(!recipient.take_back(recipient.offer_due_ms()), "it is no task's, and not the keeper's either");
    assert!(matches!(rig.lanes.offer(&rig.lease, offer, AT), Next::Choice(LaneChoice::Passed)));
    drop(behind);
}

/// It stayed in the lane for ever, and looks for what was late of its owner were not made.
#[test]
fn a_lease_that_was_lost_before_it_was_noted_stays_out_of_the_lane() {
    let rig = rig();
    assert!(rig.lease.lose(LossReason::Expired));
    rig.lanes.forget(&rig.lease);
    assert!(rig.lanes.install_grant(&rig.lease, None, 0).is_ok_and(|lost| lost.is_empty()));
    assert_eq!(rig.lanes.count(), (0, 0));
}
