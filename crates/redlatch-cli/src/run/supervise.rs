//! Watching over the command while it holds the lock.
//!
//! The command must be gone before anybody else can get the lock. So when renewals fail, it is asked to end while the lease
//! still has `grace` and a margin left, and killed before the lease ends. Healthy renewals come every third of the lease,
//! and `grace` is under two thirds of it, so a healthy lock never gets there.

use std::time::{Duration, Instant};

use redlatch::LossReason;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGTSTP};
use tokio::time::{sleep_until, timeout};

use crate::{
    args::run::OnLost,
    child::{Child, Ended, Event, Group, Left},
    durations::human,
    exit, group,
    run::holding::{Holding, Loss, Name},
    signals::{Received, Signals},
    talk::{self, Talk},
};

/// The longest sleep between two looks at the lease. Timers stand still while the machine sleeps and the lease does not.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the reason of a loss may take once no lease is left.
const REASON_TIMEOUT: Duration = Duration::from_millis(20);
/// After the command itself ended, others of its group get this long before a word is said about them.
const LEFTOVERS_TOLD_AFTER: Duration = Duration::from_secs(1);
/// Who is still there so long after a KILL does not end soon.
const DEATH_TIME: Duration = Duration::from_secs(1);
/// How many processes a message names.
const NAMED_MAX: usize = 3;

/// The rules for one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// How long a renewal lasts.
    pub(crate) lease: Duration,
    /// Between TERM and KILL when the lock is lost.
    pub(crate) grace: Duration,
    /// Between KILL and the end of the lease.
    pub(crate) margin: Duration,
    /// Between TERM and KILL at `--max-hold`.
    pub(crate) kill_after: Duration,
    /// When the command has to end.
    pub(crate) max_hold: Option<Instant>,
    /// What a lost lock means for the command.
    pub(crate) on_lost: OnLost,
}

/// Why the command was stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The lock was lost, or about to be.
    Lost(String),
    /// `--max-hold` was reached.
    MaxHold,
    /// This signal asked for the end a second time, and what was left could not be ended.
    GivenUp(i32),
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// How the command ended.
    pub(crate) ended: Ended,
    /// Whether we stopped it.
    pub(crate) stopped: Option<Stopped>,
    /// Whether the lock was lost, whatever came of it.
    pub(crate) lost: bool,
    /// Who works on although it was to be ended.
    pub(crate) left: Vec<Left>,
}

/// Waits until the command and its group are gone, forwarding signals and stopping it when it must.
pub(crate) async fn supervise(
    child: &mut Child,
    holding: &Holding,
    plan: Plan,
    signals: &mut Signals,
    talk: Talk,
) -> Outcome {
    let mut watch = Watch::new(plan, talk);
    let loss = holding.lost();
    tokio::pin!(loss);
    loop {
        let remaining = holding.remaining();
        if remaining.is_zero() && watch.loss.is_none() {
            // The reason decides how quickly the command must go, and comes at the same moment.
            let known = timeout(REASON_TIMEOUT, &mut loss).await;
            watch.loss = Some(known.unwrap_or_else(|_| LossReason::Expired.into()));
        }
        watch.renewals(holding, remaining);
        let now = Instant::now();
        let next = watch.step(child, remaining, now);
        let next = watch.suspension.next_look(now).map_or(next, |look| look.min(next));
        if watch.gives_up {
            return watch.outcome();
        }
        tokio::select! {
            biased;
            event = child.event() => match event {
                Event::Stopped => watch.suspension.stopped(),
                Event::Continued => watch.suspension.goes_on(),
                Event::Ended(ended) => watch.ended(ended),
                Event::GroupEmpty => {
                    watch.left.clear();
                    return watch.outcome();
                }
            },
            known = &mut loss, if watch.loss.is_none() => watch.loss = Some(known),
            received = signals.next() => {
                forward(child, received);
                watch.suspension.received(child, received);
                watch.asked(child, received);
            }
            () = sleep_until(next.into()) => {}
        }
        watch.suspension.follow(child, holding, talk);
    }
}

