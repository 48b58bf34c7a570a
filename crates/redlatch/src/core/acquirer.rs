//! One acquire, for one owner: from its first request to a grant or to the end of the wait.

mod abandoned;
mod local_queue;
mod rare;
mod shared_kinds;

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;

use super::{
    Core, Request, Wait,
    ask_gate::Availability,
    contest::{Attempt, Contender},
    flight::{AfterDrop, Flight},
    lease::{HeldLease, SentAt},
    presence::Waiting,
    replica_confirm::Unconfirmed,
    undo::RequestFate,
    wait::WaitDeadline,
};
use crate::{
    call::SendProgress,
    catch_panic::catch_panic,
    error::{Error, ErrorKind},
    jitter,
    owner::Owner,
    recipes::{AcquireArgs, AskGateKey, LanePolicy, QUEUED_BEHIND, QUEUED_BEHIND_RECOUNT},
    scripts::ACQUIRE,
    store::{Call, Confirm, Fault, Reply},
};
use local_queue::LocalQueuePlace;
use shared_kinds::SharedKindState;

/// What a task knows that has stood in line before it contends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContestStart {
    /// Other processes go first.
    pub(super) other_processes_first: bool,
    /// Its owner may have been given the lock unseen.
    pub(super) outcome_unknown: bool,
}

/// One acquire, for one owner. Dropped before `granted` is set, it undoes what its requests may have done.
pub(super) struct Acquirer {
    core: Arc<Core>,
    request: Arc<Request>,
    owner: Owner,
    deadline: WaitDeadline,
    /// A request had an unknown outcome.
    pub(super) outcome_unknown: bool,
    pub(super) granted: bool,
    /// Fair locks: this task was handed a lease and was not polled in time, so the keeper has taken it back and releases it. What the server says of
    /// this owner meanwhile is about that hold, and is not believed.
    pub(super) offer_taken_back: bool,
    /// It was granted for no longer than the answer took, and comes in again behind the others in its lane.
    pub(super) too_late: bool,
    /// A request was sent, or may have been.
    has_asked: bool,
    /// How far the last request has come.
    sending: Option<Arc<SendProgress>>,
    /// A release of its own owner waits for it.
    pub(super) owner_busy: bool,
    /// How often the lock was found busy, for kinds that look again after a pause.
    looks: u32,
    /// The value of the last answer ([`AcquireReply`]), from which some kinds see whether a request has left something.
    value: i64,
    /// When the owner's read hold was to end when it was first seen, by the server's clock.
    read_hold_end_ms: Option<i64>,
    shared_kind: SharedKindState,
    /// The next request has to count those before this owner.
    count_waiters_ahead: bool,
    /// Fair locks: its place in this process's part of the queue on the server.
    local_queue: LocalQueuePlace,
    wake: Option<Arc<Notify>>,
}

/// What has to be known of a request to undo it if its answer reaches no task.
#[derive(Debug, Clone, Copy)]
struct SendContext {
    /// Another process may hold under the owner, or come to do so meanwhile.
    refuse_if_owned: bool,
    queues_at_server: bool,
    sent_at: SentAt,
}

impl Contender for Acquirer {
    type Gain = Arc<HeldLease>;

    fn key(&self) -> &[u8] {
        &self.request.keys.key
    }

    fn channel(&self) -> Option<Arc<[u8]>> {
        self.request.recipe.channel(&self.request.keys, &self.owner)
    }

    fn key_to_watch(&self) -> Option<Arc<[u8]>> {
        self.request.recipe.key_to_watch(&self.request.keys)
    }

    fn ask_gate(&self) -> Option<AskGateKey> {
        self.request.recipe.ask_gate(&self.request.keys, &self.owner)
    }

