//! The keeper: a thread of its own that renews, watches deadlines, and finishes what others left unfinished.
//!
//! It has its own runtime and its own connection, so that a busy or stopped user runtime loses no locks (decision D7).
//! It sleeps until something is due; taking and releasing a lock does not wake it unless the new lock is due earlier than
//! anything before.

#[cfg(redlatch_shuttle)]
pub(crate) mod threads;

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, PoisonError, Weak, mpsc},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{
    runtime::{Builder, Handle},
    sync::{Notify, oneshot},
};

use super::{
    Core, keeper_alarm::KeeperAlarm, lease::HeldLease, start_thread, task_liveness::TASK_POLL_DUE_MS,
    watch_holds::WATCH_SOON_MS,
};
use crate::{
    call_hook::CallHook,
    catch_panic::catch_panic,
    error::{Error, ErrorKind, LossReason},
    fork,
    panic_safe::{Signal, Timer},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

/// How often stores are asked to look for dead connections while calls are being made.
const TICK_MS: u64 = 250;
/// The longest sleep while leases are held. Timers stop while a machine is suspended, so this is also how soon after its
/// return a loss is announced to a task that only waits for the signal.
const SLEEP_HOLDING_MS_MAX: u64 = 1_000;
/// The longest sleep when nothing is held.
const SLEEP_IDLE_MS_MAX: u64 = 3_600_000;

pub(crate) struct Keeper {
    handle: Handle,
    shared: Arc<Shared>,
}

impl Drop for Keeper {
    /// Ends the thread: the core is gone, so nothing uses its timers any more. A forked child has no such thread.
    fn drop(&mut self) {
        if fork::here() == self.shared.pid {
            self.shared.stopped.store(true, Ordering::Release);
            self.shared.stop.notify_one();
            self.shared.wake();
        }
    }
}

struct Shared {
    /// The process that the thread belongs to.
    pid: u64,
    keeper_alarm: Arc<KeeperAlarm>,
    /// Tells the thread to stop.
    stop: Notify,
    stopped: AtomicBool,
    /// Calls are being made, so connections need watching.
    ticking: AtomicBool,
    touched: AtomicBool,
    /// A connection ended: look at every lease now.
    recheck: AtomicBool,
    /// Wakes those who pause before another try, because another server answers now.
    moved: Signal,
    /// Leases whose next moment has changed.
    returned: Mutex<Vec<Arc<HeldLease>>>,
    jobs: AtomicUsize,
    job_done: Signal,
}

/// Work under way.
pub(crate) struct Job(Arc<Shared>);

impl Drop for Job {
    fn drop(&mut self) {
        // In a forked child nobody waits, and the lock inside may be held for ever.
        if self.0.jobs.fetch_sub(1, Ordering::AcqRel) == 1 && fork::here() == self.0.pid {
            self.0.job_done.tell();
        }
    }
}

impl Keeper {
    /// Starts the thread; it does nothing until it is given a core to [`serve`](Self::serve).
    pub(crate) fn start() -> Result<Keeper, Error> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            Error::new(ErrorKind::Engine, format!("the background thread has no runtime: {error}"))
        })?;
        let keeper = Keeper::on(runtime.handle().clone());
        let shared = keeper.shared.clone();
        start_thread::run_thread("redlatch-keeper", move || {
            // The runtime must be driven as long as anything uses its timers or connections.
            runtime.block_on(async move {
                while !shared.stopped.load(Ordering::Acquire) {
                    shared.stop.notified().await;
                }
            });
        })?;
        Ok(keeper)
    }

    /// One that works on a runtime that is there, and is as late as what else runs there.
    pub(crate) fn on(handle: Handle) -> Keeper {
        let shared = Arc::new(Shared {
            pid: fork::here(),
            keeper_alarm: Arc::default(),
            stop: Notify::new(),
            stopped: AtomicBool::new(false),
            ticking: AtomicBool::new(false),
            touched: AtomicBool::new(false),
            recheck: AtomicBool::new(false),
            moved: Signal::default(),
            returned: Mutex::default(),
            jobs: AtomicUsize::new(0),
            job_done: Signal::default(),
        });
        Keeper { handle, shared }
    }

    /// Whether this is the background thread, or one that works with its connections, as blocking ones do and tasks outside any runtime.
    pub(super) fn calls_use_keeper_connection(&self) -> bool {
        Handle::try_current().map_or(true, |here| here.id() == self.handle.id())
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Serves a core from now on: renews its leases, announces their ends, and does what it leaves to be done.
    pub(crate) fn serve(&self, core: &Arc<Core>) {
        let (core, shared) = (Arc::downgrade(core), self.shared.clone());
        self.handle.spawn(async move {
            while AssertUnwindSafe(run(core.clone(), shared.clone())).catch_unwind().await.is_err() {
                let Some(core) = core.upgrade() else { return };
                core.begin_anew(&shared);
            }
        });
    }

    /// Does some work in the background. Shutting down waits for it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let job = self.hold_off_shutdown();
        self.handle.spawn(work.map(move |()| drop(job)));
    }

    /// Notes that some work is under way; shutting down waits until the note is dropped.
    pub(crate) fn hold_off_shutdown(&self) -> Job {
        self.shared.jobs.fetch_add(1, Ordering::SeqCst);
        Job(self.shared.clone())
    }

    /// A timer that works in any runtime and in none, because the keeper drives it.
    pub(crate) fn sleep(&self, time: Duration) -> Timer {
        Timer::new(&self.handle, time)
    }

    /// Resolves when no work is left.
    pub(crate) async fn drained(&self) {
        self.shared.drained().await;
    }

    /// Is told when no work is left: for threads that have nothing of a runtime any more to wait with.
    pub(crate) fn tell_drained(&self) -> mpsc::Receiver<()> {
        let (tell, told) = mpsc::channel();
        let shared = self.shared.clone();
        // Not counted as work, which it waits for.
        self.handle.spawn(async move {
            shared.drained().await;
            // The thread may have waited for long enough.
            let _ = tell.send(());
        });
        told
    }

    /// A call is being made: from now on, and while calls are made, the keeper looks whether connections still answer, and at what tasks wait behind.
    pub(crate) fn note_call(&self) {
        self.shared.note_call();
    }

    /// What a connection calls when it has counted a request: as long as that has no answer, the connection is watched. An announcement
    /// alone would not do, because the task may stand still between that and the sending, for longer than the keeper waits.
    pub(crate) fn call_hook(&self) -> CallHook {
        let shared = self.shared.clone();
        CallHook::new(move || shared.note_call())
    }

    /// Where lanes note the leases that come into being.
    pub(crate) fn keeper_alarm(&self) -> &Arc<KeeperAlarm> {
        &self.shared.keeper_alarm
    }

    /// The next moment of these leases has changed.
    pub(crate) fn reschedule(&self, leases: Vec<Arc<HeldLease>>) {
        self.shared.returned.lock().unwrap_or_else(PoisonError::into_inner).extend(leases);
        self.shared.wake();
    }

    /// Every lease should be looked at now.
    pub(crate) fn recheck(&self) {
        self.shared.recheck.store(true, Ordering::Release);
        self.shared.wake();
    }

    /// Pauses before another try, unless another server takes the keyspace over meanwhile.
    pub(crate) async fn pause(&self, time: Duration) {
        tokio::select! {
            biased;
            () = self.taken_over() => {}
            () = self.sleep(time) => {}
        }
    }

    /// Resolves when another server takes the keyspace over.
    pub(crate) fn taken_over(&self) -> impl Future<Output = ()> + Send + use<'_> {
        self.shared.moved.next()
    }

    /// How many pieces of background work are under way.
    pub(crate) fn jobs(&self) -> usize {
        self.shared.jobs.load(Ordering::Acquire)
    }
}

