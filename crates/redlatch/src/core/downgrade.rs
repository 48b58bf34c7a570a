//! Downgrading: a write hold becomes a read hold of the same owner, without a moment in between.

use std::{sync::Arc, time::Duration};

use super::{
    Core, Grant, Request, Wait,
    jitter::jittered,
    lease::{Lease, Term},
    leave::Counted,
    owners::{Asking, Earlier, Pending, Turn},
    release::Step,
    undo::Certainty,
    wait::{Deadline, Waker},
};
use crate::{
    error::{Error, ErrorKind, LossReason},
    lock::lost_error,
    name::Keys,
    read_write::READ,
    scripts,
    store::Call,
};

const RETRY_DELAY_MS_MIN: u64 = 20;
const RETRY_DELAY_MS_MAX: u64 = 500;

/// Which part of a lease is turned.
#[derive(Clone, Copy)]
enum Part {
    /// One of several holds.
    One,
    /// All that is left of it.
    Last,
}

/// Nothing else is done in the owner's name while this lasts.
struct Only {
    pending: Pending,
    turn: Turn,
    /// The read hold of the owner that the new one joins.
    nested: Option<Arc<Lease>>,
}

/// Why a write hold was not turned into a read hold, and whether it is untouched for certain.
struct NotTurned {
    error: Error,
    untouched: bool,
}

