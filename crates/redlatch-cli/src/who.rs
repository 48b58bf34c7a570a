//! Who a client is, in words and as JSON: `billing@web-7:812 (deploy)`.

use std::{collections::HashMap, time::Duration};

use redlatch::{Client, ClientRecord, LockState};
use serde::Serialize;

use crate::{durations, escape};

/// How many clients of one name are asked for.
const CLIENTS_MAX: usize = 10;

/// What a client tells of itself.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Who {
    id: String,
    program: String,
    host: String,
    pid: Option<u32>,
    user: String,
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
    lives_ms: u64,
    /// How long ago it said so.
    age_ms: u64,
}

impl From<&ClientRecord> for Who {
    fn from(record: &ClientRecord) -> Self {
        Who {
            id: record.id.clone(),
            program: record.program.clone(),
            host: record.host.clone(),
            pid: record.pid,
            user: record.user.clone(),
            version: record.version.clone(),
            why: record.why.clone(),
            traceparent: record.traceparent.clone(),
            lives_ms: durations::ms(record.lives),
            age_ms: durations::ms(record.age),
        }
    }
}

/// `billing@web-7:812 (deploy)`, not escaped.
pub(crate) fn named_raw(record: &ClientRecord) -> String {
    let pid = record.pid.map(|pid| format!(":{pid}")).unwrap_or_default();
    format!("{}@{}{pid} ({})", record.program, record.host, record.user)
}

fn reason(record: &ClientRecord) -> String {
    record.why.as_deref().map(|why| format!(", because {why}")).unwrap_or_default()
}

/// `billing@web-7:812 (deploy)`. Safe to print, whichever account wrote the record.
pub(crate) fn named(record: &ClientRecord) -> String {
    escape::text(&named_raw(record)).to_string()
}

/// The same with what it does, not escaped: `billing@web-7:812 (deploy), because nightly import`.
pub(crate) fn with_reason_raw(record: &ClientRecord) -> String {
    named_raw(record) + &reason(record)
}

/// The same. Safe to print, whichever account wrote the record.
pub(crate) fn with_reason(record: &ClientRecord) -> String {
    escape::text(&with_reason_raw(record)).to_string()
}

/// `billing@web-7:812 (deploy) for 41s, because nightly import`, about one hold. Not escaped.
fn about(record: &ClientRecord, state: &LockState, owner: &str) -> String {
    let lasts = lasts(record, state, owner).map(|lasts| format!(" for {}", durations::human(lasts)));
    format!("{}{}{}", named_raw(record), lasts.unwrap_or_default(), reason(record))
}

/// For how long the client has held, as it tells.
fn lasts(record: &ClientRecord, state: &LockState, owner: &str) -> Option<Duration> {
    record.hold(&state.name, owner.strip_suffix(":write").unwrap_or(owner)).map(|hold| hold.lasts)
}

/// What the clients of the holders tell, by the holders' owners.
#[derive(Default)]
pub(crate) struct Holders(HashMap<String, ClientRecord>);

impl Holders {
    /// Asks for those of one name. Only a courtesy: who is not told of is left out, and an account without the right learns of nobody.
    pub(crate) async fn of(client: &Client, state: &LockState) -> Self {
        let mut found = HashMap::new();
        for holder in state.holders.iter().take(CLIENTS_MAX) {
            match client.client_record(&holder.owner).await {
                Ok(Some(record)) => _ = found.insert(holder.owner.clone(), record),
                Ok(None) => {}
                Err(_) => break,
            }
        }
        Holders(found)
    }

    /// Those of several names, of the clients that are known.
    pub(crate) fn among(clients: &[ClientRecord], states: &[LockState]) -> Self {
        let by_id: HashMap<&str, &ClientRecord> =
            clients.iter().map(|record| (&*record.id, record)).collect();
        let owners = states.iter().flat_map(|state| &state.holders).map(|holder| &holder.owner);
        let of = |owner: &String| {
            let id = owner.split(':').next()?;
            Some((owner.clone(), (*by_id.get(id)?).clone()))
        };
        Holders(owners.filter_map(of).collect())
    }

    /// Who a holder is, for JSON and in words that are not escaped, and for how long it has held.
    pub(crate) fn get(&self, state: &LockState, owner: &str) -> Option<(Who, String, Option<Duration>)> {
        let record = self.0.get(owner)?;
        Some((Who::from(record), about(record, state, owner), lasts(record, state, owner)))
    }

    /// ` of billing@web-7:812 (deploy) for 41s, because nightly import`; nothing for a holder whose client tells nothing.
    pub(crate) fn told(&self, state: &LockState, owner: &str) -> String {
        let about = self.0.get(owner).map(|record| about(record, state, owner));
        about.map(|about| format!(" of {}", escape::text(&about))).unwrap_or_default()
    }
}
