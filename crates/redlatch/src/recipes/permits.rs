//! The scripts and the channel of leased permits. The owner of a lease is the digits of its permits' ids.

use std::sync::Arc;

use crate::{
    call::{Call, CountingCall, PUBLISH_LATER},
    keys::Keys,
    owner::Owner,
    recipes::{AcquireArgs, AskGateKey, ExpectedHolds, LanePolicy, Recipe, TransferTarget},
    scripts::{self, Script},
};

/// The hexadecimal digits of one id.
const ID_DIGITS: usize = 32;

/// The score, in ms, of permits that never end; a lease of that length has no end.
pub(crate) const NEVER_MS: i64 = 922_337_203_685_477;

/// Taking permits may give back what others let run out, and tells so; hence the command to publish with.
pub(crate) struct PermitsRecipe {
    publish: &'static str,
}

static PLAIN: PermitsRecipe = PermitsRecipe { publish: "publish" };
static SHARDED: PermitsRecipe = PermitsRecipe { publish: "spublish" };
static EITHER: PermitsRecipe = PermitsRecipe { publish: scripts::BOTH };
static LATER: PermitsRecipe = PermitsRecipe { publish: PUBLISH_LATER };

impl PermitsRecipe {
    pub(crate) fn for_publishing(command: &str) -> &'static PermitsRecipe {
        [&SHARDED, &EITHER, &LATER].into_iter().find(|permits| permits.publish == command).unwrap_or(&PLAIN)
    }
}

/// The bytes of ids that are ours, from their digits.
pub(crate) fn members(digits: &str) -> Arc<[u8]> {
    let half = |digit: u8| char::from(digit).to_digit(16).unwrap_or(0) as u8;
    digits.as_bytes().chunks_exact(2).map(|pair| half(pair[0]) << 4 | half(pair[1])).collect()
}

fn call(script: &'static Script, keys: &Keys, owner: &Owner) -> Call {
    Call::new(script)
        .key(&keys.key)
        .key(&keys.timeouts)
        .request_number(owner.request_number_placeholder())
        .bytes(&members(owner.field()))
}

/// Gives back what is still taken. `replies` are what the script answers when something was, and when nothing was.
fn give(keys: &Keys, owner: &Owner, publish: &'static str, replies: [&'static str; 2]) -> Call {
    call(&scripts::PERMIT_GIVE, keys, owner)
        .bytes(keys.channel())
        .constant(publish)
        .constant("0")
        .constant(replies[0])
        .constant(replies[1])
}

impl PermitsRecipe {
    fn take(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> Call {
        call(&scripts::PERMIT_TAKE, keys, owner).int(lease_ms).bytes(keys.channel()).constant(self.publish)
    }
}

impl Recipe for PermitsRecipe {
    fn lane_policy(&self) -> LanePolicy {
        LanePolicy::AllContend
    }

    /// Permits in use stand in the set of times.
    fn watched<'a>(&self, keys: &'a Keys) -> &'a Arc<[u8]> {
        &keys.timeouts
    }

    fn key_to_watch(&self, _: &Keys) -> Option<Arc<[u8]>> {
        None
    }

    fn acquire(&self, keys: &Keys, owner: &Owner, args: &AcquireArgs) -> Call {
        self.take(keys, owner, args.lease_ms)
    }

    /// Ids are taken once however often they are asked for, so entering again is asking again.
    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> CountingCall {
        self.take(keys, owner, lease_ms).counting()
    }

    fn release(&self, keys: &Keys, owner: &Owner, publish: &'static str, _: ExpectedHolds) -> Call {
        give(keys, owner, publish, ["1", "0"])
    }

    fn release_one(&self, keys: &Keys, owner: &Owner, publish: &'static str, _: u32, _: i64) -> CountingCall {
        give(keys, owner, publish, ["0", "-1"]).counting()
    }

    /// Never asked for: nobody waits in this process for the permits of another task. It takes what is free.
    fn transfer(&self, keys: &Keys, _: &Owner, recipient: &TransferTarget<'_>) -> Call {
        self.take(keys, recipient.owner, recipient.lease_ms)
    }

    fn renew(&self, batch: i64, holds: &[(&Keys, &Owner)], lease_ms: i64) -> Call {
        let call = Call::new(&scripts::PERMIT_RENEW);
        let call = holds.iter().fold(call, |call, (keys, _)| call.key(&keys.timeouts));
        holds.iter().fold(call.request_number(batch).int(lease_ms), |call, (_, owner)| {
            call.bytes(&members(owner.field()))
        })
    }

    /// Each permit has its end in the set, which nothing but its own renewal moves.
    fn look(&self, batch: i64, holds: &[(&Keys, &Owner)], _left_ms: &[i64]) -> Call {
        self.renew(batch, holds, 0)
    }

    fn ask_gate(&self, keys: &Keys, owner: &Owner) -> Option<AskGateKey> {
        // The owner's text is as long as it has permits.
        Some((keys.channel().clone(), owner.field().len() as i64))
    }

    fn leaves_nothing(&self, owner: &Owner, free: i64) -> bool {
        free < (owner.field().len() / ID_DIGITS) as i64
    }

    fn channel(&self, keys: &Keys, _: &Owner) -> Option<Arc<[u8]>> {
        Some(keys.channel().clone())
    }
}
