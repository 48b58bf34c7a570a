//! One attempt of a contest: asks the server once, has replicas confirm a grant, and undoes what nobody has.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{
    Core, Request, Wait,
    contest::Attempt,
    flight::{Flight, Rest, Work},
    lease::{Lease, Sending},
    undo::Certainty,
    upgrade::Reading,
    wait::Deadline,
};
use crate::{
    error::{Error, ErrorKind},
    keys::Kind,
    owner::Owner,
    recipes::{Asks, BEHIND, OWN_HOLD},
    replica_ack::{Confirmed, Replication},
    scripts::{ACQUIRE, QUERY},
    store::{Call, Confirm, Fault, Reply},
};

/// How often an owner of several processes finds its other holds now there and now gone, before it counts as busy.
const SHARED_TURNS_MAX: u32 = 4;
/// For how long it counts as busy then.
const SHARED_PAUSE_MS: i64 = 10;

/// How long the answer to a request that was given up is waited for before what it may have left is removed without it.
const ABANDONED_TIME: Duration = Duration::from_millis(250);

impl Core {
    /// Asks the server once.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        look: Look<'_>,
    ) -> Result<Attempt<Arc<Lease>>, Fault> {
        // A read hold of the same owner that is just being given back is no reason to refuse it the write lock.
        let leaves = || owner.is_exposed() && self.owners.is_pending(&request.keys, owner);
        let left_readers = leaves();
        let sending = self.sending(&request.keys);
        let shared = owner.is_shared() || self.write_hold_beside(&request.keys, owner).is_some();
        let call = request.acquire_call(owner, look.recount, shared, self);
        let (outcome, confirm) =
            self.ask(request, owner, call, Asking { shared, lines_up: look.lines_up, sending }).await;
        if let Err(fault) = &outcome
            && fault.is_split()
            && let Some(ttl_ms) = self.held_by_another(request, owner).await
        {
            return Ok(Attempt::Busy(u64::try_from(ttl_ms).ok().map(Duration::from_millis)));
        }
        let reply = Asked::read(&self.read(&ACQUIRE, &request.keys.key, outcome, owner.number())?)?;
        *look.value = reply.value;
        if reply.count == UPGRADE && (left_readers || leaves()) {
            return Ok(Attempt::Busy(Some(Duration::ZERO)));
        }
        if reply.count == UPGRADE
            && let Reading::Ends(left) = self.reading(request, owner, look.read_end_ms).await
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
            self.undo_first(&[request], owner, sending).await?;
            return Err(Fault::Server(Error::new(
                ErrorKind::Protocol,
                "a fenced grant came without a token",
            )));
        }
        let replicated = match (request.ack, confirm) {
            (Some(ack), Some(confirm)) => {
                let requests = std::slice::from_ref(request);
                let grant = Unconfirmed { core: self, requests, owner, sending, is_ours: true };
                Some(self.confirm(grant, ack, confirm, look.deadline).await?)
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
        if !lease.is_valid(self.now_ms()) {
            self.undo_first(&[request], owner, sending).await?;
            return Ok(Attempt::TooLate);
        }
        Ok(Attempt::Won(lease))
    }

    /// While the keys of a lock are in two places, the hash alone tells that another owner holds it, and for how long (-1:
    /// without end). The scripts of read-write locks do without the rest in that case, and permits are no question of one key.
    async fn held_by_another(self: &Arc<Self>, request: &Request, owner: &Owner) -> Option<i64> {
        if !matches!(request.keys.kind, Kind::Lock | Kind::Fair) {
            return None;
        }
        let call = Call::new(&QUERY).key(&request.keys.key).text(owner.field());
        let reply = self.run(call).await.ok()?;
        match *reply.array()? {
            [Reply::Int(ttl_ms), Reply::Int(0)] if ttl_ms != -2 => Some(ttl_ms),
            _ => None,
        }
    }

    /// Gives grants back before the same owner asks again: on its way the undoing would meet, and remove, the next grant. A task
    /// that no longer waits for it leaves it to the background. If not all of it was answered, the owner must not ask again.
    pub(super) async fn undo_first(
        self: &Arc<Self>,
        requests: &[&Arc<Request>],
        owner: &Owner,
        sending: Sending,
    ) -> Result<(), Fault> {
        let granted = Certainty::Granted(sending);
        let undoing: Vec<_> =
            requests.iter().map(|request| self.undo_later(request, owner, granted)).collect();
        let mut certain = true;
        for undone in undoing {
            certain &= undone.await.unwrap_or(false);
        }
        if certain {
            return Ok(());
        }
        Err(Fault::Server(in_doubt("a grant came after its lease had ended")))
    }

    /// Sends one request. With its answer comes a way to ask the replicas for it, if they are to be asked.
    async fn ask(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        call: Call,
        asking: Asking,
    ) -> (Result<Reply, Fault>, Option<Confirm>) {
        let Asking { shared, .. } = asking;
        if request.ack.is_none() && !shared {
            self.keeper.touch();
            let flight = Flight::new(self, self.run(call), || {
                Some(Rest::Within(ABANDONED_TIME, Box::new(self.abandoned(request, owner, asking))))
            });
            return (flight.await, None);
        }
        let work = self.clone().ask_slowly(request.clone(), owner.clone(), call, shared);
        let flight = Flight::new(self, Box::pin(work), || {
            let after = self.abandoned(request, owner, asking);
            let unread = |outcome: Result<Answered, Fault>| outcome.map(|(reply, _)| reply);
            if request.ack.is_some() || owner.is_shared() {
                return Some(Rest::Then(Box::new(move |outcome| after(Ok(unread(outcome))))));
            }
            Some(Rest::Within(
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
        asking: Asking,
    ) -> impl FnOnce(Result<Raw, Work<Raw>>) + Send + 'static {
        let (core, request, owner) = (self.clone(), request.clone(), owner.clone());
        // The owner is granted nothing else until what becomes of this request is known and undone.
        let pending = self.owners.pending(&request.keys, &owner);
        move |outcome| match outcome {
            Ok(outcome) => {
                core.undo_unheard(&request, &owner, outcome, asking);
                drop(pending);
            }
            Err(work) => {
                drop(core.undo_later(&request, &owner, Certainty::MayArriveLater));
                core.keeper.handle().clone().spawn(async move {
                    // Until it is answered it may still be granted.
                    let outcome = work.await;
                    core.undo_unheard(&request, &owner, outcome, asking);
                    drop(pending);
                });
            }
        }
    }

    /// Undoes what the answer to an abandoned request tells of.
    fn undo_unheard(self: &Arc<Self>, request: &Arc<Request>, owner: &Owner, outcome: Raw, asking: Asking) {
        let reply = self.read(&ACQUIRE, &request.keys.key, outcome, owner.number());
        let certainty = match reply.and_then(|items| Asked::read(&items)) {
            // Nothing was granted, but a place in the queue may have been taken.
            Ok(reply) if reply.count <= 0 && asking.lines_up => Certainty::Arrived,
            Ok(reply) if reply.count <= 0 => return,
            // It was granted, and no task is there to take it.
            Ok(_) => Certainty::Granted(asking.sending),
            Err(Fault::NotSent(_) | Fault::Server(_)) => return,
            Err(Fault::Unknown(_)) => Certainty::MayArriveLater,
        };
        drop(self.undo_later(request, owner, certainty));
    }

    /// A request for an owner under which another process may hold, or one that replicas are to confirm.
    async fn ask_slowly(
        self: Arc<Self>,
        request: Arc<Request>,
        owner: Owner,
        acquire: Call,
        shared: bool,
    ) -> Result<Answered, Fault> {
        if !shared {
            return self.run_for(&request, acquire).await;
        }
        let answer =
            |count, value| Reply::Array([owner.number(), count, value].map(Reply::Int).into_iter().collect());
        for _ in 0..SHARED_TURNS_MAX {
            let (asked, confirm) = self.ask_once(&request, &owner, acquire.clone()).await?;
            if asked.count != 0 || asked.value != OWN_HOLD {
                return Ok((answer(asked.count, asked.value), confirm));
            }
            if !request.reentrant {
                return Err(Fault::Server(already_held()));
            }
            if !owner.is_shared() {
                // No other process can have it yet, so an earlier request of this one was granted. Its repeat counts nothing.
                let again = request.acquire_call(&owner, false, false, &self);
                let (asked, confirm) = self.ask_once(&request, &owner, again).await?;
                return Ok((answer(asked.count, asked.value), confirm));
            }
            // Another process holds, so this is a re-entry that it must see as one.
            let mut enter = request.recipe.enter(&request.keys, &owner, request.term.lease_ms);
            if request.fenced {
                // Whether the hold has a token, and which, is not known here.
                enter = enter.key(request.keys.token()).int(1);
            }
            let (entered, confirm) = self.ask_once(&request, &owner, enter).await?;
            if entered.count > 0 {
                return Ok((answer(entered.count, entered.value), confirm));
            }
            // It has been given back meanwhile.
        }
        Ok((answer(0, SHARED_PAUSE_MS), None))
    }

    async fn ask_once(
        self: &Arc<Self>,
        request: &Request,
        owner: &Owner,
        call: Call,
    ) -> Result<(Asked, Option<Confirm>), Fault> {
        let script = call.script;
        let (reply, confirm) = self.run_for(request, call).await?;
        let reply = self.read(script, &request.keys.key, Ok(reply), owner.number())?;
        Ok((Asked::read(&reply)?, confirm))
    }

    async fn run_for(&self, request: &Request, call: Call) -> Result<Answered, Fault> {
        self.keeper.touch();
        match request.ack {
            None => Ok((self.run(call).await?, None)),
            Some(ack) => {
                let (reply, confirm) = self.run_acked(call, ack.count, !ack.keep).await?;
                Ok((reply, Some(confirm)))
            }
        }
    }

    /// Asks the replicas for a grant of what one script has taken, which is of one term. Unless enough confirm it, or it is kept
    /// all the same, all of it is given back.
    pub(super) async fn confirm(
        self: &Arc<Self>,
        mut grant: Unconfirmed<'_>,
        ack: Replication,
        confirm: Confirm,
        deadline: &Deadline,
    ) -> Result<Confirmed, Fault> {
        // Dropping this future gives the grant back at once, whatever the replicas say later.
        let Unconfirmed { requests, owner, sending, .. } = grant;
        let lease_ms = requests.first().map_or(0, |request| request.term.lease_ms);
        let half_ms = u64::try_from(lease_ms / 2).unwrap_or(0);
        let mut within = ack.within.min(Duration::from_millis(half_ms));
        if let Some(left) = deadline.left(self) {
            within = within.min(left * 3 / 4);
        }
        self.keeper.touch();
        match confirm(within).await {
            Ok(replicas) if replicas.is_complete() || ack.keep => {
                grant.is_ours = false;
                Ok(Confirmed { count: ack.count, replicas })
            }
            Ok(replicas) => {
                grant.is_ours = false;
                let granted = Certainty::Granted(sending);
                let jobs = requests.iter().map(|request| self.undo_later(request, owner, granted));
                let jobs = join_all(jobs.collect::<Vec<_>>());
                let limit = self.keeper.sleep(self.config.response_timeout);
                let undone = tokio::select! {
                    biased;
                    done = jobs => done.into_iter().all(|done| done.unwrap_or(false)),
                    () = limit => false,
                };
                let shortfall = ack.shortfall(replicas, undone);
                // A request that gives it back and is not answered would end what the owner is granted next.
                Err(Fault::Server(if undone { shortfall } else { in_doubt(shortfall) }))
            }
            // Asking again would count one more. The server that granted it takes it back, unless another one has taken over.
            Err(Fault::Server(error)) if owner.is_shared() => Err(Fault::Server(error)),
            Err(fault) => {
                // The same owner asks again and so writes again, by which the replicas can be asked on any connection; or it
                // gives up, and what it may have is removed then. Undoing it now would meet its next grant. Another server may have
                // taken over, without the grant, so what is there under a shared owner may be another process's.
                grant.is_ours = false;
                Err(Fault::Unknown(fault.into_error()))
            }
        }
    }
}

/// Why an acquire ends whose owner must not ask again.
fn in_doubt(what: impl std::fmt::Display) -> Error {
    let message = format!("{what}; a request that gives it back was not answered");
    Error::new(ErrorKind::OwnerInDoubt, message).remedy("ask again, with a fresh owner")
}

/// How a request is sent, for undoing what nobody hears of.
#[derive(Debug, Clone, Copy)]
struct Asking {
    /// Another process may hold under the owner, or come to do so meanwhile.
    shared: bool,
    lines_up: bool,
    sending: Sending,
}

/// What became of a request, unread.
type Raw = Result<Reply, Fault>;

/// An answer, and how to ask the replicas for what it tells of.
type Answered = (Reply, Option<Confirm>);

/// What one look at the server is given, and brings back.
pub(super) struct Look<'a> {
    /// Whether the owner lines up on the server.
    pub(super) lines_up: bool,
    pub(super) recount: bool,
    pub(super) deadline: &'a Deadline,
    /// The last item of the answer.
    pub(super) value: &'a mut i64,
    /// When a read hold of the owner was to end that was seen first, by the server's clock.
    pub(super) read_end_ms: &'a mut Option<i64>,
}

/// A grant that replicas have not confirmed; dropping it gives it back.
pub(super) struct Unconfirmed<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) requests: &'a [Arc<Request>],
    pub(super) owner: &'a Owner,
    pub(super) sending: Sending,
    pub(super) is_ours: bool,
}

