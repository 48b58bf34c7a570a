//! The contest for something that others may have: try, subscribe, try again, sleep until it is worth another try.
//!
//! Locks contend through it, and so does everything else that waits for a change on the server.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    Core, Wait,
    ask_gate::{Availability, RightToAsk},
    outage::SILENT_MS,
    presence::Waiting,
    task_liveness::{TASK_POLL_DUE_MS, TaskLiveness},
    wait::{ServerWait, WaitDeadline},
};
use crate::{
    catch_panic::catch_panic,
    config::POLL_INTERVAL_MAX,
    error::{Error, ErrorKind},
    jitter::jittered,
    recipes::AskGateKey,
    store::Fault,
};

/// Pauses between tries while the server is in trouble.
const RETRY_DELAY_MS_MIN: u64 = 15;
const RETRY_DELAY_MS_MAX: u64 = 250;
/// How long a contender counts on a task of its own process to hand over, before it asks for messages.
const EXPECTED_GRANT_WAIT: Duration = Duration::from_millis(10);
/// How long a contender lets others go first after its process has had its turn.
const YIELD_TIME: Duration = Duration::from_millis(4);

/// After how much trouble it is logged that a wait goes on nevertheless, and how often a client says so at most.
const TROUBLE_TOLD_AFTER_MS: u64 = 1_000;
const TROUBLE_TOLD_EVERY_MS: u64 = 10_000;

/// What one attempt came to.
pub(crate) enum Attempt<T> {
    /// It is ours.
    Won(T),
    /// Not yet; perhaps after this time, if that is known.
    Busy(Option<Duration>),
    /// Not yet: others come before it in the server's queue. A message will come. `count_waiters_ahead`:
    /// waiters of Redisson that stand before it may have changed its timeout in the queue, so the next request works that out anew.
    QueuedBehind { count_waiters_ahead: bool },
    /// It was ours for no longer than the answer took, and is being given back.
    TooLate,
    /// It was ours and has gone on to others, because the task was not polled. It has to come in again.
    OfferExpired,
    /// A release of the same owner cannot go on while this attempt is open. The attempt stops, and the task comes in again after the release.
    OwnerBusy,
}

/// A contender.
pub(crate) trait Contender: Send {
    /// What there is to win.
    type Gain: Send;

    /// The key that is asked about.
    fn key(&self) -> &[u8];

    /// The channel on which changes are told; `None` when nobody tells, and the time of a busy reply is all there is.
    fn channel(&self) -> Option<Arc<[u8]>>;

    /// The key whose end means that asking again is worth it, though no message tells of it: its expiry or deletion. `None` where the end of the
    /// key gives a waiter nothing.
    fn key_to_watch(&self) -> Option<Arc<[u8]>>;

    /// The gate at which the tasks of this process that wait for the same ask one after the other; `None` when each asks for itself, as for locks, which have
    /// lanes instead.
    fn ask_gate(&self) -> Option<AskGateKey> {
        None
    }

    /// After a win: what is left for others who want the same. Only kinds with a gate tell.
    fn left_for_others(&self) -> Availability {
        Availability::MayBeEnough
    }

    /// What wakes this contender from its sleep, for those that tasks of this process may serve.
    fn set_notify(&mut self, _notify: impl FnOnce() -> Arc<Notify>) {}

    /// After an attempt in vain: whether a task of this process is about to hand over, or will wake this one when it does not.
    /// Then there is no need yet to hear messages.
    fn expects_local_grant(&mut self) -> bool {
        false
    }

    /// What its task waits for, since then, as others are told.
    fn waiting(&self, since_ms: u64) -> Vec<Waiting>;

    /// Asks the server once. A future that is dropped must undo what it may have done.
    fn attempt(&mut self) -> impl Future<Output = Result<Attempt<Self::Gain>, Fault>> + Send;

    /// An attempt may have succeeded unseen.
    fn mark_outcome_unknown(&mut self);

    /// It was granted for no longer than the answer took, and may be granted so for ever: whether it comes in again behind the other tasks of its process, whose
    /// leases may last for longer.
    fn goes_behind_others(&mut self) -> bool {
        false
    }

    /// Whether other tasks of this process rely on this one to ask.
    fn has_others_behind(&self) -> bool {
        false
    }

