//! Undoing: what a request may have left on the server without a task that has it is removed again.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    Core, Request, Wait,
    lease::{HeldLease, SentAt, deadline_ms},
    owner_claims::OwnerBlock,
    release::{RETRY_DELAY_MS_MAX, RETRY_DELAY_MS_MIN},
    send_once::{Counted, SentOnce},
};
use crate::{
    config::FAIR_WAIT,
    jitter::jittered,
    owner::Owner,
    recipes::{ExpectedHolds, LanePolicy, LeaseTerm},
    store::Fault,
};

/// When a request with an unknown outcome may still arrive: looks after it at these times, in ms.
pub(super) const LATE_LOOKS_MS: [u64; 4] = [0, 150, 1_000, 3_000];
/// A count above all: to the script, giving back one of so many holds is a repeat, and no hold goes.
const HOLDS_STAY: u32 = u32::MAX;

/// Whether a request may still be on its way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestFate {
    /// Its answer tells of a grant.
    Granted(SentAt),
    /// It has been answered, and not with a grant: one look finds all that it left.
    AnsweredWithoutGrant,
    /// Its outcome is unknown, and it may run later.
    MayArriveLater,
}

/// An owner that may be used again is looked after at once, because it is granted nothing meanwhile, and later only while it is at rest
/// (`look_later`).
fn late_looks_ms(owner: &Owner) -> &'static [u64] {
    if owner.is_reusable() { &LATE_LOOKS_MS[..1] } else { &LATE_LOOKS_MS }
}

/// How long a place in a queue on the server keeps others out, which is longer than a short lease would.
fn place_ms(request: &Request) -> u64 {
    match request.recipe.lane_policy() {
        LanePolicy::QueuesAtServer => FAIR_WAIT.as_millis() as u64,
        LanePolicy::OneContends | LanePolicy::AllContend => 0,
    }
}

/// What a look for a request that went missing came to.
enum LateLook {
    Answered,
    /// Nobody answered, or it was not made because the owner is at work.
    Unanswered,
    /// The owner holds the write lock, and the look has to wait for the end of that.
    Writes(Arc<HeldLease>),
    /// There is nothing to look for any more.
    Through,
}

/// What is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// All that the owner has.
    Everything,
    /// Its place in the queue, and none of its holds.
    Place,
    /// One hold, at the server that granted it: another one that has taken over counts other processes' holds alone.
    OneHold { incarnation: u64 },
}

/// What undoing a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undone {
    /// There was something, and it is gone.
    Found,
    Nothing,
    /// Another process holds under the owner besides.
    Shared,
    /// Nobody answered for as long as it can be there.
    Unknown,
    /// The server refused to undo it, and would refuse another try.
    Refused,
}

impl Core {
    /// Removes what a request may have left, now and, if the request may still be on its way, later. Answers when done, and
    /// whether it is certain that nothing is left.
    pub(crate) fn undo_later(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        fate: RequestFate,
    ) -> oneshot::Receiver<bool> {
        let (tell, done) = oneshot::channel();
        if self.is_forked() {
            return done;
        }
        // From here on the owner is granted nothing until this is through.
        let block = self.owners.block(&request.keys, owner);
        let (core, request, owner) = (self.clone(), request.clone(), owner.clone());
        self.keeper.spawn(async move {
            let certain = core.undo(&request, &owner, fate, &block).await;
            drop(block);
            // Mostly no task waits for it.
            let _ = tell.send(certain);
        });
        done
    }

    async fn undo(
        self: &Arc<Self>,
        request: &Arc<Request>,
        owner: &Owner,
        fate: RequestFate,
        block: &OwnerBlock,
    ) -> bool {
        let looks_later = fate == RequestFate::MayArriveLater && owner.is_reusable();
        if looks_later {
            self.look_later(request, owner, request.lease_term.lease_ms);
        }
        let lease_ms = request.lease_term.lease_ms.max(0) as u64;
        let place_ms = place_ms(request);
        let over_ms = self.now_ms().saturating_add(lease_ms.max(place_ms));
        // A request without an answer may still arrive, and end what the owner is granted meanwhile.
        let mut unanswered = false;
        for look_ms in late_looks_ms(owner) {
            if *look_ms > lease_ms.max(place_ms) {
                // Whatever the request left has ended.
                return true;
            }
            tokio::time::sleep(Duration::from_millis(*look_ms)).await;
            if self.own_write_lease(&request.keys, owner).is_some() {
                // Counted down late, it would be the read hold that another process enters under the writer's owner.
                if !owner.is_multi_process() && !looks_later {
                    self.look_later(request, owner, request.lease_term.lease_ms);
                }
                return matches!(fate, RequestFate::Granted(_));
            }
            if owner.is_multi_process() {
                break;
            }
            let undoing =
                self.undo_until_answered(request, owner, What::Everything, over_ms, block, &mut unanswered);
            match undoing.await {
                Undone::Found | Undone::Nothing if fate != RequestFate::MayArriveLater => return !unanswered,
                // What was found may be of the one request, and another one that went missing is still to come.
                Undone::Found | Undone::Nothing => {}
                Undone::Shared => break,
                Undone::Unknown | Undone::Refused => return false,
            }
        }
        if !owner.is_multi_process() {
            return false;
        }
        // Counting down takes a hold away, and it may be another process's. So it is done for a grant that was told, and once; what
        // came of a request without an answer ends with its lease.
        let ends_ms = |sent_at: SentAt| deadline_ms(sent_at.at_ms, request.lease_term.lease_ms);
        let (what, over_ms) = match fate {
            RequestFate::Granted(sent_at) if !unanswered && self.now_ms() < ends_ms(sent_at) => {
                (What::OneHold { incarnation: sent_at.incarnation }, ends_ms(sent_at))
            }
            _ if place_ms > 0 => (What::Place, over_ms),
            // The hold has ended, and what is counted now is another process's.
            RequestFate::Granted(_) => return !unanswered,
            _ => return fate == RequestFate::AnsweredWithoutGrant && !unanswered,
        };
        let undoing = self.undo_until_answered(request, owner, what, over_ms, block, &mut unanswered);
        !matches!(undoing.await, Undone::Unknown | Undone::Refused)
            && fate != RequestFate::MayArriveLater
            && !unanswered
    }

