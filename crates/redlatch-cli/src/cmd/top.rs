//! `redlatch top`: the same as `ls`, `why` and `force-unlock` on a whole terminal.

use std::io::{IsTerminal, stdin, stdout};

use super::{Context, force_unlock::person, scope};
use crate::{
    args::looking::TopArgs,
    escape,
    exit::Failure,
    output,
    recovery::Recovery,
    store,
    top::{self, Options},
};

pub(super) fn top(args: &TopArgs, context: &Context) -> Result<u8, Failure> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Failure::usage("top needs a terminal; without one use `redlatch ls --watch`"));
    }
    let settings = context.settings()?;
    if let Some(recovery) = Recovery::behind(&settings) {
        context.talk.say(recovery);
    }
    let options = Options {
        place: escape::url(&settings.url),
        scope: scope(&args.names, args.limit),
        interval: args.interval,
        is_colored: output::is_colored(),
        lease: settings.lease,
        by: args.by.clone().unwrap_or_else(person),
    };
    store::with_client(&settings, async |client| top::run(client, &options).await)
}
