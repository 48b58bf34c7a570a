//! `redlatch serve`: the locks as pages for a browser, and as metrics.

use std::io::{IsTerminal, stderr};

use super::{Context, scope};
use crate::{
    args::looking::ServeArgs,
    config::Secret,
    escape,
    exit::Failure,
    serve::{self, Doctor, Options},
    store,
};

pub(super) fn serve(args: &ServeArgs, context: &Context) -> Result<u8, Failure> {
    let token = args.token_file.as_deref().map(Secret::token_file).transpose()?;
    // A log keeps what it is told, and a token is not for everybody who reads it.
    if token.is_none() && (context.global.quiet || !stderr().is_terminal()) {
        return Err(Failure::usage(
            "serve tells its token on a terminal only, and not with --quiet; write one into a file and give --token-file FILE",
        ));
    }
    let settings = context.settings()?;
    let options = Options {
        place: escape::url(&settings.url),
        scope: scope(&args.names, args.limit),
        interval: args.interval,
        lease: settings.lease,
        listen: args.listen,
        token,
        allows_actions: args.allow_actions,
        doctor: Doctor::new(&settings),
    };
    store::with_client(&settings, async |client| serve::run(client, options, &context.talk).await)
}
