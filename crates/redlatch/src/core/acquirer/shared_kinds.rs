//! Asking for a hold that several owners have at a time, as read holds and permits are.

use std::{sync::Arc, time::Duration};

use super::Acquirer;
use crate::{
    core::{Core, Request, Wait, contest::Attempt, lease::HeldLease},
    store::Fault,
};

/// How long a reader lets writers of its own process go first. There is an end to it, because the writer may wait for a holder that waits for
/// this reader.
const YIELD_MS_MAX: u64 = 3_000;
/// How often such a reader looks whether it may go on; looking asks nobody but this process.
const YIELD_LOOK: Duration = Duration::from_millis(20);

/// What a task knows that asks beside others of its process.
#[derive(Default)]
pub(super) struct SharedKindState {
    /// Until when others of this process may go first.
    yields_until_ms: u64,
    /// The lane counts this task as waiting.
    is_counted: bool,
}

impl SharedKindState {
    pub(super) fn new(core: &Core, request: &Request) -> Self {
        let yields_until_ms =
            request.local_writers_first.as_ref().map_or(0, |_| core.now_ms() + YIELD_MS_MAX);
        SharedKindState { yields_until_ms, is_counted: false }
    }
}

impl Acquirer {
    /// Asks once, unless tasks of this process go first that wait to write.
    pub(super) async fn ask_beside_others(&mut self) -> Result<Attempt<Arc<HeldLease>>, Fault> {
        if let Some(first) = &self.request.local_writers_first
            && self.core.now_ms() < self.shared_kind.yields_until_ms
            && self.core.lanes.is_wanted(first, &self.owner, self.core.now_ms())
        {
            return Ok(Attempt::Busy(Some(YIELD_LOOK)));
        }
        let outcome = self.try_once().await;
        let Request { wait, local_writers_first, .. } = &*self.request;
        if matches!(outcome, Ok(Attempt::Busy(_)))
            && *wait != Wait::No
            && local_writers_first.is_none()
            && !self.shared_kind.is_counted
        {
            // The lane learns that a reader waits at the server, and lets it go first after its next release there.
            self.core.lanes.add_concurrent_waiter(&self.request.keys);
            self.shared_kind.is_counted = true;
        }
        outcome
    }

    /// The lane does not count it as waiting any more.
    pub(super) fn leave_concurrent_waiters(&mut self) {
        if std::mem::take(&mut self.shared_kind.is_counted) {
            self.core.lanes.remove_concurrent_waiter(&self.request.keys);
        }
    }
}
