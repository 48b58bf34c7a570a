//! Permits without an end: they are taken with a lease, and then that is taken off.
//!
//! A request that takes permits for ever may come when no task waits for it any more, and then nobody gives them back. What one
//! takes with a lease ends with it; and one that takes the lease off does nothing where the permits have been given back.

use std::time::Duration;

use super::PermitGuard;
use crate::{
    core::wait::WaitDeadline, error::Error, jitter::jittered, recipes::NEVER_MS, replica_ack::Replication,
};

const RETRY_DELAY_MS_MIN: u64 = 20;
const RETRY_DELAY_MS_MAX: u64 = 500;
/// For so long replicas are asked that have confirmed the grant just before, however little is left of the wait.
const CONFIRM_TIME_MIN: Duration = Duration::from_millis(250);

impl PermitGuard {
    /// Takes the lease off, and has replicas confirm the permits, if they are to. Without an answer it asks again, for as long as a
    /// server may take to answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the permits back.
    ///
    /// # Errors
    ///
    /// The permits are given back then: they were lost meanwhile; too few replicas have them; a server that is unreachable or refuses.
    pub(super) async fn never_ends(
        mut self,
        ack: Option<Replication>,
        deadline: &WaitDeadline,
    ) -> Result<PermitGuard, Error> {
        let core = self.hold.core().clone();
        let over_ms = core.now_ms().saturating_add(core.config.response_timeout.as_millis() as u64);
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        self.replicas = loop {
            let ack = ack.map(|ack| {
                // As for a grant: what replicas do not confirm is to be given back in time.
                let within = ack.within.min(self.hold.remaining() / 2);
                let left = deadline.left(&core).map_or(within, |left| (left * 3 / 4).max(CONFIRM_TIME_MIN));
                Replication { within: within.min(left).max(Duration::from_millis(1)), ..ack }
            });
            let error = match self.hold.lasts(NEVER_MS, ack).await {
                Ok(replicas) => break replicas,
                Err(error) => error,
            };
            if !error.is_retryable() || core.now_ms() >= over_ms {
                return Err(error);
            }
            core.keeper.pause(jittered(Duration::from_millis(delay_ms))).await;
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
        };
        if let (Some(ack), Some(replicas)) = (ack, self.replicas)
            && !replicas.is_complete()
            && !ack.keep
        {
            let name = self.name().clone();
            // Without an answer the release goes on in the background.
            let undone = tokio::select! {
                biased;
                released = self.release() => released.is_ok(),
                () = core.keeper.sleep(core.config.response_timeout) => false,
            };
            return Err(ack.shortfall(replicas, undone).on(&name));
        }
        self.permanent = true;
        Ok(self)
    }
}
