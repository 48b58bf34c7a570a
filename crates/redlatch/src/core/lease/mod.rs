//! A lease: the hold that the server knows of, as far as this process can tell.
//!
//! A *lease* is the hold on the server, a *guard* is the hold of a task; a lease may pass from guard to guard (decision
//! D10). Its deadline is counted from just before a request is given to the store, on the boot-time clock, so that it is over here
//! before it can be over on the server.

mod deadline;
mod detached;
mod last_seen;
mod lengths;
mod rare;
mod task;

use std::sync::{Arc, PoisonError};

use crate::{
    error::LossReason,
    keys::Keys,
    owner::Owner,
    panic_safe::Signal,
    recipes::{LeaseTerm, Recipe},
    replica_ack::Confirmed,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
};
pub(crate) use detached::HoldToAdopt;
use last_seen::LastSeen;
pub(crate) use last_seen::{LastInterruption, SentAt};
pub(super) use rare::Change;
use rare::{NEVER, RareLeaseState, Reentries};

const HELD: u8 = 0;
const GIVEN_BACK: u8 = 1;
const LOST: u8 = 2;

/// For how long a hold has to last before it is watched.
const WATCH_HOLD_AFTER_MS: u64 = 500;

/// How long a lease that was handed to a task waits for the task to be polled.
const OFFER_MS: u64 = 1_000;
const TAKEN_BACK: u64 = u64::MAX;
/// In place of the moment since when the observer knows of a hold.
const BEING_TOLD: u64 = u64::MAX;

/// The part of a lease that is given up so that it ends here before it ends on the server: 1 %, at least 10 ms, at
/// most half, for clocks that run at slightly different rates.
pub(crate) fn margin_ms(lease_ms: i64) -> u64 {
    let lease_ms = lease_ms.max(0) as u64;
    (lease_ms / 100).max(10).min(lease_ms / 2)
}

pub(crate) struct HeldLease {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Owner,
    pub(crate) recipe: &'static dyn Recipe,
    pub(crate) token: Option<u64>,
    /// For how long each renewal asks: the longest lease of the renewed holds. Without renewal: the lease of the grant.
    lease_ms: AtomicI64,
    deadline_ms: AtomicU64,
    last_seen: LastSeen,
    /// The number of the hold on the server. All leases that were passed on from one grant share it.
    grant_id: u64,
    state: AtomicU8,
    holds: Mutex<Holds>,
    ended: Signal,
    /// Since when it is offered to a task; 0 once that task has taken it, [`TAKEN_BACK`] when it is none's any more.
    offered_ms: AtomicU64,
    /// A request with an unknown outcome went out for this owner; the release is repeated later.
    pub(crate) outcome_unknown: AtomicBool,
    /// It was made to last for longer than its grant: a failover may keep the grant and lose that.
    was_renewed: AtomicBool,
    /// A request that changes the count was not answered, and may still arrive.
    count_in_doubt: AtomicBool,
    /// A request that ends the hold was not answered, and may still arrive.
    end_in_doubt: AtomicBool,
    pub(crate) schedule: Schedule,
    /// The task that was granted it, if it is known.
    task: OnceLock<tokio::task::Id>,
    /// What few leases have.
    rare: OnceLock<Box<RareLeaseState>>,
}

/// Numbers the holds of this process.
static NEXT_GRANT_ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// How many guards share the lease, and how many of them want it renewed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Holds {
    pub(crate) count: u32,
    pub(crate) renewed: u32,
    /// How many holds have been given back here and may still be counted on the server.
    leaving: u32,
    /// How many the server counted when a release expected another number; 0 if none did.
    server_count: u32,
}

impl Holds {
    /// How many holds the server counts: the guards, and those given back of which it has not been told yet.
    pub(crate) fn on_server(&self) -> u32 {
        self.count + self.leaving
    }

    /// How many a release of all of them is to find.
    pub(crate) fn expected(&self) -> u32 {
        if self.server_count > 0 { self.server_count } else { self.on_server().max(1) }
    }
}

