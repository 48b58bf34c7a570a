//! Acquiring: the choice of lane, and one attempt of the contest.
//!
//! Every attempt of one acquire uses the same owner, and the script grants an owner at most once however often it
//! asks. That makes it safe to ask again after an unknown outcome: either the earlier request is found to have been
//! granted, or this one is (`docs/protocol.md`, acquire).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    Core, Grant, Request, Wait,
    contest::{Attempt, Contender},
    flight::Flight,
    lane::{Enter, Handoff},
    lease::Lease,
    wait::{Deadline, Place},
};
use crate::{
    error::{Error, ErrorKind},
    owner::Owner,
    scripts::ACQUIRE,
    store::{Call, Fault, Reply},
};

/// The owner of one acquire; sees to it that nothing stays behind when an outcome was unknown and no grant followed.
struct Asker {
    core: Arc<Core>,
    request: Arc<Request>,
    owner: Owner,
    tainted: bool,
    granted: bool,
}

impl Drop for Asker {
    fn drop(&mut self) {
        if self.tainted && !self.granted {
            self.core.undo_later(&self.request, &self.owner);
        }
    }
}

impl Contender for Asker {
    type Prize = Arc<Lease>;

    fn channel(&self) -> Arc<[u8]> {
        self.request.recipe.channel(&self.request.keys, &self.owner)
    }

    async fn attempt(&mut self) -> Result<Attempt<Arc<Lease>>, Fault> {
        self.core.attempt(&self.request, &self.owner).await
    }

    fn outcome_unknown(&mut self) {
        self.tainted = true;
    }
}

impl Core {
    /// Acquires a hold, waiting as the request says. `None` means busy.
    pub(crate) async fn acquire(self: &Arc<Self>, request: Request) -> Result<Option<Grant>, Error> {
        // Noted before looking whether the client is open, so that shutting down waits for whoever found it so.
        let _under_way = self.keeper.begin();
        self.check_open()?;
        request.keys.check()?;
        let request = Arc::new(request);
        let deadline = Deadline::new(self, request.wait);
        let outcome = self.acquire_in_lane(&request, &deadline).await;
        outcome.map_err(|error| {
            let error = error.on(&request.keys.name);
            match &request.owner {
                Some(owner) => error.by(owner),
                None => error,
            }
        })
    }

    async fn acquire_in_lane(
        self: &Arc<Self>,
        request: &Arc<Request>,
        deadline: &Deadline,
    ) -> Result<Option<Grant>, Error> {
        let waits = request.wait != Wait::No;
        let now_ms = self.now_ms();
        match self.lanes.enter(
            &request.keys,
            request.owner.as_ref(),
            request.term,
            request.fenced,
            waits,
            now_ms,
        ) {
            Enter::Go => self.contend(request, deadline, Place::lead(self, &request.keys), false).await,
            Enter::Aside => self.contend(request, deadline, Place::aside(self, &request.keys), false).await,
            Enter::Busy => Ok(None),
            Enter::Again(lease) => self.reenter(&lease, request.term).await.map(Some),
            Enter::Queue(handoff) => {
                let mut place = Place::queued(self, &request.keys, handoff);
                // Who does not wait is in line only for a release that is on its way.
                let moment = Deadline::new(self, Wait::AtMost(self.config.response_timeout));
                match place.handed(if waits { deadline } else { &moment }).await? {
                    None => Ok(None),
                    Some(Handoff::Lease(lease)) => {
                        Ok(Some(Grant { renewed: lease.holds().renewed > 0, lease }))
                    }
                    Some(Handoff::Contend { after_others }) => {
                        self.contend(request, deadline, Place::lead(self, &request.keys), after_others).await
                    }
                }
            }
        }
    }

