//! Having replicas confirm a grant, and giving back what they do not confirm.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{Core, Request, lease::SentAt, undo::RequestFate, wait::WaitDeadline};
use crate::{
    error::{Error, ErrorKind},
    owner::Owner,
    replica_ack::{Confirmed, Replication},
    store::{Call, Confirm, Fault, Reply},
};

/// An answer, and how to ask the replicas for what it tells of.
pub(super) type Answered = (Reply, Option<Confirm>);

impl Core {
    /// Sends a request; with its answer comes a way to ask the replicas for it, if they are to be asked.
    pub(super) async fn run_maybe_acked(&self, request: &Request, call: Call) -> Result<Answered, Fault> {
        self.keeper.note_call();
        match request.ack {
            None => Ok((self.run(call).await?, None)),
            Some(ack) => {
                let (reply, confirm) = self.run_acked(call, ack.count, !ack.keep).await?;
                Ok((reply, Some(confirm)))
            }
        }
    }

    /// Asks the replicas for a grant of what one script has taken, which is of one lease term. Unless enough confirm it, or it is kept
    /// all the same, all of it is given back.
    pub(super) async fn confirm(
        self: &Arc<Self>,
        mut grant: Unconfirmed<'_>,
        ack: Replication,
        confirm: Confirm,
        deadline: &WaitDeadline,
    ) -> Result<Confirmed, Fault> {
        // Dropping this future gives the grant back at once, whatever the replicas say later.
        let Unconfirmed { requests, owner, sent_at, .. } = grant;
        let lease_ms = requests.first().map_or(0, |request| request.lease_term.lease_ms);
        let half_ms = u64::try_from(lease_ms / 2).unwrap_or(0);
        let mut within = ack.within.min(Duration::from_millis(half_ms));
        if let Some(left) = deadline.left(self) {
            within = within.min(left * 3 / 4);
        }
        self.keeper.note_call();
        match confirm(within).await {
            Ok(replicas) if replicas.is_complete() || ack.keep => {
                grant.is_ours = false;
                Ok(Confirmed { count: ack.count, replicas })
            }
            Ok(replicas) => {
                grant.is_ours = false;
                let granted = RequestFate::Granted(sent_at);
                let jobs = requests.iter().map(|request| self.undo_later(request, owner, granted));
                let jobs = join_all(jobs.collect::<Vec<_>>());
                let limit = self.keeper.sleep(self.config.response_timeout);
                let undone = tokio::select! {
                    biased;
                    done = jobs => done.into_iter().all(|done| done.unwrap_or(false)),
                    () = limit => false,
                };
                let shortfall = ack.shortfall(replicas, undone);
                // A request that gives it back and is not answered would end what the owner is granted next.
                Err(Fault::Server(if undone { shortfall } else { in_doubt(shortfall) }))
            }
            // Asking again would count one more. The server that granted it takes it back, unless another one has taken over.
            Err(Fault::Server(error)) if owner.is_multi_process() => Err(Fault::Server(error)),
            Err(fault) => {
                // The same owner asks again and so writes again, by which the replicas can be asked on any connection; or it
                // gives up, and what it may have is removed then. Undoing it now would meet its next grant. Another server may have
                // taken over, without the grant, so what is there under a shared owner may be another process's.
                grant.is_ours = false;
                Err(Fault::Unknown(fault.into_error()))
            }
        }
    }

    /// Gives grants back before the same owner asks again: on its way the undoing would meet, and remove, the next grant. A task
    /// that no longer waits for it leaves it to the background. If not all of it was answered, the owner must not ask again.
    pub(super) async fn undo_and_wait(
        self: &Arc<Self>,
        requests: &[&Arc<Request>],
        owner: &Owner,
        sent_at: SentAt,
    ) -> Result<(), Fault> {
        let granted = RequestFate::Granted(sent_at);
        let undoing: Vec<_> =
            requests.iter().map(|request| self.undo_later(request, owner, granted)).collect();
        let mut certain = true;
        for undone in undoing {
            certain &= undone.await.unwrap_or(false);
        }
        if certain {
            return Ok(());
        }
        Err(Fault::Server(in_doubt("a grant came after its lease had ended")))
    }
}

/// A grant that replicas have not confirmed; dropping it gives it back.
pub(super) struct Unconfirmed<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) requests: &'a [Arc<Request>],
    pub(super) owner: &'a Owner,
    pub(super) sent_at: SentAt,
    pub(super) is_ours: bool,
}

impl Drop for Unconfirmed<'_> {
    fn drop(&mut self) {
        if self.is_ours {
            self.core.undo_all(self.requests, self.owner, RequestFate::Granted(self.sent_at));
        }
    }
}

/// Why an acquire ends whose owner must not ask again.
fn in_doubt(what: impl std::fmt::Display) -> Error {
    let message = format!("{what}; a request that gives it back was not answered");
    Error::new(ErrorKind::OwnerInDoubt, message).remedy("ask again, with a fresh owner")
}
