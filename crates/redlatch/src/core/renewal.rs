//! Renewal: batches on the keeper's connection, each lock on its own account.
//!
//! A failed renewal is tried again until the lock's own deadline and never touches another lock. What a renewal finds
//! gone is announced at once. One call renews leases of one kind and one slot, and servers are renewed independently.
//! A renewal that takes too long is tried again as well, and its own answer still counts when it comes, from when it was sent: a
//! server that is slow and answers everything keeps every lock.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    Core,
    batch_status::{BatchStatus, parts},
    lease::{HeldLease, SentAt, keys_and_owners, left_ms},
    send::Numbers,
};
use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
};

use crate::{
    jitter::jittered,
    observe::Event,
    randomness::SeededMap,
    recipes::ExpiryCheck,
    replica_ack::{Replicas, Replication},
    store::Fault,
};

/// How often a hold is asked to last less long, when the server's time has gone on within a script.
const SHORTENINGS_MAX: u32 = 3;
/// How far its ends may lie apart that are told meanwhile.
pub(super) const SAME_END_MS: u64 = 100;
/// How many leases of one server have their renewal under way at once, and how many calls carry them.
const LEASES_UNDER_WAY_MAX: usize = 800;
const BATCHES_UNDER_WAY_MAX: usize = 256;
/// The longest pause before a failed renewal is tried again.
const RETRY_DELAY_MS_MAX: u64 = 1_000;
/// The first pause before a failed look at a hold is repeated.
const RETRY_DELAY_MS_MIN: u64 = 20;

impl Core {
    /// Renews leases, many names in one call, all calls at once.
    pub(super) fn renew(self: &Arc<Self>, leases: Vec<Arc<HeldLease>>) {
        if leases.is_empty() {
            return;
        }
        // One call renews leases of one kind, length and slot. One that was made to last for longer has a call of its own, which tells
        // the server all of that, whichever try it is.
        let now_ms = self.now_ms();
        let (reasserted, mut leases): (Vec<_>, Vec<_>) =
            leases.into_iter().partition(|lease| lease.reassert_ms(now_ms).is_some());
        leases.sort_by_cached_key(|lease| (self.slot(lease), lease.keys.kind, lease.lease_ms()));
        let batches = leases
            .chunk_by(|a, b| {
                a.lease_ms() == b.lease_ms() && a.keys.kind == b.keys.kind && self.slot(a) == self.slot(b)
            })
            .flat_map(|alike| alike.chunks(self.config.renewal_batch))
            .chain(reasserted.chunks(1));
        let mut servers: SeededMap<u16, Vec<UnderWay>> = SeededMap::default();
        for batch in batches {
            let owner = self.store.slot_owner(self.slot(&batch[0]));
            // From here on, so that a batch that was never begun is asked about again, too.
            servers.entry(owner).or_default().push(UnderWay { core: self.clone(), leases: batch.to_vec() });
        }
        for batches in servers.into_values() {
            let leases: usize = batches.iter().map(|batch| batch.leases.len()).sum();
            let calls = LEASES_UNDER_WAY_MAX * batches.len() / leases;
            let core = self.clone();
            // Not counted as work that shutting down waits for: a renewal serves nobody then. A few calls at a time keep the
            // connection busy; all at once would only fill memory with requests that wait for their turn. Calls do not wait
            // for each other's success: one that fails or hangs costs the others of its server nothing but its place, and those
            // of other servers not even that.
            self.keeper.handle().spawn(async move {
                futures_util::stream::iter(batches)
                    .for_each_concurrent(calls.clamp(1, BATCHES_UNDER_WAY_MAX), |batch| {
                        core.clone().renew_batch(batch)
                    })
                    .await;
            });
        }
    }

    fn slot(&self, lease: &HeldLease) -> u16 {
        self.store.slot(&lease.keys.key)
    }

