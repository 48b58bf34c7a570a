//! The recipes of all kinds: the calls that the core asks a kind for, and what they say besides.
//!
//! A kind is a [`Recipe`]. It knows its scripts and its channel, and has no waiting or renewing code of its own.

mod fair;
mod forcing;
mod permits;
mod plain;
mod read_write;
mod spin;

use std::sync::Arc;

pub(crate) use fair::FAIR;
pub(crate) use forcing::{Forcing, Record};
pub(crate) use permits::{NEVER_MS, PermitsRecipe, members};
pub(crate) use plain::PLAIN;
pub(crate) use read_write::{READ, WRITE};
pub(crate) use spin::SPIN;

use crate::{
    call::{Call, CountingCall},
    keys::Keys,
    owner::Owner,
    scripts,
};

/// What makes one kind of lock: its scripts and its channel. Each call begins with a number, which `core/request_ids.rs` makes the request's own
/// and its reply repeats.
pub(crate) trait Recipe: Send + Sync + 'static {
    /// How the tasks of one process get along.
    fn lane_policy(&self) -> LanePolicy {
        LanePolicy::OneContends
    }

    /// Takes it if it is free. Replies `{number, count, token or 0}`, `{number, 0, ttl}` when busy (-1 when the key has no
    /// TTL, [`QUEUED_BEHIND`] or [`QUEUED_BEHIND_RECOUNT`] when others come first), or `{number, refusal, 0}` with a refusal below 0.
    fn acquire(&self, keys: &Keys, owner: &Owner, args: &AcquireArgs) -> Call;

    /// Removes all that an owner may have left: a hold, and its place in a queue. Replies as [`release`](Self::release).
    fn undo(&self, keys: &Keys, owner: &Owner, publish: &'static str, expected: ExpectedHolds) -> Call {
        self.release(keys, owner, publish, expected)
    }

    /// Whether a hold whose time is over may still stand in the hash, because others keep the hash.
    fn leaves_traces(&self) -> bool {
        false
    }

    /// One more hold. Replies `{number, count, 0}`, or a count of 0 when the owner holds nothing.
    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> CountingCall;

    /// Removes an owner's holds. Replies `{number, 1 or 0, receivers}`, or `{number, -1, count}` if it counts another number.
    fn release(&self, keys: &Keys, owner: &Owner, publish: &'static str, expected: ExpectedHolds) -> Call;

    /// As [`release`](Self::release) while a slot is on its way and the other keys may be at another node: touches the hash alone, as if the
    /// lease ended now, and publishes nothing. `None` where that cannot be done.
    fn release_silently(&self, keys: &Keys, owner: &Owner, expected: ExpectedHolds) -> Option<Call> {
        let _ = (keys, owner, expected);
        None
    }

    /// As [`release`](Self::release), and grants to the recipient if it is next in the queue: `{number, 2, token or 0}` then.
    fn release_and_grant(
        &self,
        keys: &Keys,
        owner: &Owner,
        publish: &'static str,
        expected: ExpectedHolds,
        recipient: &TransferTarget<'_>,
    ) -> Call {
        let _ = recipient;
        self.release(keys, owner, publish, expected)
    }

    /// One hold less. Replies `{number, holds left or -1, receivers}`.
    fn release_one(
        &self,
        keys: &Keys,
        owner: &Owner,
        publish: &'static str,
        known: u32,
        lease_ms: i64,
    ) -> CountingCall;

    /// Moves a hold from owner to owner. Replies `{number, 1 or 0, token or 0}`, 2 when the owner has more than may be moved, -1 when the
    /// hash belongs to a lock of another kind.
    fn transfer(&self, keys: &Keys, from: &Owner, recipient: &TransferTarget<'_>) -> Call;

    /// Renews several holds with `lease_ms`, or only looks at them when it is 0. Replies `{batch, 1 or 0, …}`.
    fn renew(&self, batch: i64, holds: &[(&Keys, &Owner)], lease_ms: i64) -> Call;

    /// Looks at several holds, of which so much is left each: what others have cut down of a lease is raised again. Replies as
    /// [`renew`](Self::renew) does.
    fn look(&self, batch: i64, holds: &[(&Keys, &Owner)], left_ms: &[i64]) -> Call {
        left_ms.iter().fold(self.renew(batch, holds, 0), |call, left_ms| call.int(*left_ms))
    }

    /// Leaves a hold for a time that may be shorter than what is left of it. Replies `{number, 1 or 0}`, 2 when its end has moved, and
    /// `{number, end}` to a question for its end.
    fn shorten(&self, keys: &Keys, owner: &Owner, time_ms: i64, meant: ExpiryCheck) -> Call {
        meant.append_to(Call::new(&scripts::SHORTEN).key(&keys.key), owner, time_ms)
    }

    /// The key that changes when a hold ends.
    fn watched<'a>(&self, keys: &'a Keys) -> &'a Arc<[u8]> {
        &keys.key
    }

    /// The key whose end frees it for those who wait; `None` where the end of no key does.
    fn key_to_watch(&self, keys: &Keys) -> Option<Arc<[u8]>> {
        Some(keys.key.clone())
    }

    /// Frees it from any owner, or only while the owner that is named holds it. Replies `{number, 1 or 0, receivers}`,
    /// -1 when another owner holds it, -2 when another kind of lock does.
    fn force(&self, keys: &Keys, forcing: &Forcing<'_>) -> Call {
        let call = Call::new(&scripts::FORCE).key(&keys.key).request_number(forcing.number);
        let call = call.text(&forcing.owner.into()).bytes(keys.channel()).constant(forcing.publish);
        forcing.recorded(call)
    }

    /// Reads `{ttl, holds of the owner}`; the TTL is -2 when nobody holds it. The owner may be empty.
    fn query(&self, keys: &Keys, owner: &str) -> Call {
        Call::new(&scripts::QUERY).key(&keys.key).text(&owner.into())
    }

    /// Where the tasks of this process that wait for the same take turns in asking; `None` when each asks for itself.
    fn ask_gate(&self, keys: &Keys, owner: &Owner) -> Option<AskGateKey> {
        let _ = (keys, owner);
        None
    }

    /// Whether several of them go into one script, which takes and releases as this recipe does.
    fn batches(&self) -> bool {
        false
    }

    /// Whether the last item of a grant's reply says that nothing is left for others who want as much.
    fn leaves_nothing(&self, owner: &Owner, value: i64) -> bool {
        let _ = (owner, value);
        false
    }

    /// Where waiters are told; `None` when nobody is told and waiting is looking again.
    fn channel(&self, keys: &Keys, owner: &Owner) -> Option<Arc<[u8]>>;
}

