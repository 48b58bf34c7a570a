//! The one way of a script to the server: its request is numbered and noted, and its reply is read. What only asks (`query`) has no number;
//! subscribing and watching go to the store directly.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use smallvec::SmallVec;

use super::{Core, owner_claims::OwnerBlock, request_ids::RequestId};
use crate::{
    error::{Error, ErrorKind},
    replica_ack::ReplicaCount,
    scripts::Script,
    store::{AckedFuture, Call, Fault, Reply, RunFuture, protocol_error},
};

/// A reply of a few integers.
pub(crate) type Numbers = SmallVec<[i64; 4]>;

impl Core {
    /// Sends one call of a script and returns its reply. The call gets a number of its own (`request_ids.rs`), and it is noted whether the server
    /// answers (`outage.rs`). All its keys are declared where the server wants that (`declare.rs`). The server
    /// watches a key (`CLIENT TRACKING`) only until its next change, and does not report a change that was made over the keeper's own connection. So
    /// after a call that goes over that connection the key is watched anew (`watch_holds.rs`).
    pub(crate) fn run(
        &self,
        mut call: Call,
    ) -> impl Future<Output = Result<Reply, Fault>> + Send + Unpin + 'static + use<> {
        let keys = self.watch_ended_by(&call, self.keeper.calls_use_keeper_connection());
        let request_id = self.request_ids.assign(&mut call);
        let slot = self.slot_of(&call);
        let run = RequestId::awaited(
            request_id,
            self.noting_outage(
                slot,
                self.keeper.calls_use_keeper_connection(),
                call.script,
                self.run_with_declared_keys(call),
            ),
            |reply| reply,
        );
        self.watched_again_after(keys, run)
    }

    fn run_with_declared_keys(&self, call: Call) -> RunFuture {
        let Some(declared_keys_variant) = call.script.declared_keys_variant() else {
            return self.store.run(call);
        };
        let store = self.store.clone();
        Box::pin(self.key_declarer(declared_keys_variant).run(
            call,
            move |call| store.run(call),
            |reply| reply,
        ))
    }

    /// As [`run`](Self::run), over the connection of the background thread.
    pub(crate) fn run_as_keeper(&self, call: Call) -> RunFuture {
        let keys = self.watch_ended_by(&call, true);
        let run = self.run_as_keeper_unwatched(call);
        self.watched_again_after(keys, run).boxed()
    }

    /// The same for those that have the keys watched anew themselves.
    pub(super) fn run_as_keeper_unwatched(&self, mut call: Call) -> RunFuture {
        let request_id = self.request_ids.assign(&mut call);
        let slot = self.slot_of(&call);
        RequestId::awaited(
            request_id,
            self.noting_outage(slot, true, call.script, self.run_declared_as_keeper(call)),
            |reply| reply,
        )
        .boxed()
    }

    fn run_declared_as_keeper(&self, call: Call) -> RunFuture {
        let Some(declared_keys_variant) = call.script.declared_keys_variant() else {
            return self.store.run_as_keeper(call);
        };
        let store = self.store.clone();
        Box::pin(self.key_declarer(declared_keys_variant).run(
            call,
            move |call| store.run_as_keeper(call),
            |reply| reply,
        ))
    }

    /// As [`run`](Self::run), for calls that replicas are to confirm.
    pub(crate) fn run_acked(&self, mut call: Call, count: ReplicaCount, must: bool) -> AckedFuture {
        let keys = self.watch_ended_by(&call, self.keeper.calls_use_keeper_connection());
        let request_id = self.request_ids.assign(&mut call);
        let slot = self.slot_of(&call);
        let run = self.noting_outage(slot, false, call.script, self.run_declared_acked(call, count, must));
        let run = RequestId::awaited(request_id, run, |(reply, _)| reply);
        self.watched_again_after(keys, run).boxed()
    }

    fn run_declared_acked(&self, call: Call, count: ReplicaCount, must: bool) -> AckedFuture {
        let Some(declared_keys_variant) = call.script.declared_keys_variant() else {
            return self.store.run_acked(call, count, must);
        };
        let store = self.store.clone();
        let send = move |call| store.run_acked(call, count, must);
        Box::pin(self.key_declarer(declared_keys_variant).run(call, send, |(reply, _)| reply))
    }

    /// Runs a script that changes nothing, so that no watching ends by it.
    pub(crate) fn query(&self, call: Call) -> RunFuture {
        self.noting_outage(
            self.slot_of(&call),
            self.keeper.calls_use_keeper_connection(),
            call.script,
            self.store.run(call),
        )
        .boxed()
    }

    /// Notes whether the server answers, and tells the observer how it ended.
    fn noting_outage<T: Send + 'static>(
        &self,
        slot: u16,
        as_keeper: bool,
        script: &'static Script,
        run: BoxFuture<'static, Result<T, Fault>>,
    ) -> impl Future<Output = Result<T, Fault>> + Send + 'static + use<T> {
        self.outages.noting_outage(slot, as_keeper, self.observed_call(script, run))
    }

    fn slot_of(&self, call: &Call) -> u16 {
        call.keys.first().map_or(0, |key| self.store.slot(key))
    }

    /// The same at the server of one slot.
    pub(crate) fn query_in(&self, slot: u16, call: Call) -> RunFuture {
        self.noting_outage(
            slot,
            self.keeper.calls_use_keeper_connection(),
            call.script,
            self.store.run_at(slot, call),
        )
        .boxed()
    }

    /// The same over the connection of the background thread.
    pub(super) fn query_as_keeper(&self, call: Call) -> RunFuture {
        self.noting_outage(self.slot_of(&call), true, call.script, self.store.run_as_keeper(call)).boxed()
    }

    /// Runs a script whose reply begins with a number that we sent.
    pub(crate) async fn run_checked(
        self: &Arc<Self>,
        call: Call,
        number: i64,
        as_keeper: bool,
    ) -> Result<Numbers, Fault> {
        debug_assert!(call.numbered, "{}", call.script.name());
        let (script, key) = (call.script, call.keys.first().cloned());
        self.keeper.note_call();
        let run = if as_keeper { self.run_as_keeper(call) } else { self.run(call).boxed() };
        self.read(script, key.as_deref().unwrap_or_default(), run.await, number)
    }

    /// As [`run_checked`](Self::run_checked), on the keeper's connection, for renewals and looks. The caller has the keys watched again,
    /// where the script has ended that.
    pub(crate) async fn run_unwatched(self: &Arc<Self>, call: Call, number: i64) -> Result<Numbers, Fault> {
        debug_assert!(call.numbered, "{}", call.script.name());
        let (script, key) = (call.script, call.keys.first().cloned());
        self.keeper.note_call();
        let run = self.run_as_keeper_unwatched(call);
        self.read(script, key.as_deref().unwrap_or_default(), run.await, number)
    }

    /// As [`run_checked`](Self::run_checked), for a script that may take a hold of its owner away. While its block stands, the owner is granted
    /// nothing; the call is made and sent when no attempt of the owner is under way.
    pub(crate) async fn run_taking_away(
        self: &Arc<Self>,
        call: impl FnOnce() -> Call,
        number: i64,
        as_keeper: bool,
        block: &OwnerBlock,
    ) -> Result<Numbers, Fault> {
        self.until_no_attempt_asks(block).await;
        self.run_taking_away_now(call(), number, as_keeper, block).await
    }

    /// As [`run_taking_away`](Self::run_taking_away), for an attempt that undoes what it may have been granted itself.
    pub(crate) async fn run_taking_away_now(
        self: &Arc<Self>,
        call: Call,
        number: i64,
        as_keeper: bool,
        block: &OwnerBlock,
    ) -> Result<Numbers, Fault> {
        let sent = block.sent();
        let reply = self.run_checked(call, number, as_keeper).await;
        sent.answered(&reply);
        reply
    }

    /// Waits until no attempt of the owner asks, at most for the response timeout: an owner can wait for a lock under which it has another
    /// hold, taken over from elsewhere. After that the request goes first, and the attempt does not trust what it is granted.
    pub(crate) async fn until_no_attempt_asks(&self, block: &OwnerBlock) {
        if !block.no_attempt_asks() {
            tokio::select! {
                biased;
                () = block.until_no_attempt_asks() => {}
                () = self.keeper.sleep(self.config.response_timeout) => block.overtake_attempt(),
            }
        }
    }

    /// Reads a reply that must begin with a number that we sent; any other number means that replies and requests have
    /// lost step, so the connections to the server that has the key are dropped, and the outcome counts as unknown
    /// (decision D16).
    pub(crate) fn read(
        &self,
        script: &Script,
        key: &[u8],
        outcome: Result<Reply, Fault>,
        number: i64,
    ) -> Result<Numbers, Fault> {
        let reply = outcome?;
        match numbers(&reply) {
            Some(items) if items.first() == Some(&number) => Ok(items),
            Some(items) if items.len() > 1 => {
                let script = script.name();
                tracing::error!(
                    script,
                    expected = number,
                    got = items[0],
                    "a reply belongs to another request; connections are dropped"
                );
                self.store.drop_connections(key);
                Err(Fault::Unknown(Error::new(ErrorKind::Protocol, "the reply belonged to another request")))
            }
            _ => {
                self.store.drop_connections(key);
                Err(Fault::Unknown(protocol_error(script.name(), &reply)))
            }
        }
    }
}

fn numbers(reply: &Reply) -> Option<Numbers> {
    reply.array()?.iter().map(Reply::int).collect()
}
