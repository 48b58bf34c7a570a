//! Several locks in one request: all or none are taken, and all are given back.
//!
//! Each of them has a lane and a lease of its own, as if it had been taken alone. Only the traffic is shared.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    Core, Grant, Request,
    acquire::LanePlace,
    contest::{Attempt, Contender},
    flight::{AfterDrop, Flight, OnAbandon},
    lanes::JoinStep,
    lease::{HeldLease, SentAt},
    owner_claims::{AttemptMode, OwnerBlock, OwnerClaim},
    presence::Waiting,
    release::{ReleaseMode, ReleaseStep, Unlocked, expected_holds, release_outcome},
    replica_confirm::Unconfirmed,
    request::{GrantPath, all_noted},
    undo::RequestFate,
    wait::WaitDeadline,
};
use crate::{
    error::{Error, ErrorKind},
    observe::Outcome,
    owner::Owner,
    recipes::{ExpectedHolds, LeaseTerm},
    scripts::{ACQUIRE_ALL, RELEASE_ALL},
    store::{Arg, Call, Confirm, Fault, Reply},
};

/// What became of asking for several locks at once.
pub(crate) enum Batch {
    /// All are held.
    Taken(Vec<Grant>),
    /// None is: this one is busy.
    Busy(usize),
    /// Nothing was asked: a task of this process has to be entered or waited for, which each lock does by itself.
    OneByOne,
}

/// The owner of one such request; sees to it that nothing stays behind when no grant followed.
struct Group<'a> {
    core: &'a Arc<Core>,
    requests: &'a [Arc<Request>],
    owner: Owner,
    deadline: &'a WaitDeadline,
    outcome_unknown: bool,
    granted: bool,
}

enum SetGain {
    All(Vec<Arc<HeldLease>>),
    Busy(usize),
}

impl Contender for Group<'_> {
    type Gain = SetGain;

    fn key(&self) -> &[u8] {
        &self.requests[0].keys.key
    }

    fn channel(&self) -> Option<Arc<[u8]>> {
        None
    }

    fn key_to_watch(&self) -> Option<Arc<[u8]>> {
        None
    }

    fn waiting(&self, since_ms: u64) -> Vec<Waiting> {
        let of = |request: &Arc<Request>| Waiting::here(request.keys.subject(), Some(&self.owner), since_ms);
        self.requests.iter().map(of).collect()
    }

    async fn attempt(&mut self) -> Result<Attempt<SetGain>, Fault> {
        self.core.ask_for_all(self.requests, &self.owner, self.deadline).await
    }

    fn mark_outcome_unknown(&mut self) {
        self.outcome_unknown = true;
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        if self.outcome_unknown && !self.granted {
            self.core.undo_all(self.requests, &self.owner, RequestFate::MayArriveLater);
        }
    }
}

/// A release that was begun: whether it lane_waits the lane, and the block of its owner.
struct Ending {
    at: usize,
    lease: Arc<HeldLease>,
    lane_waits: bool,
    block: OwnerBlock,
}

type Release = (usize, Result<Unlocked, Error>);

impl Core {
    /// Asks once for all locks of these requests, which differ in nothing but the name and do not wait.
    pub(crate) async fn acquire_all(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        deadline: &WaitDeadline,
    ) -> Result<Batch, Error> {
        let began = self.is_observed().then(Instant::now);
        let batch = self.acquire_all_unobserved(requests, deadline).await;
        if let (Some(began), Ok(batch)) = (began, &batch) {
            let of = |request: &Arc<Request>, outcome| {
                self.acquired_at_once(request.keys.subject(), began.elapsed(), outcome)
            };
            match batch {
                Batch::Taken(_) => requests.iter().for_each(|request| of(request, Outcome::Granted)),
                Batch::Busy(at) => of(&requests[*at], Outcome::Busy),
                // They tell for themselves.
                Batch::OneByOne => {}
            }
        }
        batch
    }

