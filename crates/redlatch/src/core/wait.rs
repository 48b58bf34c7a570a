//! Waiting: the deadline of a caller, and what wakes a waiter (decision D9).
//!
//! Every message is only a hint to look again. The sleep of a task that contends is bounded by the poll interval, and by the TTL where the server has no queue; a
//! task in line sleeps until another task of this process tells it.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    Core, Wait,
    watch_awaited_names::{KeyWatch, WATCH_KEY_AFTER, WaitsFor},
};
use crate::{
    config::{POLL_INTERVAL_MAX, QUEUE_POLL_INTERVAL_MAX},
    error::Error,
    jitter::jittered,
    store::{Fault, SubscribeFuture, Subscription},
};

/// The longest poll interval of a waiter behind others in a queue, even if a longer one is set: a waiter must ask within 30 s to keep its place, and asking also removes dead waiters before it.
const QUEUED_SLEEP_MAX: Duration = Duration::from_secs(10);
/// The shortest sleep: a hint of 0 ms means "about to expire" and must not become a busy loop.
const SLEEP_MIN: Duration = Duration::from_millis(2);
/// The least time allowed for an answer, even when the deadline is nearer: on a busy machine answers take a while.
pub(crate) const ANSWER_TIME: Duration = Duration::from_millis(100);
/// What it takes to read an answer that is there already.
pub(super) const ANSWER_READ_TIME: Duration = Duration::from_millis(20);
/// A timer that is later than this says that the process stood still, and perhaps the server with it.
const STOOD_STILL_MS_MIN: u64 = 20;
/// How long to wait for a subscription to be confirmed before looking again without it.
const CONFIRM_TIME: Duration = Duration::from_millis(250);

/// When the wait of a caller has to be over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitDeadline {
    began_ms: u64,
    at_ms: Option<u64>,
}

impl WaitDeadline {
    pub(crate) fn new(core: &Core, wait: Wait) -> Self {
        let began_ms = core.now_ms();
        let at_ms = match wait {
            Wait::AtMost(limit) => {
                Some(began_ms.saturating_add(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)))
            }
            Wait::No | Wait::Forever => None,
        };
        WaitDeadline { began_ms, at_ms }
    }

    /// Since when the acquire has waited.
    pub(crate) fn began_ms(&self) -> u64 {
        self.began_ms
    }

    pub(crate) fn left(&self, core: &Core) -> Option<Duration> {
        self.at_ms.map(|at_ms| Duration::from_millis(at_ms.saturating_sub(core.now_ms())))
    }

    pub(crate) fn is_over(&self, core: &Core) -> bool {
        self.left(core).is_some_and(|left| left.is_zero())
    }

    /// Waits for the work no longer than until the deadline. The work is dropped when time is up.
    pub(crate) async fn bound<T>(
        &self,
        core: &Core,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        match self.left(core) {
            None => Some(work.await),
            Some(left) => {
                // A look at a free lock must be possible even with no time left, and an answer takes a moment.
                let time = left.max(ANSWER_TIME);
                let due_ms =
                    core.now_ms().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
                let limit = core.keeper.sleep(time);
                tokio::select! {
                    biased;
                    outcome = &mut work => Some(outcome),
                    () = limit => {
                        // A process that stood still over its deadline finds the answer waiting beside its timer, or, if the
                        // whole machine stood still, the server only beginning to answer.
                        let stood_still = core.now_ms() > due_ms.saturating_add(STOOD_STILL_MS_MIN);
                        let more = if stood_still { ANSWER_TIME } else { ANSWER_READ_TIME };
                        tokio::select! {
                            biased;
                            outcome = &mut work => Some(outcome),
                            () = core.keeper.sleep(more) => None,
                        }
                    }
                }
            }
        }
    }
}

