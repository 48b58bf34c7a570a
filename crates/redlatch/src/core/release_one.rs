//! Giving back one of several holds of a lease: the server counts one down.

use std::{sync::Arc, time::Duration};

use super::{
    Core,
    lease::HeldLease,
    owners::OwnerBlock,
    release::{RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_MIN, Unlocked},
    send::Numbers,
};
use crate::{
    error::{Error, LossReason},
    jitter::jittered,
    store::{Call, Fault},
};

impl Core {
    /// Gives back one of several holds.
    pub(super) async fn release_one_hold(
        self: Arc<Self>,
        lease: Arc<HeldLease>,
        block: OwnerBlock,
    ) -> Result<Unlocked, Error> {
        let reentries = lease.reentries();
        let _next = reentries.next.lock().await;
        let mut over_ms = None;
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        loop {
            // First of all: what is looked at from here on is as it is when the request is sent. And before others are kept from
            // counting, because an entry is an attempt of the owner, and counts.
            self.until_no_attempt_asks(&block).await;
            let counting = reentries.counting.lock().await;
            let limit_ms = self.config.response_timeout.as_millis() as u64;
            let over_ms = *over_ms.get_or_insert_with(|| self.now_ms() + limit_ms);
            let outcome = match self.leave_once(&lease, &block).await {
                Ok(unlocked) => Ok(unlocked),
                Err(fault) if fault.is_unknown() => {
                    lease.mark_count_in_doubt();
                    if lease.owner.is_multi_process() {
                        Err(fault.into_error())
                    } else {
                        Ok(self.left_here(&lease))
                    }
                }
                // The server counts it on, and so does the lease.
                Err(Fault::Server(error)) if !error.is_retryable() => return Err(error),
                Err(fault) if self.now_ms() >= over_ms => return Err(fault.into_error()),
                Err(_) => {
                    drop(counting);
                    self.keeper.sleep(jittered(Duration::from_millis(delay_ms))).await;
                    delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
                    continue;
                }
            };
            // Before the next one counts. What was not sent because the lease is over is counted there still.
            if !matches!(outcome, Ok(Unlocked::AlreadyLost(_))) {
                lease.note_left();
            }
            return outcome;
        }
    }

    /// A count that is in doubt is not counted down, and a request that may have run is not repeated: the server would have fewer holds
    /// than there are guards.
    async fn leave_once(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        block: &OwnerBlock,
    ) -> Result<Unlocked, Fault> {
        let owner = &lease.owner;
        let is_shared = owner.is_multi_process();
        if is_shared {
            self.until_heard_of_hold(lease).await;
        }
        let is_uncounted = is_shared && !lease.is_counted_in(self.store.incarnation(&lease.keys.key));
        if lease.is_count_in_doubt() || is_uncounted {
            return Ok(self.left_here(lease));
        }
        // What a shutdown gives back besides are the holds of the guards that are left.
        let is_gone = lease.loss().is_some_and(|reason| !is_shared || *reason != LossReason::Shutdown);
        if is_gone || (is_shared && lease.is_over(self.now_ms())) {
            // The server does not count it any more, and would count down another hold of the owner.
            return Ok(Unlocked::AlreadyLost(lease.reason_if_missing(self.now_ms())));
        }
        let known = if is_shared { 0 } else { lease.holds().on_server() };
        let publish = self.store.publish_command();
        let call = lease.recipe.release_one(&lease.keys, owner, publish, known, lease.min_ttl_ms());
        let incarnation = lease.counted_in_incarnation().filter(|_| is_shared);
        let Some(reply) = self
            .run_where_counted(call, incarnation, owner.request_number_placeholder(), is_shared, block)
            .await?
        else {
            return Ok(self.left_here(lease));
        };
        Ok(match reply[..] {
            [_, left, _] if left >= 1 => Unlocked::StillHeld(left as u32),
            [_, 0, _] => Unlocked::Released,
            // The whole lease was released meanwhile by the last guard.
            _ if !lease.is_held() && lease.loss().is_none() => Unlocked::Released,
            _ => {
                self.gone(lease).await;
                Unlocked::AlreadyLost(lease.reason_if_missing(self.now_ms()))
            }
        })
    }

    /// Runs what only the server may run that counted; without an incarnation any server may. `None`: another server would have run it, so it
    /// was not sent. Waiting does not help, because the next server to answer has not counted either. What was to go is left to its lease.
    pub(super) async fn run_where_counted(
        self: &Arc<Self>,
        mut call: Call,
        incarnation: Option<u64>,
        number: i64,
        as_keeper: bool,
        block: &OwnerBlock,
    ) -> Result<Option<Numbers>, Fault> {
        call.in_incarnation = incarnation;
        match self.run_taking_away_now(call, number, as_keeper, block).await {
            Err(fault) if fault.is_elsewhere() => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// What has become of a hold that was given back here alone.
    fn left_here(self: &Arc<Self>, lease: &Arc<HeldLease>) -> Unlocked {
        if lease.is_valid(self.now_ms()) {
            return Unlocked::StillHeld(lease.holds().count.max(1));
        }
        match lease.loss() {
            None if !lease.is_held() => Unlocked::Released,
            _ => Unlocked::AlreadyLost(lease.reason_if_missing(self.now_ms())),
        }
    }
}