    /// Logs that the server answers again, after so long; once for each contender that went on asking.
    fn tell_recovery(&self, _after_ms: u64) {}
}

impl Core {
    /// Contends until won, refused, or out of time (`None`). `other_processes_first` lets other processes go first.
    pub(crate) async fn contest<C: Contender>(
        self: &Arc<Self>,
        contender: &mut C,
        wait: Wait,
        deadline: &WaitDeadline,
        other_processes_first: bool,
    ) -> Result<Option<C::Gain>, Error> {
        let gate = contender.ask_gate().map(|key| Gated { key, liveness: Arc::default() });
        let work = pin!(self.contest_at(gate.as_ref(), contender, wait, deadline, other_processes_first));
        match &gate {
            Some(gate) => gate.liveness.run_noting_polls(work).await,
            None => work.await,
        }
    }

    async fn contest_at<C: Contender>(
        self: &Arc<Self>,
        gate: Option<&Gated>,
        contender: &mut C,
        wait: Wait,
        deadline: &WaitDeadline,
        other_processes_first: bool,
    ) -> Result<Option<C::Gain>, Error> {
        let mut server_wait = ServerWait::new(contender.key_to_watch());
        contender.set_notify(|| server_wait.notify());
        let mut trouble = Trouble::default();
        // The bound of one attempt is the caller's deadline. With `Wait::No` the first attempt has none, and those after a failure share the
        // response timeout.
        let mut limit = *deadline;
        let (mut right_to_ask, mut is_first_busy) = (None, true);
        let mut last = LastOutcome::Nothing;
        let mut noted = None;
        if other_processes_first {
            if let Some(channel) = contender.channel() {
                server_wait.subscribe(self, channel);
            }
            server_wait.wait(self, YIELD_TIME, deadline).await?;
        }
        if wait != Wait::No
            && let Some(gate) = gate
            && self.gates.is_taken(&gate.key)
        {
            // Others of this process wait already; asking before them would be in vain, or unfair.
            noted = self.note_waits(|| contender.waiting(deadline.began_ms()));
            right_to_ask = self.wait_to_ask(contender, gate, &mut server_wait, deadline).await?;
            if right_to_ask.is_none() {
                return self.busy_or_outage(contender.key(), deadline).await;
            }
        }
        loop {
            if self.is_closed() {
                return Err(self.closed_error());
            }
            let sent_ms = right_to_ask.as_ref().map(|right_to_ask| {
                let now_ms = self.now_ms();
                right_to_ask.note_asking(now_ms);
                now_ms
            });
            let takeovers = self.store.takeovers();
            // A request that begins now and has no answer when time is up is no outage: the busy answer before it still counts.
            let time_is_short =
                deadline.left(self).is_some_and(|left| left < Duration::from_millis(SILENT_MS));
            let Some(outcome) = limit.bound(self, pin!(contender.attempt())).await else {
                contender.mark_outcome_unknown();
                return match last {
                    // The attempts before were answered busy; only the last one ran out of time, and not for long enough to be an outage.
                    LastOutcome::Busy if time_is_short => Ok(None),
                    LastOutcome::Trouble(error) => Err(error),
                    LastOutcome::Busy | LastOutcome::Nothing => Err(Error::new(
                        ErrorKind::Timeout,
                        "the server did not answer within the time allowed for waiting",
                    )),
                };
            };
            if outcome.is_ok() {
                if self.in_trouble.load(Ordering::Relaxed) {
                    self.tell_recovery();
                }
                if let Some(since_ms) = trouble.ends() {
                    contender.tell_recovery(self.now_ms().saturating_sub(since_ms));
                }
            }
            match outcome {
                Ok(Attempt::Won(prize)) => {
                    if let (Some(right_to_ask), Some(sent_ms)) = (&right_to_ask, sent_ms) {
                        right_to_ask.note(sent_ms, contender.left_for_others());
                    }
                    return Ok(Some(prize));
                }
                Ok(busy @ (Attempt::Busy(_) | Attempt::QueuedBehind { .. })) => {
                    last = LastOutcome::Busy;
                    if wait == Wait::No || deadline.is_over(self) {
                        return self.busy_or_outage(contender.key(), deadline).await;
                    }
                    if right_to_ask.is_none()
                        && let Some(gate) = gate
                    {
                        if noted.is_none() {
                            noted = self.note_waits(|| contender.waiting(deadline.began_ms()));
                        }
                        right_to_ask = self.wait_to_ask(contender, gate, &mut server_wait, deadline).await?;
                        if right_to_ask.is_none() {
                            return self.busy_or_outage(contender.key(), deadline).await;
                        }
                        continue;
                    }
                    // A message that is missed here does no harm, because the lock is asked for again after the subscription.
                    if std::mem::take(&mut is_first_busy)
                        && contender.expects_local_grant()
                        && server_wait.await_expected_grant(self, EXPECTED_GRANT_WAIT, deadline).await?
                    {
                        continue;
                    }
                    if noted.is_none() {
                        noted = self.note_waits(|| contender.waiting(deadline.began_ms()));
                    }
                    let hint = if let Attempt::Busy(hint) = busy { hint } else { None };
                    if let (Some(right_to_ask), Some(sent_ms)) = (&right_to_ask, sent_ms) {
                        right_to_ask.note(sent_ms, Availability::Nothing { again_after: hint });
                    }
                    match contender.channel().map(|channel| server_wait.subscribe(self, channel)) {
                        // Between the busy answer and the confirmation of the subscription a release may have passed by unheard, so look again then.
                        Some(true) => server_wait.wait_for_confirmation(self, deadline).await?,
                        Some(false) if matches!(busy, Attempt::QueuedBehind { .. }) => {
                            server_wait.wait_queued_behind(self, deadline).await?;
                        }
                        Some(false) => server_wait.wait_for_change(self, hint, deadline).await?,
                        None => {
                            let pause = hint.unwrap_or(POLL_INTERVAL_MAX);
                            self.wait_unless_others_rely(contender, &mut server_wait, pause, deadline)
                                .await?;
                        }
                    }
                }
                Ok(Attempt::OfferExpired | Attempt::OwnerBusy) => return Ok(None),
                Ok(Attempt::TooLate) => {
                    last = LastOutcome::Nothing;
                    if wait == Wait::No || deadline.is_over(self) {
                        return Err(Error::new(ErrorKind::Timeout, "the grant took longer than its lease")
                            .remedy("use a longer lease, or look at the server's load"));
                    }
                    right_to_ask = None;
                    if contender.goes_behind_others() {
                        return Ok(None);
                    }
                }
                Err(fault) => {
                    // In trouble each asks for itself, so that each learns of it in its own time.
                    right_to_ask = None;
                    let unknown = fault.is_unknown();
                    if unknown {
                        contender.mark_outcome_unknown();
                    }
                    let error = fault.into_error();
                    if wait != Wait::No
                        && let Some(known) = self.outage(contender.key(), deadline.began_ms())
                    {
                        // The outage may have begun before this task's first request.
                        trouble.begins(known.since_ms.max(deadline.began_ms()));
                    }
                    let pause = trouble.next(self, wait, deadline, unknown, &error);
                    let Some(pause) = pause else {
                        return Err(error);
                    };
                    server_wait.wait_in_trouble(self, pause, takeovers, deadline).await?;
                    if deadline.is_over(self) {
                        return Err(error);
                    }
                    last = LastOutcome::Trouble(error);
                    if wait == Wait::No && limit.left(self).is_none() {
                        limit = WaitDeadline::new(self, Wait::AtMost(self.config.response_timeout));
                    }
                }
            }
        }
    }
}

