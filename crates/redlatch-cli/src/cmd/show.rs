//! `redlatch show`: everything there is to know of one name.

use redlatch::store::StoreUrl;

use super::{Context, lock_name};
use crate::{
    args::looking::ShowArgs,
    exit::{self, Failure},
    output,
    recovery::Recovery,
    snapshot::{detail::Detail, lock_row::LockRow},
    store,
    who::Holders,
};

pub(super) fn show(args: ShowArgs, context: &Context) -> Result<u8, Failure> {
    let name = lock_name(args.name)?;
    let settings = context.settings()?;
    if let Some(recovery) = Recovery::behind(&settings) {
        context.talk.say(recovery);
    }
    store::with_client(&settings, async |client| {
        let state = client.inspect(&name).await?;
        let mut row = LockRow::from(&state);
        row.name_holders(&state, &Holders::of(client, &state).await);
        // Elsewhere the processes may be on another machine, and only the lease counts.
        if matches!(StoreUrl::parse(&settings.url), Ok(StoreUrl::Local { .. })) {
            row.find_workers(&name);
        }
        output::one(output::format(args.output, &settings), &Detail(row))?;
        Ok(exit::OK)
    })
}