    async fn acquire_all_unobserved(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        deadline: &WaitDeadline,
    ) -> Result<Batch, Error> {
        let _under_way = self.keeper.hold_off_shutdown();
        self.check_open()?;
        let Some(first) = requests.first() else { return Ok(Batch::Taken(Vec::new())) };
        let owner = first.owner.clone().unwrap_or_else(|| self.fresh_owner());
        // Whether another process holds under it is asked for each lock.
        if owner.is_multi_process() {
            return Ok(Batch::OneByOne);
        }
        let now_ms = self.now_ms();
        // Dropped last: the claim on the owner ends after all else that is done here for it.
        let mut claims = Vec::new();
        let mut places = Vec::with_capacity(requests.len());
        for (at, request) in requests.iter().enumerate() {
            let keys = &request.keys;
            keys.check()?;
            if first.owner.is_some() {
                match self.owners.try_claim(keys, &owner, AttemptMode::Once) {
                    Ok(claim) => claims.push(claim),
                    Err(_) => return Ok(Batch::OneByOne),
                }
            }
            if self.check_owner_holds_no_other_kind(request, claims.last()).is_err() {
                return Ok(Batch::OneByOne);
            }
            match self.lanes.join(request, claims.last(), now_ms)? {
                JoinStep::Lead => places.push(LanePlace::lead(self, request)),
                JoinStep::AskForItself => places.push(LanePlace::asks_for_itself(self, keys)),
                JoinStep::Busy => return Ok(Batch::Busy(at)),
                JoinStep::Reenter(_) => return Ok(Batch::OneByOne),
                JoinStep::OwnerBusy | JoinStep::OwnerBusyNoWait => {
                    self.busy_or_outage::<()>(&keys.key, deadline)
                        .await
                        .map_err(|error| error.on(&keys.name))?;
                    return Ok(Batch::Busy(at));
                }
                JoinStep::Queue(handle) => {
                    drop(LanePlace::queued(self, handle));
                    return Ok(Batch::OneByOne);
                }
            }
        }
        let mut group =
            Group { core: self, requests, owner, deadline, outcome_unknown: false, granted: false };
        let prize = all_noted(requests, pin!(self.contest(&mut group, first.wait, deadline, false))).await;
        let leases = match prize.map_err(|error| error.on(&first.keys.name))? {
            Some(SetGain::All(leases)) => leases,
            Some(SetGain::Busy(at)) => return Ok(Batch::Busy(at)),
            None => return Ok(Batch::Busy(0)),
        };
        group.granted = true;
        leases.iter().for_each(|lease| lease.note_task());
        let mut taken = Ok(());
        for (place, lease) in places.into_iter().zip(&leases) {
            lease.outcome_unknown.fetch_or(group.outcome_unknown, Ordering::Relaxed);
            taken = taken.and(place.granted(lease));
        }
        let lease_term = first.lease_term;
        if claims.iter().any(OwnerClaim::is_disturbed) {
            // Some of them may be gone. They are given back, and asked for one by one when that is through.
            claims.iter().for_each(OwnerClaim::pause);
            leases.iter().for_each(|lease| self.release_in_background(lease, lease_term));
            return Ok(Batch::OneByOne);
        }
        if let Err(closed) = taken {
            leases.iter().for_each(|lease| self.release_in_background(lease, lease_term));
            return Err(closed);
        }
        Ok(Batch::Taken(
            leases.into_iter().map(|lease| Grant { lease, lease_term, path: GrantPath::Server }).collect(),
        ))
    }