    /// Contends at the server until granted, refused, or out of time.
    async fn contend(
        self: &Arc<Self>,
        request: &Arc<Request>,
        deadline: &Deadline,
        place: Place,
        after_others: bool,
    ) -> Result<Option<Grant>, Error> {
        let owner = request.owner.clone().unwrap_or_else(|| self.fresh_owner());
        let mut asker =
            Asker { core: self.clone(), request: request.clone(), owner, tainted: false, granted: false };
        let Some(lease) = self.contest(&mut asker, request.wait, deadline, after_others).await? else {
            return Ok(None);
        };
        asker.granted = true;
        lease.tainted.fetch_or(asker.tainted, Ordering::Relaxed);
        place.granted(&lease);
        if self.is_closed() {
            self.drop_hold(&lease, request.term.renewed);
            return Err(self.closed_error());
        }
        Ok(Some(Grant { lease, renewed: request.term.renewed }))
    }

    /// Asks the server once.
    async fn attempt(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
    ) -> Result<Attempt<Arc<Lease>>, Fault> {
        if owner.is_exposed() && self.lanes.is_leaving(&request.keys, owner) {
            // The owner's earlier release is still on its way and would take this hold with it.
            return Ok(Attempt::Busy(Some(Duration::ZERO)));
        }
        let sent_ms = self.now_ms();
        let work = if owner.is_foreign() {
            Box::pin(self.clone().ask_as_another(request.clone(), owner.clone()))
        } else {
            self.keeper.touch();
            self.store.run(request.acquire_call(owner))
        };
        let flight = Flight::new(self, work, || {
            let (core, request, owner) = (self.clone(), request.clone(), owner.clone());
            let marked = owner.is_exposed();
            if marked {
                core.lanes.leaving(&request.keys, &owner);
            }
            Some(Box::new(move |outcome| {
                match core.read(&ACQUIRE, outcome, owner.number()).and_then(|items| Asked::read(&items)) {
                    // Nothing was granted.
                    Ok(reply) if reply.count <= 0 => {}
                    Err(Fault::NotSent(_) | Fault::Server(_)) => {}
                    // It was granted, or may have been, and nobody is there to take it.
                    Ok(_) | Err(Fault::Unknown(_)) => core.undo_later(&request, &owner),
                }
                if marked {
                    core.lanes.left(&request.keys, &owner);
                }
            }))
        });
        let outcome = flight.await;
        let reply = Asked::read(&self.read(&ACQUIRE, outcome, owner.number())?)?;
        if reply.count < 0 {
            return Err(Fault::Server(Error::new(
                ErrorKind::WrongLockKind,
                "the name is in use by a lock of another kind",
            )));
        }
        if reply.count == 0 {
            return Ok(Attempt::Busy(u64::try_from(reply.value).ok().map(Duration::from_millis)));
        }
        let token = (request.fenced && reply.value > 0).then_some(reply.value as u64);
        let lease = Arc::new(Lease::new(
            request.keys.clone(),
            owner.clone(),
            request.recipe,
            token,
            request.term,
            sent_ms,
        ));
        lease.change_holds(|holds| holds.count = 1);
        if !lease.is_valid(self.now_ms()) {
            self.undo_later(request, owner);
            return Ok(Attempt::TooLate);
        }
        Ok(Attempt::Won(lease))
    }

    /// Asks for an owner under which another process may hold: then this is a re-entry that it must see as one.
    async fn ask_as_another(self: Arc<Self>, request: Arc<Request>, owner: Owner) -> Result<Reply, Fault> {
        let call = request.recipe.enter(&request.keys, &owner, request.term.lease_ms, 0);
        let reply = Asked::read(&self.run_checked(call, owner.number(), false).await?)?;
        if reply.count > 0 {
            return Ok(Reply::Array(vec![
                Reply::Int(owner.number()),
                Reply::Int(reply.count),
                Reply::Int(0),
            ]));
        }
        self.store.run(request.acquire_call(&owner)).await
    }
}

impl Request {
    fn acquire_call(&self, owner: &Owner) -> Call {
        self.recipe.acquire(&self.keys, owner, self.term.lease_ms, self.fenced)
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
