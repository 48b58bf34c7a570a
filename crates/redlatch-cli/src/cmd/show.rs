//! `redlatch show`: everything there is to know of one name.

use super::{
    Context, lock_name,
    ls::{Detail, LockRow},
};
use crate::{
    args::ShowArgs,
    exit::{self, Failure},
    output, store,
};

pub(super) fn show(args: ShowArgs, context: &Context) -> Result<u8, Failure> {
    let name = lock_name(args.name)?;
    let settings = context.settings()?;
    store::with_client(&settings, async |client| {
        let state = client.inspect(&name).await?;
        output::one(output::format(args.output, &settings), &Detail(LockRow::from(&state)))?;
        Ok(exit::OK)
    })
}
