//! The one who asks: the owner of one acquire, from its first request to a grant or to the end of the wait.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::{
    Core, Request, Wait,
    attempt::Look,
    contest::{Attempt, Contender},
    lane::{Handoff, InLine, Queued},
    lease::Lease,
    undo::Certainty,
    wait::Deadline,
};
use crate::{
    error::ErrorKind,
    jitter,
    owner::Owner,
    recipes::{GateKey, LanePolicy},
    store::Fault,
};

/// How long a reader lets writers of its own process go first. There is an end to it, because the reader may be what the holder
/// waits for that the writer waits for.
const YIELD_MS_MAX: u64 = 3_000;
/// How often such a reader looks whether it may go on; looking asks nobody but this process.
const YIELD_LOOK: Duration = Duration::from_millis(20);

/// What a task knows that has stood in line before it contends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct After {
    /// Other processes go first.
    pub(super) others: bool,
    /// Its owner may have been given the lock unseen.
    pub(super) tainted: bool,
}

/// The owner of one acquire; sees to it that nothing stays behind when no grant followed.
pub(super) struct Asker {
    core: Arc<Core>,
    request: Arc<Request>,
    owner: Owner,
    deadline: Deadline,
    /// A request had an unknown outcome.
    pub(super) tainted: bool,
    pub(super) granted: bool,
    /// What a task of this process handed over was taken back before this one took it, and is being released: nothing that the
    /// owner has may be believed.
    pub(super) passed_over: bool,
    looks: u32,
    /// The last item of the last answer.
    value: i64,
    /// When a read hold of the owner was to end that was seen first, by the server's clock.
    read_end_ms: Option<i64>,
    /// Until when others of this process may go first.
    yields_until_ms: u64,
    /// The lane knows that this task waits.
    waits_beside: bool,
    /// The next request has to count those before this owner.
    recount: bool,
    line: Line,
    wake: Option<Arc<Notify>>,
}

/// The place in a queue on the server, for kinds that have one.
#[derive(Default)]
enum Line {
    #[default]
    Outside,
    /// Asked for, so it must be given up when no grant follows; known to the tasks of this process that release.
    Inside(InLine),
}

impl Drop for Asker {
    fn drop(&mut self) {
        if self.waits_beside {
            self.core.lanes.waited_beside(&self.request.keys);
        }
        let lined_up = self.step_out();
        if self.granted {
            return;
        }
        if self.tainted {
            drop(self.core.undo_later(&self.request, &self.owner, Certainty::MayArriveLater));
        } else if lined_up || self.passed_over {
            drop(self.core.undo_later(&self.request, &self.owner, Certainty::Arrived));
        }
    }
}

impl Contender for Asker {
    type Prize = Arc<Lease>;

    fn key(&self) -> &[u8] {
        &self.request.keys.key
    }

    fn channel(&self) -> Option<Arc<[u8]>> {
        self.request.recipe.channel(&self.request.keys, &self.owner)
    }

    fn gate(&self) -> Option<GateKey> {
        self.request.recipe.gate(&self.request.keys, &self.owner)
    }

    fn took_the_last(&self) -> Option<Option<Duration>> {
        let lease_ms = u64::try_from(self.request.term.lease_ms).unwrap_or(u64::MAX);
        self.request
            .recipe
            .took_the_last(&self.owner, self.value)
            .then(|| Some(Duration::from_millis(lease_ms)))
    }

    fn woken_by(&mut self, notify: impl FnOnce() -> Arc<Notify>) {
        self.wake = self.lines_up().then(notify);
    }

    fn naps(&mut self) -> bool {
        matches!(self.line, Line::Inside(_)) && self.core.lanes.naps(&self.request.keys, &self.owner)
    }

    async fn attempt(&mut self) -> Result<Attempt<Arc<Lease>>, Fault> {
        if let Some(lease) = self.handed() {
            return Ok(Attempt::Won(lease));
        }
        if self.passed_over {
            return Ok(Attempt::PassedOver);
        }
        if let Some(first) = &self.request.yields_to
            && self.core.now_ms() < self.yields_until_ms
            && self.core.lanes.is_wanted(first, &self.owner, self.core.now_ms())
        {
            return Ok(Attempt::Busy(Some(YIELD_LOOK)));
        }
        let lines_up = self.lines_up();
        if lines_up && matches!(self.line, Line::Outside) {
            let (queued, line) = Queued::new(&self.request, Some(self.owner.clone()), self.wake.clone());
            self.line = Line::Inside(line);
            self.core.lanes.line_up(&self.request.keys, queued);
        }
        let look = Look {
            lines_up,
            recount: self.recount,
            deadline: &self.deadline,
            value: &mut self.value,
            read_end_ms: &mut self.read_end_ms,
        };
        let outcome = self.core.attempt(&self.request, &self.owner, look).await;
        match outcome {
            Ok(Attempt::Behind { recount }) => self.recount = recount,
            // What was not answered may have lined up anew, behind others than were counted.
            Err(_) => self.recount = true,
            Ok(_) => {}
        }
        match outcome {
            Ok(Attempt::Won(lease)) => {
                // A release may have handed over at the same moment; both leases are the same hold.
                if let Some(same) = self.handed() {
                    self.core.lanes.forget(&same);
                }
                Ok(if self.passed_over { Attempt::PassedOver } else { Attempt::Won(lease) })
            }
            Ok(Attempt::Busy(_) | Attempt::Behind { .. }) if lines_up => {
                self.core.lanes.lined_up(&self.request.keys, &self.owner);
                // A release that was sent after the request may have handed over before this answer was read.
                match self.handed() {
                    Some(lease) => Ok(Attempt::Won(lease)),
                    None if self.passed_over => Ok(Attempt::PassedOver),
                    None => outcome,
                }
            }
            // Those who pass the lock on among themselves let this task in between; unless it is to stand back anyway.
            Ok(Attempt::Busy(_)) if self.waits_beside() => {
                self.core.lanes.wait_beside(&self.request.keys);
                self.waits_beside = true;
                outcome
            }
            Ok(Attempt::Busy(_)) if let Some(backoff) = &self.request.backoff => {
                let pause = backoff.pause(self.looks, jitter::fraction());
                self.looks = self.looks.saturating_add(1);
                Ok(Attempt::Busy(Some(pause)))
            }
            // Another process holds under this owner. Giving up a place in the queue would give back that hold, and a place
            // from an earlier attempt went with the grant.
            Err(Fault::Server(error)) if error.kind() == ErrorKind::AlreadyHeld => {
                self.step_out();
                Err(Fault::Server(error))
            }
            outcome => outcome,
        }
    }