    async fn renew_batch(self: Arc<Self>, under_way: UnderWay) {
        let batch = under_way.leases.clone();
        let lease_ms = batch[0].lease_ms();
        let moved = self.taken_over(&batch[0].keys.key);
        let (sent_at, takeovers) = (self.sent_at(&batch[0].keys), self.store.takeovers());
        let number = self.fresh_number();
        let told_ms = told_ms(&batch, sent_at.at_ms).unwrap_or(lease_ms);
        let call = batch[0].recipe.renew(number, &keys_and_owners(&batch), told_ms);
        // The next try is due then, and others want to be renewed. The call goes on: it ends with its connection at the latest, which
        // is given up when it owes an answer for too long.
        let limit = Duration::from_millis((lease_ms / 3).max(1) as u64).min(self.config.response_timeout);
        let core = self.clone();
        let mut asked = async move { core.run_unwatched(call, number).await }.boxed();
        let outcome = unless_moved(moved, tokio::time::timeout(limit, &mut asked)).await;
        if outcome.is_none() {
            self.keeper.handle().spawn(self.clone().count_late(asked, batch.clone(), sent_at, told_ms));
        }
        let mut told = None;
        let failure = match outcome.map(|outcome| BatchStatus::of(&batch, outcome)) {
            Some(BatchStatus::InParts) => {
                self.renew_in_parts(batch).await;
                return;
            }
            Some(BatchStatus::Known(held)) => {
                self.watch_renewed(batch.clone());
                let mut gone = Vec::new();
                for (lease, held) in batch.iter().zip(held) {
                    lease.schedule.renewing.store(false, Ordering::Release);
                    lease.schedule.failing.store(false, Ordering::Relaxed);
                    if held.is_held() {
                        // What was said counts, and not what the lease asks for by now.
                        if self.confirm_hold(lease, sent_at, told_ms) {
                            self.hold_renewed(lease);
                            self.recheck_if_unseen_since_interruption(lease);
                        }
                    } else {
                        gone.push(lease.clone());
                    }
                }
                told = Some(self.all_gone(&gone));
                None
            }
            Some(BatchStatus::Unknown(fault)) => Some(fault.to_string()),
            None if self.store.incarnation(&batch[0].keys.key) != sent_at.incarnation => {
                Some("another server has taken over".to_owned())
            }
            None => Some(format!("no answer within {limit:?}")),
        };
        if let Some(why) = failure {
            self.observe(|| Event::RenewalFailed { holds: batch.len() });
            let delay_ms = ((lease_ms / 10).max(1) as u64).min(RETRY_DELAY_MS_MAX);
            let mut news = 0;
            for lease in &batch {
                news += usize::from(!lease.schedule.failing.swap(true, Ordering::Relaxed));
            }
            if news > 0 {
                tracing::warn!(
                    locks = news,
                    error = why,
                    "a renewal failed and is tried again until the leases end"
                );
            } else {
                tracing::debug!(locks = batch.len(), error = why, "a renewal failed again");
            }
            let pause = jittered(Duration::from_millis(delay_ms));
            // The look at all leases after a change of servers has passed these by while they were asked about.
            let pause = if self.store.takeovers() == takeovers { pause } else { Duration::ZERO };
            let again_ms = self.now_ms() + pause.as_millis() as u64;
            for lease in &batch {
                lease.schedule.renew_due_ms.store(again_ms, Ordering::Relaxed);
                lease.schedule.renewing.store(false, Ordering::Release);
            }
        }
        // Before the ends of some are told, which may take longer than the others have.
        self.keeper.reschedule(batch);
        if let Some(told) = told {
            told.await;
        }
    }

    /// Waits on for the answer to a renewal that has been given up, and counts it from when it was sent. What another server than
    /// the present one has answered counts for nothing.
    async fn count_late(
        self: Arc<Self>,
        asked: BoxFuture<'static, Result<Numbers, Fault>>,
        batch: Vec<Arc<HeldLease>>,
        sent_at: SentAt,
        told_ms: i64,
    ) {
        // A refusal is met by the next try as well.
        let BatchStatus::Known(held) = BatchStatus::of(&batch, asked.await) else { return };
        if self.store.incarnation(&batch[0].keys.key) != sent_at.incarnation {
            return;
        }
        let (mut late, mut gone) = (Vec::new(), Vec::new());
        for (lease, held) in batch.into_iter().zip(held) {
            if !held.is_held() {
                gone.push(lease);
            } else {
                lease.schedule.failing.store(false, Ordering::Relaxed);
                if self.confirm_hold(&lease, sent_at, told_ms) {
                    self.hold_renewed(&lease);
                    self.recheck_if_unseen_since_interruption(&lease);
                    late.push(lease);
                }
            }
        }
        self.watch_renewed(late.clone());
        self.keeper.reschedule(late);
        self.all_gone(&gone).await;
    }