/// A stop from the terminal, which we follow when the command does and all that it has started.
///
/// The shell waits for the whole job to stop, us included, though nobody renews the lock meanwhile. Where no shell would
/// continue the job, the kernel discards the stop for the command (the only program of a container), and a command or a process of it may
/// ignore it; stopping alone would then lose the lock under one that runs.
#[derive(Debug, Default)]
struct Suspension {
    asked: Option<Instant>,
    command_is_stopped: bool,
    /// Since when the command has followed, and we wait for what it has started.
    followed: Option<Instant>,
    told: bool,
}

/// For how long after it a stop of the command counts as following one of the terminal. A command that puts the terminal in order first takes a
/// moment; one that went on then, and is stopped much later, was stopped by another hand.
const FOLLOWED_FOR: Duration = Duration::from_secs(5);
/// How long the processes of a stopped command may take to stop before a word is said about them.
const STOPPING_TIME: Duration = Duration::from_secs(1);
/// Between two looks at them meanwhile. Nothing tells of their stops.
const STOP_LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long a terminal may take to show why its job has stopped.
const TELLING_TIME: Duration = Duration::from_millis(100);

impl Suspension {
    fn received(&mut self, child: &Child, received: Received) {
        match received.signal {
            SIGTSTP => self.asked = (child.group() == Group::Shared).then(Instant::now),
            SIGCONT => {
                *self = Suspension { command_is_stopped: self.command_is_stopped, ..Suspension::default() }
            }
            _ => {}
        }
    }

    fn stopped(&mut self) {
        self.command_is_stopped = true;
    }

    fn goes_on(&mut self) {
        *self = Suspension { asked: self.asked, ..Suspension::default() };
    }

    /// When to look again.
    fn next_look(&self, now: Instant) -> Option<Instant> {
        let interval = if self.told { LOOK_INTERVAL } else { STOP_LOOK_INTERVAL };
        self.followed.map(|_| now + interval)
    }

    /// Stops this process, and returns when it is continued.
    fn follow(&mut self, child: &Child, holding: &Holding, talk: Talk) {
        if self.command_is_stopped && self.asked.take_if(|at| at.elapsed() < FOLLOWED_FOR).is_some() {
            self.followed = Some(Instant::now());
        }
        let Some(since) = self.followed else { return };
        if let Some(working) = child.working() {
            if since.elapsed() >= STOPPING_TIME && !self.told {
                self.told = true;
                talk.say(format_args!(
                    "{working} works on beside the stopped command; the lock is renewed until it stops, too"
                ));
            }
            return;
        }
        let remaining = human(holding.remaining());
        talk.say(format_args!("stopped; unless continued, the lock is lost in {remaining}"));
        talk::flush(TELLING_TIME);
        _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
        *self = Suspension::default();
    }
}

struct Watch {
    plan: Plan,
    talk: Talk,
    loss: Option<Loss>,
    stopped: Option<Stopped>,
    suspension: Suspension,
    kill_at: Option<Instant>,
    killed: Option<Instant>,
    /// Who could not be ended, told of already.
    left: Vec<Left>,
    /// Whether it was said that they work on without the lock.
    told_of_loss: bool,
    gives_up: bool,
    warned: bool,
    /// Whether the lease was last seen with less left than renewals leave of it.
    is_late: bool,
    ended: Option<(Ended, Instant)>,
    leftovers_told: bool,
}

impl Watch {
    fn new(plan: Plan, talk: Talk) -> Self {
        Watch {
            plan,
            talk,
            loss: None,
            stopped: None,
            suspension: Suspension::default(),
            kill_at: None,
            killed: None,
            left: Vec::new(),
            told_of_loss: false,
            gives_up: false,
            warned: false,
            is_late: false,
            ended: None,
            leftovers_told: false,
        }
    }

