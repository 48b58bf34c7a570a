//! Who may act for an owner: the one place that decides it, for all kinds of lock and all paths.
//!
//! An owner can be used again if the program asked for it, wrote it out, or bound it to a thread. It must be granted nothing while an
//! earlier request of it may still run: a release, an undo or a transfer that arrives late would take the new hold
//! away, and two holders would be valid. So each attempt takes the [`OwnerClaim`]; a name has one for each owner. Each request that may take a hold away
//! has an [`OwnerBlock`] from before it is sent until its answer is known. An attempt begins to ask when the owner is not blocked, and what
//! blocks it is sent when no attempt asks. An answer that never came leaves the owner in doubt: it is granted nothing more under that name
//! for as long as a network may deliver what was sent.
//!
//! The two sides of a read-write lock are one name here. Owners that nobody can use again cost nothing: they have no entry.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::BuildHasher,
    sync::{Arc, PoisonError},
};

use crate::{
    error::{Error, ErrorKind},
    keys::{KeyKind, Keys},
    owner::Owner,
    panic_safe::{NextChange, Signal},
    randomness::Salted,
    store::Fault,
    sync::{Mutex, MutexGuard},
};

const BUCKETS: usize = 16;

/// For how long a request without an answer may still arrive. Kernels give up resending after about a quarter of an hour
/// (Linux: `tcp_retries2`, 924 s), and proxies keep nothing for longer than their connections.
const DOUBT_MS: u64 = 3_600_000;

/// A bucket with at least so many records is searched for those that are over.
const SWEEP_FROM_MIN: usize = 64;

/// A name and one of its owners.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Id {
    key: Arc<[u8]>,
    owner: Arc<str>,
}

/// What another attempt of the same owner is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptMode {
    /// One look, which is soon over.
    Once,
    /// It waits until it has what it asks for.
    Waits,
}

/// What is under way for one owner of one name.
#[derive(Default)]
struct Record {
    /// A task has the claim, and waits if need be.
    asking: Option<AttemptMode>,
    /// It has begun to ask, so that a request of it may be under way.
    has_begun: bool,
    /// A request was sent beside it that may have taken away what it was granted.
    disturbed: bool,
    /// How many requests are under way that may take a hold of this owner away.
    blocks: u32,
    /// What an acquire may have left is being undone.
    undoing: bool,
    /// Until when such a request may arrive whose answer never came; 0 for none.
    doubt_ms: u64,
    /// Until when such a request about read holds may arrive.
    read_doubt_ms: u64,
    /// Wakes those who wait for the claim.
    changed: Arc<Signal>,
}

impl Record {
    fn is_over(&self, now_ms: u64) -> bool {
        self.asking.is_none() && self.blocks == 0 && self.doubt_ms <= now_ms
    }
}

/// The records under one mutex of several.
#[derive(Default)]
struct Bucket {
    records: HashMap<Id, Record>,
    /// From how many records on those whose doubt is over are looked for.
    sweep_from: usize,
}

/// The owners of one client that can be used again.
pub(crate) struct Owners {
    buckets: [Mutex<Bucket>; BUCKETS],
    clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    hasher: Salted,
}