    fn left_for_others(&self) -> Availability {
        if !self.request.recipe.leaves_nothing(&self.owner, self.value) {
            return Availability::MayBeEnough;
        }
        let lease_ms = u64::try_from(self.request.lease_term.lease_ms).unwrap_or(u64::MAX);
        Availability::Nothing { again_after: Some(Duration::from_millis(lease_ms)) }
    }

    fn set_notify(&mut self, notify: impl FnOnce() -> Arc<Notify>) {
        self.wake = self.queues_at_server().then(notify);
    }

    fn expects_local_grant(&mut self) -> bool {
        matches!(self.local_queue, LocalQueuePlace::Inside(_))
            && self.core.lanes.expects_local_grant(&self.request.keys, &self.owner)
    }

    fn waiting(&self, since_ms: u64) -> Vec<Waiting> {
        vec![Waiting::here(self.request.keys.subject(), Some(&self.owner), since_ms)]
    }

    async fn attempt(&mut self) -> Result<Attempt<Arc<HeldLease>>, Fault> {
        match self.request.recipe.lane_policy() {
            LanePolicy::OneContends => self.ask().await,
            LanePolicy::AllContend => self.ask_beside_others().await,
            LanePolicy::QueuesAtServer if self.queues_at_server() => self.ask_in_line().await,
            LanePolicy::QueuesAtServer => self.try_once().await,
        }
    }

    fn mark_outcome_unknown(&mut self) {
        // Time was up before the request was sent.
        if self.sending.as_ref().is_some_and(|sending| sending.is_given_up()) {
            return;
        }
        self.outcome_unknown = true;
    }

    fn goes_behind_others(&mut self) -> bool {
        self.too_late = self.request.recipe.lane_policy() == LanePolicy::OneContends;
        self.too_late
    }

    fn has_others_behind(&self) -> bool {
        self.core.lanes.has_line(&self.request.keys)
    }

    fn tell_recovery(&self, after_ms: u64) {
        let (name, owner) = (&self.request.keys.name, self.owner.field());
        catch_panic(
            || tracing::debug!(lock = %name, owner = &**owner, after_ms, "an acquire is answered again"),
        );
    }
}

impl Acquirer {
    pub(super) fn new(
        core: &Arc<Core>,
        request: &Arc<Request>,
        owner: Owner,
        deadline: WaitDeadline,
        start: ContestStart,
    ) -> Self {
        Acquirer {
            core: core.clone(),
            request: request.clone(),
            owner,
            deadline,
            outcome_unknown: start.outcome_unknown,
            granted: false,
            offer_taken_back: false,
            too_late: false,
            has_asked: false,
            sending: None,
            owner_busy: false,
            looks: 0,
            value: 0,
            read_hold_end_ms: None,
            shared_kind: SharedKindState::new(core, request),
            count_waiters_ahead: true,
            local_queue: LocalQueuePlace::Outside,
            wake: None,
        }
    }

    /// Asks a lock that one owner has at a time. A lock without messages says itself when to look again.
    async fn ask(&mut self) -> Result<Attempt<Arc<HeldLease>>, Fault> {
        let outcome = self.try_once().await;
        if let (Ok(Attempt::Busy(_)), Some(backoff)) = (&outcome, &self.request.backoff) {
            let pause = backoff.pause(self.looks, jitter::fraction());
            self.looks = self.looks.saturating_add(1);
            return Ok(Attempt::Busy(Some(pause)));
        }
        outcome
    }