    /// Says that renewals go on after one that came late, once for all that failed meanwhile.
    fn renewals(&mut self, holding: &Holding, remaining: Duration) {
        if self.loss.is_some() {
            return;
        }
        // They come when two thirds are left, and a server that is a little slow is no news.
        let is_late = remaining < self.plan.lease * 17 / 30;
        if std::mem::replace(&mut self.is_late, is_late) == is_late {
            return;
        }
        let names: Vec<String> = holding.names().iter().map(Name::as_owner).collect();
        let names = names.join(", ");
        if is_late {
            self.talk.detail(format_args!("{names}: the renewal is late, and {} are left", human(remaining)));
        } else {
            self.talk.say(format_args!("{names}: renewed again, and held as before"));
        }
    }

    /// Does what is due now and answers when to look again.
    fn step(&mut self, child: &Child, remaining: Duration, now: Instant) -> Instant {
        let mut next = now + LOOK_INTERVAL;
        self.fence(child, remaining, now, &mut next);
        if let Some(limit) = self.plan.max_hold.filter(|_| self.stopped.is_none()) {
            if now >= limit {
                self.talk
                    .say(format_args!("--max-hold is reached: stopping the command (pid {})", child.pid()));
                self.stopped = Some(Stopped::MaxHold);
                self.kill_at = Some(now + self.plan.kill_after);
                child.terminate();
                self.refused(child);
            } else {
                next = next.min(limit);
            }
        }
        if let Some(kill_at) = self.kill_at {
            if now < kill_at {
                next = next.min(kill_at);
            } else {
                // A process that was started while the first KILL went from one to the next is reached by a later one.
                child.kill();
                if self.killed.is_none() {
                    self.killed = Some(now);
                    self.talk.detail(format_args!("killing the command (pid {})", child.pid()));
                    self.refused(child);
                }
            }
        }
        if let Some(killed) = self.killed.filter(|_| self.left.is_empty() || self.is_lost()) {
            if now >= killed + DEATH_TIME {
                self.undead(child);
                // Nothing is held any more that waiting could protect, and the caller is to hear of it.
                self.gives_up = self.is_lost() && !self.left.is_empty();
            } else {
                next = next.min(killed + DEATH_TIME);
            }
        }
        if let Some((_, at)) = self.ended.filter(|_| !self.leftovers_told) {
            if now >= at + LEFTOVERS_TOLD_AFTER {
                self.leftovers_told = true;
                self.talk.say("the command ended, but others of its process group still run; the lock stays held until they end");
            } else {
                next = next.min(at + LEFTOVERS_TOLD_AFTER);
            }
        }
        next
    }