/// How the tasks of one process that want the same name get along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LanePolicy {
    /// One holder: a single task contends at the server, the others queue in the lane.
    OneContends,
    /// Any number of holders: every task asks the server for itself.
    AllContend,
    /// Every task queues at the server; the lane knows them, in order, so that a release can hand over at once.
    QueuesAtServer,
}

/// What is waited for, and how much of it.
pub(crate) type AskGateKey = (Arc<[u8]>, i64);

/// How long a lease is, and whether it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseTerm {
    pub(crate) lease_ms: i64,
    pub(crate) renewed: bool,
}

/// The time of a busy reply that means: others come before this owner in the server's queue.
pub(crate) const QUEUED_BEHIND: i64 = -3;

/// The same, and some of them may subtract from its time in the queue, so the next request has to count them again.
pub(crate) const QUEUED_BEHIND_RECOUNT: i64 = -4;

/// The time of a reply that means: the owner holds it already, and its first hold was asked for.
pub(crate) const ALREADY_OWNED: i64 = -5;

/// What an acquire asks the server for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireArgs {
    pub(crate) lease_ms: i64,
    /// The grant draws a token.
    pub(crate) fenced: bool,
    /// The owner lines up, in kinds with a queue on the server.
    pub(crate) waits: bool,
    /// Redisson's waiters before the owner in the queue may subtract from its time, so that they have to be counted.
    pub(crate) count_waiters_ahead: bool,
    /// Another process may hold under the owner, and then this is no repeat: a hold of the owner that is there is not entered, and the
    /// reply is `{number, 0,` [`ALREADY_OWNED`]`}`.
    pub(crate) refuse_if_owned: bool,
    /// What each of those waiters of Redisson subtracts.
    pub(crate) redisson_wait_ms: i64,
    pub(crate) publish: &'static str,
}