    fn renew_in_parts(self: Arc<Self>, batch: Vec<Arc<HeldLease>>) -> BoxFuture<'static, ()> {
        let parts =
            parts(&batch).map(|leases| self.clone().renew_batch(UnderWay { core: self.clone(), leases }));
        join_all(parts).map(drop).boxed()
    }

    /// Sets the lease of one hold anew, or only looks at it when `lease_ms` is 0; `false` if the owner no longer holds.
    pub(crate) async fn renew_one(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        lease_ms: i64,
    ) -> Result<bool, Fault> {
        let number = self.fresh_number();
        let call = lease.recipe.renew(number, &[lease.keys_and_owner()], lease_ms);
        Ok(self.run_checked(call, number, false).await?.get(1) == Some(&1))
    }

    /// Leaves a hold for a time that may be shorter than what is left of it; `false` if it is lost. With `ends_ms`, when the hold ends
    /// here, what arrives when the server's end has come or has moved changes nothing, because another process may hold under the owner
    /// by then.
    pub(crate) async fn shorten(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        time_ms: i64,
        ends_ms: Option<u64>,
    ) -> Result<bool, Fault> {
        let (keys, owner) = lease.keys_and_owner();
        let call = |meant| lease.recipe.shorten(keys, owner, time_ms, meant);
        let Some(ends_ms) = ends_ms else {
            return Ok(self
                .run_checked(call(ExpiryCheck::Any), owner.request_number_placeholder(), false)
                .await?
                .get(1)
                == Some(&1));
        };
        // Another server has another clock, and may not have the hold.
        let incarnation = self.store.incarnation(&keys.key);
        let mut first_ms = None;
        let shortening = async {
            for _ in 0..SHORTENINGS_MAX {
                let asked = self
                    .run_checked(
                        call(ExpiryCheck::WhichEnd).in_incarnation(incarnation),
                        owner.request_number_placeholder(),
                        false,
                    )
                    .await?;
                let end_ms = asked.get(1).copied().unwrap_or_default();
                // What has an end is this hold only if it was good when it was asked for.
                if end_ms <= 0 || self.now_ms() >= ends_ms {
                    return Ok::<_, Fault>(false);
                }
                if end_ms.abs_diff(*first_ms.get_or_insert(end_ms)) > SAME_END_MS {
                    break;
                }
                let call = call(ExpiryCheck::EndsAt(end_ms)).in_incarnation(incarnation);
                match self.run_checked(call, owner.request_number_placeholder(), false).await?.get(1) {
                    Some(&1) => return Ok(true),
                    Some(&2) => {}
                    _ => return Ok(false),
                }
            }
            // It lasts for longer, because it was renewed, or another process has entered.
            Ok(true)
        };
        match shortening.await {
            // What the server that answers now has of it is left to its lease.
            Err(fault) if fault.is_elsewhere() => self.renew_one(lease, 0).await,
            kept => kept,
        }
    }

    /// As [`renew_one`](Self::renew_one), and asks replicas whether they have it, and with it all that the server did before.
    pub(crate) async fn renew_acked(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        lease_ms: i64,
        ack: Replication,
    ) -> Result<(bool, Option<Replicas>), Fault> {
        let number = self.fresh_number();
        let call = lease.recipe.renew(number, &[lease.keys_and_owner()], lease_ms);
        let script = call.script;
        self.keeper.note_call();
        let (reply, confirm) = self.run_acked(call, ack.count, !ack.keep).await?;
        if self.read(script, &lease.keys.key, Ok(reply), number)?.get(1) != Some(&1) {
            return Ok((false, None));
        }
        self.keeper.note_call();
        Ok((true, Some(confirm(ack.within).await?)))
    }

    /// Looks whether a hold is still there, and tells its holder if it is not.
    pub(crate) async fn recheck_now(self: &Arc<Self>, lease: Arc<HeldLease>) {
        if let Ok(false) = self.renew_one(&lease, 0).await {
            self.end_as_gone(&lease).await;
        }
    }

    /// Looks whether holds are still there whose leases need no renewal now. What was made to last for longer than its grant is told to
    /// the server once more: another one may have the grant alone, and would end it before its holder does.
    pub(super) fn check(self: &Arc<Self>, leases: Vec<Arc<HeldLease>>) {
        let now_ms = self.now_ms();
        let (reasserted, mut leases): (Vec<_>, Vec<_>) =
            leases.into_iter().partition(|lease| lease.reassert_ms(now_ms).is_some());
        let core = self.clone();
        self.keeper.handle().spawn(async move {
            futures_util::stream::iter(reasserted)
                .for_each_concurrent(BATCHES_UNDER_WAY_MAX, |lease| core.clone().check_part(vec![lease]))
                .await;
        });
        leases.sort_by_cached_key(|lease| (self.slot(lease), lease.keys.kind));
        let alike = leases.chunk_by(|a, b| a.keys.kind == b.keys.kind && self.slot(a) == self.slot(b));
        for batch in alike.flat_map(|alike| alike.chunks(self.config.renewal_batch)) {
            let (core, batch) = (self.clone(), batch.to_vec());
            self.keeper.handle().spawn(async move { core.check_batch(batch).await });
        }
    }

    /// Asks until there is an answer: the connection has just ended, so the first tries may well fail.
    async fn check_batch(self: Arc<Self>, batch: Vec<Arc<HeldLease>>) {
        let _under_way = UnderWay { core: self.clone(), leases: batch.clone() };
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        let mut open = batch.clone();
        let mut told = None;
        while !self.is_closed() {
            let now_ms = self.now_ms();
            open.retain(|lease| lease.is_valid(now_ms));
            let Some(first) = open.first() else { break };
            let moved = self.taken_over(&first.keys.key);
            let (number, sent_at, takeovers) =
                (self.fresh_number(), self.sent_at(&first.keys), self.store.takeovers());
            let call = match told_ms(&open, now_ms) {
                Some(told_ms) => first.recipe.renew(number, &keys_and_owners(&open), told_ms),
                None => first.recipe.look(number, &keys_and_owners(&open), &left_ms(&open, now_ms)),
            };
            let asked = tokio::time::timeout(self.config.response_timeout, self.run_unwatched(call, number));
            let held = unless_moved(moved, asked).await.map(|outcome| BatchStatus::of(&open, outcome));
            if let Some(BatchStatus::InParts) = held {
                for part in parts(&batch) {
                    let core = self.clone();
                    self.keeper.handle().spawn(core.check_part(part));
                }
                return;
            }
            if let Some(BatchStatus::Known(held)) = held {
                let mut gone = Vec::new();
                for (lease, held) in open.iter().zip(held) {
                    if !held.is_held() {
                        gone.push(lease.clone());
                    } else {
                        lease.note_seen(sent_at);
                        lease.schedule.failing.store(false, Ordering::Relaxed);
                    }
                }
                // What was asked to be told meanwhile may have ended with what this has changed, or failed on a connection that was
                // about to end.
                self.watch_renewed(open.clone());
                told = Some(self.all_gone(&gone));
                break;
            }
            if self.store.takeovers() == takeovers {
                self.keeper.pause(jittered(Duration::from_millis(delay_ms))).await;
            }
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
        }
        for lease in &batch {
            lease.schedule.renewing.store(false, Ordering::Release);
            // A look that began meanwhile has passed it by.
            if !self.is_closed() && lease.is_valid(self.now_ms()) {
                self.recheck_if_unseen_since_interruption(lease);
            }
        }
        // What is renewed was not due while it was looked at.
        let renewed: Vec<_> = batch.into_iter().filter(|lease| lease.wants_renewal()).collect();
        if !renewed.is_empty() {
            self.keeper.reschedule(renewed);
        }
        if let Some(told) = told {
            told.await;
        }
    }

    /// Resolves when another server takes the place over of the one that has a key now. Others that change say nothing of it.
    fn taken_over(&self, key: &Arc<[u8]>) -> impl Future<Output = ()> + use<'_> {
        let (mut moved, key) = (self.keeper.taken_over(), key.clone());
        let incarnation = self.store.incarnation(&key);
        async move {
            loop {
                moved.await;
                moved = self.keeper.taken_over();
                if self.store.incarnation(&key) != incarnation {
                    return;
                }
            }
        }
    }

    fn check_part(self: Arc<Self>, part: Vec<Arc<HeldLease>>) -> BoxFuture<'static, ()> {
        self.check_batch(part).boxed()
    }
}

/// Leases about which the server is asked. If that ends with a panic, of a holder's waker for instance, they are asked about again.
struct UnderWay {
    core: Arc<Core>,
    leases: Vec<Arc<HeldLease>>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for lease in &self.leases {
                lease.schedule.renewing.store(false, Ordering::Release);
            }
            self.core.keeper.reschedule(std::mem::take(&mut self.leases));
        }
    }
}

/// The answer, unless it does not come in time or another server takes over before that: the one that was asked may never answer, and what
/// it knows counts for nothing any more.
async fn unless_moved<T>(
    moved: impl Future<Output = ()>,
    asked: impl Future<Output = Result<T, tokio::time::error::Elapsed>>,
) -> Option<T> {
    tokio::select! {
        biased;
        outcome = asked => outcome.ok(),
        () = moved => None,
    }
}

/// How long a server is told to keep a hold at least, where that is more than its lease. Such holds are asked about one by one.
fn told_ms(batch: &[Arc<HeldLease>], now_ms: u64) -> Option<i64> {
    match batch {
        [lease] => lease.reassert_ms(now_ms),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
