//! A bell that several servers can ring: for waiting until any of several locks may be free.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::Notify;

use super::Core;
use crate::store::{SubscribeFuture, Subscription};

/// Subscriptions at several servers that wake one waiter.
#[derive(Default)]
pub(crate) struct MultiSubscription {
    notify: Arc<Notify>,
    coming: FuturesUnordered<SubscribeFuture>,
    confirmed: Vec<Box<dyn Subscription>>,
}

impl MultiSubscription {
    /// Listens at one more server.
    pub(crate) fn listen(&mut self, core: &Core, channel: Arc<[u8]>) {
        let notify = self.notify.clone();
        self.coming.push(core.store.subscribe(channel, Arc::new(move |_| notify.notify_one())));
    }

    /// Waits until it rings, at most so long. Also returns when the last subscription is confirmed, because what was sent before
    /// may have gone by unheard. A server that refuses to be listened to is looked at when the time is up.
    pub(crate) async fn wait(&mut self, core: &Core, time: Duration) {
        let limit = core.keeper.sleep(time);
        let mut limit = std::pin::pin!(limit);
        loop {
            tokio::select! {
                biased;
                () = self.notify.notified() => return,
                Some(outcome) = self.coming.next(), if !self.coming.is_empty() => {
                    self.confirmed.extend(outcome.ok());
                    if self.coming.is_empty() {
                        return;
                    }
                }
                () = &mut limit => return,
            }
        }
    }
}
