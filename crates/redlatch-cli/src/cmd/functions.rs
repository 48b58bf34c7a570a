//! `redlatch functions`: the scripts as a library of server functions.

use redlatch::scripts;

use super::Context;
use crate::{
    args::{FunctionsArgs, FunctionsVerb},
    exit::{self, Failure},
    output, store,
};

pub(super) fn functions(args: &FunctionsArgs, context: &Context) -> Result<u8, Failure> {
    match args.verb {
        FunctionsVerb::Show => {
            output::emit(&scripts::library())?;
            Ok(exit::OK)
        }
        FunctionsVerb::Load => {
            let mut settings = context.settings()?;
            // The one that loads the library cannot be asked to have it.
            settings.scripts = Some(redlatch::ScriptMode::Eval);
            store::with_client(&settings, async |client| {
                client.load_functions().await?;
                let library = scripts::library_name();
                context.talk.say(format_args!("{library} is loaded"));
                Ok(exit::OK)
            })
        }
    }
}