    /// Asks the server once.
    async fn ask_for_all(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        owner: &Owner,
        deadline: &WaitDeadline,
    ) -> Result<Attempt<SetGain>, Fault> {
        let first = &requests[0];
        let sent_at = self.sent_at(&first.keys);
        let mut call =
            requests.iter().fold(Call::new(&ACQUIRE_ALL), |call, request| call.key(&request.keys.key));
        if first.fenced {
            call = requests.iter().fold(call, |call, request| call.key(request.keys.token()));
        }
        let call = call
            .request_number(owner.request_number_placeholder())
            .text(owner.field())
            .int(first.lease_term.lease_ms)
            .flag(first.fenced);
        self.keeper.note_call();
        let (outcome, confirm) = match first.ack {
            None => {
                let flight = Flight::new(self, self.run(call), || {
                    Some(AfterDrop::Then(Box::new(self.all_abandoned(requests, owner, sent_at))))
                });
                (flight.await, None)
            }
            Some(ack) => {
                let flight = Flight::new(self, self.run_acked(call, ack.count, !ack.keep), || {
                    let after = self.all_abandoned(requests, owner, sent_at);
                    let after: OnAbandon<Result<(Reply, Confirm), Fault>> =
                        Some(AfterDrop::Then(Box::new(move |outcome| {
                            after(outcome.map(|(reply, _)| reply))
                        })));
                    after
                });
                match flight.await {
                    Ok((reply, confirm)) => (Ok(reply), Some((ack, confirm))),
                    Err(fault) => (Err(fault), None),
                }
            }
        };
        let reply = self.read(&ACQUIRE_ALL, &first.keys.key, outcome, owner.request_number_placeholder())?;
        let tokens = match reply[..] {
            [_, 0, which, ttl_ms] if (1..=requests.len() as i64).contains(&which) => {
                let at = which as usize - 1;
                tracing::debug!(lock = %requests[at].keys.name, ttl_ms, "one of several locks is busy");
                return Ok(Attempt::Won(SetGain::Busy(at)));
            }
            [_, -1, which, _] if (1..=requests.len() as i64).contains(&which) => {
                let error =
                    Error::new(ErrorKind::WrongLockKind, "the name is in use by a lock of another kind");
                return Err(Fault::Server(error.on(&requests[which as usize - 1].keys.name)));
            }
            [_, 1, ref tokens @ ..] if tokens.len() == if first.fenced { requests.len() } else { 0 } => {
                tokens
            }
            _ => {
                return Err(Fault::Unknown(Error::new(
                    ErrorKind::Protocol,
                    "an acquire of several locks answered nonsense",
                )));
            }
        };
        let replicated = match confirm {
            Some((ack, confirm)) => {
                let grant = Unconfirmed { core: self, requests, owner, sent_at, is_ours: true };
                Some(self.confirm(grant, ack, confirm, deadline).await?)
            }
            None => None,
        };
        let leases = requests.iter().enumerate().map(|(at, request)| {
            let token = tokens.get(at).and_then(|token| u64::try_from(*token).ok());
            let (keys, lease_term) = (request.keys.clone(), request.lease_term);
            let lease = HeldLease::new(keys, owner.clone(), request.recipe, token, lease_term, sent_at);
            lease.note_replicas(replicated);
            Arc::new(lease)
        });
        let leases: Vec<_> = leases.collect();
        if leases.iter().any(|lease| !lease.is_valid(self.now_ms())) {
            self.undo_and_wait(&requests.iter().collect::<Vec<_>>(), owner, sent_at).await?;
            return Ok(Attempt::TooLate);
        }
        Ok(Attempt::Won(SetGain::All(leases)))
    }

