//! An owner that asks to write while the server counts a read hold of it: whether it would wait for itself.

use std::{sync::Arc, time::Duration};

use super::{Core, Request, Wait, renewal::SAME_END_MS};
use crate::{
    keys::{KeyKind, Keys},
    owner::Owner,
    recipes::{ExpiryCheck, READ, Recipe},
    store::{Fault, Reply},
};

/// When to ask again after a question that was not answered.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// What the server's refusal means.
pub(super) enum OwnReadHold {
    /// The read hold is here, or elsewhere and goes on.
    Continues,
    /// It is over, or will be; perhaps after this time, if that is known.
    Ends(Option<Duration>),
}

impl Core {
    /// A hold is over here before it is over on the server, so one that no guard has here may only have its end before it there. Another
    /// process may have it and renew it: then its end moves from where it was `seen` first.
    pub(super) async fn reading(
        self: &Arc<Self>,
        request: &Request,
        owner: &Owner,
        seen: &mut Option<i64>,
    ) -> OwnReadHold {
        // It comes from another process, which reads, and may wait for this one.
        if !self.has_made(owner) {
            return OwnReadHold::Continues;
        }
        let readers = Arc::new(Keys::new(request.keys.name.clone(), KeyKind::Read));
        let now_ms = self.now_ms();
        if self.lanes.find(&readers).iter().any(|lease| lease.owner == *owner && lease.is_valid(now_ms)) {
            return OwnReadHold::Continues;
        }
        if request.wait == Wait::No {
            return OwnReadHold::Ends(None);
        }
        let (end_ms, left) = match self.read_end(&readers, owner).await {
            Ok(found) => found,
            Err(_) => return OwnReadHold::Ends(Some(ASK_AGAIN)),
        };
        // It is the server's moment, which stays what it is while nobody makes the hold last.
        let first_ms = if end_ms > 0 { *seen.get_or_insert(end_ms) } else { end_ms };
        if end_ms > first_ms.saturating_add_unsigned(SAME_END_MS) {
            return OwnReadHold::Continues;
        }
        OwnReadHold::Ends(Some(left))
    }

    /// When an owner's read holds end by the server's clock (0 if there are none), and for how long the lock is read at most.
    async fn read_end(
        self: &Arc<Self>,
        readers: &Arc<Keys>,
        owner: &Owner,
    ) -> Result<(i64, Duration), Fault> {
        let asked = READ.shorten(readers, owner, 0, ExpiryCheck::WhichEnd);
        let end_ms = self
            .run_checked(asked, owner.request_number_placeholder(), false)
            .await?
            .get(1)
            .copied()
            .unwrap_or_default();
        let reply = self.run(READ.query(readers, owner.field())).await?;
        let left = match reply.array() {
            Some([Reply::Int(ttl_ms), ..]) => {
                u64::try_from(*ttl_ms).map_or(Duration::ZERO, Duration::from_millis)
            }
            _ => ASK_AGAIN,
        };
        Ok((end_ms, left))
    }
}