/// The keeper's notes on a lease.
#[derive(Default)]
pub(crate) struct Schedule {
    /// The keeper has it in its agenda.
    pub(crate) in_agenda: AtomicBool,
    pub(crate) renewing: AtomicBool,
    /// The last renewal failed, so its successors' failures are no news.
    pub(crate) failing: AtomicBool,
    pub(crate) renew_due_ms: AtomicU64,
    /// When the store is to be asked to tell of changes of the key; never again while it has been asked.
    pub(crate) watch_due_ms: AtomicU64,
    /// When the store last told of a change that had not ended the hold; 0 for never.
    pub(crate) alarmed_ms: AtomicU64,
    /// For when the agenda has it. An entry of another moment is out of date.
    pub(crate) agenda_due_ms: AtomicU64,
    /// Where the agenda has it.
    pub(crate) agenda_index: AtomicUsize,
    /// When the keeper first saw it; 0 if it has not.
    pub(crate) seen_ms: AtomicU64,
    /// The keeper has subscribed to the lock's channel for tasks of this process that wait for this lease to end (`listen_for_line.rs`).
    pub(crate) listens_for_line: AtomicBool,
}

impl HeldLease {
    /// What a recipe has to know of it to renew it.
    pub(crate) fn keys_and_owner(&self) -> (&Keys, &Owner) {
        (&self.keys, &self.owner)
    }

    pub(crate) fn new(
        keys: Arc<Keys>,
        owner: Owner,
        recipe: &'static dyn Recipe,
        token: Option<u64>,
        lease_term: LeaseTerm,
        sent_at: SentAt,
    ) -> Self {
        owner.note_lease_begun();
        let sent_ms = sent_at.at_ms;
        HeldLease {
            keys,
            owner,
            recipe,
            token,
            lease_ms: AtomicI64::new(lease_term.lease_ms),
            deadline_ms: AtomicU64::new(deadline_ms(sent_ms, lease_term.lease_ms)),
            last_seen: LastSeen::of(sent_at),
            grant_id: NEXT_GRANT_ID.fetch_add(1, Ordering::Relaxed),
            state: AtomicU8::new(HELD),
            holds: Mutex::new(Holds { count: 1, renewed: lease_term.renewed.into(), ..Holds::default() }),
            ended: Signal::default(),
            offered_ms: AtomicU64::new(0),
            outcome_unknown: AtomicBool::new(false),
            was_renewed: AtomicBool::new(false),
            count_in_doubt: AtomicBool::new(false),
            end_in_doubt: AtomicBool::new(false),
            schedule: Schedule {
                renew_due_ms: AtomicU64::new(sent_ms + renew_period_ms(lease_term.lease_ms)),
                watch_due_ms: AtomicU64::new(sent_ms + WATCH_HOLD_AFTER_MS),
                ..Schedule::default()
            },
            task: OnceLock::new(),
            rare: OnceLock::new(),
        }
    }

    /// The same hold for the next guard, under an identity of its own for loss signals. It ends as that guard's kind of lock does: one is told of, another is not.
    pub(crate) fn successor(&self, recipe: &'static dyn Recipe) -> Self {
        self.owner.note_lease_replaced();
        let next = HeldLease {
            keys: self.keys.clone(),
            owner: self.owner.clone(),
            recipe,
            token: self.token,
            lease_ms: AtomicI64::new(self.lease_ms()),
            deadline_ms: AtomicU64::new(self.deadline_ms.load(Ordering::Acquire)),
            last_seen: self.last_seen.clone(),
            grant_id: self.grant_id,
            state: AtomicU8::new(HELD),
            holds: Mutex::new(Holds { count: 1, renewed: self.holds().renewed, ..Holds::default() }),
            ended: Signal::default(),
            offered_ms: AtomicU64::new(0),
            outcome_unknown: AtomicBool::new(self.outcome_unknown.load(Ordering::Relaxed)),
            was_renewed: AtomicBool::new(self.was_renewed.load(Ordering::Relaxed)),
            count_in_doubt: AtomicBool::new(self.count_in_doubt.load(Ordering::Relaxed)),
            end_in_doubt: AtomicBool::new(false),
            schedule: Schedule::default(),
            task: OnceLock::new(),
            rare: OnceLock::new(),
        };
        if let Some(rare) = self.rare.get().and_then(|rare| rare.successor()) {
            _ = next.rare.set(Box::new(rare));
        }
        let (from, to) = (&self.schedule, &next.schedule);
        to.renew_due_ms.store(from.renew_due_ms.load(Ordering::Relaxed), Ordering::Relaxed);
        to.watch_due_ms.store(from.watch_due_ms.load(Ordering::Relaxed), Ordering::Relaxed);
        next
    }