    /// Sends one request, and says what its answer means.
    async fn try_once(&mut self) -> Result<Attempt<Arc<HeldLease>>, Fault> {
        let sending = Some(Arc::default());
        self.sending.clone_from(&sending);
        let (core, request, owner) = (&self.core, &self.request, &self.owner);
        // For an upgrade only: whether a release of this owner was under way when the request was sent.
        let own_release_was_under_way = self.own_release_under_way();
        let sent_at = core.sent_at(&request.keys);
        let refuse_if_owned =
            owner.is_multi_process() || core.own_write_lease(&request.keys, owner).is_some();
        let mut call = request.acquire_call(owner, self.count_waiters_ahead, refuse_if_owned, core);
        call.sending = sending;
        let context = SendContext { refuse_if_owned, queues_at_server: self.queues_at_server(), sent_at };
        let (outcome, confirm) = self.send(call, context).await;
        self.has_asked = true;
        if let Err(fault) = &outcome
            && fault.is_migrating()
            && let Some(ttl_ms) = core.held_by_another(request, owner).await
        {
            return Ok(busy(ttl_ms));
        }
        // The call carries the owner's number as a placeholder. `Core::run` sends a number of the request instead, and puts the placeholder
        // back into the reply, which is checked here (`request_ids.rs`).
        let reply = AcquireReply::read(&core.read(
            &ACQUIRE,
            &request.keys.key,
            outcome,
            owner.request_number_placeholder(),
        )?)?;
        self.value = reply.value;
        match (reply.count, reply.value) {
            (UPGRADE_REFUSED, _) => self.upgrade(own_release_was_under_way).await,
            (0, QUEUED_BEHIND) => Ok(Attempt::QueuedBehind { count_waiters_ahead: false }),
            (0, QUEUED_BEHIND_RECOUNT) => Ok(Attempt::QueuedBehind { count_waiters_ahead: true }),
            // `ALREADY_OWNED` does not come here: `send_rare_acquire` takes it.
            (0, ttl_ms) => Ok(busy(ttl_ms)),
            (count @ ..0, _) => Err(Fault::Server(refusal(count))),
            _ => {
                let lease = self.lease(&reply, sent_at, confirm).await?;
                if lease.is_valid(self.core.now_ms()) {
                    Ok(Attempt::Won(lease))
                } else {
                    self.too_late(sent_at).await
                }
            }
        }
    }

    /// Sends the request. If its task goes before the answer has come, the keeper waits for that and undoes the grant (`abandoned.rs`).
    async fn send(&self, call: Call, context: SendContext) -> (Result<Reply, Fault>, Option<Confirm>) {
        let (core, request, owner) = (&self.core, &self.request, &self.owner);
        if request.ack.is_some() || context.refuse_if_owned {
            return core.send_rare_acquire(request, owner, call, context).await;
        }
        core.keeper.note_call();
        let sending = call.sending.clone();
        let flight = Flight::new(core, core.run(call), || {
            Some(match sending {
                Some(sending) if sending.give_up() => AfterDrop::NotSent,
                _ => core.when_abandoned(request, owner, context),
            })
        });
        (flight.await, None)
    }

    /// The lease of a grant, once replicas have confirmed it where that is asked for.
    async fn lease(
        &self,
        reply: &AcquireReply,
        sent_at: SentAt,
        confirm: Option<Confirm>,
    ) -> Result<Arc<HeldLease>, Fault> {
        let (core, request, owner) = (&self.core, &self.request, &self.owner);
        let token = (request.fenced && reply.value > 0).then_some(reply.value as u64);
        if request.fenced && token.is_none() {
            core.undo_and_wait(&[request], owner, sent_at).await?;
            return Err(Fault::Server(Error::new(
                ErrorKind::Protocol,
                "a fenced grant came without a token",
            )));
        }
        let replicated = match (request.ack, confirm) {
            (Some(ack), Some(confirm)) => {
                let requests = std::slice::from_ref(request);
                let grant = Unconfirmed { core, requests, owner, sent_at, is_ours: true };
                Some(core.confirm(grant, ack, confirm, &self.deadline).await?)
            }
            _ => None,
        };
        let lease = HeldLease::new(
            request.keys.clone(),
            owner.clone(),
            request.recipe,
            token,
            request.lease_term,
            sent_at,
        );
        lease.note_replicas(replicated.or(request.inherited_ack));
        let lease = Arc::new(lease);
        lease.change_holds(|holds| holds.count = 1);
        if owner.is_multi_process() && reply.count > 1 {
            lease.note_entered_in(sent_at.incarnation, true);
        }
        Ok(lease)
    }

