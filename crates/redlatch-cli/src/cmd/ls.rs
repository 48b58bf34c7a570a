//! `redlatch ls`: the locks there are.

use std::io::{IsTerminal, stdout};

use super::{Context, scope};
use crate::{
    args::looking::LsArgs,
    exit::{self, Failure},
    output,
    recovery::Recovery,
    snapshot::Snapshot,
    store,
};

pub(super) fn ls(args: &LsArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    if let Some(recovery) = Recovery::behind(&settings) {
        context.talk.say(recovery);
    }
    let looked_at = scope(&args.names, args.limit);
    store::with_client(&settings, async |client| {
        let mut watch = Screen::default();
        // Nothing is held here, so a signal ends it as it ends any program.
        loop {
            let snapshot = Snapshot::take(client, &looked_at).await?;
            let rows = snapshot.rows;
            let format = output::format(args.output, &settings);
            let Some(interval) = args.watch else {
                output::list(format, &rows)?;
                if snapshot.is_cut {
                    context.talk.say(format_args!("the list stops at {}; see more with --limit", args.limit));
                }
                return Ok(exit::OK);
            };
            watch.show(output::listed(format, &rows)?)?;
            tokio::time::sleep(interval).await;
        }
    })
}

/// A list that is shown again and again: in the same place on a terminal, and elsewhere whenever it has changed.
#[derive(Default)]
struct Screen {
    shown: Option<String>,
}

impl Screen {
    fn show(&mut self, text: String) -> Result<(), Failure> {
        if stdout().is_terminal() {
            // To the top, each line over the one before, and away with what is left below.
            let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
            let clear = if self.shown.is_none() { "\x1b[2J" } else { "" };
            output::emit(&format!("{clear}\x1b[H{lines}\x1b[J"))?;
        } else if self.shown.as_ref() != Some(&text) {
            output::emit(&text)?;
        }
        self.shown = Some(text);
        Ok(())
    }
}
