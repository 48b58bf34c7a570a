use super::*;
use crate::{keys::KeyKind, name::LockName};

const SENT: SentAt = SentAt { at_ms: 0, incarnation: 0 };

fn sent(at_ms: u64) -> SentAt {
    SentAt { at_ms, ..SENT }
}

#[test]
fn the_margin_is_a_hundredth_at_least_ten_ms_at_most_half() {
    assert_eq!(margin_ms(30_000), 300);
    assert_eq!(margin_ms(500), 10);
    assert_eq!(margin_ms(12), 6);
    assert_eq!(margin_ms(1), 0);
}

fn lease() -> HeldLease {
    let keys = Arc::new(Keys::new(LockName::from("x"), KeyKind::Lock));
    let lease_term = LeaseTerm { lease_ms: 1_000, renewed: true };
    HeldLease::new(keys, Owner::new("c", 1), &crate::recipes::PLAIN, None, lease_term, SENT)
}

#[test]
fn what_one_server_was_seen_to_have_another_may_lack() {
    let lease = lease();
    let doubt = |since_ms, incarnation| LastInterruption { since_ms, incarnation };
    assert!(lease.is_seen_since(doubt(0, 0)) && !lease.is_seen_since(doubt(1, 0)));
    assert!(!lease.is_seen_since(doubt(0, 1)));
    lease.note_seen(SentAt { at_ms: 20, incarnation: 1 });
    assert!(lease.is_seen_since(doubt(20, 1)) && !lease.is_seen_since(doubt(0, 2)));
    lease.note_seen(SentAt { at_ms: 10, incarnation: 0 });
    assert!(lease.is_seen_since(doubt(20, 1)) && lease.successor(lease.recipe).is_seen_since(doubt(20, 1)));
}

#[test]
fn a_hold_that_was_seen_to_be_over_does_not_come_back() {
    let (seen, unseen) = (lease(), lease());
    assert!(seen.is_valid(989) && !seen.is_valid(990));
    for (lease, answered_ms, goes_on) in [(&seen, 980, false), (&unseen, 989, true), (&lease(), 990, false)] {
        assert_eq!(lease.confirmed(sent(500), 1_000, answered_ms), goes_on);
        assert_eq!(lease.is_valid(1_200), goes_on);
    }
}

#[test]
fn a_re_entry_for_less_puts_off_no_renewal() {
    let lease = lease();
    assert!(lease.confirmed(sent(300), 200, 300));
    let due_ms = || lease.schedule.renew_due_ms.load(Ordering::Relaxed);
    assert_eq!((due_ms(), lease.deadline_ms()), (333, 990));
    assert!(lease.confirmed(sent(400), 1_000, 400));
    assert_eq!((due_ms(), lease.deadline_ms()), (733, 1_390));
}

#[test]
fn it_is_renewed_for_as_long_as_the_longest_that_stay() {
    let renewed = |lease_ms| LeaseTerm { lease_ms, renewed: true };
    let fixed = |lease_ms| LeaseTerm { lease_ms, renewed: false };
    let enter = |lease: &HeldLease, lease_term: LeaseTerm| {
        lease.reentries();
        lease.lasts(lease_term);
        assert!(lease.enter(lease_term.renewed));
    };
    let lease = lease();
    for (lease_term, longest_ms) in [(renewed(9_000), 9_000), (renewed(5_000), 9_000), (fixed(20_000), 9_000)]
    {
        enter(&lease, lease_term);
        assert_eq!(lease.lease_ms(), longest_ms);
    }
    lease.guard_gives_back(renewed(9_000));
    assert_eq!((lease.lease_ms(), lease.longest_ms()), (5_000, 9_000));
    lease.guard_gives_back(fixed(20_000));
    assert_eq!(lease.lease_ms(), 5_000);
    assert!(!lease.guard_goes_unreleased(renewed(1_000)));
    assert_eq!(lease.lease_ms(), 5_000);
    lease.guard_gives_back(renewed(5_000));
    assert_eq!(lease.lease_ms(), 5_000, "the last one goes with it");
}

#[test]
fn a_hold_that_is_not_renewed_makes_no_renewal_longer() {
    let keys = Arc::new(Keys::new(LockName::from("x"), KeyKind::Lock));
    let lease_term = LeaseTerm { lease_ms: 3_600_000, renewed: false };
    let lease = HeldLease::new(keys, Owner::new("c", 1), &crate::recipes::PLAIN, None, lease_term, SENT);
    lease.lasts(LeaseTerm { lease_ms: 30_000, renewed: true });
    assert!(lease.enter(true));
    assert_eq!((lease.lease_ms(), lease.longest_ms()), (30_000, 3_600_000));
}

#[test]
fn what_an_answer_after_the_deadline_has_not_found_may_have_ended() {
    let lease = lease();
    assert_eq!(lease.reason_if_missing(989), LossReason::Deleted);
    assert_eq!(lease.reason_if_missing(990), LossReason::Expired);
}