impl Core {
    /// Waits until nothing else is done in the name of the owner of a write hold that is to be downgraded.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing has happened.
    pub(crate) async fn before_downgrade(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<Turn, Error> {
        let owner = lease.owner.expose();
        let moment = Deadline::new(self, Wait::AtMost(self.config.response_timeout));
        let ready = async {
            let turn = self.owners.turn(&lease.keys, owner, Asking::Once).await;
            turn.begun_with_a_hold().await;
            turn
        };
        let ready = Waker::default().take_turn(self, ready, &moment).await;
        let turn = ready.and_then(|turn| {
            turn.ok_or_else(|| {
                Error::new(ErrorKind::Timeout, "the owner has other requests under way, which do not end")
            })
        });
        turn.map_err(|error| error.on(&lease.keys.name).by(owner))
    }

    /// Turns one write hold into a read hold. Whatever comes of it, the write hold is over for its guard: when it cannot be
    /// turned it is given back.
    pub(crate) async fn downgrade(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        renewed: bool,
        turn: Turn,
    ) -> Result<Grant, Error> {
        let Some(readers) = lease.keys.readers.clone() else {
            return Err(Error::new(ErrorKind::WrongLockKind, "only a write hold can be downgraded")
                .on(&lease.keys.name));
        };
        let term = Term { lease_ms: lease.lease_ms(), renewed };
        let (part, pending) = self.set_apart(lease, renewed)?;
        // The new hold is one of those that the owner has besides from now on, so that none of those that go meanwhile is the last
        // one, whose release would take it along.
        let nested = self.lanes.find(&readers).into_iter().find(|held| held.owner == lease.owner);
        let now_ms = self.now_ms();
        let nested = nested.filter(|held| held.is_valid(now_ms) && held.joins(term.renewed));
        let only = Only { pending, turn, nested };
        let core = self.clone();
        // Tasks that wait to read wait for it.
        let turning =
            self.drive(self.clone().turn(lease.clone(), readers, term, part, only), move |outcome| {
                if let Ok(grant) = outcome {
                    core.drop_hold(&grant.lease, grant.renewed);
                }
            });
        turning
            .outcome()
            .await
            .and_then(std::convert::identity)
            .map_err(|error| error.on(&lease.keys.name).by(&lease.owner))
    }

    /// The part that happens at once: the hold is no longer one that can be given back, entered or renewed.
    fn set_apart(self: &Arc<Self>, lease: &Arc<Lease>, renewed: bool) -> Result<(Part, Pending), Error> {
        let lost = || {
            let reason = lease.loss().cloned().unwrap_or(LossReason::Expired);
            lost_error(&lease.keys.name, &lease.owner, &reason)
        };
        if lease.loss().is_some() {
            return Err(lost());
        }
        if !lease.is_valid(self.now_ms()) {
            self.lose(lease, LossReason::Expired);
            return Err(lost());
        }
        // The owner lives on in the read hold. Until this is through it is granted nothing on either side: a downgrade that arrives
        // late would open its next write hold to readers, and giving back what came of it would end its next read hold.
        let pending = self.owners.pending(&lease.keys, &lease.owner);
        let before = lease.leave(renewed);
        if before > 1 {
            return Ok((Part::One, pending));
        }
        if !lease.give_back() {
            return Err(lost());
        }
        Ok((Part::Last, pending))
    }

    async fn turn(
        self: Arc<Self>,
        lease: Arc<Lease>,
        readers: Arc<Keys>,
        term: Term,
        part: Part,
        only: Only,
    ) -> Result<Grant, Error> {
        let Only { pending, turn, nested } = only;
        let ready = self.earlier_gone(&turn, part, nested.is_some()).await;
        let outcome = match ready {
            Ok(()) => self.turn_on_server(&lease, &readers, nested, term, part, &pending).await,
            Err(error) => {
                self.leave_uncounted(nested, term);
                Err(NotTurned { error, untouched: true })
            }
        };
        // What is given back now is covered, and waits for attempts that ask.
        drop(turn);
        // Under a shared owner giving back counts down, so it is done only where the write hold is there for certain.
        let gives_back = outcome.as_ref().is_err_and(|not| not.untouched || !lease.owner.is_shared());
        if matches!(part, Part::One) && !gives_back && outcome.is_err() {
            lease.has_left();
        }
        if gives_back {
            let back = match part {
                Part::One => {
                    let untouched = outcome.as_ref().is_err_and(|not| not.untouched);
                    let counted = if untouched { Counted::Surely } else { Counted::Perhaps };
                    self.clone().leave_one(lease.clone(), pending.another(), counted).await
                }
                Part::Last => self.release_whole(&lease, false, &pending).await.map(|(unlocked, _)| unlocked),
            };
            if let Err(error) = back {
                tracing::warn!(lock = %lease.keys.name, %error, "a write hold that could not be downgraded could not be released; its lease ends it");
            }
        }
        if matches!(part, Part::Last) {
            self.lanes.forget(&lease);
        }
        drop(pending);
        let grant = outcome.map_err(|not| not.error)?;
        if self.is_closed() {
            self.drop_hold(&grant.lease, grant.renewed);
            return Err(self.closed_error());
        }
        Ok(grant)
    }

    /// Waits for guards of the owner that began to go when the downgrade had its turn already. The last write hold is turned when the
    /// others are counted no more. What is on its way for an earlier read hold would end the new one, unless that joins one that goes
    /// on: then the new one is counted first.
    async fn earlier_gone(&self, turn: &Turn, part: Part, joins: bool) -> Result<(), Error> {
        let earlier = match (part, joins) {
            (Part::Last, false) => Earlier::All,
            (Part::Last, true) => Earlier::Writes,
            (Part::One, false) => Earlier::Reads,
            (Part::One, true) => return Ok(()),
        };
        tokio::select! {
            biased;
            () = turn.gone(earlier) => {}
            () = self.keeper.sleep(self.config.response_timeout) => {
                let what = "an earlier release of this owner is not answered";
                return Err(Error::new(ErrorKind::Timeout, what));
            }
        }
        if joins { Ok(()) } else { turn.check_read_doubt() }
    }

    async fn turn_on_server(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        readers: &Arc<Keys>,
        nested: Option<Arc<Lease>>,
        term: Term,
        part: Part,
        pending: &Pending,
    ) -> Result<Grant, NotTurned> {
        let owner = &lease.owner;
        // What goes meanwhile waits for the end of the attempt that this is, and an entry for this.
        let turns = lease.turns();
        let _counting = turns.counting.lock().await;
        // Read holds that the owner has besides are counted in the same field.
        let nested_turns = nested.as_ref().map(|held| held.turns());
        let _counting_reads = match &nested_turns {
            Some(turns) => Some(turns.counting.lock().await),
            None => None,
        };
        let reign = self.store.reign(&lease.keys.key);
        let is_uncounted = owner.is_shared() && !lease.is_counted_in(reign);
        if is_uncounted || (matches!(part, Part::Last) && lease.is_count_in_doubt() && owner.is_shared()) {
            // The server may count a write hold of ours too many, which would stay beside the read hold and be renewed with it; or one of
            // ours too few, and what it counts is another process's.
            self.leave_uncounted(nested, term);
            let what = "an earlier re-entry or release of this owner was never answered, and another process may hold under it";
            let error = Error::new(ErrorKind::OwnerInDoubt, what).remedy("acquire the read lock anew");
            return Err(NotTurned { error, untouched: true });
        }
        let reads = nested.as_ref().map_or(0, |held| held.holds().on_server());
        let counted = match part {
            Part::One => lease.holds().on_server(),
            Part::Last => 1,
        };
        // What the server counts after it is more than what it counted for a lease that goes on.
        let least = |nested: &Option<Arc<Lease>>, now_ms| {
            if nested.as_ref().is_some_and(|held| held.is_valid(now_ms)) { i64::from(reads) } else { 0 }
        };
        // Giving up means giving the hold back, so one answer that never comes is not reason enough.
        let patience_ms = 3 * self.config.response_timeout.as_millis() as u64;
        let over_ms = lease.deadline_ms().min(self.now_ms() + patience_ms);
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        let mut unanswered = false;
        loop {
            if owner.is_shared() && lease.is_over(self.now_ms()) {
                // The server does not count it any more, and would turn what another process holds.
                self.forget_turn(nested, lease, readers, term);
                let error = lost_error(&lease.keys.name, owner, &lease.missing(self.now_ms()));
                return Err(NotTurned { error, untouched: false });
            }
            // Asked anew each time: another process that was handed the owner since may count there, too.
            let writes = if owner.is_shared() { 0 } else { counted };
            if unanswered && writes == 0 {
                self.forget_turn(nested, lease, readers, term);
                let what = "the downgrade was never answered, and its owner was handed out meanwhile";
                let error = Error::new(ErrorKind::Timeout, what).remedy("acquire the lock anew");
                return Err(NotTurned { error, untouched: false });
            }
            // What the server counts too many is ours, as nobody else has the owner. That is so too where telling it of one that went has failed.
            let too_many = lease.is_count_in_doubt() || lease.holds().on_server() > 1;
            let whole = matches!(part, Part::Last) && too_many && !owner.is_shared();
            let sent_ms = self.now_ms();
            let call = Call::new(&scripts::DOWNGRADE)
                .key(&readers.key)
                .key(&readers.timeouts)
                .int(owner.number())
                .text(owner.field())
                .int(term.lease_ms)
                .bytes(readers.channel())
                .constant(self.store.publish_command())
                .int(writes.into())
                .int(reads.into())
                .constant(if whole { "1" } else { "0" });
            let fault = match self.run_undoing(call, owner.number(), false, pending).await {
                Ok(reply) if reply.get(1).is_some_and(|holds| *holds > least(&nested, self.now_ms())) => {
                    let joined = nested.clone();
                    let turned = self.turned(nested, lease, readers, term, sent_ms);
                    if let Ok(grant) = &turned
                        && owner.is_shared()
                    {
                        let is_first = joined.is_none_or(|held| !Arc::ptr_eq(&held, &grant.lease));
                        grant.lease.entered_in(reign, is_first && reply[1] > 1);
                    }
                    if matches!(part, Part::One) && turned.is_ok() {
                        // Before the next one counts.
                        lease.has_left();
                    }
                    return turned.map_err(|error| NotTurned { error, untouched: false });
                }
                Ok(reply) if reply.iter().skip(1).any(|count| *count > 0) => {
                    self.leave_uncounted(nested, term);
                    let what = "an earlier downgrade of this owner arrived late, and turned this hold";
                    let error =
                        Error::new(ErrorKind::OwnerInDoubt, what).remedy("acquire the read lock anew");
                    return Err(NotTurned { error, untouched: false });
                }
                Ok(_) => {
                    self.leave_uncounted(nested, term);
                    let error = lost_error(&lease.keys.name, owner, &lease.missing(self.now_ms()));
                    return Err(NotTurned { error, untouched: false });
                }
                Err(fault) => fault,
            };
            let unknown = fault.is_unknown();
            unanswered |= unknown;
            let over = self.now_ms() >= over_ms || (unknown && writes == 0);
            let error = fault.into_error();
            if over || !(unknown || error.is_retryable()) {
                if unknown {
                    self.forget_turn(nested, lease, readers, term);
                } else {
                    self.leave_uncounted(nested, term);
                }
                return Err(NotTurned { error, untouched: !unanswered });
            }
            self.keeper.sleep(jittered(Duration::from_millis(delay_ms))).await;
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
        }
    }

    /// The server has the read hold: from now on it is held here, alone or as one more of the owner.
    fn turned(
        self: &Arc<Self>,
        nested: Option<Arc<Lease>>,
        lease: &Arc<Lease>,
        readers: &Arc<Keys>,
        term: Term,
        sent_ms: u64,
    ) -> Result<Grant, Error> {
        let held = match nested.filter(|held| held.is_valid(self.now_ms())) {
            // It is counted there already.
            Some(held) => {
                held.has_joined();
                held.lasts(term);
                let _ended_meanwhile = !self.keeps(&held, sent_ms, term.lease_ms);
                held
            }
            None => {
                let mut held = Lease::new(readers.clone(), lease.owner.clone(), &READ, None, term, sent_ms);
                // A replica that has only the write hold keeps everybody else out, too, so the confirmation stays true.
                held.replicated = lease.replicated;
                let held = Arc::new(held);
                held.change_holds(|holds| holds.count = 1);
                self.took(&held, None);
                held
            }
        };
        held.comes_from(lease);
        self.schedule(&held);
        if !held.is_valid(self.now_ms()) {
            self.drop_hold(&held, term.renewed);
            return Err(Error::new(ErrorKind::Timeout, "the downgrade took longer than its lease")
                .remedy("use a longer lease, or look at the server's load"));
        }
        Ok(Grant { lease: held, renewed: term.renewed })
    }

    /// The read hold that was to join others of the owner did not come to be.
    fn leave_uncounted(self: &Arc<Self>, nested: Option<Arc<Lease>>, term: Term) {
        let Some(held) = nested else { return };
        held.has_joined();
        // Those that it joined may have gone meanwhile, and then none of them was the last one.
        if held.leave_unless_last(term.renewed).is_some() {
            return;
        }
        if !held.owner.is_shared() {
            return self.drop_hold(&held, term.renewed);
        }
        // They have counted themselves down, and what is left on the server is another process's.
        if let Step::Release { leads: true, .. } = self.begin(&held, term.renewed) {
            self.lanes.leave(&held.keys, false);
        }
    }

    /// Nobody knows whether the read hold came to be, and nobody will have it.
    fn forget_turn(
        self: &Arc<Self>,
        nested: Option<Arc<Lease>>,
        lease: &Arc<Lease>,
        readers: &Arc<Keys>,
        term: Term,
    ) {
        match nested {
            // Counting down might take away what another process reads, so what may have come to be is left to its lease.
            Some(held) if held.owner.is_shared() => self.leave_uncounted(Some(held), term),
            Some(held) if held.is_held() => {
                held.has_joined();
                if held.leave_unless_last(term.renewed).is_none() {
                    return self.drop_hold(&held, term.renewed);
                }
                held.is_leaving();
                let pending = self.owners.pending(&held.keys, &held.owner);
                let core = self.clone();
                self.keeper.spawn(async move {
                    if let Err(error) = core.leave_one(held, pending, Counted::Perhaps).await {
                        tracing::warn!(%error, "a read hold may have been taken unseen; its lease ends it");
                    }
                });
            }
            _ => {
                let request = Arc::new(Request::new(readers, &READ, term, Wait::No));
                drop(self.undo_later(&request, &lease.owner, Certainty::MayArriveLater));
            }
        }
    }
}

#[cfg(test)]
mod tests;
