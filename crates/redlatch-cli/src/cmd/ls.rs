//! `redlatch ls`: the locks there are.

use redlatch::{LockKind, LockState};
use serde::Serialize;

use super::Context;
use crate::{
    args::LsArgs,
    durations::{self, human},
    exit::{self, Failure},
    output::{self, Record},
    store,
};

/// One lock in a listing.
#[derive(Debug, Serialize)]
pub(super) struct LockRow {
    name: String,
    /// The name's bytes in hexadecimal, where they are not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    kind: &'static str,
    holders: Vec<HolderRow>,
    ttl_ms: Option<u64>,
    ttl_missing: bool,
    token: Option<u64>,
    findings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct HolderRow {
    owner: String,
    holds: i64,
}

impl From<&LockState> for LockRow {
    fn from(state: &LockState) -> Self {
        let bytes = state.name.as_bytes();
        let is_text = std::str::from_utf8(bytes).is_ok();
        LockRow {
            name: String::from_utf8_lossy(bytes).into_owned(),
            name_hex: (!is_text).then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            kind: word(state.kind),
            holders: state
                .holders
                .iter()
                .map(|holder| HolderRow { owner: holder.owner.clone(), holds: holder.holds })
                .collect(),
            ttl_ms: state.ttl.map(durations::ms),
            ttl_missing: state.ttl_missing,
            token: state.token,
            findings: state.findings.clone(),
        }
    }
}

fn word(kind: LockKind) -> &'static str {
    match kind {
        LockKind::Free => "free",
        LockKind::Lock => "lock",
        LockKind::ReadWrite => "read-write",
        _ => "other",
    }
}

impl LockRow {
    fn ttl(&self) -> String {
        match self.ttl_ms {
            Some(ms) => human(std::time::Duration::from_millis(ms)),
            None if self.ttl_missing => "never ends".into(),
            None => String::new(),
        }
    }
}

impl Record for LockRow {
    const COLUMNS: &'static [&'static str] = &["NAME", "KIND", "OWNER", "HOLDS", "TTL", "TOKEN", "FINDINGS"];
    const NARROW: usize = 5;

    fn cells(&self) -> Vec<String> {
        let owners: Vec<&str> = self.holders.iter().take(3).map(|holder| holder.owner.as_str()).collect();
        let holds: i64 = self.holders.iter().fold(0, |sum, holder| holder.holds.saturating_add(sum));
        vec![
            self.name.clone(),
            self.kind.into(),
            owners.join(","),
            if self.holders.is_empty() { String::new() } else { holds.to_string() },
            self.ttl(),
            self.token.map(|token| token.to_string()).unwrap_or_default(),
            self.findings.join("; "),
        ]
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

pub(super) fn ls(args: &LsArgs, context: &Context) -> Result<u8, Failure> {
    let settings = context.settings()?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    store::with_client(&settings, async |client| {
        let states = client.list(args.glob.as_deref(), limit).await?;
        let rows: Vec<LockRow> = states.iter().map(LockRow::from).collect();
        output::list(output::format(args.output, &settings), &rows)?;
        if rows.len() >= limit {
            context.talk.say(format_args!("the list stops at {limit}; see more with --limit"));
        }
        Ok(exit::OK)
    })
}