    /// What is done with the answer of a request for several locks that nobody waits for any more.
    fn all_abandoned(
        self: &Arc<Self>,
        requests: &[Arc<Request>],
        owner: &Owner,
        sent_at: SentAt,
    ) -> impl FnOnce(Result<Reply, Fault>) + Send + 'static {
        let (core, requests, owner) = (self.clone(), requests.to_vec(), owner.clone());
        // The owner is granted nothing else until what becomes of this request is known and undone.
        let block: Vec<_> = requests.iter().map(|request| self.owners.block(&request.keys, &owner)).collect();
        move |outcome| {
            match core.read(&ACQUIRE_ALL, &requests[0].keys.key, outcome, owner.request_number_placeholder())
            {
                Ok(reply) if reply.get(1).is_some_and(|count| *count <= 0) => {}
                Err(Fault::NotSent(_) | Fault::Server(_)) => {}
                // They were granted, or may have been, and nobody is there to take them.
                Ok(_) => core.undo_all(&requests, &owner, RequestFate::Granted(sent_at)),
                Err(Fault::Unknown(_)) => core.undo_all(&requests, &owner, RequestFate::MayArriveLater),
            }
            drop(block);
        }
    }

    pub(super) fn undo_all(self: &Arc<Self>, requests: &[Arc<Request>], owner: &Owner, fate: RequestFate) {
        for request in requests {
            drop(self.undo_later(request, owner, fate));
        }
    }

    /// Gives several holds back, in one request as far as that is possible; the outcomes come in the same order. Cancelling
    /// the future does not cancel the releases.
    pub(crate) fn unlock_all(
        self: &Arc<Self>,
        holds: Vec<(Arc<HeldLease>, LeaseTerm)>,
    ) -> impl Future<Output = Vec<Result<Unlocked, Error>>> + Send {
        let count = holds.len();
        // It begins at once, because a `select!` may poll none of its branches.
        let work = self.run_on_keeper(self.clone().give_back_all(holds), |_| {});
        async move { work.outcome().await.unwrap_or_else(|error| vec![Err(error); count]) }
    }

    /// The same without waiting for it: for guards that are dropped.
    pub(crate) fn drop_holds(self: &Arc<Self>, holds: Vec<(Arc<HeldLease>, LeaseTerm)>) {
        let work = self.clone().give_back_all(holds);
        self.keeper.spawn(async move {
            for error in work.await.into_iter().filter_map(Result::err) {
                tracing::warn!(%error, "a dropped lock could not be released; its lease ends it");
            }
        });
    }

    /// Renewal ends, and tasks of this process have what they wait for, when this returns; the future does the rest.
    fn give_back_all(
        self: Arc<Self>,
        holds: Vec<(Arc<HeldLease>, LeaseTerm)>,
    ) -> impl Future<Output = Vec<Result<Unlocked, Error>>> + Send {
        let count = holds.len();
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        for (at, (lease, lease_term)) in holds.into_iter().enumerate() {
            let step = self.release_locally(&lease, lease_term);
            // Not before: until the last guard has gone, it can be entered.
            let simple = lease.recipe.batches()
                && !lease.was_reentered()
                && !lease.outcome_unknown.load(Ordering::Relaxed)
                && !lease.owner.is_multi_process();
            match step {
                ReleaseStep::Release { lane_waits, block } if simple && block.no_attempt_asks() => {
                    together.push(Ending { at, lease, lane_waits, block })
                }
                step => {
                    let work = self.clone().finish_release(lease.clone(), step);
                    alone.push((at, lease, work));
                }
            }
        }
        async move {
            let mut groups: Vec<Vec<Ending>> = Vec::new();
            for ending in together {
                let slot = |ending: &Ending| self.store.slot(&ending.lease.keys.key);
                let fits = |group: &&mut Vec<Ending>| {
                    group.first().is_some_and(|first| slot(first) == slot(&ending))
                };
                match groups.iter_mut().find(fits) {
                    Some(group) => group.push(ending),
                    None => groups.push(vec![ending]),
                }
            }
            let groups = join_all(groups.into_iter().map(|group| self.release_group(group)));
            let alone = join_all(
                alone
                    .into_iter()
                    .map(async |(at, lease, work)| (at, self.with_loss_reason(&lease, work.await).await)),
            );
            let (groups, alone) = futures_util::future::join(groups, alone).await;
            let mut outcomes: Vec<_> = groups.into_iter().flatten().chain(alone).collect();
            outcomes.sort_unstable_by_key(|(at, _)| *at);
            debug_assert_eq!(outcomes.len(), count);
            outcomes.into_iter().map(|(_, outcome)| outcome).collect()
        }
    }

    async fn release_group(self: &Arc<Self>, group: Vec<Ending>) -> Vec<Release> {
        let number = self.fresh_number();
        let call =
            group.iter().fold(Call::new(&RELEASE_ALL), |call, ending| call.key(&ending.lease.keys.key));
        let mut call = call.request_number(number).constant(self.store.publish_command());
        for Ending { lease, .. } in &group {
            let channel = lease.recipe.channel(&lease.keys, &lease.owner);
            call = call.text(lease.owner.field());
            call.args.push(channel.map_or(Arg::Static(""), Arg::Bytes));
            call = match expected_holds(lease) {
                ExpectedHolds::Any => call.constant(""),
                ExpectedHolds::Count(count) => call.int(count.into()),
            };
        }
        let sent: Vec<_> = group.iter().map(|ending| ending.block.sent()).collect();
        let reply = self.run_checked(call, number, false).await;
        sent.into_iter().for_each(|sent| sent.answered(&reply));
        let reply = match reply {
            Ok(items) if items.len() != 2 * group.len() + 1 => Err(Fault::Unknown(Error::new(
                ErrorKind::Protocol,
                "a release of several locks answered nonsense",
            ))),
            reply => reply,
        };
        let outcomes = group.into_iter().enumerate().map(async |(nth, ending)| {
            let Ending { at, lease, lane_waits, block } = ending;
            let outcome = match &reply {
                Ok(items) if items[2 * nth + 1] >= 0 => {
                    let outcome =
                        release_outcome(&lease, items[2 * nth + 1] == 1, items[2 * nth + 2], || {
                            self.now_ms()
                        });
                    self.finish_release_in_lane(&lease, lane_waits, block, Ok(outcome))
                }
                Err(fault @ (Fault::NotSent(_) | Fault::Unknown(_))) => {
                    self.clone()
                        .finish_after_first_try(
                            lease.clone(),
                            lane_waits,
                            block,
                            ReleaseMode::AllHolds,
                            Err(fault.clone()),
                        )
                        .await
                }
                // What was refused together may be allowed for each.
                Ok(_) | Err(Fault::Server(_)) => {
                    let outcome = self.release_last_hold(&lease, false, &block).await;
                    self.finish_release_in_lane(&lease, lane_waits, block, outcome)
                }
            };
            (at, self.with_loss_reason(&lease, outcome).await)
        });
        join_all(outcomes).await
    }
}