/// What wakes a waiter: a message, the return of a subscription, the end of the key, or time.
#[derive(Default)]
pub(super) struct ServerWait {
    /// When this key is gone, it is worth asking again.
    key_to_watch: Option<Arc<[u8]>>,
    /// Its registration with the keeper, made after 200 ms of waiting (`watch_awaited_names.rs`).
    key_watch: Option<KeyWatch>,
    /// Made when it is asked for: most acquires find the lock free.
    notify: Option<Arc<Notify>>,
    state: State,
    /// Since when messages are heard.
    hears_since_ms: Option<u64>,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Subscribing(SubscribeFuture),
    Subscribed(#[expect(dead_code, reason = "held so that the subscription lasts")] Box<dyn Subscription>),
    /// The server refuses; waiting goes on by looking at intervals.
    Refused,
}

impl ServerWait {
    /// A wait for messages, time and the end of that key, if there is one.
    pub(super) fn new(key_to_watch: Option<Arc<[u8]>>) -> ServerWait {
        ServerWait { key_to_watch, ..ServerWait::default() }
    }

    pub(super) fn notify(&mut self) -> Arc<Notify> {
        self.notify.get_or_insert_default().clone()
    }

    /// Asks for a subscription if there is none yet; `true` if it was asked for just now.
    pub(super) fn subscribe(&mut self, core: &Core, channel: Arc<[u8]>) -> bool {
        if !matches!(self.state, State::Idle) {
            return false;
        }
        let notify = self.notify();
        self.state =
            State::Subscribing(core.store.subscribe(channel, Arc::new(move |_| notify.notify_one())));
        true
    }

    /// Waits until the subscription is confirmed, refused, or late.
    pub(super) async fn wait_for_confirmation(
        &mut self,
        core: &Core,
        deadline: &WaitDeadline,
    ) -> Result<(), Error> {
        let limit = deadline.left(core).map_or(CONFIRM_TIME, |left| left.min(CONFIRM_TIME));
        self.sleep(core, limit, Until::Confirmation).await.map(drop)
    }

    /// Sleeps until it is time to look again: a message, a subscription that came late, the TTL, the poll interval.
    pub(super) async fn wait_for_change(
        &mut self,
        core: &Core,
        hint: Option<Duration>,
        deadline: &WaitDeadline,
    ) -> Result<(), Error> {
        // One millisecond after the TTL, when the server has certainly let go.
        let until_expiry = hint.map_or(Duration::MAX, |hint| hint + Duration::from_millis(1));
        let poll = self.poll_interval(core);
        self.pause_for_change(core, until_expiry.min(jittered(poll)), WaitsFor::KeyGone, deadline).await
    }

    /// Sleeps behind others in the server's queue. The server tells the first of them, so looking is only for trouble.
    pub(super) async fn wait_queued_behind(
        &mut self,
        core: &Core,
        deadline: &WaitDeadline,
    ) -> Result<(), Error> {
        // No longer than its place counts.
        let poll = self.poll_interval(core).clamp(QUEUE_POLL_INTERVAL_MAX, QUEUED_SLEEP_MAX);
        self.pause_for_change(core, jittered(poll), WaitsFor::KeyspaceEmptied, deadline).await
    }

    /// Sleeps until a message, a subscription that came late, the end of the key, or time. After 200 ms the keeper has the server report changes of the
    /// key (`CLIENT TRACKING`). The keeper looks at the key after each report, once a second at most, and wakes this task when the key is gone (`watch_awaited_names.rs`).
    async fn pause_for_change(
        &mut self,
        core: &Core,
        time: Duration,
        waits_for: WaitsFor,
        deadline: &WaitDeadline,
    ) -> Result<(), Error> {
        let until = Until::NoticeOrConfirmation;
        let mut left = time;
        if let Some(key) = &self.key_to_watch
            && self.key_watch.as_ref().is_none_or(|key_watch| key_watch.waits_for() != waits_for)
            && time > WATCH_KEY_AFTER
        {
            let key = key.clone();
            if self.pause(core, WATCH_KEY_AFTER, until, deadline).await? != WokenBy::Time
                || deadline.is_over(core)
            {
                return Ok(());
            }
            left -= WATCH_KEY_AFTER;
            self.key_watch = Some(core.watch_awaited_key(key, self.notify(), waits_for));
        }
        self.pause(core, left, until, deadline).await.map(drop)
    }

