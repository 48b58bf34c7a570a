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
        return Err(Failure::usage("--reason is empty; give a reason, which the holder is told"));
    }
    let settings = context.settings()?;
    let (lock, owner) = (quoted(&name), escape::text(&args.owner).to_string());
    if !args.yes && !confirmed(&lock, &owner)? {
        return Err(Failure::usage("not confirmed; nothing was changed"));
    }
    store::with_client(&settings, async |client| {
        let held = Detached::find(client, &name, &args.owner, args.kind).await?;
        let by = args.by.clone().unwrap_or_else(person);
        match held.force(&args.owner, &by, &args.reason).await? {
            Forced::Released => {
                let (at, reason) = (rfc3339(SystemTime::now()), escape::text(&args.reason));
                let by = escape::text(&by);
                context
                    .talk
                    .say(format_args!("{at} {lock} was taken from {owner} by {by}; reason: {reason}"));
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

/// Who runs the command, as the holder is told.
pub(super) fn person() -> String {
    let user =
        ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{user}@{host}").replace('\n', " ")
}

/// Asks the person at the terminal. A script has to say `--yes`.
fn confirmed(lock: &str, owner: &str) -> Result<bool, Failure> {
    if !stdin().is_terminal() {
        return Err(Failure::usage(
            "force-unlock cannot ask for confirmation without a terminal; give --yes",
        ));
    }
    let mut line = String::new();
    let question = format!("Take {lock} from {owner}? The holder may still be at work. Type yes: ");
    let asked = stderr().write_all(question.as_bytes()).and_then(|()| stdin().lock().read_line(&mut line));
    asked.map_err(|error| Failure::internal(format!("cannot ask: {error}")))?;
    Ok(line.trim() == "yes")
}
