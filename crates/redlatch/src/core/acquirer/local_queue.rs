//! The place of one who asks in a queue on the server, and what tasks of this process hand over there.

use std::sync::Arc;

use super::Acquirer;
use crate::{
    core::{
        contest::Attempt,
        lane::{WaiterEntry, WaiterHandle, WaiterMessage},
        lease::HeldLease,
    },
    error::ErrorKind,
    store::Fault,
};

/// The place in a queue on the server, for kinds that have one.
#[derive(Default)]
pub(super) enum LocalQueuePlace {
    #[default]
    Outside,
    /// Asked for, so it must be given up when no grant follows; known to the tasks of this process that release.
    Inside(WaiterHandle),
}

impl Acquirer {
    /// Asks once, unless a task of this process has handed the lock over.
    pub(super) async fn ask_in_line(&mut self) -> Result<Attempt<Arc<HeldLease>>, Fault> {
        if let Some(served) = self.served() {
            return Ok(served);
        }
        self.line_up();
        let outcome = self.try_once().await;
        self.looked_in_line(outcome)
    }

    /// Stands in line before it asks, so that a release which comes after the answer finds it there.
    fn line_up(&mut self) {
        if matches!(self.local_queue, LocalQueuePlace::Outside) {
            let since_ms = self.deadline.began_ms();
            let owner = Some(self.owner.clone());
            let (entry, handle) = WaiterEntry::new(&self.request, owner, self.wake.clone(), since_ms);
            self.local_queue = LocalQueuePlace::Inside(handle);
            self.core.lanes.line_up(&self.request.keys, entry);
        }
    }

    /// What a task of this process has handed over, or taken back.
    fn served(&mut self) -> Option<Attempt<Arc<HeldLease>>> {
        match self.handed() {
            Some(lease) => Some(Attempt::Won(lease)),
            None => self.offer_taken_back.then_some(Attempt::OfferExpired),
        }
    }

    /// What an answer means to a task in line, which another one may have served while it was on its way.
    fn looked_in_line(
        &mut self,
        outcome: Result<Attempt<Arc<HeldLease>>, Fault>,
    ) -> Result<Attempt<Arc<HeldLease>>, Fault> {
        match outcome {
            Ok(Attempt::QueuedBehind { count_waiters_ahead }) => {
                self.count_waiters_ahead = count_waiters_ahead
            }
            // What was not answered may have lined up anew, behind others than were counted.
            Err(_) => self.count_waiters_ahead = true,
            Ok(_) => {}
        }
        match outcome {
            Ok(Attempt::Won(lease)) => {
                // Both leases are the same hold.
                if let Some(same) = self.handed() {
                    self.core.lanes.forget(&same);
                }
                Ok(if self.offer_taken_back { Attempt::OfferExpired } else { Attempt::Won(lease) })
            }
            Ok(busy @ (Attempt::Busy(_) | Attempt::QueuedBehind { .. })) => {
                self.core.lanes.lined_up(&self.request.keys, &self.owner);
                Ok(self.served().unwrap_or(busy))
            }
            // Another process holds under this owner. Giving up a place in the queue would give back that hold, and a place
            // from an earlier attempt went with the grant.
            Err(Fault::Server(error)) if error.kind() == ErrorKind::AlreadyHeld => {
                self.leave_local_queue();
                Err(Fault::Server(error))
            }
            outcome => outcome,
        }
    }

    /// No longer takes what is handed over. Says whether a place in the queue on the server may have to be given up, and has what was
    /// handed over at the last moment.
    pub(super) fn stop_hand_overs(&mut self) -> (bool, Option<Arc<HeldLease>>) {
        let LocalQueuePlace::Inside(handle) = std::mem::take(&mut self.local_queue) else {
            return (false, None);
        };
        // A release that puts this task back in line looks whether it still waits, so it leaves when it is told nothing more.
        let told = handle.close().told;
        self.core.lanes.leave_local_queue(&self.request.keys, &self.owner);
        match told {
            Some(WaiterMessage::Lease(lease)) if lease.take() => (true, Some(lease)),
            Some(WaiterMessage::Lease(_)) => {
                self.offer_taken_back = true;
                (true, None)
            }
            Some(WaiterMessage::Lead { .. }) | None => (true, None),
        }
    }

    /// As [`stop_hand_overs`](Self::stop_hand_overs), and gives back what was handed over.
    pub(super) fn leave_local_queue(&mut self) -> bool {
        let (lined_up, handed) = self.stop_hand_overs();
        if let Some(lease) = handed {
            self.core.release_in_background(&lease, lease.lease_term());
        }
        lined_up
    }

    /// The lease that a task of this process has handed over, if any.
    fn handed(&mut self) -> Option<Arc<HeldLease>> {
        let LocalQueuePlace::Inside(handle) = &mut self.local_queue else { return None };
        match handle.told() {
            Some(WaiterMessage::Lease(lease)) if !lease.take() => {
                self.offer_taken_back = true;
                None
            }
            Some(WaiterMessage::Lease(lease)) if lease.is_valid(self.core.now_ms()) => Some(lease),
            Some(WaiterMessage::Lease(lease)) => {
                self.core.lanes.forget(&lease);
                None
            }
            Some(WaiterMessage::Lead { .. }) | None => None,
        }
    }
}