    /// The interval that is set; at most 800 ms for a waiter without a subscription, which no message wakes.
    fn poll_interval(&self, core: &Core) -> Duration {
        let set = core.config.poll_interval_max;
        if matches!(self.state, State::Subscribed(_)) { set } else { set.min(POLL_INTERVAL_MAX) }
    }

    /// Sleeps for a time, or until a task of this process wakes it: then `true`.
    pub(super) async fn await_expected_grant(
        &mut self,
        core: &Core,
        time: Duration,
        deadline: &WaitDeadline,
    ) -> Result<bool, Error> {
        let time = deadline.left(core).map_or(time, |left| left.min(time));
        Ok(self.sleep(core, time, Until::Notice).await? == WokenBy::Notice)
    }

    /// Sleeps for a time, or until a message comes.
    pub(super) async fn wait(
        &mut self,
        core: &Core,
        time: Duration,
        deadline: &WaitDeadline,
    ) -> Result<(), Error> {
        self.pause(core, time, Until::Notice, deadline).await.map(drop)
    }

    /// Sleeps before another try in trouble. It ends early if another server takes the keyspace over, now or since `takeovers` was read.
    pub(super) async fn wait_in_trouble(
        &mut self,
        core: &Core,
        time: Duration,
        takeovers: u64,
        deadline: &WaitDeadline,
    ) -> Result<(), Error> {
        let taken_over = core.keeper.taken_over();
        let mut taken_over = std::pin::pin!(taken_over);
        tokio::select! {
            biased;
            // Listening comes before looking.
            () = &mut taken_over => Ok(()),
            () = async {}, if core.store.takeovers() != takeovers => Ok(()),
            outcome = self.wait(core, time, deadline) => outcome,
        }
    }

    /// Waits behind others of this process until `work` is done, and hears its subscription meanwhile; `None` when time is up.
    pub(super) async fn wait_behind_local_tasks_subscribed<T>(
        &mut self,
        core: &Core,
        key: &[u8],
        work: impl Future<Output = T>,
        deadline: &WaitDeadline,
    ) -> Result<Option<T>, Error> {
        let work_and_hear = async {
            let mut work = pin!(work);
            loop {
                tokio::select! {
                    biased;
                    done = &mut work => return done,
                    outcome = subscription_arrives(&mut self.state) => self.subscription_arrived(core, outcome),
                }
            }
        };
        core.wait_behind_local_tasks(key, deadline, pin!(work_and_hear)).await
    }

    /// Sleeps for a time, the caller's deadline at most.
    async fn pause(
        &mut self,
        core: &Core,
        time: Duration,
        until: Until,
        deadline: &WaitDeadline,
    ) -> Result<WokenBy, Error> {
        let time = time.max(SLEEP_MIN);
        self.sleep(core, deadline.left(core).map_or(time, |left| left.min(time)), until).await
    }

    fn subscription_arrived(&mut self, core: &Core, outcome: Result<Box<dyn Subscription>, Fault>) {
        match outcome {
            Ok(subscription) => {
                self.hears_since_ms = Some(core.now_ms());
                self.state = State::Subscribed(subscription);
            }
            Err(fault) => {
                tracing::debug!(error = %fault, "no subscription; the waiter looks at intervals instead");
                self.state = State::Refused;
            }
        }
    }

    /// Since when every message is heard, if it is.
    pub(super) fn hears_since_ms(&self) -> Option<u64> {
        self.hears_since_ms
    }