    fn outcome_unknown(&mut self) {
        self.tainted = true;
    }
}

impl Asker {
    pub(super) fn new(
        core: &Arc<Core>,
        request: &Arc<Request>,
        owner: Owner,
        deadline: Deadline,
        after: After,
    ) -> Self {
        Asker {
            core: core.clone(),
            request: request.clone(),
            owner,
            deadline,
            tainted: after.tainted,
            granted: false,
            passed_over: false,
            looks: 0,
            value: 0,
            read_end_ms: None,
            yields_until_ms: request.yields_to.as_ref().map_or(0, |_| core.now_ms() + YIELD_MS_MAX),
            waits_beside: false,
            recount: true,
            line: Line::Outside,
            wake: None,
        }
    }

    /// Whether the owner waits in a queue on the server.
    fn lines_up(&self) -> bool {
        self.request.recipe.lane() == LanePolicy::Ordered && self.request.wait != Wait::No
    }

    /// Whether it should be made known now that this task waits for a hold beside others.
    fn waits_beside(&self) -> bool {
        let Request { recipe, wait, yields_to, .. } = &*self.request;
        !self.waits_beside && recipe.lane() == LanePolicy::Beside && *wait != Wait::No && yields_to.is_none()
    }

    /// No longer takes what is handed over. Says whether a place in the queue on the server may have to be given up, and has what was
    /// handed over at the last moment.
    fn close_line(&mut self) -> (bool, Option<Arc<Lease>>) {
        let Line::Inside(mut line) = std::mem::take(&mut self.line) else { return (false, None) };
        // Closing comes before looking: a release that puts this task back in line looks whether it still waits, and what was handed
        // over before is found here.
        line.handoff.close();
        self.core.lanes.step_out(&self.request.keys, &self.owner);
        match line.handoff.try_recv() {
            Ok(Handoff::Lease(lease)) if lease.take() => (true, Some(lease)),
            Ok(Handoff::Lease(_)) => {
                self.passed_over = true;
                (true, None)
            }
            Ok(Handoff::Contend { .. }) | Err(_) => (true, None),
        }
    }

    /// As [`close_line`](Self::close_line), and gives back what was handed over.
    fn step_out(&mut self) -> bool {
        let (lined_up, handed) = self.close_line();
        if let Some(lease) = handed {
            self.core.drop_hold(&lease, lease.term());
        }
        lined_up
    }

    /// Ends the waiting of a task that has won. `false` if what it has won is the hold that was taken back from it.
    pub(super) fn rests(&mut self) -> bool {
        if let (_, Some(same)) = self.close_line() {
            self.core.lanes.forget(&same);
        }
        !self.passed_over
    }

    /// Gives up the place in the queue on the server before the caller is told that time is up, so that nobody waits
    /// behind a process that has ended. Bounded, and finished in the background when it takes longer.
    pub(super) async fn step_back(&mut self) {
        if !self.tainted && self.step_out() {
            let job = self.core.undo_later(&self.request, &self.owner, Certainty::Arrived);
            let limit = self.core.keeper.sleep(self.core.config.response_timeout);
            tokio::select! {
                biased;
                _ = job => {}
                () = limit => {}
            }
        }
    }

    /// The lease that a task of this process has handed over, if any.
    fn handed(&mut self) -> Option<Arc<Lease>> {
        let Line::Inside(line) = &mut self.line else { return None };
        match line.handoff.try_recv() {
            Ok(Handoff::Lease(lease)) if !lease.take() => {
                self.passed_over = true;
                None
            }
            Ok(Handoff::Lease(lease)) if lease.is_valid(self.core.now_ms()) => Some(lease),
            Ok(Handoff::Lease(lease)) => {
                self.core.lanes.forget(&lease);
                None
            }
            Ok(Handoff::Contend { .. }) | Err(_) => None,
        }
    }
}