    pub(crate) fn lease_ms(&self) -> i64 {
        self.lease_ms.load(Ordering::Relaxed)
    }

    /// Whether a later answer than that of the grant has made it last for longer.
    pub(in crate::core) fn was_renewed(&self) -> bool {
        self.was_renewed.load(Ordering::Relaxed)
    }

    /// The lease to send to the server again, because no renewal will: after an extension, or after a grant that was asked for twice.
    /// `None` if the server knows it from the grant.
    pub(super) fn reassert_ms(&self, now_ms: u64) -> Option<i64> {
        // The deadline of a grant that was asked for again is that of the last answer.
        if !self.was_renewed.load(Ordering::Relaxed) && !self.outcome_unknown.load(Ordering::Relaxed) {
            return None;
        }
        let left_ms = i64::try_from(self.deadline_ms().saturating_sub(now_ms)).unwrap_or(i64::MAX);
        let lease_ms = left_ms.saturating_add(left_ms / 100 + 10);
        (!self.wants_renewal() || left_ms > self.lease_ms()).then_some(lease_ms)
    }

    /// A request that changes the count was not answered, so the server may count more than there are guards here. From now on nothing
    /// of this lease is counted down before its end.
    pub(super) fn mark_count_in_doubt(&self) {
        self.count_in_doubt.store(true, Ordering::Release);
    }