    /// The rules for a lock that is lost or about to be.
    fn fence(&mut self, child: &Child, remaining: Duration, now: Instant, next: &mut Instant) {
        let expired = self.loss.as_ref().is_some_and(|loss| loss.expired);
        if self.plan.on_lost == OnLost::Warn {
            if let Some(loss) = self.loss.as_ref().filter(|_| !self.warned) {
                self.warned = true;
                let reason = &loss.reason;
                self.talk.say(format_args!(
                    "the lock is lost: {reason}; the command goes on without it (--on-lost warn)"
                ));
            }
            return;
        }
        if matches!(self.stopped, Some(Stopped::Lost(_))) {
            if expired {
                self.kill_at = Some(now);
            }
            return;
        }
        let kill_at = now + remaining.saturating_sub(self.plan.margin);
        let term_at = kill_at.checked_sub(self.plan.grace).unwrap_or(now);
        let due = match self.plan.on_lost {
            _ if self.loss.is_some() => now,
            OnLost::Kill => kill_at,
            _ => term_at,
        };
        if now < due {
            *next = (*next).min(due);
            return;
        }
        let reason = match &self.loss {
            Some(loss) => loss.reason.clone(),
            None => format!("it could not be renewed, and its lease ends in {}", human(remaining)),
        };
        self.talk.say(format_args!("the lock is lost: {reason}; stopping the command (pid {})", child.pid()));
        // A lock that is known to be gone may be another holder's already; one that only cannot be renewed is ours until the deadline.
        let kill_at = match self.plan.on_lost {
            OnLost::Kill => now,
            _ if expired => now,
            _ if self.loss.is_some() => now + self.plan.grace,
            _ => kill_at,
        };
        self.stopped = Some(Stopped::Lost(reason));
        self.kill_at = Some(self.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
        if now < kill_at {
            child.terminate();
        }
        self.refused(child);
    }

    fn is_lost(&self) -> bool {
        matches!(self.stopped, Some(Stopped::Lost(_)))
    }

    /// Says who of those that were just signalled may not be, because they run as another user.
    fn refused(&mut self, child: &Child) {
        let refused: Vec<Left> = child.left().into_iter().filter(Left::is_refused).collect();
        if !refused.is_empty() && self.is_news() {
            self.tell_of(&refused, "runs as another user, and only that user can stop it");
            self.left = refused;
        }
    }

    /// Says who is still there long after a KILL.
    fn undead(&mut self, child: &Child) {
        let left = child.left();
        if self.is_news() && !left.is_empty() {
            self.tell_of(&left, "was killed and does not end");
        }
        self.left = left;
    }

    /// Whether it has not been said yet that there are such processes, or not what they do now.
    fn is_news(&self) -> bool {
        self.left.is_empty() || (self.is_lost() && !self.told_of_loss)
    }

    fn tell_of(&mut self, left: &[Left], why: &str) {
        let named: Vec<String> = left.iter().take(NAMED_MAX).map(Left::to_string).collect();
        let more = left.len().saturating_sub(named.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = named.join(", ");
        self.told_of_loss = self.is_lost();
        let meanwhile = if self.is_lost() {
            "it works on WITHOUT THE LOCK, beside the next holder: end it by hand"
        } else {
            "the lock stays held until it ends; asked to end once more, this run goes and leaves the lock to its lease"
        };
        self.talk.insist(format_args!("CANNOT STOP {named}{more}: it {why}; {meanwhile}"));
    }

    /// A request to end ends what the command left behind too: nobody else passes it on, and shells start such
    /// processes with Ctrl-C ignored.
    fn asked(&mut self, child: &Child, received: Received) {
        if !received.asks_to_end() {
            return;
        }
        if !self.left.is_empty() {
            self.left = child.left();
            self.stopped.get_or_insert(Stopped::GivenUp(received.signal));
            self.gives_up = true;
            return;
        }
        if self.ended.is_some() && self.kill_at.is_none() {
            child.terminate();
            self.kill_at = Some(Instant::now() + self.plan.kill_after);
        }
        if !reached_by_terminal(child, received) {
            self.refused(child);
        }
    }

    fn ended(&mut self, ended: Ended) {
        self.suspension = Suspension::default();
        if ended == Ended::NotStarted(exit::LOST) && self.loss.is_none() {
            self.loss = Some(LossReason::Expired.into());
            self.talk
                .say("the lock is lost: its lease ended before the command was started, so it does not run");
        }
        self.ended = Some((ended, Instant::now()));
    }

    fn outcome(self) -> Outcome {
        let ended = self.ended.map_or(Ended::Unknown, |(ended, _)| ended);
        Outcome { ended, stopped: self.stopped, lost: self.loss.is_some(), left: self.left }
    }
}

/// Hands a signal on to the command, unless the terminal has sent it to the whole group already.
fn forward(child: &Child, received: Received) {
    if reached_by_terminal(child, received) {
        return;
    }
    if received.by_kernel && child.group() == Group::Shared {
        child.forward_to_all(received.signal);
    } else {
        child.forward(received.signal);
    }
}

/// Whether the command has had this signal by itself. When a terminal hangs up, the kernel tells the leader of its session and
/// nobody else, and that is us under `ssh -t host redlatch run …`.
fn reached_by_terminal(child: &Child, received: Received) -> bool {
    let leads = || group::own_session() == std::process::id().cast_signed();
    let leader_only = matches!(received.signal, SIGHUP | SIGCONT) && leads();
    child.group() == Group::Shared && received.by_kernel && !leader_only
}