    /// Looks later whether a request that had gone missing took the lock after all, or a place in its queue, where it would hold up all behind it as
    /// a dead waiter's does. The last look is made again until it is answered, or whatever arrived meanwhile has ended.
    fn look_later(self: &Arc<Self>, request: &Arc<Request>, owner: &Owner, lease_ms: i64) {
        let (core, request, owner) = (self.clone(), request.clone(), owner.clone());
        let left_ms = lease_ms.max(0) as u64;
        let left_ms = left_ms.max(place_ms(&request)) + LATE_LOOKS_MS.iter().sum::<u64>();
        let over_ms = self.now_ms().saturating_add(left_ms);
        // Not counted as work to wait for: what is left ends with its lease, or as a dead waiter's place does.
        self.keeper.handle().spawn(async move {
            let mut looks_ms = LATE_LOOKS_MS[1..].iter().copied();
            let (mut look_ms, mut is_answered) = (0, false);
            loop {
                match looks_ms.next() {
                    Some(next_ms) => look_ms = next_ms,
                    None if !is_answered && core.now_ms() < over_ms => {}
                    None => return,
                }
                tokio::time::sleep(Duration::from_millis(look_ms)).await;
                if core.is_disconnected() {
                    return;
                }
                match core.look_late(&request, &owner, look_ms).await {
                    LateLook::Answered => is_answered = true,
                    LateLook::Unanswered => is_answered = false,
                    LateLook::Through => return,
                    LateLook::Writes(writing) => {
                        // What arrives until then was not looked for, so the looks begin anew. The read hold may be there so long.
                        let left = Duration::from_millis(over_ms.saturating_sub(core.now_ms()));
                        if tokio::time::timeout(left, writing.ended()).await.is_err() {
                            return;
                        }
                        looks_ms = LATE_LOOKS_MS[..].iter().copied();
                        is_answered = false;
                    }
                }
            }
        });
    }

    /// An owner that is at work takes over what arrives, and looks after it itself; one that is known elsewhere may hold by another process,
    /// and loses its place alone.
    async fn look_late(self: &Arc<Self>, request: &Arc<Request>, owner: &Owner, look_ms: u64) -> LateLook {
        // As long as a writer's guard can hand its owner out, what removes a read hold could meet the one that another process enters.
        if let Some(writing) = self.own_write_lease(&request.keys, owner) {
            return LateLook::Writes(writing);
        }
        // While the owner is blocked no attempt begins, and one that has ended has put its lease there.
        let Ok(block) = self.owners.block_if_idle(&request.keys, owner) else { return LateLook::Unanswered };
        if let Some(writing) = self.own_write_lease(&request.keys, owner) {
            return LateLook::Writes(writing);
        }
        if owner.is_multi_process() {
            return match request.recipe.lane_policy() {
                LanePolicy::QueuesAtServer => self.remove_place(request, owner).await,
                LanePolicy::OneContends | LanePolicy::AllContend => LateLook::Through,
            };
        }
        if self.has_lease(&request.keys, owner) {
            return LateLook::Unanswered;
        }
        // What it finds may be of one request, and another one that went missing is still to come.
        let (over_ms, mut unanswered) = (self.now_ms() + look_ms, false);
        let undoing =
            self.undo_until_answered(request, owner, What::Everything, over_ms, &block, &mut unanswered);
        match undoing.await {
            Undone::Found | Undone::Nothing | Undone::Refused => LateLook::Answered,
            Undone::Shared | Undone::Unknown => LateLook::Unanswered,
        }
    }

