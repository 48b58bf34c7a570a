//! The recipes of both sides of the read-write lock, over one hash (`docs/protocol.md`, read-write lock).

use std::sync::Arc;

use super::{AcquireArgs, ExpectedHolds, ExpiryCheck, Forcing, LanePolicy, Recipe, TransferTarget};
use crate::{
    call::{Call, CountingCall},
    keys::Keys,
    owner::Owner,
    scripts::{self, Script},
};

/// The scripts of the read side.
pub(crate) struct ReadRecipe;

/// The scripts of the write side.
pub(crate) struct WriteRecipe;

pub(crate) static READ: ReadRecipe = ReadRecipe;
pub(crate) static WRITE: WriteRecipe = WriteRecipe;

/// What wakes one waiter of a Java client, and what wakes all of them.
const WAKE_ONE: &str = "0";
const WAKE_ALL: &str = "1";

/// A call that may look at the timeout keys of read holds.
fn call(script: &'static Script, keys: &Keys) -> Call {
    Call::new(script).key(&keys.key).key(&keys.timeouts)
}

fn acquire(script: &'static Script, keys: &Keys, owner: &Owner, args: &AcquireArgs) -> Call {
    let call = call(script, keys);
    // The token's key is named only by those who draw one, so that accounts without rights to it can lock.
    let call = if args.fenced { call.key(keys.token()) } else { call };
    let call = call
        .request_number(owner.request_number_placeholder())
        .text(owner.field())
        .int(args.lease_ms)
        .flag(args.fenced);
    if args.refuse_if_owned { call.flag(true) } else { call }
}

fn release(script: &'static Script, keys: &Keys, owner: &Owner, publish: &'static str) -> Call {
    let call = call(script, keys).request_number(owner.request_number_placeholder()).text(owner.field());
    call.bytes(keys.channel()).constant(publish)
}

fn force(keys: &Keys, forcing: &Forcing<'_>, field: &str, side: [&'static str; 2]) -> Call {
    let [side, wake] = side;
    let call =
        call(&scripts::RW_FORCE, keys).request_number(forcing.number).text(&field.into()).constant(side);
    forcing.recorded(call.bytes(keys.channel()).constant(forcing.publish).constant(wake))
}

fn query(keys: &Keys, owner: &str, side: &'static str) -> Call {
    call(&scripts::RW_QUERY, keys).text(&owner.into()).constant(side)
}

impl Recipe for ReadRecipe {
    fn lane_policy(&self) -> LanePolicy {
        LanePolicy::AllContend
    }

    fn leaves_traces(&self) -> bool {
        true
    }

    fn acquire(&self, keys: &Keys, owner: &Owner, args: &AcquireArgs) -> Call {
        acquire(&scripts::READ_ACQUIRE, keys, owner, args)
    }

    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> CountingCall {
        let call = call(&scripts::READ_ENTER, keys)
            .request_number(owner.request_number_placeholder())
            .text(owner.field());
        call.int(lease_ms).counting()
    }

    fn release(&self, keys: &Keys, owner: &Owner, publish: &'static str, expected: ExpectedHolds) -> Call {
        expected.append_to(release(&scripts::READ_RELEASE, keys, owner, publish))
    }

    fn release_one(
        &self,
        keys: &Keys,
        owner: &Owner,
        publish: &'static str,
        known: u32,
        lease_ms: i64,
    ) -> CountingCall {
        release(&scripts::READ_RELEASE_ONE, keys, owner, publish).int(known.into()).int(lease_ms).counting()
    }

    /// Only one hold moves, because readers stand beside each other and no reader waits for another one's hold.
    fn transfer(&self, keys: &Keys, from: &Owner, recipient: &TransferTarget<'_>) -> Call {
        let call = call(&scripts::READ_TRANSFER, keys);
        let call = if recipient.fenced { call.key(keys.token()) } else { call };
        let call = call
            .request_number(recipient.owner.request_number_placeholder())
            .text(recipient.owner.field())
            .int(recipient.lease_ms);
        recipient.append_to(call.text(from.field()))
    }

