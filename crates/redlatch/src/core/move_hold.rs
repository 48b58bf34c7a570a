//! Handing a lock on by way of the server: the script that ends the holder's hold grants to the next task of this process.

use std::sync::{Arc, atomic::Ordering};

use super::{
    Core, Request, Wait,
    lane::WaiterEntry,
    lanes::pass_on::NextTask,
    lease::HeldLease,
    owner_claims::OwnerBlock,
    release::{ReleaseMode, Unlocked, expected_holds},
    undo::RequestFate,
};
use crate::{
    error::{Error, LossReason},
    owner::Owner,
    recipes::{LeaseTerm, TransferTarget},
};

impl Core {
    /// Releases a lock that has a queue on the server. If the task of this process that has waited longest is the next in
    /// that queue, the same script grants to it, and it gets the lease from here without asking.
    pub(super) async fn release_and_grant(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        next_task: Box<NextTask>,
        block: &OwnerBlock,
    ) -> Result<(Unlocked, i64), Error> {
        let NextTask { entry: next, block: next_block } = *next_task;
        // A grant that replicas are to confirm has to be asked for by its own task, which then asks them.
        let cannot = next.request.ack.is_some()
            || lease.was_reentered()
            || lease.outcome_unknown.load(Ordering::Relaxed)
            || lease.owner.is_multi_process();
        // A task whose owner other processes may use asks for itself: its own request may still be on its way, and would count a second hold.
        let Some(owner) = next.owner.clone().filter(|owner| !cannot && !owner.is_multi_process()) else {
            drop(next_block);
            let outcome = self.release_last_hold(lease, false, block).await;
            self.lanes.release_and_grant_finished(&lease.keys, Some(next));
            return outcome;
        };
        // The lease counts from just before the call is given to the store: before that it may wait for an attempt of the owner.
        let (mut sent_at, publish) = (self.sent_at(&lease.keys), self.store.publish_command());
        let (lease_term, fenced) = (next.request.lease_term, next.request.fenced);
        let call = || {
            sent_at = self.sent_at(&lease.keys);
            let recipient = TransferTarget::after(&lease.owner, &owner, lease_term, fenced);
            lease.recipe.release_and_grant(
                &lease.keys,
                &lease.owner,
                publish,
                expected_holds(lease),
                &recipient,
            )
        };
        match self.run_taking_away(call, lease.owner.request_number_placeholder(), false, block).await {
            Ok(reply) if reply.len() == 3 && reply[1] == 2 => {
                let token = (next.request.fenced && reply[2] > 0).then_some(reply[2] as u64);
                let held = Arc::new(HeldLease::new(
                    lease.keys.clone(),
                    owner,
                    next.request.recipe,
                    token,
                    next.request.lease_term,
                    sent_at,
                ));
                let now_ms = self.now_ms();
                held.offer(now_ms);
                let waits_on = match self.lanes.install_transferred(&held, &next, now_ms) {
                    // A task that waits no more was granted the lock itself, or has given up and cleans up.
                    None => Some(next).filter(|next| !next.tell.is_closed()),
                    Some(lost) => {
                        self.lose_displaced_by(lost, &held);
                        if let Err(held) = next.hand(held)
                            && held.take()
                        {
                            self.lanes.forget(&held);
                        }
                        None
                    }
                };
                self.lanes.release_and_grant_finished(&lease.keys, waits_on);
                Ok((Unlocked::Released, 0))
            }
            outcome => {
                self.lanes.release_and_grant_finished(&lease.keys, Some(next));
                let read =
                    outcome.and_then(|items| self.read_release_reply(lease, ReleaseMode::AllHolds, &items));
                match read {
                    Ok(outcome) => Ok(outcome),
                    Err(fault) => self.release_again(lease, block, fault).await,
                }
            }
        }
    }