    /// Removes an owner's place in a queue on the server, and none of its holds.
    async fn remove_place(self: &Arc<Self>, request: &Request, owner: &Owner) -> LateLook {
        let (publish, lease_ms) = (self.store.publish_command(), request.lease_term.lease_ms);
        let call = request.recipe.release_one(&request.keys, owner, publish, HOLDS_STAY, lease_ms);
        match self.run_checked(call.repeatable(), owner.request_number_placeholder(), true).await {
            Ok(_) => LateLook::Answered,
            Err(fault) => {
                tracing::debug!(lock = %request.keys.name, error = %fault.into_error(), "a late place was not looked for");
                LateLook::Unanswered
            }
        }
    }

    /// Removes what an owner may have left.
    async fn undo_until_answered(
        self: &Arc<Self>,
        request: &Request,
        owner: &Owner,
        what: What,
        over_ms: u64,
        block: &OwnerBlock,
        unanswered: &mut bool,
    ) -> Undone {
        let mut over_ms = over_ms;
        let mut delay_ms = RETRY_DELAY_MS_MIN;
        let mut count = 1;
        let _alone = block.undoes().await;
        loop {
            // Of the others what is there after its own time may be another process's.
            if what == What::Everything {
                over_ms = self.ends_at_ms(&request.keys, owner, over_ms);
            }
            // What is counted now is another process's, or comes to be when what was not answered arrives.
            let is_over = || self.now_ms() >= over_ms || block.is_in_doubt();
            if what == What::Everything && owner.is_multi_process() {
                return Undone::Shared;
            }
            let publish = self.store.publish_command();
            // What the owner may have been granted can be handed to another process while this is on its way.
            let expected = ExpectedHolds::of(owner, || count);
            let leave = |known| {
                request.recipe.release_one(&request.keys, owner, publish, known, request.lease_term.lease_ms)
            };
            let counts = what != What::Everything;
            let takeovers = self.store.takeovers();
            let number = owner.request_number_placeholder();
            let reply = match what {
                What::Everything => {
                    let call = request.recipe.undo(&request.keys, owner, publish, expected);
                    self.run_taking_away_now(call, number, true, block).await
                }
                What::Place => {
                    self.run_taking_away_now(leave(HOLDS_STAY).repeatable(), number, true, block).await
                }
                What::OneHold { incarnation } => {
                    let holds = Counted { keys: &request.keys, owner, recipe: request.recipe, over_ms };
                    let sent = self.send_once(holds, Some(block), || {
                        if is_over() { Err(()) } else { Ok(leave(0).in_incarnation(Some(incarnation))) }
                    });
                    match sent.await {
                        Ok(SentOnce::NotSent(())) => return Undone::Unknown,
                        Ok(SentOnce::Answered(reply)) => Ok(reply),
                        Err(fault) => Err(fault),
                    }
                }
            };
            let fault = match reply {
                Ok(reply) => match reply[..] {
                    [_, -1, _] if !counts && owner.is_multi_process() => return Undone::Shared,
                    [_, -1, _] if !counts && self.now_ms() >= over_ms => return Undone::Unknown,
                    // They are all this process's.
                    [_, -1, counted] if !counts => {
                        count = u32::try_from(counted).unwrap_or(u32::MAX);
                        continue;
                    }
                    [_, found, ..] if found > 0 => return Undone::Found,
                    _ => return Undone::Nothing,
                },
                Err(fault) => fault,
            };
            *unanswered |= fault.may_arrive();
            // Counting down twice would take away what another process holds under this owner.
            let one_hold = matches!(what, What::OneHold { .. });
            let once = one_hold && (fault.is_unknown() || fault.is_elsewhere());
            let refused = matches!(&fault, Fault::Server(error) if !error.is_retryable());
            if refused {
                return Undone::Refused;
            }
            if once || self.is_disconnected() || self.now_ms() >= over_ms {
                return Undone::Unknown;
            }
            if let What::OneHold { incarnation } = what
                && self.store.incarnation(&request.keys.key) != incarnation
            {
                // The server that answers now may lack the grant, and what it counts may be another process's.
                return Undone::Unknown;
            }
            if self.store.takeovers() == takeovers {
                self.keeper.pause(jittered(Duration::from_millis(delay_ms))).await;
            }
            delay_ms = (delay_ms * 2).min(RETRY_DELAY_MS_MAX);
        }
    }

    /// As [`look_later`](Self::look_later), for what was granted to the repeat of such a request and has been let go, and for an entry without
    /// an answer, which a hold that was counted down beside the owner's write hold has left behind.
    pub(super) fn undo_late_arrivals(self: &Arc<Self>, lease: &Arc<HeldLease>) {
        if let Some(before) = lease.predecessor() {
            self.undo_late_arrivals(before);
        }
        if lease.outcome_unknown.load(Ordering::Relaxed) || lease.is_count_in_doubt() {
            let lease_term = LeaseTerm { lease_ms: lease.longest_ms(), renewed: false };
            let request = Request::new(&lease.keys, lease.recipe, lease_term, Wait::No);
            self.look_later(&Arc::new(request), &lease.owner, lease.longest_ms());
        }
    }
}