    fn renew(&self, batch: i64, holds: &[(&Keys, &Owner)], lease_ms: i64) -> Call {
        let call = holds
            .iter()
            .fold(Call::new(&scripts::READ_RENEW), |call, (keys, _)| call.key(&keys.key).key(&keys.timeouts));
        holds
            .iter()
            .fold(call.request_number(batch).int(lease_ms), |call, (_, owner)| call.text(owner.field()))
    }

    fn shorten(&self, keys: &Keys, owner: &Owner, time_ms: i64, meant: ExpiryCheck) -> Call {
        meant.append_to(call(&scripts::READ_SHORTEN, keys), owner, time_ms)
    }

    fn force(&self, keys: &Keys, forcing: &Forcing<'_>) -> Call {
        force(keys, forcing, forcing.owner, ["read", WAKE_ONE])
    }

    fn query(&self, keys: &Keys, owner: &str) -> Call {
        query(keys, owner, "read")
    }

    fn channel(&self, keys: &Keys, _: &Owner) -> Option<Arc<[u8]>> {
        Some(keys.channel().clone())
    }
}

impl Recipe for WriteRecipe {
    fn acquire(&self, keys: &Keys, owner: &Owner, args: &AcquireArgs) -> Call {
        acquire(&scripts::WRITE_ACQUIRE, keys, owner, args)
    }

    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> CountingCall {
        let call = Call::new(&scripts::WRITE_ENTER)
            .key(&keys.key)
            .request_number(owner.request_number_placeholder())
            .text(owner.field());
        call.int(lease_ms).counting()
    }

    fn release(&self, keys: &Keys, owner: &Owner, publish: &'static str, expected: ExpectedHolds) -> Call {
        expected.append_to(release(&scripts::WRITE_RELEASE, keys, owner, publish))
    }

    fn release_one(
        &self,
        keys: &Keys,
        owner: &Owner,
        publish: &'static str,
        known: u32,
        lease_ms: i64,
    ) -> CountingCall {
        release(&scripts::WRITE_RELEASE_ONE, keys, owner, publish).int(known.into()).int(lease_ms).counting()
    }

    fn transfer(&self, keys: &Keys, from: &Owner, recipient: &TransferTarget<'_>) -> Call {
        let call = call(&scripts::WRITE_TRANSFER, keys);
        let call = if recipient.fenced { call.key(keys.token()) } else { call };
        recipient.append_to(
            call.request_number(recipient.owner.request_number_placeholder())
                .text(from.field())
                .text(recipient.owner.field())
                .int(recipient.lease_ms),
        )
    }

    fn renew(&self, batch: i64, holds: &[(&Keys, &Owner)], lease_ms: i64) -> Call {
        let call = holds.iter().fold(Call::new(&scripts::WRITE_RENEW), |call, (keys, _)| call.key(&keys.key));
        holds
            .iter()
            .fold(call.request_number(batch).int(lease_ms), |call, (_, owner)| call.text(owner.field()))
    }

    fn shorten(&self, keys: &Keys, owner: &Owner, time_ms: i64, meant: ExpiryCheck) -> Call {
        meant.append_to(call(&scripts::WRITE_SHORTEN, keys), owner, time_ms)
    }

    /// The owner may be given as it is or as it stands in the hash.
    fn force(&self, keys: &Keys, forcing: &Forcing<'_>) -> Call {
        let field = match forcing.owner {
            "" => String::new(),
            field if field.ends_with(":write") => field.to_owned(),
            owner => format!("{owner}:write"),
        };
        force(keys, forcing, &field, ["write", WAKE_ALL])
    }

    fn query(&self, keys: &Keys, owner: &str) -> Call {
        query(keys, owner, "write")
    }

    fn channel(&self, keys: &Keys, _: &Owner) -> Option<Arc<[u8]>> {
        Some(keys.channel().clone())
    }
}
