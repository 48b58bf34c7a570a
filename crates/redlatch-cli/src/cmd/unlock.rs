//! `redlatch unlock`: give back a lock that `lock` took.

use redlatch::Unlocked;

use super::{Context, lock_name, owner};
use crate::{
    args::UnlockArgs,
    exit::{self, Failure},
    run::{acquire::quoted, kind::Detached},
    store,
};

pub(super) fn unlock(args: UnlockArgs, context: &Context) -> Result<u8, Failure> {
    let name = lock_name(args.name)?;
    let (owner, kind) = owner(args.owner, args.kind)?;
    let settings = context.settings()?;
    store::with_client(&settings, async |client| {
        let held = Detached::find(client, &name, &owner.to_string(), kind).await?;
        match held.release(&owner).await? {
            Unlocked::Released => Ok(exit::OK),
            Unlocked::StillHeld(holds) => {
                context.talk.say(format_args!(
                    "{} is still held: entered {holds} times by this owner",
                    quoted(&name)
                ));
                Ok(exit::OK)
            }
            _ => Err(Failure::new(
                exit::UNAVAILABLE,
                format!(
                    "the release of {} by {owner} was not confirmed; repeat it, or let the lease end",
                    quoted(&name)
                ),
            )),
        }
    })
}
