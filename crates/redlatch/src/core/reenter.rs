//! Entering a lock once more under the same owner.

use std::{sync::Arc, time::Duration};

use super::{
    Core, Grant,
    lease::{Change, HeldLease},
    owner_claims::OwnerBlock,
    release::ReleaseMode,
    request::GrantPath,
    send_once::SentOnce,
};
use crate::{
    error::{Error, ErrorKind},
    jitter::jittered,
    recipes::LeaseTerm,
    store::Fault,
};

const RETRY_DELAY_MS_MIN: u64 = 20;
const RETRY_DELAY_MS_MAX: u64 = 500;

impl Core {
    /// One more hold on a lease that the same owner has.
    pub(crate) async fn reenter(
        self: &Arc<Self>,
        lease: &Arc<HeldLease>,
        lease_term: LeaseTerm,
    ) -> Result<Grant, Error> {
        self.check_open()?;
        // Noted here and not in the background: a lease that is entered is not passed on from now on.
        let change = lease.reentries().changes();
        let (core, held) = (self.clone(), lease.clone());
        // Other guards of the lease wait for it.
        let entry =
            self.run_on_keeper(self.clone().enter_again(lease.clone(), lease_term, change), move |outcome| {
                if outcome.is_ok() {
                    core.release_in_background(&held, lease_term);
                }
            });
        let entered = entry.outcome().await.and_then(std::convert::identity);
        entered.map_err(|error| error.on(&lease.keys.name).by(&lease.owner))?;
        Ok(Grant { lease: lease.clone(), lease_term, path: GrantPath::Reentered })
    }

    /// The count cannot tell a repeat: by the time that it comes another process may have been handed the owner and count there, too. So
    /// each try counts, and from an unanswered one on nothing of this lease is counted down before its end: the server has as many
    /// holds as there are guards here, or more.
    async fn enter_again(
        self: Arc<Self>,
        lease: Arc<HeldLease>,
        lease_term: LeaseTerm,
        change: Change,
    ) -> Result<(), Error> {
        let reentries = lease.reentries();
        let _counting = reentries.counting.lock().await;
        let owner = &lease.owner;
        let over_ms = self.now_ms() + self.config.response_timeout.as_millis() as u64;
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        loop {
            let lost = || {
                let why =
                    lease.loss().map_or_else(|| "the hold was given back".to_owned(), ToString::to_string);
                Error::new(ErrorKind::Lost, format!("cannot enter again: {why}"))
                    .remedy("acquire the lock anew")
            };
            let mut sent_at = self.sent_at(&lease.keys);
            let mut decide = || {
                if !lease.is_valid(self.now_ms()) {
                    return Err(lost());
                }
                sent_at = self.sent_at(&lease.keys);
                Ok(lease.recipe.enter(&lease.keys, owner, lease_term.lease_ms))
            };
            let entered = if owner.is_multi_process() {
                match self.send_once((&lease).into(), None, &mut decide).await {
                    Ok(SentOnce::NotSent(lost)) => return Err(lost),
                    Ok(SentOnce::Answered(reply)) => Ok(reply),
                    Err(fault) => Err(fault),
                }
            } else {
                self.run_checked(decide()?.repeatable(), owner.request_number_placeholder(), false).await
            };
            let fault = match entered {
                Ok(reply) if reply.get(1).is_some_and(|count| *count > 0) => {
                    lease.lasts(lease_term);
                    if !self.confirm_hold(&lease, sent_at, lease_term.lease_ms)
                        || !lease.enter(lease_term.renewed)
                    {
                        // It is over, or the last guard has gone meanwhile. What that does waits for this, and takes the entry with it unless
                        // it counts down.
                        if self.release_mode(&lease) == ReleaseMode::AllHolds {
                            lease.mark_count_in_doubt();
                        } else if !lease.is_count_in_doubt() {
                            let block = self.owners.block(&lease.keys, owner);
                            if block.no_attempt_asks() {
                                self.leave_entered(&lease, sent_at.incarnation, &block).await;
                            } else {
                                // The attempt that it waits for may be the one that waits for this entry.
                                let (core, held) = (self.clone(), lease.clone());
                                self.keeper.spawn(async move {
                                    let _change = change;
                                    core.until_no_attempt_asks(&block).await;
                                    let reentries = held.reentries();
                                    let _counting = reentries.counting.lock().await;
                                    core.leave_entered(&held, sent_at.incarnation, &block).await;
                                });
                            }
                        }
                        return Err(lost());
                    }
                    lease.note_entered_in(sent_at.incarnation, false);
                    self.schedule(&lease);
                    return Ok(());
                }
                Ok(_) => {
                    self.end_as_gone(&lease).await;
                    return Err(lost());
                }
                Err(Fault::Server(error)) if !error.is_retryable() => return Err(error),
                Err(fault) => fault,
            };
            if fault.is_unknown() {
                lease.mark_count_in_doubt();
                // It may arrive in the owner's next hold, too.
                self.owners.block(&lease.keys, owner).ended::<()>(&Err(fault.clone()));
            }
            // What is counted too often under a shared owner would outlast its last guard.
            if self.now_ms() >= over_ms || (fault.is_unknown() && owner.is_multi_process()) {
                return Err(fault.into_error());
            }
            self.keeper.sleep(jittered(Duration::from_millis(delay_ms))).await;
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
        }
    }

    /// Counts down an entry that no guard has.
    async fn leave_entered(self: &Arc<Self>, lease: &Arc<HeldLease>, incarnation: u64, block: &OwnerBlock) {
        let sent = self.send_once(lease.into(), Some(block), || {
            // Where the lease is over, the server may count another process's hold by now. One too many ends with the lease.
            if lease.is_over(self.now_ms()) {
                return Err(());
            }
            Ok(self.count_down_call(lease).in_incarnation(Some(incarnation)))
        });
        if sent.await.is_err_and(|fault| !fault.is_elsewhere()) {
            // It may be counted still when the last of the others is counted down.
            lease.mark_count_in_doubt();
        }
    }
}
