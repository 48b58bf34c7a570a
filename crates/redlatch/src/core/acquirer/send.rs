//! One request of an acquire: how it is sent, and what becomes of a grant whose task has gone.

use std::{sync::Arc, time::Duration};

use super::AcquireReply;
use crate::{
    core::{
        Core, Request,
        flight::{AfterDrop, Flight, Work},
        lease::SentAt,
        replica_confirm::Answered,
        undo::RequestFate,
    },
    keys::LaneKind,
    owner::Owner,
    scripts::{ACQUIRE, QUERY},
    store::{Call, Confirm, Fault, Reply},
};

/// How long the answer to a request is waited for whose task has gone. After that, what it may have left is removed without the answer.
const ABANDONED_TIME: Duration = Duration::from_millis(250);

impl Core {
    /// Sends one request. If its task goes before the answer has come, the keeper waits for that and undoes the grant. With the answer comes a way to ask the replicas for it, if they are to be asked.
    pub(super) async fn send_acquire(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        call: Call,
        context: SendContext,
    ) -> (Result<Reply, Fault>, Option<Confirm>) {
        let SendContext { may_hold_already, .. } = context;
        let sending = call.sending.clone();
        let is_given_up = move || sending.is_some_and(|sending| sending.give_up());
        if request.ack.is_none() && !may_hold_already {
            self.keeper.watch_connections();
            let flight = Flight::new(self, self.run(call), || {
                if is_given_up() {
                    return Some(AfterDrop::NotSent);
                }
                Some(AfterDrop::Within(ABANDONED_TIME, Box::new(self.abandoned(request, owner, context))))
            });
            return (flight.await, None);
        }
        let work = self.clone().send_acquire_checked(request.clone(), owner.clone(), call, may_hold_already);
        let flight = Flight::new(self, Box::pin(work), || {
            if is_given_up() {
                return Some(AfterDrop::NotSent);
            }
            let after = self.abandoned(request, owner, context);
            let unread = |outcome: Result<Answered, Fault>| outcome.map(|(reply, _)| reply);
            if request.ack.is_some() || owner.is_multi_process() {
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
        let block = self.owners.block(&request.keys, &owner);
        move |outcome| match outcome {
            Ok(outcome) => {
                core.undo_abandoned(&request, &owner, outcome, context);
                drop(block);
            }
            Err(work) => {
                drop(core.undo_later(&request, &owner, RequestFate::MayArriveLater));
                core.keeper.handle().clone().spawn(async move {
                    // Until it is answered it may still be granted.
                    let outcome = work.await;
                    core.undo_abandoned(&request, &owner, outcome, context);
                    drop(block);
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
        let fate = match reply.and_then(|items| AcquireReply::read(&items)) {
            // Nothing was granted, but a place in the queue may have been taken.
            Ok(reply) if reply.count <= 0 && context.queues_at_server => RequestFate::AnsweredWithoutGrant,
            Ok(reply) if reply.count <= 0 => return,
            // It was granted, and no task is there to take it.
            Ok(_) => RequestFate::Granted(context.sent_at),
            Err(Fault::NotSent(_) | Fault::Server(_)) => return,
            Err(Fault::Unknown(_)) => RequestFate::MayArriveLater,
        };
        drop(self.undo_later(request, owner, fate));
    }

    /// While the keys of a lock are in two places, the hash alone tells that another owner holds it, and for how long (-1:
    /// without end). Plain and fair locks only: the scripts of read-write locks get by on the hash themselves, and permits need two keys.
    pub(super) async fn held_by_another(self: &Arc<Self>, request: &Request, owner: &Owner) -> Option<i64> {
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
pub(super) struct SendContext {
    /// Another process may hold under the owner, or come to do so meanwhile.
    pub(super) may_hold_already: bool,
    pub(super) queues_at_server: bool,
    pub(super) sent_at: SentAt,
}

/// What became of a request, unread.
type Raw = Result<Reply, Fault>;