    /// The answer came after the end of the lease that it granted, so the hold is given back. The line is closed first, because giving back removes
    /// all that the owner has. A fair lock may have been handed to this task by another one while the request was on its way: the server repeated
    /// that grant, and the lease that was handed over began later, so it counts if it is still valid.
    async fn too_late(&mut self, sent_at: SentAt) -> Result<Attempt<Arc<HeldLease>>, Fault> {
        let (_, handed) = self.stop_hand_overs();
        if let Some(handed) = handed {
            if handed.is_valid(self.core.now_ms()) {
                return Ok(Attempt::Won(handed));
            }
            self.core.lanes.forget(&handed);
        }
        if self.offer_taken_back {
            return Ok(Attempt::OfferExpired);
        }
        self.count_waiters_ahead = true;
        self.core.undo_and_wait(&[&self.request], &self.owner, sent_at).await?;
        Ok(Attempt::TooLate)
    }

    /// Whether the owner waits in a queue on the server.
    fn queues_at_server(&self) -> bool {
        self.request.recipe.lane_policy() == LanePolicy::QueuesAtServer && self.request.wait != Wait::No
    }

    /// Leaves the line with a grant. `false` if the grant is the hold that was taken back from this task (fair locks only).
    pub(super) fn leave_local_queue_with_grant(&mut self) -> bool {
        if let (_, Some(same)) = self.stop_hand_overs() {
            self.core.lanes.forget(&same);
        }
        !self.offer_taken_back
    }

    /// Whether the server may have heard of the owner.
    fn may_have_asked(&self) -> bool {
        self.has_asked || !self.sending.as_ref().is_none_or(|sending| sending.is_given_up())
    }

    /// Gives up the place in the queue on the server before the caller is told that time is up, so that nobody waits
    /// behind a process that has ended. Bounded, and finished in the background when it takes longer.
    pub(super) async fn leave_any_server_queue(&mut self) {
        if !self.outcome_unknown && self.leave_local_queue() && self.may_have_asked() {
            let job = self.core.undo_later(&self.request, &self.owner, RequestFate::AnsweredWithoutGrant);
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
        self.leave_concurrent_waiters();
        let lined_up = self.leave_local_queue();
        if self.granted {
            return;
        }
        if self.outcome_unknown {
            drop(self.core.undo_later(&self.request, &self.owner, RequestFate::MayArriveLater));
        } else if (lined_up && self.may_have_asked()) || self.offer_taken_back {
            drop(self.core.undo_later(&self.request, &self.owner, RequestFate::AnsweredWithoutGrant));
        }
    }
}

/// The refusal of a write hold to an owner that has a read hold.
const UPGRADE_REFUSED: i64 = -2;

/// Not yet; a TTL below 0 says nothing about when.
fn busy<T>(ttl_ms: i64) -> Attempt<T> {
    Attempt::Busy(u64::try_from(ttl_ms).ok().map(Duration::from_millis))
}

/// What an acquire is refused with for good.
fn refusal(count: i64) -> Error {
    match count {
        -1 => Error::new(ErrorKind::WrongLockKind, "the name is in use by a lock of another kind"),
        -3 => Error::new(ErrorKind::NotInitialised, "nobody has set permits"),
        _ => Error::new(ErrorKind::Protocol, format!("an acquire was refused with {count}")),
    }
}

impl Request {
    pub(super) fn acquire_call(
        &self,
        owner: &Owner,
        count_waiters_ahead: bool,
        refuse_if_owned: bool,
        core: &Core,
    ) -> Call {
        let args = AcquireArgs {
            lease_ms: self.lease_term.lease_ms,
            fenced: self.fenced,
            waits: self.wait != Wait::No,
            count_waiters_ahead,
            refuse_if_owned,
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
