//! The end of a client: no new holds, no more waiting, and what is held is given back within a limit.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{Core, owner_claims::OwnerBlock, release::Unlocked};
use crate::{
    error::{Error, ErrorKind, LossReason},
    name::LockName,
    observe::HoldEnd,
};

impl Core {
    /// Ends everything: no new holds, no more waiting; what is held is released.
    ///
    /// Answers how many holds were released and which were not, with the reason.
    pub(crate) async fn shutdown(self: &Arc<Self>, limit: Duration) -> (usize, Vec<(LockName, Error)>) {
        if self.is_forked() || self.closed.swap(true, Ordering::SeqCst) {
            return (0, Vec::new());
        }
        self.closing.tell();
        self.lanes.close();
        let mut leases = Vec::new();
        self.lanes.each_lease(|lease| leases.push(lease.clone()));
        let mut releases = Vec::new();
        for lease in leases {
            if lease.lose(LossReason::Shutdown) {
                self.hold_ended(&lease, HoldEnd::Lost(&LossReason::Shutdown));
                self.lanes.forget(&lease);
                let (tell, told) = tokio::sync::oneshot::channel();
                let (core, held) = (self.clone(), lease.clone());
                self.keeper.spawn(async move {
                    if let Some(left) = held.claim() {
                        let _ = tell.send(core.leave_again(&left, &held.owner).await.map(|left| (left, 0)));
                        return;
                    }
                    let block = core.owners.block(&held.keys, &held.owner);
                    let work = async |block: &OwnerBlock| core.release_all_holds(&held, block).await;
                    let _ = tell.send(block.during(work).await);
                });
                releases.push((lease, told));
            }
        }
        let end = self.keeper.sleep(limit);
        let mut end = std::pin::pin!(end);
        let (mut released, mut failed) = (0, Vec::new());
        let late = || {
            Error::new(ErrorKind::Timeout, "not released within the time for shutting down")
                .remedy("its lease ends it")
        };
        for (lease, told) in releases {
            let outcome = tokio::select! {
                biased;
                outcome = told => outcome.unwrap_or_else(|_| Err(late())),
                () = &mut end => Err(late()),
            };
            match outcome {
                // What it was lost to is not known: ending it here came first.
                Ok((Unlocked::AlreadyLost(_), _)) => {
                    let gone = "the server no longer had the hold when the client was shut down";
                    failed.push((lease.keys.name.clone(), Error::new(ErrorKind::Lost, gone)));
                }
                Ok(_) => released += 1,
                Err(error) => failed.push((lease.keys.name.clone(), error)),
            }
        }
        tokio::select! {
            biased;
            () = self.keeper.drained() => {}
            () = &mut end => {}
        }
        tokio::select! {
            biased;
            () = self.withdraw_record() => {}
            () = &mut end => {}
        }
        self.disconnected.store(true, Ordering::SeqCst);
        self.store.close();
        (released, failed)
    }
}
