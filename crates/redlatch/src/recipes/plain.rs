//! The plain lock's recipe (`docs/protocol.md`, lock).

use std::sync::Arc;

use super::{AcquireArgs, ExpectedHolds, Recipe, TransferTarget};
use crate::{
    call::{Call, CountingCall},
    keys::Keys,
    owner::Owner,
    scripts,
};

/// The scripts and the channel of the plain lock.
pub(crate) struct PlainRecipe;

pub(crate) static PLAIN: PlainRecipe = PlainRecipe;

impl Recipe for PlainRecipe {
    fn acquire(&self, keys: &Keys, owner: &Owner, args: &AcquireArgs) -> Call {
        let call = Call::new(&scripts::ACQUIRE).key(&keys.key);
        // The token's key is named only by those who draw one, so that accounts without rights to it can lock.
        let call = if args.fenced { call.key(keys.token()) } else { call };
        let call = call
            .request_number(owner.request_number_placeholder())
            .text(owner.field())
            .int(args.lease_ms)
            .flag(args.fenced);
        if args.refuse_if_owned { call.flag(true) } else { call }
    }

    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> CountingCall {
        Call::new(&scripts::ENTER)
            .key(&keys.key)
            .request_number(owner.request_number_placeholder())
            .text(owner.field())
            .int(lease_ms)
            .counting()
    }

    fn release(&self, keys: &Keys, owner: &Owner, publish: &'static str, expected: ExpectedHolds) -> Call {
        let call = Call::new(&scripts::RELEASE)
            .key(&keys.key)
            .request_number(owner.request_number_placeholder())
            .text(owner.field());
        expected.append_to(call.bytes(keys.channel()).constant(publish))
    }

    fn release_one(
        &self,
        keys: &Keys,
        owner: &Owner,
        publish: &'static str,
        known: u32,
        lease_ms: i64,
    ) -> CountingCall {
        Call::new(&scripts::RELEASE_ONE)
            .key(&keys.key)
            .request_number(owner.request_number_placeholder())
            .text(owner.field())
            .bytes(keys.channel())
            .constant(publish)
            .int(known.into())
            .int(lease_ms)
            .counting()
    }

    fn transfer(&self, keys: &Keys, from: &Owner, recipient: &TransferTarget<'_>) -> Call {
        let call = Call::new(&scripts::TRANSFER).key(&keys.key);
        let call = if recipient.fenced { call.key(keys.token()) } else { call };
        recipient.append_to(
            call.request_number(recipient.owner.request_number_placeholder())
                .text(from.field())
                .text(recipient.owner.field())
                .int(recipient.lease_ms),
        )
    }

    fn renew(&self, batch: i64, holds: &[(&Keys, &Owner)], lease_ms: i64) -> Call {
        let call = holds.iter().fold(Call::new(&scripts::RENEW), |call, (keys, _)| call.key(&keys.key));
        holds
            .iter()
            .fold(call.request_number(batch).int(lease_ms), |call, (_, owner)| call.text(owner.field()))
    }

    fn batches(&self) -> bool {
        true
    }

    fn channel(&self, keys: &Keys, _: &Owner) -> Option<Arc<[u8]>> {
        Some(keys.channel().clone())
    }
}