/// How many holds of its owner a release expects on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedHolds {
    /// It removes whatever is counted.
    Any,
    /// It removes nothing if another number is counted: the owner may be handed to another process while the request is on its way.
    Count(u32),
}

impl ExpectedHolds {
    /// What is expected of an owner with so many holds of this process. It is asked for when the request is made, and not before.
    pub(crate) fn of(owner: &Owner, count: impl FnOnce() -> u32) -> Self {
        if owner.is_reusable() { ExpectedHolds::Count(count()) } else { ExpectedHolds::Any }
    }

    /// What a call ends with that asks for a count.
    pub(crate) fn append_to(self, call: Call) -> Call {
        match self {
            ExpectedHolds::Any => call,
            ExpectedHolds::Count(count) => call.int(count.into()),
        }
    }
}

/// Which hold a request is meant for that may come late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpiryCheck {
    /// Whatever the owner has: no other process knows it.
    Any,
    /// It asks when the hold ends by the server's clock, and changes nothing.
    WhichEnd,
    /// The one that ends then: what ends at another moment may be another process's, though it counts alike.
    EndsAt(i64),
}

impl ExpiryCheck {
    fn append_to(self, call: Call, owner: &Owner, time_ms: i64) -> Call {
        let call = call.request_number(owner.request_number_placeholder()).text(owner.field()).int(time_ms);
        match self {
            ExpiryCheck::Any => call,
            ExpiryCheck::WhichEnd => call.int(0),
            ExpiryCheck::EndsAt(end_ms) => call.int(end_ms),
        }
    }
}

/// Who is to have a lock next. Its constructors say what for: the next task, an adoption, or giving back. That decides how many of the giver's holds move.
pub(crate) struct TransferTarget<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) lease_ms: i64,
    pub(crate) fenced: bool,
    moves: Moves,
}

/// What of a giver's holds goes to its recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moves {
    All,
    /// Only if it is one: what the giver has besides is other processes'.
    One,
    /// The same, to the owner that it was taken from, and the lease stays.
    Back,
}

impl<'a> TransferTarget<'a> {
    /// A task that gets the lock of `giver`, which gives it back. If the giver's owner is known outside of its guard, another process may come to hold
    /// under it while this is on its way, so no more than one hold moves.
    pub(crate) fn after(giver: &Owner, owner: &'a Owner, lease_term: LeaseTerm, fenced: bool) -> Self {
        let moves = if giver.is_reusable() { Moves::One } else { Moves::All };
        TransferTarget { owner, lease_ms: lease_term.lease_ms, fenced, moves }
    }

    /// A client that takes up a hold that was left.
    pub(crate) fn adopting(owner: &'a Owner, lease_term: LeaseTerm, fenced: bool) -> Self {
        TransferTarget { owner, lease_ms: lease_term.lease_ms, fenced, moves: Moves::One }
    }

    /// The owner that a hold was taken from, which gets it back.
    pub(crate) fn former(owner: &'a Owner, lease_term: LeaseTerm) -> Self {
        TransferTarget { owner, lease_ms: lease_term.lease_ms, fenced: false, moves: Moves::Back }
    }

    /// What a call that moves a hold ends with.
    pub(crate) fn append_to(&self, call: Call) -> Call {
        let moves = match self.moves {
            Moves::All => "0",
            Moves::One => "1",
            Moves::Back => "2",
        };
        call.flag(self.fenced).constant(moves)
    }
}
