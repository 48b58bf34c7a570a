//! When a lease ends here: at its deadline, or as soon as the server was seen not to have it.

use std::sync::atomic::Ordering;

use super::{HeldLease, SentAt, deadline_ms};
use crate::error::LossReason;

/// Of a deadline: it was seen to be over, so no answer moves it any more. What was not valid is never valid again.
const OVER: u64 = 1 << 63;

impl HeldLease {
    pub(crate) fn deadline_ms(&self) -> u64 {
        self.deadline_ms.load(Ordering::Acquire) & !OVER
    }

    /// How long a server is to keep it still. One that keeps it for as long as it was asked to has nothing to change.
    pub(in crate::core) fn left_ms(&self, now_ms: u64) -> i64 {
        let left_ms = self.deadline_ms().saturating_sub(now_ms);
        i64::try_from(left_ms.saturating_add((left_ms / 100).max(10))).unwrap_or(i64::MAX)
    }

    /// Whether the deadline has passed. Once that has been seen it stays so.
    pub(crate) fn is_over(&self, now_ms: u64) -> bool {
        let over = |until| (until & OVER == 0 && until <= now_ms).then_some(until | OVER);
        match self.deadline_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, over) {
            Ok(_) => true,
            Err(until) => until & OVER != 0,
        }
    }

    /// The server was seen not to have it: from now on it is not valid, whatever is still to be found out about its end.
    pub(in crate::core) fn mark_gone(&self) {
        self.deadline_ms.fetch_or(OVER, Ordering::AcqRel);
    }

    /// Whether its time is over, or it was seen to be gone before that.
    pub(in crate::core) fn was_seen_over(&self) -> bool {
        self.deadline_ms.load(Ordering::Acquire) & OVER != 0
    }

    /// The server has confirmed a lease of that length, counted from when the request was sent. Deadlines only grow: an answer
    /// that comes late must not take back what a later request achieved. `false` if the hold is over here.
    #[must_use = "what the server keeps of a hold that is over is nobody's"]
    pub(crate) fn confirmed(&self, sent_at: SentAt, lease_ms: i64, now_ms: u64) -> bool {
        if !self.is_valid(now_ms) {
            return false;
        }
        let until = deadline_ms(sent_at.at_ms, lease_ms);
        let later = |old| (old & OVER == 0).then_some(until.max(old));
        let Ok(before) = self.deadline_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, later) else {
            return false;
        };
        if until > before {
            self.was_renewed.store(true, Ordering::Relaxed);
        }
        self.note_seen(sent_at);
        // What was confirmed for less leaves the next renewal where it was: the hold would end before it.
        if lease_ms >= self.lease_ms() {
            self.schedule.renew_due_ms.store(sent_at.at_ms + self.renew_period_ms(), Ordering::Relaxed);
        }
        true
    }

    /// Whether the hold is good at this moment: not given back, not lost, and not past its deadline.
    pub(crate) fn is_valid(&self, now_ms: u64) -> bool {
        self.is_held() && !self.is_over(now_ms)
    }

    /// Why a request has not found the hold on the server, if it is not known better. An answer that comes after the deadline
    /// does not tell whether the hold had simply ended.
    pub(crate) fn reason_if_missing(&self, now_ms: u64) -> LossReason {
        let unknown = || if now_ms < self.deadline_ms() { LossReason::Deleted } else { LossReason::Expired };
        self.loss().cloned().unwrap_or_else(unknown)
    }
}