impl Drop for Unconfirmed<'_> {
    fn drop(&mut self) {
        if self.is_ours {
            self.core.undo_all(self.requests, self.owner, Certainty::Granted(self.sending));
        }
    }
}

/// The refusal of a write hold to an owner that has a read hold.
const UPGRADE: i64 = -2;

/// What an acquire is refused with for good.
fn refusal(count: i64) -> Error {
    match count {
        -1 => Error::new(ErrorKind::WrongLockKind, "the name is in use by a lock of another kind"),
        UPGRADE => Error::new(
            ErrorKind::UpgradeRefused,
            "the owner holds the read lock, and would wait for itself to give it up",
        )
        .remedy("release the read lock first; another owner may write before you then"),
        -3 => Error::new(ErrorKind::NotInitialised, "nobody has set permits"),
        _ => Error::new(ErrorKind::Protocol, format!("an acquire was refused with {count}")),
    }
}

impl Request {
    fn acquire_call(&self, owner: &Owner, recount: bool, first_only: bool, core: &Core) -> Call {
        let asks = Asks {
            waits: self.wait != Wait::No,
            recount,
            first_only,
            redisson_wait_ms: core.config.redisson_fair_wait.as_millis() as i64,
            publish: core.store.publish_command(),
        };
        self.recipe.ask(&self.keys, owner, self.term.lease_ms, self.fenced, asks)
    }
}

/// The reply of an acquire: a count above 0 is a grant with its token, 0 is busy with its TTL.
struct Asked {
    count: i64,
    value: i64,
}

impl Asked {
    fn read(items: &[i64]) -> Result<Asked, Fault> {
        match items {
            [_, count, value] => Ok(Asked { count: *count, value: *value }),
            _ => Err(Fault::Unknown(Error::new(
                ErrorKind::Protocol,
                "an acquire answered with the wrong number of items",
            ))),
        }
    }
}

pub(crate) fn already_held() -> Error {
    Error::new(ErrorKind::AlreadyHeld, "the owner holds the lock already, and it cannot be entered twice")
        .remedy("release it first, or use a reentrant lock")
}