impl Owners {
    /// The time of the boot-time clock.
    pub(super) fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    pub(crate) fn new(clock: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<Owners> {
        Arc::new(Owners { buckets: Default::default(), clock: Arc::new(clock), hasher: Default::default() })
    }

    fn bucket(&self, id: &Id) -> MutexGuard<'_, Bucket> {
        let at = self.hasher.hash_one(id) as usize % BUCKETS;
        self.buckets[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins something for an owner.
    fn begin<T>(&self, id: &Id, change: impl FnOnce(&mut Record) -> T) -> T {
        let mut bucket = self.bucket(id);
        if bucket.records.len() >= bucket.sweep_from.max(SWEEP_FROM_MIN) {
            let now_ms = (self.clock)();
            bucket.records.retain(|_, record| !record.is_over(now_ms));
            bucket.sweep_from = 2 * bucket.records.len();
        }
        change(bucket.records.entry(id.clone()).or_default())
    }

    /// Ends something for an owner, and wakes those who wait for that.
    fn end(&self, id: &Id, change: impl FnOnce(&mut Record)) {
        let mut bucket = self.bucket(id);
        let Entry::Occupied(mut entry) = bucket.records.entry(id.clone()) else { return };
        change(entry.get_mut());
        let changed = entry.get().changed.clone();
        if entry.get().is_over(0) {
            entry.remove();
        }
        drop(bucket);
        changed.tell();
    }

    /// Takes the claim on an owner, or says what the attempt does that has it. It may have to become [quiet](OwnerClaim::quiet) before the
    /// owner asks.
    pub(crate) fn try_claim(
        self: &Arc<Self>,
        keys: &Keys,
        owner: &Owner,
        what: AttemptMode,
    ) -> Result<OwnerClaim, AttemptMode> {
        self.access_or_wait(&id(keys, owner), what).map_err(|(other, _)| other)
    }

    fn access_or_wait(
        self: &Arc<Self>,
        id: &Id,
        what: AttemptMode,
    ) -> Result<OwnerClaim, (AttemptMode, NextChange)> {
        self.begin(id, |record| match record.asking {
            Some(other) => Err((other, record.changed.next_owned())),
            None => {
                record.asking = Some(what);
                Ok(())
            }
        })?;
        Ok(OwnerClaim { owners: self.clone(), id: id.clone(), blocked_by_reads_only: false })
    }

    /// Waits for the claim on an owner: the attempts of one owner for one name are made one after the other.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future takes nothing.
    pub(crate) async fn claim(self: &Arc<Self>, keys: &Keys, owner: &Owner, what: AttemptMode) -> OwnerClaim {
        let id = id(keys, owner);
        loop {
            match self.access_or_wait(&id, what) {
                Ok(claim) => return claim,
                Err((_, changed)) => changed.comes().await,
            }
        }
    }

    /// While it lives, the owner is granted nothing: requests are under way which may take a hold of it away. An owner that nobody can use again needs none.
    pub(crate) fn block(self: &Arc<Self>, keys: &Keys, owner: &Owner) -> OwnerBlock {
        let mark = self.mark(keys, owner);
        if mark.counts {
            self.begin(&mark.id(), |record| record.blocks += 1);
        }
        OwnerBlock(mark)
    }

    /// As [`block`](Self::block), unless the owner asks at this moment: what it is granted then is not to be taken away.
    pub(crate) fn block_unless_asking(self: &Arc<Self>, keys: &Keys, owner: &Owner) -> Option<OwnerBlock> {
        self.block_if(keys, owner, |record| !record.has_begun).ok()
    }

    /// As [`block`](Self::block), unless the owner asks or gives back at this moment: what is there then is its own. Otherwise answers
    /// with what resolves when that may have changed.
    pub(crate) fn block_if_idle(
        self: &Arc<Self>,
        keys: &Keys,
        owner: &Owner,
    ) -> Result<OwnerBlock, NextChange> {
        self.block_if(keys, owner, |record| record.blocks == 0 && !record.has_begun)
    }

    fn block_if(
        self: &Arc<Self>,
        keys: &Keys,
        owner: &Owner,
        admits: impl FnOnce(&Record) -> bool,
    ) -> Result<OwnerBlock, NextChange> {
        let mark = self.mark(keys, owner);
        if mark.counts {
            self.begin(&mark.id(), |record| {
                if admits(record) {
                    record.blocks += 1;
                    Ok(())
                } else {
                    Err(record.changed.next_owned())
                }
            })?;
        }
        Ok(OwnerBlock(mark))
    }

    /// A block that is still to be counted, if it counts: what drops it counts it down.
    fn mark(self: &Arc<Self>, keys: &Keys, owner: &Owner) -> Mark {
        Mark {
            owners: self.clone(),
            key: keys.key.clone(),
            owner: owner.clone(),
            reads: keys.kind == KeyKind::Read,
            counts: owner.is_reusable(),
        }
    }

    /// Whether a request is under way that may take a hold of this owner away.
    pub(crate) fn is_blocked(&self, keys: &Keys, owner: &Owner) -> bool {
        let id = id(keys, owner);
        self.bucket(&id).records.get(&id).is_some_and(|record| record.blocks > 0)
    }
}

fn id(keys: &Keys, owner: &Owner) -> Id {
    Id { key: keys.key.clone(), owner: owner.field().clone() }
}

/// The right to ask in an owner's name. One attempt at a time has it, until it is dropped.
pub(crate) struct OwnerClaim {
    owners: Arc<Owners>,
    id: Id,
    /// The attempt asks to read while its owner has a write hold. A late request about write holds can only be about that hold, because an owner
    /// in doubt is granted no other write hold; so only doubt about read holds matters.
    pub(crate) blocked_by_reads_only: bool,
}

impl OwnerClaim {
    /// Begins to ask, unless something is under way that could take a grant away again.
    ///
    /// # Errors
    ///
    /// The owner is in doubt.
    pub(crate) fn try_begin(&self) -> Result<bool, Error> {
        self.check_doubt()?;
        Ok(self.wait_or_begin().is_none())
    }

    /// Begins, once nothing is under way that could take a hold away. It is for a hold that the owner has. A request that was
    /// never answered does not matter then: it belongs to this very hold, because an owner in doubt is granted no other.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the claim stays.
    pub(crate) async fn begun_with_a_hold(&self) {
        while let Some(changed) = self.wait_or_begin() {
            changed.comes().await;
        }
    }

    fn wait_or_begin(&self) -> Option<NextChange> {
        self.owners.begin(&self.id, |record| {
            record.has_begun = record.blocks == 0;
            record.disturbed &= !record.has_begun;
            (!record.has_begun).then(|| record.changed.next_owned())
        })
    }

    /// Stops asking, and keeps the claim.
    pub(crate) fn pause(&self) {
        self.owners.end(&self.id, |record| record.has_begun = false);
    }

    /// Whether what was granted since it began may have been taken away by a request that could not wait for its end.
    pub(crate) fn is_disturbed(&self) -> bool {
        let bucket = self.owners.bucket(&self.id);
        bucket.records.get(&self.id).is_some_and(|record| record.disturbed)
    }

    /// An error while a request of the owner may still arrive that was never answered.
    fn check_doubt(&self) -> Result<(), Error> {
        let now_ms = (self.owners.clock)();
        let bucket = self.owners.bucket(&self.id);
        let doubt_ms = bucket.records.get(&self.id).map_or(0, |record| {
            if self.blocked_by_reads_only { record.read_doubt_ms } else { record.doubt_ms }
        });
        if doubt_ms > now_ms {
            return Err(Error::new(
                ErrorKind::OwnerInDoubt,
                "a request that takes holds of this owner away was never answered, and would end a new hold if it still arrived",
            ));
        }
        Ok(())
    }

    fn wait_until_quiet(&self) -> Option<NextChange> {
        let bucket = self.owners.bucket(&self.id);
        let record = bucket.records.get(&self.id).filter(|record| record.blocks > 0)?;
        Some(record.changed.next_owned())
    }

    /// Waits until it is quiet.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the claim stays.
    ///
    /// # Errors
    ///
    /// The owner is in doubt.
    pub(crate) async fn quiet(&self) -> Result<(), Error> {
        loop {
            self.check_doubt()?;
            match self.wait_until_quiet() {
                Some(changed) => changed.comes().await,
                None => return Ok(()),
            }
        }
    }
}

impl Drop for OwnerClaim {
    fn drop(&mut self) {
        self.owners.end(&self.id, |record| {
            record.asking = None;
            record.has_begun = false;
            record.disturbed = false;
        });
    }
}

/// Covers requests that may take a hold away: while it lives, their owner is granted nothing.
#[must_use = "dropping it says that no such request is under way"]
pub(crate) struct OwnerBlock(Mark);

#[derive(Clone)]
struct Mark {
    owners: Arc<Owners>,
    key: Arc<[u8]>,
    owner: Owner,
    /// The requests are about read holds.
    reads: bool,
    /// The owner could be used again when the block was made, so its attempts wait for the end of that.
    counts: bool,
}

impl Mark {
    fn id(&self) -> Id {
        Id { key: self.key.clone(), owner: self.owner.field().clone() }
    }
}

impl OwnerBlock {
    /// One more block of the same owner.
    pub(crate) fn another(&self) -> OwnerBlock {
        if self.0.counts {
            self.0.owners.begin(&self.0.id(), |record| record.blocks += 1);
        }
        OwnerBlock(self.0.clone())
    }

    /// Lasts as long as the work, and no longer: what waits for its outcome finds the owner at rest.
    pub(crate) async fn during<T>(self, work: impl AsyncFnOnce(&OwnerBlock) -> T) -> T {
        let outcome = work(&self).await;
        drop(self);
        outcome
    }

    /// Whether attempts of the owner wait for its end. It has to be with work that comes to its end by itself then.
    pub(crate) fn delays_attempts(&self) -> bool {
        self.0.counts
    }

    /// Whether no attempt of the owner asks at this moment; none begins as long as this block lasts.
    pub(crate) fn no_attempt_asks(&self) -> bool {
        self.asking_attempt().is_none()
    }

    fn asking_attempt(&self) -> Option<NextChange> {
        if !self.0.counts {
            return None;
        }
        let id = self.0.id();
        let bucket = self.0.owners.bucket(&id);
        let record = bucket.records.get(&id).filter(|record| record.has_begun)?;
        Some(record.changed.next_owned())
    }

    /// Waits until no attempt of the owner asks: what it is granted is known then.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing changes.
    pub(crate) async fn until_no_attempt_asks(&self) {
        while let Some(changed) = self.asking_attempt() {
            changed.comes().await;
        }
    }

    /// What the attempt of the owner was handed has been taken back from it, so it has nothing to lose: it is not waited for, and comes in again.
    pub(crate) fn takes_over(&self) {
        if self.0.counts {
            self.0.owners.end(&self.0.id(), |record| {
                record.disturbed |= record.has_begun;
                record.has_begun = false;
            });
        }
    }

    /// Its request waits no longer for an attempt of the owner, which is not to trust its grant.
    pub(crate) fn overtake_attempt(&self) {
        if self.0.counts {
            self.0.owners.begin(&self.0.id(), |record| record.disturbed |= record.has_begun);
        }
    }

    /// Begins to undo, once nothing else is undone for this owner. Of two undoings at once the one would expect what the other counts down.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing has begun.
    pub(crate) async fn undoes(&self) -> Undoing<'_> {
        while self.0.counts
            && let Some(changed) = self.0.owners.begin(&self.0.id(), |record| {
                let before = std::mem::replace(&mut record.undoing, true);
                before.then(|| record.changed.next_owned())
            })
        {
            changed.comes().await;
        }
        Undoing(&self.0)
    }

    /// Whether a request of the owner was never answered, and may still arrive.
    pub(crate) fn is_in_doubt(&self) -> bool {
        let id = self.0.id();
        let bucket = self.0.owners.bucket(&id);
        bucket.records.get(&id).is_some_and(|record| record.doubt_ms > (self.0.owners.clock)())
    }

    /// A request is sent now. Unless it is [answered](Sent::answered), it may still arrive when this block is gone.
    pub(crate) fn sent(&self) -> Sent<'_> {
        Sent { block: self, answered: false }
    }

