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
pub(super) enum ServerLine {
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
        if matches!(self.server_line, ServerLine::Outside) {
            let (entry, handle) =
                WaiterEntry::new(&self.request, Some(self.owner.clone()), self.wake.clone());
            self.server_line = ServerLine::Inside(handle);
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
            Ok(Attempt::QueuedBehind { count_ahead }) => self.count_ahead = count_ahead,
            // What was not answered may have lined up anew, behind others than were counted.
            Err(_) => self.count_ahead = true,
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
                self.step_out();
                Err(Fault::Server(error))
            }
            outcome => outcome,
        }
    }

    /// No longer takes what is handed over. Says whether a place in the queue on the server may have to be given up, and has what was
    /// handed over at the last moment.
    pub(super) fn close_line(&mut self) -> (bool, Option<Arc<HeldLease>>) {
        let ServerLine::Inside(mut handle) = std::mem::take(&mut self.server_line) else {
            return (false, None);
        };
        // Closing comes before looking: a release that puts this task back in line looks whether it still waits, and what was handed
        // over before is found here.
        handle.inbox.close();
        self.core.lanes.step_out(&self.request.keys, &self.owner);
        match handle.inbox.try_recv() {
            Ok(WaiterMessage::Lease(lease)) if lease.take() => (true, Some(lease)),
            Ok(WaiterMessage::Lease(_)) => {
                self.offer_taken_back = true;
                (true, None)
            }
            Ok(WaiterMessage::Contend { .. }) | Err(_) => (true, None),
        }
    }

    /// As [`close_line`](Self::close_line), and gives back what was handed over.
    pub(super) fn step_out(&mut self) -> bool {
        let (lined_up, handed) = self.close_line();
        if let Some(lease) = handed {
            self.core.release_in_background(&lease, lease.lease_term());
        }
        lined_up
    }

    /// The lease that a task of this process has handed over, if any.
    fn handed(&mut self) -> Option<Arc<HeldLease>> {
        let ServerLine::Inside(handle) = &mut self.server_line else { return None };
        match handle.inbox.try_recv() {
            Ok(WaiterMessage::Lease(lease)) if !lease.take() => {
                self.offer_taken_back = true;
                None
            }
            Ok(WaiterMessage::Lease(lease)) if lease.is_valid(self.core.now_ms()) => Some(lease),
            Ok(WaiterMessage::Lease(lease)) => {
                self.core.lanes.forget(&lease);
                None
            }
            Ok(WaiterMessage::Contend { .. }) | Err(_) => None,
        }
    }
}
