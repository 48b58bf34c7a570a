//! The variables that the command sees, and what a nested run reads from them.

use std::{
    env,
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    time::{Duration, SystemTime},
};

use redlatch::{LockName, Owner};

use crate::{config::PASSWORD_ENV, durations, timestamp::rfc3339};

/// Every hold of the runs around this one, so that `run a -- run b -- run a` finds its way back in.
const HOLDS: &str = "REDLATCH_HOLDS";
const NAME: &str = "REDLATCH_NAME";
const OWNER: &str = "REDLATCH_OWNER";

/// How many nested holds are passed on. Deeper nesting contends like a stranger.
const HOLDS_MAX: usize = 32;

/// What the command is told about the hold.
#[derive(Debug)]
pub(crate) struct Told<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) owner: &'a Owner,
    pub(crate) token: Option<u64>,
    pub(crate) lease: Duration,
    pub(crate) acquired_at: SystemTime,
    pub(crate) why: Option<&'a str>,
}

/// The variables to set, and those to take away: ours win over inherited ones, and no credentials are passed on.
pub(crate) fn for_command(told: &Told<'_>) -> Vec<(&'static str, Option<OsString>)> {
    let owner = told.owner.to_string();
    let own = format!("{}={owner}", hex(told.name.as_bytes()));
    let inherited = env::var(HOLDS).unwrap_or_default();
    let holds: Vec<&str> =
        [own.as_str()].into_iter().chain(inherited.split_ascii_whitespace()).take(HOLDS_MAX).collect();
    // A NUL byte cannot be in an environment; a name that has one is known by REDLATCH_HOLDS only.
    let name = Some(told.name.as_bytes()).filter(|name| !name.contains(&0));
    vec![
        (NAME, name.map(|name| OsString::from_vec(name.to_vec()))),
        ("REDLATCH_HELD", Some("1".into())),
        ("REDLATCH_KIND", Some("lock".into())),
        ("REDLATCH_TOKEN", told.token.map(|token| token.to_string().into())),
        (OWNER, Some(owner.into())),
        (HOLDS, Some(holds.join(" ").into())),
        ("REDLATCH_LEASE_MS", Some(durations::ms(told.lease).to_string().into())),
        ("REDLATCH_ACQUIRED_AT", Some(rfc3339(told.acquired_at).into())),
        ("REDLATCH_WHY", told.why.map(Into::into)),
        (PASSWORD_ENV, None),
    ]
}

/// The owner under which a run around this one says that it holds `name`. Only the server knows whether that is still so.
pub(crate) fn outer_owner(name: &LockName) -> Option<Owner> {
    let named = env::var_os(NAME).filter(|outer| outer.as_bytes() == name.as_bytes());
    let direct = named.and_then(|_| env::var(OWNER).ok()?.parse().ok());
    direct.or_else(|| find(&env::var(HOLDS).ok()?, name.as_bytes()))
}

fn find(holds: &str, name: &[u8]) -> Option<Owner> {
    let name = hex(name);
    holds.split_ascii_whitespace().find_map(|hold| {
        let (held, owner) = hold.split_once('=')?;
        if held == name { owner.parse().ok() } else { None }
    })
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
        assert_eq!(find(&holds, b"b\0\xff").unwrap().to_string(), "d:2");
        assert_eq!(find(&holds, b"a").unwrap().to_string(), "c:1");
        assert!(find(&holds, b"x").is_none());
        assert!(find(&holds, b"z").is_none());
    }
}
