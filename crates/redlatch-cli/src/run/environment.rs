//! The variables that the command sees, and what a nested run reads from them.

use std::{
    env,
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    time::{Duration, SystemTime},
};

use redlatch::{LockName, Owner};

use super::{holding::Name, kind::Holder};
use crate::{
    args::kind::Kind,
    config::{self, PASSWORD_ENV, SENTINEL_PASSWORD_ENV, URL_ENV},
    durations,
    timestamp::rfc3339,
};

/// Every hold of the runs around this one, so that `run a -- run b -- run a` finds its way back in.
const HOLDS: &str = "REDLATCH_HOLDS";
const NAME: &str = "REDLATCH_NAME";
const OWNER: &str = "REDLATCH_OWNER";
/// Which run the command belongs to, and by inheritance what it starts.
const RUN: &str = "REDLATCH_RUN";

/// How many nested holds are passed on. Deeper nesting contends like a stranger.
const HOLDS_MAX: usize = 32;

/// What the command is told about the hold.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    pub(crate) names: &'a [Name],
    pub(crate) kind: Kind,
    pub(crate) lease: Duration,
    pub(crate) acquired_at: SystemTime,
    pub(crate) why: Option<&'a str>,
    /// This run, as no other.
    pub(crate) run: &'a str,
}

/// A word for this run that no other has on this machine.
pub(crate) fn word_of_run(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), since.as_nanos())
}

/// The variable that marks the processes of a run.
pub(crate) fn mark(run: &str) -> String {
    format!("{RUN}={run}")
}

/// The variables to set, and those to take away: ours win over inherited ones, and no credentials are passed on.
pub(crate) fn for_command(told: &Told<'_>) -> Vec<(&'static str, Option<OsString>)> {
    let inherited = env::var(HOLDS).unwrap_or_default();
    let own = told.names.iter().map(|held| held_as(&held.name, &held.owner));
    let holds: Vec<String> =
        own.chain(inherited.split_ascii_whitespace().map(str::to_owned)).take(HOLDS_MAX).collect();
    // A NUL byte cannot be in an environment; a name that has one is known by REDLATCH_HOLDS only.
    let names = Some(told.names).filter(|names| !names.iter().any(|held| held.name.as_bytes().contains(&0)));
    let tokens: Option<Vec<String>> =
        told.names.iter().map(|held| held.token.map(|token| token.to_string())).collect();
    let url = env::var(URL_ENV).ok().map(|url| config::without_credentials(&url).into());
    vec![
        (NAME, names.map(|names| OsString::from_vec(lines(names.iter().map(|held| held.name.as_bytes()))))),
        ("REDLATCH_HELD", Some("1".into())),
        ("REDLATCH_KIND", Some(told.kind.to_string().into())),
        ("REDLATCH_TOKEN", tokens.map(|tokens| tokens.join("\n").into())),
        (OWNER, Some(OsString::from_vec(lines(told.names.iter().map(|held| held.owner.as_bytes()))))),
        (HOLDS, Some(holds.join(" ").into())),
        ("REDLATCH_LEASE_MS", Some(durations::ms(told.lease).to_string().into())),
        ("REDLATCH_ACQUIRED_AT", Some(rfc3339(told.acquired_at).into())),
        (RUN, Some(told.run.into())),
        ("REDLATCH_WHY", told.why.map(Into::into)),
        (URL_ENV, url),
        (PASSWORD_ENV, None),
        (SENTINEL_PASSWORD_ENV, None),
    ]
}

/// The owner under which a run around this one says that it holds `name`. Only the server knows whether that is still so.
pub(crate) fn outer_owner(name: &LockName) -> Option<Owner> {
    let named = env::var_os(NAME).filter(|outer| outer.as_bytes() == name.as_bytes());
    let direct = named.and_then(|_| env::var(OWNER).ok()?.parse().ok());
    direct.or_else(|| find(&env::var(HOLDS).ok()?, name.as_bytes()))
}

/// The owners under which runs around this one say that they hold something.
pub(crate) fn outer_owners() -> Vec<String> {
    let holds = env::var(HOLDS).unwrap_or_default();
    let outer = holds.split_ascii_whitespace().filter_map(|hold| hold.split_once('='));
    outer.filter(|(_, holder)| holder.parse::<Owner>().is_ok()).map(|(_, holder)| holder.to_owned()).collect()
}

/// Whether a run around this one says that it has a permit of `name`.
pub(crate) fn outer_permit(name: &LockName) -> bool {
    let holds = env::var(HOLDS).unwrap_or_default();
    let name = hex(name.as_bytes());
    let mut outer = holds.split_ascii_whitespace().filter_map(|hold| hold.split_once('='));
    outer.any(|(held, holder)| held == name && matches!(holder.parse(), Ok(Holder::Permit(_))))
}

/// A hold as the variable of holds has it.
pub(crate) fn held_as(name: &LockName, owner: &str) -> String {
    format!("{}={owner}", hex(name.as_bytes()))
}

/// What the environment of a process says of the runs that it belongs to.
#[derive(Debug)]
pub(crate) struct Hold {
    holds: String,
    run: Option<i32>,
}

impl Hold {
    /// Reads an environment as the system shows it; nothing if it is not that of a run's process.
    pub(crate) fn read(environment: &[u8]) -> Option<Self> {
        let value = |name: &str| {
            let mut all = environment.split(|byte| *byte == 0);
            all.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        let holds = std::str::from_utf8(value(HOLDS)?).ok()?.to_owned();
        let run = value(RUN).and_then(|word| std::str::from_utf8(word).ok()?.split_once('-')?.0.parse().ok());
        Some(Hold { holds, run })
    }

    /// Whether this hold is among them.
    pub(crate) fn holds(&self, held_as: &str) -> bool {
        self.holds.split_ascii_whitespace().any(|hold| hold == held_as)
    }

    /// The process of the innermost run.
    pub(crate) fn run(&self) -> Option<i32> {
        self.run
    }
}

fn find(holds: &str, name: &[u8]) -> Option<Owner> {
    let name = hex(name);
    holds.split_ascii_whitespace().find_map(|hold| {
        let (held, owner) = hold.split_once('=')?;
        if held == name { owner.parse().ok() } else { None }
    })
}

/// One line for each name, in the order of the command line.
fn lines<'a>(each: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    each.collect::<Vec<_>>().join(&b'\n')
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outer_holds_are_found_by_name() {
        let holds = format!("{}=c:1 {}=d:2 junk {}=bad", hex(b"a"), hex(b"b\0\xff"), hex(b"x"));
        assert_eq!(find(&holds, b"b\0\xff").unwrap().to_text(), "d:2");
        assert_eq!(find(&holds, b"a").unwrap().to_text(), "c:1");
        assert!(find(&holds, b"x").is_none());
        assert!(find(&holds, b"z").is_none());
    }
}
