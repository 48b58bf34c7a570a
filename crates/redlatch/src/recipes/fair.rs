//! The fair lock's recipe (`docs/protocol.md`, fair lock).

use std::sync::Arc;

use super::{AcquireArgs, ExpectedHolds, Forcing, LanePolicy, PLAIN, Recipe, TransferTarget};
use crate::{
    call::{Call, CountingCall},
    config::FAIR_WAIT,
    keys::Keys,
    owner::Owner,
    scripts::{self, Script},
};

/// The scripts and channels of the lock with a queue on the server.
pub(crate) struct FairRecipe;

pub(crate) static FAIR: FairRecipe = FairRecipe;

impl FairRecipe {
    fn call(script: &'static Script, keys: &Keys, owner: &Owner, fenced: bool) -> Call {
        let call = Call::new(script).key(&keys.key).key(&keys.queue).key(&keys.timeouts);
        let call = if fenced { call.key(keys.token()) } else { call };
        call.request_number(owner.request_number_placeholder()).text(owner.field())
    }
}

impl Recipe for FairRecipe {
    fn lane_policy(&self) -> LanePolicy {
        LanePolicy::QueuesAtServer
    }

    fn acquire(&self, keys: &Keys, owner: &Owner, args: &AcquireArgs) -> Call {
        let call = FairRecipe::call(&scripts::FAIR_ACQUIRE, keys, owner, args.fenced)
            .int(args.lease_ms)
            .flag(args.fenced)
            .int(if args.waits { FAIR_WAIT.as_millis() as i64 } else { 0 })
            .bytes(keys.channel())
            .constant(args.publish)
            .int(args.redisson_wait_ms)
            .flag(args.count_waiters_ahead);
        if args.refuse_if_owned { call.flag(true) } else { call }
    }

    fn undo(&self, keys: &Keys, owner: &Owner, publish: &'static str, expected: ExpectedHolds) -> Call {
        let call = FairRecipe::call(&scripts::FAIR_UNDO, keys, owner, false);
        expected.append_to(call.bytes(keys.channel()).constant(publish))
    }

    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> CountingCall {
        PLAIN.enter(keys, owner, lease_ms)
    }

    fn release(&self, keys: &Keys, owner: &Owner, publish: &'static str, expected: ExpectedHolds) -> Call {
        let call = FairRecipe::call(&scripts::FAIR_RELEASE, keys, owner, false);
        let call = call.bytes(keys.channel()).constant(publish);
        expected.append_to(call.constant("").constant("0").constant("0"))
    }

    /// A waiter in a queue that is elsewhere finds the lock free by looking, as after the end of a lease.
    fn release_silently(&self, keys: &Keys, owner: &Owner, expected: ExpectedHolds) -> Option<Call> {
        Some(PLAIN.release(keys, owner, "", expected))
    }

    fn release_and_grant(
        &self,
        keys: &Keys,
        owner: &Owner,
        publish: &'static str,
        expected: ExpectedHolds,
        recipient: &TransferTarget<'_>,
    ) -> Call {
        let call = FairRecipe::call(&scripts::FAIR_RELEASE, keys, owner, recipient.fenced);
        let call = call.bytes(keys.channel()).constant(publish).text(recipient.owner.field());
        expected.append_to(call.int(recipient.lease_ms).flag(recipient.fenced))
    }

    fn release_one(
        &self,
        keys: &Keys,
        owner: &Owner,
        publish: &'static str,
        known: u32,
        lease_ms: i64,
    ) -> CountingCall {
        FairRecipe::call(&scripts::FAIR_RELEASE_ONE, keys, owner, false)
            .bytes(keys.channel())
            .constant(publish)
            .int(known.into())
            .int(lease_ms)
            .counting()
    }

    fn transfer(&self, keys: &Keys, from: &Owner, recipient: &TransferTarget<'_>) -> Call {
        // Those who wait are not told: they wait for the holder, and it is another one.
        PLAIN.transfer(keys, from, recipient)
    }

    fn renew(&self, batch: i64, holds: &[(&Keys, &Owner)], lease_ms: i64) -> Call {
        PLAIN.renew(batch, holds, lease_ms)
    }

    fn force(&self, keys: &Keys, forcing: &Forcing<'_>) -> Call {
        let call = Call::new(&scripts::FAIR_FORCE).key(&keys.key).key(&keys.queue).key(&keys.timeouts);
        let call = call.request_number(forcing.number).text(&forcing.owner.into());
        forcing.recorded(call.bytes(keys.channel()).constant(forcing.publish))
    }

    fn channel(&self, keys: &Keys, owner: &Owner) -> Option<Arc<[u8]>> {
        Some([&**keys.channel(), b":", owner.field().as_bytes()].concat().into())
    }
}
