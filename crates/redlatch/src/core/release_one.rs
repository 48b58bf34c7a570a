//! Giving back one hold where the owner may have more: the server counts one down.

use std::{sync::Arc, time::Duration};

use super::{
    Core,
    lease::HeldLease,
    owner_claims::OwnerBlock,
    release::{RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_MIN, ReleaseMode, Unlocked},
    send_once::SentOnce,
};
use crate::{
    call::CountingCall,
    error::{Error, ErrorKind, LossReason},
    jitter::jittered,
    store::Fault,
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
                lease.note_given_back();
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
        let decide = || {
            let is_uncounted = is_shared && !lease.is_counted_in(self.store.incarnation(&lease.keys.key));
            if lease.is_count_in_doubt() || is_uncounted {
                return Err(self.left_here(lease));
            }
            // What a shutdown gives back besides are the holds of the guards that are left.
            let is_gone = lease.loss().is_some_and(|reason| !is_shared || *reason != LossReason::Shutdown);
            if is_gone || lease.is_over(self.now_ms()) {
                // The server does not count it any more, and would count down another hold of the owner.
                return Err(Unlocked::AlreadyLost(lease.reason_if_missing(self.now_ms())));
            }
            let known = if is_shared { 0 } else { lease.holds().on_server() };
            let publish = self.store.publish_command();
            let call = lease.recipe.release_one(&lease.keys, owner, publish, known, lease.min_ttl_ms());
            Ok(call.in_incarnation(lease.counted_in_incarnation().filter(|_| is_shared)))
        };
        let sent = if is_shared {
            self.send_once(lease.into(), Some(block), decide).await
        } else {
            match decide() {
                Err(unlocked) => return Ok(unlocked),
                Ok(call) => {
                    let number = owner.request_number_placeholder();
                    let reply = self.run_taking_away_now(call.repeatable(), number, false, block).await;
                    reply.map(SentOnce::Answered)
                }
            }
        };
        let reply = match sent {
            Ok(SentOnce::Answered(reply)) => reply,
            Ok(SentOnce::NotSent(unlocked)) => return Ok(unlocked),
            // The next server to answer has not counted it either, so it is left to its lease.
            Err(fault) if fault.is_elsewhere() => return Ok(self.left_here(lease)),
            Err(fault) => return Err(fault),
        };
        Ok(match reply[..] {
            [_, left, _] if left >= 1 => Unlocked::StillHeld(left as u32),
            [_, 0, _] => Unlocked::Released,
            // The whole lease was released meanwhile by the last guard.
            _ if !lease.is_held() && lease.loss().is_none() => Unlocked::Released,
            _ => {
                self.end_as_gone(lease).await;
                Unlocked::AlreadyLost(lease.reason_if_missing(self.now_ms()))
            }
        })
    }

    /// Counts the last hold of a lease down. `None`: it need not be counted any more, because the owner's write hold has gone meanwhile.
    pub(super) async fn try_count_down(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        block: &OwnerBlock,
    ) -> Option<Result<(Unlocked, i64), Fault>> {
        let sent = self.send_once(lease.into(), Some(block), || {
            if self.release_mode(lease) == ReleaseMode::AllHolds {
                return Err(None);
            }
            if lease.is_end_in_doubt() {
                let error = Error::new(ErrorKind::Timeout, "an earlier release was not answered");
                return Err(Some(Err(Fault::Unknown(error))));
            }
            if lease.is_over(self.now_ms()) {
                // The server does not count it any more, and would count down another hold of the owner.
                return Err(Some(Ok((Unlocked::AlreadyLost(lease.reason_if_missing(self.now_ms())), 0))));
            }
            let is_entry = lease.entered_hold_of_another_process();
            if is_entry && !lease.is_counted_in(self.store.incarnation(&lease.keys.key)) {
                return Err(Some(Ok((Unlocked::StillHeld(1), 0))));
            }
            let incarnation = lease.counted_in_incarnation().filter(|_| is_entry);
            Ok(self.count_down_call(lease).in_incarnation(incarnation))
        });
        match sent.await {
            Ok(SentOnce::Answered(items)) => {
                Some(self.read_release_reply(lease, ReleaseMode::OneHold, &items))
            }
            Ok(SentOnce::NotSent(outcome)) => outcome,
            Err(fault) if fault.is_elsewhere() => Some(Ok((Unlocked::StillHeld(1), 0))),
            Err(fault) => Some(Err(fault)),
        }
    }

    /// Counts the last hold of a lease down: how many the owner has on the server is not known here.
    pub(super) fn count_down_call(&self, lease: &HeldLease) -> CountingCall {
        let publish = self.store.publish_command();
        lease.recipe.release_one(&lease.keys, &lease.owner, publish, 0, lease.min_ttl_ms())
    }

    /// What has become of a hold that was given back here alone.
    fn left_here(self: &Arc<Self>, lease: &Arc<HeldLease>) -> Unlocked {
        // The last guard may have gone meanwhile. What that comes to is its own answer: no server has been asked for this one.
        if lease.loss().is_none() && !lease.is_over(self.now_ms()) {
            return Unlocked::StillHeld(lease.holds().count.max(1));
        }
        Unlocked::AlreadyLost(lease.reason_if_missing(self.now_ms()))
    }
}
