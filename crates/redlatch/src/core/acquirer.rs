//! The task that acquires, for one owner: from its first request to a grant or to the end of the wait.

mod line;

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::{
    Core, Request, Wait,
    confirm::{Answered, Unconfirmed},
    contest::{Attempt, Contender},
    flight::{AfterDrop, Flight, Work},
    lanes::kinds::upgrade_refused,
    lease::{Lease, Sending},
    undo::Certainty,
    upgrade::Reading,
    wait::Deadline,
};
use crate::{
    error::{Error, ErrorKind},
    jitter,
    keys::LaneKind,
    owner::Owner,
    recipes::{AcquireArgs, BEHIND, GateKey, LanePolicy},
    scripts::{ACQUIRE, QUERY},
    store::{Call, Confirm, Fault, Reply},
};
use line::Line;

/// How long a reader lets writers of its own process go first. There is an end to it, because the writer may wait for a holder that waits for
/// this reader.
const YIELD_MS_MAX: u64 = 3_000;
/// How often such a reader looks whether it may go on; looking asks nobody but this process.
const YIELD_LOOK: Duration = Duration::from_millis(20);

/// How long the answer to a request is waited for whose task has gone. After that, what it may have left is removed without the answer.
const ABANDONED_TIME: Duration = Duration::from_millis(250);

/// What a task knows that has stood in line before it contends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContestStart {
    /// Other processes go first.
    pub(super) yield_first: bool,
    /// Its owner may have been given the lock unseen.
    pub(super) outcome_unknown: bool,
}

/// The owner of one acquire; sees to it that nothing stays behind when no grant followed.
pub(super) struct Acquirer {
    core: Arc<Core>,
    request: Arc<Request>,
    owner: Owner,
    deadline: Deadline,
    /// A request had an unknown outcome.
    pub(super) outcome_unknown: bool,
    pub(super) granted: bool,
    /// The keeper has taken back the lease that a task of this process handed over, before this task took it. That hold is being released, so
    /// nothing that the server says of the owner may be believed.
    pub(super) passed_over: bool,
    /// A release of its own owner waits for it.
    pub(super) behind_own: bool,
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

impl Contender for Acquirer {
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

    fn nothing_left(&self) -> Option<Option<Duration>> {
        let lease_ms = u64::try_from(self.request.term.lease_ms).unwrap_or(u64::MAX);
        self.request
            .recipe
            .leaves_nothing(&self.owner, self.value)
            .then(|| Some(Duration::from_millis(lease_ms)))
    }

    fn woken_by(&mut self, notify: impl FnOnce() -> Arc<Notify>) {
        self.wake = self.lines_up().then(notify);
    }

    fn expects_handoff(&mut self) -> bool {
        matches!(self.line, Line::Inside(_))
            && self.core.lanes.expects_handoff(&self.request.keys, &self.owner)
    }

    async fn attempt(&mut self) -> Result<Attempt<Arc<Lease>>, Fault> {
        if let Some(served) = self.served() {
            return Ok(served);
        }
        if let Some(first) = &self.request.yields_to
            && self.core.now_ms() < self.yields_until_ms
            && self.core.lanes.is_wanted(first, &self.owner, self.core.now_ms())
        {
            return Ok(Attempt::Busy(Some(YIELD_LOOK)));
        }
        if self.lines_up() {
            self.line_up();
            let outcome = self.try_once().await;
            return self.looked_in_line(outcome);
        }
        let outcome = self.try_once().await;
        match outcome {
            // The lane learns that a reader waits at the server, and lets it go first after its next release there.
            Ok(Attempt::Busy(_)) if self.waits_beside() => {
                self.core.lanes.add_concurrent_waiter(&self.request.keys);
                self.waits_beside = true;
                outcome
            }
            Ok(Attempt::Busy(_)) if let Some(backoff) = &self.request.backoff => {
                let pause = backoff.pause(self.looks, jitter::fraction());
                self.looks = self.looks.saturating_add(1);
                Ok(Attempt::Busy(Some(pause)))
            }
            outcome => outcome,
        }
    }