    /// Sleeps for a time, whatever the deadline, unless something wakes it.
    async fn sleep(&mut self, core: &Core, time: Duration, until: Until) -> Result<WokenBy, Error> {
        let closing = core.closing.until(|| core.is_closed().then_some(()));
        let mut closing = std::pin::pin!(closing);
        let limit = core.keeper.sleep(time);
        let mut limit = std::pin::pin!(limit);
        let notify = self.notify();
        loop {
            tokio::select! {
                biased;
                () = &mut closing => return Err(core.closed_error()),
                outcome = subscription_arrives(&mut self.state) => {
                    self.subscription_arrived(core, outcome);
                    if until != Until::Notice {
                        return Ok(WokenBy::Confirmation);
                    }
                }
                () = notify.notified(), if until != Until::Confirmation => return Ok(WokenBy::Notice),
                () = &mut limit => return Ok(WokenBy::Time),
            }
        }
    }
}

impl Core {
    /// The deadline of a call that does not wait, while another request of the name or of the owner is under way.
    pub(super) fn response_deadline(self: &Arc<Self>) -> WaitDeadline {
        WaitDeadline::new(self, Wait::AtMost(self.config.response_timeout))
    }

    /// Waits in a lane, as [`wait_behind_local_tasks`](Self::wait_behind_local_tasks). The keeper wakes those in line when the server is in trouble, and a shutdown ends their
    /// wait; so a wait without a limit needs neither a subscription nor a timer.
    pub(super) async fn wait_in_lane<T>(
        &self,
        key: &[u8],
        deadline: &WaitDeadline,
        mut work: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> Result<Option<T>, Error> {
        if deadline.left(self).is_some() {
            // Boxed, so that the future of those who have no limit stays small.
            return Box::pin(self.wait_behind_local_tasks(key, deadline, work)).await;
        }
        loop {
            let done = poll_fn(|context| match work.as_mut().poll(context) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending
                    if self.outages.is_troubled() && self.may_exceed_outage_tolerance(key, deadline) =>
                {
                    Poll::Ready(None)
                }
                Poll::Pending => Poll::Pending,
            });
            if let Some(done) = done.await {
                return Ok(Some(done));
            }
            self.check_outage_tolerance(key, deadline).await?;
        }
    }

    /// Waits behind other tasks of this process, which ask the server in its place. At the deadline it returns `None`, or the error of the outage that
    /// there is. Without a deadline it waits on, and fails once an outage has lasted longer than the outage tolerance.
    pub(super) async fn wait_behind_local_tasks<T>(
        &self,
        key: &[u8],
        deadline: &WaitDeadline,
        mut work: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    ) -> Result<Option<T>, Error> {
        let closing = self.closing.until(|| self.is_closed().then_some(()));
        let mut closing = std::pin::pin!(closing);
        let patience_ms = u64::try_from(self.config.outage_tolerance.as_millis()).unwrap_or(u64::MAX);
        loop {
            if self.is_closed() {
                return Err(self.closed_error());
            }
            let left = deadline.left(self);
            let limit = match left {
                Some(left) => left,
                None => {
                    let lasts_ms = self.outage_lasts(key, deadline).map_or(0, |(lasts_ms, _)| lasts_ms);
                    Duration::from_millis(patience_ms.saturating_sub(lasts_ms)).max(ANSWER_TIME)
                }
            };
            tokio::select! {
                biased;
                done = &mut work => return Ok(Some(done)),
                () = &mut closing => return Err(self.closed_error()),
                () = self.keeper.sleep(limit) => {}
            }
            if left.is_none() {
                self.check_outage_tolerance(key, deadline).await?;
                continue;
            }
            // After a standstill of the process the timer and the result are due together, and the result goes first.
            if self.outage(key, deadline.began_ms()).is_some() {
                tokio::select! {
                    biased;
                    done = &mut work => return Ok(Some(done)),
                    () = self.keeper.sleep(ANSWER_READ_TIME) => {}
                }
            }
            return self.busy_or_outage(key, deadline).await;
        }
    }
}

/// What ends a sleep, besides time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    Notice,
    Confirmation,
    NoticeOrConfirmation,
}

/// What ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WokenBy {
    /// A message, a task of this process, or the end of the key.
    Notice,
    /// A subscription that has arrived or was refused.
    Confirmation,
    Time,
}

/// Resolves when a subscription that is on its way has arrived; never when there is none.
async fn subscription_arrives(state: &mut State) -> Result<Box<dyn Subscription>, Fault> {
    match state {
        State::Subscribing(future) => future.await,
        _ => std::future::pending().await,
    }
}