impl Shared {
    async fn drained(&self) {
        self.job_done.until(|| (self.jobs.load(Ordering::SeqCst) == 0).then_some(())).await;
    }

    fn wake(&self) {
        self.keeper_alarm.wake();
    }

    fn note_call(&self) {
        // Looking first keeps the line shared between threads; writing each time would pass it to and fro.
        if !self.touched.load(Ordering::SeqCst) {
            self.touched.store(true, Ordering::SeqCst);
        }
        if !self.ticking.load(Ordering::SeqCst) && !self.ticking.swap(true, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// No call was seen lately: the next one has to wake the keeper. `false` if one has come.
    fn stop_ticking(&self) -> bool {
        self.ticking.store(false, Ordering::SeqCst);
        // A task that called between the last look and this has seen the keeper ticking, and has not woken it.
        let has_come = self.touched.load(Ordering::SeqCst);
        if has_come {
            self.ticking.store(true, Ordering::SeqCst);
        }
        !has_come
    }
}

/// When a lease next needs attention. Entries whose moment no longer is the lease's own are out of date and skipped.
type Event = Reverse<(u64, usize)>;

#[derive(Default)]
struct Agenda {
    events: BinaryHeap<Event>,
    leases: Vec<Option<Weak<HeldLease>>>,
    free: Vec<usize>,
    /// How often another server had taken over when the leases were last looked at for that.
    takeovers: u64,
}

/// What the server is asked in one round of the keeper.
#[derive(Default)]
struct Round {
    renew: Vec<Arc<HeldLease>>,
    look: Vec<Arc<HeldLease>>,
    watch: Vec<Arc<HeldLease>>,
}

impl Round {
    fn is_empty(&self) -> bool {
        self.renew.is_empty() && self.look.is_empty() && self.watch.is_empty()
    }

    /// Asks for a hold: to be renewed, or whether it is still there.
    fn ask(&mut self, lease: &Arc<HeldLease>) {
        if lease.wants_renewal() {
            self.renew.push(lease.clone());
            return;
        }
        // What a connection was asked to tell has ended with it.
        if lease.take_watch(u64::MAX) {
            self.watch.push(lease.clone());
        }
        self.look.push(lease.clone());
    }
}

impl Agenda {
    /// `false` if it is in already.
    fn take_in(&mut self, lease: &Arc<HeldLease>, now_ms: u64) -> bool {
        if lease.schedule.in_agenda.swap(true, Ordering::AcqRel) {
            return false;
        }
        lease.schedule.seen_ms.store(now_ms, Ordering::Relaxed);
        let at = self.free.pop().unwrap_or_else(|| {
            self.leases.push(None);
            self.leases.len() - 1
        });
        self.leases[at] = Some(Arc::downgrade(lease));
        lease.schedule.agenda_index.store(at, Ordering::Relaxed);
        self.schedule(at, lease);
        true
    }

    fn schedule(&mut self, at: usize, lease: &HeldLease) {
        let mut when_ms = lease.deadline_ms();
        if lease.was_seen_over() {
            // What found that tells its end; there is nothing else to do about it.
            lease.schedule.agenda_due_ms.store(when_ms, Ordering::Relaxed);
            self.events.push(Reverse((when_ms, at)));
            return;
        }
        if lease.is_asked_about() && !lease.schedule.renewing.load(Ordering::Acquire) {
            when_ms = when_ms.min(lease.schedule.renew_due_ms.load(Ordering::Relaxed));
        }
        when_ms = when_ms.min(lease.schedule.watch_due_ms.load(Ordering::Relaxed));
        when_ms = when_ms.min(lease.offer_due_ms());
        lease.schedule.agenda_due_ms.store(when_ms, Ordering::Relaxed);
        self.events.push(Reverse((when_ms, at)));
    }

    fn get(&mut self, at: usize) -> Option<Arc<HeldLease>> {
        let lease = self.leases[at].as_ref().and_then(Weak::upgrade).filter(|lease| lease.is_held());
        if lease.is_none() && self.leases[at].take().is_some() {
            self.free.push(at);
        }
        lease
    }
}

async fn run(core: Weak<Core>, shared: Arc<Shared>) {
    let mut agenda = Agenda::default();
    let (mut busy_ms, mut slept_until_ms) = (0, None);
    loop {
        let woken = shared.keeper_alarm.woken();
        let mut woken = std::pin::pin!(woken);
        woken.as_mut().enable();
        let (due_ms, now_ms) = {
            let Some(core) = core.upgrade() else { return };
            let now_ms = core.now_ms();
            if let Some(due_ms) = slept_until_ms.take() {
                core.keeper_runs(due_ms, now_ms);
            }
            core.keep_round(&mut agenda, &shared, now_ms);
            let mut until_ms = agenda.events.peek().map_or(u64::MAX, |Reverse((at_ms, _))| *at_ms);
            // A lease that waits for its first look is held too, and suspend may outlast it.
            let holding = !agenda.events.is_empty() || shared.keeper_alarm.look_ms() != u64::MAX;
            let longest = if holding { SLEEP_HOLDING_MS_MAX } else { SLEEP_IDLE_MS_MAX };
            until_ms = until_ms.min(now_ms + longest);
            if shared.ticking.load(Ordering::Acquire) {
                core.config.calls.tick(now_ms, core.config.response_timeout.as_millis() as u64);
                core.store.tick(now_ms);
                core.listen_for_lines(now_ms);
                let touched = shared.touched.swap(false, Ordering::SeqCst);
                if touched || core.config.calls.is_waiting() || core.store.is_waiting() {
                    busy_ms = now_ms;
                }
                // Some quiet time, and no answer pending: nothing to watch. What is sent from now on wakes us.
                let quiet = now_ms.saturating_sub(busy_ms) >= 2 * TICK_MS;
                if !(quiet && shared.stop_ticking()) {
                    until_ms = until_ms.min(now_ms + TICK_MS);
                }
            }
            (shared.keeper_alarm.sleeps_until(until_ms), now_ms)
        };
        tokio::select! {
            biased;
            () = woken => {}
            () = tokio::time::sleep(Duration::from_millis(due_ms.saturating_sub(now_ms))) => slept_until_ms = Some(due_ms),
        }
        if shared.stopped.load(Ordering::Acquire) {
            return;
        }
    }
}

impl Core {
    /// A round has panicked, by a waker or a subscriber of the program for instance. The holders of this client are not to lose their locks
    /// for it, so every lease is taken in anew.
    fn begin_anew(&self, shared: &Shared) {
        self.lanes.each_lease(|lease| {
            lease.schedule.renewing.store(false, Ordering::Release);
            lease.schedule.in_agenda.store(false, Ordering::Release);
        });
        shared.recheck.store(true, Ordering::Release);
        // It may have been the log that panicked.
        catch_panic(|| tracing::error!("the background thread has panicked, and goes on with all leases"));
    }

    /// The next moment of a lease has changed, or may have.
    pub(crate) fn schedule(&self, lease: &Arc<HeldLease>) {
        self.recheck_if_unseen_since_interruption(lease);
        if lease.schedule.in_agenda.load(Ordering::Acquire) {
            self.keeper.reschedule(vec![lease.clone()]);
            return;
        }
        self.keeper.keeper_alarm().note_lease(lease, self.now_ms());
    }

    /// One round: takes new leases in, announces what is over, renews what is due.
    fn keep_round(self: &Arc<Self>, agenda: &mut Agenda, shared: &Shared, now_ms: u64) {
        let takeovers = self.store.takeovers();
        let moved = std::mem::replace(&mut agenda.takeovers, takeovers) != takeovers;
        if moved {
            shared.moved.tell();
        }
        let recheck = shared.recheck.swap(false, Ordering::AcqRel) || moved;
        if recheck || shared.keeper_alarm.look_ms() <= now_ms {
            shared.keeper_alarm.begin_look();
            let mut is_news = false;
            self.lanes.each_lease(|lease| is_news |= agenda.take_in(lease, now_ms));
            let troubled = self.outages.look_for_trouble(now_ms);
            let (in_lanes, at_gates) = (
                self.lanes.pass_over_the_unpolled(now_ms, troubled),
                self.gates.pass_over_the_unpolled(now_ms),
            );
            if is_news || in_lanes {
                self.presence_changed();
            }
            if in_lanes || at_gates {
                shared.keeper_alarm.look_at_lanes_by(now_ms + TASK_POLL_DUE_MS);
            }
        }
        for lease in std::mem::take(&mut *shared.returned.lock().unwrap_or_else(PoisonError::into_inner)) {
            if lease.is_held() {
                agenda.schedule(lease.schedule.agenda_index.load(Ordering::Relaxed), &lease);
            }
        }
        let mut round = Round::default();
        while let Some(Reverse((at_ms, at))) = agenda.events.peek().copied() {
            if at_ms > now_ms {
                break;
            }
            agenda.events.pop();
            let Some(lease) = agenda.get(at) else { continue };
            if lease.schedule.agenda_due_ms.load(Ordering::Relaxed) != at_ms {
                continue;
            }
            if lease.is_over(now_ms) {
                if now_ms < lease.deadline_ms() {
                    agenda.schedule(at, &lease);
                    continue;
                }
                self.lose(&lease, LossReason::Expired);
                agenda.get(at);
                continue;
            }
            if lease.offer_due_ms() <= now_ms {
                // The owner asks anew as soon as it sees that the lease is taken back, so the block is there before.
                let block = self.owners.block(&lease.keys, &lease.owner);
                if lease.take_back(now_ms) {
                    block.takes_over();
                    tracing::debug!(lock = %lease.keys.name, "a task was handed the lock and is not polled; the next one goes on");
                    self.lanes.look_for_those_behind(&lease.keys, now_ms);
                    self.release_in_background(&lease, lease.lease_term());
                    drop(block);
                    agenda.get(at);
                    continue;
                }
            }
            let due = lease.schedule.renew_due_ms.load(Ordering::Relaxed) <= now_ms;
            if due && lease.is_asked_about() && !lease.schedule.renewing.swap(true, Ordering::AcqRel) {
                round.ask(&lease);
            }
            if lease.take_watch(now_ms) {
                round.watch.push(lease.clone());
            }
            agenda.schedule(at, &lease);
        }
        if !round.is_empty() || recheck {
            // Renewing early what would be due soon brings everything into step, so that calls carry full batches.
            for slot in 0..agenda.leases.len() {
                let Some(lease) = agenda.get(slot) else { continue };
                if lease.take_watch(now_ms + WATCH_SOON_MS) {
                    round.watch.push(lease.clone());
                }
                if round.renew.is_empty() && !recheck {
                    continue;
                }
                let soon_ms = now_ms + lease.renew_period_ms() / 2;
                let soon = lease.schedule.renew_due_ms.load(Ordering::Relaxed) <= soon_ms;
                // A lease whose renewal has just failed has its next try set; rechecking it at once would make a
                // server that answers nonsense a busy loop. Another server is another matter.
                let recheck = recheck && (moved || !lease.schedule.failing.load(Ordering::Relaxed));
                let wanted = recheck || lease.is_asked_about() && soon;
                if !wanted || lease.schedule.renewing.swap(true, Ordering::AcqRel) {
                    continue;
                }
                agenda.schedule(slot, &lease);
                round.ask(&lease);
            }
        }
        self.renew(round.renew);
        self.check(round.look);
        self.watch(round.watch);
        agenda.compact();
    }
}

impl Agenda {
    /// Out-of-date entries are dropped when they outnumber the leases, so that the agenda stays as small as its contents.
    fn compact(&mut self) {
        if self.events.len() > 64 && self.events.len() > 2 * (self.leases.len() - self.free.len()) {
            let events = std::mem::take(&mut self.events);
            for Reverse((at_ms, at)) in events {
                if self
                    .get(at)
                    .is_some_and(|lease| lease.schedule.agenda_due_ms.load(Ordering::Relaxed) == at_ms)
                {
                    self.events.push(Reverse((at_ms, at)));
                }
            }
        }
    }
}

/// Resolves with what the work sends, or with the error when the work was dropped unfinished.
pub(crate) async fn received<T>(
    receiver: impl Future<Output = Result<T, oneshot::error::RecvError>>,
) -> Result<T, Error> {
    receiver.await.map_err(|_| Error::new(ErrorKind::Closed, "the client was shut down"))
}
