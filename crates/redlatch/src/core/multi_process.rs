//! Asking for an owner under which another process may hold: it is entered there, and not granted anew.

use std::sync::Arc;

use super::{Core, Request, acquirer::AcquireReply, replica_confirm::Answered};
use crate::{
    error::{Error, ErrorKind},
    owner::Owner,
    recipes::ALREADY_OWNED,
    store::{Call, Confirm, Fault, Reply},
};

/// How often an owner of several processes finds its other holds now there and now gone, before it counts as busy.
const ENTER_ROUNDS_MAX: u32 = 4;
/// For how long it counts as busy then.
const ENTER_PAUSE_MS: i64 = 10;

impl Core {
    /// A request for an owner under which another process may hold, or one that replicas are to confirm.
    pub(super) async fn send_acquire_checked(
        self: Arc<Self>,
        request: Arc<Request>,
        owner: Owner,
        acquire: Call,
        refuse_if_owned: bool,
    ) -> Result<Answered, Fault> {
        if !refuse_if_owned {
            return self.run_maybe_acked(&request, acquire).await;
        }
        let answer = |count, value| {
            Reply::Array(
                [owner.request_number_placeholder(), count, value].map(Reply::Int).into_iter().collect(),
            )
        };
        for _ in 0..ENTER_ROUNDS_MAX {
            let (asked, confirm) = self.send_one(&request, &owner, acquire.clone()).await?;
            if asked.count != 0 || asked.value != ALREADY_OWNED {
                return Ok((answer(asked.count, asked.value), confirm));
            }
            if !request.reentrant {
                return Err(Fault::Server(already_held()));
            }
            if !owner.is_multi_process() {
                // No other process can have it yet, so an earlier request of this one was granted. Its repeat counts nothing.
                let again = request.acquire_call(&owner, false, false, &self);
                let (asked, confirm) = self.send_one(&request, &owner, again).await?;
                return Ok((answer(asked.count, asked.value), confirm));
            }
            // Another process holds, so this is a re-entry that it must see as one.
            let enter = request.recipe.enter(&request.keys, &owner, request.lease_term.lease_ms);
            let mut enter = enter.after_an_answer();
            if request.fenced {
                // Whether the hold has a token, and which, is not known here.
                enter = enter.key(request.keys.token()).int(1);
            }
            let (entered, confirm) = self.send_one(&request, &owner, enter).await?;
            if entered.count > 0 {
                return Ok((answer(entered.count, entered.value), confirm));
            }
            // It has been given back meanwhile.
        }
        Ok((answer(0, ENTER_PAUSE_MS), None))
    }

    async fn send_one(
        self: &Arc<Self>,
        request: &Request,
        owner: &Owner,
        call: Call,
    ) -> Result<(AcquireReply, Option<Confirm>), Fault> {
        let script = call.script;
        let (reply, confirm) = self.run_maybe_acked(request, call).await?;
        let reply = self.read(script, &request.keys.key, Ok(reply), owner.request_number_placeholder())?;
        Ok((AcquireReply::read(&reply)?, confirm))
    }
}

pub(crate) fn already_held() -> Error {
    Error::new(ErrorKind::AlreadyHeld, "the owner holds the lock already, and it cannot be entered twice")
        .remedy("release it first, or use a reentrant lock")
}
