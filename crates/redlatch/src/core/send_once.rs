//! Requests that are sent once: they count a hold up or down under an owner under which other processes may hold, too, so that a repeat would
//! count a hold of theirs. Such a request goes over a connection that answers, and is decided on last.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt as _, TryFutureExt as _};

use super::{Core, lease::HeldLease, owner_claims::OwnerBlock, send::Numbers};
use crate::{call::CountingCall, keys::Keys, owner::Owner, recipes::Recipe, store::Fault};

/// What a request that is sent once counts: the holds of one owner.
#[derive(Clone, Copy)]
pub(crate) struct Counted<'a> {
    pub(crate) keys: &'a Keys,
    pub(crate) owner: &'a Owner,
    pub(crate) recipe: &'static dyn Recipe,
    /// When they are over, so that nothing has to be looked after any more.
    pub(crate) over_ms: u64,
}

impl<'a> From<&'a Arc<HeldLease>> for Counted<'a> {
    fn from(lease: &'a Arc<HeldLease>) -> Self {
        let (keys, owner) = lease.keys_and_owner();
        Counted { keys, owner, recipe: lease.recipe, over_ms: lease.deadline_ms() }
    }
}

/// What became of a request that is sent once.
pub(crate) enum SentOnce<T> {
    Answered(Numbers),
    /// It was not sent, for this reason.
    NotSent(T),
}

impl Core {
    /// Sends what is sent once. `decide` makes the request, or says why there is none. It is called first, because many may come one after the
    /// other, and again when nothing is left to wait for: a hold can end while the connection is looked after, and its owner may hold elsewhere by
    /// then.
    ///
    /// The block is that of a request that takes something away.
    pub(crate) async fn send_once<T>(
        self: &Arc<Self>,
        holds: Counted<'_>,
        block: Option<&OwnerBlock>,
        mut decide: impl FnMut() -> Result<CountingCall, T> + Send,
    ) -> Result<SentOnce<T>, Fault> {
        if let Err(reason) = decide() {
            return Ok(SentOnce::NotSent(reason));
        }
        let look = || self.is_there(holds).map_ok(drop).boxed();
        let left = Duration::from_millis(holds.over_ms.saturating_sub(self.now_ms()));
        tokio::select! {
            biased;
            () = self.until_keeper_is_heard(&holds.keys.key, look) => {}
            () = self.keeper.sleep(left) => {}
        }
        let number = holds.owner.request_number_placeholder();
        let call = match decide() {
            Ok(call) => call.sent_once(),
            Err(reason) => return Ok(SentOnce::NotSent(reason)),
        };
        let reply = match block {
            Some(block) => self.run_taking_away_now(call, number, true, block).await,
            None => self.run_checked(call, number, true).await,
        };
        reply.map(SentOnce::Answered)
    }

    /// Looks whether an owner holds, on the keeper's connection.
    pub(crate) async fn is_there(self: &Arc<Self>, holds: Counted<'_>) -> Result<bool, Fault> {
        let number = self.fresh_number();
        let call = holds.recipe.renew(number, &[(holds.keys, holds.owner)], 0);
        Ok(self.run_checked(call, number, true).await?.get(1) == Some(&1))
    }
}