    fn outcome_unknown(&mut self) {
        self.outcome_unknown = true;
    }
}

impl Acquirer {
    pub(super) fn new(
        core: &Arc<Core>,
        request: &Arc<Request>,
        owner: Owner,
        deadline: Deadline,
        after: ContestStart,
    ) -> Self {
        Acquirer {
            core: core.clone(),
            request: request.clone(),
            owner,
            deadline,
            outcome_unknown: after.outcome_unknown,
            granted: false,
            passed_over: false,
            behind_own: false,
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

    /// Asks the server once.
    async fn try_once(&mut self) -> Result<Attempt<Arc<Lease>>, Fault> {
        let (core, request, owner) = (&self.core, &self.request, &self.owner);
        // A read hold of the same owner that is just being given back is no reason to refuse it the write lock.
        let leaves = || owner.is_exposed() && core.owners.is_pending(&request.keys, owner);
        let left_readers = leaves();
        let sending = core.sending(&request.keys);
        let shared = owner.is_shared() || core.own_write_lease(&request.keys, owner).is_some();
        let call = request.acquire_call(owner, self.recount, shared, core);
        let context = SendContext { shared, lines_up: self.lines_up(), sending };
        let (outcome, confirm) = core.send_acquire(request, owner, call, context).await;
        if let Err(fault) = &outcome
            && fault.is_migrating()
            && let Some(ttl_ms) = core.held_by_another(request, owner).await
        {
            return Ok(Attempt::Busy(u64::try_from(ttl_ms).ok().map(Duration::from_millis)));
        }
        let reply = AcquireReply::read(&core.read(&ACQUIRE, &request.keys.key, outcome, owner.number())?)?;
        self.value = reply.value;
        if reply.count == UPGRADE && leaves() {
            self.behind_own = true;
            return Ok(Attempt::BehindOwn);
        }
        if reply.count == UPGRADE && left_readers {
            return Ok(Attempt::Busy(Some(Duration::ZERO)));
        }
        if reply.count == UPGRADE
            && let Reading::Ends(left) = core.reading(request, owner, &mut self.read_end_ms).await
        {
            return Ok(Attempt::Busy(left));
        }
        if reply.count < 0 {
            return Err(Fault::Server(refusal(reply.count)));
        }
        if reply.count == 0 {
            if reply.value <= BEHIND {
                return Ok(Attempt::Behind { recount: reply.value < BEHIND });
            }
            return Ok(Attempt::Busy(u64::try_from(reply.value).ok().map(Duration::from_millis)));
        }
        let token = (request.fenced && reply.value > 0).then_some(reply.value as u64);
        if request.fenced && token.is_none() {
            core.undo_first(&[request], owner, sending).await?;
            return Err(Fault::Server(Error::new(
                ErrorKind::Protocol,
                "a fenced grant came without a token",
            )));
        }
        let replicated = match (request.ack, confirm) {
            (Some(ack), Some(confirm)) => {
                let requests = std::slice::from_ref(request);
                let grant = Unconfirmed { core, requests, owner, sending, is_ours: true };
                Some(core.confirm(grant, ack, confirm, &self.deadline).await?)
            }
            _ => None,
        };
        let lease =
            Lease::new(request.keys.clone(), owner.clone(), request.recipe, token, request.term, sending);
        lease.note_replicas(replicated.or(request.stands_for));
        let lease = Arc::new(lease);
        lease.change_holds(|holds| holds.count = 1);
        if owner.is_shared() && reply.count > 1 {
            lease.entered_in(sending.reign, true);
        }
        if !lease.is_valid(core.now_ms()) {
            return self.too_late(sending).await;
        }
        Ok(Attempt::Won(lease))
    }

    /// The server has granted, and the lease is over. The hold is given back, unless a task of this process has handed it over meanwhile and
    /// this answer is its repeat: that lasts from when it was handed over. From here on nothing is handed to this task, because what is
    /// given back is all that its owner has.
    async fn too_late(&mut self, sending: Sending) -> Result<Attempt<Arc<Lease>>, Fault> {
        let (_, handed) = self.close_line();
        if let Some(handed) = handed {
            if handed.is_valid(self.core.now_ms()) {
                return Ok(Attempt::Won(handed));
            }
            self.core.lanes.forget(&handed);
        }
        if self.passed_over {
            return Ok(Attempt::PassedOver);
        }
        self.recount = true;
        self.core.undo_first(&[&self.request], &self.owner, sending).await?;
        Ok(Attempt::TooLate)
    }

    /// Whether the owner waits in a queue on the server.
    fn lines_up(&self) -> bool {
        self.request.recipe.lane() == LanePolicy::Ordered && self.request.wait != Wait::No
    }

    /// Whether it should be made known now that this task waits for a hold beside others.
    fn waits_beside(&self) -> bool {
        let Request { recipe, wait, yields_to, .. } = &*self.request;
        !self.waits_beside
            && recipe.lane() == LanePolicy::Concurrent
            && *wait != Wait::No
            && yields_to.is_none()
    }

    /// Ends the waiting of a task that has won. `false` if what it has won is the hold that was taken back from it.
    pub(super) fn settle_win(&mut self) -> bool {
        if let (_, Some(same)) = self.close_line() {
            self.core.lanes.forget(&same);
        }
        !self.passed_over
    }

    /// Gives up the place in the queue on the server before the caller is told that time is up, so that nobody waits
    /// behind a process that has ended. Bounded, and finished in the background when it takes longer.
    pub(super) async fn leave_queue(&mut self) {
        if !self.outcome_unknown && self.step_out() {
            let job = self.core.undo_later(&self.request, &self.owner, Certainty::Arrived);
            let limit = self.core.keeper.sleep(self.core.config.response_timeout);
            tokio::select! {
                biased;
                _ = job => {}
                () = limit => {}
            }
        }
    }
}

impl Drop for Acquirer {
    fn drop(&mut self) {
        if self.waits_beside {
            self.core.lanes.remove_concurrent_waiter(&self.request.keys);
        }
        let lined_up = self.step_out();
        if self.granted {
            return;
        }
        if self.outcome_unknown {
            drop(self.core.undo_later(&self.request, &self.owner, Certainty::MayArriveLater));
        } else if lined_up || self.passed_over {
            drop(self.core.undo_later(&self.request, &self.owner, Certainty::Arrived));
        }
    }
}

impl Core {
    /// Sends one request. With its answer comes a way to ask the replicas for it, if they are to be asked.
    async fn send_acquire(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        call: Call,
        context: SendContext,
    ) -> (Result<Reply, Fault>, Option<Confirm>) {
        let SendContext { shared, .. } = context;
        if request.ack.is_none() && !shared {
            self.keeper.touch();
            let flight = Flight::new(self, self.run(call), || {
                Some(AfterDrop::Within(ABANDONED_TIME, Box::new(self.abandoned(request, owner, context))))
            });
            return (flight.await, None);
        }
        let work = self.clone().send_acquire_shared(request.clone(), owner.clone(), call, shared);
        let flight = Flight::new(self, Box::pin(work), || {
            let after = self.abandoned(request, owner, context);
            let unread = |outcome: Result<Answered, Fault>| outcome.map(|(reply, _)| reply);
            if request.ack.is_some() || owner.is_shared() {
                return Some(AfterDrop::Then(Box::new(move |outcome| after(Ok(unread(outcome))))));
            }
            Some(AfterDrop::Within(
                ABANDONED_TIME,
                Box::new(move |outcome| {
                    after(match outcome {
                        Ok(outcome) => Ok(unread(outcome)),
                        Err(work) => Err(Box::pin(async move { unread(work.await) })),
                    });
                }),
            ))
        });
        match flight.await {
            Ok((reply, confirm)) => (Ok(reply), confirm),
            Err(fault) => (Err(fault), None),
        }
    }

    /// What is done with the answer of a request that nobody waits for any more.
    fn abandoned(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        context: SendContext,
    ) -> impl FnOnce(Result<Raw, Work<Raw>>) + Send + 'static {
        let (core, request, owner) = (self.clone(), request.clone(), owner.clone());
        // The owner is granted nothing else until what becomes of this request is known and undone.
        let pending = self.owners.pending(&request.keys, &owner);
        move |outcome| match outcome {
            Ok(outcome) => {
                core.undo_abandoned(&request, &owner, outcome, context);
                drop(pending);
            }
            Err(work) => {
                drop(core.undo_later(&request, &owner, Certainty::MayArriveLater));
                core.keeper.handle().clone().spawn(async move {
                    // Until it is answered it may still be granted.
                    let outcome = work.await;
                    core.undo_abandoned(&request, &owner, outcome, context);
                    drop(pending);
                });
            }
        }
    }

    /// Undoes what the answer to an abandoned request tells of.
    fn undo_abandoned(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        outcome: Raw,
        context: SendContext,
    ) {
        let reply = self.read(&ACQUIRE, &request.keys.key, outcome, owner.number());
        let certainty = match reply.and_then(|items| AcquireReply::read(&items)) {
            // Nothing was granted, but a place in the queue may have been taken.
            Ok(reply) if reply.count <= 0 && context.lines_up => Certainty::Arrived,
            Ok(reply) if reply.count <= 0 => return,
            // It was granted, and no task is there to take it.
            Ok(_) => Certainty::Granted(context.sending),
            Err(Fault::NotSent(_) | Fault::Server(_)) => return,
            Err(Fault::Unknown(_)) => Certainty::MayArriveLater,
        };
        drop(self.undo_later(request, owner, certainty));
    }

    /// While the keys of a lock are in two places, the hash alone tells that another owner holds it, and for how long (-1:
    /// without end). Plain and fair locks only: the scripts of read-write locks get by on the hash themselves, and permits need two keys.
    async fn held_by_another(self: &Arc<Self>, request: &Request, owner: &Owner) -> Option<i64> {
        match request.keys.kind {
            LaneKind::Lock | LaneKind::Fair => {}
            LaneKind::Read | LaneKind::Write | LaneKind::Permits => return None,
        }
        let call = Call::new(&QUERY).key(&request.keys.key).text(owner.field());
        let reply = self.run(call).await.ok()?;
        match *reply.array()? {
            [Reply::Int(ttl_ms), Reply::Int(0)] if ttl_ms != -2 => Some(ttl_ms),
            _ => None,
        }
    }
}

/// How a request is sent, for undoing what nobody hears of.
#[derive(Debug, Clone, Copy)]
struct SendContext {
    /// Another process may hold under the owner, or come to do so meanwhile.
    shared: bool,
    lines_up: bool,
    sending: Sending,
}

/// What became of a request, unread.
type Raw = Result<Reply, Fault>;

/// The refusal of a write hold to an owner that has a read hold.
const UPGRADE: i64 = -2;

/// What an acquire is refused with for good.
fn refusal(count: i64) -> Error {
    match count {
        -1 => Error::new(ErrorKind::WrongLockKind, "the name is in use by a lock of another kind"),
        UPGRADE => upgrade_refused(),
        -3 => Error::new(ErrorKind::NotInitialised, "nobody has set permits"),
        _ => Error::new(ErrorKind::Protocol, format!("an acquire was refused with {count}")),
    }
}

impl Request {
    pub(super) fn acquire_call(&self, owner: &Owner, recount: bool, first_only: bool, core: &Core) -> Call {
        let args = AcquireArgs {
            lease_ms: self.term.lease_ms,
            fenced: self.fenced,
            waits: self.wait != Wait::No,
            recount,
            first_only,
            redisson_wait_ms: core.config.redisson_fair_wait.as_millis() as i64,
            publish: core.store.publish_command(),
        };
        self.recipe.acquire(&self.keys, owner, &args)
    }
}

/// The reply of an acquire: a count above 0 is a grant with its token, 0 is busy with its TTL.
pub(super) struct AcquireReply {
    pub(super) count: i64,
    pub(super) value: i64,
}

impl AcquireReply {
    pub(super) fn read(items: &[i64]) -> Result<AcquireReply, Fault> {
        match items {
            [_, count, value] => Ok(AcquireReply { count: *count, value: *value }),
            _ => Err(Fault::Unknown(Error::new(
                ErrorKind::Protocol,
                "an acquire answered with the wrong number of items",
            ))),
        }
    }
}