impl Core {
    /// Pauses before another look, for no longer than the poll interval while other tasks of this process rely on it.
    async fn wait_unless_others_rely<C: Contender>(
        &self,
        contender: &C,
        server_wait: &mut ServerWait,
        pause: Duration,
        deadline: &WaitDeadline,
    ) -> Result<(), Error> {
        let mut left = pause;
        while !left.is_zero() && !deadline.is_over(self) {
            let step = left.min(POLL_INTERVAL_MAX);
            server_wait.wait(self, step, deadline).await?;
            left -= step;
            if contender.has_others_behind() {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the right to ask; `None` when time is up. If it is known by then that there is nothing, waits for a change, too.
    async fn wait_to_ask<C: Contender>(
        &self,
        contender: &C,
        gate: &Gated,
        server_wait: &mut ServerWait,
        deadline: &WaitDeadline,
    ) -> Result<Option<RightToAsk>, Error> {
        // Subscribed before queueing, so that the subscription outlasts each who asks, and messages are heard while queueing.
        if let Some(channel) = contender.channel() {
            server_wait.subscribe(self, channel);
        }
        let right_to_ask = self.gates.pass(gate.key.clone(), gate.liveness.clone());
        // It stands in the line first, and the keeper is asked to look second, so the look finds it.
        self.keeper.keeper_alarm().look_at_lanes_by(self.now_ms() + TASK_POLL_DUE_MS);
        let Some(right_to_ask) = server_wait
            .wait_behind_local_tasks_subscribed(self, contender.key(), right_to_ask, deadline)
            .await?
        else {
            return Ok(None);
        };
        let hears_since_ms = server_wait.hears_since_ms();
        let rest = hears_since_ms.map_or(Availability::MayBeEnough, |hears_since_ms| {
            right_to_ask.left_for_others(hears_since_ms, self.now_ms())
        });
        if let Availability::Nothing { again_after } = rest {
            server_wait.wait_for_change(self, again_after, deadline).await?;
        }
        Ok(Some(right_to_ask))
    }
}

impl Core {
    /// Logs that waiters go on asking. One log line stands for all of them: a client may have thousands.
    fn tell_trouble(&self, now_ms: u64, error: &Error) {
        let last_ms = self.trouble_told_ms.load(Ordering::Relaxed);
        let due = last_ms == 0 || now_ms.saturating_sub(last_ms) >= TROUBLE_TOLD_EVERY_MS;
        if due && self.trouble_told_ms.swap(now_ms.max(1), Ordering::Relaxed) == last_ms {
            self.in_trouble.store(true, Ordering::Relaxed);
            tracing::warn!(%error, "the server cannot be asked at present; waiters go on trying");
        }
    }

    /// Logs that an answer has come again, once after each word of trouble.
    fn tell_recovery(&self) {
        if self.in_trouble.swap(false, Ordering::Relaxed) {
            catch_panic(|| tracing::info!("the server answers again"));
        }
    }
}

/// The gate at which a contender waits to ask, and the liveness by which those behind it pass a task that is not polled.
struct Gated {
    key: AskGateKey,
    liveness: Arc<TaskLiveness>,
}

/// What the last answer said.
enum LastOutcome {
    Nothing,
    Busy,
    Trouble(Error),
}

/// How long to go on while the server is in trouble.
#[derive(Default)]
struct Trouble {
    since_ms: Option<u64>,
    tries: u32,
    told: bool,
}

impl Trouble {
    /// An answer has come. Returns since when none did, if there was trouble.
    fn ends(&mut self) -> Option<u64> {
        std::mem::take(self).since_ms
    }

    fn begins(&mut self, since_ms: u64) {
        self.since_ms.get_or_insert(since_ms);
    }

    /// The pause before the next try, or `None` when it is time to report the error.
    fn next(
        &mut self,
        core: &Core,
        wait: Wait,
        deadline: &WaitDeadline,
        unknown: bool,
        error: &Error,
    ) -> Option<Duration> {
        // A shortfall of replicas is an answer: the caller that asked for it wants to know.
        let answered = error.kind() == ErrorKind::NotReplicated;
        let fatal = answered || (!error.is_retryable() && error.kind() != ErrorKind::Protocol);
        let now_ms = core.now_ms();
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let patience = match wait {
            // An unknown outcome is worth resolving even for a caller that does not wait: the answer may be yes.
            // And keys that a cluster moves to another node are mostly there soon.
            Wait::No if unknown || self.tries > 0 || error.is_migrating() => core.config.response_timeout,
            Wait::No => Duration::ZERO,
            Wait::AtMost(_) => Duration::MAX,
            Wait::Forever => core.config.outage_tolerance,
        };
        if fatal || deadline.is_over(core) || u128::from(now_ms - since_ms) >= patience.as_millis() {
            return None;
        }
        if now_ms - since_ms >= TROUBLE_TOLD_AFTER_MS && !std::mem::replace(&mut self.told, true) {
            core.tell_trouble(now_ms, error);
        }
        let delay_ms = (RETRY_DELAY_MS_MIN << self.tries.min(8)).min(RETRY_DELAY_MS_MAX);
        self.tries += 1;
        Some(jittered(Duration::from_millis(delay_ms)))
    }
}
