use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::name::LockName;

struct Rig {
    owners: Arc<Owners>,
    now_ms: Arc<AtomicU64>,
    keys: Keys,
    owner: Owner,
}

fn rig() -> Rig {
    let now_ms = Arc::new(AtomicU64::new(1));
    let clock = now_ms.clone();
    let owner = Owner::new("client", 1);
    owner.mark_reusable();
    let keys = Keys::new(LockName::new("x").unwrap(), KeyKind::Write);
    Rig { owners: Owners::new(move || clock.load(Ordering::Relaxed)), now_ms, keys, owner }
}

impl Rig {
    fn records(&self) -> usize {
        self.owners.buckets.iter().map(|bucket| bucket.lock().unwrap().records.len()).sum()
    }
}

#[tokio::test]
async fn one_attempt_at_a_time() {
    let Rig { owners, keys, owner, .. } = &rig();
    let first = owners.claim(keys, owner, AttemptMode::Waits).await;
    let mut second = std::pin::pin!(owners.claim(keys, owner, AttemptMode::Once));
    assert!(futures_util::poll!(&mut second).is_pending());
    let readers = Keys::new(LockName::new("x").unwrap(), KeyKind::Read);
    let refused = owners.try_claim(&readers, owner, AttemptMode::Once);
    assert_eq!(refused.err(), Some(AttemptMode::Waits), "both sides are one name");
    drop(
        owners.claim(&Keys::new(LockName::new("y").unwrap(), KeyKind::Lock), owner, AttemptMode::Once).await,
    );
    drop(first);
    drop(second.await);
}

#[tokio::test]
async fn nothing_is_asked_for_while_something_is_pending() {
    let rig = rig();
    let Rig { owners, keys, owner, .. } = &rig;
    let (one, two) = (owners.block(keys, owner), owners.block(keys, owner));
    let Ok(claim) = owners.try_claim(keys, owner, AttemptMode::Once) else { panic!("no task asks") };
    assert!(!claim.try_begin().unwrap());
    {
        let mut quiet = std::pin::pin!(claim.quiet());
        drop(one);
        assert!(futures_util::poll!(&mut quiet).is_pending());
        drop(two);
        quiet.await.unwrap();
    }
    drop(owners.block_unless_asking(keys, owner).expect("its attempt has the claim, and has not begun"));
    assert!(claim.try_begin().unwrap());
    assert!(owners.block_unless_asking(keys, owner).is_none());
    let block = owners.block(keys, owner);
    {
        let mut alone = std::pin::pin!(block.until_no_attempt_asks());
        assert!(futures_util::poll!(&mut alone).is_pending() && !block.no_attempt_asks());
        assert!(!claim.is_disturbed());
        block.overtake_attempt();
        assert!(claim.is_disturbed());
        claim.pause();
        assert!(block.no_attempt_asks() && !claim.try_begin().unwrap());
        assert!(claim.is_disturbed(), "it has not begun anew");
        drop(claim);
        alone.await;
    }
    drop(block);
    assert_eq!(rig.records(), 0);
}

#[tokio::test]
async fn an_owner_whose_release_was_never_answered_is_refused_until_it_cannot_arrive_any_more() {
    let rig = rig();
    let Rig { owners, keys, owner, now_ms } = &rig;
    let block = owners.block(keys, owner);
    block.unanswered();
    drop(block);
    let Ok(claim) = owners.try_claim(keys, owner, AttemptMode::Once) else { panic!("no task asks") };
    assert_eq!(claim.quiet().await.unwrap_err().kind(), ErrorKind::OwnerInDoubt);
    now_ms.fetch_add(DOUBT_MS, Ordering::Relaxed);
    claim.quiet().await.unwrap();
}

#[test]
fn owners_that_nobody_can_use_again_leave_no_trace() {
    let rig = rig();
    let fresh = Owner::new("client", 2);
    let block = rig.owners.block(&rig.keys, &fresh);
    block.unanswered();
    assert_eq!(rig.records(), 0);
    drop(block);
}

#[test]
fn doubts_that_are_over_are_swept() {
    let rig = rig();
    for round in 0..10 {
        for n in 0..1_000 {
            let owner = Owner::new("client", n);
            owner.mark_reusable();
            let block = rig.owners.block(&rig.keys, &owner);
            block.unanswered();
        }
        rig.now_ms.fetch_add(DOUBT_MS + 1, Ordering::Relaxed);
        assert!(rig.records() <= 3_000, "round {round}: {}", rig.records());
    }
}
