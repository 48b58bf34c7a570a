//! `redlatch force-unlock`: take a lock away from the holder that was looked at, and from nobody else.

use std::{
    io::{BufRead, IsTerminal, Write, stderr, stdin},
    time::SystemTime,
};

use redlatch::Forced;

use super::{Context, lock_name};
use crate::{
    args::ForceUnlockArgs,
    escape,
    exit::{self, Failure},
    run::{acquire::quoted, kind::Detached},
    store,
    timestamp::rfc3339,
};

pub(super) fn force_unlock(args: ForceUnlockArgs, context: &Context) -> Result<u8, Failure> {
    let name = lock_name(args.name)?;
    if args.reason.trim().is_empty() {
        return Err(Failure::usage("--reason is empty; say why, for whoever looks into it later"));
    }
    let settings = context.settings()?;
    let (lock, owner) = (quoted(&name), escape::text(&args.owner).to_string());
    if !args.yes && !confirmed(&lock, &owner)? {
        return Err(Failure::usage("not confirmed; nothing was changed"));
    }
    store::with_client(&settings, async |client| {
        let held = Detached::find(client, &name, &args.owner, args.kind).await?;
        match held.force(&args.owner).await? {
            Forced::Released => {
                let (at, reason) = (rfc3339(SystemTime::now()), escape::text(&args.reason));
                context.talk.say(format_args!(
                "{at} {lock} was taken from {owner}, who learns of it at the next renewal; reason: {reason}"
            ));
                Ok(exit::OK)
            }
            Forced::WasFree => {
                Err(Failure::new(exit::LOST, format!("{lock} is free already; nothing was changed")))
            }
            _ => Err(Failure::new(
                exit::LOST,
                format!(
                    "{lock} is not held by {owner} now; nothing was changed; look again with `redlatch show`"
                ),
            )),
        }
    })
}

/// Asks the person at the terminal. A script has to say `--yes`.
fn confirmed(lock: &str, owner: &str) -> Result<bool, Failure> {
    if !stdin().is_terminal() {
        return Err(Failure::usage("force-unlock needs --yes when nobody can be asked"));
    }
    let mut line = String::new();
    let question = format!("Take {lock} from {owner}? The holder may still be at work. Type yes: ");
    let asked = stderr().write_all(question.as_bytes()).and_then(|()| stdin().lock().read_line(&mut line));
    asked.map_err(|error| Failure::internal(format!("cannot ask: {error}")))?;
    Ok(line.trim() == "yes")
}
