//! A hold of this process that other tasks of it wait for: it must not keep them out for longer than it keeps out strangers.
//!
//! The tasks in line ask nobody, because the holder is one of their own. If the hold is forced free or deleted, its holder is told
//! with the next renewal, and they would wait until then. So where a task waits behind a hold for longer than a moment, the
//! keeper listens in its place, and looks at the hold when a message says that something has changed.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use super::{Core, lease::Lease};
use crate::config::POLL_INTERVAL_MAX;

/// Since when a hold must not have been seen on the server for its line to be worth a look: locks that pass from task to task are
/// seen more often.
pub(super) const UNSEEN_MS_MIN: u64 = 200;
/// How often a hold is looked at whose channel tells everything. The rest is a matter of renewals.
const LOOK_TIME_MAX: Duration = Duration::from_secs(30);

impl Core {
    /// Begins to listen for the lines that are worth it.
    pub(super) fn look_out(self: &Arc<Self>, now_ms: u64) {
        for lease in self.lanes.waited_for(now_ms, UNSEEN_MS_MIN) {
            if !lease.schedule.watched_out_for.swap(true, Ordering::AcqRel) {
                let core = self.clone();
                self.keeper.handle().spawn(async move { core.listen_for(lease).await });
            }
        }
    }

    /// Looks at a hold when a message comes, for as long as it lasts and has a line.
    async fn listen_for(self: Arc<Self>, lease: Arc<Lease>) {
        let notify = Arc::new(Notify::new());
        let channel = lease.recipe.channel(&lease.keys, &lease.owner);
        let heard = notify.clone();
        let subscription = match channel {
            Some(channel) => self.store.subscribe(channel, Arc::new(move |_| heard.notify_one())).await.ok(),
            None => None,
        };
        let pause = if subscription.is_some() { LOOK_TIME_MAX } else { POLL_INTERVAL_MAX };
        let ended = lease.clone().ended();
        let mut ended = std::pin::pin!(ended);
        while lease.is_held() && self.lanes.has_line(&lease.keys) {
            // The first look finds what happened before the subscription.
            self.recheck_now(lease.clone()).await;
            let closing = self.closing.notified();
            tokio::select! {
                biased;
                _ = &mut ended => return,
                () = closing => return,
                () = notify.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        lease.schedule.watched_out_for.store(false, Ordering::Release);
    }
}
