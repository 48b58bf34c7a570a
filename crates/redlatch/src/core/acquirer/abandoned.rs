//! What becomes of a request whose task goes before the answer has come: a grant that it brings is undone.

use std::{sync::Arc, time::Duration};

use super::{AcquireReply, SendContext};
use crate::{
    core::{
        Core, Request,
        flight::{AfterDrop, Flight, Work},
        replica_confirm::Answered,
        undo::RequestFate,
    },
    owner::Owner,
    scripts::ACQUIRE,
    store::{Call, Confirm, Fault, Reply},
};

/// How long the answer to a request is waited for whose task has gone. After that, what it may have left is removed without the answer.
const ABANDONED_TIME: Duration = Duration::from_millis(250);

impl Core {
    /// Sends a request whose grant replicas are to confirm, or whose owner may hold already. With the answer comes a way to ask the replicas.
    pub(super) async fn send_rare_acquire(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        call: Call,
        context: SendContext,
    ) -> (Result<Reply, Fault>, Option<Confirm>) {
        let sending = call.sending.clone();
        let work =
            self.clone().send_acquire_checked(request.clone(), owner.clone(), call, context.refuse_if_owned);
        let flight = Flight::new(self, Box::pin(work), || {
            if sending.is_some_and(|sending| sending.give_up()) {
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

    /// The keeper waits for the answer in the place of the task, and for no longer than that is worth.
    pub(super) fn when_abandoned(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        context: SendContext,
    ) -> AfterDrop<Raw> {
        AfterDrop::Within(ABANDONED_TIME, Box::new(self.abandoned(request, owner, context)))
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
        let reply = self.read(&ACQUIRE, &request.keys.key, outcome, owner.request_number_placeholder());
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
}

/// What became of a request, unread.
pub(super) type Raw = Result<Reply, Fault>;
