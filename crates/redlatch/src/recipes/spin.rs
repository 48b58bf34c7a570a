//! The spin lock's recipe: the plain lock's, of which nobody is told (`docs/protocol.md`, spin lock).

use std::sync::Arc;

use super::{AcquireArgs, ExpectedHolds, Forcing, PLAIN, Recipe, TransferTarget};
use crate::{
    call::{Call, CountingCall},
    keys::Keys,
    owner::Owner,
};

/// The scripts of the plain lock, without messages.
pub(crate) struct SpinRecipe;

pub(crate) static SPIN: SpinRecipe = SpinRecipe;

/// What stands for the publish command when nobody is to be told.
const SILENT: &str = "";

impl Recipe for SpinRecipe {
    fn acquire(&self, keys: &Keys, owner: &Owner, args: &AcquireArgs) -> Call {
        PLAIN.acquire(keys, owner, args)
    }

    fn enter(&self, keys: &Keys, owner: &Owner, lease_ms: i64) -> CountingCall {
        PLAIN.enter(keys, owner, lease_ms)
    }

    fn release(&self, keys: &Keys, owner: &Owner, _: &'static str, expected: ExpectedHolds) -> Call {
        PLAIN.release(keys, owner, SILENT, expected)
    }

    fn release_one(
        &self,
        keys: &Keys,
        owner: &Owner,
        _: &'static str,
        known: u32,
        lease_ms: i64,
    ) -> CountingCall {
        PLAIN.release_one(keys, owner, SILENT, known, lease_ms)
    }

    fn transfer(&self, keys: &Keys, from: &Owner, recipient: &TransferTarget<'_>) -> Call {
        PLAIN.transfer(keys, from, recipient)
    }

    fn renew(&self, batch: i64, holds: &[(&Keys, &Owner)], lease_ms: i64) -> Call {
        PLAIN.renew(batch, holds, lease_ms)
    }

    fn force(&self, keys: &Keys, forcing: &Forcing<'_>) -> Call {
        PLAIN.force(keys, &Forcing { publish: SILENT, ..*forcing })
    }

    fn batches(&self) -> bool {
        true
    }

    fn channel(&self, _: &Keys, _: &Owner) -> Option<Arc<[u8]>> {
        None
    }
}
