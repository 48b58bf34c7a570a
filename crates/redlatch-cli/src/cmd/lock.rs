//! `redlatch lock`: take a lock and leave it held, for scripts that release it later.

use std::time::Duration;

use redlatch::{Lease, ReplicaAck};
use serde::Serialize;

use super::{Context, lock_name};
use crate::{
    args::{LockArgs, run::Reenter},
    durations, escape,
    exit::{self, Failure},
    output::{self, Record},
    recovery,
    run::{
        acquire::{self, Acquired, Patience, Request, quoted},
        holding::Holding,
    },
    signals::Signals,
    store,
};

#[derive(Serialize)]
struct Taken {
    name: String,
    kind: &'static str,
    owner: String,
    token: Option<u64>,
    lease_ms: u64,
}

impl Record for Taken {
    const COLUMNS: &'static [&'static str] = &["NAME", "OWNER", "TOKEN", "LEASE", "KIND"];
    const NARROW: usize = 5;

    fn cells(&self) -> Vec<String> {
        let token = self.token.map(|token| token.to_string()).unwrap_or_default();
        vec![self.name.clone(), self.owner.clone(), token, format!("{}ms", self.lease_ms), self.kind.into()]
    }

    /// What `unlock` and `renew` need.
    fn name(&self) -> String {
        self.owner.clone()
    }
}

pub(super) fn lock(args: LockArgs, context: &Context) -> Result<u8, Failure> {
    let kind = args.kind.kind(std::slice::from_ref(&args.name))?;
    let names = [lock_name(args.name)?];
    let name = &names[0];
    let settings = context.settings()?;
    let patience = Patience::from(args.wait);
    let format = output::format(args.output, &settings);
    let engine = recovery::socket(&settings);
    let connecting = store::Patience { wait: args.wait.wait, talk: &context.talk };
    store::with_patient_client(&settings, connecting, async |client| {
        // Until here a signal ends the process, and nothing is lost by it.
        let mut signals = Signals::install()
            .map_err(|error| Failure::internal(format!("cannot catch signals: {error}")))?;
        let request = Request {
            client,
            names: &names,
            kind,
            lease: Lease::Fixed(args.lease),
            fenced: args.kind.fenced,
            ack: ReplicaAck::none(),
            patience,
            reenter: Reenter::Never,
            talk: context.talk,
            engine: engine.as_deref(),
        };
        let holding = match acquire::acquire(request, &mut signals).await? {
            Acquired::Held(holding) => holding,
            Acquired::Interrupted(signal) => return Ok(exit::by_signal(signal)),
            Acquired::Busy => {
                if patience.skips {
                    context.talk.detail(format_args!("{} is busy", quoted(name)));
                } else if let Some(signal) = acquire::say_who_holds(request, &mut signals).await {
                    return Ok(exit::by_signal(signal));
                }
                return Ok(patience.busy_code);
            }
        };
        let held = holding.names();
        let taken = Taken {
            name: String::from_utf8_lossy(name.as_bytes()).into_owned(),
            kind: kind.held().word(),
            owner: held.iter().map(|held| held.owner.clone()).collect(),
            token: held.iter().find_map(|held| held.token),
            lease_ms: durations::ms(args.lease),
        };
        let text =
            if args.export { export(name.as_bytes(), &taken) } else { output::rendered(format, &taken)? };
        hand_over(holding, &text).await
    })
}

/// How long giving back may take what nobody can be told of.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Prints what the caller needs to release the lock. If nobody reads it, nobody could, so the lock is given back.
async fn hand_over(holding: Holding, text: &str) -> Result<u8, Failure> {
    if let Err(error) = output::try_emit(text) {
        // The caller has gone, and signals are caught until this is done.
        if let Ok(all) = tokio::time::timeout(RELEASE_TIMEOUT, holding.release()).await {
            for left in all {
                left.outcome?;
            }
        } else {
            return Err(Failure::internal(format!(
                "cannot write to stdout: {error}; the lock could not be given back, and its lease ends it"
            )));
        }
        return Err(Failure::internal(format!("cannot write to stdout: {error}; the lock was given back")));
    }
    holding.detach();
    Ok(exit::OK)
}

/// Assignments for `eval`. The variables are those of `run`, so that a `run` of the same name enters with this hold.
fn export(name: &[u8], taken: &Taken) -> String {
    // A name that cannot be shown safely is left out: the owner alone is enough to release the lock.
    let name = match std::str::from_utf8(name) {
        Ok(text) if !text.chars().any(escape::acts_on_terminal) => {
            format!("export REDLATCH_NAME={}", quote(text))
        }
        _ => "unset REDLATCH_NAME".into(),
    };
    let token = match taken.token {
        Some(token) => format!("export REDLATCH_TOKEN={token}"),
        None => "unset REDLATCH_TOKEN".into(),
    };
    let (owner, kind) = (quote(&taken.owner), taken.kind);
    format!("{name}\nexport REDLATCH_OWNER={owner}\nexport REDLATCH_KIND={kind}\n{token}\n")
}

/// Quotes a word for a POSIX shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_survive_any_shell() {
        let taken =
            Taken { name: "n".into(), kind: "lock", owner: "u:1".into(), token: Some(3), lease_ms: 1 };
        let text = export(b"it's; rm -rf $(x)", &taken);
        assert_eq!(text.lines().next(), Some(r"export REDLATCH_NAME='it'\''s; rm -rf $(x)'"));
        assert!(
            text.ends_with(
                "export REDLATCH_OWNER='u:1'\nexport REDLATCH_KIND=lock\nexport REDLATCH_TOKEN=3\n"
            )
        );
        assert!(export(b"a\x1b", &taken).starts_with("unset REDLATCH_NAME\n"));
    }
}