    /// Notes that the remains of the ended hold were counted down on the server. Returns whether that was noted before.
    pub(super) fn mark_counted_down(&self) -> bool {
        self.rare().counted_down.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_count_in_doubt(&self) -> bool {
        self.count_in_doubt.load(Ordering::Acquire)
    }

    /// A request that ends it was not answered. Once another process holds under its owner too, nothing is counted down any more: what
    /// arrives late would find the other one's hold alone.
    pub(super) fn mark_end_in_doubt(&self) {
        self.end_in_doubt.store(true, Ordering::Release);
    }

    pub(super) fn is_end_in_doubt(&self) -> bool {
        self.end_in_doubt.load(Ordering::Acquire)
    }

    /// To be called before an extension is sent, which may arrive late, in the owner's next hold. Returns until when an earlier extension
    /// without an answer may keep the hold; 0 for none.
    pub(crate) fn note_pending_extension(&self, until_ms: u64) -> u64 {
        self.owner.note_pending_extension(until_ms);
        self.rare().pending_extension_ms.fetch_max(until_ms, Ordering::AcqRel)
    }

    /// The extension until `until_ms` was answered. An earlier one without an answer may keep the hold until `before_ms`.
    pub(crate) fn extension_resolved(&self, until_ms: u64, before_ms: u64) {
        let pending_extension_ms = &self.rare().pending_extension_ms;
        // Unless another one asks for longer.
        let _ =
            pending_extension_ms.compare_exchange(until_ms, before_ms, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Until when an extension that was not answered may have the server keep it; 0 for none.
    pub(super) fn pending_extension_ms(&self) -> u64 {
        self.rare.get().map_or(0, |rare| rare.pending_extension_ms.load(Ordering::Acquire))
    }

    /// Whether the server may keep it after this moment, because of a request whose answer is not known.
    pub(crate) fn may_last_after(&self, now_ms: u64) -> bool {
        self.owner.pending_extension_ms() > now_ms
    }

    /// It was turned from a hold of which an outcome is unknown.
    pub(crate) fn note_predecessor(&self, before: &Arc<HeldLease>) {
        if before.outcome_unknown.load(Ordering::Relaxed) {
            _ = self.rare().before.set(before.clone());
            // So that its release looks for what is late.
            self.outcome_unknown.store(true, Ordering::Relaxed);
        }
    }

    /// The hold that it was turned from, if an outcome is unknown there.
    pub(crate) fn predecessor(&self) -> Option<&Arc<HeldLease>> {
        self.rare.get()?.before.get()
    }

    /// A request that was sent then has shown that the server has the hold. Once it is given back the moment is
    /// not moved any more, because it tells this hold from the next one of the same owner.
    pub(crate) fn note_seen(&self, sent_at: SentAt) {
        if self.is_held() {
            self.last_seen.again(sent_at);
        }
    }

    /// When the request was sent that last showed that the server has it.
    pub(crate) fn last_proof_sent_ms(&self) -> u64 {
        self.last_seen.at_ms()
    }

    /// The [incarnation](crate::store::Store::incarnation) of the server that last showed it.
    pub(crate) fn last_seen_in(&self) -> u64 {
        self.last_seen.incarnation()
    }

    /// Whether it has been seen since the last interruption.
    pub(crate) fn is_seen_since(&self, interruption: LastInterruption) -> bool {
        self.last_seen.is_since(interruption)
    }

    /// Whether this lease continues the grant of `before`, and neither was seen on the server since.
    pub(super) fn continues(&self, before: &HeldLease) -> bool {
        self.is_held()
            && self.grant_id == before.grant_id
            && self.last_proof_sent_ms() <= before.last_proof_sent_ms()
    }

    /// It is about to be handed to a task, which may never be polled again.
    pub(super) fn offer(&self, now_ms: u64) {
        self.offered_ms.store(now_ms.max(1), Ordering::Release);
    }

    /// The task to which it was handed takes it; `false` if that was too late.
    #[must_use]
    pub(super) fn take(&self) -> bool {
        let take = |offered_ms| (offered_ms != TAKEN_BACK).then_some(0);
        self.offered_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    /// Takes it back from a task that has not taken it in time.
    pub(super) fn take_back(&self, now_ms: u64) -> bool {
        let late = |offered_ms| is_late(offered_ms, now_ms).then_some(TAKEN_BACK);
        self.offered_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, late).is_ok()
    }

    /// Until when a task is to have taken it.
    pub(super) fn offer_due_ms(&self) -> u64 {
        match self.offered_ms.load(Ordering::Relaxed) {
            0 | TAKEN_BACK => u64::MAX,
            offered_ms => offered_ms + OFFER_MS,
        }
    }

    /// When the keeper next has something to do about it.
    pub(crate) fn due_ms(&self) -> u64 {
        let mut due_ms = self.deadline_ms().min(self.schedule.watch_due_ms.load(Ordering::Relaxed));
        due_ms = due_ms.min(self.offer_due_ms());
        if self.wants_renewal() {
            due_ms = due_ms.min(self.schedule.renew_due_ms.load(Ordering::Relaxed));
        }
        due_ms
    }

    /// Renewal every third of the lease leaves two more tries before the end.
    pub(crate) fn renew_period_ms(&self) -> u64 {
        renew_period_ms(self.lease_ms())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::Acquire) == HELD
    }

    pub(crate) fn holds(&self) -> Holds {
        *self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change_holds<T>(&self, change: impl FnOnce(&mut Holds) -> T) -> T {
        change(&mut self.holds.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One guard gives its hold back; returns how many there were. After the last one nothing enters the lease any more. The server counts
    /// it until it has been told, which is until [`note_given_back`](Self::note_given_back), or the end of the lease.
    pub(crate) fn guard_gives_back(&self, lease_term: LeaseTerm) -> u32 {
        let before = self.change_holds(|holds| {
            let before = holds.count;
            holds.count = before.saturating_sub(1);
            holds.leaving += u32::from(before > 0);
            if before > 1 {
                holds.renewed -= u32::from(lease_term.renewed).min(holds.renewed);
            }
            before
        });
        if before > 1 {
            self.lasts_without(lease_term);
        }
        before
    }

    /// The server has counted down a hold that was given back, as far as this process knows.
    pub(crate) fn note_given_back(&self) {
        self.change_holds(|holds| holds.leaving = holds.leaving.saturating_sub(1));
    }

    /// The server counts so many holds, and a release had expected another number.
    pub(super) fn set_server_count(&self, count: u32) {
        self.change_holds(|holds| holds.server_count = count);
    }

    /// One guard goes without giving its hold back; whether it was the last one. Then nothing enters the lease any more.
    #[must_use]
    pub(crate) fn guard_goes_unreleased(&self, lease_term: LeaseTerm) -> bool {
        let is_last = self.change_holds(|holds| {
            holds.count = holds.count.saturating_sub(1);
            holds.renewed -= u32::from(lease_term.renewed).min(holds.renewed);
            holds.count == 0
        });
        if !is_last {
            self.lasts_without(lease_term);
        }
        is_last
    }

    /// One more guard comes in; `false` if the last one has gone.
    #[must_use]
    pub(crate) fn enter(&self, renewed: bool) -> bool {
        self.change_holds(|holds| {
            let has_guards = holds.count > 0;
            if has_guards {
                holds.count += 1;
                holds.renewed += u32::from(renewed);
            }
            has_guards
        })
    }

    /// Whether its last guard has given it back, or is about to.
    pub(crate) fn is_given_back(&self) -> bool {
        self.state.load(Ordering::Acquire) == GIVEN_BACK || (self.is_held() && self.holds().count == 0)
    }

    /// Whether the keeper has to renew it.
    pub(crate) fn wants_renewal(&self) -> bool {
        self.is_held() && self.holds().renewed > 0
    }

    /// Whether the server is to be asked about it again and again: to renew it, or because it was not answered about it. After a
    /// renewal that failed the hold is unknown, also when nothing is to be renewed any more.
    pub(crate) fn is_asked_about(&self) -> bool {
        self.wants_renewal() || (self.is_held() && self.schedule.failing.load(Ordering::Relaxed))
    }

    /// Ends the hold on the holder's own wish. From here on nothing renews it. `false` if it had ended already.
    pub(crate) fn mark_given_back(&self) -> bool {
        let held = self.state.compare_exchange(HELD, GIVEN_BACK, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if held {
            self.owner.note_lease_over();
            self.ended.tell();
        }
        held
    }

    /// Ends the hold because it is lost, and tells the tasks that wait for that. `false` if it had ended already.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        // Its guard is still there, and may hand the owner out: what is done in its name from now on is covered.
        self.owner.mark_reusable();
        // The reason is there before the state says lost, so that nobody sees the one without the other.
        if !self.is_held() || self.rare().loss.set(reason).is_err() {
            return false;
        }
        if self.state.compare_exchange(HELD, LOST, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        self.owner.note_lease_over();
        self.ended.tell();
        true
    }

    pub(crate) fn loss(&self) -> Option<&LossReason> {
        if self.state.load(Ordering::Acquire) == LOST { self.rare.get()?.loss.get() } else { None }
    }

    /// Resolves when the hold has ended: with the reason if it is lost, with `None` if it was given back.
    pub(crate) async fn ended(self: Arc<Self>) -> Option<LossReason> {
        self.ended.until(|| (!self.is_held()).then(|| self.loss().cloned())).await
    }

    fn rare(&self) -> &RareLeaseState {
        self.rare.get_or_init(Box::default)
    }

    /// The observer is about to be told of it; `false` if it was before. Nothing tells of its end until [`note_told_of`](Self::note_told_of).
    pub(super) fn begin_telling_of(&self) -> bool {
        self.rare().told_of_ms.compare_exchange(0, BEING_TOLD, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The observer has been told of it.
    pub(super) fn note_told_of(&self, now_ms: u64) {
        self.rare().told_of_ms.store(now_ms.max(1), Ordering::Release);
    }

    /// Since when the observer knows of it, if it does. It is answered once.
    pub(super) fn take_told_of(&self) -> Option<u64> {
        let taken = |since_ms| (since_ms != BEING_TOLD && since_ms > 0).then_some(0);
        self.rare.get()?.told_of_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, taken).ok()
    }

    /// How replicas confirmed the grant, if they were asked.
    pub(crate) fn replicated(&self) -> Option<Confirmed> {
        self.rare.get()?.replicated.get().copied()
    }

    /// Replicas have confirmed the grant like that, if they were asked.
    pub(super) fn note_replicas(&self, confirmed: Option<Confirmed>) {
        if let Some(confirmed) = confirmed {
            _ = self.rare().replicated.set(confirmed);
        }
    }

    fn reentries_if_any(&self) -> Option<&Arc<Reentries>> {
        self.rare.get()?.reentries.get()
    }

    pub(crate) fn reentries(&self) -> Arc<Reentries> {
        // When one of its guards is given back, another one may hand the owner out while that is on its way.
        self.owner.mark_reusable();
        self.rare().reentries.get_or_init(|| Arc::new(Reentries::of(self.lease_term()))).clone()
    }

    /// The server of this incarnation has counted one more hold of the owner. `entered_others`: it is the first hold of this lease, and
    /// another process held under the owner before. Otherwise this lease has entered its own hold again.
    pub(super) fn note_entered_in(&self, incarnation: u64, entered_others: bool) {
        let reentries = self.reentries();
        let before = reentries.entered_incarnation.swap(incarnation, Ordering::AcqRel);
        // What was entered before may have been lost since, and stays so.
        reentries.spans_incarnations.fetch_or(before != NEVER && before != incarnation, Ordering::AcqRel);
        reentries.entered_others.fetch_or(entered_others, Ordering::AcqRel);
    }

    /// The incarnation in which all that was entered is counted; `None` if nothing was.
    pub(super) fn counted_in_incarnation(&self) -> Option<u64> {
        let incarnation = self.reentries_if_any()?.entered_incarnation.load(Ordering::Acquire);
        (incarnation != NEVER).then_some(incarnation)
    }

    /// Whether the server of this incarnation has counted all that was entered. Another one may lack some of it, and what it counts may be
    /// another process's.
    pub(super) fn is_counted_in(&self, incarnation: u64) -> bool {
        let spans_incarnations = self
            .reentries_if_any()
            .is_some_and(|reentries| reentries.spans_incarnations.load(Ordering::Acquire));
        !spans_incarnations && self.counted_in_incarnation().is_none_or(|counted| counted == incarnation)
    }

    /// Whether another process held under the owner before this lease began.
    pub(super) fn entered_hold_of_another_process(&self) -> bool {
        self.reentries_if_any().is_some_and(|reentries| reentries.entered_others.load(Ordering::Acquire))
    }

    pub(crate) fn was_reentered(&self) -> bool {
        self.reentries_if_any().is_some()
    }
}

pub(super) fn deadline_ms(sent_ms: u64, lease_ms: i64) -> u64 {
    sent_ms.saturating_add(lease_ms.max(0) as u64).saturating_sub(margin_ms(lease_ms))
}

fn renew_period_ms(lease_ms: i64) -> u64 {
    (lease_ms.max(3) / 3) as u64
}

fn is_late(offered_ms: u64, now_ms: u64) -> bool {
    offered_ms != 0 && offered_ms != TAKEN_BACK && now_ms >= offered_ms + OFFER_MS
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if *self.state.get_mut() == HELD {
            self.owner.note_lease_over();
        }
    }
}

/// The same of several.
pub(crate) fn keys_and_owners(leases: &[Arc<HeldLease>]) -> Vec<(&Keys, &Owner)> {
    leases.iter().map(|lease| lease.keys_and_owner()).collect()
}

/// How long a server is to keep each of several still.
pub(crate) fn left_ms(leases: &[Arc<HeldLease>], now_ms: u64) -> Vec<i64> {
    leases.iter().map(|lease| lease.left_ms(now_ms)).collect()
}

#[cfg(redlatch_shuttle)]
pub(crate) mod threads;

#[cfg(test)]
mod tests;
