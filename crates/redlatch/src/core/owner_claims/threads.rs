//! Attempts of one owner beside requests that take its holds away.

use std::sync::Arc;

use shuttle::{
    future::block_on,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
};

use super::{AttemptMode, Owners};
use crate::{
    keys::{KeyKind, Keys},
    name::LockName,
    owner::Owner,
};

/// Two attempts of one owner ask one after the other, and never while a request is under way that takes a hold of it away.
pub fn an_owner_asks_when_nothing_takes_its_holds_away() {
    let owners = Owners::new(|| 0);
    let keys = Arc::new(Keys::new(LockName::from("x"), KeyKind::Lock));
    let owner = Owner::new("c", 1);
    owner.mark_reusable();
    let (asking, removing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let attempts = [(); 2].map(|()| {
        let (owners, keys, owner) = (owners.clone(), keys.clone(), owner.clone());
        let (asking, removing) = (asking.clone(), removing.clone());
        thread::spawn(move || {
            block_on(async {
                let claim = owners.claim(&keys, &owner, AttemptMode::Waits).await;
                while !claim.try_begin().unwrap() {
                    claim.quiet().await.unwrap();
                }
                assert_eq!(asking.fetch_add(1, SeqCst), 0, "one attempt asks at a time");
                assert_eq!(removing.load(SeqCst), 0, "it asks while a request takes its hold away");
                thread::yield_now();
                asking.fetch_sub(1, SeqCst);
                claim.pause();
            });
        })
    });
    let releases = [(); 2].map(|()| {
        let (owners, keys, owner) = (owners.clone(), keys.clone(), owner.clone());
        let (asking, removing) = (asking.clone(), removing.clone());
        thread::spawn(move || {
            let block = owners.block(&keys, &owner);
            block_on(block.until_no_attempt_asks());
            removing.fetch_add(1, SeqCst);
            assert_eq!(asking.load(SeqCst), 0, "a request takes away what an attempt may just be granted");
            thread::yield_now();
            removing.fetch_sub(1, SeqCst);
            drop(block);
        })
    });
    attempts.into_iter().chain(releases).for_each(|thread| thread.join().unwrap());
    assert!(!owners.is_blocked(&keys, &owner), "nothing stays");
}