    /// Moves the lock to a waiting task to which the lease cannot be passed on as it is.
    pub(super) async fn transfer(
        self: Arc<Self>,
        lease: Arc<HeldLease>,
        next_task: Box<NextTask>,
        block: OwnerBlock,
    ) -> Result<Unlocked, Error> {
        let NextTask { entry: next, block: next_block } = *next_task;
        let to = next.owner.clone().unwrap_or_else(|| self.fresh_owner());
        if to.is_multi_process() || next.request.ack.is_some() {
            // Another process may hold under that owner; only it can know, so it contends for itself. So does a task that
            // wants its grant confirmed by replicas, because nobody would ask them for this one.
            drop(next_block);
            return self.release_and_lead(lease, next, block).await;
        }
        // The lease counts from just before the call is given to the store: before that it may wait for an attempt of the owner.
        let mut sent_at = self.sent_at(&lease.keys);
        let (lease_term, fenced) = (next.request.lease_term, next.request.fenced);
        let call = || {
            sent_at = self.sent_at(&lease.keys);
            lease.recipe.transfer(
                &lease.keys,
                &lease.owner,
                &TransferTarget::after(&lease.owner, &to, lease_term, fenced),
            )
        };
        match self.run_taking_away(call, to.request_number_placeholder(), false, &block).await {
            Ok(reply) if reply.len() == 3 && reply[1] == 1 => {
                let token = (next.request.fenced && reply[2] > 0).then_some(reply[2] as u64);
                let held = Arc::new(HeldLease::new(
                    lease.keys.clone(),
                    to,
                    next.request.recipe,
                    token,
                    next.request.lease_term,
                    sent_at,
                ));
                self.undo_late_arrivals(&lease);
                held.offer(self.now_ms());
                let Some(lost) = self.lanes.install_transferred(&held, &next, self.now_ms()) else {
                    // The server has the hold under that owner, and `next` is not handed it: its task settles that, or it is undone here.
                    let task_settles = next.note_outcome_unknown();
                    if !task_settles {
                        self.undo_moved(&lease, lease_term, &held.owner, RequestFate::AnsweredWithoutGrant);
                    }
                    self.lanes.requeue(&lease.keys, next);
                    self.lanes.release_finished(&lease.keys, false);
                    return Ok(Unlocked::Released);
                };
                self.lose_displaced_by(lost, &held);
                let lease_term = next.request.lease_term;
                if let Err(held) = next.hand(held)
                    && held.take()
                {
                    // The task gave up meanwhile; its hold is given back like any other. What the keeper has taken back is the keeper's.
                    self.release_in_background(&held, lease_term);
                }
                Ok(Unlocked::Released)
            }
            // The giver holds more than may be moved, so this is an ordinary release.
            Ok(reply) if reply.get(1) == Some(&2) => self.release_and_lead(lease, next, block).await,
            Ok(_) => {
                self.undo_late_arrivals(&lease);
                self.lanes.requeue(&lease.keys, next);
                self.lanes.release_finished(&lease.keys, false);
                Ok(Unlocked::AlreadyLost(lease.reason_if_missing(self.now_ms())))
            }
            Err(fault) => {
                if fault.is_unknown() {
                    lease.mark_end_in_doubt();
                }
                // Whether it moved is unknown. The giver's field is removed for certain, and the task contends for itself. If it
                // asks under the same owner, it takes over what it may have been given, or removes that when it gives up.
                let task_settles = next.note_outcome_unknown();
                if !task_settles {
                    self.undo_moved(&lease, lease_term, &to, RequestFate::MayArriveLater);
                }
                let outcome = self.release_and_lead(lease.clone(), next, block).await?;
                // The giver's field is gone before its time: the transfer did happen.
                let moved = fault.is_unknown() && self.now_ms() < lease.deadline_ms();
                Ok(match outcome {
                    Unlocked::AlreadyLost(LossReason::Deleted) if moved => Unlocked::Released,
                    outcome => outcome,
                })
            }
        }
    }

    /// Gives back what a lease may have been moved to.
    fn undo_moved(self: &Arc<Self>, lease: &HeldLease, lease_term: LeaseTerm, to: &Owner, fate: RequestFate) {
        let request = Request::new(&lease.keys, lease.recipe, lease_term, Wait::No);
        drop(self.undo_later(&Arc::new(request), to, fate));
    }

    async fn release_and_lead(
        self: &Arc<Self>,
        lease: Arc<HeldLease>,
        next: WaiterEntry,
        block: OwnerBlock,
    ) -> Result<Unlocked, Error> {
        let outcome = self.release_last_hold(&lease, false, &block).await;
        drop(block);
        self.lanes.requeue(&lease.keys, next);
        let others = self.others_heard(&lease, &outcome);
        self.lanes.release_finished(&lease.keys, others);
        outcome.map(|(unlocked, _)| unlocked)
    }
}