    /// Notes the end of a request: without an answer it may still arrive.
    pub(crate) fn ended<T>(&self, outcome: &Result<T, Fault>) {
        if outcome.as_ref().is_err_and(Fault::may_arrive) {
            self.unanswered();
        }
    }

    /// A request was not answered. Whether that matters is seen now and not when the block was made: a guard may have handed the owner
    /// out while the request was on its way.
    pub(crate) fn unanswered(&self) {
        if self.0.owner.is_reusable() {
            let until_ms = (self.0.owners.clock)().saturating_add(DOUBT_MS);
            self.0.owners.begin(&self.0.id(), |record| {
                record.doubt_ms = until_ms;
                if self.0.reads {
                    record.read_doubt_ms = until_ms;
                }
            });
        }
    }
}

impl Drop for OwnerBlock {
    fn drop(&mut self) {
        if self.0.counts {
            self.0.owners.end(&self.0.id(), |record| {
                debug_assert!(record.blocks > 0, "a block is dropped once");
                record.blocks = record.blocks.saturating_sub(1);
            });
        }
    }
}

/// What an acquire may have left is being undone, until dropped.
#[must_use = "dropping it lets the next undoing begin"]
pub(crate) struct Undoing<'a>(&'a Mark);

impl Drop for Undoing<'_> {
    fn drop(&mut self) {
        if self.0.counts {
            self.0.owners.end(&self.0.id(), |record| record.undoing = false);
        }
    }
}

/// A request that may take a hold away, on its way.
#[must_use = "dropping it says that the answer never came"]
pub(crate) struct Sent<'a> {
    block: &'a OwnerBlock,
    answered: bool,
}

impl Sent<'_> {
    /// The request has ended somehow.
    pub(crate) fn answered<T>(mut self, outcome: &Result<T, Fault>) {
        self.answered = true;
        self.block.ended(outcome);
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.block.unanswered();
        }
    }
}

#[cfg(redlatch_shuttle)]
pub(crate) mod threads;

#[cfg(test)]
mod tests;
