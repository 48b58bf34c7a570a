//! A hold that is over here: its holder is told, and what the server may still have of it is removed.

use std::sync::Arc;

use super::{
    Core, Request, Wait,
    lease::{HeldLease, SentAt},
    send_once::{Counted, SentOnce},
    undo::RequestFate,
};
use crate::{catch_panic::catch_panic, error::LossReason, observe::HoldEnd, recipes::LeaseTerm};

impl Core {
    /// A lease turned out to be lost.
    pub(crate) fn lose(self: &Arc<Self>, lease: &Arc<HeldLease>, reason: LossReason) {
        if lease.lose(reason.clone()) {
            self.hold_ended(lease, HoldEnd::Lost(&reason));
            self.note_loss(lease, &reason);
            self.note_own_write_hold_may_last(lease, self.now_ms());
            self.lanes.forget(lease);
            if reason == LossReason::Expired && self.outlives_its_time(lease) {
                self.remove_remains(lease);
            }
            // A request that came late may have left a place in a queue, or a hold, that no release looks for any more.
            self.undo_late_arrivals(lease);
            let owner = &**lease.owner.field();
            catch_panic(|| tracing::warn!(lock = %lease.keys.name, owner, %reason, "a lock was lost"));
        }
    }

    /// An answer says that the server has a hold, for so long from when it was asked. `false` if the hold is over here; what the server
    /// keeps of it is removed then, unless its release is on its way.
    #[must_use = "a hold that is over stays so"]
    pub(crate) fn confirm_hold(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        sent_at: SentAt,
        lease_ms: i64,
    ) -> bool {
        if lease.confirmed(sent_at, lease_ms, self.now_ms()) {
            return true;
        }
        if lease.is_held() && lease.was_seen_over() && self.now_ms() < lease.deadline_ms() {
            // How it ended is being found out, by what has seen it.
            let (core, held) = (self.clone(), lease.clone());
            self.keeper.spawn(async move {
                _ = held.clone().ended().await;
                core.clean_up_expired(&held, lease_ms);
            });
            return false;
        }
        if lease.is_held() {
            self.lose(lease, LossReason::Expired);
        }
        self.clean_up_expired(lease, lease_ms);
        false
    }

    /// The server has a hold that is over here.
    fn clean_up_expired(self: &Arc<Self>, lease: &Arc<HeldLease>, lease_ms: i64) {
        match lease.loss() {
            // Its release is on its way, and counts it down.
            None | Some(LossReason::Shutdown) => {}
            Some(_) if !lease.owner.is_multi_process() => self.remove_remains(lease),
            // What a renewal keeps there is over soon; an extension may keep it for an hour.
            Some(LossReason::Expired) if lease_ms > lease.longest_ms() => self.count_down_late(lease),
            // The server was seen not to have it, so what it has is another process's.
            Some(_) => {}
        }
    }

    /// Counts a hold down, once, that an extension has kept on the server after its end here. Its owner may have other processes' holds
    /// there, so nothing more is removed.
    fn count_down_late(self: &Arc<Self>, lease: &Arc<HeldLease>) {
        if !lease.mark_counted_down() && !lease.is_count_in_doubt() {
            let (core, held, incarnation) =
                (self.clone(), lease.clone(), self.store.incarnation(&lease.keys.key));
            let block = self.owners.block(&lease.keys, &lease.owner);
            self.keeper.spawn(async move {
                // Those that are just being given back are answered first, or are not sent any more.
                let reentries = held.reentries();
                let _next = reentries.next.lock().await;
                // What is left on the server lasts as long as the extension asked, so there is time to look after the connection.
                let left = Counted { over_ms: u64::MAX, ..(&held).into() };
                for _ in 0..held.holds().on_server().max(1) {
                    core.until_no_attempt_asks(&block).await;
                    let counted = core.send_once(left, Some(&block), || {
                        if held.is_count_in_doubt() {
                            return Err(());
                        }
                        let publish = core.store.publish_command();
                        let call = held.recipe.release_one(&held.keys, &held.owner, publish, 0, 0);
                        Ok(call.in_incarnation(Some(incarnation)))
                    });
                    let Ok(SentOnce::Answered(_)) = counted.await else { return };
                }
            });
        }
    }

    /// Removes what is left of a hold that is over, unless its owner is at work there: then what is left is the owner's again. What
    /// another process may hold under the same owner is not touched.
    pub(super) fn remove_remains(self: &Arc<Self>, lease: &Arc<HeldLease>) {
        if lease.owner.is_multi_process() {
            return;
        }
        debug_assert!(lease.owner.is_reusable(), "its guard may still be there");
        let Some(block) = self.owners.block_unless_asking(&lease.keys, &lease.owner) else { return };
        // While the owner is blocked no attempt begins, and one that has ended has put its lease there.
        if !self.has_lease(&lease.keys, &lease.owner) {
            // An extension that was not answered may have the server keep it for longer than its lease.
            let asked_ms = lease.pending_extension_ms().saturating_sub(self.now_ms());
            let lease_ms = lease.longest_ms().max(i64::try_from(asked_ms).unwrap_or(i64::MAX));
            let lease_term = LeaseTerm { lease_ms, renewed: false };
            let request = Arc::new(Request::new(&lease.keys, lease.recipe, lease_term, Wait::No));
            drop(self.undo_later(&request, &lease.owner, RequestFate::AnsweredWithoutGrant));
        }
        drop(block);
    }

    /// Whether a hold that is over here may still stand on the server, where others keep its hash.
    fn outlives_its_time(&self, lease: &Arc<HeldLease>) -> bool {
        let reads_besides = |readers| self.lanes.find(readers).iter().any(|held| held.owner == lease.owner);
        let by_traces =
            lease.recipe.leaves_traces() || lease.keys.readers.as_ref().is_some_and(reads_besides);
        by_traces || lease.may_last_after(self.now_ms())
    }
}
