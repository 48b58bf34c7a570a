//! `redlatch renew`: make a lock that `lock` took last longer.

use super::{Context, lock_name, owner};
use crate::{
    args::RenewArgs,
    durations::human,
    exit::{self, Failure},
    run::{acquire::quoted, kind::Detached},
    store,
};

pub(super) fn renew(args: RenewArgs, context: &Context) -> Result<u8, Failure> {
    let name = lock_name(args.name)?;
    let (owner, kind) = owner(args.owner, args.kind)?;
    let settings = context.settings()?;
    store::with_client(&settings, async |client| {
        let held = Detached::find(client, &name, &owner.to_string(), kind).await?;
        if held.renew(&owner, args.lease).await? {
            context.talk.detail(format_args!(
                "{} is held for another {} at least",
                quoted(&name),
                human(args.lease)
            ));
            return Ok(exit::OK);
        }
        Err(Failure::new(
            exit::LOST,
            format!("{} is not held by {owner} any more; take it again with `redlatch lock`", quoted(&name)),
        ))
    })
}
